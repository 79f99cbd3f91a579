// Deck section optimizer: the update and its learning rate.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::optimizer {

inline const auto name = add_key<std::string>({.name = "optimizer.name",
                                               .value = "adamw",
                                               .choices = {"adamw", "sgd", "muon", "lion"},
                                               .on_resume = OnResume::refused,
                                               .help = "the update rule"});
inline const auto lr = add_key<double>(
    {.name = "optimizer.lr", .value = 3e-4, .min = 0, .on_resume = OnResume::told, .help = "peak learning rate"});
inline const auto min_lr = add_key<double>({.name = "optimizer.min_lr",
                                            .value = 0,
                                            .min = 0,
                                            .on_resume = OnResume::told,
                                            .help = "learning rate at and after the end of the decay"});
inline const auto schedule = add_key<std::string>({.name = "optimizer.schedule",
                                                   .value = "constant",
                                                   .choices = {"constant", "cosine", "linear", "wsd", "inverse_sqrt"},
                                                   .on_resume = OnResume::told,
                                                   .help = "learning rate after the warm-up"});
inline const auto warmup_steps =
    add_key<int64_t>({.name = "optimizer.warmup_steps",
                      .value = 0,
                      .unit = "steps",
                      .min = 0,
                      .on_resume = OnResume::told,
                      .help = "steps of linear growth: step t of w uses lr x t / w, so the first step is not lost"});
inline const auto decay_steps = add_key<int64_t>(
    {.name = "optimizer.decay_steps",
     .value = 0,
     .unit = "steps",
     .min = 0,
     .on_resume = OnResume::told,
     .help = "step at which min_lr is reached, warm-up included; 0 = run.steps at the first start, then kept in the "
             "checkpoint"});
inline const auto wsd_steps = add_key<int64_t>({.name = "optimizer.wsd_steps",
                                                .value = 0,
                                                .unit = "steps",
                                                .min = 0,
                                                .on_resume = OnResume::told,
                                                .help = "wsd: length of the final decay, which ends at decay_steps"});
inline const auto betas =
    add_key<std::vector<double>>({.name = "optimizer.betas",
                                  .value = {0.9, 0.95},
                                  .min = 0,
                                  .max = 1,
                                  .max_open = true,
                                  .length = 2,
                                  .on_resume = OnResume::told,
                                  .help = "adamw, lion: decay of the first and second average"});
inline const auto eps = add_key<double>({.name = "optimizer.eps",
                                         .value = 1e-8,
                                         .min = 0,
                                         .min_open = true,
                                         .on_resume = OnResume::told,
                                         .help = "adamw: added to the root of the second average"});
inline const auto momentum = add_key<double>({.name = "optimizer.momentum",
                                              .value = 0.9,
                                              .min = 0,
                                              .max = 1,
                                              .max_open = true,
                                              .on_resume = OnResume::told,
                                              .help = "sgd, muon: momentum"});
inline const auto weight_decay =
    add_key<double>({.name = "optimizer.weight_decay",
                     .value = 0.1,
                     .min = 0,
                     .on_resume = OnResume::told,
                     .help = "decoupled decay, times the learning rate; on parameters of two or more dims only"});
inline const auto clip = add_key<double>({.name = "optimizer.clip",
                                          .value = 1.0,
                                          .min = 0,
                                          .on_resume = OnResume::told,
                                          .help = "largest L2 norm of the whole gradient; 0 = off"});

}  // namespace orthant::keys::optimizer
