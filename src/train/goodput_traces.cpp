// See goodput_traces.hpp.
#include "train/goodput_traces.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

namespace orthant {

namespace {

using nlohmann::json;

std::vector<std::string> fields(const std::string& line) {
  std::vector<std::string> out(1);
  for (const char c : line)
    if (c == '\t') out.emplace_back();
    else out.back() += c;
  return out;
}

}  // namespace

std::optional<StatusTrace> read_status(const std::string& folder) {
  std::ifstream in(folder + "/status.json", std::ios::binary);
  if (!in) return std::nullopt;
  const json j = json::parse(in, nullptr, false);
  if (!j.is_object()) return std::nullopt;
  try {
    StatusTrace s;
    s.state = j.value("state", std::string());
    s.reason = j.value("reason", std::string());
    s.step = j.value("step", int64_t{0});
    s.life = j.value("lives", int64_t{0});
    s.code = j.value("code", 0);
    s.heartbeat = j.value("heartbeat", 0.0);
    s.saving = j.value("saving_s", -1.0);
    return s;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

std::optional<double> utc_seconds(const std::string& text) {
  std::tm t{};
  char z = 0;
  if (std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d%c", &t.tm_year, &t.tm_mon, &t.tm_mday, &t.tm_hour, &t.tm_min, &t.tm_sec, &z) != 7 ||
      z != 'Z')
    return std::nullopt;
  t.tm_year -= 1900;
  t.tm_mon -= 1;
  return static_cast<double>(timegm(&t));
}

ScriptTrace read_script(const std::string& folder, double begin, double before) {
  // Times are whole seconds, cut off, and another host may have written them.
  const double slack = 2;
  ScriptTrace out;
  std::ifstream in(folder + "/logs/lives.tsv");
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> f = fields(line);
    if (f.size() < 6) continue;
    const std::optional<double> t = utc_seconds(f[4]);
    if (!t || *t > before + slack) continue;
    if (f[0] == "begin" && *t <= begin + slack) out = {true, false, 0, -1};
    // an end before our begin: the script's life was an earlier one, and ours was started by hand
    if (f[0] == "end" && f.size() >= 7 && out.there && !out.ended) {
      out.ended = true;
      out.end = *t;
      out.code = std::atoi(f[6].c_str());
      if (*t < begin - slack) out = {};
    }
  }
  return out;
}

LateRows rows_after(const std::string& folder, int64_t step) {
  const std::streamoff tail = 1 << 20;
  LateRows out;
  std::ifstream in(folder + "/metrics.jsonl", std::ios::binary | std::ios::ate);
  if (!in) return out;
  const std::streamoff size = in.tellg();
  in.seekg(std::max<std::streamoff>(0, size - tail));
  std::string line;
  if (size > tail) std::getline(in, line);  // most likely cut
  while (std::getline(in, line)) {
    if (in.eof()) break;  // torn
    const auto number = [&](const char* key) {
      const size_t at = line.find(key);
      return at == std::string::npos ? -1 : std::atof(line.c_str() + at + std::string(key).size());
    };
    const double row = number("\"step\": "), seconds = number("\"seconds\": ");
    if (row <= static_cast<double>(step) || seconds < 0) continue;  // validation rows have no seconds
    out.seconds += seconds;
    out.step = static_cast<int64_t>(row);
  }
  return out;
}

StopKind kind_of_kill(const ScriptTrace& script) {
  if (!script.there) return StopKind::other;
  if (!script.ended) return StopKind::node;  // the job script itself was gone
  switch (script.code) {
    case 3: return StopKind::io;
    case 4: return StopKind::hang;  // ended by a rank that had no word from rank 0
    case 5: return StopKind::numerics;
    case 0:
    case 1: return StopKind::node;  // the launcher's own word for a lost node
    default: return script.code > 128 && script.code < 160 ? StopKind::rank : StopKind::other;  // 128 + signal
  }
}

LastSign last_sign(const GoodputLedger& ledger, const std::optional<StatusTrace>& status, const std::string& folder, double limit) {
  LastSign out{ledger.last(), ledger.waited(), ledger.step()};
  if (status && status->life == ledger.life()) {
    out.t = std::max(out.t, status->heartbeat);
    if (ledger.phase() == GoodputLedger::Phase::training) {
      out.step = std::max(out.step, status->step);
      const LateRows late = rows_after(folder, out.step);  // status.json is written once a second at most
      out.t += late.seconds;
      out.step = std::max(out.step, late.step);
      if (status->saving >= 0) out.waited = std::max(out.waited, ledger.waited() + status->saving - ledger.bins().saving);
    }
  }
  out.t = std::max(ledger.last(), std::min(out.t, limit));
  return out;
}

GoodputEvent closing_event(const GoodputLedger& ledger, const std::string& folder, double next) {
  const std::optional<StatusTrace> status = read_status(folder);
  const ScriptTrace script = read_script(folder, ledger.life_begin(), next);
  const LastSign sign = last_sign(ledger, status, folder, next);
  GoodputEvent e;
  e.kind = GoodputEvent::Kind::killed;
  e.sign = sign.t;
  e.step = sign.step;
  e.waited = sign.waited;
  e.state = "running";
  e.t = script.ended ? std::clamp(script.end, sign.t, std::max(sign.t, next)) : sign.t;
  if (status && status->life == ledger.life() && !status->state.empty() && status->state != "running") {
    e.kind = GoodputEvent::Kind::end;  // it ended in order, and only the line of its end is missing
    e.state = status->state;
    e.reason = status->reason;
    e.code = status->code;
    return e;
  }
  e.stop = kind_of_kill(script);
  e.code = script.ended ? script.code : -1;
  e.reason = script.ended  ? "killed; the launcher ended with " + std::to_string(script.code)
             : script.there ? "killed with its job script"
                            : "killed, and no job script saw it";
  return e;
}

}  // namespace orthant
