/* Memory of queues.  A large ring is reserved at full size and backed as it is used, so that generous limits
 * cost nothing; a small one comes from the heap, since mappings are counted.  Zeroed, aligned to a cache
 * line. */
#ifndef VB_OBJ_RING_H
#define VB_OBJ_RING_H

#include <stddef.h>
#include <stdint.h>

void *vb_ring_alloc(size_t bytes); /* NULL: no memory.  Pairs with vb_ring_free() of the same size */
void vb_ring_free(void *ring, size_t bytes);

/* The power of two that is at least n (n <= 2^31; 1 for 0). */
static inline uint32_t vb_ring_entries(uint32_t n)
{
	return n <= 1 ? 1 : 1u << (32 - __builtin_clz(n - 1));
}

#endif
