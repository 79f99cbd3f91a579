// The list of schedules, and the one way to get one: made, then checked.
#include <algorithm>

#include "orthant/error.hpp"
#include "orthant/schedule.hpp"
#include "schedule/csv.hpp"

namespace orthant {

namespace {

const std::vector<Schedule>& all_schedules() {
  static const std::vector<Schedule> all = {one_f_one_b_schedule(), gpipe_schedule(), interleaved_schedule(),
                                            zero_bubble_schedule()};
  return all;
}

const Schedule* find_schedule(const std::string& name) {
  for (const Schedule& s : all_schedules())
    if (s.name == name) return &s;
  return nullptr;
}

[[noreturn]] void refuse(const std::string& message) { throw UsageError(message, true); }  // alike on every rank

void generate(Pipeline& out) {
  const Schedule* schedule = find_schedule(out.name);
  if (!schedule) {
    std::string names;
    for (const Schedule& s : all_schedules()) names += s.name + ", ";
    refuse("pipeline.schedule = \"" + out.name + "\": choose one of " + names + "or a CSV file with a row an action");
  }
  const int64_t chunks = out.shape.chunks;
  const std::string key = "pipeline.virtual_stages = " + std::to_string(chunks);
  if (chunks > 1 && !schedule->many_chunks)
    refuse(key + ": the schedule " + out.name + " has 1; more needs interleaved, zero_bubble (2) or a CSV file");
  if (chunks > 2 && schedule->name == "zero_bubble") refuse(key + ": zero_bubble has 1, or 2 for its V form");
  schedule->generate(out);
}

/// The first few, and how many more.
std::string summary(const std::vector<std::string>& problems) {
  constexpr size_t shown = 3;
  std::string out;
  for (size_t i = 0; i < std::min(shown, problems.size()); ++i) out += (i ? "; " : "") + problems[i];
  if (problems.size() > shown) out += "; and " + std::to_string(problems.size() - shown) + " more";
  return out;
}

}  // namespace

Pipeline make_pipeline(const std::string& name, const ScheduleShape& shape, const std::string& csv) {
  ORTHANT_ENSURE(shape.stages > 0 && shape.micros > 0 && shape.chunks > 0,
                 "a schedule needs stages, micro-batches and chunks");
  Pipeline out;
  out.name = name;
  out.shape = shape;
  if (csv.empty())
    generate(out);
  else
    read_schedule_csv(csv, out);
  const ScheduleReport report = check_pipeline(out);
  if (!report.problems.empty() && csv.empty())
    throw LogicError("schedule " + name + " for " + std::to_string(shape.stages) + " stages, " +
                     std::to_string(shape.micros) + " micro-batches and " + std::to_string(shape.chunks) +
                     " chunks: " + summary(report.problems));
  if (!report.problems.empty())
    refuse("pipeline.schedule: " + name + ": " + summary(report.problems) + "; counts are of pipeline stages, " +
           "pipeline.virtual_stages and micro-batches a step");
  return out;
}

bool is_schedule_name(const std::string& name) { return find_schedule(name) != nullptr; }

std::vector<std::string> schedule_names() {
  std::vector<std::string> out;
  for (const Schedule& s : all_schedules()) out.push_back(s.name);
  return out;
}

ActionList forward_only(const ActionList& list) {
  ActionList out;
  std::copy_if(list.begin(), list.end(), std::back_inserter(out),
               [](const Action& a) { return a.act == Act::F || (a.act == Act::G && !a.backward); });
  return out;
}

}  // namespace orthant
