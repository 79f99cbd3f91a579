// See ops_trial.hpp.
#include "commands/ops_trial.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "orthant/elementwise.hpp"

namespace orthant {

const char* name_of(OpForm form) {
  switch (form) {
    case OpForm::forward:
      return "forward";
    case OpForm::backward_input:
      return "backward_input";
    case OpForm::backward_weight:
      return "backward_weight";
    case OpForm::backward:
      return "backward";
  }
  return "?";
}

double OpCase::flops() const {
  const auto d = [](int64_t n) { return static_cast<double>(n); };
  if (kind == OpKind::product) return 2 * d(tokens) * d(in) * d(out);
  // a product over all pairs of tokens, of which the causal half counts
  const double product = d(tokens) * d(tokens) * d(heads) * d(head_dim);
  return (form == OpForm::forward ? 2 : 5) * product;
}

std::string OpCase::text() const {
  if (kind == OpKind::product) return fmt::format("{} {} x {} -> {}", name_of(form), tokens, in, out);
  return fmt::format("attention {} {} tokens, {} heads ({} kv) of {}", name_of(form), tokens, heads, kv_heads,
                     head_dim);
}

OpSizes op_sizes(const std::string& name) {
  if (name == "full") return {{{4096, 4096}, {4096, 14336}, {14336, 4096}}, 8192, {2048, 4096, 8192}, 32, 8, 128};
  if (name == "small") return {{{256, 256}, {256, 896}, {896, 256}}, 96, {64, 160}, 4, 1, 32};
  throw UsageError("bench ops --sizes " + name + ": small or full");
}

std::vector<OpCase> op_cases(const OpSizes& sizes, const std::vector<DType>& dtypes) {
  std::vector<OpCase> out;
  for (const DType t : dtypes) {
    for (const auto& [in, width] : sizes.weights)
      for (const OpForm form : {OpForm::forward, OpForm::backward_input, OpForm::backward_weight})
        out.push_back({OpKind::product, form, t, sizes.tokens, in, width, 0, 0, 0});
    for (const int64_t length : sizes.lengths)
      for (const OpForm form : {OpForm::forward, OpForm::backward})
        out.push_back({OpKind::attention, form, t, length, 0, 0, sizes.heads, sizes.kv_heads, sizes.head_dim});
  }
  return out;
}

namespace {

/// Numbers in [-0.5, 0.5), as a pattern that repeats after a prime number of elements: much quicker than fresh ones
/// for each of a few hundred million places, and no two rows of a matrix are the same.
void fill(Backend& be, const Tensor& x, uint64_t seed) {
  constexpr int64_t period = 1000003;
  std::vector<float> pattern(static_cast<size_t>(std::min(period, x.size())));
  uint64_t s = 88172645463325252ULL + seed * 0x9e3779b97f4a7c15u;
  for (float& v : pattern) {
    s ^= s << 13, s ^= s >> 7, s ^= s << 17;
    v = static_cast<float>(s >> 40) * 0x1p-24f - 0.5f;
  }
  const auto put = [&]<class T>(T) {
    std::vector<T> rounded(pattern.size());
    for (size_t i = 0; i < pattern.size(); ++i) {
      if constexpr (std::is_same_v<T, bf16>)
        rounded[i] = to_bf16(pattern[i]);
      else if constexpr (std::is_same_v<T, f16>)
        rounded[i] = to_f16(pattern[i]);
      else
        rounded[i] = static_cast<T>(pattern[i]);
    }
    const Host<T> h(be, x);
    const auto n = static_cast<int64_t>(rounded.size());
    for (int64_t at = 0; at < x.size(); at += n)
      std::copy_n(rounded.data(), std::min(n, x.size() - at), h.data() + at);
  };
  switch (x.dtype()) {
    case DType::bf16:
      return put(bf16{});
    case DType::f16:
      return put(f16{});
    case DType::f64:
      return put(double{});
    default:
      return put(float{});
  }
}

DType sums_of(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }
/// Relative error of one rounding.
double rounding(DType t) {
  return t == DType::bf16 ? 0x1p-8 : t == DType::f16 ? 0x1p-11 : t == DType::f64 ? 0x1p-53 : 0x1p-24;
}

}  // namespace

OpTrial::OpTrial(Backend& backend, const std::vector<OpCase>& cases) : backend_(backend) {
  ORTHANT_ENSURE(!cases.empty(), "no case to measure");
  dtype_ = cases[0].dtype;
  int64_t in = 0, weights = 0, out = 0, wide = 0, narrow = 0, rows = 0;
  for (const OpCase& c : cases) {
    ORTHANT_ENSURE(c.dtype == dtype_, "cases of several types in one trial");
    if (c.kind == OpKind::product) {
      in = std::max(in, c.tokens * c.in), weights = std::max(weights, c.in * c.out),
      out = std::max(out, c.tokens * c.out);
    } else {
      wide = std::max(wide, c.tokens * c.heads * c.head_dim),
      narrow = std::max(narrow, c.tokens * c.kv_heads * c.head_dim);
      rows = std::max(rows, c.tokens * c.heads);
    }
  }
  const auto make = [&](DType t, int64_t n) {
    return n > 0 ? backend_.alloc(t, 1, n, MemoryKind::workspace) : Tensor();
  };
  in_ = make(dtype_, std::max(in, wide)), weights_ = make(dtype_, weights),
  d_out_ = make(dtype_, std::max(out, wide));
  k_ = make(dtype_, narrow), v_ = make(dtype_, narrow);
  out_ = make(dtype_, std::max({in, out, wide})), dq_ = make(dtype_, wide), dk_ = make(dtype_, narrow),
  dv_ = make(dtype_, narrow);
  sums_ = make(sums_of(dtype_), std::max(weights, rows));
  uint64_t seed = 0;
  for (const Tensor* x : {&in_, &weights_, &d_out_, &k_, &v_})
    if (*x) fill(backend_, *x, ++seed);
  backend_.zero(sums_);
}

Tensor OpTrial::view(const Tensor& pool, int64_t rows, int64_t cols) const {
  return pool.col_range(0, rows * cols).reshaped(rows, cols);
}

OpTrial::Operands OpTrial::operands(const OpCase& c) const {
  const Tensor w = c.form == OpForm::backward_weight ? Tensor() : view(weights_, c.out, c.in);
  if (c.form == OpForm::forward) return {view(in_, c.tokens, c.in), w, view(out_, c.tokens, c.out)};
  const Tensor dy = view(d_out_, c.tokens, c.out);
  if (c.form == OpForm::backward_input) return {dy, w, view(out_, c.tokens, c.in)};
  return {dy, view(in_, c.tokens, c.in), view(sums_, c.out, c.in)};
}

void OpTrial::run(const OpCase& c) {
  if (c.kind == OpKind::product) {
    const auto [a, b, to] = operands(c);
    const bool weight = c.form == OpForm::backward_weight;
    return backend_.gemm(a, weight, b, c.form == OpForm::forward, to, weight);
  }
  AttentionShape s;
  s.q_length = s.k_length = s.sequence = c.tokens;
  s.heads = s.all_heads = c.heads, s.kv_heads = c.kv_heads, s.head_dim = c.head_dim;
  s.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  const int64_t wide = c.heads * c.head_dim, narrow = c.kv_heads * c.head_dim;
  const Tensor q = view(in_, c.tokens, wide), k = view(k_, c.tokens, narrow), v = view(v_, c.tokens, narrow);
  const Tensor o = view(out_, c.tokens, wide), lse = view(sums_, c.tokens, c.heads);
  if (c.form == OpForm::forward) return backend_.attention_forward(s, q, k, v, o, lse);
  backend_.attention_backward(s, view(d_out_, c.tokens, wide), q, k, v, o, lse, view(dq_, c.tokens, wide),
                              view(dk_, c.tokens, narrow), view(dv_, c.tokens, narrow));
}

std::vector<double> OpTrial::read(const Tensor& x) const {
  const Tensor wide = backend_.alloc(DType::f64, x.rows(), x.cols(), MemoryKind::workspace);
  backend_.copy(wide, x);
  const Host<double> h(backend_, wide);
  return {h.data(), h.data() + wide.size()};
}

void OpTrial::check_product(const OpCase& c) {
  backend_.zero(sums_);
  backend_.zero(out_);
  const auto [a, b, to] = operands(c);
  const bool across = c.form == OpForm::backward_weight;  // the first operand lies transposed
  const int64_t last = to.rows() - 1, end = to.cols() - 1;
  const std::vector<double> left = read(across ? a.col_range(last, 1) : a.row_range(last, 1));
  const std::vector<double> right = read(c.form == OpForm::forward ? b.row_range(end, 1) : b.col_range(end, 1));
  run(c);
  double sum = 0, size = 0;
  for (size_t i = 0; i < left.size(); ++i) sum += left[i] * right[i], size += std::abs(left[i] * right[i]);
  const double got = read(to.row_range(last, 1).col_range(end, 1))[0];
  const double tf32 = backend_.tf32() && dtype_ == DType::f32 ? 0x1p-10 * size : 0;  // both operands, to 11 bits
  const double bound = 2 * rounding(to.dtype()) * std::abs(sum) + tf32 +
                       4 * rounding(sums_of(dtype_)) * std::sqrt(static_cast<double>(left.size())) * size;
  if (!(std::abs(got - sum) <= bound))
    throw FaultError(fmt::format("bench ops: {} {}: the last number is {}, and should be {} (within {})",
                                 name_of(c.dtype), c.text(), got, sum, bound));
}

void OpTrial::check_attention(const OpCase& c) {
  for (const Tensor* x : {&out_, &sums_, &dq_}) backend_.zero(*x);
  OpCase forward = c;
  forward.form = OpForm::forward;
  run(forward);
  const auto wrong = [&](const std::string& what) {
    throw FaultError(fmt::format("bench ops: {} {}: {}", name_of(c.dtype), c.text(), what));
  };
  const int64_t wide = c.heads * c.head_dim;
  // the last query sees all keys: its log-sum is near that of their number, as scores of such numbers are small
  const double lse = read(view(sums_, c.tokens, c.heads).row_range(c.tokens - 1, 1))[0];
  if (!(std::abs(lse - std::log(static_cast<double>(c.tokens))) < 0.5))
    wrong(fmt::format("the last row's log-sum is {}", lse));
  // the first one sees the first key alone, so the result is that key's value
  const std::vector<double> first = read(view(out_, c.tokens, wide).row_range(0, 1)),
                            value = read(view(v_, c.tokens, c.kv_heads * c.head_dim).row_range(0, 1));
  for (int64_t n = 0; n < wide; ++n) {
    const double want =
        value[static_cast<size_t>(n / c.head_dim / (c.heads / c.kv_heads) * c.head_dim + n % c.head_dim)];
    if (!(std::abs(first[static_cast<size_t>(n)] - want) <= 4 * rounding(dtype_) + 1e-6))
      wrong(fmt::format("row 0 column {} is {}, and should be {}", n, first[static_cast<size_t>(n)], want));
  }
  if (c.form == OpForm::forward) return;
  run(c);
  double largest = 0;
  for (const double x : read(view(dq_, c.tokens, wide).row_range(c.tokens - 1, 1)))
    largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : INFINITY;
  if (!(largest > 0 && largest < 1)) wrong(fmt::format("the largest number of the last row of dq is {}", largest));
}

void OpTrial::check(const OpCase& c) { c.kind == OpKind::product ? check_product(c) : check_attention(c); }

OpRate OpTrial::time(const OpCase& c, int64_t repeat, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto timed = [&](int64_t calls) {
    backend_.synchronize();
    const auto begin = Clock::now();
    for (int64_t n = 0; n < calls; ++n) run(c);
    backend_.synchronize();
    return std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(calls);
  };
  timed(1);  // choices and first touches of memory
  OpRate rate;
  rate.calls = std::clamp<int64_t>(std::llround(seconds / std::max(timed(1), 1e-9)), 1, 10000);
  std::vector<double> all;
  for (int64_t n = 0; n < repeat; ++n) all.push_back(timed(rate.calls));
  std::sort(all.begin(), all.end());
  rate.seconds = all[all.size() / 2];
  rate.least = all.front();
  return rate;
}

}  // namespace orthant
