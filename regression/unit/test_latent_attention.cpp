// Latent attention: against its formula written out, gradients against finite differences, and every mesh against one
// rank, in reproducible mode bit by bit.
// ranks: 1 2 4
// labels: smoke asan
#include <gtest/gtest.h>

#include <map>

#include "layers/attention.hpp"
#include "layers/latent_attention.hpp"
#include "mesh_kit.hpp"
#include "model/rope_frequencies.hpp"
#include "optim/step.hpp"

namespace orthant {
namespace {

using namespace kit;

constexpr int64_t sequences = 2;

ModelConfig config(bool compressed = true, bool interleaved = true, bool yarn = false) {
  ModelConfig c = small_model("deepseek");
  if (!compressed) c.mla.q_lora_rank = 0;
  c.mla.rope_interleave = interleaved;
  c.norm_eps = 0.3;  // of other norms: not of those inside
  if (yarn) {
    c.rope.type = "yarn";
    c.rope.factor = 4;
    c.rope.original_context = 8;
    c.rope.beta_fast = 2;
    c.rope.beta_slow = 0.5;
    c.rope.mscale = 0.7;
    c.rope.mscale_all_dim = 1.2;
    c.rope_theta = 50;
  }
  return c;
}

std::vector<ModelConfig> configs() {
  std::vector<ModelConfig> out = {config(), config(false), config(true, false), config(false, false, true),
                                  config(true, true, true)};
  if (world_size() > 1) return out;
  out.push_back(config());
  out.back().heads = out.back().kv_heads = 5;  // no power of two
  return out;
}
std::string text(const ModelConfig& c) {
  return std::to_string(c.heads) + " heads, " + (c.mla.q_lora_rank ? "compressed" : "plain") + " queries, " +
         (c.mla.rope_interleave ? "interleaved" : "halves") + ", rope " + c.rope.type;
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

struct Cut {
  int64_t tp = 1, cp = 1;
  bool sp = false, heads_cut = true;
  ContextMethod method = ContextMethod::ring;
  std::string text() const {
    return "tp " + std::to_string(tp) + ", cp " + std::to_string(cp) + (sp ? ", sequence parallel" : "") +
           (heads_cut ? "" : ", heads whole") + ", method " + std::to_string(static_cast<int>(method));
  }
};

/// Meshes of all ranks.
std::vector<Cut> cuts() {
  const int64_t n = world_size();
  std::vector<Cut> out = {{n}, {n, 1, true}, {n, 1, false, false}, {n, 1, true, false}};
  for (ContextMethod m : {ContextMethod::ring, ContextMethod::all_gather, ContextMethod::all_to_all}) {
    if (n > 1) out.push_back({1, n, false, true, m});
    if (n == 4)
      for (bool sp : {false, true}) out.push_back({2, 2, sp, true, m});
  }
  return out;
}

/// The layer on a rig, its input and a micro-batch of documents. This rank's rows are those of `rows` of the whole.
class Bench {
 public:
  Bench(MPI_Comm comm, const Cut& cut, const ModelConfig& c, RigOptions o, bool documents = true)
      : config(c),
        rig(comm, mesh(cut, c), LatentAttention::params("layer", c), options(o, cut)),
        layer("layer", c, rig.store, rig.axes, rig.layout),
        rope(make_rope_table(rig.ctx, c, rig.ctx.sequence)) {
    Tokens tokens;
    if (documents) {
      tokens.start = document_start;
      tokens.reset_positions = true;
    }
    batch = micro_batch(rig.ctx, 0, sequences, c.vocab, 1, tokens);
    rig.ctx.batch = &batch;
    for (const Range& run : batch.runs)
      for (int64_t i = 0; i < run.size * sequences; ++i) rows.push_back(run.begin * sequences + i);
    if (cut.sp) {
      const auto part = static_cast<std::ptrdiff_t>(rows.size()) / cut.tp;
      const auto at = rows.begin() + part * rig.mesh.coordinate(AxisName::tp);
      rows = std::vector<int64_t>(at, at + part);
    }
    x = input("x");
    dy = input("dy");
  }
  static MeshShape mesh(const Cut& cut, const ModelConfig& c) {
    MeshShape m = mesh_of(c, cut.tp, 1, cut.cp);
    m.cut_heads = cut.heads_cut;
    return m;
  }
  static RigOptions options(RigOptions o, const Cut& cut) {
    o.sequence_parallel = cut.sp;
    o.method = cut.method;
    return o;
  }
  Tensor input(const char* name) {
    const Tensor out =
        rig.backend->alloc(rig.ctx.T, static_cast<int64_t>(rows.size()), config.hidden, MemoryKind::workspace);
    for (size_t i = 0; i < rows.size(); ++i)
      rig.backend->copy(out.row_range(static_cast<int64_t>(i), 1),
                        tensor_of_numbers(*rig.backend, rig.ctx.T, name, rows[i], 1, config.hidden));
    return out;
  }

  std::vector<double> forward() {
    LatentAttention::Saved saved;
    return to_host(*rig.backend, layer.forward(rig.ctx, x, rope, saved));
  }
  void run() {
    LatentAttention::Saved saved;
    rig.store.zero_gradients();
    y = to_host(*rig.backend, layer.forward(rig.ctx, x, rope, saved));
    dx = to_host(*rig.backend, layer.backward(rig.ctx, dy, rope, saved));
    sum_gradients(rig.ctx, rig.store);
  }
  /// Fourth-order central difference of sum(dy y) along element i of t.
  double slope(const Tensor& t, int64_t i) {
    const double h = 1e-3;
    const std::vector<double> w = to_host(*rig.backend, dy);
    auto at = [&](double step) {
      Host<double>(*rig.backend, t)[i] += step;
      const std::vector<double> out = forward();
      Host<double>(*rig.backend, t)[i] -= step;
      double sum = 0;
      for (size_t j = 0; j < out.size(); ++j) sum += out[j] * w[j];
      return sum;
    };
    return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
  }

  ModelConfig config;
  Rig rig;
  LatentAttention layer;
  Tensor rope;
  MicroBatch batch;
  std::vector<int64_t> rows;
  Tensor x, dy;
  std::vector<double> y, dx;
};

/// `rows` of `whole`, `width` wide.
std::vector<double> rows_of(const std::vector<double>& whole, const std::vector<int64_t>& rows, int64_t width) {
  std::vector<double> out;
  for (int64_t r : rows) out.insert(out.end(), whole.begin() + r * width, whole.begin() + (r + 1) * width);
  return out;
}

using Numbers = std::vector<double>;

/// The formula on one token after the other, in double, without a line of the layer. Rotated widths are put in order
/// (even columns first) before halves are turned, where the layer turns neighbours in place.
class Formula {
 public:
  Formula(Bench& b) : b_(b), c_(b.config), m_(b.config.mla) {}

  Numbers y() {
    const Numbers x = to_host(*b_.rig.backend, b_.x);
    const int64_t tokens = static_cast<int64_t>(b_.rows.size()), heads = c_.heads, hidden = c_.hidden;
    std::vector<std::vector<Numbers>> q, k, v;  // [token][head]
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t s = t % sequences, p = t / sequences - document_start(s, t / sequences);
      const Numbers row(x.begin() + t * hidden, x.begin() + (t + 1) * hidden);
      const Numbers queries = m_.q_lora_rank ? times("q_b", norm("q_a_norm", times("q_a", row))) : times("q", row);
      const Numbers kva = times("kv_a", row);
      const Numbers kv = times("kv_b", norm("kv_a_norm", cut(kva, 0, m_.kv_lora_rank)));
      const Numbers key = turned(cut(kva, m_.kv_lora_rank, m_.rope_dim), p);
      q.emplace_back(), k.emplace_back(), v.emplace_back();
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at_q = h * m_.qk_dim(), at_kv = h * (m_.nope_dim + m_.v_dim);
        q.back().push_back(
            joined(cut(queries, at_q, m_.nope_dim), turned(cut(queries, at_q + m_.nope_dim, m_.rope_dim), p)));
        k.back().push_back(joined(cut(kv, at_kv, m_.nope_dim), key));
        v.back().push_back(cut(kv, at_kv + m_.nope_dim, m_.v_dim));
      }
    }
    Numbers out;
    for (int64_t t = 0; t < tokens; ++t) {
      Numbers o;
      const int64_t s = t % sequences, start = document_start(s, t / sequences);
      for (size_t h = 0; h < static_cast<size_t>(heads); ++h) {
        Numbers head(static_cast<size_t>(m_.v_dim));
        double sum = 0;
        for (int64_t j = start * sequences + s; j <= t; j += sequences) {
          const auto i = static_cast<size_t>(j);
          const double e = std::exp(dot(q[static_cast<size_t>(t)][h], k[i][h]) * scale());
          sum += e;
          for (size_t d = 0; d < head.size(); ++d) head[d] += e * v[i][h][d];
        }
        for (double& number : head) o.push_back(number / sum);
      }
      for (double number : times("out", o)) out.push_back(number);
    }
    return out;
  }

 private:
  static Numbers cut(const Numbers& x, int64_t begin, int64_t size) {
    return {x.begin() + begin, x.begin() + begin + size};
  }
  static Numbers joined(Numbers a, const Numbers& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  static double dot(const Numbers& a, const Numbers& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  }
  Numbers weight(const char* name) {
    return to_host(*b_.rig.backend, b_.rig.store.at("layer." + std::string(name) + ".weight").weight);
  }
  Numbers times(const char* name, const Numbers& x) {
    const Numbers w = weight(name);
    Numbers out;
    for (size_t row = 0; row < w.size() / x.size(); ++row)
      out.push_back(dot(cut(w, static_cast<int64_t>(row * x.size()), static_cast<int64_t>(x.size())), x));
    return out;
  }
  Numbers norm(const char* name, Numbers x) {
    const Numbers gain = weight(name);
    const double r = 1 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + 1e-6);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= r * gain[i];
    return x;
  }
  double mscale(double m) const { return c_.rope.type == "yarn" ? 0.1 * m * std::log(c_.rope.factor) + 1 : 1; }
  double scale() const {
    return std::pow(static_cast<double>(m_.qk_dim()), -0.5) * std::pow(mscale(c_.rope.mscale_all_dim), 2);
  }
  Numbers turned(Numbers x, int64_t position) const {
    const size_t half = x.size() / 2;
    if (m_.rope_interleave) {
      const Numbers old = x;
      for (size_t i = 0; i < half; ++i) {
        x[i] = old[2 * i];
        x[half + i] = old[2 * i + 1];
      }
    }
    const double factor = mscale(c_.rope.mscale) / mscale(c_.rope.mscale_all_dim);
    const std::vector<double> f = rope_frequencies(c_).inverse_frequencies;  // has tests of its own
    Numbers out(x.size());
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * f[i];
      const double cosine = std::cos(angle) * factor, sine = std::sin(angle) * factor;
      out[i] = x[i] * cosine - x[half + i] * sine;
      out[half + i] = x[half + i] * cosine + x[i] * sine;
    }
    return out;
  }

  Bench& b_;
  const ModelConfig& c_;
  const MlaConfig& m_;
};

TEST(LatentAttention, IsItsFormula) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  for (const ModelConfig& c : configs()) {
    SCOPED_TRACE(text(c));
    Bench b(MPI_COMM_SELF, {}, c, {});
    const std::vector<double> y = b.forward();
    EXPECT_GT(largest(y), 0.1);
    EXPECT_LE(difference(y, Formula(b).y()), 1e-13 * largest(y));
  }
}

TEST(LatentAttention, GradientsAreFiniteDifferences) {
  if (world_size() > 1) GTEST_SKIP() << "one rank";
  for (const ModelConfig& c : configs()) {
    SCOPED_TRACE(text(c));
    for (double dropout : {0.0, 0.2}) {
      RigOptions o;
      o.dropout = dropout;
      Bench b(MPI_COMM_SELF, {}, c, o);
      b.run();
      const auto check = [&](const std::string& name, const Tensor& t, const std::vector<double>& g) {
        const double size = largest(g);
        EXPECT_GT(size, 1e-3) << name;
        for (int64_t pick = 0; pick < 5; ++pick) {
          const auto i = static_cast<int64_t>((number("pick " + name, pick) + 1) / 2 * static_cast<double>(t.size()));
          EXPECT_NEAR(g[static_cast<size_t>(i)], b.slope(t, i), 1e-6 * size) << name << " element " << i;
        }
      };
      check("x", b.x, b.dx);
      for (LocalParam& p : b.rig.store.all()) check(p.param.name, p.weight, gradient(b.rig, p));
    }
  }
}

void expect_equal(Bench& cut, Bench& whole, double tolerance) {
  const int64_t width = cut.config.hidden;
  EXPECT_LE(difference(cut.y, rows_of(whole.y, cut.rows, width)), tolerance * largest(whole.y)) << "y";
  EXPECT_LE(difference(cut.dx, rows_of(whole.dx, cut.rows, width)), tolerance * largest(whole.dx)) << "dx";
  for (LocalParam& p : cut.rig.store.all()) {
    const std::vector<double> g = gradient(whole.rig, whole.rig.store.at(p.param.name));
    EXPECT_GT(largest(g), 1e-3) << p.param.name;
    EXPECT_LE(difference(gradient(cut.rig, p), part_of(g, p.param, p.piece)), tolerance * largest(g)) << p.param.name;
  }
}

TEST(LatentAttention, EveryMeshEqualsOneRank) {
  for (const ModelConfig& c : configs())
    for (double dropout : {0.0, 0.2}) {
      RigOptions o;
      o.dropout = dropout;
      Bench whole(MPI_COMM_SELF, {}, c, o);
      whole.run();
      for (const Cut& k : cuts()) {
        SCOPED_TRACE(text(c) + ", " + k.text());
        Bench cut(MPI_COMM_WORLD, k, c, o);
        cut.run();
        expect_equal(cut, whole, 1e-11);
      }
    }
}

TEST(LatentAttention, ReproducibleModeGivesTheSameBitsOnEveryMesh) {
  for (DType type : {DType::f32, DType::bf16})
    for (const ModelConfig& c : configs()) {
      RigOptions o;
      o.compute = type;
      o.reproducible = true;
      Bench whole(MPI_COMM_SELF, {}, c, o);
      whole.run();
      for (const Cut& k : cuts()) {
        SCOPED_TRACE(text(c) + ", " + k.text() + ", " + name_of(type));
        Bench cut(MPI_COMM_WORLD, k, c, o);
        cut.run();
        expect_equal(cut, whole, 0);
      }
    }
}

TEST(LatentAttention, ReproducibleModeComputesTheSame) {
  for (const ModelConfig& c : configs()) {
    SCOPED_TRACE(text(c));
    RigOptions o;
    o.compute = DType::f32;
    Bench plain(MPI_COMM_SELF, {}, c, o);
    o.reproducible = true;
    Bench exact(MPI_COMM_SELF, {}, c, o);
    plain.run();
    exact.run();
    expect_equal(exact, plain, 1e-5);
  }
}

// Without sequence parallelism the hidden width leaves the region once, in forward; all else is narrow.
TEST(LatentAttention, NarrowRowsTravel) {
  const ModelConfig c = config();
  const int64_t n = world_size(), narrow = c.mla.q_lora_rank + c.mla.kv_lora_rank + c.mla.rope_dim,
                inputs = c.mla.q_lora_rank + c.mla.kv_lora_rank;
  for (bool sp : {false, true}) {
    Bench b(MPI_COMM_WORLD, {n, 1, sp}, c, {});
    LatentAttention::Saved saved;
    b.layer.forward(b.rig.ctx, b.x, b.rope, saved);
    b.layer.backward(b.rig.ctx, b.dy, b.rope, saved);
    std::map<std::string, int64_t> bytes;  // times n
    for (const auto& [key, entry] : b.rig.axes.traffic().entries())
      if (key.first == AxisName::tp) bytes[key.second] += entry.scaled_bytes;
    const int64_t a_token = (n - 1) * b.batch.tokens() * 8;
    if (!sp) {
      EXPECT_EQ(bytes["all_reduce"], 2 * a_token * (c.hidden + narrow));
    } else {
      EXPECT_EQ(bytes["all_gather"], a_token * (c.hidden + narrow + inputs));
      EXPECT_EQ(bytes["reduce_scatter"], a_token * (c.hidden + narrow));
    }
  }
}

}  // namespace
}  // namespace orthant
