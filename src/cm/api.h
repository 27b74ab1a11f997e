/* What librdmacm.so.1 calls: identifiers of rdma_cm as the C library's program sees them, less what is
 * librdmacm's own (the public structs, synchronous waiting, getaddrinfo, QPs and CQs made on behalf).
 *
 * An identifier belongs to one channel.  Each call is safe from any thread, blocks for nothing but what it says,
 * and returns 0 or a positive errno.  Identifiers and channels of a forked child's parent fail with EIO. */
#ifndef VB_CM_API_H
#define VB_CM_API_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

struct vb_cm_channel;
struct vb_cm_id;

/* What rdma_conn_param and rdma_ud_param say, in one. */
struct vb_cm_param {
	const void *private_data;
	uint8_t private_len;
	uint8_t responder_resources, initiator_depth; /* RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH: as many as there are */
	uint8_t flow_control, retry_count, rnr_retry_count, srq;
	uint32_t qp_num;   /* of the QP; 0: the id has none */
	uint32_t qkey;	   /* UD */
	struct ibv_ece ece; /* vendor_id 0: none */
};

/* One event, in the order in which the manual pages have them. */
struct vb_cm_news {
	enum rdma_cm_event_type event;
	int status;		   /* 0, -errno, or a REJ's reason */
	struct vb_cm_id *id;	   /* which it is about; with CONNECT_REQUEST the listener, */
	struct vb_cm_id *fresh;	   /* and this the connection's */
	void *user;		   /* of `id`, when it happened (vb_cm_id_new); multicast: of the join */
	bool ud;		   /* which of both follows, if any */
	struct rdma_conn_param conn; /* private_data points into `data` */
	struct rdma_ud_param ud_param;
	struct ibv_ece ece;
	uint8_t data[256];
};

/* An event channel: a descriptor that polls readable while an event waits, and may be set O_NONBLOCK by the
 * program. */
int vb_cm_channel_open(struct vb_cm_channel **out, int *fd);
/* Every id must have been destroyed or migrated: what is left is the program's mistake, said in the log. */
void vb_cm_channel_close(struct vb_cm_channel *c);
/* The next event: waits if the descriptor is blocking; EAGAIN if it is not; EINTR.  It counts as delivered for
 * its id until vb_cm_news_ack(). */
int vb_cm_channel_get(struct vb_cm_channel *c, struct vb_cm_news *out);
void vb_cm_news_ack(struct vb_cm_id *id, enum rdma_cm_event_type event);

int vb_cm_id_new(struct vb_cm_id **out, struct vb_cm_channel *c, void *user, enum rdma_port_space ps,
		 enum ibv_qp_type type);
/* Waits until all events that were delivered for it are acknowledged. */
void vb_cm_id_end(struct vb_cm_id *id);
/* Undelivered events go along; waits for the acknowledgement of those that were delivered. */
int vb_cm_id_migrate(struct vb_cm_id *id, struct vb_cm_channel *to);
void vb_cm_id_user(struct vb_cm_id *id, void *user);

/* The device that an id is bound to: its index among the process's, -1: none yet; and the port. */
int vb_cm_id_device(const struct vb_cm_id *id, uint8_t *port);
int vb_cm_id_bind(struct vb_cm_id *id, const struct sockaddr *addr);
int vb_cm_id_listen(struct vb_cm_id *id, int backlog);
int vb_cm_id_resolve_addr(struct vb_cm_id *id, const struct sockaddr *src, const struct sockaddr *dst,
			  int timeout_ms);
int vb_cm_id_resolve_route(struct vb_cm_id *id, int timeout_ms);
/* Fills in route->addr and, once a route is resolved, one path record (the caller's, to be freed by it). */
int vb_cm_id_route(const struct vb_cm_id *id, struct rdma_addr *addr, struct ibv_sa_path_rec *path,
		   int *num_paths);
int vb_cm_id_connect(struct vb_cm_id *id, const struct vb_cm_param *p);
int vb_cm_id_establish(struct vb_cm_id *id);
int vb_cm_id_accept(struct vb_cm_id *id, const struct vb_cm_param *p);
int vb_cm_id_reject(struct vb_cm_id *id, const void *private_data, uint8_t len, uint8_t reason);
int vb_cm_id_disconnect(struct vb_cm_id *id);
int vb_cm_id_notify(struct vb_cm_id *id, enum ibv_event_type event);
/* For the state in attr->qp_state: attributes and mask, as rdma_init_qp_attr(3). */
int vb_cm_id_qp_attr(struct vb_cm_id *id, struct ibv_qp_attr *attr, int *mask);
int vb_cm_id_option(struct vb_cm_id *id, int level, int name, const void *value, size_t len);
/* flags as RDMA_MC_JOIN_FLAG_*; the event comes with `user`. */
int vb_cm_id_join(struct vb_cm_id *id, const struct sockaddr *addr, uint64_t comp_mask, uint32_t flags,
		  void *user);
int vb_cm_id_leave(struct vb_cm_id *id, const struct sockaddr *addr);

/* For ibv_open_device() by librdmacm: which of the list's devices has that index. */
int vb_cm_device_index(const struct ibv_device *device);

#endif
