/* The world of the fuzz target for datagrams (udp_world.c). */
#ifndef VB_TESTS_FUZZ_UDP_WORLD_H
#define VB_TESTS_FUZZ_UDP_WORLD_H

#include <stddef.h>
#include <stdint.h>

void world_open(void); /* once */
void world_run(const uint8_t *data, size_t size);
uint64_t world_packets(void); /* so far, of all inputs */

/* Calls of malloc() by this thread, which whoever can counts. */
extern _Thread_local unsigned world_allocations;

#endif
