// Registers every section of the deck: including a section's header is what declares its keys.
#include "deck/all_keys.hpp"
#include "deck/registry.hpp"

namespace orthant {

// Called by the registry, so that this file is linked in (and its keys registered) wherever a deck is used.
void keep_all_keys() {}

}  // namespace orthant
