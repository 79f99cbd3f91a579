// Resuming in the data: phases, changes of weights, batches, what is refused, older checkpoints, the ledger.
// labels: smoke asan
// seconds: 60
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "data_fixture.hpp"
#include "deck/all_keys.hpp"
#include "train/data_ledger.hpp"
#include "train/data_position.hpp"

namespace orthant {
namespace {

using testing::Scratch;
using Texts = std::vector<std::string>;
using Where =
    std::tuple<int64_t, int64_t, int64_t, int64_t>;  // source, document, sequence, offset of a sample's first token

/// Two sources of 40 and 24 documents of 25 tokens: 1000 and 600.
struct World {
  Scratch scratch;
  std::string a = write("a", 40, 0), b = write("b", 24, 5000);

  std::string write(const std::string& name, int documents, int32_t next) {
    std::vector<std::vector<int32_t>> all(static_cast<size_t>(documents), std::vector<int32_t>(25));
    for (auto& d : all)
      for (int32_t& t : d) t = next++;
    return scratch.write(name, all);
  }
  Deck deck(const Texts& overrides, bool one = false) const {
    const std::string text =
        "run.steps = 100\nmodel = { family = \"llama\", layers = 4, hidden = 32, heads = 4, kv_heads = 2, ffn = 64, "
        "vocab = 65 }\n"
        "data = { train = [" +
        (one ? "\"" + a + "\"" : "\"" + a + "\", \"" + b + "\"") +
        "], sequence = 4, split = \"1,0,0\" }\nbatch.global = 8\n";
    return Deck::parse(text, "small.toml", overrides);
  }
};

/// Lives of a run: each begins where the one before stored.
struct Lives {
  TrainState state;
  std::vector<Where> seen;  ///< of all lives, sample by sample
  Texts notes;

  /// One life up to `until`, saved at its end.
  void live(const Deck& deck, int64_t until, int64_t global = 8) {
    const int64_t steps = deck[keys::run::steps];
    DataPosition at =
        state.step == 0 ? DataPosition::start(deck, steps, global) : DataPosition::resume(deck, state, steps, global);
    const SampleStream stream = SampleStream::train(at.settings());
    at.opened(stream);
    notes = at.notes();
    for (; state.step < until; ++state.step) {
      for (int64_t i = at.next_sample(); i < at.next_sample() + global; ++i) seen.push_back(where(stream, i));
      state.tokens += global * stream.sequence();
      at.advance(global);
    }
    at.store(state);
  }
  static Where where(const SampleStream& stream, int64_t i) {
    const SamplePiece p = stream.pieces(i).front();
    return {p.source, p.document, p.sequence, p.offset};
  }
};

int64_t ledger_sum(const TrainState& state) {
  int64_t sum = 0;
  const DataRecord record = *read_data_record(state);
  for (const PhaseRecord& p : record.phases)
    sum += p.sequence * std::accumulate(p.drawn.begin(), p.drawn.end(), int64_t{0});
  return sum;
}

const Texts mixed{"data.weights=[0.7,0.3]", "run.steps=20"};
Texts with(Texts a, const Texts& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// case O070, case O071: any stop, also several, also at the end of an epoch; the second source passes its end at step
// 13
TEST(Position, GoesOnWithTheSameSamples) {
  const World world;
  const Deck deck = world.deck({"data.weights=[0.3,0.7]", "run.steps=30"});
  Lives straight;
  straight.live(deck, 30);
  EXPECT_EQ(straight.seen.size(), 240u);
  EXPECT_LT(std::set<Where>(straight.seen.begin(), straight.seen.end()).size(), 240u);  // epochs do repeat
  for (int64_t stop = 1; stop < 30; ++stop) {
    Lives run;
    for (int64_t until : {stop, stop + 1, int64_t{30}}) run.live(deck, until);
    EXPECT_EQ(run.seen, straight.seen) << stop;
    EXPECT_TRUE(run.notes.empty());
    EXPECT_EQ(ledger_sum(run.state), run.state.tokens);
  }
}

// After a rollback samples are passed over: the rest is the stream without them, in order, also over stops.
TEST(Position, PassesOverSamplesAfterARollback) {
  const World world;
  const Deck deck = world.deck({"data.weights=[0.5,0.5]", "data.samples=240", "run.steps=20"});
  Lives straight;
  straight.live(world.deck({"data.weights=[0.5,0.5]", "data.samples=240", "run.steps=23"}), 23);
  Lives run;
  run.live(deck, 6);
  {
    DataPosition at = DataPosition::resume(deck, run.state, 20, 8);
    const SampleStream stream = SampleStream::train(at.settings());
    at.opened(stream);
    EXPECT_FALSE(at.skip(8 * 1000)) << "the stream has not as many";
    EXPECT_EQ(at.next_sample(), 48);
    EXPECT_TRUE(at.skip(24));
    EXPECT_EQ(at.next_sample(), 72);
    EXPECT_EQ(at.place_of(6)->first_sample, 40);
    EXPECT_EQ(at.place_of(7)->first_sample, 72);
    at.store(run.state);
  }
  run.live(deck, 11);
  run.live(deck, 20);
  std::vector<Where> expected = straight.seen;
  expected.erase(expected.begin() + 48, expected.begin() + 72);
  EXPECT_EQ(run.seen, expected);
  const DataRecord record = *read_data_record(run.state);
  EXPECT_EQ(record.phases[0].skipped, 24);
  const std::string ledger = ledger_text(record);
  EXPECT_NE(ledger.find("24 of these samples were passed over"), std::string::npos) << ledger;
  EXPECT_NE(ledger.find(" " + std::to_string(run.state.tokens) + "\n"), std::string::npos) << ledger;
  // passed over twice at one place
  DataPosition at = DataPosition::resume(deck, run.state, 21, 8);
  const SampleStream stream = SampleStream::train(at.settings());
  at.opened(stream);
  EXPECT_TRUE(at.skip(8) && at.skip(8));
  EXPECT_EQ(at.place_of(21)->first_sample, 20 * 8 + 24 + 16);
}

// case O072: another batch.global goes on with the next sample, and each step's samples can be told afterwards
TEST(Position, AnotherBatchGoesOnWithTheNextSample) {
  const World world;
  const Deck deck = world.deck({"data.weights=[0.5,0.5]", "data.samples=240", "run.steps=15"}),
             longer = world.deck({"data.weights=[0.5,0.5]", "data.samples=240", "run.steps=21"});
  Lives straight, run;
  straight.live(deck, 15, 16);
  run.live(deck, 6, 16);
  run.live(longer, 18, 8);
  run.live(longer, 21, 16);
  EXPECT_EQ(run.seen, straight.seen);
  const DataPosition at = DataPosition::resume(deck, run.state, 40, 16);
  const auto place = [&](int64_t step) {
    const auto p = at.place_of(step);
    return p ? std::vector<int64_t>{p->phase, p->first_sample, p->samples} : std::vector<int64_t>{};
  };
  EXPECT_EQ(place(1), (std::vector<int64_t>{0, 0, 16}));
  EXPECT_EQ(place(6), (std::vector<int64_t>{0, 80, 16}));
  EXPECT_EQ(place(7), (std::vector<int64_t>{0, 96, 8}));
  EXPECT_EQ(place(18), (std::vector<int64_t>{0, 184, 8}));
  EXPECT_EQ(place(19), (std::vector<int64_t>{0, 192, 16}));
  EXPECT_EQ(place(22), (std::vector<int64_t>{0, 240, 16}));
  EXPECT_EQ(place(0), std::vector<int64_t>{});
}

TEST(Position, LengthIsKeptFromTheFirstStart) {
  const World world;
  Lives run;
  run.live(world.deck(mixed), 5);
  EXPECT_EQ(run.state.samples, 160);
  EXPECT_EQ(DataPosition::resume(world.deck(with(mixed, {"run.steps=22"})), run.state, 22, 8).samples(), 160);
  // the epochs hold 331 samples of this mixture: 41 steps
  run.live(world.deck(with(mixed, {"run.steps=41"})), 8);
  EXPECT_ERROR(UsageError, run.live(world.deck(with(mixed, {"run.steps=50"})), 9), "data.samples = 160",
               "run.steps = 50", "needs 400");
}

TEST(Phases, AnotherSequenceBeginsAStreamOfItsOwn) {
  const World world;
  Lives run;
  run.live(world.deck(mixed), 12);
  const Deck longer = world.deck(with(mixed, {"data.sequence=64", "data.seed=1234"}));
  Lives later = run;
  later.seen.clear();
  later.live(longer, 14, 1);  // sequences x 16, batch / 8
  ASSERT_EQ(later.notes.size(), 3u);
  for (const char* words : {"phase 1 begins at step 13", "sequence 64 (was 4)", "8 samples", "seed 1235"})
    EXPECT_NE(later.notes[0].find(words), std::string::npos) << words << ": " << later.notes[0];

  DataSettings fresh;  // what the stream has to be
  fresh.train = {world.a, world.b};
  fresh.weights = {0.7, 0.3};
  fresh.sequence = 64;
  fresh.split = "1,0,0";
  fresh.seed = 1235;
  fresh.samples = 8;
  const SampleStream stream = SampleStream::train(fresh);
  for (int64_t i = 0; i < 2; ++i) EXPECT_EQ(later.seen[static_cast<size_t>(i)], Lives::where(stream, i));
  EXPECT_EQ(later.state.tokens, 12 * 8 * 4 + 2 * 64);
  EXPECT_EQ(ledger_sum(later.state), later.state.tokens);

  later.live(longer, 20, 1);  // inside phase 1
  ASSERT_EQ(later.notes.size(), 1u);
  EXPECT_NE(later.notes[0].find("phase 1, since step 13"), std::string::npos) << later.notes[0];
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(later.seen[static_cast<size_t>(i)], Lives::where(stream, i)) << i;

  const DataPosition at = DataPosition::resume(longer, later.state, 20, 1);
  EXPECT_EQ(at.phase(), 1);
  EXPECT_EQ(at.samples(), 8);
  EXPECT_EQ(at.place_of(12)->phase, 0);
  EXPECT_EQ(at.place_of(12)->first_sample, 88);
  EXPECT_EQ(at.place_of(13)->phase, 1);
  EXPECT_EQ(at.place_of(13)->first_sample, 0);
  EXPECT_EQ(at.place_of(20)->first_sample, 7);
  const SampleStream first = SampleStream::train(at.settings(0));
  for (int64_t i = 0; i < 96; ++i) EXPECT_EQ(Lives::where(first, i), run.seen[static_cast<size_t>(i)]);
  const std::string table = ledger_text(at.record());
  for (const std::string& words : {world.a, world.b, std::string("1235"), std::to_string(later.state.tokens)})
    EXPECT_NE(table.find(words), std::string::npos) << words << " in\n" << table;
}

TEST(Phases, SamplesOfEachAreItsOwn) {
  const World world;
  Lives run;
  run.live(world.deck(with(mixed, {"data.samples=200"})), 4);
  const Texts longer = with(mixed, {"data.sequence=8", "data.samples=100", "data.weights=[0.5,0.5]"});
  run.live(world.deck(longer), 6);
  EXPECT_EQ(run.state.samples, 100);
  EXPECT_EQ(DataPosition::resume(world.deck(longer), run.state, 20, 8).settings(0).samples, 200);
  EXPECT_EQ(DataPosition::resume(world.deck(longer), run.state, 20, 8).settings(0).weights,
            (std::vector<double>{0.7, 0.3}));
  EXPECT_ERROR(UsageError, DataPosition::resume(world.deck(with(longer, {"data.samples=200"})), run.state, 20, 8),
               "data.samples was 100", "200 now");
  run.live(world.deck(with(mixed, {"data.sequence=4"})), 7);  // back to the short one: a third phase
  EXPECT_EQ(read_data_record(run.state)->phases.size(), 3u);
  EXPECT_EQ(ledger_sum(run.state), run.state.tokens);
  run.live(world.deck(with(mixed, {"data.sequence=4"})), 20);
  EXPECT_ERROR(UsageError, run.live(world.deck(longer), 20), "data.sequence was 4 and is 8", "run.steps = 20");
}

// case O072: no sample comes twice and none is left out
TEST(Weights, AChangeRepeatsNoSampleAndSkipsNone) {
  const World world;
  const Texts changed{"data.weights=[0.4,0.6]", "run.steps=20"};
  Lives run;
  run.live(world.deck(mixed), 10);
  std::vector<int64_t> before(2, 0), after(2, 0);
  for (const Where& w : run.seen) ++before[static_cast<size_t>(std::get<0>(w))];
  Lives again = run, other = run;
  run.live(world.deck(changed), 20);
  ASSERT_EQ(run.notes.size(), 3u);
  EXPECT_NE(run.notes[1].find("share 0.4 (was 0.7), 56 samples drawn, 88 wanted by step 20"), std::string::npos)
      << run.notes[1];
  EXPECT_EQ(std::set<Where>(run.seen.begin(), run.seen.end()).size(), 160u);  // one epoch each: all are different

  // the samples of a source are the first of its own order, one after another
  DataSettings whole = DataPosition::resume(world.deck(changed), run.state, 20, 8).settings();
  whole.changes.clear();
  const SampleStream unchanged = SampleStream::train(whole);
  std::map<int64_t, std::vector<Where>> orders, seen;
  for (int64_t i = 0; i < unchanged.available(); ++i) {
    const Where w = Lives::where(unchanged, i);
    orders[std::get<0>(w)].push_back(w);
  }
  for (const Where& w : run.seen) seen[std::get<0>(w)].push_back(w);
  for (auto& [source, list] : seen) {
    ASSERT_LE(list.size(), orders[source].size());
    orders[source].resize(list.size());
    EXPECT_EQ(list, orders[source]) << source;
  }
  // the greedy rule begins anew: 80 samples by 0.4 and 0.6
  for (size_t i = 80; i < 160; ++i) ++after[static_cast<size_t>(std::get<0>(run.seen[i]))];
  EXPECT_EQ(before, (std::vector<int64_t>{56, 24}));
  EXPECT_EQ(after, (std::vector<int64_t>{32, 48}));

  // stopped again and again behind the change
  for (int64_t until : {11, 14, 15, 20}) {
    again.live(world.deck(changed), until);
    EXPECT_EQ(again.notes.empty(), until != 11);
  }
  EXPECT_EQ(again.seen, run.seen);
  EXPECT_EQ(read_data_record(again.state)->phases[0].changes.size(), 1u);
  EXPECT_EQ(ledger_sum(again.state), again.state.tokens);

  // several changes; the same shares in another scale are none
  other.live(world.deck(changed), 13);
  other.live(world.deck({"data.weights=[4,6]", "run.steps=20"}), 15);
  EXPECT_TRUE(other.notes.empty());
  other.live(world.deck(mixed), 20);
  EXPECT_EQ(read_data_record(other.state)->phases[0].changes.size(), 2u);
  EXPECT_EQ(std::set<Where>(other.seen.begin(), other.seen.end()).size(), 160u);
  const DataPosition at = DataPosition::resume(world.deck(mixed), other.state, 20, 8);
  const SampleStream stream = SampleStream::train(at.settings());
  for (int64_t step = 1; step <= 20; ++step)
    for (int64_t i = at.place_of(step)->first_sample; i < step * 8; ++i)
      EXPECT_EQ(Lives::where(stream, i), other.seen[static_cast<size_t>(i)]);
}

TEST(Weights, ToAndFromProportionToTokens) {
  const World world;
  Lives run;
  run.live(world.deck({"run.steps=20"}), 4);
  run.live(world.deck(mixed), 8);
  run.live(world.deck({"run.steps=20"}), 20);
  EXPECT_EQ(std::set<Where>(run.seen.begin(), run.seen.end()).size(), 160u);
  const std::vector<WeightChange> changes = read_data_record(run.state)->phases[0].changes;
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0], (WeightChange{32, {0.7, 0.3}}));
  EXPECT_EQ(changes[1], (WeightChange{64, {}}));
}

// An order is as long as it was laid out: more is refused with numbers, what its epochs hold is not.
TEST(Weights, ASourceThatIsTooShortIsRefused) {
  const World world;
  Lives run;
  run.live(world.deck({"data.weights=[0.9,0.1]", "run.steps=24"}), 4);  // b holds 149 samples, laid out for 21
  Lives allowed = run;
  allowed.live(world.deck({"data.weights=[0.1,0.9]", "run.steps=24"}), 22);
  EXPECT_EQ(std::set<Where>(allowed.seen.begin(), allowed.seen.end()).size(), 176u);
  EXPECT_ERROR(UsageError, run.live(world.deck({"data.weights=[0.01,0.99]", "run.steps=24"}), 24), world.b,
               "share 0.99 from sample 32 on", "laid out for 21", "1 epochs hold 149", "4 are drawn",
               "run.steps = 24 needs 162", "run.steps to 22");
}

TEST(Refused, WhatMakesAnotherStream) {
  const World world;
  Lives run;
  run.live(world.deck(with(mixed, {"data.samples=170"})), 3);
  const auto refused = [&](const Texts& overrides, bool one = false) -> std::string {
    try {
      DataPosition::resume(world.deck(with({"data.samples=170", "run.steps=20"}, overrides), one), run.state, 20, 8);
    } catch (const UsageError& e) {
      EXPECT_TRUE(e.agreed());
      return e.what();
    }
    return "";
  };
  EXPECT_NE(refused({"data.seed=4321"}).find("data.seed was 1234 when the checkpoint was written, and is 4321 now"),
            std::string::npos);
  EXPECT_NE(refused({"data.sequence=8", "data.seed=4321"}).find("data.seed was 1234"), std::string::npos);
  EXPECT_NE(refused({"data.split='9,1'"}).find("data.split was 1,0,0"), std::string::npos);
  EXPECT_NE(refused({"data.samples=171"}).find("data.samples was 170"), std::string::npos);
  EXPECT_NE(refused({}, true).find(
                "the number of prefixes in data.train was 2 when the checkpoint was written, and is 1 now"),
            std::string::npos);
  EXPECT_EQ(refused({}), "");
}

TEST(Refused, AnotherDatasetUnderTheSameName) {
  World world;
  Lives run;
  run.live(world.deck(mixed), 3);
  world.write("b", 24, 7);  // other tokens: not seen by their counts
  run.live(world.deck(mixed), 4);
  world.write("b", 25, 5000);
  EXPECT_ERROR(DataError, run.live(world.deck(mixed), 5), world.b, "data.train[1]", "25 documents with 625 tokens",
               "began with 24 documents with 600 tokens");
  EXPECT_ERROR(DataError, run.live(world.deck(with(mixed, {"data.sequence=8"})), 5), "25 documents with 625 tokens");
}

TEST(Refused, AStateThatContradictsItself) {
  const World world;
  Lives run;
  run.live(world.deck(mixed), 3);
  const std::string good = run.state.strings.at(data_record_key);
  const auto damaged = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    run.state.strings[data_record_key] = text;
  };
  damaged("\"drawn\":[17,7]", "\"drawn\":[16,7]");
  EXPECT_ERROR(DataError, run.live(world.deck(mixed), 4), "phase 0", "23 samples of 24");
  damaged("\"drawn\":[17,7]", "\"drawn\":[16,8]");
  EXPECT_ERROR(DataError, run.live(world.deck(mixed), 4), world.a, "16 of its samples", "gives 17");
  damaged("\"version\":1", "\"version\":2");
  EXPECT_ERROR(DataError, run.live(world.deck(mixed), 4), "version 2");
  damaged("\"seed\"", "\"sd\"");
  EXPECT_ERROR(DataError, run.live(world.deck(mixed), 4), "data_position cannot be read");
}

/// The state as checkpoints had it before there was a record.
TrainState old_state(const DataSettings& s, int64_t step, int64_t next, const std::string& weights) {
  TrainState state;
  state.step = step;
  state.samples = s.samples;
  state.integers["next_sample"] = next;
  state.strings = {{"stream.sequence", std::to_string(s.sequence)},
                   {"stream.seed", std::to_string(s.seed)},
                   {"stream.split", s.split},
                   {"stream.sources", std::to_string(s.train.size())},
                   {"stream.weights", weights},
                   {"stream.samples", std::to_string(s.samples)}};
  return state;
}

TEST(OldCheckpoints, GoOnExactly) {
  const World world;
  for (const bool given : {true, false}) {
    const Texts text = given ? mixed : Texts{"run.steps=20"}, changed{"data.weights=[0.4,0.6]", "run.steps=20"};
    Lives straight, record, old;
    straight.live(world.deck(text), 20);
    record.live(world.deck(text), 9);
    const DataSettings settings = DataPosition::start(world.deck(text), 20, 8).settings();
    const TrainState state = old_state(settings, 9, 72, given ? "0.69999999999999996 0.29999999999999999 " : "");
    for (Lives* run : {&old, &record}) run->seen.assign(straight.seen.begin(), straight.seen.begin() + 72);
    old.state = state;
    old.state.tokens = 9 * 8 * 4;
    Lives phase = old, weights = old;
    old.live(world.deck(text), 20);
    EXPECT_EQ(old.seen, straight.seen);
    EXPECT_TRUE(old.notes.empty());
    EXPECT_EQ(old.state.strings.count("stream.seed"), 0u);
    EXPECT_EQ(ledger_sum(old.state), old.state.tokens);
    // what a checkpoint of today would have said
    phase.live(world.deck(with(text, {"data.sequence=8"})), 20);
    Lives newer = record;
    newer.live(world.deck(with(text, {"data.sequence=8"})), 20);
    EXPECT_EQ(phase.notes, newer.notes);
    EXPECT_EQ(phase.seen, newer.seen);
    EXPECT_EQ(phase.state.strings, newer.state.strings);
    weights.live(world.deck(changed), 20);
    record.live(world.deck(changed), 20);
    EXPECT_EQ(weights.seen, record.seen);
    EXPECT_EQ(weights.state.strings, record.state.strings);
    EXPECT_ERROR(UsageError, DataPosition::resume(world.deck(with(text, {"data.seed=7"})), state, 20, 8),
                 "data.seed was 1234", "7 now");
  }
}

TEST(OldCheckpoints, WhatIsNotKnownIsNotTold) {
  const World world;
  const DataSettings settings = DataPosition::start(world.deck(mixed), 20, 8).settings();
  const TrainState state =
      old_state(settings, 9, 71, "0.69999999999999996 0.29999999999999999 ");  // several batch sizes
  const DataPosition at = DataPosition::resume(world.deck(mixed), state, 20, 8);
  EXPECT_FALSE(at.place_of(9));
  EXPECT_EQ(at.place_of(10)->first_sample, 71);
  // converted: there was no stream
  TrainState converted;
  converted.step = 7;
  const DataPosition fresh = DataPosition::resume(world.deck(mixed), converted, 20, 8);
  EXPECT_EQ(fresh.next_sample(), 0);
  EXPECT_EQ(fresh.samples(), 160);
  EXPECT_EQ(fresh.place_of(8)->first_sample, 0);
}

TEST(Ledger, RepetitionOfWholeEpochs) {
  // 1000 tokens; orders of one epoch: samples do not repeat within a phase
  const auto of = [](const std::vector<Draw>& before, const Draw& now) {
    const Repetition r = repetition(1000, before, now);
    return std::pair{r.least, std::lround(r.expected)};
  };
  EXPECT_EQ(of({{4, 100, 100}}, {8, 50, 50}), (std::pair{int64_t{0}, 160l}));    // 400 of 1000 seen, 400 drawn
  EXPECT_EQ(of({{4, 200, 200}}, {8, 50, 50}), (std::pair{int64_t{200}, 320l}));  // 200 fresh ones are left at most
  // one and a half epochs: the last is apart, so 1000 are seen, and all of it again
  EXPECT_EQ(of({{4, 375, 375}}, {8, 50, 50}), (std::pair{int64_t{400}, 400l}));
  // two epochs shuffled together, half of them drawn: a token is missed by chance 1/4
  EXPECT_EQ(of({{4, 250, 499}}, {8, 50, 50}), (std::pair{int64_t{0}, 300l}));
  // two phases of 400 leave 360; a third of 1000 sees the other 640 again
  EXPECT_EQ(of({{4, 100, 100}, {4, 100, 100}}, {4, 249, 249}), (std::pair{int64_t{396}, 637l}));
}

/// The estimate against the streams themselves.
TEST(Ledger, ExpectationIsNearWhatStreamsDo) {
  const World world;
  for (const auto& [first, now] : {std::pair{int64_t{150}, int64_t{100}},
                                   {int64_t{240}, int64_t{245}},
                                   {int64_t{300}, int64_t{200}},
                                   {int64_t{470}, int64_t{30}}}) {
    double again = 0;
    const int trials = 20;
    for (int seed = 0; seed < trials; ++seed) {
      DataSettings s;
      s.train = {world.a};
      s.split = "1,0,0";
      s.sequence = 4;
      std::set<std::pair<int64_t, int64_t>> seen;  // document, offset
      for (const int64_t n : {first, now}) {
        s.samples = n;
        s.seed = 2 * seed + (n == now);
        const SampleStream stream = SampleStream::train(s);
        for (int64_t i = 0; i < n; ++i) {
          int64_t left = 4;  // inputs
          for (const SamplePiece& p : stream.pieces(i))
            for (int64_t t = 0; t < p.tokens && left > 0; ++t, --left)
              if (!seen.emplace(p.document, p.offset + t).second && n == now) again += 1.0 / trials;
        }
      }
    }
    const Repetition r = repetition(1000, {{4, first, first}}, {4, now, now});
    EXPECT_NEAR(again, r.expected, 40) << first << " " << now;
    EXPECT_GE(again, static_cast<double>(r.least) - 8);
  }
}

TEST(Ledger, PhaseTellsWhatIsSeenAgain) {
  const World world;
  Lives run;
  run.live(world.deck({"run.steps=20"}, true), 20);
  run.live(world.deck({"run.steps=22", "data.sequence=100"}, true), 22, 4);
  ASSERT_EQ(run.notes.size(), 2u);
  EXPECT_NE(run.notes[1].find(world.a + ": earlier phases drew 640 tokens (0.64 epochs of 1000), this one will draw "
                                        "800 (0.80 epochs): seen again at least 440, about 512 expected"),
            std::string::npos)
      << run.notes[1];
  EXPECT_EQ(ledger_sum(run.state), 640 + 800);
}

}  // namespace
}  // namespace orthant
