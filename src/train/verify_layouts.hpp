// The layouts that `orthant verify` compares, as words ("tp2,pp2,sp") and as deck overrides.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

/// One way to lay the model out over the ranks. A factor that is not named is 1, dp the ranks that are left. The
/// other words leave the deck's value where they are absent, unless the mesh gives it no meaning.
struct LayoutWords {
  int64_t tp = 1, cp = 1, pp = 1, dp = 0, ep = 1, etp = 1;  ///< dp = 0: the ranks that are left
  std::optional<bool> sequence_parallel;                    ///< word "sp"
  std::optional<int64_t> chunks;                            ///< word "v2": pipeline.virtual_stages
  std::optional<int64_t> zero;                              ///< words "z0" to "z3": zero.stage
  std::string method;                                       ///< context.method; empty: the deck's
  std::string schedule;                                     ///< pipeline.schedule; empty: the deck's
};

/// What the overrides of a layout depend on besides its words.
struct DeckWords {
  std::string schedule = "1f1b";  ///< pipeline.schedule
  int64_t stage_blocks = -1;      ///< sum of pipeline.stage_layers; -1: not given
  bool experts = false;           ///< a family with experts, or model.moe.experts is given
};

/// Reads "tp2,pp2;dp4". UsageError (agreed, as all ranks read the same words) for a word that is none, naming those
/// there are, for a word given twice, and for an empty list.
std::vector<LayoutWords> read_layouts(const std::string& list);
/// Every product tp x cp x pp x dp = ranks; with tp > 1 once without and once with sequence parallelism; with experts
/// also every ep > 1 of whole ranks, with etp 1 and tp. Legal or not: that is for the deck's checks to say.
std::vector<LayoutWords> all_layouts(int64_t ranks, bool experts);
/// "tp2,pp2,dp2,sp": words that `read_layouts` takes. Factors of 1 are left out; dp is filled in where it can be.
std::string text_of(const LayoutWords& layout, int64_t ranks);
/// Overrides that make a deck this layout.
std::vector<std::string> overrides_of(const LayoutWords& layout, const DeckWords& deck);
/// Overrides for one rank: nothing is cut, whatever the deck says.
std::vector<std::string> overrides_of_one_rank(const DeckWords& deck);

}  // namespace orthant
