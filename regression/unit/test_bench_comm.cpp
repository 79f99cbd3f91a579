// bench comm: every operation gives the right result for every root and uneven pieces, and a wrong one is found.
// ranks: 1 2 4
// labels: smoke asan
#include <gtest/gtest.h>

#include "commands/bench_comm_trial.hpp"
#include "mesh_kit.hpp"
#include "support/agree.hpp"

namespace orthant {
namespace {

using namespace kit;

const std::vector<CommOp> all_ops = parse_comm_ops("");
// 1 element to more than all ranks', below and above where sums are gathered at once (8192), never a multiple of 4
// ranks
const std::vector<int64_t> sizes = {4, 8, 12, 20, 4 * 1021, 8192, 8196, 4 * 30011};

struct World {  // all ranks on tp
  explicit World(std::unique_ptr<Transport> transport = nullptr) {
    if (!transport) transport = make_mpi_transport(*be, MPI_COMM_WORLD);
    axis = std::make_unique<Axis>(AxisName::tp, world_size(), world_rank(), std::move(transport),
                                  std::make_shared<Traffic>());
    trial = std::make_unique<CommTrial>(*be, *axis, MPI_COMM_WORLD, sizes.back());
  }
  std::vector<float> received(int64_t n) {
    Host<float> h(*be, trial->received());
    return {h.data(), h.data() + n};
  }
  std::unique_ptr<Backend> be = make_backend("debug");
  std::unique_ptr<Axis> axis;
  std::unique_ptr<CommTrial> trial;
};

int64_t part_of(int64_t n, int rank) { return n / world_size() + (rank < n % world_size() ? 1 : 0); }

/// Numbers this rank has as the result of an operation.
int64_t result_size(CommOp op, int64_t n, int root) {
  switch (op) {
    case CommOp::gather:
    case CommOp::reduce:
      return world_rank() == root ? n : 0;
    case CommOp::scatter:
    case CommOp::reduce_scatter:
      return part_of(n, world_rank());
    case CommOp::all_to_all:
      return world_size() * part_of(n, world_rank());
    default:
      return n;
  }
}

TEST(BenchComm, EveryOperationIsRightForEveryRootAndSize) {
  World w;
  for (const CommOp op : all_ops)
    for (const int64_t bytes : sizes)
      for (int root = 0; root < world_size(); ++root)
        EXPECT_NO_THROW(w.trial->check("tp", op, bytes, root)) << name_of(op) << " " << bytes << " root " << root;
}

TEST(BenchComm, ValuesDifferByRankAndPlaceAndSumsAreThoseOfMpi) {
  World w;
  const int64_t n = 4099;
  w.trial->fill(CommOp::all_reduce, 4 * n);
  const std::vector<float> mine = w.received(n);
  std::vector<float> all(static_cast<size_t>(n * world_size())), sum(static_cast<size_t>(n));
  MPI_Allgather(mine.data(), static_cast<int>(n), MPI_FLOAT, all.data(), static_cast<int>(n), MPI_FLOAT,
                MPI_COMM_WORLD);
  MPI_Allreduce(mine.data(), sum.data(), static_cast<int>(n), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  for (int r = 1; r < world_size(); ++r)
    EXPECT_NE(all[static_cast<size_t>(r * n)], all[static_cast<size_t>((r - 1) * n)]);
  int64_t repeated = 0;
  for (size_t i = 1; i < mine.size(); ++i) repeated += mine[i] == mine[i - 1];
  EXPECT_LT(repeated, n / 10);
  w.trial->run(CommOp::all_reduce, 4 * n);
  EXPECT_EQ(w.received(n), sum);
}

TEST(BenchComm, OneWrongNumberIsFoundAndNamed) {
  World w;
  for (const CommOp op : all_ops)
    for (const int64_t bytes : {int64_t{20}, int64_t{8196}}) {
      w.trial->check("tp", op, bytes);
      const int64_t count = result_size(op, bytes / 4, 0);
      for (const int64_t at : {int64_t{0}, count / 2, count - 1}) {
        if (count == 0) break;
        float right = 0;
        {
          Host<float> h(*w.be, w.trial->received());
          right = h[at];
          h[at] = right + 1;
        }
        const std::string found = w.trial->wrong(op, bytes);
        EXPECT_EQ(found.rfind("number " + std::to_string(at) + " is ", 0), 0U) << name_of(op) << ": " << found;
        EXPECT_NE(found.find("0 others"), std::string::npos) << found;
        Host<float>(*w.be, w.trial->received())[at] = right;
      }
      EXPECT_EQ(w.trial->wrong(op, bytes), "") << name_of(op);
    }
}

TEST(BenchComm, WhatMovesNothingIsAFaultThatNamesAxisOperationBytesAndRank) {
  if (world_size() == 1) GTEST_SKIP() << "a rank alone has nothing to move";
  World w(make_counting_transport());
  for (const CommOp op :
       {CommOp::all_gather, CommOp::reduce_scatter, CommOp::all_reduce, CommOp::all_to_all, CommOp::send_receive})
    try {
      w.trial->check("cp", op, 4 * 1021);
      ADD_FAILURE() << name_of(op) << " moved nothing, and is right";
    } catch (const FaultError& e) {
      const std::string text = e.what();
      for (const std::string& word : {std::string(name_of(op)) + " of 4084 bytes", std::string("axis cp"),
                                      "rank " + std::to_string(world_rank()) + " of "})
        EXPECT_NE(text.find(word), std::string::npos) << text;
    }
}

TEST(BenchComm, ClearedBuffersStayZeroOverManySums) {
  World w;
  w.trial->clear(CommOp::all_reduce, 8196);
  for (int i = 0; i < 3; ++i) w.trial->run(CommOp::all_reduce, 8196);
  EXPECT_EQ(w.received(2049), std::vector<float>(2049, 0.0F));
}

TEST(BenchComm, BusBandwidthFollowsTheConvention) {
  const std::vector<double> of_four = {1, 0.75, 0.75, 1, 0.75, 0.75, 1.5, 0.75, 1};  // in the order of CommOp
  for (size_t i = 0; i < all_ops.size(); ++i) {
    EXPECT_DOUBLE_EQ(bus_factor(all_ops[i], 4), of_four[i]) << name_of(all_ops[i]);
    EXPECT_EQ(bus_factor(all_ops[i], 1), 0) << name_of(all_ops[i]);
  }
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::all_reduce, 2), 1);
}

TEST(BenchComm, OperationsAreReadFromAList) {
  EXPECT_EQ(all_ops.size(), static_cast<size_t>(comm_ops));
  EXPECT_EQ(parse_comm_ops("all_reduce,broadcast,all_reduce"),
            (std::vector<CommOp>{CommOp::broadcast, CommOp::all_reduce}));
  for (const char* list : {"allreduce", "broadcast,", ",", "broadcast gather"})
    EXPECT_THROW(parse_comm_ops(list), UsageError) << list;
}

}  // namespace
}  // namespace orthant
