/* The row of `verbena run --check`: whether the program keeps off the buffers that the adapter has.
 *
 * Each buffer is fingerprinted at its post, and compared when the program polls the completion that gives it
 * back.  The adapter's own writes are no change (mem/prints.h). */
#include "mem/check_buffers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/pages.h"
#include "base/where.h"
#include "mem/keys.h"
#include "mem/prints.h"

/* What is kept of a request. */
struct kept {
	struct kept *next; /* in a child */
	struct vb_where where;
	struct vb_guarded *guarded;
	uint32_t num;
	struct vb_print *print[]; /* of each piece; NULL: it is not looked at */
};

/* What a child has from its parent.  In fork() a sanitizer has the locks of its allocator, and free() would
 * wait for them for ever.  A search for leaks finds it here. */
static struct kept *inherited;

static unsigned place;
static bool active; /* the row is at work */

bool vb_check_is_active(void)
{
	return active;
}

static bool begin(unsigned at)
{
	place = at;
	if (!vb_check_has_word("on") && !vb_check_has_word("guard"))
		return false;
	vb_where_prepare();
	active = true;
	if (vb_check_has_word("guard"))
		vb_check_guard_open(vb_check_whose);
	return true;
}

void vb_check_looks(uintptr_t from, uintptr_t to)
{
	if (!active)
		return;
	vb_lock_take(&vb_check_lock);
	vb_check_guard_drop(from, to);
	vb_lock_give(&vb_check_lock);
}

const char *vb_check_whose(char text[VB_CHECK_WHOSE], const struct vb_check_request *r)
{
	const struct kept *k = r->kept[place];
	char callers[VB_WHERE_TEXT];
	size_t n;

	vb_check_name(text, VB_CHECK_WHOSE, r);
	n = strlen(text);
	if (k && *vb_where_say(callers, &k->where, 1))
		snprintf(text + n, VB_CHECK_WHOSE - n, ", called from %s", callers);
	return text;
}

#define OWNED                                                                                                \
	"The adapter owns the buffer until the program polls the completion of this request, or of a later " \
	"one of its queue. Poll first, or use another buffer"

static void say_change(const struct vb_check_request *r, uint32_t piece, const struct vb_print_change *c)
{
	char whose[VB_CHECK_WHOSE], what[120], of[40] = "";

	if (!vb_check_is_news("check-changed", r->where))
		return;
	if (r->num > 1 || r->piece[piece].number)
		snprintf(of, sizeof(of), " of piece %" PRIu32, r->piece[piece].number);
	if (c->block)
		snprintf(what, sizeof(what), "a byte between %" PRIu64 " and %" PRIu64, c->from, c->to - 1);
	else if (c->to == c->from + 1)
		snprintf(what, sizeof(what), "byte %" PRIu64 " (0x%02x to 0x%02x)", c->from, c->was, c->is);
	else
		snprintf(what, sizeof(what), "bytes between %" PRIu64 " and %" PRIu64, c->from, c->to - 1);
	vb_log_reason("check-changed",
		      "the program changed %s%s of a buffer while the request was outstanding: %s. " OWNED,
		      what, of, vb_check_whose(whose, r));
}

/* Whether nothing is mapped there.  Memory that the program protects is there. */
static bool is_unmapped(const struct vb_check_piece *p)
{
	uintptr_t from = vb_page_start((uintptr_t)p->at);
	unsigned char seen;

	for (uintptr_t at = from; at < (uintptr_t)p->at + p->length; at += vb_page_size())
		if (mincore((void *)at, 1, &seen) && errno == ENOMEM)
			return true;
	return false;
}

static void say_gone(const struct vb_check_request *r, const struct vb_check_piece *p)
{
	char whose[VB_CHECK_WHOSE];
	int err = errno;
	bool gone = is_unmapped(p);

	errno = err;
	if (!gone)
		return;
	if (vb_check_is_news("check-unmapped", r->where))
		vb_log_reason("check-unmapped",
			      "the program unmapped the buffer at %p (%" PRIu32
			      " bytes) while the request was outstanding: %s. " OWNED,
			      (void *)p->at, p->length, vb_check_whose(whose, r));
}

/* Of which piece of the request it is. */
static void changed(const void *owner, const struct vb_print *p, const struct vb_print_change *c)
{
	const struct vb_check_request *r = owner;
	const struct kept *k = r->kept[place];

	for (uint32_t i = 0; i < k->num; i++)
		if (k->print[i] == p) {
			say_change(r, i, c);
			return;
		}
}

/* Before another request takes the range.  What no message has overwritten of a receive harms nobody. */
static void changed_before(const void *owner, const struct vb_print *p, const struct vb_print_change *c)
{
	const struct vb_check_request *r = owner;

	if (r->queue->kind == VB_CHECK_SENDS && !r->queue->failed)
		changed(owner, p, c);
}

/* An atomic that this thread carries out: nobody says when it is done, but then this thread comes back. */
static __thread struct vb_check_touch atomic;

static void settle_atomic(void)
{
	if (!atomic.length)
		return;
	vb_prints_written((uintptr_t)atomic.at, atomic.length);
	vb_check_guard_touched((uintptr_t)atomic.at, atomic.length);
	atomic.length = 0;
}

static void posted(struct vb_check_request *r)
{
	struct kept *k = malloc(sizeof(*k) + r->num * sizeof(k->print[0])); /* returned() */
	const struct vb_caller caller = {r->where, r->frame};

	settle_atomic();
	vb_check_guard_prepare(r);
	r->kept[place] = k;
	if (!k)
		return;
	vb_where_recall(&k->where, &caller);
	k->num = r->num;
	for (uint32_t i = 0; i < r->num; i++)
		k->print[i] = vb_print_take((uintptr_t)r->piece[i].at, r->piece[i].length, r, changed_before);
	k->guarded = vb_check_guard_begin(r);
}

/* What the program has done to a request's buffers, which it is about to have again. */
static void compare(struct vb_check_request *r, struct kept *k)
{
	for (uint32_t i = 0; i < k->num; i++) {
		struct vb_print_change c;

		if (!k->print[i])
			continue;
		c = vb_print_look(k->print[i]);
		if (c.found == VB_PRINT_CHANGED)
			say_change(r, i, &c);
		else if (c.found == VB_PRINT_GONE)
			say_gone(r, &r->piece[i]);
	}
}

/* A queue with failures may have flushed the request: then the adapter never read the buffer, and what the
 * program does with it harms nobody. */
static void returned(struct vb_check_request *r, bool polled)
{
	struct kept *k = r->kept[place];

	if (k && vb_check_in_fork) {
		vb_check_guard_give(k->guarded);
		k->next = inherited;
		inherited = k;
		return;
	}
	settle_atomic();
	if (!k)
		return;
	vb_check_guard_end(k->guarded);
	/* What no message has overwritten of a receive harms nobody; touches() sees to the rest. */
	if (polled && !r->queue->failed && r->queue->kind == VB_CHECK_SENDS)
		compare(r, k);
	for (uint32_t i = 0; i < k->num; i++)
		if (k->print[i])
			vb_print_drop(k->print[i], r);
	r->kept[place] = NULL;
	free(k);
}

/* ---- keys that have ended ---- */

enum { ENDED = 1024 };

static struct {
	uint32_t key; /* without the bit that tells R_Keys */
	enum vb_check_end how;
	struct vb_where where;
} ended[ENDED]; /* a ring; guarded by vb_check_lock */
static uint32_t nended;

/* Behind "the R_Key of ", and in front of where that was; what to do. */
static const struct {
	const char *what, *remedy;
} ends[] = {
    [VB_CHECK_DEREGISTERED] = {"a region that this program has deregistered",
			       "Deregister a region when nobody uses its key any more"},
    [VB_CHECK_UNBOUND] = {"a memory window that this program has unbound, or bound again",
			  "Unbind a window when nobody uses its key any more"},
    [VB_CHECK_DEALLOCATED] = {"a memory window that this program has deallocated",
			      "Deallocate a window when nobody uses its key any more"},
    [VB_CHECK_QUEUE_PAIR_GONE] = {"a memory window whose queue pair this program has destroyed",
				  "Destroy a queue pair when nobody uses the keys of its windows any more"},
    [VB_CHECK_INVALIDATED] = {"a memory window that the peer has invalidated by an IBV_WR_SEND_WITH_INV",
			      "Send it when no further request uses the key"},
};

void vb_check_key_ended(uint32_t key, enum vb_check_end how)
{
	struct vb_where w = {{NULL}};

	if (!active)
		return;
	if (how != VB_CHECK_INVALIDATED)
		vb_where_take(&w);
	vb_lock_take(&vb_check_lock);
	ended[nended % ENDED].key = key & ~VB_KEY_REMOTE;
	ended[nended % ENDED].how = how;
	ended[nended++ % ENDED].where = w;
	vb_lock_give(&vb_check_lock);
}

void vb_check_key_is_stale(uint32_t key, bool remote)
{
	char where[VB_WHERE_TEXT];

	if (!active)
		return;
	vb_lock_take(&vb_check_lock);
	for (uint32_t i = nended; i-- > 0 && nended - i <= ENDED;) {
		enum vb_check_end how = ended[i % ENDED].how;

		if (ended[i % ENDED].key != (key & ~VB_KEY_REMOTE))
			continue;
		if (vb_check_is_news("check-stale-key", ended[i % ENDED].where.at[0]) &&
		    (*vb_where_say(where, &ended[i % ENDED].where, 0) || how == VB_CHECK_INVALIDATED))
			vb_log_reason("check-stale-key", "%s names the %s_Key of %s%s%s. %s",
				      remote ? "a peer's request" : "a request", remote ? "R" : "L",
				      ends[how].what, *where ? ", in " : "", where, ends[how].remedy);
		break;
	}
	vb_lock_give(&vb_check_lock);
}

static void touches(const struct vb_check_touch *t)
{
	settle_atomic();
	vb_check_guard_touches((uintptr_t)t->at, t->length);
	if (t->what != VB_CHECK_READ)
		vb_prints_write((uintptr_t)t->at, t->length, changed);
	if (t->what == VB_CHECK_ATOMIC)
		atomic = *t;
}

static void touched(const struct vb_check_touch *t)
{
	if (t->what != VB_CHECK_READ)
		vb_prints_written((uintptr_t)t->at, t->length);
	vb_check_guard_touched((uintptr_t)t->at, t->length);
}

static void forked(void)
{
	active = false;
	atomic.length = 0;
	vb_prints_forget();
	vb_check_guard_forked();
}

const struct vb_checker vb_check_buffers = {.name = "--check",
					    .begin = begin,
					    .posted = posted,
					    .returned = returned,
					    .touches = touches,
					    .touched = touched,
					    .forked = forked};
