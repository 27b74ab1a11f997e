/* The same as test_ids.c: how connections end that nobody asked to end, which listener is meant,
 * datagrams, XRC. */
#include "cm_two.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "base/clock.h"
#include "cm/id.h"

/* ---- ends that nobody asked for ---- */

static void the_server_ends(void **state)
{
	struct two t = {0};

	(void)state;
	two_connect(&t, "10.0.0.2", "10.0.0.2");
	vb_cm_id_end(t.server);
	t.server = NULL;
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_DISCONNECTED).status, 0);
	two_end(&t);
}

/* Its end is the answer to a DREQ that the program has not answered. */
static void the_server_ends_instead_of_agreeing(void **state)
{
	struct two t = {0};

	(void)state;
	two_connect(&t, "10.0.0.2", "10.0.0.2");
	assert_int_equal(vb_cm_id_disconnect(t.client), 0);
	below_settle();
	vb_cm_id_end(t.server); /* with its event undelivered */
	t.server = NULL;
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_DISCONNECTED).status, 0);
	assert_int_equal(below.said[VB_CM_DREP], 1);
	below_none(t.there);
	two_end(&t);
}

/* What never was a connection, and what is none any more, has no end to wait for. */
static void nothing_to_disconnect(void **state)
{
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_disconnect(t.client), EINVAL);
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	assert_true(vb_cm_id_has_news(t.client));
	below_settle();
	two_request(&t);
	assert_int_equal(vb_cm_id_disconnect(t.server), 0);
	assert_false(vb_cm_id_has_news(t.server));
	assert_int_equal(vb_cm_id_reject(t.server, NULL, 0, 0), 0); /* the request is still there */
	assert_int_equal(vb_cm_id_disconnect(t.server), 0);
	assert_false(vb_cm_id_has_news(t.server));
	below_settle();
	assert_true(vb_cm_id_has_news(t.client));
	below_next(t.here, RDMA_CM_EVENT_REJECTED);
	assert_int_equal(vb_cm_id_disconnect(t.client), 0);
	assert_false(vb_cm_id_has_news(t.client));
	assert_int_equal(below.said[VB_CM_DREQ] + below.said[VB_CM_DREP], 0);
	two_end(&t);
}

/* It has been answered, so its end takes as long as a connection's; nobody is told when that is over. */
static void nothing_to_disconnect_after_an_answer(void **state)
{
	struct two t = {0};

	(void)state;
	two_ask(&t, "10.0.0.2", "10.0.0.2");
	two_answer(&t);
	vb_cm_id_end(t.server);
	t.server = NULL;
	below_next(t.here, RDMA_CM_EVENT_REJECTED);
	assert_int_equal(vb_cm_id_disconnect(t.client), 0);
	assert_false(vb_cm_id_has_news(t.client));
	below_wait(200 * VB_SEC);
	below_none(t.here);
	two_end(&t);
}

/* Both at once: each hears of it once, and each waits for the other's confirmation, which another call gives.
 */
static void both_disconnect(void **state)
{
	struct two t = {0};

	(void)state;
	two_connect(&t, "10.0.0.2", "10.0.0.2");
	assert_int_equal(vb_cm_id_disconnect(t.client), 0);
	assert_int_equal(vb_cm_id_disconnect(t.server), 0);
	below_next(t.here, RDMA_CM_EVENT_DISCONNECTED);
	below_next(t.there, RDMA_CM_EVENT_DISCONNECTED);
	below_none(t.here);
	below_none(t.there);
	below_wait(200 * VB_SEC);
	below_none(t.here);
	assert_int_equal(below.said[VB_CM_DREP], 0);
	assert_int_equal(vb_cm_id_disconnect(t.client), 0);
	below_wait(10 * VB_SEC);
	below_next(t.here, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	below_next(t.there, RDMA_CM_EVENT_TIMEWAIT_EXIT); /* the other end has heard the confirmation */
	assert_int_equal(vb_cm_id_disconnect(t.client), 0);
	assert_false(vb_cm_id_has_news(t.client));
	two_end(&t);
}

/* Nobody confirms the end: it is one all the same. */
static void nobody_agrees(void **state)
{
	struct two t = {0};

	(void)state;
	two_ask(&t, "10.0.0.2", "10.0.0.2");
	below_wait(20 * VB_SEC); /* until it is asked again */
	assert_true(below.said[VB_CM_MRA] > 0);
	two_answer(&t);
	assert_int_equal(vb_cm_id_establish(t.client), 0);
	below.filter = two_silence;
	assert_int_equal(vb_cm_id_disconnect(t.client), 0);
	below_wait(200 * VB_SEC); /* 16 times 6.44 s; an MRA's minute counts for what it was about */
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_DISCONNECTED).status, -ETIMEDOUT);
	below_next(t.here, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	two_end(&t);
}

enum { MANY = 200 };

static void many_at_once(void **state)
{
	struct vb_cm_id *clients[MANY], *servers[MANY];
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", MANY);
	for (uint32_t i = 0; i < MANY; i++) {
		struct vb_cm_param p = {.qp_num = 0x1000 + i};

		clients[i] = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
		assert_int_equal(vb_cm_id_connect(clients[i], &p), 0);
	}
	for (uint32_t i = 0; i < MANY; i++) {
		struct vb_cm_param p = {.qp_num = 0x2000 + i};

		servers[i] = below_next(t.there, RDMA_CM_EVENT_CONNECT_REQUEST).fresh;
		assert_int_equal(vb_cm_id_accept(servers[i], &p, TWO_USER), 0);
	}
	for (uint32_t i = 0; i < MANY; i++) {
		struct vb_cm_news n = below_next(t.here, RDMA_CM_EVENT_CONNECT_RESPONSE);

		assert_ptr_equal(n.id, clients[i]);
		assert_int_equal(n.conn.qp_num, 0x2000 + i);
		assert_int_equal(vb_cm_id_establish(n.id), 0);
	}
	for (uint32_t i = 0; i < MANY; i++)
		assert_ptr_equal(below_next(t.there, RDMA_CM_EVENT_ESTABLISHED).id, servers[i]);
	assert_int_equal(below.ports, MANY + 1); /* passive ends have none of their own */
	for (uint32_t i = 0; i < MANY; i++) {
		vb_cm_id_end(clients[i]);
		vb_cm_id_end(servers[i]);
	}
	two_end(&t);
}

static void the_client_goes_before_the_answer(void **state)
{
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_settle();
	t.server = below_next(t.there, RDMA_CM_EVENT_CONNECT_REQUEST).fresh;
	vb_cm_id_end(t.client);
	t.client = NULL;
	/* it has no user yet, so nothing is heard of it, and what comes too late fails */
	below_none(t.there);
	assert_int_equal(vb_cm_id_accept(t.server, &two_granting, TWO_USER), EINVAL);
	two_end(&t);
}

/* The answer could not be sent: no more is heard of it than before. */
static void the_answer_fails(void **state)
{
	struct vb_cm_param longer = {.private_data = (const uint8_t[255]){0}, .private_len = 255};
	struct two t = {0};

	(void)state;
	two_ask(&t, "10.0.0.2", "10.0.0.2");
	assert_int_equal(vb_cm_id_accept(t.server, &longer, TWO_USER), EINVAL);
	vb_cm_id_end(t.client);
	t.client = NULL;
	below_none(t.there);
	assert_int_equal(vb_cm_id_accept(t.server, &two_granting, TWO_USER), EINVAL);
	below_none(t.there);
	two_end(&t);
}

static void a_listener_ends_with_its_requests(void **state)
{
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_settle();
	vb_cm_id_end(t.listener);
	t.listener = NULL;
	below_none(t.there);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_REJECTED).status, VB_CM_REJ_CONSUMER);
	two_end(&t);
}

static void a_process_dies(void **state)
{
	struct two t = {0};

	(void)state;
	two_connect(&t, "10.0.0.2", "10.0.0.2");
	below_gone(below_device(0), 7, 0, "it ended");
	below_none(t.here);
	below_gone(below_device(0), below_device(1)->number, 0, "it ended");
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_DISCONNECTED).status, 0);
	two_end(&t);
}

/* Whoever has its number since lives on. */
static void a_process_that_had_the_number_dies(void **state)
{
	struct vb_cm_av *av;
	struct two t = {0};

	(void)state;
	two_connect(&t, "10.0.0.2", "10.0.0.2");
	av = &t.client->conn->av;
	av->whom = vb_whom_at(below_device(1)->number); /* the wire here does not say who sends */
	av->whom.incarnation = 2;
	below_gone(below_device(0), av->whom.number, 1, "it ended");
	below_none(t.here);
	below_gone(below_device(0), av->whom.number, 2, "it ended");
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_DISCONNECTED).status, 0);
	two_end(&t);
}

static void a_process_dies_before_it_answers(void **state)
{
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_settle(); /* the program there has not answered, so only the port says who has it */
	below_gone(below_device(0), below_device(1)->number, 0, "it ended");
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_REJECTED).status, VB_CM_REJ_CONSUMER);
	two_end(&t);
}

/* Its request was lost, or nobody had answered it: it waits for the process that it went to, whoever else
 * dies, and whether or not that one still listens. */
static void a_process_dies_unheard(void **state)
{
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	below.filter = two_silence;
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_gone(below_device(0), 99, 0, "it ended");
	below_none(t.here);
	vb_cm_id_end(t.listener);
	t.listener = NULL;
	below_gone(below_device(0), 99, 0, "it ended");
	below_none(t.here);
	below_gone(below_device(0), below_device(1)->number, 0, "it ended");
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_REJECTED).status, VB_CM_REJ_CONSUMER);
	two_end(&t);
}

static void the_device_is_lost(void **state)
{
	struct two t = {0};

	(void)state;
	two_connect(&t, "10.0.0.2", "10.0.0.2");
	below.filter = two_silence;
	vb_cm_ids_device_lost(below_device(0));
	below_next(t.here, RDMA_CM_EVENT_DEVICE_REMOVAL);
	assert_int_equal(vb_cm_id_disconnect(t.client), ENODEV);
	below_none(t.there);
	two_end(&t);
}

/* By another thread, while this one looks for a device or a port. */
static void lost_during_a_call(void **state)
{
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_device *at;
	struct vb_cm_id *id;

	(void)state;
	id = two_id(c, RDMA_PS_TCP, IBV_QPT_RC);
	below.loses = BELOW_OPEN;
	assert_int_equal(vb_cm_id_bind(id, below_addr("10.0.0.1", TWO_PORT)), ENODEV);
	vb_cm_ids_enter();
	at = vb_cm_device_at(0);
	vb_cm_ids_leave();
	assert_null(at);
	assert_int_equal(vb_cm_id_bind(id, below_addr("10.0.0.1", TWO_PORT)), 0); /* at the next one */
	vb_cm_id_end(id);
	id = two_id(c, RDMA_PS_TCP, IBV_QPT_RC);
	below.loses = BELOW_OPEN;
	assert_int_equal(vb_cm_id_listen(id, 0), ENODEV);
	assert_int_equal(vb_cm_id_listen(id, 0), 0);
	vb_cm_id_end(id);
	below_none(c);
	id = two_id(c, RDMA_PS_TCP, IBV_QPT_RC);
	below.loses = BELOW_BIND;
	assert_int_equal(vb_cm_id_bind(id, below_addr("10.0.0.1", TWO_PORT)), ENODEV);
	below_next(c, RDMA_CM_EVENT_DEVICE_REMOVAL);
	assert_int_equal(vb_cm_id_listen(id, 0), ENODEV);
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

/* Told once more when another device has its index: what is at that one stays. */
static void lost_and_told_twice(void **state)
{
	struct vb_cm_device *lost = below_device(1);
	struct two t = {0};

	(void)state;
	vb_cm_ids_device_lost(lost);
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	assert_ptr_not_equal(below_device(1), lost);
	vb_cm_ids_device_lost(lost);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	two_request(&t);
	two_end(&t);
}

/* ---- addresses ---- */

static void loopback_keeps_its_name(void **state)
{
	struct ibv_sa_path_rec path;
	struct rdma_addr a;
	struct two t = {0};
	int n;

	(void)state;
	two_connect(&t, "127.0.0.1", "127.0.0.1");
	assert_int_equal(vb_cm_id_route(t.client, &a, &path, &n), 0);
	assert_int_equal(n, 1);
	assert_memory_equal(&a.dst_sin, below_addr("127.0.0.1", TWO_PORT), sizeof(struct sockaddr_in));
	assert_int_equal(path.dgid.raw[12], 10); /* a GID of the table */
	assert_int_equal(path.sgid.raw[12], 10);
	assert_int_equal(path.hop_limit, 64);
	assert_int_equal(vb_cm_id_route(t.server, &a, &path, &n), 0);
	assert_int_equal(n, 1);
	assert_memory_equal(&a.src_sin, below_addr("127.0.0.1", TWO_PORT), sizeof(struct sockaddr_in));
	assert_int_equal(two_attr(t.server, IBV_QPS_RTR).ah_attr.grh.dgid.raw[12], 10);
	two_end(&t);
}

static void any_address_of_ipv6_takes_ipv4(void **state)
{
	struct rdma_addr a;
	struct two t = {0};
	int n;

	(void)state;
	two_connect(&t, "::", "10.0.0.2");
	assert_int_equal(vb_cm_id_route(t.server, &a, NULL, &n), 0);
	assert_int_equal(a.src_addr.sa_family, AF_INET);
	two_end(&t);
}

static void unless_it_is_of_ipv6_only(void **state)
{
	struct two t = {0};
	int one = 1;

	(void)state;
	t.there = below_channel(NULL);
	t.here = below_channel(NULL);
	t.listener = two_id(t.there, RDMA_PS_TCP, IBV_QPT_RC);
	assert_int_equal(vb_cm_id_option(t.listener, 0, RDMA_OPTION_ID_AFONLY, &one, sizeof one), 0);
	assert_int_equal(vb_cm_id_bind(t.listener, below_addr("::", TWO_PORT)), 0);
	assert_int_equal(vb_cm_id_listen(t.listener, 0), 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_next(t.here, RDMA_CM_EVENT_REJECTED);
	vb_cm_id_end(t.client);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "fd00::2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_settle();
	two_request(&t);
	two_end(&t);
}

static void the_narrower_listener_comes_first(void **state)
{
	struct vb_cm_id *wide;
	struct two t = {0};
	int one = 1;

	(void)state;
	t.there = below_channel(NULL);
	t.here = below_channel(NULL);
	wide = two_id(t.there, RDMA_PS_UDP, IBV_QPT_UD); /* another port space does not collide */
	assert_int_equal(vb_cm_id_bind(wide, below_addr("0.0.0.0", TWO_PORT)), 0);
	assert_int_equal(vb_cm_id_listen(wide, 0), 0);
	t.listener = two_id(t.there, RDMA_PS_TCP, IBV_QPT_RC);
	assert_int_equal(vb_cm_id_bind(t.listener, below_addr("10.0.0.1", TWO_PORT)), 0);
	assert_int_equal(vb_cm_id_listen(t.listener, 0), 0);
	assert_int_equal(vb_cm_id_option(t.listener, 0, RDMA_OPTION_ID_AFONLY, &one, sizeof one), EINVAL);
	/* nobody listens at the other address */
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_next(t.here, RDMA_CM_EVENT_REJECTED);
	vb_cm_id_end(wide);
	two_end(&t);
}

/* ---- datagrams ---- */

static void a_service_is_looked_up(void **state)
{
	struct vb_cm_param p = {.private_data = "who", .private_len = 4, .qp_num = 0x301},
			   q = {.private_data = "me", .private_len = 3, .qp_num = 0x302, .qkey = 0x55},
			   longer = {.private_data = (const uint8_t[255]){0}};
	struct two t = {0};
	struct vb_cm_news n;

	(void)state;
	two_listen(&t, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.2");
	assert_int_equal(two_attr(t.client, IBV_QPS_INIT).qkey, RDMA_UDP_QKEY);
	longer.private_len = 181;
	assert_int_equal(vb_cm_id_connect(t.client, &longer), EINVAL);
	assert_int_equal(vb_cm_id_connect(t.client, &p), 0);
	n = below_next(t.there, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_true(n.ud);
	assert_int_equal(n.ud_param.private_data_len, 180);
	assert_memory_equal(n.data, "who", 4);
	t.server = n.fresh;
	longer.private_len = 137;
	assert_int_equal(vb_cm_id_accept(t.server, &longer, TWO_USER), EINVAL);
	assert_int_equal(vb_cm_id_accept(t.server, &q, TWO_USER), 0);
	n = below_next(t.here, RDMA_CM_EVENT_ESTABLISHED);
	assert_true(n.ud);
	assert_int_equal(n.ud_param.qp_num, 0x302);
	assert_int_equal(n.ud_param.qkey, 0x55);
	assert_int_equal(n.ud_param.private_data_len, 136);
	assert_memory_equal(n.data, "me", 3);
	assert_int_equal(n.ud_param.ah_attr.grh.dgid.raw[15], 2);
	assert_int_equal(n.ud_param.ah_attr.is_global, 1);
	below_none(t.there); /* the passive end hears nothing more */
	assert_int_equal(vb_cm_id_disconnect(t.client), 0);
	below_none(t.there);
	two_end(&t);
}

/* A listener at all addresses is found by one device, whichever of them is asked for. */
static void a_service_of_another_device(void **state)
{
	struct vb_cm_param p = {.qp_num = 0x301};
	struct two t = {0};
	struct rdma_addr a;
	struct ibv_sa_path_rec path;
	int n;

	(void)state;
	below.one_hears = true;
	two_listen(&t, RDMA_PS_UDP, IBV_QPT_UD, "0.0.0.0", 0);
	t.client = two_resolve(t.here, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &p), 0);
	below_settle();
	two_request(&t);
	assert_int_equal(vb_cm_id_device(t.server, NULL), 1);
	assert_int_equal(vb_cm_id_route(t.server, &a, &path, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(path.sgid.raw[15], 2);
	assert_int_equal(path.dgid.raw[15], 1);
	assert_int_equal(vb_cm_id_accept(t.server, &p, TWO_USER), 0);
	below_next(t.here, RDMA_CM_EVENT_ESTABLISHED);
	two_end(&t);
}

static void a_service_that_is_not_there(void **state)
{
	struct vb_cm_param p = {.qp_num = 0x301};
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.1");
	assert_int_equal(vb_cm_id_connect(t.client, &p), 0);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_UNREACHABLE).status, VB_CM_SIDR_UNSUPPORTED);
	vb_cm_id_end(t.client);
	t.client = two_resolve(t.here, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &p), 0);
	below_settle();
	two_request(&t);
	assert_int_equal(vb_cm_id_reject(t.server, "no", 3, 0), 0);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_UNREACHABLE).status, VB_CM_SIDR_REJECT);
	two_end(&t);
}

/* ---- XRC ---- */

static void initiator_and_target(void **state)
{
	struct two t = {0};
	struct ibv_qp_attr a;

	(void)state;
	two_listen(&t, RDMA_PS_IB, IBV_QPT_XRC_RECV, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_IB, IBV_QPT_XRC_SEND, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	assert_int_equal(below.last_req.req.service_id, 0x013f0000 + TWO_PORT);
	below_settle();
	two_request(&t);
	assert_int_equal(vb_cm_id_accept(t.server, &two_granting, TWO_USER), 0);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_CONNECT_RESPONSE).conn.qp_num, 0x202);
	assert_int_equal(vb_cm_id_establish(t.client), 0);
	below_next(t.there, RDMA_CM_EVENT_ESTABLISHED);
	a = two_attr(t.client, IBV_QPS_RTR);
	assert_int_equal(a.dest_qp_num, 0x202);
	a = two_attr(t.client, IBV_QPS_RTS);
	assert_int_equal(a.rnr_retry, 7);
	assert_int_equal(a.retry_cnt, 6);
	assert_int_equal(two_attr(t.server, IBV_QPS_RTR).max_dest_rd_atomic, 4);
	two_end(&t);
}

/* ---- answers that are waited for ---- */

static void *write_one(void *id)
{
	while (!atomic_load(&below.waits)) /* nothing tells of it */
		sched_yield();
	vb_cm_id_write(id, RDMA_CM_EVENT_ADDR_CHANGE, 0, 0);
	return NULL;
}

static void *accept_one(void *two)
{
	struct two *t = two;
	struct vb_cm_news n;

	if (!vb_cm_channel_get(t->there, &n)) {
		t->server = n.fresh;
		vb_cm_id_accept(t->server, &two_granting, TWO_USER);
		vb_cm_news_ack(n.id, n.event);
	}
	return NULL;
}

/* A thread that has waited at the channel says that it will do so again.  If it finds the answer there it may
 * have slept elsewhere meanwhile, and the next time somebody is to ring. */
static void who_did_not_wait_is_rung(void **state)
{
	struct two t = {0};
	pthread_t thread;

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	vb_cm_channel_close(t.here);
	assert_int_equal(vb_cm_channel_open(&t.here, &(int){0}), 0); /* this one blocks */
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(pthread_create(&thread, NULL, write_one, t.client), 0);
	below_next(t.here, RDMA_CM_EVENT_ADDR_CHANGE);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	assert_int_equal(below.expects, 1);
	below_settle();
	assert_int_equal(pthread_create(&thread, NULL, accept_one, &t), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	below_next(t.here, RDMA_CM_EVENT_CONNECT_RESPONSE);
	assert_int_equal(vb_cm_id_establish(t.client), 0);
	assert_int_equal(vb_cm_id_disconnect(t.client), 0);
	assert_int_equal(below.expects, 1);
	below_settle();
	two_end(&t);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, two_open, two_close)
	const struct CMUnitTest tests[] = {
	    CASE(the_server_ends),
	    CASE(the_server_ends_instead_of_agreeing),
	    CASE(nothing_to_disconnect),
	    CASE(nothing_to_disconnect_after_an_answer),
	    CASE(both_disconnect),
	    CASE(nobody_agrees),
	    CASE(many_at_once),
	    CASE(the_client_goes_before_the_answer),
	    CASE(the_answer_fails),
	    CASE(a_listener_ends_with_its_requests),
	    CASE(a_process_dies),
	    CASE(a_process_that_had_the_number_dies),
	    CASE(a_process_dies_before_it_answers),
	    CASE(a_process_dies_unheard),
	    CASE(the_device_is_lost),
	    CASE(lost_during_a_call),
	    CASE(lost_and_told_twice),
	    CASE(loopback_keeps_its_name),
	    CASE(any_address_of_ipv6_takes_ipv4),
	    CASE(unless_it_is_of_ipv6_only),
	    CASE(the_narrower_listener_comes_first),
	    CASE(a_service_is_looked_up),
	    CASE(a_service_of_another_device),
	    CASE(a_service_that_is_not_there),
	    CASE(initiator_and_target),
	    CASE(who_did_not_wait_is_rung),
	};

	return cmocka_run_group_tests_name("cm_id_ends", tests, NULL, NULL);
}
