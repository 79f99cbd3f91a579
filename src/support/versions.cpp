// See versions.hpp.
#include "support/versions.hpp"

#include <fmt/format.h>
#include <hdf5.h>
#include <mpi.h>
#include <oneapi/dnnl/dnnl.h>

#include <map>

#include "backends/registry.hpp"
#include "orthant/version.hpp"

namespace orthant {

namespace {

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);  // allowed before MPI_Init
  std::string s(text, static_cast<size_t>(length));
  return s.substr(0, s.find_first_of(",\n"));
}

std::string hdf5_library() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("HDF5 {}.{}.{} (parallel)", major, minor, release);
}

std::string dnnl_library() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", v->major, v->minor, v->patch);
}

}  // namespace

std::string libraries_text() { return mpi_library() + ", " + hdf5_library() + ", " + dnnl_library(); }

std::string version_text() {
  std::string out = fmt::format("orthant {}\ncommit    {}\ncompiler  {} ({})\nMPI       {}\nHDF5      {}\noneDNN    {}\n", ORTHANT_VERSION, ORTHANT_COMMIT,
                                ORTHANT_COMPILER, ORTHANT_BUILD_TYPE, mpi_library(), hdf5_library(), dnnl_library());
  std::string backends = "cpu, debug";
  std::map<std::string, std::string> libraries{{"CUDA", "not in this build"}, {"NCCL", "not in this build"}};
  for (const DeviceBackend& b : device_backends()) {
    backends += ", " + b.name;
    for (const auto& [name, version] : b.libraries()) libraries[name] = version;
  }
  for (const auto& [name, version] : libraries) out += fmt::format("{:<9} {}\n", name, version);
  return out + fmt::format("backends  {}\n", backends);
}

}  // namespace orthant
