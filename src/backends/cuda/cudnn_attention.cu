// See cudnn_attention.hpp.
//
// The backward keeps the gradients of the scores in its workspace, which is why its bits repeat (attention_graph.hpp):
// 2 bytes for each pair of a query and a key. It goes over the heads in slices, so that this stays below a bound.
#include "backends/cuda/cudnn_attention.hpp"

#ifndef ORTHANT_HAS_CUDNN

namespace orthant {

struct CudaBackend::CudnnAttention::State {};
CudaBackend::CudnnAttention::CudnnAttention(CudaBackend&) {}
CudaBackend::CudnnAttention::~CudnnAttention() = default;
bool CudaBackend::CudnnAttention::forward(const AttentionShape&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  return false;
}
bool CudaBackend::CudnnAttention::backward(const AttentionShape&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                           const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  return false;
}
std::string CudaBackend::CudnnAttention::version() { return ""; }
std::string CudaBackend::CudnnAttention::describe() const { return "kernels without tensor cores (built without cuDNN)"; }

}  // namespace orthant

#else

#include <algorithm>
#include <limits>
#include <map>

#include "backends/cuda/attention_graph.hpp"
#include "backends/cuda/numbers.hpp"

namespace orthant {

using namespace cuda;

namespace {

constexpr int slot_workspace = 10, slot_rows = 11;

/// Between lse [rows, heads], row (place, sequence), and the library's [sequences, heads, places].
struct Turn {
  ORTHANT_KERNEL void operator()(int64_t row, int64_t head) const {
    const int64_t place = row / sequences, sequence = row % sequences;
    float& inside = turned[(sequence * heads + head) * places + place];
    if (out) lse(row, head) = inside;
    else inside = lse(row, head);
  }
  View<float> lse;
  float* turned;
  int64_t sequences, heads, places;
  bool out;
};

bool aligned(const Tensor& x) { return reinterpret_cast<uintptr_t>(x.data()) % 16 == 0 && x.ld() % 8 == 0; }
int64_t padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }
void* at(const Tensor& x, int64_t elements) { return static_cast<char*>(x.data()) + elements * size_of(x.dtype()); }

}  // namespace

struct CudaBackend::CudnnAttention::State {
  explicit State(CudaBackend& backend) : be(backend), most_bytes(std::max(2 * backend.attention_slice(), backend.device_bytes() / 8)) {}
  ~State() {
    plans.clear();
    if (handle) cudnnDestroy(handle);
  }

  struct Made {
    dnn::AttentionNodes nodes;
    std::unique_ptr<dnn::Plan> plan;  // null: the library has none
  };

  /// The shape as a problem of the library, for all heads and sequences; false where it is none.
  bool problem(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, dnn::AttentionProblem& p) const {
    if (q.dtype() != DType::bf16 && q.dtype() != DType::f16) return false;
    if (s.canonical || s.dropout.rate > 0 || s.q_length == 0 || s.k_length == 0 || s.q_begin < s.k_begin) return false;
    if (s.head_dim % 8 != 0 || s.value_dim() % 8 != 0 || !aligned(q) || !aligned(k) || !aligned(v) || !aligned(o)) return false;
    p.type = p.out_type = q.dtype() == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    p.batch = p.sequences = s.batch;
    p.heads = s.heads;
    p.kv_heads = s.kv_heads;
    p.q_length = s.q_length;
    p.k_length = s.k_length;
    p.dim = s.head_dim;
    p.v_dim = s.value_dim();
    p.shift = std::min(s.q_begin - s.k_begin, s.k_length);
    p.documents = static_cast<bool>(s.starts);
    p.first_key = p.documents ? s.k_begin : 0;
    p.ld_starts = p.documents ? s.starts.ld() : 0;
    p.scale = static_cast<float>(s.scale);
    p.ld_q = q.ld();
    p.ld_k = k.ld();
    p.ld_v = v.ld();
    p.ld_o = o.ld();
    // indices of the library are int32
    return s.q_begin + s.q_length < std::numeric_limits<int32_t>::max() && s.k_begin + s.k_length < std::numeric_limits<int32_t>::max();
  }

  const Made& find(const dnn::AttentionProblem& p, bool backward) {
    auto& kept = plans[{p, backward}];
    if (kept) return *kept;
    if (!handle) {
      ORTHANT_DNN(cudnnCreate(&handle));
      ORTHANT_DNN(cudnnSetStream(handle, be.stream()));
    }
    auto made = std::make_unique<Made>();
    dnn::Graph graph;
    made->nodes = backward ? dnn::backward_graph(graph, p) : dnn::forward_graph(graph, p);
    std::string why;
    made->plan = graph.plan({handle, nullptr}, most_bytes, why);
    if (!made->plan && refused++ == 0)
      first_refused = std::string(backward ? "backward" : "forward") + " of " + std::to_string(p.q_length) + " queries, " +
                      std::to_string(p.k_length) + " keys, heads of " + std::to_string(p.dim) + ": " + why;
    kept = std::move(made);
    return *kept;
  }

  void run(const Made& made, const std::vector<dnn::Node>& nodes, const std::vector<void*>& data) {
    made.plan->run(handle, nodes, data, be.scratch(slot_workspace, std::max<int64_t>(made.plan->workspace_bytes(), 256)));
  }

  void turn(const AttentionShape& s, const Tensor& lse, float* turned, bool out) {
    for_cells(be.stream(), lse.rows(), lse.cols(), false, Turn{View<float>(lse), turned, s.batch, s.heads, s.q_length, out});
  }

  CudaBackend& be;
  const int64_t most_bytes;  // of workspace
  cudnnHandle_t handle = nullptr;
  std::map<std::pair<dnn::AttentionProblem, bool>, std::unique_ptr<Made>> plans;
  int64_t refused = 0;
  std::string first_refused;
};

CudaBackend::CudnnAttention::CudnnAttention(CudaBackend& backend) : state_(std::make_unique<State>(backend)) {}
CudaBackend::CudnnAttention::~CudnnAttention() = default;

std::string CudaBackend::CudnnAttention::version() {
  return "cuDNN " + dotted(static_cast<int64_t>(cudnnGetVersion()));
}

std::string CudaBackend::CudnnAttention::describe() const {
  std::string text = version() + " for bf16 and f16";
  const auto plans = static_cast<int64_t>(state_->plans.size()) - state_->refused;
  if (plans > 0) text += " (" + std::to_string(plans) + " plans)";
  if (state_->refused > 0)
    text += ", which has no plan for " + std::to_string(state_->refused) + " shape(s), the first a " + state_->first_refused;
  return text;
}

bool CudaBackend::CudnnAttention::forward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse) {
  dnn::AttentionProblem p;
  if (!state_->problem(s, q, k, v, o, p)) return false;
  // a query whose document has no key here would get the mean of the values instead of nothing
  if (p.documents && s.q_begin + s.q_length > s.k_begin + s.k_length) return false;
  if (o.dtype() == DType::f32) p.out_type = CUDNN_DATA_FLOAT;
  const State::Made& made = state_->find(p, false);
  if (!made.plan) return false;
  auto* turned = static_cast<float*>(state_->be.scratch(slot_rows, lse.rows() * lse.cols() * static_cast<int64_t>(sizeof(float))));
  const dnn::AttentionNodes& n = made.nodes;
  std::vector<dnn::Node> nodes{n.q, n.k, n.v, n.o, n.lse};
  std::vector<void*> data{q.data(), k.data(), v.data(), o.data(), turned};
  if (p.documents) {
    nodes.push_back(n.starts);
    data.push_back(s.starts.data());
  }
  state_->run(made, nodes, data);
  state_->turn(s, lse, turned, true);
  return true;
}

bool CudaBackend::CudnnAttention::backward(const AttentionShape& s, const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Tensor& o, const Tensor& lse, const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  dnn::AttentionProblem p;
  if (!state_->problem(s, q, k, v, o, p) || !aligned(d_o) || dk.cols() != k.cols()) return false;
  CudaBackend& be = state_->be;

  // ---- what a slice holds: key-value heads of one sequence, or whole sequences
  const int64_t group = s.heads / s.kv_heads, up_q = (s.q_length + 63) / 64 * 64, up_k = (s.k_length + 127) / 128 * 128;
  const int64_t one = group * up_q * up_k * 2;
  const int64_t fit = std::max<int64_t>(1, be.attention_slice() / one);
  const int64_t kv_heads = std::min(s.kv_heads, fit), sequences = kv_heads == s.kv_heads ? std::min(s.batch, fit / s.kv_heads) : 1;
  if (one > state_->most_bytes) return false;

  // ---- where gradients are made, and the rows' numbers
  const int64_t rows_bytes = padded(lse.rows() * lse.cols() * static_cast<int64_t>(sizeof(float)));
  const auto narrow_bytes = [&](const Tensor& x) { return x.dtype() == q.dtype() && aligned(x) ? 0 : padded(x.size() * size_of(q.dtype())); };
  auto* scratch = static_cast<char*>(be.scratch(slot_rows, 2 * rows_bytes + narrow_bytes(dq) + narrow_bytes(dk) + narrow_bytes(dv)));
  auto* turned = reinterpret_cast<float*>(scratch);
  auto* sums = reinterpret_cast<float*>(scratch + rows_bytes);
  char* next = scratch + 2 * rows_bytes;
  const auto narrow = [&](const Tensor& x) {
    if (narrow_bytes(x) == 0) return x;
    Tensor y(nullptr, next, q.dtype(), x.rows(), x.cols(), x.cols());
    next += narrow_bytes(x);
    return y;
  };
  const Tensor dq_made = narrow(dq), dk_made = narrow(dk), dv_made = narrow(dv);
  p.ld_do = d_o.ld();
  p.ld_dq = dq_made.ld();
  p.ld_dk = dk_made.ld();
  p.ld_dv = dv_made.ld();

  struct Slice {
    int64_t sequence, kv;  // the first of each
    const State::Made* made;
  };
  std::vector<Slice> slices;
  for (int64_t b = 0; b < s.batch; b += sequences)
    for (int64_t h = 0; h < s.kv_heads; h += kv_heads) {
      dnn::AttentionProblem part = p;
      part.batch = std::min(sequences, s.batch - b);
      part.kv_heads = std::min(kv_heads, s.kv_heads - h);
      part.heads = part.kv_heads * group;
      slices.push_back({b, h, &state_->find(part, true)});
      if (!slices.back().made->plan) return false;  // nothing has been written yet
    }

  state_->turn(s, lse, turned, false);
  for (const auto& [sequence, kv, made] : slices) {
    const dnn::AttentionNodes& n = made->nodes;
    const int64_t head = kv * group, rows_at = (sequence * s.heads + head) * s.q_length;
    const auto at_head = [&](const Tensor& x, int64_t of, int64_t width) { return at(x, sequence * x.ld() + of * width); };
    std::vector<dnn::Node> nodes{n.q, n.k, n.v, n.o, n.d_o, n.dq, n.dk, n.dv, n.lse, n.sums};
    std::vector<void*> data{at_head(q, head, s.head_dim),        at_head(k, kv, s.head_dim),       at_head(v, kv, s.value_dim()),
                            at_head(o, head, s.value_dim()),     at_head(d_o, head, s.value_dim()), at_head(dq_made, head, s.head_dim),
                            at_head(dk_made, kv, s.head_dim),    at_head(dv_made, kv, s.value_dim()),
                            turned + rows_at, sums + rows_at};
    if (p.documents) {
      nodes.push_back(n.starts);
      data.push_back(at(s.starts, sequence * s.starts.ld()));
    }
    state_->run(*made, nodes, data);
  }
  for (const auto& [made, wanted] : {std::pair(dq_made, dq), std::pair(dk_made, dk), std::pair(dv_made, dv)})
    if (made.data() != wanted.data()) be.copy(wanted, made);
  return true;
}

}  // namespace orthant
#endif
