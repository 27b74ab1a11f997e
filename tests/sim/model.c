#include "model.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/lend.h"

static void side_new(struct model *m, unsigned i)
{
	struct side *d = &m->side[i];

	d->source = malloc(SOURCE);
	d->target = malloc(TARGET);
	d->sink = malloc(SINK);
	d->target_want = malloc(TARGET);
	d->sink_want = malloc(SINK);
	for (uint32_t k = 0; k < SOURCE; k += 8)
		*(uint64_t *)(void *)(d->source + k) = sim_random(m->s);
	for (uint32_t k = 0; k < TARGET; k += 8)
		*(uint64_t *)(void *)(d->target + k) = sim_random(m->s);
	memcpy(d->target_want, d->target, TARGET);
	memset(d->sink, 0x3c, SINK);
	memset(d->sink_want, 0x3c, SINK);
	d->source_key = sim_reg(m->s, i, d->source, SOURCE, 0);
	d->target_key = sim_reg(m->s, i, d->target, TARGET,
				IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				    IBV_ACCESS_REMOTE_ATOMIC | VB_ACCESS_FLUSH_GLOBAL);
	d->sink_key = sim_reg(m->s, i, d->sink, SINK, IBV_ACCESS_LOCAL_WRITE);
	d->wcs = calloc(OPS, sizeof *d->wcs);
	d->msgs = calloc(OPS, sizeof *d->msgs);
	d->reads = calloc(OPS, sizeof *d->reads);
	d->recvs = calloc(OPS, sizeof *d->recvs);
	d->writes = calloc(OPS, sizeof *d->writes);
}

static void side_free(struct side *d)
{
	for (unsigned i = 0; i < d->nmsgs; i++)
		free(d->msgs[i].data);
	for (unsigned i = 0; i < d->nwrites; i++)
		free(d->writes[i].data);
	free(d->writes);
	free(d->source);
	free(d->target);
	free(d->sink);
	free(d->target_want);
	free(d->sink_want);
	free(d->target_left);
	free(d->wcs);
	free(d->msgs);
	free(d->reads);
	free(d->recvs);
}

/* Unreliable connections. */
static bool is_uc(const struct model *m)
{
	return m->s->cfg.family == VB_FAMILY_UC;
}

/* Whether the wire neither doubles packets nor lets them overtake one another; and whether it loses none. */
static bool in_order(const struct model *m)
{
	return !m->s->cfg.dup && !m->s->cfg.late;
}

static bool is_quiet(const struct model *m)
{
	return in_order(m) && !m->s->cfg.loss;
}

static uint32_t pick_length(struct model *m)
{
	uint32_t mtu = m->s->cfg.mtu, n;

	switch (sim_below(m->s, 8)) {
	case 0:
		return 0;
	case 1:
	case 2:
		return 1 + sim_below(m->s, 64);
	case 3:
		n = mtu * (1 + sim_below(m->s, 4)) + sim_below(m->s, 3) - 1;
		break;
	case 4:
		n = sim_below(m->s, MAX_LEN + 1);
		break;
	default:
		n = sim_below(m->s, 2 * mtu);
	}
	return n < MAX_LEN ? n : MAX_LEN;
}

/* Cuts `len` bytes into up to n pieces, some of them empty; where they stand is `place`'s choice. */
static int cut(struct model *m, struct ibv_sge *sge, uint32_t len,
	       void (*place)(struct model *, unsigned, struct ibv_sge *), unsigned side)
{
	int n = 1 + (int)sim_below(m->s, m->sge_max);

	if (!len && sim_below(m->s, 2))
		return 0;
	for (int i = 0; i < n; i++) {
		sge[i].length = i == n - 1 ? len : sim_below(m->s, len + 1);
		len -= sge[i].length;
		place(m, side, &sge[i]);
	}
	return n;
}

static void in_source(struct model *m, unsigned side, struct ibv_sge *e)
{
	struct side *d = &m->side[side];

	e->addr = (uintptr_t)d->source + sim_below(m->s, SOURCE - e->length + 1);
	e->lkey = d->source_key;
}

static void in_sink(struct model *m, unsigned side, struct ibv_sge *e)
{
	struct side *d = &m->side[side];

	assert_true(d->sink_used + e->length + 16 < SINK);
	e->addr = (uintptr_t)d->sink + d->sink_used;
	e->lkey = d->sink_key;
	d->sink_used += e->length + sim_below(m->s, 16); /* a gap that nobody may touch */
}

/* What the model expects in the sink after `data` was scattered. */
static void scatter(struct side *d, const struct ibv_sge *sge, uint32_t n, const uint8_t *data, uint32_t len)
{
	for (uint32_t i = 0; i < n && len; i++) {
		uint32_t k = sge[i].length < len ? sge[i].length : len;

		memcpy(d->sink_want + (sge[i].addr - (uintptr_t)d->sink), data, k);
		data += k;
		len -= k;
	}
}

static void gather(const struct ibv_sge *sge, int n, uint8_t *to)
{
	for (int i = 0; i < n; i++) {
		memcpy(to, (void *)(uintptr_t)sge[i].addr, sge[i].length);
		to += sge[i].length;
	}
}

static bool touches_open_read(const struct side *d, uint32_t off, uint32_t len)
{
	for (unsigned i = 0; i < d->nreads; i++)
		if (off < d->reads[i].off + d->reads[i].len && d->reads[i].off < off + len)
			return true;
	return false;
}

static void expect_send(struct side *d, const struct ibv_send_wr *wr, enum ibv_wc_opcode opcode, uint32_t len)
{
	struct expected_wc *e = &d->wcs[d->nwcs];

	if (!(wr->send_flags & IBV_SEND_SIGNALED))
		return;
	d->nwcs++;
	e->wc = (struct ibv_wc){.wr_id = wr->wr_id, .opcode = opcode, .byte_len = len};
	e->num_sge = len ? wr->num_sge : 0;
	for (int i = 0; i < e->num_sge; i++)
		e->sge[i] = wr->sg_list[i];
}

static void model_message(struct side *d, const struct ibv_send_wr *wr, const uint8_t *data, uint32_t len,
			  bool imm_write)
{
	struct message *msg = &d->msgs[d->nmsgs++];

	msg->imm_write = imm_write;
	msg->len = len;
	msg->imm = wr->imm_data;
	msg->flags = wr->opcode == IBV_WR_SEND ? 0 : IBV_WC_WITH_IMM;
	msg->data = malloc(len + 1);
	memcpy(msg->data, data, len);
}

/* Of UC: a WRITE, which may arrive.  Even a quiet wire loses one whose immediate finds no receive. */
static void model_write(struct model *m, unsigned i, const struct ibv_send_wr *wr, uint32_t off, uint32_t len)
{
	struct side *d = &m->side[i], *peer = &m->side[!i];
	bool imm = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	struct write *w = &peer->writes[peer->nwrites];

	*w = (struct write){.off = off, .len = len, .data = malloc(len + 1), .certain = !imm && is_quiet(m)};
	gather(wr->sg_list, len ? wr->num_sge : 0, w->data);
	if (imm)
		d->msgs[d->nmsgs - 1].write = peer->nwrites;
	peer->nwrites++;
}

/* Carries a request out in the model, when it is posted: the order of execution is the order of posting. */
static void model_request(struct model *m, unsigned i, const struct ibv_send_wr *wr, uint32_t len)
{
	static uint8_t data[LENT_LEN];
	struct side *d = &m->side[i], *peer = &m->side[!i];
	uint32_t off = (uint32_t)(wr->wr.rdma.remote_addr - (uintptr_t)peer->target);
	uint64_t before, after;

	switch ((uint32_t)wr->opcode) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		gather(wr->sg_list, wr->num_sge, data);
		model_message(d, wr, data, len, false);
		expect_send(d, wr, IBV_WC_SEND, 0);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_WRITE:
		if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
			model_message(d, wr, data, len, true);
		if (is_uc(m))
			model_write(m, i, wr, off, len);
		else if (len)
			gather(wr->sg_list, wr->num_sge, peer->target_want + off);
		expect_send(d, wr, IBV_WC_RDMA_WRITE, 0);
		break;
	case IBV_WR_RDMA_READ:
		if (len)
			scatter(d, wr->sg_list, (uint32_t)wr->num_sge, peer->target_want + off, len);
		d->reads[d->nreads++] = (struct open_read){off, len};
		expect_send(d, wr, IBV_WC_RDMA_READ, len);
		break;
	case IBV_WR_ATOMIC_WRITE:
		memcpy(peer->target_want + off, &wr->wr.atomic.compare_add, 8);
		expect_send(d, wr, IBV_WC_ATOMIC_WRITE, 8);
		break;
	case VB_WR_FLUSH:
		expect_send(d, wr, (enum ibv_wc_opcode)VB_WC_FLUSH, 0);
		break;
	default:
		memcpy(&before, peer->target_want + off, 8);
		after = before + wr->wr.atomic.compare_add;
		if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
			after = before == wr->wr.atomic.compare_add ? wr->wr.atomic.swap : before;
		memcpy(peer->target_want + off, &after, 8);
		scatter(d, wr->sg_list, (uint32_t)wr->num_sge, (uint8_t *)&before, 8);
		expect_send(d, wr,
			    wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? IBV_WC_COMP_SWAP : IBV_WC_FETCH_ADD, 8);
	}
}

static void pick_atomic(struct model *m, unsigned i, struct ibv_send_wr *wr)
{
	struct side *peer = &m->side[!i];
	uint64_t now;
	uint32_t off = sim_below(m->s, TARGET / 8) * 8;

	memcpy(&now, peer->target_want + off, 8);
	wr->wr.atomic.remote_addr = (uintptr_t)peer->target + off;
	wr->wr.atomic.rkey = sim_rkey(peer->target_key);
	wr->wr.atomic.compare_add = sim_below(m->s, 2) ? now : sim_random(m->s);
	wr->wr.atomic.swap = sim_random(m->s);
}

/* Of some bytes behind the address, or of all the region. */
static void pick_flush(struct model *m, struct ibv_send_wr *wr)
{
	wr->wr.atomic.compare_add = sim_below(m->s, 9);
	wr->wr.atomic.swap = VB_FLUSH_GLOBAL | (uint64_t)sim_below(m->s, VB_FLUSH_LEVELS) << 8;
}

/* Posts one random request; false: the queue is full. */
static bool post_one(struct model *m, unsigned i)
{
	static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND,
						     IBV_WR_SEND_WITH_IMM,
						     IBV_WR_RDMA_WRITE,
						     IBV_WR_RDMA_WRITE_WITH_IMM,
						     IBV_WR_RDMA_READ,
						     IBV_WR_ATOMIC_CMP_AND_SWP,
						     IBV_WR_ATOMIC_FETCH_AND_ADD,
						     IBV_WR_RDMA_READ,
						     IBV_WR_ATOMIC_WRITE,
						     (enum ibv_wr_opcode)VB_WR_FLUSH};
	struct side *d = &m->side[i], *peer = &m->side[!i];
	uint32_t len = pick_length(m), off, before = d->sink_used;
	struct ibv_sge sge[4];
	struct ibv_send_wr wr = {.wr_id = d->next_wr, .sg_list = sge, .imm_data = (uint32_t)sim_random(m->s)};
	bool fetch, atomic, self;
	int err;

	wr.opcode = opcodes[sim_below(m->s, is_uc(m) ? 4 : 10)];
	self = vb_wr_is((uint8_t)wr.opcode, VB_WR_SELF);
	atomic = self || vb_wr_is((uint8_t)wr.opcode, VB_WR_ATOMIC);
	fetch = atomic || wr.opcode == IBV_WR_RDMA_READ;
	if (atomic)
		len = 8;
	else if (wr.opcode == IBV_WR_SEND && sim_below(m->s, 4) == 0)
		len = VB_LEND_FROM + sim_below(m->s, LENT_LEN - VB_LEND_FROM + 1);
	else if (!fetch && len <= m->s->cfg.inl && sim_below(m->s, 2))
		wr.send_flags |= IBV_SEND_INLINE;
	wr.num_sge = self ? 0 : cut(m, sge, len, fetch ? in_sink : in_source, i);
	if (atomic) {
		pick_atomic(m, i, &wr);
		if (wr.opcode == (enum ibv_wr_opcode)VB_WR_FLUSH)
			pick_flush(m, &wr);
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)peer->target + sim_below(m->s, TARGET - len + 1);
		wr.wr.rdma.rkey = sim_rkey(peer->target_key);
		if (!len && sim_below(m->s, 2)) /* rule 18 */
			wr.wr.rdma.rkey = 0xdeadbeef;
	}
	off = (uint32_t)(wr.wr.rdma.remote_addr - (uintptr_t)peer->target);
	if (sim_below(m->s, 3) || d->posted == m->ops - 1)
		wr.send_flags |= IBV_SEND_SIGNALED;
	if (sim_below(m->s, 4) == 0)
		wr.send_flags |= IBV_SEND_SOLICITED;
	if (sim_below(m->s, 8) == 0 || (wr.opcode != IBV_WR_RDMA_READ && wr.opcode != IBV_WR_SEND &&
					wr.opcode != IBV_WR_SEND_WITH_IMM && touches_open_read(d, off, len)))
		wr.send_flags |= IBV_SEND_FENCE;
	/* enough signalled ones that the queue cannot fill up with others */
	if (d->posted % 4 == 3)
		wr.send_flags |= IBV_SEND_SIGNALED;
	err = sim_send(m->s, i, &wr);
	if (err) {
		assert_int_equal(err, ENOMEM);
		d->sink_used = before;
		return false;
	}
	if (wr.send_flags & IBV_SEND_FENCE)
		d->nreads = 0;
	model_request(m, i, &wr, len);
	d->next_wr++;
	d->posted++;
	return true;
}

/* Posts a receive for the next message that lacks one, if the sender has decided what it is. */
static void post_recv(struct model *m, unsigned i)
{
	struct side *d = &m->side[i], *peer = &m->side[!i];
	struct recv_wqe *r = &d->recvs[d->nrecvs];
	const struct message *msg;
	uint32_t room;

	if (d->gone || d->nrecvs >= peer->nmsgs)
		return;
	msg = &peer->msgs[d->nrecvs];
	room = msg->imm_write ? sim_below(m->s, 32) : msg->len + sim_below(m->s, 3) * 16;
	if (is_uc(m)) /* it may be another's, for which it may be too small */
		room = sim_below(m->s, 4) ? MAX_LEN : sim_below(m->s, MAX_LEN);
	r->wr_id = RECV_WR + d->nrecvs;
	r->num_sge = (uint32_t)cut(m, r->sge, room, in_sink, i);
	assert_int_equal(sim_recv(m->s, i, r->wr_id, r->sge, (int)r->num_sge), 0);
	d->nrecvs++;
}

/* How many requests a side posts: a target of XRC posts none. */
static uint32_t ops_of(const struct model *m, unsigned i)
{
	return m->s->cfg.xrc && i == 1 ? 0 : m->ops;
}

static void bytes_are_there(const struct side *d, const struct ibv_sge *sge, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++) {
		uint32_t at = (uint32_t)(sge[k].addr - (uintptr_t)d->sink);

		assert_memory_equal(d->sink + at, d->sink_want + at, sge[k].length);
	}
}

static void check_message(struct model *m, unsigned i, const struct ibv_wc *wc, const struct recv_wqe *r)
{
	struct side *d = &m->side[i], *peer = &m->side[!i];
	const struct message *msg = &peer->msgs[peer->received++];

	assert_true(peer->received <= peer->nmsgs && d->recvs_used <= d->nrecvs);
	assert_int_equal(wc->status, IBV_WC_SUCCESS);
	assert_int_equal(wc->wr_id, r->wr_id);
	assert_int_equal(wc->qp_num, m->s->n[i].qp.qpn);
	assert_int_equal(wc->opcode, msg->imm_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
	assert_int_equal(wc->byte_len, msg->len); /* rule 25 */
	assert_int_equal(wc->wc_flags, msg->flags);
	if (msg->flags & IBV_WC_WITH_IMM)
		assert_int_equal(wc->imm_data, msg->imm);
	if (!msg->imm_write)
		scatter(d, r->sge, r->num_sge, msg->data, msg->len);
	bytes_are_there(d, r->sge, r->num_sge);
}

/* Whether a receive has got that message. */
static bool is_message(const struct ibv_wc *wc, const struct recv_wqe *r, const struct message *msg)
{
	uint32_t left = msg->len, n;
	const uint8_t *data = msg->data;

	if (wc->opcode != (msg->imm_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV) ||
	    wc->byte_len != msg->len || wc->wc_flags != msg->flags ||
	    ((msg->flags & IBV_WC_WITH_IMM) && wc->imm_data != msg->imm))
		return false;
	for (uint32_t k = 0; k < r->num_sge && left && !msg->imm_write; k++) {
		n = r->sge[k].length < left ? r->sge[k].length : left;
		if (memcmp((void *)(uintptr_t)r->sge[k].addr, data, n))
			return false;
		data += n;
		left -= n;
	}
	return !left || msg->imm_write;
}

/* What a receive's memory holds behind its message, or while it waits for one: it may be of messages that
 * broke off. */
static void take_as_it_is(struct side *d, const struct recv_wqe *r)
{
	for (uint32_t k = 0; k < r->num_sge; k++)
		memcpy(d->sink_want + (r->sge[k].addr - (uintptr_t)d->sink),
		       (void *)(uintptr_t)r->sge[k].addr, r->sge[k].length);
}

/* Of UC: some message that was sent, and behind those that came before. */
static void check_arrival(struct model *m, unsigned i, const struct ibv_wc *wc, const struct recv_wqe *r)
{
	struct side *d = &m->side[i], *peer = &m->side[!i];
	unsigned k = in_order(m) ? peer->received : 0;

	assert_true(d->recvs_used <= d->nrecvs);
	assert_int_equal(wc->status, IBV_WC_SUCCESS);
	assert_int_equal(wc->wr_id, r->wr_id);
	assert_int_equal(wc->qp_num, m->s->n[i].qp.qpn);
	while (k < peer->nmsgs && !is_message(wc, r, &peer->msgs[k]))
		k++;
	if (k == peer->nmsgs)
		fail_msg("%u bytes came that nobody sent, or not so late", wc->byte_len);
	d->arrived++;
	peer->received = k + 1;
	if (peer->msgs[k].imm_write && in_order(m))
		d->writes[peer->msgs[k].write].certain = true;
	take_as_it_is(d, r);
}

/* A byte of the target is as the last of the writes to it that is certain has left it, or one behind. */
static void check_byte(const struct side *d, uint32_t at, bool certain)
{
	for (unsigned k = d->nwrites; k--;) {
		const struct write *w = &d->writes[k];

		if (at - w->off >= w->len)
			continue;
		if (d->target[at] == w->data[at - w->off])
			return;
		if (w->certain && certain)
			fail_msg("byte %u of the target is not what write %u, or one behind it, put there",
				 at, k);
	}
	assert_int_equal(d->target[at], d->target_want[at]); /* as it began */
}

/* Of UC, at the end: nothing is missing but what was counted, or the wire lost. */
static void check_losses(struct model *m, unsigned i)
{
	struct side *d = &m->side[i], *peer = &m->side[!i];
	const struct vb_drops *drops = &m->s->n[i].drops;

	/* where nobody was found, since somebody else's process had the number and its end was not noticed
	 * yet */
	uint64_t nobody = atomic_load(&m->s->n[!i].drops.count[VB_R_DROP_NOBODY]);
	uint64_t here =
	    atomic_load(&drops->count[VB_R_DROP_NO_RECV]) + atomic_load(&drops->count[VB_R_RECV_TOO_SMALL]);

	for (uint32_t at = 0; at < TARGET; at++)
		check_byte(d, at, !nobody);
	if (d->recvs_used < d->nrecvs)
		take_as_it_is(d, &d->recvs[d->recvs_used]);
	assert_memory_equal(d->sink, d->sink_want, SINK);
	assert_int_equal(atomic_load(&drops->count[VB_R_BAD_SEQUENCE]), 0); /* nobody sends such messages */
	if (is_quiet(m))
		assert_in_range(peer->nmsgs - d->arrived, here, here + nobody);
}

static void check_recv(struct model *m, unsigned i, const struct ibv_wc *wc)
{
	struct side *d = &m->side[i];
	const struct recv_wqe *r = &d->recvs[d->recvs_used++];

	if (is_uc(m)) {
		check_arrival(m, i, wc, r);
		return;
	}

	if (d->may_fail && wc->status == IBV_WC_WR_FLUSH_ERR) {
		assert_true(d->recvs_used <= d->nrecvs);
		assert_int_equal(wc->wr_id, r->wr_id);
		return;
	}
	check_message(m, i, wc, r);
}

/* One fails, or is flushed, with everything before it done, and then all that were posted behind it are. */
static void check_failed(struct side *d, const struct ibv_wc *wc)
{
	if (!d->failed) {
		uint64_t done = d->wcs_seen ? d->wcs[d->wcs_seen - 1].wc.wr_id + 1 : 0;

		assert_true(wc->wr_id >= done && wc->wr_id < d->posted);
		/* those that are passed over ask for no completion */
		assert_true(d->wcs_seen == d->nwcs || wc->wr_id <= d->wcs[d->wcs_seen].wc.wr_id);
	} else {
		assert_int_equal(wc->wr_id, d->next_flushed);
		assert_int_equal(wc->status, IBV_WC_WR_FLUSH_ERR);
	}
	d->failed = true;
	d->next_flushed = (unsigned)wc->wr_id + 1;
}

static void check_send(struct model *m, unsigned i, const struct ibv_wc *wc)
{
	struct side *d = &m->side[i];
	const struct expected_wc *e = &d->wcs[d->wcs_seen];
	const struct ibv_wc *want = &e->wc;

	if (d->may_fail && !is_uc(m) && wc->status != IBV_WC_SUCCESS) {
		check_failed(d, wc);
		return;
	}
	assert_true(d->wcs_seen++ < d->nwcs);
	if (wc->status != IBV_WC_SUCCESS || d->failed)
		fail_msg("wr_id %lu ended with status %d", (unsigned long)wc->wr_id, wc->status);
	assert_int_equal(wc->wr_id, want->wr_id); /* in order, none lost, none twice */
	assert_int_equal(wc->opcode, want->opcode);
	assert_int_equal(wc->qp_num, m->s->n[i].qp.qpn);
	if (want->byte_len)
		assert_int_equal(wc->byte_len, want->byte_len);
	bytes_are_there(d, e->sge, (uint32_t)e->num_sge);
}

static void poll_side(struct model *m, unsigned i)
{
	struct ibv_wc wc;

	if (m->side[i].gone)
		return;
	for (unsigned send = 0; send < 2; send++)
		while (sim_poll(m->s, i, send, &wc)) { /* both may be one CQ */
			if (wc.wr_id >= RECV_WR)
				check_recv(m, i, &wc);
			else
				check_send(m, i, &wc);
		}
}

struct sim_cfg model_cfg(uint64_t seed)
{
	static const uint32_t mtus[] = {256, 512, 1024, 2048, 4096, 256, 1024, 16384};
	struct sim dice = {.rng = seed * 77 + 5};
	struct sim_cfg c = {SIM_DEFAULTS};

	c.seed = seed;
	c.mtu = mtus[sim_below(&dice, 8)];
	c.local = sim_below(&dice, 2);
	c.srq = sim_below(&dice, 3) == 0;
	c.one_cq = sim_below(&dice, 3) == 0;
	c.lossless = sim_below(&dice, 5) == 0;
	c.lazy_acks = sim_below(&dice, 2);
	c.send_wr = 4 + sim_below(&dice, 60);
	c.recv_wr = OPS;
	c.cqe = 1024;
	c.inl = 64;
	c.access |= VB_ACCESS_FLUSH_GLOBAL;
	c.rd_atomic = (uint8_t)(1 + sim_below(&dice, 16));
	c.dest_rd_atomic = (uint8_t)(c.rd_atomic + sim_below(&dice, 3));
	c.retry_cnt = 7;
	c.timeout = (uint8_t)(4 + sim_below(&dice, 4));
	c.min_rnr = (uint8_t)(1 + sim_below(&dice, 8));
	c.room = 8 + sim_below(&dice, 56);
	/* close to the wrap, so that PSNs go through it (rule 12) */
	c.psn[0] = sim_below(&dice, 2) ? 0xffffff - sim_below(&dice, 100) : sim_below(&dice, 1 << 24);
	c.psn[1] = sim_below(&dice, 2) ? 0x7fffff - sim_below(&dice, 100) : sim_below(&dice, 1 << 24);
	if (!c.lossless) {
		c.loss = sim_below(&dice, 4) ? sim_below(&dice, 50) : 0;
		c.dup = sim_below(&dice, 2) ? sim_below(&dice, 50) : 0;
		c.late = sim_below(&dice, 2) ? sim_below(&dice, 50) : 0;
	}
	/* contact, at each end when it comes, within what the retries allow */
	for (int i = 0; i < 2; i++)
		if (sim_below(&dice, 2))
			c.path_at[i] = 1 + sim_below(&dice, 2u * 4096 << c.timeout);
	c.placing = sim_below(&dice, 2);
	c.carried = sim_below(&dice, 2);
	c.brief = sim_below(&dice, 4) ? VB_OUT_BRIEF : 0;
	return c;
}

void model_init(struct model *m, struct sim *s, uint32_t ops)
{
	*m = (struct model){.s = s, .sge_max = s->cfg.sge, .ops = ops};
	assert_true(ops <= OPS);
	side_new(m, 0);
	side_new(m, 1);
}

void model_fini(struct model *m)
{
	side_free(&m->side[0]);
	side_free(&m->side[1]);
}

void model_deny(struct model *m, unsigned i)
{
	struct vb_qp *qp = &m->s->n[i].qp;

	vb_lock_take(&qp->lock);
	qp->path.mem = NULL;
	vb_lock_give(&qp->lock);
}

bool model_act(struct model *m)
{
	unsigned i = sim_below(m->s, 2), burst = sim_below(m->s, 6);
	bool acted = false;

	while (burst-- && !m->side[i].gone && m->side[i].posted < ops_of(m, i) && post_one(m, i))
		acted = true;
	if (sim_below(m->s, 3) == 0) /* late now and then: RNR */
		for (unsigned k = sim_below(m->s, 8); k; k--)
			post_recv(m, sim_below(m->s, 2));
	return acted;
}

void model_poll(struct model *m)
{
	poll_side(m, 0);
	poll_side(m, 1);
}

/* A program whose peer may be gone waits for what it has posted, and leaves it at that. */
static bool finished(const struct model *m, const struct side *d)
{
	if (d->gone)
		return true;
	if (d->may_fail)
		return d->failed ? d->next_flushed == d->posted : d->wcs_seen == d->nwcs;
	return d->posted == ops_of(m, (unsigned)(d - m->side)) && d->wcs_seen == d->nwcs &&
	       (is_uc(m) || d->received == d->nmsgs);
}

bool model_finished(const struct model *m)
{
	return finished(m, &m->side[0]) && finished(m, &m->side[1]);
}

void model_check_end(struct model *m)
{
	for (unsigned i = 0; i < 2; i++) {
		struct side *d = &m->side[i];

		assert_true(finished(m, d));
		if (d->target_left)
			assert_memory_equal(d->target, d->target_left, TARGET);
		if (d->gone || d->may_fail)
			continue;
		if (is_uc(m)) {
			check_losses(m, i);
		} else {
			assert_memory_equal(d->target, d->target_want, TARGET);
			assert_memory_equal(d->sink, d->sink_want, SINK);
		}
		assert_int_equal(m->s->n[i].qp.state, IBV_QPS_RTS);
		assert_int_equal(m->s->n[i].qp.req.reads, 0);
		assert_int_equal(sim_event(m->s, i), -1);
	}
}

void model_say(const struct model *m, char *buf, size_t size)
{
	const struct side *a = &m->side[0], *b = &m->side[1];

	snprintf(buf, size, "sent %u/%u completions, %u/%u; received %u/%u, %u/%u", a->wcs_seen, a->nwcs,
		 b->wcs_seen, b->nwcs, a->received, a->nmsgs, b->received, b->nmsgs);
}

void model_may_fail(struct model *m, unsigned i)
{
	m->side[i].may_fail = true;
}

void model_gone(struct model *m, unsigned i)
{
	m->side[i].gone = true;
	model_may_fail(m, !i);
}

void model_left(struct model *m, unsigned i)
{
	struct side *d = &m->side[i];

	model_gone(m, i);
	d->target_left = malloc(TARGET);
	memcpy(d->target_left, d->target, TARGET);
}
