# Verbena and other implementations of RoCEv2.
# adapter: a far end of the test's own, with the packets of adapters and soft-RoCE;
# rxe: the kernel's, where VERBENA_GUEST names a machine that has it; judge: who judges the captures of that.
foreach(n judge adapter rxe)
  add_test(NAME interop.${n}
           COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/${n}.py --build ${CMAKE_BINARY_DIR})
  set_tests_properties(interop.${n} PROPERTIES LABELS interop SKIP_RETURN_CODE 77
                       ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endforeach()
set_tests_properties(interop.rxe PROPERTIES TIMEOUT 3600 RUN_SERIAL TRUE)
