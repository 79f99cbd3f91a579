// The commands, run by one process, on a checkpoint of several data files that more ranks wrote.
// ranks: 2
// seconds: 60
#include <gtest/gtest.h>

#include "checkpoint/hf_config.hpp"
#include "checkpoint_world.hpp"
#include "orthant/command.hpp"
#include "orthant/model.hpp"

using namespace orthant;
using namespace orthant::testing;
namespace fs = std::filesystem;

namespace {

const std::string golden = ORTHANT_REGRESSION_DIR "/goldens/llama-tiny";

struct Said {
  int code = 0;
  std::string text;
  bool has(const std::string& part) const { return text.find(part) != std::string::npos; }
};

Said run(const std::string& name, std::vector<std::string> args) {
  for (const Command& c : commands()) {
    if (c.name != name) continue;
    ::testing::internal::CaptureStdout();
    Said said;
    try {
      said.code = c.run({std::move(args), MPI_COMM_SELF, 0, 1});
    } catch (...) {
      ::testing::internal::GetCapturedStdout();
      throw;
    }
    said.text = ::testing::internal::GetCapturedStdout();
    return said;
  }
  throw LogicError("no command " + name);
}

SaveSettings a_file_a_rank() {
  SaveSettings settings;
  settings.files = 1;
  return settings;
}

}  // namespace

TEST(CheckpointCommands, Inspect) {
  SharedFolder folder;
  const SaveReport report = save(folder.path, awkward_model(), Cut::rows, 12, 1, "job", a_file_a_rank());
  on_rank_0([&] {
    const Said said = run("inspect", {report.folder});
    EXPECT_TRUE(said.has("layers.0.mlp.down.weight") && said.has("[24, 7]")) << said.text;
    EXPECT_TRUE(said.has("7 tensors, 6639 parameters") && said.has("optimizer/v: the same 7 tensors")) << said.text;
    EXPECT_EQ(run("inspect", {report.folder, "--verify"}).code, 0);
    fs::remove(report.folder + "/data-00001.h5");
    const Said bad = run("inspect", {report.folder, "--verify"});
    EXPECT_EQ(bad.code, 1);
    EXPECT_TRUE(bad.has("BAD") && bad.has("data-00001.h5")) << bad.text;
    EXPECT_NE(error_of(Exit::data, [&] { run("inspect", {report.folder}); }).find("data-00001.h5"),
              std::string::npos);
  });
}

// Hugging Face -> one file -> a file a rank -> Hugging Face is the same to the byte.
TEST(CheckpointCommands, Convert) {
  SharedFolder folder;
  on_rank_0([&] { EXPECT_EQ(run("convert", {golden, folder.path + "/one"}).code, 0); });
  std::vector<std::string> ignored;
  const std::vector<Param> params = model_params(read_hf_config(golden, &ignored));
  Shards shards;
  for (const Param& p : params) {
    const Piece piece = cut_piece(p, Cut::rows, 0, world_rank(), world_ranks());
    auto& data = shards.memory.emplace_back(static_cast<size_t>(piece.elements()));
    shards.pieces.push_back({&p, "weights", piece, data.data(), true});
  }
  CheckpointExtras extras;
  const TrainState state = load_checkpoint(MPI_COMM_WORLD, folder.path + "/one", shards.pieces, &extras);
  const SaveReport report = save_checkpoint(MPI_COMM_WORLD, folder.path + "/many", state.step, "job", shards.pieces,
                                            state, extras, a_file_a_rank());
  on_rank_0([&] {
    EXPECT_TRUE(fs::exists(report.folder + "/data-00001.h5"));
    EXPECT_EQ(run("convert", {report.folder, folder.path + "/back"}).code, 0);
    for (const char* name : {"/model.safetensors", "/config.json"}) {
      EXPECT_TRUE(file_text(golden + name) == file_text(folder.path + "/back" + name)) << name;
    }
    fs::resize_file(report.folder + "/data-00000.h5", 5000);
    EXPECT_NE(error_of(Exit::data,
                       [&] {
                         run("convert", {report.folder, folder.path + "/again"});
                       })
                  .find("data-00000.h5"),
              std::string::npos);
  });
}
