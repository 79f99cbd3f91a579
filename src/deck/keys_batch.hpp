// Deck section batch: how many sequences make a step.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::batch {

inline const auto global =
    add_key<int64_t>({.name = "batch.global",
                      .required = true,
                      .unit = "sequences",
                      .min = 1,
                      .on_resume = OnResume::told,
                      .help = "sequences of one step over all ranks; a multiple of micro x dp"});
inline const auto micro = add_key<int64_t>({.name = "batch.micro",
                                            .value = 1,
                                            .unit = "sequences",
                                            .min = 1,
                                            .on_resume = OnResume::told,
                                            .help = "sequences a rank takes through the model at once"});
inline const auto ramp = add_key<std::vector<int64_t>>(
    {.name = "batch.ramp",
     .value = {},
     .min = 1,
     .on_resume = OnResume::told,
     .help = "[start, increment, samples]: batch.global grows from start over so many samples; [] = constant"});

}  // namespace orthant::keys::batch
