// The order of training samples: streams hashed by an independent implementation, epochs, splits, resume.
// labels: smoke asan
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>

#include "data/random_state.hpp"
#include "data/sha256.hpp"
#include "data/source_order.hpp"
#include "data/split.hpp"
#include "data_fixture.hpp"
#include "orthant/data.hpp"

namespace orthant {
namespace {

using testing::Scratch;
using Documents = std::vector<std::vector<int32_t>>;

std::string golden(const std::string& name) { return std::string(ORTHANT_REGRESSION_DIR) + "/goldens/data/" + name; }

Documents counting(std::initializer_list<int> lengths) {
  Documents all;
  int32_t next = 0;
  for (int n : lengths) {
    all.emplace_back(n);
    std::iota(all.back().begin(), all.back().end(), next);
    next += n;
  }
  return all;
}

DataSettings settings_for(const std::string& prefix, int64_t sequence, int64_t samples,
                          const std::string& split = "1,0,0") {
  DataSettings s;
  s.train = {prefix};
  s.sequence = sequence;
  s.samples = samples;
  s.split = split;
  return s;
}

std::vector<int32_t> row_of(const SampleStream& stream, int64_t i) {
  std::vector<int32_t> row(static_cast<size_t>(stream.sequence() + 1));
  stream.sample(i, row.data());
  return row;
}

TEST(RandomState, ShufflesLikeNumpy) {
  RandomState random(1234);
  std::vector<int32_t> items(10);
  std::iota(items.begin(), items.end(), 0);
  random.shuffle(items.data(), 10);
  EXPECT_EQ(items, (std::vector<int32_t>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
}

TEST(RandomState, DrawsTwoWordsAboveThirtyTwoBits) {
  std::mt19937 words(5);
  RandomState random(5);
  const uint64_t max = (uint64_t{1} << 40) - 1;
  const uint64_t high = words();
  EXPECT_EQ(random.interval(max), ((high << 32) | words()) & max);
}

TEST(Sha256, KnownMessages) {
  EXPECT_EQ(Sha256().hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 abc;
  abc.add("abc", 3);
  EXPECT_EQ(abc.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 million;  // one million times "a", in uneven pieces
  const std::string piece(997, 'a');
  size_t left = 1000000;
  while (left > 0) {
    const size_t n = std::min(left, piece.size());
    million.add(piece.data(), n);
    left -= n;
  }
  EXPECT_EQ(million.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Order, GoldenStreams) {
  const auto cases = nlohmann::json::parse(std::ifstream(golden("order.json")));
  ASSERT_EQ(cases.size(), 6u);
  for (const auto& c : cases) {
    SCOPED_TRACE(c["sha256"].get<std::string>());
    DataSettings s;
    for (const auto& p : c["train"]) s.train.push_back(golden(p));
    if (c.contains("weights")) s.weights = c["weights"].get<std::vector<double>>();
    s.sequence = c["sequence"];
    s.samples = c["samples"];
    s.seed = c["seed"];
    s.split = c["split"];
    auto stream = SampleStream::train(s);
    stream.check_vocab(257);
    EXPECT_EQ(stream_sha256(stream, s.samples), c["sha256"].get<std::string>());
    for (int64_t i = 0; i < 3; ++i) {
      auto row = row_of(stream, i);
      row.resize(12);
      EXPECT_EQ(row, c["first"][static_cast<size_t>(i)].get<std::vector<int32_t>>());
    }
    auto last = row_of(stream, s.samples - 1);
    last.resize(12);
    EXPECT_EQ(last, c["last"].get<std::vector<int32_t>>());
    EXPECT_GE(stream.available(), s.samples);
  }
}

TEST(Order, PrintedSamplesShowTokensDocumentsAndHash) {
  const auto stream = SampleStream::train(settings_for(golden("ruth"), 128, 50));
  std::ostringstream text;
  print_samples(text, stream, 50);
  EXPECT_NE(text.str().find("sha256 474e0b892ed4e93c2cdbb33541b558417e5cecd66b19be07ccf1226b8a14f47a"),
            std::string::npos);
  EXPECT_NE(text.str().find("tokens 32 99 111 117 110 116 114 121 32 111 102 32 …"), std::string::npos);
  EXPECT_NE(text.str().find("ruth  document "), std::string::npos);
}

// case O065: a sample holds sequence + 1 tokens, the next one starts at its last token
TEST(Order, SampleLengthAndLabelShift) {
  Scratch scratch;
  const auto prefix = scratch.write("one", counting({37}));
  const auto stream = SampleStream::train(settings_for(prefix, 8, 4));
  EXPECT_EQ(stream.available(), 4);
  std::set<int32_t> starts;
  for (int64_t i = 0; i < 4; ++i) {
    const auto row = row_of(stream, i);
    ASSERT_EQ(row.size(), 9u);
    EXPECT_EQ(row[0] % 8, 0);
    for (int32_t k = 0; k < 9; ++k) EXPECT_EQ(row[static_cast<size_t>(k)], row[0] + k);
    starts.insert(row[0]);
  }
  EXPECT_EQ(starts, (std::set<int32_t>{0, 8, 16, 24}));
  EXPECT_EQ(SampleStream::train(settings_for(scratch.write("33", counting({33})), 8, 1)).available(), 4);
  EXPECT_EQ(SampleStream::train(settings_for(scratch.write("32", counting({32})), 8, 1)).available(), 3);
  EXPECT_EQ(SampleStream::train(settings_for(scratch.write("17", counting({17})), 16, 1)).available(), 1);
  const auto small = scratch.write("16", counting({16}));
  EXPECT_ERROR(DataError, SampleStream::train(settings_for(small, 16, 1)), small, "16 tokens",
               "data.sequence + 1 = 17");
}

// case O066, case O060: samples run over documents of any length, empty ones included
TEST(Order, EveryTokenIsAnInputOnceAndALabelOnce) {
  Scratch scratch;
  for (const auto& lengths : {std::initializer_list<int>{37, 2, 1, 20}, {0, 37, 0, 0, 2, 1, 20, 0}}) {
    const auto stream = SampleStream::train(settings_for(scratch.write("d", counting(lengths)), 8, 7));
    ASSERT_EQ(stream.available(), 7);
    std::multiset<int32_t> inputs, labels;
    for (int64_t i = 0; i < 7; ++i) {
      const auto row = row_of(stream, i);
      inputs.insert(row.begin(), row.end() - 1);
      labels.insert(row.begin() + 1, row.end());
      int64_t tokens = 0;
      for (const auto& piece : stream.pieces(i)) {
        EXPECT_GT(piece.tokens, 0);
        tokens += piece.tokens;
      }
      EXPECT_EQ(tokens, 9);
    }
    EXPECT_EQ(inputs.size(), 56u);
    EXPECT_EQ(std::set<int32_t>(inputs.begin(), inputs.end()).size(), 56u);
    EXPECT_EQ(std::set<int32_t>(labels.begin(), labels.end()).size(), 56u);
  }
}

TEST(Order, PiecesNameTheDocuments) {
  Scratch scratch;
  const auto prefix = scratch.write("d", counting({5, 0, 4, 30}));
  const IndexedDataset data(prefix);
  const auto stream = SampleStream::train(settings_for(prefix, 6, 12));
  for (int64_t i = 0; i < 12; ++i) {
    std::vector<int32_t> joined;
    for (const auto& piece : stream.pieces(i)) {
      EXPECT_NE(piece.document, 1);
      std::vector<int32_t> run(static_cast<size_t>(piece.tokens));
      data.read(data.document_begin(piece.document), piece.offset, piece.tokens, run.data());
      joined.insert(joined.end(), run.begin(), run.end());
    }
    EXPECT_EQ(joined, row_of(stream, i));
  }
}

// case O071: a later epoch has another order, and position alone says what comes next
TEST(Order, LaterEpochsAreShuffledAnew) {
  Scratch scratch;
  const auto prefix = scratch.write("ten", counting({81}));  // 10 samples of 8
  const auto settings = settings_for(prefix, 8, 20);
  const auto stream = SampleStream::train(settings);
  std::vector<int32_t> starts;
  for (int64_t i = 0; i < 20; ++i) starts.push_back(row_of(stream, i)[0]);
  EXPECT_NE(std::vector<int32_t>(starts.begin(), starts.begin() + 10),
            std::vector<int32_t>(starts.begin() + 10, starts.end()));
  const auto again = SampleStream::train(settings);  // what a resumed run builds
  for (const int64_t from : {7, 10, 19})
    for (int64_t i = from; i < 20; ++i) EXPECT_EQ(row_of(again, i)[0], starts[static_cast<size_t>(i)]);
}

TEST(Order, LastEpochApartKeepsItsSequencesForTheEnd) {
  Scratch scratch;
  // 12 of 10 samples an epoch: only 2 from the second, below 0.8 x 10, so the first epoch comes whole and first
  const auto stream = SampleStream::train(settings_for(scratch.write("t", counting({81})), 8, 12));
  std::set<int32_t> first;
  for (int64_t i = 0; i < 10; ++i) first.insert(row_of(stream, i)[0]);
  EXPECT_EQ(first.size(), 10u);
  EXPECT_EQ(stream.available(), 20);
  EXPECT_TRUE(stream.holds(20));
  EXPECT_FALSE(stream.holds(21));
  EXPECT_ERROR(UsageError, row_of(stream, 20), "data.samples = 12", "past the 20 samples");
}

// case O072, case O070: the stream is indexed by the global sample alone, so any cut gives the same batches
TEST(Order, DoesNotDependOnHowItIsRead) {
  const auto stream = SampleStream::train(settings_for(golden("ruth"), 64, 64));
  const auto other = SampleStream::train(settings_for(golden("ruth"), 64, 64));
  for (int64_t i = 63; i >= 0; --i) EXPECT_EQ(row_of(other, i), row_of(stream, i));
}

// case O064: nothing is cached, so every setting acts at once
TEST(Order, EverySettingChangesTheStream) {
  Scratch scratch;
  const auto base = settings_for(golden("ruth"), 64, 40, "3,1,0");
  const auto hash = stream_sha256(SampleStream::train(base), 40);
  auto seed = base, split = base, length = base;
  seed.seed = 99;
  split.split = "1,1,0";
  length.sequence = 63;
  for (const auto& s : {seed, split, length}) EXPECT_NE(stream_sha256(SampleStream::train(s), 40), hash);
  const auto prefix = scratch.write("d", counting({40}));
  const auto before = row_of(SampleStream::train(settings_for(prefix, 8, 1)), 0);
  auto changed = counting({40});
  for (auto& token : changed[0]) token += 100;
  scratch.write("d", changed);
  EXPECT_NE(row_of(SampleStream::train(settings_for(prefix, 8, 1)), 0), before);
}

// case O067
TEST(Split, BadOnesAreRefused) {
  for (const char* bad : {"-1,1,0", "90,abc5,5", "0,0,0", "", "90,5,5,0", "90,,5", "90 5 5", "nan,1,1", "inf,1,0",
                          "1,0,0,", "90/5/5", "-0,1,0"})
    EXPECT_ERROR(UsageError, parse_split(bad), "data.split is \"" + std::string(bad) + "\"", "969,30,1");
}

// case O067
TEST(Split, PartsAreDisjointAndCoverAll) {
  for (const char* split : {"969,30,1", "949,50,1", "1,0,0", "90, 5, 5", "100", "1,1", "0,1,0", "0.5,0.25,0.25"})
    for (int64_t n = 1; n < 200; ++n) {
      const auto b = split_bounds(parse_split(split), n);
      EXPECT_EQ(b[0], 0);
      EXPECT_LE(b[0], b[1]);
      EXPECT_LE(b[1], b[2]);
      EXPECT_LE(b[2], b[3]);
      EXPECT_EQ(b[3], n) << split;
    }
  EXPECT_EQ(split_bounds(parse_split("949,50,1"), 10), (std::array<int64_t, 4>{0, 9, 10, 10}));
  EXPECT_EQ(split_bounds(parse_split("1,1,0"), 5)[1], 2);  // 2.5 and 3.5 go to even
  EXPECT_EQ(split_bounds(parse_split("1,1,0"), 7)[1], 4);
}

// case O067
TEST(Split, PartWithoutSequencesIsRefusedWhenUsed) {
  Scratch scratch;
  auto s = settings_for(scratch.write("few", counting({50, 50, 50})), 8, 4, "969,30,1");
  EXPECT_NO_THROW(SampleStream::train(s));
  EXPECT_ERROR(UsageError, SampleStream::valid(s, 4), "data.split", "3 sequences", "none is left for validation");
  s.split = "0,1,0";
  EXPECT_ERROR(UsageError, SampleStream::train(s), "none is left for training");
}

// case O073: a validation set of 10 samples serves any number, by more epochs, always from its sample 0
TEST(Valid, SecondPartOrItsOwnFiles) {
  Scratch scratch;
  auto s = settings_for(scratch.write("d", counting({100, 81})), 8, 4, "1,1,0");
  const auto part = SampleStream::valid(s, 25);
  EXPECT_EQ(part.available(), 30);
  for (int64_t i = 0; i < 25; ++i) EXPECT_GE(row_of(part, i)[0], 100);
  s.valid = {scratch.write("v", Documents{std::vector<int32_t>(30, 7)})};
  const auto own = SampleStream::valid(s, 2);
  EXPECT_EQ(row_of(own, 1), std::vector<int32_t>(9, 7));
  EXPECT_EQ(own.sources()[0], s.valid[0]);
}

// case O011: an id outside the vocabulary is named where it stands
TEST(Vocab, IdOutsideIsNamed) {
  Scratch scratch;
  for (const int32_t id : {64, 70000, -1}) {
    auto documents = counting({20, 20, 20});
    documents[2][13] = id;
    const auto prefix = scratch.write("v" + std::to_string(id), documents, TokenType::i32);
    auto stream = SampleStream::train(settings_for(prefix, 8, 7));
    for (int64_t i = 0; i < 7; ++i) EXPECT_NO_THROW(row_of(stream, i));  // unchecked until a vocabulary is set
    stream.check_vocab(64);
    EXPECT_ERROR(DataError, for (int64_t i = 0; i < 7; ++i) row_of(stream, i), prefix, "token 13 of document 2",
                 "is " + std::to_string(id), "vocabulary is 64");
  }
}

TEST(Settings, BadOnesAreNamed) {
  auto s = settings_for(golden("ruth"), 8, 4);
  s.train = {};
  EXPECT_ERROR(UsageError, SampleStream::train(s), "data.train is empty");
  s = settings_for(golden("ruth"), 0, 4);
  EXPECT_ERROR(UsageError, SampleStream::train(s), "data.sequence is 0");
  s = settings_for(golden("ruth"), 8, 0);
  EXPECT_ERROR(UsageError, SampleStream::train(s), "data.samples is 0");
  s = settings_for(golden("ruth"), 8, 4);
  s.seed = int64_t{1} << 32;
  EXPECT_ERROR(UsageError, SampleStream::train(s), "data.seed is 4294967296");
  s.seed = -1;
  EXPECT_ERROR(UsageError, SampleStream::train(s), "data.seed is -1");
  s = settings_for(golden("nothing"), 8, 4);
  EXPECT_ERROR(DataError, SampleStream::train(s), "nothing.idx", "cannot be opened");
}

}  // namespace
}  // namespace orthant
