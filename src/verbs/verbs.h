/* What the files of verbs/ share: the functions behind ibv_context.ops and verbs_context, and the steps of
 * destruction that several objects have in common. */
#ifndef VB_VERBS_VERBS_H
#define VB_VERBS_VERBS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "base/waiting.h"
#include "host/adapter.h"
#include "obj/context.h"
#include "obj/cq.h"
#include "obj/qp.h"
#include "obj/srq.h"
#include "verbs/call.h"

/* In a forked child the parent's objects are dead: destroying one returns 0 and touches nothing, every other
 * call fails with EIO. */
static inline bool vb_context_dead(const struct vb_context *c)
{
	return vb_unlikely(c->adapter && vb_adapter_dead(c->adapter));
}

/* context.c: whether a context that a program gives can be used.  0; EINVAL: it was closed, or is none, and
 * nothing of it is read; EIO: it was opened before fork().  Says it. */
int vb_context_check(const char *call, const struct ibv_context *context);
/* The same of a protection domain: NULL, destroyed, or inherited. */
int vb_pd_check(const char *call, const struct ibv_pd *pd);
int vb_context_find(const char *call, const struct ibv_context *context); /* a forked child may, too */

/* cq.c, cq_ex.c: ibv_context.ops and verbs_context */
int vb_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int vb_req_notify_cq(struct ibv_cq *cq, int solicited_only);
/* One queue less completes to it.  Not for the protocol: it may end here. */
void vb_cq_let_go(struct vb_cq *cq);
struct ibv_cq_ex *vb_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
int vb_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);

/* srq.c: ibv_context.ops and verbs_context */
int vb_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
/* One QP less receives from it.  Not for the protocol: it may end here. */
void vb_srq_let_go(struct vb_srq *srq);
struct ibv_srq *vb_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
int vb_get_srq_num(struct ibv_srq *srq, uint32_t *number);

/* async.c: the last steps with a QP's events at its destruction: takes undelivered ones back, then waits
 * until those that were delivered are acknowledged (rule 36).  Nobody can post further ones by then. */
void vb_qp_await_events(struct vb_qp *qp);
/* Waits until *completed, which the public mutex guards, has reached `delivered`: for any object. */
void vb_wait_acked(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *completed,
		   uint32_t delivered, enum vb_waiting_for what, const void *object);

/* context.c: what an open device needs besides the public struct.  Contexts of one process share one adapter;
 * tests make further ones. */
struct vb_hca;
struct vb_gids;
extern const struct vb_hca_upper vb_verbs_upper; /* for vb_hca_open() */
/* A context on this adapter.  0 or errno.  Pairs with vb_context_close. */
int vb_context_open(struct vb_context **out, struct vb_device *dev, struct vb_hca *h);
/* Whether anything was left: then the context stays, see ibv_close_device(). */
bool vb_context_close(struct vb_context *c);

/* Opens a device; 0 or errno, which has been said.  Pairs with ibv_close_device(). */
extern struct vb_device vb_devices[]; /* the rows, up to one without a name (device.c) */
int vb_device_open(struct ibv_device *ibdev, struct vb_context **out, const char *call);
/* The same without a context: what the process has at work for the device of that index, which is opened by
 * the first one that asks.  Pairs with vb_device_unshare(). */
int vb_device_share(uint32_t index, struct vb_hca **out, const char *call);
void vb_device_unshare(uint32_t index, struct vb_hca *h);
/* Has fork() looked after, for a caller whose own fork handlers take locks that it holds over these. */
void vb_device_handle_fork(void);
struct vb_device *vb_device_row(uint32_t index); /* device.c; index < vb_devices_count() */

/* pd.c: a domain that has no number yet; 0 or errno, which has been said.  Pairs with vb_pd_unmake(). */
struct vb_pd;
int vb_pd_make(struct vb_pd **out, struct ibv_context *context, const char *call);
void vb_pd_unmake(struct vb_pd *pd);

/* shared_pd.c: makes this process a member of the domain and has it meet the others; 0 or errno, which has
 * been said.  *met: of members that cannot be reached now.  pd->member says so; vb_pd_unmake() takes it back.
 */
const char *vb_pd_member_name(char name[VB_MEMBER_NAME], uint32_t domain); /* for host/'s membership */
int vb_pd_join(struct vb_pd *pd, uint32_t domain, struct vb_met *met, const char *call);

/* device.c */
uint32_t vb_device_vendor_id(void);
uint32_t vb_device_vendor_part(void);

/* query.c: 0, or EINVAL after saying what is wrong; index < 0 is not checked */
int vb_check_port(const char *call, unsigned port);
/* about: what the sentence begins with, "QP 0x000042: " or nothing */
int vb_check_port_of(const char *call, const char *about, unsigned port);
int vb_check_gid(const char *call, const char *about, const struct vb_context *c, unsigned index);
const char *vb_wr_opcode_str(enum ibv_wr_opcode opcode);
int vb_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t size);
int vb_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
		       struct ibv_device_attr_ex *attr, size_t size);

int vb_query_rt_values_ex(struct ibv_context *context, struct ibv_values_ex *values);

/* xrcd.c, open_qp.c: verbs_context */
struct ibv_qp *vb_open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr);
/* A target, or what stands for one, is destroyed by its holder.  Whether qp is a target that nobody else has
 * open, and is to end. */
bool vb_qp_close(struct vb_qp *qp);
struct ibv_xrcd *vb_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr);
int vb_close_xrcd(struct ibv_xrcd *xrcd);

/* parent.c: verbs_context; and the end of a parent domain that nobody uses */
struct ibv_td *vb_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr);
int vb_dealloc_td(struct ibv_td *td);
struct ibv_pd *vb_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr);
void vb_parent_free(struct vb_pd *pd);

/* mr.c, advise.c: verbs_context */
struct ibv_mr *vb_alloc_null_mr(struct ibv_pd *pd);
int vb_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *list,
		 uint32_t n);

/* ah.c: whether this process has not asked for a GID.  No far end can reach a queue pair without, and only
 * the far end would be told.  True once: the caller says so. */
bool vb_gid_missed(const struct vb_context *c);
#define VB_GID_MISSED                                                                                    \
	"this process never queried its own GID (ibv_query_gid), which peers need to reach it on RoCE. " \
	"Many "                                                                                          \
	"programs take the GID index as an option (-g 0). A program that knows only LIDs needs "         \
	"verbena run --link=infiniband at both ends"
/* 0 or errno: whether an address vector is one that this device can use */
int vb_check_av(const char *call, const char *about, const struct vb_context *c,
		const struct ibv_ah_attr *av);
/* Of another host's address: packets there have two addresses of IPv4, or two of IPv6. */
int vb_check_versions(const char *call, const char *about, const struct vb_hca *h,
		      const struct ibv_ah_attr *av);
/* Finds where the address handle leads. */
void vb_ah_lead(struct vb_hca *h, struct vb_ah *ah);

/* qp_create.c, qp_modify.c */
struct ibv_qp *vb_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
void vb_qp_hold(struct vb_qp *qp); /* keeps posters and the protocol off; pairs with vb_qp_drop() */
void vb_qp_drop(struct vb_qp *qp);
void vb_qp_to_reset(struct vb_qp *qp); /* under vb_qp_hold() */
/* The steps of ibv_modify_qp().  vb_qp_check(): 0, or errno, which has been said.  vb_qp_change(): what was
 * checked is done, if the state still is `from`, else EAGAIN; ENOMEM, or EINVAL (it is being destroyed),
 * which vb_qp_modify_refuse() says. */
int vb_qp_check(const struct vb_qp *qp, enum ibv_qp_state from, const struct ibv_qp_attr *a, uint32_t mask);
int vb_qp_change(struct vb_qp *qp, enum ibv_qp_state from, const struct ibv_qp_attr *a, uint32_t mask);
int vb_qp_modify_refuse(const struct vb_qp *qp, int err, const struct ibv_qp_attr *a);
/* qp_query.c: all of a queue pair's attributes, as they are now. */
void vb_qp_attributes(struct vb_qp *qp, struct ibv_qp_attr *attr);
/* A queue pair that nobody has open any more, and that is in nobody's hands. */
void vb_qp_end(struct vb_qp *qp);
/* The QP ends: whether it was never connected, and nobody can have known its address (true once).  False
 * where the log has another reason why the program ends. */
bool vb_qp_unheard(struct vb_qp *qp);
void vb_qp_say_unheard(uint32_t qpn);

/* post.c: ibv_context.ops */
int vb_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int vb_post_bind(struct ibv_qp *qp, struct ibv_send_wr *wr); /* ibv_bind_mw's request */
int vb_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
/* Their likes, and those of cq.c and srq.c, in a checked process (check/check.h) */
int vb_post_send_checked(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int vb_post_recv_checked(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int vb_post_srq_recv_checked(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int vb_poll_cq_checked(struct ibv_cq *cq, int n, struct ibv_wc *wc);

/* relaxed.c: the pools of a new adapter, empty; pairs with vb_relaxed_fini() */
void vb_relaxed_open(struct vb_hca *h);

/* mw.c: ibv_context.ops */
struct ibv_mw *vb_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int vb_dealloc_mw(struct ibv_mw *mw);
int vb_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);

/* absent.c: entries whose feature the device has not got */
void vb_ops_fill_absent(struct verbs_context *v);

/* op_table.c */
void vb_ops_fill(struct vb_context *c);
void vb_ops_fill_dead(struct vb_context *c); /* in a forked child: those without a check of their own fail */

#endif
