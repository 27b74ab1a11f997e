/* Requests to queue pairs on other hosts, and receives for what comes from there: all that is known is what
 * this end has seen. */
#include "base/clock.h"
#include "iba/grh.h"
#include "iba/net.h"
#include "iba/traffic.h"
#include "waits.h"

enum { WHY = 700, MOST_NAKS = 255 };

/* "the peer is at 10.0.0.5, on another host or in another network namespace, so the cause ..." */
static void add_peer(struct vb_text *t, const struct vb_inside_qp *q, const char *unknown)
{
	vb_text_add(t, "the peer is at ");
	vb_gid_add(t, vb_inside_host(&q->qp));
	vb_text_add(t, ", on another host or in another network namespace, so %s", unknown);
}

/* When a packet came from there last; 0: never, or that is not known. */
static uint64_t heard_of(const struct vb_waits *l, const struct vb_inside_qp *q)
{
	struct vb_net_far far;

	return q->qp.path.far && vb_inside_get(&l->world.self->in, q->qp.path.far, &far, sizeof(far))
		   ? atomic_load(&far.net.heard)
		   : 0;
}

static void add_ago(struct vb_text *t, uint64_t heard)
{
	uint64_t now = vb_now();

	vb_text_add(t, "%.1f s ago", now > heard ? (double)(now - heard) / 1e9 : 0.0);
}

/* What the way there has cost so far: counts of the queue pair, and what was measured. */
static void add_way(struct vb_text *t, const struct vb_waits *l, const struct vb_inside_qp *q)
{
	const struct vb_inside *in = &l->world.self->in;
	uint64_t lost, srtt = q->qp.congestion.srtt;
	struct vb_traffic counts;
	struct vb_net_far far;

	if (srtt)
		vb_text_add(t, ". The round trip takes %.3f ms", (double)srtt / 1e6);
	else
		vb_text_add(t, ". No round trip was measured yet");
	if (vb_inside_get(in, q->qp.traffic, &counts, sizeof(counts)))
		vb_text_add(t, ". This queue pair has sent %llu packet%s again, after %llu ACK timeout%s",
			    (unsigned long long)counts.count[VB_TRAFFIC_RETRANSMITTED],
			    counts.count[VB_TRAFFIC_RETRANSMITTED] == 1 ? "" : "s",
			    (unsigned long long)counts.count[VB_TRAFFIC_TIMEOUTS],
			    counts.count[VB_TRAFFIC_TIMEOUTS] == 1 ? "" : "s");
	if (!q->qp.path.far || !vb_inside_get(in, q->qp.path.far, &far, sizeof(far)))
		return;
	lost = atomic_load(&far.net.lost);
	if (lost)
		vb_text_add(t, ". This host's kernel has not sent %llu packet%s to there",
			    (unsigned long long)lost, lost == 1 ? "" : "s");
}

/* Whether an error will come. */
static void add_patience(struct vb_text *t, const struct vb_qp *qp, bool rnr)
{
	if (rnr && qp->attr.rnr_retry == 7)
		vb_text_add(t, ". rnr_retry is 7, so it is retried for ever and no error will come");
	else if (!rnr && !qp->attr.timeout)
		vb_text_add(t, ". timeout is 0, so it waits for ever and no error will come");
	else if (!rnr)
		vb_text_add(t, ". It was repeated %u of %u times", qp->req.retried, qp->attr.retry_cnt);
}

void vb_wait_host_request(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_text *what)
{
	const struct vb_qp *qp = &q->qp;
	uint64_t heard = heard_of(l, q), since = vb_wait_since(qp);
	unsigned naks = qp->req.rnr_row;
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};

	if (naks || qp->req.waiting_rnr) {
		vb_text_add(&t, "the peer at ");
		vb_gid_add(&t, vb_inside_host(qp));
		vb_text_add(&t, " has no receive posted on QP 0x%06x: %u%s RNR NAK%s so far", qp->dest_qpn,
			    naks, naks == MOST_NAKS ? " or more" : "", naks == 1 ? "" : "s");
		add_patience(&t, qp, true);
		vb_wait_add(l, VB_W_NO_RECEIVE, since, what, "%s", why);
		vb_wait_advise(
		    l, VB_WAIT_ANY,
		    "on the host at that address: post receives on QP 0x%06x with ibv_post_recv() before "
		    "this end sends, and post each one again after its completion%s",
		    qp->dest_qpn,
		    qp->attr.rnr_retry == 7 ? ". Set rnr_retry to less than 7 here, so that an error comes"
					    : "");
		return;
	}
	add_peer(&t, q, "the cause is unknown from here. ");
	if (heard && since && heard > since) {
		vb_text_add(&t, "Packets come from there (the last one ");
		add_ago(&t, heard);
		vb_text_add(&t, "), but no answer to this request: compare dest_qp_num, PSNs and the state "
				"of the queue pair there");
	} else {
		if (heard) {
			vb_text_add(&t, "It was heard last ");
			add_ago(&t, heard);
		} else {
			vb_text_add(&t, "No packet has ever come from there");
		}
		vb_text_add(&t, ": a packet filter drops UDP port 4791, the process there is stopped or has "
				"ended, or the host is down");
	}
	add_patience(&t, qp, false);
	add_way(&t, l, q);
	vb_wait_add(l, VB_W_PEER_UNREADABLE, since, what, "%s", why);
}

void vb_wait_host_receive(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_text *what)
{
	uint64_t heard = heard_of(l, q);
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};

	add_peer(&t, q, "it is unknown whether it sends. ");
	if (heard) {
		vb_text_add(&t, "It was heard last ");
		add_ago(&t, heard);
	} else {
		vb_text_add(&t, "No packet has ever come from there");
	}
	vb_wait_add(l, VB_W_PEER_UNREADABLE, 0, what, "%s", why);
}
