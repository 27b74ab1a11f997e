/* ThreadSanitizer.  Each queue's hardware is a fiber, as if the adapter were a thread of the program's.
 *
 * The post releases to the fiber, which at once reads or writes the request's memory.  Polling the completion
 * acquires from it.  So who touches the memory in between is reported, with both stacks: the fiber's is the
 * program's code that posted.
 *
 * What peers do to memory of this process is carried out by one more fiber of the queue pair.  It is taken to
 * come after all that threads have done so far, since nothing tells how the peer learned of the memory.  A
 * program knows of it by a completion, by a socket or a pipe that it reads from, or by an atomic load of a
 * word.  One that reads such memory by a plain load, as in a loop, is reported.
 *
 * Threads of one process may send each other messages, which order them as those of a pipe do.  Nothing tells
 * which post a completion is of, so polling any of them is taken to come after all posts before it.
 *
 * Fibers are no threads to one another: accesses of two to the same memory are legal, and are ordered by
 * words for the lines and pages of memory. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/symbol.h"
#include "check/check.h"
#include "check/descriptors.h"

enum {
	/* Further queues share them.  The sanitizer has 255 slots for threads.  If there are more, it misses
	 * what a fiber does that had to leave its slot. */
	FIBERS = 200,
	LINE = 64,
	PAGE = 4096,
	LINES = 8192,
	PAGES = 4096,
	WORDS = 64, /* a peer's WRITE of so many words stores each of them as one; of a longer one the ends */
	ACQUIRE_RELEASE = 4,
};

static struct {
	void *(*create_fiber)(unsigned flags);
	void (*switch_to)(void *fiber, unsigned flags);
	void *(*current)(void);
	void (*set_name)(void *fiber, const char *name);
	void (*acquire)(void *sync);
	void (*release)(void *sync);
	void (*reads)(void *at, unsigned long n);
	void (*writes)(void *at, unsigned long n);
	void (*enter)(const void *where);
	void (*leave)(void);
	void (*acquire_all)(void);
	void (*ignore_reads)(const char *file, int line);
	void (*heed_reads)(const char *file, int line);
	uint8_t (*or_8)(volatile uint8_t *at, uint8_t v, int order);
	uint64_t (*or_64)(volatile uint64_t *at, uint64_t v, int order);
} tsan;

static unsigned place;
static bool shows_peers;
static void *fibers[FIBERS];
static unsigned made, next; /* fibers that there are; whose turn it is once there are no more */
static uint64_t lines[LINES], small_pages[PAGES], large_pages[PAGES]; /* their addresses alone count */
static uint64_t from_peers, in_library, messages;

/* The fibers of a queue. */
struct hardware {
	void *own, *peers;
	uint64_t posts;
};

static void *fiber(const struct vb_check_queue *q, const char *what)
{
	char name[64];
	void *f;

	if (made == FIBERS) {
		f = fibers[next++ % FIBERS];
		tsan.set_name(f, "RDMA adapter: several queues");
		return f;
	}
	f = fibers[made++] = tsan.create_fiber(0);
	snprintf(name, sizeof(name), "RDMA adapter %s 0x%06x%s", q->kind == VB_CHECK_SHARED ? "SRQ" : "QP",
		 q->number, what);
	tsan.set_name(f, name);
	return f;
}

static struct hardware *hardware_of(struct vb_check_queue *q)
{
	struct hardware *h = q->kept[place];

	if (!h)
		h = q->kept[place] = calloc(1, sizeof(*h)); /* queue_ends() */
	return h;
}

/* Orders an access with those of other fibers to the same lines, or pages. */
static void each_word(uint64_t *words, unsigned n, unsigned unit, const uint8_t *at, size_t length,
		      void act(void *sync))
{
	for (uintptr_t i = (uintptr_t)at / unit; i <= ((uintptr_t)at + length - 1) / unit; i++)
		act(&words[i % n]);
}

static void order_before(const uint8_t *at, size_t length)
{
	each_word(large_pages, PAGES, PAGE, at, length, tsan.acquire);
	if (length > PAGE)
		each_word(small_pages, PAGES, PAGE, at, length, tsan.acquire);
	else
		each_word(lines, LINES, LINE, at, length, tsan.acquire);
}

static void order_after(const uint8_t *at, size_t length)
{
	if (length > PAGE) {
		each_word(large_pages, PAGES, PAGE, at, length, tsan.release);
		return;
	}
	each_word(small_pages, PAGES, PAGE, at, length, tsan.release);
	each_word(lines, LINES, LINE, at, length, tsan.release);
}

static void posted(struct vb_check_request *r)
{
	struct hardware *h = hardware_of(r->queue);
	void *me = tsan.current();

	if (!h)
		return;
	if (!h->own)
		h->own = fiber(r->queue, r->queue->kind == VB_CHECK_SENDS ? ": sends" : ": receives");
	tsan.release(&messages);
	tsan.release(&h->posts);
	tsan.switch_to(h->own, 1);
	tsan.acquire(&h->posts);
	tsan.enter(r->where);
	for (uint32_t i = 0; i < r->num; i++) {
		order_before(r->piece[i].at, r->piece[i].length);
		if (r->writes)
			tsan.writes(r->piece[i].at, r->piece[i].length);
		else
			tsan.reads(r->piece[i].at, r->piece[i].length);
		order_after(r->piece[i].at, r->piece[i].length);
	}
	tsan.leave();
	tsan.release(r);
	tsan.switch_to(me, 1);
}

static void polled(struct vb_check_queue *q, uint32_t index)
{
	tsan.acquire(vb_check_slot_at(q, index));
	tsan.acquire(&from_peers);
	tsan.acquire(&messages);
}

/* Without a poll it is this thread that gets the memory back. */
static void returned(struct vb_check_request *r, bool by_poll)
{
	if (!by_poll)
		tsan.acquire(r);
}

/* A word, or a byte, is stored as one, with release.  Its value stays. */
static void store_whole(uint8_t *at, bool word)
{
	if (word)
		tsan.or_64((volatile uint64_t *)at, 0, ACQUIRE_RELEASE);
	else
		tsan.or_8(at, 0, ACQUIRE_RELEASE);
	for (unsigned i = 0; i < (word ? 8 : 1); i++)
		tsan.release(at + i);
}

static uint8_t *store_words(uint8_t *at, const uint8_t *end)
{
	while (at < end) {
		bool word = !((uintptr_t)at & 7) && end - at >= 8;

		store_whole(at, word);
		at += word ? 8 : 1;
	}
	return at;
}

/* The sanitizer takes a call that sends there for a release to whoever reads.  Without a message it fails,
 * and has no effect. */
static void tell_descriptor(int fd)
{
	(void)sendmsg(fd, NULL, 0);
}

/* By a descriptor the program may hear that a peer is done. */
static void tell_descriptors(void)
{
	int err = errno;

	tsan.ignore_reads(__FILE__, __LINE__); /* of what the sanitizer knows of a descriptor */
	vb_check_each_descriptor(tell_descriptor);
	tsan.heed_reads(__FILE__, __LINE__);
	errno = err;
}

static void written_by_peer(uint8_t *at, uint64_t n)
{
	uint8_t *end = at + n, *body = at, *tail = end;

	if (n > WORDS * 8) {
		body = (uint8_t *)(((uintptr_t)at + 8) & ~(uintptr_t)7);
		tail = (uint8_t *)(((uintptr_t)end - 1) & ~(uintptr_t)7);
		store_words(at, body);
		tsan.writes(body, (unsigned long)(tail - body));
	} else {
		tail = body;
	}
	store_words(tail, end);
}

static void touched(const struct vb_check_touch *t)
{
	struct vb_check_queue *q = t->remote ? vb_check_queue_of(t->qpn, VB_CHECK_SENDS) : NULL;
	struct hardware *h = q && shows_peers ? hardware_of(q) : NULL;
	void *me = tsan.current();
	int state;

	if (!h || t->what == VB_CHECK_READ || t->failed)
		return;
	if (!h->peers)
		h->peers = fiber(q, ": requests of its peer");
	/* For tell_descriptors(), whose calls are cancellation points.  The sanitizer takes `state` for
	 * memory of who asks, which is to be this thread. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	tsan.switch_to(h->peers, 1);
	tsan.acquire_all();
	tsan.enter((const void *)(uintptr_t)touched);
	order_before(t->at, t->length);
	written_by_peer(t->at, t->length);
	order_after(t->at, t->length);
	tsan.leave();
	tsan.release(&from_peers);
	tell_descriptors();
	tsan.switch_to(me, 1);
	pthread_setcancelstate(state, NULL);
}

/* An atomic is told before it is carried out, and only then. */
static void touches(const struct vb_check_touch *t)
{
	if (t->what == VB_CHECK_ATOMIC)
		touched(t);
}

/* The sanitizer sees malloc(), free() and memcmp() of the row --check, and not the lock that orders them. */
static void hush(bool on)
{
	(on ? tsan.ignore_reads : tsan.heed_reads)(__FILE__, __LINE__); /* of writes, too */
}

static void queue_ends(struct vb_check_queue *q)
{
	free(q->kept[place]);
	q->kept[place] = NULL;
}

static void revoked(void)
{
	tsan.acquire(&from_peers);
}

/* The library's own locks are not known to the sanitizer, which knows of malloc() and free(). */
static void handed(void)
{
	tsan.acquire(&in_library);
	tsan.release(&in_library);
}

/* The process ends for what the sanitizer has reported: it tells no program of a report before. */
static void dies(void)
{
	if (vb_check_on)
		vb_check_say("check-race",
			     "ThreadSanitizer ends the process. Its report shows both accesses");
	vb_log_tell();
}

static bool begin(unsigned at)
{
	if (VB_CHECK_SELF || !vb_symbol_find("__tsan_create_fiber", &tsan.create_fiber) ||
	    !vb_symbol_find("__tsan_switch_to_fiber", &tsan.switch_to) ||
	    !vb_symbol_find("__tsan_get_current_fiber", &tsan.current) ||
	    !vb_symbol_find("__tsan_set_fiber_name", &tsan.set_name) ||
	    !vb_symbol_find("__tsan_acquire", &tsan.acquire) ||
	    !vb_symbol_find("__tsan_release", &tsan.release) ||
	    !vb_symbol_find("__tsan_read_range", &tsan.reads) ||
	    !vb_symbol_find("__tsan_write_range", &tsan.writes) ||
	    !vb_symbol_find("__tsan_func_entry", &tsan.enter) ||
	    !vb_symbol_find("__tsan_func_exit", &tsan.leave) ||
	    !vb_symbol_find("AnnotateIgnoreReadsBegin", &tsan.ignore_reads) ||
	    !vb_symbol_find("AnnotateIgnoreReadsEnd", &tsan.heed_reads) ||
	    !vb_symbol_find("__tsan_java_finalize", &tsan.acquire_all) ||
	    !vb_symbol_find("__tsan_atomic8_fetch_or", &tsan.or_8) ||
	    !vb_symbol_find("__tsan_atomic64_fetch_or", &tsan.or_64))
		return false;
	place = at;
	shows_peers = !vb_check_has_word("no-remote");
	if (shows_peers)
		vb_check_descriptors_open();
	vb_check_repeats_atomics = shows_peers;
	return true;
}

/* Before main(), so that a callback of the program's takes its place (asan.c). */
static __attribute__((constructor)) void begin_early(void)
{
	void (*on_death)(void (*)(void)), *fibers_too;

	if (VB_CHECK_SELF || !vb_symbol_find("__tsan_create_fiber", &fibers_too))
		return;
	if (vb_symbol_find("__sanitizer_set_death_callback", &on_death))
		on_death(dies);
	vb_check_descriptors_inherited();
}

const struct vb_checker vb_check_tsan = {.name = "ThreadSanitizer",
					 .begin = begin,
					 .posted = posted,
					 .polled = polled,
					 .returned = returned,
					 .touches = touches,
					 .touched = touched,
					 .queue_ends = queue_ends,
					 .revoked = revoked,
					 .handed = handed,
					 .hush = hush};
