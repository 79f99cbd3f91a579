// Errors that reach a user, and the exit codes they end with.
//
// Absence that is normal is an optional; a programmer's mistake is `ensure`; a mistake of the user or of the
// system is one of the classes below. They are thrown anywhere and caught once, in main.cpp.
#pragma once

#include <stdexcept>
#include <string>

namespace orthant {

/// Exit codes of the program (the job scripts depend on them).
enum class Exit : int {
  done = 0,
  check_failed = 1,  ///< verify, inspect --verify
  usage = 2,         ///< wrong usage, deck or mesh
  data = 3,          ///< bad data, checkpoint or model file, unwritable folder, failed last save
  fault = 4,         ///< hang or fault seen by the program
  diverged = 5,      ///< training diverged past the allowed skips
  stopped = 75,      ///< stopped early with a complete checkpoint: run me again
};

/// A failure with the exit code it maps to. `agreed` says that every rank throws the same error at the same
/// place (so rank 0 alone prints it and all leave in good order); without it the rank that throws prints and
/// calls MPI_Abort. `collectively` in support/agree.hpp turns the second kind into the first.
class Error : public std::runtime_error {
 public:
  Error(Exit code, const std::string& message, bool agreed = false)
      : std::runtime_error(message), code_(code), agreed_(agreed) {}
  Exit code() const { return code_; }
  bool agreed() const { return agreed_; }

 private:
  Exit code_;
  bool agreed_;
};

/// Wrong usage, deck or mesh: exit 2.
struct UsageError : Error {
  explicit UsageError(const std::string& m, bool agreed = false) : Error(Exit::usage, m, agreed) {}
};
/// Bad data, checkpoint or model file; a folder that cannot be written: exit 3.
struct DataError : Error {
  explicit DataError(const std::string& m, bool agreed = false) : Error(Exit::data, m, agreed) {}
};
/// A fault of the machine or of a library: exit 4.
struct FaultError : Error {
  explicit FaultError(const std::string& m, bool agreed = false) : Error(Exit::fault, m, agreed) {}
};
/// The program contradicts itself (a programmer's mistake): exit 4.
struct LogicError : Error {
  explicit LogicError(const std::string& m) : Error(Exit::fault, m) {}
};

[[noreturn]] void ensure_failed(const char* condition, const char* file, int line, const std::string& message);

/// Throws LogicError with file and line unless `condition` holds. Stays in release builds.
#define ORTHANT_ENSURE(condition, message)                                                    \
  do {                                                                                        \
    if (!(condition)) ::orthant::ensure_failed(#condition, __FILE__, __LINE__, (message));    \
  } while (0)

}  // namespace orthant
