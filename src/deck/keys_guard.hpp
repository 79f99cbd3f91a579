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
     .help = "bad steps in a row (loss or gradient norm not finite, or a spike) whose update may be skipped; one more "
             "ends the run with code 5"});
inline const auto spike_factor = add_key<double>({.name = "guard.spike_factor",
                                                  .value = 0,
                                                  .min = 0,
                                                  .on_resume = OnResume::free,
                                                  .help = "a loss of more than this times the median of the last 64 good steps, "
                                                          "or a gradient norm of more than ten times that, is a "
                                                          "spike, whose update is skipped; 0 = off"});
inline const auto rollback_after =
    add_key<int64_t>({.name = "guard.rollback_after",
                      .value = 0,
                      .unit = "steps",
                      .min = 0,
                      .on_resume = OnResume::free,
                      .help = "bad steps in a row after which the run goes back to its last checkpoint; 0 = off"});
inline const auto skip_data = add_key<bool>({.name = "guard.skip_data",
                                             .value = false,
                                             .on_resume = OnResume::free,
                                             .help = "after a rollback, pass over the samples of the steps since that checkpoint; "
                                                     "data.samples must leave some to spare"});
inline const auto replica_check_every =
    add_key<int64_t>({.name = "guard.replica_check_every",
                      .value = 0,
                      .unit = "steps",
                      .min = 0,
                      .on_resume = OnResume::free,
                      .help = "steps between comparisons of all copies of each parameter and optimiser state, bit by bit "
                              "(also before each save); copies that differ end the run with code 4; 0 = off"});

}  // namespace orthant::keys::guard
