// See store.hpp.
#include "orthant/store.hpp"

#include <algorithm>

namespace orthant {

namespace {

constexpr int64_t fill_elements = 4 << 20;  // bound of the host buffer used while weights are drawn or loaded

std::vector<AxisName> model_axes(const std::vector<AxisName>& sums) {
  std::vector<AxisName> out;
  int data = 0, expert = 0;
  for (AxisName a : sums) {
    if (a == AxisName::dp || a == AxisName::cp) ++data;
    else if (a == AxisName::edp_shard || a == AxisName::edp_replica) ++expert;
    else out.push_back(a);
  }
  ORTHANT_ENSURE((data == 2) != (expert == 2), "every gradient is summed over dp and cp, or over edp");
  return out;
}

}  // namespace

ParamStore::ParamStore(Backend& backend, const std::vector<Param>& params, const Layout& layout, Precision precision, bool training, int slots)
    : ParamStore(backend, std::vector<std::vector<Param>>{params}, layout, precision, StoreSettings{training, slots, {}, {}, nullptr}) {}

ParamStore::ParamStore(Backend& backend, const std::vector<std::vector<Param>>& units, const Layout& layout, Precision precision,
                       const StoreSettings& settings)
    : backend_(backend), precision_(precision), zero_(settings.zero), reproducible_(layout.reproducible()), training_(settings.training) {
  if (zero_.cuts_state()) {
    const MeshShape& shape = layout.shape();
    dense_ranks_.shards = shape.shard_size();
    dense_ranks_.index = shard_of(shape, layout.at());
    dense_ranks_.first = replica_of(shape, layout.at()) == 0;
    expert_ranks_.shards = shape.expert_shard_size();
    expert_ranks_.index = edp_shard_of(shape, layout.at());
    expert_ranks_.first = edp_replica_of(shape, layout.at()) == 0;
  } else {
    dense_ranks_.first = data_index_of(layout.shape(), layout.at()) == 0;
    expert_ranks_.first = edp_of(layout.shape(), layout.at()) == 0;
  }
  std::map<std::string, int64_t> index;
  auto list = [&](const std::vector<Param>& params) {
    for (const Param& p : params) {
      index.emplace(p.name, static_cast<int64_t>(index.size()));
      model_elements_ += p.elements();
    }
  };
  if (settings.model) list(*settings.model);
  else
    for (const auto& params : units) list(params);
  model_params_ = static_cast<int64_t>(index.size());
  for (const auto& params : units) add_unit(params, layout, settings, index);
  if (!training_) return;
  if (!zero_.sums_every_micro()) allocate_whole_gradients();
  for (ParamUnit& unit : units_) own_gradients(unit);
}

void ParamStore::add_unit(const std::vector<Param>& params, const Layout& layout, const StoreSettings& settings, const std::map<std::string, int64_t>& index) {
  const DType T = precision_.compute, A = precision_.accumulate();
  const auto number = static_cast<int64_t>(units_.size());
  units_.emplace_back();
  ParamUnit& unit = units_.back();
  for (const Param& p : params) {
    if (!layout.holds(p)) continue;
    params_.emplace_back();
    LocalParam& local = params_.back();
    local.param = p;
    local.index = index.at(p.name);
    local.unit = number;
    local.piece = layout.piece(p);
    if (p.trained) local.sums = model_axes(layout.sum_axes(p));
    local.copy = settings.copies.count(p.name) > 0;
    local.counted = layout.counted(p) && !local.copy;
    local.writes = p.trained ? local.counted && data_ranks(local).first : layout.writes(p);
    const Range own = shard_rows(local, data_ranks(local).index);
    local.own = local.piece;
    local.own.row += own.begin;
    local.own.rows = own.size;
    const int64_t rows = local.rows(), cols = local.cols();
    local_elements_ += rows * cols;
    by_name_[p.name] = &local;
    unit.params.push_back(&local);
    if (!p.trained) {
      local.weight = local.own_weight = local.master = backend_.alloc(A, rows, cols, MemoryKind::weights);
      continue;
    }
    if (zero_.gathers_weights()) {
      local.own_weight = backend_.alloc(T, own.size, cols, MemoryKind::weights);
    } else {
      local.weight = backend_.alloc(T, rows, cols, MemoryKind::weights);
      local.own_weight = local.weight.row_range(own.begin, own.size);
    }
    if (!precision_.has_copy()) local.master = local.own_weight;
    else if (training_ && !local.copy) local.master = backend_.alloc(A, own.size, cols, MemoryKind::master);
    if (training_ && !local.copy)
      for (int s = 0; s < settings.slots; ++s) {
        local.slots.push_back(backend_.alloc(A, own.size, cols, MemoryKind::optimizer));
        backend_.zero(local.slots.back());
      }
    unit.elements += rows * cols;
    const GradientSums sums{local.sums, local.expert()};
    auto group = std::find_if(unit.groups.begin(), unit.groups.end(), [&](const GradientGroup& g) { return g.sums == sums; });
    if (group == unit.groups.end()) group = unit.groups.insert(group, GradientGroup{sums, {}, 0, 0, {}});
    group->params.push_back(&local);
    group->elements += rows * cols;
  }
}

Tensor ParamStore::gradient_memory(int64_t elements) {
  return reproducible_ ? backend_.alloc(DType::i64, 2, elements, MemoryKind::gradients)
                       : backend_.alloc(precision_.accumulate(), 1, elements, MemoryKind::gradients);
}

/// Gives the parameters of a group their parts of its memory.
void ParamStore::cut_group(GradientGroup& g) {
  int64_t at = 0;
  for (LocalParam* p : g.params) {
    const int64_t size = p->rows() * p->cols();
    const Tensor part = g.gradients.col_range(at, size);
    if (reproducible_) p->grad_exact = part;
    else p->grad = Tensor(part.storage(), part.data(), part.dtype(), p->rows(), p->cols(), p->cols());  // dense
    at += size;
  }
}

void ParamStore::allocate_whole_gradients() {
  std::map<GradientSums, int64_t> sizes;
  for (ParamUnit& unit : units_)
    for (GradientGroup& g : unit.groups) {
      g.at = sizes[g.sums];
      sizes[g.sums] += g.elements;
    }
  for (const auto& [sums, n] : sizes) whole_gradients_[sums] = gradient_memory(n);
  for (ParamUnit& unit : units_) {
    unit.open = true;
    for (GradientGroup& g : unit.groups) {
      g.gradients = whole_gradients_[g.sums].col_range(g.at, g.elements);
      cut_group(g);
    }
  }
}

/// Own rows of the gradients: a part of the whole ones where those stay, else memory of their own.
void ParamStore::own_gradients(ParamUnit& unit) {
  for (LocalParam* p : unit.params) {
    if (!p->trained()) continue;
    const int64_t rows = p->own.rows, cols = p->cols();
    if (zero_.sums_every_micro()) {
      if (reproducible_) p->own_grad_exact = backend_.alloc(DType::i64, 2, rows * cols, MemoryKind::gradients);
      else p->own_grad = backend_.alloc(precision_.accumulate(), rows, cols, MemoryKind::gradients);
    } else if (reproducible_) {
      p->own_grad_exact = p->grad_exact.col_range(p->own_begin() * cols, rows * cols);
    } else {
      p->own_grad = p->grad.row_range(p->own_begin(), rows);
    }
  }
}

LocalParam& ParamStore::at(const std::string& name) {
  auto it = by_name_.find(name);
  ORTHANT_ENSURE(it != by_name_.end(), "no parameter is called " + name);
  return *it->second;
}

void ParamStore::fill(const std::function<void(const Param&, const Piece&, float*)>& fill) {
  if (backend_.shapes_only()) return;
  for (LocalParam& p : params_) {
    const Tensor& target = p.master ? p.master : p.own_weight;
    if (p.own.rows * p.cols() == 0) continue;
    int64_t step = std::max<int64_t>(1, fill_elements / std::max<int64_t>(1, p.cols()));
    for (int64_t r = 0; r < p.own.rows; r += step) {
      int64_t count = std::min(step, p.own.rows - r);
      Tensor buffer = backend_.alloc(DType::f32, count, p.cols(), MemoryKind::workspace);
      {
        Host<float> host(backend_, buffer);
        Piece part = p.own;
        part.row += r;
        part.rows = count;
        fill(p.param, part, host.data());
      }
      backend_.copy(target.row_range(r, count), buffer);
    }
  }
  round_weights();
}

void ParamStore::round_weights() {
  if (!precision_.has_copy()) return;
  for (LocalParam& p : params_)
    if (p.master && p.trained()) backend_.copy(p.own_weight, p.master);
}

void ParamStore::zero_gradients() {
  for (auto& [sums, t] : whole_gradients_) backend_.zero(t);
  if (!zero_.sums_every_micro()) return;
  for (size_t u = 0; u < units_.size(); ++u) {
    close_gradients(static_cast<int64_t>(u));
    for (LocalParam* p : units_[u].params) backend_.zero(reproducible_ ? p->own_grad_exact : p->own_grad);
  }
}

void ParamStore::open_gradients(int64_t number) {
  ParamUnit& unit = units_[static_cast<size_t>(number)];
  if (unit.open) return;
  unit.open = true;
  for (GradientGroup& g : unit.groups) {
    g.gradients = gradient_memory(g.elements);
    backend_.zero(g.gradients);
    cut_group(g);
  }
}

void ParamStore::close_gradients(int64_t number) {
  if (!zero_.sums_every_micro()) return;
  ParamUnit& unit = units_[static_cast<size_t>(number)];
  unit.open = false;
  for (GradientGroup& g : unit.groups) g.gradients = Tensor();
  for (LocalParam* p : unit.params) p->grad = p->grad_exact = Tensor();
}

void ParamStore::for_gradients(int64_t first, int64_t count, const std::function<void(const GradientSums&, const Tensor&)>& f) {
  if (zero_.sums_every_micro()) {
    for (int64_t u = first; u < first + count; ++u)
      for (GradientGroup& g : units_[static_cast<size_t>(u)].groups) f(g.sums, g.gradients);
    return;
  }
  for (auto& [sums, whole] : whole_gradients_) {  // consecutive units lie side by side
    int64_t begin = -1, end = -1;
    for (int64_t u = first; u < first + count; ++u)
      for (GradientGroup& g : units_[static_cast<size_t>(u)].groups) {
        if (g.sums != sums) continue;
        if (begin < 0) begin = g.at;
        end = g.at + g.elements;
      }
    if (end > begin) f(sums, whole.col_range(begin, end - begin));
  }
}

}  // namespace orthant
