// Closed forms, with b s h = bytes of one activation of a micro-batch and n = tp:
//   tp, sequence parallelism off: all-reduce of b s h: embedding 1, each block 2 forward + 2 backward, head's dx 1
//                                 (8 units a block)
//   on: all-gather and reduce-scatter of b s h: each block 2 + 2 forward, 2 + 2 backward, and the input of each
//       column-parallel product gathered again, 2 (10 units a block)
//   loss: three numbers a token. norm: one number a parameter.
//   pp: b s h (/ tp with sequence parallelism) at each crossing between ranks, each way: p v - 1 in the looped placement
//   dp, in units of (N-1)/N parameters: ZeRO 0: 2; 1: 1 + 1; 2: m + 1; 3: m + 2 m; the first term is gradients, m of
//       them only where they are summed after each micro-batch. Replicas of shards: 2 (R-1)/R of own rows.
//   cp, with k = bytes of a rank's K (or V) of a micro-batch in T, K in A: ring 2 (n-1) k forward, 2 (n-1) k + 2 n K
//       backward; all_gather 2 (n-1) k each way and a reduce-scatter of 2 (n-1) K; all_to_all (n-1)/n of q, o and n times
//       the kv heads a rank needs, backward the same with gradients
//   tie: the gradient of own rows one way, their weights the other.
// In reproducible mode a summand is two int64 lanes instead of one number.
#include "mesh/expected_traffic.hpp"

#include <set>

#include "orthant/model.hpp"

namespace orthant {

namespace {

class Forms {
 public:
  explicit Forms(const TrafficPlan& plan) : p_(plan), c_(plan.config), mesh_(plan.mesh), sp_(plan.sequence_parallel), exact_(plan.reproducible) {}

  void forward() {
    leave(1);  // embedding
    for (int64_t l = 0; l < c_.layers; ++l) forward_block();
    enter(1);  // head
    tp("all_reduce", tokens() * (exact_ ? 2 * a_bytes() + 16 : 3 * a_bytes()));
    cross();
  }

  void backward() {
    leave(1);  // head's dx
    for (int64_t l = 0; l < c_.layers; ++l) {
      if (p_.full_recompute) forward_block();
      enter(2), leave(2);
      context(true);
      enter(2);  // inputs again
      if (exact_) {
        int64_t rep = c_.kv_heads > 0 && mesh_.tp > c_.kv_heads ? mesh_.tp / c_.kv_heads : 1;
        int64_t kv = std::max<int64_t>(1, c_.kv_heads / mesh_.tp) * c_.head_dim;
        add(AxisName::tp_rep, "all_reduce", 2 * (rep - 1) * 2 * tokens() * kv * 16 * (stage_ranks() / rep));
      }
    }
    enter(1);  // embedding's dy
    cross();
  }

  /// Weights gathered for `passes` passes over each chunk (ZeRO 3).
  void gathers(int64_t passes) {
    if (!p_.zero.gathers_weights()) return;
    for (int64_t s = 0; s < mesh_.pp; ++s)
      for (int64_t c = 0; c < p_.pipeline.shape.chunks; ++c) {
        std::set<std::string> seen;  // a weight used twice in a pass is gathered once
        for (const auto& unit : range_params(c_, p_.cut[static_cast<size_t>(p_.pipeline.virtual_stage(s, c))], true))
          for (const Param& param : unit)
            if (seen.insert(param.name).second)
              add(AxisName::shard, "all_gather", passes * (mesh_.shard_size() - 1) * mesh_.replicas() * pieces(param) * t_bytes());
      }
  }

  void times(int64_t n) {
    for (auto& [key, bytes] : table) bytes *= n;
  }

  /// What a step does once, or with each R action.
  void step() {
    const int64_t sums = p_.zero.sums_every_micro() ? p_.micros : 1, shards = mesh_.shard_size();
    const int64_t g_bytes = exact_ ? 16 : a_bytes();
    for (int64_t s = 0; s < mesh_.pp; ++s)
      for (const auto& unit : unit_params(c_, p_.pipeline, p_.cut, s))
        for (const Param& param : unit) {
          const int64_t elements = pieces(param);
          model_sums(param, s, sums * g_bytes);
          if (!p_.zero.cuts_state()) {
            add(AxisName::shard, "all_reduce", 2 * (shards - 1) * elements * g_bytes);
          } else {
            add(AxisName::shard, "reduce_scatter", sums * (shards - 1) * mesh_.replicas() * elements * g_bytes);
            add(AxisName::replica, "all_reduce", 2 * (mesh_.replicas() - 1) * elements * g_bytes);
            if (!p_.zero.gathers_weights()) add(AxisName::shard, "all_gather", (shards - 1) * mesh_.replicas() * elements * t_bytes());
          }
          if (mesh_.tie_head == s && s > 0 && param.name == "embedding.tokens.weight")
            add(AxisName::tie, "shift", elements * (g_bytes + t_bytes()) * (p_.zero.cuts_state() ? mesh_.replicas() : mesh_.data()));
        }
    for (const auto& [axis, bytes] : scaled_) add(axis.first, "all_reduce", bytes / axis.second);
    const auto parameters = static_cast<int64_t>(model_params(c_).size());
    add(AxisName::tp, "all_reduce", 2 * (mesh_.tp - 1) * (exact_ ? 3 * 8 : parameters * 8) * (mesh_.ranks() / mesh_.tp));
  }

  TrafficTable table;

 private:
  int64_t tokens() const { return p_.micro * p_.sequence / mesh_.cp; }  // of a rank
  int64_t a_bytes() const { return size_of(p_.precision.accumulate()); }
  int64_t t_bytes() const { return size_of(p_.precision.compute); }
  /// Ranks that hold one layer.
  int64_t stage_ranks() const { return mesh_.ranks() / mesh_.pp; }
  void add(AxisName axis, const char* op, int64_t bytes) { table[{axis, op}] += bytes; }

  /// `bytes` through `op` once in every tp group of one stage.
  void tp(const char* op, int64_t bytes) {
    int64_t factor = std::string(op) == "all_reduce" ? 2 : 1;
    add(AxisName::tp, op, factor * (mesh_.tp - 1) * bytes * (stage_ranks() / mesh_.tp));
  }
  /// `n` tensors [tokens, hidden] enter a tp region.
  void enter(int64_t n) {
    if (sp_ && mesh_.tp > 1) tp("all_gather", n * tokens() * c_.hidden * t_bytes());
  }
  /// `n` summands [tokens, hidden] leave one.
  void leave(int64_t n) {
    tp(sp_ && mesh_.tp > 1 ? "reduce_scatter" : "all_reduce", n * tokens() * c_.hidden * (exact_ ? 16 : t_bytes()));
  }
  void forward_block() {
    enter(2), leave(2);
    context(false);
  }

  /// Attention of one block over cp.
  void context(bool backward) {
    const int64_t n = mesh_.cp;
    if (n == 1) return;
    const int64_t kv_heads = std::max<int64_t>(1, c_.kv_heads / mesh_.tp), kv = kv_heads * c_.head_dim, q = c_.heads / mesh_.tp * c_.head_dim;
    const int64_t ranks = stage_ranks(), g_bytes = exact_ ? 16 : a_bytes();
    if (p_.method == ContextMethod::all_to_all) {
      const bool copies = kv_heads % n != 0;
      const int64_t kv_part = copies ? c_.head_dim : kv / n, of_kv = !backward ? t_bytes() : exact_ ? 16 : copies ? a_bytes() : t_bytes();
      add(AxisName::cp, "exchange", ranks * (n - 1) * tokens() * (2 * (q / n) * t_bytes() + 2 * kv_part * of_kv));
    } else if (p_.method == ContextMethod::all_gather || exact_) {
      add(AxisName::cp, "all_gather", ranks * (n - 1) * 2 * tokens() * kv * t_bytes());
      if (backward) add(AxisName::cp, "reduce_scatter", ranks * (n - 1) * 2 * tokens() * kv * g_bytes);
    } else {
      add(AxisName::cp, "shift", ranks * 2 * tokens() * kv * ((n - 1) * t_bytes() + (backward ? n * a_bytes() : 0)));
    }
  }

  /// One micro-batch through all boundaries between ranks, one way.
  void cross() {
    int64_t crossings = 0;
    for (int64_t v = 0; v + 1 < p_.pipeline.virtual_stages(); ++v) crossings += p_.pipeline.stage_of(v) != p_.pipeline.stage_of(v + 1);
    add(AxisName::pp, "shift", crossings * tokens() * c_.hidden * t_bytes() * stage_ranks() / (sp_ ? mesh_.tp : 1));
  }

  /// Elements of a parameter's pieces over the ranks of tp.
  int64_t pieces(const Param& param) const {
    int64_t n = 0;
    for (int64_t t = 0; t < mesh_.tp; ++t) n += Layout(mesh_, {t, 0, 0, 0}, sp_, exact_).piece(param).elements();
    return n;
  }

  /// Sums over axes of the model, for the ranks of stage `s`.
  void model_sums(const Param& param, int64_t s, int64_t bytes) {
    for (int64_t t = 0; t < mesh_.tp; ++t) {
      Layout layout(mesh_, {t, 0, s, 0}, sp_, exact_);
      for (AxisName axis : layout.sum_axes(param)) {
        if (axis != AxisName::tp && axis != AxisName::tp_rep) continue;
        int64_t n = axis == AxisName::tp ? mesh_.tp : mesh_.tp / c_.kv_heads;
        scaled_[{axis, n}] += 2 * (n - 1) * bytes * layout.piece(param).elements() * mesh_.data();  // n times the bytes
      }
    }
  }

  const TrafficPlan& p_;
  const ModelConfig& c_;
  const MeshShape& mesh_;
  bool sp_, exact_;
  std::map<std::pair<AxisName, int64_t>, int64_t> scaled_;
};

}  // namespace

TrafficTable expected_step_traffic(const TrafficPlan& plan) {
  Forms f(plan);
  f.forward();
  f.backward();
  f.gathers(2);
  f.times(plan.micros);
  f.step();
  return f.table;
}

TrafficTable expected_eval_traffic(const TrafficPlan& plan) {
  Forms f(plan);
  f.forward();
  f.gathers(1);
  f.times(plan.micros);
  return f.table;
}

const char* traffic_name(AxisName axis) { return axis == AxisName::shard || axis == AxisName::replica ? "dp" : name_of(axis); }

}  // namespace orthant
