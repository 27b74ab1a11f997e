# Tests that are more than one C file of a layer.

# Those that reserve huge pages of the machine and give them back.
set_tests_properties(unit.share unit.reg PROPERTIES RESOURCE_LOCK huge_pages)
# Those that take certain numbers of adapters, each in a network namespace of its own: proc.contact asks that the
# process be named which has its number in another one.
set_tests_properties(proc.contact proc.hello proc.impostor proc.names PROPERTIES RESOURCE_LOCK numbers)

# --- the binary interface, and `verbena run`
include(${CMAKE_CURRENT_LIST_DIR}/abi/abi.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/rdmacm/rdmacm.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/tools/tools.cmake)

# --- wrong programs
include(${CMAKE_CURRENT_LIST_DIR}/check/check.cmake)

# --- examples
include(${CMAKE_CURRENT_LIST_DIR}/examples/examples.cmake)

# --- programs of others
include(${CMAKE_CURRENT_LIST_DIR}/strangers/strangers.cmake)

# --- datagrams of any content
include(${CMAKE_CURRENT_LIST_DIR}/fuzz/fuzz.cmake)

# --- what users report
include(${CMAKE_CURRENT_LIST_DIR}/situations/situations.cmake)
# It takes a CPU away from everybody for seconds.
set_tests_properties(proc.starved PROPERTIES RUN_SERIAL TRUE)

# --- programs under sanitizers
include(${CMAKE_CURRENT_LIST_DIR}/sanitizers/sanitizers.cmake)

# --- other implementations
include(${CMAKE_CURRENT_LIST_DIR}/interop/interop.cmake)

# Connections between two hosts, as many.
add_test(NAME proc.cm_many_hosts COMMAND ${CMAKE_CURRENT_LIST_DIR}/alone $<TARGET_FILE:proc-cm_many> hosts)
set_tests_properties(proc.cm_many_hosts PROPERTIES LABELS proc SKIP_RETURN_CODE 77)

# Multicast by datagrams on lo.
add_test(NAME proc.mcast_udp COMMAND ${CMAKE_CURRENT_LIST_DIR}/alone $<TARGET_FILE:proc-mcast>)
set_tests_properties(proc.mcast_udp PROPERTIES LABELS proc SKIP_RETURN_CODE 77
                     ENVIRONMENT "VERBENA_WIRE=udp;VERBENA_NETDEV=lo")
