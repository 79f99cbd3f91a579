// See device_peaks.hpp.
#include "backends/device_peaks.hpp"

#include "backends/registry.hpp"

namespace orthant {
namespace {

/// 1e12 flops/s, dense: half of what data sheets print "with sparsity".
struct Peak {
  const char* name;  ///< what the device's name holds; the first row that fits counts
  double half;       ///< bf16 and fp16 with fp32 sums
  double single;     ///< fp32, outside of tensor cores
  double twice;      ///< fp64, on tensor cores
};

// NVIDIA's data sheets: A100 (2020-2022), H100 (2022-2024: SXM, PCIe and NVL), H200 (2024: SXM and NVL), GH200
// (2023), HGX and DGX B200 (2024, by GPU). Boards that share a chip differ in clocks and cores, so a row names the
// board; the A100 of 64 GB is made for one machine and has no row.
constexpr Peak peaks[] = {
    {"A100-SXM-64GB", 0, 0, 0},
    {"A100", 312, 19.5, 19.5},
    {"H100 PCIe", 756.5, 51.2, 51.2},
    {"H100 NVL", 835.5, 60, 60},
    {"H100 80GB HBM3", 989.4, 66.9, 66.9},
    {"H200 NVL", 835.5, 60, 60},
    {"GH200", 989.4, 66.9, 66.9},
    {"GB200", 0, 0, 0},
    {"NVIDIA H200", 989.4, 66.9, 66.9},
    {"NVIDIA B200", 2250, 75, 37},
};

}  // namespace

double peak_of_device(const std::string& name, DType t) {
  for (const Peak& p : peaks) {
    if (name.find(p.name) == std::string::npos) continue;
    switch (t) {
      case DType::bf16:
      case DType::f16:
        return p.half * 1e12;
      case DType::f32:
        return p.single * 1e12;
      case DType::f64:
        return p.twice * 1e12;
      default:
        return 0;
    }
  }
  return 0;
}

std::string device_name(const Backend& backend) {
  const DeviceBackend* found = find_device_backend(backend.name());
  return found && found->device_name ? found->device_name() : std::string();
}

double peak_flops(const Backend& backend, DType t) {
  const bool tf32 = t == DType::f32 && backend.tf32();
  return peak_of_device(device_name(backend), tf32 ? DType::bf16 : t) / (tf32 ? 2 : 1);
}

}  // namespace orthant
