// NCCL's calls over MPI messages; see include/nccl.h.
#include "nccl.h"

#include <mpi.h>

#include <cstdio>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

using host_stand_in::refuse;

struct ncclStandInComm {
  int rank = 0, ranks = 0;
  bool blocking = true, joined = false, aborted = false, finalized = false;
  int creator = 0, number = 0;  // the id: a rank of the world, and the how-manieth it made
  std::vector<int> world;       // ranks of the members
  int tag = 0;
  int64_t collectives = 0;
  bool in_flight = false;  // a call waits for ncclCommGetAsyncError
};

namespace {

constexpr int join_tag = 33000, message_tag = 40000, most_ids = 4096;
std::set<ncclComm_t> comms;
bool broken = false;

size_t size_of(ncclDataType_t t) {
  switch (t) {
    case ncclInt8: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclFloat32: return 4;
    case ncclInt64: case ncclFloat64: return 8;
  }
  refuse("a type that NCCL does not have");
}

int world_rank() {
  int r = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &r);
  return r;
}

void use(ncclComm_t c) {
  if (!comms.count(c)) refuse("a NCCL communicator is used that does not exist");
  if (c->aborted) refuse("a NCCL communicator is used after it was aborted");
}

struct Header {
  char call[16];
  int64_t count, type, collective;  // how many collective calls the communicator had before; -1 for send
};

std::string text_of(const Header& h) {
  return std::string(h.call) + " of " + std::to_string(h.count) + " of type " + std::to_string(h.type) +
         (h.collective >= 0 ? ", collective call " + std::to_string(h.collective) : "");
}

Header header(const char* call, size_t count, ncclDataType_t type, int64_t collective) {
  Header h{};
  std::snprintf(h.call, sizeof h.call, "%s", call);
  h.count = static_cast<int64_t>(count);
  h.type = type;
  h.collective = collective;
  return h;
}

struct Part {
  bool sends;
  char* data;
  size_t bytes;
  int peer;
  Header header;
  std::vector<char> buffer = {};
  MPI_Request request = MPI_REQUEST_NULL;
  bool done = false;
};

/// What one group put into one stream.
class Call : public host_stand_in::Operation {
 public:
  Call(ncclComm_t comm, cudaStream_t stream) : comm_(comm), stream_(stream) {}
  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }
  std::vector<Part> parts;
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  std::vector<Copy> copies;

  void start() override {
    if (broken) return;
    const host_stand_in::Opened opened;
    for (Part& p : parts) {
      if (!p.sends) continue;
      p.buffer.resize(sizeof(Header) + p.bytes);
      std::memcpy(p.buffer.data(), &p.header, sizeof(Header));
      if (p.bytes > 0) std::memcpy(p.buffer.data() + sizeof(Header), p.data, p.bytes);
      MPI_Issend(p.buffer.data(), static_cast<int>(p.buffer.size()), MPI_BYTE, comm_->world[static_cast<size_t>(p.peer)], comm_->tag, MPI_COMM_WORLD, &p.request);
    }
  }

  bool test() override {
    if (comm_->aborted) return true;  // the kernel leaves
    if (broken) return false;
    bool all = true;
    std::set<int> waiting;  // peers whose next message is not here: later parts stand behind it
    for (Part& p : parts) {
      if (p.done) continue;
      int arrived = 0;
      if (p.sends) {
        MPI_Test(&p.request, &arrived, MPI_STATUS_IGNORE);
      } else if (!waiting.count(p.peer)) {
        arrived = receive(p);
        if (!arrived) waiting.insert(p.peer);
      }
      p.done = arrived != 0;
      all = all && p.done;
    }
    return all;
  }

  bool lands() const override {
    return !copies.empty() || std::any_of(parts.begin(), parts.end(), [](const Part& p) { return !p.sends; });
  }
  void land() override {
    if (comm_->aborted) return;
    for (const Copy& c : copies)
      if (c.to != c.from) std::memcpy(c.to, c.from, c.bytes);
    for (const Part& p : parts)
      if (!p.sends && p.bytes > 0) std::memcpy(p.data, p.buffer.data() + sizeof(Header), p.bytes);
  }

  std::string text() const override {
    std::string out = "NCCL on rank " + std::to_string(comm_->rank) + " of " + std::to_string(comm_->ranks) + ":";
    for (const Part& p : parts)
      if (!p.done) out += std::string(p.sends ? " to " : " from ") + std::to_string(p.peer) + " " + text_of(p.header) + ";";
    return out;
  }

 private:
  bool receive(Part& p) {
    int there = 0;
    MPI_Message message;
    MPI_Status status;
    MPI_Improbe(comm_->world[static_cast<size_t>(p.peer)], comm_->tag, MPI_COMM_WORLD, &there, &message, &status);
    if (!there) return false;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    std::vector<char>& in = p.buffer;
    in.resize(static_cast<size_t>(bytes));
    MPI_Mrecv(in.data(), bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE);
    Header theirs;
    std::memcpy(&theirs, in.data(), sizeof theirs);
    if (std::memcmp(&theirs, &p.header, sizeof theirs) != 0)
      refuse("NCCL calls do not match: rank " + std::to_string(p.peer) + " called " + text_of(theirs) + ", rank " + std::to_string(comm_->rank) +
             " takes it for " + text_of(p.header));
    return true;
  }

  ncclComm_t comm_;
  cudaStream_t stream_;
};

int depth = 0;
std::vector<std::shared_ptr<Call>> group;
std::vector<std::shared_ptr<Call>> held;  // of communicators that do not block, until somebody asks how they do

Call& call_of(ncclComm_t comm, cudaStream_t stream) {
  for (const auto& c : group)
    if (c->comm() == comm && c->stream() == stream) return *c;
  group.push_back(std::make_shared<Call>(comm, stream));
  return *group.back();
}

void need_place(const void* data, size_t bytes) {
  if (bytes > 0 && !host_stand_in::on_device(data, bytes)) refuse("a NCCL call's memory does not lie inside one block of device memory");
}

/// Checks common to all calls; ends a group of one where none is open.
template <class Add>
ncclResult_t call(ncclComm_t comm, cudaStream_t stream, Add&& add) {
  use(comm);
  if (!comm->joined) refuse("a NCCL communicator is used before ncclCommGetAsyncError said that it is made");
  if (comm->in_flight) refuse("a NCCL communicator is used while an earlier call is in progress");
  ++depth;
  add(call_of(comm, stream));
  return ncclGroupEnd();
}

/// Everybody tells the creator of the id who he is in the world, and learns who the others are.
void join(ncclComm_t c) {
  const int me = world_rank(), tag = join_tag + c->number % most_ids;
  c->world.assign(static_cast<size_t>(c->ranks), -1);
  int mine[2] = {c->rank, me};
  if (me == c->creator) {
    c->world[static_cast<size_t>(c->rank)] = me;
    for (int i = 1; i < c->ranks; ++i) {
      int theirs[2];
      MPI_Recv(theirs, 2, MPI_INT, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      if (c->world[static_cast<size_t>(theirs[0])] >= 0) refuse("two members of a NCCL communicator have one rank");
      c->world[static_cast<size_t>(theirs[0])] = theirs[1];
    }
    for (int w : c->world)
      if (w != me) MPI_Send(c->world.data(), c->ranks, MPI_INT, w, tag + most_ids / 2, MPI_COMM_WORLD);
  } else {
    MPI_Send(mine, 2, MPI_INT, c->creator, tag, MPI_COMM_WORLD);
    MPI_Recv(c->world.data(), c->ranks, MPI_INT, c->creator, tag + most_ids / 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  c->tag = message_tag + c->creator * most_ids + c->number;
  c->joined = true;
}

}  // namespace

namespace host_stand_in {
void break_nccl() { broken = true; }
}  // namespace host_stand_in

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}
const char* ncclGetLastError(ncclComm_t) { return broken ? "the stand-in was broken by a test" : ""; }
ncclResult_t ncclGetVersion(int* version) { return *version = 22803, ncclSuccess; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int made = 0;
  if (made >= most_ids / 2) refuse("more than 2048 NCCL communicators");
  *id = {};
  const int words[2] = {world_rank(), made++};
  std::memcpy(id->internal, words, sizeof words);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  auto* c = new ncclStandInComm();
  c->ranks = ranks;
  c->rank = rank;
  c->blocking = !config || config->blocking != 0;
  std::memcpy(&c->creator, id.internal, sizeof c->creator);
  std::memcpy(&c->number, id.internal + sizeof c->creator, sizeof c->number);
  comms.insert(c);
  *comm = c;
  if (!c->blocking) return ncclInProgress;
  join(c);
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  use(comm);
  if (broken) return *state = ncclRemoteError, ncclSuccess;
  if (!comm->joined) join(comm);
  if (comm->in_flight) {
    comm->in_flight = false;
    for (auto it = held.begin(); it != held.end();)
      if ((*it)->comm() == comm) {
        host_stand_in::enqueue((*it)->stream(), *it);
        it = held.erase(it);
      } else {
        ++it;
      }
  }
  host_stand_in::progress(false);
  *state = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  use(comm);
  comm->finalized = true;
  return comm->blocking ? ncclSuccess : ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comms.count(comm)) refuse("a NCCL communicator is destroyed that does not exist");
  comms.erase(comm);  // kept in memory: calls in streams still look at it
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comms.count(comm)) refuse("a NCCL communicator is aborted that does not exist");
  comm->aborted = true;
  comms.erase(comm);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() { return ++depth, ncclSuccess; }

ncclResult_t ncclGroupEnd() {
  if (depth == 0) return ncclInvalidUsage;
  if (--depth > 0) return ncclSuccess;
  bool in_progress = false;
  for (auto& c : group) {
    if (c->comm()->blocking) {
      host_stand_in::enqueue(c->stream(), c);
    } else {
      c->comm()->in_flight = in_progress = true;
      held.push_back(c);
    }
  }
  group.clear();
  return in_progress ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * size_of(type);
  need_place(data, bytes);
  if (peer < 0 || peer >= comm->ranks || peer == comm->rank) return ncclInvalidArgument;
  return call(comm, stream, [&](Call& c) {
    c.parts.push_back({true, static_cast<char*>(const_cast<void*>(data)), bytes, peer, header("send", count, type, -1)});
  });
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * size_of(type);
  need_place(data, bytes);
  if (peer < 0 || peer >= comm->ranks || peer == comm->rank) return ncclInvalidArgument;
  return call(comm, stream, [&](Call& c) {
    c.parts.push_back({false, static_cast<char*>(data), bytes, peer, header("send", count, type, -1)});
  });
}

ncclResult_t ncclAllGather(const void* data, void* all, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * size_of(type);
  need_place(data, bytes);
  need_place(all, bytes * static_cast<size_t>(comm->ranks));
  return call(comm, stream, [&](Call& c) {
    const Header h = header("all-gather", count, type, comm->collectives++);
    auto* to = static_cast<char*>(all);
    for (int r = 0; r < comm->ranks; ++r) {
      if (r == comm->rank) {
        c.copies.push_back({to + static_cast<size_t>(r) * bytes, data, bytes});
        continue;
      }
      c.parts.push_back({true, static_cast<char*>(const_cast<void*>(data)), bytes, r, h});
      c.parts.push_back({false, to + static_cast<size_t>(r) * bytes, bytes, r, h});
    }
  });
}
