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

Fp8::Fp8(Backend& backend, const Fp8Settings& settings, std::vector<Param> params) : backend_(backend), settings_(settings) {
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

Quantised Fp8::scaled(Context& ctx, const Operand& o, const Tensor& scale) const {
  Quantised out;
  out.q = ctx.workspace(format(o.role), o.x.rows(), o.x.cols());
  out.inverse_scale = ctx.workspace(DType::f32, 1, 1);
  ctx.be.quantize(o.x, scale, out);
  return out;
}

Quantised Fp8::blocks(Context& ctx, const Operand& o) const {
  const bool mx = settings_.recipe == Fp8Recipe::mxfp8;
  const int64_t along = mx ? 32 : 128, across = !mx && o.role == weight ? along : 1;
  Quantised out;
  out.block_rows = o.by_rows ? along : across;
  out.block_cols = o.by_rows ? across : along;
  const auto pieces = [](int64_t n, int64_t block) { return (n + block - 1) / block; };
  out.q = ctx.workspace(format(o.role), o.x.rows(), o.x.cols());
  out.inverse_scale = ctx.workspace(DType::f32, pieces(o.x.rows(), out.block_rows), pieces(o.x.cols(), out.block_cols));
  ctx.be.quantize_blocks(o.x, mx ? BlockScale::mx : BlockScale::fitted, out);
  return out;
}

std::pair<Quantised, Quantised> Fp8::quantise(Context& ctx, const LocalParam& w, const Operand& a, const Operand& b, const Axis& cut) {
  if (settings_.recipe == Fp8Recipe::blockwise || settings_.recipe == Fp8Recipe::mxfp8) return {blocks(ctx, a), blocks(ctx, b)};
  if (settings_.recipe == Fp8Recipe::delayed) {
    const int64_t i = entries_.at(w.param.name);
    const auto one = [&](const Operand& o) {
      const auto of = [&](const Tensor& t) { return t.row_range(i, 1).col_range(o.role, 1); };
      if (recording_ && o.seen) ctx.be.amax(o.x, of(amax_));
      return scaled(ctx, o, of(scales_));
    };
    return {one(a), one(b)};
  }
  const Tensor amax = ctx.workspace(DType::f32, 1, 2), scales = ctx.workspace(DType::f32, 1, 2);
  ctx.be.zero(amax);
  ctx.be.amax(a.x, amax.col_range(0, 1));
  ctx.be.amax(b.x, amax.col_range(1, 1));
  cut.max_control(amax);
  const auto one = [&](const Operand& o, int64_t place) {
    const Tensor scale = scales.col_range(place, 1);
    ctx.be.copy(scale, one_);
    ctx.be.scale_from_amax(amax.col_range(place, 1), format(o.role), settings_.margin, scale);
    return scaled(ctx, o, scale);
  };
  return {one(a, 0), one(b, 1)};
}

void Fp8::forward(Context& ctx, const LocalParam& w, const Tensor& x, const Tensor& y, const Tensor& bias, const Axis& cut) {
  bool first = false;
  if (recording_ && !weight_seen_.empty()) {
    char& seen = weight_seen_[static_cast<size_t>(entries_.at(w.param.name))];
    first = !seen;
    seen = 1;
  }
  const auto [qx, qw] = quantise(ctx, w, {input, x, false, !ctx.again}, {weight, w.weight, false, first}, cut);
  ctx.be.gemm_fp8(qx, false, qw, true, y, false, bias);
}

void Fp8::backward_input(Context& ctx, const LocalParam& w, const Tensor& dy, const Tensor& dx, bool accumulate, const Axis& cut) {
  const auto [qdy, qw] = quantise(ctx, w, {gradient, dy, false, true}, {weight, w.weight, true, false}, cut);
  ctx.be.gemm_fp8(qdy, false, qw, false, dx, accumulate);
}

void Fp8::backward_weight(Context& ctx, const LocalParam& w, const Tensor& dy, const Tensor& x, const Axis& cut) {
  const auto [qdy, qx] = quantise(ctx, w, {gradient, dy, true, false}, {input, x, true, false}, cut);
  ctx.be.gemm_fp8(qdy, true, qx, false, w.grad, true);
}

}  // namespace orthant
