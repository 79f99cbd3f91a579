// See replica_check.hpp.
#include "train/replica_check.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

namespace {

/// What travels of a piece.
struct Claim {
  uint64_t key = 0, checksum = 0;
  int64_t rank = 0, index = 0;  ///< index: in that rank's list
};
static_assert(sizeof(Claim) == 32);

/// A key whose checksums differ.
struct Difference {
  int64_t owner_rank = 0, index = 0;  ///< a rank that holds it, and where in its list: it knows the name
  int64_t copies = 0;
  std::vector<int64_t> minority;
};

uint64_t key_of(const HeldPiece& p) {
  const std::array<int64_t, 4> place{p.piece.row, p.piece.rows, p.piece.col, p.piece.cols};
  return XXH64(p.name.data(), p.name.size(), XXH64(place.data(), sizeof place, 0));
}

/// Every claim to the rank its key falls to.
std::vector<Claim> dealt_out(MPI_Comm comm, int rank, int ranks, const std::vector<HeldPiece>& held) {
  std::vector<std::vector<Claim>> to(static_cast<size_t>(ranks));
  for (size_t i = 0; i < held.size(); ++i) {
    const uint64_t key = key_of(held[i]);
    to[key % static_cast<uint64_t>(ranks)].push_back({key, held[i].checksum, rank, static_cast<int64_t>(i)});
  }
  std::vector<int> send(to.size()), receive(to.size()), send_at(to.size()), receive_at(to.size());
  std::vector<Claim> out;
  for (size_t r = 0; r < to.size(); ++r) {
    send_at[r] = static_cast<int>(out.size());
    send[r] = static_cast<int>(to[r].size());
    out.insert(out.end(), to[r].begin(), to[r].end());
  }
  ORTHANT_MPI(MPI_Alltoall(send.data(), 1, MPI_INT, receive.data(), 1, MPI_INT, comm));
  int sum = 0;
  for (size_t r = 0; r < receive.size(); ++r) receive_at[r] = std::exchange(sum, sum + receive[r]);
  std::vector<Claim> in(static_cast<size_t>(sum));
  MPI_Datatype claim = MPI_DATATYPE_NULL;
  ORTHANT_MPI(MPI_Type_contiguous(sizeof(Claim), MPI_BYTE, &claim));
  ORTHANT_MPI(MPI_Type_commit(&claim));
  ORTHANT_MPI(MPI_Alltoallv(out.data(), send.data(), send_at.data(), claim, in.data(), receive.data(),
                            receive_at.data(), claim, comm));
  ORTHANT_MPI(MPI_Type_free(&claim));
  return in;
}

std::vector<Difference> differences(const std::vector<Claim>& claims) {
  std::map<uint64_t, std::vector<Claim>> by_key;
  for (const Claim& c : claims) by_key[c.key].push_back(c);
  std::vector<Difference> out;
  for (const auto& [key, copies] : by_key) {
    std::map<uint64_t, int64_t> votes;
    for (const Claim& c : copies) ++votes[c.checksum];
    if (votes.size() == 1) continue;
    int64_t most = 0, winners = 0;
    for (const auto& [sum, n] : votes) most = std::max(most, n);
    for (const auto& [sum, n] : votes) winners += n == most;
    Difference d{copies[0].rank, copies[0].index, static_cast<int64_t>(copies.size()), {}};
    for (const Claim& c : copies)
      if (winners > 1 || votes[c.checksum] < most) d.minority.push_back(c.rank);  // no majority: all are named
    std::sort(d.minority.begin(), d.minority.end());
    out.push_back(std::move(d));
  }
  return out;
}

}  // namespace

std::vector<HeldPiece> held_pieces(Backend& backend, const ParamStore& store, const std::vector<std::string>& slots,
                                   const std::vector<StatePiece>& beside) {
  std::vector<HeldPiece> out;
  const auto add = [&](const LocalParam& p, const char* kind, const Piece& piece, const Tensor& x) {
    if (!x || piece.elements() == 0) return;
    const void* data = backend.host_begin(x);
    out.push_back({p.param.name + ", " + kind, piece,
                   XXH64(data, static_cast<size_t>(x.size()) * static_cast<size_t>(size_of(x.dtype())), 0)});
    backend.host_end(x);
  };
  for (const LocalParam& p : store.all()) {
    if (p.trained() && store.zero().gathers_weights()) add(p, "weights", p.own, p.own_weight);
    else add(p, "weights", p.piece, p.weight);
    if (store.precision().has_copy()) add(p, "masters", p.own, p.master);
    for (size_t i = 0; i < p.slots.size(); ++i) add(p, slots.at(i).c_str(), p.own, p.slots[i]);
  }
  for (const StatePiece& p : beside)
    if (p.piece.elements() > 0)
      out.push_back({p.param->name + ", " + p.group, p.piece,
                     XXH64(p.data, static_cast<size_t>(p.piece.elements()) * sizeof *p.data, 0)});
  return out;
}

std::string differing_copies(MPI_Comm comm, const std::vector<HeldPiece>& held,
                             const std::function<std::string(int)>& who) {
  int rank = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  const std::vector<Difference> mine = differences(dealt_out(comm, rank, ranks, held));
  int64_t count = static_cast<int64_t>(mine.size()), all = 0;
  ORTHANT_MPI(MPI_Allreduce(&count, &all, 1, MPI_INT64_T, MPI_SUM, comm));
  if (all == 0) return "";

  // The one told is the first of the lowest rank that found any: its place, then its name from a rank that holds it.
  int teller = mine.empty() ? ranks : rank;
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &teller, 1, MPI_INT, MPI_MIN, comm));
  std::array<int64_t, 4> head{};
  std::vector<int64_t> minority;
  if (rank == teller) {
    head = {mine[0].owner_rank, mine[0].index, mine[0].copies, static_cast<int64_t>(mine[0].minority.size())};
    minority = mine[0].minority;
  }
  ORTHANT_MPI(MPI_Bcast(head.data(), 4, MPI_INT64_T, teller, comm));
  minority.resize(static_cast<size_t>(head[3]));
  ORTHANT_MPI(MPI_Bcast(minority.data(), static_cast<int>(minority.size()), MPI_INT64_T, teller, comm));

  const auto share = [&](std::string text, int from) {
    int64_t size = static_cast<int64_t>(text.size());
    ORTHANT_MPI(MPI_Bcast(&size, 1, MPI_INT64_T, from, comm));
    text.resize(static_cast<size_t>(size));
    ORTHANT_MPI(MPI_Bcast(text.data(), static_cast<int>(size), MPI_CHAR, from, comm));
    return text;
  };
  std::string name;
  if (rank == head[0]) {
    const HeldPiece& p = held[static_cast<size_t>(head[1])];
    name = fmt::format("{} (rows {}-{}, columns {}-{})", p.name, p.piece.row, p.piece.row + p.piece.rows - 1,
                       p.piece.col, p.piece.col + p.piece.cols - 1);
  }
  name = share(name, static_cast<int>(head[0]));

  std::string text;
  if (rank == 0) {
    std::vector<std::string> names;
    constexpr size_t shown = 4;
    for (size_t i = 0; i < minority.size() && i < shown; ++i) names.push_back(who(static_cast<int>(minority[i])));
    const auto others = head[2] - head[3];
    text = fmt::format("{} of {} copies of {} ", others == 0 ? "all" : std::to_string(head[3]), head[2], name);
    text += others == 0 ? "differ from each other, without a majority: " : "differ from the rest: ";
    text += fmt::format("{}{}", fmt::join(names, "; "),
                        minority.size() > shown ? fmt::format("; and {} more", minority.size() - shown) : "");
    if (all > 1) text += fmt::format(". So do copies of {} other pieces", all - 1);
  }
  return share(text, 0);
}

}  // namespace orthant
