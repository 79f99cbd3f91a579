// See nccl_group.hpp.
#include "backends/cuda/nccl_group.hpp"

#include <exception>
#include <map>
#include <optional>

#include "backends/cuda/nccl_log.hpp"
#include "backends/cuda/nccl_transport.hpp"
#include "orthant/mesh.hpp"
#include "support/agree.hpp"

namespace orthant::cuda {

NcclParent::NcclParent(MPI_Comm all) : all_(all) {
  ORTHANT_MPI(MPI_Comm_size(all, &ranks_));
  ORTHANT_MPI(MPI_Comm_rank(all, &rank_));
  ncclUniqueId id{};
  if (rank_ == 0) ORTHANT_NCCL(ncclGetUniqueId(&id));
  ORTHANT_MPI(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, all));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclResult_t result = ncclCommInitRankConfig(&comm_, ranks_, id, rank_, &config);
  if (result == ncclInProgress) result = settled(comm_);
  if (result != ncclSuccess) fail(result, "making the communicator of all ranks");
}

NcclParent::~NcclParent() { close_nccl(comm_); }

void NcclParent::fail(ncclResult_t why, const std::string& doing) {
  const std::string text = nccl_failure(comm_, why);
  if (comm_) ncclCommAbort(comm_);
  comm_ = nullptr;
  throw FaultError("NCCL failed on rank " + std::to_string(rank_) + " of " + std::to_string(ranks_) + ", in " + doing + ": " + text);
}

ncclComm_t NcclParent::split(int color, int key, const std::string& where) {
  ORTHANT_ENSURE(comm_, "a NCCL communicator is split after it failed");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 0;  // see the header
  ncclComm_t part = nullptr;
  ncclResult_t result = ncclCommSplit(comm_, color == no_color ? NCCL_SPLIT_NOCOLOR : color, key, &part, &config);
  // the split is a call of the parent: `part` is there once that has settled
  if (result == ncclInProgress) result = settled(comm_);
  if (result == ncclSuccess && part) result = settled(part);
  if (result != ncclSuccess) fail(result, "making the communicator of " + where);
  ORTHANT_ENSURE((part == nullptr) == (color == no_color), "ncclCommSplit gave a communicator to who wanted none, or none to who wanted one");
  return part;
}

namespace {

/// What ranks say, with how many say it where they differ.
std::string gathered(MPI_Comm all, const std::string& mine) {
  std::map<std::string, int> said;
  for (const std::string& text : texts_of_ranks(all, mine)) ++said[text];
  std::string out;
  for (const auto& [text, ranks] : said)
    out += (out.empty() ? "" : "; ") + text + (said.size() > 1 ? " on " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") : "");
  return out;
}

class NcclGroup : public DeviceGroup {
 public:
  NcclGroup(CudaBackend& backend, MPI_Comm all) : backend_(backend) {
    int ranks = 1;
    ORTHANT_MPI(MPI_Comm_size(all, &ranks));
    text_ = "NCCL " + nccl_version() + " between devices";
    if (ranks == 1) {
      text_ += ", which one rank does not need";
      return;
    }
    const NcclLog log;
    parent_.emplace(all);
    text_ += ", " + gathered(all, log.network());
  }
  std::unique_ptr<Transport> transport(MPI_Comm comm, AxisName axis) override {
    return make_nccl_transport(backend_, parent_ ? &*parent_ : nullptr, comm, axis);
  }
  std::string text() const override { return text_; }

 private:
  CudaBackend& backend_;
  std::optional<NcclParent> parent_;  ///< none for one rank
  std::string text_;
};

}  // namespace

std::unique_ptr<DeviceGroup> make_nccl_group(CudaBackend& backend, MPI_Comm all) { return std::make_unique<NcclGroup>(backend, all); }

}  // namespace orthant::cuda
