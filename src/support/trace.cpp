// See trace.hpp. The format: the "JSON object format" of Chrome's trace events, complete events ("X") in microseconds.
#include "support/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace orthant {

void Trace::begin_step(int64_t step) {
  steps_.emplace_back();
  if (steps_.size() > kept_steps) steps_.pop_front();
  const int64_t now = now_ns();
  put({0, fmt::format("step {} begins", step), "", now, now});
}

void Trace::phase(const std::string& name, int64_t begin_ns, int64_t end_ns, const std::string& detail) {
  put({0, name, detail, begin_ns, end_ns});
}

void Trace::call(int64_t sequence, AxisName axis, const char* op, const char* site, int64_t bytes, int64_t called_ns) {
  auto& used = slots_[static_cast<size_t>(axis)];
  const auto free = std::find(used.begin(), used.end(), false);
  const int slot = static_cast<int>(free - used.begin());
  if (free == used.end()) used.push_back(true);
  else *free = true;
  begun_[sequence] = {axis, op, site, bytes, called_ns ? called_ns : now_ns(), slot};
}

void Trace::arrived(int64_t sequence, int64_t wait_begin_ns, int64_t wait_end_ns, int64_t arrived_ns) {
  const auto found = begun_.find(sequence);
  if (found == begun_.end()) return;  // made before the trace began
  const Begun b = found->second;
  begun_.erase(found);
  slots_[static_cast<size_t>(b.axis)][static_cast<size_t>(b.slot)] = false;
  const int lane = 1 + static_cast<int>(b.axis) * lanes_of_axis + std::min(b.slot, lanes_of_axis - 1);
  const std::string detail = fmt::format("\"site\": \"{}\", \"bytes\": {}, \"call\": {}", b.site, b.bytes, sequence);
  put({lane, b.op, detail, b.called, std::max(b.called, arrived_ns ? arrived_ns : wait_end_ns)});
  put({0, fmt::format("wait {}", name_of(b.axis)), fmt::format("\"op\": \"{}\", {}", b.op, detail), wait_begin_ns, wait_end_ns});
}

std::string Trace::events(int rank, const std::string& where) const {
  std::string out = fmt::format(R"({{"name": "process_name", "ph": "M", "pid": {0}, "args": {{"name": "{1}"}}}},
{{"name": "process_sort_index", "ph": "M", "pid": {0}, "args": {{"sort_index": {0}}}}},
{{"name": "thread_name", "ph": "M", "pid": {0}, "tid": 0, "args": {{"name": "training"}}}})", rank, where);
  std::set<int> lanes;
  for (const auto& step : steps_)
    for (const Event& e : step) lanes.insert(e.lane);
  lanes.erase(0);
  for (int lane : lanes) {
    const auto axis = static_cast<AxisName>((lane - 1) / lanes_of_axis);
    out += fmt::format(",\n{{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": {}, \"tid\": {}, \"args\": {{\"name\": \"{} {}\"}}}}", rank, lane, name_of(axis),
                       (lane - 1) % lanes_of_axis);
  }
  for (const auto& step : steps_)
    for (const Event& e : step)
      out += fmt::format(",\n{{\"name\": \"{}\", \"ph\": \"X\", \"pid\": {}, \"tid\": {}, \"ts\": {:.3f}, \"dur\": {:.3f}, \"args\": {{{}}}}}", e.name, rank, e.lane,
                         static_cast<double>(e.begin - origin_) / 1e3, static_cast<double>(e.end - e.begin) / 1e3, e.detail);
  return out;
}

std::string Trace::file(const std::vector<std::string>& ranks) {
  std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (r > 0) out += ",\n";
    out += ranks[r];
  }
  return out + "\n]}\n";
}

}  // namespace orthant
