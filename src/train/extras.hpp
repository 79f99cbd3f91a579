// What a run's checkpoints and exports carry beside its tensors: deck, config, tokenizer.
#pragma once

#include "orthant/checkpoint.hpp"
#include "train/session.hpp"

namespace orthant {

/// The extras of a run's checkpoints, but for `mesh` and `source_dtype`, which stay empty.
///
/// `config_json`: the model as a Hugging Face config in F32 (what checkpoints hold), with the further keys, token ids
/// among them, of the config.json it came with: that of `resumed`, else that of model.load. Empty where the model has
/// no such config.
/// `tokenizer_files`: those of `resumed`, else those of model.load. A file named by data.tokenizer takes the place of
/// the one of its kind (tokenizer.model, tokenizer.json) among them.
///
/// `resumed`: the extras of the checkpoint the run goes on from, or nullptr at a first start. With it model.load is
/// not looked at, and a data.tokenizer that cannot be read any more is no error if the checkpoint holds its like.
///
/// Not collective, and reads files: rank 0 alone calls it, once, inside `collectively`; a save takes the extras from
/// rank 0. DataError if a file cannot be read.
CheckpointExtras run_extras(const RunPlan& plan, const CheckpointExtras* resumed);

}  // namespace orthant
