#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

void vb_text_add(struct vb_text *t, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(t->at, t->left, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	if ((size_t)n >= t->left)
		n = t->left ? (int)t->left - 1 : 0;
	t->at += n;
	t->left -= (size_t)n;
}

static uint64_t hash_on(uint64_t h, const char *s)
{
	for (; *s; s++)
		h = (h ^ (uint8_t)*s) * 0x100000001b3ull; /* FNV-1a */
	return h;
}

uint64_t vb_text_hash(const char *name, const char *sentence)
{
	return hash_on(hash_on(hash_on(0xcbf29ce484222325ull, name), ":"), sentence);
}
