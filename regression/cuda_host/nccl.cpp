// NCCL's calls over MPI messages; see include/nccl.h.
#include "nccl.h"

#include <mpi.h>

#include <cstdio>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
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
  struct Split {
    int color, key;
    ncclComm_t* part;
    bool blocking;
  };
  std::optional<Split> split;  // so does one
  int splits = 0;              // how many there were
};

namespace {

constexpr int split_tag = 32000, join_tag = 33000, message_tag = 40000, most_ids = 4096;
std::set<ncclComm_t> comms;
bool broken = false;

size_t size_of(ncclDataType_t t) {
  switch (t) {
    case ncclInt8: case ncclUint8: return 1;
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

/// As NCCL 2.28 tells it. ORTHANT_CUDA_HOST_NETWORK names the network (Socket); "IB:far" has adapters too far from the device.
void write_log() {
  static bool written = false;
  if (written) return;
  written = true;
  const char *level = std::getenv("NCCL_DEBUG"), *file = std::getenv("NCCL_DEBUG_FILE"), *set = std::getenv("ORTHANT_CUDA_HOST_NETWORK");
  if (!level || std::string(level) != "INFO" || !file) return;
  std::string network = set ? set : "Socket";
  const bool far = network.ends_with(":far");
  if (far) network.resize(network.size() - 4);
  std::ofstream out(file);
  const std::string head = "host:1:1 [0] NCCL INFO ";
  out << head << "NET/" << network << " : Using [0]dev0:1/" << network << " [RO]; OOB eth0:127.0.0.1<0>\n" << head << "Using network " << network << "\n";
  if (network != "IB") return;
  out << head << "NET/IB : GPU Direct RDMA Enabled for HCA 0 'dev0'\n"
      << head << (far ? "GPU Direct RDMA Disabled for GPU 0 / HCA 0 (distance 8 > 5)\n" : "GPU Direct RDMA Enabled for GPU 0 / HCA 0 (distance 4 <= 5), read 1 mode Default\n");
}

/// Of the next communicator whose members this rank brings together.
int next_number() {
  static int made = 0;
  if (made >= most_ids / 2) refuse("more than 2048 NCCL communicators");
  return made++;
}

/// Everybody tells the creator of the id who he is in the world, and learns who the others are.
void join(ncclComm_t c) {
  write_log();
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

/// Everybody tells rank 0 of the parent color, key and rank, and gets the members of its own part. Rank 0 numbers the parts
/// as if it had made their ids.
void split(ncclComm_t c) {
  const ncclStandInComm::Split mine = *c->split;
  c->split.reset();
  struct Word {
    int split, color, key, rank;
  };
  const Word word{c->splits++, mine.color, mine.key, c->rank};
  std::vector<int> answer;  // creator, number, then ranks of the parent in the order of the part
  if (c->rank == 0) {
    std::map<int, std::vector<Word>> parts;
    for (int r = 0; r < c->ranks; ++r) {
      Word w = word;
      if (r > 0) MPI_Recv(&w, 4, MPI_INT, c->world[static_cast<size_t>(r)], split_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      if (w.split != word.split)
        refuse("NCCL calls do not match: rank " + std::to_string(r) + " is at split " + std::to_string(w.split) + " of a communicator, rank 0 at " + std::to_string(word.split));
      if (w.color != NCCL_SPLIT_NOCOLOR) parts[w.color].push_back(w);
    }
    for (auto& [color, part] : parts) {
      std::stable_sort(part.begin(), part.end(), [](const Word& a, const Word& b) { return a.key < b.key; });
      std::vector<int> text = {world_rank(), next_number()};
      for (const Word& w : part) text.push_back(w.rank);
      for (const Word& w : part) {
        if (w.rank == 0) answer = text;
        else MPI_Send(text.data(), static_cast<int>(text.size()), MPI_INT, c->world[static_cast<size_t>(w.rank)], split_tag + 1, MPI_COMM_WORLD);
      }
    }
  } else {
    MPI_Send(&word, 4, MPI_INT, c->world[0], split_tag, MPI_COMM_WORLD);
    if (mine.color != NCCL_SPLIT_NOCOLOR) {
      MPI_Status status;
      MPI_Probe(c->world[0], split_tag + 1, MPI_COMM_WORLD, &status);
      int n = 0;
      MPI_Get_count(&status, MPI_INT, &n);
      answer.resize(static_cast<size_t>(n));
      MPI_Recv(answer.data(), n, MPI_INT, c->world[0], split_tag + 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
  }
  if (mine.color == NCCL_SPLIT_NOCOLOR) return;
  auto* part = new ncclStandInComm();
  part->blocking = mine.blocking;
  part->creator = answer[0];
  part->number = answer[1];
  part->ranks = static_cast<int>(answer.size()) - 2;
  for (int i = 0; i < part->ranks; ++i) {
    const int in_parent = answer[static_cast<size_t>(i) + 2];
    part->world.push_back(c->world[static_cast<size_t>(in_parent)]);
    if (in_parent == c->rank) part->rank = i;
  }
  part->tag = message_tag + part->creator * most_ids + part->number;
  part->joined = true;
  comms.insert(part);
  *mine.part = part;
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
  *id = {};
  const int words[2] = {world_rank(), next_number()};
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
  if (comm->split) split(comm);
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

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  use(comm);
  if (!comm->joined) refuse("a NCCL communicator is split before ncclCommGetAsyncError said that it is made");
  if (comm->in_flight || comm->split) refuse("a NCCL communicator is split while an earlier call is in progress");
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) return ncclInvalidArgument;
  if (config && config->splitShare == 1) refuse("parts that share resources with their parent run one after the other, which is not stood in for");
  *newcomm = nullptr;
  comm->split = ncclStandInComm::Split{color, key, newcomm, config && config->blocking != NCCL_CONFIG_UNDEF_INT ? config->blocking != 0 : comm->blocking};
  if (!comm->blocking) return ncclInProgress;
  split(comm);
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
