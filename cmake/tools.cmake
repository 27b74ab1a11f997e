# The `verbena` launcher and the preload that shows programs the device's files.
add_executable(verbena tools/verbena.c tools/run.c tools/elf.c)
target_compile_definitions(verbena PRIVATE _GNU_SOURCE VB_VERSION="${PROJECT_VERSION}")
set_target_properties(verbena PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

# It goes into every process under `verbena run`, sanitized or not, so it has no sanitizer of its own.
add_library(verbena-view MODULE tools/view.c tools/view_dir.c tools/view_tree.c tools/view_facts.c
            src/verbs/netif.c)
target_include_directories(verbena-view PRIVATE src)
target_compile_definitions(verbena-view PRIVATE _GNU_SOURCE)
target_compile_options(verbena-view PRIVATE -fno-sanitize=all)
target_link_options(verbena-view PRIVATE -fno-sanitize=all -Wl,--no-undefined -Wl,-z,now -Wl,-z,relro
                    -Wl,--version-script=${CMAKE_SOURCE_DIR}/tools/view.map)
set_target_properties(verbena-view PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/tools/view.map)
