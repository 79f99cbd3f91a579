// orthant bench step|io|comm|ops|gemm …: which measurement, and its options.
#include "commands/bench.hpp"

#include <CLI/CLI.hpp>

#include "commands/parse.hpp"

namespace orthant {
namespace {

int run(const CommandArgs& args) {
  CLI::App app("Measured rates on this machine.", "orthant bench");
  std::string deck;
  std::vector<std::string> overrides;
  int64_t steps = 10, warm = 2, repeat = 3;
  CLI::App* step = app.add_subcommand("step", "training steps of a deck, on random tokens, as one JSON line");
  CLI::App* io = app.add_subcommand("io", "checkpoints of a deck: write and read, as one JSON line");
  CLI::App* comm = app.add_subcommand("comm", "collectives on each axis of a mesh, and on all ranks");
  for (CLI::App* sub : {step, io}) {
    sub->add_option("deck", deck, "TOML file")->required();
    sub->add_option("overrides", overrides, "section.key=value, after the deck");
  }
  step->add_option("--steps", steps, "timed steps")->check(CLI::PositiveNumber)->capture_default_str();
  step->add_option("--warm", warm, "steps before them")->check(CLI::NonNegativeNumber)->capture_default_str();
  io->add_option("--repeat", repeat, "times each is measured")->check(CLI::Range(1, 1000))->capture_default_str();
  io->footer(bench_io_notes);
  CommSettings comm_settings;
  std::vector<std::string> words;
  comm->add_option("words", words, "TOML file and section.key=value, or mesh.tp=2 and the like alone");
  comm->add_option("--min", comm_settings.least, "bytes of the first message (64, 4KiB, …)")->transform(CLI::AsSizeValue(false))->capture_default_str();
  comm->add_option("--max", comm_settings.most, "bytes of the last one, each being twice the one before; at most 1GiB")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  comm->add_option("--ops", comm_settings.ops, "operations, such as all_reduce,broadcast (all of them)");
  CLI::Option* seconds = comm->add_option("--seconds", comm_settings.seconds, "time for the calls of a row, of which there are 2 to 10000")
                             ->check(CLI::Range(0.0, 600.0))
                             ->capture_default_str();
  CLI::Option* repeat_calls = comm->add_option("--repeat", comm_settings.repeat, "calls of a row, instead of a time")->check(CLI::Range(1, 10000));
  CLI::Option* csv = comm->add_option("--csv", comm_settings.csv, "file for the rows, beside the table; - = standard output, instead of the table");
  repeat_calls->excludes(seconds);
  comm->add_flag("--check", comm_settings.check_only, "check the results and time nothing")->excludes(csv)->excludes(seconds)->excludes(repeat_calls);
  comm->footer(bench_comm_notes);
  CLI::App* ops = app.add_subcommand("ops", "products and attention on one device, one by one");
  CLI::App* gemm = app.add_subcommand("gemm", "the products of bench ops alone");
  OpsSettings ops_settings;
  for (CLI::App* sub : {ops, gemm}) {
    sub->add_option("--backend", ops_settings.backend, "cpu, cuda or auto")->capture_default_str();
    sub->add_option("--sizes", ops_settings.sizes, "small or full")->capture_default_str();
    sub->add_option("--types", ops_settings.types, "a list of fp32, tf32 (products of fp32 in TF32, where the device has it), bf16 and fp16")->capture_default_str();
    sub->add_option("--repeat", ops_settings.repeat, "timings of a case, whose median counts")->check(CLI::Range(1, 1000))->capture_default_str();
    sub->add_option("--seconds", ops_settings.seconds, "time for the calls of a timing")->check(CLI::Range(0.0, 60.0))->capture_default_str();
    sub->add_option("--json", ops_settings.json, "file for the rows, beside the table; - = standard output, instead of the table");
    sub->footer(bench_ops_notes);
  }
  const std::string what = args.args.empty() ? "" : args.args[0];
  if (what.empty() || (what[0] != '-' && what != "step" && what != "io" && what != "comm" && what != "ops" && what != "gemm"))
    throw UsageError((what.empty() ? "bench" : "bench " + what) + ": what is to be measured? bench step DECK, bench io DECK, bench comm, bench ops or bench gemm", true);
  app.require_subcommand(1);
  if (!parse(app, args)) return 0;
  if (comm->parsed()) return bench_comm(args, words, comm_settings);
  ops_settings.attention = ops->parsed();
  if (ops->parsed() || gemm->parsed()) return bench_ops(args, ops_settings);
  return io->parsed() ? bench_io(args, deck, overrides, repeat) : bench_step(args, deck, overrides, steps, warm);
}

const bool added = add_command({"bench", "measures rates on this machine (bench step DECK, bench io DECK, bench comm, bench ops)", true, true, run});

}  // namespace
}  // namespace orthant
