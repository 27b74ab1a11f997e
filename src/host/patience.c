/* Waiting for a peer: until there is contact with it, and for how long that is only slow. */
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "host/private.h"
#include "iba/reach.h"

#define CONTACT_GRACE (5 * VB_SEC)   /* for crowded processes to make contact */
#define LOOK_APART    (50 * VB_MSEC) /* between two looks at that */
#define CROWD_GRACE   (60 * VB_SEC)  /* if their threads wait for a CPU */

enum {
	REACH_TRIES = 4,  /* a number may have gone from one process to another just now */
	CALM_LOOKS = 500, /* 0.1 s or more: attempts are 10 ms apart */
	CALM_ENOUGH = 4,  /* looks at the engines in a row, LOOK_APART or more between two */
};

static int state_of(const struct vb_peer *peer)
{
	return atomic_load_explicit(&peer->state, memory_order_acquire);
}

/* Whether each of the two looks at what the other announces, so that either may be relied on to wait for
 * that. It begins a moment after the link is UP, at each end by itself. */
static bool is_mutual(const struct vb_peer *peer)
{
	const uint8_t *own = peer->adapter->seg->base;

	return !peer->index || (atomic_load(heard_of(own, peer->index)) == token_of(peer->incarnation) &&
				atomic_load(heard_of(peer->view, peer->view_index)) ==
				    token_of(peer->adapter->seg->incarnation));
}

static void nap(void)
{
	static const struct timespec t = {.tv_nsec = 200000};

	vb_log_tell();						    /* this may take seconds */
	syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &t, NULL); /* no cancellation point */
}

/* As an errno: what this process lacks, else ECONNREFUSED. */
static int trouble_errno(const struct vb_reach_facts *t)
{
	if (t->reach == VB_REACH_UNKNOWN)
		return 0;
	return t->reach == VB_REACH_TROUBLE ? (int)t->trouble.err : ECONNREFUSED;
}

/* If many threads spin on few CPUs, the thread that connects may not have run yet, at either end. */
static bool own_engine_waits(const struct vb_peer *peer)
{
	return !vb_engine_here() && vb_thread_runnable(peer->adapter->pid, peer->adapter->head->tid);
}

static bool peer_engine_waits(uint32_t pid)
{
	return pid && vb_thread_runnable(pid, vb_thread_find(pid, VB_ENGINE_NAME));
}

/* Whether to wait for the peer: until `until`, and then for as long as an engine that has to act waits for a
 * CPU. That the own one runs may have other causes, and counts for some seconds only.  *calm: looks since
 * `until` that found none waiting; begins at 0. */
static bool has_patience(const struct vb_peer *peer, uint64_t until, unsigned *calm)
{
	uint32_t asked = atomic_load_explicit(&peer_of((struct vb_peer *)peer)->asked, memory_order_relaxed);
	uint64_t now = vb_now();

	if (now < until)
		return true;
	if (peer_engine_waits(asked ? asked : peer->pid) ||
	    (now < until + CONTACT_GRACE && own_engine_waits(peer)))
		*calm = 0;
	else
		++*calm;
	return *calm < CALM_LOOKS && now < until + CROWD_GRACE;
}

int vb_peer_reach(struct vb_adapter *a, uint32_t number, uint64_t until, struct vb_peer **out,
		  struct vb_reach_facts *why)
{
	uint32_t failed = 0, asked;
	unsigned calm = 0;
	int err = ENOMEM;

	*why = (struct vb_reach_facts){0};
	for (;;) {
		struct vb_peer *peer;

		if (!vb_adapter_whole(a)) /* no contact is made any more */
			return EIO;
		peer = vb_peer_get(a, number); /* asks for contact if there is none */
		if (!peer)
			return err;
		/* A peer that is gone, or is another one's alias, is asked for anew. */
		while (state_of(peer) == VB_PEER_CONTACTING && has_patience(peer, until, &calm))
			nap();
		if (state_of(peer) == VB_PEER_UP) {
			while (!is_mutual(peer) && state_of(peer) == VB_PEER_UP &&
			       has_patience(peer, until, &calm))
				nap();
			*out = peer;
			if (is_mutual(peer))
				return 0; /* with the reference of vb_peer_get() */
		}
		*why = vb_peer_trouble(peer, &asked);
		err = trouble_errno(why);
		vb_peer_put(peer);
		if (vb_now() >= until)
			return err ? err : ETIMEDOUT;
		if (err && ++failed == REACH_TRIES)
			return err;
		nap();
	}
}

/* Whether an engine still has to be waited for.  /proc is read once in a while only, since each queue pair
 * asks whose timer runs out, under its lock.  An engine in a crowd sleeps now and then, for a lock whose
 * holder waits for a CPU, so one look that finds it asleep says nothing. */
static bool engines_wait(struct peer *p, uint32_t asked, uint64_t now)
{
	if (now - atomic_load(&p->crowd_seen) >= LOOK_APART) {
		atomic_store(&p->crowd_seen, now);
		if (own_engine_waits(&p->pub) || peer_engine_waits(asked))
			atomic_store(&p->calm, 0);
		else
			atomic_fetch_add(&p->calm, 1);
	}
	return atomic_load(&p->calm) < CALM_ENOUGH;
}

bool vb_peer_pending(struct vb_peer *peer, uint64_t now)
{
	struct peer *p = peer_of(peer);
	uint64_t began = atomic_load_explicit(&p->began, memory_order_acquire); /* then the state */
	uint64_t waited = now > began ? now - began : 0; /* another thread's clock may have been later */
	int state = state_of(peer);
	uint32_t asked;

	if (state == VB_PEER_UP) /* just now */
		return true;
	/* The result of an earlier attempt is obsolete as soon as a process has been asked again. */
	if (state != VB_PEER_CONTACTING ||
	    (vb_peer_trouble(peer, &asked).reach != VB_REACH_UNKNOWN && !asked))
		return false;
	if (waited < CONTACT_GRACE || vb_thread_stopped(asked)) {
		atomic_store(&p->calm, 0);
		return true;
	}
	return waited < CROWD_GRACE && engines_wait(p, asked, now);
}

uint32_t vb_peer_stopped(struct vb_peer *peer)
{
	uint32_t asked, pid;

	(void)vb_peer_trouble(peer, &asked);
	pid = asked ? asked : peer->pid;
	return vb_thread_stopped(pid) ? pid : 0;
}
