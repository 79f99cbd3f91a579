// orthant tokenize: text or JSON lines -> .bin/.idx; joins datasets; turns one back into text.
#include <CLI/CLI.hpp>
#include <iostream>

#include "data/tokenize_files.hpp"
#include "orthant/command.hpp"
#include "orthant/data.hpp"
#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

namespace {

struct Options {
  std::string tokenizer, output, key = "text", eod, specials = "text";
  bool merge = false, decode = false;
  std::vector<std::string> files;
};

std::optional<int32_t> eod_id(const Options& options, const Tokenizer& tokenizer) {
  const std::string& eod = options.eod;
  if (eod == "none") return std::nullopt;
  const auto own = tokenizer.eod();
  const std::string range =
      "ids of the tokenizer " + tokenizer.name() + " go from 0 to " + std::to_string(tokenizer.vocab() - 1) +
      (own ? ", and it ends documents with " + std::to_string(*own) : "") + "; or give --eod none";
  if (eod.empty()) {
    if (!own)
      throw UsageError(
          "the tokenizer " + tokenizer.name() + " names no end of document; give --eod TOKEN, --eod ID or --eod none",
          true);
    return own;
  }
  if (eod.find_first_not_of("0123456789") == std::string::npos) {
    if (eod.size() > 9 || std::stoll(eod) >= tokenizer.vocab())
      throw UsageError("--eod " + eod + " is outside the vocabulary: " + range, true);
    return static_cast<int32_t>(std::stoll(eod));
  }
  const auto id = tokenizer.find(eod);
  if (!id) throw UsageError("--eod " + eod + ": no token of that name: " + range, true);
  return id;
}

void tell(const Options& options, const TokenizeCounts& c, bool eod) {
  std::cout << "documents " << c.documents << "  tokens " << c.tokens << "  type " << token_type_name(c.type)
            << "  -> " << options.output << ".bin, " << options.output << ".idx\n";
  if (c.empty > 0)
    std::cout << "empty documents " << c.empty << (eod ? " (each a lone end of document)\n" : " (dropped)\n");
  if (c.blank_lines > 0) std::cout << "blank lines " << c.blank_lines << " (passed over)\n";
  if (c.marks > 0) std::cout << "byte-order marks " << c.marks << " (passed over)\n";
  if (c.invalid > 0)
    std::cout << "documents that are not valid UTF-8 " << c.invalid << " (their bytes are kept), the first at "
              << c.first_invalid << "\n";
  if (c.surrogates > 0) std::cout << "escaped half surrogates " << c.surrogates << " (replaced by U+FFFD)\n";
  std::cout.flush();
}

int run_merge(const Options& options, const CommandArgs& args) {
  if (options.output.empty()) throw UsageError("tokenize --merge needs --output PREFIX", true);
  collectively(args.world, [&] {
    if (args.rank != 0) return;  // bound by the disk: one rank is enough
    const auto c = merge_datasets(options.files, options.output);
    std::cout << "documents " << c.documents << "  sequences " << c.sequences << "  tokens " << c.tokens << "  type "
              << token_type_name(c.type) << "  -> " << options.output << ".bin, " << options.output << ".idx\n";
  });
  return 0;
}

int run(const CommandArgs& args) {
  Options options;
  CLI::App app(
      "Text or JSON lines to a dataset PREFIX.bin and PREFIX.idx, in parallel over ranks.\n"
      "A plain text file is one document; a file .jsonl, .ndjson or .json holds one JSON object a line.",
      "orthant tokenize");
  app.add_option("--tokenizer", options.tokenizer, "bytes (token = byte, 256 = end of document)");
  app.add_option("--output", options.output, "prefix of the dataset to write");
  auto* key = app.add_option("--key", options.key, "key of the text in a JSON object (default: text)");
  auto* eod = app.add_option("--eod", options.eod,
                             "token or id appended to every document, or none (default: the tokenizer's)");
  auto* specials = app.add_option("--specials", options.specials,
                                  "text: names of control tokens inside documents are ordinary text");
  auto* merge = app.add_flag("--merge", options.merge, "FILE… are prefixes of datasets; join them into --output");
  app.add_flag("--decode", options.decode, "FILE… are prefixes of datasets; print their text")
      ->excludes(merge)
      ->excludes(key)
      ->excludes(eod);
  merge->excludes(key)->excludes(eod)->excludes(specials);
  auto* split = app.add_option("--split", "not in this build")->expected(0, 1)->group("");
  app.add_option("FILE", options.files, "text files, JSON lines, or prefixes of datasets");

  std::vector<std::string> reversed(args.args.rbegin(), args.args.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    if (args.rank == 0) std::cout << app.help();
    return 0;
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string("tokenize: ") + error.what() + " (see orthant tokenize --help)", true);
  }
  if (split->count() > 0)
    throw UsageError(
        "tokenize --split is not in this build; train and validation parts are cut by the deck's data.split", true);
  if (options.files.empty()) throw UsageError("tokenize: give at least one FILE (see orthant tokenize --help)", true);
  if (options.merge) return run_merge(options, args);

  std::unique_ptr<Tokenizer> tokenizer;
  collectively(args.world, [&] {
    if (options.tokenizer.empty()) throw UsageError("tokenize: give --tokenizer (this build knows \"bytes\")");
    tokenizer = make_tokenizer(options.tokenizer);
  });
  if (options.specials != "text")
    throw UsageError("--specials " + options.specials +
                         (options.specials == "parse"
                              ? ": the tokenizer " + tokenizer->name() + " has no control tokens to find in text"
                              : " is unknown") +
                         "; use --specials text",
                     true);
  if (options.decode) {
    if (!options.output.empty())
      throw UsageError("tokenize --decode prints to standard output; leave --output off", true);
    collectively(args.world, [&] {
      for (const auto& prefix : options.files)
        if (args.rank == 0) decode_dataset(prefix, *tokenizer, std::cout);
    });
    return 0;
  }
  if (options.output.empty()) throw UsageError("tokenize needs --output PREFIX", true);
  TokenizeJob job;
  job.tokenizer = tokenizer.get();
  job.files = options.files;
  job.output = options.output;
  job.key = options.key;
  job.eod = eod_id(options, *tokenizer);
  const auto counts = tokenize_files(job, args.world);
  if (args.rank == 0) tell(options, counts, job.eod.has_value());
  return 0;
}

[[maybe_unused]] const bool added =
    add_command({"tokenize", "text or JSON lines to a dataset (.bin/.idx), in parallel over ranks", true, true, run});

}  // namespace
}  // namespace orthant
