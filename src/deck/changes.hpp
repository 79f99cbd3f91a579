// The deck kept in a checkpoint against the deck of the run that goes on from it. What a change of a key means is
// declared with the key (`on_resume`), so that comparing, telling and refusing know no key by name but for those
// whose 0 stands for a number kept in the checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "orthant/deck.hpp"

namespace orthant {

/// A key whose value differs.
struct DeckChange {
  std::string key;            ///< "mesh.tp"
  std::string before, after;  ///< as TOML text; "not given (…)" where a derived value was left to be derived
  OnResume rule;              ///< what holds here: `phase` only beside a new data.sequence, else `refused`
  std::string note;           ///< what follows from it, or why it is refused; may be empty
};

/// What the comparison must know of the checkpoint beside its deck.
struct KeptFacts {
  int64_t samples = 0;      ///< length of the training stream, for which data.samples = 0 stands; 0 = not known
  int64_t decay_steps = 0;  ///< the same for optimizer.decay_steps
  bool optimizer = true;    ///< it holds optimiser state; without, optimizer.name may change
};

/// The keys whose typed values differ between the deck in a checkpoint (`stored_text`, from Deck::resolved; "" = a
/// converted checkpoint, which has none) and `now`, with derived values settled on both sides; keys that may change
/// freely are left out. In reading order, after them stored keys that this version does not know, each `told`. A key
/// that `stored_text` does not speak of at all is unchanged. Never throws for what the text holds: text that is not
/// TOML gives one change of key "/deck", `told`, that says so.
std::vector<DeckChange> deck_changes(const std::string& stored_text, const Deck& now, const KeptFacts& kept = {});

/// One line per change that is not refused, for the console: "mesh.tp was 2, is 4", with its note after a colon.
std::vector<std::string> tell_changes(const std::vector<DeckChange>& changes);

/// Throws one UsageError that lists every refused change, with both values and what to do, agreed on all ranks (which
/// have the same decks); nothing happens if there is none. `checkpoint`: the folder, for the message.
void refuse_changes(const std::vector<DeckChange>& changes, const std::string& checkpoint);

}  // namespace orthant
