// Relations between deck keys, the ranks launched and the sizes of the model. Pure functions: each returns every
// problem it sees in words, none throws, so that one report can hold them all. An empty list is a pass.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "orthant/deck.hpp"
#include "orthant/model_config.hpp"

namespace orthant {

/// Throws one UsageError that lists the problems; nothing happens if there are none.
void throw_problems(const std::string& path, const std::vector<std::string>& problems);

/// Relations inside the deck that need neither ranks nor sizes: data.split, lengths of lists, learning rates,
/// the pipeline's schedule and chunks.
std::vector<std::string> check_values(const Deck& deck);

/// tp x cp x pp x dp = ranks, mesh.order. A mismatch names each factor, the product, the ranks
/// launched, and the legal mesh nearest to the one asked for.
std::vector<std::string> check_mesh(const Deck& deck, int64_t ranks);
/// The data axis: mesh.dp, or the ranks that are left where it is 0; 0 if tp x cp x pp does not divide the ranks.
int64_t data_ranks(const Deck& deck, int64_t ranks);

/// What the mesh cuts must divide: heads, ffn, kv heads, experts, sequence, batch, layers; positions; and the canonical
/// blocks of run.reproducible. `ranks` settles mesh.dp = 0; with ranks = 0 an unsettled dp skips the batch rule.
std::vector<std::string> check_sizes(const Deck& deck, const ModelConfig& model, int64_t ranks = 0);
/// The part of it on experts: over one stage etp x ep x edp = tp x cp x dp, and what ep and etp must divide.
std::vector<std::string> check_experts(const Deck& deck, const ModelConfig& model, int64_t ranks = 0);

/// Keys of precision.fp8_* where they mean nothing, and what does not go with FP8.
std::vector<std::string> check_fp8_keys(const Deck& deck);
/// Sizes of the matrices on a rank that FP8 products, and the blocks of their scales, cannot have. Only for a deck and a model that
/// are otherwise right.
std::vector<std::string> check_fp8_sizes(const Deck& deck, const ModelConfig& model);
/// The same for the backend that device.backend = "auto" turned out to be.
std::vector<std::string> check_fp8_sizes(const Deck& deck, const ModelConfig& model, const std::string& backend);
/// precision.tf32 where nothing would follow it.
std::vector<std::string> check_tf32(const Deck& deck);

/// The model of a deck without model.load, with the defaults of its family.
ModelConfig model_config(const Deck& deck, std::vector<std::string>& problems);
/// The model of a deck with model.load: `from_file` (from its config.json) with the deck's training switches
/// (dropout, init_std, the z-losses, moe.bias_rate, moe.capacity_factor) and, where given, norm_eps, rope, moe.aux_loss
/// and the context of a rotary model. A size, or a switch that decides which parameters exist or how a router chooses,
/// must agree with the file.
ModelConfig merge_loaded(const Deck& deck, const ModelConfig& from_file, std::vector<std::string>& problems);
/// What the user should be told about a model merged so: values that come from config.json and change training.
std::vector<std::string> notes_on_loaded(const Deck& deck, const ModelConfig& model);
/// Writes the settled sizes back, so that the resolved deck shows them.
void set_model_keys(Deck& deck, const ModelConfig& model);

/// Features asked for that this build lacks, each with key and value.
std::vector<std::string> not_built(const Deck& deck);

/// Reads a deck for `ranks` ranks, checks all of the above (of the model only what needs no config.json when
/// model.load is given), settles mesh.dp, and throws one UsageError with every problem. Where model.load is
/// given, merge_loaded and check_sizes remain to be called once config.json is read.
Deck checked_deck(const std::string& text, const std::string& path, const std::vector<std::string>& overrides,
                  int64_t ranks);

}  // namespace orthant
