// orthant train DECK [--preflight] [key=value …]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "commands/parse.hpp"
#include "orthant/command.hpp"
#include "support/agree.hpp"
#include "train/loop.hpp"
#include "train/preflight.hpp"
#include "train/session.hpp"
#include "train/signals.hpp"

namespace orthant {
namespace {

/// Measures the nodes for a deck that has been found right. False: a save-and-stop signal came meanwhile, to any
/// rank.
bool preflight_for(MPI_Comm world, const std::string& deck, const std::vector<std::string>& overrides,
                   PreflightSettings settings) {
  {
    const RunPlan plan = make_plan(world, deck, overrides);
    settings.backend = plan.deck[keys::device::backend];
    settings.transport = plan.deck[keys::comm::transport];
    settings.gpu_aware = plan.deck[keys::comm::gpu_aware];
    settings.type = plan.precision.compute;
    settings.tf32 = plan.deck[keys::precision::tf32];
  }
  watch_signals();  // they would end the process until the training watches them
  preflight(world, settings);
  int signal = signal_seen();
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &signal, 1, MPI_INT, MPI_MAX, world));
  return signal == 0;
}

int run(const CommandArgs& args) {
  CLI::App app("Trains the model of a deck on as many ranks as its mesh says.", "orthant train");
  std::string deck;
  std::vector<std::string> overrides;
  PreflightSettings settings;
  app.add_option("deck", deck, "TOML file (orthant help deck)")->required();
  app.add_option("overrides", overrides, "section.key=value, after the deck");
  CLI::Option* flag =
      app.add_option("--preflight", settings.seconds,
                     "measure products, memory and all-reduce of every node before step 1 and name those "
                     "below 0.8 x the others; alone it means --preflight=10, the seconds it takes in all")
          ->check(CLI::Range(0.1, 600.0));
  CLI::Option* require = app.add_option("--preflight-require", settings.require,
                                        "the same, and exit 4 if a node is below this share of the others (their "
                                        "median; of two, the better)")
                             ->check(CLI::Range(0.0, 1.0));
  // an option whose value may be left out would take the override behind it
  CommandArgs spelt = args;
  std::replace(spelt.args.begin(), spelt.args.end(), std::string("--preflight"), std::string("--preflight=10"));
  if (!parse(app, spelt)) return 0;
  if ((flag->count() > 0 || require->count() > 0) && !preflight_for(args.world, deck, overrides, settings)) {
    if (args.rank == 0)
      std::printf(
          "stopped by a signal during the preflight check: nothing was begun, the same command starts again\n");
    return static_cast<int>(Exit::stopped);
  }
  return train(args.world, deck, overrides);
}

const bool added = add_command({"train", "trains the model of a deck", true, true, run});

}  // namespace
}  // namespace orthant
