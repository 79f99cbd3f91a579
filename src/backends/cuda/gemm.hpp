// What gemm.cu keeps between products.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "backends/cuda/cuda_backend.hpp"

namespace orthant {

struct CudaBackend::Gemm {
  /// A problem: sizes, leading dims, and everything else packed into the last word.
  using Key = std::array<int64_t, 7>;
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  /// Descriptors and the algorithm of a problem; the bias pointer is set for each call.
  struct Plan;

  Gemm();
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  Plan& find(const Key& key);
  /// "cuBLASLt 13.1.0".
  static std::string version();

  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  std::unordered_map<Key, std::unique_ptr<Plan>, KeyHash> kept;
};

}  // namespace orthant
