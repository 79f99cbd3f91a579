// Deck section checkpoint: saving and restarting.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::checkpoint {

inline const auto every =
    add_key<int64_t>({.name = "checkpoint.every",
                      .value = 0,
                      .unit = "steps",
                      .min = 0,
                      .on_resume = OnResume::free,
                      .help = "steps between saves; 0 = only at the end (the last step is always saved)"});
inline const auto keep = add_key<int64_t>({.name = "checkpoint.keep",
                                           .value = 2,
                                           .unit = "checkpoints",
                                           .min = 1,
                                           .on_resume = OnResume::free,
                                           .help = "newest complete checkpoints that are kept"});
inline const auto async = add_key<bool>(
    {.name = "checkpoint.async", .value = true, .on_resume = OnResume::free, .help = "write while training goes on"});
inline const auto files =
    add_key<int64_t>({.name = "checkpoint.files",
                      .value = 0,
                      .unit = "ranks a file",
                      .min = -1,
                      .on_resume = OnResume::free,
                      .help = "0 = one file per node, n = one per n ranks, -1 = one shared file; state.h5 shows "
                              "whole tensors in each case"});
inline const auto folder = add_key<std::string>({.name = "checkpoint.folder",
                                                 .derived = "<run.output>/checkpoints",
                                                 .is_path = true,
                                                 .on_resume = OnResume::free,
                                                 .help = "where checkpoints go"});
inline const auto resume = add_key<std::string>(
    {.name = "checkpoint.resume",
     .value = "auto",
     .choices = {"auto", "never"},
     .or_path = true,
     .is_path = true,
     .on_resume = OnResume::free,
     .help =
         "auto = go on from the newest complete checkpoint of the run if there is one; never = start afresh; or the "
         "path of a checkpoint"});
inline const auto export_every =
    add_key<int64_t>({.name = "checkpoint.export",
                      .value = 0,
                      .unit = "steps",
                      .min = 0,
                      .on_resume = OnResume::free,
                      .help = "steps between exports of the weights as a Hugging Face folder; 0 = off"});
inline const auto mpi_info = add_key<StringTable>(
    {.name = "checkpoint.mpi_info",
     .value = {},
     .on_resume = OnResume::free,
     .help = "MPI-IO hints, for example { cb_nodes = \"8\" }; large tensors are aligned to striping_unit"});

}  // namespace orthant::keys::checkpoint
