# Writes version.hpp with what `orthant --version` prints: version, commit, compiler.
find_package(Git QUIET)
set(ORTHANT_COMMIT "unknown")
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C "${PROJECT_SOURCE_DIR}" describe --always --dirty
                  OUTPUT_VARIABLE ORTHANT_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT ORTHANT_COMMIT)
  set(ORTHANT_COMMIT "unknown")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/version.hpp.in" "${PROJECT_BINARY_DIR}/generated/orthant/version.hpp" @ONLY)
target_include_directories(orthant_core PUBLIC $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>)
