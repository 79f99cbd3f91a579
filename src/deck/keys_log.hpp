// Deck section log: console, metrics and traces.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::log {

inline const auto every =
    add_key<int64_t>({.name = "log.every",
                      .value = 1,
                      .unit = "steps",
                      .min = 1,
                      .on_resume = OnResume::free,
                      .help = "steps between lines on the console (metrics.jsonl has every step)"});
inline const auto eval_every = add_key<int64_t>({.name = "log.eval_every",
                                                 .value = 0,
                                                 .unit = "steps",
                                                 .min = 0,
                                                 .on_resume = OnResume::free,
                                                 .help = "steps between validations; 0 = never"});
inline const auto eval_steps = add_key<int64_t>({.name = "log.eval_steps",
                                                 .value = 10,
                                                 .unit = "batches",
                                                 .min = 1,
                                                 .on_resume = OnResume::free,
                                                 .help = "global batches of a validation"});
inline const auto trace = add_key<bool>({.name = "log.trace",
                                         .value = false,
                                         .on_resume = OnResume::free,
                                         .help = "write trace.json for Chrome or Perfetto"});
inline const auto tensorboard = add_key<bool>({.name = "log.tensorboard",
                                               .value = false,
                                               .on_resume = OnResume::free,
                                               .help = "write TensorBoard event files"});

}  // namespace orthant::keys::log
