// Saving and loading: every cut into every cut, bitwise; what the file looks like; what may stay.
// ranks: 1 2 4
// labels: smoke
// seconds: 60
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>

#include "checkpoint/hdf5.hpp"
#include "checkpoint_world.hpp"
#include "orthant/error.hpp"

using namespace orthant;
using namespace orthant::testing;
namespace fs = std::filesystem;

TEST(Checkpoint, AnyCutIntoAnyCut) {
  const std::vector<Param> model = awkward_model();
  for (Cut from : {Cut::rows, Cut::cols, Cut::one_rank_each, Cut::replicas}) {
    SharedFolder folder;
    const SaveReport report = save(folder.path, model, from, 12);
    EXPECT_EQ(report.folder, folder.path + "/step-00000012");
    EXPECT_GT(report.bytes, 0);
    for (Cut into : {Cut::rows, Cut::cols, Cut::one_rank_each, Cut::replicas}) {
      Shards shards = make_shards(model, into, false);
      const TrainState state =
          load_checkpoint(MPI_COMM_WORLD, report.folder, shards.pieces, nullptr, Trust::checksums);
      EXPECT_EQ(wrong_elements(model, shards, 12), 0);
      EXPECT_TRUE(state.has_optimizer);
    }
  }
}

TEST(Checkpoint, StateAndExtrasComeBack) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  const SaveReport report = save(folder.path, model, Cut::rows, 7);
  Shards shards = make_shards(model, Cut::rows, false);
  CheckpointExtras extras;
  const TrainState state = load_checkpoint(MPI_COMM_WORLD, report.folder, shards.pieces, &extras), want = state_of(7);
  EXPECT_EQ(state.step, want.step);
  EXPECT_EQ(state.tokens, want.tokens);
  EXPECT_EQ(state.samples, want.samples);
  EXPECT_EQ(state.decay_steps, want.decay_steps);
  EXPECT_EQ(state.integers, want.integers);
  EXPECT_EQ(state.reals, want.reals);
  EXPECT_EQ(state.strings, want.strings);
  const CheckpointExtras given = extras_of_test();
  EXPECT_EQ(extras.deck_text, given.deck_text);
  EXPECT_EQ(extras.tokenizer_files, given.tokenizer_files);
  EXPECT_EQ(extras.config_json, given.config_json);
  EXPECT_EQ(extras.source_dtype, given.source_dtype);
  EXPECT_EQ(extras.mesh, given.mesh);
}

// The bytes of the state file do not tell how the tensors were spread.
TEST(Checkpoint, FileIsTheSameForEveryCut) {
  const std::vector<Param> model = awkward_model();
  SharedFolder a, b;
  save(a.path, model, Cut::rows, 3);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // HDF5 writes times in seconds, where it is not told not to
  save(b.path, model, Cut::one_rank_each, 3);
  on_rank_0([&] {
    EXPECT_TRUE(file_text(a.path + "/step-00000003/state.h5") == file_text(b.path + "/step-00000003/state.h5"));
  });
}

TEST(Checkpoint, ContentsAreGlobalAndNamed) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  const SaveReport report = save(folder.path, model, Cut::cols, 5);
  on_rank_0([&] {
    const CheckpointContents contents = read_checkpoint_contents(report.folder);
    EXPECT_EQ(contents.parameters, 257 * 24 + 36 / 3 * 24 + 24 * 7 + 6 + 5 + 3 + 1);
    EXPECT_EQ(contents.tensors.size(), 3 * model.size());
    EXPECT_EQ(contents.ranks, world_ranks());
    EXPECT_EQ(contents.bytes, report.bytes);
    EXPECT_EQ(contents.state.step, 5);
    const h5::File file = h5::File::open_read(report.folder + "/state.h5");
    EXPECT_EQ(file.shape("optimizer/v/layers.0.mlp.down.weight").dims, (std::vector<int64_t>{24, 7}));
    EXPECT_EQ(file.shape("weights/layers.0.norm.weight").dims, std::vector<int64_t>{6});
    EXPECT_EQ(file.read_text("deck"), extras_of_test().deck_text);
    EXPECT_EQ(file_text(folder.path + "/latest"), "step-00000005\n");
    EXPECT_TRUE(verify_checkpoint(report.folder).empty());
  });
}

// Transfers of more than one call hold the same bits, also when a single row is longer than the limit.
TEST(Checkpoint, TransfersAreSplit) {
  SharedFolder folder;
  on_rank_0([&] {
    const std::string path = folder.path + "/split.h5";
    std::vector<float> data(37 * 53), back(20 * 31), vector_back(53 * 37);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i) + 0.25f;
    for (int64_t limit : {int64_t{4}, int64_t{100}, int64_t{1000}, h5::call_limit}) {
      fs::remove(path);
      h5::File file = h5::File::create(path);
      file.create_floats("matrix", {37, 53});
      file.create_floats("vector", {37 * 53});
      file.write_floats("matrix", {0, 37, 0, 53}, data.data(), limit);
      file.write_floats("vector", {0, 37 * 53, 0, 1}, data.data(), limit);
      file.close();
      const h5::File again = h5::File::open_read(path);
      again.read_floats("matrix", {5, 20, 11, 31}, back.data(), limit);
      again.read_floats("vector", {0, 37 * 53, 0, 1}, vector_back.data(), limit);
      EXPECT_EQ(vector_back, data);
      for (int r = 0; r < 20; ++r) {
        for (int c = 0; c < 31; ++c) ASSERT_EQ(back[r * 31 + c], data[(r + 5) * 53 + c + 11]) << limit;
      }
    }
  });
}

TEST(Checkpoint, WeightsOnlyLeavesOptimizerAlone) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  Shards saved = make_shards(model, Cut::rows, true, 0, false);
  const SaveReport report =
      save_checkpoint(MPI_COMM_WORLD, folder.path, 0, "convert", saved.pieces, TrainState{}, CheckpointExtras{}, {});
  Shards shards = make_shards(model, Cut::rows, false);
  EXPECT_FALSE(load_checkpoint(MPI_COMM_WORLD, report.folder, shards.pieces, nullptr).has_optimizer);
  for (const StatePiece& p : shards.pieces) {
    for (int64_t i = 0; i < p.piece.elements(); ++i) {
      if (p.group == "weights") {
        ASSERT_NE(p.data[i], -7.0f);
      } else {
        ASSERT_EQ(p.data[i], -7.0f);
      }
    }
  }
}

TEST(Checkpoint, KeepsTheNewest) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  const auto there = [&] {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder.path)) names.insert(entry.path().filename().string());
    return names;
  };
  for (int64_t step : {2, 4, 6}) save(folder.path, model, Cut::rows, step);
  on_rank_0([&] { EXPECT_EQ(there(), (std::set<std::string>{"latest", "step-00000004", "step-00000006"})); });
  // A run that went back to step 2 saves at 3: the youngest counts, not the highest step.
  save(folder.path, model, Cut::rows, 3, 1);
  on_rank_0([&] { EXPECT_EQ(there(), (std::set<std::string>{"latest", "step-00000003"})); });
  EXPECT_EQ(find_checkpoint(MPI_COMM_WORLD, folder.path, nullptr), folder.path + "/step-00000003");
  // Saving the same step again replaces it.
  save(folder.path, model, Cut::cols, 3, 1, "job2");
  on_rank_0([&] { EXPECT_EQ(there(), (std::set<std::string>{"latest", "step-00000003"})); });
  Shards shards = make_shards(model, Cut::rows, false);
  load_checkpoint(MPI_COMM_WORLD, folder.path + "/step-00000003", shards.pieces, nullptr);
  EXPECT_EQ(wrong_elements(model, shards, 3), 0);
}

TEST(Checkpoint, YoungestWinsOverHighestStep) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  for (int64_t step : {10, 20, 15}) save(folder.path, model, Cut::rows, step, 5);
  EXPECT_EQ(find_checkpoint(MPI_COMM_WORLD, folder.path, nullptr, Trust::sizes), folder.path + "/step-00000015");
}

TEST(Checkpoint, HolesAndOverlapsAreRefused) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  const auto try_with = [&](auto change) {
    Shards shards = make_shards(model, Cut::rows, true);
    change(shards.pieces);
    return error_of(Exit::fault,
                    [&] { save_checkpoint(MPI_COMM_WORLD, folder.path, 1, "j", shards.pieces, state_of(1), {}, {}); });
  };
  EXPECT_NE(try_with([](auto& pieces) {
              if (world_rank() == 0) pieces[0].piece.rows -= 1;
            }).find("weights/embedding.weight"),
            std::string::npos);
  EXPECT_NE(try_with([](auto& pieces) {
              if (world_rank() == 0) pieces.push_back(pieces[0]);
            }).find("written twice"),
            std::string::npos);
  EXPECT_NE(try_with([](auto& pieces) { pieces[0].writer = false; }).find("no rank that writes it"),
            std::string::npos);
  on_rank_0([&] { EXPECT_TRUE(fs::is_empty(folder.path)); });
}
