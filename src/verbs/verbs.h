/* What the files of verbs/ share: the functions behind ibv_context.ops and verbs_context, and the steps of
 * destruction that several objects have in common. */
#ifndef VB_VERBS_VERBS_H
#define VB_VERBS_VERBS_H

#include <pthread.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "host/adapter.h"
#include "obj/context.h"
#include "obj/cq.h"
#include "obj/qp.h"
#include "obj/srq.h"

/* A public function.  The version script decides what leaves the library. */
#define VB_EXPORT __attribute__((visibility("default")))

/* In a forked child the parent's objects are dead: destroying one returns 0 and touches nothing, every other call
 * fails with EIO. */
static inline bool vb_context_dead(const struct vb_context *c)
{
	return vb_unlikely(c->adapter && vb_adapter_dead(c->adapter));
}

/* cq.c: ibv_context.ops and verbs_context */
int vb_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int vb_req_notify_cq(struct ibv_cq *cq, int solicited_only);
struct ibv_cq_ex *vb_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
int vb_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);

/* srq.c: ibv_context.ops and verbs_context */
int vb_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct ibv_srq *vb_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
int vb_get_srq_num(struct ibv_srq *srq, uint32_t *number);

/* async.c: the last steps with a QP's events at its destruction: takes undelivered ones back, then waits until
 * those that were delivered are acknowledged (rule 36).  Nobody can post further ones by then. */
void vb_qp_settle_events(struct vb_qp *qp);
/* The same wait for any object: until *completed, guarded by the public mutex, has reached `delivered`. */
void vb_wait_acked(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *completed, uint32_t delivered);

#endif
