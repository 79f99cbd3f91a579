// Copies of parameters, masters, slots and FP8 state stay the same bits on every mesh; one flipped bit on one rank is found, and the
// rank is named.
// ranks: 2 4 8
// labels: smoke
// seconds: 90
#include <gtest/gtest.h>

#include "layers/fp8.hpp"
#include "plan_kit.hpp"
#include "train/replica_check.hpp"

namespace orthant {
namespace {

using namespace kit;

std::vector<StatePiece> fp8_state(Trainer& t) { return t.session.fp8 ? t.session.fp8->pieces(true) : std::vector<StatePiece>{}; }

std::string compare(Trainer& t) {
  const std::vector<std::string> names = texts_of_ranks(t.mesh.cart(), t.mesh.where());
  return differing_copies(t.mesh.cart(), held_pieces(*t.session.backend, *t.session.store, t.session.optimizer.slots, fp8_state(t)),
                          [&](int r) { return names.at(static_cast<size_t>(r)); });
}

/// Meshes of this many ranks over all axes, with each ZeRO stage and with bf16.
std::vector<std::pair<std::string, Keys>> meshes() {
  const Keys global = {is("batch.global", 2 * world_size())};
  std::vector<std::pair<std::string, Keys>> out;
  for (const char* zero : {"zero.stage=0", "zero.stage=1", "zero.stage=2", "zero.stage=3"})
    out.emplace_back("qwen3", global + Keys{zero, "precision.compute=bf16"});
  out.emplace_back("gpt2", global + Keys{"mesh.pp=2", "zero.stage=1"});  // tied over stages
  out.emplace_back("llama", global + Keys{"mesh.tp=2", "mesh.sequence_parallel=true"});
  if (world_size() >= 4) {
    out.emplace_back("qwen3", global + Keys{"mesh.pp=2", "mesh.tp=2", "mesh.sequence_parallel=true", "zero.stage=3"});
    out.emplace_back("llama", global + Keys{"mesh.tp=4", "zero.stage=2"});  // two ranks share a kv head
    out.emplace_back("gpt2", global + Keys{"mesh.cp=2", "zero.stage=3", "zero.shard=2"});
    out.emplace_back("mixtral", global + Keys{"mesh.tp=2", "mesh.sequence_parallel=true", "mesh.ep=2", "zero.stage=1"});
    out.emplace_back("deepseek", global + Keys{"mesh.ep=2", "zero.stage=2", "model.moe.bias_rate=0.01"});
  }
  return out;
}

TEST(Copies, StayTheSameOnEveryMesh) {
  for (const auto& [name, keys] : meshes()) {
    SCOPED_TRACE(name + " " + text(keys));
    Trainer t(MPI_COMM_WORLD, plan_of(family(name) + keys, world_size()));
    EXPECT_EQ(compare(t), "");
    for (int n = 0; n < 2; ++n) t.step();
    EXPECT_EQ(compare(t), "");
  }
}

/// Flips the last bit of the first number of a tensor.
void flip(Backend& be, const Tensor& x) {
  auto* bytes = static_cast<unsigned char*>(be.host_begin(x));
  bytes[0] ^= 1;
  be.host_end(x);
}

TEST(Copies, OneFlippedBitIsFoundAndItsRankNamed) {
  for (const auto& [name, keys] : meshes()) {
    SCOPED_TRACE(name + " " + text(keys));
    Trainer t(MPI_COMM_WORLD, plan_of(family(name) + keys, world_size()));
    t.step();
    // Every piece of the last rank in turn. It is found where another rank has a copy, which is known beforehand.
    const int last = world_size() - 1;
    const std::vector<HeldPiece> mine = held_pieces(*t.session.backend, *t.session.store, t.session.optimizer.slots);
    int pieces = static_cast<int>(mine.size()), found = 0, with_copies = 0;
    MPI_Bcast(&pieces, 1, MPI_INT, last, t.mesh.cart());
    for (int k = 0; k < pieces; k += 5) {
      std::vector<HeldPiece> held = mine;
      std::string changed;
      if (world_rank() == last) {
        held[static_cast<size_t>(k)].checksum ^= 1;
        const HeldPiece& p = held[static_cast<size_t>(k)];
        changed = p.name + "/" + std::to_string(p.piece.row) + "/" + std::to_string(p.piece.col) + "/" + std::to_string(p.piece.rows);
      }
      int size = static_cast<int>(changed.size());
      MPI_Bcast(&size, 1, MPI_INT, last, t.mesh.cart());
      changed.resize(static_cast<size_t>(size));
      MPI_Bcast(changed.data(), size, MPI_CHAR, last, t.mesh.cart());
      int copies = 0;
      for (const HeldPiece& p : held)
        copies += p.name + "/" + std::to_string(p.piece.row) + "/" + std::to_string(p.piece.col) + "/" + std::to_string(p.piece.rows) == changed;
      MPI_Allreduce(MPI_IN_PLACE, &copies, 1, MPI_INT, MPI_SUM, t.mesh.cart());
      const std::string text = differing_copies(t.mesh.cart(), held, [](int r) { return "RANK" + std::to_string(r) + "!"; });
      with_copies += copies > 1;
      found += !text.empty();
      EXPECT_EQ(text.empty(), copies == 1) << changed;
      if (copies < 2) continue;
      EXPECT_NE(text.find("RANK" + std::to_string(last) + "!"), std::string::npos) << text;
      EXPECT_NE(text.find(changed.substr(0, changed.find(','))), std::string::npos) << text;
      if (copies > 2) EXPECT_EQ(text.find("RANK0!"), std::string::npos) << text;
      EXPECT_NE(text.find(copies > 2 ? "1 of " : "all of "), std::string::npos) << text;
    }
    EXPECT_EQ(found, with_copies);
  }
}

TEST(Copies, AFlippedBitInMemoryIsSeenInWeightsMastersAndSlots) {
  Trainer t(MPI_COMM_WORLD, plan_of(family("qwen3") + Keys{is("batch.global", world_size()), "precision.compute=bf16"}, world_size()));
  t.step();
  LocalParam& p = t.session.store->all().at(3);
  for (const Tensor& x : {p.weight, p.master, p.slots.at(0), p.slots.at(1)}) {
    EXPECT_EQ(compare(t), "");
    if (world_rank() == 1) flip(*t.session.backend, x);
    const std::string text = compare(t);
    EXPECT_NE(text.find(p.param.name), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1 ("), std::string::npos) << text;
    if (world_rank() == 1) flip(*t.session.backend, x);
  }
  EXPECT_EQ(compare(t), "");
}

TEST(Copies, AChangedNumberOfTheFp8StateIsFoundByName) {
  std::vector<Keys> meshes = {{"zero.stage=1"}, {"mesh.tp=2", "mesh.sequence_parallel=true"}};
  if (world_size() >= 4) meshes.push_back({"mesh.pp=2", "mesh.cp=2"});
  for (const Keys& mesh : meshes) {
    SCOPED_TRACE(text(mesh));
    const Keys fp8 = {is("batch.global", 2 * world_size()), "model.hidden=64", "model.ffn=128", "precision.compute=fp8", "precision.fp8_history=4"};
    Trainer t(MPI_COMM_WORLD, plan_of(family("llama") + fp8 + mesh, world_size()));
    for (int n = 0; n < 2; ++n) t.step();
    const std::vector<StatePiece> state = fp8_state(t);
    ASSERT_FALSE(state.empty());
    ASSERT_EQ(compare(t), "");
    for (const size_t i : {size_t{0}, size_t{1}, state.size() - 1}) {  // a history, a scale, the last scale
      const StatePiece& p = state[i];
      float& number = p.data[p.piece.elements() - 1];
      const float before = number;
      if (world_rank() == 1) number += 1 + number;  // scales may be so large that 1 more is nothing
      const std::string found = compare(t);
      number = before;
      EXPECT_NE(found.find("rank 1 ("), std::string::npos) << found;
      if (world_rank() == 1) EXPECT_NE(found.find(p.param->name + ", " + p.group + " (rows 0-2"), std::string::npos) << found;
    }
    EXPECT_EQ(compare(t), "");
  }
}

TEST(Copies, SeveralDifferencesAreCounted) {
  std::vector<HeldPiece> held;
  for (int i = 0; i < 10; ++i) held.push_back({"p" + std::to_string(i) + ", weights", {0, 4, 0, 2}, world_rank() == 0 && i % 2 ? 1u : 2u});
  const std::string text = differing_copies(MPI_COMM_WORLD, held, [](int r) { return "R" + std::to_string(r); });
  EXPECT_NE(text.find("So do copies of 4 other pieces"), std::string::npos) << text;
  EXPECT_NE(text.find("(rows 0-3, columns 0-1)"), std::string::npos) << text;
}

}  // namespace
}  // namespace orthant
