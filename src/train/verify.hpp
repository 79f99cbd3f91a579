// The parity gate: the same few training steps on several layouts of the ranks, and how far apart they end.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "train/verify_run.hpp"

namespace orthant {

struct VerifySettings {
  std::string layouts = "all";  ///< "all", or as read_layouts takes them
  int64_t steps = 5;
  std::optional<double> bound;  ///< instead of the precision's own, see bound_of
  bool repeat = false;          ///< each layout twice, which has to give the same bits
};

/// How far a layout may be from the reference at any step.
struct ParityBound {
  double loss = 2e-5;
  bool loss_relative = false;
  double norm = 1e-3;  ///< relative; infinite: any
  bool bits = false;   ///< losses, norms and weights have to have the same bits
};

/// fp32: 2e-5 in loss, 1e-3 relative in norm (regression/README.md); bf16: 2 % of the loss, any norm; reproducible
/// mode: the same bits. `given` replaces the bound of the loss, and that of fp32's norm in proportion; 0 asks for
/// bits.
ParityBound bound_of(const RunPlan& plan, const std::optional<double>& given);
std::string text_of(const ParityBound& bound);

/// Largest differences of a curve, and the first step that is past the bound (from 1; 0: none). A loss or norm that
/// is not finite in either curve is infinitely far.
struct CurveDifference {
  double loss = 0, norm = 0;  ///< as the bound counts them; norm is relative
  int64_t past = 0;
  bool same_bits = true;
};
CurveDifference compare_curves(const Curve& curve, const Curve& reference, const ParityBound& bound);

/// Runs `orthant verify`: prints a table on rank 0 and returns 0, or 1 when a layout is past the bound, its replicas
/// have drifted apart, a repetition differs, or a layout that was asked for by name is refused. The reference is one
/// rank; where one rank has not the memory, it is the first layout. Collective over `world`.
int verify(MPI_Comm world, const std::string& deck, const std::vector<std::string>& overrides,
           const VerifySettings& settings);

}  // namespace orthant
