#include "datagrams.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "iba/grh.h"
#include "model.h"
#include "obj/dests.h"

enum { GRH = 40, MOST = 4096, KEYS = 3, BIT31 = 1u << 31 };
enum { RECVS = 256, SINK_LEN = RECVS * (GRH + MOST + 64) };
enum { RECV = 0x1000000 }; /* wr_ids of receives begin there */
static const uint32_t keys[KEYS] = {0x11111111, 0x2222, 0};

/* What becomes of a request. */
enum fate { SENT, REFUSED, FLUSHED };

struct dg_message {
	unsigned from;
	int to;	   /* an end */
	int group; /* or a group; -1 */
	enum fate fate;
	bool signalled, left;
	uint32_t len, imm, qkey;
	struct vb_route route;
	bool has_imm;
	uint8_t *data;
	uint32_t must;	      /* ends to which it is to come, as bits, if their Q_Key is its */
	uint32_t once, twice; /* to which it came */
};

struct dg_recv {
	struct ibv_sge sge[4];
	uint32_t num_sge, room;
};

static uint32_t below(struct datagrams *d, uint32_t n)
{
	return sim_below(d->dice, n);
}

static struct vb_qp *qp_of(const struct dg_end *e)
{
	return &e->s->n[e->i].qp;
}

static uint32_t count_of(const struct dg_end *e, enum vb_reason r)
{
	return (uint32_t)atomic_load(&e->s->n[e->i].drops.count[r]);
}

void datagrams_init(struct datagrams *d, struct sim *dice, const struct sim_cfg *wire)
{
	*d = (struct datagrams){.dice = dice};
	d->in_order = !wire->dup && !wire->late;
	d->quiet = d->in_order && !wire->loss;
	for (unsigned g = 0; g < DG_GROUPS; g++) /* two of IPv4, one of IPv6 */
		memcpy(d->group[g].raw,
		       g == 2 ? (const uint8_t[16]){0xff, 0x0e, [15] = 9}
			      : (const uint8_t[16]){[10] = 0xff, [11] = 0xff, 224, 1, 2, (uint8_t)(3 + g)},
		       16);
}

void datagrams_fini(struct datagrams *d)
{
	for (unsigned k = 0; k < d->ends; k++) {
		free(d->end[k].source);
		free(d->end[k].sink);
		free(d->end[k].sink_want);
		free(d->end[k].recvs);
		free(d->end[k].sent);
	}
	for (unsigned k = 0; k < d->n; k++)
		free(d->all[k].data);
	free(d->all);
}

/* It has the number of one that is gone, and gets what is sent there. */
static bool is_heir(const struct dg_end *e, const struct dg_end *of)
{
	return of != e && of->gone && qp_of(of)->qpn == qp_of(e)->qpn;
}

unsigned datagrams_add(struct datagrams *d, struct sim *s, unsigned i, uint32_t ops)
{
	struct dg_end *e = &d->end[d->ends];

	assert_true(d->ends < DG_ENDS);
	*e = (struct dg_end){.s = s, .i = i, .ops = ops, .qkey = keys[below(d, 2)]};
	e->source = calloc(ops + 2, MOST); /* each request has its own part */
	e->sink = malloc(SINK_LEN);
	e->sink_want = malloc(SINK_LEN);
	memset(e->sink, 0x3c, SINK_LEN);
	memset(e->sink_want, 0x3c, SINK_LEN);
	e->source_key = sim_reg(s, i, e->source, (ops + 2ull) * MOST, 0);
	e->sink_key = sim_reg(s, i, e->sink, SINK_LEN, IBV_ACCESS_LOCAL_WRITE);
	e->recvs = calloc(RECVS, sizeof *e->recvs);
	e->sent = calloc(ops, sizeof *e->sent);
	vb_lock_take(&qp_of(e)->lock);
	qp_of(e)->qkey = qp_of(e)->attr.qkey = e->qkey;
	vb_lock_give(&qp_of(e)->lock);
	for (unsigned k = 0; k < d->ends; k++)
		e->fuzzy |= is_heir(e, &d->end[k]);
	return d->ends++;
}

/* ---- sending ---- */

static uint32_t pick_length(struct datagrams *d)
{
	switch (below(d, 8)) {
	case 0:
		return below(d, 4);
	case 1:
	case 2:
	case 3:
		return below(d, 100);
	case 4:
		return MOST - below(d, 4);
	default:
		return below(d, MOST + 1);
	}
}

/* Those that are to get it, whatever its Q_Key. */
static uint32_t who_must(const struct datagrams *d, const struct dg_message *m)
{
	uint32_t bits = 0;

	for (unsigned k = 0; k < d->ends; k++) {
		const struct dg_end *e = &d->end[k];
		bool own = k == m->from && e->no_echo;

		if (!e->gone && (m->group >= 0 ? e->member[m->group] == DG_IS && !own : (int)k == m->to))
			bits |= 1u << k;
	}
	return bits;
}

/* Whichever of the ends, now and then one that is gone; or a group. */
static void pick_destination(struct datagrams *d, struct dg_message *m)
{
	m->to = m->group = -1;
	if (d->groups && below(d, d->groups) == 0)
		m->group = (int)below(d, DG_GROUPS);
	else
		do
			m->to = (int)below(d, d->ends);
		while (d->ends == 2 && (unsigned)m->to == m->from); /* of a pair that stands alone */
}

static struct dg_message *new_message(struct datagrams *d, unsigned from)
{
	struct dg_message *m;

	if (d->n == d->room) {
		d->room = 2 * d->room + 64;
		d->all = realloc(d->all, d->room * sizeof *d->all);
		assert_non_null(d->all);
	}
	m = &d->all[d->n++];
	*m = (struct dg_message){.from = from};
	return m;
}

/* Its own number is in each: in its data, or its immediate, or its flow label, which IPv4 has not. */
static void choose_message(struct datagrams *d, struct dg_message *m)
{
	uint32_t id = (uint32_t)(m - d->all), v4 = below(d, 2);

	m->len = pick_length(d);
	m->has_imm = below(d, 3) == 0 || (v4 && m->len < 4);
	m->imm = m->has_imm ? id : 0;
	m->route = vb_route(VB_GRH_WORD(v4, below(d, 256), v4 ? 0 : id), (uint8_t)below(d, 256),
			    (uint8_t)below(d, 16));
	m->data = malloc(m->len + 1u);
	for (uint32_t k = 0; k < m->len; k++)
		m->data[k] = (uint8_t)(id * 41 + k * 31 + k / 251);
	if (m->len >= 4)
		memcpy(m->data, &id, 4);
}

/* The pieces that it is sent from, some of them empty. */
static int cut_source(struct datagrams *d, struct dg_end *e, const struct dg_message *m, struct ibv_sge *sge)
{
	uint32_t at = e->posted * MOST, left = m->len;
	int n = 1 + (int)below(d, 3);

	if (m->fate == REFUSED) {
		sge[0] = (struct ibv_sge){(uintptr_t)e->source, MOST + 1 + below(d, MOST), e->source_key};
		return 1;
	}
	memcpy(e->source + at, m->data, m->len);
	if (!m->len && below(d, 2))
		return 0;
	for (int k = 0; k < n; k++) {
		sge[k] = (struct ibv_sge){(uintptr_t)e->source + at, k == n - 1 ? left : below(d, left + 1),
					  e->source_key};
		at += sge[k].length;
		left -= sge[k].length;
	}
	return n;
}

static uint32_t pick_key(struct datagrams *d, const struct dg_end *e, const struct dg_message *m)
{
	switch (below(d, 8)) {
	case 0:
		return BIT31 | below(d, 1000); /* its own */
	case 1:
		return keys[below(d, KEYS)];
	default:
		return m->to >= 0 ? d->end[m->to].qkey : e->qkey;
	}
}

static bool post_one(struct datagrams *d, unsigned k)
{
	struct dg_end *e = &d->end[k];
	struct dg_message *m = new_message(d, k);
	struct ibv_sge sge[4];
	struct ibv_send_wr wr = {.wr_id = e->posted, .sg_list = sge};
	struct vb_ah ah = {.dest = VB_DEST_BY_QPN, .pd_id = e->s->n[e->i].pd.id};
	struct sim_to to = {.ah = &ah, .qpn = VB_QPN_GROUP};
	bool inl;
	int err;

	pick_destination(d, m);
	choose_message(d, m);
	m->fate = e->broken ? FLUSHED : below(d, 100) ? SENT : REFUSED;
	inl = m->fate != REFUSED && m->len <= e->s->cfg.inl && below(d, 2);
	wr.num_sge = cut_source(d, e, m, sge);
	wr.opcode = m->has_imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
	wr.imm_data = m->imm;
	m->signalled = below(d, 3) || e->posted == e->ops - 1 || e->posted % 4 == 3;
	wr.send_flags = (m->signalled ? IBV_SEND_SIGNALED : 0) | (inl ? IBV_SEND_INLINE : 0) |
			(below(d, 4) ? 0 : IBV_SEND_SOLICITED);
	ah.route = m->route;
	to.qkey = pick_key(d, e, m);
	m->qkey = to.qkey & BIT31 ? e->qkey : to.qkey;
	if (m->group >= 0) {
		ah.group = true;
		ah.dest = VB_DEST_NOWHERE;
		memcpy(&ah.attr.grh.dgid, &d->group[m->group], 16);
	} else {
		to.qpn = qp_of(&d->end[m->to])->qpn;
	}
	m->must = m->fate == SENT ? who_must(d, m) : 0;
	e->sent[e->posted] = (uint32_t)(m - d->all);
	e->s->n[e->i].to = &to;
	err = sim_send(e->s, e->i, &wr);
	e->s->n[e->i].to = NULL;
	if (err) {
		assert_int_equal(err, ENOMEM);
		free(m->data);
		d->n--;
		return false;
	}
	e->posted++;
	e->broken |= m->fate == REFUSED;
	return true;
}

/* ---- receiving ---- */

static void post_recv(struct datagrams *d, struct dg_end *e)
{
	struct dg_recv *r = &e->recvs[e->nrecvs];
	uint32_t room, left;

	if (e->nrecvs == RECVS || e->nrecvs - e->recvs_used == e->s->cfg.recv_wr)
		return;
	room = below(d, 6) ? GRH + MOST : below(d, 3) ? GRH + below(d, 256) : GRH + below(d, MOST);
	r->room = left = room;
	r->num_sge = 1 + below(d, e->s->cfg.sge);
	for (uint32_t k = 0; k < r->num_sge; k++) {
		r->sge[k].length = k == r->num_sge - 1 ? left : below(d, left + 1);
		r->sge[k].addr = (uintptr_t)e->sink + e->sink_used;
		r->sge[k].lkey = e->sink_key;
		e->sink_used += r->sge[k].length + below(d, 16); /* a gap that nobody may touch */
		left -= r->sge[k].length;
	}
	assert_true(e->sink_used < SINK_LEN);
	assert_int_equal(sim_recv(e->s, e->i, RECV + e->nrecvs, r->sge, (int)r->num_sge), 0);
	e->nrecvs++;
}

static uint16_t sum_of(const uint8_t *p)
{
	uint32_t sum = 0;

	for (unsigned k = 0; k < 20; k += 2)
		sum += (uint32_t)p[k] << 8 | p[k + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)sum;
}

static const uint8_t *gid_of(const struct dg_end *e, bool v4)
{
	return e->s->n[e->i].qp.dests->gids[v4];
}

/* Rule 24: the 40 bytes are such that an answer finds its way. */
static void check_grh(struct datagrams *d, const uint8_t *g, uint8_t sl, const struct dg_end *e,
		      const struct dg_message *m)
{
	uint32_t packet = (m->has_imm ? 24 : 20) + (m->len + 3) / 4 * 4 + 4 /* ICRC */ + 8 /* UDP */;
	bool from_v4 = VB_GRH_SGID(m->route.word), v4 = from_v4 && m->group != 2;
	const uint8_t *to = m->group >= 0 ? d->group[m->group].raw : gid_of(e, v4),
		      *from = gid_of(&d->end[m->from], from_v4);

	assert_int_equal(sl, v4 ? 2 : 1);
	if (v4) {
		for (unsigned k = 0; k < 20; k++)
			assert_int_equal(g[k], 0);
		g += 20;
		assert_int_equal(g[0], 0x45);
		assert_int_equal(g[1], m->route.word >> 20 & 0xff);
		assert_int_equal(g[2] << 8 | g[3], 20 + packet);
		assert_int_equal(g[8], m->route.hops);
		assert_int_equal(g[9], 17);
		assert_int_equal(sum_of(g), 0xffff);
		assert_memory_equal(g + 12, from + 12, 4);
		assert_memory_equal(g + 16, to + 12, 4);
	} else {
		assert_int_equal(ntohl(*(const uint32_t *)(const void *)g),
				 6u << 28 | (m->route.word & 0xfffffff));
		assert_int_equal(g[4] << 8 | g[5], packet);
		assert_int_equal(g[6], 17);
		assert_int_equal(g[7], m->route.hops);
		assert_memory_equal(g + 8, from, 16);
		assert_memory_equal(g + 24, to, 16);
	}
}

/* Which message that is.  Its bytes begin behind the GRH. */
static struct dg_message *find(struct datagrams *d, const struct ibv_wc *wc, const uint8_t *bytes)
{
	uint32_t id;

	if (wc->wc_flags & IBV_WC_WITH_IMM)
		id = wc->imm_data;
	else if (wc->byte_len >= GRH + 4)
		memcpy(&id, bytes + GRH, 4);
	else
		id = ntohl(*(const uint32_t *)(const void *)bytes) & 0xfffff;
	if (id >= d->n)
		fail_msg("a datagram came that nobody sent");
	return &d->all[id];
}

static void is_in_turn(struct datagrams *d, struct dg_end *e, const struct dg_message *m)
{
	uint32_t *last = &e->last[m->from][m->group >= 0], id = 1 + (uint32_t)(m - d->all);

	if (d->in_order && id <= *last)
		fail_msg("datagram %u came behind %u", id - 1, *last - 1);
	*last = id;
}

static void check_recv(struct datagrams *d, struct dg_end *e, const struct ibv_wc *wc)
{
	const struct dg_recv *r = &e->recvs[e->recvs_used];
	uint8_t bytes[GRH + MOST];
	const struct dg_message *m;
	uint32_t got = 0, bit = 1u << (e - d->end);
	struct dg_message *found;

	assert_int_equal(wc->status, IBV_WC_SUCCESS);
	assert_int_equal(wc->wr_id, RECV + e->recvs_used++);
	assert_true(e->recvs_used <= e->nrecvs && wc->byte_len >= GRH && wc->byte_len <= r->room);
	for (uint32_t k = 0, n; k < r->num_sge && got < wc->byte_len; k++, got += n) {
		n = wc->byte_len - got < r->sge[k].length ? wc->byte_len - got : r->sge[k].length;
		memcpy(bytes + got, (void *)(uintptr_t)r->sge[k].addr, n);
		memcpy(e->sink_want + (r->sge[k].addr - (uintptr_t)e->sink), bytes + got, n);
	}
	m = found = find(d, wc, bytes);
	assert_int_equal(m->fate, SENT);
	assert_int_equal(wc->byte_len, GRH + m->len);
	assert_memory_equal(bytes + GRH, m->data, m->len);
	check_grh(d, bytes, wc->sl, e, m);
	assert_int_equal(wc->opcode, IBV_WC_RECV);
	assert_int_equal(wc->qp_num, qp_of(e)->qpn);
	assert_int_equal(wc->src_qp, qp_of(&d->end[m->from])->qpn);
	assert_int_equal(wc->wc_flags, IBV_WC_GRH | (m->has_imm ? IBV_WC_WITH_IMM : 0));
	assert_int_equal(wc->slid, 0);
	assert_int_equal(wc->pkey_index, 0);
	assert_int_equal(m->qkey, e->qkey);
	if (m->group >= 0)
		assert_true(e->member[m->group] != DG_NOT &&
			    !(e->no_echo && m->from == (unsigned)(e - d->end)));
	else
		assert_true(m->to == e - d->end || is_heir(e, &d->end[m->to]));
	is_in_turn(d, e, m);
	if (found->once & bit && (d->in_order || found->twice & bit))
		fail_msg("datagram %u came once more", (unsigned)(found - d->all));
	found->twice |= found->once & bit;
	found->once |= bit;
	e->received++;
	d->came_to_groups += m->group >= 0;
}

/* ---- the end of requests ---- */

/* The next one that completes: others that ask for no completion may come before. */
static void check_send(struct datagrams *d, struct dg_end *e, const struct ibv_wc *wc)
{
	struct dg_message *m;

	for (;; e->done++) {
		assert_true(e->done < e->posted);
		m = &d->all[e->sent[e->done]];
		m->left = m->fate == SENT;
		if (m->signalled || m->fate != SENT)
			break;
	}
	assert_int_equal(wc->wr_id, e->done++);
	assert_int_equal(wc->qp_num, qp_of(e)->qpn);
	assert_int_equal(wc->status, m->fate == SENT	  ? IBV_WC_SUCCESS
				     : m->fate == REFUSED ? IBV_WC_LOC_LEN_ERR
							  : IBV_WC_WR_FLUSH_ERR);
	if (m->fate == SENT)
		assert_int_equal(wc->opcode, IBV_WC_SEND);
	if (e->broken && e->done == e->posted) { /* all behind the one that failed has come */
		assert_int_equal(qp_of(e)->state, IBV_QPS_SQE);
		sim_modify(e->s, e->i, IBV_QPS_RTS);
		e->broken = false;
	}
}

static void poll_end(struct datagrams *d, struct dg_end *e)
{
	struct ibv_wc wc;

	if (e->gone || e->stopped)
		return;
	for (unsigned send = 0; send < 2; send++)
		while (sim_poll(e->s, e->i, send, &wc)) { /* both may be one CQ */
			if (wc.wr_id >= RECV)
				check_recv(d, e, &wc);
			else
				check_send(d, e, &wc);
		}
}

void datagrams_poll(struct datagrams *d)
{
	for (unsigned k = 0; k < d->ends; k++)
		poll_end(d, &d->end[k]);
}

bool datagrams_act(struct datagrams *d)
{
	unsigned k = below(d, d->ends), burst = below(d, 6);
	struct dg_end *e = &d->end[k];
	bool acted = false;

	if (e->gone || e->stopped)
		return false;
	if (below(d, 3))
		for (unsigned n = below(d, 8); n; n--)
			post_recv(d, e);
	while (burst-- && e->posted < e->ops && post_one(d, k))
		acted = true;
	return acted;
}

static bool finished(const struct dg_end *e)
{
	return e->gone || (e->posted == e->ops && e->done == e->posted);
}

bool datagrams_finished(const struct datagrams *d)
{
	for (unsigned k = 0; k < d->ends; k++)
		if (!finished(&d->end[k]))
			return false;
	return true;
}

void datagrams_say(const struct datagrams *d, char *buf, size_t size)
{
	size_t len = 0;

	buf[0] = 0;
	for (unsigned k = 0; k < d->ends && len < size; k++)
		len += (size_t)snprintf(buf + len, size - len, "%u: %u/%u ", k, d->end[k].done,
					d->end[k].posted);
}

/* ---- who comes and goes ---- */

void datagrams_gone(struct datagrams *d, unsigned k)
{
	struct dg_end *e = &d->end[k];

	e->gone = true;
	for (unsigned n = e->done; n < e->posted; n++) { /* these may have left, or not */
		struct dg_message *m = &d->all[e->sent[n]];

		for (unsigned o = 0; o < d->ends; o++)
			d->end[o].fuzzy |= m->must >> o & 1;
		m->must = 0;
	}
}

void datagrams_left(struct datagrams *d, unsigned k)
{
	d->end[k].done = d->end[k].posted;
	datagrams_gone(d, k);
}

void datagrams_member(struct datagrams *d, unsigned k, unsigned group, enum dg_member is)
{
	struct dg_end *e = &d->end[k];

	poll_end(d, e); /* what came before */
	e->member[group] = is;
	if (is == DG_IS)
		return;
	for (unsigned n = 0; n < d->n; n++) /* what has not come may have lost its way */
		if (d->all[n].group == (int)group)
			d->all[n].must &= ~(1u << k);
	e->fuzzy = true;
}

/* ---- what is missing ---- */

/* What senders dropped: of a group's, one count may stand for a copy to each of several processes. */
static uint64_t dropped_by_senders(const struct datagrams *d)
{
	uint64_t n = 0;

	for (unsigned k = 0; k < d->ends; k++)
		n += count_of(&d->end[k], VB_R_DROP_FULL) + count_of(&d->end[k], VB_R_DROP_NOBODY);
	return n;
}

/* Of the messages that were to come to it, those that have not. */
static unsigned missing(const struct datagrams *d, const struct dg_end *e, bool right_key)
{
	uint32_t bit = 1u << (e - d->end);
	unsigned n = 0;

	for (unsigned k = 0; k < d->n; k++) {
		const struct dg_message *m = &d->all[k];

		n +=
		    m->fate == SENT && m->must & bit && (m->qkey == e->qkey) == right_key && !(m->once & bit);
	}
	return n;
}

/* Two that stand alone: of every packet that the wire gave, and as often as it did, it is known what became.
 */
static void check_wire(const struct datagrams *d, const struct dg_end *e)
{
	const struct sim_wire *w = &e->s->n[!e->i].wire;
	unsigned sent = 0;

	for (unsigned k = 0; k < d->n; k++)
		sent += d->all[k].fate == SENT && d->all[k].to == e - d->end;
	assert_int_equal(sent, w->committed);
	assert_int_equal(sent - w->lost + w->doubled, e->received + count_of(e, VB_R_DROP_NO_RECV) +
							  count_of(e, VB_R_DROP_TOO_SMALL) +
							  count_of(e, VB_R_DROP_QKEY));
}

static void check_end(struct datagrams *d, struct dg_end *e)
{
	unsigned here = count_of(e, VB_R_DROP_NO_RECV) + count_of(e, VB_R_DROP_TOO_SMALL);
	unsigned lacks = missing(d, e, true), keyless = missing(d, e, false);
	uint64_t others = dropped_by_senders(d);

	if (!e->s->on[e->i])
		check_wire(d, e);
	if (d->quiet && !e->fuzzy && !others) {
		assert_int_equal(lacks, here);
		assert_int_equal(keyless, count_of(e, VB_R_DROP_QKEY));
	} else if (d->quiet && lacks > here + others) {
		fail_msg("%u datagrams are missing, and %u were dropped here, %lu on their way", lacks, here,
			 (unsigned long)others);
	}
	assert_memory_equal(e->sink, e->sink_want, SINK_LEN);
	assert_int_equal(qp_of(e)->state, IBV_QPS_RTS);
	assert_int_equal(qp_of(e)->req.deadline, VB_NEVER);
	assert_true(vb_list_empty(&qp_of(e)->dests->waiting));
	assert_int_equal(qp_of(e)->dests->left.words, 0);
	assert_int_equal(sim_event(e->s, e->i), -1);
}

void datagrams_check_end(struct datagrams *d)
{
	datagrams_poll(d);
	for (unsigned k = 0; k < d->ends; k++)
		if (!d->end[k].gone)
			check_end(d, &d->end[k]);
}
