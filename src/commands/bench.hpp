// The measurements of `orthant bench`, one file each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "orthant/command.hpp"

namespace orthant {

/// `steps` timed training steps on random tokens after `warm` others; rank 0 prints one JSON line. Collective.
int bench_step(const CommandArgs& args, const std::string& deck, const std::vector<std::string>& overrides, int64_t steps,
               int64_t warm);

/// Writes and reads the state that the deck trains, `repeat` times; rank 0 prints one JSON line. Collective.
/// UsageError if its folder is there already, DataError if a write or a read fails.
int bench_io(const CommandArgs& args, const std::string& deck, const std::vector<std::string>& overrides, int64_t repeat);

struct CommSettings {
  int64_t least = 8, most = int64_t{1} << 20;  ///< bytes of the first and of the last message; each is twice the one before
  std::string ops;                             ///< a list of operations; empty = all
  double seconds = 0.02;                       ///< that the calls of a row should take
  int64_t repeat = 0;                          ///< calls of a row; 0: as many as `seconds` has room for, 2 to 10000
  std::string csv;                             ///< file of the rows, or "-" for standard output
  bool check_only = false;                     ///< results are checked, and nothing is timed
};

/// Checks and times each operation on each axis of a mesh with more than one rank, and on the world; rank 0 prints a table.
/// `words` are a deck and overrides, or overrides of the mesh alone. Collective. FaultError (agreed) naming axis,
/// operation, bytes and rank where a result is wrong.
int bench_comm(const CommandArgs& args, const std::vector<std::string>& words, const CommSettings& settings);

struct OpsSettings {
  std::string backend = "auto";                  ///< as device.backend
  std::string sizes = "full";                    ///< see op_sizes
  std::string types = "fp32,bf16,fp16";
  bool attention = true;                         ///< false: products alone
  int64_t repeat = 5;                            ///< timings of a case
  double seconds = 0.02;                         ///< that the calls of a timing should take
  std::string json;                              ///< file, or "-" for standard output in place of the table
};

/// Checks and times products and attention on one device; prints a table. UsageError with more than one rank, FaultError
/// where a result is wrong, DataError where the file cannot be written.
int bench_ops(const CommandArgs& args, const OpsSettings& settings);

/// For `orthant bench ops --help`: what is measured, and the sizes.
extern const char* const bench_ops_notes;

/// For `orthant bench comm --help`: what is measured, and what the columns mean.
extern const char* const bench_comm_notes;

/// For `orthant bench io --help`: what is timed, and what becomes of caches.
extern const char* const bench_io_notes;

}  // namespace orthant
