/* Targets of XRC of other processes that are open here.
 *
 * What ibv_open_qp() gives then stands for the target by a name that the target's process knows; that one is
 * asked, and its engine answers, whatever its program does.  It is asked for the target's state first, so
 * that what is wrong is said here. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "hca/lost.h"
#include "hca/say.h"
#include "iba/facts.h"
#include "iba/reach.h"
#include "iba/reason.h"
#include "verbs/target.h"
#include "verbs/verbs.h"

static const char call_open[] = "ibv_open_qp";

/* Guarded by hca->far_lock, but for what is set once. */
struct far_target {
	struct vb_qp qp;	/* first */
	struct vb_list node;	/* among hca->far */
	struct vb_peer *peer;	/* whose it is, with a reference; set once */
	uint32_t handle;	/* its name there; set once */
	bool open;		/* ibv_open_qp() has succeeded; until then events wait, */
	uint32_t early;		/* as bits */
	_Atomic bool gone;	/* the target has ended */
	pthread_mutex_t asking; /* held over a change: its process remembers what came of the last one */
};

static struct far_target *far_target(struct vb_qp *h)
{
	return (struct far_target *)h;
}

void vb_target_pack(struct vb_target_attr *to, const struct ibv_qp_attr *a)
{
	*to = (struct vb_target_attr){.ah = a->ah_attr,
				      .qkey = a->qkey,
				      .rq_psn = a->rq_psn,
				      .sq_psn = a->sq_psn,
				      .dest_qp_num = a->dest_qp_num,
				      .access = a->qp_access_flags,
				      .pkey_index = a->pkey_index,
				      .state = (uint8_t)a->qp_state,
				      .cur_state = (uint8_t)a->cur_qp_state,
				      .path_mtu = (uint8_t)a->path_mtu,
				      .mig_state = (uint8_t)a->path_mig_state,
				      .en_sqd_async_notify = a->en_sqd_async_notify,
				      .sq_draining = a->sq_draining,
				      .max_rd_atomic = a->max_rd_atomic,
				      .max_dest_rd_atomic = a->max_dest_rd_atomic,
				      .min_rnr_timer = a->min_rnr_timer,
				      .port_num = a->port_num,
				      .timeout = a->timeout,
				      .retry_cnt = a->retry_cnt,
				      .rnr_retry = a->rnr_retry};
}

void vb_target_unpack(struct ibv_qp_attr *to, const struct vb_target_attr *a)
{
	*to = (struct ibv_qp_attr){.ah_attr = a->ah,
				   .qkey = a->qkey,
				   .rq_psn = a->rq_psn,
				   .sq_psn = a->sq_psn,
				   .dest_qp_num = a->dest_qp_num,
				   .qp_access_flags = a->access,
				   .pkey_index = a->pkey_index,
				   .qp_state = a->state,
				   .cur_qp_state = a->cur_state,
				   .path_mtu = a->path_mtu,
				   .path_mig_state = a->mig_state,
				   .en_sqd_async_notify = a->en_sqd_async_notify,
				   .sq_draining = a->sq_draining,
				   .max_rd_atomic = a->max_rd_atomic,
				   .max_dest_rd_atomic = a->max_dest_rd_atomic,
				   .min_rnr_timer = a->min_rnr_timer,
				   .port_num = a->port_num,
				   .timeout = a->timeout,
				   .retry_cnt = a->retry_cnt,
				   .rnr_retry = a->rnr_retry};
}

/* As its process has it; once it has ended it stays in ERR. */
static void note_state(struct far_target *f, enum ibv_qp_state state)
{
	struct vb_hca *h = vb_qp_hca(&f->qp);

	vb_lock_take(&h->far_lock);
	if (!f->gone)
		f->qp.ibv.state = state;
	vb_lock_give(&h->far_lock);
}

/* 0, EIO: target or process are gone; ETIMEDOUT; or what the process says. */
static int ask(struct far_target *f, struct vb_target_tell *t, uint64_t until)
{
	struct vb_answer a;
	int err;

	t->handle = f->handle;
	err = vb_ask(f->peer, VB_SUBJECT_TARGET, t, sizeof(*t), until, &a);
	if (err)
		return err;
	memcpy(t, a.msg, sizeof(*t));
	return t->answer.err;
}

/* ---- opening ---- */

static int no_such(uint32_t qpn, const char *why)
{
	return vb_refuse(EINVAL, call_open, "the XRC domain has no target QP 0x%06x%s%s", qpn,
			 *why ? ": " : "", why);
}

static int does_not_answer(uint32_t qpn)
{
	return vb_refuse(ETIMEDOUT, call_open, "the process of QP 0x%06x does not answer (is it stopped?)",
			 qpn);
}

/* The process that the number leads to. */
static int meet(struct vb_adapter *a, uint32_t qpn, uint64_t until, struct vb_peer **peer)
{
	uint32_t number = qpn >> VB_QPN_INDEX_BITS;
	struct vb_reach_facts why;
	char text[400] = "";
	struct vb_text t = {text, sizeof(text)};
	int err;

	if (!number || number >= VB_ADAPTERS)
		return no_such(qpn, "it is not a QP number");
	err = vb_peer_reach(a, number, until, peer, &why);
	if (err == ECONNREFUSED)
		vb_reach_add(&t, &why);
	if (err == ECONNREFUSED)
		return no_such(qpn, text);
	if (err == ETIMEDOUT)
		return does_not_answer(qpn);
	return err ? vb_refuse(err, call_open, "the process of QP 0x%06x cannot be reached: %s", qpn,
			       strerror(err))
		   : 0;
}

static void tell_closed(const struct far_target *f)
{
	const struct vb_target_tell t = {.head.kind = VB_TARGET_CLOSE, .handle = f->handle};

	vb_hca_say(f->peer, VB_SUBJECT_TARGET, &t, sizeof(t));
}

static void unmake(struct far_target *f)
{
	vb_peer_put(f->peer);
	pthread_mutex_destroy(&f->asking);
	vb_target_unmake(&f->qp);
}

static void post(struct far_target *f, unsigned event)
{
	vb_lock_assert_held(&vb_qp_hca(&f->qp)->far_lock);
	if (f->open)
		vb_async_post(f->qp.ctx, vb_qp_event_at(&f->qp, event));
	else
		f->early |= 1u << event;
}

/* Asks the process for it; what stands for it is known to whoever hears that process by then. */
static int ask_open(struct far_target *f, uint64_t until)
{
	struct vb_target_tell t = {.head.kind = VB_TARGET_OPEN,
				   .open = {.dev = f->qp.xrcd->id.dev,
					    .ino = f->qp.xrcd->id.ino,
					    .qpn = f->qp.qpn,
					    .device = vb_qp_hca(&f->qp)->device}};
	int err = ask(f, &t, until);

	if (err == ETIMEDOUT) {
		tell_closed(f); /* it may hear the question later */
		return does_not_answer(f->qp.qpn);
	}
	if (err == EIO)
		return no_such(f->qp.qpn, "its process has just ended");
	if (err == ENOMEM)
		return vb_refuse(err, call_open, "process %u, which owns the target, is out of memory",
				 f->peer->pid);
	if (err)
		return no_such(f->qp.qpn, "");
	note_state(f, t.answer.attr.state);
	return 0;
}

/* It is the program's from now on, or nobody's. */
static void settle(struct far_target *f, bool open)
{
	struct vb_hca *h = vb_qp_hca(&f->qp);

	vb_lock_take(&h->far_lock);
	f->open = open;
	if (!open)
		vb_list_unlink(&f->node);
	for (unsigned i = 0; open && i < VB_QP_EVENTS; i++)
		if (f->early & 1u << i)
			post(f, i);
	vb_lock_give(&h->far_lock);
}

/* The reference to the peer goes over to it. */
static int open_at(struct ibv_qp_open_attr *a, struct vb_peer *peer, uint64_t until, struct vb_qp **out)
{
	struct far_target *f = (struct far_target *)vb_target_stand_in(a, sizeof(*f));
	struct vb_hca *h = vb_hca(peer->adapter);
	int err;

	if (!f) {
		vb_peer_put(peer);
		return vb_refuse_memory(call_open);
	}
	f->qp.far = true;
	f->peer = peer;
	f->handle = atomic_fetch_add(&h->tickets, 1) + 1;
	pthread_mutex_init(&f->asking, NULL);
	vb_lock_take(&h->far_lock);
	vb_list_append(&h->far, &f->node); /* pairs with settle() and vb_target_close_far() */
	vb_lock_give(&h->far_lock);
	err = ask_open(f, until);
	settle(f, !err);
	if (err)
		unmake(f);
	else
		*out = &f->qp;
	return err;
}

int vb_target_open_far(struct ibv_qp_open_attr *a, struct vb_qp **out)
{
	struct vb_context *c = vb_context(a->xrcd->context);
	uint64_t until = vb_now() + VB_ASK_PATIENCE;
	struct vb_peer *peer;
	int err;

	if (vb_context_lost(c))
		return vb_refuse(EIO, call_open, VB_LOST_TEXT);
	if (vb_xrcd(a->xrcd)->id.dev == VB_XRCD_PRIVATE)
		return no_such(a->qp_num, "the domain is private to this process");
	err = meet(c->adapter, a->qp_num, until, &peer);
	return err ? err : open_at(a, peer, until, out);
}

void vb_target_close_far(struct vb_qp *qp)
{
	struct far_target *f = far_target(qp);
	struct vb_hca *h = vb_qp_hca(qp);

	vb_lock_take(&h->far_lock);
	vb_list_unlink(&f->node);
	vb_lock_give(&h->far_lock);
	if (!f->gone)
		tell_closed(f);
	vb_qp_await_events(qp);
	unmake(f);
}

void vb_targets_release(struct vb_context *c)
{
	struct vb_hca *h = vb_hca(c->adapter);

	vb_lock_take(&h->far_lock);
	vb_list_each (n, &h->far) {
		struct far_target *f = vb_list_entry(n, struct far_target, node);

		if (f->qp.ctx != c || f->gone)
			continue;
		f->gone = true;
		tell_closed(f);
	}
	vb_lock_give(&h->far_lock);
}

/* ---- what its process says ---- */

/* Its process is gone, or says that the target is.  Nobody waits for requests of a target here, so an event
 * tells of it. */
static void lose(struct far_target *f)
{
	vb_lock_assert_held(&vb_qp_hca(&f->qp)->far_lock);
	f->gone = true;
	f->qp.ibv.state = IBV_QPS_ERR;
	post(f, 0); /* IBV_EVENT_QP_FATAL */
}

#define ENDED "QP 0x%06x, an XRC target of another process, no longer exists: "

static void say_lost(const struct far_target *f, enum vb_peer_end how)
{
	char buf[512], json[VB_LOG_FACTS];

	if (how == VB_END_GOODBYE) {
		vb_log(VB_LOG_WARN, ENDED "process %u, which created it, closed its device or ended",
		       f->qp.qpn, f->peer->pid);
	} else {
		struct vb_facts facts = vb_end_facts(how, f->peer->pid);

		vb_log_reason_facts(vb_reasons[facts.reason].name, vb_facts_logged(json, &facts), ENDED "%s",
				    f->qp.qpn, vb_reason_say(buf, sizeof(buf), &facts));
	}
}

void vb_targets_lose(struct vb_peer *peer, enum vb_peer_end how)
{
	struct vb_hca *h = vb_hca(peer->adapter);

	vb_lock_take(&h->far_lock);
	vb_list_each (n, &h->far) {
		struct far_target *f = vb_list_entry(n, struct far_target, node);

		if (f->peer != peer || f->gone)
			continue;
		say_lost(f, how);
		lose(f);
	}
	vb_lock_give(&h->far_lock);
}

void vb_target_told(struct vb_peer *peer, const struct vb_target_tell *t)
{
	struct vb_hca *h = vb_hca(peer->adapter);

	vb_lock_take(&h->far_lock);
	vb_list_each (n, &h->far) {
		struct far_target *f = vb_list_entry(n, struct far_target, node);

		if (f->peer != peer || f->handle != t->handle || f->gone)
			continue;
		if (t->head.kind == VB_TARGET_ENDED) {
			say_lost(f, VB_END_GOODBYE);
			lose(f);
		} else if (t->event < VB_QP_EVENTS) {
			post(f, t->event);
		}
	}
	vb_lock_give(&h->far_lock);
}

/* ---- asking and changing ---- */

static int refuse(const struct far_target *f, const char *call, int err)
{
	if (err == ETIMEDOUT)
		return vb_refuse(
		    err, call,
		    "process %u, which owns the target QP 0x%06x, does not answer (is it stopped?)",
		    f->peer->pid, f->qp.qpn);
	return vb_refuse(EIO, call, "QP 0x%06x, an XRC target of process %u, no longer exists", f->qp.qpn,
			 f->peer->pid);
}

static int query(struct far_target *f, struct ibv_qp_attr *attr, uint64_t until)
{
	struct vb_target_tell t = {.head.kind = VB_TARGET_QUERY};
	int err = f->gone ? EIO : ask(f, &t, until);

	if (!err)
		vb_target_unpack(attr, &t.answer.attr);
	return err;
}

int vb_target_query(struct vb_qp *h, struct ibv_qp_attr *attr)
{
	struct far_target *f = far_target(h);
	int err = query(f, attr, vb_now() + VB_ASK_PATIENCE);

	if (err)
		return refuse(f, "ibv_query_qp", err);
	note_state(f, attr->qp_state);
	return 0;
}

/* Under f->asking.  0; EAGAIN: it has changed its state meanwhile; or errno, which has been said. */
static int try(struct far_target *f, const struct ibv_qp_attr *a, uint32_t mask, uint64_t until)
{
	struct vb_target_tell t = {.head.kind = VB_TARGET_MODIFY};
	struct ibv_qp_attr is;
	int err = query(f, &is, until);

	if (err)
		return refuse(f, "ibv_modify_qp", err);
	err = vb_qp_check(&f->qp, is.qp_state, a, mask);
	if (err)
		return err;
	t.modify.mask = mask;
	t.modify.from = is.qp_state;
	vb_target_pack(&t.modify.attr, a);
	err = ask(f, &t, until);
	if (!err)
		note_state(f, mask & IBV_QP_STATE ? a->qp_state : is.qp_state);
	if (!err || err == EAGAIN)
		return err;
	return err == EIO || err == ETIMEDOUT ? refuse(f, "ibv_modify_qp", err)
	       : err == ENOMEM		      ? vb_qp_modify_refuse(&f->qp, err, a)
					      : vb_refuse(err, "ibv_modify_qp",
							  "process %u, which owns the target QP 0x%06x, refuses: %s",
							  f->peer->pid, f->qp.qpn, strerror(err));
}

int vb_target_modify(struct vb_qp *h, const struct ibv_qp_attr *a, uint32_t mask)
{
	struct far_target *f = far_target(h);
	uint64_t until = vb_now() + VB_ASK_PATIENCE;
	int err;

	pthread_mutex_lock(&f->asking);
	do
		err = try(f, a, mask, until);
	while (err == EAGAIN);
	pthread_mutex_unlock(&f->asking);
	return err;
}
