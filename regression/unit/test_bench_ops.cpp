// bench ops: its cases, their counted operations, right and wrong results, and the file; what devices are known to
// compute.
// labels: smoke
// seconds: 60
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backends/debug/debug_backend.hpp"
#include "backends/device_peaks.hpp"
#include "commands/bench.hpp"
#include "commands/ops_trial.hpp"

namespace orthant {
namespace {

TEST(BenchOps, CasesOfALayerAndTheirOperations) {
  const std::vector<OpCase> all = op_cases(op_sizes("full"), {DType::bf16, DType::f16});
  ASSERT_EQ(all.size(), 2u * (3 * 3 + 3 * 2));
  EXPECT_EQ(all[0].flops(), 2.0 * 8192 * 4096 * 4096);
  EXPECT_EQ(all[5].flops(), 2.0 * 8192 * 4096 * 14336);
  EXPECT_EQ(all[5].form, OpForm::backward_weight);
  // 2048 queries with half of 2048 keys each, 32 heads of 128, two products of 2 operations; five in the backward
  // pass
  EXPECT_EQ(all[9].flops(), 2048.0 * 1024 * 32 * 128 * 2 * 2);
  EXPECT_EQ(all[10].flops(), 2048.0 * 1024 * 32 * 128 * 5 * 2);
  EXPECT_EQ(all[9].text(), "attention forward 2048 tokens, 32 heads (8 kv) of 128");
  EXPECT_EQ(all[15].dtype, DType::f16);
  EXPECT_THROW(op_sizes("huge"), UsageError);
}

OpSizes tiny() { return {{{24, 40}, {40, 24}}, 9, {7, 33}, 4, 2, 8}; }

TEST(BenchOps, EveryCaseIsRightAndTakesTime) {
  const auto cpu = make_backend("cpu");
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    const std::vector<OpCase> cases = op_cases(tiny(), {t});
    OpTrial trial(*cpu, cases);
    for (const OpCase& c : cases) {
      ASSERT_NO_THROW(trial.check(c)) << c.text();
      const OpRate r = trial.time(c, 3, 1e-5);
      EXPECT_GE(r.calls, 1);
      EXPECT_GT(r.least, 0);
      EXPECT_GE(r.seconds, r.least);
      ASSERT_NO_THROW(trial.check(c)) << "again: " << c.text();
    }
  }
}

/// Leaves the last row of products and of dq unwritten, and attention's first row.
struct Lazy : DebugBackend {
  void gemm(const Tensor& a, bool ta, const Tensor& b, bool tb, const Tensor& c, bool accumulate,
            const Tensor& bias) override {
    if (!ta)
      DebugBackend::gemm(a.row_range(0, a.rows() - 1), ta, b, tb, c.row_range(0, c.rows() - 1), accumulate, bias);
  }
  void attention_forward(const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                         const Tensor& lse) override {
    DebugBackend::attention_forward(s, q, k, v, o, lse);
    if (!backward_only) zero(o.row_range(0, 1));
  }
  void attention_backward(const AttentionShape& s, const Tensor& d_o, const Tensor& q, const Tensor& k,
                          const Tensor& v, const Tensor& o, const Tensor& lse, const Tensor& dq, const Tensor& dk,
                          const Tensor& dv) override {
    DebugBackend::attention_backward(s, d_o, q, k, v, o, lse, dq, dk, dv);
    zero(dq.row_range(dq.rows() - 1, 1));
  }
  bool backward_only = false;
};

TEST(BenchOps, WrongResultsAreFoundAndNamed) {
  Lazy lazy;
  const std::vector<OpCase> cases = op_cases(tiny(), {DType::bf16});
  OpTrial trial(lazy, cases);
  for (const OpCase& c : cases) {
    lazy.backward_only = c.form == OpForm::backward;
    try {
      trial.check(c);
      ADD_FAILURE() << c.text() << " passed";
    } catch (const FaultError& e) {
      EXPECT_NE(std::string(e.what()).find(c.text()), std::string::npos) << e.what();
    }
  }
}

TEST(BenchOps, TheFileHasARowForEachCase) {
  const std::string path = ::testing::TempDir() + "bench_ops.json";
  OpsSettings s;
  s.backend = "cpu", s.sizes = "small", s.types = "bf16,fp32", s.repeat = 1, s.seconds = 0, s.json = path;
  CommandArgs args;
  args.world = MPI_COMM_SELF;
  EXPECT_EQ(bench_ops(args, s), 0);
  std::ifstream in(path);
  const nlohmann::json file = nlohmann::json::parse(in);
  std::remove(path.c_str());
  EXPECT_EQ(file["device"], "");
  EXPECT_TRUE(file["peak_tflops"].empty());
  ASSERT_EQ(file["rows"].size(), 2u * (9 + 4));
  EXPECT_EQ(file["rows"][0]["dtype"], "bf16");
  for (const auto& row : file["rows"]) {
    const double rate = row["flops"].get<double>() / row["seconds"].get<double>() / 1e12;
    EXPECT_TRUE(std::isfinite(rate) && rate > 0) << row.dump();
    EXPECT_NEAR(row["tflops"].get<double>(), rate, 1e-9 * rate);
    EXPECT_FALSE(row.contains("of_peak"));
  }
  s.attention = false, s.types = "fp16";
  EXPECT_EQ(bench_ops(args, s), 0);
  std::ifstream again(path);
  EXPECT_EQ(nlohmann::json::parse(again)["rows"].size(), 9u);
  std::remove(path.c_str());
}

TEST(BenchOps, WrongOptionsAreRefused) {
  CommandArgs args;
  args.world = MPI_COMM_SELF;
  OpsSettings s;
  s.backend = "cpu";
  const auto refused = [&](Exit code, const std::string& word) {
    try {
      bench_ops(args, s);
      ADD_FAILURE() << word << " was taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code);
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  };
  s.types = "fp32,fp8";
  refused(Exit::usage, "\"fp8\"");
  s.types = "bf16,tf32";
  refused(Exit::usage, "only cuda has TF32");
  s.types = "";
  refused(Exit::usage, "--types");
  s.types = "bf16", s.sizes = "huge";
  refused(Exit::usage, "huge");
  s.sizes = "small", s.backend = "tpu";
  refused(Exit::usage, "'tpu'");
  s.backend = "meta";
  refused(Exit::usage, "meta");
  s.backend = "cpu", s.json = "/no/such/folder/file";
  refused(Exit::data, "/no/such/folder/file");
  s.json = "", args.ranks = 2;
  refused(Exit::usage, "one rank, not 2");
}

TEST(DevicePeaks, BoardsAreToldApart) {
  EXPECT_EQ(peak_of_device("NVIDIA H200", DType::bf16), 989.4e12);
  EXPECT_EQ(peak_of_device("NVIDIA H100 80GB HBM3", DType::f16), 989.4e12);
  EXPECT_EQ(peak_of_device("NVIDIA H100 PCIe", DType::bf16), 756.5e12);
  EXPECT_EQ(peak_of_device("NVIDIA H200 NVL", DType::bf16), 835.5e12);
  EXPECT_EQ(peak_of_device("NVIDIA A100-SXM4-40GB", DType::bf16), 312e12);
  EXPECT_EQ(peak_of_device("NVIDIA A100-SXM-64GB", DType::bf16), 0);
  EXPECT_DOUBLE_EQ(peak_of_device("NVIDIA GH200 120GB", DType::f32), 66.9e12);
  EXPECT_EQ(peak_of_device("NVIDIA B200", DType::bf16), 2250e12);
  EXPECT_EQ(peak_of_device("NVIDIA GB200", DType::bf16), 0);
  EXPECT_EQ(peak_of_device("NVIDIA H200", DType::i32), 0);
  EXPECT_EQ(peak_of_device("NVIDIA GeForce RTX 4090", DType::bf16), 0);
  EXPECT_EQ(peak_of_device("", DType::bf16), 0);
  const auto cpu = make_backend("cpu");
  EXPECT_EQ(device_name(*cpu), "");
  EXPECT_EQ(peak_flops(*cpu, DType::bf16), 0);
}

}  // namespace
}  // namespace orthant
