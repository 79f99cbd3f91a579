// A run without a program, for tests of its bookkeeping: the clock is the test's, and so is a second count by other rules.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "train/goodput.hpp"

namespace orthant::testing_goodput {

namespace fs = std::filesystem;

constexpr double epoch = 1.7e9;

/// Its clock is `t`, and `want` counts by rules of its own: bins step by step, trained seconds as a list of steps.
struct Replay {
  explicit Replay(const std::string& name) : folder(fs::temp_directory_path() / ("orthant-goodput-" + name + "-" + std::to_string(getpid()))) {
    fs::remove_all(folder);
    fs::create_directories(folder / "logs");
  }
  ~Replay() { fs::remove_all(folder); }

  void begin(double gap) {
    (finished ? want.idle : want.gap) += lives > 0 ? gap : 0;
    t += gap;
    finished = false;
    begun = t;
    run.reset();
    run = std::make_unique<Goodput>(folder.string(), GoodputFacts{++lives, "17", 8, 2}, [this] { return t; });
    if (lives == 1) first = t;
    waited_before = want.saving;
  }
  void start(double seconds) {
    t += seconds;
    (ever ? want.restart : want.start) += seconds;
  }
  void ready(int64_t restored, double load) {
    start(load);
    forget(restored);
    run->ready(restored, load);
    ever = true;
  }
  void forget(int64_t restored) {
    while (static_cast<int64_t>(steps.size()) > restored) {
      want.lost += steps.back();
      steps.pop_back();
    }
  }
  /// `stall`: in the midst of the step, for a save under way.
  void step(double seconds, double stall = 0) {
    t += seconds + stall;
    steps.push_back(seconds);
    want.saving += stall;
    if (stall > 0) run->stalled(stall, Wait::save);
    run->step(at());
  }
  int64_t at() const { return static_cast<int64_t>(steps.size()); }
  void stall(double seconds, Wait what) {
    t += seconds;
    want.saving += seconds;
    run->stalled(seconds, what);
  }
  /// As the program writes it, at any time.
  void status(const std::string& state = "running", int code = 0, const std::string& reason = "") {
    std::ofstream out(folder / "status.json");
    out.precision(17);
    out << R"({"state": ")" << state << R"(", "step": )" << at() << R"(, "reason": ")" << reason << R"(", "code": )" << code << R"(, "lives": )" << lives
        << R"(, "heartbeat": )" << t;
    for (const auto& [name, value] : run->numbers()) out << ", \"" << name << "\": " << value;
    out << "}\n";
  }
  /// Appended for steps after the heartbeat.
  void row(double seconds) {
    std::ofstream out(folder / "metrics.jsonl", std::ios::app);
    out.precision(17);
    out << "{\"step\": " << at() << ", \"loss\": 1, \"seconds\": " << seconds << "}\n";
  }
  void script(const std::string& what, double when, const std::string& tail) {
    const auto seconds = static_cast<std::time_t>(when);
    char text[32];
    std::tm utc{};
    std::strftime(text, sizeof text, "%FT%TZ", gmtime_r(&seconds, &utc));
    std::ofstream(folder / "logs" / "lives.tsv", std::ios::app) << what << "\t17\t17\t" << lives << "\t" << text << "\t" << at() << tail << "\n";
  }
  void end(double closing, const std::string& state, const std::string& reason, int code) {
    t += closing;
    want.detection += closing;
    finished = state == "finished";
    run->end(state, at(), reason, code);
    status(state, code, reason);
  }
  std::vector<Stop> stops() const { return run->ledger().stops(); }

  fs::path folder;
  double t = epoch, first = 0, begun = 0, waited_before = 0;
  int64_t lives = 0;
  bool ever = false, finished = false;
  std::vector<double> steps;  // seconds of those that count
  TimeBins want;
  std::unique_ptr<Goodput> run;
};

inline double trained(const Replay& r) {
  double sum = 0;
  for (const double s : r.steps) sum += s;
  return sum;
}

inline void expect_bins(const Replay& r, const TimeBins& got, double eps = 1e-4) {
  EXPECT_NEAR(got.trained, trained(r), eps);
  EXPECT_NEAR(got.saving, r.want.saving, eps);
  EXPECT_NEAR(got.lost, r.want.lost, eps);
  EXPECT_NEAR(got.start, r.want.start, eps);
  EXPECT_NEAR(got.restart, r.want.restart, eps);
  EXPECT_NEAR(got.detection, r.want.detection, eps);
  EXPECT_NEAR(got.gap, r.want.gap, eps);
  EXPECT_NEAR(got.idle, r.want.idle, eps);
}

inline void expect_whole(const Replay& r, const TimeBins& b) {
  EXPECT_NEAR(b.total(), r.t - r.first, 1e-4) << "some second is in no bin, or in two";
  for (const double s : {b.trained, b.saving, b.lost, b.start, b.restart, b.detection, b.gap, b.idle}) EXPECT_GE(s, -1e-6);
}

}  // namespace orthant::testing_goodput
