// Megatron-LM options in terms of our keys. Rows of one option stand together; a row with a value says what that
// value becomes. Meanings as in Megatron-LM's argument parser (megatron/training/arguments.py).
#include "deck/megatron.hpp"

#include <algorithm>

namespace orthant {

const std::vector<MegatronOption>& megatron_options() {
  static const std::vector<MegatronOption> rows = {
      // the mesh
      {"tensor-model-parallel-size", "", "mesh.tp", "", ""},
      {"pipeline-model-parallel-size", "", "mesh.pp", "", ""},
      {"context-parallel-size", "", "mesh.cp", "", ""},
      {"expert-model-parallel-size", "", "mesh.ep", "", ""},
      {"expert-tensor-parallel-size", "", "mesh.etp", "",
       "1 or the same as mesh.tp; Megatron's default is tp, ours 1"},
      {"sequence-parallel", "", "mesh.sequence_parallel", "true", ""},
      {"data-parallel-size", "", "mesh.dp", "", "0 or absent = the ranks that are left"},
      {"use-tp-pp-dp-mapping", "", "mesh.order", "\"tp-cp-pp-dp\"",
       "already our default; Megatron's own is tp-cp-dp-pp"},
      {"cp-comm-type", "p2p", "context.method", "\"ring\"", ""},
      {"cp-comm-type", "all_gather", "context.method", "\"all_gather\"", ""},
      {"cp-comm-type", "a2a", "context.method", "\"all_to_all\"", ""},
      {"cp-comm-type", "a2a+p2p", "", "", "no mixed form; context.method is ring, all_gather or all_to_all"},
      {"num-layers-per-virtual-pipeline-stage", "", "pipeline.virtual_stages", "",
       "ours counts chunks of a rank: layers / (pp x that number); with pipeline.schedule = \"interleaved\""},
      {"num-virtual-stages-per-pipeline-rank", "", "pipeline.virtual_stages", "",
       "with pipeline.schedule = \"interleaved\""},
      {"virtual-pipeline-model-parallel-size", "", "pipeline.virtual_stages", "",
       "with pipeline.schedule = \"interleaved\""},
      {"decoder-first-pipeline-num-layers", "", "pipeline.stage_layers", "", "list the blocks of every stage"},
      {"decoder-last-pipeline-num-layers", "", "pipeline.stage_layers", "", "list the blocks of every stage"},
      {"pipeline-model-parallel-layout", "", "pipeline.stage_layers", "", "list the blocks of every stage"},
      {"account-for-embedding-in-pipeline-split", "", "", "", "always: embedding and head count as a block each"},
      {"account-for-loss-in-pipeline-split", "", "", "", "always: embedding and head count as a block each"},
      {"use-distributed-optimizer", "", "zero.stage", "1", ""},
      {"data-parallel-sharding-strategy", "no_shard", "zero.stage", "0", ""},
      {"data-parallel-sharding-strategy", "optim", "zero.stage", "1", ""},
      {"data-parallel-sharding-strategy", "optim_grads", "zero.stage", "2", ""},
      {"data-parallel-sharding-strategy", "optim_grads_params", "zero.stage", "3", ""},
      {"use-torch-fsdp2", "", "zero.stage", "3", ""},
      {"use-megatron-fsdp", "", "zero.stage", "3", ""},
      {"num-distributed-optimizer-instances", "", "zero.shard", "",
       "ours is the ranks of one instance: dp x cp / that number"},
      {"ddp-bucket-size", "", "zero.bucket", "", "elements"},
      {"overlap-grad-reduce", "", "comm.overlap", "true", "the default"},
      {"overlap-param-gather", "", "comm.overlap", "true", "the default"},
      {"tp-comm-overlap", "", "comm.chunks", "4", "pieces of a product; any number above 1"},
      {"distributed-backend", "nccl", "comm.transport", "\"nccl\"", ""},
      {"distributed-backend", "gloo", "comm.transport", "\"mpi\"", ""},
      {"distributed-timeout-minutes", "", "guard.watchdog_s", "", "seconds: times 60"},
      // the model
      {"num-layers", "", "model.layers", "", ""},
      {"hidden-size", "", "model.hidden", "", ""},
      {"ffn-hidden-size", "", "model.ffn", "", ""},
      {"num-attention-heads", "", "model.heads", "", ""},
      {"group-query-attention", "", "model.kv_heads", "", "give the number of groups"},
      {"num-query-groups", "", "model.kv_heads", "", ""},
      {"kv-channels", "", "model.head_dim", "", ""},
      {"max-position-embeddings", "", "model.context", "", ""},
      {"vocab-size", "", "model.vocab", "", "the true size"},
      {"padded-vocab-size", "", "model.vocab", "", "the true size: padding is never seen"},
      {"make-vocab-size-divisible-by", "", "", "",
       "not needed: any vocabulary works on any mesh; model.vocab is its true size"},
      {"norm-epsilon", "", "model.norm_eps", "", ""},
      {"layernorm-epsilon", "", "model.norm_eps", "", ""},
      {"rotary-base", "", "model.rope_theta", "", ""},
      {"rotary-seq-len-interpolation-factor", "", "model.rope.factor", "", "with model.rope.type = \"linear\""},
      {"use-rope-scaling", "", "model.rope.type", "\"llama3\"",
       "with factor, low_freq_factor = 1, high_freq_factor = 4, original_context = 8192"},
      {"rope-scaling-factor", "", "model.rope.factor", "", "with model.rope.type = \"llama3\""},
      {"mscale", "", "model.rope.mscale", "", "yarn"},
      {"mscale-all-dim", "", "model.rope.mscale_all_dim", "", "yarn"},
      {"position-embedding-type", "learned_absolute", "model.family", "\"gpt2\"", "positions belong to the family"},
      {"position-embedding-type", "rope", "model.family", "\"llama\"", "positions belong to the family"},
      {"position-embedding-type", "yarn", "model.rope.type", "\"yarn\"", ""},
      {"rotary-interleaved", "", "model.mla.rope_interleave", "true",
       "the default of deepseek; the other families always turn halves"},
      {"swiglu", "", "model.family", "\"llama\"", "the activation belongs to the family"},
      {"normalization", "LayerNorm", "model.family", "\"gpt2\"", "the norm belongs to the family"},
      {"normalization", "RMSNorm", "model.family", "\"llama\"", "the norm belongs to the family"},
      {"qk-layernorm", "", "model.family", "\"qwen3\"", "norms of queries and keys belong to the family"},
      {"untie-embeddings-and-output-weights", "", "model.tie_embeddings", "false", ""},
      {"disable-bias-linear", "", "model.bias", "false", ""},
      {"add-qkv-bias", "", "model.qkv_bias", "true", ""},
      {"hidden-dropout", "", "model.dropout", "", "one value for all sites; Megatron's default is 0.1, ours 0"},
      {"attention-dropout", "", "model.dropout", "", "one value for all sites; Megatron's default is 0.1, ours 0"},
      {"init-method-std", "", "model.init_std", "", ""},
      {"num-experts", "", "model.moe.experts", "", ""},
      {"moe-router-topk", "", "model.moe.top_k", "", ""},
      {"moe-ffn-hidden-size", "", "model.moe.ffn", "", ""},
      {"moe-shared-expert-intermediate-size", "", "model.moe.shared_experts", "",
       "ours counts experts of width model.moe.ffn: divide by it"},
      {"moe-layer-freq", "", "model.moe.first_dense_layers", "", "only first blocks can stay dense"},
      {"moe-router-score-function", "softmax", "model.moe.router", "\"softmax\"", ""},
      {"moe-router-score-function", "sigmoid", "model.moe.router", "\"sigmoid\"", ""},
      {"moe-router-pre-softmax", "", "model.moe.norm_topk", "false",
       "softmax over all experts, not renormalised; true gives Megatron's default, a softmax of the chosen"},
      {"moe-router-dtype", "", "", "", "not needed: routers always work in fp32"},
      {"moe-router-num-groups", "", "model.moe.groups", "", ""},
      {"moe-router-group-topk", "", "model.moe.top_groups", "", ""},
      {"moe-router-topk-scaling-factor", "", "model.moe.scale", "", ""},
      {"moe-router-load-balancing-type", "seq_aux_loss", "model.moe.aux_loss", "",
       "give the coefficient; the loss is per sequence"},
      {"moe-router-load-balancing-type", "aux_loss", "model.moe.aux_loss", "",
       "give the coefficient; the loss is per sequence"},
      {"moe-router-load-balancing-type", "none", "model.moe.aux_loss", "0.0", "the default"},
      {"moe-aux-loss-coeff", "", "model.moe.aux_loss", "", ""},
      {"moe-z-loss-coeff", "", "model.moe.z_loss", "", ""},
      {"moe-router-enable-expert-bias", "", "model.moe.bias_rate", "0.001", ""},
      {"moe-router-bias-update-rate", "", "model.moe.bias_rate", "", ""},
      {"moe-expert-capacity-factor", "", "model.moe.capacity_factor", "", "0 = no token is dropped"},
      {"moe-input-jitter-eps", "", "", "", "noise on the input of routers is not built"},
      {"moe-pad-expert-input-to-capacity", "", "", "", "not needed: experts take any number of tokens"},
      {"moe-layer-recompute", "", "memory.recompute", "\"full\"", "of whole blocks"},
      {"moe-grouped-gemm", "", "", "", "always: the experts of a rank are one grouped product"},
      {"moe-token-dispatcher-type", "", "", "", "not needed: tokens are exchanged among the ranks of mesh.ep"},
      {"multi-latent-attention", "", "model.family", "\"deepseek\"", ""},
      {"q-lora-rank", "", "model.mla.q_lora_rank", "", ""},
      {"kv-lora-rank", "", "model.mla.kv_lora_rank", "", ""},
      {"qk-head-dim", "", "model.mla.nope_dim", "", ""},
      {"qk-pos-emb-head-dim", "", "model.mla.rope_dim", "", ""},
      {"v-head-dim", "", "model.mla.v_dim", "", ""},
      {"rotary-scaling-factor", "", "model.rope.factor", "", "with model.rope.type = \"yarn\""},
      {"original-max-position-embeddings", "", "model.rope.original_context", "", "yarn"},
      {"mtp-num-layers", "", "", "", "prediction of further tokens is not built"},
      // batch, steps, optimiser
      {"micro-batch-size", "", "batch.micro", "", ""},
      {"global-batch-size", "", "batch.global", "", ""},
      {"rampup-batch-size", "", "batch.ramp", "", "[start, increment, samples]"},
      {"train-iters", "", "run.steps", "", ""},
      {"train-samples", "", "run.steps", "", "steps: samples / batch.global"},
      {"lr", "", "optimizer.lr", "", ""},
      {"min-lr", "", "optimizer.min_lr", "", ""},
      {"lr-decay-style", "constant", "optimizer.schedule", "\"constant\"", ""},
      {"lr-decay-style", "cosine", "optimizer.schedule", "\"cosine\"", ""},
      {"lr-decay-style", "linear", "optimizer.schedule", "\"linear\"", "Megatron's default; ours is constant"},
      {"lr-decay-style", "WSD", "optimizer.schedule", "\"wsd\"", ""},
      {"lr-decay-style", "inverse-square-root", "optimizer.schedule", "\"inverse_sqrt\"", ""},
      {"lr-decay-iters", "", "optimizer.decay_steps", "", ""},
      {"lr-decay-samples", "", "optimizer.decay_steps", "", "steps: samples / batch.global"},
      {"lr-warmup-iters", "", "optimizer.warmup_steps", "", ""},
      {"lr-warmup-samples", "", "optimizer.warmup_steps", "", "steps: samples / batch.global"},
      {"lr-warmup-fraction", "", "optimizer.warmup_steps", "", "steps: fraction x optimizer.decay_steps"},
      {"lr-wsd-decay-iters", "", "optimizer.wsd_steps", "", ""},
      {"lr-wsd-decay-samples", "", "optimizer.wsd_steps", "", "steps: samples / batch.global"},
      {"optimizer", "adam", "optimizer.name", "\"adamw\"", "Megatron's adam decays as adamw does"},
      {"optimizer", "sgd", "optimizer.name", "\"sgd\"", ""},
      {"optimizer", "muon", "optimizer.name", "\"muon\"", ""},
      {"optimizer", "lion", "optimizer.name", "\"lion\"", ""},
      {"weight-decay", "", "optimizer.weight_decay", "", "Megatron's default is 0.01, ours 0.1"},
      {"adam-beta1", "", "optimizer.betas", "", "first of two: [0.9, 0.95]"},
      {"adam-beta2", "", "optimizer.betas", "", "second of two: [0.9, 0.95]; Megatron's default is 0.999"},
      {"adam-eps", "", "optimizer.eps", "", ""},
      {"sgd-momentum", "", "optimizer.momentum", "", ""},
      {"clip-grad", "", "optimizer.clip", "", ""},
      {"calculate-per-token-loss", "", "", "",
       "always: the loss is the mean over the valid tokens of the global batch"},
      {"seed", "", "run.seed", "", ""},
      {"deterministic-mode", "", "", "",
       "not needed: the same mesh gives the same bits; run.reproducible = true extends that to every mesh"},
      // precision and memory
      {"bf16", "", "precision.compute", "\"bf16\"", ""},
      {"fp16", "", "precision.compute", "\"fp16\"", ""},
      {"loss-scale", "", "precision.loss_scale", "", ""},
      {"initial-loss-scale", "", "precision.loss_scale", "",
       "a number is a fixed scale; \"dynamic\" starts by itself"},
      {"accumulate-allreduce-grads-in-fp32", "", "precision.gradients", "\"fp32\"", "the default"},
      {"grad-reduce-in-bf16", "", "precision.grad_reduce", "\"bf16\"", ""},
      {"fp8-format", "", "precision.compute", "\"fp8\"", ""},
      {"fp8-recipe", "delayed", "precision.fp8_recipe", "\"delayed\"", ""},
      {"fp8-recipe", "tensorwise", "precision.fp8_recipe", "\"current\"", ""},
      {"fp8-recipe", "blockwise", "precision.fp8_recipe", "\"blockwise\"", ""},
      {"fp8-recipe", "mxfp8", "precision.fp8_recipe", "\"mxfp8\"", ""},
      {"fp8-margin", "", "precision.fp8_margin", "", ""},
      {"fp8-amax-history-len", "", "precision.fp8_history", "", ""},
      {"fp8-amax-compute-algo", "", "precision.fp8_amax", "", "max or most_recent"},
      {"first-last-layers-bf16", "", "precision.fp8_keep_ends", "1", ""},
      {"num-layers-at-start-in-bf16", "", "precision.fp8_keep_ends", "", "one number for both ends"},
      {"num-layers-at-end-in-bf16", "", "precision.fp8_keep_ends", "", "one number for both ends"},
      {"recompute-activations", "", "memory.recompute", "\"selective\"", ""},
      {"recompute-granularity", "selective", "memory.recompute", "\"selective\"", ""},
      {"recompute-granularity", "full", "memory.recompute", "\"full\"", ""},
      {"recompute-method", "", "memory.recompute", "\"full\"",
       "every block of a stage is recomputed; there is no choice of blocks"},
      {"recompute-num-layers", "", "memory.recompute", "\"full\"",
       "every block of a stage is recomputed; there is no choice of blocks"},
      {"optimizer-cpu-offload", "", "memory.offload", "\"optimizer\"", ""},
      {"cpu-offloading", "", "memory.offload", "\"activations\"", ""},
      {"use-flash-attn", "", "", "", "not needed: attention never stores its full matrix"},
      {"attention-backend", "", "", "", "not needed: device.backend decides"},
      // data
      {"seq-length", "", "data.sequence", "", ""},
      {"data-path", "", "data.train", "", "list of prefixes; weights go to data.weights"},
      {"train-data-path", "", "data.train", "", "list of prefixes; weights go to data.weights"},
      {"valid-data-path", "", "data.valid", "", "list of prefixes"},
      {"split", "", "data.split", "", ""},
      {"data-cache-path", "", "data.cache", "", ""},
      {"tokenizer-type", "", "data.tokenizer", "", "\"bytes\", a SentencePiece .model or a tokenizer.json"},
      {"tokenizer-model", "", "data.tokenizer", "", "a SentencePiece .model or a tokenizer.json"},
      {"vocab-file", "", "data.tokenizer", "", "a tokenizer.json holds vocabulary and merges"},
      {"merge-file", "", "data.tokenizer", "", "a tokenizer.json holds vocabulary and merges"},
      {"reset-position-ids", "", "data.reset_positions", "true", ""},
      {"reset-attention-mask", "", "data.document_mask", "true", ""},
      {"eod-mask-loss", "", "data.eod_mask_loss", "true", ""},
      {"num-workers", "", "", "", "not needed: samples are read from memory maps by the ranks themselves"},
      {"mock-data", "", "", "", "there is none; orthant tokenize makes a dataset of any text"},
      // checkpoints, evaluation, logs
      {"save", "", "checkpoint.folder", "", ""},
      {"load", "", "checkpoint.resume", "",
       "a run resumes by itself; a path here starts from another run's checkpoint"},
      {"pretrained-checkpoint", "", "checkpoint.resume", "",
       "a checkpoint; a Hugging Face folder goes to model.load"},
      {"save-interval", "", "checkpoint.every", "", ""},
      {"async-save", "", "checkpoint.async", "true", "the default"},
      {"ckpt-format", "", "", "", "always parallel HDF5, readable on any mesh"},
      {"use-dist-ckpt", "", "", "", "always: checkpoints load on any mesh"},
      {"exit-duration-in-mins", "", "run.time_limit", "", "seconds: times 60"},
      {"exit-signal-handler", "", "", "", "always: USR1 and USR2 save and stop"},
      {"log-interval", "", "log.every", "", ""},
      {"eval-interval", "", "log.eval_every", "", ""},
      {"eval-iters", "", "log.eval_steps", "", ""},
      {"tensorboard-dir", "", "log.tensorboard", "true", "the files go into the run folder"},
      {"profile", "", "log.trace", "true", ""},
      {"check-weight-hash-across-dp-replicas-interval", "", "guard.replica_check_every", "", ""},
      {"check-for-nan-in-loss-and-grad", "", "", "", "always; guard.max_skips says how many such steps are skipped"},
      {"use-cpu-initialization", "", "", "", "always: initial weights are the same on every mesh"},
  };
  return rows;
}

static std::string normal(std::string option) {
  option.erase(0, option.find_first_not_of('-'));
  std::replace(option.begin(), option.end(), '_', '-');
  std::transform(option.begin(), option.end(), option.begin(), [](unsigned char c) { return std::tolower(c); });
  return option;
}

static std::string unquoted(std::string text) {
  text.erase(std::remove_if(text.begin(), text.end(), [](char c) { return c == '"' || c == '\''; }), text.end());
  return text;
}

/// Our side of a row: `mesh.tp = 2`, `zero.stage = 1`, or a sentence.
static std::string ours(const MegatronOption& row, const std::string& value) {
  if (row.key.empty()) return row.note;
  std::string text = row.key;
  if (!row.ours.empty())
    text += " = " + row.ours;
  else if (!value.empty() && row.note.empty())  // with a note, the value does not carry over as it is
    text += " = " + value;
  return text + (row.note.empty() ? "" : " (" + row.note + ")");
}

std::optional<std::string> megatron_answer(const std::string& option, const std::string& value) {
  const std::string name = normal(option), given = unquoted(value);
  std::vector<const MegatronOption*> rows;
  for (const auto& row : megatron_options())
    if (row.option == name) rows.push_back(&row);
  if (rows.empty()) return std::nullopt;
  const std::string start = "Megatron-LM's --" + name;
  for (const auto* row : rows)
    if (!row->value.empty() && normal(row->value) == normal(given))
      return start + " " + row->value + " is here " + ours(*row, given);
  if (rows.front()->value.empty()) {
    // the value of a switch, where one was typed, says on or off
    const auto* row = rows.front();
    if (row->ours == "true" && (given == "false" || given == "0")) return start + " is here " + row->key + " = false";
    return start + " is here " + (row->key.empty() ? "no key: " : "") + ours(*row, given);
  }
  std::string text = start + " is here ";
  for (std::size_t i = 0; i < rows.size(); ++i)
    text += (i ? "; for " : "for ") + rows[i]->value + ": " + ours(*rows[i], "");
  return text;
}

std::string megatron_table() {
  std::size_t width = 0;
  for (const auto& row : megatron_options())
    width = std::max(width, row.option.size() + (row.value.empty() ? 0 : row.value.size() + 1));
  std::string out = "Megatron-LM option" + std::string(width - 15, ' ') + "Orthant key\n\n";
  for (const auto& row : megatron_options()) {
    std::string left = "--" + row.option + (row.value.empty() ? "" : " " + row.value);
    left.resize(width + 3, ' ');
    out += left + (row.key.empty() ? "-  " : "") + ours(row, "") + "\n";
  }
  return out;
}

}  // namespace orthant
