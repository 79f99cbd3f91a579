// What the checkpoint tests share: a folder all ranks see, a small model of awkward sizes, and its cuts.
#pragma once

#include <gtest/gtest.h>
#include <mpi.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "orthant/checkpoint.hpp"
#include "orthant/error.hpp"

namespace orthant::testing {

inline int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
inline int world_ranks() {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks;
}

/// A folder that rank 0 makes and removes.
class SharedFolder {
 public:
  SharedFolder() {
    static int count = 0;
    int id[2] = {static_cast<int>(::getpid()), count++};
    MPI_Bcast(id, 2, MPI_INT, 0, MPI_COMM_WORLD);
    path = (std::filesystem::temp_directory_path() /
            ("orthant-checkpoint-" + std::to_string(id[0]) + "-" + std::to_string(id[1])))
               .string();
    if (world_rank() == 0) std::filesystem::create_directories(path);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  ~SharedFolder() {
    MPI_Barrier(MPI_COMM_WORLD);
    std::error_code ignored;
    if (world_rank() == 0) std::filesystem::remove_all(path, ignored);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  std::string path;
};

/// Runs on rank 0 alone; the others wait.
template <class Work>
void on_rank_0(Work work) {
  MPI_Barrier(MPI_COMM_WORLD);
  if (world_rank() == 0) work();
  MPI_Barrier(MPI_COMM_WORLD);
}

inline std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

inline std::vector<Param> awkward_model() {
  const auto param = [](std::string name, std::vector<Dim> dims) {
    Param p;
    p.name = std::move(name);
    p.dims = std::move(dims);
    return p;
  };
  return {param("embedding.weight", {{DimName::vocab, 257}, {DimName::hidden, 24}}),
          param("layers.0.attention.q.weight", {{DimName::heads, 12, 3}, {DimName::hidden, 24}}),
          param("layers.0.mlp.down.weight", {{DimName::hidden, 24}, {DimName::ffn, 7}}),
          param("layers.0.norm.weight", {{DimName::hidden, 6}}),
          param("layers.0.small.weight", {{DimName::hidden, 5}}),
          param("layers.0.tiny.weight", {{DimName::hidden, 3}}),
          param("layers.0.one.weight", {{DimName::hidden, 1}})};
}

/// How the tensors are spread over the ranks.
enum class Cut { rows, cols, one_rank_each, replicas };

/// The pieces of this rank, with their memory.
struct Shards {
  std::vector<StatePiece> pieces;
  std::deque<std::vector<float>> memory;
};

inline Piece cut_piece(const Param& p, Cut cut, int index, int rank, int ranks) {
  const auto part = [&](int64_t n) { return std::pair(n * rank / ranks, n * (rank + 1) / ranks); };
  Piece whole{0, p.rows(), 0, p.cols()};
  if (cut == Cut::rows) {
    const auto [begin, end] = part(p.rows());
    return {begin, end - begin, 0, p.cols()};
  }
  if (cut == Cut::cols && p.dims.size() == 2) {
    const auto [begin, end] = part(p.cols());
    return {0, p.rows(), begin, end - begin};
  }
  if (cut == Cut::one_rank_each && index % ranks != rank) return {0, 0, 0, 0};
  return whole;
}

/// A value that tells tensor, group and position apart, of a full mantissa.
inline float expected_value(const std::string& group, size_t index, int64_t element, int64_t salt) {
  const uint64_t h = (static_cast<uint64_t>(element) * 2654435761u + index * 97 + group.size() * 131 +
                      group.back() * 7 + static_cast<uint64_t>(salt) * 1009) *
                     0x9E3779B97F4A7C15ull;
  return static_cast<float>(static_cast<int64_t>(h >> 40)) * 1e-7f - 0.8f;
}

inline Shards make_shards(const std::vector<Param>& model, Cut cut, bool filled, int64_t salt = 0,
                          bool optimizer = true) {
  const int rank = world_rank(), ranks = world_ranks();
  Shards shards;
  std::vector<std::string> groups = {"weights"};
  if (optimizer) groups.insert(groups.end(), {"optimizer/m", "optimizer/v"});
  for (const std::string& group : groups) {
    for (size_t i = 0; i < model.size(); ++i) {
      const Piece piece = cut_piece(model[i], cut, static_cast<int>(i), rank, ranks);
      auto& data = shards.memory.emplace_back(static_cast<size_t>(piece.elements()), -7.0f);
      for (int64_t r = 0; filled && r < piece.rows; ++r) {
        for (int64_t c = 0; c < piece.cols; ++c) {
          data[static_cast<size_t>(r * piece.cols + c)] =
              expected_value(group, i, (piece.row + r) * model[i].cols() + piece.col + c, salt);
        }
      }
      // In every cut the same rectangle on several ranks means a replica; rank 0 writes it.
      const bool whole_everywhere = cut == Cut::replicas || (cut == Cut::cols && model[i].dims.size() == 1);
      shards.pieces.push_back({&model[i], group, piece, data.data(), !whole_everywhere || rank == 0});
    }
  }
  return shards;
}

/// Elements that differ from what was saved.
inline int64_t wrong_elements(const std::vector<Param>& model, const Shards& shards, int64_t salt = 0) {
  int64_t wrong = 0;
  for (const StatePiece& p : shards.pieces) {
    const auto index = static_cast<size_t>(p.param - model.data());
    for (int64_t r = 0; r < p.piece.rows; ++r) {
      for (int64_t c = 0; c < p.piece.cols; ++c) {
        const float want =
            expected_value(p.group, index, (p.piece.row + r) * p.param->cols() + p.piece.col + c, salt);
        wrong += p.data[r * p.piece.cols + c] != want;
      }
    }
  }
  return wrong;
}

inline TrainState state_of(int64_t step) {
  TrainState state;
  state.step = step;
  state.tokens = step * 4096;
  state.samples = 12345678901;
  state.decay_steps = 1000;
  state.integers = {{"seed", -3}, {"big", int64_t{1} << 62}};
  state.reals = {{"loss_scale", 65536.0}, {"third", 1.0 / 3}};
  state.strings = {{"ledger", "a,b\nc \xC3\xA9"}, {"empty", ""}};
  return state;
}

inline CheckpointExtras extras_of_test() {
  CheckpointExtras extras;
  extras.deck_text = "[run]\nsteps = 3\n";
  extras.tokenizer_files = {
      {"tokenizer.model", std::string("\0\x01zero\0", 7)}, {"vocab.json", "{}"}, {"empty.txt", ""}};
  extras.config_json = "{\"model_type\": \"gpt2\"}";
  extras.source_dtype = "BF16,norm.weight=F32";
  extras.mesh = "tp 2 x dp 2";
  return extras;
}

inline SaveReport save(const std::string& folder, const std::vector<Param>& model, Cut cut, int64_t step,
                       int keep = 2, const std::string& job = "job1", const SaveSettings& how = {}) {
  Shards shards = make_shards(model, cut, true, step);
  SaveSettings settings = how;
  settings.keep = keep;
  return save_checkpoint(MPI_COMM_WORLD, folder, step, job, shards.pieces, state_of(step), extras_of_test(), settings);
}

/// The message of the error that `work` must throw; it must be agreed, with this exit code.
template <class Work>
std::string error_of(Exit code, Work work) {
  try {
    work();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace orthant::testing
