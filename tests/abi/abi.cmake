# The binary interface: symbols, layouts, and programs of others that bind it.
add_executable(abi-layout ${CMAKE_CURRENT_LIST_DIR}/layout.c)
target_link_libraries(abi-layout PRIVATE vb)
add_test(NAME abi.layout COMMAND abi-layout)
set_tests_properties(abi.layout PROPERTIES LABELS abi)

# The header that programs get with pkg-config, over this system's and over a newer one.
add_test(NAME abi.header COMMAND ${CMAKE_CURRENT_LIST_DIR}/header.sh ${CMAKE_BINARY_DIR})
set_tests_properties(abi.header PROPERTIES LABELS abi SKIP_RETURN_CODE 77)

# A library with a sanitizer in it has further symbols, and programs that are not ours cannot load it.
if(NOT VB_SANITIZE)
  add_test(NAME abi.symbols COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/symbols.py $<TARGET_FILE:ibverbs>
                                    ${CMAKE_SOURCE_DIR}/src/verbs/libibverbs.map)
  add_test(NAME abi.private_nodes COMMAND ${CMAKE_CURRENT_LIST_DIR}/private_nodes.py $<TARGET_FILE:ibverbs>)
  # Linked with the distribution's libibverbs, run with ours.
  add_executable(abi-load ${CMAKE_CURRENT_LIST_DIR}/load.c)
  add_test(NAME abi.load COMMAND abi-load)
  add_test(NAME abi.starts COMMAND ${CMAKE_CURRENT_LIST_DIR}/starts.sh $<TARGET_FILE_DIR:ibverbs>)
  target_compile_definitions(abi-load PRIVATE _GNU_SOURCE)
  set(abi_tests abi.symbols abi.private_nodes abi.load abi.starts)
  find_library(VB_MLX5 mlx5)
  find_library(VB_MLX4 mlx4)
  find_library(VB_EFA efa)
  find_library(VB_MANA mana)
  find_library(VB_SYSTEM_IBVERBS ibverbs)
  if(VB_MLX5 AND VB_MLX4 AND VB_EFA AND VB_MANA AND VB_SYSTEM_IBVERBS)
    add_executable(abi-vendor ${CMAKE_CURRENT_LIST_DIR}/vendor.c)
    target_link_libraries(abi-vendor PRIVATE -Wl,--no-as-needed ${VB_MLX5} ${VB_MLX4} ${VB_EFA} ${VB_MANA}
                                             ${VB_SYSTEM_IBVERBS})
    target_compile_definitions(abi-vendor PRIVATE _GNU_SOURCE)
    add_test(NAME abi.vendor COMMAND abi-vendor $<TARGET_FILE_DIR:ibverbs>)
    list(APPEND abi_tests abi.vendor)
  endif()
  set_tests_properties(${abi_tests} PROPERTIES LABELS abi SKIP_RETURN_CODE 77 TIMEOUT 300
                       ENVIRONMENT LD_LIBRARY_PATH=$<TARGET_FILE_DIR:ibverbs>)
endif()
