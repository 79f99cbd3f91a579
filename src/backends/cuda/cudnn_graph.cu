// See cudnn_graph.hpp.
#ifdef ORTHANT_HAS_CUDNN
#include "backends/cuda/cudnn_graph.hpp"

#include <algorithm>
#include <bit>

#include "orthant/error.hpp"

namespace orthant::cuda::dnn {
namespace {

std::string last_words() {
  char text[512] = {};
  cudnnGetLastErrorString(text, sizeof text);
  return text;
}

/// Engine configurations for the graph, the library's favourite first.
std::vector<Descriptor> configurations(const Descriptor& graph, [[maybe_unused]] const Target& target, std::string& why) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if CUDNN_VERSION >= 91100
  if (target.device) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.device);
#endif
  if (cudnnBackendFinalize(heuristics.raw()) != CUDNN_STATUS_SUCCESS) {
    why = last_words();
    return {};
  }
  int64_t count = 0;
  ORTHANT_DNN(cudnnBackendGetAttribute(heuristics.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
  std::vector<Descriptor> found;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < count; ++i) raw.push_back(found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).raw());
  if (count == 0) return found;
  ORTHANT_DNN(cudnnBackendGetAttribute(heuristics.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, raw.data()));
  found.resize(static_cast<size_t>(count));
  return found;
}

bool deterministic(const Descriptor& configuration) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.raw();
  int64_t count = 0;
  ORTHANT_DNN(cudnnBackendGetAttribute(configuration.raw(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw));
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  ORTHANT_DNN(cudnnBackendGetAttribute(engine.raw(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes));
  return std::find(notes, notes + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == notes + count;
}

}  // namespace

void check_dnn(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw FaultError(std::string("cuDNN failed: ") + cudnnGetErrorString(status) + " in " + call + ": " + last_words());
}

Dims packed(const Dims& dims) { return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}; }

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) { ORTHANT_DNN(cudnnBackendCreateDescriptor(type, &raw_)); }
Descriptor::~Descriptor() {
  if (raw_) cudnnBackendDestroyDescriptor(raw_);
}
void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  ORTHANT_DNN(cudnnBackendSetAttribute(raw_, name, type, count, values));
}
void Descriptor::finalize() { ORTHANT_DNN(cudnnBackendFinalize(raw_)); }

Node Graph::add(cudnnDataType_t type, const Dims& dims, const Dims& strides, bool between, bool by_value) {
  Descriptor& t = tensors_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const auto id = static_cast<Node>(tensors_.size());
  const int64_t alignment = 16;
  t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data());
  t.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  const bool yes = true;
  if (between) t.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
  if (by_value) t.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
  t.finalize();
  return id;
}

Node Graph::tensor(cudnnDataType_t type, const Dims& dims, const Dims& strides) { return add(type, dims, strides, false, false); }
Node Graph::between(cudnnDataType_t type, const Dims& dims) { return between(type, dims, packed(dims)); }
Node Graph::between(cudnnDataType_t type, const Dims& dims, const Dims& strides) { return add(type, dims, strides, true, false); }
Node Graph::constant(cudnnDataType_t type, uint32_t bits) {
  const Dims one{1, 1, 1, 1};
  const Node n = add(type, one, one, false, true);
  constants_.emplace_back(n, bits);
  return n;
}
Node Graph::constant(float value) { return constant(CUDNN_DATA_FLOAT, std::bit_cast<uint32_t>(value)); }
Node Graph::constant(int32_t value) { return constant(CUDNN_DATA_INT32, std::bit_cast<uint32_t>(value)); }

void Graph::matmul(Node a, Node b, Node c) {
  Descriptor& kind = helpers_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  kind.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  kind.finalize();
  Descriptor& op = operations_.emplace_back(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, at(a));
  op.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, at(b));
  op.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, at(c));
  op.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
  op.finalize();
}

void Graph::operation(cudnnPointwiseMode_t mode, cudnnDataType_t compute, Node x, Node b, Node t, Node y, int64_t axis) {
  Descriptor& kind = helpers_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  kind.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  if (axis >= 0) kind.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
  kind.finalize();
  Descriptor& op = operations_.emplace_back(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(x));
  if (b) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(b));
  if (t) op.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, at(t));
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y));
  op.finalize();
}

void Graph::pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t compute, Node x, Node y) { operation(mode, compute, x, 0, 0, y, -1); }
void Graph::pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t compute, Node x, Node b, Node y) { operation(mode, compute, x, b, 0, y, -1); }
void Graph::index(int64_t axis, Node x, Node y) { operation(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, x, 0, 0, y, axis); }
void Graph::select(Node x, Node b, Node t, Node y) { operation(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, x, b, t, y, -1); }

void Graph::reduce(cudnnReduceTensorOp_t mode, Node x, Node y) {
  Descriptor& kind = helpers_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  kind.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
  kind.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  kind.finalize();
  Descriptor& op = operations_.emplace_back(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(x));
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(y));
  op.finalize();
}

void Graph::reshape(Node x, Node y) {
  Descriptor& op = operations_.emplace_back(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, at(x));
  op.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, at(y));
  op.finalize();
}

std::unique_ptr<Plan> Graph::plan(const Target& target, int64_t most, std::string& why) {
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Descriptor& op : operations_) raw.push_back(op.raw());
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(raw.size()), raw.data());
  if (target.handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
  if (cudnnBackendFinalize(graph.raw()) != CUDNN_STATUS_SUCCESS) {
    why = last_words();
    return nullptr;
  }
  why = "no engine";
  for (Descriptor& configuration : configurations(graph, target, why)) {
    if (!deterministic(configuration)) {
      why = "no deterministic engine";
      continue;
    }
    auto plan = std::make_unique<Plan>();
    plan->plan_ = Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan->plan_.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    if (target.handle) plan->plan_.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
#if CUDNN_VERSION >= 91100
    if (target.device) plan->plan_.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.device);
#endif
    if (cudnnBackendFinalize(plan->plan_.raw()) != CUDNN_STATUS_SUCCESS) {
      why = last_words();
      continue;
    }
    int64_t count = 0;
    ORTHANT_DNN(cudnnBackendGetAttribute(plan->plan_.raw(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &plan->workspace_bytes_));
    if (plan->workspace_bytes_ > most) {
      why = "its workspace would take " + std::to_string(plan->workspace_bytes_) + " bytes";
      continue;
    }
    plan->constants_ = std::move(constants_);
    for (std::deque<Descriptor>* parts : {&tensors_, &helpers_, &operations_})
      for (Descriptor& part : *parts) plan->parts_.push_back(std::move(part));
    plan->parts_.push_back(std::move(graph));
    plan->parts_.push_back(std::move(configuration));
    return plan;
  }
  return nullptr;
}

void Plan::run(cudnnHandle_t handle, const std::vector<Node>& nodes, const std::vector<void*>& data, void* workspace) const {
  std::vector<Node> ids = nodes;
  std::vector<void*> pointers = data;
  for (const auto& [node, bits] : constants_) {
    ids.push_back(node);
    pointers.push_back(const_cast<uint32_t*>(&bits));  // the library only reads it
  }
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, static_cast<int64_t>(ids.size()), ids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, static_cast<int64_t>(pointers.size()), pointers.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finalize();
  ORTHANT_DNN(cudnnBackendExecute(handle, plan_.raw(), pack.raw()));
}

}  // namespace orthant::cuda::dnn
#endif
