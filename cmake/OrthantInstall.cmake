# cmake --install: bin/orthant, the headers and an exported package (find_package(Orthant)).
include(CMakePackageConfigHelpers)
install(TARGETS orthant RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS orthant_core orthant_dependencies EXPORT OrthantTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/orthant" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES "${PROJECT_BINARY_DIR}/generated/orthant/version.hpp" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/orthant)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/input" "${PROJECT_SOURCE_DIR}/jobscripts" DESTINATION ${CMAKE_INSTALL_DATADIR}/orthant)
install(EXPORT OrthantTargets NAMESPACE Orthant:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Orthant)
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/OrthantConfig.cmake.in" "${PROJECT_BINARY_DIR}/OrthantConfig.cmake"
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Orthant)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/OrthantConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/OrthantConfig.cmake" "${PROJECT_BINARY_DIR}/OrthantConfigVersion.cmake"
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Orthant)
