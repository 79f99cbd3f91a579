# Tests of the program as a whole: starts, faults, resuming, files, logging, commands, pipelines and ZeRO. Each script
# makes its own data.
foreach(test launch.4 commands.3 logging.4 resume.2 faults.4 locks.2 files.2 full_disk.2 pipeline_starts.4 pipeline_sends.4 zero_pp_resume.4 phases.4 watchdog.4 guard.4 fp16.4 fp8.4 trace.16
        sleep.8 verify.4)
  string(REPLACE "." ";" test "${test}")
  list(GET test 0 name)
  list(GET test 1 ranks)
  set(labels system)
  if(name MATCHES "^(launch|commands)$")
    set(labels "system;smoke")
  endif()
  orthant_deck_test(system.${name} ${name}.sh ${ranks} "${labels}" 180 "${work}/system.${name}")
endforeach()
orthant_deck_test(system.experts experts_resume.sh 4 "system" 180 "${work}/system.experts")
orthant_deck_test(system.export export.sh 4 "system" 180 "${work}/system.export")

# Disks that fail, with files that all ranks share and with a file a rank.
foreach(files -1 1)
  orthant_deck_test(system.injected.files${files} injected.sh 2 "system" 300 "${work}/system.injected.${files}"
    $<TARGET_FILE:fault_shim> ${files})
endforeach()

# A rank killed while every step is saved: a few times, or in earnest.
orthant_deck_test(system.killed_saves killed_saves.sh 2 "system" 180 "${work}/system.killed_saves" 5)
orthant_deck_test(system.killed_saves.20 killed_saves.sh 2 "system;exhaustive" 900 "${work}/system.killed_saves.20" 20)
# A run killed at random moments, and what became of its time.
orthant_deck_test(system.killed_run killed_run.sh 4 "system" 180 "${work}/system.killed_run" 5)
orthant_deck_test(system.killed_run.20 killed_run.sh 4 "system;exhaustive" 900 "${work}/system.killed_run.20" 20)
set_tests_properties(system.sleep PROPERTIES TIMEOUT 400)  # its later tries sleep longer

# Collectives, checked and timed: to 1 MiB on every axis of four ranks, and to 1 GiB on two.
orthant_deck_test(system.bench_comm bench_comm.sh 4 "system" 180 "${work}/system.bench_comm")
orthant_deck_test(system.bench_comm.large bench_comm.sh 4 "system;exhaustive" 1800 "${work}/system.bench_comm.large" large)
