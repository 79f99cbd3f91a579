// Saves behind the training: the values of the step of the save whatever happens to them later, whatever the copy may
// take; the training thread communicates meanwhile; errors come out at the end; one thread at a time in HDF5.
// ranks: 1 2 4
// labels: smoke asan
// seconds: 120
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "checkpoint/background_save.hpp"
#include "checkpoint/hdf5.hpp"
#include "checkpoint_world.hpp"
#include "orthant/error.hpp"

using namespace orthant;
using namespace orthant::testing;
namespace fs = std::filesystem;

namespace {

SaveJob job_for(const std::string& folder, const Shards& shards, int64_t step, int64_t files = -1) {
  SaveSettings settings;
  settings.keep = 100;
  settings.files = files;
  return {folder, step, "job", shards.pieces, state_of(step), extras_of_test(), settings};
}

void spoil(const Shards& shards) {
  for (const StatePiece& p : shards.pieces)
    std::fill_n(p.data, static_cast<size_t>(p.piece.elements()), -3.0f);
}

void expect_step(const std::vector<Param>& model, const std::string& folder, int64_t step) {
  Shards read = make_shards(model, Cut::rows, false);
  load_checkpoint(MPI_COMM_WORLD, folder, read.pieces, nullptr, Trust::checksums);
  EXPECT_EQ(wrong_elements(model, read, step), 0) << folder;
}

// O084: training goes on with other values as soon as it may, and communicates all the time.
TEST(BackgroundSave, HoldsTheValuesOfItsStepWhateverTheCopyMayTake) {
  const std::vector<Param> model = awkward_model();
  for (int64_t limit : {int64_t{0}, int64_t{700}, int64_t{1} << 30}) {
    for (int64_t files : {-1, 1}) {
      SharedFolder folder;
      BackgroundSave saves(MPI_COMM_WORLD, limit);
      Shards shards = make_shards(model, Cut::rows, true, 7);
      saves.start(job_for(folder.path, shards, 7, files));
      EXPECT_TRUE(saves.in_flight());
      saves.release_state();
      spoil(shards);
      const SaveReport report = saves.finish();
      EXPECT_FALSE(saves.in_flight());
      EXPECT_LE(saves.copy_bytes(), limit);
      expect_step(model, report.folder, 7);
    }
  }
}

// What is behind the training and what is in front of it is the same file to the last bit.
TEST(BackgroundSave, WritesTheBytesOfASaveInFront) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  Shards shards = make_shards(model, Cut::cols, true, 3);
  const SaveJob job = job_for(folder.path + "/front", shards, 3);
  const SaveReport front = save_checkpoint(MPI_COMM_WORLD, job.checkpoints_folder, 3, "job", job.pieces, job.state,
                                           job.extras, job.settings);
  BackgroundSave saves(MPI_COMM_WORLD, 1000);
  saves.start(job_for(folder.path + "/behind", shards, 3));
  const SaveReport behind = saves.finish();
  EXPECT_EQ(front.bytes, behind.bytes);
  EXPECT_EQ(file_text(front.folder + "/state.h5"), file_text(behind.folder + "/state.h5"));
}

// O092: fifty saves while the training thread sums over another communicator, every file right.
TEST(BackgroundSave, FiftySavesWhileTrainingCommunicates) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  BackgroundSave saves(MPI_COMM_WORLD, int64_t{1} << 30);
  const int ranks = world_ranks(), rank = world_rank();
  std::vector<std::string> written;
  int64_t sums = 0;
  for (int64_t step = 1; step <= 50; ++step) {
    Shards shards = make_shards(model, Cut::rows, true, step);
    saves.start(job_for(folder.path, shards, step, step % 2 ? -1 : 1));
    bool released = false;
    for (int busy = 1; busy;) {
      std::vector<double> values(1000, rank + 1.0);
      MPI_Allreduce(MPI_IN_PLACE, values.data(), 1000, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
      ASSERT_EQ(values[999], ranks * (ranks + 1) / 2.0);
      ++sums;
      if (!released) {
        saves.release_state();
        spoil(shards);
        released = true;
      }
      busy = saves.ended() ? 0 : 1;
      MPI_Allreduce(MPI_IN_PLACE, &busy, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
    written.push_back(saves.finish().folder);
  }
  EXPECT_GE(sums, 50);
  for (size_t i = 0; i < written.size(); i += 7) expect_step(model, written[i], static_cast<int64_t>(i) + 1);
}

TEST(BackgroundSave, AnErrorComesOutAtTheEndAndTheNextSaveIsGood) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  BackgroundSave saves(MPI_COMM_WORLD, int64_t{1} << 30);
  Shards shards = make_shards(model, Cut::rows, true, 1);
  if (world_rank() == 0) std::ofstream(folder.path + "/in_the_way") << "a file";
  MPI_Barrier(MPI_COMM_WORLD);
  saves.start(job_for(folder.path + "/in_the_way", shards, 1));
  saves.release_state();  // a save that cannot even begin lets go of the state
  const std::string said = error_of(Exit::data, [&] { saves.finish(); });
  EXPECT_NE(said.find("in_the_way"), std::string::npos) << said;
  saves.start(job_for(folder.path, shards, 1));
  expect_step(model, saves.finish().folder, 1);
}

TEST(BackgroundSave, TheDestructorLeavesACompleteCheckpoint) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  Shards shards = make_shards(model, Cut::rows, true, 4);
  {
    BackgroundSave saves(MPI_COMM_WORLD, 0);
    saves.start(job_for(folder.path, shards, 4));
  }
  MPI_Barrier(MPI_COMM_WORLD);
  expect_step(model, folder.path + "/step-00000004", 4);
}

TEST(BackgroundSave, OneAtATime) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  BackgroundSave saves(MPI_COMM_WORLD, 0);
  Shards shards = make_shards(model, Cut::rows, true, 1);
  saves.start(job_for(folder.path, shards, 1));
  EXPECT_THROW(saves.start(job_for(folder.path, shards, 2)), LogicError);
  saves.finish();
  EXPECT_THROW(saves.finish(), LogicError);
}

// O092: a second thread gets an error, not a crash at random.
TEST(BackgroundSave, AnotherThreadIsKeptOutOfHdf5WhileAFileIsOpen) {
  SharedFolder folder;
  const std::string path = folder.path + "/own" + std::to_string(world_rank()) + ".h5";
  h5::File::create(path).close();
  std::string said;
  const auto elsewhere = [&] {
    said.clear();
    std::thread([&] {
      try {
        h5::File::open_read(path);
      } catch (const LogicError& e) {
        said = e.what();
      }
    }).join();
  };
  {
    const h5::File file = h5::File::open_read(path), again = h5::File::open_read(path);
    elsewhere();
    EXPECT_NE(said.find("in use by another thread"), std::string::npos) << said;
  }
  elsewhere();
  EXPECT_EQ(said, "");
}

}  // namespace
