/* Reading what queue pairs show and count.  The process goes on meanwhile: a row may be a moment older than
 * the next one, and a queue pair that was destroyed meanwhile has no row. */
#include "counts.h"

#include <infiniband/verbs.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "host/segment.h"
#include "iba/pkt.h"

static const struct vb_seg_head *head(const struct peek *p, unsigned device)
{
	return (const void *)p->all[device];
}

static const struct vb_shown_qp *shown(const struct peek *p, unsigned device)
{
	return (const void *)(p->all[device] + VB_SEG_QPS);
}

static const struct vb_traffic *traffic(const struct peek *p, unsigned device)
{
	return (const void *)(p->all[device] + VB_SEG_TRAFFIC);
}

/* Numbers of the adapter. */
static uint32_t numbers_of(const struct vb_seg_head *h)
{
	uint32_t n = atomic_load_explicit(&h->nnumbers, memory_order_acquire);

	return n < VB_ADAPTER_NUMBERS ? n : VB_ADAPTER_NUMBERS;
}

const char *vb_counts_state(uint32_t state)
{
	static const char *const names[VB_QP_STATES] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};

	return state < VB_QP_STATES ? names[state] : "?";
}

const char *vb_counts_type(uint32_t type)
{
	switch (type) {
	case IBV_QPT_RC:
		return "RC";
	case IBV_QPT_UC:
		return "UC";
	case IBV_QPT_UD:
		return "UD";
	case IBV_QPT_XRC_SEND:
		return "XRC_SEND";
	case IBV_QPT_XRC_RECV:
		return "XRC_RECV";
	default:
		return "?";
	}
}

const char *vb_counts_device_name(char *buf, size_t size, const struct peek *p, unsigned device)
{
	snprintf(buf, size, "%.*s", (int)sizeof head(p, device)->name, head(p, device)->name);
	vb_peek_clean(buf);
	return buf;
}

/* Looking at a page of the table that was never written would make the process own it. */
static bool is_there(const void *at)
{
	unsigned char there = 1;

	return mincore((void *)((uintptr_t)at & ~(uintptr_t)(VB_PAGE - 1)), 1, &there) || there & 1;
}

static bool read_row(struct vb_qp_row *r, const struct vb_shown_qp *q, const struct vb_traffic *t)
{
	uint32_t state = atomic_load_explicit(&q->state, memory_order_acquire), received;

	if (!state || state > VB_QP_STATES)
		return false;
	r->state = state - 1;
	r->dest_qpn = atomic_load_explicit(&q->dest_qpn, memory_order_relaxed);
	r->srq = atomic_load_explicit(&q->srq, memory_order_relaxed);
	r->type = atomic_load_explicit(&q->type, memory_order_relaxed);
	received = atomic_load_explicit(&q->received, memory_order_relaxed);
	r->receives = received & VB_SHOWN_RECEIVED;
	r->expected = received & VB_PSN_MASK;
	memcpy(&r->traffic, t, sizeof r->traffic);
	return true;
}

static bool has_room(struct vb_qp_row **rows, size_t n)
{
	struct vb_qp_row *more;

	if (n & (n - 1)) /* not full: they double from 1 on */
		return true;
	more = reallocarray(*rows, n ? 2 * n : 1, sizeof **rows);
	if (!more)
		return false;
	*rows = more;
	return true;
}

static bool read_device(const struct peek *p, unsigned device, struct vb_qp_row **rows, size_t *n)
{
	const struct vb_seg_head *h = head(p, device);
	uint32_t numbers = numbers_of(h), qpn;

	for (uint32_t i = 0; i < numbers * VB_QPN_INDICES; i++) {
		const struct vb_shown_qp *q = &shown(p, device)[i];

		if (i % (VB_PAGE / sizeof *q) == 0 && !is_there(q)) {
			i += VB_PAGE / sizeof *q - 1;
			continue;
		}
		qpn = h->numbers[i / VB_QPN_INDICES] << VB_QPN_INDEX_BITS | i % VB_QPN_INDICES;
		if (!atomic_load_explicit(&q->state, memory_order_relaxed) ||
		    qpn == atomic_load_explicit(&h->gsi, memory_order_relaxed)) /* QP1 is not the program's */
			continue;
		if (!has_room(rows, *n))
			return false;
		(*rows)[*n] = (struct vb_qp_row){.device = device, .qpn = qpn};
		*n += read_row(&(*rows)[*n], q, &traffic(p, device)[i]);
	}
	return true;
}

struct vb_qp_row *vb_counts_qps(const struct peek *p, size_t *n)
{
	struct vb_qp_row *rows = NULL;

	*n = 0;
	for (unsigned d = 0; d < p->n; d++) {
		if (read_device(p, d, &rows, n))
			continue;
		free(rows);
		*n = 1;
		return NULL;
	}
	if (!*n) {
		free(rows);
		rows = NULL;
	}
	return rows;
}

/* The far end is connected back, so it is not one of another host whose number is the same. */
static bool is_far_end(struct vb_qp_row *r, const struct peek *q, unsigned device)
{
	const struct vb_seg_head *h = head(q, device);

	for (uint32_t k = 0; k < numbers_of(h); k++) {
		uint32_t i = k * VB_QPN_INDICES + r->dest_qpn % VB_QPN_INDICES;
		const struct vb_shown_qp *s = &shown(q, device)[i];

		if (h->numbers[k] != r->dest_qpn >> VB_QPN_INDEX_BITS || !is_there(s) ||
		    !atomic_load_explicit(&s->state, memory_order_acquire) ||
		    atomic_load_explicit(&s->dest_qpn, memory_order_relaxed) != r->qpn)
			continue;
		memcpy(&r->peer_traffic, &traffic(q, device)[i], sizeof r->peer_traffic);
		return true;
	}
	return false;
}

void vb_counts_meet(const struct peek *p, struct vb_qp_row *rows, size_t n, const struct peek *all,
		    size_t nall)
{
	for (size_t i = 0; i < n; i++) {
		struct vb_qp_row *r = &rows[i];

		for (size_t k = 0; k < nall && r->dest_qpn && !r->peer; k++) {
			for (unsigned d = 0; d < all[k].n && !r->peer; d++) {
				if (all[k].network != p->network || !is_far_end(r, &all[k], d))
					continue;
				r->peer = all[k].pid;
				memcpy(r->peer_program, all[k].program, sizeof r->peer_program);
			}
		}
	}
}

static const struct vb_traffic_past *past_of(const struct peek *p, unsigned device)
{
	return (const void *)(p->all[device] + VB_SEG_PAST);
}

/* Of queue pairs that have been destroyed. */
static void read_past(const struct peek *p, unsigned device, struct vb_traffic *t)
{
	const struct vb_traffic_past *past = past_of(p, device);
	const uint64_t *from = (const void *)&past->all;
	uint64_t *to = (void *)t;
	uint32_t seq;

	for (int tries = 0; tries < 100; tries++) {
		seq = atomic_load_explicit(&past->seq, memory_order_acquire);
		for (size_t i = 0; i < sizeof *t / sizeof *to; i++)
			to[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE); /* so `seq` is read behind it */
		if (!(seq & 1) && atomic_load_explicit(&past->seq, memory_order_relaxed) == seq)
			return;
	}
}

static bool is_connected(const struct vb_qp_row *r)
{
	return r->dest_qpn && r->state >= IBV_QPS_RTR && r->state <= IBV_QPS_SQE && r->type != IBV_QPT_UD;
}

/* The number of adapters at other ends, of rows of one device. */
static uint32_t count_peers(const struct vb_qp_row *rows, size_t n)
{
	uint64_t met[VB_ADAPTERS / 64] = {0};
	uint32_t peers = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t number = rows[i].dest_qpn >> VB_QPN_INDEX_BITS & (VB_ADAPTERS - 1);
		uint64_t bit = 1ull << number % 64;

		if (!is_connected(&rows[i]) || met[number / 64] & bit)
			continue;
		met[number / 64] |= bit;
		peers++;
	}
	return peers;
}

bool vb_counts_device(const struct peek *p, unsigned device, struct vb_counts *c)
{
	struct vb_qp_row *rows = NULL;
	size_t n = 0;
	bool good = read_device(p, device, &rows, &n);

	*c = (struct vb_counts){.qps = atomic_load_explicit(&head(p, device)->qps, memory_order_relaxed)};
	read_past(p, device, &c->traffic);
	c->traffic.count[VB_TRAFFIC_WRONG_ICRC] =
	    atomic_load_explicit(&past_of(p, device)->wrong_icrcs, memory_order_relaxed);
	for (size_t i = 0; i < n; i++) {
		c->state[rows[i].state]++;
		vb_traffic_add(&c->traffic, &rows[i].traffic);
	}
	c->peers = count_peers(rows, n);
	free(rows);
	vb_mr_sum(p, device, &c->regions, &c->bytes);
	return good;
}

void vb_counts_add(struct vb_counts *sum, const struct vb_counts *c)
{
	for (unsigned s = 0; s < VB_QP_STATES; s++)
		sum->state[s] += c->state[s];
	sum->qps += c->qps;
	sum->peers += c->peers;
	sum->regions += c->regions;
	sum->bytes += c->bytes;
	vb_traffic_add(&sum->traffic, &c->traffic);
}

bool vb_counts_process(const struct peek *p, struct vb_counts *sum)
{
	struct vb_counts c;
	bool good = true;

	memset(sum, 0, sizeof *sum);
	for (unsigned d = 0; d < p->n; d++) {
		good = vb_counts_device(p, d, &c) && good;
		vb_counts_add(sum, &c);
	}
	return good;
}

static void add_number(json_object *o, const char *name, uint64_t v)
{
	json_object_object_add(o, name, json_object_new_uint64(v));
}

void vb_counts_traffic_json(json_object *o, const struct vb_traffic *t)
{
	add_number(o, "messages_sent", t->sent);
	add_number(o, "bytes_sent", t->sent_bytes);
	add_number(o, "messages_received", t->received);
	add_number(o, "bytes_received", t->received_bytes);
	for (unsigned i = 0; i < VB_TRAFFIC_COUNTS; i++)
		add_number(o, vb_traffic_rows[i].name, t->count[i]);
}

void vb_counts_json(json_object *o, const struct vb_counts *c)
{
	json_object *states = json_object_new_object();

	add_number(o, "queue_pairs", c->qps);
	for (unsigned s = 0; s < VB_QP_STATES; s++)
		if (c->state[s])
			add_number(states, vb_counts_state(s), c->state[s]);
	json_object_object_add(o, "queue_pairs_by_state", states);
	add_number(o, "regions", c->regions);
	add_number(o, "region_bytes", c->bytes);
	add_number(o, "peers", c->peers);
	vb_counts_traffic_json(o, &c->traffic);
}
