// A copy of a rank's state, so that training may change the state while the checkpoint is still being written.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "orthant/checkpoint.hpp"

namespace orthant {

/// Memory for the pieces that a rank writes, as far as a limit allows. It is kept from save to save: fresh memory
/// costs more than the copy.
class StateCopy {
 public:
  /// `limit`: bytes the copy may take.
  explicit StateCopy(int64_t limit) : limit_(limit) {}

  /// Copies pieces, largest first, as long as they fit. Returns all of them in another order: those that are still
  /// where they were (`live()` of them), then those that point to the copy.
  std::vector<StatePiece> take(std::vector<StatePiece> pieces);
  /// Of the last `take`: pieces that did not fit and have to be written before the state may change.
  size_t live() const { return live_; }
  int64_t bytes() const { return bytes_; }  ///< held

 private:
  int64_t limit_, bytes_ = 0;
  size_t live_ = 0;
  std::unique_ptr<float[]> memory_;
};

}  // namespace orthant
