/* --check=guard: whole pages of posted receive buffers cannot be touched until the data comes.  A fault there
 * is the program's, which is told of the request, and then is as any other.
 *
 * Only pages that one request has are guarded.  What other requests have too, or the adapter touches for any
 * request, is the program's to look at as without. */
#include "mem/check_guard.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/pages.h"
#include "mem/guard.h"

/* Pages that are guarded for one piece of a request. */
struct vb_guarded {
	struct vb_range on_all;
	struct vb_guarded *next; /* of the same request */
	struct vb_guarded *first;
	const struct vb_check_request *of;
	bool open; /* guarded no more */
};

struct access {
	uintptr_t from, to;
};

enum {
	STACK = 64 << 10,
	/* Ranges at once.  Each one may take two more mappings.  A process has 65,530 by default, and the
	 * program needs most of them. */
	RANGES = 8192,
};

/* Where a fault is told of: signal handlers of the program's may have a stack of 8 KiB. */
static void *stack;
static struct vb_lock stack_lock; /* guards what follows; before vb_check_lock */
static ucontext_t here, elsewhere;
static uintptr_t fault;

static bool wanted;
static vb_check_whose_fn *name_of;
static struct vb_range *all; /* guarded by vb_check_lock, as is what follows */
static uint32_t nall;
static struct access *accesses; /* what the adapter touches now: nothing is guarded there */
static uint32_t naccesses, room;

static struct vb_guarded *guarded_of(struct vb_range *r)
{
	return vb_containerof(r, struct vb_guarded, on_all);
}

static void open_pages(uintptr_t from, uintptr_t to)
{
	int err = errno;

	(void)mprotect((void *)from, to - from, PROT_READ | PROT_WRITE);
	errno = err;
}

void vb_check_guard_give(struct vb_guarded *g)
{
	for (; g; g = g->next) {
		if (g->open)
			continue;
		open_pages(g->on_all.from, g->on_all.to);
		vb_ranges_remove(&all, &g->on_all);
		g->open = true;
		nall--;
	}
}

void vb_check_guard_drop(uintptr_t from, uintptr_t to)
{
	struct vb_range *r;

	while ((r = vb_ranges_first(all, from, to)))
		vb_check_guard_give(guarded_of(r)->first);
}

static bool is_accessed(uintptr_t from, uintptr_t to)
{
	for (uint32_t i = 0; i < naccesses; i++)
		if (from < accesses[i].to && accesses[i].from < to)
			return true;
	return false;
}

static bool is_others(const struct vb_check_request *r, uintptr_t from, uintptr_t to)
{
	return vb_check_any((void *)from, to - from, true, r) ||
	       vb_check_any((void *)from, to - from, false, r);
}

static struct vb_guarded *guard(const struct vb_check_request *r, uintptr_t from, uintptr_t to)
{
	struct vb_guarded *g;
	int err = errno;

	if (from >= to || nall == RANGES || is_accessed(from, to) || is_others(r, from, to))
		return NULL;
	g = malloc(sizeof(*g)); /* vb_check_guard_end() */
	if (!g)
		return NULL;
	*g = (struct vb_guarded){.on_all = {.from = from, .to = to}, .of = r};
	if (mprotect((void *)from, to - from, PROT_NONE)) {
		open_pages(from, to); /* it may have come half the way */
		free(g);
		errno = err;
		return NULL;
	}
	vb_ranges_add(&all, &g->on_all);
	nall++;
	return g;
}

void vb_check_guard_prepare(const struct vb_check_request *r)
{
	for (uint32_t i = 0; i < r->num; i++)
		vb_check_guard_drop((uintptr_t)r->piece[i].at,
				    (uintptr_t)r->piece[i].at + r->piece[i].length);
}

struct vb_guarded *vb_check_guard_begin(const struct vb_check_request *r)
{
	struct vb_guarded *first = NULL, *g;

	if (!wanted || r->queue->kind == VB_CHECK_SENDS)
		return NULL;
	for (uint32_t i = 0; i < r->num; i++) {
		uintptr_t at = (uintptr_t)r->piece[i].at;

		g = guard(r, vb_page_round(at), vb_page_start(at + r->piece[i].length));
		if (!g)
			continue;
		g->next = first;
		first = g;
	}
	for (g = first; g; g = g->next)
		g->first = first;
	return first;
}

void vb_check_guard_end(struct vb_guarded *g)
{
	struct vb_guarded *next;

	vb_check_guard_give(g);
	for (; g; g = next) {
		next = g->next;
		free(g);
	}
}

void vb_check_guard_touches(uintptr_t at, uint64_t length)
{
	struct access *more;

	if (!wanted)
		return;
	vb_check_guard_drop(at, at + length);
	if (naccesses == room) {
		more = realloc(accesses, (room + 64) * 2 * sizeof(*more));
		if (!more)
			return;
		accesses = more;
		room = (room + 64) * 2;
	}
	accesses[naccesses++] = (struct access){at, at + length};
}

void vb_check_guard_touched(uintptr_t at, uint64_t length)
{
	for (uint32_t i = 0; i < naccesses; i++)
		if (accesses[i].from == at && accesses[i].to == at + length) {
			accesses[i] = accesses[--naccesses];
			return;
		}
}

/* The lock is another thread's, if anybody's, which goes on. */
static void tell(void)
{
	char whose[VB_CHECK_WHOSE];
	struct vb_range *r;
	uintptr_t at = fault;

	vb_lock_take(&vb_check_lock);
	r = vb_ranges_first(all, at, at + 1);
	if (r)
		vb_log_reason("check-guard",
			      "the program touched address 0x%" PRIxPTR
			      " of a posted receive buffer before its data came: %s. Poll the completion "
			      "first",
			      at, name_of(whose, guarded_of(r)->of));
	vb_lock_give(&vb_check_lock);
	vb_log_tell();
}

/* In the handler of SIGSEGV, above the program's code.  The stack may be a small one of the program's.  The
 * handler of another signal may leave by siglongjmp(), so it waits until no lock is held. */
static void faulted(uintptr_t at)
{
	sigset_t every, mask;

	if (!stack)
		return;
	sigfillset(&every);
	pthread_sigmask(SIG_BLOCK, &every, &mask);
	vb_lock_take(&stack_lock);
	fault = at;
	if (!getcontext(&elsewhere)) {
		elsewhere.uc_stack.ss_sp = stack;
		elsewhere.uc_stack.ss_size = STACK;
		elsewhere.uc_link = &here;
		makecontext(&elsewhere, tell, 0);
		(void)swapcontext(&here, &elsewhere);
	}
	vb_lock_give(&stack_lock);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
}

void vb_check_guard_open(vb_check_whose_fn *whose)
{
	name_of = whose;
	wanted = true;
	stack = vb_pages_alloc(STACK); /* for the life of the process */
	vb_guard_install();
	vb_guard_tell(faulted);
}

void vb_check_guard_forked(void)
{
	all = NULL;
	nall = 0;
	accesses = NULL;
	naccesses = room = 0;
	vb_lock_give(&stack_lock); /* perhaps of a thread that is not here */
}
