// convert: a Hugging Face folder to a checkpoint and back is the same to the byte, for every dtype of the source.
// labels: smoke
// seconds: 60
#include <gtest/gtest.h>

#include "checkpoint/hf_config.hpp"
#include "checkpoint/hf_export.hpp"
#include "checkpoint/hf_folder.hpp"
#include "checkpoint_world.hpp"
#include "orthant/command.hpp"
#include "orthant/model.hpp"

using namespace orthant;
using namespace orthant::testing;
namespace fs = std::filesystem;

namespace {

const std::string goldens = ORTHANT_REGRESSION_DIR "/goldens/";
const char* const families[] = {"gpt2", "llama", "qwen3"};

int convert(std::vector<std::string> args) {
  for (const Command& c : commands()) {
    if (c.name == "convert") return c.run({std::move(args), MPI_COMM_WORLD, 0, 1});
  }
  throw LogicError("no command convert");
}

std::vector<Param> params_of(const std::string& folder) {
  std::vector<std::string> ignored;
  return model_params(read_hf_config(folder, &ignored));
}

/// The golden model as `dtype`, with a config that says so.
void write_as(const std::string& golden, const std::string& folder, const std::string& dtype) {
  std::vector<std::string> ignored;
  const ModelConfig config = read_hf_config(golden, &ignored);
  const HfFolder source(golden);
  HfExportOptions options;
  options.dtype = dtype;
  write_hf_folder(
      folder, model_params(config), write_hf_config(config, dtype),
      [&](const Param& p, const Piece& piece, float* out) { source.read(p, piece, out); }, options);
}

void expect_same_model(const std::string& a, const std::string& b) {
  for (const auto& entry : fs::directory_iterator(a)) {
    const std::string name = entry.path().filename().string();
    if (name == "deck.toml" || name == "golden.json") continue;
    EXPECT_TRUE(file_text(entry.path().string()) == file_text(b + "/" + name)) << name << " differs in " << b;
  }
}

}  // namespace

TEST(Convert, GoldensThereAndBack) {
  for (const std::string family : families) {
    SharedFolder folder;
    const std::string source = goldens + family + "-tiny";
    ASSERT_EQ(convert({source, folder.path + "/checkpoint"}), 0);
    ASSERT_EQ(convert({folder.path + "/checkpoint", folder.path + "/back/"}), 0);
    expect_same_model(source, folder.path + "/back");
  }
}

TEST(Convert, SixteenBitSourcesThereAndBack) {
  for (const std::string family : families) {
    for (const char* dtype : {"BF16", "F16"}) {
      SharedFolder folder;
      write_as(goldens + family + "-tiny", folder.path + "/source", dtype);
      ASSERT_EQ(convert({folder.path + "/source", folder.path + "/deeper/checkpoint/"}), 0);
      EXPECT_EQ(read_checkpoint_contents(folder.path + "/deeper/checkpoint").extras.source_dtype, dtype);
      ASSERT_EQ(convert({folder.path + "/deeper/checkpoint", folder.path + "/back"}), 0);
      expect_same_model(folder.path + "/source", folder.path + "/back");
    }
  }
}

TEST(Convert, MixedDtypesAndCompanionsThereAndBack) {
  SharedFolder folder;
  const std::string golden = goldens + "llama-tiny", source = folder.path + "/source";
  std::vector<std::string> ignored;
  const ModelConfig config = read_hf_config(golden, &ignored);
  const HfFolder weights(golden);
  HfExportOptions options;
  options.dtype = "BF16";
  options.dtypes = {{params_of(golden).back().file.tensor, "F32"}, {params_of(golden)[1].file.tensor, "F16"}};
  write_hf_folder(
      source, params_of(golden), write_hf_config(config, "BF16"),
      [&](const Param& p, const Piece& piece, float* out) { weights.read(p, piece, out); }, options);
  std::ofstream(source + "/tokenizer.model", std::ios::binary) << std::string("\0\xFFsp\0", 5);
  std::ofstream(source + "/generation_config.json") << "{}\n";
  convert({source, folder.path + "/checkpoint"});
  convert({folder.path + "/checkpoint", folder.path + "/back"});
  expect_same_model(source, folder.path + "/back");
}

// The checkpoint holds the parameters (q, k, v apart, matrices [out, in]) with the values of the files.
TEST(Convert, CheckpointHoldsTheModel) {
  for (const std::string family : families) {
    SharedFolder folder;
    const std::string source = goldens + family + "-tiny";
    convert({source, folder.path + "/checkpoint"});
    const std::vector<Param> params = params_of(source);
    const HfFolder hf(source);
    std::deque<std::vector<float>> memory;
    std::vector<StatePiece> pieces;
    for (const Param& p : params) {
      memory.emplace_back(static_cast<size_t>(p.elements()));
      pieces.push_back({&p, "weights", {0, p.rows(), 0, p.cols()}, memory.back().data(), true});
    }
    const TrainState state =
        load_checkpoint(MPI_COMM_WORLD, folder.path + "/checkpoint", pieces, nullptr, Trust::checksums);
    EXPECT_EQ(state.step, 0);
    EXPECT_FALSE(state.has_optimizer);
    for (size_t i = 0; i < params.size(); ++i) {
      std::vector<float> want(memory[i].size());
      hf.read(params[i], pieces[i].piece, want.data());
      EXPECT_TRUE(want == memory[i]) << params[i].name;
    }
  }
}

TEST(Convert, DtypeIsAskedFor) {
  SharedFolder folder;
  const std::string source = goldens + "qwen3-tiny";
  convert({source, folder.path + "/checkpoint"});
  convert({folder.path + "/checkpoint", folder.path + "/half", "--dtype", "bf16"});
  write_as(source, folder.path + "/want", "BF16");
  EXPECT_TRUE(file_text(folder.path + "/half/model.safetensors") ==
              file_text(folder.path + "/want/model.safetensors"));
  std::vector<std::string> ignored;
  EXPECT_NE(file_text(folder.path + "/half/config.json").find("bfloat16"), std::string::npos);
}

TEST(Convert, Refusals) {
  SharedFolder folder;
  const std::string source = goldens + "gpt2-tiny";
  fs::create_directories(folder.path + "/used");
  std::ofstream(folder.path + "/used/file") << "x";
  std::ofstream(folder.path + "/file") << "x";
  EXPECT_NE(error_of(Exit::usage,
                     [&] {
                       convert({source, folder.path + "/used"});
                     })
                .find("not empty"),
            std::string::npos);
  EXPECT_NE(error_of(Exit::usage,
                     [&] {
                       convert({source, folder.path + "/file"});
                     })
                .find("not a folder"),
            std::string::npos);
  EXPECT_NE(error_of(Exit::data,
                     [&] {
                       convert({folder.path, folder.path + "/x"});
                     })
                .find("manifest.json"),
            std::string::npos);
  error_of(Exit::usage, [&] { convert({source}); });
  error_of(Exit::usage, [&] { convert({source, folder.path + "/x", "--dtype", "int3"}); });
  convert({source, folder.path + "/checkpoint"});
  fs::resize_file(folder.path + "/checkpoint/state.h5", 3000);
  error_of(Exit::data, [&] { convert({folder.path + "/checkpoint", folder.path + "/x"}); });
  EXPECT_FALSE(fs::exists(folder.path + "/x"));
}
