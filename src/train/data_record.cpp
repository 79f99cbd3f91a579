// The record as JSON. nlohmann/json writes doubles with as many digits as it takes to read the same bits again.
#include "train/data_record.hpp"

#include <nlohmann/json.hpp>

#include "orthant/error.hpp"

namespace orthant {

const char* const data_record_key = "data_position";

namespace {

using nlohmann::json;

constexpr int64_t version = 1;

json to_json(const PhaseRecord& p) {
  json out = {{"sequence", p.sequence},     {"samples", p.samples},
              {"first_step", p.first_step}, {"next_sample", p.next_sample},
              {"weights", p.weights},       {"order_samples", p.order_samples},
              {"drawn", p.drawn},           {"changes", json::array()},
              {"batches", json::array()}};
  if (p.skipped > 0) out["skipped"] = p.skipped;
  for (const WeightChange& c : p.changes)
    out["changes"].push_back({{"first_sample", c.first_sample}, {"weights", c.weights}});
  for (const BatchRecord& b : p.batches)
    out["batches"].push_back({{"first_step", b.first_step}, {"first_sample", b.first_sample}, {"global", b.global}});
  return out;
}

PhaseRecord phase_from(const json& in) {
  PhaseRecord p;
  p.sequence = in.at("sequence");
  p.samples = in.at("samples");
  p.first_step = in.at("first_step");
  p.next_sample = in.at("next_sample");
  p.skipped = in.value("skipped", int64_t{0});
  p.weights = in.at("weights").get<std::vector<double>>();
  p.order_samples = in.at("order_samples").get<std::vector<int64_t>>();
  p.drawn = in.at("drawn").get<std::vector<int64_t>>();
  for (const json& c : in.at("changes"))
    p.changes.push_back({c.at("first_sample"), c.at("weights").get<std::vector<double>>()});
  for (const json& b : in.at("batches"))
    p.batches.push_back({b.at("first_step"), b.at("first_sample"), b.at("global")});
  return p;
}

/// What is wrong with a phase, or "".
std::string fault_of(const PhaseRecord& p, size_t sources) {
  if (p.sequence < 1 || p.samples < 1) return "a phase without samples";
  if (p.next_sample < 0) return "next_sample = " + std::to_string(p.next_sample);
  if (p.skipped < 0 || p.skipped > p.next_sample) return "skipped = " + std::to_string(p.skipped);
  if (p.order_samples.size() != sources || p.drawn.size() != sources)
    return "numbers of " + std::to_string(p.order_samples.size()) + " and " + std::to_string(p.drawn.size()) +
           " sources, of " + std::to_string(sources);
  int64_t sum = 0, at = 0;
  for (int64_t n : p.drawn) sum += n;
  if (sum != p.next_sample)
    return "sources that gave " + std::to_string(sum) + " samples of " + std::to_string(p.next_sample);
  for (const WeightChange& c : p.changes) {
    if (c.first_sample <= at) return "changes of weights out of order";
    at = c.first_sample;
  }
  if (at > p.next_sample) return "a change of weights at sample " + std::to_string(at) + ", not drawn yet";
  for (const BatchRecord& b : p.batches)
    if (b.global < 1) return "batch.global = " + std::to_string(b.global);
  return "";
}

}  // namespace

void write_data_record(const DataRecord& record, TrainState& state) {
  json out = {{"version", version},
              {"seed", record.seed},
              {"split", record.split},
              {"sources", json::array()},
              {"phases", json::array()}};
  for (const SourceRecord& s : record.sources)
    out["sources"].push_back({{"prefix", s.prefix},
                              {"documents", s.documents},
                              {"tokens", s.tokens},
                              {"training_tokens", s.training_tokens}});
  for (const PhaseRecord& p : record.phases) out["phases"].push_back(to_json(p));
  // a prefix may have bytes that are no UTF-8: it is there for people, the counts are what is compared
  state.strings[data_record_key] = out.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<DataRecord> read_data_record(const TrainState& state) {
  const auto text = state.strings.find(data_record_key);
  if (text == state.strings.end()) return std::nullopt;
  const std::string where = std::string("the checkpoint's /train/") + data_record_key;
  DataRecord record;
  try {
    const json in = json::parse(text->second);
    if (const int64_t v = in.at("version"); v != version)
      throw DataError(where + " has version " + std::to_string(v) + "; this program reads version " +
                          std::to_string(version) + ": resume with the program that wrote it",
                      true);
    record.seed = in.at("seed");
    record.split = in.at("split");
    for (const json& s : in.at("sources"))
      record.sources.push_back({s.at("prefix"), s.at("documents"), s.at("tokens"), s.at("training_tokens")});
    for (const json& p : in.at("phases")) record.phases.push_back(phase_from(p));
  } catch (const json::exception& e) {
    throw DataError(where + " cannot be read: " + e.what(), true);
  }
  if (record.sources.empty() || record.phases.empty()) throw DataError(where + " names no source or no phase", true);
  for (size_t k = 0; k < record.phases.size(); ++k)
    if (const std::string fault = fault_of(record.phases[k], record.sources.size()); !fault.empty())
      throw DataError(where + " contradicts itself in phase " + std::to_string(k) + ": " + fault, true);
  return record;
}

}  // namespace orthant
