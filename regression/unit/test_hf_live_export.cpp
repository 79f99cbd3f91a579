// An export of a run, whatever mesh it is cut by, is to the byte what convert makes of a checkpoint of the same step;
// it appears whole or not at all.
// ranks: 1 2 4
// seconds: 60
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/gather_pieces.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/hf_folder.hpp"
#include "checkpoint/hf_live_export.hpp"
#include "checkpoint_world.hpp"
#include "orthant/command.hpp"
#include "orthant/model.hpp"
#include "plan_kit.hpp"
#include "train/extras.hpp"
#include "train/state.hpp"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using kit::family;
using kit::Keys;
using kit::operator+;
using testing::on_rank_0;
using testing::SharedFolder;

struct Case {
  std::string model;
  Keys cut;
  std::string dtype = "fp32";
};

/// Every axis and ZeRO stage at least once, with tensors that are transposed, packed and tied (gpt2), tied (qwen3),
/// and with experts.
std::vector<Case> cases() {
  const Keys tp = {"mesh.tp=2"}, sp = tp + Keys{"mesh.sequence_parallel=true"};
  switch (kit::world_size()) {
    case 1:
      return {{"gpt2", {}},    {"llama", {}, "bf16"}, {"qwen3", {}},
              {"mixtral", {}}, {"deepseek", {}},      {"deepseek", {}, "bf16"}};
    case 2:
      return {{"gpt2", tp},
              {"gpt2", {"mesh.pp=2"}, "bf16"},
              {"qwen3", {"mesh.dp=2", "zero.stage=3"}},
              {"llama", {"mesh.cp=2", "zero.stage=2"}},
              {"mixtral", {"mesh.dp=2", "mesh.ep=2", "zero.stage=1"}},
              {"deepseek", sp + Keys{"mesh.etp=2"}}};
    default:
      return {
          {"gpt2", tp + Keys{"mesh.dp=2", "zero.stage=3"}, "bf16"},
          {"gpt2", tp + Keys{"mesh.pp=2"}},
          {"qwen3",
           {"mesh.pp=2", "mesh.dp=2", "zero.stage=2", "pipeline.schedule=interleaved", "pipeline.virtual_stages=2"}},
          {"llama", {"mesh.dp=4", "zero.stage=1", "zero.shard=2"}, "bf16"},
          {"mixtral", sp + Keys{"mesh.dp=2", "mesh.ep=2", "mesh.etp=2", "zero.stage=3"}, "bf16"},
          {"mixtral", {"mesh.dp=4", "mesh.ep=4"}},
          {"deepseek", {"mesh.pp=2", "mesh.dp=2", "mesh.ep=2", "zero.stage=2"}}};
  }
}

RunPlan plan_of(const Case& c) {
  return kit::plan_of(family(c.model) + c.cut + Keys{"precision.compute=" + c.dtype}, kit::world_size());
}

HfLiveExport exports_of(const RunPlan& plan, const std::string& folder) {
  return {plan.model, folder, plan.deck[keys::precision::compute]};
}

void convert(std::vector<std::string> args) {
  for (const Command& c : commands()) {
    if (c.name != "convert") continue;
    ASSERT_EQ(c.run({std::move(args), MPI_COMM_SELF, 0, 1}), 0);
    return;
  }
  FAIL() << "no command convert";
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

void expect_same_folder(const std::string& a, const std::string& b) {
  EXPECT_EQ(names_in(a), names_in(b));
  for (const std::string& name : names_in(a)) {
    EXPECT_TRUE(testing::file_text(a + "/" + name) == testing::file_text(b + "/" + name)) << name << " differs";
  }
}

/// The run's state as a checkpoint of step 1.
std::string save(kit::Trainer& t, const std::string& folder, const CheckpointExtras& extras) {
  StateView view(t.session);
  TrainState state;
  state.step = 1;
  return save_checkpoint(MPI_COMM_WORLD, folder, 1, "job", view.pieces(), state, extras, SaveSettings{}).folder;
}

std::string save(kit::Trainer& t, const std::string& folder) {
  CheckpointExtras extras;
  extras.config_json = write_hf_config(t.plan.model, "F32");
  return save(t, folder, extras);
}

/// Files of the kinds that travel with a model; their content is nobody's business.
const CompanionFiles tokenizer = {{"tokenizer.json", "{\"model\": {}}\n"},
                                  {"tokenizer.model", std::string("\0\xFFpieces\0", 9)},
                                  {"special_tokens_map.json", "{}"},
                                  {"generation_config.json", "{\"eos_token_id\": 2}\n"}};

/// A Hugging Face folder as a run of these keys could begin from: no weights, which the tests draw.
void make_source(const Keys& keys, const std::string& folder, const std::string& dtype) {
  auto config = nlohmann::json::parse(write_hf_config(kit::plan_of(keys, 1).model, dtype));
  config.update({{"bos_token_id", 1},
                 {"eos_token_id", {2, 3}},
                 {"pad_token_id", nullptr},
                 {"use_cache", true},
                 {"initializer_range", 0.125},
                 {"a_key_of_tomorrow", {{"x", 1.5}}}});
  fs::create_directory(folder);
  std::ofstream(folder + "/config.json") << config.dump(4);
  std::ofstream(folder + "/README.md") << "stays where it is";
  write_companions(folder, tokenizer);
}

LiveExportReport write(const HfLiveExport& exports, kit::Trainer& t, int64_t step) {
  StateView view(t.session);
  return exports.write(MPI_COMM_WORLD, step, view.pieces());
}

}  // namespace

TEST(HfLiveExport, IsWhatConvertMakesOfTheCheckpoint) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.model + " " + c.dtype + " " + kit::text(c.cut));
    SharedFolder folder;
    kit::Trainer t(MPI_COMM_WORLD, plan_of(c));
    t.step();
    const LiveExportReport report = write(exports_of(t.plan, folder.path + "/exports"), t, 1);
    EXPECT_EQ(report.folder, folder.path + "/exports/step-00000001");
    const std::string checkpoint = save(t, folder.path + "/checkpoints");
    on_rank_0([&] {
      convert({checkpoint, folder.path + "/converted", "--dtype", c.dtype});
      expect_same_folder(folder.path + "/converted", report.folder);
      EXPECT_EQ(names_in(folder.path + "/exports"), std::set<std::string>{"step-00000001"});
      EXPECT_NEAR(static_cast<double>(fs::file_size(report.folder + "/model.safetensors")),
                  static_cast<double>(report.bytes), 0.9 * static_cast<double>(report.bytes));
    });
    EXPECT_GT(report.bytes, 0);  // on every rank
  }
}

TEST(HfLiveExport, CarriesWhatTheModelCameWith) {
  const std::vector<std::pair<std::string, std::string>> models = {
      {"gpt2", "F32"}, {"llama", "BF16"}, {"deepseek", "F32"}};
  for (const auto& [model, source_dtype] : models) {
    for (const std::string dtype : {"fp32", "bf16"}) {
      SCOPED_TRACE(model + " as " + dtype);
      SharedFolder folder;
      const std::string source = folder.path + "/source";
      on_rank_0([&] { make_source(family(model), source, source_dtype); });
      const Keys cut = {kit::is("mesh.dp", kit::world_size()), "precision.compute=" + dtype};
      const Keys load = {"model.load=" + source};
      kit::Trainer t(MPI_COMM_WORLD, kit::plan_of(family(model) + cut + load, kit::world_size()));
      t.step();
      HfLiveExport exports = exports_of(t.plan, folder.path + "/exports");
      CheckpointExtras extras;
      on_rank_0([&] {
        extras = run_extras(t.plan, nullptr);
        exports.carry(extras);
      });
      const std::string exported = write(exports, t, 1).folder;
      const std::string checkpoint = save(t, folder.path + "/checkpoints", extras);
      on_rank_0([&] {
        convert({checkpoint, folder.path + "/converted", "--dtype", dtype});
        expect_same_folder(folder.path + "/converted", exported);
        for (const auto& [name, content] : tokenizer)
          EXPECT_TRUE(testing::file_text(exported + "/" + name) == content) << name;
        EXPECT_FALSE(fs::exists(exported + "/README.md"));
        auto config = nlohmann::json::parse(testing::file_text(exported + "/config.json"));
        EXPECT_EQ(config["dtype"], dtype == "bf16" ? "bfloat16" : "float32");
        const auto came = nlohmann::json::parse(testing::file_text(source + "/config.json"));
        config["dtype"] = came["dtype"];
        EXPECT_EQ(config, came);

        // the folder is gone, and the next life of the run carries the same
        fs::remove_all(source);
        const CheckpointExtras kept = read_checkpoint_contents(checkpoint).extras;
        const CheckpointExtras next = run_extras(t.plan, &kept);
        EXPECT_EQ(next.config_json, extras.config_json);
        EXPECT_EQ(next.tokenizer_files, tokenizer);
        EXPECT_EQ(next.deck_text, t.plan.deck.resolved());
      });
    }
  }
}

TEST(HfLiveExport, ASelectionBiasStaysInFullPrecision) {
  SharedFolder folder;
  const Keys cut = kit::world_size() == 1 ? Keys{} : Keys{kit::is("mesh.dp", kit::world_size()), "mesh.ep=2"};
  kit::Trainer t(MPI_COMM_WORLD, plan_of({"deepseek", cut + Keys{"model.moe.bias_rate=0.001"}, "bf16"}));
  t.step();
  const std::string exported = write(exports_of(t.plan, folder.path), t, 1).folder;
  const std::string checkpoint = save(t, folder.path + "/checkpoints");
  on_rank_0([&] {
    convert({checkpoint, folder.path + "/converted", "--dtype", "fp32"});
    const std::vector<Param> params = model_params(t.plan.model);
    const HfFolder want(folder.path + "/converted"), have(exported);
    const auto dtypes = have.dtypes(params);
    int biases = 0;
    for (const Param& p : params) {
      EXPECT_EQ(dtypes.at(p.file.tensor), p.trained ? "BF16" : "F32") << p.name;
      if (p.trained) continue;
      ++biases;
      std::vector<float> a(static_cast<size_t>(p.elements())), b = a;
      want.read(p, {0, p.rows(), 0, p.cols()}, a.data());
      have.read(p, {0, p.rows(), 0, p.cols()}, b.data());
      EXPECT_EQ(a, b) << p.name;
    }
    EXPECT_EQ(biases, 3);
  });
}

TEST(HfLiveExport, LargeModelsBecomeShards) {
  SharedFolder folder;
  kit::Trainer t(MPI_COMM_WORLD, plan_of(cases()[0]));
  const std::vector<Param> params = model_params(t.plan.model);
  const std::string whole = write(exports_of(t.plan, folder.path), t, 1).folder;
  StateView view(t.session);
  with_gathered_pieces(MPI_COMM_WORLD, params, "weights", view.pieces(), [&](const ParamSource& source) {
    HfExportOptions options;
    options.dtype = cases()[0].dtype == "bf16" ? "BF16" : "F32";
    options.shard_bytes = 5000;
    write_hf_folder(folder.path + "/shards", params, write_hf_config(t.plan.model, options.dtype), source, options);
  });
  on_rank_0([&] {
    EXPECT_GT(names_in(folder.path + "/shards").size(), 4u);
    const HfFolder a(whole), b(folder.path + "/shards");
    for (const Param& p : params) {
      std::vector<float> x(static_cast<size_t>(p.elements())), y = x;
      a.read(p, {0, p.rows(), 0, p.cols()}, x.data());
      b.read(p, {0, p.rows(), 0, p.cols()}, y.data());
      EXPECT_EQ(x, y) << p.name;
    }
  });
}

TEST(HfLiveExport, ReplacesTheSameStepAndLeavesNothingHalf) {
  SharedFolder folder;
  const Case c = cases().back();
  kit::Trainer t(MPI_COMM_WORLD, plan_of(c));
  const HfLiveExport exports = exports_of(t.plan, folder.path);
  const std::string of_step_1 = write(exports, t, 1).folder, of_step_2 = write(exports, t, 2).folder;
  on_rank_0([&] {
    expect_same_folder(of_step_1, of_step_2);
    fs::create_directory(folder.path + "/.writing-step-00000007");  // of a killed life
    std::ofstream(of_step_1 + "/config.json") << "{}";
  });
  t.step();
  write(exports, t, 1);
  on_rank_0([&] {
    EXPECT_EQ(names_in(folder.path), (std::set<std::string>{"step-00000001", "step-00000002"}));
    EXPECT_EQ(testing::file_text(of_step_1 + "/config.json"), testing::file_text(of_step_2 + "/config.json"));
    EXPECT_FALSE(testing::file_text(of_step_1 + "/model.safetensors") ==
                 testing::file_text(of_step_2 + "/model.safetensors"));
  });

  // a rank whose pieces are missing: no folder of step 3
  StateView view(t.session);
  std::vector<StatePiece> pieces = view.pieces();
  if (kit::world_rank() == kit::world_size() - 1) pieces.clear();
  testing::error_of(Exit::fault, [&] { exports.write(MPI_COMM_WORLD, 3, pieces); });
  on_rank_0([&] { EXPECT_EQ(names_in(folder.path), (std::set<std::string>{"step-00000001", "step-00000002"})); });
}

TEST(HfLiveExport, AFolderThatCannotBeWritten) {
  SharedFolder folder;
  const std::string place = folder.path + "/exports";
  kit::Trainer t(MPI_COMM_WORLD, plan_of(cases()[0]));
  const HfLiveExport exports = exports_of(t.plan, place);
  on_rank_0([&] { std::ofstream(place) << "a file"; });
  const std::string message = testing::error_of(Exit::data, [&] { write(exports, t, 4); });
  EXPECT_NE(message.find(place), std::string::npos) << message;
  on_rank_0([&] { fs::remove(place); });
  write(exports, t, 4);  // training went on, and there is a place now
  on_rank_0([&] { EXPECT_TRUE(fs::exists(place + "/step-00000004/model.safetensors")); });
}

TEST(HfLiveExport, AModelWithoutAHuggingFaceForm) {
  ModelConfig model = plan_of({"gpt2", {}}).model;
  EXPECT_NO_THROW(HfLiveExport(model, "exports", "fp32"));
  model.bias = false;
  EXPECT_THROW(HfLiveExport(model, "exports", "fp32"), UsageError);
  EXPECT_THROW(HfLiveExport(plan_of({"gpt2", {}}).model, "exports", "fp8"), UsageError);
}

}  // namespace orthant
