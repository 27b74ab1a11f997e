# The `verbena` launcher and the preload that shows programs the device's files.
add_executable(verbena tools/verbena.c tools/run.c tools/elf.c)
target_compile_definitions(verbena PRIVATE _GNU_SOURCE VB_VERSION="${PROJECT_VERSION}")
set_target_properties(verbena PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
