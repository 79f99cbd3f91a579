// Two parts of one attention, over different keys, as one. A part's weight is the exp of its lse: the sum of the
// exponentials that it stands for.
#include "backends/check_shapes.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "backends/cuda/numbers.hpp"

namespace orthant {

using namespace cuda;

namespace {

/// One head of one row.
template <class A>
struct Merge {
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const int64_t r = b.x() / heads, h = b.x() % heads;
    const A nothing = -infinity<A>(), mine = lse(r, h), other = lse_part(r, h);
    if (other == nothing) return;
    A* y = o.row(r) + h * dim;
    const A* part = o_part.row(r) + h * dim;
    A both = other;
    if (mine == nothing) {
      b.each(dim, [&](int64_t d) { y[d] = part[d]; });
    } else {
      const A top = mine > other ? mine : other, left = exp_(mine - top), right = exp_(other - top),
              sum = left + right;
      const A keep = left / sum, take = right / sum;
      b.each(dim, [&](int64_t d) { y[d] = y[d] * keep + part[d] * take; });
      both = top + log_(sum);
    }
    b.each(1, [&](int64_t) { lse(r, h) = both; });  // all threads have read it: a phase lies between
  }

  int64_t heads, dim;
  View<A> o, lse;
  View<const A> o_part, lse_part;
};

}  // namespace

void CudaBackend::attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_part, const Tensor& lse_part) {
  check::attention_merge(o, lse, o_part, lse_part);
  const int64_t heads = lse.cols(), dim = o.cols() / heads;
  with_accumulator(o.dtype(), [&](auto tag) {
    using A = typename decltype(tag)::type;
    launch(stream_, {o.rows() * heads},
           Merge<A>{heads, dim, View<A>(o), View<A>(lse), View<const A>(o_part), View<const A>(lse_part)},
           width_for(dim));
  });
}

}  // namespace orthant
