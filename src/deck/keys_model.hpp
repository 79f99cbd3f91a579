// Deck sections model, model.rope, model.moe and model.mla: the network. Sizes are global, before any cut.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::model {

inline const auto family =
    add_key<std::string>({.name = "model.family",
                          .value = "gpt2",
                          .choices = {"gpt2", "llama", "qwen3", "mixtral", "deepseek"},
                          .on_resume = OnResume::refused,
                          .help = "the kind of network: norms, positions, feed-forward and parameter names"});
inline const auto load = add_key<std::string>(
    {.name = "model.load",
     .value = "",
     .is_path = true,
     .on_resume = OnResume::free,
     .help = "Hugging Face folder to start from; sizes come from its config.json, and a size key given beside it "
             "must agree"});
inline const auto layers = add_key<int64_t>({.name = "model.layers",
                                             .derived = "config.json of model.load, else required",
                                             .unit = "blocks",
                                             .min = 1,
                                             .on_resume = OnResume::refused,
                                             .help = "transformer blocks"});
inline const auto hidden = add_key<int64_t>({.name = "model.hidden",
                                             .derived = "config.json of model.load, else required",
                                             .min = 1,
                                             .on_resume = OnResume::refused,
                                             .help = "width of the residual stream"});
inline const auto ffn =
    add_key<int64_t>({.name = "model.ffn",
                      .derived = "4 x hidden for gpt2, model.moe.ffn where no block is dense, else required",
                      .min = 1,
                      .on_resume = OnResume::refused,
                      .help = "inner width of the feed-forward layer"});
inline const auto heads = add_key<int64_t>({.name = "model.heads",
                                            .derived = "config.json of model.load, else required",
                                            .min = 1,
                                            .on_resume = OnResume::refused,
                                            .help = "query heads"});
inline const auto kv_heads = add_key<int64_t>({.name = "model.kv_heads",
                                               .derived = "model.heads",
                                               .min = 1,
                                               .on_resume = OnResume::refused,
                                               .help = "key and value heads; a divisor of heads"});
inline const auto head_dim = add_key<int64_t>({.name = "model.head_dim",
                                               .derived = "hidden / heads; model.mla.rope_dim for deepseek",
                                               .min = 1,
                                               .on_resume = OnResume::refused,
                                               .help = "width of a head (deepseek: its rotary part)"});
inline const auto vocab = add_key<int64_t>({.name = "model.vocab",
                                            .derived = "config.json of model.load, else required",
                                            .unit = "tokens",
                                            .min = 1,
                                            .on_resume = OnResume::refused,
                                            .help = "true size of the vocabulary; any number works on any mesh"});
inline const auto context =
    add_key<int64_t>({.name = "model.context",
                      .derived = "data.sequence; learned positions need it given",
                      .unit = "tokens",
                      .min = 1,
                      .on_resume = OnResume::phase,
                      .help = "positions the model has (learned table of gpt2), else the longest sequence meant"});
inline const auto norm_eps = add_key<double>({.name = "model.norm_eps",
                                              .value = 1e-5,
                                              .min = 0,
                                              .max = 1,
                                              .min_open = true,
                                              .on_resume = OnResume::refused,
                                              .help = "added to the variance in every norm"});
inline const auto rope_theta = add_key<double>({.name = "model.rope_theta",
                                                .value = 10000,
                                                .min = 0,
                                                .min_open = true,
                                                .on_resume = OnResume::phase,
                                                .help = "base of the rotary wavelengths"});
inline const auto tie_embeddings = add_key<bool>({.name = "model.tie_embeddings",
                                                  .derived = "true for gpt2, else false",
                                                  .on_resume = OnResume::refused,
                                                  .help = "the output head is the input embedding"});
inline const auto bias = add_key<bool>({.name = "model.bias",
                                        .derived = "true for gpt2, else false",
                                        .on_resume = OnResume::refused,
                                        .help = "biases on every linear layer and norm"});
inline const auto qkv_bias = add_key<bool>({.name = "model.qkv_bias",
                                            .value = false,
                                            .on_resume = OnResume::refused,
                                            .help = "biases on the query, key and value projections only"});
inline const auto dropout =
    add_key<double>({.name = "model.dropout",
                     .value = 0,
                     .min = 0,
                     .max = 1,
                     .max_open = true,
                     .on_resume = OnResume::told,
                     .help = "probability with which embedding, attention and residual outputs are dropped"});
inline const auto init_std = add_key<double>(
    {.name = "model.init_std",
     .value = 0.02,
     .min = 0,
     .on_resume = OnResume::free,
     .help =
         "standard deviation of initial weights; / sqrt(2 x layers) for projections back into the residual stream"});
inline const auto z_loss = add_key<double>({.name = "model.z_loss",
                                            .value = 0,
                                            .min = 0,
                                            .on_resume = OnResume::told,
                                            .help = "coefficient of the mean squared logsumexp of the logits"});
inline const auto mup =
    add_key<bool>({.name = "model.mup",
                   .value = false,
                   .on_resume = OnResume::refused,
                   .help = "scale initialisation and learning rate with width (maximal update parametrisation)"});

}  // namespace orthant::keys::model

namespace orthant::keys::rope {

inline const auto type = add_key<std::string>({.name = "model.rope.type",
                                               .value = "default",
                                               .choices = {"default", "linear", "llama3", "yarn"},
                                               .on_resume = OnResume::phase,
                                               .help = "how rotary frequencies are stretched for long contexts"});
inline const auto factor = add_key<double>({.name = "model.rope.factor",
                                            .derived = "none; linear, llama3 and yarn require it",
                                            .min = 1,
                                            .on_resume = OnResume::phase,
                                            .help = "how much longer the context becomes"});
inline const auto low_freq_factor =
    add_key<double>({.name = "model.rope.low_freq_factor",
                     .derived = "none; llama3 requires it",
                     .min = 0,
                     .min_open = true,
                     .on_resume = OnResume::phase,
                     .help = "llama3: wavelengths above original_context / this are stretched in full"});
inline const auto high_freq_factor =
    add_key<double>({.name = "model.rope.high_freq_factor",
                     .derived = "none; llama3 requires it",
                     .min = 0,
                     .min_open = true,
                     .on_resume = OnResume::phase,
                     .help = "llama3: wavelengths below original_context / this stay as they are"});
inline const auto original_context =
    add_key<int64_t>({.name = "model.rope.original_context",
                      .derived = "none; llama3 and yarn require it",
                      .unit = "tokens",
                      .min = 1,
                      .on_resume = OnResume::phase,
                      .help = "llama3, yarn: positions the model was first trained on"});
inline const auto beta_fast = add_key<double>({.name = "model.rope.beta_fast",
                                               .value = 32,
                                               .min = 0,
                                               .min_open = true,
                                               .on_resume = OnResume::phase,
                                               .help = "yarn: rotations above which a frequency stays as it is"});
inline const auto beta_slow =
    add_key<double>({.name = "model.rope.beta_slow",
                     .value = 1,
                     .min = 0,
                     .min_open = true,
                     .on_resume = OnResume::phase,
                     .help = "yarn: rotations below which a frequency is stretched in full"});
inline const auto mscale = add_key<double>({.name = "model.rope.mscale",
                                            .derived = "none",
                                            .min = 0,
                                            .on_resume = OnResume::phase,
                                            .help = "yarn: numerator of the attention scale"});
inline const auto mscale_all_dim = add_key<double>({.name = "model.rope.mscale_all_dim",
                                                    .derived = "none",
                                                    .min = 0,
                                                    .on_resume = OnResume::phase,
                                                    .help = "yarn: denominator of the attention scale"});
inline const auto attention_factor = add_key<double>({.name = "model.rope.attention_factor",
                                                      .derived = "factor, mscale and mscale_all_dim",
                                                      .min = 0,
                                                      .min_open = true,
                                                      .on_resume = OnResume::phase,
                                                      .help = "yarn: factor on cos and sin"});

}  // namespace orthant::keys::rope

namespace orthant::keys::moe {

inline const auto experts =
    add_key<int64_t>({.name = "model.moe.experts",
                      .derived = "config.json of model.load, else required for mixtral and deepseek",
                      .min = 1,
                      .on_resume = OnResume::refused,
                      .help = "routed experts of a mixture layer"});
inline const auto top_k = add_key<int64_t>({.name = "model.moe.top_k",
                                            .derived = "config.json of model.load, else required with experts",
                                            .min = 1,
                                            .on_resume = OnResume::refused,
                                            .help = "experts each token is sent to"});
inline const auto ffn =
    add_key<int64_t>({.name = "model.moe.ffn",
                      .derived = "config.json of model.load; model.ffn for mixtral; else required",
                      .min = 1,
                      .on_resume = OnResume::refused,
                      .help = "inner width of one expert"});
inline const auto shared_experts = add_key<int64_t>({.name = "model.moe.shared_experts",
                                                     .value = 0,
                                                     .min = 0,
                                                     .on_resume = OnResume::refused,
                                                     .help = "experts that see every token; their widths add up"});
inline const auto first_dense_layers =
    add_key<int64_t>({.name = "model.moe.first_dense_layers",
                      .value = 0,
                      .unit = "blocks",
                      .min = 0,
                      .on_resume = OnResume::refused,
                      .help = "first blocks that keep a dense feed-forward layer"});
inline const auto router = add_key<std::string>({.name = "model.moe.router",
                                                 .derived = "softmax for mixtral, sigmoid for deepseek",
                                                 .choices = {"softmax", "sigmoid"},
                                                 .on_resume = OnResume::refused,
                                                 .help = "how router logits become scores"});
inline const auto groups = add_key<int64_t>({.name = "model.moe.groups",
                                             .value = 1,
                                             .min = 1,
                                             .on_resume = OnResume::refused,
                                             .help = "groups the experts are divided into for the choice"});
inline const auto top_groups = add_key<int64_t>({.name = "model.moe.top_groups",
                                                 .value = 1,
                                                 .min = 1,
                                                 .on_resume = OnResume::refused,
                                                 .help = "groups a token may choose from"});
inline const auto norm_topk = add_key<bool>({.name = "model.moe.norm_topk",
                                             .value = true,
                                             .on_resume = OnResume::refused,
                                             .help = "weights of the chosen experts add up to 1"});
inline const auto scale = add_key<double>({.name = "model.moe.scale",
                                           .value = 1,
                                           .min = 0,
                                           .min_open = true,
                                           .on_resume = OnResume::refused,
                                           .help = "factor on the weights of the chosen experts"});
inline const auto aux_loss = add_key<double>(
    {.name = "model.moe.aux_loss",
     .value = 0,
     .min = 0,
     .on_resume = OnResume::told,
     .help = "coefficient of the load-balancing loss; with model.load the default is router_aux_loss_coef x top_k / "
             "mixture layers if output_router_logits is set there"});
inline const auto z_loss =
    add_key<double>({.name = "model.moe.z_loss",
                     .value = 0,
                     .min = 0,
                     .on_resume = OnResume::told,
                     .help = "coefficient of the mean squared logsumexp of the router logits"});
inline const auto bias_rate =
    add_key<double>({.name = "model.moe.bias_rate",
                     .value = 0,
                     .min = 0,
                     .on_resume = OnResume::told,
                     .help = "step of the selection bias (deepseek) towards even load, once a training step"});
inline const auto capacity_factor =
    add_key<double>({.name = "model.moe.capacity_factor",
                     .value = 0,
                     .min = 0,
                     .on_resume = OnResume::told,
                     .help = "places of an expert / even share, further tokens are dropped; 0 = none is dropped"});

}  // namespace orthant::keys::moe

namespace orthant::keys::mla {

inline const auto q_lora_rank =
    add_key<int64_t>({.name = "model.mla.q_lora_rank",
                      .derived = "config.json of model.load, else none",
                      .min = 1,
                      .on_resume = OnResume::refused,
                      .help = "width of the compressed query; absent = a plain query projection"});
inline const auto kv_lora_rank = add_key<int64_t>({.name = "model.mla.kv_lora_rank",
                                                   .derived = "config.json of model.load, else required for deepseek",
                                                   .min = 1,
                                                   .on_resume = OnResume::refused,
                                                   .help = "width of the compressed key and value"});
inline const auto nope_dim = add_key<int64_t>({.name = "model.mla.nope_dim",
                                               .derived = "config.json of model.load, else required for deepseek",
                                               .min = 1,
                                               .on_resume = OnResume::refused,
                                               .help = "width of a head without position"});
inline const auto rope_dim = add_key<int64_t>({.name = "model.mla.rope_dim",
                                               .derived = "config.json of model.load, else required for deepseek",
                                               .min = 1,
                                               .on_resume = OnResume::refused,
                                               .help = "rotary width of a head"});
inline const auto v_dim = add_key<int64_t>({.name = "model.mla.v_dim",
                                            .derived = "config.json of model.load, else required for deepseek",
                                            .min = 1,
                                            .on_resume = OnResume::refused,
                                            .help = "value width of a head"});
inline const auto rope_interleave =
    add_key<bool>({.name = "model.mla.rope_interleave",
                   .value = true,
                   .on_resume = OnResume::refused,
                   .help = "rotary pairs are neighbours, (2i, 2i + 1); else (i, i + rope_dim / 2)"});

}  // namespace orthant::keys::mla
