// See parse.hpp.
#include "commands/parse.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

namespace orthant {

bool parse(CLI::App& app, const CommandArgs& args) {
  std::vector<std::string> words(args.args.rbegin(), args.args.rend());  // CLI11 takes them last first
  try {
    app.parse(words);
    return true;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& e) {
    throw UsageError(std::string(e.what()) + " (" + app.get_name() + " --help shows the usage)", true);
  }
}

}  // namespace orthant
