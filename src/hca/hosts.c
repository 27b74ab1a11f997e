#include "hca/hosts.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "hca/capture.h"
#include "hca/capture_file.h"
#include "hca/far.h"
#include "hca/peers.h"
#include "hca/port.h"
#include "hca/warm.h"

enum {
	BUCKETS = VB_HOSTS_BUCKETS,
	MOST = VB_FARS, /* addresses of a device, those included that nobody uses any more */
};

struct host {
	struct vb_far far;
	struct vb_net_host net;
	struct vb_hosts *all;
	uint32_t refs, index; /* index: of vb_hosts.at */
	struct host *next;    /* in its bucket */
	uint8_t gids[VB_GID_TABLE][16];
};

_Static_assert(offsetof(struct host, net) == offsetof(struct vb_net_far, net), "as it is read from outside");

static struct host *host_of(const struct vb_far *far)
{
	return vb_containerof(far, struct host, far);
}

/* ---- the table ---- */

static struct host **bucket(struct vb_hosts *t, struct vb_gid gid)
{
	uint64_t mix = (gid.high ^ gid.low) * 0x9e3779b97f4a7c15ull;

	return &t->buckets[mix >> 56];
}

static struct host *find_host(struct vb_hosts *t, struct vb_gid gid)
{
	struct host *h = *bucket(t, gid);

	vb_lock_assert_held(&t->lock);
	while (h && (h->net.gid.low != gid.low || h->net.gid.high != gid.high))
		h = h->next;
	return h;
}

/* One that nobody uses, off the table; NULL: all are used. */
static struct host *evict(struct vb_hosts *t)
{
	vb_lock_assert_held(&t->lock);
	for (uint32_t i = 0; i < BUCKETS; i++) {
		t->evict = (t->evict + 1) % BUCKETS;
		for (struct host **at = &t->buckets[t->evict]; *at; at = &(*at)->next) {
			struct host *h = *at;

			if (!h->refs) {
				*at = h->next;
				return h;
			}
		}
	}
	return NULL;
}

static struct host *new_host(struct vb_hosts *t, struct vb_gid gid)
{
	struct host *h = t->n < MOST ? calloc(1, sizeof(*h)) : evict(t), **at = bucket(t, gid);
	uint32_t index;

	vb_lock_assert_held(&t->lock);
	if (!h)
		return NULL;
	index = t->n < MOST ? t->n++ : h->index;
	memset(h, 0, sizeof(*h));
	h->index = index;
	t->at[index] = h;
	h->far.kind = &vb_far_host;
	h->all = t;
	h->net.gid = gid;
	for (uint32_t i = 0; i < VB_GID_TABLE; i++)
		memcpy(h->gids[i], &gid, sizeof(h->gids[i]));
	h->next = *at;
	*at = h;
	return h;
}

struct vb_far *vb_hosts_get(struct vb_hosts *t, struct vb_gid gid)
{
	struct host *h;

	vb_lock_take(&t->lock);
	h = find_host(t, gid);
	if (!h)
		h = new_host(t, gid);
	if (h)
		h->refs++;
	vb_lock_give(&t->lock);
	return h ? &h->far : NULL;
}

static void put(struct vb_far *far)
{
	struct host *h = host_of(far);

	vb_lock_take(&h->all->lock);
	h->refs--;
	vb_lock_give(&h->all->lock);
}

/* ---- for the wire ---- */

static struct vb_net_host *net_host(void *user, struct vb_gid gid)
{
	struct vb_hosts *t = user;
	struct host *h;

	vb_lock_take(&t->lock);
	h = find_host(t, gid);
	vb_lock_give(&t->lock);
	return h ? &h->net : NULL;
}

static uint32_t addresses(void *user, struct vb_gid *to)
{
	const struct vb_gids *g = vb_port_gids(((struct vb_hosts *)user)->hca);

	for (uint32_t i = 0; i < g->n; i++)
		to[i] = vb_gid_of(g->gid[i]);
	return g->n;
}

static void came(void *user, struct vb_rxq *r)
{
	(void)user;
	if (atomic_load_explicit(r->cold, memory_order_relaxed))
		vb_hca_warm(r);
}

void vb_hosts_look(struct vb_hca *h, uint64_t now)
{
	struct vb_hosts *t = h->hosts;

	if (vb_likely(!t) || !atomic_load_explicit(t->rxq->cold, memory_order_relaxed))
		return;
	now = now ? now : vb_now();
	if (now - atomic_load_explicit(&t->looked, memory_order_relaxed) < VB_HOSTS_LOOK)
		return;
	atomic_store_explicit(&t->looked, now, memory_order_relaxed);
	if (vb_rxq_ready(t->rxq))
		vb_hca_warm(t->rxq);
}

/* ---- the kind ---- */

bool vb_hosts_only(const struct vb_hca *h)
{
	return h->hosts && h->hosts->only;
}

/* The address that the queue pair sends from. */
static struct vb_gid sgid_of(const struct vb_qp *qp)
{
	const struct vb_gids *g = vb_port_gids(vb_qp_hca(qp));

	return vb_gid_of(g->gid[qp->attr.ah_attr.grh.sgid_index % VB_GID_TABLE]);
}

static struct vb_far *find_by(struct vb_hca *h, const struct ibv_ah_attr *av)
{
	if (!h->hosts || !av->is_global || vb_gid_is_group(av->grh.dgid.raw) ||
	    vb_gid_is_zero(av->grh.dgid.raw))
		return NULL;
	if (!vb_hosts_only(h) && vb_port_leads_here(h, av))
		return NULL;
	return vb_hosts_get(h->hosts, vb_gid_of(av->grh.dgid.raw));
}

static struct vb_far *find(struct vb_hca *h, const struct vb_qp *qp)
{
	return find_by(h, &qp->attr.ah_attr);
}

static uint32_t number_of(const struct vb_far *far)
{
	return far ? VB_DEST_FAR + host_of(far)->index : VB_DEST_NOWHERE;
}

static uint32_t leads(struct vb_hca *h, const struct ibv_ah_attr *av, struct vb_far **held)
{
	*held = find_by(h, av);
	return number_of(*held);
}

uint32_t vb_hosts_group(struct vb_hca *h, const uint8_t mgid[16], struct vb_far **held)
{
	*held = vb_hosts_carry(h, mgid) ? vb_hosts_get(h->hosts, vb_gid_of(mgid)) : NULL;
	return number_of(*held);
}

static struct vb_far *at(struct vb_hca *h, uint32_t number)
{
	struct vb_hosts *t = h->hosts;
	struct host *host;

	if (!t || number < VB_DEST_FAR || number >= VB_DESTS)
		return NULL;
	vb_lock_take(&t->lock);
	host = t->at[number - VB_DEST_FAR];
	if (host)
		host->refs++;
	vb_lock_give(&t->lock);
	return host ? &host->far : NULL;
}

static struct vb_far *named(struct vb_hca *h, const struct vb_whom *whom, uint32_t *number)
{
	struct vb_far *far = h->hosts ? vb_hosts_get(h->hosts, whom->gid) : NULL;

	*number = number_of(far);
	return far;
}

/* Nobody tells that another host is there or not. */
static bool there(struct vb_hca *h, const struct vb_whom *whom)
{
	(void)whom;
	return h->hosts;
}

static enum vb_far_state state(const struct vb_far *far)
{
	(void)far;
	return VB_FAR_UP; /* as far as anybody knows */
}

static void nothing(struct vb_far *far)
{
	(void)far;
}

static struct vb_far *current(struct vb_far *far)
{
	return far;
}

static struct vb_reach_facts silence(struct vb_far *far, uint32_t pid, bool looks)
{
	(void)far, (void)pid, (void)looks;
	return (struct vb_reach_facts){.reach = VB_REACH_UNKNOWN};
}

static const uint8_t (*gids(const struct vb_far *far))[16]
{
	return host_of(far)->gids;
}

static bool no(const struct vb_far *far)
{
	(void)far;
	return false;
}

static bool in_group(const struct vb_far *far, const uint64_t mgid[2])
{
	(void)far, (void)mgid;
	return false;
}

static struct vb_whom whom(const struct vb_far *far)
{
	return (struct vb_whom){.kind = VB_WHOM_ADDRESS, .gid = host_of(far)->net.gid};
}

static bool attach(struct vb_path *p)
{
	const struct host *h = host_of(p->far);

	vb_lock_assert_held(&p->qp->lock);
	if (p->rxq)
		return true;
	p->rxq = h->all->rxq;
	p->source = (struct vb_origin){h->net.gid.high, h->net.gid.low};
	if (p->qp->dests) /* datagrams come from anywhere */
		return true;
	p->dgid = sgid_of(p->qp);
	return true;
}

/* What else a path has, each datagram says.  It may be as long as the port's MTU (IBTA C10-93). */
static struct vb_out *datagram_way(struct host *h, const struct vb_qp *qp)
{
	const struct vb_net_ends ends = {
	    .host = &h->net,
	    .unacked = true,
	    .datagrams = true,
	    .src_qpn = qp->qpn,
	    .mtu = 128u << vb_port_mtu(h->all->hca),
	};

	return h->all->wire->way(h->all->net, &ends);
}

static struct vb_out *way(struct vb_far *far, const struct vb_qp *qp, struct vb_rxq **rxq)
{
	struct host *h = host_of(far);
	const struct ibv_ah_attr *av = &qp->attr.ah_attr;
	const struct vb_net_ends ends = {
	    .host = &h->net,
	    .unacked = !qp->acked,
	    .sgid = qp->path.dgid,
	    .src_qpn = qp->qpn,
	    .dst_qpn = qp->dest_qpn,
	    .mtu = 128u << qp->attr.path_mtu,
	    .flow = av->grh.flow_label,
	    .tclass = av->grh.traffic_class,
	    .hops = av->grh.hop_limit,
	};

	*rxq = h->all->rxq;
	if (qp->dests)
		return datagram_way(h, qp);
	return h->all->wire->way(h->all->net, &ends);
}

/* What protects the queue pair there is that it looks at where packets come from. */
static bool connected(const struct vb_path *p)
{
	(void)p;
	return true;
}

static uint32_t received(const struct vb_path *p)
{
	(void)p;
	return 0;
}

static void explain(struct vb_qp *qp)
{
	const struct host *h = host_of(qp->path.far);

	qp->silence = vb_hosts_why(h->all, &h->net, qp);
}

static bool slow(const struct vb_qp *qp, uint64_t now)
{
	(void)qp, (void)now;
	return false;
}

const struct vb_far_kind vb_far_host = {
    .name = "host",
    .keeps = true,
    .find = find,
    .leads = leads,
    .at = at,
    .named = named,
    .there = there,
    .put = put,
    .state = state,
    .contact = nothing,
    .current = current,
    .silence = silence,
    .gids = gids,
    .own = no,
    .whom = whom,
    .hears = no,
    .rouse = nothing,
    .in_group = in_group,
    .attach = attach,
    .way = way,
    .connected = connected,
    .received = received,
    .explain = explain,
    .slow = slow,
};

/* ---- with the device ---- */

struct vb_hosts *vb_hosts_new(struct vb_hca *h, struct vb_net_cfg *cfg)
{
	struct vb_hosts *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->hca = h;
	cfg->user = t;
	cfg->host = net_host;
	cfg->addresses = addresses;
	cfg->came = came;
	cfg->wrong = vb_hosts_wrong;
	cfg->refused = vb_hosts_refused;
	cfg->kept = vb_capture_is_on() ? vb_capture_packet : NULL;
	return t;
}

void vb_hosts_free(struct vb_hosts *t)
{
	struct host *host;

	for (uint32_t i = 0; i < BUCKETS; i++)
		while ((host = t->buckets[i])) {
			t->buckets[i] = host->next;
			free(host);
		}
	free(t);
}
