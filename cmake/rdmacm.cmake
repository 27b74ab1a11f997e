# librdmacm.so.1: thin, on libibverbs.so.1, whose private node has what cm/api.h declares.  It sees no other part
# of the tree: it is compiled apart from vb.  Included after libraries.cmake, and after enable_testing().
file(GLOB VB_RDMACM_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/rdmacm/*.c)

# The front alone, on connections and verbs that are not there.
find_library(CMOCKA cmocka REQUIRED)
file(GLOB VB_RDMACM_TESTS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/rdmacm/*.c)
add_executable(rdmacm-front ${VB_RDMACM_TESTS} ${VB_RDMACM_SOURCES})
target_include_directories(rdmacm-front PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests/rdmacm)
target_compile_definitions(rdmacm-front PRIVATE _GNU_SOURCE)
target_link_libraries(rdmacm-front PRIVATE Threads::Threads ${CMOCKA})
add_test(NAME rdmacm.front COMMAND rdmacm-front)
set_tests_properties(rdmacm.front PROPERTIES LABELS unit)

add_library(rdmacm SHARED ${VB_RDMACM_SOURCES})
target_include_directories(rdmacm PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_compile_definitions(rdmacm PRIVATE _GNU_SOURCE)
target_link_libraries(rdmacm PRIVATE ibverbs Threads::Threads)
target_link_options(rdmacm PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/src/rdmacm/librdmacm.map
                    -Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro -Wl,--no-undefined -Wl,--no-undefined-version)
# Installed beside libibverbs.so.1, and found from there.
set_target_properties(rdmacm PROPERTIES SOVERSION 1 VERSION 1.5.0 INSTALL_RPATH "$ORIGIN"
                      LINK_DEPENDS ${CMAKE_SOURCE_DIR}/src/rdmacm/librdmacm.map)
if(NOT VB_SANITIZE)
  add_test(NAME abi.rdmacm-symbols
           COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/abi/rdmacm_symbols.py $<TARGET_FILE:rdmacm>
                   ${CMAKE_SOURCE_DIR}/src/rdmacm/librdmacm.map)
  set_tests_properties(abi.rdmacm-symbols PROPERTIES LABELS abi SKIP_RETURN_CODE 77)
endif()

install(TARGETS rdmacm LIBRARY DESTINATION lib/verbena)
install(FILES ${CMAKE_SOURCE_DIR}/docs/man/rdma_verbena.7 DESTINATION share/man/man7)
