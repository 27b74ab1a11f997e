# librdmacm.so.1: thin, on libibverbs.so.1, whose private node has what cm/api.h declares.  It sees no other part
# of the tree: it is compiled apart from vb.  Included after libraries.cmake.
file(GLOB VB_RDMACM_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/rdmacm/*.c)

add_library(rdmacm SHARED ${VB_RDMACM_SOURCES})
target_include_directories(rdmacm PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_compile_definitions(rdmacm PRIVATE _GNU_SOURCE)
target_link_libraries(rdmacm PRIVATE ibverbs Threads::Threads)
target_link_options(rdmacm PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/src/rdmacm/librdmacm.map
                    -Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro -Wl,--no-undefined -Wl,--no-undefined-version)
# Installed beside libibverbs.so.1, and found from there.
set_target_properties(rdmacm PROPERTIES SOVERSION 1 VERSION 1.5.0 INSTALL_RPATH "$ORIGIN"
                      LINK_DEPENDS ${CMAKE_SOURCE_DIR}/src/rdmacm/librdmacm.map)

install(TARGETS rdmacm LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/verbena)
install(FILES ${CMAKE_SOURCE_DIR}/docs/man/rdma_verbena.7 DESTINATION share/man/man7)
