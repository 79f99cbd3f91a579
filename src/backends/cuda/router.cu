// Routing of tokens to experts on the device: which experts a token goes to and with what weight, the gradient of
// that, and the moves of rows to the experts and back.
//
// One block a token. What is told of a single expert is done side by side; sums over experts are taken by one thread
// in rising order, as on the host, since a choice between nearly equal scores must not depend on the backend. Why the
// formulas are as they are stands in cpu/router.cpp.
#include "backends/check_shapes.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "backends/cuda/numbers.hpp"

namespace orthant {

using namespace cuda;

namespace {

constexpr int router_width = 64;

/// f(0) + f(1) + ... by one thread, in this order; `at` is memory of the block for the result.
template <class A, class F>
ORTHANT_KERNEL A sum_in_order(const Block& b, A* at, int64_t n, F&& f) {
  b.each(1, [&](int64_t) {
    A sum = A(0);
    for (int64_t i = 0; i < n; ++i) sum += f(i);
    *at = sum;
  });
  const A sum = *at;
  b.each(0, [](int64_t) {});  // nobody writes there before all have read
  return sum;
}

/// A key with its number: the larger key comes first, of equal ones the lower number.
template <class A>
struct Candidate {
  A key;
  int64_t number;
  ORTHANT_HD bool operator>(const Candidate& other) const {
    return key > other.key || (key == other.key && number < other.number);
  }
};

/// Number of the best key that is not taken; there is one.
template <class A>
ORTHANT_KERNEL int64_t best_of(const Block& b, const A* key, const char* taken, int64_t n) {
  const Candidate<A> none{-infinity<A>(), n};
  return b.template max<Candidate<A>>(n, none,
                                      [&](int64_t i) {
                                        return taken[i] ? none : Candidate<A>{key[i], i};
                                      })
      .number;
}

/// A key that comparisons can order: NaN stands behind everything, so that a choice always ends with valid experts.
template <class A>
ORTHANT_HD A ordered(A key) {
  return key == key ? key : -infinity<A>();
}

/// RouterShape as the kernels need it.
template <class A>
struct Router {
  explicit Router(const RouterShape& s)
      : experts(s.experts),
        top_k(s.top_k),
        groups(s.groups),
        top_groups(s.top_groups),
        sigmoid(s.sigmoid),
        normalise(s.normalise),
        scale(static_cast<A>(s.scale)) {}

  /// exp(v - max) of the logits of a token.
  struct Exponentials {
    A max, sum;
  };
  ORTHANT_KERNEL Exponentials exponentials(const Block& b, const A* v, A* to, A* cell) const {
    const A top = b.max<A>(experts, -infinity<A>(), [&](int64_t i) { return v[i]; });
    b.each(experts, [&](int64_t i) { to[i] = exp_(v[i] - top); });
    return {top, sum_in_order(b, cell, experts, [&](int64_t i) { return to[i]; })};
  }
  /// Scores of a token; returns their sum, the softmax's before the division.
  ORTHANT_KERNEL A scores_of(const Block& b, const A* v, A* score, A* cell) const {
    if (sigmoid) {
      b.each(experts, [&](int64_t i) { score[i] = orthant::sigmoid(v[i]); });
      return sum_in_order(b, cell, experts, [&](int64_t i) { return score[i]; });
    }
    const A sum = exponentials(b, v, score, cell).sum;
    b.each(experts, [&](int64_t i) { score[i] /= sum; });
    return sum;
  }
  /// What the weights of the chosen are divided by, before `scale`.
  ORTHANT_KERNEL A divisor(const Block& b, const A* score, const int32_t* chosen, A* cell) const {
    if (!normalise) return A(1);
    const A sum = sum_in_order(b, cell, top_k, [&](int64_t j) { return score[chosen[j]]; });
    return sigmoid ? sum + static_cast<A>(1e-20) : sum;
  }

  int64_t experts, top_k, groups, top_groups;
  bool sigmoid, normalise;
  A scale;
};

template <class A>
struct RouterForward {
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const int64_t t = b.x(), n = s.experts;
    A* score = b.shared<A>(n);
    A* key = b.shared<A>(n);
    A* group = b.shared<A>(s.groups);
    A* cell = b.shared<A>(1);
    char* taken = b.shared<char>(n);
    char* group_taken = b.shared<char>(s.groups);
    const A sum = s.scores_of(b, logits.row(t), score, cell);
    b.each(n, [&](int64_t i) {
      key[i] = ordered(bias ? score[i] + bias[i] : score[i]);
      taken[i] = s.groups > 1;
    });
    if (s.groups > 1) admit_groups(b, key, taken, group, group_taken);
    int32_t* picks = chosen.row(t);
    for (int64_t k = 0; k < s.top_k; ++k) {
      const int64_t best = best_of(b, key, taken, n);
      b.each(1, [&](int64_t) {
        taken[best] = 1;
        int64_t at = k;  // insertion keeps the numbers in rising order
        for (; at > 0 && picks[at - 1] > best; --at) picks[at] = picks[at - 1];
        picks[at] = static_cast<int32_t>(best);
      });
    }
    const A by = s.divisor(b, score, picks, cell);
    // a NaN among the logits must reach the loss even where it was not chosen
    b.each(s.top_k, [&](int64_t j) { weights(t, j) = sum == sum ? s.scale * (score[picks[j]] / by) : sum; });
    const A whole = s.sigmoid ? sum : A(1);
    b.each(n, [&](int64_t i) { shares(t, i) = score[i] / whole; });
  }
  /// Frees the experts of the groups with the largest sum of their best two.
  ORTHANT_KERNEL void admit_groups(const Block& b, const A* key, char* taken, A* group, char* group_taken) const {
    const int64_t size = s.experts / s.groups;
    b.each(s.groups, [&](int64_t g) {
      const A* mine = key + g * size;
      A first = mine[0], second = -infinity<A>();
      for (int64_t i = 1; i < size; ++i) {
        if (mine[i] > first) {
          second = first;
          first = mine[i];
        } else if (mine[i] > second) {
          second = mine[i];
        }
      }
      group[g] = ordered(size > 1 ? first + second : first);
      group_taken[g] = 0;
    });
    for (int64_t k = 0; k < s.top_groups; ++k) {
      const int64_t g = best_of(b, group, group_taken, s.groups);
      b.each(1, [&](int64_t) { group_taken[g] = 1; });
      b.each(size, [&](int64_t i) { taken[g * size + i] = 0; });
    }
  }
  static int64_t bytes(const RouterShape& s) {
    return (2 * s.experts + s.groups + 1) * static_cast<int64_t>(sizeof(A)) + s.experts + s.groups + 6 * 16;
  }

  Router<A> s;
  View<const A> logits;
  const A* bias;
  View<int32_t> chosen;
  View<A> weights, shares;
};

template <class A>
struct RouterBackward {
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const int64_t t = b.x(), n = s.experts;
    A* score = b.shared<A>(n);
    A* d = b.shared<A>(n);  // written out at the end: d_logits may lie over logits
    A* other = b.shared<A>(n);
    A* cell = b.shared<A>(1);
    const A* v = logits.row(t);
    const int32_t* picks = chosen.row(t);
    b.each(s.top_k, [&](int64_t j) {
      need(picks[j] >= 0 && picks[j] < n, "router_backward: a chosen expert is not among the experts");
    });
    const A sum = s.scores_of(b, v, score, cell);
    b.each(n, [&](int64_t i) { d[i] = A(0); });
    add_through_weights(b, v, score, picks, d_weights.row(t), d, cell);
    if (balance.data) add_through_shares(b, v, score, sum, balance.row(t % sequences), d, cell);
    if (z != 0) {
      const auto e = s.exponentials(b, v, other, cell);
      const A factor = static_cast<A>(2 * z) * (e.max + log_(e.sum)) / e.sum;
      b.each(n, [&](int64_t i) { d[i] += factor * other[i]; });
    }
    b.each(n, [&](int64_t i) { d_logits(t, i) = d[i]; });
  }
  /// sigmoid's slope over its value; 1 for the softmax.
  ORTHANT_KERNEL A slope(A v) const { return s.sigmoid ? orthant::detail::sigmoid_pair(v).complement : A(1); }

  ORTHANT_KERNEL void add_through_weights(const Block& b, const A* v, const A* score, const int32_t* picks,
                                          const A* dw, A* d, A* cell) const {
    const A by = s.divisor(b, score, picks, cell);
    const A mean = sum_in_order(b, cell, s.top_k, [&](int64_t j) { return dw[j] * (score[picks[j]] / by); });
    if (s.sigmoid || s.normalise) {
      // a normalised softmax over the chosen is the softmax of their logits alone
      const A away = s.normalise ? mean : A(0);
      b.each(s.top_k, [&](int64_t j) {  // the chosen of a token are distinct
        const int32_t e = picks[j];
        d[e] += s.scale * (score[e] / by) * slope(v[e]) * (dw[j] - away);
      });
      return;
    }
    // without, each chosen share answers to every logit
    b.each(s.experts, [&](int64_t i) { d[i] -= s.scale * score[i] * mean; });
    b.each(s.top_k, [&](int64_t j) { d[picks[j]] += s.scale * score[picks[j]] * dw[j]; });
  }
  ORTHANT_KERNEL void add_through_shares(const Block& b, const A* v, const A* score, A sum, const A* balances, A* d,
                                         A* cell) const {
    const A by = s.sigmoid ? sum : A(1);
    const A mean = sum_in_order(b, cell, s.experts, [&](int64_t i) { return balances[i] * (score[i] / by); });
    b.each(s.experts, [&](int64_t i) { d[i] += score[i] / by * slope(v[i]) * (balances[i] - mean); });
  }
  static int64_t bytes(const RouterShape& s) {
    return (3 * s.experts + 1) * static_cast<int64_t>(sizeof(A)) + 4 * 16;
  }

  Router<A> s;
  double z;
  int64_t sequences;
  View<const A> logits;
  View<const int32_t> chosen;
  View<const A> d_weights, balance;
  View<A> d_logits;
};

struct CountChoice {
  ORTHANT_KERNEL void operator()(int64_t t, int64_t j) const {
    const int64_t e = chosen(t, j);
    need(e >= 0 && e < experts, "count_choices: a chosen expert is not among the experts");
    add_integer(&counts(t % sequences, e), 1);
  }
  int64_t sequences, experts;
  View<const int32_t> chosen;
  View<int64_t> counts;
};

template <class T>
struct CombineRow {
  ORTHANT_KERNEL void operator()(int64_t t, int64_t c) const {
    Accumulator<T> sum = 0;
    for (int64_t j = 0; j < parts; ++j) {
      const int64_t r = slot(t, j);
      need(r >= -1 && r < x_rows, "combine_rows: a slot is neither -1 nor a row of x");
      if (r >= 0) sum += load(x(r, c));
    }
    out(t, c) = store<T>(sum);
  }
  int64_t parts, x_rows;
  View<const int32_t> slot;
  View<const T> x;
  View<T> out;
};

}  // namespace

void CudaBackend::router_forward(const RouterShape& s, const Tensor& logits, const Tensor& bias, const Tensor& chosen,
                                 const Tensor& weights, const Tensor& shares) {
  check::router_forward(s, logits, bias, chosen, weights, shares);
  with_accumulator(logits.dtype(), [&](auto tag) {
    using A = typename decltype(tag)::type;
    launch(stream_, {logits.rows()},
           RouterForward<A>{Router<A>(s), View<const A>(logits), bias ? bias.as<A>() : nullptr, View<int32_t>(chosen),
                            View<A>(weights), View<A>(shares)},
           router_width, RouterForward<A>::bytes(s));
  });
}

void CudaBackend::router_backward(const RouterShape& s, const Tensor& logits, const Tensor& chosen,
                                  const Tensor& d_weights, const Tensor& balance, double z, const Tensor& d_logits) {
  check::router_backward(s, logits, chosen, d_weights, balance, z, d_logits);
  with_accumulator(logits.dtype(), [&](auto tag) {
    using A = typename decltype(tag)::type;
    launch(stream_, {logits.rows()},
           RouterBackward<A>{Router<A>(s), z, balance ? balance.rows() : 1, View<const A>(logits),
                             View<const int32_t>(chosen), View<const A>(d_weights),
                             balance ? View<const A>(balance) : View<const A>(), View<A>(d_logits)},
           router_width, RouterBackward<A>::bytes(s));
  });
}

void CudaBackend::count_choices(const Tensor& chosen, const Tensor& counts) {
  check::count_choices(chosen, counts);
  for_cells(stream_, chosen.rows(), chosen.cols(), false,
            CountChoice{counts.rows(), counts.cols(), View<const int32_t>(chosen), View<int64_t>(counts)});
}

void CudaBackend::gather_rows(const Tensor& x, const Tensor& index, const Tensor& out) {
  check::gather_rows(x, index, out);
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_cells(stream_, out.rows(), out.cols(), false,
              TakeRow<T>{Index(index), 0, x.rows(), true, View<const T>(x), View<T>(out)});
  });
}

void CudaBackend::combine_rows(const Tensor& x, const Tensor& slot, const Tensor& out) {
  check::combine_rows(x, slot, out);
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_cells(stream_, out.rows(), out.cols(), false,
              CombineRow<T>{slot.cols(), x.rows(), View<const int32_t>(slot), View<const T>(x), View<T>(out)});
  });
}

}  // namespace orthant
