// `orthant report`: a made-up run of several lives as text, JSON and CSV, and what is refused.
// labels: smoke asan
// seconds: 60
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "orthant/command.hpp"
#include "orthant/error.hpp"
#include "train/goodput.hpp"
#include "train/goodput_advice.hpp"

namespace fs = std::filesystem;
using namespace orthant;
using nlohmann::json;

namespace {

class Report : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("orthant-report-" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// 100 steps of 2 s a life, a save of 1 s every 10; then a hang of 60 s, which loses 5 steps. `lives` - 1 such stops, and
  /// one by a signal before the last life, which is under way or `finished`.
  std::string run(const std::string& name, int lives, bool finished) {
    const std::string path = (folder_ / name).string();
    fs::create_directories(path);
    double t = 1.7e9;
    int64_t at = 0;
    std::unique_ptr<Goodput> g;
    const auto begin = [&](int life) {
      g.reset();
      g = std::make_unique<Goodput>(path, GoodputFacts{life, "17", 8, 2}, [&t] { return t; });
      t += 30;
      g->ready(at, life > 1 ? 10 : 0);
    };
    for (int life = 1; life <= lives; ++life) {
      begin(life);
      for (int i = 1; i <= 105; ++i) {
        t += 2;
        g->step(at + i);
        if (i % 10) continue;
        g->save(at + i, Wait::save);
        t += 1;
        g->stalled(1, Wait::save);
        g->saved(4);
      }
      if (life == lives) break;
      t += 60;
      g->end("failed", at + 105, "hang: step 9 takes longer than 60.0 s", 4);
      at += 100;
      t += 121;
    }
    at += 105;
    g->save(at, Wait::final_save);
    g->end("stopped", at, "signal 10", 75);
    t += 100;
    begin(lives + 1);
    t += 2;
    g->step(at + 1);
    json status = {{"state", "running"}, {"step", at + 1}, {"lives", lives + 1}, {"heartbeat", t}};
    for (const auto& [key, value] : g->numbers()) status[key] = value;
    if (finished) {
      g->end("finished", at + 1, "", 0);
      status["state"] = "finished";
    }
    std::ofstream(path + "/status.json") << status.dump();
    return path;
  }

  int report(std::vector<std::string> args) {
    for (const Command& c : commands()) {
      if (c.name != "report") continue;
      CommandArgs given;
      given.args = std::move(args);
      ::testing::internal::CaptureStdout();
      try {
        const int code = c.run(given);
        printed_ = ::testing::internal::GetCapturedStdout();
        return code;
      } catch (...) {
        printed_ = ::testing::internal::GetCapturedStdout();
        throw;
      }
    }
    ADD_FAILURE() << "the command report is not registered";
    return -1;
  }
  bool says(const std::string& text) const { return printed_.find(text) != std::string::npos; }

  fs::path folder_;
  std::string printed_;
};

TEST_F(Report, JsonHasTheNumbers) {
  const std::string path = run("six", 6, true);
  ASSERT_EQ(report({path, "--json"}), 0);
  const json j = json::parse(printed_);
  EXPECT_EQ(j["run"], path);
  EXPECT_EQ(j["state"], "finished");
  EXPECT_EQ(j["step"], 606);
  EXPECT_EQ(j["lives"], 7);
  // 6 x 105 and 1 steps, of which 5 x 5 were lost; 10 saves a life
  const json& bins = j["bins"];
  EXPECT_NEAR(bins["trained_s"], 606 * 2, 1e-3);
  EXPECT_NEAR(bins["lost_s"], 50, 1e-3);
  EXPECT_NEAR(bins["saving_s"], 60, 1e-3);
  EXPECT_NEAR(bins["start_s"], 30, 1e-3);
  EXPECT_NEAR(bins["restart_s"], 180, 1e-3);
  EXPECT_NEAR(bins["detection_s"], 300, 1e-3);
  EXPECT_NEAR(bins["gap_s"], 5 * 121 + 100, 1e-3);
  double sum = 0;
  for (const auto& [key, value] : bins.items()) sum += value.get<double>();
  EXPECT_NEAR(sum, j["wall_s"], 1e-6);
  EXPECT_NEAR(j["effective"], bins["trained_s"].get<double>() / sum, 1e-9);

  EXPECT_EQ(j["stops"]["count"], 6);
  EXPECT_EQ(j["stops"]["planned"]["count"], 1);
  EXPECT_NEAR(j["stops"]["planned"]["recover_s"], 130, 1e-3);
  const json& hang = j["stops"]["classes"]["hang"];
  EXPECT_EQ(hang, j["stops"]["unplanned"]);
  EXPECT_EQ(hang["count"], 5);
  EXPECT_NEAR(hang["detection_s"], 60, 1e-3);
  EXPECT_NEAR(hang["gap_s"], 121, 1e-3);
  EXPECT_NEAR(hang["start_s"], 20, 1e-3);
  EXPECT_NEAR(hang["load_s"], 10, 1e-3);
  EXPECT_NEAR(hang["lost_s"], 10, 1e-3);
  EXPECT_NEAR(hang["recover_s"], 221, 1e-3);
  EXPECT_EQ(j["stops"]["classes"]["node"]["count"], 0);

  const double held = sum - bins["gap_s"].get<double>();
  EXPECT_NEAR(j["failures"]["mtbf_s"], held / 5, 1e-3);
  EXPECT_NEAR(j["failures"]["per_1000_node_hours"], 5 / (held * 2 / 3.6e6), 1e-3);
  const json& advice = j["advice"];
  EXPECT_EQ(advice["measured_mtbf"], true);
  EXPECT_NEAR(advice["save_s"], 1, 1e-6);
  EXPECT_NEAR(advice["young_s"], young_interval(1, held / 5), 1e-3);
  EXPECT_NEAR(advice["daly_s"], daly_interval(1, held / 5), 1e-3);
  EXPECT_EQ(advice["daly_steps"], std::llround(advice["daly_s"].get<double>() / 2));
  EXPECT_TRUE(j["notes"].empty()) << j["notes"];
}

TEST_F(Report, TextForPeople) {
  const std::string path = run("six", 6, true);
  ASSERT_EQ(report({path}), 0);
  for (const char* word : {"finished at step 606, 7 lives", "training that counts", "1212.00 s", "effective training time", "planned", "unplanned",
                           "hang", "221.00", "Young: a save every", "Daly:  a save every", "checkpoint.every = ",
                           "effective training time expected", "on 2 nodes"})
    EXPECT_TRUE(says(word)) << word << "\n" << printed_;
  for (const char* word : {"note:", "  node ", "until it was given more steps"}) EXPECT_FALSE(says(word)) << word << "\n" << printed_;
}

TEST_F(Report, GivenRateAndPriceWin) {
  const std::string path = run("six", 6, true);
  ASSERT_EQ(report({path, "--json", "--mtbf", "10000", "--save-seconds", "2"}), 0);
  const json advice = json::parse(printed_)["advice"];
  EXPECT_NEAR(advice["young_s"], 200, 1e-9);
  EXPECT_EQ(advice["young_steps"], 100);
  EXPECT_EQ(advice["measured_mtbf"], false);
  EXPECT_EQ(advice["measured_save"], false);
}

TEST_F(Report, FewStopsAreNoRate) {
  const std::string few = run("few", 3, true), none = run("none", 1, true);
  ASSERT_EQ(report({few}), 0);
  EXPECT_TRUE(says("too few unplanned stops for a rate (2;")) << printed_;
  ASSERT_EQ(report({none, "--json"}), 0);
  const json j = json::parse(printed_);
  EXPECT_TRUE(j["advice"].is_null());
  EXPECT_TRUE(j["failures"]["mtbf_s"].is_null());
  ASSERT_EQ(j["notes"].size(), 1u);
  EXPECT_NE(j["notes"][0].get<std::string>().find("--mtbf"), std::string::npos);
  ASSERT_EQ(report({none, "--mtbf", "10000"}), 0);
  EXPECT_TRUE(says("Young: a save every 141.42 s = 71 steps")) << printed_;
}

TEST_F(Report, ARunUnderWayWithATornEnd) {
  const std::string path = run("live", 6, false);
  std::ofstream(path + "/goodput.jsonl", std::ios::app) << R"({"event":"save","t":17000)";
  ASSERT_EQ(report({path}), 0);
  EXPECT_TRUE(says("running at step 606")) << printed_;
  EXPECT_TRUE(says("1212.00 s")) << printed_;
  EXPECT_TRUE(says("no sign of life for")) << "its heartbeat is of 2023\n" << printed_;
  EXPECT_TRUE(says("1 torn line")) << printed_;
}

TEST_F(Report, TwoRunsAndACsv) {
  const std::string a = run("a", 3, true), b = run("b", 2, true), file = (folder_ / "stops.csv").string();
  ASSERT_EQ(report({a, b, "--json", "--csv", file}), 0);
  EXPECT_EQ(std::count(printed_.begin(), printed_.end(), '\n'), 2);
  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + 3 + 2) << text;
  EXPECT_NE(text.find("\"" + b + "\",1,hang,105,"), std::string::npos) << text;
  EXPECT_NE(text.find(",planned,"), std::string::npos) << text;
  EXPECT_THROW(report({a, "--csv", (folder_ / "none" / "stops.csv").string()}), DataError);
}

TEST_F(Report, WhatIsRefused) {
  EXPECT_THROW(report({}), UsageError);
  EXPECT_THROW(report({run("a", 1, true), "--mtbf", "0"}), UsageError);
  EXPECT_THROW(report({run("a", 1, true), "--save-seconds", "-1"}), UsageError);
  try {
    report({folder_.string()});
    FAIL() << "a folder without goodput.jsonl was taken";
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("goodput.jsonl"), std::string::npos);
  }
  std::ofstream(folder_ / "goodput.jsonl") << "nothing of ours\n";
  EXPECT_THROW(report({folder_.string()}), DataError);
}

}  // namespace
