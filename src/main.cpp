// Entry point: starts MPI, finds the command, runs it, and turns errors into one message and an exit code.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "orthant/command.hpp"
#include "orthant/error.hpp"
#include "support/versions.hpp"

namespace {

using namespace orthant;

void print_usage(FILE* out) {
  std::fputs("orthant <command> …   trains transformer language models on a mesh of MPI ranks\n\n", out);
  for (const Command& c : commands()) std::fprintf(out, "  %-10s %s\n", c.name.c_str(), c.summary.c_str());
  std::fputs("\n`orthant <command> --help` explains a command, `orthant help deck` every deck parameter, `orthant --version` the build.\n", out);
}

/// Tasks that the launcher says it started, or 0: to notice N independent copies where N ranks were meant.
long launched_tasks(const char** source) {
  for (const char* name : {"SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* v = std::getenv(name)) {
      // sbatch and salloc set SLURM_NTASKS for the shell too; only inside a step is there a rank of its own
      if (std::strcmp(name, "SLURM_NTASKS") == 0 && !std::getenv("SLURM_PROCID")) continue;
      if (std::strcmp(name, "SLURM_NTASKS") == 0 && std::getenv("OMPI_COMM_WORLD_SIZE")) continue;  // mpirun inside an allocation
      *source = name;
      return std::atol(v);
    }
  return 0;
}

void refuse_singletons(const CommandArgs& args) {
  const char* source = "";
  long tasks = launched_tasks(&source);
  if (args.ranks != 1 || tasks <= 1) return;
  for (const std::string& a : args.args)
    if (a == "run.allow_singletons=true") return;
  throw UsageError("the launcher started " + std::to_string(tasks) + " tasks (" + source + "), but MPI sees 1 rank: each would train alone and overwrite the others. "
                   "With srun use --mpi=pmix (srun --mpi=list shows what there is) or mpirun; run.allow_singletons=true overrides this check");
}

int report(const Error& e, const CommandArgs& args) {
  int code = static_cast<int>(e.code());
  if (e.agreed() || args.ranks == 1) {
    // every rank is here with the same error: one voice, an orderly end
    if (args.rank == 0) std::fprintf(stderr, "orthant: %s\n", e.what());
    MPI_Finalize();
    return code;
  }
  // This rank alone knows. Lower ranks speak first, so that one message appears even when several fail at once; the abort
  // ends all others.
  std::this_thread::sleep_for(std::chrono::milliseconds(std::min(50 * args.rank, 2000)));
  std::fprintf(stderr, "orthant: rank %d: %s\n", args.rank, e.what());
  std::fflush(stderr);
  MPI_Abort(args.world, code);
  return code;
}

int run_command(const Command& command, CommandArgs& args, int* argc, char*** argv) {
  if (!command.needs_mpi) {
    try {
      return command.run(args);
    } catch (const Error& e) {
      std::fprintf(stderr, "orthant: %s\n", e.what());
      return static_cast<int>(e.code());
    }
  }
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided);
  args.world = MPI_COMM_WORLD;
  MPI_Comm_set_errhandler(args.world, MPI_ERRORS_RETURN);
  MPI_Comm_rank(args.world, &args.rank);
  MPI_Comm_size(args.world, &args.ranks);
  try {
    refuse_singletons(args);
    if (args.ranks > 1 && !command.many_ranks) throw UsageError("`orthant " + command.name + "` runs on one rank, " + std::to_string(args.ranks) + " were launched", true);
    int code = command.run(args);
    MPI_Finalize();
    return code;
  } catch (const Error& e) {
    return report(e, args);
  } catch (const std::bad_alloc&) {
    return report(FaultError("out of memory"), args);
  } catch (const std::exception& e) {
    return report(FaultError(e.what()), args);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CommandArgs args;
  for (int i = 2; i < argc; ++i) args.args.emplace_back(argv[i]);
  std::string name = argc > 1 ? argv[1] : "";
  if (name == "--version") return std::fputs(orthant::version_text().c_str(), stdout), 0;
  if (name == "--help" || name == "-h" || (name == "help" && args.args.empty())) return print_usage(stdout), 0;
  for (const Command& c : commands()) {
    if (c.name != name) continue;
    Command command = c;
    // help works where MPI cannot start, such as a login node
    if (std::any_of(args.args.begin(), args.args.end(), [](const std::string& a) { return a == "--help" || a == "-h"; })) command.needs_mpi = false;
    return run_command(command, args, &argc, &argv);
  }
  // commands that the contract with users knows and this build lacks
  for (const char* missing : {"eval"})
    if (name == missing) return std::fprintf(stderr, "orthant: the command `%s` is not in this build\n", missing), static_cast<int>(orthant::Exit::usage);
  if (name.empty()) std::fputs("orthant: a command is missing\n\n", stderr);
  else std::fprintf(stderr, "orthant: there is no command `%s`\n\n", name.c_str());
  print_usage(stderr);
  return static_cast<int>(orthant::Exit::usage);
}
