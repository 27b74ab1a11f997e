/* Communication management by seed: wires that lose, duplicate and reorder, listeners that come and go, upper
 * layers that change their minds in each state, processes that die and are born anew with the same numbers,
 * forged messages.  Nothing hangs, nothing leaks, no number is given twice, no event comes twice or out of
 * order (cm_net.c), and in the end both ends of a connection think the same of it.
 *
 * The first argument or VB_SEEDS: how many seeds (60; 1000 with VERBENA_SOAK); the second argument: the first
 * of them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cm/conn.h"
#include "cm_net.h"
#include "../sim/seeds.h"

enum { ANSWER = 14, ACK = 12, MRA = 15, RETRIES = 4, SPAWNED = 120 };

/* What the world is like. */
enum world { FIFO, SHUFFLED, LOSSY, MORTAL, FORGED, WORLDS };

struct story {
	struct net *n;
	enum world world;
	unsigned left; /* connections still to be begun */
	bool calm;     /* nothing is lost or new any more, and everybody says yes at once */
};

static void act(void *arg);

static void later(struct net_end *e, uint64_t within)
{
	struct net *n = e->node->net;

	net_at(n, n->now + 1 + net_random(n) % within, act, e);
}

static void reply(struct net_end *e)
{
	struct net *n = e->node->net;
	struct vb_cm_rep rep = {.qpn = net_qpn(e->node), .psn = net_pick(n, 1 << 24), .target_ack_delay = 3};
	struct vb_cm_private card;
	uint8_t bytes[4];

	if (!rep.qpn) {
		net_end_end(e);
		return;
	}
	e->qpn = rep.qpn;
	e->about = true;
	card = net_card(e, bytes);
	assert_int_equal(vb_cm_rep(e->conn, &rep, &card, n->now), 0);
}

static void refuse(struct net_end *e)
{
	e->gave_up = true;
	e->timewait = e->node->net->now;
	assert_int_equal(vb_cm_rej(e->conn, VB_CM_REJ_CONSUMER, NULL, 0, NULL, e->node->net->now), 0);
}

static void think(struct net_end *e)
{
	uint8_t lazy = net_pick(e->node->net, 2) ? VB_CM_MRA_LAZY : 0;

	assert_int_equal(vb_cm_mra(e->conn, MRA | lazy, e->node->net->now), 0);
	later(e, 100 * VB_MSEC);
}

/* Before a connection is there: yes, no, or later. */
static void answer(struct net_end *e, bool fresh, void (*yes)(struct net_end *e))
{
	uint32_t dice = net_pick(e->node->net, 100);

	if (dice < 60)
		yes(e);
	else if (dice < 72)
		refuse(e);
	else if (dice < 84)
		net_end_end(e);
	else if (fresh)
		think(e);
	else
		later(e, 300 * VB_MSEC);
}

static void confirm(struct net_end *e)
{
	assert_int_equal(vb_cm_rtu(e->conn, NULL, e->node->net->now), 0);
	e->sure = e->about = true;
	later(e, VB_SEC);
}

/* Data may come before the RTU, once the far end has said it. */
static void wait_for_rtu(struct net_end *e)
{
	const struct net_end *far = net_find(e->node->net, e->peer);
	uint32_t dice = net_pick(e->node->net, 100);

	if (dice < 10)
		refuse(e);
	else if (dice < 20)
		net_end_end(e);
	else if (far && far->conn && far->conn->state == VB_CM_ESTABLISHED && far->peer == e->serial) {
		assert_int_equal(vb_cm_established(e->conn, e->node->net->now), 0);
		e->sure = true;
		later(e, VB_SEC);
	}
}

static void part(struct net_end *e)
{
	uint32_t dice = net_pick(e->node->net, 100);

	if (dice < 45)
		assert_int_equal(vb_cm_dreq(e->conn, NULL, e->node->net->now), 0);
	else if (dice < 75)
		net_end_end(e);
	else if (dice < 90)
		later(e, 2 * VB_SEC);
}

static void resolve(struct net_end *e)
{
	struct net *n = e->node->net;
	const struct vb_cm_sidr_rep rep = {.qpn = 77, .status = net_pick(n, 2) ? VB_CM_SIDR_NO_QP : 0};

	if (net_pick(n, 4))
		assert_int_equal(vb_cm_sidr_rep(e->conn, &rep, NULL, n->now), 0);
	else
		net_end_end(e);
}

static void agree_to_part(struct net_end *e)
{
	e->timewait = e->node->net->now;
	if (net_pick(e->node->net, 4))
		assert_int_equal(vb_cm_drep(e->conn, NULL, e->node->net->now), 0);
	else
		net_end_end(e);
}

/* Everybody says yes. */
static void settle(struct net_end *e)
{
	switch (e->conn->state) {
	case VB_CM_REQ_RCVD:
	case VB_CM_MRA_REQ_SENT:
		reply(e);
		break;
	case VB_CM_REP_RCVD:
	case VB_CM_MRA_REP_SENT:
		confirm(e);
		break;
	case VB_CM_DREQ_RCVD:
		assert_int_equal(vb_cm_drep(e->conn, NULL, e->node->net->now), 0);
		break;
	case VB_CM_SIDR_REQ_RCVD:
		resolve(e);
		break;
	default:
		break;
	}
}

/* What somebody does who has time to. */
static void act(void *arg)
{
	struct net_end *e = arg;
	struct story *s = e->node->net->user;

	if (!e->conn)
		return;
	if (s->calm) {
		settle(e);
		return;
	}
	switch (e->conn->state) {
	case VB_CM_REQ_RCVD:
	case VB_CM_MRA_REQ_SENT:
		answer(e, e->conn->state == VB_CM_REQ_RCVD, reply);
		break;
	case VB_CM_REP_RCVD:
	case VB_CM_MRA_REP_SENT:
		answer(e, e->conn->state == VB_CM_REP_RCVD, confirm);
		break;
	case VB_CM_REP_SENT:
	case VB_CM_MRA_REP_RCVD:
		wait_for_rtu(e);
		break;
	case VB_CM_ESTABLISHED:
		part(e);
		break;
	case VB_CM_DREQ_RCVD:
		agree_to_part(e);
		break;
	case VB_CM_SIDR_REQ_RCVD:
		resolve(e);
		break;
	case VB_CM_REQ_SENT:
	case VB_CM_MRA_REQ_RCVD:
		if (net_pick(e->node->net, 3))
			break;
		refuse(e);
		break;
	default: /* over, or nearly */
		if (net_pick(e->node->net, 2))
			net_end_end(e);
		break;
	}
}

/* Numbers come from a small range, so that each is free only by chance. */
static void crowd_numbers(struct net_node *node)
{
	node->cm->index = (node->cm->index & ~7u) | net_pick(node->net, 8);
}

static bool upper(struct net_end *e, const struct vb_cm_event *ev)
{
	struct net *n = e->node->net;
	struct story *s = n->user;
	bool fresh = ev->what == VB_CM_EV_REQ || ev->what == VB_CM_EV_SIDR_REQ;

	crowd_numbers(e->node);
	if (fresh && !s->calm && net_pick(n, 10) == 0)
		return false;
	if (s->calm || net_pick(n, 2))
		act(e); /* within the event, to its end perhaps */
	else
		later(e, 200 * VB_MSEC);
	/* What REQ's return value means is of no meaning once it was ended. */
	return !fresh || e->conn || net_pick(n, 2);
}

static void begin(struct story *s, struct net_node *from, struct net_node *to)
{
	struct net *n = s->n;
	struct vb_cm_av av = net_av(from, to);
	struct vb_cm_req req = {.service_id = NET_SERVICE,
				.psn = net_pick(n, 1 << 24),
				.remote_response_timeout = (uint8_t)(ANSWER - net_pick(n, 3)),
				.local_response_timeout = (uint8_t)(ANSWER - net_pick(n, 3)),
				.max_cm_retries = (uint8_t)net_pick(n, RETRIES + 1),
				.service_type = (uint8_t)net_pick(n, 2),
				.primary.local_ack_timeout = (uint8_t)(ACK - net_pick(n, 4))};
	struct net_end *e;
	struct vb_cm_private card;
	uint8_t bytes[4];

	crowd_numbers(from);
	e = net_end_new(from);
	assert_non_null(e);
	card = net_card(e, bytes);
	e->wait = vb_cm_time(req.primary.local_ack_timeout);
	req.qpn = e->qpn = net_qpn(from);
	if (!net_pick(n, 5) || !e->qpn) {
		const struct vb_cm_sidr_req sidr = {.service_id = NET_SERVICE};

		e->qpn = 0;
		e->sidr = true;
		assert_int_equal(vb_cm_sidr_req(e->conn, &av, &sidr, ANSWER, 2, &card, n->now), 0);
		return;
	}
	if (!net_pick(n, 6)) {
		req.service_type = VB_CM_SERVICE_XRC;
		req.extended_type = 1;
	}
	assert_int_equal(vb_cm_req(e->conn, &av, &req, &card, n->now), 0);
	if (!net_pick(n, 8))
		later(e, 100 * VB_MSEC);
}

static void spawn(void *arg)
{
	struct story *s = arg;
	struct net *n = s->n;
	unsigned from = net_pick(n, NET_NODES), to = net_pick(n, NET_NODES);

	if (s->calm || !s->left)
		return;
	s->left--;
	begin(s, &n->nodes[from], &n->nodes[to]); /* with itself, too */
	net_at(n, n->now + net_random(n) % (20 * VB_MSEC), spawn, s);
}

static void stir(void *arg)
{
	struct story *s = arg;
	struct net *n = s->n;
	unsigned i = net_pick(n, NET_NODES);

	if (s->calm)
		return;
	if (s->world == MORTAL && !net_pick(n, 6))
		net_restart(n, i, net_pick(n, 2));
	else if (n->nodes[i].listener && !net_pick(n, 3))
		net_deafen(&n->nodes[i]);
	else
		net_listen(&n->nodes[i]);
	net_at(n, n->now + net_random(n) % (200 * VB_MSEC), stir, s);
}

/* Says yes to everything, and its QPNs are as many as its connections. */
static bool upper_many(struct net_end *e, const struct vb_cm_event *ev)
{
	struct vb_cm_rep rep = {.qpn = e->comm_id & 0xffffff};
	struct vb_cm_private card;
	uint8_t bytes[4];

	if (ev->what == VB_CM_EV_REQ) {
		card = net_card(e, bytes);
		assert_int_equal(vb_cm_rep(e->conn, &rep, &card, e->node->net->now), 0);
	} else if (ev->what != VB_CM_EV_RTU) {
		settle(e);
	}
	return true;
}

/* Somebody says what others have said, but for a few bits. */
static void forge(void *arg)
{
	struct story *s = arg;
	struct net *n = s->n;
	struct net_node *to = &n->nodes[net_pick(n, NET_NODES)];
	struct vb_cm_av from = net_av(to, &n->nodes[net_pick(n, NET_NODES)]);
	uint8_t mad[VB_MAD_LEN];

	if (s->calm)
		return;
	memcpy(mad, n->sample, sizeof(mad));
	for (unsigned i = net_pick(n, 4); i--;)
		mad[net_pick(n, 2) ? 16 + net_pick(n, 64) : net_pick(n, VB_MAD_LEN)] ^= 1u << net_pick(n, 8);
	if (!net_pick(n, 3)) /* another kind with the same comm IDs */
		mad[17] = (uint8_t)(VB_CM_REQ + net_pick(n, 12));
	vb_cm_input(to->cm, &from, mad, n->now);
	net_at(n, n->now + net_random(n) % (10 * VB_MSEC), forge, s);
}

static bool waits(enum vb_cm_state s)
{
	return s == VB_CM_REQ_SENT || s == VB_CM_MRA_REQ_RCVD || s == VB_CM_REP_SENT ||
	       s == VB_CM_MRA_REP_RCVD || s == VB_CM_DREQ_SENT || s == VB_CM_SIDR_REQ_SENT ||
	       s == VB_CM_TIMEWAIT;
}

/* Nothing was lost: whoever holds a connection for established has a far end that does.  Otherwise only those
 * who have not given up of themselves agree: what they said at their end may have been lost. */
static void check_agreement(const struct story *s)
{
	for (const struct net_end *e = s->n->ends; e; e = e->next) {
		const struct net_end *far = net_find(s->n, e->peer);
		bool silent, faithful = s->world <= SHUFFLED;

		if (!e->conn)
			continue;
		assert_false(waits(e->conn->state));
		if (e->conn->state != VB_CM_ESTABLISHED)
			continue;
		assert_true(e->sure);
		assert_non_null(far);
		assert_int_equal(far->peer, e->serial);
		/* The target of XRC goes without a word. */
		silent = e->active && e->conn->service_type == VB_CM_SERVICE_XRC && !far->conn;
		if (silent || (!faithful && (far->gave_up || !far->conn)))
			continue;
		assert_non_null(far->conn);
		assert_int_equal(far->conn->state, VB_CM_ESTABLISHED);
		assert_int_equal(far->conn->remote_comm_id, e->comm_id);
		assert_int_equal(e->conn->remote_comm_id, far->comm_id);
		assert_int_equal(e->conn->remote_qpn, far->qpn);
	}
}

/* All that is left is ended, and all numbers are forgotten. */
static void check_nothing_is_left(struct net *n)
{
	for (struct net_end *e = n->ends; e; e = e->next)
		if (e->conn)
			net_end_end(e);
	for (unsigned i = 0; i < NET_NODES; i++)
		net_deafen(&n->nodes[i]);
	net_run_for(n, 2 * vb_cm_time(31)); /* the longest time that a REQ can name */
	assert_int_equal(net_next(n), VB_NEVER);
	for (unsigned i = 0; i < NET_NODES; i++) {
		assert_int_equal(n->nodes[i].cm->conns, 0);
		assert_int_equal(n->nodes[i].cm->numbers.used, 0);
	}
}

static void tell(uint64_t seed)
{
	enum world world = seed % WORLDS;
	struct net_cfg cfg = {.delay = VB_MSEC / 2,
			      .jitter = world == FIFO ? 0 : 20 * VB_MSEC,
			      .twice = world == FIFO ? 0 : 100,
			      .lost = world == LOSSY || world == MORTAL ? 200 : 0,
			      .one_host = seed / WORLDS & 1,
			      .seed = seed};
	const uint64_t attempt = vb_cm_time(ANSWER) + vb_cm_time(MRA) + vb_cm_time(ACK);
	struct story s = {.n = net_new(&cfg), .world = world, .left = SPAWNED};
	struct net *n = s.n;

	n->user = &s;
	n->upper = upper;
	for (unsigned i = 0; i < NET_NODES; i++)
		net_listen(&n->nodes[i]);
	spawn(&s);
	stir(&s);
	if (world == FORGED)
		forge(&s);
	net_run_for(n, net_random(n) % (2 * VB_SEC));
	s.calm = true;
	n->cfg.lost = n->cfg.twice = 0;
	for (struct net_end *e = n->ends; e; e = e->next)
		if (e->conn)
			settle(e);
	/* Whatever anybody waits for, it is no longer than this. */
	net_run_for(n, 2 * (RETRIES + 1) * attempt + VB_SEC);
	if (world != FORGED)
		check_agreement(&s);
	check_nothing_is_left(n);
	net_free(n);
}

static void whatever_happens_both_ends_agree(void **state)
{
	(void)state;
	for_each_seed() tell(seeds.current);
}

/* As many connections as there may be queue pairs: each is found at once, their numbers take little room, and
 * what is left of them when they have ended is not much. */
static void many_at_once(void **state)
{
	struct net_cfg cfg = {.delay = VB_USEC, .seed = 1};
	unsigned count = getenv("VERBENA_SOAK") ? 65536 : 4096;
	struct story s = {.n = net_new(&cfg), .calm = true};
	struct net *n = s.n;
	struct vb_cm_numbers *numbers = &n->nodes[1].cm->numbers;
	struct vb_cm_req req = {.service_id = NET_SERVICE,
				.remote_response_timeout = 20,
				.local_response_timeout = 20,
				.primary.local_ack_timeout = ACK};
	struct vb_cm_av av = net_av(&n->nodes[0], &n->nodes[1]);

	(void)state;
	n->user = &s;
	n->upper = upper_many;
	n->crowd = true;
	net_listen(&n->nodes[1]);
	for (unsigned i = 0; i < count; i++) {
		struct net_end *e = net_end_new(&n->nodes[0]);
		struct vb_cm_private card;
		uint8_t bytes[4];

		assert_non_null(e);
		card = net_card(e, bytes);
		req.qpn = req.psn = i + 2;
		assert_int_equal(vb_cm_req(e->conn, &av, &req, &card, n->now), 0);
		net_run_for(n, 10 * VB_USEC);
		assert_int_equal(e->conn->state, VB_CM_ESTABLISHED);
	}
	assert_int_equal(numbers->used, count + 1);
	assert_true(numbers->room <= 2 * (count + 1));
	assert_int_equal(net_next_timer(n), VB_NEVER);
	for (struct net_end *e = n->ends; e; e = e->next)
		if (e->active)
			net_end_end(e);
	net_run_for(n, VB_MSEC); /* TIMEWAIT: numbers only, at the active end */
	assert_int_equal(n->nodes[0].cm->conns, 0);
	assert_int_equal(n->nodes[0].cm->numbers.used, count);
	assert_true(vb_cm_qpn_waits(n->nodes[0].cm, 2));
	net_run_for(n, VB_SEC);
	assert_false(vb_cm_qpn_waits(n->nodes[0].cm, 2));
	assert_int_equal(n->nodes[0].cm->numbers.used, 0);
	assert_int_equal(n->nodes[0].cm->numbers.room, 64);
	check_nothing_is_left(n);
	net_free(n);
}

/* They go round, past 0 and past those that are in use. */
static void comm_ids_go_round(void **state)
{
	struct net_cfg cfg = {.seed = 3};
	struct net *n = net_new(&cfg);
	struct vb_cm *cm = n->nodes[0].cm;
	struct vb_cm_conn *first = vb_cm_new(cm, NULL), *c;

	(void)state;
	assert_non_null(first);
	for (unsigned round = 0; round < 3; round++) {
		cm->index = (1u << VB_CM_INDEX_BITS) - 3; /* two more, and then 1: 0 is none */
		for (unsigned i = 1; i < 5; i++) {
			c = vb_cm_new(cm, NULL);
			assert_int_equal(VB_CM_NUMBER(c->local_comm_id), n->nodes[0].number);
			assert_int_equal(c->local_comm_id & 0xfffff, i < 3 ? 0xffffd + i : i - 2);
			assert_true(c->local_comm_id & 0xfffff);
			vb_cm_end(c, n->now); /* nobody has heard of it */
		}
		cm->index = (first->local_comm_id - 1) & 0xfffff;
		c = vb_cm_new(cm, NULL);
		assert_int_equal(c->local_comm_id, first->local_comm_id + 1);
		vb_cm_end(c, n->now);
	}
	vb_cm_end(first, n->now);
	net_free(n);
}

enum { LIVE = 600, TURNS = 6000 };

/* The table of numbers against the plainest one that there is: what is found, and what is due first. */
static void numbers_are_found_and_due_in_order(void **state)
{
	struct net_cfg cfg = {.seed = 7};
	struct net *n = net_new(&cfg);
	struct vb_cm *cm = n->nodes[0].cm;
	struct vb_cm_numbers *t = &cm->numbers;
	struct vb_cm_conn *c[LIVE] = {0};
	uint64_t due[LIVE], least;

	(void)state;
	for (unsigned turn = 0; turn < TURNS; turn++) {
		/* They become many, then few, so that the table grows and shrinks. */
		unsigned i = net_pick(n, turn / 1500 & 1 ? 40 : LIVE), first;

		for (unsigned k = turn / 1500 & 1 ? 40 : LIVE; k < LIVE; k++) {
			if (c[k])
				vb_cm_end(c[k], n->now);
			c[k] = NULL;
		}
		if (c[i] && !net_pick(n, 3)) {
			vb_cm_end(c[i], n->now);
			c[i] = NULL;
		} else if (!c[i]) {
			c[i] = vb_cm_new(cm, NULL);
			assert_non_null(c[i]);
			due[i] = VB_NEVER;
		} else {
			due[i] = net_pick(n, 4) ? 1 + net_pick(n, 1000) : VB_NEVER;
			vb_cm_num_due(t, c[i]->inner->slot, due[i]);
		}
		least = VB_NEVER;
		for (unsigned k = 0; k < LIVE; k++) {
			if (!c[k])
				continue;
			assert_ptr_equal(vb_cm_conn_num(c[k])->conn, c[k]);
			assert_int_equal(vb_cm_num_find(t, VB_CM_BY_ID, 0, c[k]->local_comm_id),
					 c[k]->inner->slot);
			least = due[k] < least ? due[k] : least;
		}
		first = vb_cm_num_first(t);
		assert_int_equal(first == VB_CM_NONE ? VB_NEVER : vb_cm_num(t, first)->due, least);
		assert_true(t->room >= t->used && (t->room == 64 || t->room <= 8 * (t->used + 1)));
	}
	for (unsigned k = 0; k < LIVE; k++)
		if (c[k])
			vb_cm_end(c[k], n->now);
	net_free(n);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(whatever_happens_both_ends_agree, seeds_tell),
	    cmocka_unit_test(many_at_once),
	    cmocka_unit_test(comm_ids_go_round),
	    cmocka_unit_test(numbers_are_found_and_due_in_order),
	};

	seeds_choose(argc, argv, 60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
