// Hugging Face folders: parameters out of the files' tensors and back, sharded sets, tied heads, and refusals.
// labels: smoke asan
// seconds: 60
#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/hf_config.hpp"
#include "checkpoint/hf_export.hpp"
#include "checkpoint/hf_folder.hpp"
#include "model_file_helpers.hpp"
#include "orthant/model.hpp"

using namespace orthant;
using namespace orthant::testing_files;

namespace {

Param vector_param(const std::string& name, int64_t n, FileTensor file) {
  Param p;
  p.name = name;
  p.dims = {{DimName::hidden, n}};
  p.file = std::move(file);
  return p;
}

Param matrix_param(const std::string& name, int64_t rows, int64_t cols, FileTensor file) {
  Param p = vector_param(name, rows, std::move(file));
  p.dims.push_back({DimName::hidden, cols});
  return p;
}

// One GPT-2 layer as our parameters see it; hidden is not 4 x heads, c_proj is square.
std::vector<Param> gpt2_layer(int64_t hidden) {
  std::vector<Param> all = {matrix_param("embedding.weight", 11, hidden, {"transformer.wte.weight", 0, 0, false})};
  int64_t at = 0;
  for (const char* part : {"q", "k", "v"}) {
    const std::string name = std::string("layers.0.attention.") + part;
    all.push_back(
        matrix_param(name + ".weight", hidden, hidden, {"transformer.h.0.attn.c_attn.weight", 3 * hidden, at, true}));
    all.push_back(vector_param(name + ".bias", hidden, {"transformer.h.0.attn.c_attn.bias", 3 * hidden, at, true}));
    at += hidden;
  }
  all.push_back(matrix_param("layers.0.attention.out.weight", hidden, hidden,
                             {"transformer.h.0.attn.c_proj.weight", 0, 0, true}));
  all.push_back(
      matrix_param("layers.0.mlp.up.weight", 4 * hidden, hidden, {"transformer.h.0.mlp.c_fc.weight", 0, 0, true}));
  return all;
}

// Writes tensors with value = 1000 x row + column of the file's own shape, so that a value tells where it came from.
void write_tensors(const std::string& path, const std::vector<TensorSpec>& specs) {
  SafetensorsWriter w(path, specs);
  for (const TensorSpec& t : specs) {
    const int64_t cols = t.shape.size() > 1 ? t.shape[1] : 1;
    std::vector<float> x(static_cast<size_t>(t.elements()));
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(1000 * (static_cast<int64_t>(i) / cols) + static_cast<int64_t>(i) % cols);
    }
    w.write(t.name, x.data(), t.elements());
  }
  w.finish();
}

std::vector<float> whole(const HfFolder& f, const Param& p) {
  std::vector<float> out(static_cast<size_t>(p.elements()));
  f.read(p, {0, p.rows(), 0, p.cols()}, out.data());
  return out;
}

const Param& named(const std::vector<Param>& all, const std::string& name) {
  return *std::find_if(all.begin(), all.end(), [&](const Param& p) { return p.name == name; });
}

// Parameters of a golden folder as its files spell them: one for each tensor.
std::vector<Param> as_stored(const HfFolder& f) {
  std::vector<Param> all;
  for (const std::string& name : f.names()) {
    const TensorEntry& e = f.entry(name);
    all.push_back(e.shape.size() == 1 ? vector_param(name, e.rows(), {name, 0, 0, false})
                                      : matrix_param(name, e.rows(), e.cols(), {name, 0, 0, false}));
  }
  return all;
}

void replace_in(const std::string& path, const std::string& what, const std::string& by) {
  std::string text = read_text(path);
  const auto at = text.find(what);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, what.size(), by);
  write_text(path, text);
}

const std::string goldens = std::string(ORTHANT_REGRESSION_DIR) + "/goldens/";

}  // namespace

// case O018: [in, out] storage, also where the square shape would hide an error; c_attn is q|k|v in three blocks
TEST(HfFolder, Gpt2MatricesLandTransposed) {
  TempFolder folder;
  const auto params = gpt2_layer(6);
  write_tensors(folder.path("model.safetensors"), file_tensors(params, {}));
  HfFolder f(folder.path());
  f.check(params);
  const auto out = whole(f, named(params, "layers.0.attention.out.weight"));
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 6; ++j) ASSERT_EQ(out[i * 6 + j], 1000 * j + i) << "[out, in] = [" << i << ", " << j << "]";
  }
  int block = 0;
  for (const char* part : {"q", "k", "v"}) {
    const std::string name = std::string("layers.0.attention.") + part;
    const auto w = whole(f, named(params, name + ".weight"));
    const auto b = whole(f, named(params, name + ".bias"));
    for (int i = 0; i < 6; ++i) {
      ASSERT_EQ(b[i], 1000 * (6 * block + i)) << name;
      for (int j = 0; j < 6; ++j) ASSERT_EQ(w[i * 6 + j], 1000 * j + 6 * block + i) << name;
    }
    ++block;
  }
  std::vector<float> piece(4);  // two rows, two columns inside k
  f.read(named(params, "layers.0.attention.k.weight"), {3, 2, 1, 2}, piece.data());
  EXPECT_EQ(piece, (std::vector<float>{1000 + 9, 2000 + 9, 1000 + 10, 2000 + 10}));
  std::vector<double> wide(2);
  f.read(named(params, "embedding.weight"), {10, 1, 4, 2}, wide.data());
  EXPECT_EQ(wide, (std::vector<double>{10004, 10005}));
  EXPECT_THROW(f.read(named(params, "embedding.weight"), {10, 2, 0, 1}, piece.data()), LogicError);
}

TEST(HfFolder, ShapesAreNamed) {
  TempFolder folder;
  const auto params = gpt2_layer(6);
  write_tensors(folder.path("model.safetensors"), file_tensors(params, {}));
  HfFolder f(folder.path());
  auto wrong = params;
  wrong[0].dims[0].size = 12;
  expect_error<DataError>([&] { f.check(wrong); },
                          {"transformer.wte.weight", "[11, 6]", "[12, 6]", "embedding.weight"});
  wrong = gpt2_layer(7);
  expect_error<DataError>([&] { whole(f, named(wrong, "layers.0.attention.k.weight")); },
                          {"c_attn.weight", "[6, 18]", "[7, 21]", "layers.0.attention.k.weight"});
  wrong = params;
  std::erase_if(wrong, [](const Param& p) { return p.name == "layers.0.attention.q.bias"; });
  EXPECT_THROW(f.check(wrong), LogicError);  // a third of c_attn.bias would go unread
}

TEST(HfFolder, PrefixesBuffersAndUnused) {
  TempFolder folder;
  const auto params = gpt2_layer(6);
  auto specs = file_tensors(params, {});
  for (TensorSpec& t : specs) t.name = t.name.substr(std::string("transformer.").size());
  specs.push_back({"h.0.attn.bias", "F32", {1, 1, 4, 4}});
  specs.push_back({"h.0.attn.masked_bias", "F32", {}});
  specs.push_back({"layers.0.self_attn.rotary_emb.inv_freq", "F32", {4}});
  specs.push_back({"score.weight", "F32", {2, 6}});
  write_tensors(folder.path("model.safetensors"), specs);
  HfFolder f(folder.path());
  f.check(params);
  EXPECT_TRUE(f.has("transformer.wte.weight"));
  EXPECT_TRUE(f.has("wte.weight"));
  EXPECT_FALSE(f.has("wpe.weight"));
  EXPECT_EQ(f.entry("transformer.wte.weight").name, "wte.weight");
  EXPECT_EQ(f.unused(params), (std::vector<std::string>{"score.weight"}));
  // the other way round: the parameter lacks the prefix that the file has
  TempFolder other;
  write_tensors(other.path("model.safetensors"), {{"model.norm.weight", "F32", {3}}});
  HfFolder g(other.path());
  EXPECT_EQ(whole(g, vector_param("norm", 3, {"norm.weight", 0, 0, false}))[2], 2000);
}

TEST(HfFolder, MissingTensorsAndFolders) {
  TempFolder folder;
  expect_error<DataError>([&] { HfFolder f(folder.path("absent")); }, {"absent", "no such folder"});
  expect_error<DataError>([&] { HfFolder f(folder.path()); }, {"model.safetensors", "index.json"});
  write_tensors(folder.path("model.safetensors"), {{"a", "F32", {2}}, {"flags", "F32", {2}}});
  std::vector<Param> params;
  for (int i = 0; i < 13; ++i) {
    const std::string name = "t" + std::to_string(100 + i);
    params.push_back(vector_param(name, 2, {name, 0, 0, false}));
  }
  HfFolder f(folder.path());
  expect_error<DataError>([&] { f.check(params); }, {"13 tensors", "t100", "t109", "and 3 more"});
  expect_error<DataError>([&] { whole(f, params[0]); }, {"t100"});
  write_text(folder.path("model.safetensors"),
             raw_safetensors(R"({"a":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}})", std::string(16, 'x')));
  HfFolder g(folder.path());  // listed, but no weight (case O097)
  expect_error<DataError>([&] { g.check({vector_param("p", 2, {"a", 0, 0, false})}); }, {"\"a\"", "I64", "BF16"});
}

// case O017 (files): what was read is written back to the same bytes, in every dtype and whatever the order
TEST(HfFolder, GoldenFoldersRoundTripBitwise) {
  for (const std::string name : {"gpt2-tiny", "llama-tiny", "qwen3-tiny"}) {
    HfFolder f(goldens + name);
    const auto params = as_stored(f);
    f.check(params);
    EXPECT_TRUE(f.unused(params).empty());
    TempFolder out;
    const auto source = [&](const Param& p, const Piece& piece, float* to) { f.read(p, piece, to); };
    HfExportOptions options;
    options.dtypes = f.dtypes(params);
    write_hf_folder(out.path(), params, "{}\n", source, options);
    const bool same = read_text(out.path("model.safetensors")) == read_text(goldens + name + "/model.safetensors");
    EXPECT_TRUE(same) << name;  // not EXPECT_EQ, which would print megabytes
    for (const char* dtype : {"BF16", "F16", "F64"}) {
      TempFolder narrow, again;
      HfExportOptions o;
      o.dtype = dtype;
      write_hf_folder(narrow.path(), params, "{}\n", source, o);
      HfFolder n(narrow.path());
      o.dtypes = n.dtypes(params);
      o.dtype = "F32";
      write_hf_folder(
          again.path(), params, "{}\n", [&](const Param& p, const Piece& piece, float* to) { n.read(p, piece, to); },
          o);
      EXPECT_EQ(read_text(again.path("model.safetensors")), read_text(narrow.path("model.safetensors"))) << dtype;
    }
  }
}

// The same with the families' own tables: every parameter found, nothing left over, and the parts put together again
// (c_attn from q, k, v) give the file's bytes.
TEST(HfFolder, ModelParametersFillGoldenFolders) {
  for (const std::string name : {"gpt2-tiny", "llama-tiny", "qwen3-tiny", "mixtral-tiny", "deepseek-tiny"}) {
    HfFolder f(goldens + name);
    const ModelConfig config = read_hf_config(goldens + name, nullptr);
    const auto params = model_params(config);
    f.check(params);
    EXPECT_TRUE(f.unused(params).empty()) << name;
    TempFolder out;
    write_hf_folder(out.path(), params, write_hf_config(config, "F32"),
                    [&](const Param& p, const Piece& piece, float* to) { f.read(p, piece, to); });
    const bool same = read_text(out.path("model.safetensors")) == read_text(goldens + name + "/model.safetensors");
    EXPECT_TRUE(same) << name;  // not EXPECT_EQ, which would print megabytes
    HfFolder(out.path()).check(model_params(read_hf_config(out.path(), nullptr)));
  }
}

TEST(HfFolder, TransposedAssemblyRoundTrips) {
  TempFolder folder, out;
  const auto params = gpt2_layer(6);
  write_tensors(folder.path("model.safetensors"), file_tensors(params, {}));
  HfFolder f(folder.path());
  write_hf_folder(out.path("deep/er"), params, "{}\n",
                  [&](const Param& p, const Piece& piece, float* to) { f.read(p, piece, to); });
  EXPECT_EQ(read_text(out.path("deep/er/model.safetensors")), read_text(folder.path("model.safetensors")));
  EXPECT_EQ(read_text(out.path("deep/er/config.json")), "{}\n");
}

namespace {

// A model of four vectors in two files.
class Sharded : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"a", "b", "c", "d"}) params_.push_back(vector_param(name, 8, {name, 0, 0, false}));
    options_.shard_bytes = 64;
    write_hf_folder(folder_.path(), params_, "{}\n", fill, options_);
  }
  static void fill(const Param& p, const Piece& piece, float* to) {
    for (int64_t i = 0; i < piece.rows; ++i) to[i] = static_cast<float>(100 * p.name[0] + piece.row + i);
  }
  void refused(const std::vector<std::string>& parts) {
    expect_error<DataError>([&] { HfFolder f(folder_.path()); }, parts);
  }
  TempFolder folder_;
  std::vector<Param> params_;
  HfExportOptions options_;
  std::string index_ = folder_.path("model.safetensors.index.json");
  std::string shard2_ = folder_.path("model-00002-of-00002.safetensors");
};

}  // namespace

TEST_F(Sharded, ReadsAsOne) {
  HfFolder f(folder_.path());
  f.check(params_);
  EXPECT_EQ(f.names(), (std::vector<std::string>{"a", "b", "c", "d"}));
  for (const Param& p : params_) EXPECT_EQ(whole(f, p)[3], 100 * p.name[0] + 3);
  const auto index = nlohmann::json::parse(read_text(index_));
  EXPECT_EQ(index["metadata"]["total_size"], 128);
  EXPECT_EQ(index["weight_map"]["c"], "model-00002-of-00002.safetensors");
  // again over it: refused, unless asked for; one file then takes the place of two and of the index
  expect_error<DataError>([&] { write_hf_folder(folder_.path(), params_, "{}\n", fill, options_); },
                          {"holds a model"});
  write_text(folder_.path("tokenizer.json"), "kept");
  HfExportOptions o;
  o.overwrite = true;
  write_hf_folder(folder_.path(), params_, "{}\n", fill, o);
  EXPECT_FALSE(std::filesystem::exists(index_) || std::filesystem::exists(shard2_));
  EXPECT_TRUE(std::filesystem::exists(folder_.path("tokenizer.json")));
  HfFolder(folder_.path()).check(params_);
}

// case O099
TEST_F(Sharded, MissingFile) {
  std::filesystem::remove(shard2_);
  refused({"index.json", "model-00002-of-00002.safetensors", "\"c\""});
}
TEST_F(Sharded, IndexNamesATensorThatNoFileHas) {
  replace_in(index_, "\"d\":", "\"x\": \"model-00002-of-00002.safetensors\", \"d\":");
  refused({"\"x\"", "no file holds it", "model-00002-of-00002.safetensors"});
}
TEST_F(Sharded, FileHoldsATensorThatTheIndexLacks) {
  replace_in(index_, ",\n    \"d\": \"model-00002-of-00002.safetensors\"", "");
  refused({"\"d\"", "not in the index", "model-00002-of-00002.safetensors"});
}
TEST_F(Sharded, IndexPointsToTheWrongFile) {
  replace_in(index_, "\"d\": \"model-00002", "\"d\": \"model-00001");
  refused({"\"d\"", "model-00001-of-00002.safetensors", "but it is in", "model-00002-of-00002.safetensors"});
}
TEST_F(Sharded, NamesThatLeaveTheFolder) {
  for (const char* name : {"../model.safetensors", "/etc/hosts", "", ".."}) {
    write_text(index_, std::string(R"({"weight_map":{"a":")") + name + "\"}}");
    refused({"\"a\"", std::string("\"") + name + "\"", "plain file name"});
  }
}
TEST_F(Sharded, IndexThatIsNone) {
  write_text(index_, "{}");
  refused({"weight_map"});
  write_text(index_, R"({"weight_map":{"a":1}})");
  refused({"\"a\"", "string"});
  write_text(index_, R"({"weight_map":{"a":"x","a":"y"}})");
  refused({"\"a\"", "twice"});
  write_text(index_, "[");
  refused({"index.json", "not valid JSON"});
}
TEST_F(Sharded, BothFormsAtOnce) {
  write_tensors(folder_.path("model.safetensors"), {{"a", "F32", {8}}});
  refused({"both", "index.json"});
}
// case O096: two files hold the same name
TEST_F(Sharded, SameNameInTwoFiles) {
  write_tensors(shard2_, {{"a", "F32", {8}}, {"c", "F32", {8}}, {"d", "F32", {8}}});
  refused({"\"a\"", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"});
}

namespace {

void write_tied(const TempFolder& folder, const std::vector<float>& head, const char* head_dtype = "F32") {
  std::vector<TensorSpec> specs = {{"model.embed_tokens.weight", "F32", {3, 2}}};
  if (!head.empty()) specs.push_back({"lm_head.weight", head_dtype, {3, 2}});
  SafetensorsWriter w(folder.path("model.safetensors"), specs);
  const std::vector<float> x = {1, 2, 3, 4, 5, 6};
  w.write("model.embed_tokens.weight", x.data(), 6);
  if (!head.empty()) w.write("lm_head.weight", head.data(), 6);
  w.finish();
}

}  // namespace

// case O100
TEST(HfFolder, TiedHead) {
  TempFolder folder;
  const Param embedding = matrix_param("embedding.weight", 3, 2, {"model.embed_tokens.weight", 0, 0, false});
  const Param head = matrix_param("head.weight", 3, 2, {"lm_head.weight", 0, 0, false});
  write_tied(folder, {});
  HfFolder(folder.path()).check({embedding});  // (a) no head, tied
  expect_error<DataError>(
      [&] {
        HfFolder(folder.path()).check({embedding, head});
      },  // (b) no head, not tied
      {"lm_head.weight", "tie_word_embeddings", "model.embed_tokens.weight"});
  write_tied(folder, {1, 2, 3, 4, 5, 6});  // (c) an equal copy
  HfFolder(folder.path()).check({embedding});
  EXPECT_TRUE(HfFolder(folder.path()).unused({embedding}).empty());
  write_tied(folder, {1, 2, 3, 4, 5, 6}, "BF16");
  HfFolder(folder.path()).check({embedding});
  write_tied(folder, {1, 2, 3, 4, 5.5f, 6});  // (d) a different head, tied
  expect_error<DataError>([&] { HfFolder(folder.path()).check({embedding}); },
                          {"lm_head.weight", "model.embed_tokens.weight", "row 2", "tie_word_embeddings"});
  HfFolder(folder.path()).check({embedding, head});  // and not tied: two parameters
  // an export of the tied model holds one copy
  TempFolder out;
  HfFolder f(folder.path());
  write_hf_folder(out.path(), {embedding}, "{}\n",
                  [&](const Param& p, const Piece& piece, float* to) { f.read(p, piece, to); });
  EXPECT_EQ(HfFolder(out.path()).names(), (std::vector<std::string>{"model.embed_tokens.weight"}));
}
