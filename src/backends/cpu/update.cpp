// Parameter updates of the host backend: clip factor, update and rounded copy in one pass over memory.
#include "backends/check_shapes.hpp"
#include "backends/cpu/cpu_backend.hpp"
#include "backends/cpu/loops.hpp"
#include "orthant/update_rules.hpp"

namespace orthant {

using namespace loops;

namespace {

/// Calls f(r, begin, count) over pieces of p; the others are read at the same place, so unless all are dense they
/// must have its shape.
template <class F>
void for_elements(int threads, const Tensor& p, std::initializer_list<const Tensor*> others, F&& f) {
  bool dense = p.dense(), same = true;
  for (const Tensor* t : others) {
    if (!*t) continue;
    dense = dense && t->dense();
    same = same && t->rows() == p.rows() && t->cols() == p.cols();
  }
  ORTHANT_ENSURE(dense || same, "update: tensors that are not dense must have the shape of the master weights");
  for_spans(threads, p.rows(), p.cols(), dense, std::forward<F>(f));
}

/// copy = p rounded to T, where there is a copy.
template <class A>
void write_copy(const Tensor& copy, const A* p, int64_t at, int64_t count) {
  if (!copy) return;
  with_compute(copy.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* to = copy.as<T>() + at;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] = store<T>(p[i]);
  });
}

}  // namespace

void CpuBackend::adamw(const AdamwStep& step, const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& grad,
                       const Tensor& copy) {
  check::adamw(step, p, m, v, grad, copy);
  with_accumulator(p.dtype(), [&](auto tag) {
    using A = typename decltype(tag)::type;
    const AdamwRule<A> rule(step);
    for_elements(threads_, p, {&m, &v, &grad, &copy}, [&](int64_t r, int64_t begin, int64_t count) {
      A *pr = p.as<A>() + r * p.ld() + begin, *mr = m.as<A>() + r * m.ld() + begin,
        *vr = v.as<A>() + r * v.ld() + begin;
      const A* gr = grad.as<A>() + r * grad.ld() + begin;
      const AdamwRule<A> local = rule;  // by value, so that the loop need not fear stores to it
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) local.apply(pr[i], mr[i], vr[i], gr[i]);
      write_copy(copy, pr, r * copy.ld() + begin, count);
    });
  });
}

void CpuBackend::sgd(const SgdStep& step, const Tensor& p, const Tensor& velocity, const Tensor& grad,
                     const Tensor& copy) {
  check::sgd(step, p, velocity, grad, copy);
  ORTHANT_ENSURE(velocity || step.momentum == 0, "sgd: momentum needs a velocity");
  with_accumulator(p.dtype(), [&](auto tag) {
    using A = typename decltype(tag)::type;
    const SgdRule<A> rule(step);
    const bool moving = static_cast<bool>(velocity);
    for_elements(threads_, p, {&velocity, &grad, &copy}, [&](int64_t r, int64_t begin, int64_t count) {
      A* pr = p.as<A>() + r * p.ld() + begin;
      const A* gr = grad.as<A>() + r * grad.ld() + begin;
      const SgdRule<A> local = rule;
      if (moving) {
        A* vr = velocity.as<A>() + r * velocity.ld() + begin;
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) local.apply(pr[i], vr[i], gr[i]);
      } else {
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) local.apply(pr[i], gr[i]);
      }
      write_copy(copy, pr, r * copy.ld() + begin, count);
    });
  });
}

}  // namespace orthant
