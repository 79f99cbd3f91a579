// Initial weights on a mesh are, to the bit, pieces of those of one rank.
// ranks: 1 4
// labels: smoke
#include <gtest/gtest.h>

#include "mesh_kit.hpp"
#include "model/init.hpp"
#include "orthant/elementwise.hpp"
#include "orthant/model.hpp"

namespace orthant {
namespace {

using namespace kit;

std::vector<float> floats(Backend& be, const Tensor& x) {
  std::vector<float> v;
  if (x.size() == 0) return v;
  Host<float> h(be, x);
  v.assign(h.data(), h.data() + x.size());
  return v;
}

void expect_pieces(const ModelConfig& c, int64_t tp, int64_t dp, bool sp, DType compute) {
  SCOPED_TRACE(c.family + ", vocab " + std::to_string(c.vocab) + ", tp " + std::to_string(tp) +
               (sp ? ", sequence parallel, " : ", ") + name_of(compute));
  const uint64_t seed = 77;
  RigOptions o;
  o.compute = compute;
  o.sequence_parallel = sp;
  Rig rig(MPI_COMM_WORLD, mesh_of(c, tp, dp), model_params(c), o);
  rig.store.fill([&](const Param& p, const Piece& piece, float* out) { init_param(p, seed, piece, out); });
  for (const LocalParam& p : rig.store.all()) {
    std::vector<float> whole(static_cast<size_t>(p.param.elements())), mine;
    init_param(p.param, seed, {0, p.param.rows(), 0, p.param.cols()}, whole.data());
    for (int64_t r = 0; r < p.rows(); ++r)
      for (int64_t k = 0; k < p.cols(); ++k)
        mine.push_back(whole[static_cast<size_t>((p.piece.row + r) * p.param.cols() + p.piece.col + k)]);
    EXPECT_EQ(floats(*rig.backend, p.master), mine) << p.param.name;
    if (compute != DType::bf16 || mine.empty()) continue;
    Host<bf16> h(*rig.backend, p.weight);
    for (size_t i = 0; i < mine.size(); ++i)
      ASSERT_EQ(h[static_cast<int64_t>(i)].bits, to_bf16(mine[i]).bits) << p.param.name;
  }
}

TEST(ModelInit, PiecesAreThoseOfOneRank) {
  const int64_t n = world_size();
  for (const char* family : {"gpt2", "llama", "qwen3"})
    for (int64_t vocab : {65, 257})
      for (DType compute : {DType::f32, DType::bf16}) {
        expect_pieces(small_model(family, vocab), n, 1, false, compute);
        expect_pieces(small_model(family, vocab), n, 1, n > 1, compute);
        if (n == 4) expect_pieces(small_model(family, vocab), 2, 2, true, compute);
      }
}

// A weight larger than the host buffer that fill uses is filled in several pieces.
TEST(ModelInit, LargeWeightsAreFilledInPieces) {
  ModelConfig c = small_model("llama", 70001);
  c.hidden = 64;
  c.layers = 1;
  expect_pieces(c, world_size(), 1, false, DType::f32);
}

TEST(ModelInit, DrawsAreNormalWithTheStdOfEachKind) {
  ModelConfig c = small_model("llama", 4099);
  c.hidden = 64;
  c.layers = 8;
  for (const Param& p : model_params(c)) {
    if (p.elements() < 1000) continue;
    std::vector<float> w(static_cast<size_t>(p.elements()));
    init_param(p, 1, {0, p.rows(), 0, p.cols()}, w.data());
    double sum = 0, squares = 0;
    for (float x : w) sum += x, squares += static_cast<double>(x) * x;
    const double n = static_cast<double>(w.size()),
                 residual = p.name.find(".out.") != std::string::npos || p.name.find(".down.") != std::string::npos;
    const double std = residual != 0 ? 0.02 / 4 : 0.02;  // sqrt(2 x 8 layers) = 4
    EXPECT_NEAR(std::sqrt(squares / n), std, 5 * std / std::sqrt(2 * n)) << p.name;
    EXPECT_NEAR(sum / n, 0, 5 * std / std::sqrt(n)) << p.name;
  }
}

}  // namespace
}  // namespace orthant
