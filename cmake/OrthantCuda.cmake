# The backend on NVIDIA GPUs (ORTHANT_CUDA). CUDA, cuBLASLt and NCCL are linked as shared libraries and the driver
# (libcuda) not at all, so the program starts where there is no GPU and says so.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;100" CACHE STRING "GPU architectures; the last one also as PTX, for later ones")
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 and older do not know it of newer compilers
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
find_package(CUDAToolkit 12.8 REQUIRED)  # the first with sm_100
find_path(NCCL_INCLUDE_DIR NAMES nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_ROOT PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ENV NCCL_ROOT PATH_SUFFIXES lib lib64)
if(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
  message(FATAL_ERROR "NCCL (>= 2.18) was not found. Debian/Ubuntu: install libnccl-dev; clusters: load a module such as nccl; else set NCCL_ROOT.")
endif()
file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" nccl_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+).*" "\\1.\\2.\\3" NCCL_VERSION "${nccl_lines}")
if(NCCL_VERSION VERSION_LESS 2.18)
  message(FATAL_ERROR "NCCL ${NCCL_VERSION} is too old: 2.18 or newer is needed.")
endif()

file(GLOB orthant_cuda_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/backends/cuda/*.cu")
add_library(orthant_cuda STATIC ${orthant_cuda_sources})
set_target_properties(orthant_cuda PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_RUNTIME_LIBRARY Shared)
target_include_directories(orthant_cuda PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
target_include_directories(orthant_cuda SYSTEM PRIVATE "${NCCL_INCLUDE_DIR}")
# as on the host, no silent contraction: the same expression gives the same bits
target_compile_options(orthant_cuda PRIVATE -fmad=false -Xcompiler=-Wall,-Wextra,-ffp-contract=off)
target_compile_definitions(orthant_cuda PRIVATE OMPI_SKIP_MPICXX=1 MPICH_SKIP_MPICXX=1)
target_link_libraries(orthant_cuda PUBLIC MPI::MPI_CXX CUDA::cudart CUDA::cublasLt "${NCCL_LIBRARY}")
if(ORTHANT_WERROR)
  target_compile_options(orthant_cuda PRIVATE -Werror=all-warnings -Xcompiler=-Werror)
endif()
