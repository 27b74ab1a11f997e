/* Copies whose length is not known but is mostly a few bytes: the call of memcpy() would cost more. */
#ifndef VB_BASE_FEW_H
#define VB_BASE_FEW_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/lock.h"

static inline void vb_copy_few(void *to, const void *from, size_t n)
{
	uint64_t a, b;

	if (vb_likely(n - 8 <= 8)) { /* 8 to 16, as two words that may overlap */
		memcpy(&a, from, 8);
		memcpy(&b, (const uint8_t *)from + n - 8, 8);
		memcpy(to, &a, 8);
		memcpy((uint8_t *)to + n - 8, &b, 8);
	} else {
		memcpy(to, from, n);
	}
}

#endif
