// The factor on the loss of an fp16 run, which keeps small gradients above the least number of that format.
//
// A power of two, so that it changes no digit. Dynamic: a step whose loss or gradient norm is not finite is not taken and
// halves it, 1000 good steps in a row double it (the rule of Megatron-LM's and PyTorch's scalers, with one strike). All
// ranks have the same norm, and so the same factor.
#pragma once

#include <cstdint>

#include "orthant/checkpoint.hpp"
#include "orthant/deck.hpp"

namespace orthant {

class LossScale {
 public:
  explicit LossScale(const Deck& deck);

  /// False: the run is not in fp16, and the factor is 1.
  bool on() const { return on_; }
  double value() const { return value_; }
  /// The step is over. True where it was not finite and a smaller factor is tried next: that is no bad step yet. At the
  /// least factor, and with a fixed one, it is.
  bool count(bool finite);

  void store(TrainState& state) const;
  void load(const TrainState& state);

  /// `first` leaves room for the spikes of a start: gradients of activations of 10 and more, as the golden of llama-tiny
  /// has them at step 27, would cost steps at 65536; too low a scale is raised as the run goes on.
  static constexpr double first = 4096, least = 1, most = 4294967296.0;
  static constexpr int64_t grows_after = 1000;  ///< good steps in a row

 private:
  bool on_, dynamic_ = false;
  double value_ = 1;
  int64_t good_ = 0;
};

/// What is wrong with precision.loss_scale; "" if nothing.
std::string loss_scale_problem(const Deck& deck);

}  // namespace orthant
