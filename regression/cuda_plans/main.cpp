// Does cuDNN take the attention graphs of the CUDA backend? Asked of the real library, for devices that are only
// described: it chooses an engine, compiles its kernel and says what workspace it needs (cuDNN's "deviceless" plans, from
// 9.11 on). Arguments: sm80, sm90 or sm100; that device and no other.
#include <cstdio>
#include <cstring>
#include <string>

#include "backends/cuda/attention_graph.hpp"

using namespace orthant::cuda::dnn;

namespace {

struct Device {
  const char *key, *name;
  int version, multiprocessors, shared;
};
// CUDA C++ Programming Guide, "Technical specifications per compute capability"; data sheets of the boards
constexpr Device devices[] = {{"sm80", "NVIDIA A100-SXM4-80GB", 800, 108, 166912},
                              {"sm90", "NVIDIA H100 80GB HBM3", 900, 132, 232448},
                              {"sm100", "NVIDIA B200", 1000, 148, 232448}};

std::string description(const Device& d) {
  return R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":)" +
         std::to_string(d.multiprocessors) + R"(,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":)" +
         std::to_string(d.shared) +
         R"(,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,)"
         R"("pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":85000000000,"smClockRateKHz":1980000,)"
         R"("memClockRateKHz":2619000,"l2CacheSize":52428800,"cudaDeviceId":0,"deviceVer":)" +
         std::to_string(d.version) + R"(,"driverVer":13000,"deviceName":")" + d.name + "\"}";
}

struct Case {
  const char* what;
  int64_t batch, heads, kv_heads, q_length, k_length, dim, v_dim, shift;
  bool documents, wide;     ///< wide: o in fp32, as a ring wants it
  bool forward, backward;   ///< on sm80, sm90 and sm100
  bool backward_90;         ///< only there
};
constexpr Case cases[] = {
    {"llama 8B", 1, 32, 8, 8192, 8192, 128, 128, 0, false, false, true, true, true},
    {"gpt2, two sequences", 2, 12, 12, 1024, 1024, 64, 64, 0, false, false, true, true, true},
    {"a ring's earlier keys", 1, 32, 8, 2048, 2048, 128, 128, 2048, false, true, true, true, true},
    {"keys gathered for a chunk", 1, 32, 8, 1024, 4096, 128, 128, 3072, false, false, true, true, true},
    {"documents", 2, 32, 8, 4096, 4096, 128, 128, 0, true, false, true, false, true},
};

const char* told(bool made) { return made ? "a plan" : "no plan"; }

}  // namespace

#if CUDNN_VERSION < 91100
int main() {
  std::puts("skipped: plans without a device need cuDNN 9.11");
  return 77;
}
#else
int main(int argc, char** argv) {
  const Device* device = nullptr;
  for (const Device& d : devices)
    if (argc == 2 && std::strcmp(argv[1], d.key) == 0) device = &d;
  if (!device) {
    std::fputs("usage: cuda_plans sm80|sm90|sm100\n", stderr);
    return 2;
  }
  const std::string text = description(*device);
  Descriptor described(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  described.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<int64_t>(text.size()), text.data());
  described.finalize();
  int wrong = 0;
  for (const Case& c : cases)
    for (const bool backward : {false, true}) {
      AttentionProblem p;
      p.batch = p.sequences = c.batch;
      p.heads = c.heads;
      p.kv_heads = c.kv_heads;
      p.q_length = c.q_length;
      p.k_length = c.k_length;
      p.dim = c.dim;
      p.v_dim = c.v_dim;
      p.shift = c.shift;
      p.documents = c.documents;
      p.ld_starts = 1;
      p.scale = 0.125f;
      if (c.wide && !backward) p.out_type = CUDNN_DATA_FLOAT;
      p.ld_q = p.ld_dq = c.heads * c.dim;
      p.ld_k = p.ld_dk = c.kv_heads * c.dim;
      p.ld_v = p.ld_dv = c.kv_heads * c.v_dim;
      p.ld_o = p.ld_do = c.heads * c.v_dim;
      Graph graph;
      if (backward) backward_graph(graph, p);
      else forward_graph(graph, p);
      std::string why;
      const auto plan = graph.plan({nullptr, &described}, int64_t{16} << 30, why);
      const bool expected = backward ? (device->version == 900 ? c.backward_90 : c.backward) : c.forward;
      std::printf("%-28s %-8s %s", c.what, backward ? "backward" : "forward", told(plan != nullptr));
      if (plan) std::printf(", workspace %lld bytes", static_cast<long long>(plan->workspace_bytes()));
      else std::printf(": %s", why.c_str());
      // a newer library may take more than is known of it
      const bool lost = expected && !plan;
      std::printf("%s\n", lost ? "   WRONG: a plan was expected" : "");
      wrong += lost;
    }
  return wrong == 0 ? 0 : 1;
}
#endif
