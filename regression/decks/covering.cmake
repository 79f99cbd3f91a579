# Meshes of eight ranks with every schedule, context method, ZeRO stage and recompute: a set in which every two
# settings meet (covering.cases), and behind `exhaustive` as many of all legal cases as four hours allow.
add_executable(covering "${PROJECT_SOURCE_DIR}/regression/tools/covering.cpp")

add_test(NAME covering.complete COMMAND covering check "${CMAKE_CURRENT_SOURCE_DIR}/covering.cases")
set_tests_properties(covering.complete PROPERTIES LABELS "regression;covering;smoke" TIMEOUT 60)

orthant_deck_test(covering.rules covering.sh 1 "covering" 120 "${work}/covering.rules" rules
  $<TARGET_FILE:covering> 6)

file(STRINGS covering.cases cases REGEX "^[a-z]")
foreach(case ${cases})
  string(REGEX REPLACE " +" ";" words "${case}")
  list(GET words 0 name)
  list(GET words 2 ranks)
  orthant_deck_test(golden.${name} covering.sh ${ranks} "golden;covering" 180 "${work}" case ${words})
endforeach()

orthant_deck_test(golden.covering.all covering.sh 8 "golden;covering;exhaustive" 14700 "${work}/covering.all" all
  $<TARGET_FILE:covering> 14400)
