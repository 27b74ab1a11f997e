/* Direct placement, composed; see direct.h.  The protocol's part is transport/place.c, the checks and means
 * are mem/far.c.
 *
 * A QP gives its peer leave (vb_shown_qp.may) only once its link is UP here, that is once this process reads
 * the peer's announcements: whoever then retracts something sees every user.
 *
 * An error that the protocol finds takes the leave back at once, but does not wait: whoever found it may be
 * the engine, which a stopped peer must not hold.  An application that asks (modify, destroy, deregister)
 * waits. */
#include "verbs/direct.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "mem/far.h"
#include "obj/context.h"
#include "verbs/progress.h"

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif

static bool direct_on, ptrace_on;
static pthread_once_t settings_once = PTHREAD_ONCE_INIT;

static bool is_off(const char *name)
{
	const char *s = secure_getenv(name);

	if (!s || !strcmp(s, "on"))
		return false;
	if (strcmp(s, "off"))
		vb_log(VB_LOG_WARN, "%s=%s is neither on nor off: on", name, s);
	return !strcmp(s, "off");
}

static void read_settings(void)
{
	direct_on = !is_off("VERBENA_DIRECT");
	ptrace_on = !is_off("VERBENA_PTRACE");
}

static bool wanted(void)
{
	pthread_once(&settings_once, read_settings);
	return direct_on;
}

void vb_direct_link_up(struct vb_link *l)
{
	struct vb_far *f = l->far;
	struct vb_link_far at;

	if (!wanted())
		return;
	if (!f)
		f = malloc(sizeof(*f)); /* vb_direct_link_free() */
	if (!f) {
		vb_log(VB_LOG_WARN, "no memory to reach process %u directly: the ring carries everything",
		       l->pid);
		return;
	}
	vb_link_far(l, &at);
	*f = (struct vb_far){
	    .keys = at.keys,
	    .marks = at.marks,
	    .slots = at.slots,
	    .here = vb_adapter_incarnation(l->adapter),
	    .number = l->number,
	    .pid = l->pid,
	    .same = at.same,
	    .tid = at.tid,
	    .pidfd = at.pidfd,
	    .denied = !at.same && (at.tid <= 0 || at.pidfd < 0),
	};
	if (f->denied)
		vb_log(VB_LOG_INFO,
		       "process %u cannot be told apart by a thread ID here (another PID namespace, or no "
		       "pidfd): the ring carries everything",
		       l->pid);
	l->far = f;
}

void vb_direct_link_free(struct vb_link *l)
{
	free(l->far);
	l->far = NULL;
}

void vb_direct_attach(struct vb_qp *qp)
{
	struct vb_link *l = qp->link;

	qp->far = l->far;
	qp->far_qp = l->far ? vb_link_shown(l, qp->dest_qpn) : NULL;
	if (!qp->far_qp)
		qp->far = NULL;
}

/* What the QP permits its peer now.  In RTR the first packet is an event (rule 37), so it has to come. */
static uint32_t permits(const struct vb_qp *qp)
{
	uint32_t may = qp->access & IBV_ACCESS_REMOTE_WRITE;

	if (!qp->out || !qp->far || qp->forgotten || qp->unsettled || qp->state < IBV_QPS_RTR ||
	    qp->state > IBV_QPS_SQD || (qp->state == IBV_QPS_RTR && !qp->comm_est))
		return 0;
	if (qp->resp.res_size) /* else a READ or atomic is one too many */
		may |= qp->access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	return may;
}

void vb_direct_show(struct vb_qp *qp)
{
	struct vb_shown_qp *s = qp->shown;
	uint32_t state = qp->forgotten ? 0 : 1 + (uint32_t)qp->state, may = permits(qp), had;

	atomic_store_explicit(&s->received, qp->state >= IBV_QPS_RTR ? VB_SHOWN_RECEIVED | qp->resp.epsn : 0,
			      memory_order_release); /* pairs with vb_link_qp_received() */
	if (vb_unlikely(atomic_load_explicit(&s->state, memory_order_relaxed) != state))
		atomic_store_explicit(&s->state, state, memory_order_release);
	had = atomic_load_explicit(&s->may, memory_order_relaxed);
	if (vb_likely(may == had))
		return;
	if (!had) { /* nobody reads the rest: its users were waited for */
		atomic_store_explicit(&s->dest_qpn, qp->dest_qpn, memory_order_relaxed);
		atomic_store_explicit(&s->pd, qp->pd_id, memory_order_relaxed);
		atomic_store_explicit(&s->peer, ((struct vb_link *)qp->link)->incarnation,
				      memory_order_relaxed);
	}
	VB_FAULT_POINT("what a QP permits is about to change");
	atomic_store(&s->may, may); /* pairs with vb_far_begin() */
	if (had & ~may)
		qp->unsettled = true; /* vb_direct_revoked() */
}

static void wait_for_peers(struct vb_adapter *a, uint32_t index, uint32_t qpn, const char *what)
{
	uint32_t n = vb_link_count(a), number = vb_adapter_number(a);

	for (uint32_t i = 0; i < n; i++) {
		struct vb_link *l = vb_link_at(a, i);

		/* Before it is UP its peer has no leave to use anything, and while it goes down its
		 * announcements still count. */
		if (l && atomic_load(&l->state) == VB_LINK_UP && l->far)
			vb_far_wait(l->far, number, index, qpn, what);
	}
}

void vb_direct_revoked(struct vb_qp *qp)
{
	bool unsettled;

	vb_lock_take(&qp->lock);
	unsettled = qp->unsettled;
	vb_lock_give(&qp->lock);
	if (!unsettled)
		return;
	wait_for_peers(qp->ctx->adapter, 0, qp->qpn, "taking back what a QP permits");
	vb_lock_take(&qp->lock);
	qp->unsettled = false;
	vb_direct_show(qp); /* what it permits in its new state */
	vb_lock_give(&qp->lock);
}

void vb_direct_key_retracted(struct vb_adapter *a, uint32_t lkey)
{
	char what[64];

	snprintf(what, sizeof(what), "deregistering L_Key 0x%08x", lkey);
	wait_for_peers(a, VB_KEY_INDEX(lkey), 0, what);
}

static void admit(void)
{
	if (wanted() && ptrace_on)
		prctl(PR_SET_PTRACER, -1ul, 0, 0, 0); /* EINVAL: a kernel without Yama asks for nothing */
}

void vb_direct_admit(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, admit);
}
