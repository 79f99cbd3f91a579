// See point_to_point.hpp.
#include "backends/cuda/point_to_point.hpp"

#include <algorithm>
#include <exception>
#include <thread>

#include "backends/cuda/kernel.hpp"
#include "support/agree.hpp"

namespace orthant::cuda {
namespace {
constexpr int notice_tag = 2;
}

Outbox::~Outbox() {
  if (notices_out_.empty()) return;
  if (std::uncaught_exceptions() > 0) {  // nobody may come for them; MPI can still read their memory
    static auto* kept = new std::vector<std::list<Notice>>();
    kept->push_back(std::move(notices_out_));
    return;
  }
  for (Notice& n : notices_out_) MPI_Wait(&n.request, MPI_STATUS_IGNORE);
}

Pending Outbox::send(const Tensor& x, int tag) {
  for (auto it = notices_out_.begin(); it != notices_out_.end();) {
    int gone = 0;
    ORTHANT_MPI(MPI_Test(&it->request, &gone, MPI_STATUS_IGNORE));
    it = gone ? notices_out_.erase(it) : std::next(it);
  }
  Notice& notice = notices_out_.emplace_back();
  notice.words[0] = tag;
  notice.words[1] = x.size();
  notice.words[2] = static_cast<int64_t>(x.dtype());
  ORTHANT_MPI(MPI_Isend(notice.words, 3, MPI_INT64_T, to_, notice_tag, notices_, &notice.request));
  if (x.bytes() == 0) return {};
  channel_->after_compute();
  channel_->group("send", [&] {
    ORTHANT_NCCL(ncclSend(x.data(), static_cast<size_t>(x.size()), nccl_type(x.dtype()), 1, channel_->comm(), channel_->stream()));
  });
  const Mark done(channel_->stream());
  return Pending([x, done, stream = backend_.stream()] { done.hold(stream); }, [done] { return done.reached(); });
}

void Inbox::need_same(const Tensor& x, const Told& told) {
  ORTHANT_ENSURE(x.size() == told.elements && static_cast<int64_t>(x.dtype()) == told.dtype,
                 "receive of " + std::to_string(x.size()) + " " + name_of(x.dtype()) + " where " + std::to_string(told.elements) + " " +
                     name_of(static_cast<DType>(told.dtype)) + " were sent");
}

void Inbox::post(const Tensor& x, const Mark& ready) {
  ready.hold(channel_->stream());
  if (x.bytes() == 0) return;
  channel_->group("receive", [&] {
    ORTHANT_NCCL(ncclRecv(x.data(), static_cast<size_t>(x.size()), nccl_type(x.dtype()), 0, channel_->comm(), channel_->stream()));
  });
}

void Inbox::poll() {
  for (int there = 1;;) {
    ORTHANT_MPI(MPI_Iprobe(from_, notice_tag, notices_, &there, MPI_STATUS_IGNORE));
    if (!there) break;
    int64_t words[3];
    ORTHANT_MPI(MPI_Recv(words, 3, MPI_INT64_T, from_, notice_tag, notices_, MPI_STATUS_IGNORE));
    told_.push_back({words[0], words[1], words[2]});
  }
  // the last notice that somebody waits for: all before it have to be received
  const auto find_wanted = [&](int64_t tag) {
    return std::find_if(wanted_.begin(), wanted_.end(), [&](const auto& w) { return w->tag == tag; });
  };
  size_t due = 0;
  std::list<int64_t> open;
  for (const auto& w : wanted_) open.push_back(w->tag);
  for (size_t i = 0; i < told_.size(); ++i)
    if (auto it = std::find(open.begin(), open.end(), told_[i].tag); it != open.end()) {
      open.erase(it);
      due = i + 1;
    }
  for (; due > 0; --due) {
    const Told told = told_.front();
    told_.pop_front();
    const auto it = find_wanted(told.tag);
    if (it == wanted_.end()) {
      const Tensor x = backend_.alloc(static_cast<DType>(told.dtype), 1, told.elements, MemoryKind::communication);
      post(x, Mark(backend_.stream()));
      early_.push_back({x, told.tag});
      continue;
    }
    const std::shared_ptr<Wanted> w = *it;
    wanted_.erase(it);
    need_same(w->x, told);
    post(w->x, w->ready);
    w->done = std::make_unique<Mark>(channel_->stream());
  }
}

Pending Inbox::receive(const Tensor& x, int tag, std::function<void()> keep_going) {
  poll();
  auto w = std::make_shared<Wanted>(Wanted{x, tag, Mark(backend_.stream()), nullptr});
  const auto early = std::find_if(early_.begin(), early_.end(), [&](const Early& e) { return e.tag == tag; });
  if (early != early_.end()) {
    w->ready.hold(channel_->stream());
    need_same(x, {tag, early->x.size(), static_cast<int64_t>(early->x.dtype())});
    if (x.bytes() > 0)
      ORTHANT_CUDA(cudaMemcpyAsync(x.data(), early->x.data(), static_cast<size_t>(x.bytes()), cudaMemcpyDeviceToDevice, channel_->stream()));
    w->done = std::make_unique<Mark>(channel_->stream());
    w->kept = early->x;
    early_.erase(early);
  } else {
    wanted_.push_back(w);
    poll();
  }
  const auto finish = [this, w, keep_going] {
    while (!w->done) {
      keep_going();
      if (w->done) break;
      std::this_thread::yield();
    }
    w->done->hold(backend_.stream());
  };
  return Pending(finish, [this, w] {
    poll();
    return w->done && w->done->reached();
  });
}

}  // namespace orthant::cuda
