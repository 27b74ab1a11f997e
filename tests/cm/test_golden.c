/* What the kernel's rdma_cm said (golden/mads.h), byte by byte: it is read as it was meant, and the same
 * calls with the same values say the same here. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <string.h>

#include "cm_golden.h"
#include "cm_two.h"
#include "golden/values.h"

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

/* The n-th message of a kind in a story, 0 the first. */
static const struct golden *message(const char *story, uint16_t kind, unsigned n)
{
	for (size_t i = 0; i < golden_n; i++)
		if (!strcmp(golden[i].story, story) && golden[i].m.kind == kind && !n--)
			return &golden[i];
	fail_msg("%s has no 0x%x", story, kind);
	return NULL;
}

/* ---- bytes ---- */

static void all_are_put_as_they_were(void **state)
{
	uint8_t mad[VB_MAD_LEN];

	(void)state;
	for (size_t i = 0; i < golden_n; i++) {
		vb_cm_msg_put(mad, &golden[i].m);
		assert_memory_equal(mad, golden[i].mad, VB_MAD_LEN);
	}
}

static void all_icrcs_are_theirs(void **state)
{
	(void)state;
	for (size_t i = 0; i < golden_n; i++) {
		const struct golden *g = &golden[i];
		const uint8_t *udp = g->head + golden_ip_len(g), *bth = udp + VB_UDP_LEN;

		assert_int_equal(g->head_len, golden_ip_len(g) + VB_UDP_LEN + 20);
		assert_int_equal(vb_icrc_make(g->head, golden_ip_len(g), udp, bth, 20, g->mad, VB_MAD_LEN),
				 g->icrc);
	}
}

/* Those of soft-RoCE over IPv4 have identifications, which their ICRCs tell. */
static void their_identifications(void **state)
{
	unsigned n = 0;

	(void)state;
	for (size_t i = 0; i < golden_n; i++) {
		const struct golden *g = &golden[i];
		const uint8_t *udp = g->head + 20, *bth = udp + VB_UDP_LEN;
		uint8_t zero[20];
		uint16_t id;

		if (golden_ip_len(g) != 20)
			continue;
		memcpy(zero, g->head, sizeof zero);
		zero[4] = zero[5] = 0;
		assert_true(vb_icrc_recover(g->icrc, vb_icrc_make(zero, 20, udp, bth, 20, g->mad, VB_MAD_LEN),
					    20 + VB_MAD_LEN, &id));
		assert_int_equal(id, g->head[4] << 8 | g->head[5]);
		n += id != 0;
	}
	assert_true(n > 5);
}

/* What the capture's frames would have, but for these, which soft-RoCE fills otherwise. */
static void forget(const struct golden *g, uint8_t *head)
{
	uint8_t *udp = head + golden_ip_len(g);

	udp[VB_UDP_LEN + 1] &= (uint8_t)~0x40; /* it has no MigReq, which adapters set, */
	udp[VB_UDP_LEN + 8] &= (uint8_t)~0x80; /* and asks for ACKs that nobody sends */
	if (golden_ip_len(g) == 20) {
		memset(head + 4, 0, 2);	 /* an identification of its own for each packet */
		memset(head + 10, 0, 2); /* and so another checksum */
	} else {
		memset(udp + 6, 0, 2); /* no checksum, which IPv6 asks for */
	}
	memset(udp, 0, 2); /* a source port for each queue pair, whatever the flow label and the far end's */
}

static void their_packets_are_as_ours(void **state)
{
	uint8_t frame[VB_FRAME_MAX], *head = frame + VB_ETHER_LEN, want[GOLDEN_HEAD];
	size_t len;

	(void)state;
	for (size_t i = 0; i < golden_n; i++) {
		const struct golden *g = &golden[i];
		const uint8_t *bth = g->head + golden_ip_len(g) + VB_UDP_LEN;
		uint32_t psn, first;

		memcpy(&psn, bth + 8, sizeof(psn));
		memcpy(&first, g->head, sizeof(first));
		if (golden_ip_len(g) == 20)
			first =
			    htonl((uint32_t)g->head[1] << 20); /* the type of service, and no flow label */

		const struct vb_frame_ends e = {
		    .sgid = golden_from(g),
		    .dgid = golden_to(g),
		    .route = vb_route(VB_GRH_WORD(0, ntohl(first) >> 20 & 0xff, ntohl(first) & 0xfffff),
				      VB_GRH_HOPS, 0),
		    .src_qpn = VB_GSI_QPN};
		const struct vb_pkt p = {.opcode = VB_FAMILY_UD | VB_SEND_ONLY,
					 .pkey = 0xffff,
					 .qpn = VB_GSI_QPN,
					 .psn = ntohl(psn) & 0xffffff,
					 .qkey = VB_GSI_QKEY,
					 .src_qpn = VB_GSI_QPN,
					 .payload = g->mad,
					 .payload_len = VB_MAD_LEN};

		vb_frame_cut(frame, &e, &p, sizeof frame, &len);
		memcpy(want, g->head, g->head_len);
		forget(g, want);
		forget(g, head);
		for (size_t k = 0; k < g->head_len; k++)
			if (head[k] != want[k])
				fail_msg("%s: byte %zu of a %s's packet is 0x%02x, not 0x%02x", g->story, k,
					 golden_kind(g), head[k], want[k]);
		assert_memory_equal(head + g->head_len, g->mad, VB_MAD_LEN);
	}
}

/* ---- values ---- */

static void check_data(const struct golden *g, size_t skip, const char *text)
{
	struct vb_cm_private p = g->m.private_data;

	assert_memory_equal(p.at + skip, text, strlen(text));
	for (size_t i = skip + strlen(text); i < p.len; i++)
		assert_int_equal(p.at[i], 0);
}

static void check_header(const struct golden *g, int family, const char *src, const char *dst)
{
	size_t skip = family == AF_INET ? 12 : 0;
	uint8_t a[16] = {0}, b[16] = {0};
	struct vb_cm_ip ip;

	assert_int_equal(vb_cm_ip_get(g->m.private_data.at, &ip), 0);
	assert_int_equal(ip.version, family == AF_INET ? 4 : 6);
	assert_true(ip.port >= 1024);
	assert_int_equal(inet_pton(family, src, a + skip), 1);
	assert_int_equal(inet_pton(family, dst, b + skip), 1);
	assert_memory_equal(ip.src, a, 16);
	assert_memory_equal(ip.dst, b, 16);
}

static void a_req_is_what_rdma_connect_was_given(void **state)
{
	const struct golden *g = message("whole", VB_CM_REQ, 0);
	const struct vb_cm_req *r = &g->m.req;
	static const uint8_t from[16] = {[10] = 0xff, 0xff, 10, 78, 0, 1},
			     to[16] = {[10] = 0xff, 0xff, 10, 78, 0, 2};

	(void)state;
	assert_true(r->service_id == vb_cm_service_id(RDMA_PS_TCP, AT_PORT));
	assert_int_equal(r->qpn, ACTIVE_QPN);
	assert_int_equal(r->responder_resources, ASK_RESOURCES);
	assert_int_equal(r->initiator_depth, ASK_DEPTH);
	assert_int_equal(r->retry_count, ASK_RETRIES);
	assert_int_equal(r->rnr_retry_count, ASK_RNR);
	assert_int_equal(r->flow_control, 1);
	assert_int_equal(r->srq, 0);
	assert_int_equal(r->service_type, VB_CM_SERVICE_RC);
	assert_int_equal(r->pkey, 0xffff);
	assert_memory_equal(r->primary.local_gid, from, 16);
	assert_memory_equal(r->primary.remote_gid, to, 16);
	check_header(g, AF_INET, "10.78.0.1", "10.78.0.2");
	check_data(g, VB_CM_IP_LEN, SAID_REQ);
	assert_int_equal(message("uc", VB_CM_REQ, 0)->m.req.service_type, VB_CM_SERVICE_UC);
	r = &message("xrc", VB_CM_REQ, 0)->m.req;
	assert_int_equal(r->service_type, VB_CM_SERVICE_XRC);
	assert_int_equal(r->extended_type, 1);
	assert_true(r->service_id == vb_cm_service_id(RDMA_PS_IB, AT_PORT));
	r = &message("options", VB_CM_REQ, 0)->m.req;
	assert_int_equal(r->primary.traffic_class, TOS);
	assert_int_equal(r->primary.local_ack_timeout, ACK_TIMEOUT);
	assert_int_equal(r->vendor_id, ECE_VENDOR);
	assert_int_equal(message("options", VB_CM_REQ, 0)->m.modifier, ECE_OPTIONS);
	check_header(message("passive-parts", VB_CM_REQ, 0), AF_INET6, "fd78::1", "fd78::2");
}

static void a_rep_is_what_rdma_accept_was_given(void **state)
{
	const struct golden *g = message("whole", VB_CM_REP, 0);
	const struct vb_cm_rep *r = &g->m.rep;

	(void)state;
	assert_int_equal(r->remote_comm_id, message("whole", VB_CM_REQ, 0)->m.req.local_comm_id);
	assert_int_equal(r->qpn, PASSIVE_QPN + 1);
	assert_int_equal(r->responder_resources, GIVE_RESOURCES);
	assert_int_equal(r->initiator_depth, GIVE_DEPTH);
	assert_int_equal(r->rnr_retry_count, GIVE_RNR);
	assert_int_equal(r->flow_control, 1);
	assert_int_equal(r->srq, 1);
	check_data(g, 0, SAID_REP);
	r = &message("xrc", VB_CM_REP, 0)->m.rep;
	assert_int_equal(r->eecn, PASSIVE_QPN + 1);
	assert_int_equal(r->qpn, 0);
	r = &message("options", VB_CM_REP, 0)->m.rep;
	assert_int_equal(r->vendor_id, ECE_VENDOR);
	assert_int_equal(message("options", VB_CM_REP, 0)->m.modifier, ~(uint32_t)ECE_OPTIONS);
}

static void refusals_say_why(void **state)
{
	static const struct {
		const char *story;
		uint16_t reason;
		uint8_t about;
		const char *data;
	} rows[] = {
	    {"rejected", VB_CM_REJ_CONSUMER, VB_CM_ABOUT_REQ, SAID_REJ},
	    {"answer-rejected", VB_CM_REJ_CONSUMER, VB_CM_ABOUT_REP, SAID_REJ},
	    {"nobody", VB_CM_REJ_INVALID_SERVICE_ID, VB_CM_ABOUT_REQ, ""},
	    {"gone-asking", VB_CM_REJ_TIMEOUT, VB_CM_ABOUT_OTHER, ""},
	    {"gone-asked", VB_CM_REJ_CONSUMER, VB_CM_ABOUT_REQ, ""},
	    {"gone-answering", VB_CM_REJ_CONSUMER, VB_CM_ABOUT_OTHER, ""},
	    {"stale", VB_CM_REJ_STALE_CONN, VB_CM_ABOUT_REQ, ""},
	};

	(void)state;
	for (size_t i = 0; i < LENGTH(rows); i++) {
		const struct golden *g = message(rows[i].story, VB_CM_REJ, 0);

		assert_int_equal(g->m.rej.reason, rows[i].reason);
		assert_int_equal(g->m.rej.about, rows[i].about);
		check_data(g, 0, rows[i].data);
	}
}

static void service_ids_are_resolved(void **state)
{
	const struct golden *q = message("sidr", VB_CM_SIDR_REQ, 0), *r = message("sidr", VB_CM_SIDR_REP, 0);

	(void)state;
	assert_true(q->m.sidr_req.service_id == vb_cm_service_id(RDMA_PS_UDP, AT_PORT));
	assert_int_equal(q->m.sidr_req.pkey, 0xffff);
	check_header(q, AF_INET, "10.78.0.1", "10.78.0.2");
	check_data(q, VB_CM_IP_LEN, SAID_SIDR);
	assert_int_equal(r->m.sidr_rep.request_id, q->m.sidr_req.request_id);
	assert_int_equal(r->m.sidr_rep.status, VB_CM_SIDR_SUCCESS);
	assert_int_equal(r->m.sidr_rep.qpn, PASSIVE_QPN);
	assert_int_equal(r->m.sidr_rep.qkey, RDMA_UDP_QKEY);
	check_data(r, 0, SAID_HERE);
	r = message("sidr-rejected", VB_CM_SIDR_REP, 0);
	assert_int_equal(r->m.sidr_rep.status, VB_CM_SIDR_REJECT);
	check_data(r, 0, SAID_REJ);
	check_header(message("sidr-rejected", VB_CM_SIDR_REQ, 0), AF_INET6, "fd78::1", "fd78::2");
	r = message("sidr-nobody", VB_CM_SIDR_REP, 0);
	assert_int_equal(r->m.sidr_rep.status, VB_CM_SIDR_UNSUPPORTED);
}

/* ---- the identifiers here ---- */

/* What an end names by itself, and what differs: why. */
static const char *const own_of_req[] = {
    "Local Communication ID",  "Local CA GUID",	     "Starting PSN", "Primary Local Port GID",
    "Primary Remote Port GID", "Primary Flow Label", /* it follows from both ports, of which one is whichever
							is free */
    "Primary Packet Rate", /* the kernel asks the network interface, and a veth has none */
};
static const char *const own_of_rep[] = {
    "Local Communication ID",
    "Remote Communication ID",
    "Local CA GUID",
    "Starting PSN",
    "Local QPN",	 /* the story's number of a connection is part of it */
    "Target ACK Delay",	 /* the device's */
    "Failover Accepted", /* the kernel says so, though a REQ without an alternate path asks for none */
};

static bool stands_in(const char *name, const char *const *list, size_t n)
{
	while (n--)
		if (!strcmp(list[n], name))
			return true;
	return false;
}

static void check_fields(const struct vb_cm_msg *ours, const struct vb_cm_msg *theirs, const char *const *own,
			 size_t n_own)
{
	const struct vb_cm_field *f;
	size_t n;

	assert_int_equal(ours->kind, theirs->kind);
	f = vb_cm_fields(theirs->kind, &n);
	for (size_t i = 0; i < n; i++)
		if (!stands_in(f[i].name, own, n_own) &&
		    memcmp((const uint8_t *)ours + f[i].at, (const uint8_t *)theirs + f[i].at, f[i].size))
			fail_msg("%s of a %s is another than the kernel's", f[i].name,
				 vb_cm_kind_name(theirs->kind, NULL));
}

/* The same calls with the same values lead to the same messages. */
static void the_calls_here_say_the_same(void **state)
{
	const struct vb_cm_param ask = {.private_data = SAID_REQ,
					.private_len = sizeof(SAID_REQ) - 1,
					.responder_resources = ASK_RESOURCES,
					.initiator_depth = ASK_DEPTH,
					.flow_control = 1,
					.retry_count = ASK_RETRIES,
					.rnr_retry_count = ASK_RNR,
					.qp_num = ACTIVE_QPN};
	const struct vb_cm_param give = {.private_data = SAID_REP,
					 .private_len = sizeof(SAID_REP) - 1,
					 .responder_resources = GIVE_RESOURCES,
					 .initiator_depth = GIVE_DEPTH,
					 .flow_control = 1,
					 .rnr_retry_count = GIVE_RNR,
					 .srq = 1,
					 .qp_num = PASSIVE_QPN};
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.1", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.1");
	assert_int_equal(vb_cm_id_connect(t.client, &ask), 0);
	two_request(&t);
	assert_int_equal(vb_cm_id_accept(t.server, &give, TWO_USER), 0);
	below_settle();
	check_fields(&below.last_req, &message("whole", VB_CM_REQ, 0)->m, own_of_req, LENGTH(own_of_req));
	check_fields(&below.last_rep, &message("whole", VB_CM_REP, 0)->m, own_of_rep, LENGTH(own_of_rep));
	two_end(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(all_are_put_as_they_were),
	    cmocka_unit_test(all_icrcs_are_theirs),
	    cmocka_unit_test(their_identifications),
	    cmocka_unit_test(their_packets_are_as_ours),
	    cmocka_unit_test(a_req_is_what_rdma_connect_was_given),
	    cmocka_unit_test(a_rep_is_what_rdma_accept_was_given),
	    cmocka_unit_test(refusals_say_why),
	    cmocka_unit_test(service_ids_are_resolved),
	    cmocka_unit_test_setup_teardown(the_calls_here_say_the_same, two_open, two_close),
	};

	return cmocka_run_group_tests(tests, golden_read, NULL);
}
