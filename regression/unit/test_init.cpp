// Initial weights: bit for bit those of the NumPy oracle (regression/oracle/init_oracle.py), the same for any piece.
// labels: smoke
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/init.hpp"
#include "orthant/error.hpp"
#include "orthant/philox.hpp"

using namespace orthant;

namespace {

Param make_param(const std::string& name, const std::vector<int64_t>& shape, double std) {
  Param p;
  p.name = name;
  for (int64_t n : shape) p.dims.push_back({DimName::hidden, n, 1});
  p.init = {Init::normal, std};
  return p;
}

std::vector<float> drawn(const Param& p, uint64_t seed, const Piece& piece) {
  std::vector<float> out(static_cast<size_t>(piece.elements()) + 1, -7.0f);
  init_param(p, seed, piece, out.data());
  EXPECT_EQ(out.back(), -7.0f) << "written past the piece";
  out.pop_back();
  return out;
}

// Known answers of the generator's authors.
TEST(Init, philox_known_answers) {
  const auto check = [](Philox4 got, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    EXPECT_EQ(got.x0, a);
    EXPECT_EQ(got.x1, b);
    EXPECT_EQ(got.x2, c);
    EXPECT_EQ(got.x3, d);
  };
  check(philox(0, 0, 0, 0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  check(philox(~0u, ~0u, ~0u, ~0u, ~0u, ~0u), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
  check(philox(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0), 0xd16cfe09, 0x94fdcceb,
        0x5001e420, 0x24126ea1);
}

TEST(Init, bits_of_the_oracle) {
  std::ifstream file(ORTHANT_REGRESSION_DIR "/goldens/init.json");
  ASSERT_TRUE(file) << "goldens/init.json";
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 7u);
  for (const auto& c : cases) {
    const Param p = make_param(c["name"], c["shape"], c["std"]);
    const auto at = c["piece"].get<std::vector<int64_t>>();
    const auto got = drawn(p, std::stoull(c["seed"].get<std::string>()), {at[0], at[1], at[2], at[3]});
    std::istringstream bits(c["bits"].get<std::string>());
    std::string word;
    size_t n = 0;
    for (; bits >> word; ++n) {
      ASSERT_LT(n, got.size());
      ASSERT_EQ(bits_of(got[n]), std::stoul(word, nullptr, 16)) << p.name << " element " << n << " of the piece";
    }
    EXPECT_EQ(n, got.size());
  }
}

TEST(Init, a_piece_is_cut_from_the_whole) {
  const Param p = make_param("layers.2.mlp.up.weight", {311, 173}, 0.02);
  const auto whole = drawn(p, 1234, {0, 311, 0, 173});
  for (const Piece piece :
       {Piece{0, 311, 0, 173}, Piece{100, 57, 0, 173}, Piece{0, 311, 3, 1}, Piece{17, 200, 101, 72},
        Piece{310, 1, 172, 1}, Piece{311, 0, 0, 173}, Piece{5, 3, 9, 0}}) {
    const auto got = drawn(p, 1234, piece);
    for (int64_t r = 0; r < piece.rows; ++r) {
      for (int64_t c = 0; c < piece.cols; ++c) {
        const float want = whole[static_cast<size_t>((piece.row + r) * 173 + piece.col + c)];
        ASSERT_EQ(bits_of(got[static_cast<size_t>(r * piece.cols + c)]), bits_of(want)) << r << " " << c;
      }
    }
  }
}

TEST(Init, moments_and_independence) {
  const int64_t n = 1 << 20;
  const Param p = make_param("a", {1024, 1024}, 1.0), q = make_param("b", {1024, 1024}, 1.0);
  const auto x = drawn(p, 1, {0, 1024, 0, 1024}), y = drawn(q, 1, {0, 1024, 0, 1024}),
             z = drawn(p, 2, {0, 1024, 0, 1024});
  double mean = 0, square = 0, fourth = 0, neighbour = 0, other_name = 0, other_seed = 0, largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    mean += v;
    square += v * v;
    fourth += v * v * v * v;
    neighbour += i ? v * x[i - 1] : 0;
    other_name += v * y[i];
    other_seed += v * z[i];
    largest = std::max(largest, std::fabs(v));
  }
  const double error = 5 / std::sqrt(static_cast<double>(n));  // five standard deviations
  EXPECT_NEAR(mean / n, 0, error);
  EXPECT_NEAR(square / n, 1, error * std::sqrt(2.0));
  EXPECT_NEAR(fourth / n, 3, error * std::sqrt(96.0));
  EXPECT_NEAR(neighbour / n, 0, error);
  EXPECT_NEAR(other_name / n, 0, error);
  EXPECT_NEAR(other_seed / n, 0, error);
  EXPECT_GT(largest, 4);
  EXPECT_LT(largest, 7);
}

TEST(Init, zeros_ones_and_a_wrong_piece) {
  Param p = make_param("norm.weight", {7}, 0.02);
  p.init.kind = Init::ones;
  EXPECT_EQ(drawn(p, 1, {2, 5, 0, 1}), std::vector<float>(5, 1.0f));
  p.init.kind = Init::zeros;
  EXPECT_EQ(drawn(p, 1, {0, 7, 0, 1}), std::vector<float>(7, 0.0f));
  EXPECT_THROW(drawn(p, 1, {3, 5, 0, 1}), LogicError);
  EXPECT_THROW(drawn(p, 1, {0, 7, 1, 1}), LogicError);
}

}  // namespace
