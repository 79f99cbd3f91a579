// A product with gelu at its end, on the backends that make it of two calls; and precision.tf32 where nothing follows it.
// ranks: 1
// labels: smoke asan
// seconds: 30
#include <gtest/gtest.h>

#include "backend_kit.hpp"
#include "backends/meta/meta_backend.hpp"
#include "deck/all_keys.hpp"
#include "deck/check.hpp"

namespace orthant {
namespace {

using namespace kit;

TEST(GemmGelu, HasTheBitsOfItsTwoCalls) {
  for (const char* name : {"cpu", "debug"}) {
    auto made = make_backend(name);
    Backend& be = *made;
    for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::f64})
      for (const bool with_bias : {false, true}) {
        const Tensor x = random(be, t, 9, 20, 1, 23), w = random(be, t, 13, 20, 2), bias = with_bias ? random(be, t, 1, 13, 3) : Tensor();
        const Tensor pre = random(be, t, 9, 13, 4, 17), y = random(be, t, 9, 13, 5), pre2 = random(be, t, 9, 13, 6), y2 = random(be, t, 9, 13, 7, 14);
        be.gemm_gelu(x, false, w, true, bias, pre, y);
        be.gemm(x, false, w, true, pre2, false, bias);
        be.gelu_forward(pre2, y2);
        EXPECT_EQ(values(be, pre), values(be, pre2)) << name << " " << name_of(t);
        EXPECT_EQ(values(be, y), values(be, y2)) << name << " " << name_of(t);
      }
  }
}

TEST(GemmGelu, MetaChecksShapesAndCountsTheProduct) {
  MetaBackend be;
  const auto clock = std::make_shared<WorkClock>(false);
  clock->rate(1);
  be.times(clock);
  const auto of = [&](int64_t r, int64_t c) { return be.alloc(DType::bf16, r, c, MemoryKind::workspace); };
  be.gemm_gelu(of(4, 8), false, of(6, 8), true, of(1, 6), of(4, 6), of(4, 6));
  EXPECT_EQ(clock->ready(), 2 * 4 * 6 * 8 * int64_t{1000000000});
  EXPECT_THROW(be.gemm_gelu(of(4, 8), false, of(6, 8), true, {}, of(4, 6), of(4, 5)), LogicError);
  EXPECT_THROW(be.gemm_gelu(of(4, 8), false, of(6, 7), true, {}, of(4, 6), of(4, 6)), LogicError);
}

TEST(Tf32, IsRefusedWhereProductsOfF32AreWhole) {
  for (const char* name : {"cpu", "debug"}) {
    try {
      make_backend(name)->allow_tf32();
      ADD_FAILURE() << name;
    } catch (const UsageError& e) {
      EXPECT_NE(std::string(e.what()).find(std::string("the backend ") + name), std::string::npos) << e.what();
    }
  }
  make_backend("meta")->allow_tf32();
}

TEST(Tf32, IsRefusedByNameInDecksThatHaveNoUseForIt) {
  const auto problems = [](const std::string& rest) {
    std::string all;
    std::vector<std::string> absent;  // keys that every run needs, and this rule does not
    const Deck deck = Deck::parse("[precision]\ntf32 = true\n" + rest, "deck.toml", {}, {}, absent);
    for (const std::string& p : check_tf32(deck)) all += p + "\n";
    return all;
  };
  EXPECT_EQ(problems(""), "");
  EXPECT_EQ(problems("[device]\nbackend = \"cuda\"\n"), "");
  EXPECT_NE(problems("[device]\nbackend = \"cpu\"\n").find("device.backend = \"cpu\""), std::string::npos);
  EXPECT_NE(problems("[device]\nbackend = \"debug\"\n").find("device.backend = \"debug\""), std::string::npos);
  EXPECT_NE(problems("compute = \"bf16\"\n").find("precision.compute = \"bf16\""), std::string::npos);
  EXPECT_NE(problems("[run]\nreproducible = true\n").find("run.reproducible = true"), std::string::npos);
}

}  // namespace
}  // namespace orthant
