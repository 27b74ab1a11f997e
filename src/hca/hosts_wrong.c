/* Packets of other hosts whose checksum (ICRC) is wrong: which queue pair they were for, and whether
 * something on the way translates addresses.  They are discarded, whatever is found. */
#include "base/log.h"
#include "base/text.h"
#include "hca/hosts.h"
#include "hca/send.h"
#include "iba/waits.h"

enum { TRIES = 8 }; /* packets of a queue pair that are compared with the addresses of its connection */

/* Whether it is right between the addresses of the connection. */
static bool is_translated(struct vb_qp *qp, const struct vb_roce_arrival *a)
{
	const struct vb_roce_ends sent = {.src = vb_gid_of(qp->attr.ah_attr.grh.dgid.raw),
					  .dst = qp->path.dgid};

	vb_lock_assert_held(&qp->lock);
	if (qp->astray.translated)
		return true;
	if (!qp->path.far || qp->path.far->kind != &vb_far_host || qp->astray.tried >= TRIES)
		return false;
	qp->astray.tried++;
	return vb_roce_is_translated(a, &sent);
}

/* *peer: the address from which the queue pair expects packets. */
static bool note(struct vb_qp *qp, const struct vb_roce_arrival *a, struct vb_gid *peer)
{
	bool translated;

	atomic_fetch_add_explicit(&qp->astray.n, 1, memory_order_relaxed);
	if (!vb_lock_try(&qp->lock)) /* this thread may have it */
		return false;
	translated = qp->astray.translated = is_translated(qp, a);
	qp->astray.from = a->ends.src;
	*peer = vb_gid_of(qp->attr.ah_attr.grh.dgid.raw);
	vb_hca_give(qp);
	return translated;
}

static void say_translated(uint32_t qpn, struct vb_gid peer, struct vb_gid from)
{
	char text[500] = "";
	struct vb_text t = {text, sizeof(text)};

	vb_text_add(&t, "QP 0x%06x expects packets from ", qpn);
	vb_gid_add(&t, (const uint8_t *)&peer);
	vb_text_add(&t, ", but they arrive from ");
	vb_gid_add(&t, (const uint8_t *)&from);
	vb_text_add(
	    &t, " and are discarded: something on the way translates addresses (NAT), which RoCEv2 does not "
		"pass, since its checksum (ICRC) covers them; ");
	vb_log_reason(vb_wait_rows[VB_W_WRONG_ICRC].name, "%s%s. Further ones are only counted", text,
		      vb_wait_rows[VB_W_WRONG_ICRC].remedy);
}

static void say_wrong(const struct vb_roce_ends *e)
{
	char text[200] = "";
	struct vb_text t = {text, sizeof(text)};

	vb_text_add(&t, "a RoCEv2 packet from ");
	vb_gid_add(&t, (const uint8_t *)&e->src);
	vb_text_add(&t, " to ");
	vb_gid_add(&t, (const uint8_t *)&e->dst);
	vb_log(VB_LOG_INFO,
	       "%s has a wrong checksum (ICRC) and is discarded: something on the way translates addresses "
	       "(NAT), which RoCEv2 does not pass, or damages packets. Further ones are only counted",
	       text);
}

/* A packet that is damaged now and then is sent again, and nobody has to do anything.  Translated ones are a
 * warning, as nothing else ever comes.  Each sentence once for the device: what comes from others says
 * nothing as often as they like. */
void vb_hosts_wrong(void *user, const struct vb_roce_arrival *a)
{
	struct vb_hosts *t = user;
	uint32_t qpn = vb_pkt_get_qpn(a->pkt);
	struct vb_qp *qp = vb_qpn_find(t->hca->adapter, qpn);
	struct vb_gid peer;

	if (qp && note(qp, a, &peer)) {
		if (!atomic_exchange_explicit(&t->said_translated, true, memory_order_relaxed))
			say_translated(qpn, peer, a->ends.src);
	} else if (!atomic_load_explicit(&t->said_translated, memory_order_relaxed) &&
		   !atomic_exchange_explicit(&t->said_wrong, true, memory_order_relaxed)) {
		say_wrong(&a->ends);
	}
}
