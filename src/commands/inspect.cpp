// `orthant inspect PATH`: what is in a checkpoint, run folder, dataset, safetensors file, Hugging Face folder or
// deck.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>

#include "checkpoint/folders.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/hf_folder.hpp"
#include "checkpoint/safetensors.hpp"
#include "commands/parse.hpp"
#include "deck/all_keys.hpp"
#include "deck/check.hpp"
#include "orthant/checkpoint.hpp"
#include "orthant/command.hpp"
#include "orthant/data.hpp"
#include "orthant/error.hpp"
#include "orthant/model.hpp"
#include "train/data_ledger.hpp"
#include "train/data_position.hpp"

namespace orthant {

namespace fs = std::filesystem;

namespace {

struct Wanted {
  std::string path;
  std::vector<std::string> overrides;
  bool verify = false;
  int64_t samples = 0, step = 0;
  MPI_Comm comm = MPI_COMM_NULL;
};

struct Row {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

std::string size_text(int64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (b < 1e4) return fmt::format("{} B", bytes);
  if (b < 1e6) return fmt::format("{:.1f} kB", b / 1e3);
  if (b < 1e9) return fmt::format("{:.1f} MB", b / 1e6);
  return fmt::format("{:.3f} GB", b / 1e9);
}

// layers.2 before layers.10: digits compare as numbers.
bool natural_less(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      const size_t i0 = i, j0 = j;
      while (i < a.size() && digit(a[i])) ++i;
      while (j < b.size() && digit(b[j])) ++j;
      if (i - i0 != j - j0) return i - i0 < j - j0;
      if (const int order = a.compare(i0, i - i0, b, j0, j - j0); order != 0) return order < 0;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

void print_table(std::vector<Row> rows) {
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return natural_less(a.name, b.name); });
  size_t names = 0, shapes = 0;
  for (const Row& r : rows) {
    names = std::max(names, r.name.size());
    shapes = std::max(shapes, shape_text(r.shape).size());
  }
  for (const Row& r : rows) {
    fmt::print("  {:<{}}  {:<{}}  {:<4}  {:>10}\n", r.name, names, shape_text(r.shape), shapes, r.dtype,
               size_text(r.bytes));
  }
}

/// Prints each difference; the exit code of the check.
int print_verdict(const std::string& path, const std::vector<std::string>& problems) {
  for (const std::string& problem : problems) fmt::print("{}: BAD: {}\n", path, problem);
  if (problems.empty()) fmt::print("{}: sizes and checksums agree with the manifest\n", path);
  return static_cast<int>(problems.empty() ? Exit::done : Exit::check_failed);
}

void print_checkpoint(const std::string& folder) {
  const CheckpointContents contents = read_checkpoint_contents(folder);
  const TrainState& state = contents.state;
  fmt::print("checkpoint {}\n  step {}, {} tokens seen, written by {} rank{}{}{}, {}\n", folder, state.step,
             state.tokens, contents.ranks, contents.ranks == 1 ? "" : "s", contents.extras.mesh.empty() ? "" : ": ",
             contents.extras.mesh, size_text(contents.bytes));
  if (!contents.extras.source_dtype.empty()) fmt::print("  source dtype {}\n", contents.extras.source_dtype);
  if (state.samples > 0)
    fmt::print("  stream of {} samples, decay over {} steps\n", state.samples, state.decay_steps);
  for (const auto& [key, value] : state.integers) fmt::print("  {} = {}\n", key, value);
  for (const auto& [key, value] : state.reals) fmt::print("  {} = {}\n", key, value);
  for (const auto& [key, value] : state.strings) {
    if (key == data_record_key) continue;  // the table below
    fmt::print("  {} = {}\n", key,
               value.size() <= 80 && value.find('\n') == std::string::npos
                   ? value
                   : size_text(static_cast<int64_t>(value.size())) + " of text");
  }
  if (const auto record = read_data_record(state)) fmt::print("{}", ledger_text(*record));
  for (const auto& [name, content] : contents.extras.tokenizer_files) {
    fmt::print("  file {}, {}\n", name, size_text(static_cast<int64_t>(content.size())));
  }
  std::vector<Row> weights;
  struct Group {
    int64_t tensors = 0, bytes = 0;
    std::vector<int64_t> dims;  // of the last one
  };
  std::map<std::string, Group> slots, fp8;
  for (const CheckpointTensor& t : contents.tensors) {
    const size_t slash = t.name.rfind('/');
    if (t.name.rfind("weights/", 0) == 0) {
      weights.push_back({t.name.substr(slash + 1), t.type, t.dims, t.bytes});
    } else {
      Group& g = (t.name.rfind("fp8/", 0) == 0 ? fp8 : slots)[t.name.substr(0, slash)];
      ++g.tensors, g.bytes += t.bytes;
      g.dims = t.dims;
    }
  }
  const size_t count = weights.size();
  print_table(std::move(weights));
  for (const auto& [slot, sum] : slots)
    fmt::print("  {}: the same {} tensors, {}\n", slot, sum.tensors, size_text(sum.bytes));
  for (const auto& [what, sum] : fp8)  // alike for all matrices
    fmt::print("  {}: of {} matrices, {} each (inputs, weights, gradients), {}\n", what, sum.tensors,
               shape_text(sum.dims), size_text(sum.bytes));
  if (slots.empty()) fmt::print("  no optimiser state: training from here starts the optimiser anew\n");
  fmt::print("  {} tensors, {} parameters\n", count, contents.parameters);
}

int inspect_checkpoint(const Wanted& wanted) {
  if (!wanted.verify) {
    print_checkpoint(wanted.path);
    return static_cast<int>(Exit::done);
  }
  const std::vector<std::string> problems = verify_checkpoint(wanted.path);
  if (problems.empty()) print_checkpoint(wanted.path);
  return print_verdict(wanted.path, problems);
}

// A folder of step-… folders: the newest in full, the others by name.
int inspect_checkpoints(const Wanted& wanted, const std::string& folder) {
  const std::vector<StepFolder> all = list_step_folders(folder);
  const StepFolder* newest = nullptr;
  int code = static_cast<int>(Exit::done);
  for (const StepFolder& f : all) {
    if (!newest && f.problem.empty()) newest = &f;
    fmt::print("{}  {}\n", f.path, f.problem.empty() ? size_text(f.manifest.bytes()) : "BAD: " + f.problem);
    if (wanted.verify && print_verdict(f.path, verify_checkpoint(f.path)) != 0)
      code = static_cast<int>(Exit::check_failed);
  }
  if (newest) {
    fmt::print("latest complete: step {}\n", newest->step);
    print_checkpoint(newest->path);
  } else {
    fmt::print("{}: no complete checkpoint\n", folder);
  }
  return code;
}

/// A deck with every problem reported and, where the model's sizes are known, its sizes written in.
Deck checked(const Wanted& wanted, const std::string& path) {
  std::vector<std::string> problems;
  Deck deck = Deck::parse(Deck::read_text(path), path, wanted.overrides, {}, problems);
  throw_problems(path, problems);
  const auto add = [&](const std::vector<std::string>& more) {
    problems.insert(problems.end(), more.begin(), more.end());
  };
  add(check_values(deck));
  add(not_built(deck));
  ModelConfig model;
  if (deck[keys::model::load].empty()) {
    model = model_config(deck, problems);
  } else {
    std::vector<std::string> ignored;
    model = merge_loaded(deck, read_hf_config(deck[keys::model::load], &ignored), problems);
  }
  throw_problems(path, problems);
  add(check_sizes(deck, model));
  throw_problems(path, problems);
  set_model_keys(deck, model);
  return deck;
}

void print_step(const DataPosition& position, int64_t step) {
  const auto place = position.place_of(step);
  if (!place)
    throw UsageError(fmt::format("--step {}: the checkpoint does not say which samples the steps before step {} took", step,
                                 position.record().phases.back().batches.front().first_step + 1));
  const SampleStream stream = SampleStream::train(position.settings(place->phase));
  const int64_t first = place->first_sample, end = first + place->samples;
  fmt::print("step {}: samples {} to {} of the stream{}\n", step, first, end - 1,
             position.phase() > 0 ? fmt::format(" of phase {}", place->phase) : "");
  for (int64_t i = first; i < end; ++i) {
    for (const SamplePiece& p : stream.pieces(i)) {
      fmt::print("  sample {}  {}  document {}  tokens {} to {}\n", i,
                 stream.sources()[static_cast<size_t>(p.source)], p.document, p.offset, p.offset + p.tokens - 1);
    }
  }
}

/// The first samples of each phase: of those that are over, no more than they took.
void print_phases(const DataPosition& position, int64_t samples) {
  for (int64_t p = 0; p <= position.phase(); ++p) {
    const PhaseRecord& phase = position.record().phases[static_cast<size_t>(p)];
    if (position.phase() > 0) std::cout << "phase " << p << ": sequence " << phase.sequence << '\n';
    const int64_t n = p < position.phase() ? std::min(samples, phase.next_sample) : samples;
    print_samples(std::cout, SampleStream::train(position.settings(p)), n);
  }
}

/// `state`: of the run's latest checkpoint, where there is one: lengths, phases and changes of weights are as it has them.
int inspect_deck(const Wanted& wanted, const std::string& path, const TrainState& state) {
  const Deck deck = checked(wanted, path);
  if (wanted.samples == 0 && wanted.step == 0) {
    fmt::print("{}", deck.resolved());
    return static_cast<int>(Exit::done);
  }
  const DataPosition position = DataPosition::resume(deck, state, deck[keys::run::steps], deck[keys::batch::global]);
  std::fflush(stdout);
  if (wanted.samples > 0) print_phases(position, wanted.samples);
  std::cout.flush();
  if (wanted.step > 0) print_step(position, wanted.step);
  return static_cast<int>(Exit::done);
}

int inspect_run(const Wanted& wanted) {
  std::string folder = wanted.path + "/checkpoints";
  std::error_code error;
  if (!fs::exists(folder, error)) {
    // checkpoint.folder may point elsewhere; the rest of the deck does not matter here.
    std::vector<std::string> ignored;
    const std::string path = wanted.path + "/deck.toml";
    const Deck deck = Deck::parse(Deck::read_text(path), path, {}, {}, ignored);
    folder = deck.get_or(keys::checkpoint::folder, folder);
  }
  if (wanted.samples > 0 || wanted.step > 0) {
    const auto found = find_checkpoint(wanted.comm, folder, nullptr, Trust::sizes);
    return inspect_deck(wanted, wanted.path + "/deck.toml",
                        found ? read_checkpoint_contents(*found).state : TrainState{});
  }
  fmt::print("run folder {}\n", wanted.path);
  return inspect_checkpoints(wanted, folder);
}

int inspect_dataset(const Wanted& wanted, const std::string& prefix) {
  const IndexedDataset data(prefix);
  fmt::print("dataset {}\n  {} documents, {} sequences, {} tokens of type {} ({})\n", prefix, data.documents(),
             data.sequences(), data.tokens(), token_type_name(data.type()),
             size_text(data.tokens() * token_bytes(data.type())));
  int64_t shortest = -1, longest = 0, empty = 0;
  for (int64_t d = 0; d < data.documents(); ++d) {
    int64_t tokens = 0;
    for (int64_t s = data.document_begin(d); s < data.document_begin(d + 1); ++s) tokens += data.length(s);
    shortest = shortest < 0 ? tokens : std::min(shortest, tokens);
    longest = std::max(longest, tokens);
    empty += tokens == 0;
  }
  if (data.documents() > 0) {
    fmt::print("  document length: shortest {}, longest {}, mean {:.1f} tokens; {} empty\n", shortest, longest,
               static_cast<double>(data.tokens()) / static_cast<double>(data.documents()), empty);
  }
  if (!wanted.verify) return static_cast<int>(Exit::done);
  // The format has no checksums: opening compared index and sizes, this reads every token.
  int32_t low = INT32_MAX, high = INT32_MIN;
  std::vector<int32_t> block(1 << 20);
  for (int64_t s = 0; s < data.sequences(); ++s) {
    for (int64_t at = 0; at < data.length(s); at += static_cast<int64_t>(block.size())) {
      const int64_t n = std::min(static_cast<int64_t>(block.size()), data.length(s) - at);
      data.read(s, at, n, block.data());
      const auto [lo, hi] = std::minmax_element(block.begin(), block.begin() + n);
      low = std::min(low, *lo), high = std::max(high, *hi);
    }
  }
  const bool good = data.tokens() == 0 || low >= 0;
  if (data.tokens() > 0) fmt::print("  token ids {} to {}\n", low, high);
  fmt::print("{}: {} (the format holds no checksums)\n", prefix,
             good ? "index and sizes agree, all tokens read" : "BAD: negative token ids");
  return static_cast<int>(good ? Exit::done : Exit::check_failed);
}

int inspect_safetensors(const Wanted& wanted) {
  const SafetensorsFile file(wanted.path);
  std::vector<Row> rows;
  int64_t elements = 0;
  for (const TensorEntry& e : file.entries()) {
    rows.push_back({e.name, e.dtype, e.shape, e.end - e.begin});
    elements += e.elements();
  }
  fmt::print("safetensors file {}\n", wanted.path);
  for (const auto& [key, value] : file.metadata()) fmt::print("  {} = {}\n", key, value);
  print_table(std::move(rows));
  fmt::print("  {} tensors, {} elements\n", file.entries().size(), elements);
  if (wanted.verify) fmt::print("{}: header and sizes agree (the format holds no checksums)\n", wanted.path);
  return static_cast<int>(Exit::done);
}

int inspect_hf(const Wanted& wanted) {
  const HfFolder folder(wanted.path);
  fmt::print("Hugging Face folder {}\n", wanted.path);
  std::vector<Row> rows;
  int64_t elements = 0;
  for (const std::string& name : folder.names()) {
    const TensorEntry& e = folder.entry(name);
    rows.push_back({name, e.dtype, e.shape, e.end - e.begin});
    elements += e.elements();
  }
  const size_t count = rows.size();
  print_table(std::move(rows));
  fmt::print("  {} tensors, {} elements\n", count, elements);
  std::vector<std::string> ignored;
  const ModelConfig c = read_hf_config(wanted.path, &ignored);
  const std::vector<Param> params = model_params(c);
  int64_t parameters = 0;
  for (const Param& p : params) parameters += p.elements();
  fmt::print("  {}: {} layers, hidden {}, ffn {}, {} heads, {} kv heads, vocabulary {}, {} parameters\n", c.family,
             c.layers, c.hidden, c.ffn, c.heads, c.kv_heads, c.vocab, parameters);
  for (const std::string& key : ignored) fmt::print("  config.json: not used: {}\n", key);
  folder.check(params);
  for (const std::string& name : folder.unused(params)) fmt::print("  tensor not used: {}\n", name);
  if (wanted.verify)
    fmt::print("{}: every parameter is there once, headers and sizes agree (the format holds no checksums)\n",
               wanted.path);
  return static_cast<int>(Exit::done);
}

bool has_step_folders(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().string().rfind("step-", 0) == 0) return true;
  }
  return false;
}

int inspect_path(const Wanted& wanted) {
  std::error_code error;
  const std::string& path = wanted.path;
  const auto has = [&](const char* name) { return fs::exists(path + "/" + name, error); };
  const bool folder = fs::is_directory(path, error);
  const std::string ending = fs::path(path).extension().string();
  const bool deck = !folder && ending == ".toml";
  const bool run = folder && !is_checkpoint(path) && !has("config.json") && has("deck.toml");
  if ((wanted.samples > 0 || wanted.step > 0) && !deck && !run) {
    throw UsageError(path + ": --samples and --step are for a deck (.toml) or a run folder");
  }
  if (!wanted.overrides.empty() && !deck && !run)
    throw UsageError(wanted.overrides[0] + ": overrides go with a deck only");
  if (deck) return inspect_deck(wanted, path, {});
  if (run) return inspect_run(wanted);
  if (folder && is_checkpoint(path)) return inspect_checkpoint(wanted);
  if (folder && has("config.json")) return inspect_hf(wanted);
  if (folder && has_step_folders(path)) return inspect_checkpoints(wanted, path);
  if (!folder && ending == ".safetensors") return inspect_safetensors(wanted);
  const std::string prefix = ending == ".idx" || ending == ".bin" ? path.substr(0, path.size() - 4) : path;
  if (fs::exists(prefix + ".idx", error)) return inspect_dataset(wanted, prefix);
  throw DataError(path +
                  ": nothing that is known here. Looked for: a folder with manifest.json (checkpoint), config.json "
                  "(Hugging Face), "
                  "deck.toml (run) or step-… folders (checkpoints); a file .safetensors or .toml; a dataset " +
                  prefix + ".idx");
}

int inspect(const CommandArgs& given) {
  CLI::App app{"What is in a checkpoint, run folder, dataset, safetensors file, Hugging Face folder or deck",
               "orthant inspect"};
  Wanted wanted;
  wanted.comm = given.world;
  app.add_option("PATH", wanted.path, "a folder, a file, or the prefix of a dataset")->required();
  app.add_option("key=value", wanted.overrides, "overrides, where PATH is a deck");
  app.add_flag("--verify", wanted.verify, "re-read everything and compare the checksums; exit 1 if they differ");
  app.add_option("--samples", wanted.samples, "print the first n samples of the training stream and their SHA-256")
      ->check(CLI::PositiveNumber);
  app.add_option("--step", wanted.step, "print which samples and documents this step saw")
      ->check(CLI::PositiveNumber);
  if (!parse(app, given)) return static_cast<int>(Exit::done);
  while (wanted.path.size() > 1 && wanted.path.back() == '/') wanted.path.pop_back();
  const int code = inspect_path(wanted);
  std::fflush(stdout);
  return code;
}

const bool added =
    add_command({.name = "inspect",
                 .summary = "what is in a checkpoint, run folder, dataset, model file or deck; --verify checks it",
                 .needs_mpi = true,
                 .many_ranks = false,
                 .run = inspect});

}  // namespace

}  // namespace orthant
