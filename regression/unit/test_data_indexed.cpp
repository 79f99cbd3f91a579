// Dataset files: what is written is read back, and every kind of damage is refused by name.
// labels: smoke asan
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <limits>

#include "data/token_file.hpp"
#include "data/tokenize_files.hpp"
#include "data_fixture.hpp"
#include "orthant/data.hpp"

namespace orthant {
namespace {

using testing::content;
using testing::Scratch;
using testing::sequences_of;
using Documents = std::vector<std::vector<int32_t>>;

std::string golden(const std::string& name) { return std::string(ORTHANT_REGRESSION_DIR) + "/goldens/data/" + name; }

/// A dataset with one of its files changed.
class Damaged {
 public:
  Damaged() : prefix(scratch.write("d", {{1, 2, 3}, {4, 5}, {6}}, TokenType::u16)) {}
  template <typename T>
  void poke(size_t at, T value) {
    edit(".idx", [&](std::string& bytes) { std::memcpy(bytes.data() + at, &value, sizeof value); });
  }
  void edit(const std::string& end, const std::function<void(std::string&)>& change) {
    auto bytes = content(prefix + end);
    change(bytes);
    std::ofstream(prefix + end, std::ios::binary) << bytes;
  }
  Scratch scratch;
  std::string prefix;
};

constexpr size_t lengths_at = 34, offsets_at = 34 + 4 * 3, boundaries_at = 34 + 12 * 3;

TEST(Indexed, GoldenFiles) {
  const IndexedDataset kjv(golden("kjv"));
  EXPECT_EQ(kjv.type(), TokenType::u16);
  EXPECT_EQ(kjv.documents(), 187);
  EXPECT_EQ(kjv.sequences(), 187);
  EXPECT_EQ(kjv.tokens(), 815288);
  EXPECT_EQ(IndexedDataset(golden("ruth")).documents(), 4);
}

TEST(Indexed, RewritingGivesTheSameBytes) {
  Scratch scratch;
  const auto copy = scratch.write("copy", sequences_of(golden("ruth")), token_type_for(257));
  EXPECT_EQ(content(copy + ".bin"), content(golden("ruth.bin")));
  EXPECT_EQ(content(copy + ".idx"), content(golden("ruth.idx")));
  EXPECT_EQ(scratch.names(), (std::vector<std::string>{"copy.bin", "copy.idx"}));
}

// case O062: the type comes from the vocabulary on writing and from the header on reading
TEST(Indexed, EveryIdSurvives) {
  Scratch scratch;
  EXPECT_EQ(token_type_for(65499), TokenType::u16);
  for (const int64_t vocab : {65499, 65500, 65535, 65536, 65537, 119547}) {
    if (vocab >= 65500) {
      EXPECT_EQ(token_type_for(vocab), TokenType::i32);
    }
    Documents ids(1);
    for (const int64_t id : {int64_t{0}, int64_t{32767}, int64_t{32768}, int64_t{65535}, vocab - 1})
      if (id < vocab) ids[0].push_back(static_cast<int32_t>(id));
    EXPECT_EQ(sequences_of(scratch.write("v", ids, token_type_for(vocab))), ids) << vocab;
  }
  for (const auto type :
       {TokenType::u8, TokenType::i8, TokenType::i16, TokenType::i32, TokenType::i64, TokenType::u16}) {
    const Documents ids{{0, 1, 127}, {}, {5}};
    const auto prefix = scratch.write("t", ids, type);
    EXPECT_EQ(IndexedDataset(prefix).type(), type);
    EXPECT_EQ(sequences_of(prefix), ids) << token_type_name(type);
  }
  const Documents negative{{-1, -128}};
  for (const auto type : {TokenType::i8, TokenType::i16, TokenType::i32, TokenType::i64})
    EXPECT_EQ(sequences_of(scratch.write("n", negative, type)), negative);
  EXPECT_ERROR(DataError, scratch.write("x", {{65536}}, TokenType::u16), "token 65536", "u16");
  EXPECT_ERROR(DataError, scratch.write("x", {{-1}}, TokenType::u16), "token -1", "u16");
  EXPECT_ERROR(DataError, scratch.write("x", {{256}}, TokenType::u8), "token 256", "u8");
}

// case O059: byte offsets of four documents of 400 million four-byte tokens
TEST(Indexed, OffsetsNeedSixtyFourBits) {
  Scratch scratch;
  const auto prefix = scratch.path("big");
  write_index(prefix + ".idx", TokenType::i32, std::vector<int32_t>(4, 400000000), {0, 1, 2, 3, 4});
  const auto index = content(prefix + ".idx");
  for (int64_t s = 0; s < 4; ++s) {
    int64_t offset = 0;
    std::memcpy(&offset, index.data() + 34 + 16 + 8 * s, 8);
    EXPECT_EQ(offset, s * 1600000000);
  }
  std::ofstream(prefix + ".bin", std::ios::binary);
  std::error_code sparse;  // the file has holes only, so it takes no space
  std::filesystem::resize_file(prefix + ".bin", 6400000000u, sparse);
  ASSERT_FALSE(sparse) << "this file system cannot hold a sparse file of 6.4 GB: " << sparse.message();
  std::fstream bin(prefix + ".bin", std::ios::binary | std::ios::in | std::ios::out);
  const int32_t marks[] = {41, 42};
  bin.seekp(4800000000).write(reinterpret_cast<const char*>(&marks[0]), 4);
  bin.seekp(6399999996).write(reinterpret_cast<const char*>(&marks[1]), 4);
  bin.close();
  const IndexedDataset data(prefix);
  EXPECT_EQ(data.tokens(), 1600000000);
  int32_t token = 0;
  data.read(3, 0, 1, &token);
  EXPECT_EQ(token, 41);
  data.read(3, 399999999, 1, &token);
  EXPECT_EQ(token, 42);
}

TEST(Indexed, DocumentsOfSeveralSequencesAndOfNone) {
  Scratch scratch;
  const auto prefix = scratch.path("m");
  IndexedWriter writer(prefix, TokenType::u16);
  const int32_t tokens[] = {1, 2, 3};
  writer.append(tokens, 2);
  writer.append(tokens + 2, 1);
  writer.end_sequence();
  writer.append(tokens, 1);
  writer.end_sequence();
  writer.end_document();
  writer.end_document();  // an empty one
  writer.append(tokens, 3);
  writer.end_sequence();
  writer.end_document();
  writer.finish();
  const IndexedDataset data(prefix);
  EXPECT_EQ(data.documents(), 3);
  EXPECT_EQ(data.sequences(), 3);
  EXPECT_EQ(data.document_of(0), 0);
  EXPECT_EQ(data.document_of(1), 0);
  EXPECT_EQ(data.document_of(2), 2);
  EXPECT_EQ(sequences_of(prefix), (Documents{{1, 2, 3}, {1}, {1, 2, 3}}));
}

TEST(Damage, MissingAndCutFiles) {
  Scratch scratch;
  EXPECT_ERROR(DataError, IndexedDataset(scratch.path("no")), "no.idx", "cannot be opened", "needs both");
  Damaged d;
  EXPECT_ERROR(DataError, IndexedDataset(d.prefix + ".bin"), "leave .bin off");
  d.edit(".bin", [](std::string& b) { b.resize(b.size() - 1); });
  EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "sequence 2 (offset 10, 1 tokens of 2 bytes)", "d.bin",
               "11 bytes long");
  d.edit(".bin", [](std::string& b) { b += "abc"; });
  EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "14 bytes long", "12 bytes of u16", "do not belong together");
  std::filesystem::remove(d.prefix + ".bin");
  EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "d.bin", "cannot be opened");
  std::filesystem::create_directory(d.prefix + ".bin");
  EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "d.bin", "not a plain file");
}

TEST(Damage, IndexCutAnywhereIsRefused) {
  Damaged d;
  const auto whole = content(d.prefix + ".idx");
  for (size_t n = 0; n < whole.size(); ++n) {
    std::ofstream(d.prefix + ".idx", std::ios::binary) << whole.substr(0, n);
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "d.idx", "truncated");
  }
}

TEST(Damage, HeaderFields) {
  {
    Damaged d;
    d.poke(0, 'X');
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "d.idx", "magic", "MMIDIDX");
  }
  {
    Damaged d;
    d.edit(".idx", [](std::string& b) { b.replace(0, 6, "TNTIDX"); });
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "TNTIDX", "older");
  }
  {
    Damaged d;
    d.poke(9, uint64_t{2});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "version is 2", "only version 1");
  }
  {
    Damaged d;
    d.poke(17, uint8_t{6});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "token type is 6", "float64");
  }
  {
    Damaged d;
    d.poke(17, uint8_t{7});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "token type is 7", "float32");
  }
  {
    Damaged d;
    d.poke(17, uint8_t{9});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "token type is 9", "known codes");
  }
  {
    Damaged d;
    d.poke(17, uint8_t{0});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "token type is 0");
  }
  {
    Damaged d;
    d.poke(17, uint8_t{4});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "ends after");
  }  // i32 instead of u16
  {
    Damaged d;
    d.poke(18, std::numeric_limits<uint64_t>::max() / 3);
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "sequences = 6148914691236517205");
  }
  {
    Damaged d;
    d.poke(26, uint64_t{5});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "boundaries = 5", "truncated");
  }
  {
    Damaged d;
    d.poke(26, uint64_t{3});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "8 bytes after its tables");
  }
  {
    Damaged d;
    d.edit(".idx", [](std::string& b) { b += std::string(3, '\0'); });
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "multimodal");
  }
}

TEST(Damage, Tables) {
  {
    Damaged d;
    d.poke(lengths_at + 4, int32_t{-2});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "lengths[1] is -2");
  }
  {
    Damaged d;
    d.poke(lengths_at, int32_t{2000000000});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "sequence 0", "2000000000 tokens");
  }
  // case O059: what a tool wrote that added offsets up in 32 bits
  {
    Damaged d;
    d.poke(offsets_at + 8, int64_t{-1094967296});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "offsets[1] is -1094967296", "32 bits");
  }
  {
    Damaged d;
    d.poke(offsets_at + 16, int64_t{11});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "sequence 2 (offset 11");
  }
  {
    Damaged d;
    d.poke(boundaries_at, int64_t{1});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "boundaries[0] is 1");
  }
  {
    Damaged d;
    d.poke(boundaries_at + 16, int64_t{0});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "boundaries[2] is 0 after 1");
  }
  {
    Damaged d;
    d.poke(boundaries_at + 24, int64_t{2});
    EXPECT_ERROR(DataError, IndexedDataset(d.prefix), "boundaries[3] is 2", "number of sequences, 3");
  }
}

// case O060: nothing to read
TEST(Damage, EmptyDatasets) {
  Scratch scratch;
  const auto prefix = scratch.path("e");
  write_index(prefix + ".idx", TokenType::u16, {}, {0});
  std::ofstream(prefix + ".bin", std::ios::binary);
  EXPECT_ERROR(DataError, IndexedDataset{prefix}, "empty dataset");
  EXPECT_ERROR(DataError, IndexedDataset(scratch.write("z", {{}, {}})), "all 2 sequences are empty");
}

TEST(Damage, WideTokensAreNamed) {
  Scratch scratch;
  const auto prefix = scratch.write("w", {{1}, {2, 3}}, TokenType::i64);
  auto bytes = content(prefix + ".bin");
  const int64_t wide = int64_t{1} << 31;
  std::memcpy(bytes.data() + 16, &wide, 8);
  std::ofstream(prefix + ".bin", std::ios::binary) << bytes;
  EXPECT_ERROR(DataError, sequences_of(prefix), "w.bin", "token 1 of sequence 1 (document 1) is 2147483648");
}

// case O061: joined files are the file of the joined documents
TEST(Merge, BoundariesAndBytes) {
  Scratch scratch;
  const Documents a{{1, 2, 3}, {4, 5, 6, 7}}, b{{8}, {9, 10}, {11, 12, 13, 14, 15}}, c{{16, 17}};
  const auto pa = scratch.write("a", a, TokenType::u16), pb = scratch.write("b", b, TokenType::u16),
             pc = scratch.write("c", c, TokenType::u16);
  Documents all = a;
  all.insert(all.end(), b.begin(), b.end());
  auto counts = merge_datasets({pa, pb}, scratch.path("ab"));
  EXPECT_EQ(counts.documents, 5);
  EXPECT_EQ(counts.tokens, 15);
  const auto whole = scratch.write("whole", all, TokenType::u16);
  EXPECT_EQ(content(scratch.path("ab.bin")), content(whole + ".bin"));
  EXPECT_EQ(content(scratch.path("ab.idx")), content(whole + ".idx"));
  const IndexedDataset ab(scratch.path("ab"));
  for (int64_t d = 0; d <= 5; ++d) EXPECT_EQ(ab.document_begin(d), d);
  all.insert(all.end(), c.begin(), c.end());
  merge_datasets({pa, pb, pc}, scratch.path("abc"));
  EXPECT_EQ(sequences_of(scratch.path("abc")), all);
}

// case O061: other widths are converted
TEST(Merge, WidthsAreConverted) {
  Scratch scratch;
  const auto small = scratch.write("s", {{1, 255}}, TokenType::u8),
             middle = scratch.write("m", {{40000}}, TokenType::u16),
             large = scratch.write("l", {{119546}}, TokenType::i32);
  EXPECT_EQ(merge_datasets({small, middle}, scratch.path("sm")).type, TokenType::u16);
  EXPECT_EQ(sequences_of(scratch.path("sm")), (Documents{{1, 255}, {40000}}));
  EXPECT_EQ(merge_datasets({small, middle, large}, scratch.path("sml")).type, TokenType::i32);
  EXPECT_EQ(sequences_of(scratch.path("sml")), (Documents{{1, 255}, {40000}, {119546}}));
  EXPECT_ERROR(UsageError, merge_datasets({small, middle}, small), "both an input and the output");
}

// case O086: a write that fails leaves nothing behind, and the error says where (a full disk fails the same way)
TEST(Writer, FailedWriteLeavesNothing) {
  Scratch scratch;
  EXPECT_ERROR(DataError, IndexedWriter(scratch.path("missing/x"), TokenType::u16), "missing/x.bin",
               "cannot be created");
  const auto kept = scratch.write("x", {{1, 2}});
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit tight = before;
  tight.rlim_cur = 1 << 20;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  std::string message;
  try {
    scratch.write("x", Documents(1, std::vector<int32_t>(1 << 20, 7)), TokenType::i32);
  } catch (const DataError& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(message.find("writing at byte"), std::string::npos) << message;
  EXPECT_EQ(scratch.names(), (std::vector<std::string>{"x.bin", "x.idx"}));
  EXPECT_EQ(sequences_of(kept), (Documents{{1, 2}}));
}

TEST(Writer, WithoutFinishNothingStays) {
  Scratch scratch;
  {
    IndexedWriter writer(scratch.path("half"), TokenType::u16);
    const int32_t token = 1;
    writer.append(&token, 1);
    writer.end_sequence();
  }
  EXPECT_TRUE(scratch.names().empty());
}

}  // namespace
}  // namespace orthant
