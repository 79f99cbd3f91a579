// log.trace: what a rank did and what was on its way when, as events that Chrome's and Perfetto's viewers draw.
//
// Lanes: the training thread's phases, with its waits inside them; and for each axis of the mesh the calls under way, from
// the call until the data were there (or, where nobody can tell, until the wait for them ended), on as many lanes as
// there are calls at once. The last steps of a run are kept.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "orthant/mesh.hpp"
#include "support/work_clock.hpp"

namespace orthant {

class Trace {
 public:
  static int64_t now_ns() { return WorkClock::now_ns(); }
  static constexpr int kept_steps = 10;

  /// Time 0 of the drawing, ns of the steady clock.
  explicit Trace(int64_t origin_ns) : origin_(origin_ns) {}
  void begin_step(int64_t step);
  /// A phase of the training thread. `detail` is shown with it: words of JSON, "\"micro\": 3", or nothing.
  void phase(const std::string& name, int64_t begin_ns, int64_t end_ns, const std::string& detail = {});
  /// A collective call was made (0: now), and its data were there (0: at the end of the wait).
  void call(int64_t sequence, AxisName axis, const char* op, const char* site, int64_t bytes, int64_t called_ns);
  void arrived(int64_t sequence, int64_t wait_begin_ns, int64_t wait_end_ns, int64_t arrived_ns);

  /// The events of this rank, with commas between them.
  std::string events(int rank, const std::string& where) const;
  /// A file of all ranks' events.
  static std::string file(const std::vector<std::string>& ranks);

 private:
  struct Event {
    int lane;
    std::string name, detail;
    int64_t begin, end;
  };
  struct Begun {
    AxisName axis;
    const char *op, *site;
    int64_t bytes, called;
    int slot;
  };
  static constexpr int lanes_of_axis = 64;
  void put(Event e) { steps_.back().push_back(std::move(e)); }

  int64_t origin_;
  std::deque<std::vector<Event>> steps_{1};
  std::map<int64_t, Begun> begun_;
  std::array<std::vector<bool>, axis_names> slots_;  ///< lanes in use
};

}  // namespace orthant
