// orthant generate CHECKPOINT|HF_DIR --prompt …: text from a model, one token after the other.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "checkpoint/hf_config.hpp"
#include "checkpoint/hf_folder.hpp"
#include "commands/parse.hpp"
#include "data/batches.hpp"
#include "orthant/checkpoint.hpp"
#include "orthant/model.hpp"
#include "orthant/philox.hpp"
#include "orthant/stage.hpp"
#include "support/agree.hpp"

namespace orthant {
namespace {

struct Sampling {
  double temperature = 1;
  int64_t top_k = 0;   ///< 0 = off
  double top_p = 1;
  int64_t seed = 1234;
};

/// The next token from its logits: the largest with temperature 0, else drawn from the softmax over the top k whose
/// probabilities reach top_p. `n` counts the tokens drawn so far.
int32_t choose(const std::vector<double>& logits, const Sampling& s, int64_t n) {
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
  if (s.temperature == 0) return order[0];
  size_t kept = s.top_k > 0 ? std::min(order.size(), static_cast<size_t>(s.top_k)) : order.size();
  std::vector<double> p(kept);
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) sum += p[i] = std::exp((logits[static_cast<size_t>(order[i])] - logits[static_cast<size_t>(order[0])]) / s.temperature);
  double reach = 0;
  for (size_t i = 0; i < kept; ++i) {
    reach += p[i] / sum;
    if (reach >= s.top_p) {
      kept = i + 1;
      break;
    }
  }
  double whole = 0;
  for (size_t i = 0; i < kept; ++i) whole += p[i];
  // A counter-based draw: the same seed gives the same text on any number of ranks.
  Philox4 words = philox(static_cast<uint32_t>(n), static_cast<uint32_t>(n >> 32), 0, 0, static_cast<uint32_t>(s.seed), static_cast<uint32_t>(s.seed >> 32));
  double at = unit_interval(words.x0) * whole;
  for (size_t i = 0; i + 1 < kept; ++i)
    if ((at -= p[i]) < 0) return order[i];
  return order[kept - 1];
}

/// A run folder or its checkpoints folder stand for their newest checkpoint.
std::string model_folder(const std::string& path) {
  namespace fs = std::filesystem;
  for (const char* inside : {"", "/checkpoints"}) {
    std::vector<std::string> found;
    std::error_code ec;
    for (const auto& e : fs::directory_iterator(path + inside, ec))
      if (e.is_directory() && is_checkpoint(e.path().string())) found.push_back(e.path().string());
    if (!found.empty()) return *std::max_element(found.begin(), found.end());
  }
  return path;
}

/// A model for inference on this rank alone.
class Model {
 public:
  explicit Model(const std::string& path) : backend_(make_backend("cpu")) {
    std::string folder = is_checkpoint(path) || std::filesystem::exists(path + "/config.json") ? path : model_folder(path);
    bool checkpoint = is_checkpoint(folder);
    if (checkpoint) {
      const std::string config = read_checkpoint_contents(folder).extras.config_json;
      if (config.empty()) throw DataError(folder + ": holds no model config (/config is empty), as the model's settings have no Hugging Face form");
      config_ = parse_hf_config(config, folder + " (config)", nullptr);
    }
    else if (std::filesystem::exists(folder + "/config.json")) config_ = read_hf_config(folder, nullptr);
    else throw DataError(path + " is neither a checkpoint (manifest.json) nor a Hugging Face folder (config.json) nor a run folder with a checkpoint");
    MeshShape one;
    one.kv_heads = config_.kv_heads;
    one.experts = config_.moe.experts;
    axes_ = std::make_unique<Axes>(one, Coordinates{});  // one rank: nothing to send
    layout_ = std::make_unique<Layout>(one, Coordinates{}, false, false);
    params_ = model_params(config_);
    store_ = std::make_unique<ParamStore>(*backend_, params_, *layout_, Precision{DType::f32}, false, 0);
    if (checkpoint) {
      std::vector<StatePiece> pieces;
      for (LocalParam& p : store_->all())
        pieces.push_back({&p.param, "weights", p.piece, static_cast<float*>(backend_->host_begin(p.weight)), true});
      load_checkpoint(MPI_COMM_SELF, folder, pieces, nullptr, Trust::sizes);
      for (LocalParam& p : store_->all()) backend_->host_end(p.weight);
    } else {
      HfFolder files(folder);
      files.check(params_);
      store_->fill([&](const Param& p, const Piece& piece, float* out) { files.read(p, piece, out); });
    }
    ctx_ = std::make_unique<Context>(*backend_, *axes_, *layout_, Precision{DType::f32}, config_.context, Recompute::none);
    stage_ = make_stage(*ctx_, config_, *store_);
  }

  const ModelConfig& config() const { return config_; }

  std::vector<double> logits(const std::vector<int32_t>& tokens) {
    MicroBatch mb = prompt_batch(*ctx_, {tokens}, static_cast<int64_t>(tokens.size()));
    ctx_->batch = &mb;
    Tensor z = stage_->last_logits(*ctx_);
    ctx_->batch = nullptr;
    Host<float> h(*backend_, z);
    return std::vector<double>(h.data(), h.data() + z.size());
  }

 private:
  std::unique_ptr<Backend> backend_;
  ModelConfig config_;
  std::unique_ptr<Axes> axes_;
  std::unique_ptr<Layout> layout_;
  std::vector<Param> params_;
  std::unique_ptr<ParamStore> store_;
  std::unique_ptr<Context> ctx_;
  std::unique_ptr<Stage> stage_;
};

int run(const CommandArgs& args) {
  CLI::App app("Text from a model: a checkpoint, a run folder (its newest checkpoint) or a Hugging Face folder.", "orthant generate");
  std::string path, prompt, tokenizer_name = "bytes";
  int64_t max_tokens = 200;
  Sampling s;
  app.add_option("model", path, "checkpoint, run or Hugging Face folder")->required();
  app.add_option("--prompt", prompt, "text to go on from")->required();
  app.add_option("--tokenizer", tokenizer_name, "bytes")->capture_default_str();
  app.add_option("--max-tokens", max_tokens, "tokens to add")->check(CLI::Range(int64_t{1}, int64_t{1} << 40))->capture_default_str();
  app.add_option("--temperature", s.temperature, "0 = always the likeliest token")->check(CLI::Range(0.0, 1e6))->capture_default_str();
  app.add_option("--top-k", s.top_k, "draw from the k likeliest tokens; 0 = all")->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--top-p", s.top_p, "draw from the likeliest tokens that hold this probability")->check(CLI::Range(0.0, 1.0))->capture_default_str();
  app.add_option("--seed", s.seed, "of the draws")->capture_default_str();
  if (!parse(app, args)) return 0;

  collectively(args.world, [&] {
    if (args.rank != 0) return;  // one rank is enough: the model has no mesh here
    auto tokenizer = make_tokenizer(tokenizer_name);
    Model model(path);
    if (tokenizer->vocab() > model.config().vocab)
      throw UsageError("--tokenizer " + tokenizer_name + " has " + std::to_string(tokenizer->vocab()) + " tokens, the model only " + std::to_string(model.config().vocab));
    std::vector<int32_t> tokens;
    tokenizer->encode(prompt, tokens);
    if (tokens.empty()) throw UsageError("--prompt is empty: at least one token is needed to go on from");
    std::fputs(prompt.c_str(), stdout);
    const auto context = static_cast<size_t>(model.config().context);
    for (int64_t n = 0; n < max_tokens; ++n) {
      // beyond the context the oldest tokens are forgotten
      std::vector<int32_t> window(tokens.end() - static_cast<std::ptrdiff_t>(std::min(tokens.size(), context)), tokens.end());
      std::vector<double> logits = model.logits(window);
      logits.resize(static_cast<size_t>(std::min<int64_t>(model.config().vocab, tokenizer->vocab())));
      int32_t next = choose(logits, s, n);
      if (tokenizer->eod() && next == *tokenizer->eod()) break;
      tokens.push_back(next);
      std::string text;
      tokenizer->decode(&next, 1, text);
      std::fputs(text.c_str(), stdout);
      std::fflush(stdout);
    }
    std::fputs("\n", stdout);
  });
  return 0;
}

const bool added = add_command({"generate", "text from a checkpoint or a Hugging Face folder", true, true, run});

}  // namespace
}  // namespace orthant
