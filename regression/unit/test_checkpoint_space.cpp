// No room, no rights, no folder: an agreed error on every rank, nothing half-made, earlier checkpoints untouched.
// ranks: 1 4
// seconds: 60
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "checkpoint/folders.hpp"
#include "checkpoint_world.hpp"
#include "orthant/error.hpp"

using namespace orthant;
using namespace orthant::testing;
namespace fs = std::filesystem;

namespace {

/// Lets this process write no file past `bytes`, as on a full disk (the call fails; no signal).
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

// Save 2 fails while `rank` cannot write past `bytes`; save 1 must still be the one found, and save 3 must work.
std::string failed_save(int rank, rlim_t bytes, int64_t files = -1) {
  SaveSettings settings;
  settings.files = files;
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  save(folder.path, model, Cut::rows, 1, 1);
  std::string said;
  {
    std::optional<FileSizeLimit> limit;
    if (world_rank() == rank) limit.emplace(bytes);
    said = error_of(Exit::data, [&] { save(folder.path, model, Cut::rows, 2, 1, "job1", settings); });
    MPI_Barrier(MPI_COMM_WORLD);
  }
  on_rank_0([&] {
    EXPECT_FALSE(fs::exists(folder.path + "/step-00000002"));
    for (const auto& entry : fs::directory_iterator(folder.path)) {
      EXPECT_NE(entry.path().filename().string().rfind(".writing-", 0), 0u) << entry.path();
    }
    EXPECT_EQ(file_text(folder.path + "/latest"), "step-00000001\n");
  });
  EXPECT_EQ(find_checkpoint(MPI_COMM_WORLD, folder.path, nullptr), folder.path + "/step-00000001");
  save(folder.path, model, Cut::rows, 3, 1);
  EXPECT_EQ(find_checkpoint(MPI_COMM_WORLD, folder.path, nullptr), folder.path + "/step-00000003");
  return said;
}

}  // namespace

TEST(CheckpointSpace, FileCannotBeMade) {
  const std::string said = failed_save(0, 30000);
  EXPECT_NE(said.find("no room"), std::string::npos) << said;
}

TEST(CheckpointSpace, FileCannotBeStarted) { failed_save(0, 0); }

// The last rank fails in the middle of the parallel write.
TEST(CheckpointSpace, OneRankCannotWrite) {
  if (world_ranks() == 1) GTEST_SKIP() << "with one rank the space is missed before";
  const std::string said = failed_save(world_ranks() - 1, 30000);
  EXPECT_NE(said.find("state.h5"), std::string::npos) << said;
}

// The lead of the last data file has no room for it, while rank 0 has.
TEST(CheckpointSpace, OneDataFileCannotBeMade) {
  if (world_ranks() == 1) GTEST_SKIP() << "one rank has no data files";
  const std::string last = "data-0000" + std::to_string(world_ranks() - 1) + ".h5";
  for (rlim_t bytes : {0, 30000}) {
    const std::string said = failed_save(world_ranks() - 1, bytes, 1);
    EXPECT_NE(said.find(last), std::string::npos) << said;
  }
}

// The last rank shares the data file of another, and fails in the middle of writing.
TEST(CheckpointSpace, OneRankCannotWriteItsPartOfADataFile) {
  if (world_ranks() < 4) GTEST_SKIP() << "groups of two ranks are wanted";
  const std::string said = failed_save(3, 10000, 2);
  EXPECT_NE(said.find("data-00001.h5"), std::string::npos) << said;
}

TEST(CheckpointSpace, FreeSpaceIsCheckedFirst) {
  SharedFolder folder;
  on_rank_0([&] {
    const std::string said = error_of(Exit::data, [&] { require_space(folder.path, int64_t{1} << 60, 1); });
    EXPECT_NE(said.find("are free"), std::string::npos) << said;
    require_space(folder.path, 1 << 20, 1);
    EXPECT_TRUE(fs::is_empty(folder.path));
  });
}

TEST(CheckpointSpace, UnusableFoldersAreRefusedAtTheStart) {
  SharedFolder folder;
  prepare_checkpoints_folder(MPI_COMM_WORLD, folder.path + "/new/deeper");
  on_rank_0([&] {
    EXPECT_TRUE(fs::is_empty(folder.path + "/new/deeper"));
    std::ofstream(folder.path + "/file") << "x";
    fs::create_directory(folder.path + "/closed");
    fs::permissions(folder.path + "/closed", fs::perms::owner_read | fs::perms::owner_exec);
  });
  const auto refusal = [&](const std::string& name) {
    return error_of(Exit::data, [&] { prepare_checkpoints_folder(MPI_COMM_WORLD, folder.path + name); });
  };
  EXPECT_NE(refusal("/file").find("/file"), std::string::npos);
  EXPECT_NE(refusal("/file/below").find("/file/below"), std::string::npos);
  if (::geteuid() != 0) {  // root may write anywhere
    EXPECT_NE(refusal("/closed").find("/closed"), std::string::npos);
  }
}
