// A mixture layer on a mesh with a fixed global batch, and its definition in plain loops.
#pragma once

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "layers/moe.hpp"
#include "mesh_kit.hpp"
#include "optim/step.hpp"
#include "orthant/router_stats.hpp"

namespace orthant::kit {

constexpr int64_t moe_batch = 4;  ///< sequences of a step
constexpr int64_t moe_block = 1;  ///< the block that the layer stands in
const std::string moe_prefix = "layers.1.moe";

using Token = std::pair<int64_t, int64_t>;  ///< sequence, position
using TokenRows = std::map<Token, std::vector<double>>;

struct MoeResult {
  TokenRows y, dx;  ///< of this rank's tokens
  std::map<std::string, std::vector<double>>
      grad;  ///< of this rank's pieces, summed over the ranks they are summed over
  RouterReport report;
};

class MoeBench {
 public:
  MoeBench(MPI_Comm comm, const MeshShape& mesh, const ModelConfig& c, const RigOptions& o)
      : config(c),
        rig(comm, mesh, Moe::params(moe_prefix, c), o),
        stats(moe_block, 1, c.moe.experts),
        layer(moe_prefix, c, moe_block, rig.store, rig.axes, rig.layout) {
    rig.ctx.global_sequences = moe_batch;
    rig.ctx.router_stats = &stats;
  }

  /// Sets this rank's part of a parameter.
  void set(const std::string& name, const std::function<double(int64_t row, int64_t col)>& value) {
    LocalParam& p = rig.store.at(moe_prefix + "." + name);
    const Tensor wide = rig.backend->alloc(DType::f64, p.rows(), p.cols(), MemoryKind::workspace);
    {
      Host<double> h(*rig.backend, wide);
      for (int64_t r = 0; r < p.rows(); ++r)
        for (int64_t k = 0; k < p.cols(); ++k) h[r * p.cols() + k] = value(p.piece.row + r, p.piece.col + k);
    }
    rig.backend->copy(p.weight, wide);
  }

  /// Tokens of this rank's shard of a micro-batch, in the order of its rows.
  std::vector<Token> shard_tokens(const MicroBatch& mb, int64_t first) const {
    std::vector<Token> all;
    for (const Range& run : mb.runs)
      for (int64_t t = run.begin; t < run.begin + run.size; ++t)
        for (int64_t s = first; s < first + mb.sequences; ++s) all.push_back({s, t});
    if (!rig.layout.sequence_parallel()) return all;
    const auto tp = static_cast<size_t>(rig.layout.shape().tp), part = all.size() / tp;
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(part * static_cast<size_t>(rig.layout.at().tp));
    return {begin, begin + static_cast<std::ptrdiff_t>(part)};
  }

  Tensor tensor(const std::vector<Token>& tokens, const std::function<double(Token, int64_t)>& value) {
    const auto rows = static_cast<int64_t>(tokens.size());
    const Tensor wide = rig.backend->alloc(DType::f64, rows, config.hidden, MemoryKind::workspace);
    {
      Host<double> h(*rig.backend, wide);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < config.hidden; ++c)
          h[r * config.hidden + c] = value(tokens[static_cast<size_t>(r)], c);
    }
    const Tensor out = rig.backend->alloc(rig.ctx.T, rows, config.hidden, MemoryKind::workspace);
    rig.backend->copy(out, wide);
    return out;
  }

  /// A step of the whole batch in `micros` micro-batches a dp rank: forward and backward. `selective` drops what
  /// selective recompute drops, `late` keeps weight gradients for a W action.
  MoeResult run(int64_t micros = 1, bool selective = false, bool late = false) {
    const int64_t mine = moe_batch / rig.layout.shape().dp, micro = mine / micros, first = mine * rig.layout.at().dp;
    rig.store.zero_gradients();
    MoeResult out;
    for (int64_t at = first; at < first + mine; at += micro) {
      MicroBatch mb = micro_batch(rig.ctx, at, micro, 11, 1);
      rig.ctx.batch = &mb;
      const auto tokens = shard_tokens(mb, at);
      const Tensor x = tensor(tokens, x_of);
      Moe::Saved saved;
      collect(tokens, layer.forward(rig.ctx, x, saved), out.y);
      if (selective) saved.x = x, saved.a = Tensor();
      rig.ctx.keep_deferred = late;
      collect(tokens, layer.backward(rig.ctx, tensor(tokens, dy_of), saved), out.dx);
      saved = {};
      for (const auto& work : rig.ctx.take_deferred()) work();
      rig.ctx.batch = nullptr;
    }
    sum_gradients(rig.ctx, rig.store);
    for (LocalParam& p : rig.store.all()) out.grad[p.param.name] = gradient(rig, p);
    out.report = stats.finish(rig.ctx);
    return out;
  }

  ModelConfig config;
  std::function<double(Token, int64_t)> x_of = [](Token at, int64_t c) {
    return number("x", (at.first * 1000 + at.second) * 100 + c);
  };
  std::function<double(Token, int64_t)> dy_of = [](Token at, int64_t c) {
    return number("dy", (at.first * 1000 + at.second) * 100 + c);
  };
  Rig rig;
  RouterStats stats;
  Moe layer;

 private:
  void collect(const std::vector<Token>& tokens, const Tensor& x, TokenRows& into) {
    const std::vector<double> v = to_host(*rig.backend, x);
    for (size_t r = 0; r < tokens.size(); ++r) {
      const auto begin = v.begin() + static_cast<std::ptrdiff_t>(r) * config.hidden;
      into[tokens[r]] = {begin, begin + config.hidden};
    }
  }
};

/// What the rank has in `cut` is that of `whole`, up to `tolerance` times the largest number of its kind.
inline void expect_equal(MoeBench& bench, const MoeResult& cut, const MoeResult& whole, double tolerance) {
  const auto rows = [&](const char* what, const TokenRows& a, const TokenRows& b) {
    double scale = 0, worst = 0;
    for (const auto& [token, row] : b) scale = std::max(scale, largest(row));
    EXPECT_GT(scale, 0) << what;
    for (const auto& [token, row] : a) worst = std::max(worst, difference(row, b.at(token)));
    EXPECT_LE(worst, tolerance * scale) << what;
  };
  rows("y", cut.y, whole.y);
  rows("dx", cut.dx, whole.dx);
  for (LocalParam& p : bench.rig.store.all()) {
    if (!p.param.trained) continue;
    const std::vector<double>& g = whole.grad.at(p.param.name);
    EXPECT_LE(difference(cut.grad.at(p.param.name), part_of(g, p.param, p.piece)),
              tolerance * std::max(largest(g), 1e-3))
        << p.param.name;
  }
  EXPECT_EQ(cut.report.load, whole.report.load);
  EXPECT_EQ(cut.report.dropped, whole.report.dropped);
  EXPECT_EQ(cut.report.load_max_over_mean, whole.report.load_max_over_mean);
  EXPECT_NEAR(cut.report.aux_loss, whole.report.aux_loss, tolerance);
}

/// The layer by its definition, for a bench of one rank; tokens by sequence * L + position.
class PlainMoe {
 public:
  explicit PlainMoe(MoeBench& b) : c_(b.config), length_(b.rig.ctx.sequence) {
    for (LocalParam& p : b.rig.store.all())
      weights_[p.param.name.substr(moe_prefix.size() + 1)] = to_host(*b.rig.backend, p.weight);
    for (int64_t s = 0; s < moe_batch; ++s)
      for (int64_t t = 0; t < length_; ++t) {
        std::vector<double> x;
        for (int64_t c = 0; c < c_.hidden; ++c) x.push_back(b.x_of({s, t}, c));
        token(x);
      }
  }

  double y_at(Token t, int64_t c) const { return y[index(t)][static_cast<size_t>(c)]; }
  const std::vector<int64_t>& chosen_at(Token t) const { return chosen[index(t)]; }
  /// Mean over sequences, without its coefficient.
  double aux_loss() const {
    double sum = 0;
    for (int64_t s = 0; s < moe_batch; ++s)
      for (int64_t e = 0; e < c_.moe.experts; ++e) {
        double f = 0, P = 0;
        for (int64_t t = 0; t < length_; ++t) {
          const auto& picks = chosen_at({s, t});
          f += static_cast<double>(std::count(picks.begin(), picks.end(), e));
          P += shares[index({s, t})][static_cast<size_t>(e)];
        }
        const auto L = static_cast<double>(length_);
        sum += static_cast<double>(c_.moe.experts) * f / (L * static_cast<double>(c_.moe.top_k)) * P / L;
      }
    return sum / moe_batch;
  }
  double z_loss() const { return z_sum_ / static_cast<double>(y.size()); }

  std::vector<std::vector<double>> shares, y;
  std::vector<std::vector<int64_t>> chosen;

 private:
  using Vector = std::vector<double>;
  size_t index(Token t) const { return static_cast<size_t>(t.first * length_ + t.second); }

  Vector times(const std::string& name, const Vector& x) const {
    const Vector& w = weights_.at(name);
    Vector out(w.size() / x.size());
    for (size_t r = 0; r < out.size(); ++r)
      for (size_t k = 0; k < x.size(); ++k) out[r] += w[r * x.size() + k] * x[k];
    return out;
  }
  Vector feed_forward(const std::string& name, const Vector& x) const {
    Vector g = times(name + ".gate.weight", x), u = times(name + ".up.weight", x);
    for (size_t i = 0; i < g.size(); ++i) g[i] = g[i] / (1 + std::exp(-g[i])) * u[i];
    return times(name + ".down.weight", g);
  }
  /// The k largest of v, as a set in rising order.
  static std::vector<int64_t> best(const Vector& v, int64_t k) {
    std::vector<int64_t> order(v.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return v[static_cast<size_t>(a)] > v[static_cast<size_t>(b)]; });
    order.resize(static_cast<size_t>(k));
    std::sort(order.begin(), order.end());
    return order;
  }
  void token(const Vector& x) {
    const Vector logits = times("router.weight", x);
    Vector score = logits, key;
    double exps = 0, all = 0;
    for (double l : logits) exps += std::exp(l);
    z_sum_ += std::log(exps) * std::log(exps);
    for (double& s : score) all += s = c_.moe.sigmoid ? 1 / (1 + std::exp(-s)) : std::exp(s) / exps;
    key = score;
    if (c_.selection_bias())
      for (size_t e = 0; e < key.size(); ++e) key[e] += weights_.at("router.bias")[e];
    if (c_.moe.groups > 1) {
      const size_t size = key.size() / static_cast<size_t>(c_.moe.groups);
      Vector group;
      for (size_t g = 0; g < static_cast<size_t>(c_.moe.groups); ++g) {
        Vector in(key.begin() + static_cast<std::ptrdiff_t>(g * size),
                  key.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
        std::sort(in.rbegin(), in.rend());
        group.push_back(in[0] + in[1]);
      }
      const auto top = best(group, c_.moe.top_groups);
      for (size_t e = 0; e < key.size(); ++e)
        if (!std::binary_search(top.begin(), top.end(), static_cast<int64_t>(e / size))) key[e] = -INFINITY;
    }
    chosen.push_back(best(key, c_.moe.top_k));
    double sum = 0;
    for (int64_t e : chosen.back()) sum += score[static_cast<size_t>(e)];
    Vector out(x.size());
    for (int64_t e : chosen.back()) {
      const double w = c_.moe.scale * score[static_cast<size_t>(e)] / (c_.moe.norm_topk ? sum : 1);
      const Vector part = feed_forward("experts." + std::to_string(e), x);
      for (size_t i = 0; i < out.size(); ++i) out[i] += w * part[i];
    }
    if (c_.moe.shared_experts > 0) {
      const Vector part = feed_forward("shared", x);
      for (size_t i = 0; i < out.size(); ++i) out[i] += part[i];
    }
    y.push_back(out);
    for (double& s : score) s /= all;
    shares.push_back(score);
  }

  ModelConfig c_;
  int64_t length_;
  std::map<std::string, Vector> weights_;
  double z_sum_ = 0;
};

}  // namespace orthant::kit
