// Checkpoints of several data files: any number of files from any ranks into any ranks, bitwise; what other programs
// see; damage of one file is found and named.
// ranks: 1 2 4
// labels: smoke asan
// seconds: 120
#include <gtest/gtest.h>
#include <hdf5.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "checkpoint/hdf5.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint_world.hpp"
#include "orthant/error.hpp"

using namespace orthant;
using namespace orthant::testing;
namespace fs = std::filesystem;

namespace {

SaveSettings in_files(int64_t files) {
  SaveSettings settings;
  settings.files = files;
  return settings;
}

int data_files(int64_t files) {
  const int ranks = world_ranks();
  if (files <= 0 || files >= ranks) return 0;  // the ranks of a test are on one node
  return static_cast<int>((ranks + files - 1) / files);
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

/// A dataset as any program sees it through the library, with its defaults.
std::vector<float> plain_read(const std::string& path, const std::string& name) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t set = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
  const hid_t space = H5Dget_space(set);
  std::vector<float> data(static_cast<size_t>(std::max<hssize_t>(0, H5Sget_simple_extent_npoints(space))), -1.0f);
  EXPECT_GE(H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()), 0) << name;
  H5Sclose(space);
  H5Dclose(set);
  H5Fclose(file);
  return data;
}

void expect_loads(const std::vector<Param>& model, const std::string& folder, int64_t step) {
  for (Cut into : {Cut::rows, Cut::cols, Cut::one_rank_each, Cut::replicas}) {
    Shards shards = make_shards(model, into, false);
    load_checkpoint(MPI_COMM_WORLD, folder, shards.pieces, nullptr, Trust::checksums);
    EXPECT_EQ(wrong_elements(model, shards, step), 0);
  }
}

}  // namespace

TEST(CheckpointFiles, AnyNumberIntoAnyCut) {
  const std::vector<Param> model = awkward_model();
  for (int64_t files : {-1, 0, 1, 2, 3}) {
    for (Cut from : {Cut::rows, Cut::cols, Cut::one_rank_each, Cut::replicas}) {
      SharedFolder folder;
      const SaveReport report = save(folder.path, model, from, 12, 2, "job1", in_files(files));
      on_rank_0([&] {
        std::set<std::string> wanted = {"state.h5", "manifest.json"};
        for (int i = 0; i < data_files(files); ++i) wanted.insert("data-0000" + std::to_string(i) + ".h5");
        EXPECT_EQ(names_in(report.folder), wanted) << files;
        EXPECT_EQ(read_manifest(report.folder).files.size(), wanted.size() - 1);
        EXPECT_TRUE(verify_checkpoint(report.folder).empty());
        EXPECT_EQ(read_checkpoint_contents(report.folder).parameters, 257 * 24 + 12 * 24 + 24 * 7 + 6 + 5 + 3 + 1);
      });
      expect_loads(model, report.folder, 12);
      EXPECT_EQ(find_checkpoint(MPI_COMM_WORLD, folder.path, nullptr), report.folder);
    }
  }
}

// Written by all ranks, read by fewer: a part of the ranks loads alone.
TEST(CheckpointFiles, LoadsOnOtherNumbersOfRanks) {
  const std::vector<Param> model = awkward_model();
  for (int64_t files : {1, 2, 3}) {
    SharedFolder folder;
    const SaveReport report = save(folder.path, model, Cut::rows, 5, 2, "job1", in_files(files));
    for (int readers = 1; readers < world_ranks(); ++readers) {
      MPI_Comm some = MPI_COMM_NULL;
      MPI_Comm_split(MPI_COMM_WORLD, world_rank() < readers ? 0 : MPI_UNDEFINED, world_rank(), &some);
      if (some != MPI_COMM_NULL) {
        Shards shards;
        for (const std::string group : {"weights", "optimizer/m", "optimizer/v"}) {
          for (const Param& p : model) {
            const Piece piece = cut_piece(p, Cut::rows, 0, world_rank(), readers);
            auto& data = shards.memory.emplace_back(static_cast<size_t>(piece.elements()), -7.0f);
            shards.pieces.push_back({&p, group, piece, data.data(), true});
          }
        }
        load_checkpoint(some, report.folder, shards.pieces, nullptr);
        EXPECT_EQ(wrong_elements(model, shards, 5), 0);
        MPI_Comm_free(&some);
      }
      MPI_Barrier(MPI_COMM_WORLD);
    }
  }
}

// What h5py or h5dump would show: whole tensors, also when the folder was moved.
TEST(CheckpointFiles, StateFileShowsAllToOtherPrograms) {
  const std::vector<Param> model = awkward_model();
  for (int64_t files : {1, 2, 3}) {
    SharedFolder folder;
    const SaveReport report = save(folder.path, model, Cut::cols, 9, 2, "job1", in_files(files));
    const std::string moved = folder.path + "/elsewhere";
    on_rank_0([&] {
      fs::rename(report.folder, moved);
      Shards whole;
      for (const std::string group : {"weights", "optimizer/m", "optimizer/v"}) {
        for (const Param& p : model) {
          auto& data = whole.memory.emplace_back(plain_read(moved + "/state.h5", group + "/" + p.name));
          ASSERT_EQ(static_cast<int64_t>(data.size()), p.elements());
          whole.pieces.push_back({&p, group, {0, p.rows(), 0, p.cols()}, data.data(), true});
        }
      }
      EXPECT_EQ(wrong_elements(model, whole, 9), 0) << files;
      if (data_files(files) == 0) return;
      const h5::File state = h5::File::open_read(moved + "/state.h5");
      for (const h5::Source& s : state.sources("weights/embedding.weight")) {
        EXPECT_EQ(s.file.find('/'), std::string::npos) << s.file;
      }
    });
    expect_loads(model, moved, 9);
  }
}

// Rows that ranks of one group hold one after the other are one rectangle: readers have as many sources as files.
TEST(CheckpointFiles, RowsOfAGroupAreJoined) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  const SaveReport report = save(folder.path, model, Cut::rows, 1, 2, "job1", in_files(3));
  on_rank_0([&] {
    const auto sources = h5::File::open_read(report.folder + "/state.h5").sources("weights/embedding.weight");
    EXPECT_EQ(sources.size(), static_cast<size_t>(data_files(3)));
    if (!sources.empty()) {
      EXPECT_EQ(sources[0].piece, (Piece{0, 192, 0, 24}));  // 3 of 4 ranks
    }
  });
}

TEST(CheckpointFiles, TheSameStateGivesTheSameBytes) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  for (const char* sub : {"/a", "/b"}) save(folder.path + sub, model, Cut::cols, 2, 2, "job1", in_files(1));
  on_rank_0([&] {
    const std::string a = folder.path + "/a/step-00000002/", b = folder.path + "/b/step-00000002/";
    for (const std::string& name : names_in(a)) EXPECT_TRUE(file_text(a + name) == file_text(b + name)) << name;
  });
}

TEST(CheckpointFiles, DamageIsNamed) {
  if (world_ranks() == 1) GTEST_SKIP() << "one rank has no data files";
  const std::vector<Param> model = awkward_model();
  const std::string name = "data-0000" + std::to_string(data_files(1) - 1) + ".h5";
  struct Damage {
    const char* said;
    bool sizes_show_it;
    std::function<void(const std::string&)> make;
  };
  const Damage damages[] = {{"No such file", true, [](const std::string& file) { fs::remove(file); }},
                            {"has 100 bytes", true, [](const std::string& file) { fs::resize_file(file, 100); }},
                            {"XXH64", false, [](const std::string& path) {
                               std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
                               file.seekg(-3, std::ios::end);
                               const char byte = static_cast<char>(file.get() ^ 1);
                               file.seekp(-3, std::ios::end);
                               file.put(byte);
                             }}};
  for (const Damage& damage : damages) {
    SharedFolder folder;
    save(folder.path, model, Cut::rows, 1, 5, "job1", in_files(1));
    const SaveReport report = save(folder.path, model, Cut::rows, 2, 5, "job1", in_files(1));
    on_rank_0([&] { damage.make(report.folder + "/" + name); });
    const auto names_it = [&](const std::string& said) {
      EXPECT_TRUE(said.find(name) != std::string::npos && said.find(damage.said) != std::string::npos) << said;
    };
    Shards shards = make_shards(model, Cut::replicas, false);
    for (Trust trust : {Trust::sizes, Trust::checksums}) {
      if (trust == Trust::sizes && !damage.sizes_show_it) continue;
      names_it(error_of(Exit::data,
                        [&] { load_checkpoint(MPI_COMM_WORLD, report.folder, shards.pieces, nullptr, trust); }));
      std::vector<std::string> bad;
      EXPECT_EQ(find_checkpoint(MPI_COMM_WORLD, folder.path, &bad, trust), folder.path + "/step-00000001");
      ASSERT_EQ(bad.size(), 1u);
      names_it(bad[0]);
    }
    on_rank_0([&] {
      ASSERT_EQ(verify_checkpoint(report.folder).size(), 1u);
      names_it(verify_checkpoint(report.folder)[0]);
      if (damage.sizes_show_it) names_it(error_of(Exit::data, [&] { read_checkpoint_contents(report.folder); }));
    });
  }
}

// Below the manifest as well: a reader of the file alone meets an error that names the source, never NaN.
TEST(CheckpointFiles, NothingIsReadAsNan) {
  SharedFolder folder;
  on_rank_0([&] {
    const std::string path = folder.path + "/state.h5";
    {
      h5::File part = h5::File::create(folder.path + "/part.h5");
      part.create_group("weights");
      part.create_floats("weights/a", {12});
      part.create_floats("weights/short", {3});
      part.create_floats("weights/hole", {12});
      const std::vector<float> data = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
      for (const char* name : {"weights/a", "weights/hole"}) part.write_floats(name, {0, 12, 0, 1}, data.data());
      part.close();
      h5::File state = h5::File::create(path);
      state.create_group("weights");
      state.create_virtual_floats("weights/a", {4, 3},
                                  {{{0, 4, 0, 1}, "part.h5", 0, 12}, {{0, 4, 1, 2}, "part.h5", 4, 12}});
      state.create_virtual_floats("weights/short", {4, 3}, {{{0, 4, 0, 3}, "part.h5", 0, 12}});
      state.create_virtual_floats("weights/hole", {4, 3}, {{{0, 3, 0, 3}, "part.h5", 0, 12}});
      state.create_virtual_floats("weights/gone", {4, 3}, {{{0, 4, 0, 3}, "gone.h5", 0, 12}});
      state.close();
    }
    h5::File state = h5::File::open_read(path);
    const Piece whole{0, 4, 0, 3};
    std::vector<float> data(12, -1.0f);
    // Two column stripes, in calls of one, a few and all elements.
    for (int64_t limit : {int64_t{4}, int64_t{20}, h5::call_limit}) {
      std::fill(data.begin(), data.end(), -1.0f);
      state.read_floats("weights/a", whole, data.data(), limit);
      EXPECT_EQ(data, (std::vector<float>{0, 4, 5, 1, 6, 7, 2, 8, 9, 3, 10, 11})) << limit;
      std::vector<float> inner(4, -1.0f);
      state.read_floats("weights/a", {1, 2, 1, 2}, inner.data(), limit);
      EXPECT_EQ(inner, (std::vector<float>{6, 7, 8, 9})) << limit;
    }
    const auto refusal = [&](const std::string& name, const Piece& piece) {
      return error_of(Exit::data, [&] { state.read_floats(name, piece, data.data()); });
    };
    EXPECT_NE(refusal("weights/gone", whole).find("gone.h5"), std::string::npos);
    EXPECT_NE(refusal("weights/short", whole).find("part.h5"), std::string::npos);
    EXPECT_NE(refusal("weights/hole", whole).find("3 of 12 elements are in no file"), std::string::npos);
    state.read_floats("weights/hole", {0, 3, 0, 3}, data.data());  // what is there can be read
    state.close();
    // What the library by itself makes of it:
    const std::vector<float> hole = plain_read(path, "weights/hole"), gone = plain_read(path, "weights/gone");
    ASSERT_EQ(hole.size(), 12u);
    ASSERT_EQ(gone.size(), 12u);
    EXPECT_EQ(hole[8], 8.0f);
    EXPECT_TRUE(std::isnan(hole[9]));
    EXPECT_TRUE(std::isnan(gone[0]));
  });
}

TEST(CheckpointFiles, HintsReachMpi) {
  const std::vector<Param> model = awkward_model();
  for (int64_t files : {-1, 1}) {
    SharedFolder folder;
    SaveSettings settings = in_files(files);
    settings.mpi_info = {{"striping_unit", "4096"}, {"striping_factor", "4"}, {"of_no_library", "x"}};
    const SaveReport report = save(folder.path, model, Cut::rows, 3, 2, "job1", settings);
    expect_loads(model, report.folder, 3);
    // Embedding: 24672 bytes, more than four stripes of 4096, so it starts on one.
    if (data_files(files) > 0) continue;
    on_rank_0([&] {
      const std::string path = report.folder + "/state.h5";
      const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
      const hid_t set = H5Dopen2(file, "weights/embedding.weight", H5P_DEFAULT);
      EXPECT_EQ(H5Dget_offset(set) % 4096, 0u);
      H5Dclose(set);
      H5Fclose(file);
    });
  }
}

TEST(CheckpointFiles, BadHintsAreRefusedAtTheStart) {
  SharedFolder folder;
  const auto refusal = [&](const std::string& key, const std::string& value) {
    SaveSettings settings;
    settings.mpi_info = {{key, value}};
    return error_of(Exit::usage, [&] { prepare_checkpoints_folder(MPI_COMM_WORLD, folder.path, settings); });
  };
  EXPECT_NE(refusal("cb_nodes", "").find("cb_nodes"), std::string::npos);
  EXPECT_NE(refusal(std::string(300, 'k'), "1").find("characters"), std::string::npos);
  EXPECT_NE(refusal("", "1").find("an entry"), std::string::npos);
  for (const char* value : {"1M", "0", "-4096", "99999999999"}) {
    EXPECT_NE(refusal("striping_unit", value).find("striping_unit"), std::string::npos) << value;
  }
}
