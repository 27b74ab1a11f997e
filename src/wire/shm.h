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
#include "iba/rxq.h"

struct vb_shm {
	struct vb_out out; /* first: the way out */
	struct vb_peer *peer;
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
	_Atomic(const _Atomic uint32_t *) peer_cold;
	_Atomic(struct vb_set *) peer_hints;
	_Atomic uint32_t hint; /* ours among them */
	/* The packet in hand.  It is put together here, and written to its slot in one go: a peer that polls
	 * looks at the slot all the time, and would fetch the line in the middle of it, the more so as what
	 * is done in between (announcing a key) waits until all stores are visible. */
	struct vb_slot line __attribute__((aligned(VB_LINE)));
	/* consumer; guarded by rxq.rx, and rxq.at is the next slot to read */
	struct vb_rxq rxq __attribute__((aligned(VB_LINE)));
	const struct vb_ring *from; /* the peer's ring to us */
	_Atomic uint32_t *consumed; /* our counter for the peer */
	struct vb_source source;    /* the peer */
	/* producer again */
	uint32_t data_end[VB_RING_SLOTS] __attribute__((aligned(VB_LINE))); /* data_head behind each slot */
};

/* Where a peer's rings and counters stand: the owner's for writing, the peer's for reading.  NULL: no memory.
 */
struct vb_shm *vb_shm_new(struct vb_peer *peer, const struct vb_wire_parts *parts);
void vb_shm_free(struct vb_shm *s);
/* Turns the object over to the next peer at the same index: a thread that still asks vb_rxq_ready() of the
 * old one reads valid memory.  Nobody sends, and s->rxq.rx is held. */
void vb_shm_attach(struct vb_shm *s, const struct vb_wire_parts *parts);

extern const struct vb_wire vb_shm_wire;

#endif
