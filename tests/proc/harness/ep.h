/* Two processes that connect by rdma_cm, with synchronous ids: the initiator of a pair (pair.h) connects, and
 * its target listens and does what it is told to (kit_duo_there()).  Only tests that link librdmacm's sources
 * use this.
 */
#ifndef VB_TESTS_EP_H
#define VB_TESTS_EP_H

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "pair.h"

/* Either role's own: what kit_pair.own points to. */
struct kit_ep {
	struct rdma_cm_id *listen; /* the target's */
	struct rdma_cm_id *id;	   /* connected; NULL: not yet */
	struct ibv_pd *pd;	   /* for the QP; NULL: the default one */
	struct ibv_qp_init_attr attr;
	/* What the target does with the id of a request before it accepts; NULL: it makes a QP from attr. */
	void (*equip)(struct kit_pair *d, struct rdma_cm_id *id);
	/* What is said in rdma_connect() and rdma_accept(); NULL: nothing. */
	struct rdma_conn_param *param;
};

static inline struct kit_ep *kit_ep(const struct kit_pair *d)
{
	return d->own;
}

/* Runs a test between two new processes; the initiator's is connected when it begins.  `type` is that of the
 * initiator's QP; that of an XRC_SEND's far end is XRC_RECV. */
void kit_ep_run(const char *name, bool direct, enum ibv_qp_type type, void (*test)(struct kit_pair *));
/* The same, but connecting is left to the test. */
void kit_ep_run_apart(const char *name, enum ibv_qp_type type, void (*test)(struct kit_pair *));

/* An id of this process that is bound to 127.0.0.1, with the port that the kernel chose. */
struct rdma_cm_id *kit_ep_bound(enum ibv_qp_type type);
/* The initiator's: an endpoint whose address and route are resolved, with a QP; and connected. */
void kit_ep_endpoint(struct kit_pair *d);
void kit_ep_connect(struct kit_pair *d);
/* Both ends disconnect, and their ids are destroyed. */
void kit_ep_disconnect(struct kit_pair *d);
/* The next completion of a queue that was made for this id; its status must be success. */
struct ibv_wc kit_ep_sent(struct rdma_cm_id *id);
struct ibv_wc kit_ep_received(struct rdma_cm_id *id);
/* How one request that was posted ends.  In error both ends are made anew. */
enum ibv_wc_status kit_ep_ends(struct kit_pair *d);

#endif
