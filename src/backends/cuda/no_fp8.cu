// FP8 is not in this backend yet: its operations say so.
#include <string>

#include "backends/cuda/cuda_backend.hpp"

namespace orthant {
namespace {

[[noreturn]] void lacks(const char* operation) {
  throw UsageError("precision.compute = \"fp8\": the backend cuda has no operation " + std::string(operation) +
                   "; use \"bf16\", or device.backend = \"cpu\"");
}

}  // namespace

void CudaBackend::amax(const Tensor&, const Tensor&) { lacks("amax"); }
void CudaBackend::scale_from_amax(const Tensor&, DType, int, const Tensor&) { lacks("scale_from_amax"); }
void CudaBackend::quantize(const Tensor&, const Tensor&, const Quantised&) { lacks("quantize"); }
void CudaBackend::quantize_blocks(const Tensor&, BlockScale, const Quantised&) { lacks("quantize_blocks"); }
void CudaBackend::gemm_fp8(const Quantised&, bool, const Quantised&, bool, const Tensor&, bool, const Tensor&) {
  lacks("gemm_fp8");
}

}  // namespace orthant
