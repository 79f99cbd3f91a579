// See state.hpp.
#include "train/state.hpp"

namespace orthant {

StateView::StateView(Session& s) : session_(s) {
  for (LocalParam& p : s.store->all()) {
    // own rows; the second holder of a tied weight gets it from the first
    if (p.copy) continue;
    add(p, "weights", p.master ? p.master : p.own_weight);
    for (size_t i = 0; i < p.slots.size(); ++i) add(p, "optimizer/" + s.optimizer.slots[i], p.slots[i]);
  }
  if (!s.fp8) return;
  const Coordinates& at = s.layout.at();
  for (StatePiece& p : s.fp8->pieces(at.tp == 0 && at.cp == 0 && at.dp == 0)) pieces_.push_back(std::move(p));
}

void StateView::add(const LocalParam& p, const std::string& group, const Tensor& t) {
  auto* data = static_cast<float*>(session_.backend->host_begin(t));
  open_.push_back(t);
  pieces_.push_back({&p.param, group, p.own, data, p.writes});
}

StateView::~StateView() {
  for (const Tensor& t : open_) session_.backend->host_end(t);
}

}  // namespace orthant
