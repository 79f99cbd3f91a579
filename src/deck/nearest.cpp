// What a user may have meant by a key that does not exist.
#include "deck/nearest.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include "deck/registry.hpp"

namespace orthant {

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i)
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::string nearest_of(const std::string& name, const std::vector<std::string>& candidates) {
  const std::string* best = &candidates.front();
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const auto& candidate : candidates) {
    const auto distance = edit_distance(name, candidate);
    if (distance < least) least = distance, best = &candidate;
  }
  return *best;
}

// Names that other programs give to the same things and that no spelling distance would find.
static const std::map<std::string, std::string>& other_names() {
  static const std::map<std::string, std::string> names = {
      {"learning_rate", "optimizer.lr"},
      {"max_lr", "optimizer.lr"},
      {"warmup_iters", "optimizer.warmup_steps"},
      {"lr_scheduler_type", "optimizer.schedule"},
      {"max_grad_norm", "optimizer.clip"},
      {"grad_clip", "optimizer.clip"},
      {"adam_epsilon", "optimizer.eps"},
      {"max_steps", "run.steps"},
      {"max_iters", "run.steps"},
      {"output_dir", "run.output"},
      {"out_dir", "run.output"},
      {"batch_size", "batch.global"},
      {"train_batch_size", "batch.global"},
      {"train_micro_batch_size_per_gpu", "batch.micro"},
      {"per_device_train_batch_size", "batch.micro"},
      {"gradient_accumulation_steps", "batch.global"},
      {"block_size", "data.sequence"},
      {"seq_len", "data.sequence"},
      {"dataset", "data.train"},
      {"n_layer", "model.layers"},
      {"n_layers", "model.layers"},
      {"num_hidden_layers", "model.layers"},
      {"n_embd", "model.hidden"},
      {"dim", "model.hidden"},
      {"n_head", "model.heads"},
      {"n_heads", "model.heads"},
      {"n_kv_heads", "model.kv_heads"},
      {"num_key_value_heads", "model.kv_heads"},
      {"intermediate_size", "model.ffn"},
      {"n_positions", "model.context"},
      {"rms_norm_eps", "model.norm_eps"},
      {"dtype", "precision.compute"},
      {"save_steps", "checkpoint.every"},
      {"save_total_limit", "checkpoint.keep"},
      {"logging_steps", "log.every"},
      {"tensor_parallel_degree", "mesh.tp"},
      {"pipeline_parallel_degree", "mesh.pp"},
      {"context_parallel_degree", "mesh.cp"},
      {"zero_stage", "zero.stage"},
  };
  return names;
}

std::string nearest_key(const std::string& name) {
  const auto dot = name.rfind('.');
  const std::string section = dot == std::string::npos ? "" : name.substr(0, dot);
  const std::string leaf = dot == std::string::npos ? name : name.substr(dot + 1);
  if (const auto known = other_names().find(leaf); known != other_names().end()) return known->second;
  // Distances in quarters. A wrong section with the right leaf is a more likely slip than a wrong leaf that
  // happens to be near, so the leaf counts in full and the section little; the cost of the section is bounded.
  const std::string* best = nullptr;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const auto index : keys_in_reading_order()) {
    const auto& key = all_keys()[index];
    const std::size_t section_cost =
        key.section == section ? 0 : 3 + std::min<std::size_t>(3, edit_distance(section, key.section));
    const std::size_t cost = 4 * edit_distance(leaf, key.leaf) + section_cost;
    if (cost < least) least = cost, best = &key.name;
  }
  return *best;
}

}  // namespace orthant
