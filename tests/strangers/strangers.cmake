# Programs of others as tests.
foreach(n devinfo asyncwatch pingpong perftest rdmacm ucx mpi qperf applications lossy pyverbs capture capture_hosts between between_cm
          between_mpi)
  add_test(NAME strangers.${n}
           COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/${n}.py --build ${CMAKE_BINARY_DIR})
endforeach()
add_test(NAME strangers.checked
         COMMAND ${CMAKE_CURRENT_LIST_DIR}/../alone /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/checked.py --build ${CMAKE_BINARY_DIR})
foreach(n user netns)
  add_test(NAME strangers.${n}
           COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/elsewhere.py --build ${CMAKE_BINARY_DIR} ${n})
endforeach()
add_test(NAME strangers.between_user
         COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/between.py --build ${CMAKE_BINARY_DIR} --user pingpong ib_send_bw)
add_test(NAME strangers.between_cm_user
         COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/between_cm.py --build ${CMAKE_BINARY_DIR} --user rping)
add_test(NAME strangers.pyverbs_udp
         COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/pyverbs.py --build ${CMAKE_BINARY_DIR} --udp --mode run)
foreach(n devinfo asyncwatch pingpong perftest rdmacm ucx mpi qperf applications lossy pyverbs pyverbs_udp capture capture_hosts
          between between_user between_cm between_cm_user between_mpi checked user netns)
  set_tests_properties(strangers.${n} PROPERTIES LABELS strangers SKIP_RETURN_CODE 77 TIMEOUT 600
                       ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endforeach()
# Most programs of these poll at both ends, and want both CPUs for themselves.
foreach(n pingpong perftest rdmacm ucx mpi qperf lossy between)
  set_tests_properties(strangers.${n} PROPERTIES RUN_SERIAL TRUE)
endforeach()
# These reserve huge pages of the machine and give them back, as root.
set_tests_properties(strangers.applications strangers.pyverbs strangers.pyverbs_udp strangers.user strangers.netns
                     PROPERTIES RESOURCE_LOCK huge_pages)
set_tests_properties(strangers.perftest PROPERTIES TIMEOUT 1200)

# The rules that scripts check.
add_test(NAME scripts.layers COMMAND ${CMAKE_SOURCE_DIR}/scripts/layers ${CMAKE_BINARY_DIR})
add_test(NAME scripts.circles COMMAND ${CMAKE_SOURCE_DIR}/scripts/circles ${CMAKE_BINARY_DIR})
add_test(NAME scripts.verbs_doc COMMAND ${CMAKE_SOURCE_DIR}/scripts/verbs-doc-check)
add_test(NAME scripts.errors_doc COMMAND ${CMAKE_SOURCE_DIR}/scripts/errors-doc-check)
add_test(NAME scripts.memory_doc COMMAND ${CMAKE_SOURCE_DIR}/scripts/memory-doc-check)
add_test(NAME scripts.calls COMMAND ${CMAKE_SOURCE_DIR}/scripts/calls-check)
add_test(NAME scripts.version COMMAND ${CMAKE_SOURCE_DIR}/scripts/version-check)
add_test(NAME scripts.mutants COMMAND ${CMAKE_SOURCE_DIR}/scripts/mutants --check)
set_tests_properties(scripts.layers scripts.circles scripts.verbs_doc scripts.errors_doc scripts.memory_doc scripts.calls
                     scripts.version scripts.mutants
                     PROPERTIES LABELS scripts)
