// verify: words of layouts, bounds, curves, and the comparison of weights that lie differently over the ranks.
// ranks: 1 2 4
// labels: smoke asan
// seconds: 60
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "orthant/model.hpp"
#include "plan_kit.hpp"
#include "train/verify.hpp"
#include "train/verify_layouts.hpp"
#include "train/verify_weights.hpp"

namespace orthant {
namespace {

bool contains(const std::vector<std::string>& list, const std::string& s) {
  return std::find(list.begin(), list.end(), s) != list.end();
}

TEST(Layouts, WordsAreReadAndWritten) {
  const auto list = read_layouts(" tp2, pp2 ;dp4; cp2,tp2,sp,z3,all_gather;pp4,v2,zero_bubble,ep2,etp1 ");
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(text_of(list[0], 8), "tp2,pp2,dp2");
  EXPECT_EQ(text_of(list[1], 4), "dp4");
  EXPECT_EQ(text_of(list[2], 4), "tp2,cp2,sp,z3,all_gather");
  EXPECT_EQ(text_of(list[3], 4), "pp4,ep2,v2,zero_bubble");
  EXPECT_EQ(text_of(read_layouts("tp1")[0], 1), "dp1");
  for (const LayoutWords& w : list) EXPECT_EQ(text_of(read_layouts(text_of(w, 4))[0], 4), text_of(w, 4));
}

TEST(Layouts, WrongWordsAreRefusedByName) {
  for (const char* wrong :
       {"tq2", "tp", "tp0", "tp-1", "tp+1", "tp2x", "z4", "v", "2", "tp 2", "sp1", "tp99999999999999999999"}) {
    try {
      read_layouts(std::string("dp2;pp2,") + wrong);
      ADD_FAILURE() << wrong << " is taken for a layout";
    } catch (const UsageError& e) {
      EXPECT_NE(std::string(e.what()).find(std::string("\"") + wrong + "\""), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("tpN"), std::string::npos);
      EXPECT_TRUE(e.agreed());
    }
  }
  for (const char* wrong : {"", ";", "tp2,tp4", "z1,z2", "ring,all_gather", "1f1b,gpipe"})
    EXPECT_THROW(read_layouts(wrong), UsageError) << wrong;
}

TEST(Layouts, AllAreAllProducts) {
  EXPECT_EQ(all_layouts(1, false).size(), 1u);
  EXPECT_EQ(all_layouts(2, false).size(), 5u);   // dp, pp, cp, tp, tp with sp
  EXPECT_EQ(all_layouts(4, false).size(), 14u);  // ten products, four of them with tp
  std::set<std::string> names;
  for (const LayoutWords& w : all_layouts(8, true)) {
    EXPECT_EQ(w.tp * w.cp * w.pp * w.dp, 8);
    EXPECT_EQ(w.tp * w.cp * w.dp % w.ep, 0);
    EXPECT_TRUE(names.insert(text_of(w, 8)).second) << text_of(w, 8) << " twice";
  }
  EXPECT_TRUE(names.count("tp2,pp2,dp2,ep4,sp") && names.count("tp2,pp2,dp2,ep2,etp2,sp") && names.count("dp8"));
}

TEST(Layouts, OverridesMakeTheDeckThatLayout) {
  const DeckWords pipelined{"zero_bubble", 4, false};
  const auto flat = overrides_of(read_layouts("dp2")[0], pipelined);
  for (const char* s : {"pipeline.schedule=1f1b", "pipeline.virtual_stages=1", "pipeline.stage_layers=[4]",
                        "mesh.sequence_parallel=false", "mesh.tp=1", "mesh.dp=2"})
    EXPECT_TRUE(contains(flat, s)) << s;
  EXPECT_TRUE(contains(overrides_of(read_layouts("pp2,v2")[0], DeckWords{}), "pipeline.schedule=interleaved"));
  EXPECT_FALSE(contains(overrides_of(read_layouts("pp2,v2")[0], pipelined), "pipeline.schedule=interleaved"));
  EXPECT_TRUE(contains(overrides_of_one_rank(pipelined), "zero.stage=0") &&
              contains(overrides_of_one_rank(pipelined), "zero.shard=0"));

  using kit::operator+;
  const auto plan = [](const std::string& words, int64_t ranks, const kit::Keys& keys) {
    return kit::plan_of(keys + overrides_of(read_layouts(words)[0], DeckWords{}), ranks);
  };
  const RunPlan p = plan("tp2,pp2,sp,v2,z2", 8, {"mesh.tp=4"});
  EXPECT_EQ(p.mesh.tp, 2);
  EXPECT_EQ(p.mesh.pp, 2);
  EXPECT_EQ(p.mesh.dp, 2);
  EXPECT_TRUE(p.sequence_parallel);
  EXPECT_EQ(p.pipeline.shape.chunks, 2);
  EXPECT_EQ(p.zero.stage, 2);
  EXPECT_TRUE(plan("tp2", 2, {"mesh.sequence_parallel=true"}).sequence_parallel) << "without a word the deck decides";
}

TEST(Bounds, FollowPrecisionModeAndTheUser) {
  const RunPlan fp32 = kit::plan_of({}, 1), bf16 = kit::plan_of({"precision.compute=bf16"}, 1),
                exact = kit::plan_of({"run.reproducible=true"}, 1);
  EXPECT_EQ(bound_of(fp32, {}).loss, 2e-5);
  EXPECT_EQ(bound_of(fp32, {}).norm, 1e-3);
  EXPECT_NEAR(bound_of(fp32, 2e-3).norm, 0.1, 1e-12);
  EXPECT_TRUE(bound_of(fp32, 0.0).bits);
  EXPECT_TRUE(bound_of(bf16, {}).loss_relative && bound_of(bf16, {}).loss == 0.02 &&
              std::isinf(bound_of(bf16, {}).norm));
  EXPECT_TRUE(std::isinf(bound_of(bf16, 0.1).norm));
  EXPECT_TRUE(bound_of(exact, {}).bits);
  EXPECT_FALSE(bound_of(exact, 1e-3).bits);
}

TEST(Curves, TheFirstStepPastTheBoundIsFound) {
  const ParityBound bound{0.01, false, 0.1, false}, bits{0, false, 0, true},
      loose{0.02, true, std::numeric_limits<double>::infinity(), false};
  const Curve reference{{4, 3, 2}, {10, 10, 10}};
  EXPECT_EQ(compare_curves({{4, 3.005, 2}, {10, 10, 10.5}}, reference, bound).past, 0);
  const CurveDifference loss = compare_curves({{4, 3.5, 2.5}, {10, 10, 10}}, reference, bound);
  EXPECT_EQ(loss.past, 2);
  EXPECT_DOUBLE_EQ(loss.loss, 0.5);
  const CurveDifference norm = compare_curves({{4, 3, 2}, {10, 10, 12}}, reference, bound);
  EXPECT_EQ(norm.past, 3);
  EXPECT_DOUBLE_EQ(norm.norm, 0.2);
  EXPECT_TRUE(compare_curves(reference, reference, bits).same_bits);
  EXPECT_EQ(compare_curves({{4, 3, std::nextafter(2.0, 3.0)}, {10, 10, 10}}, reference, bits).past, 3);
  EXPECT_EQ(compare_curves({{4.05, 3, 2}, {10, 99, 10}}, reference, loose).past, 0) << "2 % of the loss and any norm";
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const ParityBound& b : {bound, bits, loose}) {
    EXPECT_EQ(compare_curves({{4, nan, 2}, {10, 10, 10}}, reference, b).past, 2);
    EXPECT_EQ(compare_curves({{4, 3, 2}, {10, nan, 10}}, {{4, 3, 2}, {10, nan, 10}}, b).past, 2)
        << "not finite in both is no agreement";
  }
}

/// A model of three tensors: the first needs several blocks.
class Weights : public ::testing::Test {
 protected:
  Weights() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const auto param = [](const char* name, int64_t rows, int64_t cols) {
      Param p;
      p.name = name;
      p.dims = {{DimName::vocab, rows}};
      if (cols > 0) p.dims.push_back({DimName::hidden, cols});
      return p;
    };
    model = {param("first", 2500, 700), param("norm", 40, 0), param("last", 12, 8)};
  }
  static float value(int64_t tensor, int64_t row, int64_t col) {
    return static_cast<float>(std::sin(static_cast<double>(tensor * 1000003 + row * 701 + col)));
  }

  /// This rank's part: "first" cut by rows, "norm" whole everywhere, "last" cut by columns.
  void cut() {
    const auto part = [&](int64_t n, int64_t r) { return n * r / ranks; };
    put(0, {part(2500, rank), part(2500, rank + 1) - part(2500, rank), 0, 700}, true);
    put(1, {0, 40, 0, 1}, rank == 0);
    put(2, {0, 12, part(8, rank), part(8, rank + 1) - part(8, rank)}, true);
  }
  void whole() {
    if (rank != 0) return;
    put(0, {0, 2500, 0, 700}, true);
    put(1, {0, 40, 0, 1}, true);
    put(2, {0, 12, 0, 8}, true);
  }
  void put(int64_t tensor, const Piece& piece, bool writer) {
    std::vector<float>& data = numbers[tensor];
    data.clear();
    for (int64_t i = 0; i < piece.elements(); ++i)
      data.push_back(value(tensor, piece.row + i / piece.cols, piece.col + i % piece.cols));
    state.push_back({&model[static_cast<size_t>(tensor)], "weights", piece, data.data(), writer});
    state.push_back({&model[static_cast<size_t>(tensor)], "optimizer/m", piece, nullptr, writer});
  }
  std::map<int64_t, StatePiece> mine() { return weights_of(model, state); }
  void restart() {
    state.clear();
    numbers.clear();
  }

  int rank = 0, ranks = 1;
  std::vector<Param> model;
  std::map<int64_t, std::vector<float>> numbers;
  std::vector<StatePiece> state;
};

TEST_F(Weights, OfOneRankAreThoseOfManyUntilOneBitChanges) {
  KeptWeights kept(MPI_COMM_WORLD, model);
  whole();
  kept.keep(mine());
  restart();
  cut();
  EXPECT_TRUE(kept.compare(rank, mine(), 0).same_bits());
  EXPECT_TRUE(kept.compare_replicas(rank, mine()).same_bits());

  // the last rank's last column of "last", and the last element of its rows of "first", past the first block
  const bool holder = rank == ranks - 1;
  if (holder) {
    numbers[2].back() += 0.5f;
    float& x = numbers[0].back();
    x = std::nextafter(x, 2.0f);
  }
  const WeightDifference d = kept.compare(rank, mine(), 0.1);
  EXPECT_EQ(d.first.tensor, 0);
  EXPECT_EQ(d.first.row, 2499);
  EXPECT_EQ(d.first.col, 699);
  EXPECT_EQ(d.first.rank, ranks - 1);
  EXPECT_EQ(d.first.reference, value(0, 2499, 699));
  EXPECT_EQ(d.first_past.tensor, 2);
  EXPECT_EQ(d.first_past.row, 11);
  EXPECT_EQ(d.first_past.col, 7);
  EXPECT_EQ(d.worst.tensor, 2);
  EXPECT_NEAR(d.largest, 0.5, 1e-6);
  EXPECT_TRUE(kept.compare_replicas(rank, mine()).same_bits()) << "these have one holder";
}

TEST_F(Weights, ReplicasThatDriftAreFoundAndSoIsTheSignOfZero) {
  KeptWeights kept(MPI_COMM_WORLD, model);
  cut();
  numbers[1][5] = rank == 2 ? -0.0f : 0.0f;
  kept.keep(mine());
  const WeightDifference d = kept.compare_replicas(rank, mine());
  if (ranks <= 2) {
    EXPECT_TRUE(d.same_bits());
    if (rank == ranks - 1) numbers[1][7] = 9;
    const WeightDifference drifted = kept.compare_replicas(rank, mine());
    EXPECT_EQ(drifted.same_bits(), ranks == 1) << "one holder agrees with itself";
    EXPECT_EQ(drifted.first.row, ranks == 2 ? 7 : 0);
    return;
  }
  EXPECT_EQ(d.first.tensor, 1);
  EXPECT_EQ(d.first.row, 5);
  EXPECT_EQ(d.first.rank, 2);
  EXPECT_EQ(d.largest, 0);
  EXPECT_EQ(d.worst.tensor, 1);
}

TEST_F(Weights, ARepetitionIsComparedWithItsCopy) {
  cut();
  const auto copy = copy_of(mine());
  const auto kept = [&](int64_t t) { return copy.at(t).data(); };
  EXPECT_TRUE(compare_here(MPI_COMM_WORLD, rank, mine(), kept, 0).same_bits());
  if (rank == ranks - 1) {
    numbers[1][3] = std::numeric_limits<float>::quiet_NaN();
    numbers[2][0] += 1;
  }
  const WeightDifference d = compare_here(MPI_COMM_WORLD, rank, mine(), kept, 0);
  EXPECT_EQ(d.first.tensor, 1);
  EXPECT_EQ(d.first.row, 3);
  EXPECT_EQ(d.first.rank, ranks - 1);
  EXPECT_TRUE(std::isinf(d.largest)) << "a value that is no number is infinitely far";
}

TEST_F(Weights, ATensorThatIsNotInTheModelIsAMistake) {
  cut();
  std::vector<Param> other = {model[0], model[1]};
  EXPECT_THROW(weights_of(other, state), LogicError);
}

}  // namespace
}  // namespace orthant
