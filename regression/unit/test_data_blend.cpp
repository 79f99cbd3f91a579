// Mixtures of several sources: the greedy rule, its limits, weights.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <thread>

#include "data/blend.hpp"
#include "data/split.hpp"
#include "data_fixture.hpp"
#include "orthant/data.hpp"

namespace orthant {
namespace {

using testing::Scratch;

DataSettings mixture(std::vector<std::string> train, std::vector<double> weights, int64_t samples) {
  DataSettings s;
  s.train = std::move(train);
  s.weights = std::move(weights);
  s.sequence = 4;
  s.split = "1,0,0";
  s.samples = samples;
  return s;
}

int64_t source_of(const SampleStream& stream, int64_t i) { return stream.pieces(i).front().source; }

// case O068: the first eight of 0.25 / 0.75
TEST(Blend, GreedyRule) {
  const Blend blend({0.25, 0.75}, {1000, 1000});
  std::string order;
  for (int64_t i = 0; i < 8; ++i) order += blend.at(i).first == 0 ? 'A' : 'B';
  EXPECT_EQ(order, "BABBABBB");
}

TEST(Blend, ReplayEqualsOneWalk) {
  const auto weights = normalised({0.11, 0.2, 0.37, 0.02, 0.3});
  const Blend blend(weights, std::vector<int64_t>(5, 1 << 20));
  std::vector<int64_t> used(5, 0);
  for (int64_t i = 0; i < 3000; ++i) {
    const auto [d, k] = blend.at(i);
    EXPECT_EQ(k, used[static_cast<size_t>(d)]++) << i;
  }
  for (size_t d = 0; d < 5; ++d) EXPECT_NEAR(static_cast<double>(used[d]), 3000 * weights[d], 2.0);
}

TEST(Blend, OtherWeightsCountAnewAndGoOn) {
  const int64_t cuts[] = {0, 700, 703, 2048};  // within a stretch between marks, and at one
  const std::vector<std::vector<double>> weights{
      normalised({1, 2, 3}), normalised({5, 1, 1}), normalised({1, 1, 8}), normalised({3, 2, 1})};
  std::vector<Blend::Segment> segments;
  for (size_t s = 0; s < 4; ++s) segments.push_back({cuts[s], weights[s]});
  const std::vector<int64_t> limits(3, 1 << 20);
  const Blend blend(segments, limits), backwards(segments, limits);
  const Blend alone[] = {{weights[0], limits}, {weights[1], limits}, {weights[2], limits}, {weights[3], limits}};
  std::vector<int64_t> used(3, 0);
  for (int64_t i = 0; i < 3000; ++i) {
    const size_t s = i < 700 ? 0 : i < 703 ? 1 : i < 2048 ? 2 : 3;
    EXPECT_EQ(blend.drawn(i), used) << i;
    const auto [d, k] = blend.at(i);
    EXPECT_EQ(d, alone[s].at(i - cuts[s]).first) << i;  // as a mixture that begins there
    EXPECT_EQ(k, used[static_cast<size_t>(d)]++) << i;
  }
  for (int64_t i = 2999; i >= 0; i -= 7) EXPECT_EQ(backwards.at(i), blend.at(i)) << i;
}

TEST(Blend, EndsWhereASourceEnds) {
  const Blend blend({0.5, 0.5}, {3, 100});
  EXPECT_TRUE(blend.holds(6));
  EXPECT_FALSE(blend.holds(8));
  EXPECT_EQ(blend.exhausted(), 0);
  const int64_t n = blend.available();
  int64_t first = 0;
  for (int64_t i = 0; i < n; ++i) first += blend.at(i).first == 0;
  EXPECT_EQ(first, 3);
}

TEST(Blend, ManyThreadsReadTheSame) {
  const auto weights = normalised({1, 2, 3});
  const Blend shared(weights, {100000, 100000, 100000}), alone(weights, {100000, 100000, 100000});
  std::vector<std::vector<std::pair<int64_t, int64_t>>> got(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 2000; ++i) got[t].push_back(shared.at(i * 4 + static_cast<int64_t>(t)));
    });
  for (auto& thread : threads) thread.join();
  for (size_t t = 0; t < 4; ++t)
    for (int64_t i = 0; i < 2000; i += 97)
      EXPECT_EQ(got[t][static_cast<size_t>(i)], alone.at(i * 4 + static_cast<int64_t>(t)));
}

// case O068: a small source starts a second, differently shuffled pass
TEST(Mixture, SmallSourceStartsAnotherPass) {
  Scratch scratch;
  std::vector<int32_t> small(13), large(401, 99);
  for (int32_t k = 0; k < 13; ++k) small[static_cast<size_t>(k)] = k;  // 3 samples of 4
  const auto stream =
      SampleStream::train(mixture({scratch.write("a", {small}), scratch.write("b", {large})}, {0.5, 0.5}, 20));
  std::vector<int32_t> starts;
  for (int64_t i = 0; i < 20; ++i) {
    std::vector<int32_t> row(5);
    stream.sample(i, row.data());
    if (source_of(stream, i) == 0) starts.push_back(row[0]);
  }
  EXPECT_EQ(starts.size(), 10u);
}

// case O068: the same small source twice, with weights far apart
TEST(Mixture, TheSameSourceTwice) {
  Scratch scratch;
  const auto prefix = scratch.write("a", {std::vector<int32_t>(13, 1)});
  const auto stream = SampleStream::train(mixture({prefix, prefix}, {0.001, 0.999}, 50));
  for (int64_t i = 0; i < 50; ++i) {
    std::vector<int32_t> row(5);
    EXPECT_NO_THROW(stream.sample(i, row.data()));
  }
}

// case O069: source numbers above 255
TEST(Mixture, ThreeHundredSources) {
  Scratch scratch;
  std::vector<std::string> train;
  for (int32_t k = 0; k < 300; ++k)
    train.push_back(scratch.write("s" + std::to_string(k), {std::vector<int32_t>(9, k)}));
  const auto stream = SampleStream::train(mixture(train, std::vector<double>(300, 1.0), 600));
  std::map<int32_t, int> seen;
  for (int64_t i = 0; i < 600; ++i) {
    std::vector<int32_t> row(5);
    stream.sample(i, row.data());
    EXPECT_EQ(row[4], row[0]);
    EXPECT_EQ(source_of(stream, i), row[0]);
    ++seen[row[0]];
  }
  EXPECT_EQ(seen.size(), 300u);
  for (const auto& [id, times] : seen) EXPECT_EQ(times, 2) << id;
}

TEST(Mixture, LongerOnesBeginLikeShorterOnes) {
  Scratch scratch;
  const std::vector<std::string> train{scratch.write("a", {std::vector<int32_t>(4001, 1)}),
                                       scratch.write("b", {std::vector<int32_t>(4001, 2)})};
  const auto stream = SampleStream::train(mixture(train, {0.3, 0.7}, 100));  // both sources: one epoch of 1000
  EXPECT_GT(stream.available(), 1400);
  EXPECT_TRUE(stream.holds(stream.available()));
  EXPECT_FALSE(stream.holds(stream.available() + 1));
  std::vector<int32_t> row(5);
  EXPECT_NO_THROW(stream.sample(stream.available() - 1, row.data()));
  EXPECT_ERROR(UsageError, stream.sample(stream.available(), row.data()), "data.samples = 100");
}

TEST(Mixture, WithoutWeightsInProportionToTokens) {
  Scratch scratch;
  const auto stream = SampleStream::train(mixture(
      {scratch.write("a", {std::vector<int32_t>(100, 1)}), scratch.write("b", {std::vector<int32_t>(300, 2)})}, {},
      80));
  EXPECT_EQ(stream.weights(), (std::vector<double>{0.25, 0.75}));
}

TEST(Mixture, BadWeightsAreNamed) {
  Scratch scratch;
  const auto a = scratch.write("a", {std::vector<int32_t>(100, 1)}),
             b = scratch.write("b", {std::vector<int32_t>(100, 1)});
  EXPECT_ERROR(UsageError, SampleStream::train(mixture({a, b}, {1.0}, 8)), "data.weights has 1 values", "2 prefixes");
  EXPECT_ERROR(UsageError, SampleStream::train(mixture({a, b}, {1.0, -0.5}, 8)), "data.weights[1]", b, "-0.5");
  EXPECT_ERROR(UsageError, SampleStream::train(mixture({a, b}, {0.0, 0.0}, 8)), "data.weights[0]", "positive");
  EXPECT_ERROR(UsageError, SampleStream::train(mixture({a, b}, {1.0, std::nan("")}, 8)), "data.weights[1]");
}

}  // namespace
}  // namespace orthant
