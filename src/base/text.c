#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

unsigned vb_text_distance(const char *a, size_t len, const char *b)
{
	unsigned row[VB_TEXT_WORD + 1], left, above;
	size_t m = strlen(b);

	if (len > VB_TEXT_WORD || m > VB_TEXT_WORD)
		return VB_TEXT_WORD + 1;
	for (size_t j = 0; j <= m; j++)
		row[j] = (unsigned)j;
	for (size_t i = 1; i <= len; i++) {
		left = row[0]++;
		for (size_t j = 1; j <= m; j++) {
			unsigned here = left + (a[i - 1] != b[j - 1]);

			above = row[j];
			if (above + 1 < here)
				here = above + 1;
			if (row[j - 1] + 1 < here)
				here = row[j - 1] + 1;
			left = above;
			row[j] = here;
		}
	}
	return row[m];
}
