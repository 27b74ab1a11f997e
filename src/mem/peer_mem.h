/* Another adapter's memory on this host, reached by this process itself: the checks and the means of direct
 * placement.
 *
 * The peer publishes its key table and its QPs (iba/shown.h).  A thread that is about to touch memory
 * there announces the key and the QP in its own adapter's slot (mem/announce.h), then checks both entries,
 * touches at most one chunk, and takes the announcement back.  Who retracts a key or a QP's permission makes
 * it invisible first and then waits for such announcements, in vb_peer_mem_wait().  (The tables are read-only
 * here and their contents data from outside.)
 *
 * The means: CPU addresses, where the memory is this process's too (a peer in the same process, or a shared
 * mapping that was opened here: a region that is used again and again is asked about, see
 * vb_peer_mem_next_ask()), else process_vm_readv() and process_vm_writev() at the peer's engine thread: its
 * TID goes with the program that was started, while a PID would lead to what exec() made of it. Those calls
 * need the kernel's permission (same user, dumpable, no Yama or seccomp against it); the first refusal is
 * said, and from then on the ring carries what is meant for that peer. */
#ifndef VB_MEM_PEER_MEM_H
#define VB_MEM_PEER_MEM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/lock.h"
#include "iba/shown.h"
#include "mem/keys.h"
#include "mem/prompt.h"
#include "mem/share.h"

enum { VB_PEER_REGIONS = 128 };

enum vb_peer_region_state {
	VB_REGION_FREE,
	VB_REGION_COUNTS, /* its uses are counted */
	VB_REGION_WANTED, /* its owner is to be asked what memory it is */
	VB_REGION_ASKED,
	VB_REGION_MAPPED,
	VB_REGION_CANNOT, /* it is private memory, or cannot be mapped here for another reason */
};

/* What is known of one of the peer's regions.  Its place is given by the key's index; a region whose place
 * is taken is reached by process_vm_*. */
struct vb_peer_region {
	_Atomic uint32_t rkey;	/* 0: free */
	_Atomic uint32_t state; /* enum vb_peer_region_state */
	_Atomic uint32_t uses;
	bool write;	       /* mapped for writing, too */
	_Atomic(uint8_t *) at; /* where `addr` of the peer's process is mapped here; NULL: not */
	uint64_t addr, length; /* of the region, in the peer's process */
	_Atomic uint32_t seq;  /* of its entry when its owner answered: another one is another region */
	struct vb_share_map map;
};

/* What is known of the peer.  It is set while no QP uses it.  Whoever sets it holds the lock, since threads
 * that wait for peers may look.  What is atomic may change under use. */
struct vb_peer_mem {
	const struct vb_key_entry *keys; /* of its table; hostile: geometry is checked here */
	const struct vb_key_marks *marks;
	const struct vb_key_slot *slots;
	const _Atomic uint32_t *heard; /* reads as `token` while the peer looks at our announcements */
	uint32_t token;
	uint64_t here;		/* incarnation of our adapter */
	_Atomic uint64_t there; /* the peer's, 0: nobody; stored last */
	uint32_t number;	/* the peer's primary number */
	uint32_t offset;	/* of its untagged keys */
	uint32_t pid;		/* its process; for sentences */
	bool same;		/* that is this process */
	int tid;		/* its engine thread */
	int pidfd;		/* to see whether that is alive; the link's */
	_Atomic bool gone;	/* its thread is no more: the process has ended, or runs another program */
	_Atomic bool denied;	/* process_vm_* does not work, or would not be safe */
	_Atomic int64_t seen;	/* when it was last seen alive, coarse clock */
	_Atomic bool asks;	/* some share is WANTED */
	struct vb_prompt prompt;
	/* Held to give a place in `shares` to another key, and to fill in another peer. */
	struct vb_lock lock;
	struct vb_peer_region shares[VB_PEER_REGIONS];
};

/* The entry that a key names there; 0: none. */
static inline uint32_t vb_peer_mem_index(const struct vb_peer_mem *f, uint32_t key)
{
	return vb_key_index(f->marks, f->offset, key);
}

enum vb_means {
	VB_MEANS_NONE,	 /* not permitted, or no way: let the ring find out */
	VB_MEANS_QP,	 /* the QP permits it, and no byte is asked for: no key is looked at (rule 18) */
	VB_MEANS_MAPPED, /* at use.ptr */
	VB_MEANS_VM,	 /* at use.at in the peer's process */
};

struct vb_peer_mem_use {
	struct vb_key_slot *slot; /* private */
	uint8_t *ptr;
	uint64_t at;
};

/* What somebody wants there. */
struct vb_peer_mem_want {
	const struct vb_shown_qp *qp; /* the entry of the peer's QP */
	uint32_t peer_qpn, qpn;	      /* the two ends */
	uint32_t path_mtu;	      /* of the one here, enum ibv_mtu */
	uint32_t type;		      /* of both, enum ibv_qp_type */
	uint32_t reads; /* of a READ or atomic: how many the one here may have outstanding; else 0 */
	uint32_t psn;	/* of the next packet of the one here: everything before it is acknowledged */
	uint32_t rkey;
	uint32_t access; /* one of IBV_ACCESS_REMOTE_* */
	uint64_t addr, len;
};

/* Announces and checks.  Any other answer than VB_MEANS_NONE is to be followed by vb_peer_mem_end(), after
 * touching at most VB_MEM_CHUNK bytes.  own: this adapter's key table, in whose slots it is announced. */
enum vb_means vb_peer_mem_begin(struct vb_peer_mem *f, struct vb_keys *own, struct vb_peer_mem_use *u,
				const struct vb_peer_mem_want *w);
void vb_peer_mem_end(struct vb_peer_mem_use *u);

/* What the far end has lent of its memory with a SEND (iba/loan.h). */
struct vb_peer_mem_loan {
	const struct vb_shown_qp *qp; /* the entry of the peer's QP */
	uint32_t peer_qpn, qpn;	      /* the two ends */
	uint32_t path_mtu;	      /* of the one here, enum ibv_mtu */
	uint32_t leave;		      /* under which it was lent */
	uint32_t lkey;		      /* of the peer's table */
	uint64_t addr, len;
};

/* As vb_peer_mem_begin(), to read what is lent: the peer's L_Key is what counts, and the leave instead of a
 * permission.  The answer is never VB_MEANS_QP. */
enum vb_means vb_peer_mem_borrow(struct vb_peer_mem *f, struct vb_keys *own, struct vb_peer_mem_use *u,
				 const struct vb_peer_mem_loan *l);
/* Whether what l says lies in the same region as that of the use in hand, and where. */
bool vb_peer_mem_lent(const struct vb_peer_mem *f, const struct vb_peer_mem_loan *l, uint64_t *at);
/* After the copy, before vb_peer_mem_end(): whether the leave still stands.  If not, the peer's program may
 * have been told that its request has failed, and have changed the bytes while they were read. */
bool vb_peer_mem_stands(const struct vb_peer_mem *f, const struct vb_peer_mem_loan *l);

/* Whether what w wants lies in the same region as that of the use in hand, and where. */
bool vb_peer_mem_also(const struct vb_peer_mem *f, const struct vb_peer_mem_want *w, uint64_t *at);

/* Whether this region's memory is mapped here, which atomics need.  If not it may be soon. */
bool vb_peer_mem_mapped(struct vb_peer_mem *f, uint32_t rkey);

/* Whether placing there takes a system call and will do so: it is no memory that is ever mapped here, or its
 * owner has answered that it cannot be. */
bool vb_peer_mem_takes_call(const struct vb_peer_mem *f, uint32_t rkey);

/* For mem/peer_key.c, which announces by itself.  Where [at, at + len) of the peer's process is mapped here,
 * NULL: it is not; whether it may be soon; whether the peer's process was alive a moment ago. */
uint8_t *vb_peer_mem_mapped_at(struct vb_peer_mem *f, uint32_t rkey, uint64_t at, uint64_t len, bool write);
bool vb_peer_mem_may_map(struct vb_peer_mem *f, uint32_t rkey);
bool vb_peer_mem_alive(struct vb_peer_mem *f);

/* Regions that are worth asking about: the R_Key of the next one, 0: none.  The caller asks the peer what
 * memory that is, and says so if it could not (vb_peer_mem_ask_failed). */
uint32_t vb_peer_mem_next_ask(struct vb_peer_mem *f);
void vb_peer_mem_ask_failed(struct vb_peer_mem *f, uint32_t rkey);
/* The answer: the region [addr, addr + d->length) of the peer's process is what d says, for writing too or
 * not, as long as its entry's sequence number is seq.  0, or why it cannot be mapped.  This and
 * vb_peer_mem_drop() are called by one thread at a time. */
int vb_peer_mem_answer(struct vb_peer_mem *f, uint32_t rkey, uint32_t seq, uint64_t addr,
		       const struct vb_share_desc *d, int fd, bool write);
/* The region is gone (0: all are): unmaps it once no thread of this process uses it.  own: this adapter's key
 * table. */
void vb_peer_mem_drop(struct vb_peer_mem *f, struct vb_keys *own, uint32_t rkey);
/* Unmaps all regions that have gone without our having heard of it. */
void vb_peer_mem_sweep(struct vb_peer_mem *f, struct vb_keys *own);

/* The peer is gone: waits for threads of this process that touch its memory by keys. */
void vb_peer_mem_settle(struct vb_peer_mem *f, struct vb_keys *own);

/* Whether vb_peer_mem_begin() would probably succeed; announces nothing. */
bool vb_peer_mem_likely(const struct vb_peer_mem *f, const struct vb_peer_mem_want *w);

/* process_vm_writev() or process_vm_readv() of all of it: returns the bytes moved, which may be fewer than
 * asked for, 0 when nothing was (memory that is not there, or the peer denies itself). */
size_t vb_peer_mem_move(struct vb_peer_mem *f, bool write, const struct iovec *here, unsigned nhere,
			const struct iovec *there, unsigned nthere);

/* Revocation: waits until no announcement in the peer's slots names the key index (0: any) and the QP
 * (0: any) of the adapter `number`.  Returns at once when the mapping of its segment is replaced by zeros. A
 * wait of more than a second is logged: the peer is stopped. */
void vb_peer_mem_wait(struct vb_peer_mem *f, uint32_t number, uint32_t index, uint32_t qpn, const char *what);
/* Whether rkey is a live R_Key there of a region that holds [addr, addr+len), or of any if len is 0. */
bool vb_peer_mem_has_key(const struct vb_peer_mem *f, uint32_t rkey, uint64_t addr, uint64_t len);
/* Whether some announcement there names the key index of the adapter `number`; does not wait. */
bool vb_peer_mem_in_use(struct vb_peer_mem *f, uint32_t number, uint32_t index);

#endif
