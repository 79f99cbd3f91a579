// Events of a run as lines of goodput.jsonl.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "train/goodput_ledger.hpp"

namespace orthant {

namespace {

using nlohmann::json;
using Kind = GoodputEvent::Kind;

constexpr const char* kind_names[] = {"begin", "ready", "save", "rollback", "end", "killed"};

std::string quoted(const std::string& text) { return json(text).dump(-1, ' ', false, json::error_handler_t::replace); }

std::string life_sums(const GoodputEvent& e) {
  return fmt::format(R"(,"waited_s":{},"stall_s":{},"saves":{},"durables":{},"durable_s":{})", e.waited, e.stall, e.saves, e.durables,
                     e.durable);
}

/// Most lines are of saves, and each start of a run reads them all: they do not pass through the JSON parser.
std::optional<GoodputEvent> parse_save(const std::string& line) {
  GoodputEvent e;
  e.kind = Kind::save;
  long long step = 0, saves = 0, durables = 0;
  int end = 0;
  const int n = std::sscanf(line.c_str(),
                            R"({"event":"save","t":%lf,"step":%lld,"waited_s":%lf,"stall_s":%lf,"saves":%lld,"durables":%lld,"durable_s":%lf}%n)",
                            &e.t, &step, &e.waited, &e.stall, &saves, &durables, &e.durable, &end);
  if (n != 7 || end == 0) return std::nullopt;
  e.step = step;
  e.saves = saves;
  e.durables = durables;
  return e;
}

}  // namespace

std::string to_line(const GoodputEvent& e) {
  std::string out = fmt::format(R"({{"event":"{}","t":{},"step":{})", kind_names[static_cast<int>(e.kind)], e.t, e.step);
  switch (e.kind) {
    case Kind::begin:
      out += fmt::format(R"(,"life":{},"job":{},"ranks":{},"nodes":{})", e.life, quoted(e.job), e.ranks, e.nodes);
      break;
    case Kind::ready: out += fmt::format(R"(,"load_s":{})", e.load); break;
    case Kind::save: out += life_sums(e); break;
    case Kind::rollback: out += life_sums(e) + fmt::format(R"(,"load_s":{},"reason":{})", e.load, quoted(e.reason)); break;
    case Kind::end:
    case Kind::killed:
      out += life_sums(e) + fmt::format(R"(,"sign":{},"code":{},"state":{},"reason":{})", e.sign, e.code, quoted(e.state), quoted(e.reason));
      if (e.kind == Kind::killed) out += fmt::format(R"(,"class":"{}")", name_of(e.stop));
  }
  return out + "}\n";
}

std::optional<GoodputEvent> parse_event(const std::string& line) {
  if (const std::optional<GoodputEvent> save = parse_save(line)) return save;
  const json j = json::parse(line, nullptr, false);
  if (!j.is_object()) return std::nullopt;
  try {
    GoodputEvent e;
    const std::string kind = j.at("event").get<std::string>();
    size_t at = 0;
    while (at < std::size(kind_names) && kind != kind_names[at]) ++at;
    if (at == std::size(kind_names)) return std::nullopt;
    e.kind = static_cast<Kind>(at);
    e.t = j.at("t").get<double>();
    e.step = j.value("step", int64_t{0});
    e.life = j.value("life", int64_t{0});
    e.job = j.value("job", std::string());
    e.ranks = j.value("ranks", int64_t{0});
    e.nodes = j.value("nodes", int64_t{0});
    e.load = j.value("load_s", 0.0);
    e.waited = j.value("waited_s", 0.0);
    e.stall = j.value("stall_s", 0.0);
    e.saves = j.value("saves", int64_t{0});
    e.durables = j.value("durables", int64_t{0});
    e.durable = j.value("durable_s", 0.0);
    e.sign = j.value("sign", e.t);
    e.code = j.value("code", 0);
    e.state = j.value("state", std::string());
    e.reason = j.value("reason", std::string());
    const std::string stop = j.value("class", std::string("other"));
    for (int k = 0; k < stop_kinds; ++k)
      if (stop == name_of(static_cast<StopKind>(k))) e.stop = static_cast<StopKind>(k);
    return e;
  } catch (const json::exception&) {
    return std::nullopt;  // not of the shape that we write
  }
}

}  // namespace orthant
