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

/* The least code point that may have so many bytes. */
static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};

size_t vb_text_character(const char *s)
{
	uint8_t first = (uint8_t)*s;
	size_t n = first < 0x80	  ? 1
		   : first < 0xc0 ? 0
		   : first < 0xe0 ? 2
		   : first < 0xf0 ? 3
		   : first < 0xf8 ? 4
				  : 0;
	uint32_t c = n < 2 ? first : first & (0x7fu >> n);

	for (size_t i = 1; i < n; i++) {
		if (((uint8_t)s[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | ((uint8_t)s[i] & 0x3f);
	}
	if (!n || c < least[n] || c > 0x10ffff ||
	    (c >= 0xd800 && c < 0xe000)) /* a surrogate is no character */
		return 0;
	return c < 0x20 || (c >= 0x7f && c < 0xa0) ? 0 : n;
}

size_t vb_text_escape(char *to, size_t size, const char *from)
{
	char *at = to, escaped[5];

	while (*from) {
		size_t n = vb_text_character(from), needs = n ? n : 4;
		const char *piece = from;

		if (needs >= size - (size_t)(at - to))
			break;
		if (!n) {
			snprintf(escaped, sizeof escaped, "\\x%02x", (uint8_t)*from);
			piece = escaped;
		}
		memcpy(at, piece, needs);
		at += needs;
		from += n ? n : 1;
	}
	*at = 0;
	return (size_t)(at - to);
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
