// Dropout on the device: which elements fall is a function of their place alone (philox.hpp), so the bits are the
// host's.
#include "backends/check_shapes.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "backends/cuda/numbers.hpp"
#include "orthant/philox.hpp"

namespace orthant {

using namespace cuda;

namespace {

/// The elements of row `r` that lie in the `g`-th of the groups of four that the row touches: one Philox call.
template <class T>
struct DropGroup {
  using A = Accumulator<T>;
  ORTHANT_KERNEL void operator()(int64_t r, int64_t g) const {
    const auto element = static_cast<uint64_t>(tokens(r, 0) * width);
    const Philox4 w = dropout_words(element / 4 + static_cast<uint64_t>(g), key, step);
    const int64_t begin = 4 * g - static_cast<int64_t>(element % 4);
    drop(r, begin, w.x0);
    drop(r, begin + 1, w.x1);
    drop(r, begin + 2, w.x2);
    drop(r, begin + 3, w.x3);
  }
  ORTHANT_KERNEL void drop(int64_t r, int64_t c, uint32_t word) const {
    if (c < 0 || c >= width) return;
    out(r, c) = store<T>(select_(word > last, load(x(r, c)) / keep, A(0)));
  }

  int64_t width;
  A keep;
  uint32_t last;
  uint64_t key;
  int64_t step;
  View<const int64_t> tokens;
  View<const T> x;
  View<T> out;
};

}  // namespace

void CudaBackend::dropout(const Tensor& x, const Dropout& d, const Tensor& out) {
  check::dropout(x, d, out);
  if (d.rate == 0) {
    if (out.data() != x.data()) copy(out, x);
    return;
  }
  if (x.size() == 0) return;
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    // a row that starts inside a group touches one group more
    const int64_t groups = x.cols() % 4 == 0 ? x.cols() / 4 : (x.cols() + 6) / 4;
    for_cells(stream_, x.rows(), groups, false,
              DropGroup<T>{x.cols(), static_cast<Accumulator<T>>(1 - d.rate), dropout_last(d.rate), d.key, d.step,
                           View<const int64_t>(d.tokens), View<const T>(x), View<T>(out)});
  });
}

}  // namespace orthant
