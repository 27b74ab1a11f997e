/* memcheck, a tool of valgrind.  Sent bytes have to be defined when they are posted.  A buffer that the
 * adapter writes to has no access until the request returns; then its bytes are as they were, but for those
 * that came. The library's own code runs under memcheck too, so memory is opened while the adapter touches
 * it. */
#include "check/check.h"

#if __has_include(<valgrind/memcheck.h>)

#include <stdlib.h>
#include <string.h>
#include <valgrind/memcheck.h>

enum { KEEP_MOST = 16 << 20 }; /* of a longer list it is not kept which bytes were defined */

static unsigned place;
static unsigned errors; /* of memcheck, which were heeded; guarded by vb_check_lock */

/* What the adapter has. */
struct held {
	bool kept;	/* `bits` are those of all pieces, one after the other */
	uint8_t bits[]; /* 0xff for a byte that was not defined */
};

static size_t length_of(const struct vb_check_request *r)
{
	size_t n = 0;

	for (uint32_t i = 0; i < r->num; i++)
		n += r->piece[i].length;
	return n;
}

static void close_all(const struct vb_check_request *r)
{
	for (uint32_t i = 0; i < r->num; i++)
		(void)VALGRIND_MAKE_MEM_NOACCESS(r->piece[i].at, r->piece[i].length);
}

/* memcheck has reported accesses to memory that the adapter has, or others in the meantime.  It does not tell
 * which. */
static void heed_errors(void)
{
	unsigned n = VALGRIND_COUNT_ERRORS, news = n - errors;
	bool any = false;

	errors = n;
	if (!news)
		return;
	vb_list_each (l, &vb_check_requests)
		if (vb_list_entry(l, struct vb_check_request, on_all)->kept[place])
			any = true;
	if (any)
		vb_check_say("check-memcheck",
			     "memcheck reported %u error%s while the adapter had buffers of the program. The "
			     "report of memcheck shows the line. The adapter has a buffer until the program "
			     "polls the completion of the request",
			     news, news == 1 ? "" : "s");
}

static void look_at_sent(const struct vb_check_request *r)
{
	for (uint32_t i = 0; i < r->num; i++) {
		const struct vb_check_piece *p = &r->piece[i];
		uintptr_t bad;

		if (vb_check_find(p->at, p->length, true, r))
			continue;
		bad = VALGRIND_CHECK_MEM_IS_DEFINED(p->at, p->length);
		if (!bad)
			continue;
		vb_check_say_unset(r, i, (size_t)(bad - (uintptr_t)p->at));
		errors = VALGRIND_COUNT_ERRORS;
	}
}

static void posted(struct vb_check_request *r)
{
	size_t n = length_of(r), off = 0;
	struct held *h;

	heed_errors();
	if (!r->writes)
		look_at_sent(r);
	if (!r->writes || !r->num)
		return;
	h = malloc(sizeof(*h) + (n <= KEEP_MOST ? n : 0)); /* returned() */
	if (!h)
		return;
	h->kept = n <= KEEP_MOST;
	for (uint32_t i = 0; h->kept && i < r->num; off += r->piece[i++].length)
		h->kept = VALGRIND_GET_VBITS(r->piece[i].at, h->bits + off, r->piece[i].length) == 1;
	r->kept[place] = h;
	close_all(r);
}

/* Closes again what others have of [at, at + n). */
static void close_part(uint8_t *at, uint64_t n)
{
	uint8_t *end = at + n;

	vb_list_each (l, &vb_check_requests) {
		struct vb_check_request *r = vb_list_entry(l, struct vb_check_request, on_all);

		for (uint32_t i = 0; r->kept[place] && i < r->num; i++) {
			uint8_t *from = r->piece[i].at, *to = from + r->piece[i].length;

			from = from < at ? at : from;
			to = to < end ? to : end;
			if (from < to)
				(void)VALGRIND_MAKE_MEM_NOACCESS(from, to - from);
		}
	}
}

static void returned(struct vb_check_request *r, bool polled)
{
	struct held *h = r->kept[place];
	size_t off = 0;

	(void)polled;
	if (h)
		heed_errors();
	for (uint32_t i = 0; h && i < r->num; off += r->piece[i++].length) {
		(void)VALGRIND_MAKE_MEM_DEFINED(r->piece[i].at, r->piece[i].length);
		if (h->kept)
			(void)VALGRIND_SET_VBITS(r->piece[i].at, h->bits + off, r->piece[i].length);
		close_part(r->piece[i].at, r->piece[i].length);
	}
	free(h);
	r->kept[place] = NULL;
}

static void touches(const struct vb_check_touch *t)
{
	if (vb_check_find(t->at, t->length, true, NULL))
		(void)VALGRIND_MAKE_MEM_DEFINED(t->at, t->length);
}

/* The bytes that came are defined, whichever request has them. */
static void define(const struct vb_check_request *r, const uint8_t *at, uint64_t n)
{
	struct held *h = r->kept[place];
	size_t off = 0;

	if (!h || !h->kept)
		return;
	for (uint32_t i = 0; i < r->num; off += r->piece[i++].length) {
		const uint8_t *from = r->piece[i].at, *to = from + r->piece[i].length, *end = at + n;
		const uint8_t *first = from < at ? at : from, *last = to < end ? to : end;

		if (first < last)
			memset(h->bits + off + (first - from), 0, (size_t)(last - first));
	}
}

static void touched(const struct vb_check_touch *t)
{
	if (t->what == VB_CHECK_WRITE) {
		(void)VALGRIND_MAKE_MEM_DEFINED_IF_ADDRESSABLE(t->at, t->length);
		vb_list_each (l, &vb_check_requests)
			define(vb_list_entry(l, struct vb_check_request, on_all), t->at, t->length);
	}
	close_part(t->at, t->length);
}

static bool begin(unsigned at)
{
	char byte = 0, bits = 1;

	place = at;
	errors = VALGRIND_COUNT_ERRORS;
	return VALGRIND_GET_VBITS(&byte, &bits, 1) == 1; /* 0: another tool, or none */
}

static void hush(bool on)
{
	if (on)
		VALGRIND_DISABLE_ERROR_REPORTING;
	else
		VALGRIND_ENABLE_ERROR_REPORTING;
}

const struct vb_checker vb_check_memcheck = {.name = "memcheck",
					     .begin = begin,
					     .posted = posted,
					     .returned = returned,
					     .touches = touches,
					     .touched = touched,
					     .hush = hush};

#else

static bool begin(unsigned at)
{
	(void)at;
	return false;
}

const struct vb_checker vb_check_memcheck = {.name = "memcheck", .begin = begin};

#endif
