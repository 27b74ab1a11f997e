/* An upper layer for adapters that only counts; for the tests of adapters. */
#ifndef VB_TESTS_NODE_H
#define VB_TESTS_NODE_H

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include <cmocka.h>

#include "wire/shm.h"

/* TSan cannot follow a child of a program with threads that starts threads of its own. */
#if defined(__SANITIZE_THREAD__)
#define KIT_SKIP_UNDER_TSAN() skip()
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KIT_SKIP_UNDER_TSAN() skip()
#endif
#endif
#ifndef KIT_SKIP_UNDER_TSAN
#define KIT_SKIP_UNDER_TSAN() ((void)0)
#endif

struct kit_node {
	struct vb_adapter *a;
	int arrived; /* eventfd, a semaphore: one per packet */
	int changed; /* eventfd: a peer came up, failed or went down */
	_Atomic int ups, fails, downs, goodbyes;
	_Atomic uint32_t packets;
	_Atomic bool saw_rubbish;
	_Atomic int tolds;
	/* What to do with what a peer tells, besides counting; NULL: nothing. */
	void (*hear)(struct kit_node *n, struct vb_peer *peer, const void *msg, size_t len, int fd);
	_Atomic uint8_t subject; /* of what it was told last */
};

/* Whatever a QPN is to lead to. */
#define KIT_SOME_QP(p) ((struct vb_qp *)(void *)(p))

/* What the adapters of all nodes show. */
extern const uint8_t kit_gids[VB_GID_TABLE][16];

/* What a node's adapter calls; the user is the node. */
extern const struct vb_adapter_ops kit_node_ops;
/* Its progress: takes and counts the packets that have come. */
unsigned kit_node_look(struct vb_adapter *a, enum vb_look how);

struct kit_node *kit_node_open(void);
/* With some of kit_node_ops replaced. */
struct kit_node *kit_node_open_with(const struct vb_adapter_ops *ops);
/* With a port of RoCEv2, which is its from now on. */
struct kit_node *kit_node_open_on(struct vb_roce *roce);
void kit_node_close(struct kit_node *n);
uint32_t kit_number_of(struct kit_node *n);

/* Adds one to an eventfd; waits until there is something, 20 s at most, and takes it. */
void kit_bump(int fd);
void kit_await(int fd);
void kit_await_count(struct kit_node *n, _Atomic int *what, int count);
void kit_await_state(struct kit_node *n, struct vb_peer *peer, int state);

/* The peer that is UP in the end: it may make contact at the same time, and so be another one. */
struct vb_peer *kit_await_peer(struct kit_node *n, struct vb_peer *peer);
/* Makes contact with that number; the peer, with a reference. */
struct vb_peer *kit_connected(struct kit_node *n, uint32_t number);
uint32_t kit_peers_up(struct kit_node *n);
/* A packet to that peer. */
void kit_send_to(struct vb_peer *peer);

#endif
