/* The segment: what an adapter shows to its peers.  One memfd, sparse at full size, sealed; the owner maps it
 * for writing, peers read-only and once.  Offsets and indices only; a reader copies what it needs out once
 * and checks it.  Its owner alone writes it.
 *
 * What peers write stands in a memfd of its own, handed over with the segment: hints (base/set.h), the
 * ring_index() of those cold rings in which a packet was left, and a count of changes of their multicast
 * groups. Any peer may set or clear any of it. */
#ifndef VB_HOST_SEGMENT_H
#define VB_HOST_SEGMENT_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/history.h"
#include "base/lock.h"
#include "base/pages.h"
#include "iba/limits.h"
#include "iba/shown.h"
#include "iba/shown_id.h"
#include "iba/traffic.h"

#define VB_SEG_MAGIC   0x3142524556ull /* "VERB1" */
#define VB_SEG_VERSION 20

/* Ring geometry.  Descriptors and payload are apart, so that a payload can never pass for a descriptor. */
#define VB_RING_SLOTS  1024u
#define VB_RING_DATA   (256u << 10)
#define VB_RING_MTU    (16u << 10) /* path MTU of the shm wire */
#define VB_SLOT_INLINE 52u	   /* header and payload together, up to this, stand in the slot */

/* One packet: a cache line.  `seq` is the position plus one (modulo 2^32), stored last; a reader at position
 * p finds a packet when seq == p + 1. */
struct vb_slot {
	_Atomic uint32_t seq;
	uint8_t hdr_len;
	uint8_t flags;	    /* VB_SLOT_* */
	uint8_t inline_len; /* payload bytes in `bytes` behind the header */
	uint8_t hops;	    /* of a datagram: its hop limit */
	uint32_t ack;	    /* VB_OUT_ACK | PSN: an ACK for the packet's QP, to be taken before it; else 0.
			Of a datagram: VB_GRH_* (iba/grh.h) */
	union {
		uint8_t bytes[VB_SLOT_INLINE];
		struct {
			uint8_t hdr[44];
			uint32_t data_off; /* VB_SLOT_DATA: payload at this offset of the ring's data,
					      contiguous */
			uint32_t data_len;
		};
	};
};
#define VB_SLOT_DATA   1
#define VB_SLOT_PLACED 2 /* WRITE with immediate: its data is in place, by direct placement */
#define VB_SLOT_LENT   4 /* SEND: the payload says where its bytes are, which the receiver collects */
#define VB_SLOT_MTU                                                                             \
	16 /* the first bit of four: enum ibv_mtu of the sending QP, 0: not told; of a datagram \
	      its service level */

struct vb_ring {
	struct vb_slot slots[VB_RING_SLOTS];
	uint8_t data[VB_RING_DATA];
} __attribute__((aligned(VB_PAGE)));

/* How far this adapter has read a ring that a peer writes to it; by ring_index(). */
struct vb_consumed {
	_Atomic uint32_t slots; /* position, runs freely */
	_Atomic uint32_t heard; /* of the first ring: the peer's token (peer.c) once this adapter looks at
				   its announcements */
	_Atomic uint32_t bells; /* of the first ring: how often this adapter has read the peer's bells; runs
				   freely */
} __attribute__((aligned(VB_LINE)));

/* Whether nobody looks at a ring that a peer writes to this adapter, by ring_index(): 1, the ring is cold,
 * and who puts a packet there leaves a hint; 0.  The line changes with nothing else: a sender looks at it
 * with each packet. */
struct vb_cold {
	_Atomic uint32_t is;
} __attribute__((aligned(VB_LINE)));

/* VB_EXPECTING: the thread that has asked is about to look for the answer; management datagrams are its, too.
 */
enum vb_awake { VB_ASLEEP = 0, VB_POLLING = 1, VB_EXPECTING = 2 };

struct vb_seg_head {
	uint64_t magic;
	uint32_t version;
	uint32_t number;      /* primary adapter number */
	uint64_t incarnation; /* random, never 0 */
	uint64_t size;
	uint32_t pid, tid;		/* tid: of the engine thread */
	uint64_t pid_ns;		/* PID namespace in which they count, 0: not known */
	uint32_t key_offset;		/* of keys from their indices in the table, by chance (mem/keys.h) */
	uint32_t device;		/* index among the process's devices */
	uint8_t gids[VB_GID_TABLE][16]; /* of its port; a reader may see one that is changing */
	uint32_t numbers[VB_ADAPTER_NUMBERS]; /* all numbers held; 0 ends (number 0 is never bound) */
	_Atomic uint32_t nnumbers;
	_Atomic uint32_t gsi; /* by which number QP1 is open (hca/gsi.h), so that management datagrams are
				 taken; 0: it is not */
	char profile[16];     /* name of the process's profile, for tools */
	char name[64];	      /* of the device, for tools */
	_Atomic uint32_t qps; /* queue pairs that exist, for tools */
	uint64_t roots; /* where its objects stand in its memory (hca/roots.h), for tools; 0: not told */
};

/* Where things stand in a segment, in bytes.  Key entries and announcements are lines whose contents mem/
 * knows, protection domains are what obj/ knows. */
#define VB_SEG_AWAKE	 4096ull /* the word, alone in its line */
#define VB_SEG_POLLS	 4160ull /* how often its threads have polled, told every so many polls */
#define VB_SEG_KEY_MARKS 4224ull /* how far the key table and its announcements are used: two lines */
#define VB_SEG_PD_MARKS	 4416ull /* how far the table of protection domains is, alone in its line */
#define VB_SEG_DROPS	 4480ull /* struct vb_drops */
#define VB_SEG_GROUP_MARK                                                                                 \
	4992ull			 /* how many entries of the table of groups are in use, alone in its line \
				  */
#define VB_SEG_ID_MARKS	 5120ull /* struct vb_shown_marks */
#define VB_SEG_PAST	 6144ull /* struct vb_traffic_past */
#define VB_SEG_CONSUMED	 8192ull /* struct vb_consumed[VB_MAX_RINGS] */
#define VB_SEG_COLD	 (VB_SEG_CONSUMED + (uint64_t)VB_MAX_RINGS * VB_LINE) /* struct vb_cold[VB_MAX_RINGS] */
#define VB_SEG_KEYS	 (VB_SEG_COLD + (uint64_t)VB_MAX_RINGS * VB_LINE)
#define VB_SEG_KEY_SLOTS (VB_SEG_KEYS + (uint64_t)VB_KEY_ENTRIES * VB_LINE) /* 64 of them */
#define VB_SEG_PDS	 ((VB_SEG_KEY_SLOTS + 64 * VB_LINE + VB_PAGE - 1) & ~(VB_PAGE - 1))
#define VB_SEG_PD_SIZE	 32ull /* of one */
#define VB_SEG_QPS	 (VB_SEG_PDS + (uint64_t)VB_MAX_PD * VB_SEG_PD_SIZE)
#define VB_SEG_GROUPS	 (VB_SEG_QPS + (uint64_t)VB_ADAPTER_NUMBERS * VB_QPN_INDICES * VB_LINE)
#define VB_SEG_RINGS	 (VB_SEG_GROUPS + (uint64_t)VB_MAX_MCAST_GRP * sizeof(struct vb_shown_group))
#define VB_SEG_IDS	 (VB_SEG_RINGS + (uint64_t)VB_MAX_RINGS * sizeof(struct vb_ring))
#define VB_SEG_HISTORY	 (VB_SEG_IDS + (uint64_t)VB_SHOWN_IDS * sizeof(struct vb_shown_id_entry))
#define VB_SEG_TRAFFIC	 (VB_SEG_HISTORY + sizeof(struct vb_history)) /* of each entry of VB_SEG_QPS */
#define VB_SEG_SIZE \
	(VB_SEG_TRAFFIC + (uint64_t)VB_ADAPTER_NUMBERS * VB_QPN_INDICES * sizeof(struct vb_traffic))

/* The other memfd: a struct vb_set, and the word that peers add to when the groups that they show have
 * changed, alone in its line. */
#define VB_HINTS_SIZE  4096ull
#define VB_HINTS_STIRS 1024ull

#endif
