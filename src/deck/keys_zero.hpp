// Deck section zero: which state the data axis shards.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::zero {

inline const auto stage =
    add_key<int64_t>({.name = "zero.stage",
                      .value = 0,
                      .min = 0,
                      .max = 3,
                      .on_resume = OnResume::told,
                      .help = "sharded over dp x cp: 0 nothing, 1 optimiser state, 2 and gradients, 3 and weights"});
inline const auto shard =
    add_key<int64_t>({.name = "zero.shard",
                      .value = 0,
                      .unit = "ranks",
                      .min = 0,
                      .on_resume = OnResume::told,
                      .help = "ranks that share one copy of the sharded state; 0 = all of dp x cp"});
inline const auto bucket = add_key<int64_t>({.name = "zero.bucket",
                                             .value = 40'000'000,
                                             .unit = "elements",
                                             .min = 1,
                                             .on_resume = OnResume::told,
                                             .help = "gradient elements that are sent together"});
inline const auto accumulate =
    add_key<std::string>({.name = "zero.accumulate",
                          .value = "shard",
                          .choices = {"shard", "full"},
                          .on_resume = OnResume::told,
                          .help = "what a rank keeps of the gradients between micro-batches"});

}  // namespace orthant::keys::zero
