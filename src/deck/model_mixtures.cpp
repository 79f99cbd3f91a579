// See model_mixtures.hpp.
#include "deck/model_mixtures.hpp"

#include <utility>

#include "deck/check.hpp"
#include "deck/keys_model.hpp"
#include "deck/registry.hpp"

namespace orthant {

namespace {

namespace km = keys::model;
namespace ke = keys::moe;
namespace kl = keys::mla;

std::string text(int64_t x) { return std::to_string(x); }

/// Any value that is not the default asks for the feature. (Defaults may be spelt out, as in a resolved deck.)
void refuse_section(const Deck& deck, const std::string& section, const std::string& why,
                    std::vector<std::string>& problems) {
  for (const auto index : keys_in_reading_order()) {
    const auto& key = all_keys()[index];
    if (key.section != section || !deck.given(index)) continue;
    if (key.derived.empty() && deck.value_at(index) == key.value) continue;
    problems.push_back(deck.show(index) + ": " + why);
  }
}

void check_router(const MoeConfig& e, std::vector<std::string>& problems) {
  if (e.experts < 1 || e.top_k < 1 || e.groups < 1 || e.top_groups < 1) return;  // said before
  const std::string experts = "model.moe.experts = " + text(e.experts);
  if (e.top_k > e.experts) {
    problems.push_back("model.moe.top_k = " + text(e.top_k) + " is above " + experts);
    return;
  }
  if (e.experts % e.groups != 0) {
    problems.push_back("model.moe.groups = " + text(e.groups) + " does not divide " + experts);
    return;
  }
  if (e.top_groups > e.groups) {
    problems.push_back("model.moe.top_groups = " + text(e.top_groups) +
                       " is above model.moe.groups = " + text(e.groups));
    return;
  }
  const int64_t each = e.experts / e.groups;
  if (e.top_k > e.top_groups * each)
    problems.push_back("model.moe.top_k = " + text(e.top_k) + ": model.moe.top_groups = " + text(e.top_groups) +
                       " groups of experts / groups = " + text(e.experts) + " / " + text(e.groups) + " = " +
                       text(each) + " leave a choice of " + text(e.top_groups * each) + " experts");
}

void check_deepseek(const ModelConfig& m, std::vector<std::string>& problems) {
  if (m.kv_heads != m.heads && m.heads > 0)
    problems.push_back("model.kv_heads = " + text(m.kv_heads) +
                       ": latent attention (deepseek) has a key and a value for each query head, " + text(m.heads));
  if (m.mla.rope_dim % 2 != 0)
    problems.push_back("model.mla.rope_dim = " + text(m.mla.rope_dim) +
                       ": rotary positions turn pairs, so it must be even");
  else if (m.head_dim != m.mla.rope_dim && m.mla.rope_dim > 0)
    problems.push_back("model.head_dim = " + text(m.head_dim) +
                       ": in deepseek it is the rotary width, model.mla.rope_dim = " + text(m.mla.rope_dim) +
                       "; leave it out (a query is nope_dim + rope_dim wide)");
}

}  // namespace

bool has_mixtures(const std::string& family) { return family == "mixtral" || family == "deepseek"; }

void mixture_of_deck(const Deck& deck, ModelConfig& m, std::vector<std::string>& problems) {
  const bool deepseek = m.family == "deepseek";
  MoeConfig& e = m.moe;
  e.experts = size_of(deck, ke::experts, problems);
  e.top_k = size_of(deck, ke::top_k, problems);
  // the one width of a mixtral may go by either name
  e.ffn = !deepseek && !deck.has(ke::ffn) && deck.has(km::ffn) ? deck[km::ffn] : size_of(deck, ke::ffn, problems);
  e.shared_experts = deck[ke::shared_experts];
  e.first_dense_layers = deck[ke::first_dense_layers];
  e.sigmoid = deck.has(ke::router) ? deck[ke::router] == "sigmoid" : deepseek;
  e.groups = deck[ke::groups];
  e.top_groups = deck[ke::top_groups];
  e.norm_topk = deck[ke::norm_topk];
  e.scale = deck[ke::scale];
  e.aux_loss = deck[ke::aux_loss];
  e.z_loss = deck[ke::z_loss];
  e.bias_rate = deck[ke::bias_rate];
  e.capacity_factor = deck[ke::capacity_factor];
  if (deck.has(km::ffn))
    m.ffn = deck[km::ffn];
  else
    m.ffn = deepseek && e.first_dense_layers > 0 ? size_of(deck, km::ffn, problems) : e.ffn;
  if (!deepseek) return;
  m.mla.q_lora_rank = deck.get_or(kl::q_lora_rank, int64_t{0});
  m.mla.kv_lora_rank = size_of(deck, kl::kv_lora_rank, problems);
  m.mla.nope_dim = size_of(deck, kl::nope_dim, problems);
  m.mla.rope_dim = size_of(deck, kl::rope_dim, problems);
  m.mla.v_dim = size_of(deck, kl::v_dim, problems);
  m.mla.rope_interleave = deck[kl::rope_interleave];
}

void merge_mixture(const Deck& deck, ModelConfig& m, std::vector<std::string>& problems) {
  if (!has_mixtures(m.family)) return;
  const auto agree = [&](const auto& key, const KeyValue& file) { must_agree(deck, key.index(), file, problems); };
  MoeConfig& e = m.moe;
  agree(ke::experts, e.experts);
  agree(ke::top_k, e.top_k);
  agree(ke::ffn, e.ffn);
  agree(ke::shared_experts, e.shared_experts);
  agree(ke::first_dense_layers, e.first_dense_layers);
  agree(ke::router, std::string(e.sigmoid ? "sigmoid" : "softmax"));
  agree(ke::groups, e.groups);
  agree(ke::top_groups, e.top_groups);
  agree(ke::norm_topk, e.norm_topk);
  agree(ke::scale, e.scale);
  if (deck.given(ke::aux_loss)) e.aux_loss = deck[ke::aux_loss];
  e.z_loss = deck[ke::z_loss];
  e.bias_rate = deck[ke::bias_rate];
  e.capacity_factor = deck[ke::capacity_factor];
  if (m.family != "deepseek") return;
  agree(kl::q_lora_rank, m.mla.q_lora_rank);
  agree(kl::kv_lora_rank, m.mla.kv_lora_rank);
  agree(kl::nope_dim, m.mla.nope_dim);
  agree(kl::rope_dim, m.mla.rope_dim);
  agree(kl::v_dim, m.mla.v_dim);
  agree(kl::rope_interleave, m.mla.rope_interleave);
}

void check_mixture(const Deck& deck, const ModelConfig& m, std::vector<std::string>& problems) {
  if (!has_mixtures(m.family))
    refuse_section(deck, "model.moe", m.family + " has no experts; the families mixtral and deepseek have", problems);
  if (m.family != "deepseek")
    refuse_section(deck, "model.mla", m.family + " has no latent attention; the family deepseek has", problems);
  if (!has_mixtures(m.family)) return;
  for (const auto& [set, name] : {std::pair{m.bias, "model.bias"}, std::pair{m.qkv_bias, "model.qkv_bias"}})
    if (set) problems.push_back(std::string(name) + " = true: " + m.family + " has no biases; false is right");
  check_router(m.moe, problems);
  if (m.layers > 0 && m.moe.first_dense_layers > m.layers)
    problems.push_back("model.moe.first_dense_layers = " + text(m.moe.first_dense_layers) +
                       " is above model.layers = " + text(m.layers));
  if (m.moe.bias_rate > 0 && !m.selection_bias())
    problems.push_back(deck.show(ke::bias_rate) + ": the routers of " + m.family +
                       " have no selection bias; those of deepseek have");
  if (m.family == "deepseek") {
    check_deepseek(m, problems);
    return;
  }
  if (m.moe.shared_experts > 0)
    problems.push_back(deck.show(ke::shared_experts) + ": mixtral has no shared experts; deepseek has");
  if (m.moe.first_dense_layers > 0)
    problems.push_back(deck.show(ke::first_dense_layers) +
                       ": in mixtral every layer is a mixture; deepseek may begin with dense ones");
}

void set_mixture_keys(Deck& deck, const ModelConfig& m) {
  const MoeConfig& e = m.moe;
  if (e.experts > 0) {
    deck.set(ke::experts, e.experts);
    deck.set(ke::top_k, e.top_k);
    deck.set(ke::ffn, e.ffn);
    deck.set(ke::shared_experts, e.shared_experts);
    deck.set(ke::first_dense_layers, e.first_dense_layers);
    deck.set(ke::router, std::string(e.sigmoid ? "sigmoid" : "softmax"));
    deck.set(ke::groups, e.groups);
    deck.set(ke::top_groups, e.top_groups);
    deck.set(ke::norm_topk, e.norm_topk);
    deck.set(ke::scale, e.scale);
    deck.set(ke::aux_loss, e.aux_loss);
  }
  if (m.mla.kv_lora_rank > 0) {
    if (m.mla.q_lora_rank > 0) deck.set(kl::q_lora_rank, m.mla.q_lora_rank);
    deck.set(kl::kv_lora_rank, m.mla.kv_lora_rank);
    deck.set(kl::nope_dim, m.mla.nope_dim);
    deck.set(kl::rope_dim, m.mla.rope_dim);
    deck.set(kl::v_dim, m.mla.v_dim);
    deck.set(kl::rope_interleave, m.mla.rope_interleave);
  }
}

std::vector<std::string> notes_on_loaded(const Deck& deck, const ModelConfig& m) {
  if (m.moe.aux_loss <= 0 || deck.given(ke::aux_loss)) return {};
  return {"model.moe.aux_loss = " + number_text(m.moe.aux_loss) +
          ": from config.json, router_aux_loss_coef x top_k / mixture layers, as output_router_logits is true there; "
          "a value in the deck wins"};
}

}  // namespace orthant
