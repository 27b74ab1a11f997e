#include "node.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { PATIENCE_MS = 20000 };

const uint8_t kit_gids[VB_GID_TABLE][16] = {{1, 2, 3}};

void kit_bump(int fd)
{
	uint64_t one = 1;

	assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
}

unsigned kit_node_look(struct vb_adapter *a, enum vb_look how)
{
	struct kit_node *n = vb_adapter_user(a);
	unsigned got = 0;

	(void)how;
	for (uint32_t i = 0; i < vb_peer_count(a); i++) {
		struct vb_peer *peer = vb_peer_at(a, i);
		struct vb_rxq *r = peer->lanes[0].rxq;
		struct vb_arrival in;
		int ret = 0;

		if (atomic_load_explicit(&peer->state, memory_order_acquire) != VB_PEER_UP ||
		    !vb_rxq_ready(r) || !vb_lock_try(&r->rx))
			continue;
		if (atomic_load(&peer->state) == VB_PEER_UP) {
			while ((ret = r->ops->peek(r, &in)) > 0) {
				r->ops->next(r);
				got++;
			}
		}
		vb_lock_give(&r->rx);
		if (ret < 0) {
			atomic_store(&n->saw_rubbish, true);
			r->ops->rubbish(r);
		}
	}
	atomic_fetch_add(&n->packets, got);
	for (unsigned i = 0; i < got; i++)
		kit_bump(n->arrived);
	return got;
}

static bool any_ready(struct vb_adapter *a)
{
	struct kit_node *n = vb_adapter_user(a);

	for (uint32_t i = 0; i < vb_peer_count(a); i++) {
		struct vb_peer *peer = vb_peer_at(a, i);

		if (atomic_load(&peer->state) == VB_PEER_UP && !atomic_load(&n->saw_rubbish) &&
		    vb_rxq_ready(peer->lanes[0].rxq))
			return true;
	}
	return false;
}

static uint64_t no_timers(struct vb_adapter *a, uint64_t now)
{
	(void)a;
	(void)now;
	return VB_NEVER;
}

static void peer_up(struct vb_peer *peer)
{
	struct kit_node *n = vb_adapter_user(peer->adapter);

	if (atomic_load(&peer->state) == VB_PEER_UP)
		atomic_fetch_add(&n->ups, 1);
	else
		atomic_fetch_add(&n->fails, 1);
	kit_bump(n->changed);
}

static void peer_down(struct vb_peer *peer, enum vb_peer_end how)
{
	struct kit_node *n = vb_adapter_user(peer->adapter);

	if (!atomic_load(&n->saw_rubbish) && vb_rxq_ready(peer->lanes[0].rxq))
		abort(); /* not read to its end */
	atomic_fetch_add(&n->goodbyes, how == VB_END_GOODBYE);
	atomic_fetch_add(&n->downs, 1);
	kit_bump(n->changed);
}

static void told(struct vb_peer *peer, uint8_t subject, const void *msg, size_t len, int fd)
{
	struct kit_node *n = vb_adapter_user(peer->adapter);

	if (atomic_load(&peer->state) != VB_PEER_UP || (uintptr_t)msg % 8)
		abort();
	atomic_store(&n->subject, subject);
	if (n->hear)
		n->hear(n, peer, msg, len, fd);
	atomic_fetch_add(&n->tolds, 1);
	kit_bump(n->changed);
}

const struct vb_adapter_ops kit_node_ops = {.progress = kit_node_look,
					    .ready = any_ready,
					    .timers = no_timers,
					    .peer_up = peer_up,
					    .peer_down = peer_down,
					    .told = told};

struct kit_node *kit_node_open(void)
{
	return kit_node_open_with(&kit_node_ops);
}

static struct kit_node *open_node(const struct vb_adapter_ops *ops, struct vb_roce *roce)
{
	struct kit_node *n = calloc(1, sizeof(*n));
	struct vb_adapter_cfg cfg = {
	    .ops = ops, .wire = &vb_shm_wire, .user = n, .gids = kit_gids, .roce = roce};

	n->arrived = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	n->changed = eventfd(0, EFD_CLOEXEC);
	assert_int_equal(vb_adapter_open(&n->a, &cfg), 0);
	assert_int_equal(vb_adapter_run(n->a), 0);
	return n;
}

struct kit_node *kit_node_open_with(const struct vb_adapter_ops *ops)
{
	return open_node(ops, NULL);
}

struct kit_node *kit_node_open_on(struct vb_roce *roce)
{
	return open_node(&kit_node_ops, roce);
}

void kit_node_close(struct kit_node *n)
{
	vb_adapter_close(n->a);
	close(n->arrived);
	close(n->changed);
	free(n);
}

void kit_await(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	uint64_t count;

	if (poll(&p, 1, PATIENCE_MS) != 1)
		fail_msg("nothing happened for %d s", PATIENCE_MS / 1000);
	assert_int_equal(read(fd, &count, sizeof(count)), sizeof(count));
}

void kit_await_count(struct kit_node *n, _Atomic int *what, int count)
{
	while (atomic_load(what) < count)
		kit_await(n->changed);
}

void kit_await_state(struct kit_node *n, struct vb_peer *peer, int state)
{
	while (atomic_load(&peer->state) != state)
		kit_await(n->changed);
}

void kit_send_to(struct vb_peer *peer)
{
	struct vb_out *o = peer->lanes[0].out;
	struct vb_outbuf b;

	while (!o->ops->reserve(o, &b, 12, 8, VB_OUT_REQUEST))
		sched_yield();
	memset(b.hdr, 7, 20);
	o->ops->commit(o, &b);
}

uint32_t kit_peers_up(struct kit_node *n)
{
	uint32_t up = 0;

	for (uint32_t i = 1; i < vb_peer_count(n->a); i++)
		up += atomic_load(&vb_peer_at(n->a, i)->state) == VB_PEER_UP;
	return up;
}

struct vb_peer *kit_await_peer(struct kit_node *n, struct vb_peer *peer)
{
	assert_non_null(peer);
	for (;;) {
		peer = vb_peer_current(peer);
		if (atomic_load(&peer->state) == VB_PEER_UP)
			return peer;
		kit_await(n->changed);
	}
}

struct vb_peer *kit_connected(struct kit_node *n, uint32_t number)
{
	return kit_await_peer(n, vb_peer_get(n->a, number));
}

uint32_t kit_number_of(struct kit_node *n)
{
	return vb_adapter_number(n->a);
}
