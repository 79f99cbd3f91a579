// See guard.hpp.
#include "train/guard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "deck/all_keys.hpp"
#include "orthant/error.hpp"
#include "support/median.hpp"

namespace orthant {

namespace {

constexpr const char* key = "guard";  // of the state

void keep(std::deque<double>& values, double x) {
  values.push_back(x);
  if (values.size() > StepGuard::window) values.pop_front();
}

}  // namespace

StepGuard::StepGuard(const Deck& deck)
    : factor_(deck[keys::guard::spike_factor]),
      max_skips_(deck[keys::guard::max_skips]),
      rollback_after_(deck[keys::guard::rollback_after]) {}

std::string StepGuard::compare(const char* what, double x, const std::deque<double>& good, double factor) const {
  if (factor_ <= 0 || good.size() < judges_from) return "";
  const double middle = median({good.begin(), good.end()});
  if (!(x > factor * middle)) return "";
  return fmt::format("{} {:.5g} is {:.3g} x the median {:.5g} of the last {} good steps (guard.spike_factor = {})",
                     what, x, x / middle, middle, good.size(), factor_);
}

std::string StepGuard::judge(double loss, double grad_norm) const {
  if (!std::isfinite(loss) || !std::isfinite(grad_norm)) return "loss or gradient norm was not finite";
  const std::string by_loss = compare("loss", loss, losses_, factor_);
  return by_loss.empty() ? compare("gradient norm", grad_norm, norms_, norm_over_loss * factor_) : by_loss;
}

void StepGuard::count(double loss, double grad_norm, const std::string& bad) {
  last_bad_ = bad;
  if (!bad.empty()) {
    ++bad_;
    return;
  }
  bad_ = 0;
  if (factor_ <= 0) return;
  keep(losses_, loss);
  keep(norms_, grad_norm);
}

std::string StepGuard::exhausted(int64_t step) const {
  if (bad_ <= max_skips_) return "";
  return fmt::format("{} in step {}, and {} steps in a row were not taken; guard.max_skips = {} allows no more",
                     last_bad_, step, bad_, max_skips_);
}

std::string StepGuard::going_back(int64_t step, bool again) {
  times_back_ = step == back_to_ ? times_back_ + 1 : 1;
  back_to_ = step;
  // The same steps on the same data end alike, unless the machine was at fault: once is enough to know.
  if (again && times_back_ > 1)
    return fmt::format("{}: as before the run went back to step {}, so the machine was not at fault. Lower "
                       "optimizer.lr, or let guard.skip_data pass over the samples",
                       last_bad_, step);
  if (times_back_ > max_skips_)
    return fmt::format("{}: the run went back to step {} {} times, each time to other samples; guard.max_skips = {} "
                       "allows no more",
                       last_bad_, step, times_back_ - 1, max_skips_);
  return "";
}

void StepGuard::store(TrainState& state) const {
  state.integers["skips"] = bad_;
  if (factor_ <= 0) {
    state.strings.erase(key);
    return;
  }
  // nlohmann/json writes doubles with as many digits as it takes to read the same bits again
  state.strings[key] = nlohmann::json{{"loss", losses_}, {"grad_norm", norms_}}.dump();
}

void StepGuard::load(const TrainState& state) {
  const auto skips = state.integers.find("skips");
  bad_ = skips == state.integers.end() ? 0 : skips->second;
  losses_.clear();
  norms_.clear();
  const auto text = state.strings.find(key);
  if (factor_ <= 0 || text == state.strings.end()) return;
  try {
    const auto in = nlohmann::json::parse(text->second);
    losses_ = in.at("loss").get<std::deque<double>>();
    norms_ = in.at("grad_norm").get<std::deque<double>>();
  } catch (const nlohmann::json::exception& e) {
    throw DataError(std::string("the checkpoint's /train/guard cannot be read: ") + e.what(), true);
  }
  if (losses_.size() != norms_.size() || losses_.size() > window)
    throw DataError(fmt::format("the checkpoint's /train/guard holds {} losses and {} norms; as many of both and at "
                                "most {} are right",
                                losses_.size(), norms_.size(), window),
                    true);
}

}  // namespace orthant
