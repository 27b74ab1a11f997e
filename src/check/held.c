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
	vb_list_each (l, &vb_check_requests) {
		struct vb_check_request *r = vb_list_entry(l, struct vb_check_request, on_all);
		size_t off = 0;

		for (uint32_t i = 0; r->kept[place] && i < r->num; off += r->piece[i++].length) {
			uint8_t *from = r->piece[i].at, *to = from + r->piece[i].length;
			size_t before = from < at ? (size_t)(at - from) : 0;

			to = to < at + length ? to : (uint8_t *)(uintptr_t)(at + length);
			from += before;
			if (from < to)
				act(r->kept[place], from, (size_t)(to - from), off + before);
		}
	}
}
