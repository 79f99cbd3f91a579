// Text to datasets on several ranks: the bytes of the result never depend on how many there are.
// ranks: 1 3
// labels: asan
#include <gtest/gtest.h>
#include <mpi.h>

#include <iostream>
#include <sstream>

#include "data/tokenize_files.hpp"
#include "data_fixture.hpp"
#include "orthant/command.hpp"
#include "orthant/data.hpp"

namespace orthant {
namespace {

using testing::content;
using testing::Scratch;
using testing::sequences_of;
using Documents = std::vector<std::vector<int32_t>>;

std::string golden(const std::string& name) { return std::string(ORTHANT_REGRESSION_DIR) + "/goldens/data/" + name; }

/// One folder for all ranks, and the command as a user calls it.
class Tokenize : public ::testing::Test {
 protected:
  Tokenize() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    folder = own.path("");
    auto length = static_cast<int>(folder.size());
    MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD);
    folder.resize(static_cast<size_t>(length));
    MPI_Bcast(folder.data(), length, MPI_CHAR, 0, MPI_COMM_WORLD);
  }
  ~Tokenize() override { MPI_Barrier(MPI_COMM_WORLD); }

  std::string text(const std::string& name, const std::string& bytes) {
    if (rank == 0) std::ofstream(folder + name, std::ios::binary) << bytes;
    MPI_Barrier(MPI_COMM_WORLD);
    return folder + name;
  }
  /// Runs the command on all ranks; what it printed is in `printed`.
  int call(std::vector<std::string> args) {
    for (const auto& command : commands()) {
      if (command.name != "tokenize") continue;
      EXPECT_TRUE(command.many_ranks);
      std::ostringstream caught;
      auto* before = std::cout.rdbuf(caught.rdbuf());
      try {
        const int code = command.run({std::move(args), MPI_COMM_WORLD, rank, ranks});
        std::cout.rdbuf(before);
        printed = caught.str();
        MPI_Barrier(MPI_COMM_WORLD);
        return code;
      } catch (...) {
        std::cout.rdbuf(before);
        throw;
      }
    }
    ADD_FAILURE() << "the command tokenize is not registered";
    return -1;
  }
  int bytes(const std::string& output, std::vector<std::string> files, std::vector<std::string> more = {}) {
    std::vector<std::string> args{"--tokenizer", "bytes", "--output", folder + output};
    args.insert(args.end(), more.begin(), more.end());
    args.insert(args.end(), files.begin(), files.end());
    return call(args);
  }
  /// The same job by this rank alone.
  std::string alone(const std::string& name, const std::vector<std::string>& files,
                    std::optional<int32_t> eod = 256) {
    const auto tokenizer = make_tokenizer("bytes");
    TokenizeJob job;
    job.tokenizer = tokenizer.get();
    job.files = files;
    job.output = own.path(name);
    job.eod = eod;
    tokenize_files(job, MPI_COMM_SELF);
    return job.output;
  }
  void expect_same(const std::string& a, const std::string& b) {
    EXPECT_EQ(content(a + ".bin"), content(b + ".bin"));
    EXPECT_EQ(content(a + ".idx"), content(b + ".idx"));
  }
  /// Files in the common folder whose names begin with a prefix.
  std::vector<std::string> made(const std::string& start) {
    MPI_Barrier(MPI_COMM_WORLD);
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().filename().string().rfind(start, 0) == 0) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    MPI_Barrier(MPI_COMM_WORLD);
    return names;
  }

  Scratch own;
  std::string folder, printed;
  int rank = 0, ranks = 1;
};

std::vector<int32_t> ids(const std::string& text, bool eod = true) {
  std::vector<int32_t> out;
  make_tokenizer("bytes")->encode(text, out);
  if (eod) out.push_back(256);
  return out;
}

TEST_F(Tokenize, GoldenFileByteForByte) {
  ASSERT_EQ(bytes("ruth", {golden("ruth.jsonl")}), 0);
  expect_same(folder + "ruth", golden("ruth"));
  if (rank == 0) {
    EXPECT_NE(printed.find("documents 4  tokens 13008  type u16"), std::string::npos) << printed;
  }
  if (rank != 0) {
    EXPECT_EQ(printed, "");
  }
  EXPECT_EQ(made("ruth"), (std::vector<std::string>{"ruth.bin", "ruth.idx"}));
}

TEST_F(Tokenize, ManyFilesInInputOrder) {
  std::string lines;
  for (int k = 0; k < 200; ++k)
    lines += "{\"n\":" + std::to_string(k) + ",\"text\":\"" + std::string(static_cast<size_t>(k * 37 % 101), 'x') +
             std::to_string(k) + "\"}\n";
  const std::vector<std::string> files{text("a.jsonl", lines),
                                       text("empty.txt", ""),
                                       text("b.txt", "plain\r\ntext\n"),
                                       text("none.jsonl", ""),
                                       text("c.json", lines + "{\"text\":\"no newline at the end\"}"),
                                       text("d.txt", "last")};
  ASSERT_EQ(bytes("out/deeper/all", files), 0);
  expect_same(folder + "out/deeper/all", alone("all", files));
  const auto documents = sequences_of(folder + "out/deeper/all");
  ASSERT_EQ(documents.size(), 200u + 1 + 1 + 201 + 1);
  EXPECT_EQ(documents[200], ids(""));
  EXPECT_EQ(documents[201], ids("plain\r\ntext\n"));
  EXPECT_EQ(documents.back(), ids("last"));
}

// case O060: empty documents are a lone end of document, or dropped and counted; nothing but them is refused
TEST_F(Tokenize, EmptyDocuments) {
  const auto file = text(
      "e.jsonl",
      "{\"text\":\"\"}\n{\"text\":\"a\"}\n{\"text\":\"\"}\n{\"text\":\"\"}\n{\"text\":\"b\"}\n{\"text\":\"\"}\n");
  ASSERT_EQ(bytes("with", {file}), 0);
  EXPECT_EQ(sequences_of(folder + "with"), (Documents{{256}, {97, 256}, {256}, {256}, {98, 256}, {256}}));
  if (rank == 0) {
    EXPECT_NE(printed.find("empty documents 4 (each a lone"), std::string::npos) << printed;
  }
  ASSERT_EQ(bytes("without", {file}, {"--eod", "none"}), 0);
  EXPECT_EQ(sequences_of(folder + "without"), (Documents{{97}, {98}}));
  if (rank == 0) {
    EXPECT_NE(printed.find("empty documents 4 (dropped)"), std::string::npos) << printed;
  }
  const auto nothing = text("n.jsonl", "{\"text\":\"\"}\n{\"text\":\"\"}\n"), blank = text("b.jsonl", "\n \n\n");
  for (const char* eod : {"256", "none"})
    EXPECT_ERROR(DataError, bytes("no", {nothing}, {"--eod", eod}), "all 2 documents", "n.jsonl",
                 "no dataset was written");
  EXPECT_ERROR(DataError, bytes("no", {blank}), "holds no document", "3 blank lines");
  EXPECT_TRUE(made("no.").empty());
}

// case O063: a bad line is named with file, number and reason, on every rank, and nothing is left behind
TEST_F(Tokenize, BadLines) {
  std::string good;
  for (int k = 0; k < 30; ++k) good += "{\"text\":\"" + std::to_string(k) + "\"}\n\n";
  const std::vector<std::pair<std::string, std::string>> bad{{"{\"text\": 1}", "holds a number"},
                                                             {"\"context\"", "holds a string"},
                                                             {"[\"text\"]", "holds a list"},
                                                             {"42", "holds a number"},
                                                             {"{\"txt\":\"x\"}", "the keys are txt"},
                                                             {"{\"text\":\"ab", "cut off"},
                                                             {"{\"text\":\"a\"} {\"text\":\"b\"}", "exactly one"}};
  for (const auto& [line, reason] : bad) {
    const auto file = text("bad.jsonl", good + line + "\n" + good + "also bad\n");
    EXPECT_ERROR(DataError, bytes("x", {golden("ruth.jsonl"), file}), "bad.jsonl:61: ", reason);
    EXPECT_TRUE(made("x.").empty());
  }
  bool agreed = false;
  try {
    bytes("x", {folder + "bad.jsonl"});
  } catch (const Error& error) {
    agreed = error.agreed();
  }
  EXPECT_TRUE(agreed);
  const auto fine = text("fine.jsonl", good);
  ASSERT_EQ(bytes("fine", {fine}), 0);
  EXPECT_EQ(sequences_of(folder + "fine").size(), 30u);
  if (rank == 0) {
    EXPECT_NE(printed.find("blank lines 30"), std::string::npos) << printed;
  }
}

// case O103, case O104: bytes that are not UTF-8 stay, names of control tokens are text
TEST_F(Tokenize, OddText) {
  const std::string body = "x<|endoftext|></s>\xFF";
  const auto file = text("o.jsonl", "\xEF\xBB\xBF{\"text\":\"ok\"}\r\n{\"text\":\"" + body +
                                        "\"}\r\n{\"text\":\"\\ud800\"}\r\n{\"text\":\"last\"}");
  ASSERT_EQ(bytes("odd", {file}), 0);
  EXPECT_EQ(sequences_of(folder + "odd"), (Documents{ids("ok"), ids(body), ids("\xEF\xBF\xBD"), ids("last")}));
  if (rank == 0) {
    testing::expect_words(printed, {"not valid UTF-8 1", "o.jsonl:2", "half surrogates 1", "byte-order marks 1"},
                          __FILE__, __LINE__);
  }
  const auto plain = text("o.txt", "\xEF\xBB\xBF" + body);
  ASSERT_EQ(bytes("plain", {plain}), 0);
  EXPECT_EQ(sequences_of(folder + "plain"), (Documents{ids(body)}));
}

// a plain file is read in pieces of 16 MiB; a character across a cut is no invalid one
TEST_F(Tokenize, LargePlainFile) {
  std::string big(static_cast<size_t>((16 << 20) - 1), 'a');
  big += "\xC3\xA9 and the rest";
  const auto file = text("big.txt", big);
  ASSERT_EQ(bytes("big", {file}), 0);
  if (rank == 0) {
    EXPECT_EQ(printed.find("UTF-8"), std::string::npos) << printed;
  }
  EXPECT_EQ(IndexedDataset(folder + "big").tokens(), static_cast<int64_t>(big.size()) + 1);
}

TEST_F(Tokenize, KeyAndEnd) {
  const auto file = text("k.jsonl", "{\"body\":\"abc\",\"text\":\"no\"}\n");
  ASSERT_EQ(bytes("k", {file}, {"--key", "body", "--eod", "10"}), 0);
  EXPECT_EQ(sequences_of(folder + "k"), (Documents{{97, 98, 99, 10}}));
  EXPECT_ERROR(DataError, bytes("k2", {file}, {"--key", "page"}), "k.jsonl:1: ", "key \"page\" is missing",
               "body, text");
  EXPECT_ERROR(UsageError, bytes("k2", {file}, {"--eod", "257"}), "--eod 257", "0 to 256");
  EXPECT_ERROR(UsageError, bytes("k2", {file}, {"--eod", "</s>"}), "--eod </s>", "256");
}

// case O061: joining datasets = tokenising the joined text
TEST_F(Tokenize, MergeAndDecode) {
  const auto a = text("a.txt", "first\n"), b = text("b.txt", "second\n"),
             c = text("c.jsonl", "{\"text\":\"third\"}\n{\"text\":\"\"}\n{\"text\":\"fourth\"}\n");
  bytes("a", {a});
  bytes("b", {b});
  bytes("c", {c});
  ASSERT_EQ(call({"--merge", "--output", folder + "abc", folder + "a", folder + "b", folder + "c"}), 0);
  expect_same(folder + "abc", alone("whole", {a, b, c}));
  if (rank == 0) {
    EXPECT_NE(printed.find("documents 5"), std::string::npos) << printed;
  }
  ASSERT_EQ(call({"--decode", "--tokenizer", "bytes", folder + "abc"}), 0);
  EXPECT_EQ(printed, rank == 0 ? "first\nsecond\nthirdfourth" : "");
  Scratch other;
  const auto wide = other.write("w", {{97, 300}});
  EXPECT_ERROR(DataError, call({"--decode", "--tokenizer", "bytes", wide}), "document 0", "token 300");
}

TEST_F(Tokenize, WrongUse) {
  const auto file = text("u.txt", "text");
  EXPECT_ERROR(UsageError, call({"--output", folder + "u", file}), "--tokenizer");
  EXPECT_ERROR(UsageError, call({"--tokenizer", "bytes", file}), "--output");
  EXPECT_ERROR(UsageError, call({"--tokenizer", "bytes", "--output", folder + "u"}), "FILE");
  EXPECT_ERROR(UsageError, call({"--tokenizer", "llama.model", "--output", folder + "u", file}), "llama.model",
               "SentencePiece", "bytes");
  EXPECT_ERROR(UsageError, call({"--tokenizer", "x/tokenizer.json", "--output", folder + "u", file}),
               "tokenizer.json", "not in this build");
  EXPECT_ERROR(UsageError, call({"--tokenizer", "gpt2", "--output", folder + "u", file}), "\"gpt2\" is unknown");
  EXPECT_ERROR(UsageError, bytes("u", {file}, {"--specials", "parse"}), "--specials parse");
  EXPECT_ERROR(UsageError, bytes("u", {file}, {"--split=0.9"}), "--split is not in this build");
  EXPECT_ERROR(UsageError, bytes("u", {file}, {"--nonsense"}), "--nonsense");
  EXPECT_ERROR(UsageError, bytes("u", {text("u.jsonl.gz", "x")}), ".gz");
  EXPECT_ERROR(DataError, bytes("u", {folder + "missing.txt"}), "missing.txt", "cannot be opened");
  EXPECT_ERROR(DataError, bytes("u", {folder}), "not a plain file");
  EXPECT_ERROR(DataError, bytes("u.txt/below/it", {file}), "u.txt");
  EXPECT_TRUE(made("u.bin").empty());
}

}  // namespace
}  // namespace orthant
