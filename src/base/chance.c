#include "base/chance.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"

/* The finalizer of splitmix64. */
static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint64_t without_kernel(void)
{
	static _Atomic uint64_t count;
	const void *given = (const void *)getauxval(AT_RANDOM); /* 16 bytes */
	uint64_t seed[2] = {0};

	if (given)
		memcpy(seed, given, sizeof(seed));
	seed[0] = mix(seed[0] ^ vb_now());
	seed[1] = mix(seed[1] ^ ((uint64_t)gettid() << 32 | (uint32_t)atomic_fetch_add(&count, 1)));
	return mix(seed[0] + seed[1]);
}

uint64_t vb_chance(void)
{
	int err = errno;
	uint64_t r;

	if (getrandom(&r, sizeof(r), GRND_NONBLOCK) != sizeof(r))
		r = without_kernel();
	errno = err;
	return r;
}
