/* The general service interface of a device (GSI, QP1): management datagrams (iba/mad.h) go out and come in
 * as UD packets like any other, through the same paths, so every wire carries them.
 *
 * QP1 is a queue pair of our own: it has no receive requests, since what comes is handed to the one who
 * opened it, and a number for this adapter alone, by which paths know it.  On the wire it is 1 at both ends,
 * so whom a MAD is for does not follow from a QPN: the sender names the far end. */
#ifndef VB_HCA_GSI_H
#define VB_HCA_GSI_H

#include <stdbool.h>
#include <stdint.h>

#include "hca/hca.h"
#include "iba/far.h"
#include "iba/grh.h"
#include "iba/mad.h"

/* A MAD that came. */
struct vb_gsi_mad {
	struct vb_gid sgid, dgid; /* of the sender's port, and the one of this port by which it was reached */
	uint16_t slid;
	struct vb_whom whom;   /* who sent it; on another host: the address */
	bool handed;	       /* another process of this host has taken it in, and handed it on */
	struct vb_route route; /* as the sender said it */
	uint8_t bytes[VB_MAD_LEN];
};

/* Who uses it.  All are called by the engine, or by a thread that waits in its place, one at a time, without
 * locks where nothing else is said. */
struct vb_gsi_ops {
	void (*heard)(void *user, const struct vb_gsi_mad *m);
	/* When to be called again, VB_NEVER: not before something is heard, or vb_adapter_nudge(). */
	uint64_t (*timers)(void *user, uint64_t now);
	/* A far end is gone, or there is no contact with it: then `silence` says why, and is not NULL.  With
	 * the adapter's control lock held, as is the next. */
	void (*gone)(void *user, const struct vb_whom *who, enum vb_peer_end how,
		     const struct vb_reach_facts *silence);
	/* There is contact with a far end whose QP1 is not open: it takes no MADs. */
	void (*mute)(void *user, const struct vb_whom *who);
	/* The first packet came for that queue pair, which is in RTR (IBV_EVENT_COMM_EST). */
	void (*established)(void *user, uint32_t qpn);
	/* The device is lost (hca/lost.c).  Nothing is called any more. */
	void (*lost)(void *user);
};

/* Opens it, once for an adapter.  0, or errno (ENOMEM; EBUSY: it is open).  Pairs with vb_gsi_close(), which
 * vb_hca_close() calls; after that, or in a forked child, nobody is called any more. */
int vb_gsi_open(struct vb_hca *h, const struct vb_gsi_ops *ops, void *user);
void vb_gsi_close(struct vb_hca *h);
bool vb_gsi_is_open(const struct vb_hca *h);

/* Sends a MAD to that far end (VB_WHOM_NOBODY: to nobody), by that route.  While contact is being made it
 * waits; to another host it leaves at once.  0; EAGAIN: as many wait as may, and this one is lost; ENOTCONN:
 * QP1 is not open there, and it is lost; ENETUNREACH: no wire leads to other hosts; EIO: the device is lost.
 * Any thread, without the locks of a queue pair. */
int vb_gsi_send(struct vb_hca *h, const struct vb_whom *to, struct vb_route route,
		const uint8_t mad[VB_MAD_LEN]);
/* Hands one of another host on to that process of this host.  0 or errno, as above. */
int vb_gsi_hand(struct vb_hca *h, const struct vb_whom *to, const struct vb_gsi_mad *m);
/* What is known of a far end that does not answer what was first sent to it from the address `here` at
 * `since`; whether there is contact with it, or nothing is known. */
bool vb_gsi_silence(struct vb_hca *h, const struct vb_whom *who, struct vb_gid here, uint64_t since,
		    struct vb_reach_facts *f);

/* For hca/receive.c: a packet for QP1, from that receive queue, whose lock is held. */
void vb_gsi_take(struct vb_hca *h, const struct vb_rxq *r, const struct vb_pkt *p);
/* For vb_net_cfg.mads, whose user is the table of hosts. */
void vb_gsi_came(void *user, struct vb_rxq *r);
/* For the engine: hands over what came; when to be called again. */
uint64_t vb_gsi_run(struct vb_hca *h, uint64_t now);
/* For the engine and waiters, around a look at receive queues: what came is handed over by this thread. */
void vb_gsi_listen(void);
void vb_gsi_hear(struct vb_hca *h);
void vb_gsi_gone(struct vb_hca *h, const struct vb_whom *who, enum vb_peer_end how,
		 const struct vb_reach_facts *silence);
void vb_gsi_mute(struct vb_hca *h, const struct vb_whom *who);
void vb_gsi_lost(struct vb_hca *h);
/* For contexts (vb_context.established): notes it for the engine.  Under a queue pair's lock. */
void vb_gsi_established(struct vb_context *c, uint32_t qpn);

#endif
