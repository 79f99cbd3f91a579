// The model a deck describes: defaults of the families, and agreement with a config.json.
#include "orthant/model_config.hpp"

#include "deck/check.hpp"
#include "deck/keys_data.hpp"
#include "deck/keys_model.hpp"
#include "deck/model_mixtures.hpp"
#include "deck/registry.hpp"

namespace orthant {

namespace {

namespace km = keys::model;
namespace kr = keys::rope;

std::string text(int64_t x) { return std::to_string(x); }

/// Which keys each kind of scaling needs and which it may have; anything else given beside it would be ignored.
void check_rope(const Deck& deck, const RopeScaling& rope, bool learned, std::vector<std::string>& problems) {
  const bool linear = rope.type == "linear", llama3 = rope.type == "llama3", yarn = rope.type == "yarn";
  if (learned && rope.type != "default")
    problems.push_back(deck.show(kr::type) + ": gpt2 has learned positions, so there is no rotary scaling");
  struct Use {
    std::size_t key;
    bool present, needed, allowed;
  };
  const Use uses[] = {{kr::factor.index(), deck.has(kr::factor), linear || llama3 || yarn, linear || llama3 || yarn},
                      {kr::low_freq_factor.index(), deck.has(kr::low_freq_factor), llama3, llama3},
                      {kr::high_freq_factor.index(), deck.has(kr::high_freq_factor), llama3, llama3},
                      {kr::original_context.index(), deck.has(kr::original_context), llama3 || yarn, llama3 || yarn},
                      {kr::mscale.index(), deck.has(kr::mscale), false, yarn},
                      {kr::mscale_all_dim.index(), deck.has(kr::mscale_all_dim), false, yarn},
                      {kr::attention_factor.index(), deck.has(kr::attention_factor), false, yarn}};
  for (const auto& use : uses) {
    const auto& info = all_keys()[use.key];
    if (use.needed && !use.present)
      problems.push_back(info.name + " is missing: model.rope.type = " + quoted(rope.type) + " requires it (" +
                         info.help + ")");
    if (!use.allowed && use.present)
      problems.push_back(deck.show(use.key) + " has no effect with model.rope.type = " + quoted(rope.type));
  }
  if (llama3 && deck.has(kr::low_freq_factor) && deck.has(kr::high_freq_factor) &&
      deck[kr::low_freq_factor] >= deck[kr::high_freq_factor])
    problems.push_back(deck.show(kr::low_freq_factor) + " must be below " + deck.show(kr::high_freq_factor));
}

void apply_rope(const Deck& deck, RopeScaling& rope) {
  rope.type = deck[kr::type];
  rope.factor = deck.get_or(kr::factor, rope.factor);
  rope.low_freq_factor = deck.get_or(kr::low_freq_factor, rope.low_freq_factor);
  rope.high_freq_factor = deck.get_or(kr::high_freq_factor, rope.high_freq_factor);
  rope.original_context = deck.get_or(kr::original_context, rope.original_context);
  rope.beta_fast = deck[kr::beta_fast];
  rope.beta_slow = deck[kr::beta_slow];
  rope.mscale = deck.get_or(kr::mscale, rope.mscale);
  rope.mscale_all_dim = deck.get_or(kr::mscale_all_dim, rope.mscale_all_dim);
  rope.attention_factor = deck.get_or(kr::attention_factor, rope.attention_factor);
}

bool any_rope_given(const Deck& deck) {
  const auto& keys = all_keys();
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (keys[i].section == "model.rope" && deck.given(i)) return true;
  return false;
}

/// Relations of the sizes among each other; sizes that are missing (0) were reported before.
void check_shape(const ModelConfig& m, std::vector<std::string>& problems) {
  if (m.heads > 0 && m.kv_heads > 0 && m.heads % m.kv_heads != 0)
    problems.push_back("model.kv_heads = " + text(m.kv_heads) + " does not divide model.heads = " + text(m.heads));
  if (m.family == "gpt2" && m.kv_heads != m.heads && m.heads > 0)
    problems.push_back("model.kv_heads = " + text(m.kv_heads) +
                       ": gpt2 has as many key and value heads as query heads, " + text(m.heads));
  if (m.family == "gpt2" && m.head_dim > 0 && m.heads > 0 && m.head_dim * m.heads != m.hidden)
    problems.push_back("model.head_dim = " + text(m.head_dim) + ": in gpt2 heads x head_dim = " + text(m.heads) +
                       " x " + text(m.head_dim) + " must be model.hidden = " + text(m.hidden));
  if (m.family != "gpt2" && m.family != "deepseek" && m.head_dim % 2 != 0)
    problems.push_back("model.head_dim = " + text(m.head_dim) + ": rotary positions turn pairs, so it must be even");
}

}  // namespace

int64_t size_of(const Deck& deck, const Key<int64_t>& key, std::vector<std::string>& problems) {
  if (deck.has(key)) return deck[key];
  const auto& info = all_keys()[key.index()];
  problems.push_back(info.name + " is missing: " + info.help + " (integer " + key_range(info) +
                     "; or model.load names a Hugging Face folder that has it)");
  return 0;
}

void must_agree(const Deck& deck, std::size_t key, const KeyValue& file, std::vector<std::string>& problems) {
  if (deck.given(key) && deck.value_at(key) != file)
    problems.push_back(deck.show(key) + " contradicts " + quoted(deck[km::load]) + ", whose config.json says " +
                       toml_text(file));
}

ModelConfig model_config(const Deck& deck, std::vector<std::string>& problems) {
  ModelConfig m;
  m.family = deck[km::family];
  const bool gpt2 = m.family == "gpt2";
  m.layers = size_of(deck, km::layers, problems);
  m.hidden = size_of(deck, km::hidden, problems);
  m.heads = size_of(deck, km::heads, problems);
  m.vocab = size_of(deck, km::vocab, problems);
  if (has_mixtures(m.family))
    mixture_of_deck(deck, m, problems);
  else if (gpt2 && !deck.has(km::ffn))
    m.ffn = 4 * m.hidden;
  else
    m.ffn = size_of(deck, km::ffn, problems);
  m.kv_heads = deck.get_or(km::kv_heads, m.heads);
  if (deck.has(km::head_dim)) {
    m.head_dim = deck[km::head_dim];
  } else if (m.family == "deepseek") {
    m.head_dim = m.mla.rope_dim;
  } else if (m.heads > 0 && m.hidden > 0) {
    m.head_dim = m.hidden / m.heads;
    if (m.hidden % m.heads != 0)
      problems.push_back("model.hidden = " + text(m.hidden) + " is not divisible by model.heads = " + text(m.heads) +
                         "; change one of them, or give model.head_dim");
  }
  if (deck.has(km::context))
    m.context = deck[km::context];
  else if (gpt2)
    problems.push_back(
        "model.context is missing: gpt2 learns one vector for each position (integer, at least data.sequence)");
  else
    m.context = deck.get_or(keys::data::sequence, int64_t{0});
  m.norm_eps = deck[km::norm_eps];
  m.rope_theta = deck[km::rope_theta];
  apply_rope(deck, m.rope);
  check_rope(deck, m.rope, gpt2, problems);
  m.tie_embeddings = deck.get_or(km::tie_embeddings, gpt2);
  m.bias = deck.get_or(km::bias, gpt2);
  m.qkv_bias = deck[km::qkv_bias];
  m.dropout = deck[km::dropout];
  m.init_std = deck[km::init_std];
  m.z_loss = deck[km::z_loss];
  check_shape(m, problems);
  check_mixture(deck, m, problems);
  return m;
}

ModelConfig merge_loaded(const Deck& deck, const ModelConfig& from_file, std::vector<std::string>& problems) {
  ModelConfig m = from_file;
  const auto agree = [&](const auto& key, const KeyValue& file) { must_agree(deck, key.index(), file, problems); };
  agree(km::family, m.family);
  agree(km::layers, m.layers);
  agree(km::hidden, m.hidden);
  agree(km::ffn, m.ffn);
  agree(km::heads, m.heads);
  agree(km::kv_heads, m.kv_heads);
  agree(km::head_dim, m.head_dim);
  agree(km::vocab, m.vocab);
  agree(km::tie_embeddings, m.tie_embeddings);
  agree(km::bias, m.bias);
  agree(km::qkv_bias, m.qkv_bias);
  if (m.family == "gpt2")
    agree(km::context, m.context);  // it is the size of a parameter there
  else
    m.context = deck.given(km::context) ? deck[km::context] : m.context;
  if (deck.given(km::norm_eps)) m.norm_eps = deck[km::norm_eps];
  if (deck.given(km::rope_theta)) m.rope_theta = deck[km::rope_theta];
  if (any_rope_given(deck)) {  // the deck's section replaces the file's: half of each would be neither
    m.rope = RopeScaling{};
    apply_rope(deck, m.rope);
    check_rope(deck, m.rope, m.family == "gpt2", problems);
  }
  m.dropout = deck[km::dropout];
  m.init_std = deck[km::init_std];
  m.z_loss = deck[km::z_loss];
  merge_mixture(deck, m, problems);
  check_mixture(deck, m, problems);
  return m;
}

void set_model_keys(Deck& deck, const ModelConfig& m) {
  deck.set(km::family, m.family);
  deck.set(km::layers, m.layers);
  deck.set(km::hidden, m.hidden);
  deck.set(km::ffn, m.ffn);
  deck.set(km::heads, m.heads);
  deck.set(km::kv_heads, m.kv_heads);
  deck.set(km::head_dim, m.head_dim);
  deck.set(km::vocab, m.vocab);
  if (m.context > 0) deck.set(km::context, m.context);
  deck.set(km::norm_eps, m.norm_eps);
  deck.set(km::rope_theta, m.rope_theta);
  deck.set(km::tie_embeddings, m.tie_embeddings);
  deck.set(km::bias, m.bias);
  deck.set(km::qkv_bias, m.qkv_bias);
  set_mixture_keys(deck, m);
  const auto& rope = m.rope;
  const bool llama3 = rope.type == "llama3", yarn = rope.type == "yarn";
  deck.set(kr::type, rope.type);
  if (rope.type != "default") deck.set(kr::factor, rope.factor);
  if (llama3) deck.set(kr::low_freq_factor, rope.low_freq_factor);
  if (llama3) deck.set(kr::high_freq_factor, rope.high_freq_factor);
  if ((llama3 || yarn) && rope.original_context > 0) deck.set(kr::original_context, rope.original_context);
  deck.set(kr::beta_fast, rope.beta_fast);
  deck.set(kr::beta_slow, rope.beta_slow);
  if (yarn && rope.mscale > 0) deck.set(kr::mscale, rope.mscale);
  if (yarn && rope.mscale_all_dim > 0) deck.set(kr::mscale_all_dim, rope.mscale_all_dim);
  if (yarn && rope.attention_factor > 0) deck.set(kr::attention_factor, rope.attention_factor);
}

}  // namespace orthant
