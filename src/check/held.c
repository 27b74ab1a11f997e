#include "check/held.h"

#include <stdlib.h>

enum { MARKED_MOST = 16 << 20 }; /* bytes of a request whose marks are kept */

struct vb_check_held *vb_check_hold(struct vb_check_request *r, unsigned place)
{
	struct vb_check_held *h;
	size_t n = 0;

	if (!r->writes || !r->num)
		return NULL;
	for (uint32_t i = 0; i < r->num; i++)
		n += r->piece[i].length;
	h = malloc(sizeof(*h) + (n <= MARKED_MOST ? n : 0));
	if (h)
		h->marked = n <= MARKED_MOST;
	r->kept[place] = h;
	return h;
}

void vb_check_each_part(unsigned place, const uint8_t *at, uint64_t length,
			void act(struct vb_check_held *h, uint8_t *from, size_t n, size_t off))
{
	vb_lock_assert_held(&vb_check_lock);
	vb_ranges_each (n, vb_check_pieces[true], (uintptr_t)at, (uintptr_t)at + length) {
		struct vb_check_piece *p = vb_check_piece(n);
		uint8_t *from = p->at, *to = from + p->length;
		size_t off = from < at ? (size_t)(at - from) : 0;

		if (!p->of->kept[place])
			continue;
		from += off;
		to = to < at + length ? to : (uint8_t *)(uintptr_t)(at + length);
		for (const struct vb_check_piece *before = p->of->piece; before < p; before++)
			off += before->length;
		if (from < to)
			act(p->of->kept[place], from, (size_t)(to - from), off);
	}
}
