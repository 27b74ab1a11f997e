/* AddressSanitizer.  What the adapter writes to is poisoned from the post until the request returns, so that
 * the sanitizer stops the program at the very instruction that touches it.  What the adapter itself touches
 * is looked up in the sanitizer's shadow, so that memory which was freed is reported with its stacks.
 *
 * Eight bytes of memory, a grain, have one byte of shadow: 0, all of them may be touched; 1 to 7, so many at
 * the beginning; anything else, none.  A buffer is poisoned only if all of it may be touched, but for what
 * the adapter has already, since receives may overlap.  It is given back only where it is still poisoned as
 * we left it: memory that was freed meanwhile keeps the allocator's marks.  The last grain is left alone if
 * bytes behind the buffer are the program's, which its shadow cannot say. */
#include <sys/auxv.h>

#include "base/log.h"
#include "base/symbol.h"
#include "check/check.h"

enum { POISON = 0xf7, FREED = 0xfd, GRAIN = 8 }; /* marks: memory that was poisoned on demand, or freed */

static struct {
	void (*mapping)(size_t *scale, size_t *offset);
	void *(*is_poisoned)(void *at, size_t length);
	void (*load)(void *at, size_t length); /* these two report an access */
	void (*store)(void *at, size_t length);
	void *(*address)(void);
} asan;
static size_t shadow_offset;
static uintptr_t highest; /* address of a program */
static unsigned place;
static __thread bool reporting; /* what the adapter does, which was said */
/* A thread is in report().  The sanitizer may have it wait for another one. */
static _Atomic bool reports;

static uint8_t *shadow_of(const uint8_t *at)
{
	return (uint8_t *)(((uintptr_t)at >> 3) + shadow_offset);
}

/* Other addresses have no shadow.  A peer may name any, if a region has the whole address space. */
static bool has_shadow(const uint8_t *at)
{
	uintptr_t a = (uintptr_t)at;

	return a < shadow_offset || (a > (highest >> 3) + shadow_offset && a <= highest);
}

/* Bytes at the beginning of a grain that may be touched. */
static unsigned open_in(uint8_t shadow)
{
	return !shadow ? GRAIN : shadow < GRAIN ? shadow : 0;
}

/* The bytes from `from` to `to` of a grain are a buffer's. */
static void poison_grain(uint8_t *shadow, unsigned from, unsigned to)
{
	unsigned open = open_in(*shadow);

	if (from < open && to >= open)
		*shadow = from ? (uint8_t)from : POISON;
}

static void open_grain(uint8_t *shadow, unsigned from, unsigned to)
{
	if (*shadow == (from ? from : POISON))
		*shadow = to == GRAIN ? 0 : (uint8_t)to;
}

static void each_grain(const uint8_t *at, const uint8_t *end,
		       void act(uint8_t *shadow, unsigned from, unsigned to))
{
	while (at < end && has_shadow(at)) {
		unsigned from = (uintptr_t)at % GRAIN, to = GRAIN;

		if (end - at < GRAIN - from)
			to = from + (unsigned)(end - at);
		act(shadow_of(at), from, to);
		at += to - from;
	}
}

/* The first byte that may not be touched, for another reason than that the adapter has it; NULL: none. */
static uint8_t *strange(uint8_t *at, uint64_t length, const struct vb_check_request *but)
{
	uint8_t *end = at + length;

	while (at < end && (at = asan.is_poisoned(at, (size_t)(end - at)))) {
		const struct vb_check_piece *p;
		uint8_t shadow;

		if (!has_shadow(at)) /* whoever touches it finds no memory there */
			return NULL;
		shadow = *shadow_of(at);
		p = vb_check_any(at, 1, true, but);
		if (!p || (shadow != POISON && shadow >= GRAIN)) /* the allocator's mark */
			return at;
		at = p->at + p->length;
	}
	return NULL;
}

/* The sanitizer reports an access to `at`, here, and mostly ends the process. */
static void report(void access(void *at, size_t length), uint8_t *at)
{
	vb_lock_assert_held(&vb_check_lock);
	reporting = true;
	atomic_store(&reports, true);
	vb_log_tell();
	access(at, 1);
	atomic_store(&reports, false);
	reporting = false;
}

static void posted(struct vb_check_request *r)
{
	char name[256];
	uint8_t *bad;

	for (uint32_t i = 0; i < r->num; i++) {
		bad = strange(r->piece[i].at, r->piece[i].length, r);
		if (!bad)
			continue;
		if (r->writes) /* it is reported once the adapter writes there */
			return;
		vb_check_say("check-freed",
			     "the program posts memory that it has freed, or never had: byte %zu of piece %u "
			     "of %s",
			     (size_t)(bad - r->piece[i].at), r->piece[i].number,
			     vb_check_name(name, sizeof(name), r));
		report(asan.load, bad);
		return;
	}
	if (!r->writes)
		return;
	for (uint32_t i = 0; i < r->num; i++)
		each_grain(r->piece[i].at, r->piece[i].at + r->piece[i].length, poison_grain);
	r->kept[place] = r; /* it is poisoned */
}

static void inlined(void *to, const void *from, size_t n)
{
	uint8_t *bad = strange((uint8_t *)(uintptr_t)from, n, NULL);

	(void)to;
	if (!bad)
		return;
	vb_check_say(
	    "check-freed",
	    "the program posts inline data that it has freed, or never had: byte %zu of the %zu at %p",
	    (size_t)(bad - (const uint8_t *)from), n, from);
	report(asan.load, bad);
}

/* Another request has exactly the same memory, which stays as it is. */
static bool is_shared(const struct vb_check_piece *p)
{
	struct vb_range *all = vb_check_pieces[true], *r = vb_ranges_same(all, p->held.from, p->held.to);

	for (; r && r->from == p->held.from && r->to == p->held.to;
	     r = vb_ranges_next(all, p->held.from, p->held.to, r))
		if (vb_check_piece(r)->of->kept[place])
			return true;
	return false;
}

/* What others have of those grains, too. */
static void poison_again(uintptr_t from, uintptr_t to)
{
	vb_ranges_each (r, vb_check_pieces[true], from, to)
		if (vb_check_piece(r)->of->kept[place])
			each_grain((const uint8_t *)(r->from > from ? r->from : from),
				   (const uint8_t *)(r->to < to ? r->to : to), poison_grain);
}

/* The adapter may have read the buffer before the program freed it, and then touches() has not noticed. */
static void look_for_freed(const struct vb_check_request *r)
{
	char name[256];

	for (uint32_t i = 0; i < r->num; i++) {
		uint8_t *bad = asan.is_poisoned(r->piece[i].at, r->piece[i].length);

		if (!bad || !has_shadow(bad) || *shadow_of(bad) != FREED)
			continue;
		vb_check_say(
		    "check-freed",
		    "the program freed byte %zu of piece %u of %s, before it polled the completion of that "
		    "request",
		    (size_t)(bad - r->piece[i].at), r->piece[i].number, vb_check_name(name, sizeof(name), r));
		report(asan.load, bad);
		return;
	}
}

static void returned(struct vb_check_request *r, bool polled)
{
	if (polled && r->queue->kind == VB_CHECK_SENDS && !r->queue->failed)
		look_for_freed(r);
	for (uint32_t i = 0; r->kept[place] && i < r->num; i++) {
		const struct vb_check_piece *p = &r->piece[i];

		if (is_shared(p))
			continue;
		each_grain(p->at, p->at + p->length, open_grain);
		poison_again(p->held.from / GRAIN * GRAIN, (p->held.to + GRAIN - 1) / GRAIN * GRAIN);
	}
}

static void say_touch(const struct vb_check_touch *t)
{
	const char *does = t->what == VB_CHECK_READ ? "reads" : "writes";
	const struct vb_check_request *r;
	char name[256];

	if (t->remote) {
		vb_check_say("check-freed",
			     "the adapter %s %llu bytes at %p for a request of the peer of QP 0x%06x, with "
			     "R_Key 0x%08x: the program has freed that memory, or never had it",
			     does, (unsigned long long)t->length, (void *)t->at, t->qpn, t->key);
		return;
	}
	r = vb_check_find(t->at, t->length, t->what != VB_CHECK_READ);
	vb_check_say(
	    "check-freed",
	    "the adapter %s %llu bytes at %p for %s: the program has freed that memory, or never had "
	    "it",
	    does, (unsigned long long)t->length, (void *)t->at,
	    r ? vb_check_name(name, sizeof(name), r) : "a request");
}

static void touches(const struct vb_check_touch *t)
{
	uint8_t *bad = strange(t->at, t->length, NULL);

	if (!bad)
		return;
	say_touch(t);
	report(t->what == VB_CHECK_READ ? asan.load : asan.store, bad);
}

/* Within a report.  A thread that has the lock and reports, too, waits for the end of this one: false. */
static bool take_lock(void)
{
	while (!vb_lock_try(&vb_check_lock)) {
		if (atomic_load(&reports))
			return false;
		vb_cpu_nap();
	}
	return true;
}

/* The sanitizer has reported an access of the program's, and is about to end it. */
static void heard(const char *text)
{
	const uint8_t *at = asan.address();
	const struct vb_check_request *r;
	char name[256];

	(void)text;
	if (reporting || !at || !take_lock())
		return;
	r = vb_check_find(at, 1, true);
	for (uint32_t i = 0; r && i < r->num; i++)
		if (at >= r->piece[i].at && at < r->piece[i].at + r->piece[i].length) {
			vb_check_say(
			    "check-touched",
			    "the program touched byte %zu of piece %u of %s; the adapter may write there "
			    "until the program has polled the completion of that request",
			    (size_t)(at - r->piece[i].at), r->piece[i].number,
			    vb_check_name(name, sizeof(name), r));
			break;
		}
	vb_lock_give(&vb_check_lock);
	vb_log_tell();
}

static bool begin(unsigned at)
{
	size_t scale = 0;

	if (VB_CHECK_SELF || !vb_symbol_find("__asan_get_shadow_mapping", &asan.mapping) ||
	    !vb_symbol_find("__asan_region_is_poisoned", &asan.is_poisoned) ||
	    !vb_symbol_find("__asan_report_load_n_noabort", &asan.load) ||
	    !vb_symbol_find("__asan_report_store_n_noabort", &asan.store))
		return false;
	asan.mapping(&scale, &shadow_offset);
	if (scale != 3)
		return false;
	/* The first thread's stack is at the top, below the highest address, all of whose bits are set. */
	highest = UINTPTR_MAX >> __builtin_clzl(getauxval(AT_RANDOM));
	place = at;
	return true;
}

/* The sanitizer has room for one callback, and tells of none.  So this is set before main(): one that the
 * program sets takes its place, and is never lost. */
static __attribute__((constructor)) void listen_early(void)
{
	void (*on_report)(void (*)(const char *));

	if (!VB_CHECK_SELF && vb_symbol_find("__asan_get_report_address", &asan.address) &&
	    vb_symbol_find("__asan_set_error_report_callback", &on_report))
		on_report(heard);
}

const struct vb_checker vb_check_asan = {.name = "AddressSanitizer",
					 .begin = begin,
					 .inlined = inlined,
					 .posted = posted,
					 .returned = returned,
					 .touches = touches};
