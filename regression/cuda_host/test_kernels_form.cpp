// The host form of kernels (backends/cuda/kernel.hpp): sums in the pattern of the device, and mistakes that are
// refused.
// labels: cuda-host
// seconds: 60
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "backends/cuda/kernel.hpp"

using namespace orthant;
using cuda::Block;

namespace {

TEST(CudaKernelForm, SumsAddPerThreadAndThenByHalves) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  for (const int width : {32, 64, 256})
    for (const int64_t n : {0, 1, 31, 33, 1000}) {
      std::vector<float> v(static_cast<size_t>(n)), thread(static_cast<size_t>(width), 0.0f);
      for (float& x : v) x = normal(engine);
      for (int t = 0; t < width; ++t)
        for (int64_t i = t; i < n; i += width) thread[static_cast<size_t>(t)] += v[static_cast<size_t>(i)];
      while (thread.size() > 1) {
        const size_t half = thread.size() / 2;
        for (size_t t = 0; t < half; ++t) thread[t] += thread[t + half];
        thread.resize(half);
      }
      const Block b(0, 0, 0, width, nullptr, 0);
      EXPECT_EQ(b.sum<float>(n, [&](int64_t i) { return v[static_cast<size_t>(i)]; }), thread[0])
          << width << " " << n;
    }
}

TEST(CudaKernelForm, EveryPlaceIsVisitedOnceWhateverTheBlock) {
  for (const int64_t x : {0, 1}) {
    const Block b(x, 0, 0, 32, nullptr, 0);
    std::vector<int> seen(100, 0);
    int64_t before = -1;
    bool rising = true;
    b.each(100, [&](int64_t i) {
      ++seen[static_cast<size_t>(i)];
      rising = rising && i > before;
      before = i;
    });
    EXPECT_EQ(seen, std::vector<int>(100, 1));
    EXPECT_EQ(rising, x == 1);
  }
}

TEST(CudaKernelForm, SharedMemoryIsAlignedAndEnds) {
  alignas(16) unsigned char memory[64];
  const Block b(0, 0, 0, 32, memory, 64);
  EXPECT_EQ(static_cast<void*>(b.shared<char>(3)), memory);
  EXPECT_EQ(static_cast<void*>(b.shared<double>(2)), memory + 16);
  EXPECT_THROW(b.shared<float>(9), LogicError);
}

struct Nothing {
  void operator()(const Block&) const {}
};

TEST(CudaKernelForm, LaunchesBeyondADeviceAreRefused) {
  cudaStream_t none = nullptr;  // refused before anything is put into it
  EXPECT_THROW(cuda::launch(none, {int64_t{1} << 31}, Nothing{}), LogicError);
  EXPECT_THROW(cuda::launch(none, {1, 65536}, Nothing{}), LogicError);
  EXPECT_THROW(cuda::launch(none, {1, 1, 65536}, Nothing{}), LogicError);
  EXPECT_THROW(cuda::launch(none, {1}, Nothing{}, 48), LogicError);
  EXPECT_THROW(cuda::launch(none, {1}, Nothing{}, 512), LogicError);
  EXPECT_THROW(cuda::launch(none, {1}, Nothing{}, 32, 96 * 1024 + 1), LogicError);
  EXPECT_NO_THROW(cuda::launch(none, {0}, Nothing{}));  // no block, no launch
}

}  // namespace
