# verbena run --check: wrong programs and their right twins, as users build them.
if(NOT VB_SANITIZE)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/wrongs*.c)
  add_executable(check-wrongs ${files})
  set_target_properties(check-wrongs PROPERTIES ENABLE_EXPORTS ON) # sentences name the functions
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/wrongs_callers.c PROPERTIES COMPILE_OPTIONS -fno-omit-frame-pointer)
  target_compile_definitions(check-wrongs PRIVATE _GNU_SOURCE)
  target_link_libraries(check-wrongs PRIVATE ${VB_SYSTEM_RDMACM} ${VB_SYSTEM_IBVERBS} Threads::Threads)
  add_executable(check-pairs ${CMAKE_CURRENT_LIST_DIR}/../sanitizers/pairs.c)
  target_link_libraries(check-pairs PRIVATE ${VB_SYSTEM_RDMACM} ${VB_SYSTEM_IBVERBS} Threads::Threads)
  add_test(NAME check.wrongs COMMAND ${CMAKE_CURRENT_LIST_DIR}/../alone ${CMAKE_CURRENT_LIST_DIR}/check.py ${CMAKE_BINARY_DIR}
                                     $<TARGET_FILE:check-wrongs> $<TARGET_FILE:check-pairs>)
  set_tests_properties(check.wrongs PROPERTIES LABELS proc SKIP_RETURN_CODE 77 ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endif()
