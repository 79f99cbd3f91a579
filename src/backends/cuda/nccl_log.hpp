// What NCCL says about its network. It has no call to ask for it: its log is read.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>

namespace orthant::cuda {

/// What NCCL chose for messages between nodes.
struct NcclNetwork {
  std::string name;  ///< "IB", "Socket", a plugin's name; empty: the log does not say
  enum class Rdma { unknown, yes, no } gpu_direct = Rdma::unknown;  ///< between the network's adapters and device memory
  bool operator==(const NcclNetwork&) const = default;
};

/// From the lines that NCCL_DEBUG = INFO writes, in the wordings of NCCL 2.4 to 2.28. What is said of a device and an
/// adapter goes before what is said of an adapter alone: an adapter can be able and yet too far from the device.
NcclNetwork parse_nccl_log(std::istream& log);
/// "network IB with GPUDirect RDMA"
std::string text_of(const NcclNetwork& network);

/// Lets NCCL write into a file of our own from its first communicator on; the file is gone when this ends. NCCL reads
/// these settings once: the first NcclLog of a process must live before its first communicator is made.
class NcclLog {
 public:
  NcclLog();
  ~NcclLog();
  NcclLog(const NcclLog&) = delete;
  NcclLog& operator=(const NcclLog&) = delete;
  /// What has been learnt, in words; to be asked once the communicator is made. Where the log is the user's, says so. The
  /// first answer of a process holds for later ones.
  std::string network() const;

 private:
  std::filesystem::path folder_;  ///< private to this process; empty: NCCL was not asked
};

}  // namespace orthant::cuda
