// Do the cuts of the mesh go through the sizes of the model and of the batch without a remainder?
#include <algorithm>
#include <numeric>
#include <sstream>

#include "deck/check.hpp"
#include "deck/keys_batch.hpp"
#include "deck/keys_checkpoint.hpp"
#include "deck/keys_comm.hpp"
#include "deck/keys_context.hpp"
#include "deck/keys_data.hpp"
#include "deck/keys_guard.hpp"
#include "deck/keys_mesh.hpp"
#include "deck/keys_model.hpp"
#include "deck/keys_optimizer.hpp"
#include "deck/keys_pipeline.hpp"
#include "deck/keys_precision.hpp"
#include "deck/keys_run.hpp"
#include "deck/keys_zero.hpp"
#include "train/loss_scale.hpp"

namespace orthant {

namespace {

std::string text(int64_t x) { return std::to_string(x); }

struct Cuts {
  int64_t tp, cp, pp, dp, heads_by, ffn_by;
};

/// An inner width of feed-forward layers and the axis that cuts it.
struct Width {
  std::string name, axis;
  int64_t size, by;
};

/// Those that the model has, but for the experts' own, whose axis check_experts looks at.
std::vector<Width> widths(const ModelConfig& m, const Cuts& cut) {
  std::vector<Width> out;
  const bool dense = m.moe.experts == 0 || m.moe.first_dense_layers > 0;
  if (dense && m.ffn > 0) out.push_back({"model.ffn", "tp", m.ffn, cut.ffn_by});
  int64_t shared = 0;
  if (m.moe.shared_experts > 0 && m.moe.ffn > 0 && !__builtin_mul_overflow(m.moe.shared_experts, m.moe.ffn, &shared))
    out.push_back({"the shared width, model.moe.shared_experts x model.moe.ffn", "tp", shared, cut.ffn_by});
  return out;
}

void check_heads(const Deck& deck, const ModelConfig& m, const Cuts& cut, std::vector<std::string>& out) {
  const bool all_to_all = cut.cp > 1 && deck[keys::context::method] == "all_to_all";
  const int64_t by = all_to_all ? cut.heads_by * cut.cp : cut.heads_by;
  const std::string axes = all_to_all ? "tp x cp = " + text(cut.heads_by) + " x " + text(cut.cp) + " = " + text(by) +
                                            " (context.method = \"all_to_all\")"
                                      : "tp = " + text(by);
  if (m.heads > 0 && m.heads % by != 0)
    out.push_back("model.heads = " + text(m.heads) + " is not divisible by " + axes);
  const auto uneven = [&](int64_t parts) { return m.kv_heads % parts != 0 && parts % m.kv_heads != 0; };
  if (m.kv_heads > 0 && (uneven(by) || uneven(cut.heads_by)))  // 3 heads fit 2 x 3 ranks, not tp = 2
    out.push_back("model.kv_heads = " + text(m.kv_heads) + " and " + (uneven(by) ? axes : "tp = " + text(cut.heads_by)) +
                  ": one must divide the other (then each kv head is held by tp / kv_heads ranks)");
  for (const Width& w : widths(m, cut))
    if (w.size % w.by != 0)
      out.push_back(w.name + " = " + text(w.size) + " is not divisible by " + w.axis + " = " + text(w.by));
}

void check_sequence(const Deck& deck, const ModelConfig& m, const Cuts& cut, std::vector<std::string>& out) {
  if (!deck.has(keys::data::sequence) || deck[keys::data::sequence] < 1) return;
  const int64_t sequence = deck[keys::data::sequence];
  if (m.family == "gpt2" && m.context > 0 && sequence > m.context)
    out.push_back("data.sequence = " + text(sequence) +
                  " is longer than the table of learned positions, model.context = " + text(m.context));
  if (cut.cp > 1 && sequence % (2 * cut.cp) != 0) {
    const int64_t unit = 2 * cut.cp, below = sequence / unit * unit;
    out.push_back("data.sequence = " + text(sequence) + " is not divisible by 2 x cp = " + text(unit) +
                  "; nearest: " + (below > 0 ? text(below) + " or " : "") + text(below + unit));
  }
  if (deck[keys::mesh::sequence_parallel] && sequence % cut.cp == 0 && sequence / cut.cp % cut.tp != 0)
    out.push_back("mesh.sequence_parallel: data.sequence / cp = " + text(sequence) + " / " + text(cut.cp) + " = " +
                  text(sequence / cut.cp) + " is not divisible by tp = " + text(cut.tp));
}

void check_batch(const Deck& deck, const Cuts& cut, std::vector<std::string>& out) {
  if (!deck.has(keys::batch::global) || cut.dp < 1) return;
  const int64_t global = deck[keys::batch::global], micro = deck[keys::batch::micro];
  if (global < 1 || micro < 1) return;
  int64_t unit = 0;
  if (__builtin_mul_overflow(micro, cut.dp, &unit) || global % unit != 0) {
    const int64_t below = unit > 0 ? global / unit * unit : 0;
    std::string problem = "batch.global = " + text(global) +
                          " is not divisible by batch.micro x dp = " + text(micro) + " x " + text(cut.dp) +
                          (unit > 0 ? " = " + text(unit) : "");
    if (unit > 0)
      problem +=
          "; nearest legal batch.global: " + (below > 0 ? text(below) + " or " : std::string()) + text(below + unit);
    if (global % cut.dp == 0) {
      const int64_t fits = std::gcd(global / cut.dp, micro);
      if (fits != micro) problem += "; or batch.micro = " + text(fits);
    } else {
      problem += "; dp = " + text(cut.dp) + " alone does not divide it";
    }
    out.push_back(problem);
  }
}

void check_zero(const Deck& deck, const Cuts& cut, std::vector<std::string>& out) {
  const int64_t shard = deck[keys::zero::shard];
  if (shard == 0) return;
  if (deck[keys::zero::stage] == 0)
    out.push_back("zero.shard = " + text(shard) + ": nothing is sharded with zero.stage = 0");
  if (cut.dp >= 1 && cut.dp * cut.cp % shard != 0)
    out.push_back("zero.shard = " + text(shard) + " does not divide dp x cp = " + text(cut.dp) + " x " + text(cut.cp) +
                  " = " + text(cut.dp * cut.cp));
}

void check_layers(const Deck& deck, const ModelConfig& m, const Cuts& cut, std::vector<std::string>& out) {
  const int64_t chunks_each = std::max<int64_t>(deck[keys::pipeline::virtual_stages], 1);
  const int64_t chunks = cut.pp * chunks_each;
  const std::string product =
      "pp x pipeline.virtual_stages = " + text(cut.pp) + " x " + text(chunks_each) + " = " + text(chunks);
  if (m.layers > 0 && m.layers + 2 < chunks)
    out.push_back("model.layers = " + text(m.layers) + ": with embedding and head that is " + text(m.layers + 2) +
                  " pieces for " + product + " chunks; at least one each is needed");
  if (!deck.has(keys::pipeline::stage_layers)) return;
  const auto& stages = deck[keys::pipeline::stage_layers];
  const int64_t sum = std::accumulate(stages.begin(), stages.end(), int64_t{0});
  if (static_cast<int64_t>(stages.size()) != chunks)
    out.push_back("pipeline.stage_layers has " + text(static_cast<int64_t>(stages.size())) + " entries; there are " +
                  product + " chunks");
  for (std::size_t i = 1; i + 1 < stages.size(); ++i)
    if (stages[i] == 0)
      out.push_back("pipeline.stage_layers: entry " + text(static_cast<int64_t>(i + 1)) +
                    " is 0; only the first chunk (with the embedding) and the last (with the head) may have no block");
  if (m.layers > 0 && sum != m.layers)
    out.push_back("pipeline.stage_layers adds up to " + text(sum) + " blocks; model.layers = " + text(m.layers));
}

/// "model.heads is missing" says nothing new where the value of model.heads was refused, or where it was probably
/// meant by an unknown key.
bool is_echo(const std::string& problem, const std::vector<std::string>& before) {
  const auto end = problem.find(" is missing");
  if (end == std::string::npos) return false;
  const std::string key = problem.substr(0, end);
  return std::any_of(before.begin(), before.end(), [&](const std::string& other) {
    return other.find(key + " = ") != std::string::npos ||
           other.find("did you mean " + key + "?") != std::string::npos;
  });
}

/// A sum has the same bits on every mesh only if no cut goes through a canonical block: one head, ceil(ffn / 8)
/// columns, a sixteenth of the vocabulary, ceil(sequence / 16) tokens.
void check_reproducible(const Deck& deck, const ModelConfig& m, const Cuts& cut, std::vector<std::string>& out) {
  if (!deck[keys::run::reproducible]) return;
  const std::string start = "run.reproducible = true: ";
  if (deck[keys::precision::compute] == "fp16")
    out.push_back(start + "exact sums have places for numbers below 2^18, which scaled fp16 gradients leave; use bf16 or fp32");
  if (deck[keys::comm::chunks] > 1)
    out.push_back(start + deck.show(keys::comm::chunks) + ": a product's bits may depend on how many rows it has; take comm.chunks = 1");
  std::vector<Width> cut_widths = widths(m, cut);
  if (m.moe.experts > 0 && m.moe.ffn > 0 && deck[keys::mesh::etp] >= 1)
    cut_widths.push_back({"model.moe.ffn", "etp", m.moe.ffn, deck[keys::mesh::etp]});
  for (const Width& w : cut_widths) {
    if (w.by < 2 || w.size % w.by != 0) continue;
    const int64_t block = (w.size + 7) / 8, part = w.size / w.by;
    if (part % block != 0)
      out.push_back(start + w.axis + " = " + text(w.by) + " gives a rank " + text(part) + " of " + w.name + " = " +
                    text(w.size) + " and cuts inside a canonical block of ceil(ffn / 8) = " + text(block));
  }
  if (cut.tp > 16 && deck[keys::layout::vocab] == "tp")
    out.push_back(start + "tp = " + text(cut.tp) +
                  " cuts inside a canonical block of the vocabulary; there are 16, so tp is at most 16");
  if (!deck.has(keys::data::sequence) || deck[keys::data::sequence] < 1) return;
  const int64_t sequence = deck[keys::data::sequence], block = (sequence + 15) / 16;
  const auto cuts_block = [&](int64_t pieces, const std::string& what) {
    if (pieces > 1 && sequence % pieces == 0 && sequence / pieces % block != 0)
      out.push_back(start + what + " cuts data.sequence = " + text(sequence) + " into pieces of " +
                    text(sequence / pieces) +
                    " tokens, inside a canonical block of ceil(sequence / 16) = " + text(block));
  };
  if (cut.cp > 1) cuts_block(2 * cut.cp, "cp = " + text(cut.cp) + " (2 x cp pieces)");
  if (deck[keys::mesh::sequence_parallel] && cut.tp > 1)
    cuts_block(cut.cp * cut.tp, "sequence_parallel over cp x tp = " + text(cut.cp) + " x " + text(cut.tp));
}

bool is_split(const std::string& split) {
  std::istringstream in(split);
  double share = 0, sum = 0;
  int parts = 0;
  for (char comma = ','; comma == ',' && in >> share; ++parts) {
    if (!(share >= 0)) return false;
    sum += share;
    if (!(in >> comma)) return ++parts <= 3 && sum > 0;
    if (comma != ',') return false;
  }
  return false;
}

}  // namespace

std::vector<std::string> check_sizes(const Deck& deck, const ModelConfig& model, int64_t ranks) {
  std::vector<std::string> out;
  Cuts cut{deck[keys::mesh::tp], deck[keys::mesh::cp], deck[keys::mesh::pp], data_ranks(deck, ranks), 1, 1};
  if (cut.tp < 1 || cut.cp < 1 || cut.pp < 1) return out;  // check_mesh says so
  if (deck[keys::layout::heads] == "tp") cut.heads_by = cut.tp;
  if (deck[keys::layout::ffn] == "tp") cut.ffn_by = cut.tp;
  check_heads(deck, model, cut, out);
  for (auto& problem : check_experts(deck, model, ranks)) out.push_back(std::move(problem));
  check_sequence(deck, model, cut, out);
  check_batch(deck, cut, out);
  check_layers(deck, model, cut, out);
  check_zero(deck, cut, out);
  check_reproducible(deck, model, cut, out);
  if (out.empty()) out = check_fp8_sizes(deck, model);
  return out;
}

namespace {

/// A rollback that could not happen is no protection.
void check_guard(const Deck& deck, std::vector<std::string>& out) {
  namespace kg = keys::guard;
  if (deck[kg::spike_factor] > 0 && deck[kg::spike_factor] <= 1)
    out.push_back(deck.show(kg::spike_factor) + ": every other step lies above the median; give more than 1 (2 to 10 are usual), or 0");
  if (deck[kg::skip_data] && deck[kg::rollback_after] == 0)
    out.push_back(deck.show(kg::skip_data) + " means the samples before a rollback: set guard.rollback_after too");
  if (deck[kg::rollback_after] == 0) return;
  if (deck[keys::checkpoint::every] == 0)
    out.push_back(deck.show(kg::rollback_after) + " needs checkpoints to go back to: set checkpoint.every");
  if (deck[kg::rollback_after] > deck[kg::max_skips])
    out.push_back(deck.show(kg::rollback_after) + " is never reached: " + deck.show(kg::max_skips) + " ends the run before");
}

}  // namespace

std::vector<std::string> check_values(const Deck& deck) {
  namespace kd = keys::data;
  namespace ko = keys::optimizer;
  namespace kp = keys::pipeline;
  std::vector<std::string> out;
  if (!is_split(deck[kd::split]))
    out.push_back(deck.show(kd::split) +
                  ": expects up to three shares, as in \"969,30,1\", none negative and not all 0");
  const std::size_t prefixes = deck.has(kd::train) ? deck[kd::train].size() : 0;
  if (deck.has(kd::train) && prefixes == 0) out.push_back(deck.show(kd::train) + ": expects at least one prefix");
  if (deck.has(kd::weights) && prefixes > 0) {
    const auto& weights = deck[kd::weights];
    if (weights.size() != prefixes)
      out.push_back("data.weights has " + std::to_string(weights.size()) + " values, data.train has " +
                    std::to_string(prefixes) + " prefixes");
    if (std::accumulate(weights.begin(), weights.end(), 0.0) <= 0)
      out.push_back(deck.show(kd::weights) + ": one must be above 0");
  }
  if (!deck[kd::mask].empty() && prefixes > 0 && deck[kd::mask].size() != prefixes)
    out.push_back("data.mask has " + std::to_string(deck[kd::mask].size()) + " prefixes, data.train has " +
                  std::to_string(prefixes));
  if (!deck.has(kd::eod) && deck[kd::tokenizer].empty())
    for (const auto& key : {kd::document_mask, kd::reset_positions})
      if (deck[key])
        out.push_back(deck.show(key) +
                      ": documents are told apart by the token that ends them; set data.eod, or data.tokenizer to take "
                      "it from");
  const auto& schedule = deck[ko::schedule];
  if (schedule != "constant" && deck[ko::min_lr] > deck[ko::lr])
    out.push_back(deck.show(ko::min_lr) + " is above " + deck.show(ko::lr));
  const auto& order = deck[kp::schedule];
  const int64_t chunks = deck[kp::virtual_stages];
  if (chunks > 1 && (order == "1f1b" || order == "gpipe"))
    out.push_back(deck.show(kp::virtual_stages) +
                  " needs pipeline.schedule = \"interleaved\", \"zero_bubble\" or a CSV file, not \"" + order + "\"");
  if (chunks > 2 && order == "zero_bubble")
    out.push_back(deck.show(kp::virtual_stages) + ": zero_bubble has 1, or 2 for its V form");
  check_guard(deck, out);
  for (auto& problem : check_fp8_keys(deck)) out.push_back(std::move(problem));
  for (auto& problem : check_tf32(deck)) out.push_back(std::move(problem));
  if (const std::string problem = loss_scale_problem(deck); !problem.empty()) out.push_back(problem);
  return out;
}

Deck checked_deck(const std::string& text, const std::string& path, const std::vector<std::string>& overrides,
                  int64_t ranks) {
  std::vector<std::string> problems;
  Deck deck = Deck::parse(text, path, overrides, {}, problems);
  const auto add = [&](const std::vector<std::string>& more) {
    problems.insert(problems.end(), more.begin(), more.end());
  };
  add(check_values(deck));
  add(not_built(deck));
  add(check_mesh(deck, ranks));
  if (deck[keys::model::load].empty()) {
    std::vector<std::string> shape;
    const ModelConfig model = model_config(deck, shape);
    for (const auto& problem : shape)
      if (!is_echo(problem, problems)) problems.push_back(problem);
    add(check_sizes(deck, model, ranks));
  }
  throw_problems(path, problems);
  deck.set(keys::mesh::dp, data_ranks(deck, ranks));
  return deck;
}

}  // namespace orthant
