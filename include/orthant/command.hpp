// A command of the program: `orthant <name> …`. Each file in src/commands/ registers its own.
#pragma once

#include <mpi.h>

#include <functional>
#include <string>
#include <vector>

namespace orthant {

/// What a command is given. `world` is MPI_COMM_NULL for commands that run without MPI (help).
struct CommandArgs {
  std::vector<std::string> args;  ///< everything after the command's name
  MPI_Comm world = MPI_COMM_NULL;
  int rank = 0;
  int ranks = 1;
};

struct Command {
  std::string name;
  std::string summary;    ///< one line for `orthant --help`
  bool needs_mpi = true;  ///< false: runs before MPI_Init (works on a login node)
  bool many_ranks = false;  ///< may be launched on more than one rank
  std::function<int(const CommandArgs&)> run;  ///< returns the exit code
};

/// Adds a command at static initialisation: `static const bool added = add_command({...});`
bool add_command(Command command);
/// All commands, by name.
const std::vector<Command>& commands();

}  // namespace orthant
