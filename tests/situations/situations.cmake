# What users of RDMA software reported: one test for each situation (docs/situations.md).
file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.c)
add_executable(situations ${files})
# All of it, as in the library: what is under the calls of rdma_cm is put there by a constructor.
target_link_libraries(situations PRIVATE kit -Wl,--whole-archive vb -Wl,--no-whole-archive Threads::Threads)
add_dependencies(situations verbena) # some of them run `verbena explain`
file(STRINGS ${CMAKE_SOURCE_DIR}/docs/situations.md rows REGEX "^\\| N[0-9]")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/situations.md)
foreach(row ${rows})
  string(REGEX REPLACE "^\\| (N[^ ]*) .*" "\\1" id "${row}")
  add_test(NAME situations.${id} COMMAND situations ${id})
  set_tests_properties(situations.${id} PROPERTIES LABELS proc SKIP_RETURN_CODE 77)
endforeach()

# Programs that hang, by the rows of docs/waits.md.
file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/hangs/*.c)
add_executable(situations-hangs ${files})
target_link_libraries(situations-hangs PRIVATE kit rdmacm-static -Wl,--whole-archive vb -Wl,--no-whole-archive
                      Threads::Threads)
add_dependencies(situations-hangs verbena)
foreach(list requests awaited polls sleeps calls datagrams cms more rights)
  add_test(NAME situations.hangs-${list} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/alone $<TARGET_FILE:situations-hangs> ${list})
  set_tests_properties(situations.hangs-${list} PROPERTIES LABELS proc SKIP_RETURN_CODE 77)
endforeach()
