# Tests on a real Slurm: four nodes with two CPUs each on this machine, up before the first of them and down after the
# last. Where that cannot be (no Slurm packages, no root, no namespaces) they are skipped, and slurm.up says why.
set(slurm_cluster "${PROJECT_SOURCE_DIR}/regression/slurm/cluster.sh")
set(slurm_folder "${CMAKE_CURRENT_BINARY_DIR}/slurm")
add_test(NAME slurm.up COMMAND bash "${slurm_cluster}" up 4 --again --folder "${slurm_folder}")
add_test(NAME slurm.down COMMAND bash -c "test ! -e '${slurm_folder}' || bash '${slurm_cluster}' down --folder '${slurm_folder}'")
set_tests_properties(slurm.up PROPERTIES FIXTURES_SETUP slurm SKIP_RETURN_CODE 77)
set_tests_properties(slurm.down PROPERTIES FIXTURES_CLEANUP slurm)
set_tests_properties(slurm.up slurm.down PROPERTIES LABELS "regression;slurm" TIMEOUT 150)
foreach(test lives queue launch)
  orthant_deck_test(slurm.${test} slurm_${test}.sh 8 "slurm" 900 "${work}/slurm.${test}")
  set_tests_properties(slurm.${test} PROPERTIES FIXTURES_REQUIRED slurm RESOURCE_LOCK slurm SKIP_RETURN_CODE 77)
  set_property(TEST slurm.${test} APPEND PROPERTY ENVIRONMENT "ORTHANT_SLURM_FOLDER=${slurm_folder}")
endforeach()
