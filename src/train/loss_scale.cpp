// See loss_scale.hpp.
#include "train/loss_scale.hpp"

#include <fmt/format.h>

#include <cmath>

#include "deck/all_keys.hpp"
#include "orthant/error.hpp"

namespace orthant {

namespace {

bool power_of_two(double x) {
  int exponent = 0;
  return std::isfinite(x) && x > 0 && std::frexp(x, &exponent) == 0.5;
}

}  // namespace

LossScale::LossScale(const Deck& deck) : on_(deck[keys::precision::compute] == "fp16") {
  if (!on_) return;
  const std::string& text = deck[keys::precision::loss_scale];
  dynamic_ = text == "dynamic";
  value_ = dynamic_ ? first : std::stod(text);
}

bool LossScale::count(bool finite) {
  if (!on_ || !dynamic_) return false;
  if (!finite) {
    good_ = 0;
    if (value_ <= least) return false;
    value_ /= 2;
    return true;
  }
  if (++good_ == grows_after) {
    good_ = 0;
    if (value_ < most) value_ *= 2;
  }
  return false;
}

void LossScale::store(TrainState& state) const {
  if (!on_) return;
  state.reals["loss_scale"] = value_;
  state.integers["loss_scale_good"] = good_;
}

void LossScale::load(const TrainState& state) {
  if (!on_ || !dynamic_) return;
  value_ = first;
  good_ = 0;
  const auto value = state.reals.find("loss_scale");
  const auto good = state.integers.find("loss_scale_good");
  if (value == state.reals.end()) return;  // the run was not in fp16 before
  value_ = value->second;
  good_ = good == state.integers.end() ? 0 : good->second;
  if (!power_of_two(value_) || value_ < least || value_ > most || good_ < 0 || good_ >= grows_after)
    throw DataError(fmt::format("the checkpoint's /train/loss_scale is {} after {} good steps; a power of two from {} to {} and less than {} steps are right",
                                value_, good_, least, most, grows_after), true);
}

std::string loss_scale_problem(const Deck& deck) {
  const std::string& text = deck[keys::precision::loss_scale];
  if (text == "dynamic") return "";
  if (power_of_two(std::stod(text))) return "";
  return deck.show(keys::precision::loss_scale) + ": a power of two keeps gradients as they are; give one, or \"dynamic\"";
}

}  // namespace orthant
