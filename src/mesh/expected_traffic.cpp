// Closed forms, with b s h = bytes of one activation of a micro-batch and n = tp:
//   off: all-reduce of b s h: embedding 1, each block 2 forward + 2 backward, head's dx 1           (8 units a block)
//   on:  all-gather and reduce-scatter of b s h: each block 2 + 2 forward, 2 + 2 backward, and the input of each
//        column-parallel product gathered again, 2                                                 (10 units a block)
//   loss: three numbers a token. norm: one number a parameter. Gradients: 2 (n-1)/n of what an axis sums.
// In reproducible mode a summand is two int64 lanes instead of one number.
#include "mesh/expected_traffic.hpp"

#include "orthant/model.hpp"

namespace orthant {

namespace {

struct Forms {
  const ModelConfig& c;
  const MeshShape& mesh;
  bool sp, exact;
  Precision precision;
  const TrafficShape& shape;
  TrafficTable table;

  int64_t tokens() const { return shape.micro * shape.sequence; }
  int64_t a_bytes() const { return size_of(precision.accumulate()); }

  /// `bytes` through `op` once in every group of `axis`.
  void add(AxisName axis, int64_t n, const char* op, int64_t bytes) {
    int64_t factor = std::string(op) == "all_reduce" ? 2 : 1;
    table[{axis, op}] += factor * (n - 1) * bytes * (mesh.ranks() / n);
  }
  /// `times` tensors [tokens, hidden] enter a tp region.
  void enter(int64_t times) {
    if (sp && mesh.tp > 1) add(AxisName::tp, mesh.tp, "all_gather", times * tokens() * c.hidden * size_of(precision.compute));
  }
  /// `times` summands [tokens, hidden] leave one.
  void leave(int64_t times) {
    int64_t bytes = times * tokens() * c.hidden * (exact ? 16 : size_of(precision.compute));
    add(AxisName::tp, mesh.tp, sp && mesh.tp > 1 ? "reduce_scatter" : "all_reduce", bytes);
  }
  void forward_block() { enter(2), leave(2); }

  void forward() {
    leave(1);  // embedding
    for (int64_t l = 0; l < c.layers; ++l) forward_block();
    enter(1);  // head
    add(AxisName::tp, mesh.tp, "all_reduce", tokens() * (exact ? 2 * a_bytes() + 16 : 3 * a_bytes()));
  }

  void backward() {
    leave(1);  // head's dx
    for (int64_t l = 0; l < c.layers; ++l) {
      if (shape.full_recompute) forward_block();
      enter(2), leave(2);
      enter(2);  // inputs again
      if (exact) {
        int64_t rep = c.kv_heads > 0 && mesh.tp > c.kv_heads ? mesh.tp / c.kv_heads : 1;
        int64_t kv = std::max<int64_t>(1, c.kv_heads / mesh.tp) * c.head_dim;
        add(AxisName::tp_rep, rep, "all_reduce", 2 * tokens() * kv * 16);
      }
    }
    enter(1);  // embedding's dy
  }

  void gradients() {
    // Which elements an axis sums follows from the Param records; each rank of the model axes sends its own.
    int64_t parameters = 0;
    for (const Param& p : model_params(c)) {
      ++parameters;
      for (int64_t r = 0; r < mesh.ranks(); ++r) {
        Layout layout(mesh, coordinates_of(mesh, r), sp, exact);
        int64_t bytes = layout.piece(p).elements() * (exact ? 16 : a_bytes());
        for (AxisName axis : layout.sum_axes(p)) {
          int64_t n = axis == AxisName::tp ? mesh.tp : axis == AxisName::dp ? mesh.dp : axis == AxisName::cp ? mesh.cp : mesh.tp / c.kv_heads;
          scaled_[{axis, n}] += 2 * (n - 1) * bytes;  // n times the bytes of this rank
        }
      }
    }
    for (const auto& [key, bytes] : scaled_) table[{key.first, "all_reduce"}] += bytes / key.second;
    add(AxisName::tp, mesh.tp, "all_reduce", exact ? 3 * 8 : parameters * 8);
  }

  std::map<std::pair<AxisName, int64_t>, int64_t> scaled_;
};

}  // namespace

TrafficTable expected_step_traffic(const ModelConfig& c, const MeshShape& mesh, bool sp, bool exact, Precision precision, const TrafficShape& shape) {
  Forms f{c, mesh, sp, exact, precision, shape, {}, {}};
  f.forward();
  f.backward();
  for (auto& [key, bytes] : f.table) bytes *= shape.micros;
  f.gradients();
  return f.table;
}

TrafficTable expected_eval_traffic(const ModelConfig& c, const MeshShape& mesh, bool sp, bool exact, Precision precision, const TrafficShape& shape) {
  Forms f{c, mesh, sp, exact, precision, shape, {}, {}};
  f.forward();
  return f.table;
}

}  // namespace orthant
