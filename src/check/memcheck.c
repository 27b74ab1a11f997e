/* memcheck, a tool of valgrind.  Sent bytes have to be defined when they are posted.  A buffer that the
 * adapter writes to has no access until the request returns; then its bytes are as they were, but for those
 * that came. The library's own code runs under memcheck too, so memory is opened while the adapter touches
 * it. */
#include "base/memcheck.h"
#include "check/held.h"

#if __has_include(<valgrind/memcheck.h>)

#include <stdlib.h>
#include <string.h>

enum { TOUCHES = 256 }; /* at once; memory of more than these may be closed too early */

static unsigned place;
static unsigned errors; /* of memcheck, which were heeded; guarded by vb_check_lock */
/* What the adapter touches now: a thread each.  Guarded by vb_check_lock. */
static struct {
	uint8_t *from, *to;
} now[TOUCHES];
static unsigned nnow;

/* Another thread may be touching memory of the range, by another request.  It closes that itself. */
static void close_between(uint8_t *from, uint8_t *to)
{
	while (from < to) {
		uint8_t *end = to, *next = to;

		for (unsigned i = 0; i < nnow; i++) {
			if (now[i].to <= from || now[i].from >= end)
				continue;
			end = now[i].from > from ? now[i].from : from;
			next = now[i].to;
		}
		(void)VALGRIND_MAKE_MEM_NOACCESS(from, end - from);
		from = next;
	}
}

static void close_all(const struct vb_check_request *r)
{
	for (uint32_t i = 0; i < r->num; i++)
		close_between(r->piece[i].at, r->piece[i].at + r->piece[i].length);
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
	if (any && vb_check_is_news("check-memcheck", NULL))
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

		if (vb_check_any(p->at, p->length, true, r))
			continue;
		bad = VALGRIND_CHECK_MEM_IS_DEFINED(p->at, p->length);
		if (!bad)
			continue;
		vb_check_say_unset(r, i, (size_t)(bad - (uintptr_t)p->at));
		errors = VALGRIND_COUNT_ERRORS;
	}
}

/* It has followed the copying. */
static void sends_inline(const struct vb_check_request *r, void *copy, size_t n)
{
	uintptr_t bad = VALGRIND_CHECK_MEM_IS_DEFINED(copy, n);

	if (!bad)
		return;
	vb_check_say_unset_inline(r, (size_t)(bad - (uintptr_t)copy));
	errors = VALGRIND_COUNT_ERRORS;
	(void)VALGRIND_MAKE_MEM_DEFINED(copy, n);
}

static void posted(struct vb_check_request *r)
{
	struct vb_check_held *h;
	size_t off = 0;

	heed_errors();
	if (!r->writes)
		look_at_sent(r);
	h = vb_check_hold(r, place);
	if (!h)
		return;
	for (uint32_t i = 0; h->marked && i < r->num; off += r->piece[i++].length)
		h->marked = VALGRIND_GET_VBITS(r->piece[i].at, h->marks + off, r->piece[i].length) == 1;
	close_all(r);
}

/* What others have stays closed. */
static void close_part(struct vb_check_held *h, uint8_t *from, size_t n, size_t off)
{
	(void)h, (void)off;
	close_between(from, from + n);
}

static void returned(struct vb_check_request *r, bool polled)
{
	struct vb_check_held *h = r->kept[place];
	size_t off = 0;

	(void)polled;
	if (h)
		heed_errors();
	for (uint32_t i = 0; h && i < r->num; off += r->piece[i++].length) {
		(void)VALGRIND_MAKE_MEM_DEFINED(r->piece[i].at, r->piece[i].length);
		if (h->marked)
			(void)VALGRIND_SET_VBITS(r->piece[i].at, h->marks + off, r->piece[i].length);
		vb_check_each_part(place, r->piece[i].at, r->piece[i].length, close_part);
	}
	free(h);
	r->kept[place] = NULL;
}

static void touches(const struct vb_check_touch *t)
{
	if (vb_check_any(t->at, t->length, true, NULL))
		(void)VALGRIND_MAKE_MEM_DEFINED(t->at, t->length);
	if (t->what == VB_CHECK_ATOMIC || nnow == TOUCHES) /* nobody says when an atomic is done */
		return;
	now[nnow].from = t->at;
	now[nnow++].to = t->at + t->length;
}

/* The bytes that came are defined, whichever request has them, but only once it returns. */
static void define(struct vb_check_held *h, uint8_t *from, size_t n, size_t off)
{
	if (h->marked)
		memset(h->marks + off, 0, n);
	close_part(h, from, n, off);
}

static void touched(const struct vb_check_touch *t)
{
	for (unsigned i = 0; i < nnow; i++)
		if (now[i].from == t->at && now[i].to == t->at + t->length) {
			now[i] = now[--nnow];
			break;
		}
	if (t->what == VB_CHECK_WRITE && !t->failed)
		(void)VALGRIND_MAKE_MEM_DEFINED_IF_ADDRESSABLE(t->at, t->length);
	vb_check_each_part(place, t->at, t->length,
			   t->what == VB_CHECK_WRITE && !t->failed ? define : close_part);
}

static bool begin(unsigned at)
{
	char byte = 0, bits = 1;

	place = at;
	errors = VALGRIND_COUNT_ERRORS;
	return VALGRIND_GET_VBITS(&byte, &bits, 1) == 1; /* 0: another tool, or none */
}

const struct vb_checker vb_check_memcheck = {.name = "memcheck",
					     .begin = begin,
					     .sends_inline = sends_inline,
					     .posted = posted,
					     .returned = returned,
					     .touches = touches,
					     .touched = touched,
					     .hush = vb_memcheck_hush};

#else

static bool begin(unsigned at)
{
	(void)at;
	return false;
}

const struct vb_checker vb_check_memcheck = {.name = "memcheck", .begin = begin};

#endif
