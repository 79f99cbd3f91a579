// precision.compute = "fp8": formats and scales of the products of the blocks' linear layers.
//
//   y = x W^T        x, W by columns: blocks lie along what a product is summed over
//   dx = dy W        dy by columns, W by rows
//   dW = dy^T x      dy, x by rows
//
//   delayed     one scale a tensor, from the largest numbers of earlier steps: for each weight three histories (x, W, dy)
//   current     one scale a tensor, from the tensor itself; what tp cuts has one scale on all ranks of tp. Ranks of cp and dp
//               see other tokens, and each has the scale of its own: a message in every product would buy nothing
//   blockwise   x, dy: 1 x 128 blocks along the sum, W: 128 x 128. Scales are powers of two, as quantising a second time (by
//               rows after by columns) then moves no number that fits both grids, and the emulation on the host is exact
//   mxfp8       1 x 32 blocks along the sum, power-of-two scales as in the OCP recipe
//
// x and W are E4M3 and dy is E5M2, but with mxfp8, where all are E4M3.
//
// Delayed: scale = largest of the format / amax / 2^margin (Transformer Engine's rule), amax the largest entry of the history or
// its newest. A history gets one entry a step: the largest number in all micro-batches on all ranks of the stage, sent once a
// step. The scale of a step comes from the steps before it; without any it is 1, so the first step of a run, or the first behind
// a checkpoint without histories, is the one that fills them. What saw no data (an expert without tokens), or had a number that
// is not finite, keeps history and scale. Evaluation and recompute read scales and leave no trace. A step whose update is skipped
// counts: its numbers were seen, and a scale that had become too small is how the next step is good again.
//
// Nothing is quantised twice that has the same numbers: x and dy with one scale a tensor (operand.hpp), whose FP8 numbers also
// travel in their stead under sequence parallelism, and each weight within a
// step, whose FP8 copy costs its byte (mxfp8: one by rows and one by columns) from the first step on. Where weights are gathered
// for each use (ZeRO 3) no copy is kept, which would hold on every rank what was cut to save memory.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "layers/operand.hpp"
#include "orthant/checkpoint.hpp"
#include "orthant/context.hpp"
#include "orthant/model_config.hpp"

namespace orthant {

enum class Fp8Recipe { delayed, current, blockwise, mxfp8 };
/// Whether a tensor has one scale, whichever way its products are summed.
inline bool one_scale(Fp8Recipe r) { return r == Fp8Recipe::delayed || r == Fp8Recipe::current; }

struct Fp8Settings {
  Fp8Recipe recipe = Fp8Recipe::delayed;
  int64_t history = 1024;    ///< entries, one a step
  bool most_recent = false;  ///< the newest entry sets the scale, not the largest
  int margin = 0;            ///< powers of two of head room
  int64_t keep_ends = 0;     ///< first and last blocks of the model that stay in bf16
};

/// Whether the products of a parameter are FP8: the matrices of the blocks, but for routers.
bool in_fp8(const Param& p, const Fp8Settings& settings, int64_t layers);

class Fp8 {
 public:
  /// `params`: those of the stage that are in FP8, whichever rank of the stage holds them, in an order all its ranks share.
  /// `keep_weights`: FP8 copies of weights live for a step.
  Fp8(Backend& backend, const Fp8Settings& settings, std::vector<Param> params, bool keep_weights = true);

  /// Which operand of a weight's products: x, W, dy.
  enum Role : int { input = 0, weight = 1, gradient = 2 };

  bool covers(const LocalParam& w) const { return entries_.count(w.param.name) > 0; }
  /// `part` holds the rows of x or dy that this rank of `cut` has. True: its FP8 numbers are made, and the products of `weights`
  /// with them have the bits of those with the whole operand. False where blocks have scales, a weight is not in FP8, or a
  /// checkpoint says that scales of the weights differ. The same on all ranks of a stage.
  bool can_travel(Context& ctx, const std::vector<const LocalParam*>& weights, Role role, const Operand& part, const Axis& cut);
  /// y [rows, out] = x W^T (+ bias). `cut`: the axis whose ranks hold other parts of x, W or y.
  void forward(Context& ctx, const LocalParam& w, const Operand& x, const Tensor& y, const Tensor& bias, const Axis& cut);
  /// dx (+)= dy W.
  void backward_input(Context& ctx, const LocalParam& w, const Operand& dy, const Tensor& dx, bool accumulate, const Axis& cut);
  /// w.grad += dy^T x.
  void backward_weight(Context& ctx, const LocalParam& w, const Operand& dy, const Operand& x, const Axis& cut);

  /// A training step begins, or has ended: in between the largest numbers are taken down, and weights stay what they are.
  void record(bool on);
  /// Delayed: after a training step; the histories move on and the scales follow. Collective over tp, cp and dp.
  void roll(Context& ctx);

  /// Histories and scales as pieces of a checkpoint, "fp8/history" [3, entries] (newest first) and "fp8/scale" [3, 1] of each
  /// weight: x, W, dy. Empty where a recipe keeps nothing. `writer`: this rank writes them for its stage.
  std::vector<StatePiece> pieces(bool writer);
  /// After pieces were read: the device gets the scales.
  void publish();
  /// As before the first step.
  void reset();
  /// Of x (0), W (1), dy (2); delayed.
  float scale(const std::string& name, int role) const { return scale_[index(name, role)]; }
  const float* history(const std::string& name, int role) const { return &history_[index(name, role) * static_cast<size_t>(settings_.history)]; }

 private:
  static constexpr int roles = 3;
  /// FP8 numbers of a weight: by columns, by rows; one for both where they are the same. Memory stays, `made` is of this step.
  struct Copy {
    Quantised q;
    bool made = false;
  };
  bool same_scale(int64_t entry, int64_t other, Role role) const;
  size_t index(const std::string& name, int role) const { return static_cast<size_t>(entries_.at(name) * roles + role); }
  DType format(Role role) const { return role == gradient && settings_.recipe != Fp8Recipe::mxfp8 ? DType::f8e5m2 : DType::f8e4m3; }
  bool per_tensor() const { return one_scale(settings_.recipe); }
  /// Memory for the FP8 numbers of x, and the numbers; `by_rows`: it is summed over its rows.
  Quantised room(Role role, const Tensor& x, bool by_rows, MemoryKind kind) const;
  /// `seen`: its largest number is taken down here.
  void fill(Context& ctx, int64_t entry, Role role, const Tensor& x, bool seen, const Axis& cut, const Quantised& out);
  Quantised of_operand(Context& ctx, int64_t entry, Role role, const Operand& x, bool by_rows, bool seen, const Axis& cut);
  Quantised of_weight(Context& ctx, const LocalParam& w, bool by_rows, bool seen, const Axis& cut);

  Backend& backend_;
  Fp8Settings settings_;
  std::unordered_map<std::string, int64_t> entries_;
  bool keep_weights_;
  std::vector<Copy> copies_;            ///< [entries, 2]
  std::vector<char> weight_seen_;       ///< this step: weights stay the same in it
  bool recording_ = false;
  Tensor one_;                          ///< f32 [1, 1]
  Tensor scales_, amax_;                ///< f32 [entries, 3]; largest numbers of the step, -1 where there were none
  std::vector<float> scale_, history_;  ///< [entries, 3], [entries, 3, history]; read by saves, so they change in `roll` alone
  std::deque<Param> history_params_, scale_params_;
};

}  // namespace orthant
