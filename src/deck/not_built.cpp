// What this build lacks. A feature that lands loses its row; nothing else has to change.
#include <algorithm>

#include "deck/all_keys.hpp"
#include "deck/check.hpp"
#include "deck/registry.hpp"

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
      {k::model::family.index(),
       [](const Deck& d) { return d[k::model::family] == "mixtral" || d[k::model::family] == "deepseek"; },
       "mixtures of experts (families built: gpt2, llama, qwen3)"},
      {k::model::z_loss.index(), [](const Deck& d) { return d[k::model::z_loss] > 0; }, "the z-loss of the logits"},
      {k::model::mup.index(), [](const Deck& d) { return d[k::model::mup]; }, "maximal update parametrisation"},
      {k::batch::ramp.index(), [](const Deck& d) { return !d[k::batch::ramp].empty(); }, "growing batches"},
      {k::mesh::ep.index(), [](const Deck& d) { return d[k::mesh::ep] > 1; }, "expert parallelism"},
      {k::mesh::etp.index(), [](const Deck& d) { return d[k::mesh::etp] > 1; }, "expert parallelism"},
      {k::mesh::map.index(), [](const Deck& d) { return !d[k::mesh::map].empty(); }, "a map of ranks from a file"},
      {k::layout::vocab.index(), [](const Deck& d) { return d[k::layout::vocab] != "tp"; },
       "a layout other than the default"},
      {k::layout::heads.index(), [](const Deck& d) { return d[k::layout::heads] != "tp"; },
       "a layout other than the default"},
      {k::layout::ffn.index(), [](const Deck& d) { return d[k::layout::ffn] != "tp"; },
       "a layout other than the default"},
      {k::optimizer::name.index(),
       [](const Deck& d) { return d[k::optimizer::name] == "muon" || d[k::optimizer::name] == "lion"; },
       "this optimiser (built: adamw, sgd)"},
      {k::precision::compute.index(),
       [](const Deck& d) { return d[k::precision::compute] == "fp16" || d[k::precision::compute] == "fp8"; },
       "this format (built: fp32, bf16)"},
      {k::precision::gradients.index(), [](const Deck& d) { return d[k::precision::gradients] != "fp32"; },
       "gradient buffers other than fp32"},
      {k::precision::grad_reduce.index(), [](const Deck& d) { return d[k::precision::grad_reduce] != "fp32"; },
       "gradients other than fp32 on the wire"},
      {k::memory::offload.index(), [](const Deck& d) { return d[k::memory::offload] != "none"; }, "offloading"},
      {k::checkpoint::files.index(), [](const Deck& d) { return d[k::checkpoint::files] > 0; },
       "a file per so many ranks (built: one shared file, -1; 0 gives the same)"},
      {k::checkpoint::mpi_info.index(), [](const Deck& d) { return !d[k::checkpoint::mpi_info].empty(); },
       "hints to MPI-IO"},
      {k::checkpoint::export_every.index(), [](const Deck& d) { return d[k::checkpoint::export_every] > 0; },
       "exports while training"},
      {k::comm::transport.index(), [](const Deck& d) { return d[k::comm::transport] == "nccl"; }, "NCCL"},
      {k::data::cache.index(), [](const Deck& d) { return d.given(k::data::cache); }, "a folder of index files (they are built in memory)"},
      {k::comm::gpu_aware.index(), [](const Deck& d) { return d[k::comm::gpu_aware] == "yes"; }, "GPU-aware MPI"},
      {k::comm::chunks.index(), [](const Deck& d) { return d[k::comm::chunks] > 1; }, "collectives in pieces"},
      {k::guard::watchdog_s.index(), [](const Deck& d) { return d[k::guard::watchdog_s] > 0; }, "the watchdog"},
      {k::guard::spike_factor.index(), [](const Deck& d) { return d[k::guard::spike_factor] > 0; },
       "spike detection"},
      {k::guard::rollback_after.index(), [](const Deck& d) { return d[k::guard::rollback_after] > 0; }, "rollback"},
      {k::guard::skip_data.index(), [](const Deck& d) { return d[k::guard::skip_data]; }, "rollback"},
      {k::guard::replica_check_every.index(), [](const Deck& d) { return d[k::guard::replica_check_every] > 0; },
       "comparison of replicas"},
      {k::log::trace.index(), [](const Deck& d) { return d[k::log::trace]; }, "traces"},
      {k::log::tensorboard.index(), [](const Deck& d) { return d[k::log::tensorboard]; }, "TensorBoard files"},
      {k::device::backend.index(), [](const Deck& d) { return d[k::device::backend] == "cuda"; },
       "CUDA device support"},
  };
  return rows;
}

}  // namespace

std::vector<std::string> not_built(const Deck& deck) {
  std::vector<std::string> out;
  for (const auto& row : missing())
    if (row.asked(deck)) out.push_back(deck.show(row.key) + ": not in this build: " + row.feature);
  // A whole section of a family that is missing: any value that is not its default asks for it. (Defaults may be
  // spelt out, so that a resolved deck can be read again.)
  const auto& keys = all_keys();
  for (const auto index : keys_in_reading_order()) {
    const auto& key = keys[index];
    if ((key.section != "model.moe" && key.section != "model.mla") || !deck.given(index)) continue;
    if (key.derived.empty() && deck.value_at(index) == key.value) continue;
    out.push_back(deck.show(index) + ": not in this build: " +
                  (key.section == "model.moe" ? "mixtures of experts" : "compressed attention (deepseek)"));
  }
  return out;
}

}  // namespace orthant
