// See fp8.hpp.
#include "layers/fp8.hpp"

#include <algorithm>

#include "orthant/elementwise.hpp"

namespace orthant {

bool in_fp8(const Param& p, const Fp8Settings& s, int64_t layers) {
  static const std::string start = "layers.";
  if (p.dims.size() < 2 || !p.trained || p.name.rfind(start, 0) != 0 || p.name.find(".router.") != std::string::npos) return false;
  const int64_t layer = std::stoll(p.name.substr(start.size()));
  return layer >= s.keep_ends && layer < layers - s.keep_ends;
}

Fp8::Fp8(Backend& backend, const Fp8Settings& settings, std::vector<Param> params, bool keep_weights)
    : backend_(backend), settings_(settings), keep_weights_(keep_weights), copies_(2 * params.size()) {
  for (const Param& p : params) entries_.emplace(p.name, static_cast<int64_t>(entries_.size()));
  ORTHANT_ENSURE(entries_.size() == params.size(), "a weight twice in one stage");
  if (settings_.recipe == Fp8Recipe::current) one_ = backend_.alloc(DType::f32, 1, 1, MemoryKind::optimizer);
  if (one_ && !backend_.shapes_only()) Host<float>(backend_, one_)[0] = 1;
  if (settings_.recipe != Fp8Recipe::delayed) return;
  const int64_t n = static_cast<int64_t>(params.size());
  scales_ = backend_.alloc(DType::f32, n, roles, MemoryKind::optimizer);
  amax_ = backend_.alloc(DType::f32, n, roles, MemoryKind::optimizer);
  if (backend_.shapes_only()) return;
  for (Param& p : params) {
    Param history, scale;
    history.name = scale.name = p.name;
    history.dims = {{DimName::latent, roles, 1}, {DimName::latent, settings_.history, 1}};
    scale.dims = {{DimName::latent, roles, 1}, {DimName::latent, 1, 1}};
    history_params_.push_back(std::move(history));
    scale_params_.push_back(std::move(scale));
  }
  reset();
}

void Fp8::reset() {
  if (settings_.recipe != Fp8Recipe::delayed || backend_.shapes_only()) return;
  const size_t n = entries_.size() * roles;
  scale_.assign(n, 1.0f);
  history_.assign(n * static_cast<size_t>(settings_.history), 0.0f);
  publish();
}

void Fp8::publish() {
  if (settings_.recipe != Fp8Recipe::delayed || backend_.shapes_only()) return;
  weight_seen_.assign(entries_.size(), 0);
  if (entries_.empty()) return;
  std::copy(scale_.begin(), scale_.end(), Host<float>(backend_, scales_).data());
  std::fill_n(Host<float>(backend_, amax_).data(), scale_.size(), -1.0f);
}

std::vector<StatePiece> Fp8::pieces(bool writer) {
  std::vector<StatePiece> out;
  for (size_t i = 0; i < history_params_.size(); ++i) {
    out.push_back({&history_params_[i], "fp8/history", {0, roles, 0, settings_.history},
                   history_.data() + i * roles * static_cast<size_t>(settings_.history), writer, true});
    out.push_back({&scale_params_[i], "fp8/scale", {0, roles, 0, 1}, scale_.data() + i * roles, writer, true});
  }
  return out;
}

void Fp8::roll(Context& ctx) {
  if (settings_.recipe != Fp8Recipe::delayed || ctx.be.shapes_only()) return;
  const int64_t n = static_cast<int64_t>(entries_.size()) * roles, length = settings_.history;
  if (n == 0) return;  // on all ranks of the stage
  Tensor seen = ctx.workspace(DType::f32, 1, n);
  ctx.be.copy(seen, amax_.reshaped(1, n));
  // Ranks that hold other experts have nothing of these, and learn it here: so all ranks of a stage hold the same state.
  for (AxisName a : {AxisName::tp, AxisName::cp, AxisName::dp}) ctx.axes[a].max_control(seen);
  {
    const Host<float> amax(ctx.be, seen);
    for (int64_t i = 0; i < n; ++i) {
      if (amax[i] < 0 || !finite_(amax[i])) continue;
      float* h = history_.data() + i * length;
      std::copy_backward(h, h + length - 1, h + length);
      h[0] = amax[i];
      const float most = settings_.most_recent ? h[0] : *std::max_element(h, h + length);
      const float largest = i % roles == gradient ? largest_e5m2 : largest_e4m3;
      float& scale = scale_[static_cast<size_t>(i)];
      scale = fp8_scale(most, largest, settings_.margin, scale);
    }
  }
  publish();
}

void Fp8::record(bool on) {
  recording_ = on;
  for (Copy& c : copies_) c.made = false;
}

Quantised Fp8::room(Role role, const Tensor& x, bool by_rows, MemoryKind kind) const {
  Quantised out;
  int64_t scale_rows = 1, scale_cols = 1;
  if (!per_tensor()) {
    const bool mx = settings_.recipe == Fp8Recipe::mxfp8;
    const int64_t along = mx ? 32 : 128, across = !mx && role == weight ? along : 1;
    const auto pieces = [](int64_t n, int64_t block) { return (n + block - 1) / block; };
    out.block_rows = by_rows ? along : across;
    out.block_cols = by_rows ? across : along;
    scale_rows = pieces(x.rows(), out.block_rows);
    scale_cols = pieces(x.cols(), out.block_cols);
  }
  out.q = backend_.alloc(format(role), x.rows(), x.cols(), kind);
  out.inverse_scale = backend_.alloc(DType::f32, scale_rows, scale_cols, kind);
  return out;
}

void Fp8::fill(Context& ctx, int64_t entry, Role role, const Tensor& x, bool seen, const Axis& cut, const Quantised& out) {
  if (!per_tensor()) return ctx.be.quantize_blocks(x, settings_.recipe == Fp8Recipe::mxfp8 ? BlockScale::mx : BlockScale::fitted, out);
  if (settings_.recipe == Fp8Recipe::delayed) {
    const auto of = [&](const Tensor& t) { return t.row_range(entry, 1).col_range(role, 1); };
    if (recording_ && seen) ctx.be.amax(x, of(amax_));
    return ctx.be.quantize(x, of(scales_), out);
  }
  const Tensor amax = ctx.workspace(DType::f32, 1, 1), scale = ctx.workspace(DType::f32, 1, 1);
  ctx.be.zero(amax);
  ctx.be.amax(x, amax);
  cut.max_control(amax);
  ctx.be.copy(scale, one_);
  ctx.be.scale_from_amax(amax, format(role), settings_.margin, scale);
  ctx.be.quantize(x, scale, out);
}

/// Weights with the same input saw the same numbers in all steps, so their scales are the same, unless a checkpoint says
/// otherwise.
bool Fp8::same_scale(int64_t entry, int64_t other, Role role) const {
  const auto place = [&](int64_t e) { return static_cast<size_t>(e * roles + role); };
  return scale_.empty() || scale_[place(entry)] == scale_[place(other)];
}

bool Fp8::can_travel(Context& ctx, const std::vector<const LocalParam*>& weights, Role role, const Operand& part, const Axis& cut) {
  if (!per_tensor() || weights.empty()) return false;
  for (const LocalParam* w : weights)
    if (!covers(*w) || !same_scale(entries_.at(w->param.name), entries_.at(weights[0]->param.name), role)) return false;
  of_operand(ctx, entries_.at(weights[0]->param.name), role, part, false, role == gradient || !ctx.again, cut);
  return true;
}

Quantised Fp8::of_operand(Context& ctx, int64_t entry, Role role, const Operand& x, bool by_rows, bool seen, const Axis& cut) {
  if (!per_tensor()) {
    const Quantised out = room(role, x.full(), by_rows, MemoryKind::workspace);
    fill(ctx, entry, role, x.full(), seen, cut, out);
    return out;
  }
  if (!x.q_.q) {
    x.q_ = room(role, x.full(), by_rows, MemoryKind::activations);
    x.entry_ = entry;
    fill(ctx, entry, role, x.full(), seen, cut, x.q_);
    return x.q_;
  }
  if (entry == x.entry_ || settings_.recipe == Fp8Recipe::current) return x.q_;
  if (!same_scale(entry, x.entry_, role)) {
    x.whole_ = true;
    const Quantised out = room(role, x.full(), by_rows, MemoryKind::workspace);
    fill(ctx, entry, role, x.full(), seen, cut, out);
    return out;
  }
  const auto amax = [&](int64_t e) { return amax_.row_range(e, 1).col_range(role, 1); };
  if (recording_ && seen) ctx.be.copy(amax(entry), amax(x.entry_));
  return x.q_;
}

Quantised Fp8::of_weight(Context& ctx, const LocalParam& w, bool by_rows, bool seen, const Axis& cut) {
  const int64_t entry = entries_.at(w.param.name);
  if (!keep_weights_ || !recording_) {
    const Quantised out = room(weight, w.weight, by_rows, MemoryKind::workspace);
    fill(ctx, entry, weight, w.weight, seen, cut, out);
    return out;
  }
  Copy& copy = copies_[static_cast<size_t>(2 * entry + (by_rows && settings_.recipe == Fp8Recipe::mxfp8 ? 1 : 0))];
  if (!copy.q.q) copy.q = room(weight, w.weight, by_rows, MemoryKind::weights);
  if (!copy.made) fill(ctx, entry, weight, w.weight, seen, cut, copy.q);
  copy.made = true;
  return copy.q;
}

void Fp8::forward(Context& ctx, const LocalParam& w, const Operand& x, const Tensor& y, const Tensor& bias, const Axis& cut) {
  const int64_t entry = entries_.at(w.param.name);
  bool first = false;
  if (recording_ && !weight_seen_.empty()) {
    char& seen = weight_seen_[static_cast<size_t>(entry)];
    first = !seen;
    seen = 1;
  }
  const Quantised qx = of_operand(ctx, entry, input, x, false, !ctx.again, cut);
  const Quantised qw = of_weight(ctx, w, false, first, cut);
  ctx.be.gemm_fp8(qx, false, qw, true, y, false, bias);
}

void Fp8::backward_input(Context& ctx, const LocalParam& w, const Operand& dy, const Tensor& dx, bool accumulate, const Axis& cut) {
  const Quantised qdy = of_operand(ctx, entries_.at(w.param.name), gradient, dy, false, true, cut);
  const Quantised qw = of_weight(ctx, w, true, false, cut);
  ctx.be.gemm_fp8(qdy, false, qw, false, dx, accumulate);
}

void Fp8::backward_weight(Context& ctx, const LocalParam& w, const Operand& dy, const Operand& x, const Axis& cut) {
  const int64_t entry = entries_.at(w.param.name);
  const Quantised qdy = of_operand(ctx, entry, gradient, dy, true, false, cut);
  const Quantised qx = of_operand(ctx, entry, input, x, true, false, cut);
  ctx.be.gemm_fp8(qdy, true, qx, false, w.grad, true);
}

}  // namespace orthant
