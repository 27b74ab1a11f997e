/* MemorySanitizer.  Sent bytes have to be initialized when they are posted.  What the adapter writes to
 * counts as uninitialized from the post until the request returns; then its bytes are as they were, but for
 * those that came.  The library's own code is not instrumented, so it reads and writes all of that unnoticed;
 * what it does for the program otherwise is in base/msan.h. */
#include <stdlib.h>

#include "base/log.h"
#include "base/msan.h"
#include "check/check.h"

enum { KEEP_MOST = 16 << 20 }; /* of a longer list it is not kept which bytes were initialized */

static struct {
	intptr_t (*first_poisoned)(const volatile void *at, size_t n); /* -1: none */
	void (*report)(const volatile void *at, size_t n); /* if any is, and mostly ends the process */
	void (*poison)(const volatile void *at, size_t n);
	void (*stamp)(const volatile void *at, size_t n); /* the same, and this call is where it comes from */
	void (*copy_marks)(const volatile void *to, const volatile void *from, size_t n);
} msan;
static unsigned place;

/* What the adapter has. */
struct held {
	bool kept;	 /* whether `marks` are the pieces', one after the other */
	uint8_t marks[]; /* bytes whose marks count, and whose values do not */
};

static size_t length_of(const struct vb_check_request *r)
{
	size_t n = 0;

	for (uint32_t i = 0; i < r->num; i++)
		n += r->piece[i].length;
	return n;
}

static void close_off(const uint8_t *at, size_t n)
{
	msan.poison(at, n); /* whatever the options say of fresh memory */
	msan.stamp(at, n);
}

static void look_at_sent(const struct vb_check_request *r)
{
	for (uint32_t i = 0; i < r->num; i++) {
		const struct vb_check_piece *p = &r->piece[i];
		intptr_t at = msan.first_poisoned(p->at, p->length);

		if (at < 0 || vb_check_find(p->at, p->length, true, r))
			continue;
		vb_check_say_unset(r, i, (size_t)at);
		vb_log_tell();
		msan.report(p->at, p->length);
	}
}

static void posted(struct vb_check_request *r)
{
	size_t n = length_of(r), off = 0;
	struct held *h;

	if (!r->writes)
		look_at_sent(r);
	if (!r->writes || !r->num)
		return;
	h = malloc(sizeof(*h) + (n <= KEEP_MOST ? n : 0)); /* returned() */
	if (!h)
		return;
	h->kept = n <= KEEP_MOST;
	for (uint32_t i = 0; h->kept && i < r->num; i++)
		h->kept = !vb_check_find(r->piece[i].at, r->piece[i].length, true, r);
	for (uint32_t i = 0; h->kept && i < r->num; off += r->piece[i++].length)
		msan.copy_marks(h->marks + off, r->piece[i].at, r->piece[i].length);
	r->kept[place] = h;
	for (uint32_t i = 0; i < r->num; i++)
		close_off(r->piece[i].at, r->piece[i].length);
}

/* Closes again what others have of [at, at + n), which still comes from their posts. */
static void close_part(const uint8_t *at, uint64_t n)
{
	const uint8_t *end = at + n;

	vb_list_each (l, &vb_check_requests) {
		struct vb_check_request *r = vb_list_entry(l, struct vb_check_request, on_all);

		for (uint32_t i = 0; r->kept[place] && i < r->num; i++) {
			const uint8_t *from = r->piece[i].at, *to = from + r->piece[i].length;

			from = from < at ? at : from;
			to = to < end ? to : end;
			if (from < to)
				msan.poison(from, (size_t)(to - from));
		}
	}
}

static void returned(struct vb_check_request *r, bool polled)
{
	struct held *h = r->kept[place];
	size_t off = 0;

	(void)polled;
	for (uint32_t i = 0; h && i < r->num; off += r->piece[i++].length) {
		if (h->kept && !vb_check_in_fork)
			msan.copy_marks(r->piece[i].at, h->marks + off, r->piece[i].length);
		else
			vb_msan_unpoison(r->piece[i].at, r->piece[i].length);
		if (!vb_check_in_fork)
			close_part(r->piece[i].at, r->piece[i].length);
	}
	if (!vb_check_in_fork) /* the sanitizer has its locks, and its allocator would wait for them */
		free(h);
	r->kept[place] = NULL;
}

/* The bytes that came are initialized, whichever request has them. */
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
			vb_msan_unpoison(h->marks + off + (first - from), (size_t)(last - first));
	}
}

static void touched(const struct vb_check_touch *t)
{
	if (t->what != VB_CHECK_WRITE)
		return;
	vb_msan_unpoison(t->at, t->length);
	vb_list_each (l, &vb_check_requests)
		define(vb_list_entry(l, struct vb_check_request, on_all), t->at, t->length);
	close_part(t->at, t->length);
}

static bool begin(unsigned at)
{
	place = at;
	return !VB_CHECK_SELF && vb_msan_on && vb_check_lookup("__msan_test_shadow", &msan.first_poisoned) &&
	       vb_check_lookup("__msan_check_mem_is_initialized", &msan.report) &&
	       vb_check_lookup("__msan_poison", &msan.poison) &&
	       vb_check_lookup("__msan_allocated_memory", &msan.stamp) &&
	       vb_check_lookup("__msan_copy_shadow", &msan.copy_marks);
}

const struct vb_checker vb_check_msan = {.name = "MemorySanitizer",
					 .in_child = true,
					 .begin = begin,
					 .posted = posted,
					 .returned = returned,
					 .touched = touched};
