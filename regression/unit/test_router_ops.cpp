// Routing of tokens to experts on the backends: choice, weights and shares against plain loops in double, gradients
// against differences, bits that depend on a token alone, and the moves of rows to the experts and back.
// labels: smoke asan
// seconds: 60
#include <algorithm>
#include <limits>
#include <numeric>

#include "ops_helpers.hpp"

using namespace ops;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
const DType sums[] = {DType::f32, DType::f64};
const DType types[] = {DType::f32, DType::bf16, DType::f64};

size_t at(int64_t i) { return static_cast<size_t>(i); }

Values random_in(DType t, int64_t n, unsigned seed, double scale = 1) {
  Values v = random_values(n, seed, scale);
  for (double& x : v) x = rounded(t, x);
  return v;
}

RouterShape router(int64_t experts, int64_t top_k, bool sigmoid = false, bool normalise = true, double scale = 1,
                   int64_t groups = 1, int64_t top_groups = 1) {
  return {experts, top_k, sigmoid, groups, top_groups, normalise, scale};
}

/// Every way to route 16 experts that decks can ask for: scores, groups (of 4, of 2, of 1 expert), weights.
std::vector<RouterShape> all_routers() {
  std::vector<RouterShape> all;
  for (bool sigmoid : {false, true})
    for (bool normalise : {false, true})
      for (double scale : {1.0, 2.5})
        for (const auto& [groups, top] : {std::pair<int64_t, int64_t>{1, 1}, {4, 2}, {8, 3}, {16, 5}})
          all.push_back(router(16, 4, sigmoid, normalise, scale, groups, top));
  all.push_back(router(16, 16, true));  // all of them
  all.push_back(router(16, 1));
  all.push_back(router(1, 1));
  return all;
}

std::string text(const RouterShape& s) {
  return std::string(s.sigmoid ? "sigmoid" : "softmax") + " top " + std::to_string(s.top_k) + " of " +
         std::to_string(s.experts) + " groups " + std::to_string(s.groups) + ":" + std::to_string(s.top_groups) +
         (s.normalise ? " normalised" : "") + " scale " + std::to_string(s.scale);
}

/// The numbers of the `count` largest keys, ties to the lower number, in rising order.
std::vector<int64_t> largest(const std::vector<long double>& key, int64_t count) {
  std::vector<int64_t> order(key.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return key[at(a)] > key[at(b)]; });
  order.resize(at(count));
  std::sort(order.begin(), order.end());
  return order;
}

struct Routed {
  std::vector<int64_t> chosen;
  std::vector<long double> weights, shares;
  long double lse = 0;
};

/// One token, from the definition. With `fixed` the choice is given.
Routed plain(const RouterShape& s, const double* logits, const double* bias,
             const std::vector<int64_t>* fixed = nullptr) {
  const auto n = at(s.experts);
  Routed r;
  std::vector<long double> score(n), key(n);
  long double top = logits[0], total = 0, sum = 0;
  for (size_t i = 0; i < n; ++i) top = std::max<long double>(top, logits[i]);
  for (size_t i = 0; i < n; ++i) total += std::exp(logits[i] - top);
  r.lse = top + std::log(total);
  for (size_t i = 0; i < n; ++i)
    score[i] =
        s.sigmoid ? 1 / (1 + std::exp(-static_cast<long double>(logits[i]))) : std::exp(logits[i] - top) / total;
  for (long double x : score) sum += x;
  for (long double x : score) r.shares.push_back(x / sum);
  for (size_t i = 0; i < n; ++i) key[i] = score[i] + (bias ? bias[i] : 0);
  if (fixed) {
    r.chosen = *fixed;
  } else {
    if (s.groups > 1) {
      const auto size = at(s.experts / s.groups);
      std::vector<long double> group;
      for (size_t g = 0; g < at(s.groups); ++g) {
        std::vector<long double> members(key.begin() + static_cast<std::ptrdiff_t>(g * size),
                                         key.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
        std::sort(members.rbegin(), members.rend());
        group.push_back(members[0] + (size > 1 ? members[1] : 0));
      }
      const auto kept = largest(group, s.top_groups);
      for (size_t i = 0; i < n; ++i)
        if (std::find(kept.begin(), kept.end(), static_cast<int64_t>(i / size)) == kept.end()) key[i] = -INFINITY;
    }
    r.chosen = largest(key, s.top_k);
  }
  long double of_chosen = s.sigmoid ? 1e-20L : 0;
  for (int64_t e : r.chosen) of_chosen += score[at(e)];
  for (int64_t e : r.chosen) r.weights.push_back(s.scale * score[at(e)] / (s.normalise ? of_chosen : 1));
  return r;
}

/// The tensors of one call of router_forward, each with columns that nobody may touch.
struct Call {
  Matrix logits, bias, chosen, weights, shares;
  Call(Backend& b, DType a, const RouterShape& s, int64_t tokens, const Values& v, const Values& add)
      : logits(b, a, tokens, s.experts, v, 3),
        bias(b, a, 1, s.experts, add.empty() ? Values(at(s.experts), 0.0) : add),
        chosen(b, DType::i32, tokens, s.top_k, 1),
        weights(b, a, tokens, s.top_k, 2),
        shares(b, a, tokens, s.experts, 1) {
    b.router_forward(s, logits, add.empty() ? Tensor{} : bias.tensor(), chosen, weights, shares);
  }
};

class Router : public ::testing::Test {
 protected:
  std::unique_ptr<Backend> owner_ = backend_with(2);
  Backend& b_ = *owner_;
};

TEST_F(Router, forward_is_the_definition) {
  const int64_t tokens = 37;
  for (const RouterShape& s : all_routers()) {
    for (DType a : sums) {
      for (bool biased : {false, true}) {
        SCOPED_TRACE(text(s) + " " + name_of(a) + (biased ? " bias" : ""));
        const Values v = random_in(a, tokens * s.experts, 1, 2);
        const Values bias = biased ? random_in(a, s.experts, 2, 0.3) : Values{};
        const Call call(b_, a, s, tokens, v, bias);
        Values chosen, weights, shares;
        for (int64_t t = 0; t < tokens; ++t) {
          const Routed want = plain(s, v.data() + t * s.experts, biased ? bias.data() : nullptr);
          chosen.insert(chosen.end(), want.chosen.begin(), want.chosen.end());
          weights.insert(weights.end(), want.weights.begin(), want.weights.end());
          shares.insert(shares.end(), want.shares.begin(), want.shares.end());
        }
        EXPECT_EQ(call.chosen.get(), chosen);
        expect_near(call.weights.get(), weights, 20 * unit(a), "weights");
        expect_near(call.shares.get(), shares, 20 * unit(a), "shares");
      }
    }
  }
}

TEST_F(Router, bias_moves_the_choice_and_not_the_weights) {
  const Values v = {2, 1, 0, -1};
  for (bool sigmoid : {false, true}) {
    const RouterShape s = router(4, 2, sigmoid, false);
    const Call before(b_, DType::f64, s, 1, v, {}), after(b_, DType::f64, s, 1, v, {0, 0, 0, 5});
    EXPECT_EQ(before.chosen.get(), (Values{0, 1}));
    EXPECT_EQ(after.chosen.get(), (Values{0, 3}));
    EXPECT_EQ(after.weights.get()[0], before.weights.get()[0]);
    EXPECT_EQ(after.shares.get(), before.shares.get());
    const std::vector<int64_t> fixed = {0, 3};
    EXPECT_NEAR(after.weights.get()[1], static_cast<double>(plain(s, v.data(), nullptr, &fixed).weights[1]), 1e-15);
  }
}

TEST_F(Router, ties_go_to_the_lower_number) {
  for (bool sigmoid : {false, true}) {
    for (DType a : sums) {
      const Call all(b_, a, router(8, 3, sigmoid), 1, Values(8, 0.25), {});
      EXPECT_EQ(all.chosen.get(), (Values{0, 1, 2}));
      expect_near(all.weights.get(), Values(3, 1.0 / 3), 4 * unit(a), "weights");
      const Call late(b_, a, router(8, 3, sigmoid), 1, {0, 1, 0, 2, 0, 1, 1, 0}, {});
      EXPECT_EQ(late.chosen.get(), (Values{1, 3, 5}));
      // groups {0, 1}, {2, 3}, {4, 5}, {6, 7} of equal sums, and a better one behind
      const Call groups(b_, a, router(8, 3, sigmoid, true, 1, 4, 2), 1, Values(8, -1.0), {0, 0, 0, 0, 0, 0, 0.5, 0});
      EXPECT_EQ(groups.chosen.get(), (Values{0, 1, 6}));
    }
  }
}

TEST_F(Router, excluded_groups_are_never_chosen) {
  // expert 0 is the best of all, but its group's best two add up to less than those of the others
  const Values v = {3, -9, 2, 2, 1.9, 1.9, -9, -9};
  const RouterShape s = router(8, 4, true, true, 1, 4, 2);
  EXPECT_EQ(Call(b_, DType::f32, s, 1, v, {}).chosen.get(), (Values{2, 3, 4, 5}));
  // the bias takes part in the choice of groups, and keys below zero do not bring an excluded expert back
  EXPECT_EQ(Call(b_, DType::f32, s, 1, v, {0, 0, -9, 0, -9, 0, -99, -99}).chosen.get(), (Values{0, 1, 2, 3}));
  EXPECT_EQ(Call(b_, DType::f32, s, 1, v, {-99, -99, -9, -9, -9, -9, -99, -99}).chosen.get(), (Values{2, 3, 4, 5}));
}

// Sigmoids of very low logits add up to nearly nothing: the 1e-20 under the weights decides, forward and backward.
TEST_F(Router, vanishing_scores_have_vanishing_weights) {
  const Values v = {-60, -61, -62, -46};
  const RouterShape s = router(4, 2, true);
  for (DType a : sums) {
    for (const Values& bias : {Values{}, Values{5, 5, 0, 0}}) {
      const Call call(b_, a, s, 1, v, bias);
      const Routed want = plain(s, v.data(), bias.empty() ? nullptr : bias.data());
      const Values got = call.weights.get();
      const Matrix dw(b_, a, 1, 2, {1e3, -2e3}), d(b_, a, 1, 4);
      b_.router_backward(s, call.logits, call.chosen, dw, {}, 0, d);
      Values slope(4, 0.0);
      const long double mean = 1e3L * want.weights[0] - 2e3L * want.weights[1];
      for (size_t j = 0; j < 2; ++j) {
        EXPECT_NEAR(got[j] / static_cast<double>(want.weights[j]), 1, 40 * unit(a)) << name_of(a);
        slope[at(want.chosen[j])] = static_cast<double>(want.weights[j] * ((j == 0 ? 1e3L : -2e3L) - mean));
      }
      const Values d_got = d.get();
      for (size_t i = 0; i < 4; ++i)
        EXPECT_NEAR(d_got[i], slope[i], 200 * unit(a) * std::fabs(slope[i])) << name_of(a);
    }
  }
}

TEST_F(Router, not_a_number_is_routed_somewhere_and_seen) {
  const Values rows[] = {{nan, nan, nan, nan, nan, nan, nan, nan},
                         {1, nan, 2, 3, 0, 0, 0, -1},
                         {inf, inf, 0, 0, -inf, 0, 1, 2},
                         {-inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf},
                         {0, 0, 0, 0, 0, 0, 0, nan}};
  for (const Values& v : rows) {
    for (bool sigmoid : {false, true}) {
      for (int64_t groups : {1, 4}) {
        for (DType a : sums) {
          for (const Values& bias : {Values{}, Values(8, nan), Values{inf, -inf, inf, -inf, 0, 0, 0, 0}}) {
            const RouterShape s = router(8, 4, sigmoid, true, 1, groups, 2);
            const Call call(b_, a, s, 1, v, bias);
            const Values chosen = call.chosen.get();
            for (size_t j = 0; j < chosen.size(); ++j) {
              EXPECT_TRUE(chosen[j] >= 0 && chosen[j] < 8);
              EXPECT_TRUE(j == 0 || chosen[j] > chosen[j - 1]) << "distinct and rising";
            }
            const bool any = std::any_of(v.begin(), v.end(), [](double x) { return std::isnan(x); });
            for (double w : call.weights.get())
              EXPECT_TRUE(!any || std::isnan(w)) << "even where the NaN was not chosen";
            const Matrix dw(b_, a, 1, 4, Values(4, 1.0)), d(b_, a, 1, 8);
            b_.router_backward(s, call.logits, call.chosen, dw, {}, 0.1, d);
          }
        }
      }
    }
  }
  // numbers come first: a NaN is chosen where nothing else is left
  for (int64_t groups : {1, 3}) {
    const RouterShape s = router(6, 4, true, true, 1, groups, 2);
    EXPECT_EQ(Call(b_, DType::f32, s, 1, {nan, nan, 0, 1, 2, 3}, {}).chosen.get(), (Values{2, 3, 4, 5}));
    EXPECT_EQ(Call(b_, DType::f32, router(6, 4, true), 1, {nan, 1, nan, 0, nan, 2}, {}).chosen.get(),
              (Values{0, 1, 3, 5}));
  }
}

// O044: logits are of type A whatever the model computes in. Scores 2^-10 apart are one number in bf16.
TEST_F(Router, scores_are_told_apart_below_the_step_of_bf16) {
  const int64_t experts = 8;
  for (int64_t best = 0; best < experts; ++best) {
    Values v(at(experts), 1.0);
    v[at(best)] += 0x1p-10;
    ASSERT_EQ(rounded(DType::bf16, v[at(best)]), 1.0);
    for (bool sigmoid : {false, true})
      EXPECT_EQ(Call(b_, DType::f32, router(experts, 1, sigmoid), 1, v, {}).chosen.get(),
                Values{static_cast<double>(best)});
  }
  const Matrix coarse(b_, DType::bf16, 1, 8), chosen(b_, DType::i32, 1, 1), weights(b_, DType::f32, 1, 1),
      shares(b_, DType::f32, 1, 8);
  EXPECT_THROW(b_.router_forward(router(8, 1), coarse, {}, chosen, weights, shares), LogicError);
}

/// Every slope of  sum_j d_weights_j w_j + sum_i balance_i share_i + z lse^2  with the choice held.
Values slopes(const RouterShape& s, const Values& v, const Values& chosen, const Values& dw, const Values& balance,
              int64_t sequences, double z) {
  Values d;
  const auto tokens = static_cast<int64_t>(v.size()) / s.experts;
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int64_t> fixed;
    for (int64_t j = 0; j < s.top_k; ++j) fixed.push_back(static_cast<int64_t>(chosen[at(t * s.top_k + j)]));
    Values row(v.begin() + t * s.experts, v.begin() + (t + 1) * s.experts);
    const auto objective = [&] {
      const Routed r = plain(s, row.data(), nullptr, &fixed);
      long double sum = z * r.lse * r.lse;
      for (int64_t j = 0; j < s.top_k; ++j) sum += dw[at(t * s.top_k + j)] * r.weights[at(j)];
      for (int64_t i = 0; i < s.experts && !balance.empty(); ++i)
        sum += balance[at(t % sequences * s.experts + i)] * r.shares[at(i)];
      return sum;
    };
    for (double& x : row) {
      const double old = x, h = 1e-6;
      x = old + h;
      const long double up = objective(), right = x;
      x = old - h;
      const long double down = objective(), left = x;
      x = old;
      d.push_back(static_cast<double>((up - down) / (right - left)));
    }
  }
  return d;
}

TEST_F(Router, backward_is_the_slope) {
  const int64_t tokens = 9, sequences = 3;
  for (const RouterShape& s : all_routers()) {
    for (const auto& [balanced, z] : {std::pair{false, 0.0}, {true, 0.0}, {false, 0.05}, {true, 0.05}}) {
      for (DType a : sums) {
        SCOPED_TRACE(text(s) + " " + name_of(a) + (balanced ? " balance" : "") + " z " + std::to_string(z));
        const Values v = random_in(a, tokens * s.experts, 3, 1.5), dw = random_in(a, tokens * s.top_k, 4),
                     bias = random_in(a, s.experts, 6, 0.2);
        const Values balance = balanced ? random_in(a, sequences * s.experts, 5) : Values{};
        const Call call(b_, a, s, tokens, v, bias);
        const Matrix mdw(b_, a, tokens, s.top_k, dw, 1), d(b_, a, tokens, s.experts, Values(v.size(), 5.0), 2),
            mb(b_, a, sequences, s.experts, balanced ? balance : Values(at(sequences * s.experts), 0.0), 1);
        const Tensor given = balanced ? mb.tensor() : Tensor{};
        b_.router_backward(s, call.logits, call.chosen, mdw, given, z, d);
        const Values want = slopes(s, v, call.chosen.get(), dw, balance, sequences, z);
        expect_near(d.get(), want, a == DType::f64 ? 1e-9 : 1e-5, "d_logits");
        b_.router_backward(s, call.logits, call.chosen, mdw, given, z, call.logits);  // over the logits
        EXPECT_EQ(call.logits.get(), d.get());
      }
    }
  }
}

/// chosen, weights, shares and d_logits of the rows [first, first + count) of fixed operands.
std::vector<Values> results(int threads, DType a, const RouterShape& s, int64_t first, int64_t count) {
  auto owner = backend_with(threads);
  const auto part = [&](unsigned seed, int64_t width) {
    const Values all = random_in(a, 600 * width, seed);
    return Values(all.begin() + first * width, all.begin() + (first + count) * width);
  };
  const Call call(*owner, a, s, count, part(1, s.experts), random_in(a, s.experts, 2, 0.1));
  const Matrix dw(*owner, a, count, s.top_k, part(3, s.top_k)), d(*owner, a, count, s.experts),
      balance(*owner, a, 1, s.experts, random_in(a, s.experts, 4));
  owner->router_backward(s, call.logits, call.chosen, dw, balance, 0.01, d);
  return {call.chosen.get(), call.weights.get(), call.shares.get(), d.get()};
}

TEST(RouterBits, depend_on_the_token_alone) {
  for (bool sigmoid : {false, true}) {
    for (DType a : sums) {
      const RouterShape s = router(48, 6, sigmoid, true, 2.5, 4, 2);
      const auto whole = results(1, a, s, 0, 600), threaded = results(3, a, s, 0, 600),
                 part = results(2, a, s, 77, 300), one = results(1, a, s, 599, 1);
      EXPECT_EQ(threaded, whole);
      for (size_t i = 0; i < whole.size(); ++i) {
        const auto width = static_cast<std::ptrdiff_t>(whole[i].size() / 600);
        EXPECT_EQ(part[i], Values(whole[i].begin() + 77 * width, whole[i].begin() + 377 * width)) << i;
        EXPECT_EQ(one[i], Values(whole[i].begin() + 599 * width, whole[i].end())) << i;
      }
    }
  }
}

TEST_F(Router, counts_are_whole_numbers_and_add_up) {
  // O044: 40,840 picks; in bf16 neighbours of such a sum lie 256 apart
  const int64_t tokens = 5105, top_k = 8, experts = 24, sequences = 5;
  const Call call(b_, DType::f32, router(experts, top_k), tokens, random_in(DType::f32, tokens * experts, 8), {});
  const Values chosen = call.chosen.get();
  Values want(at(sequences * experts), 0.0);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t j = 0; j < top_k; ++j)
      want[at(t % sequences * experts) + static_cast<size_t>(chosen[at(t * top_k + j)])] += 1;
  const Matrix counts(b_, DType::i64, sequences, experts, 2);
  b_.count_choices(call.chosen, counts);
  EXPECT_EQ(counts.get(), want);
  EXPECT_EQ(std::accumulate(want.begin(), want.end(), 0.0), 40840.0);
  b_.count_choices(call.chosen, counts);  // added to what is there
  for (double& x : want) x *= 2;
  EXPECT_EQ(counts.get(), want);
  const Matrix all(b_, DType::i32, 40840, 1, Values(40840, 1.0)), one(b_, DType::i64, 1, 2);
  b_.count_choices(all, one);
  EXPECT_EQ(one.get(), (Values{0, 40840}));
  EXPECT_THROW(b_.count_choices(all, Matrix(b_, DType::i64, 1, 1)), LogicError) << "there is no expert 1";
}

TEST_F(Router, rows_are_gathered_and_combined) {
  const int64_t tokens = 130, width = 700, n = 3, rows = 250;
  // every row stands for one place of one token at most; the others are padding
  Values index(at(rows), -1.0), slot(at(tokens * n), -1.0);
  std::vector<int64_t> places(at(tokens * n));
  std::iota(places.begin(), places.end(), 0);
  std::mt19937 engine(4);
  std::shuffle(places.begin(), places.end(), engine);
  for (int64_t r = 0; r < rows; r += r % 7 == 3 ? 2 : 1) {
    index[at(r)] = static_cast<double>(places[at(r)] / n);
    slot[at(places[at(r)])] = static_cast<double>(r);
  }
  for (DType t : types) {
    SCOPED_TRACE(name_of(t));
    const Values x = random_in(t, tokens * width, 1), y = random_in(t, rows * width, 2);
    const Matrix mx(b_, t, tokens, width, x, 1), my(b_, t, rows, width, y, 2), mi(b_, DType::i32, rows, 1, index, 1),
        ms(b_, DType::i32, tokens, n, slot, 2), gathered(b_, t, rows, width, Values(y.size(), 8.0), 3),
        combined(b_, t, tokens, width, Values(x.size(), 8.0), 1);
    b_.gather_rows(mx, mi, gathered);
    b_.combine_rows(my, ms, combined);
    Values want, sum;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < width; ++c)
        want.push_back(index[at(r)] < 0 ? 0 : x[at(static_cast<int64_t>(index[at(r)]) * width + c)]);
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t c = 0; c < width; ++c) {
        double s = 0;
        for (int64_t j = 0; j < n; ++j) {
          const auto r = static_cast<int64_t>(slot[at(i * n + j)]);
          if (r < 0) continue;
          s += y[at(r * width + c)];
          if (t != DType::f64) s = static_cast<float>(s);
        }
        sum.push_back(rounded(t, s));
      }
    }
    EXPECT_EQ(gathered.get(), want);
    EXPECT_EQ(combined.get(), sum) << "in rising order, rounded once";
    if (t == DType::f64) {
      double left = 0, right = 0;
      for (size_t i = 0; i < want.size(); ++i) left += want[i] * y[i];
      for (size_t i = 0; i < sum.size(); ++i) right += sum[i] * x[i];
      EXPECT_NEAR(left, right, 1e-9 * std::fabs(left)) << "<gather x, y> = <x, combine y>";
    }
  }
  const Matrix half(b_, DType::f16, 2, 2, {1, 2, 3, 4}), pick(b_, DType::i32, 3, 1, {1, -1, 1}),
      out(b_, DType::f16, 3, 2);
  b_.gather_rows(half, pick, out);
  EXPECT_EQ(out.get(), (Values{3, 4, 0, 0, 3, 4}));
  EXPECT_THROW(b_.gather_rows(half, Matrix(b_, DType::i32, 3, 1, {0, 2, 0}), out), LogicError);
  EXPECT_THROW(b_.gather_rows(half, Matrix(b_, DType::i32, 3, 1, {0, -2, 0}), out), LogicError);
  const Matrix single(b_, DType::f32, 2, 2), to(b_, DType::f32, 1, 2);
  EXPECT_THROW(b_.combine_rows(single, Matrix(b_, DType::i32, 1, 2, {0, 2}), to), LogicError);
}

TEST(RouterEmpty, shapes_without_rows_are_no_work) {
  for (const char* name : {"cpu", "debug"}) {
    SCOPED_TRACE(name);
    auto owner = make_backend(name);
    Backend& b = *owner;
    const RouterShape s = router(4, 2);
    const Call none(b, DType::f32, s, 0, {}, {});
    const Matrix dw(b, DType::f32, 0, 2), d(b, DType::f32, 0, 4), counts(b, DType::i64, 1, 4, {1, 2, 3, 4});
    b.router_backward(s, none.logits, none.chosen, dw, {}, 0.1, d);
    b.count_choices(none.chosen, counts);
    EXPECT_EQ(counts.get(), (Values{1, 2, 3, 4}));

    const Matrix x(b, DType::f32, 3, 5, Values(15, 2.0)), no_rows(b, DType::f32, 0, 5), no_index(b, DType::i32, 0, 1),
        absent(b, DType::i32, 3, 1, {-1, -1, -1});
    b.gather_rows(x, no_index, no_rows);
    Matrix out(b, DType::f32, 3, 5, Values(15, 7.0));
    b.gather_rows(no_rows, absent, out);
    EXPECT_EQ(out.get(), Values(15, 0.0)) << "nothing to gather from";
    out.put(Values(15, 7.0));
    b.combine_rows(no_rows, absent, out);
    EXPECT_EQ(out.get(), Values(15, 0.0)) << "no expert kept the token";
    out.put(Values(15, 7.0));
    b.combine_rows(x, Matrix(b, DType::i32, 3, 0), out);
    EXPECT_EQ(out.get(), Values(15, 0.0));
    b.combine_rows(x, Matrix(b, DType::i32, 0, 2), no_rows);
    b.scale_rows(no_rows, Matrix(b, DType::f32, 0, 1), no_rows);
    b.row_dots(no_rows, no_rows, Matrix(b, DType::f64, 0, 1));
  }
}

TEST(Grouped, products_equal_single_ones_and_may_be_empty) {
  for (const char* name : {"cpu", "debug"}) {
    auto owner = make_backend(name);
    Backend& b = *owner;
    for (DType t : types) {
      SCOPED_TRACE(std::string(name) + " " + name_of(t));
      // the tokens of four experts, one of which has none: forward, input gradient, weight gradient
      const int64_t counts[] = {5, 0, 1, 9}, in = 6, out = 7, rows = 15;
      const DType a = accumulator(t);
      const Matrix x(b, t, rows, in, random_in(t, rows * in, 1)), w(b, t, 4 * out, in, random_in(t, 4 * out * in, 2)),
          dy(b, t, rows, out, random_in(t, rows * out, 3));
      const Values before = random_in(a, 4 * out * in, 4);
      const Matrix y(b, t, rows, out), y_one(b, t, rows, out), dx(b, t, rows, in), dx_one(b, t, rows, in),
          dw(b, a, 4 * out, in, before), dw_one(b, a, 4 * out, in, before);
      std::vector<Product> products;
      int64_t first = 0;
      for (int64_t e = 0; e < 4; ++e) {
        const auto rows_of = [&](const Matrix& m) { return m.tensor().row_range(first, counts[e]); };
        const auto weight_of = [&](const Matrix& m) { return m.tensor().row_range(e * out, out); };
        products.push_back({rows_of(x), false, weight_of(w), true, rows_of(y), false});
        products.push_back({rows_of(dy), false, weight_of(w), false, rows_of(dx), false});
        products.push_back({rows_of(dy), true, rows_of(x), false, weight_of(dw), true});
        b.gemm(rows_of(x), false, weight_of(w), true, rows_of(y_one), false);
        b.gemm(rows_of(dy), false, weight_of(w), false, rows_of(dx_one), false);
        b.gemm(rows_of(dy), true, rows_of(x), false, weight_of(dw_one), true);
        first += counts[e];
      }
      b.grouped_gemm(products);
      EXPECT_EQ(y.get(), y_one.get());
      EXPECT_EQ(dx.get(), dx_one.get());
      EXPECT_EQ(dw.get(), dw_one.get());
      const Values got = dw.get();
      for (size_t i = at(out * in); i < at(2 * out * in); ++i)
        EXPECT_EQ(got[i], before[i]) << "the gradient of an expert without tokens stays";
      const Matrix into(b, a, 3, 4, Values(12, 6.0));
      b.grouped_gemm({{Matrix(b, t, 3, 0), false, Matrix(b, t, 0, 4), false, into, false},
                      {Matrix(b, t, 3, 2), false, Matrix(b, t, 2, 0), false, Matrix(b, t, 3, 0), false}});
      EXPECT_EQ(into.get(), Values(12, 0.0)) << "K = 0 gives zeros";
      b.grouped_gemm({});
    }
  }
}

TEST(RouterDebug, gives_the_bits_of_cpu) {
  std::vector<Values> got[2];
  int n = 0;
  for (const char* name : {"cpu", "debug"}) {
    auto owner = make_backend(name);
    Backend& b = *owner;
    for (const RouterShape& s : {router(12, 4, true, true, 2.5, 3, 2), router(12, 3, false, false)}) {
      for (DType a : sums) {
        const int64_t tokens = 50, width = 24, rows = 60;
        const Call call(b, a, s, tokens, random_in(a, tokens * 12, 1), random_in(a, 12, 2, 0.1));
        const Matrix dw(b, a, tokens, s.top_k, random_in(a, tokens * s.top_k, 3)), d(b, a, tokens, 12),
            balance(b, a, 2, 12, random_in(a, 24, 4)), counts(b, DType::i64, 2, 12);
        b.router_backward(s, call.logits, call.chosen, dw, balance, 0.1, d);
        b.count_choices(call.chosen, counts);
        const DType t = a == DType::f64 ? a : DType::bf16;
        const Matrix x(b, t, tokens, width, random_in(t, tokens * width, 5)), y(b, t, rows, width),
            z(b, t, tokens, width), dots(b, DType::f64, tokens, 1), factor(b, a, tokens, 1, random_in(a, tokens, 6));
        Values index, slot;
        for (int64_t r = 0; r < rows; ++r) index.push_back(r % 5 == 4 ? -1.0 : static_cast<double>(r * 7 % tokens));
        for (int64_t i = 0; i < 2 * tokens; ++i)
          slot.push_back(i % 6 == 1 ? -1.0 : static_cast<double>(i * 11 % rows));
        b.gather_rows(x, Matrix(b, DType::i32, rows, 1, index), y);
        b.combine_rows(y, Matrix(b, DType::i32, tokens, 2, slot), z);
        b.scale_rows(z, factor, z);
        b.row_dots(x, z, dots);
        const Matrix table(b, a, 3, 6, random_in(a, 18, 7));
        b.rope(z, {3, 6, 8, true}, Matrix(b, DType::i32, tokens, 1, Values(at(tokens), 2.0)), table, false);
        for (const Matrix* m : {&call.chosen, &call.weights, &call.shares, &d, &counts, &y, &z, &dots})
          got[n].push_back(m->get());
      }
    }
    ++n;
  }
  EXPECT_EQ(got[0], got[1]);
}

TEST(RouterShapes, are_checked_with_and_without_numbers) {
  for (const char* name : {"cpu", "debug", "meta"}) {
    SCOPED_TRACE(name);
    auto owner = make_backend(name);
    Backend& b = *owner;
    const auto x = [&](DType t, int64_t rows, int64_t cols) { return b.alloc(t, rows, cols, MemoryKind::workspace); };
    const DType a = DType::f32;
    const Tensor logits = x(a, 6, 8), chosen = x(DType::i32, 6, 2), weights = x(a, 6, 2), shares = x(a, 6, 8),
                 bias = x(a, 1, 8);
    for (const Tensor& t : {logits, shares, weights, bias}) b.zero(t);
    const RouterShape good = router(8, 2, true, true, 1, 4, 1);
    const auto forward = [&](const RouterShape& s) { b.router_forward(s, logits, bias, chosen, weights, shares); };
    forward(good);
    forward(router(8, 2));
    EXPECT_THROW(forward(router(9, 2)), LogicError);
    EXPECT_THROW(forward(router(8, 3)), LogicError);
    EXPECT_THROW(forward(router(8, 0)), LogicError);
    EXPECT_THROW(forward(router(8, 2, true, true, 1, 3, 1)), LogicError) << "groups of unequal size";
    EXPECT_THROW(forward(router(8, 2, true, true, 1, 8, 1)), LogicError) << "one expert is not two";
    EXPECT_THROW(forward(router(8, 2, true, true, 1, 4, 5)), LogicError);
    EXPECT_THROW(b.router_forward(good, logits, x(a, 1, 7), chosen, weights, shares), LogicError);
    EXPECT_THROW(b.router_forward(good, logits, bias, x(DType::i64, 6, 2), weights, shares), LogicError);
    EXPECT_THROW(b.router_forward(good, logits, bias, chosen, x(DType::f64, 6, 2), shares), LogicError);
    b.router_backward(good, logits, chosen, weights, shares.row_range(0, 3), 0.1, shares);
    EXPECT_THROW(b.router_backward(good, logits, chosen, weights, x(a, 2, 7), 0.1, shares), LogicError);
    EXPECT_THROW(b.router_backward(good, logits, chosen, x(a, 6, 3), {}, 0.1, shares), LogicError);
    EXPECT_THROW(b.count_choices(chosen, x(DType::i32, 3, 8)), LogicError);
    const Tensor from = x(DType::bf16, 6, 10), index = x(DType::i32, 4, 1), out = x(DType::bf16, 4, 10);
    b.zero(index);
    b.gather_rows(from, index, out);
    b.combine_rows(from, index, out);
    EXPECT_THROW(b.gather_rows(from, index, x(DType::f32, 4, 10)), LogicError);
    EXPECT_THROW(b.gather_rows(from, index, x(DType::bf16, 5, 10)), LogicError);
    EXPECT_THROW(b.combine_rows(from, index, x(DType::bf16, 4, 9)), LogicError);
    EXPECT_THROW(b.scale_rows(from, x(DType::bf16, 6, 1), from), LogicError);
    EXPECT_THROW(b.row_dots(from, out, x(DType::f64, 6, 1)), LogicError);
    EXPECT_THROW(b.grouped_gemm({{from, false, out, false, x(a, 6, 10), false}}), LogicError);
  }
}

}  // namespace
