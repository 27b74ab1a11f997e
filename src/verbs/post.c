/* Posting work requests: checks everything that can be checked at the call, fills WQEs in place, and lets the
 * protocol run once per list.
 *
 * Send requests are filled under a lock of their own, before the QP's; a receive request needs only the one
 * that it shares with whoever moves the QP to the error state, so it waits for nothing that the protocol
 * does. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "iba/names.h"
#include "iba/qp_state.h"
#include "obj/builder.h"
#include "obj/custody.h"
#include "transport/transport.h"
#include "verbs/checked.h"
#include "verbs/mw.h"
#include "verbs/post.h"
#include "hca/hca.h"
#include "hca/send.h"
#include "verbs/verbs.h"

static const char *call_of(enum ibv_mw_type binds)
{
	return binds == IBV_MW_TYPE_1 ? "ibv_bind_mw" : "ibv_post_send";
}

static uint64_t length_of(const struct ibv_send_wr *wr)
{
	uint64_t length = 0;

	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	return length;
}

int vb_post_refuse(const struct vb_qp *qp, const char *call, enum vb_build_fault fault,
		   const struct vb_post_facts *f)
{
	const char *name = vb_name_wr_opcode(f->opcode), *type = vb_name_qp_type(qp->ibv.qp_type);
	char flags[VB_FLAGS_TEXT];

	switch (fault) {
	case VB_BUILD_FINE:
		break;
	case VB_BUILD_OPCODE:
		return name ? vb_refuse(EINVAL, call, "%s is not supported on a QP of type %s", name, type)
			    : vb_refuse(EINVAL, call, "opcode %u is unknown", f->opcode);
	case VB_BUILD_FLAGS:
		return vb_refuse(EINVAL, call, "send_flags: %s is not supported on a QP of type %s",
				 vb_name_flags(flags, sizeof flags, VB_FLAGS_SEND,
					       f->flags & ~(uint32_t)VB_BUILD_FLAGS_KNOWN),
				 type);
	case VB_BUILD_NOT_INLINE:
		return vb_refuse(EINVAL, call,
				 "IBV_SEND_INLINE is not supported with %s, which sends no data", name);
	case VB_BUILD_SGES:
		return vb_refuse(EINVAL, call,
				 "num_sge %lld exceeds the limit of QP 0x%06x, %u (max_send_sge)", f->pieces,
				 qp->qpn, qp->req.max_sge);
	case VB_BUILD_INLINE_LENGTH:
		return vb_refuse(
		    EINVAL, call,
		    "%llu bytes of inline data exceed the limit of QP 0x%06x, %u bytes (max_inline_data)",
		    f->length, qp->qpn, qp->req.max_inline);
	case VB_BUILD_FLUSH:
		return vb_refuse(EINVAL, call,
				 "type 0x%x or level %u is not valid; use IBV_FLUSH_GLOBAL and "
				 "IBV_FLUSH_PERSISTENT in type, IBV_FLUSH_RANGE or IBV_FLUSH_MR in level",
				 f->flush_type, f->flush_level);
	case VB_BUILD_NO_ADDRESS:
		return vb_refuse(EINVAL, call,
				 "%s lacks an address handle: QP 0x%06x is of type %s, which requires one",
				 name, qp->qpn, type);
	case VB_BUILD_CALL:
		return vb_refuse(EINVAL, call, "%s does not fit into struct ibv_send_wr; use ibv_wr_%s()",
				 name, f->opcode == VB_WR_FLUSH ? "flush" : "atomic_write");
	case VB_BUILD_LENGTH:
		return vb_refuse(EINVAL, call,
				 "a message of %llu bytes exceeds the port's limit of %u bytes (max_msg_sz)",
				 f->length, qp->req.max_msg);
	}
	return 0;
}

static __attribute__((cold, noinline)) int refuse_request(const struct vb_qp *qp, const char *call,
							  const struct ibv_send_wr *wr,
							  enum vb_build_fault fault)
{
	struct vb_post_facts f = {.opcode = wr->opcode, .flags = wr->send_flags, .pieces = wr->num_sge};

	/* Else the list may be shorter than it says, which the builder has not looked at. */
	if (fault == VB_BUILD_INLINE_LENGTH || fault == VB_BUILD_LENGTH)
		f.length = length_of(wr);
	return vb_post_refuse(qp, call, fault, &f);
}

int vb_post_refuse_full(const struct vb_qp *qp, const char *call)
{
	if (qp->xrcd)
		return vb_refuse(EINVAL, call,
				 "QP 0x%06x is of type IBV_QPT_XRC_RECV, which has no work queues: nothing "
				 "can be posted to it",
				 qp->qpn);
	return vb_refuse(
	    ENOMEM, call,
	    "the send queue of QP 0x%06x is full: all %u requests (max_send_wr) are outstanding; poll the "
	    "CQ. An unsignaled request counts until the completion of a later one is polled",
	    qp->qpn, qp->req.max_wr);
}

int vb_post_refuse_state(const struct vb_qp *qp, enum ibv_qp_state state, const char *call)
{
	/* What brings it on; whoever posts receive requests has no need of more than INIT. */
	static const char *const ways[] = {
	    [IBV_QPS_RESET] =
		": receives require INIT and sends require RTS; modify it first (ibv_modify_qp)",
	    [IBV_QPS_INIT] = ": sends require RTS; modify it to RTR and RTS first (ibv_modify_qp)",
	    [IBV_QPS_RTR] = ": sends require RTS; modify it first (ibv_modify_qp)",
	};
	const char *way = state <= IBV_QPS_RTR ? ways[state] : "";

	int err = vb_live_check(call, qp, VB_LIVE_QP); /* else what it reads is freed memory's */

	if (err)
		return err;
	if (qp->xrcd)
		return vb_post_refuse_full(qp, call);
	if (qp->by_cm == VB_BY_CM && state <= IBV_QPS_RTR)
		way = ": its id is not connected yet; call rdma_connect() or rdma_accept(), and wait for "
		      "RDMA_CM_EVENT_ESTABLISHED";
	if (qp->by_cm == VB_BY_CM_LATE && state <= IBV_QPS_RTR)
		way =
		    ": it was created after rdma_connect() or rdma_accept(), so the connection of its id has "
		    "no queue pair; call rdma_create_qp() first";
	return vb_refuse(EINVAL, call, "QP 0x%06x is in %s%s", qp->qpn, vb_qp_state_name(state), way);
}

int vb_post_refuse_open(const struct vb_qp *qp, const char *call)
{
	return vb_refuse(EINVAL, call,
			 "QP 0x%06x: this thread has called ibv_wr_start(); call ibv_wr_complete() or "
			 "ibv_wr_abort() first",
			 qp->qpn);
}

void vb_post_say_late(struct vb_qp *qp, const char *call)
{
	const uint64_t bit = 1ull << VB_R_FLUSHED;
	bool say;

	if (!vb_lock_try(&qp->lock)) /* a post waits for nobody; the next one says it */
		return;
	say = qp->state == IBV_QPS_ERR && !(qp->said & bit) &&
	      (qp->why.reason == VB_OK || qp->why.reason == VB_R_FLUSHED);
	qp->said |= say ? bit : 0;
	vb_hca_give(qp);
	if (say)
		vb_log(VB_LOG_INFO,
		       "%s: QP 0x%06x is in ERR, since rdma_disconnect or ibv_modify_qp moved it there: its "
		       "requests complete with IBV_WC_WR_FLUSH_ERR",
		       call, qp->qpn);
}

/* A QP that is not in RTS: 0 where it takes requests all the same. */
VB_POST_COLD static int elsewhere(struct vb_qp *qp, enum ibv_qp_state state, const char *call)
{
	if (state < IBV_QPS_RTS)
		return vb_post_refuse_state(qp, state, call);
	if (state == IBV_QPS_ERR)
		vb_post_say_late(qp, call);
	return 0;
}

/* It led nowhere when it was posted last. */
VB_POST_COLD static void lead_again(struct vb_qp *qp, struct vb_swqe *w, struct vb_ah *ah)
{
	w->to.away = ah->group ? VB_TO_GROUP : ah->attr.dlid;
	if (ah->group)
		return;
	vb_ah_lead(vb_qp_hca(qp), ah); /* its address may have come since */
	if (atomic_load_explicit(&ah->dest, memory_order_relaxed) != VB_DEST_NOWHERE)
		return;
	vb_lock_take(&qp->lock);
	qp->dests->away = ah->away;
	vb_hca_give(qp);
}

enum vb_build_fault vb_post_to(struct vb_qp *qp, struct vb_swqe *w, struct ibv_ah *ibah, uint32_t qpn,
			       uint32_t qkey)
{
	struct vb_ah *ah = (struct vb_ah *)ibah;

	if (vb_unlikely(!ah))
		return VB_BUILD_NO_ADDRESS;
	if (vb_unlikely(atomic_load_explicit(&ah->dest, memory_order_relaxed) == VB_DEST_NOWHERE))
		lead_again(qp, w, ah);
	vb_builder_to(qp, w, ah, qpn, qkey);
	if (vb_unlikely(ah->group))
		vb_builder_to_group(w, ah, qpn);
	return VB_BUILD_FINE;
}

/* A request whose filling takes looking around. */
static __attribute__((noinline)) int build_rare(const struct vb_qp *qp, struct vb_swqe *w,
						const struct ibv_send_wr *wr, uint32_t bits,
						enum ibv_mw_type binds)
{
	enum vb_build_fault fault;
	int err = 0;

	if (wr->opcode == IBV_WR_BIND_MW)
		err = vb_mw_check(qp, wr->bind_mw.mw, &wr->bind_mw.bind_info, call_of(binds), binds);
	if (err)
		return err;
	fault = vb_builder_fill_rare(&qp->req, w, wr, bits);
	return fault ? refuse_request(qp, call_of(binds), wr, fault) : 0;
}

/* A request that there is, on a queue pair of a type that has no such: it fails in its turn, as adapters do
 * it. */
static __attribute__((cold, noinline)) int build_foreign(struct vb_swqe *w, const struct ibv_send_wr *wr)
{
	memset(w, 0, sizeof(*w));
	w->wr_id = wr->wr_id;
	w->opcode = (uint8_t)wr->opcode;
	w->flags = IBV_SEND_SIGNALED;
	vb_builder_refused(w, VB_R_QP_TYPE);
	return 0;
}

/* Fills one request; 0 or errno. */
static inline __attribute__((always_inline)) int build(struct vb_builder *b, const struct ibv_send_wr *wr,
						       enum ibv_mw_type binds)
{
	enum vb_build_fault fault = vb_builder_start(b, wr->opcode, wr->send_flags, wr->wr_id);

	if (vb_likely(!fault)) {
		if (vb_unlikely(vb_builder_is_rare(b)))
			return build_rare(b->qp, b->w, wr, b->bits, binds);
		fault = vb_builder_fill(b, wr);
		if (vb_unlikely(b->qp->dests != NULL) && vb_likely(!fault)) /* over what XRC has there */
			fault = vb_post_to(b->qp, b->w, wr->wr.ud.ah, wr->wr.ud.remote_qpn,
					   wr->wr.ud.remote_qkey);
	}
	if (vb_likely(!fault))
		return 0;
	return fault == VB_BUILD_OPCODE && vb_wr_row(wr->opcode)->name
		   ? build_foreign(b->w, wr)
		   : refuse_request(b->qp, call_of(binds), wr, fault);
}

/* binds: the type of window that requests in the list may bind.  caller: of a checked process, the program's
 * code that posts; else NULL. */
static inline __attribute__((always_inline)) int post_send(struct vb_qp *qp, struct ibv_send_wr *wr,
							   struct ibv_send_wr **bad, enum ibv_mw_type binds,
							   const struct vb_caller *caller)
{
	enum ibv_qp_state state;
	struct vb_builder b;
	int err = 0;

	if (vb_unlikely(!vb_builder_begin(&b, qp))) {
		*bad = wr;
		return vb_post_refuse_open(qp, call_of(binds));
	}
	state = vb_qp_state_now(qp); /* nobody changes it but to ERR, where requests are taken as well */
	if (vb_unlikely(state != IBV_QPS_RTS)) {
		err = elsewhere(qp, state, call_of(binds));
		if (err)
			goto end;
	}
	for (; wr; wr = wr->next) {
		if (vb_unlikely(!vb_builder_room(&b))) {
			err = vb_post_refuse_full(qp, call_of(binds));
			break;
		}
		err = build(&b, wr, binds);
		if (vb_unlikely(err))
			break;
		if (caller && b.w->flags & IBV_SEND_INLINE)
			vb_custody_inlined(b.w, wr->sg_list, (uint32_t)wr->num_sge);
		vb_builder_next(&b);
	}
	if (caller)
		vb_custody_sends(qp, b.next, caller);
	vb_builder_publish(&b);
	vb_hca_posted(qp);
end:
	vb_builder_end(&b);
	if (vb_unlikely(err))
		*bad = wr;
	return err;
}

/* One SEND of one piece. */
static inline __attribute__((always_inline)) bool is_common(const struct vb_qp *qp,
							    const struct ibv_send_wr *wr)
{
	return qp->post.brief && wr && !wr->next && wr->opcode == IBV_WR_SEND && wr->num_sge == 1;
}

/* Another thread's request.  The general way may wait for a builder, and nobody else need come by then. */
static __attribute__((cold, noinline)) bool take_left(struct vb_qp *qp)
{
	int err = errno;

	if (vb_lock_try(&qp->lock))
		vb_hca_give(qp);
	errno = err;
	return false;
}

static inline __attribute__((always_inline)) bool send_at_once(struct vb_qp *qp, const struct ibv_send_wr *wr)
{
	enum vb_once once = vb_requester_post(qp, wr);

	return vb_likely(once == VB_ONCE_SENT) || (vb_unlikely(once == VB_ONCE_LEFT) && take_left(qp));
}

VB_CODE_AT_ONCE(vb_post_send, is_common(vb_qp(qp), wr), send_at_once(vb_qp(qp), wr), (qp, wr, bad),
		struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return post_send(vb_qp(qp), wr, bad, IBV_MW_TYPE_2, NULL);
}

VB_POSTED(vb_post_send_checked, (qp, wr, bad, caller), struct ibv_qp *qp, struct ibv_send_wr *wr,
	  struct ibv_send_wr **bad)
{
	if (vb_qp(qp)->dests)
		for (const struct ibv_send_wr *w = wr; w; w = w->next)
			vb_checked_ah(vb_qp(qp), w->wr.ud.ah, w->wr_id, caller->where);
	return post_send(vb_qp(qp), wr, bad, IBV_MW_TYPE_2, caller);
}

int vb_post_bind(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return post_send(vb_qp(qp), wr, &bad, IBV_MW_TYPE_1, NULL);
}

static __attribute__((cold, noinline)) int refuse_receive(const struct vb_qp *qp)
{
	if (qp->ibv.qp_type == IBV_QPT_XRC_SEND)
		return vb_refuse(EINVAL, "ibv_post_recv",
				 "QP 0x%06x is of type IBV_QPT_XRC_SEND, which has no receive queue",
				 qp->qpn);
	return vb_refuse(EINVAL, "ibv_post_recv",
			 "QP 0x%06x receives from an SRQ; post to the SRQ with ibv_post_srq_recv()", qp->qpn);
}

/* What was posted to a QP in the error state (rule 30). */
static __attribute__((cold, noinline)) void flush_receives(struct vb_qp *qp)
{
	vb_post_say_late(qp, "ibv_post_recv");
	vb_lock_take(&qp->lock);
	if (qp->state == IBV_QPS_ERR)
		qp->transport->flush(qp);
	vb_hca_give(qp);
}

/* Why a receive was not posted. */
static __attribute__((cold, noinline)) int refuse_full(struct vb_qp *qp, const struct ibv_recv_wr *wr)
{
	uint32_t arrived;

	vb_lock_take(&qp->lock);
	arrived = vb_rq_arrived(&qp->resp.rq);
	vb_hca_give(qp);
	return vb_rq_refuse(&qp->resp.rq, wr, arrived, "ibv_post_recv");
}

static inline __attribute__((always_inline)) int post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr,
							   struct ibv_recv_wr **bad,
							   const struct vb_caller *caller)
{
	struct vb_qp *qp = vb_qp(ibqp);
	enum ibv_qp_state state;
	bool all = true;
	uint32_t head;
	int err = 0;

	if (vb_unlikely(qp->no_rq)) { /* rule 34 */
		*bad = wr;
		return refuse_receive(qp);
	}
	vb_lock_take(&qp->post.receives);
	state = vb_qp_state_now(qp);
	if (vb_unlikely(state == IBV_QPS_RESET)) {
		err = vb_post_refuse_state(qp, state, "ibv_post_recv");
		*bad = wr;
	} else {
		head = vb_rq_fill(&qp->resp.rq, wr, bad, &all);
		if (caller)
			vb_custody_receives(qp, head, caller);
		vb_rq_publish(&qp->resp.rq, head);
	}
	vb_lock_give(&qp->post.receives);
	if (vb_unlikely(!all))
		err =
		    refuse_full(qp, *bad); /* no longer under post.receives, which is taken under qp->lock */
	if (vb_unlikely(state == IBV_QPS_ERR))
		flush_receives(qp);
	return err;
}

/* Posts as many of the list as there is room for.  It returns false if some are left, at *wr, or if the state
 * of the queue pair permits none. */
static inline __attribute__((always_inline)) bool recv_at_once(struct vb_qp *qp, struct ibv_recv_wr **wr)
{
	enum ibv_qp_state state;
	bool all = false;

	vb_lock_take(&qp->post.receives);
	state = vb_qp_state_now(qp);
	if (vb_likely(state != IBV_QPS_RESET && state != IBV_QPS_ERR))
		vb_rq_publish(&qp->resp.rq, vb_rq_fill(&qp->resp.rq, *wr, wr, &all));
	vb_lock_give(&qp->post.receives);
	return all;
}

VB_CODE_AT_ONCE(vb_post_recv, !vb_qp(qp)->no_rq, recv_at_once(vb_qp(qp), &wr), (qp, wr, bad),
		struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return post_recv(qp, wr, bad, NULL);
}

VB_POSTED(vb_post_recv_checked, (qp, wr, bad, caller), struct ibv_qp *qp, struct ibv_recv_wr *wr,
	  struct ibv_recv_wr **bad)
{
	return post_recv(qp, wr, bad, caller);
}
