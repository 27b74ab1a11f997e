#include "hosts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hca/all.h"
#include "hca/direct.h"
#include "hca/forward.h"
#include "hca/path.h"
#include "hca/peers.h"
#include "hca/progress.h"
#include "hca/receive.h"
#include "hca/send.h"
#include "hca/srq.h"
#include "hca/warm.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* stand-ins need little of what they are told */

enum { PROCESSES = 24, LINKS = 24, QPS = 32, CAME = 2048, KEYS = 512, NUMBER0 = 0x11 };
enum { HINT_LOST = 4, COOL = 8 }; /* one hint of so many; before one event of so many, a process's rings */
enum { SIM_LANES = 2, NOTES = 64, GROUPS = 16, TYPES = IBV_QPT_XRC_RECV + 1 };
enum { AT_ONCE = 100000 }; /* events at one instant after which time stands still */

#define TRY_AGAIN (10 * VB_MSEC) /* after an attempt at contact that failed */
#define LOOK	  (10 * VB_MSEC) /* from one look of an engine to the next, while somebody polls */

struct link;

/* One of the lanes between a process and a peer of it. */
struct lane {
	struct link *link;
	struct sim_wire wire;	 /* to the peer */
	struct vb_rxq rxq;	 /* from it */
	struct vb_source source; /* what comes from it shows */
	_Atomic uint32_t cold;	 /* whether nobody looks at that */
	struct sim_flying *came[CAME];
	uint32_t first, count;
};

/* A process and one of its peers. */
struct link {
	struct vb_peer peer;
	struct vb_adapter *far; /* NULL: nobody has that number */
	struct lane lanes[SIM_LANES];
	uint64_t contact, end; /* when it comes up, and ends; VB_NEVER: that is not under way */
	enum vb_peer_end how;
	uint64_t began, next_try;
	bool was_up, rung;
	_Atomic uint32_t heard; /* 1: the peer's announcements are looked at */
};

/* What a peer has said over the control socket, and the engine has not read yet. */
struct note {
	struct vb_peer *from;
	uint8_t subject;
	size_t len;
	uint8_t bytes[VB_TELL_MAX] __attribute__((aligned(8)));
};

/* A receive queue by which anybody sends to a process: what comes is taken in at once. */
struct ear {
	struct vb_rxq rxq;
	_Atomic uint32_t cold;
	const struct vb_arrival *in; /* NULL: nothing comes */
};

/* One process. */
struct vb_adapter {
	struct hosts *hosts;
	struct vb_hca hca;
	uint32_t number;
	uint64_t incarnation;
	bool alive, nudged, running;
	struct vb_presence presence;
	_Atomic uint32_t awake, told;
	struct vb_set hints;
	uint32_t polls; /* as the engine last saw them */
	uint64_t deadline, watch;
	struct vb_qp *qps[QPS];
	struct vb_shown_qp *shown;
	struct vb_traffic *traffic;
	struct vb_drops drops;
	uint8_t gids[VB_GID_TABLE][16] __attribute__((aligned(8)));
	uint64_t groups[GROUPS][2]; /* as it shows them */
	uint32_t stirs, joined;	    /* joined: how often it is a member of groups */
	bool stopped;		    /* by a signal, say */
	bool held;		    /* its receive queues are, by a thread that does not run */
	struct note notes[NOTES];
	uint32_t notes_first, notes_n;
	struct ear ear;
	struct link *links[LINKS];
	uint32_t nlinks;
	uint32_t made; /* queue pairs and domains */
	uint32_t srqs; /* the same */
};

struct hosts {
	struct hosts_cfg cfg;
	struct sim *air; /* the clock, chance and the trace of all wires; no queue pairs */
	struct vb_adapter *all[PROCESSES];
	uint32_t n;
	struct vb_transport steps[TYPES]; /* the rows of types, with placement in smaller steps */
	uint64_t at_once;		  /* events since the clock last moved */
	int pidfd;			  /* of this process, which all of them are; -1: not needed */
};

static struct hosts *world; /* whose clock counts, NULL: the machine's */

/* What reads the clock below reads the simulated one. */
int clock_gettime(clockid_t which, struct timespec *t)
{
	if (!world || which == CLOCK_REALTIME) /* which only a log and libFuzzer look at */
		return (int)syscall(SYS_clock_gettime, which, t);
	*t = (struct timespec){(time_t)(world->air->now / VB_SEC), (long)(world->air->now % VB_SEC)};
	return 0;
}

static uint64_t some_of(struct hosts *h, uint64_t ns)
{
	return ns ? sim_random(h->air) % ns : 0;
}

static bool one_in(struct hosts *h, uint32_t n)
{
	return sim_below(h->air, n) == 0;
}

/* ---- links ---- */

static struct link *link_of(const struct vb_peer *peer)
{
	return vb_containerof(peer, struct link, peer);
}

/* Who has that number now, or had it last. */
static struct vb_adapter *process_at(struct hosts *h, uint32_t number)
{
	for (uint32_t i = h->n; i-- > 0;)
		if (h->all[i]->number == number)
			return h->all[i];
	return NULL;
}

/* A peer that is gone for good is not found any more. */
static struct link *find_link(const struct vb_adapter *a, uint32_t number)
{
	for (uint32_t i = 0; i < a->nlinks; i++)
		if (a->links[i]->peer.number == number && a->links[i]->peer.state != VB_PEER_DOWN)
			return a->links[i];
	return NULL;
}

static struct link *link_to(const struct vb_adapter *a, const struct vb_adapter *far)
{
	for (uint32_t i = 0; i < a->nlinks; i++)
		if (a->links[i]->far == far)
			return a->links[i];
	return NULL;
}

/* What came from a process with which contact never was complete is nobody's. */
static void forget_what_came(struct link *l)
{
	for (uint32_t i = 0; i < SIM_LANES; i++)
		for (struct lane *lane = &l->lanes[i]; lane->count; lane->count--)
			free(lane->came[lane->first++ % CAME]);
}

/* Until there was contact a link leads to whoever has the number now. */
static void aim(struct link *l)
{
	struct vb_adapter *now = process_at(l->peer.adapter->hosts, l->peer.number);

	if (l->was_up || (l->far && l->far->alive) || l->far == now)
		return;
	forget_what_came(l);
	l->far = now;
}

/* The same connection as the process at the other end has it. */
static struct link *other_end(const struct link *l)
{
	return link_to(l->far, l->peer.adapter);
}

/* The same lane there. */
static struct lane *other_lane(const struct lane *l)
{
	return &other_end(l->link)->lanes[l - l->link->lanes];
}

static int lane_peek(struct vb_rxq *r, struct vb_arrival *p)
{
	struct lane *l = vb_containerof(r, struct lane, rxq);
	struct sim_flying *f = l->came[l->first % CAME];

	vb_lock_assert_held(&r->rx);
	if (!l->count)
		return 0;
	l->source = (struct vb_source){.origin = {VB_SOURCE_PEER, l->link->peer.incarnation}};
	l->source.gids = (const uint8_t(*)[16])l->link->far->gids;
	p->source = &l->source;
	p->payload_len = f->payload_len;
	sim_flying_brief(f, &p->b);
	if (f->hdr_len + f->payload_len <= other_lane(l)->wire.out.brief) {
		p->payload = p->b.bytes + f->hdr_len;
	} else {
		p->b.flags |= VB_BRIEF_APART;
		p->payload = f->bytes + f->hdr_len;
	}
	return 1;
}

static void lane_next(struct vb_rxq *r)
{
	struct lane *l = vb_containerof(r, struct lane, rxq);
	struct sim_wire *from = &other_lane(l)->wire;

	free(l->came[l->first++ % CAME]);
	l->count--;
	atomic_fetch_add(&r->at, 1);
	from->held--;
	from->delivered++;
}

static bool lane_ready(const struct vb_rxq *r)
{
	return vb_containerof(r, const struct lane, rxq)->count > 0;
}

static void lane_rubbish(struct vb_rxq *r)
{
	fail_msg("a simulated wire has no rubbish");
}

static uint32_t lane_names(const struct vb_rxq *r)
{
	const struct lane *l = vb_containerof(r, const struct lane, rxq);

	return l->count ? vb_pkt_get_qpn(l->came[l->first % CAME]->bytes) : 0;
}

static bool lane_room(struct vb_rxq *r)
{
	struct vb_out *o = &vb_containerof(r, struct lane, rxq)->wire.out;

	return o->ops->room(o);
}

static const struct vb_rxq_ops lane_ops = {lane_peek,	 lane_next,  lane_ready,
					   lane_rubbish, lane_names, lane_room};

static int ear_peek(struct vb_rxq *r, struct vb_arrival *p)
{
	const struct ear *e = vb_containerof(r, const struct ear, rxq);

	if (!e->in)
		return 0;
	*p = *e->in;
	if (!(p->b.flags & VB_BRIEF_APART))
		p->payload = p->b.bytes + p->b.hdr_len;
	return 1;
}

static void ear_next(struct vb_rxq *r)
{
	vb_containerof(r, struct ear, rxq)->in = NULL;
}

static bool ear_ready(const struct vb_rxq *r)
{
	return vb_containerof(r, const struct ear, rxq)->in;
}

static const struct vb_rxq_ops ear_ops = {.peek = ear_peek, .next = ear_next, .ready = ear_ready};

void hosts_hear(struct vb_adapter *a, const struct vb_arrival *in)
{
	struct ear *e = &a->ear;

	if (!e->rxq.ops) {
		vb_rxq_init(&e->rxq, &ear_ops, NULL, &e->cold);
		vb_hca_open_rxq(&a->hca, &e->rxq, VB_MAX_RINGS - 1, NULL);
	}
	e->in = in;
	vb_hca_look(&e->rxq, one_in(a->hosts, 2) ? VB_TAKE_ONE : VB_TAKE_BATCH);
	assert_null(e->in);
	a->nudged = true;
}

static void make_lane(struct lane *lane, struct link *l)
{
	const struct hosts *h = l->peer.adapter->hosts;

	lane->link = l;
	sim_wire_init(&lane->wire, h->air, l->peer.adapter->number);
	lane->wire.out.places = h->cfg.wire.placing;
	vb_rxq_init(&lane->rxq, &lane_ops, &lane->wire.out, &lane->cold);
}

/* What the peer has of them once it is UP. */
static void give_lanes(struct link *l)
{
	for (uint32_t i = 0; i < SIM_LANES; i++) {
		l->peer.lanes[i] = (struct vb_lane){&l->lanes[i].wire.out, &l->lanes[i].rxq, 0};
		if (l->peer.number != l->peer.adapter->number)
			l->lanes[i].rxq.sender = &l->far->awake;
	}
}

static uint32_t all_came(const struct link *l)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < SIM_LANES; i++)
		n += l->lanes[i].count;
	return n;
}

static struct link *make_link(struct vb_adapter *a, uint32_t number, struct vb_adapter *far)
{
	struct link *l = sim_zeroed(sizeof *l);

	assert_true(a->nlinks < LINKS);
	l->far = far;
	l->contact = l->end = VB_NEVER;
	l->peer.far.kind = vb_hca_ops.far;
	l->peer.adapter = a;
	l->peer.index = a->nlinks;
	l->peer.number = number;
	l->peer.state = VB_PEER_IDLE;
	l->peer.sock = -1;
	l->peer.nlanes = SIM_LANES;
	for (uint32_t i = 0; i < SIM_LANES; i++)
		make_lane(&l->lanes[i], l);
	a->links[a->nlinks++] = l;
	return l;
}

/* The engine is about to make contact. */
static void seek(struct link *l)
{
	struct hosts *h = l->peer.adapter->hosts;

	if (l->peer.state != VB_PEER_IDLE)
		return;
	l->peer.state = VB_PEER_CONTACTING;
	l->began = h->air->now;
	l->contact = h->air->now + some_of(h, h->cfg.contact);
	if (l->contact < l->next_try)
		l->contact = l->next_try;
}

static void rise(struct link *l)
{
	struct vb_adapter *a = l->peer.adapter;

	l->peer.incarnation = vb_adapter_incarnation(l->far);
	l->peer.pid = l->far->number;
	give_lanes(l);
	l->was_up = true;
	l->peer.state = VB_PEER_UP;
	vb_hca_ops.peer_up(&l->peer);
	l->heard = 1;
	a->nudged = true; /* as after any work of this kind */
}

static void arrive(struct sim_wire *w)
{
	struct lane *lane = vb_containerof(w, struct lane, wire), *to = other_lane(lane);
	struct link *from = lane->link;

	assert_true(to->count < CAME);
	to->came[(to->first + to->count++) % CAME] = sim_wire_take(w);
	w->held++;
	if (to->cold && (from->far->hosts->cfg.calm ||
			 !one_in(from->far->hosts, HINT_LOST))) /* a hostile peer took it away */
		vb_set_add(&from->far->hints, to->rxq.index);
	if (from->far->awake == VB_ASLEEP) { /* the doorbell */
		if (to->link->peer.state == VB_PEER_UP)
			vb_hca_ops.rang(&to->link->peer);
		from->far->nudged = true;
	} else if (!from->peer.left) {
		vb_hca_ops.left(&from->peer);
	}
}

static void fall(struct link *l)
{
	struct vb_adapter *a = l->peer.adapter;
	struct link *other = other_end(l);

	l->end = VB_NEVER;
	for (uint32_t i = 0; i < SIM_LANES; i++)
		while (sim_wire_next(&other->lanes[i].wire) != VB_NEVER)
			arrive(&other->lanes[i].wire);
	for (uint32_t i = 0; i < SIM_LANES * CAME && all_came(l); i++)
		vb_hca_ops.progress(a, VB_LOOK_ALL);
	l->heard = 0;
	l->peer.state = VB_PEER_DOWN;
	vb_hca_ops.peer_down(&l->peer, l->how);
	a->nudged = true;
}

static void make_contact(struct link *l)
{
	struct link *other;

	l->contact = VB_NEVER;
	aim(l);
	if (!l->far || !l->far->alive) {
		l->next_try = l->peer.adapter->hosts->air->now + TRY_AGAIN;
		l->peer.state = VB_PEER_IDLE;
		vb_hca_ops.peer_up(&l->peer);
		l->peer.adapter->nudged = true;
		return;
	}
	if (l->far->stopped) /* hosts_continue() */
		return;
	other = find_link(l->far, l->peer.adapter->number);
	if (other &&
	    other->end != VB_NEVER) { /* whoever had the number before is gone, which is read first */
		fall(other);
		other = NULL;
	}
	if (other)
		aim(other);
	if (!other || other->far != l->peer.adapter)
		other = make_link(l->far, l->peer.adapter->number, l->peer.adapter);
	if (l->peer.state == VB_PEER_CONTACTING)
		rise(l);
	if (other->peer.state == VB_PEER_IDLE) /* its end hears of it, sooner or later */
		seek(other);
}

/* ---- processes ---- */

/* What is placed directly within one call is by chance, so that it ends in the middle of messages. */
static bool output_in_steps(struct vb_path *p, uint32_t place)
{
	struct hosts *h = p->qp->ctx->adapter->hosts;

	return vb_transport_of(p->qp->ibv.qp_type)->output(p, place ? 1 + sim_below(h->air, 8192) : 0);
}

struct hosts *hosts_new(const struct hosts_cfg *cfg)
{
	struct hosts *h = sim_zeroed(sizeof *h);

	assert_null(world);
	h->cfg = *cfg;
	h->air = sim_zeroed(sizeof *h->air);
	h->air->ground = &hosts_ground;
	h->air->cfg = cfg->wire;
	h->air->rng = cfg->wire.seed * 0x9e3779b97f4a7c15ull + 7;
	h->air->now = VB_SEC;
	h->air->talk = getenv("VB_SIM_TRACE") != NULL;
	for (uint32_t type = 0; type < TYPES; type++)
		if (vb_transport_of(type)) {
			h->steps[type] = *vb_transport_of(type);
			h->steps[type].output = output_in_steps;
		}
	h->pidfd = cfg->apart ? (int)syscall(SYS_pidfd_open, getpid(), 0) : -1;
	assert_true(h->pidfd >= 0 || !cfg->apart);
	world = h;
	return h;
}

struct vb_adapter *hosts_start(struct hosts *h)
{
	return hosts_start_as(h, NUMBER0 + h->n);
}

struct vb_adapter *hosts_start_as(struct hosts *h, uint32_t number)
{
	struct vb_adapter *a = sim_zeroed(sizeof *a);
	struct vb_hca *d = &a->hca;
	struct link *self;

	assert_true(h->n < PROCESSES);
	a->hosts = h;
	a->number = number;
	a->incarnation = 0x1000 + h->n;
	a->alive = true;
	a->deadline = a->watch = VB_NEVER;
	a->awake = VB_ASLEEP;
	a->presence.awake = &a->awake;
	a->presence.told = &a->told;
	a->presence.hints = &a->hints;
	a->shown = sim_zeroed(QPS * sizeof *a->shown);
	a->traffic = sim_zeroed(QPS * sizeof *a->traffic);
	h->all[h->n++] = a;
	d->adapter = a;
	vb_list_init(&d->timed);
	vb_list_init(&d->contexts);
	vb_list_init(&d->moderated);
	vb_srqs_init(&d->srqs);
	vb_mcast_open(d);
	a->gids[0][0] = 0xfe;
	a->gids[0][1] = 0x80;
	a->gids[0][15] = (uint8_t)number;
	memcpy(&a->gids[1][10], (const uint8_t[]){0xff, 0xff, 192, 0, 2, (uint8_t)number}, 6);
	vb_list_init(&d->unsaid);
	vb_keys_init(&d->keys, sim_zeroed(KEYS * sizeof(struct vb_key_entry)), KEYS,
		     sim_zeroed(VB_MEM_SLOTS * sizeof(struct vb_key_slot)),
		     sim_zeroed(sizeof(struct vb_key_marks)));
	d->keys.home = a->number << 20;
	d->keys.ops = &vb_direct_keys_ops;
	d->keys.owner = a;
	d->hear[VB_SUBJECT_DIRECT] = vb_direct_told;
	d->inner.adapter = a;
	vb_forward_prepare(d);
	self = make_link(a, a->number, a);
	self->peer.incarnation = vb_adapter_incarnation(a);
	self->peer.pid = a->number;
	give_lanes(self);
	self->peer.state = VB_PEER_UP;
	self->was_up = true;
	self->heard = 1;
	vb_direct_peer_up(&self->peer);
	vb_hca_open_lanes(&self->peer);
	return a;
}

static void end(struct vb_adapter *a, enum vb_peer_end how)
{
	struct hosts *h = a->hosts;

	a->alive = false;
	for (uint32_t i = 0; i < h->n; i++) {
		struct link *l = h->all[i] == a ? NULL : link_to(h->all[i], a);

		if (!l || !h->all[i]->alive || l->peer.state != VB_PEER_UP)
			continue; /* who is making contact finds nobody */
		l->how = how;
		l->end = h->air->now + some_of(h, h->cfg.notice);
	}
}

void hosts_kill(struct vb_adapter *a)
{
	end(a, VB_END_DIED);
}

void hosts_leave(struct vb_adapter *a)
{
	vb_deputies_close(&a->hca);
	for (uint32_t i = 0; i < QPS; i++)
		assert_null(a->qps[i]);
	end(a, VB_END_GOODBYE);
}

void hosts_stop(struct vb_adapter *a)
{
	a->stopped = true;
}

void hosts_continue(struct vb_adapter *a)
{
	struct hosts *h = a->hosts;

	a->stopped = false;
	a->nudged = true;
	for (uint32_t i = 0; i < h->n; i++) { /* their hellos are answered now */
		struct link *l = h->all[i] == a ? NULL : find_link(h->all[i], a->number);

		if (l && l->peer.state == VB_PEER_CONTACTING && l->contact == VB_NEVER)
			l->contact = h->air->now;
	}
}

void hosts_hold(struct vb_adapter *a)
{
	for (uint32_t i = 0; i < vb_hca_rxq_count(&a->hca); i++)
		if (vb_hca_rxq_at(&a->hca, i))
			vb_lock_take(&vb_hca_rxq_at(&a->hca, i)->rx);
	a->held = true;
}

void hosts_release(struct vb_adapter *a)
{
	for (uint32_t i = 0; i < vb_hca_rxq_count(&a->hca); i++)
		if (vb_hca_rxq_at(&a->hca, i))
			vb_lock_give(&vb_hca_rxq_at(&a->hca, i)->rx);
	a->held = false;
	a->nudged = true; /* the engine looks again until it has them */
}

bool hosts_stopped(const struct vb_adapter *a)
{
	return a->stopped;
}

struct vb_hca *hosts_hca(struct vb_adapter *a)
{
	return &a->hca;
}

void hosts_sleep(struct vb_adapter *a)
{
	a->presence.spins = 0;
	if (a->awake == VB_ASLEEP)
		return;
	a->awake = VB_ASLEEP;
	a->watch = VB_NEVER; /* there are no pollers to look at */
	vb_hca_ops.slept(a);
	while (vb_hca_ops.ready(a))
		vb_hca_ops.progress(a, VB_LOOK_DRAIN);
}

bool hosts_alive(const struct vb_adapter *a)
{
	return a->alive;
}

unsigned hosts_peers_up(const struct vb_adapter *a)
{
	unsigned n = 0;

	for (uint32_t i = 1; i < a->nlinks; i++)
		n += a->links[i]->peer.state == VB_PEER_UP;
	return n;
}

static void free_lane(struct lane *l)
{
	sim_wire_free(&l->wire);
	while (l->count--)
		free(l->came[l->first++ % CAME]);
}

void hosts_free(struct hosts *h)
{
	for (uint32_t i = 0; i < h->n; i++)
		vb_deputies_close(&h->all[i]->hca);
	for (uint32_t i = 0; i < h->n; i++) {
		struct vb_adapter *a = h->all[i];

		for (uint32_t k = 0; k < a->nlinks; k++) {
			struct link *l = a->links[k];

			vb_hca_ops.peer_free(&l->peer);
			for (uint32_t n = 0; n < SIM_LANES; n++)
				free_lane(&l->lanes[n]);
		}
	}
	for (uint32_t i = 0; i < h->n; i++) {
		struct vb_adapter *a = h->all[i];

		for (uint32_t k = 0; k < a->nlinks; k++)
			free(a->links[k]);
		free(a->hca.keys.entries);
		free(a->hca.keys.slots.at);
		free(a->hca.keys.marks);
		free(a->shown);
		free(a->traffic);
		free(a);
	}
	free(h->air);
	if (h->pidfd >= 0)
		close(h->pidfd);
	free(h);
	world = NULL;
}

/* ---- time ---- */

/* What comes before the link is UP at this end, too, waits for that. */
static void read_notes(struct vb_adapter *a)
{
	for (uint32_t k = a->notes_n; k; k--) {
		const struct note n = a->notes[a->notes_first++ % NOTES];

		a->notes_n--;
		if (n.from->state == VB_PEER_UP)
			vb_hca_ops.told(n.from, n.subject, n.bytes, n.len, -1);
		else if (n.from->state != VB_PEER_DOWN)
			a->notes[(a->notes_first + a->notes_n++) % NOTES] = n;
	}
}

/* What host/engine.c does in one round, if nobody polls: else it only looks whether that is still so. */
static void engine(struct vb_adapter *a)
{
	struct hosts *h = a->hosts;
	bool nudged = a->nudged;

	a->nudged = false;
	a->running = true;
	read_notes(a);
	for (uint32_t k = 0; k < a->nlinks; k++) {
		struct link *l = a->links[k];

		if (l->rung && l->peer.state == VB_PEER_UP)
			vb_hca_ops.rang(&l->peer);
		l->rung = false;
	}
	if (a->awake == VB_POLLING && h->air->now >= a->watch) {
		a->watch = h->air->now + LOOK;
		vb_hca_ops.notice(a);
		if (a->presence.polls - a->polls < VB_SPINS) { /* it has stopped */
			while (vb_hca_ops.progress(a, VB_LOOK_DRAIN))
				;
			a->presence.spins = 0;
			a->awake = VB_ASLEEP;
			vb_hca_ops.notice(a);
			a->watch = VB_NEVER;
			nudged = true;
		}
		a->polls = a->presence.polls;
	}
	while (nudged && (vb_hca_ops.progress(a, VB_LOOK_DRAIN) || (vb_hca_ops.ready(a) && !a->held)))
		;
	a->deadline = vb_hca_ops.timers(a, h->air->now);
	a->running = false;
}

static uint64_t next_of(const struct vb_adapter *a, uint64_t now)
{
	if (!a->alive || a->stopped)
		return VB_NEVER;
	if (a->nudged)
		return now;
	return a->deadline < a->watch ? a->deadline : a->watch;
}

/* The next event: *a's engine, *l's contact or end (which *ends tells), or a packet on *w. */
struct event {
	uint64_t at;
	struct vb_adapter *a;
	struct link *l;
	struct sim_wire *w;
	bool ends;
};

static void consider(struct event *e, struct event o)
{
	if (o.at < e->at)
		*e = o;
}

static struct event next_event(const struct hosts *h)
{
	struct event e = {.at = VB_NEVER};

	for (uint32_t i = 0; i < h->n; i++) {
		struct vb_adapter *a = h->all[i];

		consider(&e, (struct event){.at = next_of(a, h->air->now), .a = a});
		for (uint32_t k = 0; k < a->nlinks; k++) {
			struct link *l = a->links[k];

			for (uint32_t n = 0; n < SIM_LANES && l->far && other_end(l); n++)
				consider(&e, (struct event){.at = sim_wire_next(&l->lanes[n].wire),
							    .w = &l->lanes[n].wire});
			if (!a->alive || a->stopped)
				continue;
			consider(&e, (struct event){.at = l->contact, .l = l});
			consider(&e, (struct event){.at = l->end, .l = l, .ends = true});
		}
	}
	return e;
}

/* As if it had polled in vain for long. */
static void grow_cold(struct hosts *h)
{
	struct vb_adapter *a = h->all[sim_below(h->air, h->n)];

	if (h->cfg.calm || !a->alive || a->stopped || !one_in(h, COOL))
		return;
	vb_hca_cool(&a->hca);
	vb_hca_cool(&a->hca);
}

bool hosts_step(struct hosts *h)
{
	struct event e = next_event(h);

	if (e.at == VB_NEVER)
		return false;
	grow_cold(h);
	h->at_once = e.at > h->air->now ? 0 : h->at_once + 1;
	if (h->at_once > AT_ONCE)
		fail_msg("time stands still");
	if (e.at > h->air->now)
		h->air->now = e.at;
	if (e.w)
		arrive(e.w);
	else if (e.l && e.ends)
		fall(e.l);
	else if (e.l)
		make_contact(e.l);
	else
		engine(e.a);
	for (uint32_t i = 0; i < h->n; i++)
		for (uint32_t k = 0; k < QPS && h->all[i]->alive; k++)
			if (h->all[i]->qps[k] && !h->all[i]->qps[k]->deputy)
				sim_look_for_silent_end(
				    vb_containerof(h->all[i]->qps[k], struct sim_node, qp));
	return true;
}

void hosts_settle(struct hosts *h)
{
	uint64_t limit = h->air->now + 1000 * VB_SEC;

	while (hosts_step(h))
		if (h->air->now > limit)
			fail_msg("no end after 1000 s of virtual time");
}

void hosts_run_for(struct hosts *h, uint64_t ns)
{
	uint64_t end_at = h->air->now + ns;

	while (next_event(h).at <= end_at)
		hosts_step(h);
	h->air->now = end_at;
}

uint64_t hosts_now(const struct hosts *h)
{
	return h->air->now;
}

uint64_t hosts_carried(const struct hosts *h)
{
	return h->air->carried;
}

uint64_t hosts_packets(const struct hosts *h)
{
	return h->air->packets;
}

/* ---- a pair on processes: as verbs/ creates, modifies and destroys queue pairs ---- */

/* The SRQ of a target, and what its messages reach, which may be another process's than the target's. */
static void attach_srq(struct sim *s, struct sim_node *n, struct vb_adapter *a)
{
	n->srq_ctx.adapter = a;
	n->srq_keys = &a->hca.keys;
	n->pd.id = (uint64_t)a->hca.keys.home << 32 | 0x10000 | a->srqs;
	n->srq.number = a->number << VB_QPN_INDEX_BITS | a->srqs++;
	n->xrcd.id = (struct vb_xrcd_id){1, (uintptr_t)s};
	n->srqs_at = &a->hca.srqs;
	n->qp.srqs = &s->on[1]->hca.srqs;
}

/* Nobody receives by it any more. */
void hosts_end_srq(struct sim *s)
{
	struct sim_node *n = &s->n[1];
	struct vb_adapter *a = n->srq_ctx.adapter;

	if (!vb_list_linked(&n->srq.on_srqs))
		return;
	if (a->alive) {
		vb_hca_forget_srq(&a->hca, &n->srq);
	} else {
		vb_srqs_drop(&a->hca.srqs, &n->srq);
		vb_list_each (l, &a->hca.inner.qps) {
			struct vb_qp *qp = vb_list_entry(l, struct vb_qp, on_ctx);

			vb_lock_take(&qp->lock);
			vb_qp_forget_srq(qp, &n->srq);
			vb_lock_give(&qp->lock);
		}
	}
	if (a != s->on[1] || !s->on[1]->alive)
		return;
	vb_lock_take(&n->qp.lock);
	vb_qp_forget_srq(&n->qp, &n->srq);
	vb_hca_give(&n->qp);
}

static void ground_attach(struct sim *s, unsigned i)
{
	struct vb_adapter *a = s->on[i];
	struct sim_node *n = &s->n[i];
	uint32_t at = a->made++; /* none is given twice: a late packet may be on its way to it */

	assert_true(at < QPS);
	n->pd.id = (uint64_t)a->hca.keys.home << 32 | a->made;
	n->qp.keys = &a->hca.keys;
	n->qp.qpn = a->number << VB_QPN_INDEX_BITS | at;
	n->qp.shown = &a->shown[at];
	n->qp.traffic = &a->traffic[at];
	n->qp.transport = &a->hosts->steps[n->qp.ibv.qp_type];
	a->qps[at] = &n->qp;
	n->srq_ctx.adapter = a;
	if (s->cfg.xrc && i == 1)
		attach_srq(s, n, s->cfg.srq_on ? s->cfg.srq_on : a);
}

static void ground_made(struct sim *s, unsigned i)
{
	struct vb_adapter *a = s->on[i];
	struct vb_qp *qp = &s->n[i].qp;

	if (qp->forwards)
		qp->forwards->ops = &vb_forward_ops;
	if (!qp->dests)
		return;
	qp->dests->gids = vb_adapter_gids(a);
	qp->dests->group = &vb_mcast_ops;
}

static void ground_posted(struct sim *s, unsigned i)
{
	vb_hca_posted(&s->n[i].qp);
}

static void ground_poll(struct sim *s, unsigned i)
{
	struct vb_adapter *a = s->cfg.xrc && i == 1 ? s->n[1].srq_ctx.adapter : s->on[i];
	struct vb_rxq *where = vb_hca_poll_where(a); /* as verbs/cq.c does */

	if (where)
		vb_hca_poll(a, where);
}

static void ground_drop(struct sim *s, unsigned i)
{
	vb_hca_give(&s->n[i].qp);
}

static void ground_modify(struct sim *s, unsigned i, enum ibv_qp_state to)
{
	struct vb_qp *qp = &s->n[i].qp;
	const struct vb_facts f = {.reason = VB_R_FLUSHED, .qpn = qp->qpn};
	enum ibv_qp_state from = qp->state;

	if (to == IBV_QPS_RESET) {
		vb_path_close(qp);
		vb_qp_reset(qp);
	} else if (to == IBV_QPS_ERR) {
		if (from != IBV_QPS_ERR) {
			qp->transport->error(qp, &f);
			vb_path_close(qp);
		}
	} else {
		vb_qp_set_state(qp, to);
		qp->transport->enter(qp, from);
		if (to == IBV_QPS_RTR)
			vb_path_open(qp);
		if (to == IBV_QPS_RTS)
			vb_hca_send(qp);
	}
	vb_direct_show(qp);
	vb_hca_give(qp);
	vb_direct_revoked(qp);
}

/* Of a process that ended nobody takes them off. */
static void free_memberships(struct vb_mcasts *t, struct vb_qp *qp)
{
	while (!vb_list_empty(&qp->mcasts)) {
		const struct vb_mcast_attachment *m =
		    vb_list_entry(qp->mcasts.next, struct vb_mcast_attachment, on_qp);
		union ibv_gid mgid = m->group->mgid;
		struct vb_mcast_change ended;

		pthread_mutex_lock(&t->lock);
		assert_int_equal(vb_mcasts_detach(t, qp, &mgid, m->lid, &ended), 0);
		pthread_mutex_unlock(&t->lock);
		vb_mcasts_free(&ended);
	}
}

/* The same of the ways to its SRQs. */
static void free_forwards(struct vb_qp *qp)
{
	struct vb_list *n;

	while (qp->forwards && (n = vb_list_pop(&qp->forwards->all)))
		free(vb_list_entry(n, struct vb_forward, node));
}

/* As vb_datagrams_drain(), which naps meanwhile. */
static void drain(struct vb_adapter *a, struct vb_qp *qp)
{
	while (qp->dests && qp->state >= IBV_QPS_RTS && qp->state <= IBV_QPS_SQD &&
	       !vb_list_empty(&qp->dests->waiting)) {
		vb_adapter_nudge(a);
		hosts_run_for(a->hosts, VB_MSEC);
	}
}

static void ground_leave(struct sim *s, unsigned i)
{
	struct vb_adapter *a = s->on[i];
	struct vb_qp *qp = &s->n[i].qp;

	if (!a->alive) {
		free_memberships(&a->hca.mcast.groups, qp);
		free_forwards(qp);
	}
	if (a->alive) {
		assert_true(vb_list_empty(&qp->mcasts)); /* EBUSY */
		drain(a, qp);
		sim_modify(s, i, IBV_QPS_RESET);
		vb_hca_forget(qp);
		vb_direct_revoked(qp);
		vb_hca_quiesce(&a->hca);
	}
	a->qps[qp->qpn % VB_QPN_INDICES] = NULL;
	if (s->cfg.xrc && i == 1)
		hosts_end_srq(s);
}

const struct sim_ground hosts_ground = {
    .attach = ground_attach,
    .made = ground_made,
    .posted = ground_posted,
    .poll = ground_poll,
    .modify = ground_modify,
    .drop = ground_drop,
    .leave = ground_leave,
};

/* ---- host/adapter.h and host/addresses.h, as far as hca/ and obj/ call them ---- */

uint32_t vb_adapter_number(const struct vb_adapter *a)
{
	return a->number;
}

uint32_t vb_adapter_number_count(const struct vb_adapter *a)
{
	return 1;
}

uint32_t vb_adapter_number_at(const struct vb_adapter *a, uint32_t k)
{
	return k ? 0 : a->number;
}

int vb_adapter_number_add(struct vb_adapter *a)
{
	return ENFILE;
}

uint64_t vb_adapter_incarnation(const struct vb_adapter *a)
{
	return a->incarnation;
}

void *vb_adapter_user(const struct vb_adapter *a)
{
	return (void *)(uintptr_t)&a->hca;
}

const uint8_t (*vb_adapter_gids(const struct vb_adapter *a))[16]
{
	return (const uint8_t(*)[16])a->gids;
}

void vb_adapter_show_gids(struct vb_adapter *a, const uint8_t (*gids)[16])
{
}

struct vb_drops *vb_adapter_drops(struct vb_adapter *a)
{
	return &a->drops;
}

struct vb_presence *vb_adapter_presence(struct vb_adapter *a)
{
	return &a->presence;
}

void vb_adapter_wake(struct vb_adapter *a)
{
	a->awake = VB_POLLING;
	a->watch = a->hosts->air->now + LOOK;
	a->polls = a->presence.polls;
}

void vb_adapter_disarm(struct vb_adapter *a)
{
}

bool vb_adapter_yield(struct vb_adapter *a)
{
	return true;
}

void vb_adapter_nudge(struct vb_adapter *a)
{
	a->nudged = true;
}

void vb_adapter_due(struct vb_adapter *a, uint64_t when)
{
	a->nudged = true;
}

void vb_adapter_resume(struct vb_adapter *a)
{
	if (!a->running)
		a->nudged = true;
}

/* No peer has opened QP1. */
bool vb_peer_shows_gsi(const struct vb_peer *peer)
{
	return false;
}

void vb_adapter_show_gsi(struct vb_adapter *a, uint32_t number)
{
}

int vb_adapter_await(struct vb_adapter *a, int fd)
{
	return EOPNOTSUPP; /* nobody blocks here */
}

bool vb_adapter_lost(const struct vb_adapter *a)
{
	return false;
}

bool vb_adapter_dead(const struct vb_adapter *a)
{
	return false;
}

bool vb_adapter_whole(struct vb_adapter *a)
{
	return true;
}

int vb_adapter_adopt(struct vb_adapter *a, int fd)
{
	return 0;
}

bool vb_adapter_owns(struct vb_adapter *a, int fd)
{
	return true;
}

void vb_adapter_disown(struct vb_adapter *a, int fd)
{
	close(fd);
}

void vb_adapter_rouse(struct vb_adapter *a)
{
}

struct vb_qp *vb_qpn_find(const struct vb_adapter *a, uint32_t qpn)
{
	return qpn >> VB_QPN_INDEX_BITS == a->number && qpn % VB_QPN_INDICES < QPS
		   ? a->qps[qpn % VB_QPN_INDICES]
		   : NULL;
}

uint32_t vb_qpn_whose(const struct vb_adapter *a, uint32_t qpn)
{
	return vb_qpn_find(a, qpn) ? (uint32_t)getpid() : 0;
}

uint32_t vb_qpn_take(struct vb_adapter *a, struct vb_qp *qp, const char *call)
{
	uint32_t at = a->made++;

	(void)call;
	assert_true(at < QPS);
	a->qps[at] = qp;
	return a->number << VB_QPN_INDEX_BITS | at;
}

void vb_qpn_give(struct vb_adapter *a, uint32_t qpn)
{
	a->qps[qpn % VB_QPN_INDICES] = NULL;
}

struct vb_shown_qp *vb_qpn_published(struct vb_adapter *a, uint32_t qpn)
{
	return &a->shown[qpn % VB_QPN_INDICES];
}

struct vb_traffic *vb_qpn_traffic(struct vb_adapter *a, uint32_t qpn)
{
	return &a->traffic[qpn % VB_QPN_INDICES];
}

struct vb_peer *vb_peer_get(struct vb_adapter *a, uint32_t number)
{
	struct link *l = find_link(a, number);

	if (!l)
		l = make_link(a, number, process_at(a->hosts, number));
	l->peer.refs++;
	seek(l);
	if (l->contact == a->hosts->air->now && !a->hosts->cfg.contact)
		a->nudged = true;
	return &l->peer;
}

void vb_peer_put(struct vb_peer *peer)
{
	assert_true(peer->refs-- > 0);
}

bool vb_peer_is_over(struct vb_peer *peer)
{
	const struct link *l = link_of(peer);

	return peer->state == VB_PEER_UP && l->far && !l->far->alive;
}

void vb_peer_contact(struct vb_peer *peer)
{
	seek(link_of(peer));
}

struct vb_peer *vb_peer_current(struct vb_peer *peer)
{
	return peer; /* nobody is asked for by two numbers */
}

bool vb_peer_is_alias(struct vb_peer *peer)
{
	return false;
}

struct vb_reach_facts vb_peer_trouble(struct vb_peer *peer, uint32_t *asked)
{
	*asked = 0;
	return (struct vb_reach_facts){0};
}

uint32_t vb_peer_unable(struct vb_peer *peer)
{
	return 0;
}

uint32_t vb_peer_stopped(struct vb_peer *peer)
{
	return 0;
}

bool vb_peer_pending(struct vb_peer *peer, uint64_t now)
{
	const struct link *l = link_of(peer);

	return peer->state == VB_PEER_CONTACTING && l->far && l->far->alive && now - l->began < 5 * VB_SEC;
}

void vb_peer_ring(struct vb_peer *peer)
{
	struct link *l = link_of(peer);

	l->far->nudged = true;
	if (other_end(l))
		other_end(l)->rung = true;
}

bool vb_peer_tell(struct vb_peer *peer, uint8_t subject, const void *msg, size_t len, int fd)
{
	struct vb_adapter *far = link_of(peer)->far;

	if (subject == VB_SUBJECT_XRC && peer->state == VB_PEER_UP && far->notes_n < NOTES) {
		struct note *n = &far->notes[(far->notes_first + far->notes_n++) % NOTES];

		n->from = &other_end(link_of(peer))->peer;
		n->subject = subject;
		n->len = len;
		memcpy(n->bytes, msg, len);
		far->nudged = true;
		return true;
	}
	if (subject == VB_SUBJECT_XRC || !peer->adapter->hosts->cfg.apart)
		return false; /* nobody listens just now */
	vb_hca_ops.told(&other_end(link_of(peer))->peer, subject, msg, len, fd);
	return true;
}

const uint8_t (*vb_peer_gids(const struct vb_peer *peer))[16]
{
	return (const uint8_t(*)[16])link_of(peer)->far->gids;
}

const struct vb_shown_qp *vb_peer_shown(const struct vb_peer *peer, uint32_t qpn)
{
	const struct link *l = link_of(peer);

	return l->was_up && qpn >> VB_QPN_INDEX_BITS == peer->number && qpn % VB_QPN_INDICES < QPS
		   ? &l->far->shown[qpn % VB_QPN_INDICES]
		   : NULL;
}

uint32_t vb_peer_qp_state(const struct vb_peer *peer, uint32_t qpn)
{
	const struct vb_shown_qp *q = vb_peer_shown(peer, qpn);

	return q ? q->state : 0;
}

uint32_t vb_peer_qp_received(const struct vb_peer *peer, uint32_t qpn)
{
	const struct vb_shown_qp *q = vb_peer_shown(peer, qpn);

	return q ? q->received : 0;
}

uint32_t vb_peer_qp_known(const struct vb_peer *peer, uint32_t qpn)
{
	const struct vb_shown_qp *q = vb_peer_shown(peer, qpn);

	return q ? q->known : 0;
}

bool vb_peer_qp_dropped(const struct vb_peer *peer, uint32_t qpn, uint32_t psn)
{
	const struct vb_shown_qp *q = vb_peer_shown(peer, qpn);

	return q && q->stray == (VB_SHOWN_RECEIVED | psn);
}

struct vb_peer *vb_peer_at(const struct vb_adapter *a, uint32_t index)
{
	return index < a->nlinks ? &a->links[index]->peer : NULL;
}

uint32_t vb_peer_count(const struct vb_adapter *a)
{
	return a->nlinks;
}

void vb_peer_tables(const struct vb_peer *peer, struct vb_peer_tables *at)
{
	const struct link *l = link_of(peer);
	struct vb_adapter *far = l->far;
	const struct link *other = other_end(l);

	*at = (struct vb_peer_tables){.keys = far->hca.keys.entries,
				      .slots = far->hca.keys.slots.at,
				      .marks = far->hca.keys.marks,
				      .heard = &other->heard,
				      .token = 1,
				      .awake = &far->awake,
				      .polls = &far->told,
				      .same = !far->hosts->cfg.apart,
				      .tid = gettid()};
}

int vb_peer_pidfd(struct vb_peer *peer)
{
	return link_of(peer)->far->hosts->pidfd;
}

/* No test's connection names a GID unless it is to another host. */
bool vb_addresses_have(struct vb_addresses *n, const struct ibv_ah_attr *av)
{
	return !av->is_global;
}

uint32_t vb_addresses_whose(struct vb_addresses *n, const struct ibv_ah_attr *av, char ifname[VB_NETIF_NAME])
{
	if (ifname)
		*ifname = 0;
	return 0;
}

bool vb_addresses_tick(struct vb_addresses *n, uint64_t now)
{
	return false;
}

/* ---- groups ---- */

uint32_t vb_group_show(struct vb_adapter *a, const uint64_t mgid[2])
{
	uint32_t i = 0;

	while (i < GROUPS && (a->groups[i][0] || a->groups[i][1]))
		i++;
	assert_true(i < GROUPS);
	memcpy(a->groups[i], mgid, 16);
	return i;
}

void vb_group_hide(struct vb_adapter *a, uint32_t index)
{
	memset(a->groups[index], 0, 16);
}

bool vb_peer_shows_group(const struct vb_peer *peer, const uint64_t mgid[2])
{
	const struct link *l = link_of(peer);

	if (peer->state != VB_PEER_UP)
		return false;
	for (uint32_t i = 0; i < GROUPS; i++)
		if (!memcmp(l->far->groups[i], mgid, 16))
			return true;
	return false;
}

void vb_groups_stir(struct vb_adapter *a)
{
	for (uint32_t i = 0; i < a->nlinks; i++)
		if (a->links[i]->peer.state == VB_PEER_UP)
			a->links[i]->far->stirs++;
}

uint32_t vb_groups_stirs(const struct vb_adapter *a)
{
	return a->stirs;
}

int vb_member_join(struct vb_adapter *a, const char *what)
{
	a->joined++; /* there is one kind */
	return 0;
}

void vb_member_leave(struct vb_adapter *a, const char *what)
{
	assert_true(a->joined-- > 0);
}

/* Names end with their processes. */
static int list(const struct vb_adapter *but, const struct hosts *h, uint32_t **numbers, uint32_t *count)
{
	*numbers = sim_zeroed(PROCESSES * sizeof **numbers);
	*count = 0;
	for (uint32_t i = 0; i < h->n; i++)
		if (h->all[i]->alive && h->all[i] != but && (!but || h->all[i]->joined))
			(*numbers)[(*count)++] = h->all[i]->number;
	return 0;
}

int vb_member_list(struct vb_adapter *a, const char *what, uint32_t **numbers, uint32_t *count)
{
	return list(a, a->hosts, numbers, count);
}

int vb_numbers_list(uint32_t **numbers, uint32_t *count)
{
	return list(NULL, world, numbers, count);
}

/* Each of the two looks at what the other announces. */
static bool is_mutual(const struct link *l)
{
	return l->peer.state == VB_PEER_UP && other_end(l) && other_end(l)->heard;
}

/* In the thread that asks for it, which waits while others go on. */
static bool meet(struct vb_adapter *a, uint32_t number, uint64_t until)
{
	struct hosts *h = a->hosts;

	for (;;) {
		struct link *l = find_link(a, number);

		if (!l || l->peer.state == VB_PEER_IDLE) { /* asked for anew */
			l = link_of(vb_peer_get(a, number));
			vb_peer_put(&l->peer);
		}
		if (is_mutual(l) || !l->far || !l->far->alive)
			return true;
		if (next_event(h).at >= until)
			return false;
		hosts_step(h);
		if (h->cfg.meanwhile)
			h->cfg.meanwhile(h->cfg.user, a);
	}
}

int vb_peers_meet(struct vb_adapter *a, const uint32_t *numbers, uint32_t n, uint64_t until,
		  struct vb_met *met)
{
	for (uint32_t i = 0; i < n; i++)
		if (numbers[i] != a->number)
			vb_peer_put(vb_peer_get(a, numbers[i]));
	for (uint32_t i = 0; i < n; i++)
		if (numbers[i] != a->number && !meet(a, numbers[i], until))
			met->silent++;
	return 0;
}
