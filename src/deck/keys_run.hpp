// Deck section run: the job as a whole.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::run {

inline const auto output =
    add_key<std::string>({.name = "run.output",
                          .derived = "runs/<deck name>",
                          .is_path = true,
                          .on_resume = OnResume::free,
                          .help = "the run folder; relative to the working folder, wherever the deck lies"});
inline const auto steps =
    add_key<int64_t>({.name = "run.steps",
                      .required = true,
                      .unit = "steps",
                      .min = 1,
                      .on_resume = OnResume::told,
                      .help = "optimiser steps of the whole run; a resumed run goes on to this number"});
inline const auto seed = add_key<int64_t>({.name = "run.seed",
                                           .value = 1234,
                                           .min = 0,
                                           .max = 4294967295.0,
                                           .on_resume = OnResume::refused,
                                           .help = "seed of sample order, initialisation and dropout"});
inline const auto reproducible =
    add_key<bool>({.name = "run.reproducible",
                   .value = false,
                   .on_resume = OnResume::told,
                   .help = "the same loss to the last bit on every mesh of the same machine type (slower)"});
inline const auto time_limit =
    add_key<double>({.name = "run.time_limit",
                     .derived = "the scheduler's",
                     .unit = "s",
                     .min = 0,
                     .min_open = true,
                     .on_resume = OnResume::free,
                     .help = "stop with a checkpoint before this much wall time has passed"});
inline const auto threads =
    add_key<int64_t>({.name = "run.threads",
                      .value = 0,
                      .unit = "threads",
                      .min = 0,
                      .max = 4096,
                      .on_resume = OnResume::free,
                      .help = "OpenMP threads of a rank; 0 = OMP_NUM_THREADS, else cores / ranks on the node"});
inline const auto timing =
    add_key<std::string>({.name = "run.timing",
                          .value = "real",
                          .choices = {"real", "sleep"},
                          .on_resume = OnResume::free,
                          .help = "sleep: the F, B and W of a schedule take fixed sleeps, to test schedules"});
inline const auto sleep_ms =
    add_key<double>({.name = "run.sleep_ms",
                     .value = 20.0,
                     .unit = "ms",
                     .min = 0.1,
                     .max = 60000,
                     .on_resume = OnResume::free,
                     .help = "with timing = sleep: the forward pass of one micro-batch through "
                             "a stage; the backward pass takes twice as long"});
inline const auto sleep_gbps =
    add_key<double>({.name = "run.sleep_gbps",
                     .value = 100.0,
                     .unit = "GB/s",
                     .min = 1e-6,
                     .max = 1e6,
                     .on_resume = OnResume::free,
                     .help = "with timing = sleep: bytes a rank sends on an axis take this long"});
inline const auto allow_singletons =
    add_key<bool>({.name = "run.allow_singletons",
                   .value = false,
                   .on_resume = OnResume::free,
                   .help = "let a one-rank run start although the launcher announces several tasks"});

}  // namespace orthant::keys::run
