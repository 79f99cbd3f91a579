// Wall time of a run over its lives: every second in one bin, whatever ends a life; what a killed life leaves; classes.
// labels: smoke asan
// seconds: 60
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <random>

#include "goodput_kit.hpp"
#include "support/run_folder.hpp"
#include "train/goodput_advice.hpp"
#include "train/goodput_traces.hpp"

using namespace orthant;
using namespace orthant::testing_goodput;

namespace {

TEST(Goodput, BinsOfALifeOfEveryKind) {
  Replay r("kinds");
  r.begin(0);
  r.start(3);
  r.ready(0, 0);
  for (int i = 0; i < 10; ++i) r.step(2);
  r.run->save(10, Wait::save);
  r.stall(0.5, Wait::save);
  r.step(2, 0.25);
  r.run->saved(1.5);
  r.stall(4, Wait::exports);
  EXPECT_NEAR(r.run->bins().effective(), 22 / 29.75, 1e-6);  // as of now
  r.run->save(11, Wait::final_save);
  r.stall(1, Wait::final_save);
  r.run->saved(1);
  r.end(0.125, "stopped", "signal 10", 75);

  r.begin(121);
  r.start(3);
  r.ready(11, 2);
  for (int i = 0; i < 4; ++i) r.step(2);
  // at step 9 again, by a damaged checkpoint: 2 steps of this life's past and 4 of its own
  r.t += 7;
  r.want.restart += 7;
  r.forget(9);
  r.run->rollback(9, 7, "loss spike");
  for (int i = 0; i < 3; ++i) r.step(2);
  r.t += 60;
  r.want.detection += 60;
  r.run->end("failed", 12, "hang: step 13 takes longer than 60.0 s\n  no word from rank 3", 4);
  r.end(0, "failed", "another word for the same end", 4);

  r.begin(30);
  r.start(1);
  r.end(0, "failed", "run.steps = -1", 2);
  r.want.detection = 60.125;
  r.begin(5);
  r.start(3);
  r.ready(12, 2);
  r.step(2);
  r.end(0, "finished", "", 0);
  r.begin(1000);
  r.start(1);
  r.ready(13, 1);
  r.step(2);
  expect_bins(r, r.run->bins());
  expect_whole(r, r.run->bins());

  const std::vector<Stop> stops = r.stops();
  ASSERT_EQ(stops.size(), 4u);
  EXPECT_EQ(stops[0].kind, StopKind::planned);
  EXPECT_NEAR(stops[0].detection, 0.125, 1e-5);
  EXPECT_NEAR(stops[0].gap, 121, 1e-5);
  EXPECT_NEAR(stops[0].start, 3, 1e-5);
  EXPECT_NEAR(stops[0].load, 2, 1e-5);
  EXPECT_NEAR(stops[0].lost, 0, 1e-5);
  EXPECT_EQ(stops[1].kind, StopKind::numerics);
  EXPECT_NEAR(stops[1].load, 7, 1e-5);
  EXPECT_NEAR(stops[1].lost, 12, 1e-5);
  EXPECT_EQ(stops[2].kind, StopKind::hang);
  EXPECT_EQ(stops[2].reason, "hang: step 13 takes longer than 60.0 s");
  EXPECT_NEAR(stops[2].detection, 60, 1e-5);
  EXPECT_NEAR(stops[2].gap, 30, 1e-5);
  EXPECT_NEAR(stops[2].start, 1, 1e-5) << "the start that came to nothing";
  EXPECT_EQ(stops[3].kind, StopKind::refused);
  EXPECT_NEAR(stops[3].recover(), 5 + 3 + 2, 1e-5);

  const StopTable table = table_of(stops);
  EXPECT_EQ(table.planned.count, 1);
  EXPECT_EQ(table.unplanned.count, 3);
  EXPECT_EQ(table.failures, 2);
  EXPECT_NEAR(table.planned.recover(), 126.125, 1e-4);
  EXPECT_NEAR(table.unplanned.recover(), (19 + 91 + 10) / 3.0, 1e-4);
  EXPECT_NEAR(r.run->ledger().mean_stall(), 0.75, 1e-9) << "neither exports nor the save at the end are the price of a save";
  EXPECT_NEAR(r.run->ledger().mean_durable(), 1.25, 1e-9);

  std::map<std::string, double> numbers;
  for (const auto& [name, value] : r.run->numbers()) numbers[name] = value;
  EXPECT_EQ(numbers.size(), 10u);
  EXPECT_NEAR(numbers.at("trained_s"), 28, 1e-4);
  EXPECT_EQ(numbers.at("stops"), 4);
}

/// Random lives. `torn`: kills tear the last line off, too, and then only what holds for any history is checked.
void random_history(unsigned seed, bool torn) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto seconds = [&](double most) { return most * (random() % 1000 + 1) / 1000.0; };
  Replay r("random");
  std::vector<int64_t> good = {0};  // steps with a checkpoint
  for (int life = 0; life < 12; ++life) {
    r.begin(seconds(200));
    expect_whole(r, r.run->bins());
    r.status();
    if (pick(6) == 0) {  // killed before it trains
      r.t += seconds(3);  // of which nothing on disk tells
      r.want.gap += r.t - r.begun;
      continue;
    }
    r.start(seconds(5));
    if (good.size() > 1 && pick(5) == 0) good.pop_back();  // the last one cannot be read
    r.ready(good.back(), seconds(2));
    const int steps = pick(12);
    for (int i = 0; i < steps; ++i) {
      const double s = seconds(3);
      r.step(s, pick(4) == 0 ? seconds(0.5) : 0);
      r.row(s);
      if (pick(3) == 0) {
        r.run->save(r.at(), Wait::save);
        good.push_back(r.at());
        r.stall(seconds(1), Wait::save);
      }
      if (pick(10) == 0 && good.back() < r.at()) {
        const double load = seconds(4);
        r.t += load;
        r.want.restart += load;
        r.forget(good.back());
        r.run->rollback(good.back(), load, "loss spike");
        fs::remove(r.folder / "metrics.jsonl");  // cut by the program
      }
    }
    const int how = pick(4);
    if (how == 0 || how == 2) {
      r.run->save(r.at(), Wait::final_save);
      if (good.back() < r.at()) good.push_back(r.at());
    }
    if (how == 0) {
      r.end(seconds(1), "stopped", "time limit", 75);
    } else if (how == 1) {
      r.end(seconds(60), "failed", "hang", 4);
    } else if (how == 2) {
      r.end(seconds(1), "finished", "", 0);
    } else {  // killed, right behind a heartbeat, or a while after it
      r.status();
      const double rest = seconds(5);
      r.t += rest;
      r.want.gap += rest;
      if (torn) {
        const fs::path log = r.folder / "goodput.jsonl";
        fs::resize_file(log, fs::file_size(log) - static_cast<size_t>(pick(40)));
      }
    }
    expect_whole(r, r.run->bins());
    fs::remove(r.folder / "metrics.jsonl");  // the next life cuts it, one way or another
  }
  r.begin(1);
  expect_whole(r, r.run->bins());
  if (torn) return;
  expect_bins(r, r.run->bins());
  const GoodputView read = read_goodput(r.folder.string());
  EXPECT_EQ(read.bad_lines, 0);
  expect_bins(r, read.bins, 1e-3);
  EXPECT_EQ(read.ledger.stops().size(), r.stops().size());
}

TEST(Goodput, EverySecondIsInOneBin) {
  for (unsigned seed = 1; seed <= 60; ++seed) random_history(seed, false);
}

TEST(Goodput, AndSoWithTornLines) {
  for (unsigned seed = 1; seed <= 60; ++seed) random_history(seed, true);
}

TEST(Goodput, AKilledLifeIsClosedFromWhatItLeft) {
  Replay r("killed");
  r.begin(0);
  r.script("begin", r.t - 1, "");
  r.start(2);
  r.ready(0, 0);
  for (int i = 0; i < 6; ++i) r.step(2);
  r.run->save(6, Wait::save);
  r.step(2, 1);
  r.status();  // at step 7
  r.step(3);
  r.row(3);  // step 8: its row is on disk, status.json was not yet due
  const double killed = r.t + 1;
  r.t += 11;
  r.script("end", killed + 10, "\t137\tagain");
  r.want.detection += 11;
  r.begin(20);
  r.status();
  r.script("begin", r.t, "");
  r.start(3);
  r.ready(6, 1);
  EXPECT_NEAR(r.want.lost, 5, 1e-9);
  expect_bins(r, r.run->bins());
  ASSERT_EQ(r.stops().size(), 1u);
  EXPECT_EQ(r.stops()[0].kind, StopKind::rank);
  EXPECT_EQ(r.stops()[0].step, 8);
  EXPECT_NEAR(r.stops()[0].recover(), 11 + 20 + 3 + 1 + 5, 1e-4);

  // The next one dies in the midst of a save whose end nobody saw, with its script, and without a heartbeat since the start.
  r.step(2);
  r.run->save(7, Wait::save);
  r.t += 0.5;
  r.want.gap += 0.5;
  r.begin(300);
  r.ready(7, 1);
  expect_bins(r, r.run->bins());
  ASSERT_EQ(r.stops().size(), 2u);
  EXPECT_EQ(r.stops()[1].kind, StopKind::node);
  EXPECT_NEAR(r.stops()[1].lost, 0, 1e-9);

  // And one whose orderly end is in status.json alone.
  r.step(2);
  r.status("failed", 5, "loss was not finite");
  r.begin(10);
  r.ready(7, 0);
  ASSERT_EQ(r.stops().size(), 3u);
  EXPECT_EQ(r.stops()[2].kind, StopKind::numerics);
  expect_bins(r, r.run->bins());
}

TEST(Goodput, ALiveRunIsReadAsOfItsHeartbeat) {
  Replay r("live");
  r.begin(0);
  r.start(2);
  r.ready(0, 0);
  for (int i = 0; i < 5; ++i) r.step(2);
  r.stall(1, Wait::save);
  r.status();
  const GoodputView view = read_goodput(r.folder.string());
  EXPECT_EQ(view.state, "running");
  EXPECT_EQ(view.step, 5);
  EXPECT_NEAR(view.as_of, r.t, 1e-5);
  expect_bins(r, view.bins);
}

TEST(Goodput, ALifeBeginsWithItsProgram) {
  Replay r("begun");
  r.begin(0);
  r.ready(0, 0);
  r.step(2);
  r.end(0, "stopped", "signal 10", 75);
  r.run.reset();
  r.t += 50;
  const GoodputFacts facts{2, "17", 8, 2, r.t - 20};
  r.run = std::make_unique<Goodput>(r.folder.string(), facts, [&r] { return r.t; });
  EXPECT_NEAR(r.run->bins().gap, 30, 1e-5);
  EXPECT_NEAR(r.run->bins().restart, 20, 1e-5);
  expect_whole(r, r.run->bins());
}

TEST(Goodput, TheRunFolderCarriesTheNumbers) {
  Replay r("carry");
  r.begin(0);
  r.start(3);
  r.ready(0, 0);
  r.stall(1.25, Wait::exports);
  RunFolder folder(r.folder.string());
  folder.carry([&r] { return r.run->numbers(); });
  folder.status({"running", 7, "", 0});
  const std::optional<StatusTrace> s = read_status(r.folder.string());
  ASSERT_TRUE(s);
  EXPECT_EQ(s->state, "running");
  EXPECT_EQ(s->step, 7);
  EXPECT_EQ(s->life, 1);
  EXPECT_NEAR(s->saving, 1.25, 1e-5);
  EXPECT_FALSE(read_status((r.folder / "none").string()));

  // The watchdog's word stands, also where the launcher wakes the training thread before it ends it.
  folder.status({"failed", 8, "hang: step 9 takes longer than 3.0 s", 4});
  folder.status({"running", 9, "", 0});
  folder.status({"finished", 10, "", 0});
  const std::optional<StatusTrace> end = read_status(r.folder.string());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->state, "failed");
  EXPECT_EQ(end->step, 8);
  EXPECT_EQ(end->code, 4);
}

TEST(Goodput, GoingBackBetweenKnownPlacesIsInProportion) {
  Replay r("between");
  r.begin(0);
  r.ready(0, 0);
  for (int i = 0; i < 10; ++i) r.step(2);
  r.run->save(10, Wait::save);
  r.end(0, "failed", "cannot read", 3);
  r.begin(1);
  r.ready(4, 0);  // a checkpoint that no line tells of
  EXPECT_NEAR(r.run->bins().lost, 12, 1e-5);
  EXPECT_NEAR(r.run->bins().trained, 8, 1e-5);
  r.end(0, "failed", "cannot read", 3);
  r.begin(1);
  r.ready(50, 0);  // and one from another run, further on
  EXPECT_NEAR(r.run->bins().trained, 8, 1e-5);
  EXPECT_EQ(r.run->ledger().steps(), 4);
}

TEST(Goodput, AFullDiskIsToldOnceAndLinesComeLater) {
  Replay r("full");
  std::ofstream(r.folder / "goodput.jsonl") << std::string(5000, '\n');  // so that the limit lets stderr pass
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // write() fails instead
  ::testing::internal::CaptureStderr();
  r.begin(0);
  rlimit little = before;
  little.rlim_cur = fs::file_size(r.folder / "goodput.jsonl") + 40;  // in the midst of a line
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  r.start(2);
  r.ready(0, 0);
  r.step(2);
  r.run->save(1, Wait::save);
  const auto cut = fs::file_size(r.folder / "goodput.jsonl");
  expect_bins(r, r.run->bins());
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  r.step(2);
  r.end(0, "finished", "", 0);
  std::signal(SIGXFSZ, handler);
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(cut, little.rlim_cur);
  EXPECT_NE(told.find("goodput.jsonl"), std::string::npos);
  EXPECT_NE(told.find("training goes on"), std::string::npos);
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
  const GoodputView view = read_goodput(r.folder.string());
  EXPECT_EQ(view.bad_lines, 0);
  expect_bins(r, view.bins);
}

TEST(Goodput, LinesRoundTrip) {
  for (int kind = 0; kind < 6; ++kind) {
    GoodputEvent e;
    e.kind = static_cast<GoodputEvent::Kind>(kind);
    e.t = epoch + 1.0 / 3;
    e.step = 1234567;
    e.life = 3;
    e.job = "12_\"x\"";
    e.ranks = 16384;
    e.nodes = 2048;
    e.load = 0.1;
    e.waited = 1.0 / 7;
    e.stall = 1e-9;
    e.saves = 3;
    e.durables = 2;
    e.durable = 5;
    e.sign = epoch;
    e.state = "failed";
    e.reason = "no \"file\"\n";
    e.code = 3;
    e.stop = StopKind::node;
    const std::string line = to_line(e);
    ASSERT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
    const auto back = parse_event(line.substr(0, line.size() - 1));
    ASSERT_TRUE(back) << line;
    EXPECT_EQ(to_line(*back), line);
    EXPECT_EQ(back->t, e.t);
    for (size_t cut = 0; cut + 2 < line.size(); ++cut) EXPECT_FALSE(parse_event(line.substr(0, cut))) << line.substr(0, cut);
  }
  EXPECT_FALSE(parse_event(R"({"event":"dance","t":1})"));
  EXPECT_FALSE(parse_event(R"({"event":"save","t":"x"})"));
}

TEST(Goodput, ClassesOfEnds) {
  EXPECT_EQ(kind_of_end(75, "signal 10"), StopKind::planned);
  EXPECT_EQ(kind_of_end(2, ""), StopKind::refused);
  EXPECT_EQ(kind_of_end(3, ""), StopKind::io);
  EXPECT_EQ(kind_of_end(4, "hang: step 3 takes longer than 60 s"), StopKind::hang);
  EXPECT_EQ(kind_of_end(4, "MPI_Allreduce failed"), StopKind::other);
  EXPECT_EQ(kind_of_end(5, ""), StopKind::numerics);
  EXPECT_EQ(kind_of_kill({}), StopKind::other) << "nobody saw it";
  EXPECT_EQ(kind_of_kill({true, false, 0, -1}), StopKind::node);
  const std::pair<int, StopKind> codes[] = {{134, StopKind::rank}, {135, StopKind::rank}, {137, StopKind::rank}, {139, StopKind::rank}, {143, StopKind::rank},
                                            {0, StopKind::node},   {1, StopKind::node},   {3, StopKind::io},     {4, StopKind::hang},   {5, StopKind::numerics},
                                            {17, StopKind::other}};
  for (const auto& [code, kind] : codes) EXPECT_EQ(kind_of_kill({true, true, 0, code}), kind) << code;
}

TEST(Goodput, TheJobScriptsWordIsThatOfTheSameLife) {
  Replay r("script");
  EXPECT_FALSE(read_script(r.folder.string(), epoch, epoch + 10).there);
  r.script("begin", epoch, "");
  r.script("end", epoch + 100, "\t137\tagain");
  r.script("begin", epoch + 200, "");
  r.script("end", epoch + 300, "\t1\tagain");
  const ScriptTrace one = read_script(r.folder.string(), epoch + 1.5, epoch + 201.5);
  EXPECT_TRUE(one.there && one.ended);
  EXPECT_EQ(one.code, 137);
  EXPECT_EQ(one.end, epoch + 100);
  const ScriptTrace two = read_script(r.folder.string(), epoch + 201.5, epoch + 400);
  EXPECT_TRUE(two.there && two.ended);
  EXPECT_EQ(two.code, 1);
  EXPECT_FALSE(read_script(r.folder.string(), epoch + 350, epoch + 400).there) << "started by hand";
  r.script("begin", epoch + 500, "");
  const ScriptTrace three = read_script(r.folder.string(), epoch + 501, epoch + 900);
  EXPECT_TRUE(three.there && !three.ended);
  EXPECT_EQ(utc_seconds("2023-11-14T22:13:20Z"), 1.7e9);
  EXPECT_FALSE(utc_seconds("yesterday"));
}

}  // namespace
