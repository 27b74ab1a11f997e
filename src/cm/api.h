/* What librdmacm.so.1 calls: identifiers of rdma_cm as the C library's program sees them, less what is
 * librdmacm's own (the public structs, synchronous waiting, getaddrinfo, QPs and CQs made on behalf).
 *
 * An identifier belongs to one channel.  Each call is safe from any thread, blocks for nothing but what it
 * says, and returns 0 or a positive errno.  Identifiers and channels of a forked child's parent fail with
 * EIO. */
#ifndef VB_CM_API_H
#define VB_CM_API_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "iba/gives.h"

/* Another library calls these: whoever defines one includes this header, and exports it so. */
#pragma GCC visibility push(default)

struct vb_cm_channel;
struct vb_cm_id;

/* Sentences of refusals that several calls have, of both libraries. */
#define VB_CM_ID_OF_PARENT	"the id was created before fork(); create another in the child process"
#define VB_CM_CHANNEL_OF_PARENT "the channel was created before fork(); create another in the child process"
#define VB_CM_BAD_FAMILY	"address family %d is not supported: rdma_cm has AF_INET, AF_INET6 and AF_IB"
#define VB_CM_NO_INFINIBAND	"AF_IB needs the link layer InfiniBand (verbena run --link=infiniband)"
#define VB_CM_NOT_JOINED	"the id has not joined this group"

/* What rdma_conn_param and rdma_ud_param say, in one. */
struct vb_cm_param {
	const void *private_data;
	uint8_t private_len;
	/* librdmacm has resolved RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH, since it sets the QP's
	 * attributes. */
	uint8_t responder_resources, initiator_depth;
	uint8_t flow_control, retry_count, rnr_retry_count, srq;
	uint32_t qp_num;    /* of the QP; 0: the id has none */
	uint32_t qkey;	    /* UD; 0: the one of the id's port space (librdmacm gives no other) */
	struct ibv_ece ece; /* vendor_id 0: none */
};

/* One event, in the order in which the manual pages have them.
 *
 * What answers a connect of a connected type is always CONNECT_RESPONSE here.  Where the program's id has a
 * QP the caller brings that to RTS (vb_cm_id_qp_attr), calls vb_cm_id_establish(), and shows ESTABLISHED with
 * the same parameters instead, or CONNECT_ERROR after vb_cm_id_reject() where that fails.
 *
 * ADDR_CHANGE never comes: an address does not move to another device under an id.  DEVICE_REMOVAL comes when
 * the device is lost since the program has closed descriptors that belong to it; all calls but those that end
 * the id then fail with ENODEV.  ROUTE_ERROR never comes either: what can be wrong is found with the address.
 */
struct vb_cm_news {
	enum rdma_cm_event_type event;
	int status;		/* 0, -errno, or a REJ's reason */
	struct vb_cm_id *id;	/* which it is about; with CONNECT_REQUEST the listener, */
	struct vb_cm_id *fresh; /* and this the connection's */
	void *user;		/* of `id` (vb_cm_id_new, vb_cm_id_accept), also for multicast */
	void *join;   /* MULTICAST_JOIN, MULTICAST_ERROR: what vb_cm_id_join() was given; else NULL */
	uint64_t arg; /* of vb_cm_id_write(); else 0 */
	bool ud;      /* which of both follows, if any */
	struct rdma_conn_param conn; /* private_data points into `data` */
	struct rdma_ud_param ud_param;
	struct ibv_ece ece;
	uint8_t data[256];
};

/* An event channel: a descriptor that polls readable while an event waits, and may be set O_NONBLOCK by the
 * program. */
int vb_cm_channel_open(struct vb_cm_channel **out, int *fd);
/* It is a synchronous id's own: what is said of events that are not acknowledged is another sentence. */
void vb_cm_channel_sync(struct vb_cm_channel *c);
/* Every id must have been destroyed or migrated: what is left is the program's mistake, said in the log. */
void vb_cm_channel_close(struct vb_cm_channel *c);
/* The next event: waits if the descriptor is blocking; EAGAIN if it is not; EINTR.  It counts as delivered
 * for its id until vb_cm_news_ack(). */
int vb_cm_channel_get(struct vb_cm_channel *c, struct vb_cm_news *out);
/* `id` and `event` are those of the news (so the listener's for CONNECT_REQUEST), also where librdmacm shows
 * the program another type.  The id may be gone when this returns. */
void vb_cm_news_ack(struct vb_cm_id *id, enum rdma_cm_event_type event);

int vb_cm_id_new(struct vb_cm_id **out, struct vb_cm_channel *c, void *user, enum rdma_port_space ps,
		 enum ibv_qp_type type);
/* Waits until all events that were delivered for it are acknowledged. */
void vb_cm_id_end(struct vb_cm_id *id);
/* Undelivered events go along; waits for the acknowledgement of those that were delivered.  Whoever takes one
 * there may end the id, which is gone then when this returns. */
int vb_cm_id_migrate(struct vb_cm_id *id, struct vb_cm_channel *to);

/* The device that an id is bound to: its index among the process's, -1: none yet; and the port. */
int vb_cm_id_device(const struct vb_cm_id *id, uint8_t *port);
int vb_cm_id_bind(struct vb_cm_id *id, const struct sockaddr *addr);
int vb_cm_id_listen(struct vb_cm_id *id, int backlog);
int vb_cm_id_resolve_addr(struct vb_cm_id *id, const struct sockaddr *src, const struct sockaddr *dst,
			  int timeout_ms);
int vb_cm_id_resolve_route(struct vb_cm_id *id, int timeout_ms);
/* Fills in what is known: both addresses as far as they are (of AF_UNSPEC, all zero, if not), GIDs and P_Key
 * once there is a device, and one path record into *path, *num_paths = 1, once a route is resolved or where a
 * REQ or SIDR_REQ brought it; else *num_paths = 0. */
int vb_cm_id_route(const struct vb_cm_id *id, struct rdma_addr *addr, struct ibv_sa_path_rec *path,
		   int *num_paths);
/* Parameters count as the manual pages say; of all zeros but qp_num there are no retries.  What
 * rdma_connect(id, NULL) and rdma_accept(id, NULL) mean is librdmacm's to say. */
int vb_cm_id_connect(struct vb_cm_id *id, const struct vb_cm_param *p);
int vb_cm_id_establish(struct vb_cm_id *id);
/* A `fresh` id of CONNECT_REQUEST has no user until this succeeds, and then that one.  As long as it has none
 * its events are not delivered: the program knows nothing of it yet, and an accept that comes too late fails
 * (the kernel's ucma does the same).  With a user its events come, and whoever takes one may end the id
 * before this returns. */
int vb_cm_id_accept(struct vb_cm_id *id, const struct vb_cm_param *p, void *user);
/* What the call above would refuse of a connection, as far as that can be told beforehand: a queue pair that
 * has been moved for an answer which then does not go cannot be used for another try. */
int vb_cm_id_may_accept(struct vb_cm_id *id, const struct vb_cm_param *p);
int vb_cm_id_reject(struct vb_cm_id *id, const void *private_data, uint8_t len, uint8_t reason);
int vb_cm_id_disconnect(struct vb_cm_id *id);
/* Whether an event of its waits to be taken, or one of its connection is still to come. */
bool vb_cm_id_has_news(struct vb_cm_id *id);
int vb_cm_id_notify(struct vb_cm_id *id, enum ibv_event_type event);
/* For the state in attr->qp_state: attributes and mask, as rdma_init_qp_attr(3). */
int vb_cm_id_qp_attr(struct vb_cm_id *id, struct ibv_qp_attr *attr, int *mask);
/* The id has that queue pair from now on: what is said of it names rdma_cm's calls and parameters. */
void vb_cm_id_has_qp(struct vb_cm_id *id, uint32_t qpn);
int vb_cm_id_option(struct vb_cm_id *id, int level, int name, const void *value, size_t len);
/* flags as RDMA_MC_JOIN_FLAG_*; the events come with `join`, which nobody looks into. */
int vb_cm_id_join(struct vb_cm_id *id, const struct sockaddr *addr, uint64_t comp_mask, uint32_t flags,
		  void *join);
/* Of several joins of one address the last is left.  Undelivered events of the join vanish; *delivered: how
 * many were delivered.  Nobody need wait for these: what librdmacm gives as `join` is a number and no
 * address.
 */
int vb_cm_id_leave(struct vb_cm_id *id, const struct sockaddr *addr, uint32_t *delivered);
/* rdma_write_cm_event(): an event of this type, with status and arg, is queued for the id as if it had
 * happened. librdmacm writes its own types so, too (16 and above). */
int vb_cm_id_write(struct vb_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t arg);

/* For ibv_open_device() by librdmacm: which of the list's devices has that index. */
int vb_cm_device_index(const struct ibv_device *device);
/* Whether the device behind that opening is lost: ids are then bound to another one, which has to be opened.
 */
bool vb_cm_device_lost(const struct ibv_context *verbs);

/* The table of live objects (obj/live.h), for the calls of librdmacm that create or end one. */
enum vb_cm_object { VB_CM_OBJECT_ID, VB_CM_OBJECT_CHANNEL, VB_CM_OBJECT_EVENT };
void vb_cm_object_enter(const void *object, enum vb_cm_object kind);
/* 0, or EINVAL after saying in the name of `call` that there is no such object.  Leave: it ends. */
int vb_cm_object_leave(const char *call, const void *object, enum vb_cm_object kind);
int vb_cm_object_check(const char *call, const void *object, enum vb_cm_object kind);
/* Programs destroy queue pairs of ids by ibv_destroy_qp(), too, and id->qp leads nowhere then. */
bool vb_cm_qp_lives(const struct ibv_qp *qp);

/* rdma_destroy_srq(): the SRQ is destroyed at once, or with the last queue pair that receives from it. */
void vb_cm_srq_abandon(struct ibv_srq *srq);
/* The same of a CQ whose context is `owner`; one of another context has to be unused.  0; EINPROGRESS: it is
 * still used, and its channel ends with it; or why it stays (EBUSY, EINVAL), which has been said. */
int vb_cm_cq_abandon(struct ibv_cq *cq, const void *owner);

/* Refusals of librdmacm's own: says why, as vb_refuse(); returns err. */
int vb_cm_refuse(int err, const char *call, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Before librdmacm returns to the program: what was said goes to the log, as vb_log_tell(). */
void vb_cm_log_tell(void);
/* Around the program's call of that name: what is refused within it is said in its name (vb_call_begin()),
 * and the thread is not cancelled within it, but where it waits for an event. vb_cm_call_end() does what
 * vb_cm_log_tell() does, too. */
void vb_cm_call_begin(const char *name);
void vb_cm_call_end(void);
/* The call has written n bytes there for the program (base/msan.h). */
void vb_cm_gives(const void *at, size_t n);

#pragma GCC visibility pop

#endif
