// Parameter updates on the device: clip factor, update and rounded copy in one pass over memory (update_rules.hpp).
#include "backends/check_shapes.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "backends/cuda/numbers.hpp"
#include "orthant/update_rules.hpp"

namespace orthant {

using namespace cuda;

namespace {

/// A, the type of the master weights; T, that of the rounded copy, which may be absent.
template <class A, class T>
struct Adamw {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const {
    rule.apply(p(r, c), m(r, c), v(r, c), grad(r, c));
    if (copy.data) copy(r, c) = store<T>(p(r, c));
  }
  AdamwRule<A> rule;
  View<A> p, m, v;
  View<const A> grad;
  View<T> copy;
};

template <class A, class T>
struct Sgd {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const {
    if (velocity.data)
      rule.apply(p(r, c), velocity(r, c), grad(r, c));
    else
      rule.apply(p(r, c), grad(r, c));
    if (copy.data) copy(r, c) = store<T>(p(r, c));
  }
  SgdRule<A> rule;
  View<A> p, velocity;
  View<const A> grad;
  View<T> copy;
};

/// f(r, c) over the elements of p; the others are read at the same place, so unless all are dense they must have its
/// shape.
template <class F>
void for_elements(cudaStream_t stream, const Tensor& p, std::initializer_list<const Tensor*> others, const F& f) {
  bool dense = p.dense(), same = true;
  for (const Tensor* t : others) {
    if (!*t) continue;
    dense = dense && t->dense();
    same = same && t->rows() == p.rows() && t->cols() == p.cols();
  }
  ORTHANT_ENSURE(dense || same, "update: tensors that are not dense must have the shape of the master weights");
  for_cells(stream, p.rows(), p.cols(), dense, f);
}

template <class T>
View<T> optional_view(const Tensor& x) {
  return x ? View<T>(x) : View<T>();
}

/// Calls f with the tags of the master weights and of their copy.
template <class F>
void with_types(const Tensor& p, const Tensor& copy, F&& f) {
  with_accumulator(p.dtype(), [&](auto master) {
    with_compute(copy ? copy.dtype() : p.dtype(), [&](auto rounded) { f(master, rounded); });
  });
}

}  // namespace

void CudaBackend::adamw(const AdamwStep& step, const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& grad,
                        const Tensor& copy) {
  check::adamw(step, p, m, v, grad, copy);
  with_types(p, copy, [&](auto master, auto rounded) {
    using A = typename decltype(master)::type;
    using T = typename decltype(rounded)::type;
    for_elements(stream_, p, {&m, &v, &grad, &copy},
                 Adamw<A, T>{AdamwRule<A>(step), View<A>(p), View<A>(m), View<A>(v), View<const A>(grad),
                             optional_view<T>(copy)});
  });
}

void CudaBackend::sgd(const SgdStep& step, const Tensor& p, const Tensor& velocity, const Tensor& grad,
                      const Tensor& copy) {
  check::sgd(step, p, velocity, grad, copy);
  ORTHANT_ENSURE(velocity || step.momentum == 0, "sgd: momentum needs a velocity");
  with_types(p, copy, [&](auto master, auto rounded) {
    using A = typename decltype(master)::type;
    using T = typename decltype(rounded)::type;
    for_elements(stream_, p, {&velocity, &grad, &copy},
                 Sgd<A, T>{SgdRule<A>(step), View<A>(p), optional_view<A>(velocity), View<const A>(grad),
                           optional_view<T>(copy)});
  });
}

}  // namespace orthant
