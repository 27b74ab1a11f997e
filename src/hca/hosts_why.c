/* Why a far end on a network does not answer, as far as this host can know: from what the kernel refused to
 * send, what ICMP said, which way leads there, and what came from there. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "hca/hosts.h"
#include "hca/port.h"
#include "host/devices.h"
#include "host/route.h"

enum {
	SURE = 1024, /* bytes of payload that a way takes: those of the usual MTU of 1500 */
	BACK = 64,   /* completed requests that are looked at */
};

/* What is looked at, and the facts of it so far. */
struct look {
	struct vb_qp *qp;   /* NULL: a management datagram waits for its answer since then, or nothing does */
	struct vb_gid here; /* the address of this end */
	const struct vb_net_host *host;
	struct vb_hosts *all;
	struct vb_port port;
	uint64_t heard, since, now;
	struct vb_reach_facts f;
};

static uint64_t word(const _Atomic uint64_t *w)
{
	return atomic_load_explicit(w, memory_order_relaxed);
}

static bool is(struct look *l, enum vb_reach reach, uint32_t err)
{
	l->f.reach = reach;
	l->f.host.err = err;
	return true;
}

static bool is_too_long(struct look *l, uint32_t mtu)
{
	struct vb_route_to r;

	/* the kernel remembers what ICMP said of the way */
	if (!mtu && !vb_route_find(&r, l->f.host.gid, l->port.ifindex))
		mtu = r.mtu;
	l->f.host.mtu = mtu;
	return is(l, VB_REACH_HOST_MTU, EMSGSIZE);
}

/* The packets take the interface of the device, whatever way leads there. */
static bool by_route(struct look *l)
{
	struct vb_route_to r;
	int err = vb_route_find(&r, l->f.host.gid, 0);

	if (err == ENETUNREACH || err == EHOSTUNREACH || err == EACCES)
		return is(l, VB_REACH_HOST_ROUTE, (uint32_t)err);
	if (err || r.local || r.ifindex == l->port.ifindex)
		return false;
	memcpy(l->f.host.ifname, r.ifname, sizeof(l->f.host.ifname));
	l->f.host.other = 1;
	return is(l, VB_REACH_HOST_ROUTE, 0);
}

/* Whether what happened then tells nothing of the packets that get no answer: the far end was heard since, or
 * the datagram was not yet sent. */
static bool is_past(const struct look *l, uint64_t at)
{
	return at < l->heard || at < l->since;
}

/* What this host's kernel refused to send since the far end was heard.  Small packets pass where long ones do
 * not, so a length counts also if it was heard since.  Management datagrams are short. */
static bool by_sending(struct look *l)
{
	uint64_t at = word(&l->host->lost_at);
	uint32_t err = atomic_load_explicit(&l->host->lost_errno, memory_order_relaxed);

	if (!at)
		return false;
	if (err == EMSGSIZE)
		return !l->since && is_too_long(l, 0);
	if (is_past(l, at))
		return false;
	switch (err) {
	case EPERM:
		return is(l, VB_REACH_HOST_FILTER, err);
	case ENETDOWN:
		return is(l, VB_REACH_HOST_DOWN, err);
	case EACCES:
	case ENETUNREACH:
		return by_route(l) || is(l, VB_REACH_HOST_ROUTE, err);
	case EHOSTUNREACH:
		return by_route(l) || is(l, VB_REACH_HOST_ABSENT, err);
	default:
		return false;
	}
}

/* Milliseconds since something came from there, 1 at least; 0: nothing ever came. */
static uint32_t heard_ms(const struct look *l)
{
	uint64_t ago = l->now > l->heard ? (l->now - l->heard) / VB_MSEC : 0;

	if (!l->heard)
		return 0;
	return ago > UINT32_MAX ? UINT32_MAX : ago ? (uint32_t)ago : 1;
}

static bool by_icmp(struct look *l)
{
	uint64_t at = word(&l->host->icmp_at);
	uint32_t err = atomic_load_explicit(&l->host->icmp_errno, memory_order_relaxed);

	if (!at)
		return false;
	if (err == EMSGSIZE)
		return !l->since &&
		       is_too_long(l, atomic_load_explicit(&l->host->icmp_mtu, memory_order_relaxed));
	if (is_past(l, at))
		return false;
	switch (err) {
	case ECONNREFUSED:
		l->f.host.heard_ms = heard_ms(l);
		return is(l, VB_REACH_HOST_CLOSED, err);
	case EACCES:
	case EPERM:
		return is(l, VB_REACH_HOST_FORBIDDEN, err);
	case ENETUNREACH:
	case EHOSTUNREACH:
	case EHOSTDOWN:
		return is(l, VB_REACH_HOST_ABSENT, err);
	default:
		return false;
	}
}

/* Who has the address, or the router's, on the interface's network: nobody has answered. */
static bool by_neighbour(struct look *l)
{
	struct vb_route_to r;

	return !vb_route_find(&r, l->f.host.gid, l->port.ifindex) && vb_route_fails(&r) &&
	       is(l, VB_REACH_HOST_ABSENT, EHOSTUNREACH);
}

static bool by_translation(struct look *l)
{
	const struct vb_net_wire *wire = l->all->wire;
	const struct vb_roce_ends sent = {.src = l->host->gid, .dst = l->here};
	struct vb_reach_nat nat;
	struct vb_gid from;

	if (!wire->translated || !wire->translated(l->all->net, &sent, &from))
		return false;
	memcpy(nat.gid, l->f.host.gid, sizeof(nat.gid));
	memcpy(nat.from, &from, sizeof(nat.from));
	l->f = (struct vb_reach_facts){VB_REACH_HOST_NAT, .nat = nat};
	return true;
}

/* How long the request was repeated, at least (IBTA 9.7.6.1.3).  What was heard before that was heard before
 * the trouble, and tells nothing of it: mostly it is the last ACK. */
static uint64_t patience(const struct vb_qp *qp)
{
	return (4096ull << qp->attr.timeout) * (qp->attr.retry_cnt + 1u);
}

/* Whether nothing has come while the request waited. */
static bool is_quiet(const struct look *l)
{
	const struct vb_qp *qp = l->qp;

	if (qp->stuck_since && qp->stuck_una == qp->req.una && l->heard < qp->stuck_since)
		return true;
	return l->now > l->heard && l->now - l->heard > patience(qp);
}

static uint32_t path_mtu(const struct vb_qp *qp)
{
	return 128u << qp->attr.path_mtu;
}

/* Bytes of payload in the longest packet of a request, or of the answer to it. */
static uint32_t packet(const struct vb_qp *qp, uint32_t index)
{
	uint32_t len = vb_sq_at(&qp->req, index)->length;

	return len < path_mtu(qp) ? len : path_mtu(qp);
}

/* The path MTU in bytes, if the oldest request has packets that a way may not take; else 0. */
static uint32_t long_packets(const struct vb_qp *qp)
{
	const struct vb_req *q = &qp->req;

	return q->una != q->seen && packet(qp, q->una) > SURE ? path_mtu(qp) : 0;
}

/* The longest packet that was acknowledged lately: the slots of completed requests are read until posts take
 * them again, from the other end of the ring. */
static uint32_t longest_passed(const struct vb_qp *qp)
{
	const struct vb_req *q = &qp->req;
	uint32_t idle = (q->mask + 1 - (q->seen - q->una)) / 2, longest = 0;

	for (uint32_t i = 1; i <= BACK && i <= idle && i <= q->una; i++)
		if (packet(qp, q->una - i) > longest)
			longest = packet(qp, q->una - i);
	return longest;
}

/* Short packets were acknowledged, and nothing of a long request is. */
static bool by_length(struct look *l)
{
	const struct vb_qp *qp = l->qp;
	uint32_t passed;

	if (!l->heard || !long_packets(qp) || qp->req.psn_una != vb_sq_at(&qp->req, qp->req.una)->psn)
		return false;
	passed = longest_passed(qp);
	if (!passed || passed >= packet(qp, qp->req.una))
		return false;
	l->f.host.path_mtu = path_mtu(qp);
	l->f.host.passed = passed;
	l->f.reach = VB_REACH_HOST_LONG;
	return true;
}

/* What a message of rdma_cm's says of that.  It is short. */
static void by_hearing_of_cm(struct look *l)
{
	l->f.host.heard_ms = heard_ms(l);
	l->f.reach = !l->heard		   ? VB_REACH_CM_SILENT
		     : l->heard < l->since ? VB_REACH_CM_QUIET
					   : VB_REACH_CM_OTHERS;
}

/* By what came, or did not. */
static void by_hearing(struct look *l)
{
	uint64_t bad = word(&l->host->bad_icrc);

	if (bad && !l->heard) {
		l->f.host.bad = bad > UINT32_MAX ? UINT32_MAX : (uint32_t)bad;
		is(l, VB_REACH_HOST_DAMAGED, 0);
		return;
	}
	if (!l->qp) {
		by_hearing_of_cm(l);
		return;
	}
	if (by_length(l))
		return;
	l->f.host.path_mtu = long_packets(l->qp);
	l->f.host.heard_ms = heard_ms(l);
	l->f.reach = !l->heard	   ? VB_REACH_HOST_SILENT
		     : is_quiet(l) ? VB_REACH_HOST_QUIET
				   : VB_REACH_HOST_OTHERS;
}

static struct look begin(struct vb_hosts *t, const struct vb_net_host *host, struct vb_qp *qp)
{
	struct look l = {.qp = qp, .host = host, .all = t, .now = vb_now()};

	if (t->wire->hear)
		t->wire->hear(t->net);
	vb_devices_port(t->hca->device, &l.port);
	memcpy(l.f.host.gid, &host->gid, sizeof(l.f.host.gid));
	memcpy(l.f.host.ifname, l.port.ifname, sizeof(l.f.host.ifname));
	return l;
}

static void find_silence(struct look *l)
{
	l->heard = word(&l->host->heard);
	if (!l->port.up && l->port.wire)
		is(l, VB_REACH_HOST_DOWN, 0);
	else if (!by_sending(l) && !by_route(l) && !by_icmp(l) && !by_neighbour(l) && !by_translation(l))
		by_hearing(l);
}

struct vb_reach_facts vb_hosts_why(struct vb_hosts *t, const struct vb_net_host *host, struct vb_qp *qp)
{
	int err = errno;
	struct look l = begin(t, host, qp);

	vb_lock_assert_held(&qp->lock);
	l.here = qp->path.dgid;
	find_silence(&l);
	errno = err;
	return l.f;
}

struct vb_reach_facts vb_hosts_why_mad(struct vb_hosts *t, const struct vb_net_host *host, struct vb_gid here,
				       uint64_t since)
{
	int err = errno;
	struct look l = begin(t, host, NULL);

	l.here = here;
	l.since = since;
	find_silence(&l);
	errno = err;
	return l.f;
}

/* What has come from there counts for nothing: a packet was refused just now. */
struct vb_reach_facts vb_hosts_refusal(struct vb_hosts *t, const struct vb_net_host *host)
{
	int err = errno;
	struct look l = begin(t, host, NULL);

	if (!l.port.up && l.port.wire)
		is(&l, VB_REACH_HOST_DOWN, 0);
	else if (!by_sending(&l) && !by_route(&l))
		(void)by_icmp(&l);
	errno = err;
	return l.f;
}
