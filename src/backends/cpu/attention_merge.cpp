// Two parts of one attention, over different keys, as one. A part's weight is the exp of its lse: the sum of the
// exponentials that it stands for.
#include <algorithm>
#include <limits>

#include "backends/check_shapes.hpp"
#include "backends/cpu/cpu_backend.hpp"
#include "backends/cpu/loops.hpp"

namespace orthant {

using namespace loops;

void CpuBackend::attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_part, const Tensor& lse_part) {
  check::attention_merge(o, lse, o_part, lse_part);
  const int64_t heads = lse.cols(), dim = o.cols() / heads;
  with_accumulator(o.dtype(), [&](auto tag) {
    using A = typename decltype(tag)::type;
    constexpr A nothing = -std::numeric_limits<A>::infinity();
    for_rows(threads_, o.rows(), o.cols(), [&](int64_t r) {
      A* l = lse.as<A>() + r * lse.ld();
      const A* l_part = lse_part.as<A>() + r * lse_part.ld();
      for (int64_t h = 0; h < heads; ++h) {
        if (l_part[h] == nothing) continue;
        A* __restrict y = o.as<A>() + r * o.ld() + h * dim;
        const A* __restrict part = o_part.as<A>() + r * o_part.ld() + h * dim;
        if (l[h] == nothing) {
          std::copy(part, part + dim, y);
          l[h] = l_part[h];
          continue;
        }
        const A top = l[h] > l_part[h] ? l[h] : l_part[h];
        const A mine = exp_(l[h] - top), other = exp_(l_part[h] - top), sum = mine + other;
        const A keep = mine / sum, take = other / sum;
#pragma omp simd
        for (int64_t d = 0; d < dim; ++d) y[d] = y[d] * keep + part[d] * take;
        l[h] = top + log_(sum);
      }
    });
  });
}

}  // namespace orthant
