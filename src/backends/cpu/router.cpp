// Routing of tokens to experts on the host: which experts a token goes to and with what weight, the gradient of that,
// and the moves of rows to the experts and back.
//
// A token's numbers are sums over experts in rising order, taken from its own row alone: they depend neither on the
// other tokens nor on threads. Scores are made again in the backward pass, by the same code, so they need no memory.
#include <omp.h>

#include <limits>

#include "backends/check_shapes.hpp"
#include "backends/cpu/cpu_backend.hpp"
#include "backends/cpu/loops.hpp"

namespace orthant {

using namespace loops;

namespace {

constexpr int router_slot = 7;

/// exp(v - max) of a row, and the sums that a softmax and its logsumexp need. NaN where a logit is.
template <class A>
struct Exponentials {
  A max, sum;
};
template <class A>
Exponentials<A> exponentials(const A* v, int64_t n, A* to) {
  A top = -std::numeric_limits<A>::infinity();
  for (int64_t i = 0; i < n; ++i) top = v[i] > top ? v[i] : top;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = exp_(v[i] - top);
  A sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += to[i];
  return {top, sum};
}

/// Scores of a row, in rising order of experts; returns their sum. The softmax's is that before the division.
template <class A>
A scores_of(const RouterShape& s, const A* v, A* score) {
  A sum = 0;
  if (s.sigmoid) {
#pragma omp simd
    for (int64_t i = 0; i < s.experts; ++i) score[i] = sigmoid(v[i]);
    for (int64_t i = 0; i < s.experts; ++i) sum += score[i];
    return sum;
  }
  sum = exponentials(v, s.experts, score).sum;
#pragma omp simd
  for (int64_t i = 0; i < s.experts; ++i) score[i] /= sum;
  return sum;
}

/// What the weights of the chosen are divided by, before `scale`.
template <class A>
A divisor(const RouterShape& s, const A* score, const int32_t* chosen) {
  if (!s.normalise) return A(1);
  A sum = 0;
  for (int64_t j = 0; j < s.top_k; ++j) sum += score[chosen[j]];
  return s.sigmoid ? sum + static_cast<A>(1e-20) : sum;
}

/// Number of the largest key that is not taken, the first of equals; -1 when all are taken.
template <class A>
int64_t best_of(const A* key, const char* taken, int64_t n) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i)
    if (!taken[i] && (best < 0 || key[i] > key[best])) best = i;
  return best;
}

/// A key that comparisons can order: NaN stands behind everything, so that a choice always ends with valid experts.
template <class A>
A ordered(A key) {
  return key == key ? key : -std::numeric_limits<A>::infinity();
}

/// Working memory of one thread.
template <class A>
struct Work {
  A *score, *key, *group;
  char *taken, *group_taken;
  Work(void* memory, int64_t experts) {
    score = static_cast<A*>(memory);
    key = score + experts;
    group = key + experts;
    taken = reinterpret_cast<char*>(group + experts);
    group_taken = taken + experts;
  }
  /// A multiple of a cache line, so that threads write to lines of their own.
  static int64_t bytes(int64_t experts) {
    return (experts * (3 * static_cast<int64_t>(sizeof(A)) + 2) + 63) / 64 * 64;
  }
};

/// Excludes the experts of all but the best groups: they count as taken.
template <class A>
void exclude_groups(const RouterShape& s, const Work<A>& w) {
  const int64_t size = s.experts / s.groups;
  for (int64_t g = 0; g < s.groups; ++g) {
    const A* key = w.key + g * size;
    A first = key[0], second = -std::numeric_limits<A>::infinity();
    for (int64_t i = 1; i < size; ++i) {
      if (key[i] > first) {
        second = first;
        first = key[i];
      } else if (key[i] > second) {
        second = key[i];
      }
    }
    w.group[g] = ordered(size > 1 ? first + second : first);
  }
  std::fill(w.group_taken, w.group_taken + s.groups, char{0});
  std::fill(w.taken, w.taken + s.experts, char{1});
  for (int64_t k = 0; k < s.top_groups; ++k) {
    const int64_t g = best_of(w.group, w.group_taken, s.groups);
    w.group_taken[g] = 1;
    std::fill(w.taken + g * size, w.taken + (g + 1) * size, char{0});
  }
}

/// chosen [top_k] in rising order, from w.score and the bias.
template <class A>
void choose(const RouterShape& s, const A* bias, const Work<A>& w, int32_t* chosen) {
  for (int64_t i = 0; i < s.experts; ++i) w.key[i] = ordered(bias ? w.score[i] + bias[i] : w.score[i]);
  if (s.groups > 1)
    exclude_groups(s, w);
  else
    std::fill(w.taken, w.taken + s.experts, char{0});
  for (int64_t k = 0; k < s.top_k; ++k) {
    const auto best = static_cast<int32_t>(best_of(w.key, w.taken, s.experts));
    w.taken[best] = 1;
    int64_t at = k;  // insertion keeps the numbers in rising order
    for (; at > 0 && chosen[at - 1] > best; --at) chosen[at] = chosen[at - 1];
    chosen[at] = best;
  }
}

/// The gradient through the weights of the chosen of one token, added to d. w_j = scale r_j with r_j = score_j, or
/// score_j / divisor; in terms of r nothing is divided by a small sum twice.
template <class A>
void add_through_weights(const RouterShape& s, const A* v, const A* score, const int32_t* chosen, const A* d_weights,
                         A* d) {
  const A scale = static_cast<A>(s.scale), by = divisor(s, score, chosen);
  A mean = 0;
  for (int64_t j = 0; j < s.top_k; ++j) mean += d_weights[j] * (score[chosen[j]] / by);
  if (s.sigmoid || s.normalise) {
    // a normalised softmax over the chosen is the softmax of their logits alone
    const A away = s.normalise ? mean : A(0);
    for (int64_t j = 0; j < s.top_k; ++j) {
      const int32_t e = chosen[j];
      const A slope = s.sigmoid ? detail::sigmoid_pair(v[e]).complement : A(1);
      d[e] += scale * (score[e] / by) * slope * (d_weights[j] - away);
    }
    return;
  }
  // without, each chosen share answers to every logit
  for (int64_t i = 0; i < s.experts; ++i) d[i] -= scale * score[i] * mean;
  for (int64_t j = 0; j < s.top_k; ++j) d[chosen[j]] += scale * score[chosen[j]] * d_weights[j];
}

/// The gradient `balance` of the shares of one token, added to d; `sum` is that of the scores.
template <class A>
void add_through_shares(const RouterShape& s, const A* v, const A* score, A sum, const A* balance, A* d) {
  const A by = s.sigmoid ? sum : A(1);
  A mean = 0;
  for (int64_t i = 0; i < s.experts; ++i) mean += balance[i] * (score[i] / by);
  for (int64_t i = 0; i < s.experts; ++i) {
    const A slope = s.sigmoid ? detail::sigmoid_pair(v[i]).complement : A(1);
    d[i] += score[i] / by * slope * (balance[i] - mean);
  }
}

/// Every number of the index is -1 or a row.
void need_rows(const char* op, const Index& index, int64_t rows) {
  for (int64_t i = 0; i < index.size(); ++i)
    ORTHANT_ENSURE(index[i] >= -1 && index[i] < rows, std::string(op) + ": row " + std::to_string(index[i]) +
                                                          " is not among the " + std::to_string(rows) + " rows of x");
}

void need_experts(const char* op, const Index& chosen, int64_t experts) {
  for (int64_t i = 0; i < chosen.size(); ++i)
    ORTHANT_ENSURE(chosen[i] >= 0 && chosen[i] < experts, std::string(op) + ": expert " + std::to_string(chosen[i]) +
                                                              " is not among " + std::to_string(experts));
}

}  // namespace

void CpuBackend::router_forward(const RouterShape& s, const Tensor& logits, const Tensor& bias, const Tensor& chosen,
                                const Tensor& weights, const Tensor& shares) {
  check::router_forward(s, logits, bias, chosen, weights, shares);
  with_accumulator(logits.dtype(), [&](auto tag) {
    using A = typename decltype(tag)::type;
    const int64_t each = Work<A>::bytes(s.experts);
    char* memory = static_cast<char*>(scratch(router_slot, threads_ * each));
    const A* add = bias ? bias.as<A>() : nullptr;
    for_rows(threads_, logits.rows(), s.experts * (4 + s.top_k), [&](int64_t t) {
      const Work<A> w(memory + omp_get_thread_num() * each, s.experts);
      const A sum = scores_of(s, logits.as<A>() + t * logits.ld(), w.score);
      int32_t* picks = chosen.as<int32_t>() + t * chosen.ld();
      choose(s, add, w, picks);
      A* weight = weights.as<A>() + t * weights.ld();
      const A scale = static_cast<A>(s.scale), by = divisor(s, w.score, picks);
      // a NaN among the logits must reach the loss even where it was not chosen
      for (int64_t j = 0; j < s.top_k; ++j) weight[j] = sum == sum ? scale * (w.score[picks[j]] / by) : sum;
      A* share = shares.as<A>() + t * shares.ld();
      const A whole = s.sigmoid ? sum : A(1);
#pragma omp simd
      for (int64_t i = 0; i < s.experts; ++i) share[i] = w.score[i] / whole;
    });
  });
}

void CpuBackend::router_backward(const RouterShape& s, const Tensor& logits, const Tensor& chosen,
                                 const Tensor& d_weights, const Tensor& balance, double z, const Tensor& d_logits) {
  check::router_backward(s, logits, chosen, d_weights, balance, z, d_logits);
  need_experts("router_backward", Index(chosen), s.experts);
  with_accumulator(logits.dtype(), [&](auto tag) {
    using A = typename decltype(tag)::type;
    const int64_t each = Work<A>::bytes(s.experts);
    char* memory = static_cast<char*>(scratch(router_slot, threads_ * each));
    for_rows(threads_, logits.rows(), s.experts * 8, [&](int64_t t) {
      const Work<A> w(memory + omp_get_thread_num() * each, s.experts);
      const A* v = logits.as<A>() + t * logits.ld();
      const A sum = scores_of(s, v, w.score);
      A* d = w.key;  // written out at the end: d_logits may lie over logits
      std::fill(d, d + s.experts, A(0));
      add_through_weights(s, v, w.score, chosen.as<int32_t>() + t * chosen.ld(),
                          d_weights.as<A>() + t * d_weights.ld(), d);
      if (balance) {
        const A* row = balance.as<A>() + t % balance.rows() * balance.ld();
        add_through_shares(s, v, w.score, sum, row, d);
      }
      if (z != 0) {
        const auto e = exponentials(v, s.experts, w.group);
        const A factor = static_cast<A>(2 * z) * (e.max + log_(e.sum)) / e.sum;
        for (int64_t i = 0; i < s.experts; ++i) d[i] += factor * w.group[i];
      }
      std::copy(d, d + s.experts, d_logits.as<A>() + t * d_logits.ld());
    });
  });
}

void CpuBackend::count_choices(const Tensor& chosen, const Tensor& counts) {
  check::count_choices(chosen, counts);
  need_experts("count_choices", Index(chosen), counts.cols());
  for (int64_t t = 0; t < chosen.rows(); ++t) {
    const int32_t* picks = chosen.as<int32_t>() + t * chosen.ld();
    int64_t* count = counts.as<int64_t>() + t % counts.rows() * counts.ld();
    for (int64_t j = 0; j < chosen.cols(); ++j) ++count[picks[j]];
  }
}

void CpuBackend::gather_rows(const Tensor& x, const Tensor& index, const Tensor& out) {
  check::gather_rows(x, index, out);
  const Index row(index);
  need_rows("gather_rows", row, x.rows());
  const int64_t width = out.cols(), size = size_of(out.dtype());
  if (width == 0) return;
  const char* from = static_cast<const char*>(x.data());
  char* to = static_cast<char*>(out.data());
  for_rows(threads_, out.rows(), width, [&](int64_t r) {
    char* target = to + r * out.ld() * size;
    if (row[r] < 0)
      memset(target, 0, static_cast<size_t>(width * size));
    else
      memcpy(target, from + row[r] * x.ld() * size, static_cast<size_t>(width * size));
  });
}

void CpuBackend::combine_rows(const Tensor& x, const Tensor& slot, const Tensor& out) {
  check::combine_rows(x, slot, out);
  const Index row(slot);
  need_rows("combine_rows", row, x.rows());
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const int64_t width = out.cols(), parts = slot.cols();
    for_rows(threads_, out.rows(), width * (parts + 1), [&](int64_t t) {
      constexpr int64_t chunk = 512;
      A sum[chunk];
      for (int64_t begin = 0; begin < width; begin += chunk) {
        const int64_t n = std::min(chunk, width - begin);
        std::fill(sum, sum + n, A(0));
        for (int64_t j = 0; j < parts; ++j) {
          const int64_t r = row[t * parts + j];
          if (r < 0) continue;
          const T* from = x.as<T>() + r * x.ld() + begin;
#pragma omp simd
          for (int64_t c = 0; c < n; ++c) sum[c] += load(from[c]);
        }
        T* to = out.as<T>() + t * out.ld() + begin;
#pragma omp simd
        for (int64_t c = 0; c < n; ++c) to[c] = store<T>(sum[c]);
      }
    });
  });
}

}  // namespace orthant
