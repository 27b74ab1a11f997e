# Programs that are wrong, and their right twins, under each sanitizer.
if(NOT VB_SANITIZE)
  foreach(means address thread memory memcheck)
    add_test(NAME sanitizers.${means}
             COMMAND ${CMAKE_CURRENT_LIST_DIR}/../alone ${CMAKE_CURRENT_LIST_DIR}/pairs.py ${CMAKE_BINARY_DIR} ${means})
    set_tests_properties(sanitizers.${means} PROPERTIES LABELS proc SKIP_RETURN_CODE 77 TIMEOUT 300)
  endforeach()
  add_test(NAME sanitizers.gcc_thread
           COMMAND ${CMAKE_CURRENT_LIST_DIR}/../alone ${CMAKE_CURRENT_LIST_DIR}/gcc_thread.sh ${CMAKE_BINARY_DIR})
  set_tests_properties(sanitizers.gcc_thread PROPERTIES LABELS proc SKIP_RETURN_CODE 77)
  # Some of the tests' own programs; scripts/far runs all of them under each sanitizer.
  add_test(NAME sanitizers.own COMMAND ${CMAKE_CURRENT_LIST_DIR}/own.py ${CMAKE_BINARY_DIR} address short)
  set_tests_properties(sanitizers.own PROPERTIES LABELS proc SKIP_RETURN_CODE 77 TIMEOUT 300
                       ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endif()
