# librdmacm.so.1: its front, and what it exports.

# The front alone, on connections and verbs that are not there.
file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.c)
add_executable(rdmacm-front ${files} ${VB_RDMACM_SOURCES})
target_include_directories(rdmacm-front PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_CURRENT_LIST_DIR})
target_compile_definitions(rdmacm-front PRIVATE _GNU_SOURCE)
target_link_libraries(rdmacm-front PRIVATE Threads::Threads ${CMOCKA})
add_test(NAME rdmacm.front COMMAND rdmacm-front)
set_tests_properties(rdmacm.front PROPERTIES LABELS unit)

if(NOT VB_SANITIZE)
  add_test(NAME abi.rdmacm-symbols
           COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/../abi/rdmacm_symbols.py $<TARGET_FILE:rdmacm>
                   ${CMAKE_SOURCE_DIR}/src/rdmacm/librdmacm.map)
  set_tests_properties(abi.rdmacm-symbols PROPERTIES LABELS abi SKIP_RETURN_CODE 77)
endif()
