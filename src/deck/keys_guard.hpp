// Deck section guard: what to do about hangs, spikes and bad numbers.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::guard {

inline const auto watchdog_s =
    add_key<double>({.name = "guard.watchdog_s",
                     .value = 0,
                     .unit = "s",
                     .min = 0,
                     .on_resume = OnResume::free,
                     .help = "a step longer than this is a hang and ends the job with code 4; 0 = ten times the "
                             "median of the last steps, at least 60 s"});
inline const auto max_skips = add_key<int64_t>(
    {.name = "guard.max_skips",
     .value = 10,
     .unit = "steps",
     .min = 0,
     .on_resume = OnResume::free,
     .help = "steps in a row that may be skipped for non-finite gradients; one more ends the run with code 5"});
inline const auto spike_factor = add_key<double>({.name = "guard.spike_factor",
                                                  .value = 0,
                                                  .min = 0,
                                                  .on_resume = OnResume::free,
                                                  .help = "loss / running median that counts as a spike; 0 = off"});
inline const auto rollback_after =
    add_key<int64_t>({.name = "guard.rollback_after",
                      .value = 0,
                      .unit = "steps",
                      .min = 0,
                      .on_resume = OnResume::free,
                      .help = "spikes or skips in a row after which the last checkpoint is loaded; 0 = off"});
inline const auto skip_data = add_key<bool>({.name = "guard.skip_data",
                                             .value = false,
                                             .on_resume = OnResume::free,
                                             .help = "after a rollback, pass over the samples that led to it"});
inline const auto replica_check_every =
    add_key<int64_t>({.name = "guard.replica_check_every",
                      .value = 0,
                      .unit = "steps",
                      .min = 0,
                      .on_resume = OnResume::free,
                      .help = "steps between comparisons of all copies of each parameter; 0 = off"});

}  // namespace orthant::keys::guard
