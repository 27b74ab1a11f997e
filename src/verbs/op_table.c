/* The functions behind the headers' inline calls.  What the device has not got is filled in by absent.c. */
#include <assert.h>
#include <errno.h>

#include "base/log.h"
#include "check/check.h"
#include "verbs/dm.h"
#include "verbs/verbs.h"

static_assert(sizeof(struct ibv_context) == 328 && sizeof(struct verbs_context) == 648, "ABI");
static_assert(offsetof(struct ibv_context, ops) == 8 && offsetof(struct ibv_context, cmd_fd) == 264 &&
		  offsetof(struct ibv_context, abi_compat) == 320,
	      "ABI");
static_assert(offsetof(struct verbs_context, sz) == 312 && offsetof(struct verbs_context, context) == 320,
	      "ABI");
static_assert(sizeof(struct ibv_wc) == 48 && sizeof(struct ibv_cq) == 128 &&
		  sizeof(struct ibv_cq_ex) == 288 && sizeof(struct ibv_srq) == 128 &&
		  sizeof(struct ibv_mw) == 32 && sizeof(struct ibv_wq) == 152 &&
		  sizeof(struct ibv_dm) == 32 && sizeof(struct ibv_comp_channel) == 16,
	      "ABI");

/* Entries that no header of today calls.  Programs of libibverbs 1.1.8 look for flow steering where
 * placeholders are now; other _compat_ entries were called by the library alone, ours calls none. */
static void fill_old(struct verbs_context *v)
{
	v->ABI_placeholder1 = (void (*)(void))v->ibv_create_flow;
	v->ABI_placeholder2 = (void (*)(void))v->ibv_destroy_flow;
	v->context.ops._compat_query_device = ibv_query_device;
#undef ibv_query_port
	v->context.ops._compat_query_port = ibv_query_port;
}

/* What checkers are told of. */
static void fill_checked(struct ibv_context_ops *o)
{
	o->poll_cq = vb_poll_cq_checked;
	o->post_srq_recv = vb_post_srq_recv_checked;
	o->post_send = vb_post_send_checked;
	o->post_recv = vb_post_recv_checked;
}

void vb_ops_fill(struct vb_context *c)
{
	struct verbs_context *v = &c->v;
	struct ibv_context_ops *o = &v->context.ops;

	o->alloc_mw = vb_alloc_mw;
	o->bind_mw = vb_bind_mw;
	o->dealloc_mw = vb_dealloc_mw;
	o->poll_cq = vb_poll_cq;
	o->req_notify_cq = vb_req_notify_cq;
	o->post_srq_recv = vb_post_srq_recv;
	o->post_send = vb_post_send;
	o->post_recv = vb_post_recv;
	if (vb_check_on)
		fill_checked(o);
	v->query_port = vb_query_port;
	v->alloc_td = vb_alloc_td;
	v->dealloc_td = vb_dealloc_td;
	v->alloc_parent_domain = vb_alloc_parent_domain;
	v->modify_cq = vb_modify_cq;
	v->create_cq_ex = vb_create_cq_ex;
	v->query_device_ex = vb_query_device_ex;
	v->query_rt_values = vb_query_rt_values_ex;
	v->create_qp_ex = vb_create_qp_ex;
	v->get_srq_num = vb_get_srq_num;
	v->create_srq_ex = vb_create_srq_ex;
	v->open_qp = vb_open_qp;
	v->open_xrcd = vb_open_xrcd;
	v->close_xrcd = vb_close_xrcd;
	v->alloc_null_mr = vb_alloc_null_mr;
	v->advise_mr = vb_advise_mr;
	v->alloc_dm = vb_alloc_dm;
	v->free_dm = vb_free_dm;
	v->reg_dm_mr = vb_reg_dm_mr;
	c->newer = (struct vb_newer_ops){.free_buf = ibv_free_buf,
					 .alloc_buf = ibv_alloc_buf,
					 .dm_export_dmabuf_fd = ibv_dm_export_dmabuf_fd,
					 .reg_mr_ex = ibv_reg_mr_ex,
					 .dealloc_dmah = ibv_dealloc_dmah,
					 .alloc_dmah = ibv_alloc_dmah};
	vb_ops_fill_absent(v);
	fill_old(v);
	v->sz = sizeof(c->newer) + sizeof(c->v);
	v->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
}

static VB_CODE(dead_post_send, (qp, wr, bad), struct ibv_qp *qp, struct ibv_send_wr *wr,
	       struct ibv_send_wr **bad)
{
	(void)qp;
	*bad = wr;
	return vb_refuse_forked("ibv_post_send");
}

static VB_CODE(dead_post_recv, (qp, wr, bad), struct ibv_qp *qp, struct ibv_recv_wr *wr,
	       struct ibv_recv_wr **bad)
{
	(void)qp;
	*bad = wr;
	return vb_refuse_forked("ibv_post_recv");
}

static VB_VALUE(int, dead_poll_cq, (cq, n, wc), struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	(void)cq;
	(void)n;
	(void)wc;
	errno = vb_refuse_forked("ibv_poll_cq");
	return -1;
}

void vb_ops_fill_dead(struct vb_context *c)
{
	struct ibv_context_ops *o = &c->v.context.ops;

	c->dead = true;
	o->post_send = dead_post_send;
	o->post_recv = dead_post_recv;
	o->poll_cq = dead_poll_cq;
}
