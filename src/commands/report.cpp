// orthant report RUN…: what became of the wall time of runs, what their stops cost, and how often they should save.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "commands/parse.hpp"
#include "orthant/command.hpp"
#include "train/goodput.hpp"
#include "train/goodput_advice.hpp"

namespace orthant {

namespace {

using nlohmann::json;

struct Request {
  std::vector<std::string> runs;
  bool as_json = false;
  std::string csv;
  std::optional<double> mtbf, save;
};

struct RunReport {
  std::string run;
  GoodputView view;
  StopTable table;
  int64_t steps = 0;  // behind the trained time
  std::optional<double> mtbf;
  double rate = 0;  // failures in 1000 node-hours
  std::optional<Advice> advice;
};

RunReport report_of(const std::string& run, const Request& request) {
  RunReport r{run, read_goodput(run), {}, 0, {}, 0, {}};
  const GoodputLedger& ledger = r.view.ledger;
  r.table = table_of(ledger.stops());
  r.steps = ledger.steps() + std::max<int64_t>(0, r.view.step - ledger.step());
  r.mtbf = measured_mtbf(ledger, r.view.bins, r.table.failures);
  r.rate = failures_per_1000_node_hours(ledger, r.view.bins, r.table.failures);
  r.advice = advise(ledger, r.view.bins, r.steps, request.mtbf, request.save);
  return r;
}

struct BinRow {
  const char* key;
  double seconds;
  const char* text;
};
std::vector<BinRow> rows_of(const TimeBins& b) {
  return {{"trained_s", b.trained, "training that counts"},
          {"saving_s", b.saving, "waiting for checkpoints and exports"},
          {"lost_s", b.lost, "steps that were done again"},
          {"start_s", b.start, "first start"},
          {"restart_s", b.restart, "later starts: program, checkpoint"},
          {"detection_s", b.detection, "last sign of training to the end of the job"},
          {"gap_s", b.gap, "queue, between the lives"},
          {"idle_s", b.idle, "finished, until it was given more steps"}};
}

std::string seconds_text(double s) {
  if (s < 600) return fmt::format("{:.2f} s", s);
  if (s < 48 * 3600) return fmt::format("{:.2f} h", s / 3600);
  return fmt::format("{:.2f} d", s / 86400);
}

/// What is doubtful about the numbers.
std::vector<std::string> notes_of(const RunReport& r, const Request& request) {
  std::vector<std::string> out;
  if (r.view.bad_lines > 0) out.push_back(fmt::format("{} torn lines of goodput.jsonl were left out", r.view.bad_lines));
  const auto phase = r.view.ledger.phase();
  const double silent = wall_clock() - r.view.as_of;
  if ((phase == GoodputLedger::Phase::starting || phase == GoodputLedger::Phase::training) && silent > 60)
    out.push_back(fmt::format("no sign of life for {}: if the run was killed, its next life counts the stop", seconds_text(silent)));
  if (!request.mtbf && r.table.failures == 0)
    out.push_back("no unplanned stop yet, so no rate of failures: give the machine's with --mtbf SECONDS");
  else if (!request.mtbf && r.table.failures < enough_stops)
    out.push_back(fmt::format("too few unplanned stops for a rate ({}; {} or more are wanted): the interval is a guess, --mtbf SECONDS gives the machine's",
                              r.table.failures, enough_stops));
  if (!request.save && r.view.ledger.saves() == 0)
    out.push_back("no checkpoint in the midst of training yet, so no price of a save: give it with --save-seconds S");
  if (r.advice && r.advice->interval > r.advice->daly)
    out.push_back(fmt::format("a save is complete after {} only, and the next one waits for it: the interval advised is not shorter",
                              seconds_text(r.advice->interval)));
  return out;
}

void print(const RunReport& r, const Request& request) {
  const GoodputLedger& ledger = r.view.ledger;
  const TimeBins& b = r.view.bins;
  fmt::print("{}\n  {} at step {}, {} {}, {} of wall time\n", r.run, r.view.state.empty() ? "state unknown" : r.view.state, r.view.step,
             ledger.lives(), ledger.lives() == 1 ? "life" : "lives", seconds_text(b.total()));
  const double all = b.total() - b.idle;
  for (const BinRow& row : rows_of(b))
    if (row.seconds > 0 || std::string(row.key) == "trained_s")
      fmt::print("  {:<44} {:>14.2f} s {:>8}\n", row.text, row.seconds,
                 std::string(row.key) == "idle_s" || all <= 0 ? "-" : fmt::format("{:.2f} %", 100 * row.seconds / all));
  fmt::print("  effective training time {:.2f} %\n", 100 * b.effective());

  if (!ledger.stops().empty()) {
    fmt::print("\n  {:<22} {:>5} {:>11} {:>10} {:>10} {:>10} {:>10} {:>12}\n", "stops (mean seconds)", "count", "detection", "requeue", "start",
               "load", "lost", "to recover");
    const auto line = [](const std::string& name, const StopMeans& m) {
      if (m.count == 0) return;
      if (m.over == 0) fmt::print("  {:<22} {:>5}   (training has not gone on yet)\n", name, m.count);
      else
        fmt::print("  {:<22} {:>5} {:>11.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>12.2f}\n", name, m.count, m.detection, m.gap, m.start,
                   m.load, m.lost, m.recover());
    };
    line("planned", r.table.planned);
    line("unplanned", r.table.unplanned);
    for (int k = 1; k < stop_kinds; ++k) line(std::string("  ") + name_of(static_cast<StopKind>(k)), r.table.kinds[static_cast<size_t>(k)]);
  }

  fmt::print("\n");
  if (ledger.saves() > 0)
    fmt::print("  saves: {} in the midst of training, each made it wait {:.3f} s; complete after {:.3f} s\n", ledger.saves(), ledger.mean_stall(),
               ledger.mean_durable());
  if (r.mtbf)
    fmt::print("  an unplanned stop every {} on {} node{} ({:.3g} in 1000 node-hours)\n", seconds_text(*r.mtbf), ledger.nodes(),
               ledger.nodes() == 1 ? "" : "s", r.rate);
  if (r.advice) {
    const Advice& a = *r.advice;
    const auto steps = [](int64_t n) { return n > 0 ? fmt::format(" = {} step{}", n, n == 1 ? "" : "s") : std::string(); };
    fmt::print("  advice, for a save that costs {:.3f} s{} and a stop every {}{}:\n", a.save, a.measured_save ? "" : " (given)", seconds_text(a.mtbf),
               a.measured_mtbf ? "" : " (given)");
    fmt::print("    Young: a save every {}{}\n", seconds_text(a.young), steps(a.young_steps));
    fmt::print("    Daly:  a save every {}{}\n", seconds_text(a.daly), steps(a.daly_steps));
    if (a.interval_steps > 0) fmt::print("    checkpoint.every = {}", a.interval_steps);
    else fmt::print("    with that");
    fmt::print(": {:.2f} % effective training time expected\n", 100 * a.expected);
  }
  for (const std::string& note : notes_of(r, request)) fmt::print("  note: {}\n", note);
}

json to_json(const StopMeans& m) {
  return {{"count", m.count}, {"over", m.over}, {"detection_s", m.detection}, {"gap_s", m.gap}, {"start_s", m.start},
          {"load_s", m.load}, {"lost_s", m.lost}, {"recover_s", m.recover()}};
}

json to_json(const RunReport& r, const Request& request) {
  const GoodputLedger& ledger = r.view.ledger;
  json j = {{"run", r.run}, {"state", r.view.state}, {"step", r.view.step}, {"lives", ledger.lives()}, {"as_of", r.view.as_of},
            {"wall_s", r.view.bins.total()}, {"effective", r.view.bins.effective()}};
  for (const BinRow& row : rows_of(r.view.bins)) j["bins"][row.key] = row.seconds;
  json& stops = j["stops"];
  stops = {{"count", ledger.stops().size()}, {"planned", to_json(r.table.planned)}, {"unplanned", to_json(r.table.unplanned)}};
  for (int k = 1; k < stop_kinds; ++k)
    stops["classes"][name_of(static_cast<StopKind>(k))] = to_json(r.table.kinds[static_cast<size_t>(k)]);
  j["saves"] = {{"count", ledger.saves()}, {"stall_s", ledger.mean_stall()}, {"durable_s", ledger.mean_durable()}};
  j["failures"] = {{"count", r.table.failures}, {"nodes", ledger.nodes()}, {"per_1000_node_hours", r.rate}, {"mtbf_s", r.mtbf ? json(*r.mtbf) : json()}};
  if (r.advice) {
    const Advice& a = *r.advice;
    j["advice"] = {{"save_s", a.save}, {"mtbf_s", a.mtbf}, {"measured_save", a.measured_save}, {"measured_mtbf", a.measured_mtbf},
                   {"young_s", a.young}, {"daly_s", a.daly}, {"interval_s", a.interval}, {"young_steps", a.young_steps},
                   {"daly_steps", a.daly_steps}, {"interval_steps", a.interval_steps}, {"expected_effective", a.expected}};
  } else {
    j["advice"] = nullptr;
  }
  j["notes"] = notes_of(r, request);
  return j;
}

/// A row a stop.
void write_csv(const std::vector<RunReport>& reports, const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  out << "run,life,class,step,time,detection_s,requeue_s,start_s,load_s,lost_s,recover_s,over,reason\n";
  const auto quoted = [](const std::string& text) {
    std::string s = "\"";
    for (const char c : text) s += c == '"' ? std::string("\"\"") : std::string(1, c);
    return s + "\"";
  };
  for (const RunReport& r : reports)
    for (const Stop& s : r.view.ledger.stops())
      out << fmt::format("{},{},{},{},{:.3f},{},{},{},{},{},{},{},{}\n", quoted(r.run), s.life, name_of(s.kind), s.step, s.t, s.detection, s.gap,
                         s.start, s.load, s.lost, s.recover(), s.over ? 1 : 0, quoted(s.reason));
  out.close();
  if (!out) throw DataError("cannot write " + path + ": is its folder there and writable, and the disk not full?");
}

int report(const CommandArgs& given) {
  CLI::App app{"Wall time of runs over all their lives: training that counted, saves, stops by class; advice on checkpoint.every", "orthant report"};
  Request request;
  app.add_option("RUN", request.runs, "Run folders (run.output of the deck); a run may be under way")->required();
  app.add_flag("--json", request.as_json, "One JSON object a run, one a line");
  app.add_option("--csv", request.csv, "Write a row for each stop to this file");
  app.add_option("--mtbf", request.mtbf, "Seconds between unplanned stops of the machine, in place of the measured mean")->check(CLI::PositiveNumber);
  app.add_option("--save-seconds", request.save, "Seconds that training waits for a save, in place of the measured mean")->check(CLI::PositiveNumber);
  if (!parse(app, given)) return 0;

  std::vector<RunReport> reports;
  for (const std::string& run : request.runs) reports.push_back(report_of(run, request));
  for (size_t i = 0; i < reports.size(); ++i) {
    if (request.as_json) {
      fmt::print("{}\n", to_json(reports[i], request).dump(-1, ' ', false, json::error_handler_t::replace));
    } else {
      if (i > 0) fmt::print("\n");
      print(reports[i], request);
    }
  }
  if (!request.csv.empty()) write_csv(reports, request.csv);
  std::fflush(stdout);
  return 0;
}

const bool added = add_command({"report", "effective training time of runs, their stops, and how often to save", false, false, report});

}  // namespace

}  // namespace orthant
