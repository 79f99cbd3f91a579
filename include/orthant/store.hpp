// The parameters a rank holds: weights, masters, gradients and optimiser slots of its pieces, cut by ZeRO over the ranks
// of dp x cp.
//
//   ZeRO  weights             gradients                        masters and slots
//   0     whole               whole                            whole
//   1     whole               whole                            own rows
//   2     whole               own rows, a unit's whole         own rows
//   3     own rows, a unit's  while it is computed (or whole   own rows
//         whole while used    with accumulate = full)
//
// "Whole" is the piece a rank computes with (what tp and pp leave); "own rows" is its part of dim 0 of that piece.
#pragma once

#include <deque>
#include <compare>
#include <functional>
#include <map>
#include <set>
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

/// How states are cut over the ranks of dp x cp (deck section zero).
struct Zero {
  int stage = 0;
  bool accumulate_full = false;      ///< keep whole gradients between micro-batches
  int64_t bucket = 40'000'000;       ///< elements packed for one message at most
  bool cuts_state() const { return stage >= 1; }
  /// Gradients are whole only while a unit is computed, and summed after each micro-batch.
  bool sums_every_micro() const { return stage >= 2 && !accumulate_full; }
  bool gathers_weights() const { return stage >= 3; }
};

/// The ranks that hold the same pieces and see other data, as ZeRO cuts them: shard x replica, for experts edp_shard x
/// edp_replica.
struct DataRanks {
  AxisName shard = AxisName::shard, replica = AxisName::replica;
  int64_t shards = 1, index = 0;  ///< own rows are part `index` of `shards`; 1 where nothing is cut
  bool first = true;              ///< this rank's own rows are those that go to files
};

/// A parameter's piece on this rank.
struct LocalParam {
  Param param;
  int64_t index = 0;           ///< in the list of the whole model
  int64_t unit = 0;            ///< of the store: the one that holds its state
  Piece piece;                 ///< what this rank computes with
  Piece own;                   ///< the rows of it whose state this rank keeps
  std::vector<AxisName> sums;  ///< axes of the model (tp, tp_rep) its gradient is summed over, besides the data ranks
  bool counted = true;         ///< this rank counts it in the norm
  bool writes = true;          ///< this rank writes it to files
  bool copy = false;           ///< second holder of a tied weight: its state is on another stage
  Tensor weight;               ///< T [rows, cols], A for a parameter that is not trained; with ZeRO 3 only while gathered
  Tensor own_weight;           ///< T [own.rows, cols]
  Tensor master;               ///< A [own.rows, cols]; own_weight itself when T = A
  Tensor grad;                 ///< A [rows, cols]; added to by layers
  Tensor grad_exact;           ///< i64 [2, rows * cols] instead of partial sums, in reproducible mode
  Tensor own_grad;             ///< A [own.rows, cols]; summed over ranks
  Tensor own_grad_exact;       ///< i64 [2, own.rows * cols]
  std::vector<Tensor> slots;   ///< A [own.rows, cols] each

  bool trained() const { return param.trained; }
  bool expert() const { return param.expert >= 0; }
  int64_t rows() const { return piece.rows; }
  int64_t cols() const { return piece.cols; }
  int64_t own_begin() const { return own.row - piece.row; }
};

/// What a gradient is summed over: axes of the model, then the data ranks of experts or of all else.
struct GradientSums {
  std::vector<AxisName> model;
  bool expert = false;
  auto operator<=>(const GradientSums&) const = default;
};

/// Gradients of a unit with the same sums lie in one buffer, so that one collective call serves many parameters.
struct GradientGroup {
  GradientSums sums;
  std::vector<LocalParam*> params;
  int64_t elements = 0;
  int64_t at = 0;    ///< place in the buffer of all units, where whole gradients stay
  Tensor gradients;  ///< A [1, n], or i64 [2, n] in reproducible mode
};

/// Parameters that are gathered and summed together: embedding, a block, or the head.
struct ParamUnit {
  std::vector<GradientGroup> groups;
  std::vector<LocalParam*> params;
  int64_t elements = 0;
  bool open = false;  ///< whole gradients exist
};

/// What a rank is asked to hold.
struct StoreSettings {
  bool training = true;  ///< false leaves out gradients and masters of rounded weights
  int slots = 0;
  Zero zero;
  std::set<std::string> copies;              ///< parameters whose state another stage keeps (the tied head)
  const std::vector<Param>* model = nullptr; ///< the whole model, in order; null: `units` are all of it
};

class ParamStore {
 public:
  /// Allocates this rank's pieces of `units`, each a list of parameters.
  ParamStore(Backend& backend, const std::vector<std::vector<Param>>& units, const Layout& layout, Precision precision, const StoreSettings& settings);
  /// All parameters in one unit, no ZeRO.
  ParamStore(Backend& backend, const std::vector<Param>& params, const Layout& layout, Precision precision, bool training, int slots);

  LocalParam& at(const std::string& name);
  std::deque<LocalParam>& all() { return params_; }
  const std::deque<LocalParam>& all() const { return params_; }
  std::deque<ParamUnit>& units() { return units_; }
  Precision precision() const { return precision_; }
  const Zero& zero() const { return zero_; }
  /// Number of parameters of the whole model, and their elements, counted once.
  int64_t model_params() const { return model_params_; }
  int64_t model_elements() const { return model_elements_; }
  /// Elements this rank computes with.
  int64_t local_elements() const { return local_elements_; }
  const DataRanks& data_ranks(const LocalParam& p) const { return p.expert() ? expert_ranks_ : dense_ranks_; }
  const DataRanks& data_ranks(bool expert) const { return expert ? expert_ranks_ : dense_ranks_; }
  /// Rows of `p` that rank `r` of its shard axis owns, counted from the piece's first row. What is not trained is not cut.
  Range shard_rows(const LocalParam& p, int64_t r) const {
    if (!p.trained()) return {0, p.rows()};
    const int64_t n = data_ranks(p).shards;
    return {p.rows() * r / n, p.rows() * (r + 1) / n - p.rows() * r / n};
  }

  /// Calls `fill` for own rows of each parameter with a host buffer (fp32, dense), in bounded pieces of rows, and stores
  /// the result in the master and in the rounded copy. Where ZeRO 1 or 2 cut, `publish_weights` has to follow.
  void fill(const std::function<void(const Param&, const Piece&, float*)>& fill);
  /// Own rows of the rounded copies from the masters.
  void round_weights();
  /// Before a step: sums start at zero. Whole gradients that live only while a unit is computed are given back.
  void zero_gradients();
  /// The whole gradients of a unit exist from here on (zero if they did not).
  void open_gradients(int64_t unit);
  void close_gradients(int64_t unit);
  /// Calls `f` with the whole gradients of units [first, first + count) as few tensors ([1, n] of A, or [2, n] of i64),
  /// each with what it is summed over.
  void for_gradients(int64_t first, int64_t count, const std::function<void(const GradientSums&, const Tensor&)>& f);

 private:
  void add_unit(const std::vector<Param>& params, const Layout& layout, const StoreSettings& settings, const std::map<std::string, int64_t>& index);
  Tensor gradient_memory(int64_t elements);
  void allocate_whole_gradients();
  void cut_group(GradientGroup& group);
  void own_gradients(ParamUnit& unit);

  Backend& backend_;
  Precision precision_;
  Zero zero_;
  bool reproducible_, training_;
  DataRanks dense_ranks_, expert_ranks_{AxisName::edp_shard, AxisName::edp_replica, 1, 0, true};
  std::deque<LocalParam> params_;
  std::map<std::string, LocalParam*> by_name_;
  std::deque<ParamUnit> units_;
  std::map<GradientSums, Tensor> whole_gradients_;  ///< of all units, where they stay
  int64_t model_params_ = 0, model_elements_ = 0, local_elements_ = 0;
};

}  // namespace orthant
