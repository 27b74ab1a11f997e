/* MemorySanitizer.  Sent bytes have to be initialized when they are posted.  What the adapter writes to
 * counts as uninitialized from the post until the request returns; then its bytes are as they were, but for
 * those that came.  The library's own code is not instrumented, so it reads and writes all of that unnoticed;
 * what it does for the program otherwise is in base/msan.h. */
#include <stdlib.h>

#include "base/log.h"
#include "base/msan.h"
#include "base/symbol.h"
#include "check/held.h"

static struct {
	intptr_t (*first_poisoned)(const volatile void *at, size_t n); /* -1: none */
	void (*report)(const volatile void *at, size_t n); /* if any is, and mostly ends the process */
	void (*poison)(const volatile void *at, size_t n);
	void (*stamp)(const volatile void *at, size_t n); /* the same, and this call is where it comes from */
	void (*copy_marks)(const volatile void *to, const volatile void *from, size_t n);
} msan;
static unsigned place;

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

		if (at < 0 || vb_check_any(p->at, p->length, true, r))
			continue;
		vb_check_say_unset(r, i, (size_t)at);
		vb_log_tell();
		msan.report(p->at, p->length);
	}
}

/* What others have counts as uninitialized, and may be sent. */
static void inlined(void *to, const void *from, size_t n)
{
	if (vb_check_any(from, n, true, NULL))
		vb_msan_unpoison(to, n);
	else
		msan.copy_marks(to, from, n);
}

static void sends_inline(const struct vb_check_request *r, void *copy, size_t n)
{
	intptr_t at = msan.first_poisoned(copy, n);

	if (at < 0)
		return;
	vb_check_say_unset_inline(r, (size_t)at);
	vb_log_tell();
	msan.report(copy, n);
	vb_msan_unpoison(copy, n);
}

static void posted(struct vb_check_request *r)
{
	struct vb_check_held *h;
	size_t off = 0;

	if (!r->writes)
		look_at_sent(r);
	h = vb_check_hold(r, place);
	if (!h)
		return;
	for (uint32_t i = 0; h->marked && i < r->num; i++)
		h->marked = !vb_check_any(r->piece[i].at, r->piece[i].length, true, r);
	for (uint32_t i = 0; h->marked && i < r->num; off += r->piece[i++].length)
		msan.copy_marks(h->marks + off, r->piece[i].at, r->piece[i].length);
	for (uint32_t i = 0; i < r->num; i++)
		close_off(r->piece[i].at, r->piece[i].length);
}

/* What others have stays closed, and still comes from their posts. */
static void close_part(struct vb_check_held *h, uint8_t *from, size_t n, size_t off)
{
	(void)h, (void)off;
	msan.poison(from, n);
}

static void returned(struct vb_check_request *r, bool polled)
{
	struct vb_check_held *h = r->kept[place];
	size_t off = 0;

	(void)polled;
	for (uint32_t i = 0; h && i < r->num; off += r->piece[i++].length) {
		if (h->marked && !vb_check_in_fork)
			msan.copy_marks(r->piece[i].at, h->marks + off, r->piece[i].length);
		else
			vb_msan_unpoison(r->piece[i].at, r->piece[i].length);
		if (!vb_check_in_fork)
			vb_check_each_part(place, r->piece[i].at, r->piece[i].length, close_part);
	}
	if (!vb_check_in_fork) /* the sanitizer has its locks, and its allocator would wait for them */
		free(h);
	r->kept[place] = NULL;
}

/* The bytes that came are initialized, whichever request has them, but only once it returns. */
static void define(struct vb_check_held *h, uint8_t *from, size_t n, size_t off)
{
	if (h->marked)
		vb_msan_unpoison(h->marks + off, n);
	close_part(h, from, n, off);
}

static void touched(const struct vb_check_touch *t)
{
	if (t->what != VB_CHECK_WRITE || t->failed)
		return;
	vb_msan_unpoison(t->at, t->length);
	vb_check_each_part(place, t->at, t->length, define);
}

static bool begin(unsigned at)
{
	place = at;
	return !VB_CHECK_SELF && vb_msan_on && vb_symbol_find("__msan_test_shadow", &msan.first_poisoned) &&
	       vb_symbol_find("__msan_check_mem_is_initialized", &msan.report) &&
	       vb_symbol_find("__msan_poison", &msan.poison) &&
	       vb_symbol_find("__msan_allocated_memory", &msan.stamp) &&
	       vb_symbol_find("__msan_copy_shadow", &msan.copy_marks);
}

const struct vb_checker vb_check_msan = {.name = "MemorySanitizer",
					 .in_child = true,
					 .begin = begin,
					 .inlined = inlined,
					 .sends_inline = sends_inline,
					 .posted = posted,
					 .returned = returned,
					 .touched = touched};
