// See store.hpp.
#include "orthant/store.hpp"

#include <algorithm>

namespace orthant {

namespace {
constexpr int64_t fill_elements = 4 << 20;  // bound of the host buffer used while weights are drawn or loaded
}

ParamStore::ParamStore(Backend& backend, const std::vector<Param>& params, const Layout& layout, Precision precision, bool training,
                       int slots)
    : backend_(backend), precision_(precision) {
  const DType T = precision.compute, A = precision.accumulate();
  std::map<std::vector<AxisName>, int64_t> group_sizes;
  for (const Param& p : params) {
    LocalParam local;
    local.param = p;
    local.piece = layout.piece(p);
    local.sums = layout.sum_axes(p);
    local.counted = layout.counted(p);
    local.writes = layout.writes(p);
    int64_t rows = local.rows(), cols = local.cols();
    model_elements_ += p.elements();
    local_elements_ += rows * cols;
    group_sizes[local.sums] += rows * cols;
    local.weight = backend.alloc(T, rows, cols, MemoryKind::weights);
    if (!precision.has_copy()) local.master = local.weight;
    else if (training) local.master = backend.alloc(A, rows, cols, MemoryKind::master);
    if (training)
      for (int s = 0; s < slots; ++s) {
        local.slots.push_back(backend.alloc(A, rows, cols, MemoryKind::optimizer));
        backend.zero(local.slots.back());
      }
    params_.push_back(std::move(local));
    by_name_[p.name] = &params_.back();
  }
  if (!training) return;
  for (const auto& [sums, n] : group_sizes) {
    GradientGroup g;
    g.sums = sums;
    if (layout.reproducible()) {
      g.exact = backend.alloc(DType::i64, 2, n, MemoryKind::gradients);
    } else {
      g.flat = backend.alloc(A, 1, n, MemoryKind::gradients);
    }
    int64_t at = 0;
    for (LocalParam& p : params_) {
      if (p.sums != sums) continue;
      int64_t size = p.rows() * p.cols();
      if (layout.reproducible()) p.grad_exact = g.exact.col_range(at, size);
      else p.grad = g.flat.col_range(at, size).row_range(0, 1);
      at += size;
    }
    groups_.push_back(std::move(g));
  }
  // A flat piece is dense: give it the parameter's own shape.
  for (LocalParam& p : params_) {
    if (layout.reproducible()) p.grad = Tensor();
    else p.grad = Tensor(p.grad.storage(), p.grad.data(), A, p.rows(), p.cols(), p.cols());
  }
}

LocalParam& ParamStore::at(const std::string& name) {
  auto it = by_name_.find(name);
  ORTHANT_ENSURE(it != by_name_.end(), "no parameter is called " + name);
  return *it->second;
}

void ParamStore::fill(const std::function<void(const Param&, const Piece&, float*)>& fill) {
  if (backend_.shapes_only()) return;
  for (LocalParam& p : params_) {
    const Tensor& target = p.master ? p.master : p.weight;
    if (p.rows() * p.cols() == 0) continue;
    int64_t step = std::max<int64_t>(1, fill_elements / std::max<int64_t>(1, p.cols()));
    for (int64_t r = 0; r < p.rows(); r += step) {
      int64_t count = std::min(step, p.rows() - r);
      Tensor buffer = backend_.alloc(DType::f32, count, p.cols(), MemoryKind::workspace);
      {
        Host<float> host(backend_, buffer);
        Piece part = p.piece;
        part.row += r;
        part.rows = count;
        fill(p.param, part, host.data());
      }
      backend_.copy(target.row_range(r, count), buffer);
    }
  }
  round_weights();
}

void ParamStore::round_weights() {
  if (!precision_.has_copy()) return;
  for (LocalParam& p : params_)
    if (p.master) backend_.copy(p.weight, p.master);
}

void ParamStore::zero_gradients() {
  for (GradientGroup& g : groups_) {
    if (g.flat) backend_.zero(g.flat);
    if (g.exact) backend_.zero(g.exact);
  }
}

}  // namespace orthant
