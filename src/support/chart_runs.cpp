// metrics.jsonl to chart.
#include "support/chart_runs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "orthant/error.hpp"

namespace orthant::chart {

namespace fs = std::filesystem;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// JSON has no NaN, our metrics do: outside strings the words NaN and Infinity (with a sign) become null.
std::string without_nan(const std::string& line) {
  std::string out;
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '\\' && i + 1 < line.size()) {
      out += c;
      out += line[++i];
      continue;
    }
    if (c == '"') quoted = !quoted;
    if (!quoted) {
      const std::size_t sign = c == '-' ? 1 : 0;
      std::size_t length = 0;
      if (line.compare(i + sign, 3, "NaN") == 0) length = 3;
      if (line.compare(i + sign, 8, "Infinity") == 0) length = 8;
      if (length > 0) {
        out += "null";
        i += sign + length - 1;
        continue;
      }
    }
    out += c;
  }
  return out;
}

bool parse_row(const std::string& line, MetricsRow& row) {
  const auto json = nlohmann::json::parse(without_nan(line), nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number()) return false;
  for (const auto& [name, value] : json.items()) {
    if (value.is_number()) row.numbers.emplace_back(name, value.get<double>());
    if (value.is_null()) row.numbers.emplace_back(name, not_a_number);
  }
  return true;
}

std::string axis_name(const std::string& name) {
  if (name == "grad_norm") return "gradient norm (before clipping)";
  if (name == "lr") return "learning rate";
  if (name == "tokens_per_s") return "tokens per second";
  if (name == "loss") return "loss (nats per token)";
  if (name == "seconds") return "seconds per step";
  return name;
}

/// x of the rows of one run; validation rows borrow time (and tokens, if they lack them) from the training row
/// before.
struct Positions {
  std::vector<double> training, validation;
};

Positions positions(const RunMetrics& run, const std::string& x) {
  Positions out;
  double so_far = 0;
  std::vector<std::pair<double, double>> known;  // step, x
  for (const MetricsRow& row : run.training) {
    double at = row.get(x);
    if (x == "seconds") {
      if (std::isfinite(at)) so_far += at;
      at = so_far;
    }
    out.training.push_back(at);
    known.emplace_back(row.get("step"), at);
  }
  for (const MetricsRow& row : run.validation) {
    if (x != "seconds" && row.has(x)) {
      out.validation.push_back(row.get(x));
      continue;
    }
    const double step = row.get("step");
    const auto after =
        std::partition_point(known.begin(), known.end(), [&](const auto& k) { return k.first <= step; });
    out.validation.push_back(after == known.begin() ? 0.0 : std::prev(after)->second);
  }
  return out;
}

/// Seconds read badly past some minutes; returns the axis label and what to divide by.
std::pair<std::string, double> time_unit(double longest) {
  if (longest >= 2 * 86400) return {"training time (days)", 86400};
  if (longest >= 2 * 3600) return {"training time (hours)", 3600};
  if (longest >= 300) return {"training time (minutes)", 60};
  return {"training time (seconds)", 1};
}

/// Half width of the smoothing window for a run of this length: a short run is shown as it is.
std::int64_t window_for(std::int64_t rows) { return rows < 30 ? 0 : std::clamp<std::int64_t>(rows / 80, 2, 200); }

}  // namespace

bool MetricsRow::has(const std::string& name) const {
  return std::any_of(numbers.begin(), numbers.end(), [&](const auto& n) { return n.first == name; });
}

double MetricsRow::get(const std::string& name) const {
  for (const auto& [key, value] : numbers) {
    if (key == name) return value;
  }
  return not_a_number;
}

RunMetrics read_run(const std::string& path) {
  RunMetrics run;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) throw DataError("there is no run folder " + path);
  run.file = fs::is_directory(path, ignored) ? (fs::path(path) / "metrics.jsonl").string() : path;
  run.name = path;
  while (run.name.size() > 1 && run.name.back() == '/') run.name.pop_back();
  std::ifstream in(run.file, std::ios::binary);
  if (!in)
    throw DataError("cannot read " + run.file + ": is " + path + " the folder of a run (run.output of its deck)?");
  std::stringstream all;
  all << in.rdbuf();
  const std::string text = all.str();
  std::int64_t number = 0;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = std::min(text.find('\n', from), text.size());
    const std::string line = text.substr(from, end - from);
    ++number;
    from = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    MetricsRow row;
    if (!parse_row(line, row)) {
      if (from >= text.size()) {  // a job that was killed while it wrote
        run.torn = true;
        break;
      }
      throw DataError(
          fmt::format("{}, line {}: not a row of metrics (a JSON object with a number `step`)", run.file, number));
    }
    if (row.has("valid_loss") && !row.has("loss"))
      run.validation.push_back(std::move(row));
    else
      run.training.push_back(std::move(row));
  }
  return run;
}

Chart chart_of(const std::vector<RunMetrics>& runs, const PlotRequest& request) {
  if (request.x != "step" && request.x != "tokens" && request.x != "seconds") {
    throw UsageError("--x " + request.x + ": a curve can be drawn over step, tokens or seconds");
  }
  std::set<std::string> names;
  for (const RunMetrics& run : runs) {
    for (const MetricsRow& row : run.training) {
      for (const auto& number : row.numbers) names.insert(number.first);
    }
  }
  const bool of_loss = request.y == "loss";
  if (names.count(request.y) == 0) {
    if (names.empty())
      throw DataError(fmt::format("{} holds no training rows yet: there is no curve to draw", runs.at(0).file));
    throw UsageError(fmt::format("--y {}: no run has it; the rows hold {}", request.y, fmt::join(names, ", ")));
  }
  if (request.x == "tokens" && names.count("tokens") == 0) {
    throw UsageError("--x tokens: the rows of the run hold no `tokens`");
  }
  Chart chart;
  const std::string& y_name = request.y;
  const bool one = runs.size() == 1;
  chart.title = one ? runs[0].name + ": " + y_name : fmt::format("{} of {} runs", y_name, runs.size());
  chart.y_label = axis_name(y_name);
  chart.integer_x = request.x == "step";
  std::vector<Positions> places;
  double longest = 0;
  for (const RunMetrics& run : runs) {
    places.push_back(positions(run, request.x));
    if (!places.back().training.empty()) longest = std::max(longest, places.back().training.back());
  }
  double unit = 1;
  chart.x_label = request.x;
  if (request.x == "seconds") std::tie(chart.x_label, unit) = time_unit(longest);

  for (std::size_t r = 0; r < runs.size(); ++r) {
    const RunMetrics& run = runs[r];
    const Colour colour = palette(static_cast<int>(r));
    Series train;
    train.colour = colour;
    for (std::size_t i = 0; i < run.training.size(); ++i) {
      train.x.push_back(places[r].training[i] / unit);
      train.y.push_back(run.training[i].get(y_name));
    }
    const auto rows = static_cast<std::int64_t>(train.x.size());
    const std::int64_t half = request.smooth >= 0 ? request.smooth : y_name == "lr" ? 0 : window_for(rows);
    const std::string who = one ? "" : run.name + " ";
    Series raw = train;
    if (half > 0) {
      raw.background = true;
      raw.opacity = one ? 0.32 : 0.2;
      raw.width = 1.2;
      raw.label = one ? "every step" : "";
      train.y = smooth(train.y, half);
    }
    train.label = !one ? run.name : of_loss ? "training" : y_name;
    if (one && half > 0) train.label += fmt::format(", mean over {} steps", 2 * half + 1);
    train.width = 2.2;
    chart.series.push_back(std::move(train));
    if (half > 0) chart.series.push_back(std::move(raw));
    if (!of_loss || run.validation.empty()) continue;
    Series valid;
    valid.mark = Series::Mark::points;
    valid.label = who + "validation";
    valid.colour = one ? palette(1) : colour;
    valid.width = 8;
    for (std::size_t i = 0; i < run.validation.size(); ++i) {
      valid.x.push_back(places[r].validation[i] / unit);
      valid.y.push_back(run.validation[i].get("valid_loss"));
    }
    chart.series.push_back(std::move(valid));
  }
  return chart;
}

}  // namespace orthant::chart
