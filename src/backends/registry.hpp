// Backends that are not part of every build register themselves here, and the code above asks by name.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "orthant/collectives.hpp"

namespace orthant {

/// Ranks with a device each, and the collectives between these.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  /// Along an axis, over `comm`, which must outlive it, as must the group. Collective over all ranks of the group, in one
  /// order of calls, whatever the sizes of their `comm`s are.
  virtual std::unique_ptr<Transport> transport(MPI_Comm comm, AxisName axis) = 0;
  /// For the header, on rank 0 of the group: library and network.
  virtual std::string text() const = 0;
};

/// A backend on a device.
struct DeviceBackend {
  std::string name;
  /// Devices that this process sees; 0 also where the driver is missing.
  int (*devices)();
  /// On the device that is bound to this process.
  std::unique_ptr<Backend> (*make)();
  /// Binds a device to each rank of `world`. Collective. Returns what the header should say, or nothing. UsageError
  /// (agreed) when two ranks got one device although there are enough of them.
  std::string (*bind)(MPI_Comm world);
  /// Makes the ranks of `all`, which must outlive the group, ready for collectives between their devices. Collective.
  /// None where that cannot be, as with devices that ranks share.
  std::unique_ptr<DeviceGroup> (*join)(Backend& backend, MPI_Comm all);
  /// Whether the MPI of this process says that it takes memory of these devices.
  bool (*mpi_takes_memory)();
  /// Names and versions of its libraries, for `orthant --version`.
  std::vector<std::pair<std::string, std::string>> (*libraries)();
  /// Name of the bound device as its driver gives it; device_peaks.hpp knows what some of them can do.
  std::string (*device_name)() = nullptr;
};

/// From a static initialiser. Returns true.
bool add_backend(DeviceBackend backend);
const std::vector<DeviceBackend>& device_backends();
/// None when this build has no backend of that name.
const DeviceBackend* find_device_backend(const std::string& name);

/// What device.backend = `wanted` means here, and what the header should say about it.
struct ChosenBackend {
  std::string name;
  std::string note;
};
/// Binds the device. "auto" takes a device where every rank sees one, else the cpu. Collective; UsageError (agreed) for a
/// backend without a device on some rank.
ChosenBackend choose_backend(const std::string& wanted, MPI_Comm world);

}  // namespace orthant
