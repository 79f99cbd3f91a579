// Token operations on the device: embedding rows, and the pieces of a loss whose vocabulary is cut over ranks.
#include "backends/check_shapes.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "backends/cuda/numbers.hpp"

namespace orthant {

using namespace cuda;

namespace {

constexpr int token_slot = 8;

/// Tokens sorted by their table row, those of one row in their own order: place by place in `order`. The first token
/// of a row knows where its row begins there and how many tokens it has; for all others `count` is 0.
struct TokenOrder {
  int64_t *order, *begin, *count;
};

/// Finds the place of one token by counting those before it: no sort, no atomics, the same for every run.
struct PlaceToken {
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const int64_t t = b.x(), row = row_of(t);
    // two counts below 2^31 in one sum: tokens of smaller rows, and earlier tokens of this one
    const int64_t before = b.sum<int64_t>(tokens, [&](int64_t u) {
      const int64_t other = row_of(u);
      return other < row ? int64_t{1} << 32 : static_cast<int64_t>(other == row && u < t);
    });
    const int64_t begin = before >> 32, earlier = before & 0xffffffff;
    int64_t count = 0;
    if (earlier == 0 && row < table_rows)
      count = b.sum<int64_t>(tokens, [&](int64_t u) { return static_cast<int64_t>(row_of(u) == row); });
    b.each(1, [&](int64_t) {
      to.order[begin + earlier] = t;
      to.begin[t] = begin;
      to.count[t] = count;
    });
  }
  /// Ids outside the table stand together behind it.
  ORTHANT_KERNEL int64_t row_of(int64_t t) const {
    const int64_t row = ids[t] - first;
    return row >= 0 && row < table_rows ? row : table_rows;
  }

  Index ids;
  int64_t first, table_rows, tokens;
  TokenOrder to;
};

/// Adds the rows of dy that belong to one row of the table, in token order, for some columns.
template <class T>
struct AddTokenRows {
  using A = Accumulator<T>;
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const int64_t across = (cols + b.width() - 1) / b.width(), t = b.x() / across, begin = b.x() % across * b.width();
    const int64_t n = of.count[t];
    if (n == 0) return;
    const int64_t* here = of.order + of.begin[t];
    A* to = d_table.row(ids[t] - first);
    b.each(min_<int64_t>(b.width(), cols - begin), [&](int64_t i) {
      A sum = to[begin + i];
      for (int64_t k = 0; k < n; ++k) sum += load(dy(here[k], begin + i));
      to[begin + i] = sum;
    });
  }

  Index ids;
  int64_t first, cols;
  TokenOrder of;
  View<const T> dy;
  View<A> d_table;
};

template <class A>
struct RowMax {
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const A* v = logits.row(b.x());
    const A top = b.max<A>(n, -infinity<A>(), [&](int64_t c) { return v[c]; });
    b.each(1, [&](int64_t) { out(b.x(), 0) = top; });
  }
  int64_t n;
  View<const A> logits;
  View<A> out;
};

template <class A>
struct RowSumExp {
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const A *v = logits.row(b.x()), top = max(b.x(), 0);
    const double sum = b.sum<double>(n, [&](int64_t c) { return static_cast<double>(exp_(v[c] - top)); });
    b.each(1, [&](int64_t) { out(b.x(), 0) = sum; });
  }
  int64_t n;
  View<const A> logits, max;
  View<double> out;
};

template <class A>
struct Pick {
  ORTHANT_KERNEL void operator()(int64_t t, int64_t) const {
    const int64_t c = labels[t] - first;
    out(t, 0) = c >= 0 && c < n ? logits(t, c) : A(0);
  }
  int64_t n, first;
  Index labels;
  View<const A> logits;
  View<A> out;
};

template <class T>
struct SoftmaxBackward {
  using A = Accumulator<T>;
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const int64_t t = b.x(), hit = labels[t] - first;
    const A *v = logits.row(t), top = max(t, 0), w = weight(t, 0);
    T* d = d_logits.row(t);
    if (w == A(0)) {  // a masked token gives no gradient, not even the NaN of logits nobody asked about
      b.each(n, [&](int64_t c) { d[c] = store<T>(A(0)); });
      return;
    }
    const double total = sum(t, 0);
    // the slope of z lse^2 is 2 z lse p: the same probabilities once more, so one factor serves both
    const double both = z == 0 ? 1.0 : 1.0 + 2.0 * z * (static_cast<double>(top) + log_(total));
    const A inverse = static_cast<A>(both / total);
    b.each(n, [&](int64_t c) {  // d_logits may lie over logits: each element is read where it is written
      const A p = exp_(v[c] - top) * inverse;
      d[c] = store<T>(c == hit ? (p - A(1)) * w : p * w);
    });
  }
  int64_t n, first;
  double z;
  Index labels;
  View<const A> logits, max, weight;
  View<const double> sum;
  View<T> d_logits;
};

}  // namespace

void CudaBackend::embedding_forward(const Tensor& ids, const Tensor& table, int64_t first, const Tensor& out) {
  check::embedding_forward(ids, table, first, out);
  with_compute(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_cells(stream_, out.rows(), out.cols(), false,
              TakeRow<T>{Index(ids), first, table.rows(), false, View<const T>(table), View<T>(out)});
  });
}

void CudaBackend::embedding_backward(const Tensor& ids, const Tensor& dy, int64_t first, const Tensor& d_table) {
  check::embedding_backward(ids, dy, first, d_table);
  const int64_t tokens = dy.rows(), cols = dy.cols();
  if (dy.size() == 0) return;
  ORTHANT_ENSURE(tokens < (int64_t{1} << 31), "embedding_backward: more tokens than one call can order");
  auto* memory = static_cast<int64_t*>(scratch(token_slot, 3 * tokens * static_cast<int64_t>(sizeof(int64_t))));
  const TokenOrder order{memory, memory + tokens, memory + 2 * tokens};
  launch(stream_, {tokens}, PlaceToken{Index(ids), first, d_table.rows(), tokens, order});
  with_compute(dy.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    launch(stream_, {tokens * blocks_of(cols, default_width)},
           AddTokenRows<T>{Index(ids), first, cols, order, View<const T>(dy), View<A>(d_table)});
  });
}

void CudaBackend::row_max(const Tensor& logits, const Tensor& out) {
  check::row_max(logits, out);
  with_accumulator(logits.dtype(), [&](auto tag) {
    using A = typename decltype(tag)::type;
    launch(stream_, {logits.rows()}, RowMax<A>{logits.cols(), View<const A>(logits), View<A>(out)},
           width_for(logits.cols()));
  });
}

void CudaBackend::row_sum_exp(const Tensor& logits, const Tensor& max, const Tensor& out) {
  check::row_sum_exp(logits, max, out);
  with_accumulator(logits.dtype(), [&](auto tag) {
    using A = typename decltype(tag)::type;
    launch(stream_, {logits.rows()},
           RowSumExp<A>{logits.cols(), View<const A>(logits), View<const A>(max), View<double>(out)},
           width_for(logits.cols()));
  });
}

void CudaBackend::pick(const Tensor& logits, const Tensor& labels, int64_t first, const Tensor& out) {
  check::pick(logits, labels, first, out);
  with_accumulator(logits.dtype(), [&](auto tag) {
    using A = typename decltype(tag)::type;
    for_cells(stream_, logits.rows(), 1, false,
              Pick<A>{logits.cols(), first, Index(labels), View<const A>(logits), View<A>(out)});
  });
}

void CudaBackend::softmax_backward(const Tensor& logits, const Tensor& max, const Tensor& sum, const Tensor& labels,
                                   int64_t first, const Tensor& weight, double z, const Tensor& d_logits) {
  check::softmax_backward(logits, max, sum, labels, first, weight, z, d_logits);
  with_compute(d_logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    launch(stream_, {logits.rows()},
           SoftmaxBackward<T>{logits.cols(), first, z, Index(labels), View<const A>(logits), View<const A>(max),
                              View<const A>(weight), View<const double>(sum), View<T>(d_logits)},
           width_for(logits.cols()));
  });
}

}  // namespace orthant
