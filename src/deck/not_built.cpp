// What this build lacks. A feature that lands loses its row; nothing else has to change.
#include "backends/registry.hpp"
#include "deck/all_keys.hpp"
#include "deck/check.hpp"

namespace orthant {

namespace {

/// One row: a key, when it asks for the feature, and the feature's name.
struct Missing {
  std::size_t key;
  bool (*asked)(const Deck&);
  const char* feature;
};

const std::vector<Missing>& missing() {
  namespace k = keys;
  static const std::vector<Missing> rows = {
      {k::model::mup.index(), [](const Deck& d) { return d[k::model::mup]; }, "maximal update parametrisation"},
      {k::batch::ramp.index(), [](const Deck& d) { return !d[k::batch::ramp].empty(); }, "growing batches"},
      {k::mesh::map.index(), [](const Deck& d) { return !d[k::mesh::map].empty(); }, "a map of ranks from a file"},
      {k::optimizer::name.index(),
       [](const Deck& d) { return d[k::optimizer::name] == "muon" || d[k::optimizer::name] == "lion"; },
       "this optimiser (built: adamw, sgd)"},
      {k::precision::gradients.index(), [](const Deck& d) { return d[k::precision::gradients] != "fp32"; },
       "gradient buffers other than fp32"},
      {k::precision::grad_reduce.index(), [](const Deck& d) { return d[k::precision::grad_reduce] != "fp32"; },
       "gradients other than fp32 on the wire"},
      {k::memory::offload.index(), [](const Deck& d) { return d[k::memory::offload] != "none"; }, "offloading"},
      {k::comm::transport.index(), [](const Deck& d) { return d[k::comm::transport] == "nccl" && !find_device_backend("cuda"); }, "NCCL"},
      {k::data::cache.index(), [](const Deck& d) { return d.given(k::data::cache); }, "a folder of index files (they are built in memory)"},
      {k::comm::gpu_aware.index(), [](const Deck& d) { return d[k::comm::gpu_aware] == "yes" && !find_device_backend("cuda"); }, "GPU-aware MPI"},
      {k::log::tensorboard.index(), [](const Deck& d) { return d[k::log::tensorboard]; }, "TensorBoard files"},
      {k::device::backend.index(), [](const Deck& d) { return d[k::device::backend] == "cuda" && !find_device_backend("cuda"); },
       "CUDA device support"},
  };
  return rows;
}

}  // namespace

std::vector<std::string> not_built(const Deck& deck) {
  std::vector<std::string> out;
  for (const auto& row : missing())
    if (row.asked(deck)) out.push_back(deck.show(row.key) + ": not in this build: " + row.feature);
  return out;
}

}  // namespace orthant
