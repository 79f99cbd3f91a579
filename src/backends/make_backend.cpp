// Backends by name, and the choice that the deck leaves open.
#include <string>

#include "backends/cpu/cpu_backend.hpp"
#include "backends/debug/debug_backend.hpp"
#include "backends/meta/meta_backend.hpp"
#include "backends/registry.hpp"
#include "support/agree.hpp"

namespace orthant {
namespace {

std::vector<DeviceBackend>& registry() {
  static std::vector<DeviceBackend> all;
  return all;
}

/// Whether every rank of `world` sees a device.
bool everywhere(const DeviceBackend& b, MPI_Comm world) {
  int seen = b.devices() > 0 ? 1 : 0;
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &seen, 1, MPI_INT, MPI_MIN, world));
  return seen == 1;
}

}  // namespace

bool add_backend(DeviceBackend backend) {
  registry().push_back(std::move(backend));
  return true;
}

const std::vector<DeviceBackend>& device_backends() { return registry(); }

const DeviceBackend* find_device_backend(const std::string& name) {
  for (const DeviceBackend& b : registry())
    if (b.name == name) return &b;
  return nullptr;
}

ChosenBackend choose_backend(const std::string& wanted, MPI_Comm world) {
  if (wanted != "auto") {
    const DeviceBackend* b = find_device_backend(wanted);
    if (!b) return {wanted, ""};
    if (!everywhere(*b, world))
      throw UsageError("device.backend = \"" + wanted + "\": not every rank sees a device (is there a driver, and does the launcher give each rank one?); "
                       "device.backend = \"auto\" or \"cpu\" runs on the host's cores", true);
    return {wanted, b->bind(world)};
  }
  std::string none;
  for (const DeviceBackend& b : registry()) {
    if (everywhere(b, world)) return {b.name, b.bind(world)};
    none = "device.backend = \"auto\": not every rank sees a device for the backend " + b.name + ", so this run is on the host's cores";
  }
  return {"cpu", none};
}

std::unique_ptr<Backend> make_backend(const std::string& name) {
  if (name == "cpu") return std::make_unique<CpuBackend>();
  if (name == "debug") return std::make_unique<DebugBackend>();
  if (name == "meta") return std::make_unique<MetaBackend>();
  if (const DeviceBackend* b = find_device_backend(name)) return b->make();
  std::string known = "cpu, debug";
  for (const DeviceBackend& b : registry()) known += ", " + b.name;
  throw UsageError("no backend '" + name + "' in this build; there are " + known + " and meta");
}

}  // namespace orthant
