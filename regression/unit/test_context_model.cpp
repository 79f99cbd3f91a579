// Whole models whose sequences are cut over cp, with each method, are the models of one rank: loss and the gradient
// of every parameter, with uneven loss masks and with documents.
// ranks: 2 4
#include <gtest/gtest.h>

#include "model_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

const char* const families[] = {"gpt2", "llama", "qwen3"};
const ContextMethod methods[] = {ContextMethod::ring, ContextMethod::all_gather, ContextMethod::all_to_all};
const char* name_of(ContextMethod m) {
  return m == ContextMethod::ring ? "ring" : m == ContextMethod::all_gather ? "all_gather" : "all_to_all";
}

struct Cut {
  int64_t cp = 1, tp = 1;
  bool sp = false;
};
/// Meshes of all ranks.
std::vector<Cut> cuts() {
  if (world_size() == 2) return {{2}};
  return {{4}, {2, 2, false}, {2, 2, true}};
}
std::string text(const Cut& c) {
  return "cp " + std::to_string(c.cp) + ", tp " + std::to_string(c.tp) + (c.sp ? ", sequence parallel" : "");
}

ModelBench bench(MPI_Comm comm, const std::string& family, const Cut& c, RigOptions o) {
  const ModelConfig m = small_model(family);
  MeshShape mesh = mesh_of(m, c.tp, 1, c.cp);
  o.sequence_parallel = c.sp;
  return {comm, mesh, m, o};
}
ModelBench one_rank(const std::string& family, const RigOptions& o = {}) {
  return bench(MPI_COMM_SELF, family, {}, o);
}

/// Loss and gradients on every mesh and with every method, against one rank.
void expect_same(const std::string& family, const Tokens& tokens, const RigOptions& options, int64_t micro) {
  ModelBench whole = one_rank(family, options);
  whole.tokens = tokens;
  const double loss = whole.run(2, true);
  const double norm = gradient_norm(whole.rig.ctx, whole.rig.store);
  for (const Cut& c : cuts())
    for (ContextMethod m : methods) {
      SCOPED_TRACE(family + ", " + text(c) + ", " + name_of(m));
      RigOptions o = options;
      o.method = m;
      ModelBench cut = bench(MPI_COMM_WORLD, family, c, o);
      cut.tokens = tokens;
      EXPECT_NEAR(cut.run(micro, true), loss, 1e-12 * loss);
      EXPECT_NEAR(gradient_norm(cut.rig.ctx, cut.rig.store), norm, 1e-11 * norm);
      expect_gradients(cut, whole, 1e-11);
    }
}

/// Documents of 3, 1, 7, 2, ... tokens, other ones in each sequence.
int64_t document_start(int64_t s, int64_t t) {
  const int64_t lengths[] = {3, 1, 7, 2, 1, 1, 5};
  int64_t begin = 0;
  for (size_t d = static_cast<size_t>(s);; ++d) {
    const int64_t length = lengths[d % std::size(lengths)];
    if (t < begin + length) return begin;
    begin += length;
  }
}

// O057: also the table of positions, norms and embedding
TEST(ContextModel, EveryMethodEqualsOneRank) {
  for (const char* family : families)
    for (int64_t micro : {1, 2}) expect_same(family, {}, {}, micro);
}

TEST(ContextModel, FullRecomputeRepeatsTheMessages) {
  RigOptions o;
  o.recompute = Recompute::full;
  expect_same("llama", {}, o, 2);
}

// O058: one token, on one rank of cp, and another one for each token's place among the chunks
TEST(ContextModel, OneTokenCounts) {
  for (int64_t place : {0, 5, 15}) {
    SCOPED_TRACE(place);
    Tokens tokens;
    tokens.counts = [&](int64_t s, int64_t t) { return s == 1 && t == place; };
    for (const char* family : families) expect_same(family, tokens, {}, 2);
  }
}

// O058: with cp 2 half of them on each rank; with cp 4 all of them with those who hold late chunks
TEST(ContextModel, OnlyTheSecondHalfCounts) {
  for (int64_t first : {8, 12}) {
    SCOPED_TRACE(first);
    Tokens tokens;
    tokens.counts = [&](int64_t, int64_t t) { return t >= first; };
    for (const char* family : families) expect_same(family, tokens, {}, 2);
  }
}

// O022, O023 on the mesh: masks need places of the whole sequence, positions count from the start of the document.
TEST(ContextModel, DocumentsAcrossChunks) {
  for (bool reset : {false, true})
    for (const char* family : families) {
      SCOPED_TRACE(reset ? "positions reset" : "masks alone");
      Tokens tokens;
      tokens.start = document_start;
      tokens.reset_positions = reset;
      expect_same(family, tokens, {}, 2);
    }
}

/// Each row's logits [row of the whole][vocab], put together over cp.
std::vector<double> logits_in_order(ModelBench& m, int64_t first, int64_t count) {
  const std::vector<double> mine = m.logits(m.hidden(first, count).back());
  const auto vocab = static_cast<size_t>(m.config.vocab);
  const int64_t cp = m.rig.layout.shape().cp;
  std::vector<double> all(static_cast<size_t>(m.rig.ctx.sequence * count) * vocab, 0.0);
  size_t at = 0;
  for (const Range& run : context_runs(m.rig.ctx.sequence, cp, m.rig.layout.at().cp)) {
    const size_t size = static_cast<size_t>(run.size * count) * vocab;
    std::copy_n(mine.begin() + static_cast<std::ptrdiff_t>(at), size,
                all.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(run.begin * count) * vocab));
    at += size;
  }
  EXPECT_EQ(at, mine.size());
  MPI_Allreduce(MPI_IN_PLACE, all.data(), static_cast<int>(all.size()), MPI_DOUBLE, MPI_SUM,
                m.rig.mesh.comm(AxisName::cp));
  return all;
}

// O056: local counters used as positions would show at every place but the first ones
TEST(ContextModel, LogitsPutBackInOrderAreThoseOfOneRank) {
  for (const char* family : families) {
    ModelBench whole = one_rank(family);
    const std::vector<double> want = logits_in_order(whole, 0, 3);
    for (ContextMethod m : methods) {
      SCOPED_TRACE(std::string(family) + ", " + name_of(m));
      RigOptions o;
      o.method = m;
      ModelBench cut = bench(MPI_COMM_WORLD, family, {world_size()}, o);
      EXPECT_LE(difference(logits_in_order(cut, 0, 3), want), 1e-12 * largest(want));
    }
  }
}

// O022: document A (7 tokens and its end), then document B (8 tokens); in the second sequence they are 5 and 11.
class TwoDocuments : public ::testing::Test {
 protected:
  static int64_t b_begins(int64_t s) { return s % 2 ? 5 : 8; }
  /// Counts B alone; A's tokens are those of another text when `other`.
  static Tokens tokens(bool other, bool masked) {
    Tokens out;
    out.id = [=](int64_t s, int64_t t, int64_t vocab) {
      return other && t < b_begins(s) ? (fixed_token(s, t, vocab) + 7) % static_cast<int32_t>(vocab)
                                      : fixed_token(s, t, vocab);
    };
    out.counts = [](int64_t s, int64_t t) { return t >= b_begins(s); };
    if (masked) {
      out.start = [](int64_t s, int64_t t) { return t < b_begins(s) ? 0 : b_begins(s); };
      out.reset_positions = true;
    }
    return out;
  }
  struct Seen {
    double loss;
    std::vector<double> logits, gradients;  // of B
  };
  static Seen seen(MPI_Comm comm, const std::string& family, const Cut& c, const RigOptions& o, bool other,
                   bool masked) {
    ModelBench m = bench(comm, family, c, o);
    m.tokens = tokens(other, masked);
    Seen out{m.run(2, true), {}, {}};
    if (c.tp == 1) {
      const std::vector<double> all = logits_in_order(m, 0, 2);
      for (int64_t t = 0; t < m.rig.ctx.sequence; ++t)
        for (int64_t s = 0; s < 2; ++s)
          if (t >= b_begins(s))
            out.logits.insert(out.logits.end(), all.begin() + (t * 2 + s) * m.config.vocab,
                              all.begin() + (t * 2 + s + 1) * m.config.vocab);
    }
    for (LocalParam& p : m.rig.store.all())
      for (double x : gradient(m.rig, p)) out.gradients.push_back(x);
    return out;
  }
  static void expect_independent(MPI_Comm comm, const std::string& family, const Cut& c, const RigOptions& o) {
    const Seen one = seen(comm, family, c, o, false, true), two = seen(comm, family, c, o, true, true);
    EXPECT_EQ(one.loss, two.loss);
    EXPECT_EQ(one.logits, two.logits);
    EXPECT_EQ(one.gradients, two.gradients);
    // without the mask A shows
    const Seen plain = seen(comm, family, c, o, false, false), leak = seen(comm, family, c, o, true, false);
    EXPECT_GT(std::abs(plain.loss - leak.loss), 1e-4);
    EXPECT_GT(difference(plain.gradients, leak.gradients), 1e-4);
  }
};

TEST_F(TwoDocuments, BHasTheSameBitsWhateverAIs) {
  for (DType type : {DType::f32, DType::bf16})
    for (const char* family : families) {
      RigOptions o;
      o.compute = type;
      for (Recompute r : {Recompute::none, Recompute::selective, Recompute::full}) {
        o.recompute = r;
        SCOPED_TRACE(std::string(family) + ", one rank, " + name_of(type) + ", recompute " +
                     std::to_string(static_cast<int>(r)));
        expect_independent(MPI_COMM_SELF, family, {}, o);
      }
      o.recompute = Recompute::none;
      for (const Cut& c : cuts())
        for (ContextMethod m : methods) {
          SCOPED_TRACE(std::string(family) + ", " + text(c) + ", " + name_of(m) + ", " + name_of(type));
          o.method = m;
          o.reproducible = type == DType::f32 && family == families[0];
          expect_independent(MPI_COMM_WORLD, family, c, o);
        }
      o.reproducible = false;
    }
}

TEST(ContextModel, ReproducibleModeGivesTheSameBitsOnEveryMesh) {
  const std::pair<const char*, DType> models[] = {
      {"gpt2", DType::f32}, {"qwen3", DType::f32}, {"llama", DType::bf16}};
  for (const auto& [family, type] : models) {
    RigOptions o;
    o.compute = type;
    o.reproducible = true;
    Tokens tokens;
    tokens.start = document_start;
    ModelBench whole = one_rank(family, o);
    whole.tokens = tokens;
    whole.run(2, true);
    EXPECT_GT(whole.exact.hi, 0);
    for (const Cut& c : cuts())
      for (ContextMethod m : methods) {
        SCOPED_TRACE(std::string(family) + ", " + text(c) + ", " + name_of(m));
        o.method = m;
        ModelBench cut = bench(MPI_COMM_WORLD, family, c, o);
        cut.tokens = tokens;
        cut.run(2, true);
        EXPECT_EQ(cut.exact.hi, whole.exact.hi);
        EXPECT_EQ(cut.exact.lo, whole.exact.lo);
        expect_gradients(cut, whole, 0);
      }
  }
}

}  // namespace
}  // namespace orthant
