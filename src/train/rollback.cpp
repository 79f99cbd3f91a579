// See rollback.hpp.
#include "train/rollback.hpp"

#include "orthant/error.hpp"
#include "train/state.hpp"

namespace orthant {

TrainState go_back(MPI_Comm comm, Session& session, const std::string& folder) {
  TrainState state;
  if (session.fp8) session.fp8->reset();  // the checkpoint may be of a run in another format
  {
    const StateView view(session);
    state = load_checkpoint(comm, folder, view.pieces(), nullptr, Trust::checksums);
  }
  if (!state.has_optimizer)
    throw DataError(folder + " is a converted checkpoint, without the optimiser state that going back to it needs", true);
  Traffic& traffic = session.axes->traffic();
  auto counted = traffic.entries();
  publish_weights(session);
  if (session.fp8) session.fp8->publish();
  traffic.put_back(std::move(counted));
  return state;
}

}  // namespace orthant
