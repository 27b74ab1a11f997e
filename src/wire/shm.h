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
	struct vb_out out;        /* first: the way out */
	struct vb_link *link;
	/* producer; guarded by tx */
	struct vb_lock tx __attribute__((aligned(VB_LINE)));
	struct vb_ring *to;       /* our ring to the peer */
	uint32_t head;            /* next slot to write */
	uint32_t seen;            /* peer's consumed counter as last read */
	uint32_t data_head;       /* next data byte, runs freely */
	uint32_t data_tail;       /* oldest data byte still in use, runs freely */
	uint32_t data_end[VB_RING_SLOTS]; /* data_head behind each slot's payload */
	const _Atomic uint32_t *peer_consumed;
	const _Atomic uint32_t *peer_awake;
	/* consumer; guarded by link->rx */
	const struct vb_ring *from __attribute__((aligned(VB_LINE))); /* the peer's ring to us */
	uint32_t tail;            /* next slot to read */
	_Atomic uint32_t *consumed; /* our counter for the peer */
};

/* Made by the adapter when a link comes up; both segments are checked already. */
struct vb_shm *vb_shm_new(struct vb_link *l, struct vb_ring *to, const struct vb_ring *from,
			  _Atomic uint32_t *consumed, const _Atomic uint32_t *peer_consumed,
			  const _Atomic uint32_t *peer_awake);
void vb_shm_free(struct vb_shm *s);

/* One packet as it stands in the ring: header copied out, payload in place until vb_shm_next(). */
struct vb_shm_pkt {
	uint32_t hdr_len, payload_len;
	const uint8_t *payload;
	uint8_t hdr[VB_HDR_MAX + 8];
};

/* Whether a packet is there.  One load; under rx, or as a hint without it. */
static inline bool vb_shm_ready(const struct vb_shm *s)
{
	return atomic_load_explicit(&s->from->slots[s->tail % VB_RING_SLOTS].seq, memory_order_acquire) ==
	       s->tail + 1; /* pairs with the sender's exchange */
}

/* Under rx: 1 and the next packet, 0 if there is none, -1 if what stands there cannot be a packet (the peer is
 * insane: the link must go down). */
int vb_shm_peek(struct vb_shm *s, struct vb_shm_pkt *p);
/* Under rx: done with the packet of vb_shm_peek().  The sender sees the room at once. */
void vb_shm_next(struct vb_shm *s);
/* Whether a request has room now: what a QP that was refused waits for. */
bool vb_shm_has_room(struct vb_shm *s);

#endif
