# The job scripts of real machines against invented schedulers; no MPI, no built program.
add_test(NAME jobscripts.check COMMAND bash "${CMAKE_CURRENT_SOURCE_DIR}/jobscripts.sh" "${work}/jobscripts.check" "${CMAKE_COMMAND}")
set_tests_properties(jobscripts.check PROPERTIES LABELS "regression;system;smoke" TIMEOUT 120)

# packaging/ and cmake --install of this build
add_test(NAME packaging.check COMMAND bash "${CMAKE_CURRENT_SOURCE_DIR}/packaging.sh" "${work}/packaging.check" "${PROJECT_BINARY_DIR}" "${CMAKE_COMMAND}")
set_tests_properties(packaging.check PROPERTIES LABELS "regression;system;smoke" TIMEOUT 120)
