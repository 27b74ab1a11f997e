/* Completion counters (ibv_create_comp_cntr(3) of newer releases). */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "iba/qp_state.h"
#include "iba/limits.h"
#include "obj/comp_cntr.h"
#include "hca/progress.h"
#include "verbs/verbs.h"

#define ATTACH	  "ibv_qp_attach_comp_cntr"
#define KNOWN_OPS ((1u << VB_COMP_OPS) - 1)

static _Atomic uint32_t live;

static int dead(struct ibv_context *context, const char *call)
{
	return vb_context_dead(vb_context(context)) ? vb_refuse_forked(call) : 0;
}

static struct vb_comp_cntr *counter(struct ibv_comp_cntr *c)
{
	return (struct vb_comp_cntr *)c;
}

VB_EXPORT VB_CODE(_ibv_query_comp_cntr_caps, (context, caps, size), struct ibv_context *context,
		  struct ibv_comp_cntr_caps *caps, size_t size)
{
	const struct ibv_comp_cntr_caps c = {
	    .max_value = UINT64_MAX, .max_counters = VB_MAX_COMP_CNTR, .supported_qp_attach_ops = KNOWN_OPS};
	int err = vb_context_check("ibv_query_comp_cntr_caps", context);

	if (err)
		return err;
	memset(caps, 0, size); /* the caller may be newer than we are */
	memcpy(caps, &c, size < sizeof(c) ? size : sizeof(c));
	return 0;
}

static int check(const struct ibv_comp_cntr_init_attr *a)
{
	static const char call[] = "ibv_create_comp_cntr";

	if (a->comp_mask)
		return vb_refuse_bits(EINVAL, call, "comp_mask", a->comp_mask, 0);
	if (a->type != IBV_COMP_CNTR_TYPE_WRS && a->type != IBV_COMP_CNTR_TYPE_BYTES)
		return vb_refuse(EINVAL, call, "type %d is unknown; use 0 (work requests) or 1 (bytes)",
				 (int)a->type);
	if (a->flags)
		return vb_refuse_bits(EINVAL, call, "flags", a->flags, 0);
	return 0;
}

VB_EXPORT VB_OBJECT(struct ibv_comp_cntr *, ibv_create_comp_cntr, (context, attr),
		    struct ibv_context *context, struct ibv_comp_cntr_init_attr *attr)
{
	static const char call[] = "ibv_create_comp_cntr";
	static _Atomic uint32_t handles;
	struct vb_comp_cntr *c;

	errno = vb_context_check(call, context);
	if (!errno)
		errno = check(attr);
	if (errno)
		return NULL;
	if (atomic_fetch_add(&live, 1) >= VB_MAX_COMP_CNTR) { /* pairs with ibv_destroy_comp_cntr() */
		errno = vb_refuse(ENOMEM, call, "all %u completion counters of the device are in use",
				  (unsigned)VB_MAX_COMP_CNTR);
		goto uncount;
	}
	c = calloc(1, sizeof(*c)); /* pairs with ibv_destroy_comp_cntr() */
	if (!c) {
		errno = vb_refuse_memory(call);
		goto uncount;
	}
	c->ibv.context = context;
	c->ibv.handle = atomic_fetch_add(&handles, 1);
	c->bytes = attr->type == IBV_COMP_CNTR_TYPE_BYTES;
	atomic_fetch_add(&vb_context(context)->cntrs, 1);
	vb_live_enter(&c->ibv, VB_LIVE_CNTR);
	return &c->ibv;
uncount:
	atomic_fetch_sub(&live, 1);
	return NULL;
}

VB_EXPORT VB_END(ibv_destroy_comp_cntr, "ibv_destroy_comp_cntr", VB_LIVE_CNTR, cntr,
		 struct ibv_comp_cntr *cntr)
{
	struct vb_comp_cntr *c = counter(cntr);

	if (vb_context_dead(vb_context(cntr->context)))
		return 0;
	if (atomic_load(&c->refs))
		return vb_refuse_busy("ibv_destroy_comp_cntr",
				      "queue pairs use the completion counter; destroy them first");
	atomic_fetch_sub(&vb_context(cntr->context)->cntrs, 1);
	free(c);
	atomic_fetch_sub(&live, 1);
	return 0;
}

static int set(struct ibv_comp_cntr *cntr, const char *call, _Atomic uint64_t *to, uint64_t value)
{
	int err = dead(cntr->context, call);

	if (!err)
		atomic_store(to, value);
	return err;
}

static int add(struct ibv_comp_cntr *cntr, const char *call, _Atomic uint64_t *to, uint64_t amount)
{
	int err = dead(cntr->context, call);

	if (!err)
		atomic_fetch_add(to, amount);
	return err;
}

/* A program that waits for a count reads it again and again, as others poll: so this makes progress, too. */
static int get(struct ibv_comp_cntr *cntr, const char *call, _Atomic uint64_t *from, uint64_t *value)
{
	struct vb_adapter *a = vb_context(cntr->context)->adapter;
	int err = dead(cntr->context, call);
	struct vb_rxq *where;

	if (err)
		return err;
	where = a ? vb_hca_poll_where(a) : NULL;
	if (where && vb_hca_poll(a, where))
		vb_hca_polled_well();
	*value = atomic_load_explicit(from, memory_order_acquire); /* pairs with count(), obj/comp_cntr.c */
	return 0;
}

VB_EXPORT VB_CODE(ibv_set_comp_cntr, (cntr, value), struct ibv_comp_cntr *cntr, uint64_t value)
{
	return set(cntr, "ibv_set_comp_cntr", &counter(cntr)->done, value);
}

VB_EXPORT VB_CODE(ibv_set_err_comp_cntr, (cntr, value), struct ibv_comp_cntr *cntr, uint64_t value)
{
	return set(cntr, "ibv_set_err_comp_cntr", &counter(cntr)->failed, value);
}

VB_EXPORT VB_CODE(ibv_inc_comp_cntr, (cntr, amount), struct ibv_comp_cntr *cntr, uint64_t amount)
{
	return add(cntr, "ibv_inc_comp_cntr", &counter(cntr)->done, amount);
}

VB_EXPORT VB_CODE(ibv_inc_err_comp_cntr, (cntr, amount), struct ibv_comp_cntr *cntr, uint64_t amount)
{
	return add(cntr, "ibv_inc_err_comp_cntr", &counter(cntr)->failed, amount);
}

VB_EXPORT VB_CODE(ibv_read_comp_cntr, (cntr, value), struct ibv_comp_cntr *cntr, uint64_t *value)
{
	return get(cntr, "ibv_read_comp_cntr", &counter(cntr)->done, value);
}

VB_EXPORT VB_CODE(ibv_read_err_comp_cntr, (cntr, value), struct ibv_comp_cntr *cntr, uint64_t *value)
{
	return get(cntr, "ibv_read_err_comp_cntr", &counter(cntr)->failed, value);
}

static int attach(struct vb_qp *qp, struct vb_comp_cntr *c, uint32_t mask)
{
	int err;

	if (qp->state != IBV_QPS_RESET && qp->state != IBV_QPS_INIT)
		return vb_refuse(EINVAL, ATTACH,
				 "the queue pair is in %s: a counter can only be attached in RESET or INIT",
				 vb_qp_state_name(qp->state));
	err = vb_comp_attach(qp, c, mask);
	if (err == EBUSY)
		return vb_refuse(EBUSY, ATTACH,
				 "op_mask 0x%x has operations that another counter of the queue pair counts",
				 mask);
	return err ? vb_refuse_memory(ATTACH) : 0;
}

VB_EXPORT VB_CODE(ibv_qp_attach_comp_cntr, (ibqp, cntr, attr), struct ibv_qp *ibqp,
		  struct ibv_comp_cntr *cntr, struct ibv_qp_attach_comp_cntr_attr *attr)
{
	struct vb_qp *qp = vb_qp_itself(vb_qp(ibqp));
	int err = dead(ibqp->context, ATTACH);

	if (err)
		return err;
	if (attr->comp_mask)
		return vb_refuse_bits(EINVAL, ATTACH, "comp_mask", attr->comp_mask, 0);
	if (!attr->op_mask)
		return vb_refuse(EINVAL, ATTACH, "op_mask is 0: the counter would count no operation");
	if (attr->op_mask & ~KNOWN_OPS)
		return vb_refuse_bits(EOPNOTSUPP, ATTACH, "op_mask", attr->op_mask, KNOWN_OPS);
	if (qp->far)
		return vb_refuse(
		    EOPNOTSUPP, ATTACH,
		    "QP 0x%06x is an XRC target of another process: only that process can attach a counter",
		    qp->qpn);
	if (cntr->context != ibqp->context)
		return vb_refuse(EINVAL, ATTACH,
				 "the completion counter belongs to another context than the queue pair");
	vb_qp_hold(qp); /* keeps the protocol off */
	err = attach(qp, counter(cntr), attr->op_mask);
	vb_qp_drop(qp);
	return err;
}
