// Deck sections mesh and layout: the Cartesian arrangement of the ranks, and what each axis cuts.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::mesh {

inline const auto tp = add_key<int64_t>({.name = "mesh.tp",
                                         .value = 1,
                                         .unit = "ranks",
                                         .min = 1,
                                         .on_resume = OnResume::told,
                                         .help = "tensor axis: cuts heads, feed-forward and vocabulary"});
inline const auto pp = add_key<int64_t>({.name = "mesh.pp",
                                         .value = 1,
                                         .unit = "ranks",
                                         .min = 1,
                                         .on_resume = OnResume::told,
                                         .help = "pipeline axis: cuts the blocks into stages"});
inline const auto cp = add_key<int64_t>({.name = "mesh.cp",
                                         .value = 1,
                                         .unit = "ranks",
                                         .min = 1,
                                         .on_resume = OnResume::told,
                                         .help = "context axis: cuts each sequence"});
inline const auto ep = add_key<int64_t>(
    {.name = "mesh.ep",
     .value = 1,
     .unit = "ranks",
     .min = 1,
     .on_resume = OnResume::told,
     .help = "expert axis: divides the experts; lies in cp x dp (etp = tp) or tp x cp x dp (etp = 1)"});
inline const auto etp = add_key<int64_t>({.name = "mesh.etp",
                                          .value = 1,
                                          .unit = "ranks",
                                          .min = 1,
                                          .on_resume = OnResume::told,
                                          .help = "tensor axis inside an expert: 1, or the same as tp"});
inline const auto dp = add_key<int64_t>({.name = "mesh.dp",
                                         .value = 0,
                                         .unit = "ranks",
                                         .min = 0,
                                         .on_resume = OnResume::told,
                                         .help = "data axis: cuts the batch; 0 = the ranks that are left"});
inline const auto sequence_parallel =
    add_key<bool>({.name = "mesh.sequence_parallel",
                   .value = false,
                   .on_resume = OnResume::told,
                   .help = "between the cut layers, tp cuts the sequence instead of repeating it"});
inline const auto order =
    add_key<std::string>({.name = "mesh.order",
                          .value = "tp-cp-pp-dp",
                          .on_resume = OnResume::told,
                          .help = "axes from the fastest-varying to the slowest; each of tp, cp, pp, dp once"});
inline const auto map = add_key<std::string>(
    {.name = "mesh.map",
     .value = "",
     .is_path = true,
     .on_resume = OnResume::told,
     .help = "file with the order of ranks on nodes; empty = as the launcher placed them, in node order"});

}  // namespace orthant::keys::mesh

namespace orthant::keys::layout {

inline const auto vocab = add_key<std::string>({.name = "layout.vocab",
                                                .value = "tp",
                                                .choices = {"tp", ""},
                                                .on_resume = OnResume::told,
                                                .help = "axis that cuts the vocabulary; empty = none"});
inline const auto heads = add_key<std::string>({.name = "layout.heads",
                                                .value = "tp",
                                                .choices = {"tp", ""},
                                                .on_resume = OnResume::told,
                                                .help = "axis that cuts the attention heads; empty = none"});
inline const auto ffn = add_key<std::string>({.name = "layout.ffn",
                                              .value = "tp",
                                              .choices = {"tp", ""},
                                              .on_resume = OnResume::told,
                                              .help = "axis that cuts the feed-forward width; empty = none"});
inline const auto experts = add_key<std::string>({.name = "layout.experts",
                                                  .value = "ep",
                                                  .choices = {"ep"},
                                                  .on_resume = OnResume::told,
                                                  .help = "axis that cuts the experts"});
inline const auto layers = add_key<std::string>({.name = "layout.layers",
                                                 .value = "pp",
                                                 .choices = {"pp"},
                                                 .on_resume = OnResume::told,
                                                 .help = "axis that cuts the blocks"});
inline const auto sequence = add_key<std::string>({.name = "layout.sequence",
                                                   .value = "cp",
                                                   .choices = {"cp"},
                                                   .on_resume = OnResume::told,
                                                   .help = "axis that cuts the sequence"});
inline const auto batch = add_key<std::string>({.name = "layout.batch",
                                                .value = "dp",
                                                .choices = {"dp"},
                                                .on_resume = OnResume::told,
                                                .help = "axis that cuts the batch"});

}  // namespace orthant::keys::layout
