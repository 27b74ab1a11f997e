/* Stands in for libibverbs.so.1 below librdmacm: connections that answer as the test says, and verbs that
 * write down what they are asked for.  So the front is tested alone, step by step and without time. */
#ifndef VB_TESTS_RDMACM_FAKE_H
#define VB_TESTS_RDMACM_FAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "cm/api.h"

struct vb_cm_channel {
	struct vb_cm_news news[16];
	int first, count, ids;
};

struct vb_cm_id {
	struct vb_cm_channel *channel;
	void *user;
	enum rdma_port_space ps;
	enum ibv_qp_type type;
	int device; /* -1: none */
	bool routed;
	uint16_t port;
	int delivered, acked;
	void *join; /* of the last join */
};

struct fake {
	char did[512];	  /* names of what was called, in order, each followed by a blank */
	const char *fail; /* the name of what is to fail, with */
	int err;
	int skip; /* so many calls of it work before */
	/* What another thread does as soon as an accept, listen or migration has worked, before that returns:
	 * once. */
	void (*meanwhile)(void);
	/* The same while the queue pair is being modified to this state. */
	void (*modifying)(void);
	enum ibv_qp_state modified;
	int ids, channels, events, contexts, pds, cqs, comp_channels, qps, srqs, xrcds; /* there are */
	char said[256]; /* the last sentence */
	struct vb_cm_param param;
	uint8_t data[256];
	struct ibv_qp_attr attr[8]; /* by state: what the QP was last moved with */
	struct ibv_qp_init_attr_ex qp_attr;
	struct ibv_srq_init_attr_ex srq_attr;
	int cq_size[8]; /* of those made, in order */
	int backlog;
	uint8_t reason;
	uint32_t flags;
	struct ibv_ece ece; /* what ibv_query_ece() says */
	struct ibv_context *last_opened;
	bool over; /* there is no connection, so its end brings no event */
};
extern struct fake fake;

void fake_reset(void);
/* An event for this id; the rest of it is what the caller sets in what this returns. */
struct vb_cm_news *fake_news(struct vb_cm_id *id, enum rdma_cm_event_type event, int status);
/* A connection request on a listener; its data are `data`. */
struct vb_cm_news *fake_request(struct vb_cm_id *listener, const char *data);
struct vb_cm_id *fake_cm(struct rdma_cm_id *id);
/* A domain of another context. */
struct ibv_pd *fake_other_pd(void);

#endif
