// Deck section context: attention over a sequence that is cut.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::context {

inline const auto method = add_key<std::string>({.name = "context.method",
                                                 .value = "ring",
                                                 .choices = {"ring", "all_gather", "all_to_all"},
                                                 .on_resume = OnResume::told,
                                                 .help = "how queries meet the keys and values of other ranks"});

}  // namespace orthant::keys::context
