/* Extended CQs: their attributes, and one completion at a time.
 *
 * From ibv_start_poll() to ibv_end_poll() the calling thread has the consumer's side (obj/cq.h: struct
 * vb_cq_turn), and one completion stands there for the program to read.  It has left the queue, and its
 * request's slot is free; so nothing else waits meanwhile, and what the program does with queue pairs in
 * between changes nothing of it.
 *
 * The functions that read are filled in whether or not their field was asked for at creation: but for the
 * times, which cost something, all of it is there anyway. */
#include <errno.h>
#include <string.h>

#include "base/waiting.h"
#include "base/log.h"
#include "base/clock.h"
#include "iba/names.h"
#include "iba/waits.h"
#include "obj/custody.h"
#include "verbs/cq.h"

#define CALL "ibv_create_cq_ex"

/* The rest belongs to raw packets and tag matching. */
#define WC_FLAGS                                                       \
	(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | \
	 IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
#define MASK  (uint32_t)(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD)
#define FLAGS (uint32_t)(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN)

enum { SPINS = 64 }; /* of waiting for another thread's turn to end; from then on the CPU is given away */

static struct vb_cq *cq_of(struct ibv_cq_ex *ex)
{
	return (struct vb_cq *)ex;
}

/* ---- one completion at a time ---- */

static inline bool in_turn(const struct vb_cq *cq)
{
	return atomic_load_explicit(&cq->turn.holder, memory_order_relaxed);
}

/* false: it is taken. */
static inline bool try_turn(struct vb_cq_turn *t)
{
	uintptr_t nobody = 0;

	if (vb_likely(!t->alone))
		return atomic_compare_exchange_strong_explicit(&t->holder, &nobody, vb_thread_self(),
							       memory_order_acquire, memory_order_relaxed);
	if (atomic_load_explicit(&t->holder, memory_order_relaxed))
		return false;
	atomic_store_explicit(&t->holder, vb_thread_self(), memory_order_relaxed);
	return true;
}

static void say_taken(const struct vb_waiting *w, uint64_t now)
{
	vb_wait_say(VB_W_TURN,
		    "ibv_start_poll() has waited for %.1f s in thread %u: another thread has called "
		    "ibv_start_poll() on this CQ and has not called ibv_end_poll()",
		    (double)(now - w->since) / 1e9, atomic_load(&w->tid));
	vb_log_tell();
}

static __attribute__((cold, noinline)) void wait_for_turn(struct vb_cq_turn *t)
{
	struct vb_waiting *w = NULL;
	uint64_t began = 0, now;

	while (!try_turn(t)) {
		for (int i = 0; i < SPINS && atomic_load_explicit(&t->holder, memory_order_relaxed); i++)
			vb_cpu_relax();
		if (!atomic_load_explicit(&t->holder, memory_order_relaxed))
			continue;
		if (began && !w)
			w = vb_waiting_begin(VB_WAITING_TURN, vb_containerof(t, struct vb_cq, turn), 0);
		vb_cpu_offer(&began);
		now = vb_now();
		if (vb_waiting_is_long(w, now))
			say_taken(w, now);
	}
	vb_waiting_end(w);
}

static inline void end_turn(struct vb_cq_turn *t)
{
	atomic_store_explicit(&t->holder, 0, memory_order_release); /* pairs with try_turn() */
}

/* What the program reads without a function. */
static inline void show(struct vb_cq *cq)
{
	cq->ex.wr_id = cq->turn.wc.wr_id;
	cq->ex.status = cq->turn.wc.status;
}

/* Makes progress.  Whether it brought a completion straight to its place; one that is to have its times goes
 * through the queue, where it gets them. */
static inline bool receive(struct vb_cq *cq, struct vb_rxq *where)
{
	struct vb_cq_hand hand = {.cq = cq, .at = &cq->turn.wc, .end = &cq->turn.wc + !cq->stamping};
	bool some;

	vb_cq_hand = &hand;
	some = vb_hca_poll(cq->ctx->adapter, where);
	vb_cq_hand = NULL;
	if (hand.at != &cq->turn.wc) {
		vb_hca_polled_well();
		return true;
	}
	if (some)
		vb_cq_polled(cq);
	return false;
}

/* Whether this thread has a turn already, for whose end it would wait for ever. */
static int check_turn(const struct vb_cq *cq)
{
	uintptr_t holder = atomic_load_explicit(&cq->turn.holder, memory_order_relaxed);

	if (!holder || (holder != vb_thread_self() && !cq->turn.alone))
		return 0;
	return vb_refuse(EINVAL, "ibv_start_poll",
			 "a poll of this CQ is in progress: ibv_start_poll() returned 0; call "
			 "ibv_next_poll() for the next completion, or ibv_end_poll() first");
}

/* 0 with the consumer's side held, ENOENT, EINVAL or EIO. */
static inline int start(struct vb_cq *cq, struct vb_rxq *where)
{
	int err = 0;

	if (vb_unlikely(!try_turn(&cq->turn))) {
		err = check_turn(cq);
		if (err)
			return err;
		if (!where && vb_cq_is_empty(cq))
			return ENOENT;
		wait_for_turn(&cq->turn);
	}
	/* where there is nothing to look at, it is lines of the log that led here */
	if (!vb_cq_is_empty(cq) || vb_unlikely(!where || !cq->ctx->adapter) || !receive(cq, where))
		err = vb_cq_next(cq);
	if (vb_likely(!err))
		show(cq);
	else
		end_turn(&cq->turn);
	return err;
}

static __attribute__((noinline)) int start_all(struct vb_cq *cq, struct vb_rxq *where)
{
	int was = errno;

	return vb_leave_found(was, start(cq, where));
}

/* A completion is there, unless another thread is quicker.  Nothing that waits is called here, which would
 * cost each poll registers. */
static __attribute__((noinline)) int start_there(struct vb_cq *cq)
{
	if (vb_unlikely(!try_turn(&cq->turn)))
		return start_all(cq, VB_POLL_ALL);
	if (vb_unlikely(!vb_cq_next_at_once(cq))) {
		end_turn(&cq->turn);
		return start_all(cq, VB_POLL_ALL);
	}
	show(cq);
	return 0;
}

static __attribute__((cold, noinline)) int refuse_start(const struct vb_cq *cq,
							const struct ibv_poll_cq_attr *attr)
{
	int was = errno;

	if (cq->ctx->dead)
		return vb_leave_code(was, vb_refuse_forked("ibv_start_poll"));
	return vb_leave_code(was, vb_refuse_bits(EINVAL, "ibv_start_poll", "comp_mask", attr->comp_mask, 0));
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct vb_cq *cq = cq_of(ex);
	struct vb_rxq *where;

	if (vb_unlikely(attr->comp_mask | cq->ctx->dead))
		return refuse_start(cq, attr);
	if (!vb_cq_is_empty(cq))
		return vb_log_left() ? start_all(cq, VB_POLL_ALL) : start_there(cq);
	where = vb_cq_to_poll(cq);
	if (vb_likely(!where && !vb_log_left() && !in_turn(cq)))
		return ENOENT;
	return start_all(cq, where);
}

/* EINVAL, and errno as it was. */
static __attribute__((cold, noinline)) int without_turn(const char *call)
{
	int err = vb_refuse(EINVAL, call,
			    "no poll of this CQ is in progress: no ibv_start_poll() has returned 0 since the "
			    "last ibv_end_poll(); call ibv_start_poll() first");

	vb_log_tell();
	return err;
}

static int next_poll(struct ibv_cq_ex *ex)
{
	struct vb_cq *cq = cq_of(ex);
	int err;

	if (vb_unlikely(!in_turn(cq)))
		return errno = without_turn("ibv_next_poll");
	err = vb_cq_next(cq);
	if (vb_unlikely(err))
		return vb_leave_found(errno, err);
	show(cq);
	return 0;
}

/* Of a checked process: 0 is a completion that was polled. */
static int polled(struct ibv_cq_ex *ex, int err)
{
	if (!err)
		vb_custody_polled(cq_of(ex), &cq_of(ex)->turn.wc, 1);
	return err;
}

static int start_poll_checked(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	int r;

	vb_msan_enter();
	r = polled(ex, start_poll(ex, attr));
	VB_GIVE(ex);
	vb_msan_leave();
	return r;
}

static int next_poll_checked(struct ibv_cq_ex *ex)
{
	int r;

	vb_msan_enter();
	r = polled(ex, next_poll(ex));
	VB_GIVE(ex);
	vb_msan_leave();
	return r;
}

static void end_poll(struct ibv_cq_ex *ex)
{
	if (vb_unlikely(!in_turn(cq_of(ex))))
		without_turn("ibv_end_poll");
	else
		end_turn(&cq_of(ex)->turn);
}

/* ---- what a completion says ---- */

/* Without a turn there is no completion to read: 0. */
#define READ(type, name, what)                          \
	static type name(struct ibv_cq_ex *ex)          \
	{                                               \
		if (vb_unlikely(!in_turn(cq_of(ex)))) { \
			without_turn("ibv_wc_" #name);  \
			return (type)0;                 \
		}                                       \
		return cq_of(ex)->turn.what;            \
	}

READ(enum ibv_wc_opcode, read_opcode, wc.opcode)
READ(uint32_t, read_vendor_err, wc.vendor_err)
READ(uint32_t, read_byte_len, wc.byte_len)
READ(__be32, read_imm_data, wc.imm_data) /* the invalidated R_Key has the same place */
READ(uint32_t, read_qp_num, wc.qp_num)
READ(uint32_t, read_src_qp, wc.src_qp)
READ(unsigned int, read_wc_flags, wc.wc_flags)
READ(uint32_t, read_slid, wc.slid)
READ(uint8_t, read_sl, wc.sl)
READ(uint8_t, read_dlid_path_bits, wc.dlid_path_bits)
READ(uint64_t, read_completion_ts, stamp.clock)
READ(uint64_t, read_completion_wallclock_ns, stamp.wall)

/* No CQ can ask for what follows, and nobody is to call NULL. */
static uint16_t read_cvlan(struct ibv_cq_ex *ex)
{
	(void)ex;
	return 0;
}

static uint32_t read_flow_tag(struct ibv_cq_ex *ex)
{
	(void)ex;
	return 0;
}

static void read_tm_info(struct ibv_cq_ex *ex, struct ibv_wc_tm_info *info)
{
	(void)ex;
	*info = (struct ibv_wc_tm_info){0};
}

static void fill_in(struct ibv_cq_ex *ex)
{
	ex->start_poll = vb_check_on ? start_poll_checked : start_poll;
	ex->next_poll = vb_check_on ? next_poll_checked : next_poll;
	ex->end_poll = end_poll;
	ex->read_opcode = read_opcode;
	ex->read_vendor_err = read_vendor_err;
	ex->read_byte_len = read_byte_len;
	ex->read_imm_data = read_imm_data;
	ex->read_qp_num = read_qp_num;
	ex->read_src_qp = read_src_qp;
	ex->read_wc_flags = read_wc_flags;
	ex->read_slid = read_slid;
	ex->read_sl = read_sl;
	ex->read_dlid_path_bits = read_dlid_path_bits;
	ex->read_completion_ts = read_completion_ts;
	ex->read_cvlan = read_cvlan;
	ex->read_flow_tag = read_flow_tag;
	ex->read_tm_info = read_tm_info;
	ex->read_completion_wallclock_ns = read_completion_wallclock_ns;
}

/* ---- creation ---- */

/* In the order in which libibverbs and mlx5 look. */
static int check_attr(const struct ibv_context *context, const struct ibv_cq_init_attr_ex *a)
{
	uint64_t unknown = a->wc_flags & ~(uint64_t)WC_FLAGS;
	char names[VB_FLAGS_TEXT];

	if (unknown)
		return vb_refuse(EOPNOTSUPP, CALL, "wc_flags: %s is not supported",
				 vb_name_flags(names, sizeof(names), VB_FLAGS_WC, unknown));
	if (a->comp_mask & ~MASK)
		return vb_refuse_bits(EINVAL, CALL, "comp_mask", a->comp_mask, MASK);
	if (a->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS && a->flags & ~FLAGS)
		return vb_refuse_bits(EINVAL, CALL, "flags", a->flags, FLAGS);
	if (!(a->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD))
		return 0;
	if (!a->parent_domain || !vb_pd(a->parent_domain)->parent)
		return vb_refuse(EINVAL, CALL, "parent_domain is %s; pass one of ibv_alloc_parent_domain()",
				 a->parent_domain ? "an ordinary protection domain" : "NULL");
	if (a->parent_domain->context != context)
		return vb_refuse(EINVAL, CALL, "the parent domain belongs to another context");
	return 0;
}

VB_OBJECT_AS(struct ibv_cq_ex *, vb_create_cq_ex, CALL, (context, attr), struct ibv_context *context,
	     struct ibv_cq_init_attr_ex *attr)
{
	struct vb_cq *cq;

	errno = check_attr(context, attr);
	if (errno)
		return NULL;
	cq = vb_cq_make(context, attr, CALL);
	if (!cq)
		return NULL;
	fill_in(&cq->ex);
	return &cq->ex;
}
