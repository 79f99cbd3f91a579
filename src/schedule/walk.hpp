// Works through the lists of all stages at once, each action when its input is there: what the checker and the
// timeline have in common.
#pragma once

#include <deque>
#include <vector>

#include "orthant/schedule.hpp"

namespace orthant {

/// "B3 of chunk 1".
std::string action_text(const Action& action);

/// The virtual stage whose F (for an F) or B (for a B) of the same micro-batch must be done first; -1 where an action
/// needs nothing but what the list has done before it: W, F of the first and B of the last virtual stage.
inline int64_t input_of(const Pipeline& pipeline, int64_t stage, const Action& action) {
  const int64_t own = pipeline.virtual_stage(stage, action.chunk);
  if (action.act == Act::F) return own - 1;
  if (action.act == Act::B && own + 1 < pipeline.virtual_stages()) return own + 1;
  return -1;
}

/// Calls visit(stage, action) for each action in an order in which each stage keeps to its list and each action
/// follows its input. A message never blocks its sender. Returns how far each stage came: less than its list where
/// all that are left wait. The lists hold F, B and W with chunk and micro-batch in range.
template <class Visit>
std::vector<size_t> walk(const Pipeline& pipeline, Visit&& visit) {
  const auto at = [&](int64_t virtual_stage, int64_t micro) {
    return static_cast<size_t>(virtual_stage * pipeline.shape.micros + micro);
  };
  const auto cells = static_cast<size_t>(pipeline.virtual_stages() * pipeline.shape.micros);
  std::vector<char> forward(cells), backward(cells);
  std::vector<size_t> next(pipeline.lists.size());
  std::deque<int64_t> awake;  // stages that may be able to go on
  for (int64_t stage = 0; stage < pipeline.shape.stages; ++stage) awake.push_back(stage);
  while (!awake.empty()) {
    const int64_t stage = awake.front();
    awake.pop_front();
    const ActionList& list = pipeline.lists[static_cast<size_t>(stage)];
    for (size_t& i = next[static_cast<size_t>(stage)]; i < list.size(); ++i) {
      const Action& action = list[i];
      std::vector<char>& done = action.act == Act::F ? forward : backward;
      const int64_t input = input_of(pipeline, stage, action);
      if (input >= 0 && !done[at(input, action.micro)]) break;
      visit(stage, action);
      if (action.act == Act::W) continue;
      const int64_t own = pipeline.virtual_stage(stage, action.chunk);
      done[at(own, action.micro)] = 1;
      const int64_t consumer = action.act == Act::F ? own + 1 : own - 1;
      if (consumer >= 0 && consumer < pipeline.virtual_stages() && pipeline.stage_of(consumer) != stage)
        awake.push_back(pipeline.stage_of(consumer));
    }
  }
  return next;
}

}  // namespace orthant
