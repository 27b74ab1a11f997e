/* Identifiers of rdma_cm from inside: shared by the files id*.c, channel.c, addr*.c and join.c.
 *
 * An id is guarded by vb_cm_ids_lock (cm/below.h), but for what is said to be set once.  A call of the
 * program looks an id's state up in the table of id_state.c before it does anything. */
#ifndef VB_CM_ID_H
#define VB_CM_ID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/own.h"
#include "base/text.h"
#include "cm/api.h"
#include "cm/below.h"
#include "iba/limits.h"

/* ---- states (id_state.c) ---- */

enum vb_cm_id_state {
	VB_ID_IDLE,
	VB_ID_BOUND,	      /* a local address and port */
	VB_ID_ADDR_RESOLVED,  /* a destination, and a device */
	VB_ID_ROUTE_RESOLVED, /* a path to it */
	VB_ID_LISTENING,
	VB_ID_CONNECTING,   /* active: REQ or SIDR_REQ is out */
	VB_ID_ANSWERED,	    /* active: a REP came, which establish or reject answers */
	VB_ID_REQUESTED,    /* passive: a REQ or SIDR_REQ came, which accept or reject answers */
	VB_ID_ACCEPTED,	    /* passive: REP is out */
	VB_ID_CONNECTED,    /* UD: the lookup has its answer */
	VB_ID_DISCONNECTED, /* it was connected; TIMEWAIT may run */
	VB_ID_FAILED,	    /* it never will be: rejected, unreachable */
	VB_ID_REMOVED,	    /* the device is lost */
	VB_ID_STATES
};

enum vb_cm_id_call {
	VB_ID_CALL_BIND,
	VB_ID_CALL_RESOLVE_ADDR,
	VB_ID_CALL_RESOLVE_ROUTE,
	VB_ID_CALL_SET_PATH, /* RDMA_OPTION_IB_PATH */
	VB_ID_CALL_LISTEN,
	VB_ID_CALL_CONNECT,
	VB_ID_CALL_ESTABLISH,
	VB_ID_CALL_ACCEPT,
	VB_ID_CALL_REJECT,
	VB_ID_CALL_DISCONNECT,
	VB_ID_CALL_NOTIFY,
	VB_ID_CALL_JOIN,
	VB_ID_CALLS
};

/* 0, EINVAL: not in that state, ENODEV: the device is lost. */
int vb_cm_state_permits(enum vb_cm_id_state s, enum vb_cm_id_call call);
/* What is to be called first, or instead of a call that the state does not permit, as a clause. */
const char *vb_cm_id_instead(enum vb_cm_id_state s, enum vb_cm_id_call call);
const char *vb_cm_id_state_name(enum vb_cm_id_state s);
/* Why it is VB_ID_FAILED, as the end of a sentence: a colon and an event; else nothing. */
struct vb_cm_id;
enum { VB_CM_FAILURE = 64 };
const char *vb_cm_id_failure(const struct vb_cm_id *id, char buf[VB_CM_FAILURE]);
const char *vb_cm_id_call_name(enum vb_cm_id_call call); /* the program's */
const char *vb_cm_event_name(unsigned event);		 /* without RDMA_CM_EVENT_; of VB_CM_EVENTS */

/* ---- what both ends have agreed upon (id_param.c, id_attr.c: pure) ---- */

/* A connection's numbers, of this end where nothing else is said. */
struct vb_cm_deal {
	bool known;			/* the far end's are: RTR is possible */
	uint32_t local_psn, remote_psn; /* what the far end begins to send with; what this one does */
	uint32_t remote_qpn;
	uint8_t responder_resources, initiator_depth;
	uint8_t retry_count, rnr_retry_count; /* of this end's requester */
	uint8_t path_mtu;
	uint8_t timeout; /* Local ACK Timeout, a code */
	uint8_t pkey_index;
	struct ibv_ah_attr ah;
};

/* The least Local ACK Timeout for a path of that lifetime to a port with that delay (IBTA 12.7.34): twice the
 * one and once the other, as codes. */
uint8_t vb_cm_ack_timeout(uint8_t ack_delay, uint8_t life_time);

/* What a device can do, and the depths that follow from what both ends want. */
struct vb_cm_depths {
	uint8_t responder_resources, initiator_depth;
};
/* What a REQ asks for: 0xff is as many as there are.  0; EINVAL: more than there are. */
int vb_cm_depths_ask(const struct vb_cm_param *p, uint8_t max, struct vb_cm_depths *out);
/* What a REP grants of what the REQ asked for (`asked`: as the REQ has it). */
int vb_cm_depths_grant(const struct vb_cm_param *p, uint8_t max, const struct vb_cm_depths *asked,
		       struct vb_cm_depths *out);
/* What is left of what this end asked for, by what the REP says. */
void vb_cm_depths_settle(const struct vb_cm_depths *asked, const struct vb_cm_rep *rep,
			 struct vb_cm_depths *out);

/* Whether a port space and type go together; *type: the type that the port space means. */
bool vb_cm_type_fits(enum rdma_port_space ps, enum ibv_qp_type *type);
/* The type of REQ's transport service, from the passive end; -1: none. */
int vb_cm_type_of_req(const struct vb_cm_req *req);
void vb_cm_req_set_type(struct vb_cm_req *req, enum ibv_qp_type type);

/* Private data of a REQ or SIDR_REQ: the header, unless `ip` is NULL, and behind it the user's.  0; EINVAL:
 * too long for the message. */
int vb_cm_wrap(uint16_t kind, const struct vb_cm_ip *ip, const void *data, size_t len,
	       uint8_t buf[VB_CM_PRIVATE_MAX], struct vb_cm_private *out);
/* The other way round: what the user gets of the message. */
struct vb_cm_private vb_cm_unwrap(const struct vb_cm_msg *m, bool ip);

/* What events tell of messages; private data is the caller's matter. */
void vb_cm_news_of_req(struct rdma_conn_param *out, const struct vb_cm_req *req);
void vb_cm_news_of_rep(struct rdma_conn_param *out, const struct vb_cm_rep *rep, enum ibv_qp_type type);
void vb_cm_news_data(struct vb_cm_news *n, struct vb_cm_private data);

/* A path as REQ has it, and back. */
void vb_cm_req_path(struct vb_cm_path *out, const struct ibv_sa_path_rec *path, uint8_t ack_timeout);
void vb_cm_ah_of_path(struct ibv_ah_attr *out, const struct ibv_sa_path_rec *path, uint8_t sgid_index,
		      bool infiniband);
void vb_cm_ah_of_req(struct ibv_ah_attr *out, const struct vb_cm_path *path, uint8_t sgid_index,
		     bool infiniband);
void vb_cm_av_of_path(struct vb_cm_av *out, const struct ibv_sa_path_rec *path);

/* Attributes for attr->qp_state: 0; EINVAL: nothing is known for that state yet, or it is none of the three.
 */
int vb_cm_attr(enum ibv_qp_type type, const struct vb_cm_deal *deal, bool connected, uint32_t qkey,
	       struct ibv_qp_attr *attr, int *mask);

/* ---- addresses (addr_sock.c: pure) ---- */

#ifndef AF_IB
#define AF_IB 27
#endif

/* The bytes that an address of its family has; 0: no such family. */
size_t vb_cm_sock_size(const struct sockaddr *a);
bool vb_cm_sock_any(const struct sockaddr *a); /* a wildcard */
bool vb_cm_sock_linklocal(const struct sockaddr *a);
uint16_t vb_cm_sock_port(const struct sockaddr *a);
void vb_cm_sock_set_port(struct sockaddr_storage *a, uint16_t port);
/* As a GID; a wildcard is all zero. */
void vb_cm_sock_gid(const struct sockaddr *a, uint8_t gid[16]);
/* An address of that family (AF_INET, AF_INET6) made of a GID; keeps the port. */
void vb_cm_sock_of_gid(struct sockaddr_storage *a, int family, const uint8_t gid[16]);
/* The port space that an address of AF_IB is of: by its service ID.  0: by none that is known. */
uint16_t vb_cm_sock_space(const struct sockaddr *a, enum rdma_port_space own);
/* The header of private data between two addresses. */
void vb_cm_sock_ip(struct vb_cm_ip *out, const struct sockaddr *src, const struct sockaddr *dst);
void vb_cm_sock_of_ip(const struct vb_cm_ip *ip, uint16_t local_port, struct sockaddr_storage *local,
		      struct sockaddr_storage *remote);
void vb_cm_sock_set_service(struct sockaddr_storage *a, uint64_t service_id); /* of AF_IB */
/* What to bind. */
void vb_cm_sock_name(struct vb_port_name *n, const struct sockaddr *a, enum rdma_port_space own);
uint64_t vb_cm_sock_service(const struct sockaddr *a, enum rdma_port_space own);
/* "10.0.0.1 port 7471" for a sentence. */
void vb_cm_sock_add(struct vb_text *t, const struct sockaddr *a);
/* Whether a listener at `own` takes what was sent to ip->dst. */
bool vb_cm_sock_takes(const struct sockaddr *own, bool afonly, const struct vb_cm_ip *ip);

/* ---- the id ---- */

enum { VB_CM_MRA_CODE = 24, VB_CM_RESPONSE_CODE = 20, VB_CM_RETRIES = 15, VB_CM_BACKLOG = 1024 };
enum { VB_CM_EXACTLY = 2 };    /* a selector of path records (15.2.5.16) */
enum { VB_CM_LIFE_TIME = 18 }; /* of packets: what the kernel assumes of RoCE, for want of an SA */
enum { VB_CM_GROUP_QPN = 0xffffff, VB_CM_IPOIB_QKEY = 0x0b1b };
/* Events that a connection can bring about without a call: an answer, the end, TIMEWAIT_EXIT, DEVICE_REMOVAL.
 */
enum { VB_CM_SPARE = 4 };
enum { VB_CM_EVENTS = 20 }; /* those that newer headers have after TIMEWAIT_EXIT (15) included */

/* An event that is or will be in a channel's queue. */
struct vb_cm_item {
	struct vb_list on_channel, on_id; /* on_id: of the id, among its undelivered or its spare ones */
	struct vb_cm_join *join;	  /* multicast: whose event it is; else NULL */
	struct vb_cm_news news;
};

struct vb_cm_channel {
	struct vb_list items;	/* undelivered ones, in order */
	struct vb_list ringing; /* in the list of those with tokens to write */
	uint32_t tokens;	/* to be written */
	uint32_t writers;	/* threads that are about to */
	uint32_t debt;		/* tokens of events that were taken back while a reader held them */
	uint32_t ids;
	uint32_t birth; /* which process it is of; set once */
	/* How often it was closed: the same memory is another channel then.  Who holds the lock writes it,
	 * and who waits reads it. */
	_Atomic uint32_t lives;
	struct vb_list on_all;
	bool sync;	     /* a synchronous id's own */
	_Atomic bool filled; /* there are items; written under the lock */
	/* An eventfd that counts; -1: closed; -2: by the program, and the number is another channel's.
	 * Who holds the lock writes it, and who writes tokens or waits reads it. */
	_Atomic int fd;
	struct vb_own own;
	struct vb_own_set in; /* of which it is a member */
};

struct vb_cm_join {
	struct vb_list node;
	struct sockaddr_storage addr;
	uint32_t delivered;
};

struct vb_cm_id {
	struct vb_list on_all, on_listeners;
	struct vb_list on_changed; /* what is shown of it (show.c) is not what it is now */
	int place;		   /* where that is; -1: nowhere */
	struct vb_cm_channel *channel;
	void *user;
	uint32_t birth;		 /* which process it is of; set once */
	enum rdma_port_space ps; /* set once, as is the next */
	enum ibv_qp_type type;
	enum vb_cm_id_state state;
	struct vb_cm_device *device;	  /* NULL: none yet */
	struct vb_port *port;		  /* NULL: none, or the listener's */
	bool working;			  /* a call is at work that had to give the lock back */
	struct sockaddr_storage src, dst; /* as the program and the far end have them; family 0: none */
	/* options */
	uint8_t tos, ack_timeout;
	bool tos_set, ack_set, reuse, afonly, afonly_set;
	/* a path */
	struct ibv_sa_path_rec path;
	uint8_t sgid_index;
	/* a connection */
	struct vb_cm_conn *conn; /* NULL: none */
	struct vb_cm_deal deal;
	struct vb_cm_depths asked; /* passive: by the REQ; active: by this end */
	uint32_t qpn, qkey;
	bool srq;
	bool passive; /* a request brought it about */
	/* Why the message that has waited since then (struct vb_cm_awaited) got no answer when that was last
	 * looked at; and of which kind of message (enum vb_cm_kind) the log has said so. */
	struct vb_reach_facts silence;
	uint64_t silence_of;
	uint16_t told;
	/* VB_ID_FAILED: the event that tells so, and its status; 0: none does, the program rejected it */
	enum rdma_cm_event_type failed_by;
	int failed_status;
	bool wrapped; /* passive: the request had a header of addresses */
	/* a listener */
	struct vb_cm_conn *listens[VB_MAX_DEVICES];
	uint32_t backlog, waiting; /* CONNECT_REQUESTs that may be, and that are undelivered */
	/* events */
	struct vb_list undelivered, spare; /* of vb_cm_item.on_id */
	uint16_t queued[VB_CM_EVENTS];	   /* undelivered, by event */
	uint16_t unacked[VB_CM_EVENTS];	   /* delivered, and not acknowledged */
	/* of events, and of calls that move it to another channel */
	uint32_t delivered, migrations;
	uint32_t acked, migrated; /* as many are done with it; guarded by the mutex of channel.c */
	bool ends;		  /* vb_cm_id_end() is at work */
	struct vb_list joins;
};

/* id.c */
const struct vb_cm_below *vb_cm_below(void);
uint32_t vb_cm_birth(void); /* another number in each process, as fork() goes */
/* Takes the lock for a call on an id; EIO: that is of a forked child's parent, and the lock is not held.
 * Another thread's call that has given the lock back is waited for.  Pairs with vb_cm_ids_leave(). */
int vb_cm_id_hold(struct vb_cm_id *id, const char *call);
/* The same, for a call that leaves something with the id; EINVAL, which is said: another thread is destroying
 * it, and waits for the event that this one has taken. */
int vb_cm_id_use(struct vb_cm_id *id, const char *call);
/* The same, unless the state does not permit the call, which is said. */
int vb_cm_id_enter(struct vb_cm_id *id, enum vb_cm_id_call call);
/* The same, for a call that then gives the lock back to ask below, and has the id for itself until
 * vb_cm_id_worked(): both return without the lock. */
int vb_cm_id_work(struct vb_cm_id *id, enum vb_cm_id_call call);
void vb_cm_id_worked(struct vb_cm_id *id);
struct vb_cm_id *vb_cm_id_make(struct vb_cm_channel *c, void *user, enum rdma_port_space ps,
			       enum ibv_qp_type type);
/* Has nobody know the id any more, and leaves its memory to vb_cm_id_free().  Under the lock. */
void vb_cm_id_undo(struct vb_cm_id *id);
void vb_cm_id_free(struct vb_cm_id *id);
/* Calls look() with each id.  Under the lock. */
void vb_cm_ids_each(void (*look)(struct vb_cm_id *id, void *with), void *with);
/* Those that listen. */
void vb_cm_listeners_each(void (*look)(struct vb_cm_id *id, void *with), void *with);
void vb_cm_listeners_add(struct vb_cm_id *id);
/* A device at work: vb_cm_device_open() has it so, 0 or errno, without the lock, so that it may be lost by
 * the time that the lock is taken; vb_cm_device_at(): NULL: it is not; under the lock. */
int vb_cm_device_open(uint32_t index, struct vb_cm_device **out);
struct vb_cm_device *vb_cm_device_at(uint32_t index);

/* What channel.c has; it is called under the lock where nothing else is said. */
/* Room for n further events that must not fail for want of memory: 0 or ENOMEM. */
int vb_cm_items_reserve(struct vb_cm_id *id, unsigned n);
/* A fresh event of the id; from its spare ones, else from memory; NULL: there is none. */
struct vb_cm_item *vb_cm_item_new(struct vb_cm_id *id, enum rdma_cm_event_type event, int status);
void vb_cm_item_post(struct vb_cm_item *it);
/* An event without more to it; of no memory it is lost, which the caller has ruled out by reserving. */
void vb_cm_id_say(struct vb_cm_id *id, enum rdma_cm_event_type event, int status);
/* Takes back all undelivered events, those of a join only if it is not NULL; connections that were not
 * delivered are put on `orphans` by their on_all. */
void vb_cm_items_drop(struct vb_cm_id *id, const struct vb_cm_join *join, struct vb_list *orphans);
/* Before this thread sends what is answered at once, and then most likely waits for the event. */
void vb_cm_channel_expect(struct vb_cm_channel *c, struct vb_cm_device *d);
void vb_cm_channel_ring(void); /* gives the lock back, writes, and returns without it */
void vb_cm_channels_forked(void);
/* Without the lock: waits until so many events of the id are acknowledged, and so many migrations done with
 * it.
 */
void vb_cm_acks_await(struct vb_cm_id *id, uint32_t delivered, uint32_t migrations);

/* id_why.c: why there is no connection, in a sentence. */
/* `gone`: nobody has said so, but the far end's process is gone, as that clause says; else NULL. */
void vb_cm_id_why_rejected(const struct vb_cm_id *id, uint16_t reason, const char *gone);
/* The far end accepted, and has no queue pair. */
void vb_cm_id_why_no_qp(const struct vb_cm_id *id);
/* The same at the end that accepted. */
void vb_cm_id_why_no_qp_here(const struct vb_cm_id *id);
void vb_cm_id_why_sidr(const struct vb_cm_id *id, uint8_t status, const char *gone);
/* `event` tells the program that a message of this kind was said so often in vain. */
void vb_cm_id_why_unanswered(const struct vb_cm_id *id, enum rdma_cm_event_type event, uint16_t kind,
			     uint8_t said);
/* What answers a message, and what the program at the far end has not done if no answer comes; NULL: nothing
 * answers it. */
struct vb_cm_answer {
	uint16_t kind; /* enum vb_cm_kind */
	const char *sent, *answer, *missing;
};
const struct vb_cm_answer *vb_cm_answer_to(uint16_t kind);
/* A call waits for an event of a synchronous id, the channel's, for so long: says for what, if that is the
 * far end's answer.  Without the lock. */
void vb_cm_say_awaited(const struct vb_cm_channel *c, uint64_t waited);
void vb_cm_why_address(char *text, size_t size, const struct sockaddr *addr); /* one that is not to be had */
void vb_cm_id_why_no_way(const struct sockaddr *dst, int err);

/* show.c; under the lock.  The id is another one than what tools see of it; they will when the lock is given
 * back. */
void vb_cm_show(struct vb_cm_id *id);
/* A new one is shown from now on; one that is about to go is not any more. */
void vb_cm_show_first(struct vb_cm_id *id);
void vb_cm_unshow(struct vb_cm_id *id);
/* Writes what has changed; false: nothing has. */
bool vb_cm_shown_flush(void);
/* A device comes or goes in whose table ids may be shown.  use(): true: they are from now on, all of them.
 * leave(): true: they were. */
bool vb_cm_board_use(const struct vb_shown_ids *at);
bool vb_cm_board_leave(const struct vb_shown_ids *at);
void vb_cm_board_forked(void);

/* cancel.c: around what a thread may be cancelled in; without locks. */
void vb_cm_wait_begin(void);
void vb_cm_wait_end(void);

/* addr.c; under vb_cm_id_work() */
/* Takes an address and a port for an id that is idle: 0 or errno. */
int vb_cm_id_take(struct vb_cm_id *id, const struct sockaddr *addr);
/* EADDRINUSE, with the process that has the port; without the lock. */
int vb_cm_refuse_port(int err, const char *call, const struct vb_port_name *name, const char *more);

#endif
