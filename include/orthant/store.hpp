// The parameters a rank holds: weights, masters, gradients and optimiser slots of its pieces.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "orthant/backend.hpp"
#include "orthant/layout.hpp"
#include "orthant/param.hpp"

namespace orthant {

/// The types of a run: compute type T and accumulation type A.
struct Precision {
  DType compute = DType::f32;
  DType accumulate() const { return compute == DType::f64 ? DType::f64 : DType::f32; }
  bool has_copy() const { return compute != accumulate(); }  ///< weights are rounded copies of masters
};

/// A parameter's piece on this rank.
struct LocalParam {
  Param param;
  Piece piece;
  std::vector<AxisName> sums;  ///< axes its gradient is summed over
  bool counted = true;         ///< this rank counts it in the norm
  bool writes = true;          ///< this rank writes it to files
  Tensor master;               ///< A [rows, cols]
  Tensor weight;               ///< T [rows, cols]; the master itself when T = A
  Tensor grad;                 ///< A [rows, cols]; added to during a step
  Tensor grad_exact;           ///< i64 [2, rows * cols] instead of partial sums, in reproducible mode
  std::vector<Tensor> slots;   ///< A [rows, cols] each

  int64_t rows() const { return piece.rows; }
  int64_t cols() const { return piece.cols; }
};

/// Gradients with the same sums lie in one buffer, so that one collective call serves many parameters.
struct GradientGroup {
  std::vector<AxisName> sums;
  Tensor flat;   ///< A [1, n]
  Tensor exact;  ///< i64 [2, n] in reproducible mode
};

class ParamStore {
 public:
  /// Allocates this rank's pieces of `params`. `training` false leaves out gradients and masters of rounded weights.
  ParamStore(Backend& backend, const std::vector<Param>& params, const Layout& layout, Precision precision, bool training, int slots);

  LocalParam& at(const std::string& name);
  std::deque<LocalParam>& all() { return params_; }
  const std::deque<LocalParam>& all() const { return params_; }
  std::vector<GradientGroup>& groups() { return groups_; }
  Precision precision() const { return precision_; }
  /// Parameters of the whole model, counted once.
  int64_t model_elements() const { return model_elements_; }
  /// Elements held by this rank.
  int64_t local_elements() const { return local_elements_; }

  /// Calls `fill` for each parameter with a host buffer of its piece (fp32, dense), in bounded pieces of rows, and
  /// stores the result in the master and in the rounded copy.
  void fill(const std::function<void(const Param&, const Piece&, float*)>& fill);
  /// The rounded copies from the masters.
  void round_weights();
  void zero_gradients();

 private:
  Backend& backend_;
  Precision precision_;
  std::deque<LocalParam> params_;
  std::map<std::string, LocalParam*> by_name_;
  std::vector<GradientGroup> groups_;
  int64_t model_elements_ = 0, local_elements_ = 0;
};

}  // namespace orthant
