// orthant train DECK [--preflight] [key=value …]
#include <CLI/CLI.hpp>

#include "commands/parse.hpp"
#include "orthant/command.hpp"
#include "train/loop.hpp"

namespace orthant {
namespace {

int run(const CommandArgs& args) {
  CLI::App app("Trains the model of a deck on as many ranks as its mesh says.", "orthant train");
  std::string deck;
  std::vector<std::string> overrides;
  bool preflight = false;
  app.add_option("deck", deck, "TOML file (orthant help deck)")->required();
  app.add_option("overrides", overrides, "section.key=value, after the deck");
  app.add_flag("--preflight", preflight, "measure the nodes before step 1");
  if (!parse(app, args)) return 0;
  if (preflight) throw UsageError("--preflight is not in this build", true);
  return train(args.world, deck, overrides);
}

const bool added = add_command({"train", "trains the model of a deck", true, true, run});

}  // namespace
}  // namespace orthant
