// Rectangles of tensors come to rank 0 from whichever ranks hold them, whatever cuts them; an error there ends the
// gathering on all ranks, and the communicator stays in order.
// ranks: 1 2 3
// labels: asan
// seconds: 60
#include <gtest/gtest.h>

#include "checkpoint/gather_pieces.hpp"
#include "checkpoint_world.hpp"

using namespace orthant;
using namespace orthant::testing;

namespace {

/// Elements of the rectangle that are not those that were put there.
int64_t wrong(size_t index, const Param& p, const std::string& group, const Piece& at, const std::vector<float>& out) {
  int64_t n = 0;
  for (int64_t r = 0; r < at.rows; ++r) {
    for (int64_t c = 0; c < at.cols; ++c) {
      n += out[static_cast<size_t>(r * at.cols + c)] !=
           expected_value(group, index, (at.row + r) * p.cols() + at.col + c, 5);
    }
  }
  return n;
}

/// Whole tensors, bands of rows and of columns, a rectangle from the middle, nothing.
std::vector<Piece> rectangles(const Param& p) {
  const int64_t rows = p.rows(), cols = p.cols();
  return {{0, rows, 0, cols},         {rows / 3, (rows + 2) / 3, 0, cols},
          {0, rows, cols - 1, 1},     {rows / 4, rows - rows / 4, cols / 3, cols - cols / 3},
          {rows - 1, 1, cols / 2, 1}, {0, 0, 0, cols}};
}

}  // namespace

TEST(GatherPieces, AnyRectangleFromAnyCut) {
  const std::vector<Param> model = awkward_model();
  for (Cut cut : {Cut::rows, Cut::cols, Cut::one_rank_each, Cut::replicas}) {
    for (const std::string group : {"weights", "optimizer/v"}) {
      const Shards shards = make_shards(model, cut, true, 5);
      int calls = 0;
      with_gathered_pieces(MPI_COMM_WORLD, model, group, shards.pieces, [&](const ParamSource& source) {
        ++calls;
        std::vector<float> out;
        for (size_t i = model.size(); i-- > 0;) {  // not the order of the pieces
          for (const Piece& at : rectangles(model[i])) {
            out.assign(static_cast<size_t>(at.elements()), -7.0f);
            source(model[i], at, out.data());
            EXPECT_EQ(wrong(i, model[i], group, at, out), 0) << model[i].name << ", cut " << static_cast<int>(cut);
          }
        }
      });
      EXPECT_EQ(calls, world_rank() == 0 ? 1 : 0);
    }
  }
}

TEST(GatherPieces, AnErrorOfRank0IsThatOfAll) {
  const std::vector<Param> model = awkward_model();
  const Shards shards = make_shards(model, Cut::rows, true);
  const auto gather = [&](bool fails) {
    with_gathered_pieces(MPI_COMM_WORLD, model, "weights", shards.pieces, [&](const ParamSource& source) {
      std::vector<float> out(static_cast<size_t>(model[0].elements()));
      source(model[0], {0, model[0].rows(), 0, model[0].cols()}, out.data());
      if (fails) throw DataError("there: no room");
    });
  };
  EXPECT_EQ(error_of(Exit::data, [&] { gather(true); }), "there: no room");
  EXPECT_NO_THROW(gather(false));
}

TEST(GatherPieces, PiecesThatDoNotMakeTheTensor) {
  const std::vector<Param> model = awkward_model();
  const auto gather = [&](const Shards& shards) {
    with_gathered_pieces(MPI_COMM_WORLD, model, "weights", shards.pieces, [&](const ParamSource& source) {
      std::vector<float> out(static_cast<size_t>(model[1].elements()));
      source(model[1], {0, model[1].rows(), 0, model[1].cols()}, out.data());
    });
  };
  const auto expect_fault = [&](const Shards& shards, const std::string& words) {
    const std::string message = error_of(Exit::fault, [&] { gather(shards); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  const bool last = world_rank() == world_ranks() - 1;
  Shards missing = make_shards(model, Cut::rows, true, 0, false);
  if (last) missing.pieces[1].writer = false;
  expect_fault(missing, "of 288 elements asked for");

  Shards outside = make_shards(model, Cut::rows, true, 0, false);
  if (last) ++outside.pieces[1].piece.row;
  expect_fault(outside, "piece outside of layers.0.attention.q.weight");

  Shards unknown = make_shards(model, Cut::rows, true, 0, false);
  Param other = model[1];
  other.name = "layers.7.attention.q.weight";
  if (last) unknown.pieces[1].param = &other;
  expect_fault(unknown, "no parameter layers.7.attention.q.weight");
  EXPECT_NO_THROW(gather(make_shards(model, Cut::rows, true, 0, false)));
}
