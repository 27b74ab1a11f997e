/* What rows that know each byte keep of a request to whose memory the adapter writes: the marks that the
 * bytes had, since the memory is closed to the program from the post until the request returns. */
#ifndef VB_CHECK_HELD_H
#define VB_CHECK_HELD_H

#include "check/check.h"

struct vb_check_held {
	bool marked;	 /* whether `marks` are kept; of a long list they are not */
	uint8_t marks[]; /* of all pieces, one after the other */
};

/* Makes r->kept[place], with room for the marks; the row frees it as the request returns.  NULL: the adapter
 * writes nothing for the request, or there is no memory. */
struct vb_check_held *vb_check_hold(struct vb_check_request *r, unsigned place);

/* Calls act() for each part of [at, at + length) that is memory of a request with kept[place].  off: where
 * the marks of the part begin. */
void vb_check_each_part(unsigned place, const uint8_t *at, uint64_t length,
			void act(struct vb_check_held *h, uint8_t *from, size_t n, size_t off));

#endif
