#include "cm_net.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cm/conn.h"

struct net_item {
	uint64_t when, order;
	struct net_item *next; /* of those that are held */
	void (*fn)(void *arg);
	void *arg;
	/* fn is NULL: a MAD */
	struct net_node *to;
	struct vb_cm_av from;
	uint8_t mad[VB_MAD_LEN];
};

uint64_t net_random(struct net *n)
{
	n->chance ^= n->chance << 13;
	n->chance ^= n->chance >> 7;
	n->chance ^= n->chance << 17;
	return n->chance;
}

uint32_t net_pick(struct net *n, uint32_t below)
{
	return (uint32_t)((net_random(n) >> 16) % below);
}

static void trace(struct net *n, const char *format, ...)
{
	va_list args;
	int len;

	if (n->traced >= sizeof(n->trace))
		return;
	va_start(args, format);
	len = vsnprintf(n->trace + n->traced, sizeof(n->trace) - n->traced, format, args);
	va_end(args);
	if (getenv("VB_SIM_TRACE"))
		print_message("%12.3f ms %s\n", (double)n->now / 1e6, n->trace + n->traced);
	n->traced += (size_t)len;
	if (getenv("VB_SIM_TRACE"))
		n->traced = 0;
}

static bool sooner(const struct net_item *a, const struct net_item *b)
{
	return a->when != b->when ? a->when < b->when : a->order < b->order;
}

static void push(struct net *n, struct net_item *item)
{
	size_t at = n->count++;

	if (n->count > n->room) {
		n->room = n->room ? 2 * n->room : 64;
		n->items = realloc(n->items, n->room * sizeof(*n->items));
		assert_non_null(n->items);
	}
	item->order = n->order++;
	for (; at && sooner(item, n->items[(at - 1) / 2]); at = (at - 1) / 2)
		n->items[at] = n->items[(at - 1) / 2];
	n->items[at] = item;
}

static struct net_item *pop(struct net *n)
{
	struct net_item *first = n->items[0], *last = n->items[--n->count];
	size_t at = 0, child;

	while ((child = 2 * at + 1) < n->count) {
		if (child + 1 < n->count && sooner(n->items[child + 1], n->items[child]))
			child++;
		if (!sooner(n->items[child], last))
			break;
		n->items[at] = n->items[child];
		at = child;
	}
	n->items[at] = last;
	return first;
}

void net_at(struct net *n, uint64_t when, void (*fn)(void *arg), void *arg)
{
	struct net_item *item = calloc(1, sizeof(*item));

	assert_non_null(item);
	item->when = when;
	item->fn = fn;
	item->arg = arg;
	push(n, item);
}

void net_release(struct net *n)
{
	struct net_item *item;

	while ((item = n->held)) {
		n->held = item->next;
		item->when = n->now;
		push(n, item);
	}
}

/* What stands in the trace of a message. */
static const char *text_of(const struct vb_cm_msg *m, char buf[64])
{
	char kind[32];
	const char *name = vb_cm_kind_name(m->kind, kind);

	switch (m->kind) {
	case VB_CM_MRA:
		snprintf(buf, 64, "%s/%u", name, m->mra.about);
		break;
	case VB_CM_REJ:
		snprintf(buf, 64, "%s%u/%u%s", name, m->rej.reason, m->rej.about,
			 m->rej.local_comm_id ? "" : "-");
		break;
	case VB_CM_SIDR_REP:
		snprintf(buf, 64, "%s%u", name, m->sidr_rep.status);
		break;
	case VB_CM_APR:
		snprintf(buf, 64, "%s%u", name, m->apr.status);
		break;
	default:
		snprintf(buf, 64, "%s", name);
		break;
	}
	return buf;
}

static void carry(struct net *n, struct net_node *to, const struct vb_cm_av *from, const uint8_t *mad,
		  bool held)
{
	struct net_item *item = calloc(1, sizeof(*item));

	assert_non_null(item);
	item->when = n->now + n->cfg.delay + (n->cfg.jitter ? net_random(n) % n->cfg.jitter : 0);
	item->to = to;
	item->from = *from;
	memcpy(item->mad, mad, VB_MAD_LEN);
	if (held) {
		item->next = n->held;
		n->held = item;
	} else {
		push(n, item);
	}
}

/* Whom a MAD to that port reaches: by the adapter's number, else who listens, else all. */
static void route(struct net_node *from, const struct vb_cm_av *av, uint32_t number,
		  const struct vb_cm_msg *m, const uint8_t *mad, enum net_verdict verdict)
{
	bool seeks = m->kind == VB_CM_REQ || m->kind == VB_CM_SIDR_REQ, found = false;
	struct net *n = from->net;
	struct vb_cm_av back = *av;

	memcpy(back.local_gid, av->remote_gid, 16);
	memcpy(back.remote_gid, av->local_gid, 16);
	back.whom = vb_whom_at(from->number);
	for (int pass = 0; pass < 2 && !found;
	     pass++) { /* where nobody listens anybody of the port says so */
		for (unsigned i = 0; i < NET_NODES; i++) {
			struct net_node *to = &n->nodes[i];

			if (!to->cm || memcmp(to->gid, av->remote_gid, 16))
				continue;
			if (number ? number != to->number : seeks && (found || (!pass && !to->listener)))
				continue;
			found = true;
			carry(n, to, &back, mad, verdict == NET_HOLD);
			if (verdict == NET_TWICE)
				carry(n, to, &back, mad, false);
		}
	}
}

/* Whose comm ID is said there.  Later messages, and answers to what leads to nobody, do not tell more. */
static void show(struct net_node *node, const struct vb_cm_msg *m)
{
	bool tells = m->kind == VB_CM_REQ || m->kind == VB_CM_MRA || m->kind == VB_CM_REP;
	uint32_t id = tells ? m->rtu.local_comm_id : 0; /* it is the first field of all */

	for (struct net_end *e = node->net->ends; e && !node->net->crowd; e = e->next)
		if (e->node == node && e->life == node->life && e->comm_id == id)
			e->shown = true;
}

static void send(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_whom *to,
		 const struct vb_cm_msg *m, const uint8_t mad[VB_MAD_LEN])
{
	struct net_node *node = vb_cm_user(cm);
	struct net *n = node->net;
	enum net_verdict verdict = NET_PASS;
	struct vb_cm_msg again;
	char text[64];

	if (node->dead)
		return;
	assert_int_equal(vb_cm_msg_get(mad, &again), 0);
	assert_int_equal(again.kind, m->kind);
	if (to->kind != VB_WHOM_ADDRESS)
		assert_int_equal(to->number, vb_cm_msg_number(&again));
	n->to = *to;
	trace(n, "%s%u>%s", n->traced ? " " : "", node->index, text_of(m, text));
	show(node, m);
	n->sent++;
	memcpy(n->sample, mad, VB_MAD_LEN);
	if (n->filter)
		verdict = n->filter(n, node->index, m);
	if (verdict == NET_PASS && net_pick(n, 1000) < n->cfg.lost)
		verdict = NET_LOSE;
	if (verdict == NET_PASS && net_pick(n, 1000) < n->cfg.twice)
		verdict = NET_TWICE;
	if (verdict == NET_LOSE) {
		n->lost++;
		return;
	}
	route(node, av, to->number, m, mad, verdict);
}

static uint32_t serial_of(const struct vb_cm_msg *m)
{
	uint32_t serial;

	assert_true(m->private_data.len >= sizeof(serial));
	memcpy(&serial, m->private_data.at, sizeof(serial));
	return le32toh(serial);
}

/* Whether an end's numbers must not be given to another. */
static bool holds(const struct net_end *e, const struct net_node *node)
{
	return e->node == node && e->life == node->life && (e->conn || e->until > node->net->now);
}

static struct net_end *new_end(struct net_node *node, struct vb_cm_conn *conn)
{
	struct net_end *e = calloc(1, sizeof(*e));

	assert_non_null(e);
	for (const struct net_end *x = node->net->ends; x && !node->net->crowd; x = x->next)
		assert_false(holds(x, node) && x->comm_id == conn->local_comm_id);
	e->node = node;
	e->life = node->life;
	e->conn = conn;
	e->serial = ++node->net->serials;
	e->comm_id = conn->local_comm_id;
	e->next = node->net->ends;
	node->net->ends = e;
	conn->user = e;
	assert_int_equal(VB_CM_NUMBER(e->comm_id), node->number);
	return e;
}

#define BIT(e) (1u << VB_CM_EV_##e)
#define DONE   (BIT(TIMEWAIT_OVER) | BIT(UNREACHED) | BIT(SIDR_REP))

/* The documented order: what must have come before each event, what must not, and the state in which it finds
 * the connection (VB_CM_STATES: any). */
static const struct {
	const char *name;
	unsigned not_after;
	unsigned states; /* bit s */
} order[] = {
#define IN(s) (1u << VB_CM_##s)
    [VB_CM_EV_REQ] = {"REQ", ~0u, IN(REQ_RCVD)},
    [VB_CM_EV_REP] = {"REP", ~0u, IN(REP_RCVD)},
    [VB_CM_EV_RTU] = {"RTU", ~BIT(REQ), IN(ESTABLISHED)},
    [VB_CM_EV_REJ] = {"REJ", DONE | BIT(REJ) | BIT(DREQ) | BIT(DREP), IN(IDLE) | IN(TIMEWAIT)},
    [VB_CM_EV_UNREACHED] = {"UNREACHED", ~BIT(REQ), IN(IDLE)},
    [VB_CM_EV_DREQ] = {"DREQ", DONE | BIT(REJ) | BIT(DREQ) | BIT(DREP), IN(DREQ_RCVD)},
    [VB_CM_EV_DREP] = {"DREP", DONE | BIT(REJ) | BIT(DREP), IN(TIMEWAIT)},
    [VB_CM_EV_TIMEWAIT_OVER] = {"TIMEWAIT_OVER", DONE, IN(IDLE)},
    [VB_CM_EV_SIDR_REQ] = {"SIDR_REQ", ~0u, IN(SIDR_REQ_RCVD)},
    [VB_CM_EV_SIDR_REP] = {"SIDR_REP", ~0u, IN(IDLE)},
};

static void check_event(struct net_end *e, const struct vb_cm_event *ev)
{
	bool has_msg = ev->what != VB_CM_EV_UNREACHED && ev->what != VB_CM_EV_TIMEWAIT_OVER && !ev->timed_out;

	assert_false(e->heard & order[ev->what].not_after);
	assert_true(order[ev->what].states >> e->conn->state & 1);
	assert_int_equal(ev->msg != NULL, has_msg);
	assert_int_equal(e->conn->local_comm_id, e->comm_id);
	if (ev->what == VB_CM_EV_REP)
		assert_true(e->active);
	if (ev->what == VB_CM_EV_RTU)
		assert_false(e->active || e->sure);
	if (ev->what == VB_CM_EV_DREP)
		assert_true(e->sure || e->heard & BIT(DREQ));
	if (ev->what == VB_CM_EV_DREQ && e->active)
		assert_true(e->sure);
	e->heard |= 1u << ev->what;
	if (e->conn->state == VB_CM_TIMEWAIT)
		e->timewait = e->node->net->now;
}

static void trace_event(const struct net_end *e, const struct vb_cm_event *ev)
{
	struct net *n = e->node->net;
	char kind[32];

	if (ev->what == VB_CM_EV_REJ)
		trace(n, " %u!REJ%u", e->node->index, ev->msg->rej.reason);
	else if (ev->what == VB_CM_EV_UNREACHED)
		trace(n, " %u!UNREACHED/%s", e->node->index, vb_cm_kind_name(ev->about, kind));
	else if (ev->what == VB_CM_EV_SIDR_REP)
		trace(n, " %u!SIDR_REP%u", e->node->index, ev->msg->sidr_rep.status);
	else
		trace(n, " %u!%s%s", e->node->index, order[ev->what].name, ev->timed_out ? "?" : "");
}

static bool event(struct vb_cm_conn *c, const struct vb_cm_event *ev)
{
	struct net_node *node = vb_cm_user(c->cm);
	bool fresh = ev->what == VB_CM_EV_REQ || ev->what == VB_CM_EV_SIDR_REQ, taken = true;
	struct net_end *e = fresh ? new_end(node, c) : c->user;

	assert_ptr_equal(e->conn, c);
	assert_int_equal(fresh, c->listener != NULL);
	check_event(e, ev);
	trace_event(e, ev);
	if (fresh) {
		e->sidr = ev->what == VB_CM_EV_SIDR_REQ;
		e->peer = serial_of(ev->msg);
		if (!e->sidr)
			e->wait = vb_cm_time(ev->msg->req.primary.local_ack_timeout);
		assert_ptr_equal(c->listener, node->listener);
	} else if (ev->what == VB_CM_EV_REP) {
		e->peer = serial_of(ev->msg);
	} else if (ev->what == VB_CM_EV_REJ) {
		e->reason = ev->msg->rej.reason;
	} else if (ev->what == VB_CM_EV_RTU) {
		e->sure = e->about = true;
	} else if (ev->what == VB_CM_EV_UNREACHED || ev->timed_out) {
		e->gave_up = true;
	}
	if (node->net->upper)
		taken = node->net->upper(e, ev);
	if (fresh && !taken && e->conn) { /* it goes without a word */
		e->conn = NULL;
		e->gave_up = true;
	}
	return taken;
}

static struct vb_cm_conn *listener(struct vb_cm *cm, const struct vb_cm_msg *m, const struct vb_cm_av *av)
{
	struct net_node *node = vb_cm_user(cm);

	assert_memory_equal(av->local_gid, node->gid, 16);
	if ((m->kind == VB_CM_REQ ? m->req.service_id : m->sidr_req.service_id) != NET_SERVICE)
		return NULL;
	return node->listener;
}

static uint32_t chance(struct vb_cm *cm)
{
	return (uint32_t)net_random(((struct net_node *)vb_cm_user(cm))->net);
}

static const struct vb_cm_ops ops = {.send = send, .event = event, .listener = listener, .chance = chance};

static void start(struct net_node *node)
{
	node->dead = false;
	node->life++;
	assert_int_equal(vb_cm_open(&node->cm, &ops, node, &node->net->lock, node->number, node->guid), 0);
}

struct net *net_new(const struct net_cfg *cfg)
{
	struct net *n = calloc(1, sizeof(*n)); /* net_free() */

	assert_non_null(n);
	n->cfg = *cfg;
	n->chance = cfg->seed * 0x9e3779b97f4a7c15ull + 88172645463325252ull;
	n->now = VB_SEC;
	vb_lock_take(&n->lock); /* net_free() */
	for (unsigned i = 0; i < NET_NODES; i++) {
		struct net_node *node = &n->nodes[i];
		unsigned host = cfg->one_host && i == 2 ? 1 : i;

		node->net = n;
		node->index = i;
		node->number = 0x100 + i;
		node->guid = 0x0002c90300000001ull + host;
		node->gid[10] = node->gid[11] = 0xff;
		node->gid[12] = 192;
		node->gid[15] = (uint8_t)(1 + host);
		start(node);
	}
	return n;
}

/* All that the process had is gone, and nobody is told. */
static void die(struct net_node *node)
{
	node->dead = true;
	for (struct net_end *e = node->net->ends; e; e = e->next)
		if (e->node == node && e->conn)
			net_end_end(e);
	net_deafen(node);
	vb_cm_close(node->cm);
}

void net_free(struct net *n)
{
	net_release(n);
	for (unsigned i = 0; i < NET_NODES; i++)
		die(&n->nodes[i]);
	while (n->count)
		free(pop(n));
	free(n->items);
	while (n->ends) {
		struct net_end *e = n->ends;

		n->ends = e->next;
		free(e->user);
		free(e);
	}
	vb_lock_give(&n->lock);
	free(n);
}

void net_restart(struct net *n, unsigned i, bool same)
{
	struct net_node *node = &n->nodes[i];
	uint32_t index = node->cm->index;

	die(node);
	start(node);
	node->qpn = 0;
	if (same) /* the worst that chance can do */
		node->cm->index = index - 2;
}

void net_listen(struct net_node *node)
{
	if (node->listener)
		return;
	node->listener = vb_cm_new(node->cm, NULL);
	assert_non_null(node->listener);
	assert_int_equal(vb_cm_listen(node->listener), 0);
}

void net_deafen(struct net_node *node)
{
	if (node->listener)
		vb_cm_end(node->listener, node->net->now);
	node->listener = NULL;
}

struct net_end *net_end_new(struct net_node *node)
{
	struct vb_cm_conn *c = vb_cm_new(node->cm, NULL);
	struct net_end *e;

	if (!c)
		return NULL;
	e = new_end(node, c);
	e->active = true;
	return e;
}

void net_end_end(struct net_end *e)
{
	uint64_t from = e->node->net->now;
	struct vb_cm_conn *c = e->conn;

	if (c->state == VB_CM_TIMEWAIT)
		from = e->timewait;
	vb_cm_end(c, e->node->net->now);
	e->conn = NULL;
	e->gave_up = true;
	if (e->shown && !(e->heard & BIT(TIMEWAIT_OVER)))
		e->until = from + e->wait;
}

struct net_end *net_find(struct net *n, uint32_t serial)
{
	struct net_end *e = n->ends;

	while (e && e->serial != serial)
		e = e->next;
	return e;
}

uint32_t net_qpn(struct net_node *node)
{
	for (unsigned i = 0; i < NET_QPNS; i++) {
		uint32_t qpn = node->number << 12 | (node->qpn++ % NET_QPNS + 2);
		bool used = false;

		for (const struct net_end *e = node->net->ends; e && !node->net->crowd; e = e->next) {
			if (e->qpn != qpn || !holds(e, node))
				continue;
			used |= e->conn != NULL;
			if (e->about && !(e->heard & BIT(TIMEWAIT_OVER)))
				assert_true(vb_cm_qpn_waits(node->cm, qpn));
		}
		if (!used && !vb_cm_qpn_waits(node->cm, qpn))
			return qpn;
	}
	return 0;
}

struct vb_cm_av net_av(struct net_node *from, struct net_node *to)
{
	struct vb_cm_av av = {.hop_limit = 64, .pkey = 0xffff};

	memcpy(av.local_gid, from->gid, 16);
	memcpy(av.remote_gid, to->gid, 16);
	return av;
}

struct vb_cm_private net_card(const struct net_end *e, uint8_t card[4])
{
	uint32_t serial = htole32(e->serial);

	memcpy(card, &serial, sizeof(serial));
	return (struct vb_cm_private){card, sizeof(serial)};
}

uint64_t net_next_timer(struct net *n)
{
	uint64_t next = VB_NEVER;

	for (unsigned i = 0; i < NET_NODES; i++) {
		uint64_t t = vb_cm_next(n->nodes[i].cm);

		next = t < next ? t : next;
	}
	return next;
}

uint64_t net_next(struct net *n)
{
	uint64_t next = net_next_timer(n);

	return n->count && n->items[0]->when < next ? n->items[0]->when : next;
}

static void deliver(struct net *n, struct net_item *item)
{
	struct net_node *to = item->to;

	if (item->fn)
		item->fn(item->arg);
	else
		vb_cm_input(to->cm, &item->from, item->mad, n->now);
	free(item);
}

bool net_step(struct net *n)
{
	uint64_t next = net_next(n);

	if (next == VB_NEVER)
		return false;
	n->now = next > n->now ? next : n->now;
	if (n->count && n->items[0]->when <= n->now) {
		deliver(n, pop(n));
		return true;
	}
	for (unsigned i = 0; i < NET_NODES; i++) {
		struct vb_cm *cm = n->nodes[i].cm;

		uint64_t due = vb_cm_timer(cm, n->now);

		assert_true(due > n->now);
		assert_int_equal(due, vb_cm_next(cm));
	}
	return true;
}

void net_run_until(struct net *n, uint64_t when)
{
	while (net_next(n) <= when)
		net_step(n);
	n->now = when;
}
