#include "hca/gsi.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "hca/all.h"
#include "hca/direct.h"
#include "hca/far.h"
#include "hca/hosts.h"
#include "hca/mads.h"
#include "hca/path.h"
#include "hca/send.h"
#include "host/devices.h"
#include "obj/builder.h"
#include "obj/cq.h"
#include "transport/transport.h"

enum {
	/* A thousand connects at once are ordinary, and what is lost is said again after seconds only. */
	SEND_DEPTH = 4096, /* MADs that wait for contact or room */
	HEARD = 8192,	   /* MADs that the engine has not taken yet; what comes then is lost, as on a wire */
	SAY_EVERY = 1000,  /* MADs of strangers that are discarded: one line of log each time */
	HEARD_FAR = 2048,  /* of these, MADs of other hosts */
	IN_ONE_GO = 256,   /* of these; others want the thread, too */
	BEGUN = 4096,	   /* QPNs likewise; connections beyond that wait for their RTU */
};

/* A MAD of another host as a process that took it in hands it on: what it would not show itself follows it.
 */
struct handed {
	uint8_t mad[VB_MAD_LEN];
	struct vb_gid sgid, dgid;
	struct vb_route route;
};
_Static_assert(!(sizeof(struct handed) % 4), "without padding");

struct vb_gsi {
	struct vb_qp qp;
	struct vb_cq cq;
	uint32_t number; /* the QPN by which this adapter's lists have it */
	const struct vb_gsi_ops *ops;
	void *user;
	struct vb_lock lock; /* a leaf; guards the rest */
	uint32_t head, tail, nbegun, nfar;
	/* Both are touched only as far as there was ever something in them. */
	uint32_t begun[BEGUN]; /* of queue pairs that have heard their far end */
	struct vb_gsi_mad heard[HEARD];
};

static struct vb_gsi *gsi_of(const struct vb_hca *h)
{
	return atomic_load_explicit(&h->gsi, memory_order_acquire); /* pairs with vb_gsi_open() */
}

bool vb_gsi_is_open(const struct vb_hca *h)
{
	return gsi_of(h);
}

static void describe(struct vb_gsi *g, struct vb_hca *h)
{
	struct vb_qp *qp = &g->qp;

	g->cq.ctx = &h->inner;
	qp->ctx = &h->inner;
	qp->scq = &g->cq;
	qp->srqs = &h->srqs;
	qp->keys = &h->keys;
	qp->mws = &h->mws;
	qp->qpn = VB_GSI_QPN;
	qp->ibv.qp_type = IBV_QPT_UD;
	vb_transport_choose(qp, IBV_QPT_UD);
}

static void begin(struct vb_gsi *g, struct vb_hca *h)
{
	struct vb_qp *qp = &g->qp;

	qp->dests->gids = vb_adapter_gids(h->adapter);
	qp->dests->infiniband = vb_devices_infiniband();
	qp->dests->group = &vb_mcast_ops;
	qp->shown = vb_qpn_published(h->adapter, g->number);
	qp->traffic = vb_qpn_traffic(h->adapter, g->number);
	qp->said = ~0ull; /* no drop is a program's; what is lost is said by whoever knows what it was */
	vb_lock_take(&qp->lock);
	qp->qkey = qp->attr.qkey = VB_GSI_QKEY;
	vb_qp_set_state(qp, IBV_QPS_RTS);
	qp->ibv.state = IBV_QPS_RTS;
	vb_direct_show(qp);
	vb_hca_give(qp);
}

/* 0 or errno. */
static int make(struct vb_gsi *g, struct vb_hca *h)
{
	struct ibv_qp_cap cap = {
	    .max_send_wr = SEND_DEPTH, .max_send_sge = 1, .max_inline_data = sizeof(struct handed)};
	int err;

	describe(g, h);
	err = vb_cq_init(&g->cq, SEND_DEPTH); /* pairs with end() */
	if (err)
		return err;
	err = vb_qp_init(&g->qp, &cap); /* pairs with end() */
	if (err)
		goto fini_cq;
	for (unsigned i = 0; i < VB_QP_EVENTS; i++)
		vb_qp_event_at(&g->qp, i)->deaf = true;	   /* there is no program that could hear them */
	g->number = vb_qpn_take(h->adapter, &g->qp, NULL); /* pairs with end() */
	if (g->number) {
		begin(g, h);
		return 0;
	}
	err = ENOMEM;
	vb_qp_fini(&g->qp);
fini_cq:
	vb_cq_fini(&g->cq);
	return err;
}

int vb_gsi_open(struct vb_hca *h, const struct vb_gsi_ops *ops, void *user)
{
	size_t size = (sizeof(struct vb_gsi) + VB_LINE - 1) & -(size_t)VB_LINE;
	struct vb_gsi *g;
	int err;

	if (gsi_of(h))
		return EBUSY;
	g = aligned_alloc(VB_LINE, size); /* pairs with vb_gsi_close() */
	if (!g)
		return ENOMEM;
	memset(g, 0, offsetof(struct vb_gsi, begun));
	g->ops = ops;
	g->user = user;
	err = make(g, h);
	if (err) {
		free(g);
		return err;
	}
	atomic_store_explicit(&h->gsi, g, memory_order_release); /* pairs with gsi_of() */
	vb_adapter_show_gsi(h->adapter, g->number);
	vb_mads_listen(h);
	return 0;
}

static void end(struct vb_gsi *g, struct vb_hca *h)
{
	struct vb_qp *qp = &g->qp;

	vb_hca_forget(qp);
	vb_qpn_give(h->adapter, g->number);
	vb_hca_quiesce(h);
	vb_qp_fini(qp);
	vb_cq_forget(&g->cq, qp);
	vb_cq_fini(&g->cq);
}

void vb_gsi_close(struct vb_hca *h)
{
	struct vb_gsi *g;

	vb_adapter_show_gsi(h->adapter, 0);
	pthread_mutex_lock(&h->gsi_busy); /* the engine is through with its user */
	g = atomic_exchange(&h->gsi, NULL);
	pthread_mutex_unlock(&h->gsi_busy);
	if (!g)
		return;
	end(g, h);
	free(g);
}

/* The slots of what has left are free again once its completions are taken. */
static void take_completions(struct vb_gsi *g)
{
	struct ibv_wc wc[16];

	while (vb_cq_poll(&g->cq, 16, wc) > 0)
		;
}

static int post(struct vb_gsi *g, uint32_t number, struct vb_route route, const void *bytes, uint32_t len)
{
	struct vb_builder b;
	int err = 0;

	if (!vb_builder_begin(&b, &g->qp)) /* never: this queue pair is no program's */
		return EIO;
	if (vb_qp_state_now(&g->qp) != IBV_QPS_RTS) {
		err = EIO;
	} else if (!vb_builder_room(&b)) {
		err = EAGAIN;
	} else {
		vb_builder_start(&b, IBV_WR_SEND, IBV_SEND_SIGNALED | IBV_SEND_INLINE, 0);
		vb_builder_bare(&b);
		vb_builder_inline(&g->qp.req, b.w, bytes, len);
		b.w->to.number = number;
		b.w->to.qpn = VB_GSI_QPN;
		b.w->to.qkey = VB_GSI_QKEY;
		b.w->to.route = route;
		vb_builder_next(&b);
		vb_builder_publish(&b);
		vb_hca_posted(&g->qp);
	}
	vb_builder_end(&b);
	return err;
}

/* To a process of this host. */
static int send_to_peer(struct vb_hca *h, const struct vb_whom *to, struct vb_route route, const void *bytes,
			uint32_t len)
{
	struct vb_gsi *g = gsi_of(h);
	struct vb_far *far;
	uint32_t number;
	int err;

	if (!g || vb_adapter_dead(h->adapter) || vb_adapter_lost(h->adapter))
		return EIO;
	take_completions(g);
	far = vb_far_named(h, to, &number);
	err = far && !far->kind->hears(far) ? ENOTCONN : post(g, number, route, bytes, len);
	if (far && !err)
		far->kind->rouse(far);
	vb_far_put(&far);
	return err;
}

int vb_gsi_send(struct vb_hca *h, const struct vb_whom *to, struct vb_route route,
		const uint8_t mad[VB_MAD_LEN])
{
	if (to->kind != VB_WHOM_ADDRESS)
		return send_to_peer(h, to, route, mad, VB_MAD_LEN);
	if (!gsi_of(h) || vb_adapter_dead(h->adapter) || vb_adapter_lost(h->adapter))
		return EIO;
	return vb_mads_send(h, to->gid, route, mad);
}

int vb_gsi_hand(struct vb_hca *h, const struct vb_whom *to, const struct vb_gsi_mad *m)
{
	struct handed on = {.sgid = m->sgid, .dgid = m->dgid, .route = m->route};

	memcpy(on.mad, m->bytes, sizeof(on.mad));
	return send_to_peer(h, to, vb_route(VB_GRH_GLOBAL, 0, 0), &on, sizeof(on));
}

bool vb_gsi_silence(struct vb_hca *h, const struct vb_whom *who, struct vb_gid here, uint64_t since,
		    struct vb_reach_facts *f)
{
	struct vb_far *far;
	uint32_t number;
	bool up;

	if (who->kind == VB_WHOM_ADDRESS) {
		*f = vb_mads_silence(h, who->gid, here, since);
		return true;
	}
	far = vb_far_named(h, who, &number);
	up = !far || far->kind->state(far) == VB_FAR_UP;
	*f = (struct vb_reach_facts){.reach = VB_REACH_UNKNOWN};
	if (far)
		*f = far->kind->silence(far, 0, true);
	vb_far_put(&far);
	return up;
}

static __thread bool hears; /* this thread hands over what comes, when it is through with what there is */

void vb_gsi_listen(void)
{
	hears = true;
}

void vb_gsi_hear(struct vb_hca *h)
{
	struct vb_gsi *g = gsi_of(h);
	uint64_t next;
	bool any;

	hears = false;
	if (vb_likely(!g))
		return;
	vb_lock_take(&g->lock);
	any = g->head != g->tail || g->nbegun;
	vb_lock_give(&g->lock);
	if (!any)
		return;
	next = vb_gsi_run(h, vb_now());
	if (next != VB_NEVER)
		vb_adapter_due(h->adapter, next);
}

static bool is_handed(const struct vb_pkt *p)
{
	return p->peer && p->payload_len == sizeof(struct handed);
}

/* Why a packet cannot come from a connection manager; NULL: it can. */
static const char *wrong(const struct vb_pkt *p)
{
	if (p->opcode != (VB_FAMILY_UD | VB_SEND_ONLY) || p->loan)
		return "it is not a UD SEND";
	if (p->qkey != VB_GSI_QKEY)
		return "its Q_Key is wrong";
	return p->payload_len != VB_MAD_LEN && !is_handed(p) ? "its length is wrong" : NULL;
}

/* A MAD is lost.  A stranger may send any number of them. */
static void say_lost(struct vb_hca *h, const struct vb_whom *from, const char *why)
{
	char gid[64];
	struct vb_text t = {gid, sizeof(gid)};

	if (from->kind == VB_WHOM_PEER) {
		vb_log(VB_LOG_DEBUG, "a management datagram from process %u is discarded: %s", from->pid,
		       why);
		return;
	}
	if (atomic_fetch_add_explicit(&h->strange_mads, 1, memory_order_relaxed) % SAY_EVERY)
		return;
	vb_gid_add(&t, (const uint8_t *)&from->gid);
	vb_log(VB_LOG_DEBUG, "a management datagram from %s is discarded: %s", gid, why);
}

static void read_handed(struct vb_gsi_mad *m, const struct vb_pkt *p)
{
	struct handed on;

	memcpy(&on, p->payload, sizeof(on));
	m->handed = true;
	m->sgid = on.sgid;
	m->dgid = on.dgid;
	m->route = on.route;
	m->whom = (struct vb_whom){.kind = VB_WHOM_ADDRESS, .gid = on.sgid};
}

/* For whoever opened it; NULL, or why it is lost: other hosts may send any number of them. */
static const char *keep(struct vb_gsi *g, const struct vb_gsi_mad *m)
{
	bool far = m->whom.kind == VB_WHOM_ADDRESS, room;

	vb_lock_take(&g->lock);
	room = g->head - g->tail < HEARD && (!far || g->nfar < HEARD_FAR);
	if (room) {
		g->heard[g->head++ % HEARD] = *m;
		g->nfar += far;
	}
	vb_lock_give(&g->lock);
	return room ? NULL : "the queue is full";
}

void vb_gsi_take(struct vb_hca *h, const struct vb_rxq *r, const struct vb_pkt *p)
{
	const struct vb_source *from = p->source;
	struct vb_gid sgid = vb_gid_read(from->gids[VB_GRH_SGID(p->route.word)]);
	struct vb_gsi_mad m = {.sgid = sgid,
			       .dgid = vb_source_dgid(from, vb_adapter_gids(h->adapter), sgid),
			       .slid = from->lid,
			       .whom = {.kind = VB_WHOM_ADDRESS, .gid = sgid},
			       .route = p->route};
	struct vb_gsi *g = gsi_of(h);
	const char *why = g ? wrong(p) : "this process has not opened rdma_cm";

	vb_lock_assert_held(&r->rx);
	if (r->far)
		m.whom = r->far->kind->whom(r->far);
	if (!why && is_handed(p))
		read_handed(&m, p);
	if (!why) {
		memcpy(m.bytes, p->payload, VB_MAD_LEN);
		why = keep(g, &m);
	}
	if (why)
		say_lost(h, &m.whom, why);
	if (g && !hears)
		vb_adapter_nudge(h->adapter);
}

/* Nothing but a management datagram comes there; a packet of another kind is discarded like a malformed one.
 */
static void take_far(struct vb_hca *h, struct vb_rxq *r, struct vb_arrival *in)
{
	struct vb_pkt p;

	vb_lock_assert_held(&r->rx);
	if (vb_pkt_decode(&p, in->b.bytes, in->b.hdr_len, in->payload_len, false))
		return;
	p.payload = in->payload;
	p.source = in->source;
	/* The answers' hop limit begins anew, and what the network marked (ECN) stays here. */
	p.route =
	    vb_route(VB_GRH_WORD(0, VB_GRH_TCLASS(in->b.route.word) & ~3u, VB_GRH_FLOW(in->b.route.word)),
		     VB_GRH_HOPS, 0);
	vb_gsi_take(h, r, &p);
}

void vb_gsi_came(void *user, struct vb_rxq *r)
{
	struct vb_hca *h = ((struct vb_hosts *)user)->hca;
	struct vb_arrival in __attribute__((aligned(16)));

	if (!vb_lock_try(&r->rx))
		return; /* another thread is at it, or the next event comes at once */
	for (int i = 0; i < IN_ONE_GO && r->ops->peek(r, &in) > 0; i++) {
		take_far(h, r, &in);
		r->ops->next(r);
	}
	vb_lock_give(&r->rx);
}

static bool next_heard(struct vb_gsi *g, struct vb_gsi_mad *m)
{
	bool any;

	vb_lock_take(&g->lock);
	any = g->head != g->tail;
	if (any) {
		*m = g->heard[g->tail++ % HEARD];
		g->nfar -= m->whom.kind == VB_WHOM_ADDRESS;
	}
	if (g->head == g->tail)
		g->head = g->tail = 0;
	vb_lock_give(&g->lock);
	return any;
}

void vb_gsi_established(struct vb_context *c, uint32_t qpn)
{
	struct vb_gsi *g = gsi_of(vb_hca(c->adapter));

	if (!g)
		return;
	vb_lock_take(&g->lock);
	if (g->nbegun < BEGUN)
		g->begun[g->nbegun++] = qpn;
	vb_lock_give(&g->lock);
	vb_adapter_nudge(c->adapter);
}

/* One of those; 0: there is none. */
static uint32_t next_begun(struct vb_gsi *g)
{
	uint32_t qpn;

	vb_lock_take(&g->lock);
	qpn = g->nbegun ? g->begun[--g->nbegun] : 0;
	vb_lock_give(&g->lock);
	return qpn;
}

uint64_t vb_gsi_run(struct vb_hca *h, uint64_t now)
{
	uint64_t next = VB_NEVER;
	struct vb_gsi_mad m;
	struct vb_gsi *g;
	uint32_t qpn;

	if (!gsi_of(h))
		return next;
	pthread_mutex_lock(&h->gsi_busy);
	g = gsi_of(h);
	for (unsigned i = 0; g && i < HEARD && next_heard(g, &m); i++)
		g->ops->heard(g->user, &m);
	for (unsigned i = 0; g && i < BEGUN && (qpn = next_begun(g)); i++)
		g->ops->established(g->user, qpn);
	if (g) {
		take_completions(g);
		next = g->ops->timers(g->user, now);
	}
	pthread_mutex_unlock(&h->gsi_busy);
	return next;
}

void vb_gsi_gone(struct vb_hca *h, const struct vb_whom *who, enum vb_peer_end how,
		 const struct vb_reach_facts *silence)
{
	struct vb_gsi *g;

	if (!gsi_of(h))
		return;
	pthread_mutex_lock(&h->gsi_busy);
	g = gsi_of(h);
	if (g)
		g->ops->gone(g->user, who, how, silence);
	pthread_mutex_unlock(&h->gsi_busy);
}

void vb_gsi_mute(struct vb_hca *h, const struct vb_whom *who)
{
	struct vb_gsi *g;

	if (!gsi_of(h))
		return;
	pthread_mutex_lock(&h->gsi_busy);
	g = gsi_of(h);
	if (g)
		g->ops->mute(g->user, who);
	pthread_mutex_unlock(&h->gsi_busy);
}

void vb_gsi_lost(struct vb_hca *h)
{
	struct vb_gsi *g;

	if (!gsi_of(h))
		return;
	pthread_mutex_lock(&h->gsi_busy);
	g = gsi_of(h);
	if (g)
		g->ops->lost(g->user);
	pthread_mutex_unlock(&h->gsi_busy);
}
