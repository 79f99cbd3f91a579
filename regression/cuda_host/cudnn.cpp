// The stand-in for cuDNN: descriptors with the demands of the backend API, and graphs carried out one operation after
// the other in fp32, each result rounded to its tensor's type. See include/cudnn.h.
#include "cudnn.h"

#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "orthant/elementwise.hpp"

using host_stand_in::refuse;

struct cudnnStandInHandle {
  cudaStream_t stream = nullptr;
};
struct cudnnStandInDescriptor {
  cudnnBackendDescriptorType_t type;
  std::map<cudnnBackendAttributeName_t, std::vector<char>> values;
  bool final = false;
  bool repeats = true;  // of an engine

  template <class T>
  std::vector<T> all(cudnnBackendAttributeName_t name) const {
    std::vector<T> out;
    if (const auto it = values.find(name); it != values.end()) {
      out.resize(it->second.size() / sizeof(T));
      std::memcpy(out.data(), it->second.data(), it->second.size());
    }
    return out;
  }
  bool has(cudnnBackendAttributeName_t name) const { return values.count(name) > 0; }
  template <class T>
  T one(cudnnBackendAttributeName_t name) const {
    const auto it = values.find(name);
    if (it == values.end() || it->second.size() != sizeof(T))
      refuse("cuDNN: a descriptor of type " + std::to_string(type) + " lacks attribute " + std::to_string(name));
    T x;
    std::memcpy(&x, it->second.data(), sizeof x);
    return x;
  }
  const cudnnStandInDescriptor& part(cudnnBackendAttributeName_t name) const { return *one<cudnnBackendDescriptor_t>(name); }
};

namespace {

std::set<const void*> alive;
std::string last_words;

cudnnStatus_t bad(const std::string& why, cudnnStatus_t status = CUDNN_STATUS_BAD_PARAM) {
  last_words = why;
  return status;
}
void use(const void* x) {
  if (!alive.count(x)) refuse("a cuDNN object is used that does not exist");
}

size_t size_of(cudnnBackendAttributeType_t t) {
  switch (t) {
    case CUDNN_TYPE_INT64: return 8;
    case CUDNN_TYPE_BOOLEAN: return 1;
    case CUDNN_TYPE_HANDLE: case CUDNN_TYPE_VOID_PTR: case CUDNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void*);
    default: return 4;  // enums
  }
}

// ---- numbers

using Dims = std::vector<int64_t>;

struct TensorOf {
  explicit TensorOf(const cudnnStandInDescriptor& d)
      : id(d.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
        type(d.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
        dims(d.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS)),
        strides(d.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES)),
        between(d.has(CUDNN_ATTR_TENSOR_IS_VIRTUAL) && d.one<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL)),
        by_value(d.has(CUDNN_ATTR_TENSOR_IS_BY_VALUE) && d.one<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE)) {}
  int64_t size() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  /// f(index in order of the dims, place in memory, the four indices)
  template <class F>
  void each(F&& f) const {
    int64_t n = 0, i[4];
    for (i[0] = 0; i[0] < dims[0]; ++i[0])
      for (i[1] = 0; i[1] < dims[1]; ++i[1])
        for (i[2] = 0; i[2] < dims[2]; ++i[2])
          for (i[3] = 0; i[3] < dims[3]; ++i[3])
            f(n++, i[0] * strides[0] + i[1] * strides[1] + i[2] * strides[2] + i[3] * strides[3], i);
  }
  int64_t bytes() const { return type == CUDNN_DATA_BOOLEAN ? 1 : type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16 ? 2 : 4; }
  int64_t id;
  cudnnDataType_t type;
  Dims dims, strides;
  bool between, by_value;
};

double read(cudnnDataType_t t, const char* at) {
  switch (t) {
    case CUDNN_DATA_FLOAT: { float x; std::memcpy(&x, at, 4); return x; }
    case CUDNN_DATA_INT32: { int32_t x; std::memcpy(&x, at, 4); return x; }
    case CUDNN_DATA_BFLOAT16: { orthant::bf16 x; std::memcpy(&x, at, 2); return orthant::to_float(x); }
    case CUDNN_DATA_HALF: { orthant::f16 x; std::memcpy(&x, at, 2); return orthant::to_float(x); }
    case CUDNN_DATA_BOOLEAN: return *at;
  }
  refuse("a type that cuDNN does not have");
}
void write(cudnnDataType_t t, char* at, double v) {
  const auto f = static_cast<float>(v);
  switch (t) {
    case CUDNN_DATA_FLOAT: std::memcpy(at, &f, 4); return;
    case CUDNN_DATA_INT32: { const auto x = static_cast<int32_t>(v); std::memcpy(at, &x, 4); return; }
    case CUDNN_DATA_BFLOAT16: { const orthant::bf16 x = orthant::to_bf16(f); std::memcpy(at, &x, 2); return; }
    case CUDNN_DATA_HALF: { const orthant::f16 x = orthant::to_f16(f); std::memcpy(at, &x, 2); return; }
    case CUDNN_DATA_BOOLEAN: *at = v != 0; return;
  }
}
double rounded(cudnnDataType_t t, double v) {
  char place[4] = {};
  write(t, place, v);
  return read(t, place);
}

/// A graph at work: numbers of every tensor met so far, in the order of its dims.
struct Interpreter {
  std::map<int64_t, char*> memory;
  std::map<int64_t, std::vector<double>> numbers;

  char* place(const TensorOf& t) {
    const auto it = memory.find(t.id);
    if (it == memory.end()) refuse("cuDNN: tensor " + std::to_string(t.id) + " has no data pointer");
    return it->second;
  }
  const std::vector<double>& get(const TensorOf& t) {
    if (const auto it = numbers.find(t.id); it != numbers.end()) return it->second;
    if (t.between) refuse("cuDNN: tensor " + std::to_string(t.id) + " is read before it is made");
    std::vector<double>& x = numbers[t.id];
    x.resize(static_cast<size_t>(t.size()));
    const char* from = place(t);
    t.each([&](int64_t n, int64_t at, const int64_t*) { x[static_cast<size_t>(n)] = read(t.type, from + at * t.bytes()); });
    return x;
  }
  void put(const TensorOf& t, std::vector<double> x) {
    for (double& v : x) v = rounded(t.type, v);
    if (!t.between) {
      char* to = place(t);
      t.each([&](int64_t n, int64_t at, const int64_t*) { write(t.type, to + at * t.bytes(), x[static_cast<size_t>(n)]); });
    }
    numbers[t.id] = std::move(x);
  }

  /// The element of t that stands for index i of a larger tensor: dims of 1 are repeated, heads in groups.
  static size_t index(const TensorOf& t, const int64_t* i, const Dims& of) {
    int64_t n = 0;
    if (t.dims == of) return static_cast<size_t>(((i[0] * of[1] + i[1]) * of[2] + i[2]) * of[3] + i[3]);
    for (size_t d = 0; d < 4; ++d) {
      if (of[d] % t.dims[d] != 0) refuse("cuDNN: dims that do not fit each other");
      n = n * t.dims[d] + i[d] / (of[d] / t.dims[d]);
    }
    return static_cast<size_t>(n);
  }

  void matmul(const TensorOf& a, const TensorOf& b, const TensorOf& c) {
    const int64_t depth = a.dims[3];
    if (b.dims[2] != depth || a.dims[2] != c.dims[2] || b.dims[3] != c.dims[3]) refuse("cuDNN: a matmul of dims that do not fit");
    const int64_t m = c.dims[2], n = c.dims[3], group_a = c.dims[1] / a.dims[1], group_b = c.dims[1] / b.dims[1];
    const auto &x = get(a), &y = get(b);
    std::vector<double> out(static_cast<size_t>(c.size()));
    std::vector<float> row(static_cast<size_t>(n));
    for (int64_t i = 0; i < c.dims[0]; ++i)
      for (int64_t h = 0; h < c.dims[1]; ++h)
        for (int64_t r = 0; r < m; ++r) {
          const double* left = &x[static_cast<size_t>(((i * a.dims[1] + h / group_a) * m + r) * depth)];
          const double* right = &y[static_cast<size_t>((i * b.dims[1] + h / group_b) * depth * n)];
          std::fill(row.begin(), row.end(), 0.0f);
          for (int64_t k = 0; k < depth; ++k)
            for (int64_t j = 0; j < n; ++j) row[static_cast<size_t>(j)] += static_cast<float>(left[k]) * static_cast<float>(right[k * n + j]);
          std::copy(row.begin(), row.end(), out.begin() + ((i * c.dims[1] + h) * m + r) * n);
        }
    put(c, std::move(out));
  }

  void pointwise(const cudnnStandInDescriptor& op) {
    const auto& kind = op.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto mode = kind.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    const TensorOf x(op.part(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)), y(op.part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    std::vector<double> out(static_cast<size_t>(y.size()));
    if (mode == CUDNN_POINTWISE_GEN_INDEX) {
      const auto axis = kind.one<int64_t>(CUDNN_ATTR_POINTWISE_AXIS);
      y.each([&](int64_t n, int64_t, const int64_t* i) { out[static_cast<size_t>(n)] = static_cast<double>(i[axis]); });
      return put(y, std::move(out));
    }
    const auto& xs = get(x);
    const auto each = [&](auto&& f) {
      y.each([&](int64_t n, int64_t, const int64_t* i) { out[static_cast<size_t>(n)] = f(static_cast<float>(xs[index(x, i, y.dims)]), i); });
      put(y, std::move(out));
    };
    if (mode == CUDNN_POINTWISE_EXP) return each([](float v, const int64_t*) { return std::exp(v); });
    if (mode == CUDNN_POINTWISE_LOG) return each([](float v, const int64_t*) { return std::log(v); });
    const TensorOf b(op.part(CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
    const auto& bs = get(b);
    const auto right = [&](const int64_t* i) { return static_cast<float>(bs[index(b, i, y.dims)]); };
    switch (mode) {
      case CUDNN_POINTWISE_ADD: return each([&](float v, const int64_t* i) { return v + right(i); });
      case CUDNN_POINTWISE_SUB: return each([&](float v, const int64_t* i) { return v - right(i); });
      case CUDNN_POINTWISE_MUL: return each([&](float v, const int64_t* i) { return v * right(i); });
      case CUDNN_POINTWISE_DIV: return each([&](float v, const int64_t* i) { return v / right(i); });
      case CUDNN_POINTWISE_CMP_GE: return each([&](float v, const int64_t* i) { return v >= right(i) ? 1.0f : 0.0f; });
      case CUDNN_POINTWISE_BINARY_SELECT: {
        const TensorOf t(op.part(CUDNN_ATTR_OPERATION_POINTWISE_TDESC));
        const auto& ts = get(t);
        return each([&](float v, const int64_t* i) { return ts[index(t, i, y.dims)] != 0 ? v : right(i); });
      }
      default: refuse("a mode of cuDNN's pointwise operation that the stand-in does not have");
    }
  }

  void reduce(const cudnnStandInDescriptor& op) {
    const TensorOf x(op.part(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)), y(op.part(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
    const bool most = op.part(CUDNN_ATTR_OPERATION_REDUCTION_DESC).one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
    const auto& xs = get(x);
    std::vector<double> out(static_cast<size_t>(y.size()), most ? -HUGE_VAL : 0.0);
    x.each([&](int64_t n, int64_t, const int64_t* i) {
      double& to = out[index(y, i, x.dims)];
      const double v = xs[static_cast<size_t>(n)];
      to = most ? std::max(to, v) : static_cast<double>(static_cast<float>(to) + static_cast<float>(v));
    });
    put(y, std::move(out));
  }

  /// The same memory with other dims and strides.
  void reshape(const TensorOf& x, const TensorOf& y) {
    int64_t last = 0;
    const auto& xs = get(x);
    x.each([&](int64_t, int64_t at, const int64_t*) { last = std::max(last, at); });
    std::vector<double> place(static_cast<size_t>(last + 1), std::nan("")), out(static_cast<size_t>(y.size()));
    x.each([&](int64_t n, int64_t at, const int64_t*) { place[static_cast<size_t>(at)] = xs[static_cast<size_t>(n)]; });
    y.each([&](int64_t n, int64_t at, const int64_t*) {
      if (at > last) refuse("cuDNN: a reshape reads what its input does not have");
      out[static_cast<size_t>(n)] = place[static_cast<size_t>(at)];
    });
    put(y, std::move(out));
  }

  void run(const cudnnStandInDescriptor& op) {
    switch (op.type) {
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return matmul(TensorOf(op.part(CUDNN_ATTR_OPERATION_MATMUL_ADESC)), TensorOf(op.part(CUDNN_ATTR_OPERATION_MATMUL_BDESC)),
                      TensorOf(op.part(CUDNN_ATTR_OPERATION_MATMUL_CDESC)));
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return pointwise(op);
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: return reduce(op);
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return reshape(TensorOf(op.part(CUDNN_ATTR_OPERATION_RESHAPE_XDESC)), TensorOf(op.part(CUDNN_ATTR_OPERATION_RESHAPE_YDESC)));
      default: refuse("an operation of cuDNN that the stand-in does not have");
    }
  }
};

/// All tensors of a graph, by id.
std::map<int64_t, TensorOf> tensors_of(const cudnnStandInDescriptor& graph) {
  std::map<int64_t, TensorOf> found;
  for (const cudnnBackendDescriptor_t op : graph.all<cudnnBackendDescriptor_t>(CUDNN_ATTR_OPERATIONGRAPH_OPS))
    for (const auto& [name, value] : op->values)
      for (const cudnnBackendDescriptor_t part : op->all<cudnnBackendDescriptor_t>(name))
        if (part->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) found.emplace(part->one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID), TensorOf(*part));
  return found;
}

int64_t workspace_of(const cudnnStandInDescriptor& graph) {
  int64_t most = 256;  // transposed products keep their left side in memory, as the library's deterministic backward does
  for (const auto& [id, t] : tensors_of(graph))
    if (t.between && t.strides[2] == 1) most += t.size() * t.bytes();
  return most;
}

}  // namespace

size_t cudnnGetVersion() { return CUDNN_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t status) { return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_BAD_PARAM"; }
void cudnnGetLastErrorString(char* message, size_t max_size) {
  std::strncpy(message, last_words.c_str(), max_size - 1);
  message[max_size - 1] = 0;
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  alive.insert(*handle = new cudnnStandInHandle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  use(handle);
  alive.erase(handle);
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  use(handle);
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  alive.insert(*descriptor = new cudnnStandInDescriptor{type, {}});
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  use(descriptor);
  alive.erase(descriptor);
  delete descriptor;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  use(d);
  if (d->final) return bad("an attribute of a descriptor that is final");
  if (count < 1 || !values) return bad("an attribute without values");
  const size_t bytes = static_cast<size_t>(count) * size_of(type);
  d->values[name].assign(static_cast<const char*>(values), static_cast<const char*>(values) + bytes);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    for (const cudnnBackendDescriptor_t part : d->all<cudnnBackendDescriptor_t>(name)) {
      use(part);
      if (!part->final) return bad("a part that is not final");
    }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t, int64_t requested,
                                       int64_t* count, void* values) {
  use(d);
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      *count = 2;  // the favourite does not repeat its bits
      if (requested == 0) return CUDNN_STATUS_SUCCESS;
      auto* out = static_cast<cudnnBackendDescriptor_t*>(values);
      for (int64_t i = 0; i < std::min<int64_t>(requested, 2); ++i) {
        use(out[i]);
        out[i]->values = d->values;
        out[i]->repeats = i == 1;
        out[i]->final = true;
      }
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE: {
      auto* out = *static_cast<cudnnBackendDescriptor_t*>(values);
      use(out);
      out->repeats = d->repeats;
      out->final = true;
      *count = 1;
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: {
      const cudnnBackendNumericalNote_t notes[] = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
      *count = d->repeats ? 1 : 2;
      std::memcpy(values, notes, static_cast<size_t>(*count) * sizeof notes[0]);
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      *static_cast<int64_t*>(values) =
          workspace_of(d->part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
      *count = 1;
      return CUDNN_STATUS_SUCCESS;
    default: return bad("an attribute that cannot be asked for");
  }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) {
  use(d);
  if (d->final) return bad("finalised twice");
  if (d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
    const TensorOf t(*d);
    if (t.dims.size() != 4 || t.strides.size() != 4) return bad("a tensor that has not four dims");
    for (size_t i = 0; i < 4; ++i)
      if (t.dims[i] < 1 || t.strides[i] < 1) return bad("a dim or stride below 1");
  }
  if (d->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
    if (!d->has(CUDNN_ATTR_OPERATIONGRAPH_HANDLE)) return bad("a graph without a handle");
    use(d->one<cudnnHandle_t>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE));
    for (const auto& [id, t] : tensors_of(*d)) {  // what the library's attention asks of tensors in memory
      const bool numbers = t.type == CUDNN_DATA_BFLOAT16 || t.type == CUDNN_DATA_HALF;
      if (!t.between && numbers && t.strides[3] != 1 && t.strides[2] != 1) return bad("no dim is dense", CUDNN_STATUS_NOT_SUPPORTED);
      if (!t.between && numbers)
        for (const int64_t stride : t.strides)
          if (stride != 1 && stride % 8 != 0) return bad("rows are not 16-byte aligned", CUDNN_STATUS_NOT_SUPPORTED);
    }
  }
  d->final = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  use(handle);
  use(plan);
  use(pack);
  const auto ids = pack->all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack->all<char*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  if (ids.size() != pointers.size()) return bad("ids and pointers differ in number");
  const auto& graph = plan->part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  Interpreter work;
  std::map<int64_t, char*> given;
  for (size_t i = 0; i < ids.size(); ++i) given[ids[i]] = pointers[i];
  for (const auto& [id, t] : tensors_of(graph)) {
    if (t.between) continue;
    const auto it = given.find(id);
    if (it == given.end()) return bad("tensor " + std::to_string(id) + " has no data pointer");
    if (t.by_value) work.numbers[id] = {read(t.type, it->second)};  // from the host, at once
    else if (reinterpret_cast<uintptr_t>(it->second) % 16 != 0 && t.type != CUDNN_DATA_INT32) return bad("a pointer is not 16-byte aligned");
  }
  work.memory = std::move(given);
  const auto operations = graph.all<cudnnBackendDescriptor_t>(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  char* workspace = pack->one<char*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  const int64_t bytes = workspace_of(graph);
  host_stand_in::enqueue(handle->stream, [work, operations, workspace, bytes]() mutable {
    std::memset(workspace, 0xff, static_cast<size_t>(bytes));  // it is the library's to write
    for (const cudnnBackendDescriptor_t op : operations) {
      use(op);
      work.run(*op);
    }
  });
  return CUDNN_STATUS_SUCCESS;
}
