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
//   ep: rows that leave their rank, by the routing tables: hidden and a weight each, out and back, forward and backward.
//       edp is to experts what dp is to the rest.
// Where the layout leaves a dim uncut, its regions are entered as before and nothing leaves them. Latent attention is
// entered by its latents instead of b s h.
// FP8 with one scale a tensor: what enters a product is gathered in FP8, and only that; latents stay as they are.
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
    leave(c_.hidden, mesh_.cut_vocab);  // embedding
    for (int64_t l = 0; l < c_.layers; ++l) forward_block(l);
    enter(c_.hidden);  // head
    if (mesh_.cut_vocab) tp("all_reduce", tokens() * (exact_ ? 2 * a_bytes() + 16 : 3 * a_bytes()));
    cross();
  }

  void backward() {
    leave(c_.hidden, mesh_.cut_vocab);  // head's dx
    for (int64_t l = 0; l < c_.layers; ++l) {
      if (p_.full_recompute) forward_block(l);
      const int64_t in = attention_input();
      enter_products(l, c_.hidden), leave(in, mesh_.cut_heads), context(true);
      // the input again; of latents the rotated key is not needed
      if (latent()) enter(in - c_.mla.rope_dim);
      else enter_products(l, in);
      if (exact_) {
        const int64_t rep = mesh_.kv_group(), kv = kv_heads() * (key_width() + value_width());
        add(AxisName::tp_rep, "all_reduce", 2 * (rep - 1) * tokens() * kv * 16 * (stage_ranks() / rep));
      }
      if (c_.mixture(l)) mixture(true);
      if (!c_.mixture(l) || c_.moe.shared_experts > 0) enter_products(l, c_.hidden), leave(c_.hidden, mesh_.cut_ffn), enter_products(l, c_.hidden);
    }
    enter(c_.hidden);  // embedding's dy
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
            if (const Data d = data_of(param); param.trained && seen.insert(param.name).second)
              add(d.shard, "all_gather", passes * (d.shards - 1) * d.replicas * pieces(param) * t_bytes());
      }
  }

  void times(int64_t n) {
    for (auto& [key, bytes] : table) bytes *= n;
  }

  /// What a step does once, or with each R action.
  void step() {
    const int64_t sums = p_.zero.sums_every_micro() ? p_.micros : 1;
    const int64_t g_bytes = exact_ ? 16 : a_bytes();
    for (int64_t s = 0; s < mesh_.pp; ++s)
      for (const auto& unit : unit_params(c_, p_.pipeline, p_.cut, s))
        for (const Param& param : unit) {
          if (!param.trained) continue;
          const int64_t elements = pieces(param);
          const Data d = data_of(param);
          model_sums(param, s, sums * g_bytes);
          if (!p_.zero.cuts_state()) {
            add(d.shard, "all_reduce", 2 * (d.shards - 1) * elements * g_bytes);
          } else {
            add(d.shard, "reduce_scatter", sums * (d.shards - 1) * d.replicas * elements * g_bytes);
            add(d.replica, "all_reduce", 2 * (d.replicas - 1) * elements * g_bytes);
            if (!p_.zero.gathers_weights()) add(d.shard, "all_gather", (d.shards - 1) * d.replicas * elements * t_bytes());
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
  /// A tensor [tokens, width] enters a tp region.
  void enter(int64_t width) { enter_bytes(width * t_bytes()); }
  /// The same, to be multiplied by weights of block `layer` and nothing else.
  void enter_products(int64_t layer, int64_t width) {
    const bool fp8 = layer >= p_.fp8_enters.begin && layer < p_.fp8_enters.begin + p_.fp8_enters.size;
    enter_bytes(width * (fp8 ? 1 : t_bytes()));
  }
  void enter_bytes(int64_t token) {
    if (sp_ && mesh_.tp > 1) tp("all_gather", tokens() * token);
  }
  /// A summand [tokens, width] leaves one, or its own part where the layout leaves the region uncut.
  void leave(int64_t width, bool cut) {
    if (cut) tp(sp_ && mesh_.tp > 1 ? "reduce_scatter" : "all_reduce", tokens() * width * (exact_ ? 16 : t_bytes()));
  }
  void forward_block(int64_t layer) {
    latent() ? enter(attention_input()) : enter_products(layer, attention_input());
    leave(c_.hidden, mesh_.cut_heads);
    context(false);
    if (c_.mixture(layer)) mixture(false);
    if (!c_.mixture(layer) || c_.moe.shared_experts > 0) enter_products(layer, c_.hidden), leave(c_.hidden, mesh_.cut_ffn);
  }

  /// What the routed experts of one layer send over tp: nothing where an expert is whole, else tokens, choices and weights
  /// enter, summands of tokens and of the weights' gradients leave. (In reproducible mode they leave row by row:
  /// routed_traffic.)
  void mixture(bool backward) {
    if (mesh_.etp == 1) return;
    const int64_t rows = tokens() * c_.hidden * t_bytes(), picks = tokens() * c_.moe.top_k;
    tp("all_gather", rows + (backward ? 0 : picks * (4 + a_bytes())));
    if (!exact_) tp("reduce_scatter", rows + (backward ? picks * a_bytes() : 0));
  }

  bool latent() const { return c_.mla.kv_lora_rank > 0; }
  /// What enters attention: its latents where it has them, with the input itself where queries have none.
  int64_t attention_input() const {
    if (!latent()) return c_.hidden;
    return c_.mla.q_lora_rank + c_.mla.kv_lora_rank + c_.mla.rope_dim + (c_.mla.q_lora_rank > 0 ? 0 : c_.hidden);
  }
  int64_t head_parts() const { return mesh_.cut_heads ? mesh_.tp : 1; }
  int64_t kv_heads() const { return std::max<int64_t>(1, c_.kv_heads / head_parts()); }  // of a rank
  int64_t key_width() const { return latent() ? c_.mla.qk_dim() : c_.head_dim; }
  int64_t value_width() const { return latent() ? c_.mla.v_dim : c_.head_dim; }

  /// Attention of one block over cp.
  void context(bool backward) {
    const int64_t n = mesh_.cp;
    if (n == 1) return;
    const int64_t kv = kv_heads() * (key_width() + value_width()), q = c_.heads / head_parts() * (key_width() + value_width());
    const int64_t ranks = stage_ranks(), g_bytes = exact_ ? 16 : a_bytes();
    if (p_.method == ContextMethod::all_to_all) {
      const bool copies = kv_heads() % n != 0;
      const int64_t kv_part = copies ? key_width() + value_width() : kv / n, of_kv = !backward ? t_bytes() : exact_ ? 16 : copies ? a_bytes() : t_bytes();
      add(AxisName::cp, "exchange", ranks * (n - 1) * tokens() * (q / n * t_bytes() + kv_part * of_kv));
    } else if (p_.method == ContextMethod::all_gather || exact_) {
      add(AxisName::cp, "all_gather", ranks * (n - 1) * tokens() * kv * t_bytes());
      if (backward) add(AxisName::cp, "reduce_scatter", ranks * (n - 1) * tokens() * kv * g_bytes);
    } else {
      add(AxisName::cp, "shift", ranks * tokens() * kv * ((n - 1) * t_bytes() + (backward ? n * a_bytes() : 0)));
    }
  }

  /// One micro-batch through all boundaries between ranks, one way.
  void cross() {
    int64_t crossings = 0;
    for (int64_t v = 0; v + 1 < p_.pipeline.virtual_stages(); ++v) crossings += p_.pipeline.stage_of(v) != p_.pipeline.stage_of(v + 1);
    add(AxisName::pp, "shift", crossings * tokens() * c_.hidden * t_bytes() * stage_ranks() / (sp_ ? mesh_.tp : 1));
  }

  /// Elements of a parameter's pieces over the ranks of tp; of an expert's over those of etp, the whole of it.
  int64_t pieces(const Param& param) const {
    if (param.expert >= 0) return param.elements();
    int64_t n = 0;
    for (int64_t t = 0; t < mesh_.tp; ++t) n += Layout(mesh_, {t, 0, 0, 0}, sp_, exact_).piece(param).elements();
    return n;
  }
  /// The axes of the ranks that hold the same piece.
  struct Data {
    AxisName shard, replica;
    int64_t shards, replicas;
  };
  Data data_of(const Param& param) const {
    if (param.expert >= 0) return {AxisName::edp_shard, AxisName::edp_replica, mesh_.expert_shard_size(), mesh_.expert_replicas()};
    return {AxisName::shard, AxisName::replica, mesh_.shard_size(), mesh_.replicas()};
  }

  /// Sums over axes of the model, for the ranks of stage `s`.
  void model_sums(const Param& param, int64_t s, int64_t bytes) {
    for (int64_t t = 0; t < mesh_.tp; ++t) {
      Layout layout(mesh_, {t, 0, s, 0}, sp_, exact_);
      for (AxisName axis : layout.sum_axes(param)) {
        if (axis != AxisName::tp && axis != AxisName::tp_rep) continue;
        int64_t n = axis == AxisName::tp ? mesh_.tp : mesh_.kv_group();
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

TrafficTable routed_traffic(const TrafficPlan& p, int64_t off_rank, int64_t kept, bool training) {
  const int64_t forward = training && p.full_recompute ? 2 : 1, backward = training ? 1 : 0;
  TrafficTable table;
  if (p.reproducible && p.mesh.etp > 1)
    table[{AxisName::tp, "all_reduce"}] = 2 * (p.mesh.tp - 1) * kept * 16 * (p.config.hidden * (forward + backward) + backward);
  if (off_rank == 0) return table;
  table[{AxisName::ep, "exchange"}] = off_rank * p.config.hidden * size_of(p.precision.compute) * 2 * (forward + backward);
  table[{AxisName::ep, "exchange_weights"}] = off_rank * size_of(p.precision.accumulate()) * (forward + backward);
  return table;
}

int64_t uniform_rows(const TrafficPlan& p) {
  const MeshShape& mesh = p.mesh;
  const int64_t tokens = p.micro * p.sequence / mesh.cp / (p.sequence_parallel && mesh.etp == 1 ? mesh.tp : 1);
  return mesh.tp * mesh.data() / mesh.ep * (mesh.ep - 1) * tokens * p.config.moe.top_k * p.config.mixture_layers() * p.micros;
}

TrafficTable planned_step_traffic(const TrafficPlan& plan) {
  TrafficTable table = expected_step_traffic(plan);
  const int64_t picks = plan.micro * plan.mesh.dp * plan.micros * plan.sequence * plan.config.moe.top_k * plan.config.mixture_layers();
  for (const auto& [key, bytes] : routed_traffic(plan, uniform_rows(plan), picks, true)) table[key] += bytes;
  return table;
}

const char* traffic_name(AxisName axis) {
  if (axis == AxisName::shard || axis == AxisName::replica) return "dp";
  return axis == AxisName::edp_shard || axis == AxisName::edp_replica ? "edp" : name_of(axis);
}

}  // namespace orthant
