#include "verbs/checked.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "mem/check_buffers.h"
#include "obj/context.h"
#include "obj/live.h"
#include "verbs/mr.h"
#include "verbs/verbs.h"

/* ---- regions that requests use ---- */

static bool is_news(const char *kind, const void *where)
{
	bool news;

	vb_lock_take(&vb_check_lock);
	news = vb_check_is_news(kind, where);
	vb_lock_give(&vb_check_lock);
	return news;
}

static bool names_key(const struct vb_check_request *r, uint32_t lkey)
{
	for (uint32_t i = 0; i < r->num; i++)
		if (r->piece[i].lkey == lkey)
			return true;
	return false;
}

/* Whether the adapter would still touch the request's memory.  A completion that waits to be polled is as
 * good as one that was; so is a queue pair that is not connected, or in error. */
static bool qp_has(const struct vb_qp *qp, const struct vb_check_request *r)
{
	const struct vb_check_queue *q = r->queue;
	enum ibv_qp_state state = vb_qp_state_now(qp);

	if (q->kind == VB_CHECK_SENDS)
		return qp->qpn == q->number && (state == IBV_QPS_RTS || state == IBV_QPS_SQD) &&
		       (int32_t)(r->index - __atomic_load_n(&qp->req.una, __ATOMIC_RELAXED)) >= 0;
	if (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_SQD)
		return false;
	if (q->kind == VB_CHECK_RECEIVES)
		return qp->qpn == q->number &&
		       (int32_t)(r->index - __atomic_load_n(&qp->resp.rq.tail, __ATOMIC_RELAXED)) >= 0;
	return qp->srq && qp->srq->number == q->number &&
	       (int32_t)(r->index - __atomic_load_n(&qp->srq->rq.tail, __ATOMIC_RELAXED)) >= 0;
}

static bool is_outstanding(struct vb_context *c, const struct vb_check_request *r)
{
	vb_lock_assert_held(&c->lock);
	vb_list_each (n, &c->qps) {
		const struct vb_qp *qp = vb_list_entry(n, struct vb_qp, on_ctx);

		if (!qp->of && !qp->far && qp_has(qp, r))
			return true;
	}
	return false;
}

/* The oldest outstanding request that names the key: the code that posted it, NULL: there is none; and its
 * name. */
static const void *find_user(struct vb_context *c, uint32_t lkey, char whose[VB_CHECK_WHOSE])
{
	const struct vb_check_request *user = NULL;
	const void *where = NULL;

	vb_lock_take(&c->lock);
	vb_lock_take(&vb_check_lock);
	vb_list_each (n, &vb_check_requests) {
		const struct vb_check_request *r = vb_list_entry(n, struct vb_check_request, on_all);

		if (!names_key(r, lkey) || !is_outstanding(c, r))
			continue;
		user = r;
		break;
	}
	vb_lock_give(&c->lock);
	if (user) {
		where = user->where;
		(void)vb_check_whose(whose, user);
	}
	vb_lock_give(&vb_check_lock);
	return where;
}

/* The program takes the region's memory away: it `does` that. */
static void look_for_user(const struct vb_mr *mr, const char *call, const char *does)
{
	char whose[VB_CHECK_WHOSE];
	const void *where = find_user(vb_context(mr->ibv.context), mr->ibv.lkey, whose);

	if (where && is_news("check-deregistered", where))
		vb_log_reason("check-deregistered",
			      "%s: the program %s the region of L_Key 0x%08x while a request that uses "
			      "it is outstanding: %s. Poll its completion, or destroy the queue pair, "
			      "first",
			      call, does, mr->ibv.lkey, whose);
}

void vb_checked_dereg(const struct vb_mr *mr, const char *call)
{
	if (vb_likely(!vb_check_on) || !vb_check_is_active())
		return;
	vb_check_key_ended(mr->ibv.lkey, VB_CHECK_DEREGISTERED);
	look_for_user(mr, call, "deregisters");
}

void vb_checked_rereg(const struct vb_mr *mr, const char *call)
{
	if (vb_unlikely(vb_check_on) && vb_check_is_active())
		look_for_user(mr, call, "changes");
}

/* ---- address handles ---- */

enum { BURIED = 1024 };

static struct ibv_ah *buried[BURIED]; /* a ring; guarded by the lock */
static uint32_t nburied;
static struct vb_lock bury_lock;

bool vb_checked_bury(struct ibv_ah *ah)
{
	struct ibv_ah *old;

	if (vb_likely(!vb_check_on) || !vb_check_is_active())
		return false;
	vb_lock_take(&bury_lock);
	old = buried[nburied % BURIED];
	buried[nburied++ % BURIED] = ah;
	vb_check_handed();
	vb_lock_give(&bury_lock);
	free(old);
	return true;
}

static bool is_buried(const struct ibv_ah *ah)
{
	bool is = false;

	vb_lock_take(&bury_lock);
	for (uint32_t i = 0; i < BURIED && !is; i++)
		is = buried[i] == ah;
	vb_lock_give(&bury_lock);
	return is;
}

void vb_checked_ah(const struct vb_qp *qp, const struct ibv_ah *ah, uint64_t wr_id, const void *where)
{
	struct vb_check_queue q = {.kind = VB_CHECK_SENDS, .number = qp->qpn};
	const struct vb_check_request r = {
	    .queue = &q, .wr_id = wr_id, .opcode = IBV_WR_SEND, .where = where};
	char name[VB_CHECK_WHOSE];

	if (!ah || !is_buried(ah) || !is_news("check-ah", where))
		return;
	vb_log_reason(
	    "check-ah",
	    "the program uses an address handle that it has destroyed: %s names %p. Destroy it when no "
	    "request needs it any more",
	    vb_check_name(name, sizeof(name), &r), (const void *)ah);
}

/* ---- what is left at exit() ---- */

/* What programs are told of: an open device and its domains may be those of rdma_cm, which stay. */
static const struct {
	enum vb_live kind;
	const char *name, *plural;
} kinds[] = {
    {VB_LIVE_QP, "queue pair", "queue pairs"},
    {VB_LIVE_CM_ID, "rdma_cm_id", "rdma_cm_ids"},
    {VB_LIVE_MR, "memory region", "memory regions"},
    {VB_LIVE_MW, "memory window", "memory windows"},
    {VB_LIVE_SRQ, "shared receive queue", "shared receive queues"},
    {VB_LIVE_CQ, "completion queue", "completion queues"},
    {VB_LIVE_CHANNEL, "completion channel", "completion channels"},
    {VB_LIVE_AH, "address handle", "address handles"},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

struct left {
	unsigned objects[VB_LIVE_KINDS];
	unsigned completions, failed, queues; /* that were never polled, which of them are errors, and CQs */
	unsigned events;		      /* that were never fetched or acknowledged */
	struct ibv_wc first;		      /* of those completions */
};

static void look_at_cq(struct left *l, struct vb_cq *cq)
{
	uint32_t head;

	l->events += cq->undelivered + cq->delivered - cq->ibv.comp_events_completed;
	if (!vb_lock_try(&cq->lock))
		return;
	head = atomic_load_explicit(&cq->head, memory_order_relaxed);
	for (uint32_t i = atomic_load_explicit(&cq->tail, memory_order_relaxed); i != head; i++) {
		const struct ibv_wc *wc = &cq->ring[i & cq->mask].wc;

		if (!l->completions++)
			l->first = *wc;
		l->failed += wc->status != IBV_WC_SUCCESS;
	}
	l->queues += !vb_cq_is_empty(cq);
	vb_lock_give(&cq->lock);
}

/* Under the shard's lock no object of it ends.  Another thread may be in the middle of anything. */
static void look_at_shard(struct left *l, struct vb_live_shard *s)
{
	if (!vb_lock_try(&s->lock))
		return;
	for (uint32_t i = 0; i < s->size; i++) {
		enum vb_live kind = vb_live_kind(s->places[i]);

		if (!s->places[i] || kind >= VB_LIVE_KINDS)
			continue;
		l->objects[kind]++;
		if (kind == VB_LIVE_CQ)
			look_at_cq(l, (struct vb_cq *)(uintptr_t)vb_live_address(s->places[i]));
	}
	vb_lock_give(&s->lock);
}

static void say_objects(const struct left *l)
{
	char text[300] = "";
	struct vb_text t = {text, sizeof(text)};

	for (unsigned i = 0; i < KINDS; i++) {
		unsigned n = l->objects[kinds[i].kind];

		if (n)
			vb_text_add(&t, "%s%u %s", *text ? ", " : "", n,
				    n == 1 ? kinds[i].name : kinds[i].plural);
	}
	if (*text)
		vb_log_note("the program ended with objects that it did not destroy: %s", text);
}

static void say_completions(const struct left *l)
{
	if (l->completions)
		vb_log_note(
		    "the program ended with %u completion%s that it never polled, in %u CQ%s; %u %s a "
		    "failure. The first is of wr_id %" PRIu64 " on QP 0x%06x: %s",
		    l->completions, l->completions == 1 ? "" : "s", l->queues, l->queues == 1 ? "" : "s",
		    l->failed, l->failed == 1 ? "is" : "are", l->first.wr_id, l->first.qp_num,
		    ibv_wc_status_str(l->first.status));
	if (l->events)
		vb_log_note(
		    "the program ended with %u completion event%s that it never fetched or acknowledged "
		    "(ibv_get_cq_event, ibv_ack_cq_events)",
		    l->events, l->events == 1 ? "" : "s");
	if (l->objects[VB_LIVE_CM_EVENT])
		vb_log_note("the program ended with %u event%s of rdma_cm that it never acknowledged "
			    "(rdma_ack_cm_event)",
			    l->objects[VB_LIVE_CM_EVENT], l->objects[VB_LIVE_CM_EVENT] == 1 ? "" : "s");
}

/* After the program's own handlers of exit().  One that ends by a signal or by _exit() does not come here. */
static __attribute__((destructor)) void look_at_exit(void)
{
	struct left l = {.completions = 0};

	if (!vb_check_on || !vb_check_is_active())
		return;
	for (unsigned i = 0; i < VB_LIVE_SHARDS; i++)
		look_at_shard(&l, &vb_live_shards[i]);
	say_objects(&l);
	say_completions(&l);
	vb_log_tell();
}
