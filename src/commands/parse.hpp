// Command lines: CLI11 with our errors.
#pragma once

#include "orthant/command.hpp"
#include "orthant/error.hpp"

namespace CLI {
class App;
}

namespace orthant {

/// Parses; false when help was asked for (and printed). UsageError (agreed) when the line is wrong.
bool parse(CLI::App& app, const CommandArgs& args);

}  // namespace orthant
