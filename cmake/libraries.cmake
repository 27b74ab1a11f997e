# libibverbs.so.1: the version script is the list of what is exported, and under which version.
add_library(ibverbs SHARED src/verbs/libibverbs.map) # all code comes from the archive
target_link_libraries(ibverbs PRIVATE -Wl,--whole-archive ${VB_RELEASE} -Wl,--no-whole-archive Threads::Threads)
target_link_options(ibverbs PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/src/verbs/libibverbs.map
                    -Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro -Wl,--no-undefined -Wl,--no-undefined-version)
set_target_properties(ibverbs PROPERTIES SOVERSION 1 VERSION 1.18.0 LINKER_LANGUAGE C
                      INTERPROCEDURAL_OPTIMIZATION ${VB_LTO}
                      LINK_DEPENDS ${CMAKE_SOURCE_DIR}/src/verbs/libibverbs.map)
