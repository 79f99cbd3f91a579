// Deck section data: token streams and their order.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::data {

inline const auto train = add_key<std::vector<std::string>>(
    {.name = "data.train",
     .required = true,
     .is_path = true,
     .on_resume = OnResume::told,
     .help = "prefixes of training datasets (<prefix>.bin and <prefix>.idx, made by orthant tokenize)"});
inline const auto weights = add_key<std::vector<double>>(
    {.name = "data.weights",
     .derived = "in proportion to the tokens of each prefix",
     .min = 0,
     .on_resume = OnResume::stream,
     .help = "share of each prefix of data.train in the stream; any scale. Changed on resume, it holds "
             "from the next sample on, and no sample is repeated"});
inline const auto valid = add_key<std::vector<std::string>>(
    {.name = "data.valid",
     .value = {},
     .is_path = true,
     .on_resume = OnResume::told,
     .help = "prefixes of validation datasets; [] = the second part of data.split"});
inline const auto sequence =
    add_key<int64_t>({.name = "data.sequence",
                      .required = true,
                      .unit = "tokens",
                      .min = 1,
                      .on_resume = OnResume::stream,
                      .help = "tokens of a training sample. Changed on resume, it begins a new "
                              "phase: another order of samples, with seed data.seed + phase"});
inline const auto split =
    add_key<std::string>({.name = "data.split",
                          .value = "969,30,1",
                          .on_resume = OnResume::refused,
                          .help = "shares of training, validation and test documents in data.train"});
inline const auto seed = add_key<int64_t>({.name = "data.seed",
                                           .derived = "run.seed",
                                           .min = 0,
                                           .max = 4294967295.0,
                                           .on_resume = OnResume::refused,
                                           .help = "seed of the sample order"});
inline const auto samples = add_key<int64_t>(
    {.name = "data.samples",
     .value = 0,
     .unit = "samples",
     .min = 0,
     .on_resume = OnResume::refused,
     .help = "length of the training stream, which fixes epochs and their order; 0 = run.steps x batch.global at the "
             "first start (of a phase: the steps that are left), then kept in the checkpoint"});
inline const auto eod = add_key<int64_t>({.name = "data.eod",
                                          .derived = "the tokenizer",
                                          .unit = "token id",
                                          .min = 0,
                                          .on_resume = OnResume::told,
                                          .help = "token that ends a document"});
inline const auto tokenizer = add_key<std::string>(
    {.name = "data.tokenizer",
     .value = "",
     .choices = {"", "bytes"},
     .or_path = true,
     .is_path = true,
     .on_resume = OnResume::told,
     .help = "bytes, a SentencePiece .model or a tokenizer.json; kept in checkpoints, counts bytes for eval"});
inline const auto mask = add_key<std::vector<std::string>>(
    {.name = "data.mask",
     .value = {},
     .is_path = true,
     .on_resume = OnResume::told,
     .help = "one dataset prefix per prefix of data.train, of 0 and 1: tokens whose loss counts; [] = all count"});
inline const auto document_mask = add_key<bool>({.name = "data.document_mask",
                                                 .value = false,
                                                 .on_resume = OnResume::told,
                                                 .help = "attention stops at the borders of documents"});
inline const auto reset_positions = add_key<bool>({.name = "data.reset_positions",
                                                   .value = false,
                                                   .on_resume = OnResume::told,
                                                   .help = "positions start again in each document"});
inline const auto eod_mask_loss = add_key<bool>({.name = "data.eod_mask_loss",
                                                 .value = false,
                                                 .on_resume = OnResume::told,
                                                 .help = "no loss where the input is the end-of-document token"});
inline const auto cache = add_key<std::string>({.name = "data.cache",
                                                .derived = "beside the run folder",
                                                .is_path = true,
                                                .on_resume = OnResume::free,
                                                .help = "folder of index files that runs over the same data share"});

}  // namespace orthant::keys::data
