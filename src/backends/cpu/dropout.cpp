// Dropout of the host backend: which elements fall is a function of their place alone (philox.hpp), so any cut of the
// rows over threads or ranks gives the same bits.
#include "backends/check_shapes.hpp"
#include "backends/cpu/cpu_backend.hpp"
#include "backends/cpu/loops.hpp"
#include "orthant/philox.hpp"

namespace orthant {

using namespace loops;

void CpuBackend::dropout(const Tensor& x, const Dropout& d, const Tensor& out) {
  check::dropout(x, d, out);
  if (d.rate == 0) {
    if (out.data() != x.data()) copy(out, x);
    return;
  }
  const uint32_t last = dropout_last(d.rate);
  const int64_t *tokens = d.tokens.as<int64_t>(), token_step = d.tokens.ld(), width = x.cols();
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const A keep = static_cast<A>(1 - d.rate);
    for_spans(threads_, x.rows(), width, false, [&](int64_t r, int64_t begin, int64_t count) {
      constexpr int64_t chunk = 512;
      alignas(64) uint32_t words[chunk + 4];
      for (int64_t done = 0; done < count; done += chunk) {
        const int64_t n = std::min(chunk, count - done), column = begin + done;
        const uint64_t element = static_cast<uint64_t>(tokens[r * token_step] * width + column), group = element / 4;
        const int64_t skip = static_cast<int64_t>(element % 4), groups = (skip + n + 3) / 4;
#pragma omp simd
        for (int64_t g = 0; g < groups; ++g) {
          const Philox4 w = dropout_words(group + static_cast<uint64_t>(g), d.key, d.step);
          words[4 * g] = w.x0;
          words[4 * g + 1] = w.x1;
          words[4 * g + 2] = w.x2;
          words[4 * g + 3] = w.x3;
        }
        const T* from = x.as<T>() + r * x.ld() + column;
        T* to = out.as<T>() + r * out.ld() + column;
#pragma omp simd
        for (int64_t c = 0; c < n; ++c)
          to[c] = store<T>(select_(words[skip + c] > last, load(from[c]) / keep, A(0)));
      }
    });
  });
}

}  // namespace orthant
