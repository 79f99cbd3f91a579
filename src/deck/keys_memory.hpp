// Deck section memory: what is kept, computed again or moved away.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::memory {

inline const auto recompute =
    add_key<std::string>({.name = "memory.recompute",
                          .value = "none",
                          .choices = {"none", "selective", "full"},
                          .on_resume = OnResume::told,
                          .help = "computed again in the backward pass: nothing; outputs of norms and the activation "
                                  "of the feed-forward layer; the whole block"});
inline const auto offload = add_key<std::string>({.name = "memory.offload",
                                                  .value = "none",
                                                  .choices = {"none", "optimizer", "activations"},
                                                  .on_resume = OnResume::told,
                                                  .help = "kept in host memory instead of the device's"});
inline const auto limit_gb = add_key<double>({.name = "memory.limit_gb",
                                              .derived = "what the rank may use",
                                              .unit = "GB",
                                              .min = 0,
                                              .min_open = true,
                                              .on_resume = OnResume::free,
                                              .help = "refuse to start if the plan needs more on a rank"});

}  // namespace orthant::keys::memory
