/* What is said of connections that do not come about, and what of those that a program did not want: nothing.
 */
#include "bytes.h"
#include "cm_two.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/history.h"
#include "cm/id.h"

static struct vb_history *h;

static int open_all(void **state)
{
	h = aligned_alloc(PAGE, sizeof *h);
	assert_non_null(h);
	memset((void *)h, 0, sizeof *h);
	vb_history_keep(h);
	return two_open(state);
}

static int close_all(void **state)
{
	int bad = two_close(state);

	vb_history_stop(h);
	free(h);
	return bad;
}

/* That alone; NULL: nothing. */
static void said(const char *what)
{
	struct vb_history_line l;

	assert_int_equal(h->said, what != NULL);
	if (!what)
		return;
	assert_true(vb_history_read(h, 0, &l));
	if (!strstr(l.text, what))
		print_error("said: %s\n", l.text);
	assert_non_null(strstr(l.text, what));
}

/* The i-th of two. */
static void said_one(uint32_t i, const char *what)
{
	struct vb_history_line l;

	assert_int_equal(h->said, 2);
	assert_true(vb_history_read(h, i, &l));
	if (!strstr(l.text, what))
		print_error("said: %s\n", l.text);
	assert_non_null(strstr(l.text, what));
}

static void nobody_listens(void **state)
{
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_id *id = two_resolve(c, RDMA_PS_TCP, IBV_QPT_RC, "fd00::2");

	(void)state;
	assert_int_equal(vb_cm_id_connect(id, &two_asking), 0);
	below_next(c, RDMA_CM_EVENT_REJECTED);
	said("rdma_connect to fd00::2 port 7471: REJECTED, status 8: invalid service ID: no "
	     "listener on this address and port");
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

static void nobody_looks_up(void **state)
{
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_id *id = two_resolve(c, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.2");

	(void)state;
	assert_int_equal(vb_cm_id_connect(id, &two_asking), 0);
	assert_int_equal(below_next(c, RDMA_CM_EVENT_UNREACHABLE).status, VB_CM_SIDR_UNSUPPORTED);
	said("rdma_connect to 10.0.0.2 port 7471: UNREACHABLE, status 1: service ID not supported: no "
	     "listener on this address and port");
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

/* One that is refused, since nobody listens where it asks. */
static void refused(enum rdma_port_space ps, enum ibv_qp_type type, const char *saying)
{
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_id *id = two_resolve(c, ps, type, "10.0.0.2");

	assert_int_equal(vb_cm_id_connect(id, &two_asking), 0);
	below_next(c, type == IBV_QPT_UD ? RDMA_CM_EVENT_UNREACHABLE : RDMA_CM_EVENT_REJECTED);
	said(saying);
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

/* 7471 is 0x1d2f. */
static void somebody_listens_in_another_space(void **state)
{
	(void)state;
	below.listens_space = RDMA_PS_UDP;
	below.listens_port = 7471;
	refused(RDMA_PS_TCP, IBV_QPT_RC,
		"no listener on this address and port; port 7471 has a listener in port space RDMA_PS_UDP, "
		"and this id uses RDMA_PS_TCP; pass the same port space to rdma_create_id()");
}

static void a_lookup_in_another_space(void **state)
{
	(void)state;
	below.listens_space = RDMA_PS_TCP;
	below.listens_port = 7471;
	refused(RDMA_PS_UDP, IBV_QPT_UD,
		"port 7471 has a listener in port space RDMA_PS_TCP, and this id uses RDMA_PS_UDP");
}

static void somebody_listens_at_the_swapped_port(void **state)
{
	(void)state;
	below.listens_space = RDMA_PS_TCP;
	below.listens_port = 0x2f1d;
	refused(RDMA_PS_TCP, IBV_QPT_RC,
		"no listener on this address and port; port 12061 has a listener, and 12061 is 7471 with its "
		"two bytes swapped: one end does not call htons()");
}

static void a_lock_hides_who_listens(void **state)
{
	(void)state;
	below.hides = "; a lock";
	refused(RDMA_PS_TCP, IBV_QPT_RC, "invalid service ID: no listener on this address and port; a lock");
}

/* It may have been made for the program to connect by itself; then its number is in the parameters. */
static void accepted_without_a_queue_pair(void **state)
{
	struct vb_cm_param none = {0};
	struct two t = {0};

	(void)state;
	two_ask(&t, "10.0.0.2", "10.0.0.2");
	assert_int_equal(vb_cm_id_accept(t.server, &none, TWO_USER), 0);
	said("rdma_accept from 10.0.0.1 port ");
	below_next(t.here, RDMA_CM_EVENT_CONNECT_RESPONSE);
	said_one(0, "this process accepted without a queue pair, so messages of the peer are lost: call "
		    "rdma_create_qp() before rdma_accept(), or set rdma_conn_param.qp_num");
	said_one(
	    1,
	    "rdma_connect to 10.0.0.2 port 7471: the peer accepted without a queue pair, so it receives no "
	    "messages");
	two_end(&t);
}

static void the_program_wants_it_so(void **state)
{
	struct two t = {0};

	(void)state;
	two_ask(&t, "10.0.0.2", "10.0.0.2");
	assert_int_equal(vb_cm_id_reject(t.server, NULL, 0, 0), 0);
	below_next(t.here, RDMA_CM_EVENT_REJECTED);
	said(NULL);
	two_end(&t);
}

/* It has not wanted that: nobody has answered for it, or its answer is worth nothing any more. */
static void a_process_ends(void **state)
{
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_settle();
	below_gone(below_device(0), below_device(1)->number, 0, "process 7 ended");
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_REJECTED).status, VB_CM_REJ_CONSUMER);
	said("rdma_connect to 10.0.0.2 port 7471: REJECTED, status 28: the request was not answered: process "
	     "7 ended");
	two_end(&t);
}

static void a_process_ends_after_its_answer(void **state)
{
	struct two t = {0};

	(void)state;
	two_ask(&t, "10.0.0.2", "10.0.0.2");
	two_answer(&t);
	below_gone(below_device(0), below_device(1)->number, 0, "process 7 ended");
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_REJECTED).status, VB_CM_REJ_CONSUMER);
	said("rdma_connect to 10.0.0.2 port 7471: REJECTED, status 28: the connection was not completed: "
	     "process 7 ended");
	two_end(&t);
}

static void a_process_ends_at_a_lookup(void **state)
{
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_settle();
	below_gone(below_device(0), below_device(1)->number, 0, "process 7 ended");
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_UNREACHABLE).status, VB_CM_SIDR_REJECT);
	said("rdma_connect to 10.0.0.2 port 7471: UNREACHABLE, status 2: the request was not answered: "
	     "process 7 ended");
	two_end(&t);
}

static void no_answer_to_the_req(void **state)
{
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	below.filter = two_silence;
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_wait(200 * VB_SEC);
	below_next(t.here, RDMA_CM_EVENT_UNREACHABLE);
	said("rdma_connect to 10.0.0.2 port 7471: UNREACHABLE: no answer to the REQ, sent 16 times");
	assert_int_equal(below.said[VB_CM_REQ], 16);
	two_end(&t);
}

static void no_contact_for_the_req(void **state)
{
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	below.filter = two_silence;
	below.silence = (struct vb_reach_facts){.reach = VB_REACH_STOPPED, .process.pid = 7};
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_wait(200 * VB_SEC);
	below_next(t.here, RDMA_CM_EVENT_UNREACHABLE);
	said_one(
	    0, "rdma_connect to 10.0.0.2 port 7471 has waited for 6.4 s: no answer to the REQ, sent 1 of at "
	       "most 16 times: process 7 is stopped");
	said_one(1,
		 "rdma_connect to 10.0.0.2 port 7471: UNREACHABLE: no answer to the REQ, sent 16 times but "
		 "never delivered: process 7 is stopped");
	two_end(&t);
}

/* To a server in silence, of which that is known; the time until the n-th REQ passes. */
static struct vb_shown_id ask_in_silence(struct two *t, uint32_t reach, unsigned n)
{
	struct vb_shown_id s = {0};

	two_listen(t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t->client = two_resolve(t->here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	below.filter = two_silence;
	below.met = true;
	below.silence = (struct vb_reach_facts){.reach = reach, .host.heard_ms = 1500};
	assert_int_equal(vb_cm_id_connect(t->client, &two_asking), 0);
	while (below.said[VB_CM_REQ] < n)
		below_wait(VB_SEC);
	memcpy(&s, &below_entries[0][t->client->place].id, sizeof(s));
	return s;
}

/* What is certain is said once, after the first attempt. */
static void nobody_is_at_the_port(void **state)
{
	struct two t = {0};

	(void)state;
	assert_int_equal(ask_in_silence(&t, VB_REACH_HOST_CLOSED, 2).silence.reach, VB_REACH_HOST_CLOSED);
	below_wait(40 * VB_SEC);
	said("rdma_connect to 10.0.0.2 port 7471 has waited for 6.4 s: no answer to the REQ, sent 1 of at "
	     "most "
	     "16 times: nobody at");
	two_end(&t);
}

/* A program may take its time: silence tells something after the second attempt. */
static void nothing_comes_from_there(void **state)
{
	struct two t = {0};

	(void)state;
	assert_int_equal(ask_in_silence(&t, VB_REACH_CM_SILENT, 2).silence.reach, VB_REACH_UNKNOWN);
	said(NULL);
	below_wait(40 * VB_SEC);
	said("has waited for 12.9 s: no answer to the REQ, sent 2 of at most 16 times: no RoCEv2 packet has "
	     "arrived");
	two_end(&t);
}

/* The server's manager answers the second attempt by an MRA, and its program takes its time. */
static void the_server_has_it(void **state)
{
	struct vb_shown_id s = {0};
	struct two t = {0};

	(void)state;
	below.met = true;
	below.silence = (struct vb_reach_facts){.reach = VB_REACH_CM_OTHERS};
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_wait(200 * VB_SEC);
	memcpy(&s, &below_entries[0][t.client->place].id, sizeof(s));
	assert_int_equal(s.cm_state, VB_CM_MRA_REQ_RCVD);
	assert_int_equal(s.flags & VB_SHOWN_TAKEN, VB_SHOWN_TAKEN);
	assert_int_equal(s.silence.reach, VB_REACH_UNKNOWN);
	said(NULL);
	below_wait(2000 * VB_SEC);
	below_next(t.here, RDMA_CM_EVENT_UNREACHABLE);
	said("UNREACHABLE: no answer to the REQ, sent 16 times and received (MRA)");
	two_end(&t);
}

/* What was found out while nothing came is not shown once an MRA has come. */
static void the_server_was_silent(void **state)
{
	struct vb_shown_id s;
	struct two t = {0};

	(void)state;
	s = ask_in_silence(&t, VB_REACH_CM_SILENT, 3);
	assert_int_equal(s.silence.reach, VB_REACH_CM_SILENT);
	below.filter = NULL;
	while (s.cm_state == VB_CM_REQ_SENT) {
		below_wait(VB_SEC);
		memcpy(&s, &below_entries[0][t.client->place].id, sizeof(s));
	}
	assert_int_equal(s.cm_state, VB_CM_MRA_REQ_RCVD);
	assert_int_equal(s.silence.reach, VB_REACH_UNKNOWN);
	two_end(&t);
}

/* No MRA tells of a lookup that it came. */
static void a_lookup_in_silence(void **state)
{
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.2");
	below.met = true;
	below.silence = (struct vb_reach_facts){.reach = VB_REACH_CM_OTHERS};
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_wait(30 * VB_SEC);
	said(NULL);
	below_wait(60 * VB_SEC);
	below_next(t.here, RDMA_CM_EVENT_UNREACHABLE);
	said("rdma_connect to 10.0.0.2 port 7471: UNREACHABLE: no answer to the SIDR_REQ, sent 16 times: "
	     "RoCEv2 "
	     "packets from");
	two_end(&t);
}

/* The passive end's program is told of it, too, once it has accepted. */
static void no_answer_to_the_rep(void **state)
{
	char expected[128];
	struct two t = {0};

	(void)state;
	two_ask(&t, "10.0.0.2", "10.0.0.2");
	below.filter = two_silence;
	snprintf(expected, sizeof expected,
		 "rdma_accept from 10.0.0.1 port %u: UNREACHABLE: no answer to the REP, sent",
		 vb_cm_sock_port((struct sockaddr *)&t.server->dst));
	assert_int_equal(vb_cm_id_accept(t.server, &two_granting, TWO_USER), 0);
	vb_cm_id_end(t.client);
	t.client = NULL;
	below_wait(200 * VB_SEC);
	below_next(t.there, RDMA_CM_EVENT_UNREACHABLE);
	said(expected);
	two_end(&t);
}

static void no_answer_to_the_dreq(void **state)
{
	struct two t = {0};

	(void)state;
	two_connect(&t, "10.0.0.2", "10.0.0.2");
	below.filter = two_silence;
	assert_int_equal(vb_cm_id_disconnect(t.client), 0);
	below_wait(200 * VB_SEC);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_DISCONNECTED).status, -ETIMEDOUT);
	said("rdma_disconnect from 10.0.0.2 port 7471: DISCONNECTED: no answer to the DREQ, sent 16 times");
	two_end(&t);
}

/* It has not accepted, so it hears of nothing, and nothing is said. */
static void a_request_is_called_off(void **state)
{
	struct two t = {0};

	(void)state;
	two_ask(&t, "10.0.0.2", "10.0.0.2");
	vb_cm_id_end(t.client);
	t.client = NULL;
	below_settle();
	said(NULL);
	assert_int_equal(vb_cm_id_accept(t.server, &two_granting, TWO_USER), EINVAL);
	said("rdma_accept: the id's state \"failed\" does not allow this call: the peer gave up (REJECTED, "
	     "status 4); an id connects only once; destroy it and create another (EINVAL)");
	two_end(&t);
}

static void no_way_there(void **state)
{
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_id *id = two_id(c, RDMA_PS_TCP, IBV_QPT_RC);

	(void)state;
	assert_int_equal(vb_cm_id_resolve_addr(id, NULL, below_addr("192.0.2.9", 5), 0), 0);
	assert_int_equal(below_next(c, RDMA_CM_EVENT_ADDR_ERROR).status, -EHOSTUNREACH);
	said("rdma_resolve_addr of 192.0.2.9 port 5: ADDR_ERROR, EHOSTUNREACH: it is not an address of this "
	     "network namespace, and this host has no route to it; a container has");
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

static void no_route_there(void **state)
{
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_id *id = two_id(c, RDMA_PS_TCP, IBV_QPT_RC);

	(void)state;
	below.no_way = ENETUNREACH;
	assert_int_equal(vb_cm_id_resolve_addr(id, NULL, below_addr("192.0.2.9", 5), 0), 0);
	assert_int_equal(below_next(c, RDMA_CM_EVENT_ADDR_ERROR).status, -ENETUNREACH);
	said("rdma_resolve_addr of 192.0.2.9 port 5: ADDR_ERROR, ENETUNREACH: it is not an address of this "
	     "network namespace, and this host has no route to it");
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

/* A route leads there, and not from the source that the program has chosen. */
static void no_route_from_the_source(void **state)
{
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_id *id = two_id(c, RDMA_PS_TCP, IBV_QPT_RC);

	(void)state;
	below.no_way = ENETUNREACH;
	below.leads = "eth0";
	assert_int_equal(vb_cm_id_resolve_addr(id, NULL, below_addr("192.0.2.9", 5), 0), 0);
	assert_int_equal(below_next(c, RDMA_CM_EVENT_ADDR_ERROR).status, -ENETUNREACH);
	said("rdma_resolve_addr of 192.0.2.9 port 5: ADDR_ERROR, ENETUNREACH: Network is unreachable");
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

static void the_wrong_state(void **state)
{
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_id *id = two_id(c, RDMA_PS_TCP, IBV_QPT_RC);

	(void)state;
	assert_int_equal(vb_cm_id_connect(id, &two_asking), EINVAL);
	said("rdma_connect: the id's state \"idle\" does not allow this call: call rdma_resolve_addr(), then "
	     "rdma_resolve_route(), and wait for");
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

static void not_our_address(void **state)
{
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_id *id = two_id(c, RDMA_PS_TCP, IBV_QPT_RC);

	(void)state;
	assert_int_equal(vb_cm_id_bind(id, below_addr("192.0.2.9", 5)), EADDRNOTAVAIL);
	said("rdma_bind_addr: the source address 192.0.2.9 port 5 is not an address of this network "
	     "namespace; bind to one of its addresses. A container has its own network namespace");
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

static void the_listener_itself(void **state)
{
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_id *id = two_id(c, RDMA_PS_TCP, IBV_QPT_RC);

	(void)state;
	assert_int_equal(vb_cm_id_bind(id, below_addr("10.0.0.2", 5)), 0);
	assert_int_equal(vb_cm_id_listen(id, 1), 0);
	assert_int_equal(vb_cm_id_accept(id, &two_asking, TWO_USER), EINVAL);
	said("rdma_accept: the id's state \"listening\" does not allow this call: this id is the listener; "
	     "pass "
	     "event->id of RDMA_CM_EVENT_CONNECT_REQUEST");
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

static void attributes_that_nobody_knows(void **state)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR};
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_id *id = two_resolve(c, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	int mask;

	(void)state;
	assert_int_equal(vb_cm_id_qp_attr(id, &a, &mask), EINVAL);
	said("rdma_init_qp_attr: no attributes for the queue pair state RTR in the id's state \"route "
	     "resolved\": wait for RDMA_CM_EVENT_CONNECT_RESPONSE after rdma_connect()");
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

static void an_option_without_a_value(void **state)
{
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_id *id = two_id(c, RDMA_PS_TCP, IBV_QPT_RC);

	(void)state;
	assert_int_equal(vb_cm_id_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1), EINVAL);
	said("rdma_set_option: optval is NULL (EINVAL)");
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

static void an_option_of_another_size(void **state)
{
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_id *id = two_id(c, RDMA_PS_TCP, IBV_QPT_RC);
	int tos = 0;

	(void)state;
	assert_int_equal(vb_cm_id_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos), EINVAL);
	said("rdma_set_option: optlen is 4: option 0 of level 0 needs 1 bytes (EINVAL)");
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(nobody_listens, open_all, close_all),
	    cmocka_unit_test_setup_teardown(nobody_looks_up, open_all, close_all),
	    cmocka_unit_test_setup_teardown(somebody_listens_in_another_space, open_all, close_all),
	    cmocka_unit_test_setup_teardown(a_lookup_in_another_space, open_all, close_all),
	    cmocka_unit_test_setup_teardown(somebody_listens_at_the_swapped_port, open_all, close_all),
	    cmocka_unit_test_setup_teardown(a_lock_hides_who_listens, open_all, close_all),
	    cmocka_unit_test_setup_teardown(accepted_without_a_queue_pair, open_all, close_all),
	    cmocka_unit_test_setup_teardown(the_program_wants_it_so, open_all, close_all),
	    cmocka_unit_test_setup_teardown(a_process_ends, open_all, close_all),
	    cmocka_unit_test_setup_teardown(a_process_ends_after_its_answer, open_all, close_all),
	    cmocka_unit_test_setup_teardown(a_process_ends_at_a_lookup, open_all, close_all),
	    cmocka_unit_test_setup_teardown(no_answer_to_the_req, open_all, close_all),
	    cmocka_unit_test_setup_teardown(no_contact_for_the_req, open_all, close_all),
	    cmocka_unit_test_setup_teardown(nobody_is_at_the_port, open_all, close_all),
	    cmocka_unit_test_setup_teardown(nothing_comes_from_there, open_all, close_all),
	    cmocka_unit_test_setup_teardown(the_server_has_it, open_all, close_all),
	    cmocka_unit_test_setup_teardown(the_server_was_silent, open_all, close_all),
	    cmocka_unit_test_setup_teardown(a_lookup_in_silence, open_all, close_all),
	    cmocka_unit_test_setup_teardown(no_answer_to_the_rep, open_all, close_all),
	    cmocka_unit_test_setup_teardown(no_answer_to_the_dreq, open_all, close_all),
	    cmocka_unit_test_setup_teardown(a_request_is_called_off, open_all, close_all),
	    cmocka_unit_test_setup_teardown(no_way_there, open_all, close_all),
	    cmocka_unit_test_setup_teardown(no_route_there, open_all, close_all),
	    cmocka_unit_test_setup_teardown(no_route_from_the_source, open_all, close_all),
	    cmocka_unit_test_setup_teardown(the_wrong_state, open_all, close_all),
	    cmocka_unit_test_setup_teardown(not_our_address, open_all, close_all),
	    cmocka_unit_test_setup_teardown(the_listener_itself, open_all, close_all),
	    cmocka_unit_test_setup_teardown(attributes_that_nobody_knows, open_all, close_all),
	    cmocka_unit_test_setup_teardown(an_option_without_a_value, open_all, close_all),
	    cmocka_unit_test_setup_teardown(an_option_of_another_size, open_all, close_all),
	};

	setenv("VERBENA_WAIT_WARN", "3", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
