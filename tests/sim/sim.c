#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "iba/grh.h"
#include "obj/dests.h"

enum sim_as sim_as;

/* Of an opcode that a test names as RC's. */
static uint8_t meant(unsigned opcode)
{
	return (uint8_t)(VB_FAMILY(opcode) == VB_FAMILY_RC ? SIM_FAMILY | opcode : opcode);
}

int sim_run(const struct CMUnitTest *tests, size_t n, unsigned over)
{
	static const char *const names[] = {"over RC", "over XRC", "over UC", "over UD"};
	int failed = 0;

	for (unsigned as = 0; as < sizeof names / sizeof *names; as++) {
		sim_as = (enum sim_as)as;
		if (over >> as & 1)
			failed += _cmocka_run_group_tests(names[as], tests, n, NULL, NULL);
	}
	sim_as = SIM_AS_RC;
	return failed;
}

uint64_t sim_random(struct sim *s)
{
	uint64_t z = s->rng += 0x9e3779b97f4a7c15ull; /* splitmix64 */

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

void *sim_zeroed(size_t bytes)
{
	void *p = aligned_alloc(VB_LINE, (bytes + VB_LINE - 1) / VB_LINE * VB_LINE);

	assert_non_null(p);
	return memset(p, 0, bytes);
}

/* ---- the wire ---- */

static const struct sim_ground alone;

static struct sim_wire *wire_of(struct vb_out *o)
{
	return vb_containerof(o, struct sim_wire, out);
}

static bool wire_reserve(struct vb_out *o, struct vb_outbuf *b, uint32_t hdr_len, uint32_t payload_len,
			 enum vb_out_class cls)
{
	struct sim_wire *w = wire_of(o);
	uint32_t room = w->sim->cfg.room;

	assert_null(w->building);
	assert_true(payload_len <= o->mtu || payload_len == sizeof(struct vb_facts));
	if (!w->sim->cfg.rate && w->n + w->held >= (cls == VB_OUT_REQUEST ? room - room / 4 : room))
		return false;
	w->building = malloc(sizeof *w->building + hdr_len + payload_len);
	w->building->hdr_len = hdr_len;
	w->building->payload_len = payload_len;
	memset(w->building->bytes, 0xd7, hdr_len + payload_len);
	b->ack = 0;
	b->placed = b->lent = false;
	b->path_mtu = 0;
	b->hops = 0;
	b->hdr = w->building->bytes;
	b->payload = w->building->bytes + hdr_len;
	return true;
}

static bool is_before(const struct sim_flying *a, const struct sim_flying *b)
{
	return a->at < b->at || (a->at == b->at && a->order < b->order);
}

static void heap_put(struct sim_wire *w, struct sim_flying *f)
{
	uint32_t i = w->n++;

	if (w->n > w->size) {
		w->size = w->size ? 2 * w->size : 64;
		w->flying = realloc(w->flying, w->size * sizeof *w->flying);
		assert_non_null(w->flying);
	}
	for (; i && is_before(f, w->flying[(i - 1) / 2]); i = (i - 1) / 2)
		w->flying[i] = w->flying[(i - 1) / 2];
	w->flying[i] = f;
}

/* When a packet arrives that joins the queue now; VB_NEVER: it has no room. */
static uint64_t leaves_queue(struct sim_wire *w, struct sim_flying *f)
{
	enum { FRAME = 14 + 20 + 8 + 4 }; /* Ethernet, IPv4, UDP and the ICRC */
	const struct sim_cfg *c = &w->sim->cfg;
	uint64_t bytes = FRAME + f->hdr_len + f->payload_len, now = w->sim->now;

	if (!w->leaves)
		w->leaves = sim_zeroed(c->queue * sizeof *w->leaves);
	if (w->leaves[w->queued % c->queue] > now) { /* the one that came `queue` packets ago is there */
		w->full++;
		return VB_NEVER;
	}
	f->marked = c->marks && w->queued >= c->marks && w->leaves[(w->queued - c->marks) % c->queue] > now;
	if (w->busy_until < now)
		w->busy_until = now;
	w->busy_until += bytes * VB_SEC / c->rate;
	w->leaves[w->queued++ % c->queue] = w->busy_until;
	return w->busy_until + c->delay;
}

static void wire_put(struct sim_wire *w, struct sim_flying *f, bool late)
{
	struct sim *s = w->sim;

	/* in order, unless late */
	f->at = s->cfg.rate ? leaves_queue(w, f) : s->now + 1000;
	f->order = s->order++;
	if (f->at == VB_NEVER) {
		free(f);
		return;
	}
	if (late)
		f->at += sim_below(s, 30000);
	heap_put(w, f);
}

static enum sim_verdict by_rates(struct sim *s)
{
	uint32_t dice = sim_below(s, 1000);

	if (dice < s->cfg.loss)
		return SIM_DROP;
	dice -= s->cfg.loss;
	if (dice < s->cfg.dup)
		return SIM_DUP;
	return dice - s->cfg.dup < s->cfg.late ? SIM_LATE : SIM_PASS;
}

static void wire_commit(struct vb_out *o, struct vb_outbuf *b)
{
	struct sim_wire *w = wire_of(o);
	struct sim *s = w->sim;
	struct sim_flying *f = w->building, *twin;
	enum sim_verdict v;
	struct vb_pkt p;
	const char *why;

	assert_non_null(f);
	f->path_mtu = o->tells_mtu || VB_FAMILY(f->bytes[0]) == VB_FAMILY_UD ? b->path_mtu : 0;
	f->hops = b->hops;
	f->ack = b->ack;
	assert_true(!(f->ack & VB_OUT_ACK) || o->carries_acks);
	s->carried += (f->ack & VB_OUT_ACK) != 0;
	w->building = NULL;
	w->committed++;
	w->unpushed++;
	s->packets++;
	f->placed = b->placed;
	f->marked = false;
	f->lent = b->lent;
	why = vb_pkt_decode(&p, f->bytes, f->hdr_len, f->payload_len, !s->cfg.far);
	s->lent += f->lent;
	if (why)
		fail_msg("QP %u sent an impossible packet: %s", w->from, why);
	if (s->ground == &alone)
		assert_int_equal(p.qpn, s->n[!w->from].qp.qpn);
	p.payload = f->bytes + f->hdr_len;
	v = s->filter ? s->filter(s, w->from, &p) : by_rates(s);
	p.payload = NULL;
	if (s->seen < SIM_TRACE)
		s->trace[s->seen++] = (struct sim_seen){
		    .when = s->now, .from = (uint8_t)w->from, .dropped = v == SIM_DROP, .p = p};
	if (s->talk)
		print_message("%10lu %u %-40s psn %06x%s len %u syn %02x msn %u va %lx dma %u ack %x%s\n",
			      (unsigned long)(s->now - VB_SEC), w->from, p.op->name, p.psn,
			      p.ack_req ? " A" : "", p.payload_len, p.syndrome, p.msn, (unsigned long)p.va,
			      p.dma_len, f->ack & VB_PSN_MASK,
			      (const char *[]){"", " DROPPED", " TWICE", " LATE"}[v]);
	w->lost += v == SIM_DROP;
	w->doubled += v == SIM_DUP;
	if (v == SIM_DROP) {
		free(f);
		return;
	}
	if (v == SIM_DUP) {
		twin = malloc(sizeof *f + f->hdr_len + f->payload_len);
		memcpy(twin, f, sizeof *f + f->hdr_len + f->payload_len);
		wire_put(w, twin, true);
	}
	wire_put(w, f, v == SIM_LATE);
}

static void wire_cancel(struct vb_out *o, struct vb_outbuf *b)
{
	struct sim_wire *w = wire_of(o);

	(void)b;
	assert_non_null(w->building);
	free(w->building);
	w->building = NULL;
}

static uint64_t wire_mark(struct vb_out *o)
{
	return wire_of(o)->committed;
}

static bool wire_taken(struct vb_out *o, uint64_t mark)
{
	struct sim_wire *w = wire_of(o);

	return !w->sim->cfg.lossless || w->delivered >= mark;
}

static bool wire_room(struct vb_out *o)
{
	struct vb_outbuf b;

	if (!wire_reserve(o, &b, VB_HDR_MAX, o->mtu, VB_OUT_REQUEST))
		return false;
	wire_cancel(o, &b);
	return true;
}

static uint32_t wire_send_list(struct vb_out *o, const struct vb_brief *p, uint32_t n, enum vb_out_class cls)
{
	wire_of(o)->sim->lists++;
	return vb_out_send_singly(o, p, n, cls);
}

/* What is committed leaves when it is pushed.  Whoever commits pushes before he goes on to something else:
 * what lies here longer is lost. */
static void wire_push(struct vb_out *o)
{
	wire_of(o)->unpushed = 0;
}

static uint64_t wire_now(struct vb_out *o)
{
	return wire_of(o)->sim->now;
}

static const struct vb_out_ops wire_ops = {.reserve = wire_reserve,
					   .commit = wire_commit,
					   .cancel = wire_cancel,
					   .send = vb_out_send_in_parts,
					   .send_list = wire_send_list,
					   .mark = wire_mark,
					   .taken = wire_taken,
					   .room = wire_room,
					   .push = wire_push,
					   .now = wire_now};

void sim_wire_init(struct sim_wire *w, struct sim *s, unsigned from)
{
	*w = (struct sim_wire){.out = {.ops = &wire_ops,
				       .mtu = s->cfg.mtu,
				       .brief = getenv("SIM_NO_BRIEF") ? 0 : s->cfg.brief,
				       .tells = s->cfg.lossless,
				       .local = s->cfg.local,
				       .tells_mtu = !s->cfg.far,
				       .lossy = s->cfg.rate != 0,
				       .carries_acks = s->cfg.carried},
			       .sim = s,
			       .from = from};
}

uint64_t sim_wire_next(const struct sim_wire *w)
{
	assert_int_equal(w->unpushed, 0); /* nobody is at work */
	return w->n ? w->flying[0]->at : VB_NEVER;
}

struct sim_flying *sim_wire_take(struct sim_wire *w)
{
	struct sim_flying *f = w->flying[0], *last = w->flying[--w->n];
	uint32_t i = 0, k;

	for (; (k = 2 * i + 1) < w->n; i = k) {
		k += k + 1 < w->n && is_before(w->flying[k + 1], w->flying[k]);
		if (is_before(last, w->flying[k]))
			break;
		w->flying[i] = w->flying[k];
	}
	w->flying[i] = last;
	return f;
}

void sim_wire_free(struct sim_wire *w)
{
	while (w->n)
		free(w->flying[--w->n]);
	free(w->flying);
	free(w->leaves);
	w->flying = NULL;
	w->leaves = NULL;
	w->size = 0;
}

/* ---- the path ---- */

static void show_received(struct sim_node *n)
{
	atomic_store(&n->shown.received, VB_SHOWN_RECEIVED | n->qp.resp.epsn);
}

/* What the peer may do by itself, as an adapter shows it. */
static void show(struct sim *s, unsigned i)
{
	struct sim_node *n = &s->n[i];
	bool open = n->qp.path.out && n->qp.path.mem && !n->qp.xrcd && n->qp.state >= IBV_QPS_RTS &&
		    n->qp.state <= IBV_QPS_SQD;

	atomic_store(&n->shown.dest_qpn, n->qp.dest_qpn);
	atomic_store(&n->shown.pd, n->qp.pd_id);
	atomic_store(&n->shown.peer, s->n[!i].mem.here);
	atomic_store(&n->shown.path_mtu, n->qp.path_mtu);
	atomic_store(&n->shown.type, n->qp.ibv.qp_type);
	atomic_store(&n->shown.srq, n->qp.srq ? n->qp.srq->number : 0);
	atomic_store(&n->shown.reads, n->qp.resp.res_size);
	show_received(n);
	if (open && !atomic_load(&n->shown.may))
		n->shown.leaves++;
	atomic_store(&n->shown.may,
		     open ? n->shown.leaves << VB_SHOWN_LEAVE | (s->cfg.xrc ? 0u : n->qp.access & 0xffu)
			  : 0u);
}

/* The other node's tables, as direct placement finds them within one process. */
static void make_peer_mem(struct sim *s, unsigned i)
{
	struct sim_node *n = &s->n[i], *peer = &s->n[!i];

	n->mem.keys = peer->keys.entries;
	n->mem.marks = peer->keys.marks;
	n->mem.slots = peer->keys.slots.at;
	n->mem.here = 1 + i;
	n->mem.there = 1 + !i;
	n->mem.number = 1 + !i;
	n->mem.same = true;
	n->qp.shown = &n->shown;
}

static struct vb_path *path_of(struct sim_node *n)
{
	return n->qp.dests ? &vb_dest_at(&n->qp, SIM_FAR)->path : &n->qp.path;
}

static void path_comes(struct sim *s, unsigned i)
{
	struct sim_node *n = &s->n[i];

	s->cfg.path_at[i] = 0;
	vb_lock_take(&n->qp.lock);
	n->qp.transport->path(path_of(n), &n->wire.out);
	if (s->cfg.placing) {
		n->qp.path.mem = &n->mem;
		n->qp.path.peer_qp = &s->n[!i].shown;
		show(s, i);
	}
	vb_lock_give(&n->qp.lock);
}

/* ---- time ---- */

void sim_look_for_silent_end(struct sim_node *n)
{
	const struct vb_cq *cqs[] = {&n->scq, &n->rcq};
	bool told = false;

	if (n->qp.state != IBV_QPS_ERR || n->errs)
		return;
	n->errs = true;
	assert_int_not_equal(n->qp.why.reason, VB_OK);
	for (unsigned k = 0; k < 2; k++)
		for (uint32_t i = cqs[k]->tail; i != cqs[k]->head; i++) {
			enum ibv_wc_status status = cqs[k]->ring[i & cqs[k]->mask].wc.status;

			told |= status != IBV_WC_SUCCESS && status != IBV_WC_WR_FLUSH_ERR;
		}
	if (!told && vb_list_empty(&n->ctx.async.nodes))
		fail_msg("QP 0x%06x went to the error state without a failed request or an event", n->qp.qpn);
}

static void output(struct sim *s, struct sim_node *n)
{
	n->qp.transport->output(&n->qp.path, s->cfg.placing ? 1 + sim_below(s, 8192) : 0);
	if (n->qp.dests) /* there may be room */
		n->qp.transport->output(path_of(n), 0);
}

static void look_at_timer(struct sim *s, struct sim_node *n)
{
	for (int i = 0; i < 8; i++) {
		n->deadline = n->qp.transport->timer(&n->qp, s->now);
		if (n->deadline > s->now)
			return;
	}
	fail_msg("a timer that is always due");
}

/* What progress does with a QP: its timer, then what it owes. */
static void pump(struct sim *s, unsigned i)
{
	struct sim_node *n = &s->n[i];
	enum vb_owes owes;

	vb_lock_take(&n->qp.lock);
	look_at_timer(s, n);
	owes = vb_sq_unseen(&n->qp) ? VB_OWES_MORE : n->qp.transport->owes(&n->qp);
	if (owes == VB_OWES_NOTHING) /* it went along with something, or the QP has failed */
		n->kick = VB_NEVER;
	if (owes == VB_OWES_ACK && s->cfg.lazy_acks && n->kick == VB_NEVER && sim_below(s, 2))
		n->kick = s->now + 1 + sim_below(s, 5000);
	if (n->qp.dests ? vb_qp_timed(&n->qp) : !n->qp.path.out && n->qp.req.next != n->qp.req.seen)
		output(s, n); /* no way out: the timer runs all the same */
	if (owes != VB_OWES_NOTHING && (owes != VB_OWES_ACK || n->kick == VB_NEVER || n->kick <= s->now)) {
		n->kick = VB_NEVER;
		output(s, n);
	}
	look_at_timer(s, n);
	sim_look_for_silent_end(n);
	vb_lock_give(&n->qp.lock);
}

void sim_flying_brief(const struct sim_flying *f, struct vb_brief *b)
{
	uint32_t bytes = f->hdr_len + f->payload_len;

	*b = (struct vb_brief){.hdr_len = (uint8_t)f->hdr_len,
			       .flags = (uint8_t)(f->path_mtu * VB_BRIEF_MTU | f->placed * VB_BRIEF_PLACED |
						  f->lent * VB_BRIEF_LENT | f->marked * VB_BRIEF_MARKED),
			       .payload_len = (uint8_t)f->payload_len,
			       .hops = f->hops,
			       .ack = f->ack};
	memcpy(b->bytes, f->bytes, bytes < sizeof b->bytes ? bytes : sizeof b->bytes);
}

/* The QP takes the packet as a brief one. */
static bool deliver_brief(struct vb_qp *qp, struct sim_flying *f, uint32_t brief,
			  const struct vb_source *source)
{
	struct vb_arrival in = {.source = source};
	bool taken;

	if (f->hdr_len + f->payload_len > brief)
		return false;
	sim_flying_brief(f, &in.b);
	taken = qp->transport->brief(qp, &in);
	f->ack = in.b.ack;
	return taken;
}

static void deliver(struct sim *s, struct sim_wire *w)
{
	struct vb_qp *qp = &s->n[!w->from].qp;
	struct sim_flying *f = sim_wire_take(w);
	struct vb_loan loan;
	struct vb_pkt p;

	w->delivered++;
	assert_null(vb_pkt_decode(&p, f->bytes, f->hdr_len, f->payload_len, !s->cfg.far));
	p.payload = f->bytes + f->hdr_len;
	p.placed = f->placed;
	p.marked = f->marked;
	p.path_mtu = f->path_mtu;
	p.source = &s->n[w->from].source;
	p.route = vb_route(f->ack, f->hops, f->path_mtu);
	if (f->lent)
		assert_null(vb_loan_decode(&loan, &p));
	vb_lock_take(&qp->lock);
	if (!deliver_brief(qp, f, w->out.brief, p.source)) {
		if (f->ack & VB_OUT_ACK)
			qp->transport->ack(qp, f->ack & VB_PSN_MASK);
		qp->transport->input(qp, &p);
	} else {
		s->briefs++;
	}
	show_received(&s->n[!w->from]);
	vb_lock_give(&qp->lock);
	free(f);
}

/* When something happens next; *w: a packet arrives from there, NULL: something else. */
static uint64_t next_event(struct sim *s, struct sim_wire **w)
{
	uint64_t next = VB_NEVER;

	*w = NULL;
	for (unsigned i = 0; i < 2; i++) {
		struct sim_node *n = &s->n[i];
		uint64_t at = sim_wire_next(&n->wire);
		uint64_t other = n->deadline < n->kick ? n->deadline : n->kick;

		if (at < next) {
			next = at;
			*w = &n->wire;
		}
		if (s->cfg.path_at[i] && s->cfg.path_at[i] < other)
			other = s->cfg.path_at[i];
		if (other < next) {
			next = other;
			*w = NULL;
		}
	}
	return next;
}

bool sim_step(struct sim *s)
{
	struct sim_wire *w;
	uint64_t next;

	pump(s, 0);
	pump(s, 1);
	next = next_event(s, &w);
	if (next == VB_NEVER)
		return false;
	if (next > s->now)
		s->now = next;
	if (w)
		deliver(s, w);
	for (unsigned i = 0; i < 2; i++)
		if (s->cfg.path_at[i] && s->cfg.path_at[i] <= s->now)
			path_comes(s, i);
	return true;
}

void sim_settle(struct sim *s)
{
	uint64_t limit = s->now + 100 * VB_SEC;

	while (sim_step(s))
		if (s->now > limit)
			fail_msg("no end after 100 s of virtual time");
}

void sim_run_for(struct sim *s, uint64_t ns)
{
	uint64_t end = s->now + ns;
	struct sim_wire *w;

	for (;;) {
		pump(s, 0);
		pump(s, 1);
		if (next_event(s, &w) > end)
			break;
		sim_step(s);
	}
	s->now = end;
}

/* ---- objects ---- */

/* As ibv_modify_qp does it. */
void sim_connect(struct sim *s, unsigned i)
{
	const struct sim_cfg *c = &s->cfg;
	struct vb_qp *qp = &s->n[i].qp;
	uint32_t mtu_code = 0;

	while (128u << mtu_code < (c->path_mtu[i] ? c->path_mtu[i] : c->mtu))
		mtu_code++;
	if (c->to)
		qp->attr.ah_attr = *c->to;
	qp->dest_qpn = s->n[!i].qp.qpn;
	qp->access = (uint16_t)c->access;
	qp->max_rd_atomic = c->rd_atomic;
	qp->attr.max_rd_atomic = c->rd_atomic;
	qp->attr.max_dest_rd_atomic = c->dest_rd_atomic;
	qp->attr.path_mtu = (enum ibv_mtu)mtu_code;
	qp->path_mtu = (uint8_t)mtu_code;
	qp->attr.timeout = c->timeout;
	qp->attr.retry_cnt = c->retry_cnt;
	qp->attr.rnr_retry = c->rnr_retry;
	qp->attr.min_rnr_timer = c->min_rnr;
	qp->req.psn = qp->req.psn_una = qp->req.psn_max = c->psn[i];
	qp->resp.epsn = c->psn[!i];
	vb_lock_take(&qp->lock);
	assert_int_equal(vb_qp_resources(qp, c->dest_rd_atomic), 0);
	vb_lock_give(&qp->lock);
	sim_modify(s, i, IBV_QPS_INIT);
	sim_modify(s, i, IBV_QPS_RTR);
	sim_modify(s, i, IBV_QPS_RTS);
}

void sim_modify(struct sim *s, unsigned i, enum ibv_qp_state to)
{
	struct vb_qp *qp = &s->n[i].qp;

	s->n[i].errs = to == IBV_QPS_ERR;
	vb_posting_take(qp);
	vb_lock_take(&qp->lock);
	s->ground->modify(s, i, to);
	vb_posting_give(qp);
}

/* ---- a pair that stands alone ---- */

static void alone_modify(struct sim *s, unsigned i, enum ibv_qp_state to)
{
	struct vb_qp *qp = &s->n[i].qp;
	enum ibv_qp_state from = qp->state;
	struct vb_facts f = {.reason = VB_R_FLUSHED};

	if (to == IBV_QPS_ERR) {
		qp->transport->error(qp, &f);
	} else if (to == IBV_QPS_RESET) {
		vb_qp_reset(qp);
	} else {
		vb_qp_set_state(qp, to);
		qp->transport->enter(qp, from);
		if (to == IBV_QPS_RTS && qp->req.next != qp->req.seen)
			output(s, &s->n[i]);
	}
	if (s->cfg.placing)
		show(s, i);
	vb_lock_give(&qp->lock);
}

static void alone_attach(struct sim *s, unsigned i)
{
	struct sim_node *n = &s->n[i];

	vb_keys_init(&n->keys, sim_zeroed(SIM_KEYS * sizeof(struct vb_key_entry)), SIM_KEYS,
		     sim_zeroed(VB_MEM_SLOTS * sizeof(struct vb_key_slot)),
		     sim_zeroed(sizeof(struct vb_key_marks)));
	n->qp.keys = &n->keys;
	n->qp.qpn = i ? SIM_QPN1 : SIM_QPN0;
	sim_wire_init(&n->wire, s, i);
}

static void alone_leave(struct sim *s, unsigned i)
{
	struct sim_node *n = &s->n[i];

	sim_wire_free(&n->wire);
	free(n->keys.entries);
	free(n->keys.slots.at);
	free(n->keys.marks);
}

/* What is to be sent waits for the next step; what is flushed comes at once. */
static void alone_posted(struct sim *s, unsigned i)
{
	struct sim_node *n = &s->n[i];

	if (vb_qp_state_now(&n->qp) < IBV_QPS_SQE)
		return;
	vb_lock_take(&n->qp.lock);
	output(s, n);
	vb_lock_give(&n->qp.lock);
}

static void alone_drop(struct sim *s, unsigned i)
{
	vb_lock_give(&s->n[i].qp.lock);
}

static const struct sim_ground alone = {
    .attach = alone_attach,
    .posted = alone_posted,
    .modify = alone_modify,
    .drop = alone_drop,
    .leave = alone_leave,
};

static uint64_t back_now(struct vb_qp *qp)
{
	return vb_containerof(qp, struct sim_node, qp)->wire.sim->now;
}

static bool back_send(struct vb_qp *qp, const struct vb_pkt *p, const struct vb_brief *b)
{
	struct vb_out *out = &vb_containerof(qp, struct sim_node, qp)->wire.out;

	(void)p; /* there is one other side */
	return out->ops->send(out, b, VB_OUT_RESPONSE);
}

static const struct vb_back_ops back_ops = {.now = back_now, .send = back_send};

/* What the ends of XRC have not got, and what the target has instead. */
static void make_xrc(struct sim_node *n, unsigned i)
{
	n->qp.srq = NULL;
	n->qp.rcq = NULL;
	if (!i)
		return;
	n->qp.xrcd = n->srq.xrcd = &n->xrcd;
	n->srq.cq = &n->rcq;
	/* of simulated processes it may be another's, and so its events are */
	n->srq.ctx = n->rcq.ctx = n->ctx.adapter ? &n->srq_ctx : &n->ctx;
	vb_list_init(&n->srq.on_srqs);
	vb_srqs_init(&n->srqs);
	if (!n->srqs_at) {
		n->qp.srqs = n->srqs_at = &n->srqs;
		n->srq.number = SIM_SRQN;
	}
	vb_srqs_add(n->srqs_at, &n->srq);
}

static void make_node(struct sim *s, unsigned i)
{
	const struct sim_cfg *c = &s->cfg;
	struct sim_node *n = &s->n[i];
	struct ibv_qp_cap cap = {.max_send_wr = c->send_wr,
				 .max_recv_wr = c->recv_wr,
				 .max_send_sge = c->sge,
				 .max_recv_sge = c->sge,
				 .max_inline_data = c->inl};

	assert_int_equal(vb_evq_init(&n->ctx.async), 0);
	assert_int_equal(vb_evq_init(&n->srq_ctx.async), 0);
	n->pd.id = 10 + i;
	n->ctx.adapter = s->on[i];
	n->scq.ctx = n->rcq.ctx = &n->ctx;
	assert_int_equal(vb_cq_init(&n->scq, c->cqe), 0);
	assert_int_equal(vb_cq_init(&n->rcq, c->cqe), 0);
	if (c->srq || c->xrc) {
		n->srq.ctx = &n->ctx;
		n->srq.pd = &n->pd;
		vb_async_init(&n->srq.ev_limit, IBV_EVENT_SRQ_LIMIT_REACHED, &n->srq.ibv);
		assert_int_equal(vb_rq_init(&n->srq.rq, NULL, VB_QUEUE_SRQ, c->recv_wr, c->sge), 0);
		n->qp.srq = &n->srq;
	}
	n->qp.ibv.qp_type = c->family == VB_FAMILY_UC	? IBV_QPT_UC
			    : c->family == VB_FAMILY_UD ? IBV_QPT_UD
			    : !c->xrc			? IBV_QPT_RC
			    : i				? IBV_QPT_XRC_RECV
							: IBV_QPT_XRC_SEND;
	vb_transport_choose(&n->qp, n->qp.ibv.qp_type);
	s->ground->attach(s, i);
	n->qp.pd_id = n->pd.id;
	n->qp.ctx = &n->ctx;
	n->qp.pd = &n->pd;
	n->qp.scq = &n->scq;
	n->qp.rcq = c->one_cq ? &n->scq : &n->rcq;
	assert_int_equal(vb_mws_init(&n->mws, n->qp.keys, SIM_KEYS), 0);
	n->qp.mws = &n->mws;
	n->qp.drops = &n->drops;
	n->qp.sq_sig_all = c->sig_all;
	n->qp.family = c->xrc ? VB_FAMILY_XRC : c->family;
	if (c->xrc)
		make_xrc(n, i);
	assert_int_equal(vb_qp_init(&n->qp, &cap), 0);
	n->gids[0][15] = (uint8_t)(1 + i);
	memcpy(&n->gids[1][10], (const uint8_t[]){0xff, 0xff, 192, 0, 2, (uint8_t)(1 + i)}, 6);
	n->source.gids = n->gids;
	if (n->qp.dests) {
		n->qp.dests->gids = n->gids;
		n->qp.dests->back = s->ground == &alone ? &back_ops : NULL;
	}
	if (s->ground->made)
		s->ground->made(s, i);
	n->deadline = n->kick = VB_NEVER;
}

struct sim *sim_new_on(const struct sim_cfg *cfg, const struct sim_ground *g, struct vb_adapter *a,
		       struct vb_adapter *b)
{
	struct sim *s = sim_zeroed(sizeof *s);

	s->ground = g;
	s->on[0] = a;
	s->on[1] = b;
	s->cfg = *cfg;
	s->rng = cfg->seed * 0x2545f4914f6cdd1dull;
	s->now = VB_SEC;
	s->talk = getenv("VB_SIM_TRACE") != NULL;
	make_node(s, 0);
	make_node(s, 1);
	for (unsigned i = 0; i < 2 && cfg->placing && g == &alone; i++)
		make_peer_mem(s, i);
	sim_connect(s, 0);
	if (!cfg->one_end)
		sim_connect(s, 1);
	return s;
}

struct sim *sim_new(const struct sim_cfg *cfg)
{
	struct sim *s = sim_new_on(cfg, &alone, NULL, NULL);

	for (unsigned i = 0; i < 2; i++)
		if (cfg->path_at[i])
			s->cfg.path_at[i] += s->now;
		else
			path_comes(s, i);
	return s;
}

void sim_leave(struct sim *s, unsigned i)
{
	if (!s->n[i].left)
		s->ground->leave(s, i);
	s->n[i].left = true;
}

void sim_free(struct sim *s)
{
	for (unsigned i = 0; i < 2; i++) {
		struct sim_node *n = &s->n[i];

		sim_leave(s, i);
		vb_cq_forget(&n->scq, &n->qp);
		vb_cq_forget(&n->rcq, &n->qp);
		while (sim_event(s, i) >= 0)
			;
		vb_qp_fini(&n->qp);
		vb_cq_fini(&n->scq);
		vb_cq_fini(&n->rcq);
		if (s->cfg.srq || s->cfg.xrc)
			vb_rq_fini(&n->srq.rq);
		vb_evq_fini(&n->ctx.async);
		vb_evq_fini(&n->srq_ctx.async);
		vb_mws_fini(&n->mws);
		free(s->mem[i]);
	}
	free(s);
}

/* ---- what an application does ---- */

uint32_t sim_reg(struct sim *s, unsigned n, void *addr, uint64_t len, uint32_t access)
{
	struct vb_keys *keys = s->n[n].srq_keys ? s->n[n].srq_keys : s->n[n].qp.keys;
	uint32_t key = vb_key_publish(keys, &(struct vb_key_spec){.pd = s->n[n].pd.id,
								  .access = access,
								  .iova = (uintptr_t)addr,
								  .addr = (uintptr_t)addr,
								  .length = len});

	assert_int_not_equal(key, 0);
	return key;
}

uint32_t sim_stale(struct sim *s, unsigned n)
{
	uint32_t key = sim_reg(s, n, s->mem[n], 64, 0xf);

	vb_key_retract(s->n[n].qp.keys, key);
	vb_key_give(s->n[n].qp.keys, key);
	return key;
}

/* As ibv_wr_*, with the work request's data said last. */
static enum vb_build_fault build_by_calls(struct vb_builder *b, const struct ibv_send_wr *wr)
{
	uint32_t n = (uint32_t)wr->num_sge, flags = wr->send_flags & ~(uint32_t)IBV_SEND_INLINE;
	struct ibv_data_buf bufs[VB_MAX_SGE];
	enum vb_build_fault fault = vb_builder_start(b, wr->opcode, flags, wr->wr_id);

	if (fault)
		return fault;
	vb_builder_bare(b);
	if (b->bits & (VB_WR_ATOMIC | VB_WR_SELF))
		vb_builder_remote(b, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr);
	else if (b->bits & VB_WR_REMOTE)
		vb_builder_remote(b, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
	if (b->bits & VB_WR_ATOMIC)
		vb_builder_operands(b, wr->wr.atomic.compare_add, wr->wr.atomic.swap);
	vb_builder_srqn(b, wr->qp_type.xrc.remote_srqn);
	if (b->bits & VB_WR_WORD)
		vb_builder_word(b, &wr->wr.atomic.compare_add);
	else if (b->bits & VB_WR_SELF)
		return vb_builder_flush(b, wr->wr.atomic.compare_add, (uint8_t)wr->wr.atomic.swap,
					(uint8_t)(wr->wr.atomic.swap >> 8));
	if (b->bits & (VB_WR_IMM | VB_WR_INV))
		vb_builder_imm(b, wr->imm_data);
	if (b->bits & VB_WR_SELF || !n)
		return VB_BUILD_FINE;
	if (!(wr->send_flags & IBV_SEND_INLINE))
		return n == 1 ? vb_builder_piece(&b->qp->req, b->w, wr->sg_list)
			      : vb_builder_pieces(&b->qp->req, b->w, wr->sg_list, n);
	b->w->flags |= IBV_SEND_INLINE;
	for (uint32_t i = 0; i < n; i++)
		bufs[i] =
		    (struct ibv_data_buf){(void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length};
	return n == 1 ? vb_builder_inline(&b->qp->req, b->w, bufs[0].addr, bufs[0].length)
		      : vb_builder_inlines(&b->qp->req, b->w, bufs, n);
}

static enum vb_build_fault build(const struct sim *s, struct vb_builder *b, const struct ibv_send_wr *wr)
{
	uint64_t bits = vb_wr_row(wr->opcode)->bits, chance = (s->cfg.seed ^ wr->wr_id) * 0x9e3779b97f4a7c15u;
	enum vb_build_fault fault;

	if (bits & VB_WR_SELF ||
	    (chance >> 63 && !(bits & VB_WR_LOCAL) && wr->num_sge >= 0 && wr->num_sge <= VB_MAX_SGE &&
	     (bits & VB_WR_INLINE || !(wr->send_flags & IBV_SEND_INLINE))))
		return build_by_calls(b, wr);
	fault = vb_builder_start(b, wr->opcode, wr->send_flags, wr->wr_id);
	return fault ? fault : vb_builder_fill(b, wr);
}

/* Where a datagram goes: as the test says, or over there, from an IPv4 address. */
static void address(struct sim *s, unsigned n, struct vb_builder *b)
{
	const struct vb_ah ah = {
	    .route = vb_route(VB_GRH_WORD(1, 0, 0), 64, 0), .dest = VB_DEST_BY_QPN, .pd_id = b->qp->pd_id};
	const struct sim_to far = {&ah, s->n[!n].qp.qpn, s->n[n].qkey, SIM_FAR},
			    *to = s->n[n].to ? s->n[n].to : &far;

	vb_builder_to(b->qp, b->w, to->ah, to->qpn, to->qkey);
	if (to->ah->group)
		vb_builder_to_group(b->w, to->ah, to->qpn);
	if (!s->on[n]) /* there is one other process, and others that are never found */
		b->w->to.number = to->number ? to->number : SIM_FAR;
}

/* What verbs/post.c tries at once. */
static bool is_common(const struct vb_qp *qp, const struct ibv_send_wr *wr)
{
	return qp->post.brief && wr && !wr->next && wr->opcode == IBV_WR_SEND && wr->num_sge == 1;
}

/* cfg.at_once: the request leaves during the post, whichever way it goes. */
static bool send_at_once(struct sim *s, unsigned n, const struct ibv_send_wr *wr)
{
	struct vb_qp *qp = &s->n[n].qp;

	if (s->ground == &alone) { /* there is no other one who keeps the time */
		if (!s->cfg.at_once)
			return false;
		qp->req.timing = true;
	}
	if (vb_requester_post(qp, wr) != VB_ONCE_SENT)
		return false;
	s->once++;
	return true;
}

int sim_send(struct sim *s, unsigned n, const struct ibv_send_wr *wr)
{
	struct vb_qp *qp = &s->n[n].qp;
	bool common = is_common(qp, wr);
	struct vb_builder b;
	int err = 0;

	if (common && send_at_once(s, n, wr))
		return 0;
	vb_builder_begin(&b, qp);
	for (; wr && !err; wr = wr->next) {
		struct ibv_send_wr named = *wr;

		if (!named.qp_type.xrc.remote_srqn) /* unless the test wants another */
			named.qp_type.xrc.remote_srqn = s->n[1].srq.number;
		if (!vb_builder_room(&b))
			err = ENOMEM;
		else if (build(s, &b, &named))
			err = EINVAL;
		if (!err && qp->dests)
			address(s, n, &b);
		if (!err)
			vb_builder_next(&b);
	}
	vb_builder_publish(&b);
	s->ground->posted(s, n);
	if (common && s->cfg.at_once) {
		vb_lock_take(&qp->lock);
		output(s, &s->n[n]);
		vb_lock_give(&qp->lock);
	}
	vb_builder_end(&b);
	return err;
}

int sim_recv(struct sim *s, unsigned n, uint64_t wr_id, struct ibv_sge *sge, int num_sge)
{
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = sge, .num_sge = num_sge}, *bad;
	struct vb_qp *qp = &s->n[n].qp;
	bool posted;

	if (qp->srq || qp->xrcd) {
		struct vb_srq *srq = qp->xrcd ? &s->n[n].srq : qp->srq;

		vb_lock_take(&srq->lock);
		posted = vb_rq_post(&srq->rq, &wr, &bad);
		vb_lock_give(&srq->lock);
		return posted ? 0 : ENOMEM;
	}
	vb_lock_take(&qp->post.receives);
	posted = vb_rq_post(&qp->resp.rq, &wr, &bad);
	vb_lock_give(&qp->post.receives);
	if (vb_qp_state_now(qp) == IBV_QPS_ERR) {
		vb_lock_take(&qp->lock);
		qp->transport->flush(qp);
		s->ground->drop(s, n);
	}
	return posted ? 0 : ENOMEM;
}

/* As ibv_poll_cq, or as the calls of an extended CQ, by seed. */
static bool take_one(const struct sim *s, struct vb_cq *cq, struct ibv_wc *wc)
{
	if (s->cfg.seed & 2)
		return vb_cq_poll(cq, 1, wc) == 1;
	if (vb_cq_next(cq))
		return false;
	*wc = cq->turn.wc;
	return true;
}

bool sim_poll(struct sim *s, unsigned n, bool send, struct ibv_wc *wc)
{
	struct sim_node *to = &s->n[n];
	struct vb_cq *cq = send ? to->qp.scq : to->qp.rcq ? to->qp.rcq : &to->rcq; /* XRC's have none */

	if (take_one(s, cq, wc))
		return true;
	if (s->ground->poll)
		s->ground->poll(s, n);
	if (s->on[n])
		sim_look_for_silent_end(to); /* before what tells of its end is taken */
	return take_one(s, cq, wc);
}

int sim_event(struct sim *s, unsigned n)
{
	struct vb_evq *q = &s->n[n].ctx.async;
	struct vb_list *l;

	if (vb_evq_try(q))
		return -1;
	vb_lock_take(&q->lock);
	l = vb_list_pop(&q->nodes);
	vb_lock_give(&q->lock);
	assert_non_null(l);
	return vb_list_entry(l, struct vb_async_node, link)->ev.event_type;
}

void sim_inject(struct sim *s, unsigned n, struct vb_pkt *p, const void *payload, uint32_t len)
{
	struct vb_qp *qp = &s->n[n].qp;
	uint8_t hdr[VB_HDR_MAX];
	struct sim_flying *f;
	struct vb_loan loan;
	struct vb_pkt in;

	p->qpn = qp->qpn;
	p->pkey = VB_PKEY_DEFAULT;
	p->opcode = meant(p->opcode);
	if (sim_as == SIM_AS_XRC)
		p->srqn = SIM_SRQN;
	assert_null(vb_pkt_decode(&in, hdr, vb_pkt_encode(hdr, p), len, !s->cfg.far));
	in.payload = payload;
	in.placed = p->placed; /* which no header carries, */
	if (p->loan)	       /* nor that the payload is one */
		assert_null(vb_loan_decode(&loan, &in));
	f = malloc(sizeof *f + in.op->hdr_len + len);
	assert_non_null(f);
	*f = (struct sim_flying){
	    .hdr_len = in.op->hdr_len, .payload_len = len, .placed = p->placed, .lent = p->loan != NULL};
	memcpy(f->bytes, hdr, in.op->hdr_len);
	if (len)
		memcpy(f->bytes + in.op->hdr_len, payload, len);
	vb_lock_take(&qp->lock);
	in.source = &s->n[!n].source;
	in.route = vb_route(0, 0, 0);
	if (!deliver_brief(qp, f, s->n[!n].wire.out.brief, in.source))
		qp->transport->input(qp, &in);
	free(f);
	vb_lock_give(&qp->lock);
	pump(s, n);
}

unsigned sim_count(const struct sim *s, unsigned from, uint8_t opcode)
{
	unsigned k = 0;

	opcode = meant(opcode);
	for (uint32_t i = 0; i < s->seen; i++)
		k += s->trace[i].from == from && s->trace[i].p.opcode == opcode;
	return k;
}

const struct sim_seen *sim_find(const struct sim *s, unsigned from, uint8_t opcode, unsigned nth)
{
	opcode = meant(opcode);
	for (uint32_t i = 0; i < s->seen; i++)
		if (s->trace[i].from == from && s->trace[i].p.opcode == opcode && !nth--)
			return &s->trace[i];
	return NULL;
}

/* ---- shorthand ---- */

static enum sim_verdict by_plan(struct sim *s, unsigned from, const struct vb_pkt *p)
{
	for (unsigned i = 0; i < s->ndrops; i++) {
		if (s->drops[i].from != from ||
		    (s->drops[i].opcode != SIM_ANY && s->drops[i].opcode != p->opcode))
			continue;
		if (s->drops[i].nth == SIM_ALWAYS || sim_count(s, from, p->opcode) == s->drops[i].nth)
			return SIM_DROP;
	}
	return SIM_PASS;
}

void sim_desk_init(struct sim *s)
{
	for (unsigned i = 0; i < 2; i++) {
		s->mem[i] = sim_zeroed(SIM_MEM);
		s->lkey[i] = sim_reg(s, i, s->mem[i], SIM_MEM,
				     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
					 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	}
}

struct sim *sim_desk(const struct sim_cfg *cfg)
{
	struct sim *s = sim_new(cfg);

	s->filter = by_plan;
	sim_desk_init(s);
	return s;
}

struct ibv_send_wr sim_wr(struct sim *s, unsigned n, enum ibv_wr_opcode op, uint32_t at, uint32_t len,
			  uint32_t to, struct ibv_sge *sge)
{
	struct ibv_send_wr wr = {.wr_id = ++s->next_wr,
				 .sg_list = sge,
				 .num_sge = 1,
				 .opcode = op,
				 .send_flags = IBV_SEND_SIGNALED,
				 .imm_data = 0x01020304};

	*sge = (struct ibv_sge){(uintptr_t)s->mem[n] + at, len, s->lkey[n]};
	if (op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)s->mem[!n] + to;
		wr.wr.atomic.rkey = sim_rkey(s->lkey[!n]);
		wr.wr.atomic.compare_add = op == IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.swap = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)s->mem[!n] + to;
		wr.wr.rdma.rkey = sim_rkey(s->lkey[!n]);
	}
	return wr;
}

uint64_t sim_op(struct sim *s, unsigned n, enum ibv_wr_opcode op, uint32_t at, uint32_t len, uint32_t to)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = sim_wr(s, n, op, at, len, to, &sge);

	assert_int_equal(sim_send(s, n, &wr), 0);
	return wr.wr_id;
}

uint64_t sim_take(struct sim *s, unsigned n, uint32_t at, uint32_t len)
{
	uint32_t room = sim_as == SIM_AS_UD ? len + VB_GRH_LEN : len;
	struct ibv_sge sge = {(uintptr_t)s->mem[n] + at, room, s->lkey[n]};

	assert_int_equal(sim_recv(s, n, ++s->next_wr, &sge, 1), 0);
	return s->next_wr;
}

struct ibv_wc sim_expect(struct sim *s, unsigned n, bool send, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = {0};

	if (!sim_poll(s, n, send, &wc))
		fail_msg("no completion where wr_id %lu was due with status %d", (unsigned long)wr_id,
			 status);
	assert_int_equal(wc.wr_id, wr_id);
	assert_int_equal(wc.status, status);
	assert_int_equal(wc.qp_num, s->n[n].qp.qpn);
	return wc;
}

void sim_flushed(struct sim *s, unsigned n, uint64_t wr_id)
{
	if (!s->cfg.srq && !s->cfg.xrc)
		sim_expect(s, n, false, wr_id, IBV_WC_WR_FLUSH_ERR);
}

void sim_expect_none(struct sim *s, unsigned n)
{
	struct ibv_wc wc;

	assert_false(sim_poll(s, n, true, &wc));
	assert_false(sim_poll(s, n, false, &wc));
}

void sim_drop(struct sim *s, unsigned from, unsigned opcode, unsigned nth)
{
	assert_true(s->ndrops < SIM_DROPS);
	s->drops[s->ndrops].from = from;
	s->drops[s->ndrops].opcode = opcode == SIM_ANY ? opcode : meant(opcode);
	s->drops[s->ndrops++].nth = nth;
}

void sim_fill(struct sim *s, uint32_t len)
{
	for (unsigned n = 0; n < 2; n++)
		for (uint32_t i = 0; i < len; i++)
			s->mem[n][i] = (uint8_t)((i * 31 + i / 251) ^ (n ? 0x5a : 0));
}
