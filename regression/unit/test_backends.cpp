// Memory of the backends: the account, the pool, copies with conversion, protected pages (debug), shapes alone
// (meta).
// labels: smoke
// seconds: 60
#include <gtest/gtest.h>

#include <limits>

#include "attention_kit.hpp"
#include "backends/pool.hpp"

namespace orthant {
namespace {

using kit::values;

TEST(Account, CountsLiveTensorsByKind) {
  for (const char* name : {"cpu", "debug", "meta"}) {
    auto be = make_backend(name);
    MemoryAccount& account = be->account();
    Tensor a = be->alloc(DType::f32, 100, 30, MemoryKind::weights);
    EXPECT_EQ(account.now(MemoryKind::weights), 12000) << name;
    {
      const Tensor b = be->alloc(DType::bf16, 7, 11, MemoryKind::activations), view = b.row_range(1, 2);
      EXPECT_EQ(account.total(), 12154) << name;
    }
    EXPECT_EQ(account.total(), 12000) << name;
    EXPECT_EQ(account.total_peak(), 12154) << name;
    const Tensor view = a.col_range(3, 4);
    a = Tensor();
    EXPECT_EQ(account.total(), 12000) << name << ": a view keeps its memory";
    account.reset_peak();
    EXPECT_EQ(account.total_peak(), 12000) << name;
    EXPECT_EQ(account.peak(MemoryKind::activations), 0) << name;
  }
}

TEST(Account, MetaEqualsCpu) {
  auto cpu = make_backend("cpu"), meta = make_backend("meta"), debug = make_backend("debug");
  std::mt19937 generator(5);
  std::vector<Tensor> kept[3];
  for (int i = 0; i < 200; ++i) {
    const auto type = static_cast<DType>(generator() % 6);
    const auto kind = static_cast<MemoryKind>(generator() % memory_kinds);
    const auto rows = static_cast<int64_t>(generator() % 50), cols = static_cast<int64_t>(generator() % 300);
    const size_t drop = generator() % 3 ? SIZE_MAX : generator() % (kept[0].size() + 1);
    Backend* backends[] = {cpu.get(), meta.get(), debug.get()};
    for (int b = 0; b < 3; ++b) {
      kept[b].push_back(backends[b]->alloc(type, rows, cols, kind));
      if (drop < kept[b].size()) kept[b].erase(kept[b].begin() + static_cast<std::ptrdiff_t>(drop));
    }
  }
  for (Backend* other : {meta.get(), debug.get()}) {
    EXPECT_EQ(cpu->account().total_peak(), other->account().total_peak());
    for (int k = 0; k < memory_kinds; ++k) {
      const auto kind = static_cast<MemoryKind>(k);
      EXPECT_GT(cpu->account().peak(kind), 0);
      EXPECT_EQ(cpu->account().now(kind), other->account().now(kind)) << name_of(kind);
      EXPECT_EQ(cpu->account().peak(kind), other->account().peak(kind)) << name_of(kind);
      EXPECT_EQ(cpu->account().at_peak(kind), other->account().at_peak(kind)) << name_of(kind);
    }
  }
}

TEST(Account, TensorsMayOutliveTheBackend) {
  for (const char* name : {"cpu", "debug", "meta"}) {
    auto be = make_backend(name);
    const Tensor x = be->alloc(DType::f32, 10, 10, MemoryKind::weights);
    be.reset();
    EXPECT_EQ(x.size(), 100);
  }
}

TEST(Memory, NoMemoryIsAFaultThatNamesBytesAndKinds) {
  auto be = make_backend("cpu");
  const Tensor x = be->alloc(DType::f32, 1 << 20, 1, MemoryKind::optimizer);
  try {
    be->alloc(DType::f64, int64_t{1} << 30, int64_t{1} << 20, MemoryKind::weights);
    FAIL() << "8 PiB were given out";
  } catch (const FaultError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("9007199254740992 bytes"), std::string::npos) << text;
    EXPECT_NE(text.find("optimizer"), std::string::npos) << text;
  }
  EXPECT_EQ(be->account().total(), 4 << 20);
  EXPECT_THROW(be->alloc(DType::f32, -1, 3, MemoryKind::weights), LogicError);
  EXPECT_THROW(be->alloc(DType::f32, int64_t{1} << 40, int64_t{1} << 40, MemoryKind::weights), LogicError);
}

TEST(Pool, KeepsBlocksAndAlignsThem) {
  MemoryAccount account;
  Pool pool(&account);
  for (int64_t bytes : {int64_t{1}, int64_t{64}, int64_t{65}, int64_t{1000}, int64_t{123457}, int64_t{5} << 20}) {
    EXPECT_GE(Pool::class_of(bytes), bytes);
    EXPECT_LE(Pool::class_of(bytes), bytes + std::max<int64_t>(63, bytes / 8));
    void* first = pool.take(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
    pool.give(first, bytes);
    EXPECT_EQ(pool.take(bytes), first) << "a block of the same size is used again";
    pool.give(first, bytes);
  }
  EXPECT_GT(pool.kept(), int64_t{5} << 20);
  pool.trim();
  EXPECT_EQ(pool.kept(), 0);
}

TEST(Copy, ConvertsBetweenAllFloatingTypesAndStrides) {
  auto be = make_backend("cpu");
  const DType types[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  for (DType from : types)
    for (DType to : types) {
      const Tensor x = kit::random(*be, from, 37, 29, 1, 40), wide = be->alloc(to, 37, 50, MemoryKind::workspace);
      be->zero(wide);
      be->copy(wide.col_range(11, 29), x);
      const auto want = values(*be, x), got = values(*be, wide);
      const double step = to == DType::bf16 ? 0x1p-9 : to == DType::f16 ? 0x1p-12 : to == DType::f32 ? 0x1p-25 : 0;
      for (size_t i = 0; i < 37; ++i)
        for (size_t j = 0; j < 50; ++j) {
          const double value = j < 11 || j >= 40 ? 0 : want[i * 29 + j - 11];
          ASSERT_LE(std::abs(got[i * 50 + j] - value), step) << name_of(from) << " to " << name_of(to);
        }
    }
  // long enough to be shared out among threads
  const Tensor big = kit::random(*be, DType::f32, 1, 200001, 3),
               copy = be->alloc(DType::bf16, 1, 200001, MemoryKind::workspace);
  be->copy(copy, big);
  EXPECT_LE(kit::distance(values(*be, copy), values(*be, big)), 0x1p-9);
}

TEST(Copy, RoundsOnceToNearestEven) {
  auto be = make_backend("cpu");
  // doubles a hair above the middle of two bf16 (f16) numbers: through float they would fall on the middle, then to
  // even
  const double in[] = {
      1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-8, 1 + 3 * 0x1p-8, 1 + 0x1p-11 + 0x1p-40, 1e300, -INFINITY, 65519.99, 65520};
  const Tensor x = kit::make(*be, DType::f64, 1, 8, 8, [&](int64_t, int64_t j) { return in[j]; });
  const Tensor b = be->alloc(DType::bf16, 1, 8, MemoryKind::workspace),
               h = be->alloc(DType::f16, 1, 8, MemoryKind::workspace);
  be->copy(b, x);
  be->copy(h, x);
  const auto in_bf16 = values(*be, b), in_f16 = values(*be, h);
  EXPECT_EQ(in_bf16[0], 1 + 0x1p-7);
  EXPECT_EQ(in_bf16[1], 1.0);
  EXPECT_EQ(in_bf16[2], 1 + 0x1p-6);
  EXPECT_EQ(in_bf16[4], INFINITY);
  EXPECT_EQ(in_bf16[5], -INFINITY);
  EXPECT_EQ(in_f16[3], 1 + 0x1p-10);
  EXPECT_EQ(in_f16[5], -INFINITY);
  EXPECT_EQ(in_f16[6], 65504.0);
  EXPECT_EQ(in_f16[7], INFINITY);
}

TEST(Copy, RefusesOtherShapesAndIntegers) {
  auto be = make_backend("cpu");
  const Tensor a = be->alloc(DType::f32, 2, 3, MemoryKind::workspace);
  EXPECT_THROW(be->copy(a, be->alloc(DType::f32, 3, 2, MemoryKind::workspace)), LogicError);
  EXPECT_THROW(be->copy(a, be->alloc(DType::i32, 2, 3, MemoryKind::workspace)), LogicError);
  EXPECT_THROW(be->host_begin(a.col_range(0, 2)), LogicError);
}

TEST(Debug, GivesTheBitsOfCpu) {
  std::vector<double> results[2];
  int n = 0;
  for (const char* name : {"cpu", "debug"}) {
    auto be = make_backend(name);
    const Tensor a = kit::random(*be, DType::bf16, 70, 50, 1), b = kit::random(*be, DType::bf16, 90, 50, 2);
    const Tensor c = be->alloc(DType::f32, 70, 90, MemoryKind::workspace),
                 bias = kit::random(*be, DType::bf16, 1, 90, 3);
    be->gemm(a, false, b, true, c, false, bias);
    be->gelu_forward(c, c);
    const Tensor sum = be->alloc(DType::f32, 1, 90, MemoryKind::workspace);
    be->zero(sum);
    be->sum_rows(c, sum);
    results[n] = values(*be, c);
    const auto more = values(*be, sum);
    results[n].insert(results[n].end(), more.begin(), more.end());
    ++n;
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(Debug, AttentionAndDropoutGiveTheBitsOfCpu) {
  std::vector<double> results[2];
  int n = 0;
  for (const char* name : {"cpu", "debug"}) {
    auto be = make_backend(name);
    using namespace attention_kit;
    AttentionShape s = shape(2, 90, 90, 0, 0, 4, 2, 16);
    set_documents(*be, s, [](int64_t place, int64_t b) { return place < 31 ? 0 : 31 - b; });
    set_dropout(*be, s, 0.2, 90, 4, 0);
    const Tensors x = inputs(*be, s, DType::bf16, 1);
    run(*be, s, x);
    be->dropout(x.dq, s.dropout, x.dq);
    const Tensor o = be->alloc(DType::f32, 180, 64, MemoryKind::workspace), lse = kit::random(*be, DType::f32, 180, 4, 8);
    be->copy(o, x.o);
    be->attention_merge(o, lse, o, x.lse);
    for (const Tensor& r : {x.o, x.lse, x.dq, x.dk, x.dv, o, lse})
      for (double v : values(*be, r)) results[n].push_back(v);
    ++n;
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(Debug, FreshMemoryIsNotANumber) {
  auto be = make_backend("debug");
  for (DType t : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (double v : values(*be, be->alloc(t, 3, 5, MemoryKind::workspace))) EXPECT_TRUE(std::isnan(v)) << name_of(t);
}

TEST(Debug, HostAccessIsOpenBetweenBeginAndEnd) {
  auto be = make_backend("debug");
  const Tensor x = be->alloc(DType::f32, 4, 4, MemoryKind::weights);
  {
    Host<float> h(*be, x);
    for (int64_t i = 0; i < 16; ++i) h[i] = static_cast<float>(i);
    Host<float> again(*be, x.row_range(1, 2));  // a view shares the pages: both must end before they close
    EXPECT_EQ(again[0], 4.0f);
    be->scale(x, 2.0);
    EXPECT_EQ(h[15], 30.0f);
  }
  EXPECT_EQ(values(*be, x)[15], 30.0);
  EXPECT_THROW(be->host_end(x), LogicError);
}

TEST(Debug, RefusesTensorsOfAnotherBackend) {
  auto be = make_backend("debug"), cpu = make_backend("cpu");
  EXPECT_THROW(be->zero(cpu->alloc(DType::f32, 2, 2, MemoryKind::workspace)), LogicError);
}

TEST(DebugDeathTest, TouchFromOutsideEndsTheProgram) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  auto touch = [](bool write, bool freed) {
    auto be = make_backend("debug");
    Tensor x = be->alloc(DType::f32, 4, 4, MemoryKind::gradients);
    volatile float* p = x.as<float>();
    be->zero(x);
    if (freed) x = Tensor();
    if (write) p[3] = 1;
    return p[3];
  };
  EXPECT_DEATH(touch(false, false),
               "host code touched device tensor memory \\(byte 12 of a block of 64 bytes, kind gradients\\)");
  EXPECT_DEATH(touch(true, false), "host code touched device tensor memory");
  EXPECT_DEATH(touch(false, true), "host code touched device tensor memory that was freed");
}

TEST(Meta, ShapesAreCheckedAndNothingIsTouched) {
  auto be = make_backend("meta");
  EXPECT_TRUE(be->shapes_only());
  const int64_t huge = int64_t{1} << 34;
  const Tensor a = be->alloc(DType::bf16, huge, 4096, MemoryKind::weights),
               b = be->alloc(DType::bf16, 4096, 50, MemoryKind::weights);
  const Tensor c = be->alloc(DType::f32, huge, 50, MemoryKind::activations);
  EXPECT_TRUE(static_cast<bool>(a));
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(be->account().now(MemoryKind::weights), huge * 8192 + 4096 * 100);
  be->zero(a);
  be->gemm(a, false, b, false, c, false);
  EXPECT_THROW(be->gemm(a, true, b, false, c, false), LogicError);
  EXPECT_THROW(be->copy(a, b), LogicError);
  const Dropout d{0.5, 1, 1, be->alloc(DType::i64, huge, 1, MemoryKind::activations)};
  be->dropout(a, d, a);
  EXPECT_THROW(be->dropout(b, d, b), LogicError);
  be->attention_merge(c, c.col_range(0, 5), c, c.col_range(5, 5));
  EXPECT_THROW(be->attention_merge(c, c.col_range(0, 4), c, c.col_range(5, 4)), LogicError);
  EXPECT_THROW(be->norm_forward(NormKind::rms, a, b, {}, 1e-5, a, c), LogicError);
  EXPECT_THROW(be->host_begin(b), LogicError);
  EXPECT_EQ(be->host_begin(be->alloc(DType::f32, 0, 7, MemoryKind::weights)), nullptr);
}

TEST(Make, RefusesAnUnknownName) {
  try {
    make_backend("tpu");
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("cpu"), std::string::npos);
  }
  EXPECT_NE(make_backend("cpu")->describe().find("oneDNN"), std::string::npos);
}

}  // namespace
}  // namespace orthant
