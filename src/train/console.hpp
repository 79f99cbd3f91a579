// What rank 0 shows: a header, a line every few steps, a progress bar on a terminal.
#pragma once

#include <mpi.h>

#include <string>

#include "orthant/mesh.hpp"
#include "train/session.hpp"

namespace orthant {

/// Floating-point operations a token costs in a training step (6 x multiply-adds, causal half of attention): independent of the layout and of recompute.
double flops_per_token(const ModelConfig& config, int64_t sequence);

/// Mesh with its mapping to nodes, model, memory and traffic plan, libraries.
std::string header_text(const Session& session, const Mesh& mesh, const MemoryAccount& planned, const MemoryLimit& limit, int64_t steps);
/// Table of rank, coordinates, host, cores, threads and device, for a few ranks at most, and a warning where a node has more
/// threads than cores. Collective; text on rank 0.
std::string ranks_text(const Mesh& mesh, const std::string& device, int threads);

struct StepLine {
  int64_t step = 0, steps = 0;
  double loss = 0, lr = 0, grad_norm = 0, tokens_per_s = 0, seconds = 0, tflops_per_rank = 0, left_s = 0;
};
std::string step_text(const StepLine& line);

/// Writes lines to standard output; on a terminal keeps a progress bar below them.
class Console {
 public:
  explicit Console(bool shown);
  ~Console() { clear_bar(); }
  void line(const std::string& text);
  void progress(const StepLine& at);
  /// Something went wrong and the run goes on: one line on standard error.
  void fault(const std::string& text);

 private:
  void clear_bar();
  bool shown_, terminal_, bar_ = false;
};

std::string duration_text(double seconds);
std::string bytes_text(double bytes);

}  // namespace orthant
