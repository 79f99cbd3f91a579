// inspect: every kind of path is recognised, says what is in it, and --verify finds damage.
// labels: smoke
// seconds: 60
#include <gtest/gtest.h>

#include "checkpoint_world.hpp"
#include "layers/fp8.hpp"
#include "orthant/backend.hpp"
#include "orthant/command.hpp"

using namespace orthant;
using namespace orthant::testing;
namespace fs = std::filesystem;

namespace {

const std::string goldens = ORTHANT_REGRESSION_DIR "/goldens/";

struct Said {
  int code = 0;
  std::string text;
  bool has(const std::string& part) const { return text.find(part) != std::string::npos; }
};

Said inspect(std::vector<std::string> args) {
  for (const Command& c : commands()) {
    if (c.name != "inspect") continue;
    ::testing::internal::CaptureStdout();
    Said said;
    try {
      said.code = c.run({std::move(args), MPI_COMM_WORLD, 0, 1});
    } catch (...) {
      ::testing::internal::GetCapturedStdout();
      throw;
    }
    said.text = ::testing::internal::GetCapturedStdout();
    return said;
  }
  throw LogicError("no command inspect");
}

}  // namespace

TEST(Inspect, Checkpoint) {
  SharedFolder folder;
  const SaveReport report = save(folder.path, awkward_model(), Cut::rows, 12);
  const Said said = inspect({report.folder + "/"});
  EXPECT_EQ(said.code, 0);
  EXPECT_TRUE(said.has("step 12, 49152 tokens") && said.has("tp 2 x dp 2") && said.has("seed = -3")) << said.text;
  EXPECT_TRUE(said.has("layers.0.mlp.down.weight") && said.has("[24, 7]")) << said.text;
  EXPECT_TRUE(said.has("7 tensors, 6639 parameters") && said.has("optimizer/v: the same 7 tensors")) << said.text;

  EXPECT_EQ(inspect({report.folder, "--verify"}).code, 0);
  std::fstream file(report.folder + "/state.h5", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-5, std::ios::end);
  file.put('\x55');
  file.close();
  const Said bad = inspect({report.folder, "--verify"});
  EXPECT_EQ(bad.code, 1);
  EXPECT_TRUE(bad.has("BAD") && bad.has("state.h5")) << bad.text;
}

TEST(Inspect, CheckpointWithStateOfFp8) {
  SharedFolder folder;
  const std::vector<Param> model = awkward_model();
  Shards shards = make_shards(model, Cut::replicas, true);
  const auto backend = make_backend("cpu");
  Fp8 fp8(*backend, {Fp8Recipe::delayed, 5, false, 0, 0}, {model[1], model[2]});
  for (const StatePiece& p : fp8.pieces(true)) shards.pieces.push_back(p);
  const std::string path = save_checkpoint(MPI_COMM_WORLD, folder.path, 2, "job", shards.pieces, state_of(2), extras_of_test(), {}).folder;
  const Said said = inspect({path});
  EXPECT_TRUE(said.has("fp8/history: of 2 matrices, [3, 5] each") && said.has("fp8/scale: of 2 matrices, [3, 1] each")) << said.text;
  EXPECT_TRUE(said.has("optimizer/v: the same 7 tensors") && !said.has("fp8/history: the same")) << said.text;
}

TEST(Inspect, RunFolder) {
  SharedFolder folder;
  save(folder.path + "/checkpoints", awkward_model(), Cut::rows, 4);
  save(folder.path + "/checkpoints", awkward_model(), Cut::rows, 8);
  std::ofstream(folder.path + "/deck.toml") << "[run]\nsteps = 3\n";
  Said said = inspect({folder.path, "--verify"});
  EXPECT_EQ(said.code, 0);
  EXPECT_TRUE(said.has("latest complete: step 8") && said.has("step-00000004")) << said.text;
  fs::resize_file(folder.path + "/checkpoints/step-00000008/state.h5", 10);
  said = inspect({folder.path + "/checkpoints"});
  EXPECT_TRUE(said.has("latest complete: step 4") && said.has("BAD")) << said.text;
  EXPECT_EQ(inspect({folder.path, "--verify"}).code, 1);
}

TEST(Inspect, Dataset) {
  for (const char* ending : {"", ".idx", ".bin"}) {
    const Said said = inspect({goldens + "data/ruth" + ending, "--verify"});
    EXPECT_EQ(said.code, 0);
    EXPECT_TRUE(said.has("documents") && said.has("longest") && said.has("token ids")) << said.text;
  }
}

TEST(Inspect, ModelFiles) {
  const Said file = inspect({goldens + "llama-tiny/model.safetensors", "--verify"});
  EXPECT_TRUE(file.has("lm_head.weight") && file.has("elements")) << file.text;
  const Said hf = inspect({goldens + "llama-tiny"});
  EXPECT_TRUE(hf.has("361664 parameters") && hf.has("model.norm.weight")) << hf.text;
}

TEST(Inspect, Deck) {
  const std::string deck = goldens + "gpt2-tiny/deck.toml";
  const Said resolved = inspect({deck, "batch.micro=2"});
  EXPECT_TRUE(resolved.has("micro = 2") && resolved.has("[optimizer]")) << resolved.text;
  // order.json: kjv, N = 480, sequence 64, seed 1234
  const Said samples = inspect({deck, "--samples", "480"});
  EXPECT_TRUE(samples.has("bfaf50035455fe3a00d929f5a9160fe1a5a5a0ca50908ac2495186a55b9bba45"))
      << samples.text.substr(0, 500);
  const Said step = inspect({deck, "--step", "3"});
  EXPECT_TRUE(step.has("samples 16 to 23") && step.has("sample 23") && !step.has("sample 24") && step.has("document"))
      << step.text;
  EXPECT_NE(error_of(Exit::usage,
                     [&] {
                       inspect({deck, "batch.micro=0", "optimizer.lr=x"});
                     })
                .find("optimizer.lr"),
            std::string::npos);
}

// The stream's length that a run fixed at its first start is in its checkpoint, and decides the order of epochs.
TEST(Inspect, RunKnowsItsStream) {
  SharedFolder folder;
  std::string deck = file_text(goldens + "gpt2-tiny/deck.toml");
  const auto put = [&](const std::string& from, const std::string& to) {
    deck.replace(deck.find(from), from.size(), to);
  };
  put("load = \".\"", "load = \"" + goldens + "gpt2-tiny\"");
  put("../data/kjv", goldens + "data/kjv");
  put("global = 8", "global = 4");
  std::ofstream(folder.path + "/deck.toml") << deck;
  const std::vector<Param> model = awkward_model();
  Shards shards = make_shards(model, Cut::rows, true);
  TrainState state = state_of(5);
  state.samples = 480;
  save_checkpoint(MPI_COMM_WORLD, folder.path + "/checkpoints", 5, "j", shards.pieces, state, {}, {});
  EXPECT_TRUE(inspect({folder.path, "--samples", "480"})
                  .has("bfaf50035455fe3a00d929f5a9160fe1a5a5a0ca50908ac2495186a55b9bba45"));
}

TEST(Inspect, UnknownPathsAreRefused) {
  SharedFolder folder;
  EXPECT_NE(error_of(Exit::data, [&] { inspect({folder.path}); }).find("Looked for"), std::string::npos);
  EXPECT_NE(error_of(Exit::data, [&] { inspect({folder.path + "/nothing"}); }).find("nothing.idx"),
            std::string::npos);
  error_of(Exit::usage, [&] { inspect({goldens + "data/ruth", "--samples", "3"}); });
}
