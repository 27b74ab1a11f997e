# The library once more for tests of exhaustion and death: the same sources with fault points (src/base/fault.h).
set(VB_FAULT_CALLS
    malloc calloc realloc aligned_alloc posix_memalign strdup mmap madvise memfd_create ftruncate socket accept4 bind
    listen connect epoll_create1 epoll_ctl eventfd dup fcntl open fopen fdopen opendir getifaddrs sendmsg recvmsg
    recvmmsg syscall pthread_create pthread_key_create process_vm_readv process_vm_writev shmat)
list(TRANSFORM VB_FAULT_CALLS PREPEND "-Wl,--wrap=" OUTPUT_VARIABLE VB_FAULT_WRAPS)

add_library(ibverbs-faults SHARED ${VB_SOURCES})
target_include_directories(ibverbs-faults PRIVATE ${CMAKE_SOURCE_DIR}/src PUBLIC ${CMAKE_SOURCE_DIR}/include)
target_compile_definitions(ibverbs-faults PRIVATE _GNU_SOURCE VB_FAULTS VB_DEBUG)
target_link_libraries(ibverbs-faults PRIVATE Threads::Threads)
target_link_options(ibverbs-faults PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/src/verbs/libibverbs.map
                    -Wl,-z,nodelete -Wl,-z,now -Wl,--no-undefined ${VB_FAULT_WRAPS})
set_target_properties(ibverbs-faults PROPERTIES OUTPUT_NAME ibverbs SOVERSION 1
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/faults/lib
                      LINK_DEPENDS ${CMAKE_SOURCE_DIR}/src/verbs/libibverbs.map)
