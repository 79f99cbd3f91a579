// What the ranks that hold the same pieces (dp x cp, for experts edp) do to parameters: sums of gradients (the R action), gathers of weights (G), and new weights to all.
//
//   ZeRO 0      R: all-reduce of whole gradients
//   ZeRO 1      R: reduce-scatter into own rows; after the update own rows of the weights are gathered
//   ZeRO 2      the same, R after each micro-batch, added to own rows
//   ZeRO 3      weights are gathered before each use (G) and dropped behind it, R as in 2
//
// Before the sum over dp x cp each R sums over the axes of the model that the parameter's record implies. What is cut is
// packed into one buffer of at most zero.bucket elements: for each rank its rows of every parameter. Where shards have
// replicas (zero.shard), own rows are summed over them once, at the end. The two holders of a tied weight meet last: the
// head's stage sends its sums to the embedding's, which keeps the state, and gets the new weights back.
// Parameters that are not trained take no part. Talks on: tp, tp_rep, shard, replica, edp_shard, edp_replica, tie.
#pragma once

#include <deque>

#include "orthant/context.hpp"

namespace orthant {

class Sharding {
 public:
  Sharding(Context& ctx, ParamStore& store) : ctx_(ctx), store_(store) {}

  /// R for units [first, first + count) of the store. What can go on behind later work does.
  void sum(int64_t first, int64_t count);
  /// Waits for all sums, then adds over replicas and the tie: own gradients are those of the global batch.
  void finish_sums();

  /// G: begins to gather the weights of `params`.
  void gather(const std::vector<LocalParam*>& params);
  /// Waits for the oldest gather that nobody has waited for; its weights are whole until they are released. Nothing to do
  /// where weights stay whole, as for `release`.
  void need();
  void release(const std::vector<LocalParam*>& params);

  /// Own rows of the weights have changed: the tied copy gets them, and whole weights are whole again.
  void publish();

 private:
  /// Rows [begin, end) of every rank's own rows of `param`.
  struct Slice {
    LocalParam* param;
    int64_t begin, end;
  };
  struct Flight {
    Pending pending;
    std::function<void()> after;
  };
  /// What goes into one message each; experts and others go to other ranks, so they are never in one.
  std::vector<std::vector<Slice>> bundles(const std::vector<LocalParam*>& params, int64_t limit) const;
  void add_bundles(const std::vector<LocalParam*>& params, bool expert, int64_t limit, std::vector<std::vector<Slice>>& out) const;
  const DataRanks& ranks_of(const std::vector<Slice>& slices) const { return store_.data_ranks(*slices.front().param); }
  Range rows_of(const Slice& s, int64_t rank) const;
  /// The same among own rows of this rank.
  Range own_rows_of(const Slice& s) const;
  /// Elements of each rank's rows, `lanes` times.
  std::vector<int64_t> counts_of(const std::vector<Slice>& slices, int64_t lanes) const;
  std::vector<LocalParam*> all_params();
  void carry(const std::vector<Slice>& slices);
  std::vector<Tensor> gradient_views(const Slice& s, int64_t rank) const;
  std::vector<Tensor> own_gradient_views(const Slice& s) const;
  void sum_cut(const std::vector<LocalParam*>& params);
  void sum_bundle(std::vector<Slice> slices);
  void sum_replicas();
  void sum_tie();
  void share_tied_weights();
  Flight gather_bundle(std::vector<Slice> slices, bool allocate);
  /// Waits for the oldest calls until only `at_most` are under way.
  static void land(std::deque<Flight>& flights, size_t at_most);
  int64_t lanes() const { return ctx_.reproducible() ? 2 : 1; }
  DType gradient_type() const { return ctx_.reproducible() ? DType::i64 : ctx_.A; }

  Context& ctx_;
  ParamStore& store_;
  std::deque<Flight> sums_;
  std::deque<std::deque<Flight>> gathers_;
};

}  // namespace orthant
