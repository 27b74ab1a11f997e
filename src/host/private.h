/* The adapter from inside: shared by the files of host/.
 *
 * There are three locks:
 * - `control` (a mutex) is held by the thread that handles control sockets, the engine or a waiter, also
 * while it calls the upper layer's peer_up and peer_down.
 * - `peers_lock` (a spin lock) guards the tables of links, and is held over memory accesses only.
 * - `qpn_lock` (a mutex) guards the allocation of QP numbers and other names.
 *
 * Order: vb_host_lock, control, qpn_lock, then vb_segments_lock (a mutex, a leaf among these); then peer->rx;
 * then peers_lock; nothing else is called with peers_lock held. */
#ifndef VB_HOST_PRIVATE_H
#define VB_HOST_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/own.h"
#include "base/set.h"
#include "host/adapter.h"
#include "host/segment.h"

/* A mapping of our own segment. Adapters of one process share it: two adapters over one mapping. */
struct vb_segment {
	struct vb_list node; /* in the process's list; guarded by vb_segments_lock */
	uint32_t refs; /* of the adapter and of links of this process to it; guarded by that lock, too */
	uint8_t *base;
	uint64_t incarnation;
	int fd; /* the memfd; -1 once its adapter is closed */
	struct vb_own own;
	struct vb_set *hints; /* from peers; a mapping of hints_fd */
	int hints_fd;	      /* goes with fd */
	struct vb_own hints_own;
};

/* The object that an epoll event points to. */
enum source_kind { SRC_LISTEN, SRC_SOCK, SRC_PID, SRC_MEMBERS, SRC_NETWORK, SRC_ROCE, SRC_INLET };
struct source {
	enum source_kind kind;
};

enum { VB_BACKLOG = 1024 }; /* of a listening socket */

/* One adapter number that we hold. */
struct number {
	struct source src; /* first */
	uint32_t number;
	int sock;		      /* listening */
	struct vb_own own;	      /* it */
	_Atomic(struct vb_qp *) *qps; /* [VB_QPN_INDICES] */
};

/* The free numbers of one kind (QPs, SRQs), each an index of an adapter number of ours, as a queue: the
 * number that was freed first is used first.  Guarded by qpn_lock. */
struct free_numbers {
	uint32_t *queue;
	uint32_t head, count, size;
	uint32_t
	    reach; /* how many of our adapter numbers have their indices in the queue, or allocated from it */
};

enum conn_state {
	CONN_NEW,   /* accepted: the peer speaks first */
	CONN_ASKED, /* we connected and said hello */
	CONN_UP,    /* both have */
	CONN_DEAD,  /* closed; freed at the end of the batch of events */
};

/* A control connection; guarded by `control`. */
struct conn {
	struct vb_list node; /* adapter's conns, or its dead ones */
	struct source on_sock, on_pid;
	enum conn_state state;
	int sock, pidfd;
	uint64_t since;	   /* when it was made */
	struct vb_own own; /* sock */
	uint32_t pid;	   /* of the peer, 0: in another PID namespace */
	bool bye;	   /* the peer said goodbye */
	bool unable;	   /* the peer could not set up the link, and sent that: `bye`, too */
	bool broken;	   /* the peer closed the link because of a malformed message from here */
	struct peer *peer; /* NULL while NEW */
};

/* A peer, with the parts that are private to host/. */
struct peer {
	struct vb_peer pub;	  /* first */
	struct conn *conn;	  /* guarded by control */
	struct vb_own own;	  /* pub.sock; set with it */
	uint8_t *window;	  /* address range for segments of other processes, NULL: none; under control.
				     Once the peer is not UP, the next one that comes UP takes it */
	struct vb_set *hints;	  /* the same for their hints; kept for life */
	struct vb_segment *seg;	  /* peer of this process: its mapping */
	struct peer *same;	  /* the peer turned out to have this link; guarded by peers_lock */
	_Atomic uint32_t ringing; /* threads that are about to use pub.sock */
	_Atomic uint64_t rung;	  /* what bells_of() the peer was before the last bell, plus 1; 0: not rung */
	_Atomic bool broken;	  /* vb_peer_insane() */
	_Atomic uint64_t began;	  /* when contact was first wanted, 0: not, or it is made */
	struct vb_reach_facts trouble; /* of the last attempt at contact; guarded by peers_lock */
	_Atomic uint32_t unable;       /* process that had no room for our segment, 0: none; under control */
	_Atomic uint64_t
	    crowd_seen;		/* when it was looked whether an engine waits for a CPU, and what was seen */
	_Atomic uint32_t calm;	/* number of successive looks that found no such engine */
	uint64_t sought;	/* when its number was last searched for; under control */
	uint64_t told;		/* incarnation whose segment was logged as not mapped; under control */
	_Atomic uint32_t asked; /* process that has our hello but has not answered, 0: none; under control */
	bool want;		/* contact is to be made; guarded by peers_lock */
	bool over;		/* DOWN, and nothing of it is left; guarded by peers_lock */
	bool lives;		/* over, but its process may run; under control until it is over */
	bool used;		/* the rings may have been written to; guarded by peers_lock */
	uint64_t next_try;	/* no contact before; guarded by peers_lock */
	struct vb_list free_node; /* guarded by peers_lock */
};

struct vb_adapter {
	const struct vb_adapter_ops *ops;
	const struct vb_wire *wire;
	void *user;
	struct vb_list node; /* in the process's list; guarded by vb_host_lock */
	struct vb_segment *seg;
	struct vb_seg_head *head; /* at seg->base */
	uint32_t pid;		  /* of the process that opened it */
	_Atomic bool dead;	  /* we are a forked child */
	/* QP and SRQ numbers */
	pthread_mutex_t qpn_lock; /* guards members, too */
	struct vb_list members;	  /* names of what is held together with other adapters (member.c) */
	struct number numbers[VB_ADAPTER_NUMBERS]; /* appended under qpn_lock */
	_Atomic uint32_t nnumbers;
	struct free_numbers free_qpns, free_srqns; /* each kind has all indices of every number for itself */
	vb_qpn_rests_fn *qpn_rests;		   /* NULL: none does; guarded by qpn_lock, as is the next */
	void *qpn_user;
	_Atomic uint8_t slot_of[VB_ADAPTERS]; /* number -> index in numbers + 1 */
	/* peers */
	struct vb_lock peers_lock;
	_Atomic(struct peer *) peers[VB_MAX_PEERS];
	_Atomic uint32_t npeers;
	uint16_t by_number[VB_ADAPTERS]; /* the peer's index + 1; guarded by peers_lock */
	struct vb_list free_peers;	 /* indices to use again, latest first; guarded by peers_lock */
	/* control sockets */
	pthread_mutex_t control;
	int ctl; /* epoll of listening and control sockets and pidfds */
	/* The buffer for control sockets and `network`; under control.  It is not on the stack, since the
	 * program's threads, which may have small stacks, read as the engine does. */
	_Alignas(16) uint8_t inbox[8192];
	struct vb_list conns, dead_conns;
	struct vb_list stuck_conns;    /* dead ones that the set may still point to */
	uint32_t nconns_new;	       /* accepted, no hello yet */
	_Atomic uint64_t accept_again; /* accepting pauses until then, 0: it does not */
	uint32_t listens_as;	       /* the user whom the listening sockets show; the engine's */
	uint64_t looked;	       /* when other network namespaces were last searched */
	uint64_t told_version; /* PID and version of the last one of another version that was told of */
	bool told_uid, told_fds, told_stranger; /* logged once */
	struct source on_members;		/* all members' names */
	struct source on_network;		/* `network` */
	struct source on_roce;			/* the door of `roce` */
	struct vb_roce *roce;			/* NULL: none */
	int network;				/* netlink socket, -1: there is none; under control */
	struct vb_own network_own;
	_Atomic bool members_wait; /* a process is connected to one of them; contact must check */
	struct vb_list inlets;	   /* set before the adapter runs */
	/* the engine and the waiters */
	struct vb_presence presence;
	pthread_t engine;
	bool engine_started;
	int kick;		     /* eventfd */
	struct vb_own shared_inode;  /* that of all eventfds */
	_Atomic bool lost;	     /* the program closed descriptors of ours */
	bool settled;		     /* and all contexts and peers were notified; guarded by control */
	_Atomic uint32_t lost_kicks; /* what the engine blocks on from then on */
	_Atomic bool stop;
	_Atomic bool nudged;	   /* look at everything before blocking */
	_Atomic bool woken;	   /* a poller has come */
	_Atomic bool dozing;	   /* the engine is about to block for long: kick it to be heard */
	_Atomic bool parked;	   /* the engine leaves the doorbells to waiters, and blocks for long */
	_Atomic bool contact_work; /* some link wants contact */
	_Atomic bool breaks;	   /* some link is broken */
	_Atomic uint32_t waiters;  /* threads in vb_adapter_wait() */
	_Atomic uint32_t events;   /* doorbells handled so far */
	_Atomic uint32_t rounds;   /* in which the engine looked at everything; it writes */
	_Atomic uint64_t wakes;	   /* when the engine runs again by itself; it writes */
	_Atomic uint32_t nowhere, no_polls; /* what presence.awake and .told point to in a forked child */
	struct vb_set no_hints;		    /* the same for presence.hints */
};

static inline struct peer *peer_of(struct vb_peer *peer)
{
	return (struct peer *)peer;
}

/* In a segment: where the ring stands that belongs to a peer's lane, with what belongs to the ring; how far
 * it has been read; and whether it is cold. */
static inline uint32_t ring_index(uint32_t peer_index, uint32_t lane)
{
	return peer_index * VB_LANES + lane;
}

static inline _Atomic uint32_t *consumed_of(const uint8_t *base, uint32_t ring)
{
	return &((struct vb_consumed *)(base + VB_SEG_CONSUMED))[ring].slots;
}

static inline _Atomic uint32_t *cold_of(const uint8_t *base, uint32_t ring)
{
	return &((struct vb_cold *)(base + VB_SEG_COLD))[ring].is;
}

/* In a segment: what it says of that peer once its owner looks at what the peer announces, which is
 * token_of() its incarnation, never 0. */
static inline _Atomic uint32_t *heard_of(const uint8_t *base, uint32_t peer_index)
{
	return &((struct vb_consumed *)(base + VB_SEG_CONSUMED))[ring_index(peer_index, 0)].heard;
}

/* In a segment: how often its owner has read that peer's bells. */
static inline _Atomic uint32_t *bells_of(const uint8_t *base, uint32_t peer_index)
{
	return &((struct vb_consumed *)(base + VB_SEG_CONSUMED))[ring_index(peer_index, 0)].bells;
}

static inline uint32_t token_of(uint64_t incarnation)
{
	return (uint32_t)incarnation ? (uint32_t)incarnation : 1;
}

/* adapter.c */
extern pthread_mutex_t vb_host_lock; /* the list of adapters of this process */

/* memfd.c */
/* Whether a peer's memfd of that size can be mapped safely: 0, EPROTO (it cannot), or errno of a call that
 * failed, each with the reason in *why, and *t for the log of this end. */
int vb_file_check(int fd, uint64_t size, const char **why, struct vb_reach_facts *t);
/* A call failed although the file may be valid: its errno, with *why and *t. */
int vb_file_denied(struct vb_reach_facts *t, enum vb_reach_call call, const char **why);
/* As mmap(), from the beginning of the file.  If `at` is not NULL, the mapping atomically replaces the one
 * there, which stays if the call fails.  mlockall(MCL_FUTURE) neither populates nor locks it. */
void *vb_file_map(void *at, uint64_t size, int prot, int flags, int fd);

/* segment.c */
extern pthread_mutex_t vb_segments_lock; /* the list of segments of this process; for fork() only */
int vb_segment_make(struct vb_segment **out, uint64_t incarnation);
/* The mapping of this process's adapter with that incarnation; takes a reference.  NULL: none. */
struct vb_segment *vb_segment_find(uint64_t incarnation);
void vb_segment_put(struct vb_segment *s);
void vb_segment_close(struct vb_segment *s); /* its descriptors; what is mapped stays */
/* Maps a peer's memfd into *window (reserved if NULL) after checking it; 0 or errno (EPROTO: it is none),
 * with why not in *why, and *t for this end's sentence. */
int vb_segment_map(uint8_t **window, int fd, uint64_t incarnation, const char **why,
		   struct vb_reach_facts *t);
/* Unmaps the segment in a window; the addresses stay readable as zeros. */
void vb_segment_unmap(uint8_t *window);
void vb_segment_release(uint8_t *window);
/* Copies the list of numbers from a peer's memfd and returns their count.  0: it is not a segment, or this
 * process may not read it (*t says which). */
uint32_t vb_segment_numbers(int fd, uint32_t numbers[VB_ADAPTER_NUMBERS], struct vb_reach_facts *t);
/* The index of its first key, as the segment has it: not checked. */
uint32_t vb_segment_key_offset(const uint8_t *base);
bool vb_segment_lists(const uint8_t *base, uint32_t number);

/* hints.c: the memfd that peers write to */
int vb_hints_make(struct vb_segment *s); /* 0 or errno */
/* A peer's, as vb_segment_map(). */
int vb_hints_map(struct vb_set **window, int fd, const char **why, struct vb_reach_facts *t);
/* Unmaps the hints in a window; a late thread writes to memory of this process. */
void vb_hints_unmap(struct vb_set *window);
void vb_hints_release(struct vb_set *hints); /* NULL: nothing */

/* hello.c: messages before a link is up */
enum { HELLO_FDS = 2 }; /* the segment's memfd, then that of the hints */
struct hello;
struct heard;
/* 0 or errno; fds: NULL, or HELLO_FDS of them. */
int vb_hello_send(int sock, const struct hello *h, const int *fds);
void vb_hello_receive(int sock, struct heard *in); /* pairs with vb_hello_done() */
void vb_hello_done(struct heard *in);		   /* closes the descriptors that came along */

/* qpn.c */
int vb_number_bind(struct vb_adapter *a); /* under qpn_lock */
void vb_numbers_close(struct vb_adapter *a);
void vb_numbers_forked(void); /* in the child */

/* number.c; no cancellation points */
void vb_number_address(struct sockaddr_un *sa, socklen_t *len, uint32_t number);
/* A socket that is connected to the number's holder; the caller closes it.  -1: there is none, or this
 * process has no descriptor. */
int vb_number_connect(uint32_t number);
/* Connects and disconnects, so that the process that waits for connections there checks its descriptors
 * (own.c). */
void vb_number_poke(uint32_t number);

/* names.c: the owners of bound names, as the kernel shows them */
/* The user of each number (VB_ADAPTERS of them), plus 1; 0: the number is free.  The caller frees it.  NULL:
 * the kernel does not show them. */
int32_t *vb_numbers_owners(void);
/* Searches for a number at which no process answers here.  Sets *t if more is known (VB_REACH_DEAF or
 * _ELSEWHERE). false: not searched, since the last search was a moment ago.  Under control. */
bool vb_number_seek(struct vb_adapter *a, uint32_t number, struct vb_reach_facts *t);

/* member.c */
bool vb_members_accept(struct vb_adapter *a); /* takes qpn_lock; true: there may be more */
void vb_members_listen(
    struct vb_adapter *a);		     /* takes qpn_lock; names show this process's present user then */
void vb_members_close(struct vb_adapter *a); /* descriptors only, so that a forked child may call it */
void vb_members_free(struct vb_adapter *a);

/* peer.c */
struct peer *vb_peer_make(struct vb_adapter *a, uint32_t number, bool want);
int vb_peer_self(struct vb_adapter *a);
/* Under control: the peer's segment is at `base`, and these are its hints; makes the wire. */
int vb_peer_attach(struct peer *p, const uint8_t *base, struct vb_set *hints, uint32_t peer_index,
		   uint64_t incarnation);
/* Under control, as are the next two: state and callback. */
void vb_peer_rise(struct peer *p);
void vb_peer_failed(struct peer *p, bool tell);
void vb_peer_fall(struct peer *p, enum vb_peer_end how, const char *why);
/* Under peers_lock: the UP link whose peer publishes this number, NULL: none. */
struct peer *vb_peer_publishing(struct vb_adapter *a, uint32_t number);
/* Under control: the UP link whose peer has this incarnation, NULL: none. */
struct peer *vb_peer_by_incarnation(struct vb_adapter *a, uint64_t incarnation);
/* Frees the entries of unconnected numbers without references, but keeps a few, since their entries have the
 * reason why connecting failed.  Returns when to be called again.  Under `control`. */
uint64_t vb_peers_sweep(struct vb_adapter *a, uint64_t now);
/* Under control: gives p a window that no peer uses any more, if there is one. */
void vb_peer_take_window(struct peer *p);
/* Under control: unmaps a peer that is not UP. */
void vb_peer_unmap(struct peer *p);
void vb_peers_free(struct vb_adapter *a);

/* conn.c; under control */
int vb_conn_make(struct vb_adapter *a, struct conn **out, int sock, uint32_t pid, enum conn_state state,
		 struct vb_reach_facts *t);
void vb_conn_close(struct vb_adapter *a, struct conn *c);
bool vb_conn_read(struct vb_adapter *a, struct conn *c, bool dead);
/* Whether its pidfd is still in the set, which is ours; in a forked child, where no thread holds control. */
bool vb_conn_holds_pidfd(struct vb_adapter *a, struct conn *c);
void vb_conn_bye(struct conn *c);
void vb_conn_unable(struct conn *c);
void vb_conn_broken(struct conn *c);
bool vb_conn_is_ours(struct vb_adapter *a, struct conn *c); /* its socket; else the adapter is lost */
void vb_conns_bury(struct vb_adapter *a); /* frees those that are closed, with no event in hand */
void vb_conns_bye(struct vb_adapter *a);  /* takes control: goodbye to all, with other threads about */

/* gone.c: how a peer ended whose socket closed without a goodbye; under control */
enum vb_peer_end vb_conn_end(struct vb_adapter *a, const struct conn *c);

#define VB_CONTACT_AGAIN (10 * VB_MSEC) /* between two attempts at a number */

/* contact.c; under control */
bool vb_contact_hello(struct vb_adapter *a, struct conn *c, bool dead);
int vb_contact_say_hello(struct vb_adapter *a, struct conn *c, uint32_t index, uint32_t asked);
/* Whether ETOOMANYREFS, at either end, is retried.  The kernel counts the descriptors of a user that are in
 * flight through sockets.  A process may not send one if more are in flight than it may have open (unix(7)).
 * They arrive in a moment, unless a receiver does not read. */
bool vb_contact_passes(const struct peer *p, uint64_t now);
void vb_contact_alias(struct vb_adapter *a, struct peer *p,
		      struct peer *q);				  /* p's number leads to q's peer */
void vb_contact_trouble(struct peer *p, struct vb_reach_facts t); /* connecting to p failed: the reason */
void vb_contact_wanted(struct vb_adapter *a);			  /* the engine is to call vb_contact_run() */

/* connect.c; under control */
uint64_t vb_contact_run(struct vb_adapter *a, uint64_t now);
void vb_contact_accept(struct vb_adapter *a, struct number *n);
/* After setuid(): shows peers the new user of this process.  Takes control. */
void vb_contact_user(struct vb_adapter *a);

/* who.c */
/* Whether the process at the other end of a socket may connect to this one: 0 and its PID; else EACCES, or
 * errno of the call that failed, with the reason in *t. */
int vb_contact_may(int sock, uint32_t *pid, struct vb_reach_facts *t);
/* Logs that the connection of a process is refused because of *t. */
void vb_contact_tell_away(struct vb_adapter *a, const struct vb_reach_facts *t, uint32_t pid);
/* Logs that this process cannot connect, or accept connections, at present. */
void vb_contact_tell_lack(struct vb_adapter *a, const struct vb_reach_facts *t);
/* Logs that a process of this user has another version of Verbena: at both ends, since the user may look at
 * either. */
void vb_contact_tell_version(struct vb_adapter *a, uint32_t pid, uint16_t version);
/* Logs that a process of this user connected and did not follow the protocol: `what` it did. */
void vb_contact_tell_stranger(struct vb_adapter *a, uint32_t pid, const char *what);

/* watch.c: changes of interfaces and addresses */
void vb_watch_open(struct vb_adapter *a); /* it works without, too */
void vb_watch_close(struct vb_adapter *a);
void vb_watch_run(struct vb_adapter *a); /* under control */

/* control.c: takes control; returns whether rings must be checked */
bool vb_control_run(struct vb_adapter *a);

/* inlet.c */
void vb_inlets_arm(struct vb_adapter *a);		    /* the word has become asleep */
void vb_inlet_came(struct vb_adapter *a, struct source *s); /* an event; under control */
void vb_inlets_free(struct vb_adapter *a);

/* thread.c: threads of this or another process, as /proc shows them; 0 and false if it does not */
#define VB_ENGINE_NAME "verbena"
bool vb_thread_stopped(uint32_t pid); /* the whole process: by a signal or a debugger */
bool vb_thread_runnable(uint32_t pid, uint32_t tid);
uint32_t vb_thread_find(uint32_t pid, const char *name);

/* own.c */
/* Puts a descriptor into the epoll set; 0 or errno (EIO: the set is not ours any more). */
int vb_ctl_add(struct vb_adapter *a, int fd, uint32_t events, struct source *s);
bool vb_ctl_is_ours(const struct vb_adapter *a); /* any thread, with any lock, as the next ones */
/* In this thread, until NULL is given: before it blocks, and before it returns to the program. */
void vb_ctl_sure(const struct vb_adapter *a);
void vb_adapter_lose(struct vb_adapter *a); /* a descriptor of ours is gone: says so once */
void vb_lost_wake(struct vb_adapter *a);

/* lost.c: what becomes of a lost adapter */
void vb_lost_block(struct vb_adapter *a, uint64_t for_ns); /* the engine; vb_lost_wake() ends it */
void vb_lost_settle(struct vb_adapter *a); /* takes control: links end, QPs and waiters are told; once */

/* engine.c */
int vb_engine_start(struct vb_adapter *a);
void vb_engine_stop(struct vb_adapter *a);
void vb_engine_pay(struct vb_adapter *a); /* at exit: waits a little for pending packets to be sent */
/* Processes all packets; false: some are left that another thread is processing. */
bool vb_engine_drain(struct vb_adapter *a);

/* kick.c: waking the engine */
/* No cancellation point, since locks may be held.  Leaves errno as it was. */
void vb_kick_write(struct vb_adapter *a);
void vb_engine_kick(struct vb_adapter *a); /* the engine also looks at everything */
void vb_engine_enter(void);		   /* this thread is an engine from now on */
bool vb_engine_here(void);		   /* whether this thread is one */

#endif
