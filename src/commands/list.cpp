// The registry of commands.
#include <algorithm>

#include "orthant/command.hpp"

namespace orthant {

static std::vector<Command>& registry() {
  static std::vector<Command> all;
  return all;
}

bool add_command(Command command) {
  auto& all = registry();
  auto at = std::lower_bound(all.begin(), all.end(), command, [](const Command& a, const Command& b) { return a.name < b.name; });
  all.insert(at, std::move(command));
  return true;
}

const std::vector<Command>& commands() { return registry(); }

}  // namespace orthant
