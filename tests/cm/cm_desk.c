#include "cm_desk.h"

#include <stdlib.h>
#include <string.h>

#include "cm/conn.h"

bool desk_upper(struct net_end *e, const struct vb_cm_event *ev)
{
	struct desk *d = e->node->net->user;

	if (ev->what != VB_CM_EV_REQ && ev->what != VB_CM_EV_SIDR_REQ)
		return true;
	d->p = e;
	if (d->during)
		d->during(e);
	return !d->full;
}

enum net_verdict desk_filter(struct net *n, unsigned from, const struct vb_cm_msg *m)
{
	struct desk *d = n->user;
	char buf[32];

	(void)from;
	if (!d->kind || strncmp(d->kind, vb_cm_kind_name(m->kind, buf), strcspn(d->kind, " ")) != 0)
		return NET_PASS;
	d->kind = NULL;
	return d->verdict;
}

struct desk *desk_new(void)
{
	struct net_cfg cfg = {.delay = VB_MSEC, .seed = 1};
	struct desk *d = calloc(1, sizeof(*d));

	assert_non_null(d);
	d->n = net_new(&cfg);
	d->n->user = d;
	d->n->upper = desk_upper;
	d->n->filter = desk_filter;
	d->req = (struct vb_cm_req){.service_id = NET_SERVICE,
				    .remote_response_timeout = ANSWER,
				    .local_response_timeout = ANSWER,
				    .max_cm_retries = RETRIES,
				    .primary.local_ack_timeout = ACK};
	return d;
}

void desk_free(struct desk *d)
{
	net_free(d->n);
	free(d);
}

static int request(struct desk *d)
{
	struct net_node *node = &d->n->nodes[0];
	struct vb_cm_av av = net_av(node, &d->n->nodes[1]);
	struct vb_cm_private card;
	uint8_t bytes[4];

	d->a = net_end_new(node);
	assert_non_null(d->a);
	if (!d->reuse)
		d->req.qpn = net_qpn(node);
	d->req.psn = (uint32_t)net_random(d->n) & 0xffffff;
	card = net_card(d->a, bytes);
	return vb_cm_req(d->a->conn, &av, &d->req, &card, d->n->now);
}

static int reply(struct net_end *e)
{
	struct vb_cm_rep rep = {.qpn = net_qpn(e->node),
				.psn = (uint32_t)net_random(e->node->net) & 0xffffff,
				.target_ack_delay = DELAY};
	struct vb_cm_private card;
	uint8_t bytes[4];

	card = net_card(e, bytes);
	return vb_cm_rep(e->conn, &rep, &card, e->node->net->now);
}

static int confirm(struct net_end *e)
{
	int err = vb_cm_rtu(e->conn, NULL, e->node->net->now);

	if (!err)
		e->sure = true;
	return err;
}

static int established(struct net_end *e)
{
	int err = vb_cm_established(e->conn, e->node->net->now);

	if (!err)
		e->sure = true;
	return err;
}

static int refuse(struct net_end *e)
{
	e->gave_up = true;
	return vb_cm_rej(e->conn, VB_CM_REJ_CONSUMER, NULL, 0, NULL, e->node->net->now);
}

static int resolve(struct desk *d)
{
	struct net_node *node = &d->n->nodes[0];
	struct vb_cm_av av = net_av(node, &d->n->nodes[1]);
	const struct vb_cm_sidr_req req = {.service_id = NET_SERVICE, .pkey = 0xffff};
	struct vb_cm_private card;
	uint8_t bytes[4];

	d->a = net_end_new(node);
	assert_non_null(d->a);
	d->a->sidr = true;
	card = net_card(d->a, bytes);
	return vb_cm_sidr_req(d->a->conn, &av, &req, ANSWER, RETRIES, &card, d->n->now);
}

static int resolved(struct net_end *e, uint8_t status)
{
	const struct vb_cm_sidr_rep rep = {.qpn = 0x123456, .qkey = 0x1234567, .status = status};

	return vb_cm_sidr_rep(e->conn, &rep, NULL, e->node->net->now);
}

static bool is_of(const struct vb_cm_conn *c, void *arg)
{
	return !memcmp(c->av.remote_gid, ((struct net_node *)arg)->gid, 16);
}

static void lap(struct desk *d, bool known)
{
	struct net_node *to = &d->n->nodes[1];
	struct vb_cm_av from = net_av(to, &d->n->nodes[0]);
	const struct vb_cm_msg m = {.kind = VB_CM_LAP,
				    .lap = {d->a->comm_id, known ? d->p->comm_id : to->number << 20 | 0xbad}};
	uint8_t mad[VB_MAD_LEN];

	vb_cm_msg_put(mad, &m);
	vb_cm_input(to->cm, &from, mad, d->n->now);
}

/* A REQ for a type of service that there is none of (RD, 12.6.5). */
static void strange(struct desk *d)
{
	struct net_node *to = &d->n->nodes[1];
	struct vb_cm_av from = net_av(to, &d->n->nodes[0]);
	struct vb_cm_msg m = {.kind = VB_CM_REQ, .req = d->req};
	uint8_t mad[VB_MAD_LEN];

	m.req.service_type = 2;
	m.req.local_comm_id = d->n->nodes[0].number << 20 | 0xbad;
	vb_cm_msg_put(mad, &m);
	vb_cm_input(to->cm, &from, mad, d->n->now);
}

static void end_it(struct net_end *e)
{
	net_end_end(e);
}

static void ask_for_time(struct net_end *e)
{
	assert_int_equal(vb_cm_mra(e->conn, MRA, e->node->net->now), 0);
}

/* The worst that chance can do: it dies, and its heir begins with the comm ID of that end. */
static void twin(struct net_end *e)
{
	struct net_node *node = e->node;

	net_restart(node->net, node->index, false);
	if (node->index)
		net_listen(node);
	node->cm->index = (e->comm_id - 1) & ((1u << VB_CM_INDEX_BITS) - 1);
}

/* One step; true: the word is known. */
static bool word(struct desk *d, const char *w, size_t len)
{
	uint64_t now = d->n->now;

#define IS(text) (len == strlen(text) && !memcmp(w, text, len))
#define DO(text, call)                                                              \
	if (IS(text)) {                                                             \
		int err_ = (call);                                                  \
		if (err_)                                                           \
			fail_msg("%s: errno %d after %s", text, err_, d->n->trace); \
		return true;                                                        \
	}
	DO("req", request(d));
	DO("rep", reply(d->p));
	DO("rtu", confirm(d->a));
	DO("mra0", vb_cm_mra(d->a->conn, MRA, now));
	DO("mra1", vb_cm_mra(d->p->conn, MRA, now));
	DO("lazy1", vb_cm_mra(d->p->conn, MRA | VB_CM_MRA_LAZY, now));
	DO("rej0", refuse(d->a));
	DO("rej1", refuse(d->p));
	DO("est1", established(d->p));
	DO("dreq0", vb_cm_dreq(d->a->conn, NULL, now));
	DO("dreq1", vb_cm_dreq(d->p->conn, NULL, now));
	DO("drep0", vb_cm_drep(d->a->conn, NULL, now));
	DO("drep1", vb_cm_drep(d->p->conn, NULL, now));
	DO("sidr", resolve(d));
	DO("sidr_rep", resolved(d->p, VB_CM_SIDR_SUCCESS));
	DO("end0", (net_end_end(d->a), 0));
	DO("end1", (net_end_end(d->p), 0));
	DO("full", (d->full = true, 0));
	DO("room", (d->full = false, 0));
	DO("deaf", (net_deafen(&d->n->nodes[1]), 0));
	DO("restart0", (net_restart(d->n, 0, false), 0));
	DO("restart1", (net_restart(d->n, 1, false), net_listen(&d->n->nodes[1]), 0));
	DO("reuse", (d->reuse = true, 0));
	DO("twin0", (twin(d->a), 0));
	DO("twin1", (twin(d->p), 0));
	DO("gone0", (vb_cm_gone(d->n->nodes[1].cm, is_of, &d->n->nodes[0], now), 0));
	DO("gone1", (vb_cm_gone(d->n->nodes[0].cm, is_of, &d->n->nodes[1], now), 0));
	DO("lap", (lap(d, true), 0));
	DO("lap?", (lap(d, false), 0));
	DO("release", (net_release(d->n), 0));
	DO("timer", (net_run_until(d->n, net_next_timer(d->n)), 0));
	DO("over", (net_run_for(d->n, 100 * VB_SEC), 0));
	DO("during-end", (d->during = end_it, 0));
	DO("during-mra", (d->during = ask_for_time, 0));
	DO("xrc", (d->req.service_type = VB_CM_SERVICE_XRC, d->req.extended_type = 1, 0));
	DO("rd", (strange(d), 0));
	d->verdict = !strncmp(w, "lose=", 5) ? NET_LOSE : !strncmp(w, "twice=", 6) ? NET_TWICE : NET_HOLD;
	d->kind = memchr(w, '=', len);
	return d->kind && d->kind++;
}

void desk_walk(struct desk *d, const char *words)
{
	for (const char *w = words; *w;) {
		size_t len = strcspn(w, " ");
		bool plus = len && w[len - 1] == '+';

		if (!word(d, w, len - plus))
			fail_msg("there is no word %s", w);
		if (!plus && !(d->kind && d->kind > w && d->kind < w + len))
			net_run_for(d->n, PAUSE);
		w += len + (w[len] == ' ');
	}
}
