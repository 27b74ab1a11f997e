/* Communication management in virtual time (IBTA volume 1, chapter 12): what is said and told in each
 * situation, literally; what each state permits; and when it is done. */
#include <errno.h>
#include <string.h>

#include "cm/conn.h"
#include "cm_desk.h"

#include "cm_scenes.h"

static void what_is_said_and_told(void **state)
{
	unsigned wrong = 0;

	(void)state;
	for (size_t i = 0; i < LENGTH(scenes); i++) {
		const struct scene *s = &scenes[i];
		struct desk *d = desk_new();

		net_listen(&d->n->nodes[1]);
		desk_walk(d, s->words);
		if (strcmp(d->n->trace, s->want) != 0) {
			print_message("%s: %s\n  said: %s\n  want: %s\n", s->name, s->words, d->n->trace,
				      s->want);
			wrong++;
		}
		desk_free(d);
	}
	assert_int_equal(wrong, 0);
}

/* Every call in every state: which are permitted.  Those that are not answer EINVAL and change nothing. */
static int call(struct net_end *e, enum vb_cm_call which)
{
	struct vb_cm_conn *c = e->conn;
	struct vb_cm_av av = net_av(e->node, &e->node->net->nodes[1 - e->node->index]);
	uint64_t now = e->node->net->now;
	struct vb_cm_req req = {.service_id = NET_SERVICE, .qpn = 5};
	struct vb_cm_rep rep = {.qpn = 6};
	struct vb_cm_sidr_req sidr = {.service_id = NET_SERVICE};
	struct vb_cm_sidr_rep sidr_rep = {.status = VB_CM_SIDR_REJECT};
	uint8_t bytes[4];
	struct vb_cm_private card = net_card(e, bytes);

	switch (which) {
	case VB_CM_CALL_LISTEN:
		return vb_cm_listen(c);
	case VB_CM_CALL_REQ:
		return vb_cm_req(c, &av, &req, &card, now);
	case VB_CM_CALL_REP:
		return vb_cm_rep(c, &rep, &card, now);
	case VB_CM_CALL_RTU:
		return vb_cm_rtu(c, NULL, now);
	case VB_CM_CALL_MRA:
		return vb_cm_mra(c, MRA, now);
	case VB_CM_CALL_REJ:
		return vb_cm_rej(c, VB_CM_REJ_CONSUMER, NULL, 0, NULL, now);
	case VB_CM_CALL_ESTABLISHED:
		return vb_cm_established(c, now);
	case VB_CM_CALL_DREQ:
		return vb_cm_dreq(c, NULL, now);
	case VB_CM_CALL_DREP:
		return vb_cm_drep(c, NULL, now);
	case VB_CM_CALL_SIDR_REQ:
		return vb_cm_sidr_req(c, &av, &sidr, ANSWER, 0, &card, now);
	default:
		return vb_cm_sidr_rep(c, &sidr_rep, NULL, now);
	}
}

static void calls_are_permitted_by_state(void **state)
{
#define MAY(call) (1u << VB_CM_CALL_##call)
	static const struct {
		const char *words; /* "" : a connection that was just made */
		bool passive;
		enum vb_cm_state in;
		unsigned may;
	} rows[] = {
	    {"", false, VB_CM_IDLE, MAY(LISTEN) | MAY(REQ) | MAY(SIDR_REQ)},
	    {"req rej1", false, VB_CM_IDLE, 0}, /* it has had its exchange */
	    {"req rep rtu dreq1 drep0 over", false, VB_CM_IDLE, 0},
	    {"req", false, VB_CM_REQ_SENT, MAY(REJ)},
	    {"req", true, VB_CM_REQ_RCVD, MAY(REP) | MAY(MRA) | MAY(REJ)},
	    {"req mra1", true, VB_CM_MRA_REQ_SENT, MAY(REP) | MAY(REJ)},
	    {"req mra1", false, VB_CM_MRA_REQ_RCVD, MAY(REJ)},
	    {"req rep", true, VB_CM_REP_SENT, MAY(REJ) | MAY(ESTABLISHED)},
	    {"req rep", false, VB_CM_REP_RCVD, MAY(RTU) | MAY(MRA) | MAY(REJ)},
	    {"req rep mra0", false, VB_CM_MRA_REP_SENT, MAY(RTU) | MAY(REJ)},
	    {"req rep mra0", true, VB_CM_MRA_REP_RCVD, MAY(REJ) | MAY(ESTABLISHED)},
	    {"req rep rtu", false, VB_CM_ESTABLISHED, MAY(DREQ)},
	    {"req rep rtu", true, VB_CM_ESTABLISHED, MAY(DREQ)},
	    {"req rep rtu lose=DREQ dreq0", false, VB_CM_DREQ_SENT, 0},
	    {"req rep rtu dreq0", true, VB_CM_DREQ_RCVD, MAY(DREP)},
	    {"req rep rtu dreq0 drep1", false, VB_CM_TIMEWAIT, 0},
	    {"sidr", false, VB_CM_SIDR_REQ_SENT, 0},
	    {"sidr", true, VB_CM_SIDR_REQ_RCVD, MAY(SIDR_REP)},
	};

	(void)state;
	for (size_t i = 0; i < LENGTH(rows); i++) {
		for (unsigned k = 0; k < VB_CM_CALLS; k++) {
			struct desk *d = desk_new();
			enum vb_cm_state was;
			struct net_end *e;
			int want, err;

			net_listen(&d->n->nodes[1]);
			desk_walk(d, rows[i].words);
			e = !*rows[i].words ? net_end_new(&d->n->nodes[0]) : rows[i].passive ? d->p : d->a;
			was = e->conn->state;
			assert_string_equal(vb_cm_state_name(was), vb_cm_state_name(rows[i].in));
			err = call(e, k);
			want = rows[i].may >> k & 1 ? 0 : EINVAL;
			if (was == VB_CM_ESTABLISHED && k == VB_CM_CALL_ESTABLISHED)
				want = EISCONN;
			if (err != want)
				fail_msg("call %u in %s: %d, not %d", k, vb_cm_state_name(was), err, want);
			assert_true(err ? e->conn->state == was : e->conn->state != was);
			desk_free(d);
		}
	}
}

/* When each message of a kind was said, and each event told, in virtual time since the first. */
static struct {
	uint64_t said[8], told[8];
	unsigned n, t;
} clock_of;

static enum net_verdict note(struct net *n, unsigned from, const struct vb_cm_msg *m)
{
	(void)from, (void)m;
	if (clock_of.n < 8)
		clock_of.said[clock_of.n++] = n->now;
	return desk_filter(n, from, m);
}

static bool note_event(struct net_end *e, const struct vb_cm_event *ev)
{
	if (clock_of.t < 8)
		clock_of.told[clock_of.t++] = e->node->net->now;
	return desk_upper(e, ev);
}

/* 12.9.8.5: the far end's time to answer, and what packets need both ways; a MRA's time takes the place of
 * the former.  4.096 us * 2^code. */
static void timers_go_off_at_their_instants(void **state)
{
	const uint64_t t = (4096ull << ANSWER) + (4096ull << ACK), mra = (4096ull << MRA) + (4096ull << ACK),
		       sidr = 4096ull << ANSWER, ms = VB_MSEC;
	const struct {
		const char *words; /* the first with a + is said at the instant 0 */
		uint64_t said[6], told[4];
	} rows[] = {
	    {"full req+ over", {0, t, 2 * t, 3 * t}, {ms, t + ms, 2 * t + ms, 3 * t}},
	    {"req mra1+ over",
	     {0, ms + mra, 2 * ms + mra, ms + 2 * mra, 2 * ms + 2 * mra, ms + 3 * mra},
	     {0}},
	    {"req rep+ over", {0, t, 2 * t, 3 * t}, {ms, 3 * t, 3 * t + ms}},
	    {"req rep rtu lose=DREQ dreq0+ restart1+ lose=DREP over",
	     {0, t, t + ms, 2 * t, 2 * t + ms},
	     {2 * t + 2 * ms}},
	    {"full sidr+ over", {0, sidr, 2 * sidr}, {ms, sidr + ms, 2 * sidr + ms, 3 * sidr}},
	    /* TIMEWAIT: as long as packets may be about, and the passive end takes to acknowledge them. */
	    {"req rep rtu dreq0 drep1+ over",
	     {0},
	     {ms, 4096ull << ACK, ms + (4096ull << ACK) + (4096ull << DELAY)}},
	};

	(void)state;
	for (size_t i = 0; i < LENGTH(rows); i++) {
		const char *plus = strchr(rows[i].words, '+');
		struct desk *d = desk_new();
		char before[64] = "";
		uint64_t start;

		net_listen(&d->n->nodes[1]);
		while (plus > rows[i].words && plus[-1] != ' ')
			plus--;
		memcpy(before, rows[i].words, (size_t)(plus - rows[i].words));
		desk_walk(d, before);
		memset(&clock_of, 0, sizeof(clock_of));
		d->n->filter = note;
		d->n->upper = note_event;
		start = d->n->now;
		desk_walk(d, plus);
		for (unsigned k = 0; k < LENGTH(rows[i].said) && (!k || rows[i].said[k]); k++)
			assert_int_equal(clock_of.said[k] - start, rows[i].said[k]);
		for (unsigned k = 0; k < LENGTH(rows[i].told) && rows[i].told[k]; k++)
			assert_int_equal(clock_of.told[k] - start, rows[i].told[k]);
		desk_free(d);
	}
}

/* How long a comm ID is not given again after its connection was ended: while packets may be about, and while
 * a far end may go on answering a REQ if it was not told that nobody waits. */
static void a_comm_id_rests(void **state)
{
	const uint64_t about = 4096ull << ACK, delay = 4096ull << DELAY,
		       late = (RETRIES + 1) * ((4096ull << ANSWER) + about);
	const struct {
		const char *words;
		uint64_t rests;
	} rows[] = {
	    {"req end0+", late},
	    {"req mra1 end0+", late},
	    {"full req over end0+", late}, /* UNREACHED, and the REJ may have been lost */
	    {"req rep end0+", late},
	    {"req rep rtu end0+", about + delay},
	    {"req rep rtu dreq1 end0+", about + delay},
	    {"req rep rtu dreq1 drep0 over end0+", 0},
	    {"req end1+", 0}, /* nobody has heard of it */
	    {"req mra1 end1+", about},
	    {"req rep end1+", about},
	    {"req rep rtu end1+", about},
	    {"sidr end1+", 0},
	};

	(void)state;
	for (size_t i = 0; i < LENGTH(rows); i++) {
		struct desk *d = desk_new();
		struct net_end *e;
		uint64_t end;

		net_listen(&d->n->nodes[1]);
		desk_walk(d, rows[i].words);
		e = rows[i].words[strlen(rows[i].words) - 2] == '0' ? d->a : d->p;
		end = d->n->now + rows[i].rests;
		for (unsigned after = rows[i].rests ? 0 : 1; after < 2; after++) {
			struct vb_cm *cm = e->node->cm;
			struct vb_cm_conn *c;

			net_run_until(d->n, end - 1 + after);
			cm->index = (e->comm_id - 1) & ((1u << VB_CM_INDEX_BITS) - 1);
			c = vb_cm_new(cm, NULL);
			assert_int_equal(c->local_comm_id == e->comm_id, after);
			vb_cm_end(c, d->n->now);
		}
		desk_free(d);
	}
}

/* From when packets of its QP may be about until TIMEWAIT is over; its connection may be there longer. */
static void a_queue_pair_rests(void **state)
{
	static const struct {
		const char *words;
		bool rests[2];
	} rows[] = {
	    {"req", {false, false}},
	    {"req rep", {false, true}},
	    {"req rep rtu", {true, true}},
	    {"req rep rtu dreq0", {true, true}},
	    {"req rep rtu dreq0 drep1", {true, true}},
	    {"req rep rtu dreq0 drep1 over", {false, false}},
	    {"req rej1", {false, false}},
	};

	(void)state;
	for (size_t i = 0; i < LENGTH(rows); i++) {
		struct desk *d = desk_new();

		net_listen(&d->n->nodes[1]);
		desk_walk(d, rows[i].words);
		assert_int_equal(vb_cm_qpn_waits(d->n->nodes[0].cm, d->a->conn->local_qpn), rows[i].rests[0]);
		if (d->p->conn->local_qpn)
			assert_int_equal(vb_cm_qpn_waits(d->n->nodes[1].cm, d->p->conn->local_qpn),
					 rows[i].rests[1]);
		desk_free(d);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_is_said_and_told),
	    cmocka_unit_test(calls_are_permitted_by_state),
	    cmocka_unit_test(timers_go_off_at_their_instants),
	    cmocka_unit_test(a_comm_id_rests),
	    cmocka_unit_test(a_queue_pair_rests),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
