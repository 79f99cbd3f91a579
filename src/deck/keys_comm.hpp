// Deck section comm: how ranks talk.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::comm {

inline const auto transport =
    add_key<std::string>({.name = "comm.transport",
                          .value = "auto",
                          .choices = {"auto", "mpi", "nccl"},
                          .on_resume = OnResume::free,
                          .help = "library of the collectives; auto = nccl on GPUs, else mpi"});
inline const auto gpu_aware = add_key<std::string>({.name = "comm.gpu_aware",
                                                    .value = "auto",
                                                    .choices = {"auto", "yes", "no"},
                                                    .on_resume = OnResume::free,
                                                    .help = "whether MPI takes device buffers; auto = where the library says so"});
inline const auto overlap = add_key<bool>({.name = "comm.overlap",
                                           .value = true,
                                           .on_resume = OnResume::free,
                                           .help = "communicate while computing where the result is not needed yet"});
inline const auto chunks =
    add_key<int64_t>({.name = "comm.chunks",
                      .value = 1,
                      .unit = "pieces",
                      .min = 1,
                      .on_resume = OnResume::free,
                      .help = "pieces in which a tensor-parallel product and its collective are interleaved"});

}  // namespace orthant::keys::comm
