/* An upper layer for adapters that only counts; for the tests of adapters. */
#ifndef VB_TEST_ADAPTER_KIT_H
#define VB_TEST_ADAPTER_KIT_H

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "wire/shm.h"

enum { PATIENCE_MS = 20000 };

/* TSan cannot follow a child of a program with threads that starts threads of its own. */
#if defined(__SANITIZE_THREAD__)
#define SKIP_UNDER_TSAN() skip()
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SKIP_UNDER_TSAN() skip()
#endif
#endif
#ifndef SKIP_UNDER_TSAN
#define SKIP_UNDER_TSAN() ((void)0)
#endif

/* An upper layer that counts. */
struct node {
	struct vb_adapter *a;
	int arrived; /* eventfd, a semaphore: one per packet */
	int changed; /* eventfd: a link came up, failed or went down */
	_Atomic int ups, fails, downs, goodbyes;
	_Atomic uint32_t packets;
	_Atomic bool saw_rubbish;
	_Atomic int tolds;
	/* What to do with it, besides counting; NULL: nothing. */
	void (*hear)(struct node *n, struct vb_peer *peer, const void *msg, size_t len, int fd);
};

static const uint8_t gids[VB_GID_TABLE][16] = {{1, 2, 3}};

static __attribute__((unused)) void bump(int fd)
{
	uint64_t one = 1;

	assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
}

static __attribute__((unused)) unsigned look(struct vb_adapter *a, bool all)
{
	struct node *n = vb_adapter_user(a);
	unsigned got = 0;

	(void)all;
	for (uint32_t i = 0; i < vb_peer_count(a); i++) {
		struct vb_peer *peer = vb_peer_at(a, i);
		struct vb_shm_pkt p;
		int r = 0;

		if (atomic_load_explicit(&peer->state, memory_order_acquire) != VB_PEER_UP ||
		    !vb_shm_ready(peer->wire) || !vb_lock_try(&peer->rx))
			continue;
		if (atomic_load(&peer->state) == VB_PEER_UP) {
			while ((r = vb_shm_peek(peer->wire, &p)) > 0) {
				vb_shm_next(peer->wire);
				got++;
			}
		}
		vb_lock_give(&peer->rx);
		if (r < 0) {
			atomic_store(&n->saw_rubbish, true);
			vb_peer_insane(peer);
		}
	}
	atomic_fetch_add(&n->packets, got);
	for (unsigned i = 0; i < got; i++)
		bump(n->arrived);
	return got;
}

static __attribute__((unused)) uint64_t no_timers(struct vb_adapter *a, uint64_t now)
{
	(void)a;
	(void)now;
	return VB_NEVER;
}

static __attribute__((unused)) void peer_up(struct vb_peer *peer)
{
	struct node *n = vb_adapter_user(peer->adapter);

	if (atomic_load(&peer->state) == VB_PEER_UP)
		atomic_fetch_add(&n->ups, 1);
	else
		atomic_fetch_add(&n->fails, 1);
	bump(n->changed);
}

static __attribute__((unused)) void peer_down(struct vb_peer *peer, enum vb_peer_end how)
{
	struct node *n = vb_adapter_user(peer->adapter);

	if (!atomic_load(&n->saw_rubbish) && vb_shm_ready(peer->wire))
		abort(); /* not read to its end */
	atomic_fetch_add(&n->goodbyes, how == VB_END_GOODBYE);
	atomic_fetch_add(&n->downs, 1);
	bump(n->changed);
}

static __attribute__((unused)) void told(struct vb_peer *peer, const void *msg, size_t len, int fd)
{
	struct node *n = vb_adapter_user(peer->adapter);

	if (atomic_load(&peer->state) != VB_PEER_UP || (uintptr_t)msg % 8)
		abort();
	if (n->hear)
		n->hear(n, peer, msg, len, fd);
	atomic_fetch_add(&n->tolds, 1);
	bump(n->changed);
}

static const struct vb_adapter_ops ops = {
    .progress = look, .timers = no_timers, .peer_up = peer_up, .peer_down = peer_down, .told = told};

static __attribute__((unused)) struct node *node_open(void)
{
	struct node *n = calloc(1, sizeof(*n));
	struct vb_adapter_cfg cfg = {.ops = &ops, .user = n, .gids = gids};

	n->arrived = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	n->changed = eventfd(0, EFD_CLOEXEC);
	assert_int_equal(vb_adapter_open(&n->a, &cfg), 0);
	return n;
}

static __attribute__((unused)) void node_close(struct node *n)
{
	vb_adapter_close(n->a);
	close(n->arrived);
	close(n->changed);
	free(n);
}

static __attribute__((unused)) void await(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	uint64_t count;

	if (poll(&p, 1, PATIENCE_MS) != 1)
		fail_msg("nothing happened for %d s", PATIENCE_MS / 1000);
	assert_int_equal(read(fd, &count, sizeof(count)), sizeof(count));
}

static __attribute__((unused)) void await_at_least(struct node *n, _Atomic int *what, int count)
{
	while (atomic_load(what) < count)
		await(n->changed);
}

static __attribute__((unused)) void await_state(struct node *n, struct vb_peer *peer, int state)
{
	while (atomic_load(&peer->state) != state)
		await(n->changed);
}

static __attribute__((unused)) void send_to(struct vb_peer *peer)
{
	struct vb_out *o = &((struct vb_shm *)peer->wire)->out;
	struct vb_outbuf b;

	while (!o->ops->reserve(o, &b, 12, 8, VB_OUT_REQUEST))
		sched_yield();
	memset(b.hdr, 7, 20);
	o->ops->commit(o, &b);
}

static __attribute__((unused)) uint32_t links_up(struct node *n)
{
	uint32_t up = 0;

	for (uint32_t i = 1; i < vb_peer_count(n->a); i++)
		up += atomic_load(&vb_peer_at(n->a, i)->state) == VB_PEER_UP;
	return up;
}

/* The link that is UP in the end: the peer may make contact at the same time, and so another one. */
static __attribute__((unused)) struct vb_peer *await_link(struct node *n, struct vb_peer *peer)
{
	assert_non_null(peer);
	for (;;) {
		peer = vb_peer_current(peer);
		if (atomic_load(&peer->state) == VB_PEER_UP)
			return peer;
		await(n->changed);
	}
}

static __attribute__((unused)) struct vb_peer *connected(struct node *n, uint32_t number)
{
	return await_link(n, vb_peer_get(n->a, number));
}

static __attribute__((unused)) uint32_t number_of(struct node *n)
{
	return vb_adapter_number(n->a);
}

#endif
