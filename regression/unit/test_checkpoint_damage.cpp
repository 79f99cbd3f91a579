// Damaged, unfinished and foreign checkpoints: passed over and named, or refused; never loaded.
// ranks: 1 4
// seconds: 60
// labels: asan
#include <gtest/gtest.h>

#include "checkpoint/manifest.hpp"
#include "checkpoint_world.hpp"
#include "orthant/error.hpp"

using namespace orthant;
using namespace orthant::testing;
namespace fs = std::filesystem;

namespace {

void flip_byte(const std::string& path, double where) {
  const auto size = static_cast<double>(fs::file_size(path));
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(size * where));
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(size * where));
  file.put(byte);
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// Checkpoints of steps 1 and 2; the second is spoiled by `damage`; what is found and said then.
std::string passed_over_after(const std::function<void(const std::string&)>& damage) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  save(folder.path, model, Cut::rows, 1, 5);
  save(folder.path, model, Cut::rows, 2, 5);
  on_rank_0([&] { damage(folder.path + "/step-00000002"); });
  std::vector<std::string> bad;
  const auto found = find_checkpoint(MPI_COMM_WORLD, folder.path, &bad);
  EXPECT_EQ(found, folder.path + "/step-00000001");
  EXPECT_EQ(bad.size(), 1u);
  if (!found || bad.size() != 1) return "";
  EXPECT_NE(bad[0].find(folder.path + "/step-00000002"), std::string::npos) << bad[0];
  Shards shards = make_shards(model, Cut::cols, false);
  load_checkpoint(MPI_COMM_WORLD, *found, shards.pieces, nullptr);
  EXPECT_EQ(wrong_elements(model, shards, 1), 0);
  // Asked for by name, the damaged one is an error, not another checkpoint.
  error_of(Exit::data, [&] {
    load_checkpoint(MPI_COMM_WORLD, folder.path + "/step-00000002", shards.pieces, nullptr, Trust::checksums);
  });
  on_rank_0([&] { EXPECT_FALSE(verify_checkpoint(folder.path + "/step-00000002").empty()); });
  return bad[0];
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(CheckpointDamage, FlippedByte) {
  for (double where : {0.0, 0.4, 0.9}) {
    const std::string said = passed_over_after([&](const std::string& f) { flip_byte(f + "/state.h5", where); });
    EXPECT_TRUE(contains(said, "state.h5") && contains(said, "XXH64")) << said;
  }
}

TEST(CheckpointDamage, Truncated) {
  for (int64_t size : {0, 100, 20000}) {
    const std::string said = passed_over_after(
        [&](const std::string& f) { fs::resize_file(f + "/state.h5", static_cast<uintmax_t>(size)); });
    EXPECT_TRUE(contains(said, "has " + std::to_string(size) + " bytes")) << said;
  }
}

TEST(CheckpointDamage, MissingStateFile) {
  EXPECT_TRUE(contains(passed_over_after([](const std::string& f) { fs::remove(f + "/state.h5"); }), "state.h5"));
}

TEST(CheckpointDamage, Manifest) {
  EXPECT_TRUE(
      contains(passed_over_after([](const std::string& f) { fs::remove(f + "/manifest.json"); }), "not there"));
  EXPECT_TRUE(
      contains(passed_over_after([](const std::string& f) { write_text(f + "/manifest.json", ""); }), "manifest"));
  EXPECT_TRUE(contains(passed_over_after([](const std::string& f) {
                         const std::string text = file_text(f + "/manifest.json");
                         write_text(f + "/manifest.json", text.substr(0, text.size() / 2));
                       }),
                       "not a manifest"));
  EXPECT_TRUE(contains(passed_over_after([](const std::string& f) {
                         std::string text = file_text(f + "/manifest.json");
                         text.replace(text.find("\"version\": 2"), 12, "\"version\": 9");
                         write_text(f + "/manifest.json", text);
                       }),
                       "version 9"));
}

// The manifest vouches for the files; its own checksum for what it says (the order of saves, for one).
TEST(CheckpointDamage, AnyFlippedBitOfTheManifestIsFound) {
  SharedFolder folder;
  const std::string path = save(folder.path, awkward_model(), Cut::rows, 1).folder;
  on_rank_0([&] {
    const std::string good = file_text(path + "/manifest.json");
    EXPECT_EQ(read_manifest(path).step, 1);
    for (size_t at = 0; at + 1 < good.size(); ++at) {  // the line's end says nothing
      for (int bit = 0; bit < 8; ++bit) {
        std::string text = good;
        text[at] = static_cast<char>(text[at] ^ (1 << bit));
        write_text(path + "/manifest.json", text);
        EXPECT_THROW(read_manifest(path), DataError) << "bit " << bit << " of byte " << at << ":\n" << text;
      }
    }
    write_text(path + "/manifest.json", good);
  });
}

TEST(CheckpointDamage, EmptyFolderOfHigherStep) {
  EXPECT_TRUE(contains(passed_over_after([](const std::string& f) {
                         for (const auto& entry : fs::directory_iterator(f)) fs::remove(entry.path());
                       }),
                       "manifest.json"));
}

TEST(CheckpointDamage, UnfinishedIsIgnoredAndCleared) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  std::vector<std::string> bad;
  EXPECT_FALSE(find_checkpoint(MPI_COMM_WORLD, folder.path + "/absent", &bad).has_value());
  save(folder.path, model, Cut::rows, 1);
  on_rank_0([&] {
    fs::copy(folder.path + "/step-00000001", folder.path + "/.writing-9-old");
    fs::remove(folder.path + "/.writing-9-old/manifest.json");
    write_text(folder.path + "/notes.txt", "mine");
  });
  EXPECT_EQ(find_checkpoint(MPI_COMM_WORLD, folder.path, &bad), folder.path + "/step-00000001");
  EXPECT_TRUE(bad.empty());
  save(folder.path, model, Cut::rows, 2);
  on_rank_0([&] {
    EXPECT_FALSE(fs::exists(folder.path + "/.writing-9-old"));
    EXPECT_TRUE(fs::exists(folder.path + "/notes.txt"));
  });
}

TEST(CheckpointDamage, AllBadFindsNothing) {
  const std::vector<Param> model = awkward_model();
  SharedFolder folder;
  for (int64_t step : {1, 2}) save(folder.path, model, Cut::rows, step, 5);
  on_rank_0([&] {
    for (const char* name : {"/step-00000001", "/step-00000002"}) flip_byte(folder.path + name + "/state.h5", 0.5);
  });
  std::vector<std::string> bad;
  EXPECT_FALSE(find_checkpoint(MPI_COMM_WORLD, folder.path, &bad).has_value());
  EXPECT_EQ(bad.size(), 2u);
  // A removal never counts a damaged one as kept.
  save(folder.path, model, Cut::rows, 3, 1);
  EXPECT_EQ(find_checkpoint(MPI_COMM_WORLD, folder.path, &bad), folder.path + "/step-00000003");
}

TEST(CheckpointDamage, OtherModelIsRefused) {
  std::vector<Param> model = awkward_model();
  SharedFolder folder;
  const SaveReport report = save(folder.path, model, Cut::rows, 1);
  const auto load = [&](const std::vector<Param>& other) {
    Shards shards = make_shards(other, Cut::rows, false);
    return error_of(Exit::data, [&] { load_checkpoint(MPI_COMM_WORLD, report.folder, shards.pieces, nullptr); });
  };
  auto wider = model;
  wider[1].dims[0].size = 24;
  std::string said = load(wider);
  EXPECT_TRUE(contains(said, "weights/layers.0.attention.q.weight") && contains(said, "[12, 24]") &&
              contains(said, "[24, 24]"))
      << said;
  auto more = model;
  more.push_back(model[0]);
  more.back().name = "layers.1.new.weight";
  said = load(more);
  EXPECT_TRUE(contains(said, "weights/layers.1.new.weight is missing")) << said;
  auto fewer = model;
  fewer.erase(fewer.begin() + 2);
  said = load(fewer);
  EXPECT_TRUE(contains(said, "layers.0.mlp.down.weight") && contains(said, "does not have")) << said;
  Shards slot = make_shards(model, Cut::rows, false);
  for (StatePiece& p : slot.pieces) {
    if (p.group == "optimizer/v") p.group = "optimizer/momentum";
  }
  said = error_of(Exit::data, [&] { load_checkpoint(MPI_COMM_WORLD, report.folder, slot.pieces, nullptr); });
  EXPECT_TRUE(contains(said, "optimizer/momentum") && contains(said, "m, v")) << said;
}
