// Deck section precision: number formats.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::precision {

inline const auto compute =
    add_key<std::string>({.name = "precision.compute",
                          .value = "fp32",
                          .choices = {"fp32", "bf16", "fp16", "fp8"},
                          .on_resume = OnResume::told,
                          .help = "format of products and activations; master weights and optimiser state are fp32"});
inline const auto tf32 = add_key<bool>({.name = "precision.tf32",
                                        .value = false,
                                        .on_resume = OnResume::told,
                                        .help = "cuda, fp32: products round their operands to 10 bits of mantissa (TF32)"});
inline const auto gradients = add_key<std::string>({.name = "precision.gradients",
                                                    .value = "fp32",
                                                    .choices = {"fp32", "bf16"},
                                                    .on_resume = OnResume::told,
                                                    .help = "format of the gradient buffer"});
inline const auto grad_reduce = add_key<std::string>({.name = "precision.grad_reduce",
                                                      .value = "fp32",
                                                      .choices = {"fp32", "bf16"},
                                                      .on_resume = OnResume::told,
                                                      .help = "format of gradients on the wire"});
inline const auto loss_scale = add_key<std::string>({.name = "precision.loss_scale",
                                                     .value = "dynamic",
                                                     .choices = {"dynamic"},
                                                     .or_number = true,
                                                     .on_resume = OnResume::told,
                                                     .help = "fp16: factor on the loss"});
inline const auto fp8_recipe = add_key<std::string>({.name = "precision.fp8_recipe",
                                                     .value = "delayed",
                                                     .choices = {"delayed", "current", "blockwise", "mxfp8"},
                                                     .on_resume = OnResume::told,
                                                     .help = "fp8: where scales come from"});
inline const auto fp8_history = add_key<int64_t>({.name = "precision.fp8_history",
                                                  .value = 1024,
                                                  .unit = "steps",
                                                  .min = 1,
                                                  .on_resume = OnResume::told,
                                                  .help = "fp8 delayed: length of the history of largest values"});
inline const auto fp8_amax = add_key<std::string>({.name = "precision.fp8_amax",
                                                   .value = "max",
                                                   .choices = {"max", "most_recent"},
                                                   .on_resume = OnResume::told,
                                                   .help = "fp8 delayed: which entry of the history sets the scale"});
inline const auto fp8_margin = add_key<int64_t>({.name = "precision.fp8_margin",
                                                 .value = 0,
                                                 .unit = "powers of two",
                                                 .min = 0,
                                                 .max = 64,
                                                 .on_resume = OnResume::told,
                                                 .help = "fp8: head room of the scale"});
inline const auto fp8_keep_ends = add_key<int64_t>({.name = "precision.fp8_keep_ends",
                                                    .value = 0,
                                                    .unit = "blocks",
                                                    .min = 0,
                                                    .on_resume = OnResume::told,
                                                    .help = "fp8: first and last blocks that stay in bf16"});

}  // namespace orthant::keys::precision
