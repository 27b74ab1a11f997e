# Datagrams of any content to a device at work.  fuzz.udp runs the corpus and inputs that are made up by seed;
# scripts/fuzz builds the target for libFuzzer, with clang.
set(dir ${CMAKE_CURRENT_LIST_DIR})
set(files ${dir}/udp_world.c ${dir}/udp_net.c ${dir}/udp_cm.c ${dir}/udp_port.c ${dir}/../sim/sim.c ${dir}/../sim/hosts.c)
set(programs fuzz-udp)
add_executable(fuzz-udp ${dir}/test_udp.c ${files})
if(VB_SANITIZE MATCHES fuzzer)
  add_executable(fuzz-udp-libfuzzer ${dir}/udp_fuzzer.c ${files})
  target_link_options(fuzz-udp-libfuzzer PRIVATE -fsanitize=fuzzer)
  list(APPEND programs fuzz-udp-libfuzzer)
endif()
foreach(p ${programs})
  # Each input has a world of its own, so it is a small one.
  target_compile_definitions(${p} PRIVATE SIM_MEM=32768 SIM_TRACE=1)
  target_link_libraries(${p} PRIVATE vb ${CMOCKA} ${CMAKE_DL_LIBS})
endforeach()
# Without a corpus there are the seeds alone.
add_test(NAME fuzz.udp COMMAND fuzz-udp 400 1 ${dir}/udp)
set_tests_properties(fuzz.udp PROPERTIES LABELS sim)
# The same sockets without a kernel.
target_sources(unit-udp PRIVATE ${dir}/udp_port.c)
