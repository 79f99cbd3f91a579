// Deck section pipeline: the order of work over the stages.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::pipeline {

inline const auto schedule =
    add_key<std::string>({.name = "pipeline.schedule",
                          .value = "1f1b",
                          .choices = {"1f1b", "gpipe", "interleaved", "zero_bubble"},
                          .or_path = true,
                          .is_path = true,
                          .on_resume = OnResume::told,
                          .help = "order of forward and backward passes; or a CSV file of actions"});
inline const auto virtual_stages = add_key<int64_t>(
    {.name = "pipeline.virtual_stages",
     .value = 1,
     .unit = "chunks",
     .min = 1,
     .on_resume = OnResume::told,
     .help = "chunks of the model a rank holds; more than 1 needs interleaved or zero_bubble (2 is its V form)"});
inline const auto stage_layers =
    add_key<std::vector<int64_t>>({.name = "pipeline.stage_layers",
                                   .derived = "as even as can be, embedding and head counting as a block each",
                                   .unit = "blocks",
                                   .min = 0,
                                   .on_resume = OnResume::told,
                                   .help = "blocks of each chunk, in model order; adds up to model.layers"});

}  // namespace orthant::keys::pipeline
