// orthant bench io DECK [--repeat N] [key=value …]: how fast checkpoints of the deck's state are written and read here.
//
// The state is noise: zeros, as optimiser state has at the start, may take a short way through a file system.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/folders.hpp"
#include "checkpoint/write.hpp"
#include "commands/bench.hpp"
#include "orthant/error.hpp"
#include "support/agree.hpp"
#include "train/state.hpp"

namespace orthant {

const char* const bench_io_notes =
    "The state of the deck on its mesh (weights and optimiser, fp32) is filled with noise, written as a checkpoint into\n"
    "the folder bench_io of checkpoint.folder, or else of run.output, and read back; checkpoint.files and\n"
    "checkpoint.mpi_info apply. One checkpoint at a time is there, and the folder is removed at the end.\n"
    "  write          until the last byte is handed to the operating system\n"
    "  durable        until the checkpoint is complete: also fsync, checksum, final name\n"
    "  read           into memory, as at a start from a checkpoint that was verified\n"
    "  read_verified  all files against their checksums first, then the same\n"
    "Times are those of the slowest rank, from a common start; GB/s = bytes of the files / seconds. Before each read every\n"
    "node drops the files from its page cache, then \"cache\" is \"dropped\"; where pages stay (memory file systems), it\n"
    "is \"kept\" and the rate is not that of a disk. Caches of a file server, a hypervisor or a drive are out of reach.";

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double slowest(MPI_Comm comm, double seconds) {
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, comm));
  return seconds;
}

// A generator of 64 bits that costs less than the memory it fills: xorshift with a multiplication on the way out.
class Noise {
 public:
  explicit Noise(uint64_t seed) : x_(seed * 0x9E3779B97F4A7C15ULL | 1) {}
  uint64_t next() {
    x_ ^= x_ >> 12, x_ ^= x_ << 25, x_ ^= x_ >> 27;
    return x_ * 0x2545F4914F6CDD1DULL;
  }

 private:
  uint64_t x_;
};

// What this rank writes has the noise of its number; checked against the same noise, so nothing is kept to compare with.
// Numbers are in [-1, 1), with all bits of their fractions in use.
float number_of(uint64_t bits) { return static_cast<float>(static_cast<int32_t>(bits >> 32)) * 0x1p-31F; }

void fill_noise(const std::vector<StatePiece>& pieces, int rank) {
  Noise noise(static_cast<uint64_t>(rank) + 1);
  for (const StatePiece& p : pieces) {
    if (!p.writer) continue;
    for (int64_t i = 0; i < p.piece.elements(); ++i) p.data[i] = number_of(noise.next());
  }
}

void clear(const std::vector<StatePiece>& pieces) {
  for (const StatePiece& p : pieces) std::fill_n(p.data, p.piece.elements(), 0.0F);
}

bool holds_noise(const std::vector<StatePiece>& pieces, int rank) {
  Noise noise(static_cast<uint64_t>(rank) + 1);
  for (const StatePiece& p : pieces) {
    if (!p.writer) continue;
    for (int64_t i = 0; i < p.piece.elements(); ++i) {
      if (p.data[i] != number_of(noise.next())) return false;
    }
  }
  return true;
}

// Share of a file's pages that this node has in memory.
double cached_share(const Descriptor& file, size_t bytes) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (map == MAP_FAILED) return 1;  // not known: then nothing better is claimed
  std::vector<unsigned char> pages((bytes + page - 1) / page);
  const bool told = ::mincore(map, bytes, pages.data()) == 0;
  ::munmap(map, bytes);
  if (!told) return 1;
  const auto held = std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; });
  return static_cast<double>(held) / static_cast<double>(pages.size());
}

// Makes this node forget the pages of all files in a folder. Returns the largest share of a file that it still has.
// Pages not yet on disk would stay, hence the fsync.
double drop_cache(MPI_Comm comm, const std::string& folder) {
  double share = 0;
  collectively(comm, [&] {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (!entry.is_regular_file() || entry.file_size() == 0) continue;
      const Descriptor file(entry.path().string(), O_RDONLY);
      ::fsync(file.get());
      ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
      share = std::max(share, cached_share(file, entry.file_size()));
    }
  });
  return slowest(comm, share);
}

struct Times {
  std::vector<double> seconds;
  nlohmann::json json(int64_t bytes) const {
    std::vector<double> s = seconds;
    std::sort(s.begin(), s.end());
    const double median = s[s.size() / 2], size = static_cast<double>(bytes) / 1e9;
    return {{"seconds", median}, {"best_seconds", s.front()}, {"gb_per_s", size / median}, {"best_gb_per_s", size / s.front()}};
  }
};

struct IoTimes {
  Times write, durable, read, read_verified;
  double cached = 0;  ///< largest share of a file found in memory in front of a read
  SaveReport last;
};

IoTimes measure(MPI_Comm comm, int rank, const std::string& folder, const std::vector<StatePiece>& pieces,
                const SaveSettings& settings, int64_t repeat) {
  IoTimes times;
  TrainState state;
  for (int64_t n = 1; n <= repeat; ++n) {
    state.step = n;
    fill_noise(pieces, rank);
    ORTHANT_MPI(MPI_Barrier(comm));
    const auto begin = Clock::now();
    double written = 0;
    times.last = write_checkpoint(comm, folder, n, "bench", pieces, state, {}, settings,
                                  [&](size_t) { written = seconds_since(begin); });
    times.write.seconds.push_back(slowest(comm, written));
    times.durable.seconds.push_back(slowest(comm, times.last.seconds));
    for (const Trust trust : {Trust::sizes, Trust::checksums}) {
      clear(pieces);
      times.cached = std::max(times.cached, drop_cache(comm, times.last.folder));
      ORTHANT_MPI(MPI_Barrier(comm));
      const auto start = Clock::now();
      load_checkpoint(comm, times.last.folder, pieces, nullptr, trust);
      (trust == Trust::sizes ? times.read : times.read_verified).seconds.push_back(slowest(comm, seconds_since(start)));
      collectively(comm, [&] {
        if (!holds_noise(pieces, rank)) throw DataError(times.last.folder + ": other values came back than were written");
      });
    }
    collectively(comm, [&] {
      if (rank == 0) remove_folder(times.last.folder);
    });
  }
  return times;
}

/// The folder of the checkpoints for as long as it lives; its removal takes a new parent along. On rank 0 alone.
class BenchFolder {
 public:
  explicit BenchFolder(const std::string& parent) : parent_(parent), path_(parent + "/bench_io") {
    if (std::filesystem::exists(path_)) {
      throw UsageError(path_ + " is there already, perhaps from a bench io that was killed, or is running; remove it, or give another run.output");
    }
    new_parent_ = !std::filesystem::exists(parent_);
    make_folder(path_);
  }
  ~BenchFolder() {
    std::error_code ignored;  // an error that brought us here matters more
    std::filesystem::remove_all(path_, ignored);
    if (new_parent_) std::filesystem::remove(parent_, ignored);  // only while it is empty
  }
  BenchFolder(const BenchFolder&) = delete;
  BenchFolder& operator=(const BenchFolder&) = delete;

 private:
  std::string parent_, path_;
  bool new_parent_ = false;
};

}  // namespace

int bench_io(const CommandArgs& args, const std::string& deck, const std::vector<std::string>& overrides, int64_t repeat) {
  const RunPlan plan = make_plan(args.world, deck, overrides);
  const Mesh mesh(args.world, plan.mesh);
  MPI_Comm comm = mesh.cart();
  const SaveSettings settings{1, plan.deck[keys::checkpoint::files], plan.deck[keys::checkpoint::mpi_info]};
  const std::string parent = plan.deck.get_or(keys::checkpoint::folder, plan.deck[keys::run::output]);
  const std::string folder = parent + "/bench_io";
  std::unique_ptr<BenchFolder> owner;
  collectively(comm, [&] {
    if (mesh.rank() == 0) owner = std::make_unique<BenchFolder>(parent);
  });
  prepare_checkpoints_folder(comm, folder, settings);

  Session session(plan, mesh, true);
  const StateView view(session);
  const IoTimes times = measure(comm, mesh.rank(), folder, view.pieces(), settings, repeat);
  if (mesh.rank() != 0) return 0;

  nlohmann::json hints = nlohmann::json::object();  // what MPI-IO made of them; null: it has no such hint
  for (const auto& [key, value] : settings.mpi_info) {
    const auto found = times.last.hints.find(key);
    hints[key] = found == times.last.hints.end() ? nlohmann::json() : nlohmann::json(found->second);
  }
  const int64_t bytes = times.last.bytes;
  const nlohmann::json out = {{"bytes", bytes},
                              {"files", times.last.files},
                              {"ranks", mesh.ranks()},
                              {"nodes", mesh.nodes()},
                              {"repeat", repeat},
                              {"write", times.write.json(bytes)},
                              {"durable", times.durable.json(bytes)},
                              {"read", times.read.json(bytes)},
                              {"read_verified", times.read_verified.json(bytes)},
                              {"checkpoint.files", settings.files},
                              {"mpi_info", hints},
                              {"cache", times.cached < 0.01 ? "dropped" : "kept"},
                              {"cached_share", times.cached}};
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace orthant
