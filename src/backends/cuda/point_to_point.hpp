// Messages between two devices, in the order that their sender chose and their receiver need not know.
//
// NCCL has no tags: what one end sends first, the other has to receive first, and inside one communicator a send holds up
// all that stands behind it. Two stages that send to each other would wait for ever, and a receiver that works through
// another order than its sender would take one message for another. So every direction between two ranks has a
// communicator and stream of its own, and each send tells its tag and size in a small MPI message. The receiver posts
// its receives in the order of these notices; what stands before a message it waits for, and nobody has asked for yet,
// goes into memory of the transport. Its host waits only until the sender's host has put the send into its stream.
#pragma once

#include <mpi.h>

#include <deque>
#include <list>
#include <memory>

#include "backends/cuda/nccl_channel.hpp"
#include "orthant/collectives.hpp"

namespace orthant::cuda {

/// The sending end of a direction.
class Outbox {
 public:
  Outbox(CudaBackend& backend, std::unique_ptr<Channel> channel, MPI_Comm notices, int to)
      : backend_(backend), channel_(std::move(channel)), notices_(notices), to_(to) {}
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;
  Pending send(const Tensor& x, int tag);
  void check() { channel_->check(); }

 private:
  struct Notice {
    int64_t words[3];  // tag, elements, dtype
    MPI_Request request = MPI_REQUEST_NULL;
  };
  CudaBackend& backend_;
  std::unique_ptr<Channel> channel_;
  MPI_Comm notices_;
  int to_;
  std::list<Notice> notices_out_;
};

/// The receiving end.
class Inbox {
 public:
  Inbox(CudaBackend& backend, std::unique_ptr<Channel> channel, MPI_Comm notices, int from)
      : backend_(backend), channel_(std::move(channel)), notices_(notices), from_(from) {}
  /// `keep_going` is called while the host waits for a notice.
  Pending receive(const Tensor& x, int tag, std::function<void()> keep_going);
  /// Takes the notices that are here, and posts what has been asked for. Never blocks.
  void poll();
  void check() { channel_->check(); }

 private:
  struct Wanted {
    Tensor x;
    int64_t tag;
    Mark ready;                  // of the compute stream, when x was given to us
    std::unique_ptr<Mark> done;  // none: not posted yet
    Tensor kept = {};            // where it arrived before it was asked for
  };
  struct Early {
    Tensor x;
    int64_t tag;
  };
  struct Told {
    int64_t tag, elements, dtype;
  };
  static void need_same(const Tensor& x, const Told& told);
  void post(const Tensor& x, const Mark& ready);

  CudaBackend& backend_;
  std::unique_ptr<Channel> channel_;
  MPI_Comm notices_;
  int from_;
  std::deque<Told> told_;  // not received yet
  std::list<Early> early_;
  std::list<std::shared_ptr<Wanted>> wanted_;
};

}  // namespace orthant::cuda
