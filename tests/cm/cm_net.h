/* Communication managers in virtual time: two or three ports, each with one vb_cm, joined by a wire that
 * loses, duplicates, delays and reorders MADs by seed, or as a test says.  Everything that is said and told
 * is written down, and each end's events are checked against the order that cm/cm.h documents. */
#ifndef VB_TESTS_CM_NET_H
#define VB_TESTS_CM_NET_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "cm/cm.h"

enum { NET_NODES = 3, NET_TRACE = 8192, NET_SERVICE = 0x01061234, NET_QPNS = 64 };

struct net_cfg {
	uint64_t delay, jitter; /* of the wire: delay, and up to jitter more */
	unsigned lost, twice;	/* of 1000 MADs */
	bool one_host;		/* nodes 1 and 2 are processes of one host: one GID, one CA GUID */
	uint64_t seed;
};

struct net_node {
	struct net *net;
	unsigned index, life; /* life: how often it has been started */
	struct vb_cm *cm;
	uint32_t number, qpn;
	uint64_t guid;
	uint8_t gid[16];
	struct vb_cm_conn *listener;
	bool dead; /* what it says is not heard */
};

/* One end of a connection or SIDR exchange, and what has happened to it.  It stays when its connection is
 * gone. */
struct net_end {
	struct net_node *node;
	unsigned life; /* the node's when it was made */
	struct vb_cm_conn *conn;
	struct net_end *next;  /* of all, latest first */
	uint32_t serial, peer; /* its own, and the far end's as REQ and REP tell; 0: not known */
	uint32_t comm_id, qpn; /* qpn: the test's, 0: none */
	bool active, sidr;
	unsigned heard;	   /* bit e: event e has come */
	bool sure;	   /* it has been told or has said that it is established */
	bool gave_up;	   /* of itself: it heard nothing, or it refused or ended it */
	bool about;	   /* packets of its QP may be about */
	bool shown;	   /* its comm ID has been said */
	uint64_t wait;	   /* the shortest time for which its numbers are held after that */
	uint64_t timewait; /* when that began, by an event; the test's: by a call */
	uint64_t until;	   /* it has been ended: when they may be given again */
	uint16_t reason;   /* of a REJ that came */
	void *user;
};

enum net_verdict { NET_PASS, NET_LOSE, NET_TWICE, NET_HOLD };

struct net {
	struct net_cfg cfg;
	struct vb_lock lock; /* held all the time */
	struct net_node nodes[NET_NODES];
	struct net_end *ends;
	uint64_t now, chance;
	uint32_t serials;
	uint64_t sent, lost;	    /* MADs */
	uint8_t sample[VB_MAD_LEN]; /* the latest */
	struct vb_whom to;	    /* to whom the latest went */
	bool crowd;		    /* there are too many ends to look through for each message */
	char trace[NET_TRACE];	    /* "0>REQ": node 0 says REQ; "1!REQ": node 1 is told of it */
	size_t traced;
	/* The test's: what the upper layer does, and what becomes of a MAD; both may be NULL. */
	bool (*upper)(struct net_end *e, const struct vb_cm_event *ev);
	enum net_verdict (*filter)(struct net *n, unsigned from, const struct vb_cm_msg *m);
	void *user;
	/* A heap of what is under way. */
	struct net_item **items;
	size_t count, room;
	uint64_t order;
	struct net_item *held;
};

struct net *net_new(const struct net_cfg *cfg);
/* Ends all that is left without a word. */
void net_free(struct net *n);
uint64_t net_random(struct net *n);
/* A number below `below`. */
uint32_t net_pick(struct net *n, uint32_t below);

/* It dies, and another process takes its place; with the same comm IDs to begin with, or by chance. */
void net_restart(struct net *n, unsigned node, bool same);
void net_listen(struct net_node *node);
void net_deafen(struct net_node *node);

/* A new active end at that node, IDLE; NULL: vb_cm_new() has none. */
struct net_end *net_end_new(struct net_node *node);
/* Ends its connection. */
void net_end_end(struct net_end *e);
struct net_end *net_find(struct net *n, uint32_t serial);
/* A QPN of the node that no connection has, and that is not waited for; 0: none is left. */
uint32_t net_qpn(struct net_node *node);
struct vb_cm_av net_av(struct net_node *from, struct net_node *to);
/* The private data that says which end it is. */
struct vb_cm_private net_card(const struct net_end *e, uint8_t card[4]);

/* fn(arg) is called then. */
void net_at(struct net *n, uint64_t when, void (*fn)(void *arg), void *arg);
/* What NET_HOLD kept comes now. */
void net_release(struct net *n);
/* One event; false: nothing will ever happen. */
bool net_step(struct net *n);
void net_run_until(struct net *n, uint64_t when);
static inline void net_run_for(struct net *n, uint64_t ns)
{
	net_run_until(n, n->now + ns);
}
/* When something happens next, VB_NEVER: never; and when a timer of a node does. */
uint64_t net_next(struct net *n);
uint64_t net_next_timer(struct net *n);

#endif
