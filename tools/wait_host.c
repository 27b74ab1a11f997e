/* Requests to queue pairs on other hosts, and receives for what comes from there: all that is known is what
 * this end has seen. */
#include <string.h>

#include "base/clock.h"
#include "iba/grh.h"
#include "iba/net.h"
#include "iba/reach.h"
#include "iba/traffic.h"
#include "waits.h"

enum { WHY = 860, MOST_NAKS = 255 };

/* "the peer is at 10.0.0.5, on another host or in another network namespace, so the cause ..." */
static void add_at(struct vb_text *t, const struct vb_inside_qp *q)
{
	vb_text_add(t, "the peer is at ");
	vb_gid_add(t, vb_inside_host(&q->qp));
	vb_text_add(t, ", on another host or in another network namespace");
}

static void add_peer(struct vb_text *t, const struct vb_inside_qp *q, const char *unknown)
{
	add_at(t, q);
	vb_text_add(t, ", so %s", unknown);
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

/* What the last retry found, if that was since the oldest request began to wait. */
static const struct vb_reach_facts *evidence(const struct vb_qp *qp)
{
	uint64_t since = vb_wait_since(qp);

	return qp->silence.reach && since && qp->silence_at >= since ? &qp->silence : NULL;
}

/* What begins the next sentence. */
static const char *stop(const struct vb_text *t)
{
	return t->at[-1] == '?' ? " " : ". ";
}

/* Whether an error will come. */
static void add_patience(struct vb_text *t, const struct vb_qp *qp, bool rnr)
{
	if (rnr && qp->attr.rnr_retry == 7)
		vb_text_add(t, ". rnr_retry is 7, so it is retried for ever and no error will come");
	else if (!rnr && !qp->attr.timeout)
		vb_text_add(t, "%stimeout is 0, so it waits for ever and no error will come", stop(t));
	else if (!rnr)
		vb_text_add(t, "%sIt was repeated %u of %u times", stop(t), qp->req.retried,
			    qp->attr.retry_cnt);
}

/* No retry has looked for the reason yet. */
static void add_guess(struct vb_text *t, const struct vb_waits *l, const struct vb_inside_qp *q)
{
	uint64_t heard = heard_of(l, q), since = vb_wait_since(&q->qp);

	add_peer(t, q, "the cause is not known yet. ");
	if (heard && since && heard > since) {
		vb_text_add(t, "Packets come from there (the last one ");
		add_ago(t, heard);
		vb_text_add(t, "), but no answer to this request: compare dest_qp_num, PSNs and the state "
			       "of the queue pair there");
	} else if (heard) {
		vb_text_add(t, "It was heard last ");
		add_ago(t, heard);
	} else {
		vb_text_add(t, "No right packet has come from there so far");
	}
}

void vb_wait_host_request(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_text *what)
{
	const struct vb_qp *qp = &q->qp;
	const struct vb_reach_facts *found = evidence(qp);
	uint64_t since = vb_wait_since(qp);
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
	if (found) {
		add_at(&t, q);
		vb_text_add(&t, ": ");
		(void)vb_reach_add(&t, found);
	} else {
		add_guess(&t, l, q);
	}
	add_patience(&t, qp, false);
	add_way(&t, l, q);
	vb_wait_add(l, found ? vb_wait_of_reach(found) : VB_W_PEER_UNREADABLE, since, what, "%s", why);
}

void vb_wait_host_receive(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_text *what)
{
	uint64_t heard = heard_of(l, q);
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};

	if (!heard)
		return; /* vb_wait_host() */
	add_peer(&t, q, "it is unknown whether it sends. It was heard last ");
	add_ago(&t, heard);
	vb_wait_add(l, VB_W_PEER_UNREADABLE, 0, what, "%s", why);
}

/* ---- whatever waits ---- */

static void find_wrong(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_text *what)
{
	const struct vb_astray *a = &q->qp.astray;
	unsigned long long n = atomic_load(&a->n);
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};
	uint8_t from[16];

	memcpy(from, &a->from, sizeof(from));
	vb_text_add(&t, "%llu packet%s for it had a wrong checksum (ICRC) and %s discarded", n,
		    n == 1 ? "" : "s", n == 1 ? "was" : "were");
	if (a->from.low | a->from.high) {
		vb_text_add(&t, "; the last one came from ");
		vb_gid_add(&t, from);
		if (vb_inside_host(&q->qp) && memcmp(from, vb_inside_host(&q->qp), sizeof(from))) {
			vb_text_add(&t, ", but its peer has the address ");
			vb_gid_add(&t, vb_inside_host(&q->qp));
		}
	}
	vb_text_add(&t, a->translated
			    ? ". Something on the way translates addresses (NAT), which RoCEv2 does not pass"
			    : ". Something on the way translates addresses (NAT) or damages packets");
	vb_wait_add(l, VB_W_WRONG_ICRC, 0, what, "%s", why);
}

static void find_never(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_text *what)
{
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};

	vb_text_add(&t, "no right RoCEv2 packet has ever arrived from its peer's address, ");
	vb_gid_add(&t, vb_inside_host(&q->qp));
	vb_text_add(
	    &t, ": the peer has not sent yet, or something on the way, such as a packet filter of this host, "
		"drops UDP port 4791");
	vb_wait_add(l, VB_W_NEVER_HEARD, 0, what, "%s", why);
}

static void find_away(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_text *what)
{
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};

	(void)vb_reach_add(&t, &q->qp.silence);
	vb_wait_add(l, VB_W_UNREACHABLE, 0, what, "%s", why);
	vb_wait_advise(l, VB_WAIT_ANY,
		       "start both programs with verbena run --netdev=INTERFACE, and connect both "
		       "ends again");
}

void vb_wait_host(struct vb_waits *l, const struct vb_inside_qp *q)
{
	const struct vb_qp *qp = &q->qp;
	struct vb_far_end f = vb_world_far(&l->world, l->world.self, qp);
	bool waits = atomic_load(&qp->post.head) != qp->req.una; /* vb_wait_requests() */
	char text[320] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)};

	if (qp->of || qp->far)
		return;
	vb_name_qp(&t, l, q);
	if (atomic_load(&qp->astray.n))
		find_wrong(l, q, &what);
	else if (f.how == VB_FAR_HOST && !heard_of(l, q) && !waits)
		find_never(l, q, &what);
	else if (f.how == VB_FAR_ELSEWHERE && qp->silence.reach == VB_REACH_ADDRESS && !waits)
		find_away(l, q, &what);
}
