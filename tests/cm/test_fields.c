/* Communication management: the fields of its messages, what both ends know by them, and what is refused or
 * does nothing. */
#include <errno.h>
#include <string.h>

#include "cm_desk.h"

/* The latest message of each kind that was said. */
static struct vb_cm_msg said[VB_CM_APR + 1];
static uint8_t data[VB_CM_APR + 1][VB_CM_PRIVATE_MAX];

static enum net_verdict record(struct net *n, unsigned from, const struct vb_cm_msg *m)
{
	(void)n, (void)from;
	said[m->kind] = *m;
	memset(data[m->kind], 0, VB_CM_PRIVATE_MAX);
	if (m->private_data.len)
		memcpy(data[m->kind], m->private_data.at, m->private_data.len);
	return NET_PASS;
}

static struct desk *desk_recording(void)
{
	struct desk *d = desk_new();

	memset(said, 0, sizeof(said));
	net_listen(&d->n->nodes[1]);
	d->n->filter = record;
	d->req.responder_resources = 5;
	d->req.initiator_depth = 7;
	d->req.retry_count = 6;
	d->req.rnr_retry_count = 4;
	d->req.path_mtu = 3;
	d->req.srq = 1;
	d->req.pkey = 0x8001;
	d->req.primary.flow_label = 0x12345;
	d->req.primary.traffic_class = 0x68;
	d->req.primary.sl = 3;
	return d;
}

static void both_ends_know_what_was_agreed(void **state)
{
	struct desk *d = desk_recording();
	struct vb_cm_rep rep = {.qpn = 0x4321,
				.psn = 0xabcdef,
				.responder_resources = 2,
				.initiator_depth = 1,
				.rnr_retry_count = 7,
				.target_ack_delay = ACK};
	struct vb_cm_conn *a, *p;
	struct vb_cm_private card;
	uint8_t bytes[4];

	(void)state;
	desk_walk(d, "req");
	a = d->a->conn;
	p = d->p->conn;
	assert_int_equal(p->remote_comm_id, a->local_comm_id);
	assert_int_equal(p->service_id, NET_SERVICE);
	assert_int_equal(p->remote_ca_guid, d->n->nodes[0].guid);
	assert_int_equal(p->remote_qpn, d->req.qpn);
	assert_int_equal(p->remote_psn, d->req.psn);
	assert_int_equal(p->initiator_depth, 5); /* what the one can answer the other may ask */
	assert_int_equal(p->responder_resources, 7);
	assert_int_equal(p->retry_count, 6);
	assert_int_equal(p->rnr_retry_count, 4);
	assert_int_equal(p->path_mtu, 3);
	assert_int_equal(p->local_ack_timeout, ACK);
	assert_true(p->srq);
	assert_memory_equal(p->av.remote_gid, d->n->nodes[0].gid, 16);
	assert_memory_equal(p->av.local_gid, d->n->nodes[1].gid, 16);
	assert_int_equal(p->av.flow_label, 0x12345);
	assert_int_equal(p->av.traffic_class, 0x68);
	assert_int_equal(p->av.sl, 3);
	assert_int_equal(p->av.pkey, 0x8001);
	p->ece_options = 0x0badcafe;
	card = net_card(d->p, bytes);
	assert_int_equal(vb_cm_rep(p, &rep, &card, d->n->now), 0);
	net_run_for(d->n, PAUSE);
	assert_int_equal(a->remote_comm_id, p->local_comm_id);
	assert_int_equal(a->remote_ca_guid, d->n->nodes[1].guid);
	assert_int_equal(a->remote_qpn, 0x4321);
	assert_int_equal(a->remote_psn, 0xabcdef);
	assert_int_equal(a->initiator_depth, 2);
	assert_int_equal(a->responder_resources, 1);
	assert_int_equal(p->initiator_depth, 1);
	assert_int_equal(p->responder_resources, 2);
	assert_int_equal(a->rnr_retry_count, 7);
	assert_int_equal(a->target_ack_delay, ACK);
	assert_int_equal(a->local_ack_timeout, ACK + 1); /* the sum of two that are equal */
	assert_int_equal(said[VB_CM_REP].modifier, 0x0badcafe);
	desk_walk(d, "rtu dreq1 drep0");
	/* A transaction: what answers a REQ has its ID, what answers a DREQ that's. */
	assert_int_equal(said[VB_CM_REP].tid, said[VB_CM_REQ].tid);
	assert_int_equal(said[VB_CM_RTU].tid, said[VB_CM_REQ].tid);
	assert_int_equal(said[VB_CM_DREP].tid, said[VB_CM_DREQ].tid);
	assert_int_not_equal(said[VB_CM_DREQ].tid, said[VB_CM_REQ].tid);
	/* What is above the comm ID in it is chance: who has the comm ID next has another. */
	assert_true(said[VB_CM_DREQ].tid >> 32 && said[VB_CM_DREQ].tid >> 32 != said[VB_CM_REQ].tid >> 32);
	assert_int_equal(said[VB_CM_DREQ].dreq.remote_qpn, d->req.qpn);
	desk_free(d);
}

/* The initiator says nothing of what it has not; the target's QPN stands where an EE context's did. */
static void xrc_has_its_own_fields(void **state)
{
	struct desk *d = desk_recording();

	(void)state;
	desk_walk(d, "xrc req rep rtu");
	assert_int_equal(said[VB_CM_REQ].req.extended_type, 1);
	assert_int_equal(said[VB_CM_REQ].req.initiator_depth, 7);
	assert_int_equal(said[VB_CM_REQ].req.responder_resources, 0);
	assert_int_equal(said[VB_CM_REQ].req.retry_count, 0);
	assert_int_equal(said[VB_CM_REQ].req.rnr_retry_count, 0);
	assert_int_equal(said[VB_CM_REQ].req.srq, 0);
	assert_int_equal(said[VB_CM_REP].rep.qpn, 0);
	assert_int_equal(said[VB_CM_REP].rep.srq, 1);
	assert_int_equal(said[VB_CM_REP].rep.eecn, d->p->conn->local_qpn);
	assert_int_equal(d->a->conn->remote_qpn, d->p->conn->local_qpn);
	assert_int_equal(d->a->conn->remote_psn, d->p->conn->local_psn);
	desk_free(d);
}

static void a_rej_says_what_and_why(void **state)
{
	static const uint8_t info[VB_CM_REJ_INFO] = {9, 8, 7, [VB_CM_REJ_INFO - 1] = 6};
	uint8_t bytes[VB_CM_REJ_PRIVATE] = "no", guid[8] = {0, 2, 0xc9, 3, 0, 0, 0, 1};
	const struct vb_cm_private text = {bytes, sizeof(bytes)}, longer = {bytes, sizeof(bytes) + 1};
	struct desk *d = desk_recording();
	struct vb_cm_conn *p;

	(void)state;
	desk_walk(d, "req mra1");
	p = d->p->conn;
	assert_int_equal(vb_cm_rej(p, 77, info, sizeof(info), &longer, d->n->now), EINVAL);
	assert_int_equal(vb_cm_rej(p, 77, info, sizeof(info) + 1, &text, d->n->now), EINVAL);
	assert_int_equal(p->state, VB_CM_MRA_REQ_SENT);
	assert_int_equal(vb_cm_rej(p, 77, info, sizeof(info), &text, d->n->now), 0);
	assert_int_equal(said[VB_CM_REJ].rej.reason, 77);
	assert_int_equal(said[VB_CM_REJ].rej.info_len, sizeof(info));
	assert_memory_equal(said[VB_CM_REJ].rej.info, info, sizeof(info));
	assert_memory_equal(data[VB_CM_REJ], bytes, sizeof(bytes));
	assert_int_equal(said[VB_CM_REJ].rej.local_comm_id, d->p->comm_id);
	assert_int_equal(said[VB_CM_REJ].rej.remote_comm_id, d->a->comm_id);
	net_run_for(d->n, PAUSE);
	assert_int_equal(d->a->reason, 77);
	/* Who gives up before it was answered names itself by its CA GUID (12.6.7.2). */
	desk_walk(d, "req end0");
	assert_int_equal(said[VB_CM_REJ].rej.reason, VB_CM_REJ_TIMEOUT);
	assert_int_equal(said[VB_CM_REJ].rej.remote_comm_id, 0);
	assert_int_equal(said[VB_CM_REJ].rej.info_len, sizeof(guid));
	assert_memory_equal(said[VB_CM_REJ].rej.info, guid, sizeof(guid));
	desk_free(d);
}

static void what_does_not_fit_is_refused(void **state)
{
	static const uint8_t bytes[VB_CM_PRIVATE_MAX + 1];
	struct desk *d = desk_recording();
	struct vb_cm_private p = {.at = bytes};
	struct vb_cm_av av = net_av(&d->n->nodes[0], &d->n->nodes[1]);
	struct vb_cm_sidr_req sidr = {.service_id = NET_SERVICE};
	struct vb_cm_rep rep = {.qpn = 4};
	uint64_t now = d->n->now;

	(void)state;
#define TRY(kind, call)                     \
	p.len = VB_CM_##kind##_PRIVATE + 1; \
	assert_int_equal(call, EINVAL);     \
	p.len = VB_CM_##kind##_PRIVATE;     \
	assert_int_equal(call, 0);          \
	net_run_for(d->n, PAUSE);
	d->a = net_end_new(&d->n->nodes[0]);
	d->req.service_type = 2;
	assert_int_equal(vb_cm_req(d->a->conn, &av, &d->req, NULL, now), EINVAL);
	d->req.service_type = VB_CM_SERVICE_UC;
	TRY(REQ, vb_cm_req(d->a->conn, &av, &d->req, &p, now));
	TRY(REP, vb_cm_rep(d->p->conn, &rep, &p, now));
	TRY(RTU, vb_cm_rtu(d->a->conn, &p, now));
	d->a->sure = true;
	TRY(DREQ, vb_cm_dreq(d->a->conn, &p, now));
	TRY(DREP, vb_cm_drep(d->p->conn, &p, now));
	d->a = net_end_new(&d->n->nodes[0]);
	d->a->sidr = true;
	TRY(SIDR_REQ, vb_cm_sidr_req(d->a->conn, &av, &sidr, ANSWER, 0, &p, now));
	TRY(SIDR_REP, vb_cm_sidr_rep(d->p->conn, &(struct vb_cm_sidr_rep){.qpn = 9, .qkey = 8}, &p, now));
	assert_int_equal(d->a->conn->remote_qpn, 9);
	assert_int_equal(d->a->conn->remote_qkey, 8);
	desk_free(d);
}

static void hear_as(struct desk *d, unsigned node, const struct vb_whom *whom, const struct vb_cm_msg *m)
{
	struct vb_cm_av from = net_av(&d->n->nodes[node], &d->n->nodes[1 - node]);
	uint8_t mad[VB_MAD_LEN];

	from.whom = *whom;
	if (whom->kind == VB_WHOM_ADDRESS)
		memcpy(from.remote_gid, &whom->gid, sizeof(from.remote_gid));
	vb_cm_msg_put(mad, m);
	vb_cm_input(d->n->nodes[node].cm, &from, mad, d->n->now);
}

/* That adapter sends it; 0: nobody knows which. */
static void hear_from(struct desk *d, unsigned node, uint32_t number, const struct vb_cm_msg *m)
{
	const struct vb_whom whom = vb_whom_at(number);

	hear_as(d, node, &whom, m);
}

static void hear(struct desk *d, unsigned node, const struct vb_cm_msg *m)
{
	hear_from(d, node, 0, m);
}

/* What has the right comm ID but not all else, and what is no message at all, changes nothing, and is
 * counted. */
static void strangers_change_nothing(void **state)
{
	struct desk *d = desk_recording();
	struct vb_cm_counts c;
	uint8_t mad[VB_MAD_LEN] = {1, VB_MAD_CLASS_CM, VB_MAD_CM_VERSION, VB_MAD_SEND};
	uint32_t ours, theirs, wrong;
	uint64_t sent;

	(void)state;
	desk_walk(d, "req rep rtu");
	ours = d->p->comm_id;
	theirs = d->a->comm_id;
	wrong = theirs ^ 1;
	vb_cm_input(d->n->nodes[1].cm, &d->p->conn->av, mad, d->n->now); /* attribute 0 */
	sent = d->n->sent;
	hear(d, 1, &(struct vb_cm_msg){.kind = VB_CM_DREP, .drep = {theirs, ours}});
	hear(
	    d, 1,
	    &(struct vb_cm_msg){.kind = VB_CM_REP, .rep = {.local_comm_id = theirs, .remote_comm_id = ours}});
	hear(
	    d, 1,
	    &(struct vb_cm_msg){.kind = VB_CM_APR, .apr = {.local_comm_id = theirs, .remote_comm_id = ours}});
	hear(d, 1,
	     &(struct vb_cm_msg){.kind = VB_CM_DREQ, .dreq = {theirs, ours, d->p->conn->local_qpn ^ 1}});
	hear(d, 1, &(struct vb_cm_msg){.kind = VB_CM_SIDR_REP, .sidr_rep.request_id = ours});
	hear(d, 1,
	     &(struct vb_cm_msg){.kind = VB_CM_REJ, .rej = {wrong, ours, VB_CM_ABOUT_OTHER, 0, 28, {0}}});
	hear(d, 1,
	     &(struct vb_cm_msg){.kind = VB_CM_REJ, .rej = {theirs, ours, VB_CM_ABOUT_REQ, 0, 28, {0}}});
	hear(d, 1, &(struct vb_cm_msg){.kind = VB_CM_REJ, .rej = {wrong, 0, VB_CM_ABOUT_OTHER, 8, 4, {9}}});
	hear(d, 1, &(struct vb_cm_msg){.kind = VB_CM_DREP, .drep = {theirs, wrong}});
	hear(d, 1, &(struct vb_cm_msg){.kind = VB_CM_MRA, .mra = {theirs, ours, VB_CM_ABOUT_REP, 3}});
	assert_int_equal(d->n->sent, sent);
	hear(d, 1, &(struct vb_cm_msg){.kind = VB_CM_DREQ, .dreq = {wrong, ours, d->p->conn->local_qpn}});
	assert_int_equal(d->n->sent, sent + 1); /* of another connection, so it is over */
	assert_int_equal(said[VB_CM_DREP].drep.local_comm_id, ours);
	assert_int_equal(said[VB_CM_DREP].drep.remote_comm_id, wrong);
	assert_int_equal(d->p->conn->state, VB_CM_ESTABLISHED);
	vb_cm_counts(d->n->nodes[1].cm, &c);
	assert_int_equal(c.malformed, 1);
	assert_int_equal(c.unknown_comm_id, 6);
	assert_int_equal(c.unexpected, 3);
	assert_int_equal(c.duplicates, 2);
	/* An MRA that is about something else. */
	desk_walk(d, "req");
	hear(d, 0,
	     &(struct vb_cm_msg){.kind = VB_CM_MRA,
				 .mra = {d->p->comm_id, d->a->comm_id, VB_CM_ABOUT_REP, 3}});
	assert_int_equal(d->a->conn->state, VB_CM_REQ_SENT);
	desk_walk(d, "rep");
	hear(d, 1,
	     &(struct vb_cm_msg){.kind = VB_CM_MRA,
				 .mra = {d->a->comm_id, d->p->comm_id, VB_CM_ABOUT_OTHER, 3}});
	assert_int_equal(d->p->conn->state, VB_CM_REP_SENT);
	desk_free(d);
}

/* A transaction ID that is an echo of another REQ's of the same comm ID shows that the REP is not for this
 * one; of any other ID nothing is said. */
static void a_rep_is_for_its_req(void **state)
{
	struct desk *d = desk_recording();
	uint8_t card[VB_CM_REP_PRIVATE] = {77};
	struct vb_cm_msg m = {.kind = VB_CM_REP,
			      .rep = {.local_comm_id = 0x10100077, .qpn = 9, .ca_guid = 8},
			      .private_data = {card, sizeof(card)}};

	(void)state;
	d->full = true;
	desk_walk(d, "req");
	m.rep.remote_comm_id = d->a->comm_id;
	m.tid = said[VB_CM_REQ].tid ^ 1ull << 40;
	hear(d, 0, &m);
	assert_int_equal(d->a->conn->state, VB_CM_REQ_SENT);
	assert_int_equal(said[VB_CM_REJ].rej.reason, VB_CM_REJ_INVALID_COMM_ID);
	assert_int_equal(said[VB_CM_REJ].rej.remote_comm_id, m.rep.local_comm_id);
	m.tid = 5;
	hear(d, 0, &m);
	assert_int_equal(d->a->conn->state, VB_CM_REP_RCVD);
	desk_free(d);
}

enum { ENDS = 3 };

/* What would end the passive end's connection if the far end said it. */
static struct vb_cm_msg what_ends_it(const struct desk *d, unsigned i)
{
	const struct net_node *nodes = d->n->nodes;
	struct vb_cm_msg m;

	if (i == 0) {
		m = (struct vb_cm_msg){.kind = VB_CM_DREQ};
		m.dreq = (struct vb_cm_dreq){d->a->comm_id, d->p->comm_id, d->p->conn->local_qpn};
	} else if (i == 1) {
		m = (struct vb_cm_msg){.kind = VB_CM_REJ};
		m.rej = (struct vb_cm_rej_msg){.local_comm_id = d->a->comm_id,
					       .remote_comm_id = d->p->comm_id,
					       .about = VB_CM_ABOUT_OTHER,
					       .reason = VB_CM_REJ_CONSUMER};
	} else { /* of the far end's queue pair */
		m = (struct vb_cm_msg){.kind = VB_CM_REQ, .req = d->req};
		m.req.ca_guid = nodes[0].guid;
		m.req.local_comm_id = nodes[2].number << VB_CM_INDEX_BITS | 7;
	}
	return m;
}

/* All of it is right but the process that says it.  The far end itself is heard. */
static void who_speaks_for_others_is_not_heard(void **state)
{
	(void)state;
	for (unsigned i = 0; i < ENDS; i++) {
		struct desk *d = desk_recording();
		struct net_node *nodes = d->n->nodes;
		struct vb_cm_counts c;
		struct vb_cm_msg m;
		bool answered;
		uint64_t sent;

		desk_walk(d, "req rep rtu");
		m = what_ends_it(d, i);
		answered = m.kind == VB_CM_REQ;
		sent = d->n->sent;
		hear_from(d, 1, nodes[2].number, &m);
		assert_int_equal(d->p->conn->state, VB_CM_ESTABLISHED);
		assert_int_equal(d->n->sent, sent + answered);
		vb_cm_counts(nodes[1].cm, &c);
		assert_int_equal(c.unknown_comm_id, !answered);
		assert_int_equal(c.refused, answered);
		hear_from(d, 1, nodes[0].number, &m);
		assert_int_not_equal(d->p->conn->state, VB_CM_ESTABLISHED);
		desk_free(d);
	}
}

/* Another host speaks for connections with its own address only, whatever numbers its comm IDs have; and a
 * process of this host for none of those. */
static void another_host_speaks_for_itself(void **state)
{
	(void)state;
	for (unsigned i = 0; i < ENDS; i++) {
		struct desk *d = desk_recording();
		struct net_node *nodes = d->n->nodes;
		struct vb_whom host = {.kind = VB_WHOM_ADDRESS, .gid = vb_gid_of(nodes[2].gid)};
		struct vb_cm_msg m;

		desk_walk(d, "req rep rtu");
		m = what_ends_it(d, i);
		d->n->to = (struct vb_whom){0};
		hear_as(d, 1, &host, &m);
		assert_int_equal(d->p->conn->state, VB_CM_ESTABLISHED);
		if (m.kind == VB_CM_REQ) /* whom it is refused to */
			assert_memory_equal(&d->n->to.gid, nodes[2].gid, 16);
		memcpy(&host.gid, nodes[0].gid, 16);
		d->p->conn->av.whom = host;
		hear_from(d, 1, nodes[0].number, &m);
		assert_int_equal(d->p->conn->state, VB_CM_ESTABLISHED);
		hear_as(d, 1, &host, &m);
		assert_int_not_equal(d->p->conn->state, VB_CM_ESTABLISHED);
		desk_free(d);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(both_ends_know_what_was_agreed),
	    cmocka_unit_test(xrc_has_its_own_fields),
	    cmocka_unit_test(a_rej_says_what_and_why),
	    cmocka_unit_test(what_does_not_fit_is_refused),
	    cmocka_unit_test(strangers_change_nothing),
	    cmocka_unit_test(who_speaks_for_others_is_not_heard),
	    cmocka_unit_test(another_host_speaks_for_itself),
	    cmocka_unit_test(a_rep_is_for_its_req),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
