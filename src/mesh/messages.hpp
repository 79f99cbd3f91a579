// The point-to-point messages of one call, as the transports use them.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

/// Collectives use tag 0 and are told apart by the order of calls; send and receive never meet them.
constexpr int collective_tag = 0;
inline int point_to_point_tag(int tag) {
  ORTHANT_ENSURE(tag >= 0, "a tag below 0");
  return 1 + tag % 32000;  // every MPI has tags up to 32767
}

/// ORTHANT_SYNCHRONOUS_SENDS = 1: a send is complete only when its receiver has asked for it. For tests: small messages
/// are otherwise buffered by MPI, which hides a schedule in which two ranks wait for each other.
inline bool synchronous_sends() {
  const char* set = std::getenv("ORTHANT_SYNCHRONOUS_SENDS");
  std::string value = set ? set : "";
  if (value != "" && value != "0" && value != "1")
    throw UsageError("environment variable ORTHANT_SYNCHRONOUS_SENDS = \"" + value + "\" must be 1, or 0 or unset");
  return value == "1";
}

/// Outstanding messages of one call. The memory must live until they are waited for.
class Messages {
 public:
  Messages(MPI_Comm comm, bool synchronous, int tag = collective_tag) : comm_(comm), synchronous_(synchronous), tag_(tag) {}
  void send(const void* data, int64_t bytes, int to) {
    for (int64_t at = 0; at < bytes; at += largest_message) {
      const char* from = static_cast<const char*>(data) + at;
      if (synchronous_) ORTHANT_MPI(MPI_Issend(from, count(bytes - at), MPI_BYTE, to, tag_, comm_, &next()));
      else ORTHANT_MPI(MPI_Isend(from, count(bytes - at), MPI_BYTE, to, tag_, comm_, &next()));
    }
  }
  void receive(void* data, int64_t bytes, int from) {
    for (int64_t at = 0; at < bytes; at += largest_message)
      ORTHANT_MPI(MPI_Irecv(static_cast<char*>(data) + at, count(bytes - at), MPI_BYTE, from, tag_, comm_, &next()));
  }
  void wait() {
    ORTHANT_MPI(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE));
    requests_.clear();
  }
  /// Whether all have arrived; never blocks.
  bool test() {
    int arrived = 0;
    ORTHANT_MPI(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &arrived, MPI_STATUSES_IGNORE));
    if (arrived) requests_.clear();
    return arrived != 0;
  }

 private:
  static constexpr int64_t largest_message = int64_t{1} << 30;  // bytes; MPI counts are int, some stacks break near 2^31
  static int count(int64_t bytes) { return static_cast<int>(std::min(bytes, largest_message)); }
  MPI_Request& next() {
    requests_.push_back(MPI_REQUEST_NULL);
    return requests_.back();
  }
  MPI_Comm comm_;
  bool synchronous_;
  int tag_;
  std::vector<MPI_Request> requests_;
};

}  // namespace orthant
