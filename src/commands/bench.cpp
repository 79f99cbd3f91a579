// orthant bench step|io DECK …: which measurement, and its options.
#include "commands/bench.hpp"

#include <CLI/CLI.hpp>

#include "commands/parse.hpp"

namespace orthant {
namespace {

int run(const CommandArgs& args) {
  CLI::App app("Measured rates on this machine, as one JSON line.", "orthant bench");
  std::string deck;
  std::vector<std::string> overrides;
  int64_t steps = 10, warm = 2, repeat = 3;
  CLI::App* step = app.add_subcommand("step", "training steps of a deck, on random tokens");
  CLI::App* io = app.add_subcommand("io", "checkpoints of a deck: write and read");
  for (CLI::App* sub : {step, io}) {
    sub->add_option("deck", deck, "TOML file")->required();
    sub->add_option("overrides", overrides, "section.key=value, after the deck");
  }
  step->add_option("--steps", steps, "timed steps")->check(CLI::PositiveNumber)->capture_default_str();
  step->add_option("--warm", warm, "steps before them")->check(CLI::NonNegativeNumber)->capture_default_str();
  io->add_option("--repeat", repeat, "times each is measured")->check(CLI::Range(1, 1000))->capture_default_str();
  io->footer(bench_io_notes);
  const std::string what = args.args.empty() ? "" : args.args[0];
  if (what == "gemm" || what == "comm") throw UsageError("bench " + what + " is not in this build; bench step and bench io are", true);
  if (what.empty() || (what[0] != '-' && what != "step" && what != "io"))
    throw UsageError((what.empty() ? "bench" : "bench " + what) + ": what is to be measured? bench step DECK or bench io DECK", true);
  app.require_subcommand(1);
  if (!parse(app, args)) return 0;
  return io->parsed() ? bench_io(args, deck, overrides, repeat) : bench_step(args, deck, overrides, steps, warm);
}

const bool added = add_command({"bench", "measures rates on this machine (bench step DECK, bench io DECK)", true, true, run});

}  // namespace
}  // namespace orthant
