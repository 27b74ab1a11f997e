# The programs of examples/: compiled and run as users do, and without each step that they explain.
if(NOT VB_SANITIZE)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/examples/*.c)
  foreach(f ${files})
    get_filename_component(n ${f} NAME_WE)
    add_test(NAME examples.${n} COMMAND ${CMAKE_CURRENT_LIST_DIR}/../alone ${CMAKE_CURRENT_LIST_DIR}/examples.py
                                        --build ${CMAKE_BINARY_DIR} ${n})
    # Where no network namespace can be made, those with a TCP port share it.
    set_tests_properties(examples.${n} PROPERTIES LABELS examples SKIP_RETURN_CODE 77 RESOURCE_LOCK examples
                         ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
  endforeach()
  foreach(n ctest pytest)
    add_test(NAME examples.${n} COMMAND ${CMAKE_CURRENT_LIST_DIR}/../alone ${CMAKE_CURRENT_LIST_DIR}/${n}.sh
                                        ${CMAKE_BINARY_DIR})
    set_tests_properties(examples.${n} PROPERTIES LABELS examples SKIP_RETURN_CODE 77 RESOURCE_LOCK examples)
  endforeach()
  add_test(NAME examples.ci COMMAND ${CMAKE_CURRENT_LIST_DIR}/../alone ${CMAKE_CURRENT_LIST_DIR}/ci.py ${CMAKE_BINARY_DIR})
  set_tests_properties(examples.ci PROPERTIES LABELS examples SKIP_RETURN_CODE 77 RESOURCE_LOCK examples
                       ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
  # `make demo` works, which README names first.
  add_test(NAME examples.demo COMMAND ${CMAKE_CURRENT_LIST_DIR}/../alone ${CMAKE_SOURCE_DIR}/scripts/demo ${CMAKE_BINARY_DIR})
  set_tests_properties(examples.demo PROPERTIES LABELS examples RESOURCE_LOCK examples
                       ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endif()
