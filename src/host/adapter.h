/* The adapter: this process's presence among the processes of the host.
 *
 * One number (the abstract socket that it managed to bind), one segment, one engine thread, one control
 * socket per peer.  A process has one for each device that it has opened; tests make more.  What happens with
 * packets is the business of the layer above, which the adapter reaches through vb_adapter_ops. */
#ifndef VB_HOST_ADAPTER_H
#define VB_HOST_ADAPTER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/lock.h"
#include "base/set.h"
#include "host/segment.h"
#include "iba/far.h"
#include "iba/limits.h"
#include "iba/reach.h"

struct vb_adapter;
struct vb_peer;
struct vb_peer_mem;
struct vb_roce;
struct vb_out;
struct vb_qp;
struct vb_rxq;
struct vb_key_entry;
struct vb_key_slot;
struct vb_key_marks;
struct vb_pd_slot;
struct vb_pd_marks;
struct vb_drops;

/* How a link ended. */
enum vb_peer_end {
	VB_END_GOODBYE,	 /* the peer left by itself, so silence follows */
	VB_END_DIED,	 /* its process ended, as far as can be told */
	VB_END_UNCLEAR,	 /* its process ended, closed its descriptors or exec()ed: it has no PID here */
	VB_END_CLOSED,	 /* its process lives, and has closed the descriptors of its device */
	VB_END_REPLACED, /* its process runs another program (exec) */
	VB_END_BROKEN,	 /* it ended the link, since what it got from here was rubbish */
	VB_END_RUBBISH,	 /* it was ended here, since what the peer sent is rubbish */
	VB_END_LOST,	 /* this process has closed the descriptors of this device */
};

/* How far a look at the receive queues goes. */
enum vb_look {
	VB_LOOK_DRAIN, /* those that are warm or have a hint: all that is there when the look begins */
	VB_LOOK_ALL,   /* cold ones, too */
};

struct vb_adapter_ops {
	/* What a peer is as a far end: peer->far has it. */
	const struct vb_far_kind *far;
	/* Takes in and sends out what there is.  Called by the engine and by waiters, without locks.  Returns
	 * how many packets came in. */
	unsigned (*progress)(struct vb_adapter *a, enum vb_look how);
	/* Whether a warm receive queue holds a packet, or a hint says so of a cold one: the look of somebody
	 * who has just stored "asleep".  The sender to a cold one finds that word, and rings. */
	bool (*ready)(struct vb_adapter *a);
	/* Cold receive queues that hold packets become warm: the engine's look now and then at what a lost
	 * hint left behind. */
	void (*notice)(struct vb_adapter *a);
	/* The peer rang: its receive queue becomes warm, hint or no hint. */
	void (*rang)(struct vb_peer *peer);
	/* The word has just become asleep, which peers may not have read yet: takes what they show as
	 * received for ACKs, and has the engine look after what was left for pollers.  May be NULL, like the
	 * next. */
	void (*slept)(struct vb_adapter *a);
	/* vb_peer_leave(); with the locks of the wire's caller. */
	void (*left)(struct vb_peer *peer);
	/* Looks at timers; returns the next deadline (VB_NEVER: none).  Anything that waits for room in a
	 * ring makes that at most a millisecond away. */
	uint64_t (*timers)(struct vb_adapter *a, uint64_t now);
	/* A link came up, or contact failed for now: its QPs may be tried again (state says which; see also
	 * vb_peer_current).  This and peer_down are called by the engine or by a thread in vb_adapter_wait(),
	 * never by two at once. */
	void (*peer_up)(struct vb_peer *peer);
	/* The peer is gone.  Its ring has been read to the end.  Unless it said goodbye its QPs are in error.
	 */
	void (*peer_down)(struct vb_peer *peer, enum vb_peer_end how);
	/* The adapter is lost (vb_adapter_lost), and all its links but the one to oneself are down.  Called
	 * once, like peer_down. */
	void (*lost)(struct vb_adapter *a);
	/* The peer said something of a subject by vb_peer_tell(): `len` bytes at an address aligned to 8, and
	 * perhaps a descriptor, else -1; also -1 if there was one but this process has no room for more.  The
	 * caller closes it afterwards.  Only while the link is UP, in the order of telling, but in no order
	 * with packets; called like peer_up, with `control` held, and may itself call vb_peer_tell(). */
	void (*told)(struct vb_peer *peer, uint8_t subject, const void *msg, size_t len, int fd);
	/* An interface of the network namespace was said to be up or down; then, that interfaces or addresses
	 * have changed.  Called like peer_up, with `control` held.  Without the latter nobody watches. */
	void (*link)(struct vb_adapter *a, uint32_t ifindex, bool up);
	void (*network)(struct vb_adapter *a);
	/* The adapter closes: frees peer->mem. */
	void (*peer_free)(struct vb_peer *peer);
};

/* What a wire between two processes of the host needs of their segments when a peer comes up; the peer's part
 * is checked. */
struct vb_wire_parts {
	struct vb_ring *to;		       /* our ring to the peer */
	const struct vb_ring *from;	       /* the peer's ring to us */
	_Atomic uint32_t *consumed;	       /* our counter for it */
	const _Atomic uint32_t *peer_consumed; /* the peer's for ours */
	const _Atomic uint32_t *peer_awake;
	_Atomic uint32_t *cold; /* ours for the peer: whether nobody looks at `from` */
	const _Atomic uint32_t *peer_cold;
	struct vb_set *peer_hints; /* in which bit `hint` says that something is in `to` */
	uint32_t hint;
	uint64_t incarnation;	   /* the peer's: the source of what comes from it, as is what follows */
	const uint8_t (*gids)[16]; /* VB_GID_TABLE, in its segment */
	uint16_t lid;
};

/* One of the ways to a peer and back.  A queue pair keeps to one for life, and threads that send to the same
 * process over queue pairs of their own do not meet at its locks.  Both halves are made when the peer is UP
 * for the first time, then they stay for the adapter's life. */
struct vb_lane {
	struct vb_out *out;
	struct vb_rxq *rxq;
	uint64_t left_mark; /* what lay in it at the last look of hca/left.c */
};

/* A wire to peers, as wire/ defines it and the adapter's opener chooses it (wire/wires.h). */
struct vb_wire {
	const char *name;
	uint32_t lanes; /* how many lanes two adapters have, VB_LANES at most */
	/* Makes a lane's two halves, or takes them over from the peer that had this index before, under
	 * rxq->rx.  0 or errno. */
	int (*up)(struct vb_peer *peer, struct vb_lane *lane, const struct vb_wire_parts *parts);
	void (*free)(struct vb_lane *lane);
};

enum vb_peer_state {
	VB_PEER_IDLE,	    /* no contact yet, or the last attempt failed */
	VB_PEER_CONTACTING, /* the engine is at it */
	VB_PEER_UP,
	VB_PEER_DOWN, /* the peer is gone for good; a new incarnation gets a new link */
};

/* Another process of this host that has opened the device, or this one.  Made by the first QP that names one
 * of its numbers, or when it makes contact.  The pointer stays valid for the adapter's life, and its index
 * serves another peer when nobody holds it. */
struct vb_peer {
	struct vb_far far;
	struct vb_adapter *adapter; /* set once */
	uint32_t index;		    /* of its rings and their counters in our segment; set once */
	uint32_t number;	    /* its primary number, the one asked for until UP */
	uint64_t incarnation;	    /* 0 until UP */
	uint32_t pid;		    /* set when UP */
	_Atomic int state;	    /* enum vb_peer_state; the engine writes */
	_Atomic uint32_t refs;	    /* paths and others that hold it */
	int sock;		    /* control socket, -1: none; this process itself has none */
	const uint8_t *view;	    /* its segment, read-only; NULL until UP */
	uint32_t view_index;	    /* of its rings to us and their counters in its segment, checked */
	uint32_t key_offset;	    /* where its keys begin, checked */
	uint32_t nlanes;	    /* set once */
	struct vb_lane lanes[VB_LANES];
	/* Its tables, for direct placement: hca/ sets it in peer_up(), then it stays. */
	_Atomic(struct vb_peer_mem *) mem;
	/* A packet was left for it while its word said polling, and hca/left.c looks after that. */
	_Atomic bool left;
	uint64_t left_since; /* when hca/left.c saw first what lies in the lanes; 0: nothing does */
	/* The link is DOWN, and the process may live, in the middle of an access to memory here: who takes
	 * that back waits still (hca/direct.c).  The engine writes. */
	_Atomic bool fades;
};

enum vb_open_step { VB_OPEN_DESCRIPTORS, VB_OPEN_SEGMENT, VB_OPEN_NUMBER, VB_OPEN_LINK, VB_OPEN_THREAD };

struct vb_adapter_cfg {
	enum vb_open_step *step; /* where it fails; may be NULL */
	const struct vb_adapter_ops *ops;
	const struct vb_wire *wire; /* to peers */
	void *user;		    /* the upper layer's */
	const uint8_t (*gids)[16];  /* VB_GID_TABLE of them, published as they stand now */
	uint32_t device;	    /* index among the process's devices, published */
	/* The UDP port of RoCEv2 (host/roce.h), NULL: none.  The adapter's from success on, which then takes
	 * numbers of its slot only. */
	struct vb_roce *roce;
	const void *roots; /* published for tools; NULL: nothing */
};

/* Makes an adapter: binds a number, makes the segment.  0 or errno (EADDRINUSE: all 4,095 numbers are taken,
 * see vb_numbers_say(); EMFILE, ENOMEM as the kernel says), with the step that failed in *cfg->step if that
 * is not NULL. */
int vb_adapter_open(struct vb_adapter **out, const struct vb_adapter_cfg *cfg);
/* Starts its engine, which may call the upper layer at once: what that needs is there by now.  0 or errno; an
 * adapter that does not run is closed all the same. */
int vb_adapter_run(struct vb_adapter *a);

/* Has fork() and exit() looked after, which vb_adapter_open() does by itself.  A caller whose own fork
 * handlers take locks that it holds over calls from here calls this before it registers them. */
void vb_adapter_handle_fork(void);

/* Says goodbye on every link, stops the engine, frees everything.  No QP may be left. */
void vb_adapter_close(struct vb_adapter *a);

/* A program that closes all descriptors takes the adapter's away.  It is lost then: from that it is noticed
 * on nothing is written to their numbers, read from them or closed, all links end, and the upper layer is
 * told. vb_adapter_lost(): whether it was noticed; vb_adapter_whole(): looks. */
bool vb_adapter_lost(const struct vb_adapter *a);
bool vb_adapter_whole(struct vb_adapter *a);
/* eventfds of the upper layer, which have no inode by which they could be told: the adapter remembers such a
 * one (0 or errno); says whether a number is still it, any thread, with any lock; and closes it if it is. */
int vb_adapter_adopt(struct vb_adapter *a, int fd);
bool vb_adapter_owns(struct vb_adapter *a, int fd);
void vb_adapter_disown(struct vb_adapter *a, int fd);
/* Has threads in vb_adapter_wait() and vb_adapter_await() come back. */
void vb_adapter_rouse(struct vb_adapter *a);

/* A socket through which packets come that nobody rings for.  While the word says asleep, whoever blocks in
 * the adapter's place wakes when it is readable, and calls came(), under `control`, before progress is made.
 * The adapter does not run yet; the socket stays open until it is closed.  0 or errno. */
int vb_inlet_add(struct vb_adapter *a, int fd, void (*came)(void *user), void *user);
/* One that wakes a thread whatever the word says, from vb_inlet_open() on; any thread may call that. */
int vb_inlet_add_steady(struct vb_adapter *a, int fd, void (*came)(void *user), void *user);
void vb_inlet_open(struct vb_adapter *a, int fd);

uint32_t vb_adapter_number(const struct vb_adapter *a);
/* Whether a process of this network namespace has that number.  It notices, and no more than that. */
bool vb_number_is_taken(uint32_t number);
struct vb_roce *vb_adapter_roce(const struct vb_adapter *a); /* cfg.roce */
void *vb_adapter_user(const struct vb_adapter *a);
/* Space in the segment for the key table (VB_KEY_ENTRIES) and its announcements. */
struct vb_key_entry *vb_adapter_key_entries(struct vb_adapter *a);
struct vb_key_slot *vb_adapter_key_slots(struct vb_adapter *a);
struct vb_key_marks *vb_adapter_key_marks(struct vb_adapter *a);
/* By chance, up to VB_KEY_OFFSET_MAX: where this adapter's keys begin. */
uint32_t vb_adapter_key_offset(const struct vb_adapter *a);
/* Space in the segment for the table of protection domains (VB_MAX_PD). */
struct vb_pd_slot *vb_adapter_pds(struct vb_adapter *a);
struct vb_pd_marks *vb_adapter_pd_marks(struct vb_adapter *a);

/* Shows peers the port's GIDs, VB_GID_TABLE of them, as they stand now; and where they are shown. */
void vb_adapter_show_gids(struct vb_adapter *a, const uint8_t (*gids)[16]);
const uint8_t (*vb_adapter_gids(const struct vb_adapter *a))[16];
/* Shows how many queue pairs the program has: n more, or less. */
void vb_adapter_count_qp(struct vb_adapter *a, int n);

/* Its counts of what was dropped, in the segment. */
struct vb_drops *vb_adapter_drops(struct vb_adapter *a);
/* The location of rdma_cm identifiers in the segment. */
struct vb_shown_ids vb_adapter_ids(struct vb_adapter *a);

/* Where the peer's tables stand, and how its process is reached; of links that are or were UP, from peer_up()
 * on: what is mapped stays readable.  Once the link is DOWN these are zeros, or the tables of another peer.
 */
struct vb_peer_tables {
	const struct vb_key_entry *keys;
	const struct vb_key_slot *slots;
	const struct vb_key_marks *marks;
	uint32_t key_offset;
	const struct vb_pd_slot *pds;
	const struct vb_pd_marks *pd_marks;
	/* Reads as `token` as long as the peer looks at our announcements (see vb_peer_reach). */
	const _Atomic uint32_t *heard;
	uint32_t token;
	const _Atomic uint32_t *awake; /* its word */
	const _Atomic uint32_t *polls; /* how often its threads have polled, as it tells now and then */
	bool same;		       /* this process */
	int tid; /* of its engine thread, 0: it has none that could be told apart here */
};
void vb_peer_tables(const struct vb_peer *peer, struct vb_peer_tables *at);
/* In peer_up(): its process's, which stays open until peer_down() has returned; -1: none, as of oneself. */
int vb_peer_pidfd(struct vb_peer *peer);
uint64_t vb_adapter_incarnation(const struct vb_adapter *a);
/* A descriptor that stands for the adapter (its segment), for ibv_context.cmd_fd; the adapter's own.  -1: the
 * program has closed it. */
int vb_adapter_fd(struct vb_adapter *a);
/* Whose a duplicate of such a descriptor is; it may be of another process, also of one that has ended.  0,
 * EINVAL: it stands for no adapter, or errno where this process may not look at it. */
struct vb_owner {
	uint32_t number; /* primary */
	uint32_t device; /* index among that process's devices */
	uint32_t pid;
	uint64_t incarnation;
	uint32_t
	    version; /* of its segment; also where that is another one than ours, and so EINVAL; 0: none */
};
int vb_adapter_owner(int fd, struct vb_owner *o);

/* QP numbers.  vb_qpn_take() gives a QPN that leads to `qp` until vb_qpn_give() (it binds a further adapter
 * number when the present ones are full).  0: the device is lost, or none is left.  Then `call` has been
 * refused with the reason, or the log has it (NULL).  vb_qpn_find() is safe under any link's rx lock or the
 * timer lock; after vb_qpn_give() and vb_hca_quiesce() nobody holds the pointer any more. */
uint32_t vb_qpn_take(struct vb_adapter *a, struct vb_qp *qp, const char *call);
void vb_qpn_give(struct vb_adapter *a, uint32_t qpn);
struct vb_qp *vb_qpn_find(const struct vb_adapter *a, uint32_t qpn);
/* The PID of the process of this user that owns the number: this one, if a queue pair has it, or another,
 * whether a queue pair has it or not, which is asked by a connection.  0: none is known. */
uint32_t vb_qpn_whose(const struct vb_adapter *a, uint32_t qpn);
/* From now on rests() is asked before a QPN is given: one of which it says true is passed over until it says
 * otherwise.  It is called with qpn_lock held. */
typedef bool vb_qpn_rests_fn(void *user, uint32_t qpn);
void vb_qpn_rest(struct vb_adapter *a, vb_qpn_rests_fn *rests, void *user);
/* SRQ numbers: an adapter number of ours and an index, as QPNs are, with indices of their own. vb_srqn_take()
 * gives 0 as vb_qpn_take() does. */
uint32_t vb_srqn_take(struct vb_adapter *a, const char *call);
void vb_srqn_give(struct vb_adapter *a, uint32_t srqn);
/* Takes a further number for other ends than QPs; 0, or why there is none (ENFILE: it has all that it may).
 */
int vb_adapter_number_add(struct vb_adapter *a);
/* Publishes a QP's state for peers. */
struct vb_shown_qp *vb_qpn_published(struct vb_adapter *a, uint32_t qpn);
/* Shows tools what it has sent and received. vb_qpn_give() adds that to the adapter's past. */
struct vb_traffic *vb_qpn_traffic(struct vb_adapter *a, uint32_t qpn);
/* What all queue pairs of a device of this process have counted, also those that are destroyed; 0 where it is
 * not open.
 */
void vb_view_traffic(uint32_t device, struct vb_traffic *sum); /* exported, for the preloaded view */
void vb_qpns_traffic(struct vb_adapter *a, struct vb_traffic *sum);
/* The adapter's own count of packets that were discarded because of their ICRC. */
_Atomic uint64_t *vb_adapter_wrong_icrcs(struct vb_adapter *a);

/* The link that leads to the adapter with this number, starting contact if there is none; never blocks. Takes
 * a reference (vb_peer_put).  NULL: out of memory, or out of links.  The number of this adapter itself gives
 * the link to oneself, which is UP at once. */
struct vb_peer *vb_peer_get(struct vb_adapter *a, uint32_t number);
void vb_peer_put(struct vb_peer *peer);
/* Whether a peer that is UP is gone, or has hung up, which was not noticed yet: looks, by a system call.
 * Somebody else may have its number by now.  Any thread, with any lock. */
bool vb_peer_is_over(struct vb_peer *peer);
/* Asks the engine to try contact again, if the link is IDLE. */
void vb_peer_contact(struct vb_peer *peer);
/* Makes contact and waits, until `until` at most: in the calling thread, without locks.  0: *peer is UP, with
 * a reference, and each of the two looks at what the other announces, so that keys lead to memory both ways.
 * ECONNREFUSED: nobody has that number, or nobody who may be talked to; ETIMEDOUT: somebody has it and does
 * not answer; else what this process lacks.  *why: more of it. */
int vb_peer_reach(struct vb_adapter *a, uint32_t number, uint64_t until, struct vb_peer **peer,
		  struct vb_reach_facts *why);
/* Meeting several at once: contact with all of them is begun, and vb_peers_meet() waits for each, until
 * `until` at most.  A number that is nobody's, or this adapter's, is passed over, and so is one with which
 * there is no contact for a reason of the other end's: *met counts those.  0, or what this process lacks. */
struct vb_met {
	uint32_t silent;	   /* how many do not answer */
	uint32_t refused;	   /* how many cannot be talked to, */
	struct vb_reach_facts why; /* one of them for that reason */
	uint32_t unable;	   /* how many of them lack what contact takes, which they may have later */
};
void vb_peers_call(struct vb_adapter *a, const uint32_t *numbers, uint32_t n);
int vb_peers_meet(struct vb_adapter *a, const uint32_t *numbers, uint32_t n, uint64_t until,
		  struct vb_met *met);
/* The numbers that this user's processes have bound in this network namespace, this one's among them (all
 * users', where the kernel does not tell whose they are), in *numbers (to be freed); 0 or errno. */
int vb_numbers_list(uint32_t **numbers, uint32_t *count);
/* After peer_up() of a peer that is not UP: the one to use instead if it turned out that both are one process
 * (contact was made through two of its numbers at once), else this one.  Takes over the caller's reference
 * and returns one to the result. */
struct vb_peer *vb_peer_current(struct vb_peer *peer);
/* Whether that is another one. */
bool vb_peer_is_alias(struct vb_peer *peer);
/* Why there is no contact yet, as the last attempt found it (VB_REACH_UNKNOWN: it has not failed), and in
 * *asked the process that has our hello and has not answered, 0: none. */
struct vb_reach_facts vb_peer_trouble(struct vb_peer *peer, uint32_t *asked);
/* The process at the other end that said it has no memory or descriptors for contact, 0: none. */
uint32_t vb_peer_unable(struct vb_peer *peer);
/* Whether there is contact after all, or it is being made and nothing is wrong with that: it has begun less
 * than five seconds ago; or the process that is to answer is stopped (by a signal or a debugger); or the
 * engine thread of either end waits for a CPU, for a minute at most.  Silence then is no loss.  Looks into
 * /proc. */
bool vb_peer_pending(struct vb_peer *peer, uint64_t now);
/* The process at the other end, or that has our hello and has not answered, if it is stopped (by a signal or
 * a debugger); 0: none is, as far as can be seen.  Looks into /proc. */
uint32_t vb_peer_stopped(struct vb_peer *peer);
/* A wire has left a packet for a peer whose word says polling, and peer->left was not set.  Leaves errno as
 * it was, as the next function does. */
void vb_peer_leave(struct vb_peer *peer);
/* Rings the peer's doorbell; for the wire, which found the peer's word at asleep. */
void vb_peer_ring(struct vb_peer *peer);
/* Has the peer's upper layer told, of a subject that the upper layers know, `len` (1 to VB_TELL_MAX) bytes,
 * with descriptor `fd` if it is not -1; that stays the caller's.  Wakes the peer if it sleeps.  Never blocks:
 * false if it cannot be said now, since the peer has not read what it was told before, or the link is not UP,
 * or it is the link to oneself; nothing has been said then, and nobody calls when it can be.  Any thread. */
enum { VB_TELL_MAX = 128 };
bool vb_peer_tell(struct vb_peer *peer, uint8_t subject, const void *msg, size_t len, int fd);
/* The GIDs of its port, VB_GID_TABLE of them, which may change; UP links only. */
const uint8_t (*vb_peer_gids(const struct vb_peer *peer))[16];
/* Shows peers whether QP1 takes management datagrams (hca/gsi.h); whether a peer that is or was UP shows
 * that. */
void vb_adapter_show_gsi(struct vb_adapter *a, uint32_t number); /* 0: it is not */
bool vb_peer_shows_gsi(const struct vb_peer *peer);
/* The entry of this QP that the peer shows (also one that has just died); NULL: it has no such number. */
const struct vb_shown_qp *vb_peer_shown(const struct vb_peer *peer, uint32_t qpn);
/* The state that the peer shows of the QP: 1 + enum ibv_qp_state, 0: no such QP. */
uint32_t vb_peer_qp_state(const struct vb_peer *peer, uint32_t qpn);
/* The QP's vb_shown_qp.received; 0: it has received nothing, or there is no such QP. */
uint32_t vb_peer_qp_received(const struct vb_peer *peer, uint32_t qpn);
/* The QP's vb_shown_qp.known; 0: none, or there is no such QP. */
uint32_t vb_peer_qp_known(const struct vb_peer *peer, uint32_t qpn);
/* Whether the QP shows that it was asked for a READ or atomic of this PSN and will not answer
 * (vb_shown_qp.stray). */
bool vb_peer_qp_dropped(const struct vb_peer *peer, uint32_t qpn, uint32_t psn);
/* The peer wrote rubbish: it goes down soon, as by a death.  Under its receive queue's rx; does not call
 * back itself. */
void vb_peer_insane(struct vb_peer *peer);
/* Says how many of the numbers of this network namespace are taken, and by which users: "4095 by user 12345".
 * Returns buf. */
const char *vb_numbers_say(char *buf, size_t size);
/* How many numbers it has, and the k-th, 0 behind the last; whether this is one of them. */
uint32_t vb_adapter_number_count(const struct vb_adapter *a);
uint32_t vb_adapter_number_at(const struct vb_adapter *a, uint32_t k);
bool vb_adapter_has_number(const struct vb_adapter *a, uint32_t number);
/* Peers by index: NULL where there is none.  What a poller reads through the pointer before it has
 * its lanes' locks stays valid: the wire's halves are not freed before the adapter is closed, and the peer's
 * mapping is not taken away but replaced (MAP_FIXED) by empty pages or by the next peer's segment. */
struct vb_peer *vb_peer_at(const struct vb_adapter *a, uint32_t index);
uint32_t vb_peer_count(const struct vb_adapter *a); /* indices in use are below this */

/* Membership: adapters that hold something together, a protection domain say, know of one another by abstract
 * names, which end with their processes.  `what`: its kind and which one, as names have it ("pd/00012345"),
 * of less than VB_MEMBER_NAME bytes.  vb_member_join() binds this adapter's; joining again counts.  0 or
 * errno. vb_member_count(): how often this adapter has joined.  vb_member_list(): the numbers of the other
 * members in *numbers (to be freed) and how many; 0 or errno. */
enum { VB_MEMBER_NAME = 48 };
int vb_member_join(struct vb_adapter *a, const char *what);
void vb_member_leave(struct vb_adapter *a, const char *what);
uint32_t vb_member_count(struct vb_adapter *a, const char *what);
int vb_member_list(struct vb_adapter *a, const char *what, uint32_t **numbers, uint32_t *count);

/* Multicast groups (host/groups.c).  A group's GID is two words here, as it stands in memory; 16 bytes of
 * zero are none.  vb_group_show(): shows the group to peers, at the index that is returned, VB_MAX_MCAST_GRP:
 * there is no room; one thread at a time, as vb_group_hide().  vb_peer_shows_group(): whether a peer that is
 * UP does, this adapter itself being one. */
uint32_t vb_group_show(struct vb_adapter *a, const uint64_t mgid[2]);
void vb_group_hide(struct vb_adapter *a, uint32_t index);
bool vb_peer_shows_group(const struct vb_peer *peer, const uint64_t mgid[2]);
/* vb_groups_stir(): has all peers, and this adapter, look at the groups again; without locks.
 * vb_groups_stirs(): counts how often this adapter was told so.  Who reads it, then looks at its peers, and
 * reads it again, has missed nothing if it has not changed. */
void vb_groups_stir(struct vb_adapter *a);
uint32_t vb_groups_stirs(const struct vb_adapter *a);

/* Progress roles.  VB_SPINS polls are polling: within a millisecond where the word says asleep, and then
 * between two looks of the engine. */
enum { VB_SPINS = 16 };
struct vb_presence {
	_Atomic uint32_t polls;	 /* pollers add; the engine compares every 10 ms */
	_Atomic uint32_t armed;	 /* CQs armed: while > 0 it takes more polls to be a poller */
	_Atomic uint32_t spins;	 /* polls since the word became asleep: few of them are no polling yet */
	_Atomic uint64_t spun;	 /* when the first of them was */
	_Atomic uint32_t *awake; /* our word in the segment */
	_Atomic uint32_t *told; /* in the segment: `polls` as peers see it, which pollers tell now and then */
	struct vb_set *hints;	/* from peers: indices of those that left packets in cold rings */
};
struct vb_presence *vb_adapter_presence(struct vb_adapter *a);
/* A poller found the word at asleep: sets it to polling and has the engine watch. */
void vb_adapter_wake(struct vb_adapter *a);
/* A CQ was armed (the word becomes asleep at once, and rings are looked at once more, by ops->progress in
 * this thread: no lock may be held) or fired/disarmed. */
void vb_adapter_arm(struct vb_adapter *a);
void vb_adapter_disarm(struct vb_adapter *a);
/* After EINTR: whether all handlers of signals that this thread does not block ask for restarting
 * (SA_RESTART), as the read() that programs expect in a wait's place would. */
bool vb_wait_restarts(void);
/* Blocks until `fd` is readable, or its own progress in the engine's place has made *come true (which it may
 * be from the beginning).  Returns 0, or errno of a wait that failed (EINTR, unless every handler of a signal
 * that this thread does not block asks for restarting; EIO: the adapter is lost; ETIMEDOUT: it is `until`,
 * VB_NEVER: that never comes).  A cancellation point.  For ibv_get_cq_event on a blocking channel. */
int vb_adapter_wait(struct vb_adapter *a, int fd, const bool *come, uint64_t until);
/* Before a thread asks a peer something and then waits for the answer: nobody need ring for it.  false: other
 * threads count on bells. */
bool vb_adapter_expect(struct vb_adapter *a);
/* After that, and before the wait: looks for packets without a pause until *come or *there is true, or it is
 * `until`.  For an answer that comes sooner than a thread falls asleep and is woken. */
void vb_adapter_look_out(struct vb_adapter *a, const bool *come, const _Atomic bool *there, uint64_t until);
/* Blocks until `fd` is readable and leaves progress to the engine; returns what vb_adapter_wait() does.  A
 * cancellation point.  For ibv_get_async_event. */
int vb_adapter_await(struct vb_adapter *a, int fd);
/* For a poller that has found nothing for long: gives its CPU to whoever it waits for, which may be this very
 * process's engine.  false: that one was late, and the thread slept for it.  No cancellation point. */
bool vb_adapter_yield(struct vb_adapter *a);
/* Has the engine look at timers and owed output soon (for instance because something was posted while nobody
 * polls). */
void vb_adapter_nudge(struct vb_adapter *a);
/* Has the engine look at output that waits for room, unless it calls itself: its timers know of that. */
void vb_adapter_resume(struct vb_adapter *a);
/* The engine is to look at its timers at that time, if not before.  Any thread, under any locks. */
void vb_adapter_due(struct vb_adapter *a, uint64_t when);
/* In a forked child: closes the adapter's descriptors, unmaps nothing, and leaves the adapter dead. */
void vb_adapter_forked(struct vb_adapter *a);
bool vb_adapter_dead(const struct vb_adapter *a);

#endif
