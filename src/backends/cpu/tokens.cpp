// Token operations of the host backend: embedding rows, and the pieces of a loss whose vocabulary is cut over ranks.
#include <limits>

#include "backends/check_shapes.hpp"
#include "backends/cpu/cpu_backend.hpp"
#include "backends/cpu/loops.hpp"

namespace orthant {

using namespace loops;

void CpuBackend::embedding_forward(const Tensor& ids, const Tensor& table, int64_t first, const Tensor& out) {
  check::embedding_forward(ids, table, first, out);
  const Index id(ids);
  const int64_t width = out.cols(), size = size_of(out.dtype());
  const char* from = static_cast<const char*>(table.data());
  char* to = static_cast<char*>(out.data());
  for_rows(threads_, out.rows(), width, [&](int64_t t) {
    const int64_t row = id[t] - first;
    char* target = to + t * out.ld() * size;
    if (row >= 0 && row < table.rows()) {
      memcpy(target, from + row * table.ld() * size, static_cast<size_t>(width * size));
    } else {
      memset(target, 0, static_cast<size_t>(width * size));
    }
  });
}

void CpuBackend::embedding_backward(const Tensor& ids, const Tensor& dy, int64_t first, const Tensor& d_table) {
  check::embedding_backward(ids, dy, first, d_table);
  const Index id(ids);
  with_compute(dy.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    // threads share the columns, so each element is summed in token order whatever their number
    for_column_ranges(threads_, dy.rows(), dy.cols(), [&](int64_t begin, int64_t count) {
      for (int64_t t = 0; t < dy.rows(); ++t) {
        const int64_t row = id[t] - first;
        if (row < 0 || row >= d_table.rows()) continue;
        const T* from = dy.as<T>() + t * dy.ld() + begin;
        A* to = d_table.as<A>() + row * d_table.ld() + begin;
#pragma omp simd
        for (int64_t c = 0; c < count; ++c) to[c] += load(from[c]);
      }
    });
  });
}

void CpuBackend::row_max(const Tensor& logits, const Tensor& out) {
  check::row_max(logits, out);
  with_accumulator(logits.dtype(), [&](auto tag) {
    using A = typename decltype(tag)::type;
    for_rows(threads_, logits.rows(), logits.cols(), [&](int64_t t) {
      const A* v = logits.as<A>() + t * logits.ld();
      constexpr int lanes = 16;
      A best[lanes];
      std::fill(best, best + lanes, -std::numeric_limits<A>::infinity());
      int64_t i = 0;
      for (; i + lanes <= logits.cols(); i += lanes) {
#pragma omp simd
        for (int l = 0; l < lanes; ++l) best[l] = v[i + l] > best[l] ? v[i + l] : best[l];  // a NaN is passed over
      }
      for (; i < logits.cols(); ++i) best[0] = v[i] > best[0] ? v[i] : best[0];
      out.as<A>()[t * out.ld()] = *std::max_element(best, best + lanes);
    });
  });
}

void CpuBackend::row_sum_exp(const Tensor& logits, const Tensor& max, const Tensor& out) {
  check::row_sum_exp(logits, max, out);
  with_accumulator(logits.dtype(), [&](auto tag) {
    using A = typename decltype(tag)::type;
    for_rows(threads_, logits.rows(), logits.cols() * 4, [&](int64_t t) {
      const A* v = logits.as<A>() + t * logits.ld();
      const A top = max.as<A>()[t * max.ld()];
      double sum = 0;
      for (int64_t begin = 0; begin < logits.cols(); begin += span) {
        sum += lane_sum<double>(std::min(span, logits.cols() - begin),
                                [v, top, begin](int64_t c) { return static_cast<double>(exp_(v[begin + c] - top)); });
      }
      out.as<double>()[t * out.ld()] = sum;
    });
  });
}

void CpuBackend::pick(const Tensor& logits, const Tensor& labels, int64_t first, const Tensor& out) {
  check::pick(logits, labels, first, out);
  const Index label(labels);
  with_accumulator(logits.dtype(), [&](auto tag) {
    using A = typename decltype(tag)::type;
    for (int64_t t = 0; t < logits.rows(); ++t) {
      const int64_t c = label[t] - first;
      out.as<A>()[t * out.ld()] = c >= 0 && c < logits.cols() ? logits.as<A>()[t * logits.ld() + c] : A(0);
    }
  });
}

void CpuBackend::softmax_backward(const Tensor& logits, const Tensor& max, const Tensor& sum, const Tensor& labels,
                                  int64_t first, const Tensor& weight, double z, const Tensor& d_logits) {
  check::softmax_backward(logits, max, sum, labels, first, weight, z, d_logits);
  const Index label(labels);
  with_compute(d_logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    for_rows(threads_, logits.rows(), logits.cols() * 4, [&](int64_t t) {
      const A* v = logits.as<A>() + t * logits.ld();
      T* d = d_logits.as<T>() + t * d_logits.ld();
      const int64_t n = logits.cols(), hit = label[t] - first;
      const A top = max.as<A>()[t * max.ld()], w = weight.as<A>()[t * weight.ld()];
      if (w == A(0)) {  // a masked token gives no gradient, not even the NaN of logits nobody asked about
        std::fill(d, d + n, store<T>(A(0)));
        return;
      }
      const double total = sum.as<double>()[t * sum.ld()];
      // the slope of z lse^2 is 2 z lse p: the same probabilities once more, so one factor serves both
      const double both = z == 0 ? 1.0 : 1.0 + 2.0 * z * (static_cast<double>(top) + log_(total));
      const A inverse = static_cast<A>(both / total);
      const bool here = hit >= 0 && hit < n;
      const A chosen = here ? v[hit] : A(0);  // d_logits may lie over logits
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) d[c] = store<T>(exp_(v[c] - top) * inverse * w);
      if (here) d[hit] = store<T>((exp_(chosen - top) * inverse - A(1)) * w);
    });
  });
}

}  // namespace orthant
