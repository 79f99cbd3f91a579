// See verify_weights.hpp.
#include "train/verify_weights.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

namespace {

constexpr int64_t block_elements = int64_t{1} << 20;

/// What a rank has seen so far. Elements come in any order within a tensor.
class Seen {
 public:
  Seen(int64_t mesh_rank, double tolerance) : rank_(mesh_rank), tolerance_(tolerance) {}

  void add(int64_t tensor, int64_t row, int64_t col, float value, float reference) {
    if (std::bit_cast<uint32_t>(value) == std::bit_cast<uint32_t>(reference)) return;
    const WeightPlace here{tensor, row, col, rank_, value, reference};
    const double d = distance(value, reference);
    if (mine_.worst.tensor < 0 || d > mine_.largest) mine_.largest = d, mine_.worst = here;
    earlier(mine_.first, here);
    if (d > tolerance_) earlier(mine_.first_past, here);
  }

  WeightDifference over(MPI_Comm comm) const {
    static_assert(std::is_trivially_copyable_v<WeightDifference>);
    int ranks = 1;
    ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
    std::vector<WeightDifference> all(static_cast<size_t>(ranks));
    ORTHANT_MPI(MPI_Allgather(&mine_, sizeof mine_, MPI_BYTE, all.data(), sizeof mine_, MPI_BYTE, comm));
    WeightDifference out;
    for (const WeightDifference& d : all) {
      if (d.worst.tensor >= 0 && (out.worst.tensor < 0 || d.largest > out.largest))
        out.largest = d.largest, out.worst = d.worst;
      if (d.first.tensor >= 0) earlier(out.first, d.first);
      if (d.first_past.tensor >= 0) earlier(out.first_past, d.first_past);
    }
    return out;
  }

 private:
  static void earlier(WeightPlace& have, const WeightPlace& other) {
    const auto order = [](const WeightPlace& p) { return std::tuple(p.tensor, p.row, p.col, p.rank); };
    if (have.tensor < 0 || order(other) < order(have)) have = other;
  }

  int64_t rank_;
  double tolerance_;
  WeightDifference mine_;
};

/// Calls f(place in the block, place in the piece, row, col, count) for each row of the model that a block and a
/// piece share.
template <class F>
void for_shared_rows(int64_t row, int64_t rows, int64_t cols, const Piece& piece, F f) {
  const int64_t begin = std::max(row, piece.row), end = std::min(row + rows, piece.row + piece.rows);
  for (int64_t r = begin; r < end; ++r)
    f((r - row) * cols + piece.col, (r - piece.row) * piece.cols, r, piece.col, piece.cols);
}

int as_count(int64_t elements) {
  ORTHANT_ENSURE(elements <= std::numeric_limits<int>::max(),
                 "a row of a weight has more elements than a message takes");
  return static_cast<int>(elements);
}

/// The part of a block that this rank writes, 0 elsewhere: the ranks' words or-ed together are the block's bits.
std::vector<float> written_part(int64_t tensor, int64_t row, int64_t rows, int64_t cols,
                                const std::map<int64_t, StatePiece>& mine) {
  std::vector<float> out(static_cast<size_t>(rows * cols));
  const auto it = mine.find(tensor);
  if (it == mine.end() || !it->second.writer) return out;
  for_shared_rows(
      row, rows, cols, it->second.piece, [&](int64_t in_block, int64_t in_piece, int64_t, int64_t, int64_t count) {
        std::memcpy(out.data() + in_block, it->second.data + in_piece, static_cast<size_t>(count) * sizeof(float));
      });
  return out;
}

void compare_block(Seen& seen, int64_t tensor, int64_t row, int64_t rows, int64_t cols, const float* block,
                   const std::map<int64_t, StatePiece>& mine) {
  const auto it = mine.find(tensor);
  if (it == mine.end()) return;
  for_shared_rows(row, rows, cols, it->second.piece,
                  [&](int64_t in_block, int64_t in_piece, int64_t r, int64_t c, int64_t count) {
                    for (int64_t i = 0; i < count; ++i)
                      seen.add(tensor, r, c + i, it->second.data[in_piece + i], block[in_block + i]);
                  });
}

}  // namespace

double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double d = std::fabs(a - b);
  return std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
}

std::map<int64_t, StatePiece> weights_of(const std::vector<Param>& model, const std::vector<StatePiece>& state) {
  std::map<std::string, int64_t> place;
  for (size_t i = 0; i < model.size(); ++i) place[model[i].name] = static_cast<int64_t>(i);
  std::map<int64_t, StatePiece> out;
  for (const StatePiece& s : state) {
    if (s.group != "weights") continue;
    const auto it = place.find(s.param->name);
    ORTHANT_ENSURE(it != place.end(), s.param->name + " is held by a rank and is not in the model");
    ORTHANT_ENSURE(out.emplace(it->second, s).second, "a rank holds " + s.param->name + " twice");
  }
  return out;
}

WeightDifference compare_here(MPI_Comm comm, int64_t mesh_rank, const std::map<int64_t, StatePiece>& mine,
                              const std::function<const float*(int64_t)>& reference, double tolerance) {
  Seen seen(mesh_rank, tolerance);
  for (const auto& [tensor, s] : mine) {
    const float* other = reference(tensor);
    for (int64_t i = 0; i < s.piece.elements(); ++i)
      seen.add(tensor, s.piece.row + i / s.piece.cols, s.piece.col + i % s.piece.cols, s.data[i], other[i]);
  }
  return seen.over(comm);
}

std::map<int64_t, std::vector<float>> copy_of(const std::map<int64_t, StatePiece>& mine) {
  std::map<int64_t, std::vector<float>> out;
  for (const auto& [tensor, s] : mine) out[tensor].assign(s.data, s.data + s.piece.elements());
  return out;
}

KeptWeights::KeptWeights(MPI_Comm comm, std::vector<Param> model) : comm_(comm), model_(std::move(model)) {
  int ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank_));
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  for (size_t t = 0; t < model_.size(); ++t) {
    const int64_t rows = model_[t].rows(), cols = model_[t].cols(),
                  step = std::max<int64_t>(1, block_elements / std::max<int64_t>(1, cols));
    for (int64_t row = 0; row < rows; row += step) {
      Block b{static_cast<int64_t>(t),
              row,
              std::min(step, rows - row),
              cols,
              static_cast<int>(blocks_.size() % static_cast<size_t>(ranks)),
              {}};
      blocks_.push_back(std::move(b));
    }
  }
}

void KeptWeights::keep(const std::map<int64_t, StatePiece>& mine) {
  for (Block& b : blocks_) {
    const std::vector<float> part = written_part(b.tensor, b.row, b.rows, b.cols, mine);
    b.kept.assign(b.owner == rank_ ? part.size() : 0, 0.0f);
    ORTHANT_MPI(
        MPI_Reduce(part.data(), b.kept.data(), as_count(b.elements()), MPI_UINT32_T, MPI_BOR, b.owner, comm_));
  }
}

WeightDifference KeptWeights::compare(int64_t mesh_rank, const std::map<int64_t, StatePiece>& mine,
                                      double tolerance) const {
  Seen seen(mesh_rank, tolerance);
  std::vector<float> whole;
  for (const Block& b : blocks_) {
    if (b.owner == rank_) {
      ORTHANT_ENSURE(static_cast<int64_t>(b.kept.size()) == b.elements(), "no weights were kept to compare with");
      whole = b.kept;
    } else {
      whole.resize(static_cast<size_t>(b.elements()));
    }
    ORTHANT_MPI(MPI_Bcast(whole.data(), as_count(b.elements()), MPI_FLOAT, b.owner, comm_));
    compare_block(seen, b.tensor, b.row, b.rows, b.cols, whole.data(), mine);
  }
  return seen.over(comm_);
}

WeightDifference KeptWeights::compare_replicas(int64_t mesh_rank, const std::map<int64_t, StatePiece>& mine) const {
  Seen seen(mesh_rank, 0);
  for (const Block& b : blocks_) {
    std::vector<float> whole = written_part(b.tensor, b.row, b.rows, b.cols, mine);
    ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, whole.data(), as_count(b.elements()), MPI_UINT32_T, MPI_BOR, comm_));
    compare_block(seen, b.tensor, b.row, b.rows, b.cols, whole.data(), mine);
  }
  return seen.over(comm_);
}

}  // namespace orthant
