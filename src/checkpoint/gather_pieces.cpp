// See gather_pieces.hpp.
//
// Rank 0 asks, the others answer. It alone knows the order of the files and whether the disk still takes data, so it
// can stop at any point, and the others need neither a copy of its plan nor a message for every rectangle: a rank
// hears only of those it holds a part of, and of the end.
#include "checkpoint/gather_pieces.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <unordered_map>

#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

namespace {

constexpr int request_tag = 72, value_tag = 73;
constexpr int64_t the_end = -1;

/// index, row, rows, col, cols. In the list of a rank's pieces the index is that of a parameter; in a request, that
/// of a piece in this list.
using Words = std::array<int64_t, 5>;
constexpr int words = 5;

Words words_of(int64_t index, const Piece& p) { return {index, p.row, p.rows, p.col, p.cols}; }
Piece piece_of(const Words& w) { return {w[1], w[2], w[3], w[4]}; }

Piece overlap(const Piece& a, const Piece& b) {
  const int64_t row = std::max(a.row, b.row), col = std::max(a.col, b.col);
  return {row, std::max<int64_t>(0, std::min(a.row + a.rows, b.row + b.rows) - row), col,
          std::max<int64_t>(0, std::min(a.col + a.cols, b.col + b.cols) - col)};
}

/// Elements before the first one of `part` in a dense `whole`.
int64_t offset_in(const Piece& whole, const Piece& part) {
  return (part.row - whole.row) * whole.cols + part.col - whole.col;
}

/// `part` as MPI sees it inside a dense `whole`: no copy is made of a rectangle that is cut by columns.
class Rectangle {
 public:
  Rectangle(const Piece& whole, const Piece& part) {
    ORTHANT_MPI(MPI_Type_vector(static_cast<int>(part.rows), static_cast<int>(part.cols),
                                static_cast<int>(whole.cols), MPI_FLOAT, &type_));
    ORTHANT_MPI(MPI_Type_commit(&type_));
  }
  ~Rectangle() { MPI_Type_free(&type_); }  // a transfer under way keeps its own hold of the type
  Rectangle(const Rectangle&) = delete;
  Rectangle& operator=(const Rectangle&) = delete;
  MPI_Datatype type() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

/// The pieces of this rank that count, and the parameter of each.
struct Held {
  std::vector<const StatePiece*> pieces;
  std::vector<Words> list;
};

Held held_here(const std::vector<Param>& params, const std::string& group, const std::vector<StatePiece>& pieces) {
  std::unordered_map<std::string, int64_t> index;
  for (size_t i = 0; i < params.size(); ++i) index.emplace(params[i].name, static_cast<int64_t>(i));
  Held held;
  for (const StatePiece& p : pieces) {
    if (p.group != group || !p.writer || p.piece.elements() == 0) continue;
    const auto at = index.find(p.param->name);
    ORTHANT_ENSURE(at != index.end(), "the model has no parameter " + p.param->name);
    const Param& whole = params[static_cast<size_t>(at->second)];
    ORTHANT_ENSURE(overlap(p.piece, {0, whole.rows(), 0, whole.cols()}) == p.piece, "piece outside of " + whole.name);
    ORTHANT_ENSURE(p.data != nullptr, "no data for " + whole.name);
    held.pieces.push_back(&p);
    held.list.push_back(words_of(at->second, p.piece));
  }
  return held;
}

/// A piece of some rank: `index` in the list of that rank.
struct Holder {
  int rank = 0;
  int64_t index = 0;
  Piece piece;
};
using Holders = std::vector<std::vector<Holder>>;  // by parameter

/// On rank 0: who holds what.
Holders gather_holders(MPI_Comm comm, size_t params, const std::vector<Words>& mine) {
  int rank = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  MPI_Datatype entry = MPI_DATATYPE_NULL;
  ORTHANT_MPI(MPI_Type_contiguous(words, MPI_INT64_T, &entry));
  ORTHANT_MPI(MPI_Type_commit(&entry));
  const int count = static_cast<int>(mine.size());
  std::vector<int> counts(static_cast<size_t>(ranks)), begins(static_cast<size_t>(ranks) + 1);
  ORTHANT_MPI(MPI_Gather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, 0, comm));
  for (size_t r = 0; r < counts.size(); ++r) begins[r + 1] = begins[r] + counts[r];
  std::vector<Words> all(rank == 0 ? static_cast<size_t>(begins.back()) : 0);
  ORTHANT_MPI(MPI_Gatherv(mine.data(), count, entry, all.data(), counts.data(), begins.data(), entry, 0, comm));
  MPI_Type_free(&entry);
  Holders holders(rank == 0 ? params : 0);
  for (int r = 0; rank == 0 && r < ranks; ++r) {
    for (int i = begins[static_cast<size_t>(r)]; i < begins[static_cast<size_t>(r) + 1]; ++i) {
      const Words& w = all[static_cast<size_t>(i)];
      holders[static_cast<size_t>(w[0])].push_back({r, i - begins[static_cast<size_t>(r)], piece_of(w)});
    }
  }
  return holders;
}

/// Rank 0: `wanted` of one parameter into a dense `out`.
void fetch(MPI_Comm comm, const std::string& name, const std::vector<Holder>& holders, const Held& mine,
           const Piece& wanted, float* out) {
  int64_t covered = 0;
  for (const Holder& h : holders) covered += overlap(h.piece, wanted).elements();
  ORTHANT_ENSURE(covered == wanted.elements(), name + ": the ranks hold " + std::to_string(covered) + " of " +
                                                   std::to_string(wanted.elements()) + " elements asked for");
  std::vector<Words> asked;
  asked.reserve(holders.size());  // a request under way must not move
  std::vector<MPI_Request> transfers;
  for (const Holder& h : holders) {
    const Piece part = overlap(h.piece, wanted);
    if (part.elements() == 0) continue;
    if (h.rank == 0) {
      const float* from = mine.pieces[static_cast<size_t>(h.index)]->data + offset_in(h.piece, part);
      float* to = out + offset_in(wanted, part);
      for (int64_t row = 0; row < part.rows; ++row)
        std::copy_n(from + row * h.piece.cols, part.cols, to + row * wanted.cols);
      continue;
    }
    asked.push_back(words_of(h.index, part));
    const Rectangle place(wanted, part);
    transfers.emplace_back();  // the receive first: values never wait in a buffer of the library
    float* to = out + offset_in(wanted, part);
    ORTHANT_MPI(MPI_Irecv(to, 1, place.type(), h.rank, value_tag, comm, &transfers.back()));
    transfers.emplace_back();
    ORTHANT_MPI(MPI_Isend(asked.back().data(), words, MPI_INT64_T, h.rank, request_tag, comm, &transfers.back()));
  }
  ORTHANT_MPI(MPI_Waitall(static_cast<int>(transfers.size()), transfers.data(), MPI_STATUSES_IGNORE));
}

/// Another rank: answers until the end.
void serve(MPI_Comm comm, const Held& mine) {
  for (;;) {
    Words request;
    ORTHANT_MPI(MPI_Recv(request.data(), words, MPI_INT64_T, 0, request_tag, comm, MPI_STATUS_IGNORE));
    if (request[0] == the_end) return;
    const StatePiece& held = *mine.pieces[static_cast<size_t>(request[0])];
    const Piece part = piece_of(request);
    const Rectangle place(held.piece, part);
    ORTHANT_MPI(MPI_Send(held.data + offset_in(held.piece, part), 1, place.type(), 0, value_tag, comm));
  }
}

}  // namespace

void with_gathered_pieces(MPI_Comm comm, const std::vector<Param>& params, const std::string& group,
                          const std::vector<StatePiece>& pieces,
                          const std::function<void(const ParamSource& source)>& work) {
  int rank = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  Held mine;
  Holders holders;
  std::unordered_map<const Param*, size_t> index;
  collectively(comm, [&] { mine = held_here(params, group, pieces); });
  collectively(comm, [&] {
    holders = gather_holders(comm, params.size(), mine.list);
    for (size_t i = 0; rank == 0 && i < params.size(); ++i) index.emplace(&params[i], i);
  });
  collectively(comm, [&] {
    if (rank != 0) return serve(comm, mine);
    std::exception_ptr error;
    try {
      work([&](const Param& p, const Piece& piece, float* out) {
        const auto at = index.find(&p);
        ORTHANT_ENSURE(at != index.end(), p.name + " is not of the list whose pieces were gathered");
        fetch(comm, p.name, holders[at->second], mine, piece, out);
      });
    } catch (...) {
      error = std::current_exception();
    }
    const Words end = words_of(the_end, {});
    for (int r = 1; r < ranks; ++r) ORTHANT_MPI(MPI_Send(end.data(), words, MPI_INT64_T, r, request_tag, comm));
    if (error) std::rethrow_exception(error);
  });
}

}  // namespace orthant
