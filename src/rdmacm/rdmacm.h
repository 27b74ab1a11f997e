/* What the files of librdmacm share.  This library is thin: connections, listeners, names and timers are
 * libibverbs's (cm/api.h), where the adapter is.  Here are the public structs, waiting on behalf of
 * synchronous ids, and the objects that rdma_cm makes for programs: contexts, protection domains, queue
 * pairs, completion queues, SRQs.
 *
 * Functions return 0 or a positive errno unless they say otherwise.
 *
 * The public struct of an id is the program's as much as ours, so it has no lock but for its queue pair: as
 * in rdma_cm(7), an id is filled in by the call that binds it and by rdma_get_cm_event(), before the program
 * sees the event. */
#ifndef VB_RDMACM_RDMACM_H
#define VB_RDMACM_RDMACM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "cm/api.h"

_Static_assert(sizeof(struct rdma_cm_id) == 416, "programs allocate nothing of it, but read its fields");
_Static_assert(sizeof(struct rdma_cm_event) == 80, "read by programs");

#define VB_RDMA_NO_DEVICE                                                                         \
	"the id is not bound to a device; first call rdma_resolve_addr() and get its event with " \
	"rdma_get_cm_event(), "                                                                   \
	"or call rdma_bind_addr() with the address of an interface"
#define VB_RDMA_OTHER_CONTEXT "the protection domain belongs to another context than id->verbs"
#define VB_RDMA_NO_QUESTION   "node, service and hints are all NULL"

/* Enumerators and flags that newer headers have (RDMACM_1.4). */
enum {
	VB_RDMA_EVENT_ADDRINFO_RESOLVED = 16,
	VB_RDMA_EVENT_ADDRINFO_ERROR = 17,
	VB_RDMA_EVENT_USER = 18,
	VB_RDMA_EVENT_INTERNAL = 19,
};
enum { VB_RDMA_RAI_SA = 16, VB_RDMA_RAI_DNS = 32 };

/* Reasons of a REJ that this library gives (IBTA volume 1, 12.6.7.2). */
enum { VB_RDMA_REJ_CONSUMER = 28, VB_RDMA_REJ_VENDOR_OPTION = 35 };

/* One device that ids are bound to: opened on first use and kept, as rdma_get_devices(3) says. */
struct vb_rdma_device {
	struct vb_rdma_device *next;
	int index;		   /* vb_cm_device_index() */
	struct ibv_context *verbs; /* one for all ids */
	struct ibv_pd *pd;	   /* the default protection domain */
	struct ibv_xrcd *xrcd;	   /* for XRC without a domain of the program's; NULL: none was needed yet */
	uint8_t max_initiator_depth, max_responder_resources;
};

struct vb_rdma_channel {
	struct rdma_event_channel channel; /* the program's view */
	struct vb_cm_channel *cm;
	struct vb_rdma_channel *next; /* closed: in the list of events.c */
};

struct vb_rdma_mcast;
struct vb_rdma_lookup;

struct vb_rdma_id {
	struct rdma_cm_id id; /* the program's view */
	struct vb_cm_id *cm;
	_Atomic(struct vb_rdma_device *)
	    device;	     /* NULL: bound to none yet.  Set after what the id shows of it */
	unsigned forks;	     /* vb_rdma_forks() when it was made */
	bool sync;	     /* id.channel is its own, and calls wait */
	bool connect_failed; /* the program has had CONNECT_ERROR: what follows from it is no news */
	/* Of a request that came: what the far end asks for; then what was said in connect or accept. */
	uint8_t initiator_depth, responder_resources;
	struct ibv_ece local_ece, remote_ece; /* vendor_id 0: none */
	struct ibv_qp_init_attr *qp_attr;     /* for the QPs of a listener's connections (rdma_create_ep) */
	void *connect;			      /* goes before the private data of rdma_connect (ai_connect) */
	size_t connect_len;
	/* Made for the QP, and not shown any more since the XRC SRQ's have taken their place in the id.  They
	 * go with the QP. */
	struct ibv_cq *spare_cq;
	struct ibv_comp_channel *spare_channel;
	/* Guards the following, and keeps id.qp: whoever uses the queue pair holds it (vb_rdma_qp_hold()), so
	 * that another thread's rdma_destroy_qp() waits meanwhile. */
	pthread_mutex_t lock;
	struct vb_rdma_mcast *mcasts;
	uintptr_t joins;	       /* how many there were: the token of the latest */
	struct vb_rdma_lookup *lookup; /* of rdma_resolve_addrinfo() */
};

static inline struct vb_rdma_id *vb_rdma_id(struct rdma_cm_id *id)
{
	return (struct vb_rdma_id *)id;
}

static inline struct vb_rdma_channel *vb_rdma_channel(struct rdma_event_channel *c)
{
	return (struct vb_rdma_channel *)c;
}

/* strings.c */
/* "event 23" in buf of one that there is none of. */
const char *vb_rdma_event_name(unsigned event, char buf[24]);

/* addrinfo.c: bytes of a socket address of this family; 0: rdma_cm has none. */
socklen_t vb_rdma_addrlen(const struct sockaddr *addr);
/* The body of rdma_getaddrinfo(): 0, a code of getaddrinfo(3), or -1 and *err. */
int vb_rdma_addrinfo_find(const char *node, const char *service, const struct rdma_addrinfo *hints,
			  struct rdma_addrinfo **out, int *err);
/* A copy of one entry, to be freed by rdma_freeaddrinfo(); NULL: no memory. */
struct rdma_addrinfo *vb_rdma_addrinfo_copy(const struct rdma_addrinfo *from);
void vb_rdma_addrinfo_free(struct rdma_addrinfo *ai);

/* lookup.c */
/* The id is about to go: nothing that is being looked up will be heard of. */
void vb_rdma_lookup_end(struct vb_rdma_id *p);

/* device.c */
/* How often this process descends, by fork(), from one that had loaded this library. */
unsigned vb_rdma_forks(void);
int vb_rdma_device_get(int index, struct vb_rdma_device **out);
/* The device's own XRC domain, which has no name outside this process. */
int vb_rdma_device_xrcd(struct vb_rdma_device *d, struct ibv_xrcd **out);

/* events.c */
int vb_rdma_channel_open(struct vb_rdma_channel **out);
void vb_rdma_channel_close(struct vb_rdma_channel *c);
void vb_rdma_channels_forked(void); /* in the child */
int vb_rdma_event_get(struct vb_rdma_channel *c, struct rdma_cm_event **out);
/* Synchronous ids: acknowledges what id->event shows, then waits for the event that the call just made leads
 * to, which id->event shows until the next call.  0 for asynchronous ones: `sync` is p->sync as it was before
 * the call, since with the event another thread may have destroyed such an id by now. */
int vb_rdma_id_complete(struct vb_rdma_id *p, bool sync);
/* Acknowledges what id->event shows, if anything. */
void vb_rdma_id_ack(struct vb_rdma_id *p);

/* id.c */
/* channel NULL: synchronous, with a channel of its own.  cm: the id of a request that came, which belongs to
 * another channel so far, and stays the caller's if this fails; NULL: a new one. */
int vb_rdma_id_make(struct vb_rdma_id **out, struct rdma_event_channel *channel, void *context,
		    enum rdma_port_space ps, enum ibv_qp_type type, struct vb_cm_id *cm);
/* Waits for acknowledgements. */
void vb_rdma_id_unmake(struct vb_rdma_id *p);
/* The public fields are brought up to what is known now: device, domain, port, addresses, path. */
int vb_rdma_id_refresh(struct vb_rdma_id *p);
int vb_rdma_id_bind(struct vb_rdma_id *p, const char *call, struct sockaddr *addr);
int vb_rdma_id_resolve_addr(struct vb_rdma_id *p, const char *call, struct sockaddr *src,
			    struct sockaddr *dst, int timeout_ms);

/* qp.c */
/* The id's queue pair, which stays until vb_rdma_qp_give().  NULL, and nothing is held: the id has none, or a
 * parent process made it. */
struct ibv_qp *vb_rdma_qp_hold(struct vb_rdma_id *p);
void vb_rdma_qp_give(struct vb_rdma_id *p);
int vb_rdma_qp_create_plain(struct vb_rdma_id *p, const char *call, struct ibv_pd *pd,
			    struct ibv_qp_init_attr *attr);
void vb_rdma_qp_destroy(struct vb_rdma_id *p);
/* INIT -> RTR -> RTS with what the handshake agreed upon; a depth that is negative is the handshake's. */
enum { VB_RDMA_NO_QP = -1 }; /* the id has none, and nothing is done */
int vb_rdma_qp_connect(struct vb_rdma_id *p, int responder_resources, int initiator_depth);
/* Into the error state.  Nothing where the id has no QP. */
int vb_rdma_qp_error(struct vb_rdma_id *p);

/* cqs.c: the completion queues that were made because the program gave none, each with a channel. */
struct vb_rdma_cqs { /* what one call made, to be undone if it fails */
	bool send, recv;
};
/* A size of 0: none. */
int vb_rdma_cqs_make(struct vb_rdma_id *p, uint32_t send_size, uint32_t recv_size, struct vb_rdma_cqs *made);
void vb_rdma_cqs_undo(struct vb_rdma_id *p, struct vb_rdma_cqs made);
/* The QP or the SRQ has gone: those that nobody needs any more go, too. */
void vb_rdma_cqs_release(struct vb_rdma_id *p);

/* srq.c */
void vb_rdma_srq_destroy(struct vb_rdma_id *p);

/* mcast.c */
/* What the program gave to the join that has this token; false: it has left meanwhile. */
bool vb_rdma_mcast_context(struct vb_rdma_id *p, const void *token, void **context);
/* MULTICAST_JOIN has come: attaches the QP, if there is one and the join is for receiving, too. */
int vb_rdma_mcast_joined(struct vb_rdma_id *p, const void *token, const struct ibv_ah_attr *group);
/* The QP, which is held, is about to go. */
void vb_rdma_mcast_detach_all(struct vb_rdma_id *p, struct ibv_qp *qp);
void vb_rdma_mcast_free_all(struct vb_rdma_id *p);

/* ep.c: what rdma_create_ep() keeps. */
void vb_rdma_ep_free(struct vb_rdma_id *p);

#endif
