# Finds every library the program needs, checks what a wrong one would break later, and gathers them in the
# interface target orthant_dependencies.
add_library(orthant_dependencies INTERFACE)

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
set(MPI_DETERMINE_LIBRARY_VERSION OFF)
find_package(MPI 3.1 REQUIRED COMPONENTS C CXX)
find_package(OpenMP REQUIRED COMPONENTS CXX)

# HDF5 has to be the parallel build, and of the same MPI.
set(HDF5_PREFER_PARALLEL TRUE)
find_package(HDF5 COMPONENTS C)
set(hdf5_hint "Debian/Ubuntu: install libhdf5-openmpi-dev (or libhdf5-mpich-dev with MPICH). Clusters: load a module such as "
  "hdf5-parallel or cray-hdf5-parallel. Or point HDF5_ROOT to a parallel build.")
string(CONCAT hdf5_hint ${hdf5_hint})
if(NOT HDF5_FOUND)
  message(FATAL_ERROR "Parallel HDF5 (>= 1.10) was not found. ${hdf5_hint}")
endif()
if(NOT HDF5_IS_PARALLEL)
  message(FATAL_ERROR
    "The HDF5 that was found is the serial build (${HDF5_C_LIBRARIES}); Orthant writes checkpoints from all ranks and "
    "needs parallel HDF5. ${hdf5_hint}")
endif()

find_path(DNNL_INCLUDE_DIR NAMES dnnl.hpp oneapi/dnnl/dnnl.hpp)
find_library(DNNL_LIBRARY NAMES dnnl)
if(NOT DNNL_INCLUDE_DIR OR NOT DNNL_LIBRARY)
  message(FATAL_ERROR "oneDNN (>= 2.6) was not found. Debian/Ubuntu: install libdnnl-dev; else set DNNL_INCLUDE_DIR and DNNL_LIBRARY.")
endif()
set(dnnl_version_file "${DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h")
if(EXISTS "${dnnl_version_file}")
  file(STRINGS "${dnnl_version_file}" dnnl_lines REGEX "#define DNNL_VERSION_(MAJOR|MINOR|PATCH)")
  string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+).*" "\\1.\\2.\\3" DNNL_VERSION "${dnnl_lines}")
else()
  set(DNNL_VERSION "unknown")
endif()
if(NOT DNNL_VERSION STREQUAL "unknown" AND DNNL_VERSION VERSION_LESS 2.6)
  message(FATAL_ERROR "oneDNN ${DNNL_VERSION} is too old: 2.6 or newer is needed.")
endif()

find_package(nlohmann_json 3.9 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(spdlog REQUIRED)
find_package(PNG REQUIRED)
find_path(TOMLPP_INCLUDE_DIR NAMES toml++/toml.h)
find_path(XXHASH_INCLUDE_DIR NAMES xxhash.h)
find_library(XXHASH_LIBRARY NAMES xxhash)
foreach(item TOMLPP_INCLUDE_DIR:libtomlplusplus-dev XXHASH_INCLUDE_DIR:libxxhash-dev XXHASH_LIBRARY:libxxhash-dev)
  string(REPLACE ":" ";" pair "${item}")
  list(GET pair 0 variable)
  list(GET pair 1 package)
  if(NOT ${variable})
    message(FATAL_ERROR "${variable} was not found. Debian/Ubuntu: install ${package}.")
  endif()
endforeach()

target_include_directories(orthant_dependencies SYSTEM INTERFACE
  $<BUILD_INTERFACE:${DNNL_INCLUDE_DIR}> $<BUILD_INTERFACE:${TOMLPP_INCLUDE_DIR}> $<BUILD_INTERFACE:${XXHASH_INCLUDE_DIR}>
  $<BUILD_INTERFACE:${HDF5_C_INCLUDE_DIRS}>)
target_link_libraries(orthant_dependencies INTERFACE
  Threads::Threads MPI::MPI_C MPI::MPI_CXX OpenMP::OpenMP_CXX ${HDF5_C_LIBRARIES} ${DNNL_LIBRARY} ${XXHASH_LIBRARY}
  nlohmann_json::nlohmann_json CLI11::CLI11 fmt::fmt spdlog::spdlog PNG::PNG)
# the MPI C++ bindings of old headers are never wanted
target_compile_definitions(orthant_dependencies INTERFACE OMPI_SKIP_MPICXX=1 MPICH_SKIP_MPICXX=1)
