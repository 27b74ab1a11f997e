/* Packets of UC and UD that this host's kernel, or ICMP, refuses: their requests complete as if they had been
 * sent, so the log says once for each address and cause that they are lost, and why. */
#include "base/log.h"
#include "base/text.h"
#include "hca/far.h"
#include "hca/hosts.h"
#include "hca/send.h"

void vb_hosts_refused(void *user, struct vb_net_host *host)
{
	struct vb_hosts *t = user;

	atomic_store(&host->news, true);
	atomic_store(&t->refused, true);
	vb_adapter_nudge(t->hca->adapter); /* its cause takes system calls */
}

/* Whether requests of the queue pair go there. */
static bool leads(const struct vb_qp *qp, const struct vb_far *far)
{
	if (!qp->dests)
		return qp->path.far == far;
	vb_list_each (n, &qp->dests->used)
		if (vb_list_entry(n, struct vb_dest, used)->path.far == far)
			return true;
	return false;
}

/* For verbena explain. */
static void note(struct vb_hosts *t, const struct vb_far *far, const struct vb_reach_facts *why)
{
	struct vb_adapter *a = t->hca->adapter;
	uint32_t number;

	vb_lock_take(&t->rxq->rx);
	for (uint32_t at = 0; (number = vb_adapter_number_at(a, at / VB_QPN_INDICES)); at++) {
		struct vb_qp *qp = vb_qpn_find(a, number << VB_QPN_INDEX_BITS | at % VB_QPN_INDICES);

		if (!qp)
			continue;
		vb_lock_take(&qp->lock);
		if (!qp->forgotten && !qp->acked && leads(qp, far)) {
			qp->silence = *why;
			qp->silence_at = vb_now();
		}
		vb_hca_give(qp);
	}
	vb_lock_give(&t->rxq->rx);
}

static void say(struct vb_hosts *t, const struct vb_far *far, const struct vb_net_host *host)
{
	struct vb_reach_facts why = vb_hosts_refusal(t, host);
	char text[400] = "", to[60] = "";
	struct vb_text t1 = {text, sizeof(text)}, t2 = {to, sizeof(to)};

	if (!vb_reach_add(&t1, &why))
		vb_text_add(&t1, "%s", strerror((int)atomic_load(&host->lost_errno)));
	vb_gid_add(&t2, (const uint8_t *)&host->gid);
	vb_log_reason(vb_reasons[VB_R_DROP_NOBODY].name,
		      "packets of UC or UD to %s are lost, though their requests complete: %s. Further ones "
		      "are only counted",
		      to, text);
	note(t, far, &why);
}

void vb_hosts_say_refused(struct vb_hca *h)
{
	struct vb_hosts *t = h->hosts;

	if (!t || !atomic_exchange(&t->refused, false))
		return;
	for (uint32_t i = 0; i < VB_FARS; i++) {
		struct vb_far *far = vb_far_at(h, VB_DEST_FAR + i); /* with a reference: it may be unused */
		struct vb_net_host *host;

		if (!far)
			break;
		host = &vb_containerof(far, struct vb_net_far, far)->net;
		if (atomic_exchange(&host->news, false))
			say(t, far, host);
		vb_far_put(&far);
	}
}
