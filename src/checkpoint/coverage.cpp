// Rectangles travel as text: rank -> lead of its group -> rank 0. All messages of a step are through before anything
// in them is judged, so that an error of one rank leaves no other waiting.
#include "checkpoint/coverage.hpp"

#include <algorithm>
#include <sstream>
#include <tuple>

#include "checkpoint/write.hpp"
#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

static std::string as_text(const std::vector<int64_t>& dims) {
  std::string text;
  for (int64_t d : dims) text += (text.empty() ? "" : ", ") + std::to_string(d);
  return "[" + text + "]";
}

void check_pieces(const std::vector<StatePiece>& pieces) {
  for (const StatePiece& p : pieces) {
    ORTHANT_ENSURE(p.param != nullptr && !p.param->dims.empty() && p.param->dims.size() <= 2,
                   "a piece has no parameter");
    ORTHANT_ENSURE(p.group == "weights" || p.group.rfind("optimizer/", 0) == 0 || p.group.rfind("fp8/", 0) == 0, "unknown group " + p.group);
    ORTHANT_ENSURE(p.piece.row >= 0 && p.piece.rows >= 0 && p.piece.row + p.piece.rows <= p.param->rows() &&
                       p.piece.col >= 0 && p.piece.cols >= 0 && p.piece.col + p.piece.cols <= p.param->cols(),
                   "piece outside of " + dataset_name(p.group, *p.param));
    ORTHANT_ENSURE(p.piece.elements() == 0 || p.data != nullptr, "no data for " + dataset_name(p.group, *p.param));
  }
}

namespace {

bool is_written(const StatePiece& p) { return p.writer && p.piece.elements() > 0; }

/// A line of the messages. Held, not written: the piece has no elements.
struct Line {
  std::string name;
  std::vector<int64_t> dims;
  Piece piece;
  int64_t at = 0, total = 0;
};

void put(std::ostream& out, const Line& line) {
  out << line.name << ' ' << line.dims.size();
  for (int64_t d : line.dims) out << ' ' << d;
  const Piece& p = line.piece;
  out << ' ' << p.row << ' ' << p.rows << ' ' << p.col << ' ' << p.cols << ' ' << line.at << ' ' << line.total
      << '\n';
}

std::vector<Line> lines_of(const std::string& text) {
  std::vector<Line> lines;
  std::istringstream in(text);
  Line line;
  size_t dims = 0;
  while (in >> line.name >> dims) {
    line.dims.resize(dims);
    for (int64_t& d : line.dims) in >> d;
    in >> line.piece.row >> line.piece.rows >> line.piece.col >> line.piece.cols >> line.at >> line.total;
    ORTHANT_ENSURE(!in.fail(), "a description of pieces cannot be read");
    lines.push_back(line);
  }
  return lines;
}

std::string describe(const std::vector<StatePiece>& pieces) {
  std::ostringstream out;
  std::set<std::string> held;
  for (const StatePiece& p : pieces) {
    const std::string name = dataset_name(p.group, *p.param);
    if (is_written(p)) {
      put(out, {name, dataset_dims(*p.param), p.piece});
    } else if (p.piece.elements() > 0 && held.insert(name).second) {
      put(out, {name, dataset_dims(*p.param), {0, 0, 0, 0}});
    }
  }
  return out.str();
}

// On rank 0 of `comm`, by rank. One message a rank: a single gather could pass 2 GiB on large meshes.
std::vector<std::string> gather_texts(MPI_Comm comm, const std::string& mine) {
  constexpr int tag = 71;
  int rank = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  if (rank != 0) {
    ORTHANT_MPI(MPI_Send(mine.data(), static_cast<int>(mine.size()), MPI_CHAR, 0, tag, comm));
    return {};
  }
  std::vector<std::string> texts = {mine};
  for (int from = 1; from < ranks; ++from) {
    MPI_Status status;
    int size = 0;
    ORTHANT_MPI(MPI_Probe(from, tag, comm, &status));
    ORTHANT_MPI(MPI_Get_count(&status, MPI_CHAR, &size));
    std::string text(static_cast<size_t>(size), '\0');
    ORTHANT_MPI(MPI_Recv(text.data(), size, MPI_CHAR, from, tag, comm, MPI_STATUS_IGNORE));
    texts.push_back(std::move(text));
  }
  return texts;
}

/// A group's file, as its lead lays it out.
struct Layout {
  std::vector<std::vector<int64_t>> at;   ///< by rank of the group, then written line
  std::map<std::string, int64_t> totals;  ///< by dataset
  std::string text;                       ///< for rank 0
};

struct Placed {
  Piece piece;
  size_t rank, line;  ///< whose it is
};

// Consecutive rectangles that stand on each other in the tensor do so in the file too, and are one for the readers.
void put_joined(std::ostream& out, Line line, const std::vector<Placed>& placed) {
  for (size_t i = 0, next = 0; i < placed.size(); i = next) {
    line.piece = placed[i].piece;
    for (next = i + 1; next < placed.size(); ++next) {
      const Piece& p = placed[next].piece;
      if (p.col != line.piece.col || p.cols != line.piece.cols || p.row != line.piece.row + line.piece.rows) break;
      line.piece.rows += p.rows;
    }
    put(out, line);
    line.at += line.piece.elements();
  }
}

Layout lay_out(const std::vector<std::string>& texts) {
  struct Tensor {
    std::vector<int64_t> dims;
    std::vector<Placed> placed;
  };
  Layout layout;
  std::map<std::string, Tensor> tensors;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    size_t written = 0;
    for (const Line& line : lines_of(texts[rank])) {
      Tensor& tensor = tensors[line.name];
      if (tensor.dims.empty()) tensor.dims = line.dims;
      ORTHANT_ENSURE(tensor.dims == line.dims, line.name + " is " + as_text(line.dims) + " on one rank and " +
                                                   as_text(tensor.dims) + " on another");
      if (line.piece.elements() > 0) tensor.placed.push_back({line.piece, rank, written++});
    }
    layout.at.emplace_back(written);
  }
  std::ostringstream out;
  for (auto& [name, tensor] : tensors) {
    auto& placed = tensor.placed;
    std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
      return std::tie(a.piece.col, a.piece.row) < std::tie(b.piece.col, b.piece.row);
    });
    int64_t total = 0;
    for (const Placed& p : placed) {
      layout.at[p.rank][p.line] = total;
      total += p.piece.elements();
    }
    if (placed.empty()) {
      put(out, {name, tensor.dims, {0, 0, 0, 0}});
      continue;
    }
    layout.totals[name] = total;
    put_joined(out, {name, tensor.dims, {}, 0, total}, placed);
  }
  layout.text = out.str();
  return layout;
}

// Areas that add up to the whole and do not overlap leave no hole.
void check_covered(const std::string& name, const Covered& tensor) {
  int64_t whole = 1, sum = 0;
  for (int64_t d : tensor.dims) whole *= d;
  std::vector<Piece> pieces;
  for (const h5::Source& s : tensor.sources) pieces.push_back(s.piece);
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return std::tie(a.row, a.col) < std::tie(b.row, b.col); });
  for (size_t i = 0; i < pieces.size(); ++i) {
    sum += pieces[i].elements();
    for (size_t j = i + 1; j < pieces.size() && pieces[j].row < pieces[i].row + pieces[i].rows; ++j) {
      ORTHANT_ENSURE(
          pieces[j].col >= pieces[i].col + pieces[i].cols || pieces[i].col >= pieces[j].col + pieces[j].cols,
          name + " is written twice at row " + std::to_string(pieces[j].row));
    }
  }
  ORTHANT_ENSURE(sum > 0, name + " has no rank that writes it");
  ORTHANT_ENSURE(sum == whole,
                 name + ": " + std::to_string(sum) + " of " + std::to_string(whole) + " elements are written");
}

Coverage cover(const std::vector<std::string>& texts) {
  Coverage coverage;
  for (size_t group = 0; group < texts.size(); ++group) {
    const std::string file = data_file_name(static_cast<int>(group));
    for (const Line& line : lines_of(texts[group])) {
      Covered& tensor = coverage[line.name];
      if (tensor.dims.empty()) tensor.dims = line.dims;
      ORTHANT_ENSURE(tensor.dims == line.dims, line.name + " is " + as_text(line.dims) + " on one rank and " +
                                                   as_text(tensor.dims) + " on another");
      if (line.piece.elements() > 0) tensor.sources.push_back({line.piece, file, line.at, line.total});
    }
  }
  for (const auto& [name, tensor] : coverage) check_covered(name, tensor);
  return coverage;
}

// From the lead to each rank of its group.
std::vector<int64_t> scatter_places(MPI_Comm group, const std::vector<std::vector<int64_t>>& at, size_t mine) {
  constexpr int tag = 72;
  int rank = 0;
  ORTHANT_MPI(MPI_Comm_rank(group, &rank));
  if (rank == 0) {
    for (size_t to = 1; to < at.size(); ++to) {
      ORTHANT_MPI(
          MPI_Send(at[to].data(), static_cast<int>(at[to].size()), MPI_INT64_T, static_cast<int>(to), tag, group));
    }
    return at[0];
  }
  std::vector<int64_t> own(mine);
  ORTHANT_MPI(MPI_Recv(own.data(), static_cast<int>(mine), MPI_INT64_T, 0, tag, group, MPI_STATUS_IGNORE));
  return own;
}

}  // namespace

WritePlan gather_coverage(MPI_Comm comm, const FileGroups& groups, const std::vector<StatePiece>& pieces) {
  const std::vector<std::string> texts = gather_texts(groups.group(), describe(pieces));
  Layout layout;
  collectively(comm, [&] {
    if (groups.lead()) layout = lay_out(texts);
  });
  const auto written = static_cast<size_t>(std::count_if(pieces.begin(), pieces.end(), is_written));
  const std::vector<int64_t> places = scatter_places(groups.group(), layout.at, written);
  std::vector<std::string> files;
  if (groups.lead()) files = gather_texts(groups.leads(), layout.text);
  WritePlan plan;
  collectively(comm, [&] {
    if (groups.lead() && groups.index() == 0) plan.coverage = cover(files);
  });
  size_t next = 0;
  for (const StatePiece& p : pieces) plan.at.push_back(is_written(p) ? places[next++] : -1);
  plan.totals = std::move(layout.totals);
  return plan;
}

}  // namespace orthant
