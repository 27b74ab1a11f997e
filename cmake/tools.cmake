# The `verbena` command and the preload that shows programs the device's files.
# The archives of ncurses, for the same reason.
find_library(VB_NCURSES NAMES libncursesw.a ncursesw libncurses.a ncurses REQUIRED)
find_library(VB_TINFO NAMES libtinfo.a tinfo)
if(NOT VB_TINFO)
  set(VB_TINFO "") # where it is a part of ncurses
endif()
find_library(VB_JSONC NAMES libjson-c.a json-c REQUIRED) # the archive: build/ and what is installed can be moved
add_executable(verbena tools/verbena.c tools/options.c tools/run.c tools/parent.c tools/program.c tools/elf.c tools/loader.c
               tools/peek.c tools/list.c tools/counts.c tools/metrics.c tools/qp.c tools/top.c tools/bundle.c tools/bundle_network.c tools/explain.c tools/ids.c tools/inside.c tools/world.c tools/waits.c tools/wait_request.c tools/wait_awaited.c tools/wait_host.c tools/wait_datagram.c tools/wait_queue.c tools/wait_call.c tools/wait_cm.c tools/mr.c tools/mr_shared.c tools/doctor.c
               tools/doctor_calls.c tools/doctor_device.c tools/doctor_host.c tools/doctor_network.c)
target_link_libraries(verbena PRIVATE ${VB_RELEASE} ${VB_JSONC} ${VB_NCURSES} ${VB_TINFO}) # of the library: how segments are read, and names
set_target_properties(verbena PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                      INTERPROCEDURAL_OPTIMIZATION ${VB_LTO})

# The commit that is built, looked up at each build.
add_custom_target(commit BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/commit.h
                  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUT=${CMAKE_BINARY_DIR}/generated/commit.h
                          -P ${CMAKE_SOURCE_DIR}/cmake/commit.cmake VERBATIM)
add_dependencies(verbena commit)
# Where it finds the libraries after installation, relative to itself.
target_compile_definitions(verbena PRIVATE VB_INSTALLED_LIB="../${CMAKE_INSTALL_LIBDIR}/verbena")
target_include_directories(verbena PRIVATE ${CMAKE_BINARY_DIR}/generated)

# It goes into every process under `verbena run`, sanitized or not, so it has no sanitizer of its own.
add_library(verbena-view MODULE tools/view.c tools/view_dir.c tools/view_glob.c tools/view_cwd.c tools/view_tree.c tools/view_facts.c tools/view_counters.c tools/view_live.c tools/view_signal.c
            src/host/devices.c src/host/netif.c src/host/identity.c src/host/netdev.c
            src/base/lock.c src/base/quiet.c src/base/text.c src/iba/grh.c src/iba/traffic.c)
target_include_directories(verbena-view PRIVATE src)
target_compile_definitions(verbena-view PRIVATE _GNU_SOURCE)
target_compile_options(verbena-view PRIVATE -fno-sanitize=all)
target_link_options(verbena-view PRIVATE -fno-sanitize=all -Wl,--no-undefined -Wl,-z,now -Wl,-z,relro
                    -Wl,--version-script=${CMAKE_SOURCE_DIR}/tools/view.map)
set_target_properties(verbena-view PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/tools/view.map)

# The memory of --share-buffers.  A library of its own, so that no call for memory passes through it without the option.
add_library(verbena-share MODULE tools/share.c tools/share_arena.c tools/share_fork.c src/base/log_line.c src/base/log_json.c
            src/base/log_self.c src/base/text.c)
target_include_directories(verbena-share PRIVATE src)
target_compile_definitions(verbena-share PRIVATE _GNU_SOURCE)
# Its calls for memory come from free() and its like, which the compiler must not take for the C library's.
target_compile_options(verbena-share PRIVATE -fno-sanitize=all -fno-builtin-malloc -fno-builtin-free -fno-builtin-realloc)
target_link_options(verbena-share PRIVATE -fno-sanitize=all -Wl,--no-undefined -Wl,-z,now -Wl,-z,relro
                    -Wl,--version-script=${CMAKE_SOURCE_DIR}/tools/share.map)
set_target_properties(verbena-share PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/tools/share.map)

# What the command puts into programs is there wherever the command is.
add_dependencies(verbena verbena-view verbena-share)

# What programs are compiled with: PKG_CONFIG_PATH=build, or the installed tree's directory pkgconfig.
set(VB_PC_UP .)
set(VB_PC_INCLUDE include)
set(VB_PC_LIB lib)
configure_file(${CMAKE_SOURCE_DIR}/cmake/verbena.pc.in ${CMAKE_BINARY_DIR}/verbena.pc @ONLY)
configure_file(${CMAKE_SOURCE_DIR}/include/infiniband/verbs.h ${CMAKE_BINARY_DIR}/include/infiniband/verbs.h COPYONLY)
set(VB_PC_UP ../${VB_LIBDIR_UP})
set(VB_PC_INCLUDE include/verbena)
set(VB_PC_LIB ${CMAKE_INSTALL_LIBDIR}/verbena)
configure_file(${CMAKE_SOURCE_DIR}/cmake/verbena.pc.in ${CMAKE_BINARY_DIR}/installed/verbena.pc @ONLY)

# The installed tree finds its parts relative to bin/verbena and can be moved.
install(TARGETS verbena RUNTIME DESTINATION bin)
install(TARGETS ibverbs verbena-view verbena-share LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/verbena)
install(FILES include/infiniband/verbs.h DESTINATION include/verbena/infiniband)
install(FILES ${CMAKE_BINARY_DIR}/installed/verbena.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES tools/completion/verbena.bash DESTINATION share/bash-completion/completions RENAME verbena)
install(FILES tools/completion/_verbena DESTINATION share/zsh/site-functions)
file(GLOB VB_DOCS CONFIGURE_DEPENDS docs/*.md)
install(FILES LICENSE ${VB_DOCS} DESTINATION share/doc/verbena)
# There, the examples are below the pages, not beside their folder, and man(1) finds the manual.
install(CODE [=[
  file(GLOB pages "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/share/doc/verbena/*.md")
  foreach(page IN LISTS pages)
    file(READ "${page}" text)
    string(REPLACE "](../examples/" "](examples/" text "${text}")
    string(REGEX REPLACE "\\[([^]]*)\\]\\(man/[^)]*\\)" "\\1" text "${text}")
    file(WRITE "${page}" "${text}")
  endforeach()
]=])
install(FILES docs/man/verbena.1 DESTINATION share/man/man1)
install(FILES docs/man/verbena_environment.7 DESTINATION share/man/man7)
file(GLOB VB_MAN3 CONFIGURE_DEPENDS docs/man/*.3)
install(FILES ${VB_MAN3} DESTINATION share/man/man3)
