// Backends by name.
#include <string>

#include "backends/cpu/cpu_backend.hpp"
#include "backends/debug/debug_backend.hpp"
#include "backends/meta/meta_backend.hpp"

namespace orthant {

std::unique_ptr<Backend> make_backend(const std::string& name) {
  if (name == "cpu") return std::make_unique<CpuBackend>();
  if (name == "debug") return std::make_unique<DebugBackend>();
  if (name == "meta") return std::make_unique<MetaBackend>();
  throw UsageError("no backend '" + name + "' in this build; there are cpu, debug and meta");
}

}  // namespace orthant
