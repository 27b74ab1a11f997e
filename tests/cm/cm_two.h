/* A listener's program and a client's, and what both do first, for tests of identifiers. */
#ifndef VB_TESTS_CM_TWO_H
#define VB_TESTS_CM_TWO_H

#include "cm_below.h"

enum { TWO_PORT = 7471 };
#define TWO_USER ((void *)0x88) /* the server's, once it has accepted */

/* Both ends. */
struct two {
	struct vb_cm_channel *there, *here; /* the listener's, the client's */
	struct vb_cm_id *listener, *client, *server;
};

extern const struct vb_cm_param two_asking, two_granting; /* the client's, the server's */

/* Setup and teardown. */
int two_open(void **state);
int two_close(void **state);

struct vb_cm_id *two_id(struct vb_cm_channel *c, enum rdma_port_space ps, enum ibv_qp_type type);
/* Makes both channels, and a listener. */
void two_listen(struct two *t, enum rdma_port_space ps, enum ibv_qp_type type, const char *at, int backlog);
/* An id with a route to the listener's port there; its events are taken. */
struct vb_cm_id *two_resolve(struct vb_cm_channel *c, enum rdma_port_space ps, enum ibv_qp_type type,
			     const char *to);
/* The server takes its request. */
void two_request(struct two *t);
/* A listener at `at`, and a client that has asked there for a connection to `to`, which is `server`. */
void two_ask(struct two *t, const char *at, const char *to);
/* It is granted, and the client has heard so. */
void two_answer(struct two *t);
/* A connection of the port space TCP that is established; no event is left. */
void two_connect(struct two *t, const char *at, const char *to);
/* What there is of the three ids ends, and both channels. */
void two_end(struct two *t);
struct ibv_qp_attr two_attr(struct vb_cm_id *id, enum ibv_qp_state s);
/* A filter: nothing arrives. */
bool two_silence(const struct vb_cm_msg *m);

#endif
