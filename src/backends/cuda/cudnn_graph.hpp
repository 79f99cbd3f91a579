// An operation graph of cuDNN, by its backend API: tensors of four dims, operations between them, and a plan to run it.
//
// https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-graph-library.html. The library's C API alone is
// used, so that nothing but cuDNN itself has to be there.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace orthant::cuda::dnn {

using Dims = std::array<int64_t, 4>;
/// Strides of a dense tensor, the last dim fastest.
Dims packed(const Dims& dims);

/// An object of the library, destroyed with this.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  Descriptor(Descriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Descriptor();
  cudnnBackendDescriptor_t raw() const { return raw_; }
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values);
  void set(cudnnBackendAttributeName_t name, const Descriptor& other) { set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.raw_); }
  void finalize();

 private:
  cudnnBackendDescriptor_t raw_ = nullptr;
};

/// A number in a graph, by its unique id.
using Node = int64_t;

/// What a plan is made for and runs on: a handle, or (to plan without a device) a description of one.
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* device = nullptr;
};

/// A graph that has been compiled. Its results depend on shapes and data alone: engines that say they are not
/// deterministic are passed over.
class Plan {
 public:
  int64_t workspace_bytes() const { return workspace_bytes_; }
  /// Puts the graph into the handle's stream. One pointer for each of `nodes`; `workspace` as large as asked for.
  void run(cudnnHandle_t handle, const std::vector<Node>& nodes, const std::vector<void*>& data, void* workspace) const;

 private:
  friend class Graph;
  std::deque<Descriptor> parts_;  // what the plan was made from
  Descriptor plan_;
  int64_t workspace_bytes_ = 0;
  std::deque<std::pair<Node, uint32_t>> constants_;  // and its bits, which the library reads at each run
};

class Graph {
 public:
  /// A tensor in memory. Type: CUDNN_DATA_BFLOAT16 and so on.
  Node tensor(cudnnDataType_t type, const Dims& dims, const Dims& strides);
  /// A tensor between two operations, which never is in memory as a whole.
  Node between(cudnnDataType_t type, const Dims& dims);
  Node between(cudnnDataType_t type, const Dims& dims, const Dims& strides);
  /// The same number everywhere.
  Node constant(float value);
  Node constant(int32_t value);

  /// c = a b over the last two dims, fp32 sums; dims 0 and 1 count products, and a dim of 1 or a divisor of the other's is repeated.
  void matmul(Node a, Node b, Node c);
  /// y = mode(x) or mode(x, b), element by element, dims of 1 repeated.
  void pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t compute, Node x, Node y);
  void pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t compute, Node x, Node b, Node y);
  /// y = the index along `axis`, with the dims of x.
  void index(int64_t axis, Node x, Node y);
  /// y = t ? x : b.
  void select(Node x, Node b, Node t, Node y);
  /// y: x reduced over the dims in which y is smaller.
  void reduce(cudnnReduceTensorOp_t mode, Node x, Node y);
  /// y is x with other dims and strides.
  void reshape(Node x, Node y);

  /// Null, with `why`, when the library has no deterministic engine for the graph that needs `most` bytes of workspace or
  /// less. The graph is used up.
  std::unique_ptr<Plan> plan(const Target& target, int64_t most, std::string& why);

 private:
  Node add(cudnnDataType_t type, const Dims& dims, const Dims& strides, bool between, bool by_value);
  Node constant(cudnnDataType_t type, uint32_t bits);
  const Descriptor& at(Node n) const { return tensors_[static_cast<size_t>(n - 1)]; }
  void operation(cudnnPointwiseMode_t mode, cudnnDataType_t compute, Node x, Node b, Node t, Node y, int64_t axis);

  std::deque<Descriptor> tensors_, helpers_, operations_;
  std::deque<std::pair<Node, uint32_t>> constants_;
};

/// FaultError with the call and the library's own words.
void check_dnn(cudnnStatus_t status, const char* call);
#define ORTHANT_DNN(call) ::orthant::cuda::dnn::check_dnn((call), #call)

}  // namespace orthant::cuda::dnn
