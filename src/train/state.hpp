// A run's state as checkpoint pieces.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "orthant/checkpoint.hpp"
#include "train/session.hpp"

namespace orthant {

/// Host access to masters and slots for the time the object lives.
class StateView {
 public:
  explicit StateView(Session& session);
  ~StateView();
  StateView(const StateView&) = delete;
  StateView& operator=(const StateView&) = delete;
  const std::vector<StatePiece>& pieces() const { return pieces_; }

 private:
  void add(const LocalParam& p, const std::string& group, const Tensor& t);
  Session& session_;
  std::vector<StatePiece> pieces_;
  std::vector<Tensor> open_;
};

}  // namespace orthant
