#include "obj/ring.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/lock.h"

enum { MAP_FROM = 128 << 10 }; /* bytes from which a ring is mapped */

void *vb_ring_alloc(size_t bytes)
{
	void *p;

	if (bytes >= MAP_FROM) {
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			 0);
		if (p == MAP_FAILED)
			return NULL;
		(void)!madvise(p, bytes, MADV_NOHUGEPAGE); /* one entry would bring 2 MiB along */
		return p;
	}
	bytes = (bytes + VB_LINE - 1) & ~(size_t)(VB_LINE - 1);
	p = aligned_alloc(VB_LINE, bytes ? bytes : VB_LINE);
	if (p)
		memset(p, 0, bytes);
	return p;
}

void vb_ring_free(void *ring, size_t bytes)
{
	if (ring && bytes >= MAP_FROM)
		munmap(ring, bytes);
	else
		free(ring);
}
