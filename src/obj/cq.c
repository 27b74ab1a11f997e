#include "obj/cq.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "host/adapter.h"
#include "iba/facts.h"
#include "obj/context.h"
#include "obj/qp.h"
#include "obj/ring.h"
#include "obj/srq.h"

#define relaxed memory_order_relaxed

enum { NEAR = 64 }; /* entries behind which an empty ring begins anew */

static struct vb_adapter *adapter_of(const struct vb_cq *cq)
{
	return cq->ctx ? cq->ctx->adapter : NULL;
}

/* One ring for a capacity, and the times beside it where they are wanted. */
struct store {
	struct vb_queue_mem mem;
	struct vb_cq_stamp *stamps;
	uint32_t entries;
};

static void free_store(struct store *r)
{
	vb_queue_free(&r->mem);
	vb_ring_free(r->stamps, r->entries * sizeof(*r->stamps));
}

/* 0 or errno, which has been said. */
static int new_store(struct store *r, const struct vb_cq *cq, uint32_t cqe, const char *call)
{
	uint32_t entries = vb_ring_entries(cqe);
	int err;

	*r = (struct store){.entries = entries};
	err = vb_queue_alloc(&r->mem, cq->parent, VB_QUEUE_CQ, entries * sizeof(struct vb_cqe), cqe, call);
	if (err || !cq->stamping)
		return err;
	r->stamps = vb_ring_alloc(entries * sizeof(*r->stamps));
	if (r->stamps)
		return 0;
	free_store(r);
	return vb_refuse(ENOMEM, call, "out of memory for the timestamps of %u completions", cqe);
}

/* Returns what the CQ had before. */
static struct store put_store(struct vb_cq *cq, const struct store *r, uint32_t cqe)
{
	struct store old = {.mem = cq->mem, .stamps = cq->stamps, .entries = cq->mask + 1};

	cq->mem = r->mem;
	cq->ring = r->mem.at;
	cq->stamps = r->stamps;
	cq->mask = r->entries - 1;
	cq->cqe = cqe;
	cq->quick = cq->stamping ? 0 : cqe;
	return old;
}

int vb_cq_init(struct vb_cq *cq, uint32_t cqe)
{
	struct store r;
	int err = new_store(&r, cq, cqe, "ibv_create_cq"); /* pairs with vb_cq_fini() */

	if (err)
		return err;
	put_store(cq, &r, cqe);
	vb_list_init(&cq->node);
	vb_list_init(&cq->on_hca);
	vb_list_init(&cq->on_device);
	atomic_store_explicit(&cq->moderation.until, VB_NEVER, relaxed);
	vb_async_init(&cq->ev_overrun, IBV_EVENT_CQ_ERR, &cq->ibv);
	return 0;
}

void vb_cq_fini(struct vb_cq *cq)
{
	struct vb_channel *ch = cq->channel;
	struct store none = {0}, had;
	bool armed;

	vb_lock_take(&cq->lock); /* a thread that holds an event of the CQ may still arm or resize it */
	armed = cq->armed != VB_ARM_NONE;
	cq->armed = VB_ARM_NONE;
	had = put_store(cq, &none, 0);
	vb_lock_give(&cq->lock);
	free_store(&had);
	if (armed && adapter_of(cq))
		vb_adapter_disarm(adapter_of(cq));
	if (ch) {
		vb_lock_take(&ch->evq.lock);
		vb_list_unlink(&cq->node);
		vb_evq_take_back(&ch->evq, cq->undelivered);
		cq->undelivered = 0;
		vb_lock_give(&ch->evq.lock);
	}
	if (cq->ctx)
		vb_async_cancel(cq->ctx, &cq->ev_overrun);
}

/* Entry i of the ring becomes entry j of another. */
static inline void move(struct vb_cqe *to, struct vb_cq_stamp *times, uint32_t j, const struct vb_cq *cq,
			uint32_t i)
{
	to[j] = cq->ring[i & cq->mask];
	if (cq->stamps)
		times[j] = cq->stamps[i & cq->mask];
}

int vb_cq_resize(struct vb_cq *cq, uint32_t cqe, uint32_t *held)
{
	struct store r;
	uint32_t tail, head;
	int err = new_store(&r, cq, cqe, "ibv_resize_cq");

	*held = 0;
	if (err)
		return err;
	vb_lock_take(&cq->lock);
	tail = atomic_load_explicit(&cq->tail, relaxed);
	head = atomic_load_explicit(&cq->head, relaxed);
	if (head - tail > cqe) { /* rule 31: resizing must not drop */
		*held = head - tail;
		err = EINVAL;
	} else {
		for (uint32_t i = tail; i != head; i++)
			move(r.mem.at, r.stamps, i & (r.entries - 1), cq, i);
		r = put_store(cq, &r, cqe);
	}
	vb_lock_give(&cq->lock);
	free_store(&r);
	return err;
}

bool vb_cq_arm_for(struct vb_cq *cq, bool solicited_only)
{
	bool was_armed;

	vb_lock_take(&cq->lock);
	was_armed = cq->armed != VB_ARM_NONE;
	cq->arms++;
	if (!solicited_only)
		cq->armed = VB_ARM_NEXT; /* rule 32: a "next" request wins */
	else if (!was_armed)
		cq->armed = VB_ARM_SOLICITED;
	vb_lock_give(&cq->lock);
	return was_armed;
}

static bool satisfies(const struct vb_cq *cq, const struct vb_cqe *e, bool solicited)
{
	return cq->armed == VB_ARM_NEXT || solicited || e->wc.status != IBV_WC_SUCCESS; /* rule 32 */
}

/* The event exists once the arming is used up (rule 31).  Its token comes from tell_event(). */
static struct vb_evq *link_event(struct vb_cq *cq)
{
	struct vb_evq *q = &cq->channel->evq;

	vb_lock_assert_held(&cq->lock);
	cq->armed = VB_ARM_NONE;
	cq->moderation.held = 0;
	atomic_store_explicit(&cq->moderation.until, VB_NEVER, relaxed);
	vb_lock_take(&q->lock);
	if (cq->undelivered++ == 0)
		vb_list_append(&q->nodes, &cq->node);
	vb_lock_give(&q->lock);
	return q;
}

/* Without the CQ's lock. */
static void tell_event(const struct vb_cq *cq, struct vb_evq *q)
{
	if (adapter_of(cq))
		vb_adapter_disarm(adapter_of(cq));
	vb_evq_add(q);
}

/* One more completion that satisfies the arming: NULL if the event waits for more of them, or for its time.
 * That is in *until where it begins now, else VB_NEVER. */
static struct vb_evq *count_event(struct vb_cq *cq, uint64_t *until)
{
	struct vb_cq_moderation *m = &cq->moderation;

	vb_lock_assert_held(&cq->lock);
	*until = VB_NEVER;
	if (vb_likely(++m->held >= m->count))
		return link_event(cq);
	if (m->held == 1) {
		*until = vb_now() + m->period;
		atomic_store_explicit(&m->until, *until, relaxed);
	}
	return NULL;
}

/* Gives the CQ's lock back, with an entry in the ring that the arming is for. */
static __attribute__((noinline)) void notify(struct vb_cq *cq)
{
	uint64_t until;
	struct vb_evq *q = count_event(cq, &until);

	vb_lock_give(&cq->lock);
	if (q)
		tell_event(cq, q);
	else if (until != VB_NEVER && cq->ops)
		cq->ops->held(cq, until);
}

void vb_cq_moderate(struct vb_cq *cq, uint32_t count, uint64_t period)
{
	struct vb_cq_moderation *m = &cq->moderation;
	struct vb_evq *q = NULL;

	vb_lock_take(&cq->lock);
	m->count = count;
	m->period = period;
	if (m->held)
		q = link_event(cq);
	vb_lock_give(&cq->lock);
	if (q)
		tell_event(cq, q);
}

uint64_t vb_cq_release(struct vb_cq *cq, uint64_t now)
{
	struct vb_evq *q = NULL;
	uint64_t until = atomic_load_explicit(&cq->moderation.until, relaxed);

	if (until > now)
		return until;
	vb_lock_take(&cq->lock);
	until = atomic_load_explicit(&cq->moderation.until, relaxed); /* it may be another event's by now */
	if (until <= now)
		q = link_event(cq);
	vb_lock_give(&cq->lock);
	if (!q)
		return until;
	tell_event(cq, q);
	return VB_NEVER;
}

__thread struct vb_cq_hand *vb_cq_hand;

/* The slot of the request that this entry completes is free again.  Under the CQ's lock, or under that of the
 * QP while the CQ is empty. */
static inline void give_slot(const struct vb_cqe *e)
{
	if (e->is_send)
		vb_sq_give(e->qp, e->sq_free);
	else if (e->srq)
		vb_srq_give(e->srq);
	else
		vb_rq_give(&e->qp->resp.rq);
}

/* For the CQ and all its queue pairs, which enter the error state without a line of their own. */
static __attribute__((cold, noinline)) void say_overrun(uint32_t cqe, uint32_t qpn)
{
	const struct vb_facts f = {.reason = VB_R_CQ_OVERRUN, .qpn = qpn, .limit = {.most = cqe}};
	char text[256], facts[VB_LOG_FACTS];

	if (vb_log_wanted(VB_LOG_WARN))
		vb_log_reason_facts(
		    vb_reasons[f.reason].name, vb_facts_logged(facts, &f),
		    "QP 0x%06x: a completion is lost, and the CQ and all its queue pairs enter "
		    "the error state: %s",
		    qpn, vb_reason_say(text, sizeof text, &f));
}

/* Gives the CQ's lock back.  The entry is lost; the slot in an SRQ, which others use, is not. */
static bool refuse_push(struct vb_cq *cq, const struct vb_cqe *e)
{
	bool first = !atomic_load_explicit(&cq->overrun, relaxed);
	uint32_t cqe = cq->cqe;

	vb_lock_assert_held(&cq->lock);
	atomic_store_explicit(&cq->overrun, true, relaxed);
	vb_lock_give(&cq->lock);
	if (!e->is_send && e->srq)
		vb_srq_give(e->srq);
	if (!first || !cq->ctx)
		return false;
	say_overrun(cqe, e->wc.qp_num);
	vb_async_post(cq->ctx, &cq->ev_overrun); /* rule 31 */
	if (cq->ops)
		cq->ops->overran(cq);
	return false;
}

static struct vb_cq_stamp now(uint8_t stamping)
{
	struct vb_cq_stamp s = {0};
	struct timespec t;

	if (stamping & VB_STAMP_CLOCK)
		s.clock = vb_now();
	if (stamping & VB_STAMP_WALL) {
		clock_gettime(CLOCK_REALTIME, &t);
		s.wall = (uint64_t)t.tv_sec * VB_SEC + (uint64_t)t.tv_nsec;
	}
	return s;
}

/* What only some pushes have to see to: the CQ is full, or in error, or wants to know when.  false: there is
 * no room. */
static __attribute__((noinline)) bool prepare_push(struct vb_cq *cq, uint32_t head)
{
	uint32_t tail = atomic_load_explicit(&cq->tail, relaxed);

	vb_lock_assert_held(&cq->lock);
	if (atomic_load_explicit(&cq->overrun, relaxed))
		return false;
	if (head - tail >= cq->cqe) {
		if (!cq->lossy)
			return false;
		give_slot(&cq->ring[tail & cq->mask]);
		atomic_store_explicit(&cq->tail, tail + 1,
				      memory_order_release); /* pairs with vb_cq_handed() */
	}
	if (cq->stamping)
		cq->stamps[head & cq->mask] = now(cq->stamping);
	return true;
}

bool vb_cq_push(struct vb_cq *cq, const struct vb_cqe *e, bool solicited)
{
	uint32_t head;

	vb_lock_take(&cq->lock);
	head = atomic_load_explicit(&cq->head, relaxed);
	if (vb_unlikely(head - atomic_load_explicit(&cq->tail, relaxed) >= cq->quick ||
			atomic_load_explicit(&cq->overrun, relaxed)) &&
	    !prepare_push(cq, head))
		return refuse_push(cq, e);
	cq->ring[head & cq->mask] = *e;
	atomic_store_explicit(&cq->head, head + 1, relaxed);
	if (vb_unlikely(cq->armed != VB_ARM_NONE) && satisfies(cq, e, solicited)) {
		notify(cq);
		return true;
	}
	vb_lock_give(&cq->lock);
	return true;
}

/* The queue is empty, and goes on at the ring's beginning: so a ring is used, and its pages are there, as far
 * as it was ever filled, and not all the way round.  Both run on as ever, so whoever compares them without
 * the lock sees the queue empty or looks at it once in vain. */
static __attribute__((noinline)) void begin_anew(struct vb_cq *cq, uint32_t tail)
{
	uint32_t next = (tail | cq->mask) + 1;

	vb_lock_assert_held(&cq->lock);
	atomic_store_explicit(&cq->head, next, relaxed);
	atomic_store_explicit(&cq->tail, next, memory_order_release);
}

/* Whether a queue that is empty at `tail` is to go on at the beginning. */
static inline bool ends_far(const struct vb_cq *cq, uint32_t tail)
{
	return (tail & cq->mask) >= NEAR;
}

/* What stood before `tail` has been taken. */
static inline void take_up_to(struct vb_cq *cq, uint32_t tail, uint32_t head)
{
	vb_lock_assert_held(&cq->lock);
	if (vb_unlikely(ends_far(cq, tail)) && tail == head)
		begin_anew(cq, tail);
	else
		atomic_store_explicit(&cq->tail, tail, memory_order_release); /* pairs with vb_cq_handed() */
}

static __attribute__((cold, noinline)) int in_error(void)
{
	errno = EIO;
	return -1;
}

int vb_cq_poll(struct vb_cq *cq, int n, struct ibv_wc *wc)
{
	uint32_t tail, head;
	int i;

	if (vb_cq_is_empty(cq))
		return vb_unlikely(atomic_load_explicit(&cq->overrun, relaxed)) ? in_error() : 0;
	vb_lock_take(&cq->lock);
	tail = atomic_load_explicit(&cq->tail, relaxed);
	head = atomic_load_explicit(&cq->head, relaxed);
	for (i = 0; i < n && tail != head; i++, tail++) {
		const struct vb_cqe *e = &cq->ring[tail & cq->mask];

		wc[i] = e->wc;
		give_slot(e);
	}
	take_up_to(cq, tail, head);
	vb_lock_give(&cq->lock);
	return i;
}

static inline void take_to_turn(struct vb_cq *cq, uint32_t tail)
{
	const struct vb_cqe *e = &cq->ring[tail & cq->mask];

	cq->turn.wc = e->wc;
	if (cq->stamps)
		cq->turn.stamp = cq->stamps[tail & cq->mask];
	give_slot(e);
}

inline __attribute__((always_inline)) int vb_cq_next(struct vb_cq *cq)
{
	uint32_t tail, head;

	vb_lock_take(&cq->lock);
	tail = atomic_load_explicit(&cq->tail, relaxed);
	head = atomic_load_explicit(&cq->head, relaxed);
	if (vb_unlikely(tail == head)) {
		vb_lock_give(&cq->lock);
		return atomic_load_explicit(&cq->overrun, relaxed) ? EIO : ENOENT;
	}
	take_to_turn(cq, tail);
	take_up_to(cq, tail + 1, head);
	vb_lock_give(&cq->lock);
	return 0;
}

inline __attribute__((always_inline)) bool vb_cq_next_at_once(struct vb_cq *cq)
{
	uint32_t tail, head;

	if (vb_unlikely(!vb_lock_seize(&cq->lock)))
		return false;
	tail = atomic_load_explicit(&cq->tail, relaxed);
	head = atomic_load_explicit(&cq->head, relaxed);
	if (vb_unlikely(head == tail || (head == tail + 1 && ends_far(cq, head)))) {
		vb_lock_give(&cq->lock);
		return false;
	}
	take_to_turn(cq, tail);
	atomic_store_explicit(&cq->tail, tail + 1, memory_order_release); /* pairs with vb_cq_handed() */
	vb_lock_give(&cq->lock);
	return true;
}

/* The entries of a QP, or of an SRQ; the other is NULL.  Closes the gaps, so that what nobody will poll takes
 * no room from others. */
static void forget(struct vb_cq *cq, const struct vb_qp *qp, const struct vb_srq *srq)
{
	uint32_t head, to;

	vb_lock_take(&cq->lock);
	head = atomic_load_explicit(&cq->head, relaxed);
	to = atomic_load_explicit(&cq->tail, relaxed);
	for (uint32_t i = to; i != head; i++) {
		const struct vb_cqe *e = &cq->ring[i & cq->mask];

		if (qp ? e->qp != qp : e->is_send || e->srq != srq) {
			if (to != i)
				move(cq->ring, cq->stamps, to & cq->mask, cq, i);
			to++;
		} else {
			give_slot(e);
		}
	}
	atomic_store_explicit(&cq->head, to, relaxed);
	vb_lock_give(&cq->lock);
}

void vb_cq_forget(struct vb_cq *cq, struct vb_qp *qp)
{
	forget(cq, qp, NULL);
}

void vb_cq_forget_srq(struct vb_cq *cq, struct vb_srq *srq)
{
	forget(cq, NULL, srq);
}
