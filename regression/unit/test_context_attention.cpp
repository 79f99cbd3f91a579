// Attention of a sequence cut over all ranks, by each method, is the attention of one rank: forward and backward,
// with document masks, grouped heads and dropout; in reproducible mode bit by bit.
// ranks: 1 2 4 8
// labels: asan
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "layers/context_attention.hpp"
#include "mesh_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

constexpr int64_t sequence = 64;

struct Heads {
  int64_t q, kv;
};
struct Case {
  Heads heads;
  int64_t sequences = 2;
  bool documents = false;
  double dropout = 0;
  int64_t v_dim = 0;
  std::string text() const {
    return std::to_string(heads.q) + ":" + std::to_string(heads.kv) + " heads, " + std::to_string(sequences) +
           " sequences" + (documents ? ", documents" : "") + (dropout > 0 ? ", dropout" : "") +
           (v_dim > 0 ? ", values " + std::to_string(v_dim) + " wide" : "");
  }
};

/// Documents of 1, 2, ... tokens, shorter than a chunk and across several; each sequence starts elsewhere in the
/// list.
int64_t document_start(int64_t s, int64_t t) {
  const int64_t lengths[] = {5, 1, 3, 2, 17, 1, 1, 9, 4, 13};
  int64_t begin = 0;
  for (size_t d = static_cast<size_t>(3 * s);; ++d) {
    const int64_t length = lengths[d % std::size(lengths)];
    if (t < begin + length) return begin;
    begin += length;
  }
}

/// Outputs by row of the whole: row = place * sequences + sequence.
using Results = std::array<std::vector<double>, 4>;  // o, dq, dk, dv
constexpr const char* names[] = {"o", "dq", "dk", "dv"};

using Make = std::unique_ptr<ContextAttention> (*)();
struct Method {
  const char* name;
  Make make;
};
const Method methods[] = {
    {"ring", ring_attention}, {"all_gather", gather_attention}, {"all_to_all", exchange_attention}};

/// Rows of the whole that lie on this rank, in its order.
std::vector<int64_t> rows_here(const MicroBatch& mb) {
  std::vector<int64_t> out;
  for (const Range& run : mb.runs)
    for (int64_t i = 0; i < run.size * mb.sequences; ++i) out.push_back(run.begin * mb.sequences + i);
  return out;
}

/// One forward and backward pass on the ranks of `comm`; this rank's rows of o, dq, dk, dv, and which rows these are.
/// Inputs have no more bits than bf16 holds, so that all types compute the same.
struct Pass {
  Pass(MPI_Comm comm, const Case& c, RigOptions o, Make make) {
    int ranks = 1;
    MPI_Comm_size(comm, &ranks);
    MeshShape mesh;
    mesh.cp = ranks;
    mesh.kv_heads = c.heads.kv;
    o.sequence = sequence;
    o.dropout = c.dropout;
    Rig rig(comm, mesh, {}, o);
    Backend& be = *rig.backend;
    Tokens tokens;
    if (c.documents) tokens.start = document_start;
    const MicroBatch mb = micro_batch(rig.ctx, 0, c.sequences, 65, 1, tokens);
    rig.ctx.batch = &mb;
    rows = rows_here(mb);

    AttentionHeads h;
    h.heads = h.all_heads = c.heads.q;
    h.kv_heads = c.heads.kv;
    h.head_dim = 8;
    h.scale = 0.5;
    h.site = "probabilities";
    h.v_dim = c.v_dim;
    const auto input = [&](const char* name, int64_t width) {
      const Tensor x = be.alloc(o.compute, mb.tokens(), width, MemoryKind::workspace);
      for (size_t i = 0; i < mb.runs.size(); ++i) {
        const Range here = run_rows(mb, i);
        be.copy(x.row_range(here.begin, here.size),
                tensor_of_numbers(be, DType::bf16, name, mb.runs[i].begin * c.sequences, here.size, width));
      }
      return x;
    };
    const auto method = make ? make() : context_attention(rig.ctx);
    AttentionKept kept;
    Tensor dq, dk, dv;
    const Tensor q = input("q", h.heads * h.head_dim), k = input("k", h.kv_heads * h.head_dim),
                 v = input("v", h.kv_heads * h.value_dim());
    const Tensor y = method->forward(rig.ctx, h, q, k, v, kept);
    method->backward(rig.ctx, h, input("d_o", h.heads * h.value_dim()), kept, dq, dk, dv);
    results = {to_host(be, y), to_host(be, dq), to_host(be, dk), to_host(be, dv)};
    for (const auto& [key, entry] : rig.axes.traffic().entries())
      if (key.first == AxisName::cp) bytes[key.second] = entry.scaled_bytes;
    rig.ctx.batch = nullptr;
  }
  std::vector<int64_t> rows;
  Results results;
  std::map<std::string, int64_t> bytes;  ///< on cp, times its size
};

void expect_equal(const Pass& cut, const Pass& whole, double tolerance) {
  for (size_t i = 0; i < 4; ++i) {
    const std::vector<double>&all = whole.results[i], &mine = cut.results[i];
    const size_t width = all.size() / whole.rows.size();
    std::vector<double> want;
    for (int64_t row : cut.rows)
      want.insert(want.end(), all.begin() + row * static_cast<int64_t>(width),
                  all.begin() + (row + 1) * static_cast<int64_t>(width));
    EXPECT_LE(difference(mine, want), tolerance * largest(all)) << names[i];
    EXPECT_GT(largest(all), 0.1) << names[i];
  }
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Heads& heads : {Heads{8, 8}, Heads{8, 2}, Heads{8, 1}})
    for (bool documents : {false, true})
      for (double dropout : {0.0, 0.3}) out.push_back({heads, 2, documents, dropout});
  out.push_back({{8, 2}, 1, true, 0});
  out.push_back({{8, 2}, 3, true, 0.3});
  for (int64_t v_dim : {6, 11})  // values narrower and wider than keys
    for (const Heads& heads : {Heads{8, 8}, Heads{8, 2}}) out.push_back({heads, 2, true, 0.3, v_dim});
  return out;
}

TEST(ContextAttention, EveryMethodEqualsOneRank) {
  for (const Case& c : cases()) {
    const Pass whole(MPI_COMM_SELF, c, {}, local_attention);
    for (const Method& m : methods) {
      SCOPED_TRACE(c.text() + ", " + m.name);
      expect_equal(Pass(MPI_COMM_WORLD, c, {}, m.make), whole, 1e-12);
    }
  }
}

TEST(ContextAttention, MasksAndDropoutAreNotForgotten) {
  const Pass plain(MPI_COMM_WORLD, {{8, 2}}, {}, nullptr), documents(MPI_COMM_WORLD, {{8, 2}, 2, true}, {}, nullptr),
      dropped(MPI_COMM_WORLD, {{8, 2}, 2, false, 0.3}, {}, nullptr);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_GT(difference(documents.results[i], plain.results[i]), 0.1) << names[i];
    EXPECT_GT(difference(dropped.results[i], plain.results[i]), 0.1) << names[i];
  }
}

// Values of another width than keys travel in their own.
TEST(ContextAttention, BytesFollowTheWidths) {
  const int64_t n = world_size(), rows = sequence * 2;  // of all ranks
  for (const auto& [v_dim, width] : {std::pair<int64_t, int64_t>{0, 8}, {5, 5}}) {
    SCOPED_TRACE(width);
    const Case c = {{8, 8}, 2, false, 0, v_dim};
    RigOptions o;
    o.compute = DType::bf16;
    const int64_t both = rows * 8 * (8 + width);  // elements of K and V of all ranks
    Pass ring(MPI_COMM_WORLD, c, o, ring_attention), gather(MPI_COMM_WORLD, c, o, gather_attention),
        exchange(MPI_COMM_WORLD, c, o, exchange_attention);
    // K and V go round twice, their sums (four bytes) once with a last hop home
    EXPECT_EQ(ring.bytes["shift"], both * (2 * (n - 1) * 2 + (n > 1 ? n : 0) * 4));
    EXPECT_EQ(gather.bytes["all_gather"], (n - 1) * both * 2 * 2);
    EXPECT_EQ(gather.bytes["reduce_scatter"], (n - 1) * both * 4);
    // q, k, v, o and the gradients of all four, of which a rank keeps the n-th part
    EXPECT_EQ(exchange.bytes["exchange"], (n - 1) * 2 * 2 * both * 2 / n);
  }
}

// In one of the pairs of chunks of a ring only some rows see keys, in others none does.
TEST(ContextAttention, DocumentsOfOneToken) {
  for (ContextMethod m : {ContextMethod::ring, ContextMethod::all_gather, ContextMethod::all_to_all}) {
    RigOptions o;
    o.method = m;
    MeshShape mesh;
    mesh.cp = world_size();
    mesh.kv_heads = 8;
    o.sequence = sequence;
    Rig rig(MPI_COMM_WORLD, mesh, {}, o);
    Backend& be = *rig.backend;
    Tokens tokens;
    tokens.start = [](int64_t, int64_t t) { return t; };
    const MicroBatch mb = micro_batch(rig.ctx, 0, 2, 65, 1, tokens);
    rig.ctx.batch = &mb;
    AttentionHeads h;
    h.heads = h.all_heads = h.kv_heads = 8;
    h.head_dim = 4;
    AttentionKept kept;
    Tensor dq, dk, dv;
    const auto input = [&](const char* name) { return tensor_of_numbers(be, DType::f64, name, 0, mb.tokens(), 32); };
    const Tensor q = input("q"), k = input("k"), v = input("v"), d_o = input("d_o");
    const auto method = context_attention(rig.ctx);
    const Tensor y = method->forward(rig.ctx, h, q, k, v, kept);
    method->backward(rig.ctx, h, d_o, kept, dq, dk, dv);
    // each token sees itself alone
    EXPECT_LE(difference(to_host(be, y), to_host(be, v)), 1e-14);
    EXPECT_LE(difference(to_host(be, dv), to_host(be, d_o)), 1e-14);
    EXPECT_LE(largest(to_host(be, dq)), 1e-14);
    EXPECT_LE(largest(to_host(be, dk)), 1e-14);
    rig.ctx.batch = nullptr;
  }
}

TEST(ContextAttention, ReproducibleModeGivesTheSameBitsOnEveryCp) {
  for (DType type : {DType::f32, DType::bf16})
    for (const Case& c : cases()) {
      RigOptions o;
      o.compute = type;
      o.reproducible = true;
      const Pass whole(MPI_COMM_SELF, c, o, nullptr);
      for (ContextMethod m : {ContextMethod::ring, ContextMethod::all_gather, ContextMethod::all_to_all}) {
        SCOPED_TRACE(c.text() + ", method " + std::to_string(static_cast<int>(m)) + ", " + name_of(type));
        o.method = m;
        expect_equal(Pass(MPI_COMM_WORLD, c, o, nullptr), whole, 0);
      }
      if (world_size() > 1) continue;
      for (Make make : {gather_attention, exchange_attention}) {  // as parts of a ring of one
        SCOPED_TRACE(c.text() + ", on its own");
        expect_equal(Pass(MPI_COMM_SELF, c, o, make), whole, 0);
      }
    }
}

// In 16 bits the parts of a ring are merged, and the sums of dK and dV travel, in fp32: no more is lost than on one
// rank.
TEST(ContextAttention, SixteenBitsAreNotRoundedAtEachHop) {
  const auto largest_error = [](const Pass& x, const Pass& exact, size_t result) {
    const auto width = static_cast<int64_t>(x.results[result].size() / x.rows.size());
    double worst = 0;
    for (size_t i = 0; i < x.results[result].size(); ++i) {
      const int64_t at = static_cast<int64_t>(i);
      worst = std::max(
          worst, std::abs(x.results[result][i] - exact.results[result][static_cast<size_t>(
                                                     x.rows[i / static_cast<size_t>(width)] * width + at % width)]));
    }
    return worst;
  };
  for (const Case& c : {Case{{8, 2}}, Case{{8, 1}, 2, true}}) {
    const Pass exact(MPI_COMM_SELF, c, {}, local_attention);
    RigOptions o;
    o.compute = DType::bf16;
    const Pass whole(MPI_COMM_SELF, c, o, local_attention);
    for (const Method& m : methods) {
      SCOPED_TRACE(c.text() + ", " + m.name);
      const Pass cut(MPI_COMM_WORLD, c, o, m.make);
      for (size_t i = 0; i < 4; ++i)
        EXPECT_LE(largest_error(cut, exact, i), 1.02 * largest_error(whole, exact, i)) << names[i];
    }
  }
}

TEST(ContextAttention, DebugBackendGivesTheBitsOfCpu) {
  if (world_size() == 8) GTEST_SKIP() << "up to four ranks";
  for (const Method& m : methods)
    for (DType type : {DType::f64, DType::bf16}) {
      SCOPED_TRACE(m.name);
      RigOptions o;
      o.compute = type;
      const Case c = {{8, 2}, 2, true, 0.3};
      const Pass cpu(MPI_COMM_WORLD, c, o, m.make);
      o.backend = "debug";
      EXPECT_EQ(Pass(MPI_COMM_WORLD, c, o, m.make).results, cpu.results);
    }
}

}  // namespace
}  // namespace orthant
