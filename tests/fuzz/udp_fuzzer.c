/* The target for libFuzzer; scripts/fuzz builds and runs it. */
#include "udp_world.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void *, size_t),
					      void (*free_hook)(const volatile void *));

static void allocated(const volatile void *at, size_t n)
{
	(void)at, (void)n;
	world_allocations++;
}

static void freed(const volatile void *at)
{
	(void)at;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	__sanitizer_install_malloc_and_free_hooks(allocated, freed);
	world_open();
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	world_run(data, size);
	return 0;
}
