/* The shm wire: a lossless ring per ordered pair of adapters.
 *
 * The sender writes descriptors and payload into the ring in its own segment and reads the peer's consumed
 * counter; the receiver does the opposite.  A packet of up to VB_SLOT_INLINE bytes costs one cache line. */
#ifndef VB_WIRE_SHM_H
#define VB_WIRE_SHM_H

#include <stdbool.h>
#include <stdint.h>

#include "host/adapter.h"
#include "iba/out.h"
#include "iba/pkt.h"

struct vb_shm {
	struct vb_out out; /* first: the way out */
	struct vb_peer *link;
	/* producer; guarded by tx */
	struct vb_lock tx __attribute__((aligned(VB_LINE)));
	uint32_t seen;	       /* peer's consumed counter as last read */
	_Atomic uint64_t head; /* next slot to write; written under tx, read without */
	struct vb_ring *to;    /* our ring to the peer */
	uint32_t data_head;    /* next data byte, runs freely */
	uint32_t data_next;    /* data_head once the packet in hand is committed */
	uint32_t data_tail;    /* oldest data byte still in use, runs freely */
	_Atomic(const _Atomic uint32_t *) peer_consumed;
	_Atomic(const _Atomic uint32_t *) peer_awake;
	/* consumer; guarded by peer->rx */
	_Atomic(const struct vb_ring *) from __attribute__((aligned(VB_LINE))); /* the peer's ring to us */
	_Atomic uint32_t tail;	    /* next slot to read; written under rx, read without */
	_Atomic uint32_t *consumed; /* our counter for the peer */
	/* producer again */
	uint32_t data_end[VB_RING_SLOTS] __attribute__((aligned(VB_LINE))); /* data_head behind each slot */
};

/* Where a link's rings and counters stand: the owner's for writing, the peer's for reading. */
struct vb_shm *vb_shm_new(struct vb_peer *peer, struct vb_ring *to, const struct vb_ring *from,
			  _Atomic uint32_t *consumed, const _Atomic uint32_t *peer_consumed,
			  const _Atomic uint32_t *peer_awake);
void vb_shm_free(struct vb_shm *s);
/* The same object for the next peer at the same link index: a thread that still asks vb_shm_ready() of the
 * old one reads valid memory. Nobody sends, and rx is held. */
void vb_shm_attach(struct vb_shm *s, struct vb_ring *to, const struct vb_ring *from,
		   _Atomic uint32_t *consumed, const _Atomic uint32_t *peer_consumed,
		   const _Atomic uint32_t *peer_awake);

/* One packet as it stands in the ring: header copied out, payload in place until vb_shm_next(). */
struct vb_shm_pkt {
	uint32_t hdr_len, payload_len;
	const uint8_t *payload;
	uint32_t ack;	  /* as in the slot */
	uint8_t path_mtu; /* enum ibv_mtu of the sender, 0: not told */
	bool placed;	  /* VB_SLOT_PLACED */
	uint8_t hdr[VB_HDR_MAX];
};

/* Whether a packet is there.  One load; under rx, or as a hint without it. */
static inline bool vb_shm_ready(const struct vb_shm *s)
{
	uint32_t tail = atomic_load_explicit(&s->tail, memory_order_relaxed);
	const struct vb_ring *from = atomic_load_explicit(&s->from, memory_order_relaxed);

	return atomic_load_explicit(&from->slots[tail % VB_RING_SLOTS].seq, memory_order_acquire) ==
	       tail + 1; /* pairs with the sender's exchange */
}

/* Under rx: 1 and the next packet, 0 if there is none, -1 if what stands there cannot be a packet (the peer
 * is insane: the link must go down, see vb_peer_insane). */
int vb_shm_peek(struct vb_shm *s, struct vb_shm_pkt *p);
/* Under rx: done with the packet of vb_shm_peek().  The sender sees the room at once. */
void vb_shm_next(struct vb_shm *s);
/* Whether a request of the largest size has room now: what a QP that was refused waits for. */
bool vb_shm_has_room(struct vb_shm *s);

#endif
