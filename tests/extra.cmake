# Tests that are more than one C file of a layer.

# --- the binary interface, and `verbena run`
include(${CMAKE_CURRENT_LIST_DIR}/abi/abi.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/tools/tools.cmake)

# --- programs of others
include(${CMAKE_CURRENT_LIST_DIR}/strangers/strangers.cmake)

# --- what users report
include(${CMAKE_CURRENT_LIST_DIR}/situations/situations.cmake)
