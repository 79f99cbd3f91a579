// See cores.hpp.
#include "support/cores.hpp"

#include <sched.h>

namespace orthant {

std::vector<int> cores_allowed() {
  // more than a cpu_set_t holds are possible; the set grows until the kernel is content
  for (int most = CPU_SETSIZE; most <= (1 << 20); most *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(most));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
    const int rc = sched_getaffinity(0, bytes, set);
    std::vector<int> out;
    for (int i = 0; rc == 0 && i < most; ++i)
      if (CPU_ISSET_S(static_cast<size_t>(i), bytes, set)) out.push_back(i);
    CPU_FREE(set);
    if (rc == 0) return out;
  }
  return {};
}

std::string ranges_text(const std::vector<int>& numbers) {
  std::string out;
  for (size_t i = 0; i < numbers.size();) {
    size_t j = i;
    while (j + 1 < numbers.size() && numbers[j + 1] == numbers[j] + 1) ++j;
    out += (out.empty() ? "" : ", ") + std::to_string(numbers[i]);
    if (j > i) out.append("-").append(std::to_string(numbers[j]));
    i = j + 1;
  }
  return out;
}

}  // namespace orthant
