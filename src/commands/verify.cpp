// orthant verify DECK [--layouts all|"tp2,pp2;dp4"] [--steps N] [--bound X] [--repeat] [key=value …]
#include "train/verify.hpp"

#include <CLI/CLI.hpp>

#include "commands/parse.hpp"
#include "orthant/command.hpp"

namespace orthant {
namespace {

int run(const CommandArgs& args) {
  CLI::App app(
      "Trains a few steps on several layouts of the ranks, from the same weights and samples, and compares losses, "
      "gradient norms and weights. Exit 1 past the bound.",
      "orthant verify");
  std::string deck;
  std::vector<std::string> overrides;
  VerifySettings settings;
  double bound = -1;
  app.add_option("deck", deck, "TOML file (orthant help deck)")->required();
  app.add_option("overrides", overrides, "section.key=value, after the deck");
  app.add_option("--layouts", settings.layouts,
                 "all, or layouts such as \"tp2,pp2;dp4;tp2,cp2,sp\": tpN cpN ppN dpN epN etpN, sp, vN (virtual "
                 "stages), z0 to z3 (ZeRO), a context method, a schedule")
      ->capture_default_str();
  app.add_option("--steps", settings.steps, "training steps on each layout")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--bound", bound,
                 "largest difference in loss; fp32's in gradient norm is 50 times that, relative; 0 asks for the "
                 "same bits (2e-5 in fp32, 0.02 relative in "
                 "bf16, 0 in reproducible mode)")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--repeat", settings.repeat, "run each layout twice: it has to give the same bits");
  if (!parse(app, args)) return 0;
  if (bound >= 0) settings.bound = bound;
  return verify(args.world, deck, overrides, settings);
}

const bool added = add_command({"verify", "compares a few steps on several layouts of the ranks", true, true, run});

}  // namespace
}  // namespace orthant
