/* The conversations of the kernel's rdma_cm (golden/mads.h), of which either end can be taken by the protocol
 * here: it says what the kernel said, byte by byte, tells what the kernel told, has the attributes for queue
 * pairs that the kernel had, and comes to the states that follow from that. */
#include <endian.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cm/conn.h"
#include "cm_golden.h"
#include "golden/values.h"

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

enum { CONNS = 4, SAID = 8, TIDS = 8, ROOM = 512 };

/* The protocol here in the place of one end. */
static struct part {
	const char *story;
	enum golden_end end;
	struct vb_cm *cm;
	struct vb_lock lock;
	uint64_t now;
	struct vb_cm_conn *listener, *conn[CONNS];
	bool parted[CONNS]; /* it has been told of its end */
	enum vb_cm_state was[CONNS];
	unsigned conns;
	uint8_t said[SAID][VB_MAD_LEN];
	unsigned n, taken;     /* what was said, and what was expected of it */
	uint64_t tid[TIDS][2]; /* the kernel's, ours */
	unsigned tids;
	char states[ROOM], told[ROOM];
} part;

static void add(char text[ROOM], const char *between, const char *more)
{
	size_t n = strlen(text);

	assert_true(n + strlen(between) + strlen(more) < ROOM);
	snprintf(text + n, ROOM - n, "%s%s", n ? between : "", more);
}

static void carry(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_whom *to,
		  const struct vb_cm_msg *m, const uint8_t mad[VB_MAD_LEN])
{
	(void)cm, (void)av, (void)to, (void)m;
	assert_true(part.n < SAID);
	memcpy(part.said[part.n++], mad, VB_MAD_LEN);
}

static unsigned index_of(const struct vb_cm_conn *c)
{
	unsigned i = 0;

	while (i < part.conns && part.conn[i] != c)
		i++;
	assert_true(i < part.conns);
	return i;
}

static void tell(const char *event, int status)
{
	char text[64];

	snprintf(text, sizeof(text), status ? "%s %d" : "%s", event, status);
	add(part.told, ", ", text);
}

static void tell_end(const struct vb_cm_conn *c)
{
	unsigned i = index_of(c);

	if (!part.parted[i])
		tell("DISCONNECTED", 0);
	part.parted[i] = true;
}

/* What rdma_cm does and tells: it has an MRA ready once a program has something to answer. */
static bool event(struct vb_cm_conn *c, const struct vb_cm_event *e)
{
	switch (e->what) {
	case VB_CM_EV_REQ:
	case VB_CM_EV_SIDR_REQ:
		assert_true(part.conns < CONNS);
		part.conn[part.conns++] = c;
		if (!strcmp(part.story, "wrong-type")) /* whom rdma_cm refuses by itself */
			break;
		tell("CONNECT_REQUEST", 0);
		if (e->what == VB_CM_EV_REQ)
			assert_int_equal(vb_cm_mra(c, 24 | VB_CM_MRA_LAZY, part.now), 0);
		break;
	case VB_CM_EV_REP:
		tell("CONNECT_RESPONSE", 0);
		assert_int_equal(vb_cm_mra(c, 24 | VB_CM_MRA_LAZY, part.now), 0);
		break;
	case VB_CM_EV_RTU:
		tell("ESTABLISHED", 0);
		break;
	case VB_CM_EV_REJ: /* a program is told of a connection once it has accepted it */
		if (c->active || c->local_qpn)
			tell("REJECTED", e->msg->rej.reason);
		break;
	case VB_CM_EV_DREQ:
	case VB_CM_EV_DREP:
		assert_false(e->timed_out);
		tell_end(c);
		break;
	case VB_CM_EV_TIMEWAIT_OVER:
		tell("TIMEWAIT_EXIT", 0);
		break;
	case VB_CM_EV_SIDR_REP:
		tell(e->msg->sidr_rep.status ? "UNREACHABLE" : "ESTABLISHED", e->msg->sidr_rep.status);
		break;
	default:
		fail_msg("%s: told of %d", part.story, e->what);
	}
	return true;
}

static struct vb_cm_conn *listener(struct vb_cm *cm, const struct vb_cm_msg *m, const struct vb_cm_av *av)
{
	(void)cm, (void)m, (void)av;
	return part.listener;
}

static uint32_t chance(struct vb_cm *cm)
{
	(void)cm;
	return 0x5eed;
}

static const struct vb_cm_ops ops = {.send = carry, .event = event, .listener = listener, .chance = chance};

static bool is_nobody(const char *story)
{
	return strstr(story, "nobody") != NULL;
}

/* The CA GUID of an end, by what it says; 0: it never says it. */
static uint64_t guid_of(const char *story, enum golden_end end)
{
	for (size_t i = 0; i < golden_n; i++)
		if (!strcmp(golden[i].story, story) && golden[i].by == end) {
			if (golden[i].m.kind == VB_CM_REQ)
				return golden[i].m.req.ca_guid;
			if (golden[i].m.kind == VB_CM_REP)
				return golden[i].m.rep.ca_guid;
		}
	return 0;
}

static void begin(const char *story, enum golden_end end)
{
	part = (struct part){.story = story, .end = end, .now = VB_SEC};
	vb_lock_take(&part.lock); /* finish() */
	assert_int_equal(vb_cm_open(&part.cm, &ops, NULL, &part.lock, 1, guid_of(story, end)), 0);
	if (end != PASSIVE || is_nobody(story))
		return;
	part.listener = vb_cm_new(part.cm, NULL);
	assert_int_equal(vb_cm_listen(part.listener), 0);
}

static void finish(void)
{
	for (unsigned i = 0; i < part.conns; i++)
		if (part.conn[i])
			vb_cm_end(part.conn[i], part.now);
	if (part.listener)
		vb_cm_end(part.listener, part.now);
	vb_cm_close(part.cm);
	vb_lock_give(&part.lock);
}

/* The next connection has that comm ID. */
static void have_id(uint32_t id)
{
	part.cm->number = VB_CM_NUMBER(id);
	part.cm->index = (id - 1) & ((1u << VB_CM_INDEX_BITS) - 1);
}

/* The comm ID that the kernel gave to the connection which this REQ asked for; 0: it never said it. */
static uint32_t id_for(const struct golden *req)
{
	for (size_t i = 0; i < golden_n; i++) {
		const struct golden *g = &golden[i];

		if (!strcmp(g->story, part.story) && g->by == part.end && g->m.kind != VB_CM_REQ &&
		    g->m.rtu.remote_comm_id == req->m.req.local_comm_id && g->m.rtu.local_comm_id)
			return g->m.rtu.local_comm_id;
	}
	return 0;
}

/* Transaction IDs are whoever's that begins the transaction: the kernel's have the number of an agent above
 * the comm ID, in another order of bytes; ours have chance there. */
static uint64_t translate(uint64_t tid, unsigned from)
{
	for (unsigned i = 0; i < part.tids; i++)
		if (part.tid[i][from] == tid)
			return part.tid[i][1 - from];
	return tid;
}

static uint64_t tid_of(const uint8_t *mad)
{
	uint64_t tid;

	memcpy(&tid, mad + 8, sizeof(tid));
	return be64toh(tid);
}

static void set_tid(uint8_t *mad, uint64_t tid)
{
	tid = htobe64(tid);
	memcpy(mad + 8, &tid, sizeof(tid));
}

static bool begins(uint16_t kind)
{
	return kind == VB_CM_REQ || kind == VB_CM_DREQ || kind == VB_CM_SIDR_REQ;
}

static void note_states(void)
{
	for (unsigned i = 0; i < part.conns; i++) {
		if (!part.conn[i] || part.conn[i]->state == part.was[i])
			continue;
		part.was[i] = part.conn[i]->state;
		add(part.states, " ", vb_cm_state_name(part.was[i]));
	}
}

static struct vb_cm_av way(const struct golden *g)
{
	struct vb_gid there = golden_to(g), here = golden_from(g);
	struct vb_cm_av av = {.hop_limit = 64, .pkey = 0xffff};

	memcpy(av.remote_gid, g->by == part.end ? &there : &here, 16);
	memcpy(av.local_gid, g->by == part.end ? &here : &there, 16);
	return av;
}

static void hear(const struct golden *g)
{
	struct vb_cm_av from = way(g);
	uint8_t mad[VB_MAD_LEN];

	if (g->m.kind == VB_CM_REQ && id_for(g))
		have_id(id_for(g));
	memcpy(mad, g->mad, VB_MAD_LEN);
	set_tid(mad, translate(g->m.tid, 0));
	vb_cm_input(part.cm, &from, mad, part.now);
}

/* The connection that said it, by its comm ID; NULL: a new one. */
static struct vb_cm_conn *speaker(const struct golden *g)
{
	for (unsigned i = 0; i < part.conns; i++) {
		struct vb_cm_conn *c = part.conn[i];
		uint32_t id = g->m.rtu.local_comm_id; /* the first field of all */

		if (g->m.kind == VB_CM_SIDR_REP ? c->remote_comm_id == id : c->local_comm_id == id)
			return c;
		if (g->m.kind == VB_CM_REJ && !id && c->remote_comm_id == g->m.rej.remote_comm_id)
			return c;
	}
	return NULL;
}

static struct vb_cm_conn *fresh(const struct golden *g)
{
	struct vb_cm_conn *c;

	have_id(g->m.rtu.local_comm_id);
	c = vb_cm_new(part.cm, NULL);
	assert_non_null(c);
	assert_true(part.conns < CONNS);
	part.conn[part.conns++] = c;
	return c;
}

/* The program's call that leads to this message. */
static int call(const struct golden *g)
{
	struct vb_cm_conn *c = speaker(g);
	const struct vb_cm_msg *m = &g->m;
	struct vb_cm_av av = way(g);
	bool again = c && m->kind == VB_CM_REQ, gone = !strncmp(part.story, "gone", 4);
	struct vb_cm_req req;
	struct vb_cm_rep rep;

	if (!c && (m->kind == VB_CM_REQ || m->kind == VB_CM_SIDR_REQ))
		c = fresh(g);
	assert_non_null(c);
	if (again || (c->inner->said == m->kind && vb_cm_next(part.cm) != VB_NEVER)) { /* nobody answers */
		part.now = vb_cm_next(part.cm);
		assert_int_not_equal(part.now, VB_NEVER);
		vb_cm_timer(part.cm, part.now);
		return 0;
	}
	if (gone && (m->kind == VB_CM_REJ || m->kind == VB_CM_DREQ)) {
		part.conn[index_of(c)] = NULL;
		vb_cm_end(c, part.now);
		return 0;
	}
	c->ece_options = m->modifier;
	switch (m->kind) {
	case VB_CM_REQ:
		req = m->req;
		if (req.service_type == VB_CM_SERVICE_XRC) { /* what was given and is not said */
			req.responder_resources = ASK_RESOURCES;
			req.retry_count = ASK_RETRIES;
			req.rnr_retry_count = ASK_RNR;
		}
		return vb_cm_req(c, &av, &req, &m->private_data, part.now);
	case VB_CM_REP:
		rep = m->rep;
		if (c->service_type == VB_CM_SERVICE_XRC) {
			rep.qpn = rep.eecn;
			rep.initiator_depth = GIVE_DEPTH;
			rep.flow_control = 1;
		}
		return vb_cm_rep(c, &rep, &m->private_data, part.now);
	case VB_CM_RTU:
		return vb_cm_rtu(c, &m->private_data, part.now);
	case VB_CM_REJ:
		return vb_cm_rej(c, m->rej.reason, m->rej.info, m->rej.info_len, &m->private_data, part.now);
	case VB_CM_DREQ:
		return vb_cm_dreq(c, &m->private_data, part.now);
	case VB_CM_DREP:
		return vb_cm_drep(c, &m->private_data, part.now);
	case VB_CM_SIDR_REQ:
		return vb_cm_sidr_req(c, &av, &m->sidr_req, 20, 15, &m->private_data, part.now);
	case VB_CM_SIDR_REP:
		return vb_cm_sidr_rep(c, &m->sidr_rep, &m->private_data, part.now);
	default:
		fail_msg("%s: no call says %s", part.story, golden_kind(g));
		return -1;
	}
}

/* The same bytes. */
static void check_said(const struct golden *g)
{
	uint8_t mad[VB_MAD_LEN];
	unsigned n = part.taken++;

	if (n >= part.n)
		fail_msg("%s: nothing is said for %s", part.story, golden_kind(g));
	memcpy(mad, part.said[n], VB_MAD_LEN);
	if (begins(g->m.kind) && translate(tid_of(mad), 1) == tid_of(mad)) {
		assert_true(part.tids < TIDS);
		part.tid[part.tids][0] = g->m.tid;
		part.tid[part.tids++][1] = tid_of(mad);
	}
	set_tid(mad, translate(tid_of(mad), 1));
	for (size_t i = 0; i < VB_MAD_LEN; i++)
		if (mad[i] != g->mad[i])
			fail_msg("%s: byte %zu of %s is 0x%02x, not 0x%02x", part.story, i, golden_kind(g),
				 mad[i], g->mad[i]);
}

static void play(const char *story, enum golden_end end)
{
	begin(story, end);
	for (size_t i = 0; i < golden_n; i++) {
		const struct golden *g = &golden[i];

		if (strcmp(g->story, story) != 0)
			continue;
		if (part.taken == part.n)
			part.taken = part.n = 0;
		part.now += VB_MSEC;
		if (g->by != end) {
			hear(g);
		} else {
			if (!part.n)
				assert_int_equal(call(g), 0);
			check_said(g);
		}
		note_states();
	}
	assert_int_equal(part.taken, part.n); /* and no more than that */
}

/* What a type of queue pair has no such attribute for is 0 there. */
static bool asks(const struct vb_cm_conn *c)
{
	return c->service_type == VB_CM_SERVICE_RC || (c->service_type == VB_CM_SERVICE_XRC && c->active);
}

static bool answers(const struct vb_cm_conn *c)
{
	return c->service_type == VB_CM_SERVICE_RC || (c->service_type == VB_CM_SERVICE_XRC && !c->active);
}

static void check_attr(const struct golden_attr *a)
{
	const struct vb_cm_conn *c = NULL;

	/* The PSN that an end names is the one with which the other begins to send to it. */
	for (unsigned i = 0; i < part.conns; i++)
		if (part.conn[i] && part.conn[i]->local_psn == a->rq_psn &&
		    part.conn[i]->remote_psn == a->sq_psn)
			c = part.conn[i];
	if (!c && !strncmp(part.story, "gone", 4))
		return;
	assert_non_null(c);
	assert_int_equal(c->remote_qpn, a->dest_qpn);
	assert_int_equal(c->path_mtu, a->path_mtu);
	assert_int_equal(asks(c) || answers(c) ? c->local_ack_timeout : 0, a->timeout);
	assert_int_equal(asks(c) ? c->retry_count : 0, a->retry_cnt);
	assert_int_equal(asks(c) ? c->rnr_retry_count : 0, a->rnr_retry);
	assert_int_equal(asks(c) ? c->initiator_depth : 0, a->max_rd_atomic);
	assert_int_equal(answers(c) ? c->responder_resources : 0, a->max_dest_rd_atomic);
}

#define CONNECTS "REQ_SENT MRA_REP_SENT ESTABLISHED"
#define ACCEPTS	 "MRA_REQ_SENT REP_SENT ESTABLISHED"
#define PARTS	 " DREQ_SENT TIMEWAIT"
#define AGREES	 " DREQ_RCVD TIMEWAIT"

/* The states that each end comes through; those of several connections as they come. */
static const struct {
	const char *story, *states[2];
} walks[] = {
    {"whole", {CONNECTS PARTS, ACCEPTS AGREES}},
    {"passive-parts", {CONNECTS AGREES, ACCEPTS PARTS}},
    {"slow-to-part", {CONNECTS PARTS, ACCEPTS AGREES}},
    {"rejected", {"REQ_SENT IDLE", "MRA_REQ_SENT IDLE"}},
    {"answer-rejected", {"REQ_SENT MRA_REP_SENT IDLE", "MRA_REQ_SENT REP_SENT IDLE"}},
    {"nobody", {"REQ_SENT IDLE", ""}},
    {"thinks-it-over", {"REQ_SENT MRA_REQ_RCVD MRA_REP_SENT ESTABLISHED" PARTS, ACCEPTS AGREES}},
    {"slow-to-establish", {CONNECTS PARTS, "MRA_REQ_SENT REP_SENT MRA_REP_RCVD ESTABLISHED" AGREES}},
    {"gone-asking", {"REQ_SENT", "MRA_REQ_SENT IDLE"}},
    {"gone-asked", {"REQ_SENT IDLE", "MRA_REQ_SENT"}},
    {"gone-answering", {"REQ_SENT MRA_REP_SENT TIMEWAIT", "MRA_REQ_SENT REP_SENT"}},
    {"gone-answered", {"REQ_SENT MRA_REP_SENT", "MRA_REQ_SENT REP_SENT IDLE"}},
    {"gone-live", {CONNECTS, ACCEPTS AGREES}},
    {"stale", {CONNECTS " REQ_SENT TIMEWAIT" AGREES, ACCEPTS PARTS}},
    {"again", {CONNECTS PARTS " " CONNECTS PARTS, ACCEPTS AGREES " " ACCEPTS AGREES}},
    {"options", {CONNECTS PARTS, ACCEPTS AGREES}},
    {"uc", {CONNECTS PARTS, ACCEPTS AGREES}},
    {"xrc", {CONNECTS PARTS, ACCEPTS AGREES}},
    {"wrong-type", {"REQ_SENT IDLE", "REQ_RCVD IDLE"}},
    {"sidr", {"SIDR_REQ_SENT IDLE", "SIDR_REQ_RCVD IDLE"}},
    {"sidr-rejected", {"SIDR_REQ_SENT IDLE", "SIDR_REQ_RCVD IDLE"}},
    {"sidr-nobody", {"SIDR_REQ_SENT IDLE", ""}},
    {"rping", {CONNECTS PARTS, ACCEPTS AGREES}},
    {"rping-6", {CONNECTS PARTS, ACCEPTS AGREES}},
    {"ucmatose", {CONNECTS AGREES, ACCEPTS PARTS}},
    {"udaddy", {"SIDR_REQ_SENT IDLE", "SIDR_REQ_RCVD IDLE"}},
};

static void either_end_can_be_taken(void **state)
{
	unsigned wrong = 0;

	(void)state;
	for (size_t i = 0; i < 2 * LENGTH(walks); i++) {
		const char *story = walks[i / 2].story, *want = walks[i / 2].states[i & 1];
		enum golden_end end = i & 1;

		play(story, end);
		for (size_t k = 0; k < golden_attrs_n; k++)
			if (!strcmp(golden_attrs[k].story, story) && golden_attrs[k].end == end)
				check_attr(&golden_attrs[k]);
		for (size_t k = 0; k < golden_told_n; k++) {
			if (strcmp(golden_told[k].story, story) != 0 || golden_told[k].end != end)
				continue;
			if (strstr(golden_told[k].events, "TIMEWAIT_EXIT"))
				vb_cm_timer(part.cm, part.now + 60 * VB_SEC);
			if (strcmp(part.told, golden_told[k].events) != 0) {
				print_message("%s, end %d, is told: %s\n  the kernel's: %s\n", story, end,
					      part.told, golden_told[k].events);
				wrong++;
			}
		}
		if (strcmp(part.states, want) != 0) {
			print_message("%s, end %d: %s\n  want: %s\n", story, end, part.states, want);
			wrong++;
		}
		finish();
	}
	assert_int_equal(wrong, 0);
}

/* Each story of the file is played. */
static void no_story_is_left_out(void **state)
{
	(void)state;
	for (size_t i = 0; i < golden_n; i++) {
		size_t k = 0;

		while (k < LENGTH(walks) && strcmp(walks[k].story, golden[i].story) != 0)
			k++;
		if (k == LENGTH(walks))
			fail_msg("nobody plays %s", golden[i].story);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(either_end_can_be_taken),
	    cmocka_unit_test(no_story_is_left_out),
	};

	return cmocka_run_group_tests(tests, golden_read, NULL);
}
