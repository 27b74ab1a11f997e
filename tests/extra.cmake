# Tests that are more than one C file of a layer.

# --- programs of others
include(${CMAKE_CURRENT_LIST_DIR}/strangers/strangers.cmake)
