/* MADs of all kinds, true, half true and false (cm_forge.c), come to engines in all states, while the upper
 * layer calls whatever there is to call: nothing that a message says reads or writes what is not there, ends
 * anything but as cm/cm.h has it (cm_net.c), brings about more than two messages, or leaves anything behind.
 *
 * The first argument or VB_SEEDS: how many seeds (300; 1000 with VERBENA_SOAK, each of them longer); the
 * second argument: the first of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../sim/seeds.h"
#include "cm/conn.h"
#include "cm/id.h"
#include "cm_below.h"
#include "cm_forge.h"
#include "cm_golden.h"
#include "cm_net.h"

enum { TURNS = 1000, CROWD = 48, RETRIES = 3, CODE = 20 };

static struct forge forge;

static uint32_t pick(uint32_t below)
{
	return forge_pick(&forge, below);
}

/* Of a time: 67 us to 134 ms, and now and then whatever there is. */
static uint8_t some_code(void)
{
	return (uint8_t)(pick(16) ? 4 + pick(12) : 1 + pick(CODE));
}

/* ---- the protocol ---- */

static struct net *net;
static unsigned acts; /* what the upper layer did while a message was heard */
static unsigned live;

static enum net_verdict note(struct net *n, unsigned from, const struct vb_cm_msg *m)
{
	uint8_t mad[VB_MAD_LEN];

	(void)n, (void)from;
	vb_cm_msg_put(mad, m);
	forge_note(&forge, mad);
	return pick(10) ? NET_PASS : (enum net_verdict)pick(4);
}

static void ask(struct net_end *e, const struct vb_cm_av *av, const struct vb_cm_private *card)
{
	uint32_t qpn = net_qpn(e->node);
	struct vb_cm_req req = {.service_id = NET_SERVICE,
				.qpn = qpn,
				.psn = pick(1 << 24),
				.remote_response_timeout = some_code(),
				.local_response_timeout = some_code(),
				.max_cm_retries = (uint8_t)pick(RETRIES),
				.service_type = (uint8_t)pick(4),
				.extended_type = (uint8_t)(1 - pick(8) / 7),
				.primary.local_ack_timeout = some_code()};

	if (vb_cm_req(e->conn, av, &req, card, net->now))
		return;
	e->qpn = qpn;
	e->wait = vb_cm_time(req.primary.local_ack_timeout);
}

static void answer(struct net_end *e, const struct vb_cm_private *card)
{
	struct vb_cm_rep rep = {.qpn = net_qpn(e->node), .psn = pick(1 << 24), .target_ack_delay = 3};

	if (!rep.qpn || vb_cm_rep(e->conn, &rep, card, net->now))
		return;
	e->qpn = rep.qpn;
	e->about = true;
}

static bool is_over(const struct vb_cm_conn *c)
{
	return c->state == VB_CM_IDLE && c->inner->begun;
}

/* One of the calls that the state permits, mostly; VB_CM_CALLS: there is none. */
static enum vb_cm_call some_call(const struct vb_cm_conn *c)
{
	unsigned found = 0;
	enum vb_cm_call which = VB_CM_CALLS;

	if (!pick(4))
		return VB_CM_CALL_REQ + pick(VB_CM_CALLS - VB_CM_CALL_REQ);
	if (is_over(c))
		return which;
	for (unsigned k = VB_CM_CALL_REQ; k < VB_CM_CALLS; k++)
		if (vb_cm_rows[c->state].may[k].action && !pick(++found))
			which = k;
	return which;
}

static void call(struct net_end *e)
{
	struct vb_cm_av av = net_av(e->node, &net->nodes[pick(NET_NODES)]);
	struct vb_cm_sidr_req sidr = {.service_id = NET_SERVICE};
	struct vb_cm_sidr_rep found = {.qpn = 7, .status = (uint8_t)pick(3)};
	uint8_t bytes[4], info[VB_CM_REJ_INFO] = {0};
	struct vb_cm_private card = net_card(e, bytes);
	uint64_t now = net->now;
	enum vb_cm_state was = e->conn->state;

	acts++;
	switch (some_call(e->conn)) {
	case VB_CM_CALL_REQ:
		ask(e, &av, &card);
		break;
	case VB_CM_CALL_REP:
		answer(e, &card);
		break;
	case VB_CM_CALL_RTU:
		if (!vb_cm_rtu(e->conn, NULL, now))
			e->sure = e->about = true;
		break;
	case VB_CM_CALL_MRA:
		vb_cm_mra(e->conn, (uint8_t)(pick(CODE) | (pick(2) ? VB_CM_MRA_LAZY : 0)), now);
		break;
	case VB_CM_CALL_REJ:
		vb_cm_rej(e->conn, (uint16_t)pick(40), info, pick(2) ? sizeof(info) : 0, &card, now);
		break;
	case VB_CM_CALL_ESTABLISHED:
		if (!vb_cm_established(e->conn, now))
			e->sure = true;
		break;
	case VB_CM_CALL_DREQ:
		vb_cm_dreq(e->conn, &card, now);
		break;
	case VB_CM_CALL_DREP:
		vb_cm_drep(e->conn, &card, now);
		break;
	case VB_CM_CALL_SIDR_REQ:
		if (!vb_cm_sidr_req(e->conn, &av, &sidr, some_code(), (uint8_t)pick(RETRIES), &card, now))
			e->sidr = true;
		break;
	case VB_CM_CALL_SIDR_REP:
		vb_cm_sidr_rep(e->conn, &found, &card, now);
		break;
	default:
		break;
	}
	if (was != VB_CM_TIMEWAIT && e->conn->state == VB_CM_TIMEWAIT)
		e->timewait = now;
}

static void finish(struct net_end *e)
{
	acts++;
	live--;
	net_end_end(e);
}

static struct net_end *some_end(void)
{
	unsigned n = live ? pick(live) : 0;

	for (struct net_end *e = net->ends; e; e = e->next)
		if (e->conn && !n--)
			return e;
	return NULL;
}

static bool upper(struct net_end *e, const struct vb_cm_event *ev)
{
	bool fresh = ev->what == VB_CM_EV_REQ || ev->what == VB_CM_EV_SIDR_REQ;
	struct net_end *other;

	live += fresh;
	for (unsigned n = pick(3); n--;)
		call(e);
	other = pick(4) ? NULL : some_end();
	if (other && other != e && pick(2))
		finish(other);
	else if (other)
		call(other);
	if (!pick(8) && live < CROWD && net_end_new(e->node))
		live++;
	if (!pick(8)) {
		finish(e);
		return pick(2);
	}
	if (fresh && (live > CROWD || !pick(8))) {
		live--;
		acts++; /* it may have to be taken back */
		return false;
	}
	return true;
}

static void hear(void)
{
	struct net_node *to = &net->nodes[pick(NET_NODES)];
	struct vb_cm_av from = net_av(to, &net->nodes[pick(NET_NODES)]);
	uint64_t sent = net->sent;
	uint8_t mad[VB_MAD_LEN], *exact = malloc(VB_MAD_LEN); /* so that what lies behind it is not read */

	forge_mad(&forge, mad);
	assert_non_null(exact);
	memcpy(exact, mad, VB_MAD_LEN);
	acts = 0;
	vb_cm_input(to->cm, &from, exact, net->now);
	assert_memory_equal(exact, mad, VB_MAD_LEN);
	free(exact);
	assert_true(net->sent - sent <= 2 + acts);
}

static bool by_chance(const struct vb_cm_conn *c, void *arg)
{
	(void)c, (void)arg;
	return pick(8);
}

static void count_live(void)
{
	live = 0;
	for (struct net_end *e = net->ends; e; e = e->next)
		live += e->conn != NULL;
}

/* Those whose exchange is over are of little interest. */
static void sweep(void)
{
	for (struct net_end *e = net->ends; e; e = e->next)
		if (e->conn && is_over(e->conn) && pick(4))
			finish(e);
}

static void upheaval(struct net_node *node)
{
	switch (pick(8)) {
	case 0:
	case 1:
	case 2:
	case 3:
		vb_cm_gone(node->cm, by_chance, NULL, net->now);
		break;
	case 4:
	case 5:
		net_deafen(node);
		break;
	case 6:
		net_run_for(net, forge_random(&forge) % (100 * VB_SEC));
		break;
	default:
		if (pick(4))
			break;
		net_restart(net, node->index, pick(2));
		count_live();
		break;
	}
}

static void turn(void)
{
	struct net_node *node = &net->nodes[pick(NET_NODES)];
	struct net_end *e;

	switch (pick(16)) {
	case 0:
	case 1:
		e = live < CROWD ? net_end_new(node) : NULL;
		live += e != NULL;
		if (e && pick(4))
			call(e);
		break;
	case 2:
	case 3:
	case 4:
	case 5:
		e = some_end();
		if (e)
			call(e);
		break;
	case 6:
		e = live > CROWD / 2 || !pick(8) ? some_end() : NULL;
		if (e)
			finish(e);
		break;
	case 7:
		net_listen(node);
		break;
	case 8:
		if (!pick(4))
			upheaval(node);
		break;
	case 9:
	case 10:
	case 11:
	case 12:
		net_run_for(net, forge_random(&forge) % (25 * VB_MSEC));
		break;
	default:
		hear();
		break;
	}
	if (!pick(4))
		sweep();
}

static void check_nothing_is_left(void)
{
	for (struct net_end *e = net->ends; e; e = e->next)
		if (e->conn)
			finish(e);
	for (unsigned i = 0; i < NET_NODES; i++)
		net_deafen(&net->nodes[i]);
	net_release(net);
	net_run_for(net, 2 * vb_cm_time(31)); /* the longest time that a message can name */
	for (struct net_end *e = net->ends; e; e = e->next)
		assert_null(e->conn);
	assert_int_equal(net_next(net), VB_NEVER);
	for (unsigned i = 0; i < NET_NODES; i++) {
		assert_int_equal(net->nodes[i].cm->conns, 0);
		assert_int_equal(net->nodes[i].cm->numbers.used, 0);
	}
}

static void engines(uint64_t seed, unsigned turns)
{
	const struct net_cfg cfg = {
	    .delay = VB_MSEC / 2, .jitter = 20 * VB_MSEC, .one_host = seed & 1, .seed = seed};

	forge_begin(&forge, seed);
	net = net_new(&cfg);
	live = 0;
	net->upper = upper;
	net->filter = note;
	for (unsigned i = 0; i < NET_NODES; i++)
		net_listen(&net->nodes[i]);
	while (turns--)
		turn();
	check_nothing_is_left();
	net_free(net);
}

static unsigned worlds(void)
{
	return getenv("VERBENA_SOAK") ? 20 : 1;
}

static void engines_take_whatever_comes(void **state)
{
	(void)state;
	for_each_seed() for (unsigned i = 0; i < worlds(); i++) engines(seeds.current + i * 100000, TURNS);
}

/* ---- identifiers ---- */

enum { IDS = 24, PORT = 7471 };

static struct vb_cm_channel *channel;
static struct vb_cm_id *ids[IDS];

static bool overhear(const struct vb_cm_msg *m)
{
	uint8_t mad[VB_MAD_LEN];

	vb_cm_msg_put(mad, m);
	forge_note(&forge, mad);
	return pick(8);
}

static struct vb_cm_id **some_id(bool taken)
{
	for (unsigned i = 0, from = pick(IDS); i < IDS; i++)
		if (!ids[(from + i) % IDS] == !taken)
			return &ids[(from + i) % IDS];
	return NULL;
}

static const char *some_address(void)
{
	static const char *const all[] = {"10.0.0.1", "10.0.0.2", "127.0.0.1", "fd00::1", "fd00::2", "::1"};

	return all[pick(sizeof(all) / sizeof(all[0]))];
}

static struct vb_cm_id *new_id(bool ud)
{
	struct vb_cm_id *id;

	assert_int_equal(vb_cm_id_new(&id, channel, &channel, ud ? RDMA_PS_UDP : RDMA_PS_TCP,
				      ud ? IBV_QPT_UD : IBV_QPT_RC),
			 0);
	return id;
}

static void hear_of(struct vb_cm_news *n)
{
	struct vb_cm_id **slot = n->event == RDMA_CM_EVENT_CONNECT_REQUEST ? some_id(false) : NULL;

	if (n->conn.private_data_len)
		assert_ptr_equal(n->conn.private_data, n->data);
	vb_cm_news_ack(n->id, n->event);
	if (n->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		return;
	if (!slot) {
		vb_cm_id_end(n->fresh);
		return;
	}
	*slot = n->fresh;
}

/* Any call, whether or not the state permits it. */
static void call_id(struct vb_cm_id *id)
{
	const struct vb_cm_param p = {.private_data = "fuzz",
				      .private_len = (uint8_t)pick(5),
				      .responder_resources = (uint8_t)pick(3),
				      .initiator_depth = (uint8_t)pick(3),
				      .qp_num = 1 + pick(64)};
	struct ibv_qp_attr attr = {.qp_state = pick(2) ? IBV_QPS_RTR : IBV_QPS_RTS};
	struct ibv_sa_path_rec path;
	struct rdma_addr addr;
	int mask, paths;

	switch (pick(9)) {
	case 0:
	case 1:
		vb_cm_id_accept(id, &p, &channel);
		break;
	case 2:
		vb_cm_id_reject(id, "no", 2, pick(2) ? VB_CM_REJ_CONSUMER : VB_CM_REJ_VENDOR_OPTION);
		break;
	case 3:
		vb_cm_id_disconnect(id);
		break;
	case 4:
		vb_cm_id_establish(id);
		break;
	case 5:
		vb_cm_id_notify(id, IBV_EVENT_COMM_EST);
		break;
	case 6:
		vb_cm_id_connect(id, &p);
		break;
	case 7:
		vb_cm_id_qp_attr(id, &attr, &mask);
		break;
	default:
		assert_int_equal(vb_cm_id_route(id, &addr, &path, &paths), 0);
		assert_true(paths >= 0 && paths <= 1);
		break;
	}
}

static void id_hears(void)
{
	struct vb_cm_device *d = below_device(pick(2));
	struct vb_cm_local here, there;
	struct vb_cm_av from = {.hop_limit = 64, .pkey = 0xffff};
	uint8_t mad[VB_MAD_LEN], address[16] = {[10] = 0xff, 0xff, 10, 0, 0, (uint8_t)(1 + d->index)};

	assert_int_equal(vb_cm_below()->local(address, &here), 0);
	address[15] = (uint8_t)(1 + pick(2));
	assert_int_equal(vb_cm_below()->local(address, &there), 0);
	memcpy(from.local_gid, here.gid, 16);
	memcpy(from.remote_gid, there.gid, 16);
	forge_mad(&forge, mad);
	vb_cm_ids_enter();
	vb_cm_input(d->cm, &from, mad, below.now);
	vb_cm_ids_leave();
}

static void begin_id(struct vb_cm_id **slot)
{
	struct vb_cm_id *id = new_id(!pick(3));

	*slot = id;
	assert_int_equal(vb_cm_id_resolve_addr(id, NULL, below_addr(some_address(), PORT), 2000), 0);
	vb_cm_id_resolve_route(id, 2000);
	vb_cm_id_connect(id, &(struct vb_cm_param){.qp_num = 1 + pick(64)});
}

static void turn_ids(void)
{
	struct vb_cm_id **slot;
	struct vb_cm_news n;

	switch (pick(12)) {
	case 0:
		slot = some_id(false);
		if (slot)
			begin_id(slot);
		break;
	case 1:
	case 2:
		while (!vb_cm_channel_get(channel, &n))
			hear_of(&n);
		break;
	case 3:
	case 4:
		slot = some_id(true);
		if (slot)
			call_id(*slot);
		break;
	case 5:
		slot = some_id(true);
		if (slot && !pick(2)) {
			vb_cm_id_end(*slot);
			*slot = NULL;
		}
		break;
	case 6:
		below_settle();
		break;
	case 7:
		below_wait(forge_random(&forge) % (pick(8) ? 20 * VB_MSEC : 100 * VB_SEC));
		break;
	case 8:
		if (!pick(8))
			below_gone(below_device(pick(2)), 1 + pick(3), 0, "it ended");
		break;
	default:
		id_hears();
		break;
	}
}

static void identifiers(uint64_t seed, unsigned turns)
{
	struct vb_cm_id *listeners[2];

	forge_begin(&forge, seed);
	below_open();
	below.filter = overhear;
	channel = below_channel(NULL);
	for (unsigned ud = 0; ud < 2; ud++) {
		listeners[ud] = new_id(ud);
		assert_int_equal(vb_cm_id_bind(listeners[ud], below_addr("::", PORT)), 0);
		assert_int_equal(vb_cm_id_listen(listeners[ud], 4), 0);
	}
	while (turns--)
		turn_ids();
	for (unsigned i = 0; i < IDS; i++)
		if (ids[i])
			vb_cm_id_end(ids[i]);
	memset(ids, 0, sizeof(ids));
	for (unsigned ud = 0; ud < 2; ud++)
		vb_cm_id_end(listeners[ud]);
	vb_cm_channel_close(channel);
	below.filter = NULL;
	below_wait(2 * vb_cm_time(31));
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(below_device(i)->cm->numbers.used, 0);
	below_close();
}

static void identifiers_take_whatever_comes(void **state)
{
	(void)state;
	for_each_seed() for (unsigned i = 0; i < worlds(); i++)
	    identifiers(seeds.current + i * 100000, TURNS);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(engines_take_whatever_comes, seeds_tell),
	    cmocka_unit_test_teardown(identifiers_take_whatever_comes, seeds_tell),
	};

	seeds_choose(argc, argv, 300);
	return cmocka_run_group_tests(tests, golden_read, NULL);
}
