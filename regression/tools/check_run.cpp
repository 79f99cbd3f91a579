// Judges run folders: against a golden curve, against each other, and their traffic against the closed form.
//
//   check_run golden RUN golden.json fp32|fp16|bf16|bf16-experts|fp8-RECIPE [N]
//                                                 every step within the bounds of the precision (RECIPE: delayed,
//                                                 experts (delayed scales too), current, blockwise, mxfp8); the run has
//                                                 all steps of the golden, or its first N
//   check_run same RUN RUN…                       loss and gradient norm the same to the last bit at every step
//   check_run traffic RUN                         bytes = expected_bytes for every operation on every axis
//   check_run steps RUN N                         rows 1..N once each, in order, no torn line
//   check_run trace RUN RANKS AXIS…               trace.json has every rank and calls of each axis; prints, for each axis,
//                                                 ms of calls under way, of waits for them, and of calls beside work: a
//                                                 rank and a step, mean
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

using nlohmann::json;

struct Row {
  long long step = 0;
  double loss = 0, grad_norm = 0;
};

/// Numbers as the program writes them; NaN is no JSON, so rows are read by key.
double number(const std::string& line, const char* key) {
  std::string want = std::string("\"") + key + "\": ";
  size_t at = line.find(want);
  if (at == std::string::npos) return std::nan("");
  return std::strtod(line.c_str() + at + want.size(), nullptr);
}

std::vector<Row> read_run(const std::string& run) {
  std::ifstream in(run + "/metrics.jsonl");
  if (!in) throw std::runtime_error("no metrics in " + run);
  std::vector<Row> rows;
  for (std::string line; std::getline(in, line);) {
    if (line.find("\"loss\": ") == std::string::npos) continue;
    rows.push_back({static_cast<long long>(number(line, "step")), number(line, "loss"), number(line, "grad_norm")});
  }
  return rows;
}

json read_json(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path);
  return json::parse(in);
}

/// Bounds of a precision. Gradient norms: relative, the largest of the first 20 steps, the median and the largest of all. Where
/// the curve is steep (steps 24 to 53 of these goldens) a step of FP8 that is a little early or late has another norm by any
/// factor, so its largest one is not bounded. All are at most about twice what was measured over the cases of golden.cases, on
/// processors with and without bf16 products of their own.
///
/// The golden of llama has a spike: gradient norm 15 at step 27, 0.8 before and behind it. Whether a run meets it at this step,
/// the next but one or not at all is chance: in fp32, a learning rate that is larger by 0.5 % moves the loss of step 28 by 6.5 %,
/// and every loss outside of the spike by less than 1 %. So the loss of FP8 has a bound of its own there (over meshes and sizes
/// of micro-batches: up to 31 %), and has to be back behind it. Gradient norms have none there in any half precision: that of
/// qwen3 (4.3 at step 40) is 17 % lower in fp16 on one kind of processor, and the loss is within 0.1 %.
struct Bounds {
  const char* precision;
  double relative, last;              ///< loss
  double early, median, largest = 0;  ///< gradient norm; the largest outside of spikes, 0: none
  double spike = 0;                   ///< loss around a spike of the golden; 0: as everywhere
};
constexpr Bounds bounds[] = {
    {"fp16", 0.01, 0.005, 0.0013, 0.0013, 0.3},            // measured: 0.00062, 0.00062, 0.15
    {"fp8-delayed", 0.05, 0.006, 0.042, 0.04, 0, 0.6},     // 0.021, 0.019
    {"fp8-experts", 0.05, 0.006, 0.12, 0.04},              // 0.059, 0.027: a near tie sends a token to another expert
    {"fp8-current", 0.05, 0.006, 0.058, 0.05, 0, 0.6},     // 0.029, 0.024
    {"fp8-blockwise", 0.05, 0.006, 0.028, 0.036, 0, 0.6},  // 0.014, 0.029
    {"fp8-mxfp8", 0.05, 0.006, 0.021, 0.037, 0, 0.6},      // 0.014, 0.018
};

/// Steps around a spike of the golden: behind its start a gradient norm of 3 times the median, from the step before it to three
/// behind it.
std::vector<bool> spikes(const json& curve) {
  std::vector<double> norms;
  for (const json& step : curve) norms.push_back(step["grad_norm"]);
  std::vector<double> sorted = norms;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<long>(sorted.size() / 2), sorted.end());
  const double median = sorted[sorted.size() / 2];
  std::vector<bool> out(norms.size(), false);
  for (size_t i = 10; i < norms.size(); ++i)
    if (norms[i] > 3 * median)
      for (size_t k = i - 1; k <= std::min(i + 3, norms.size() - 1); ++k) out[k] = true;
  return out;
}

/// first = 0: all steps of the golden.
int golden(const std::string& run, const std::string& file, const std::string& precision, long long first) {
  std::vector<Row> rows = read_run(run);
  json curve = read_json(file)["curve"];
  const size_t wanted = first == 0 ? curve.size() : static_cast<size_t>(first);
  if (wanted > curve.size()) return std::printf("%zu steps asked for, %zu in the golden\n", wanted, curve.size()), 1;
  if (rows.size() != wanted) return std::printf("%zu steps in %s, expected %zu\n", rows.size(), run.c_str(), wanted), 1;
  const std::vector<bool> spike = spikes(curve);
  double loss = 0, relative = 0, there = 0, norm = 0, norm_there = 0, early = 0;
  std::vector<double> norms;
  for (size_t i = 0; i < rows.size(); ++i) {
    double gold = curve[i]["loss"], gold_norm = curve[i]["grad_norm"];
    double d = std::abs(rows[i].loss - gold), n = std::abs(rows[i].grad_norm - gold_norm) / gold_norm;
    // a NaN fails every comparison, so the good case is what is tested
    if (!(d <= 1e9) || !(n <= 1e9)) return std::printf("step %lld: loss %g, gradient norm %g\n", rows[i].step, rows[i].loss, rows[i].grad_norm), 1;
    loss = std::max(loss, d);
    double& most = spike[i] ? there : relative;
    most = std::max(most, d / gold);
    double& most_norm = spike[i] ? norm_there : norm;
    most_norm = std::max(most_norm, n);
    if (i < 20) early = std::max(norm, norm_there);
    norms.push_back(n);
  }
  std::nth_element(norms.begin(), norms.begin() + static_cast<long>(norms.size() / 2), norms.end());
  const double median = norms[norms.size() / 2];
  double end = curve[wanted - 1]["loss"], last = std::abs(rows.back().loss - end) / end;
  std::printf("largest difference: loss %.2e (relative %.2e, in a spike %.2e, last step %.2e), gradient norm %.2e relative (in a spike %.2e, first 20 steps %.2e, median %.2e)\n", loss, relative, there,
              last, norm, norm_there, early, median);
  // In bf16 a near tie may send a token to another expert: curves of mixtures are allowed twice as much.
  const double bf16 = precision == "bf16" ? 1 : precision == "bf16-experts" ? 2 : 0;
  for (const Bounds& b : bounds) {
    if (precision != b.precision) continue;
    if (last <= b.last && relative <= b.relative && there <= (b.spike > 0 ? b.spike : b.relative) && early <= b.early && median <= b.median && (b.largest == 0 || norm <= b.largest)) return 0;
    return std::printf("outside the bounds of %s: loss %g relative, %g in the last step; gradient norm %g, median %g\n", b.precision, b.relative, b.last, b.early, b.median), 1;
  }
  if (bf16 == 0 && precision != "fp32") return std::printf("unknown precision %s\n", precision.c_str()), 1;
  bool good = bf16 > 0 ? std::max(relative, there) <= bf16 * 0.02 && last <= bf16 * 0.005 : loss <= 2e-5 && std::max(norm, norm_there) <= 1e-3;
  if (!good) std::printf("outside the bounds of %s\n", precision.c_str());
  return good ? 0 : 1;
}

int same(const std::vector<std::string>& runs) {
  std::vector<Row> first = read_run(runs[0]);
  if (first.empty()) return std::printf("no steps in %s\n", runs[0].c_str()), 1;
  int bad = 0;
  for (size_t r = 1; r < runs.size(); ++r) {
    std::vector<Row> other = read_run(runs[r]);
    if (other.size() != first.size()) bad = std::printf("%s has %zu steps, %s %zu\n", runs[r].c_str(), other.size(), runs[0].c_str(), first.size());
    for (size_t i = 0; !bad && i < first.size(); ++i)
      if (std::memcmp(&first[i].loss, &other[i].loss, 8) || std::memcmp(&first[i].grad_norm, &other[i].grad_norm, 8))
        bad = std::printf("step %lld of %s: loss %.17g, norm %.17g; of %s: %.17g, %.17g\n", first[i].step, runs[0].c_str(), first[i].loss, first[i].grad_norm, runs[r].c_str(),
                          other[i].loss, other[i].grad_norm);
  }
  if (!bad) std::printf("%zu runs, %zu steps: the same bits\n", runs.size(), first.size());
  return bad ? 1 : 0;
}

int traffic(const std::string& run) {
  json axes = read_json(run + "/traffic.json")["axes"];
  int bad = 0;
  for (const auto& [axis, list] : axes.items())
    for (const json& e : list) {
      if (e["bytes"] == e["expected_bytes"]) continue;
      std::printf("%s %s: %s bytes, expected %s\n", axis.c_str(), e["op"].get<std::string>().c_str(), e["bytes"].dump().c_str(), e["expected_bytes"].dump().c_str());
      bad = 1;
    }
  return bad;
}

/// Length of the parts of [begin, end) that lie in `boxes`, which do not overlap and are in order.
double inside(const std::vector<std::pair<double, double>>& boxes, double begin, double end) {
  double sum = 0;
  for (const auto& [from, to] : boxes) sum += std::max(0.0, std::min(end, to) - std::max(begin, from));
  return sum;
}

int trace(const std::string& run, int ranks, const std::vector<std::string>& axes) {
  const json events = read_json(run + "/trace.json")["traceEvents"];
  struct Axis {
    double under_way = 0, waits = 0, beside_work = 0;
    long long calls = 0;
  };
  std::map<std::string, Axis> found;
  double steps = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    std::map<int, std::string> lanes;
    std::vector<std::pair<double, double>> work, waits;
    double first_step = 0;
    for (const json& e : events) {
      if (e["pid"] != rank) continue;
      if (e["ph"] == "M") {
        if (e["name"] == "thread_name") lanes[e["tid"]] = e["args"]["name"];
        continue;
      }
      const double begin = e["ts"], end = begin + e["dur"].get<double>();
      if (end < begin) return std::printf("rank %d: an event ends before it begins: %s\n", rank, e.dump().c_str()), 1;
      const std::string name = e["name"];
      if (e["tid"] != 0) continue;
      if (name.rfind("step ", 0) == 0) {
        if (rank == 0) ++steps;
        if (first_step == 0) first_step = begin;
      }
      if (name == "forward" || name == "backward" || name == "weight gradients") work.emplace_back(begin, end);
      if (name.rfind("wait ", 0) == 0) waits.emplace_back(begin, end);
    }
    if (work.empty()) return std::printf("rank %d has no work in the trace\n", rank), 1;
    std::sort(work.begin(), work.end());
    std::sort(waits.begin(), waits.end());
    std::erase_if(waits, [&](const auto& w) { return inside(work, w.first, w.second) < 0.5 * (w.second - w.first); });  // those within work
    for (const json& e : events) {
      if (e["pid"] != rank || e["ph"] != "X") continue;
      const double begin = e["ts"], end = begin + e["dur"].get<double>();
      const std::string name = e["name"];
      if (e["tid"] == 0) {
        if (name.rfind("wait ", 0) == 0) found[name.substr(5)].waits += end - begin;
        continue;
      }
      const std::string lane = lanes[e["tid"]];
      Axis& a = found[lane.substr(0, lane.find(' '))];
      a.calls += 1;
      a.under_way += end - begin;
      a.beside_work += inside(work, begin, end) - inside(waits, begin, end);
    }
  }
  const double unit = 1e3 * steps * ranks;
  int bad = steps > 0 ? 0 : std::printf("no step in the trace\n");
  for (const std::string& name : axes) {
    const Axis& a = found[name];
    if (a.calls == 0) bad = std::printf("no call of %s in the trace\n", name.c_str());
    std::printf("%s %.3f %.3f %.3f\n", name.c_str(), a.under_way / unit, a.waits / unit, a.beside_work / unit);
  }
  return bad ? 1 : 0;
}

int steps(const std::string& run, long long n) {
  std::vector<Row> rows = read_run(run);
  if (static_cast<long long>(rows.size()) != n) return std::printf("%zu rows in %s, expected %lld\n", rows.size(), run.c_str(), n), 1;
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i].step != static_cast<long long>(i + 1)) return std::printf("row %zu of %s is step %lld\n", i + 1, run.c_str(), rows[i].step), 1;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> a(argv + 1, argv + argc);
  try {
    if (a.size() == 4 && a[0] == "golden") return golden(a[1], a[2], a[3], 0);
    if (a.size() == 5 && a[0] == "golden" && std::atoll(a[4].c_str()) > 0)
      return golden(a[1], a[2], a[3], std::atoll(a[4].c_str()));
    if (a.size() >= 3 && a[0] == "same") return same({a.begin() + 1, a.end()});
    if (a.size() == 2 && a[0] == "traffic") return traffic(a[1]);
    if (a.size() >= 4 && a[0] == "trace") return trace(a[1], std::atoi(a[2].c_str()), {a.begin() + 3, a.end()});
    if (a.size() == 3 && a[0] == "steps") return steps(a[1], std::atoll(a[2].c_str()));
  } catch (const std::exception& e) {
    std::printf("check_run: %s\n", e.what());
    return 2;
  }
  std::printf("check_run golden RUN golden.json fp32|fp16|bf16|bf16-experts|fp8-RECIPE [N] | same RUN RUN… | traffic RUN | steps RUN N | trace RUN RANKS AXIS…\n");
  return 2;
}
