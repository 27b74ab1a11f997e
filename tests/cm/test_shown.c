/* What tools see of identifiers (iba/shown_id.h) at each step of their lives. */
#include "cm_two.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/told.h"
#include "cm/id.h"

static struct vb_shown_id entry_at(int device, int place)
{
	const struct vb_shown_id_entry *e = &below_entries[device][place];
	struct vb_shown_id s;

	assert_in_range(place, 0, VB_SHOWN_IDS - 1);
	assert_true(vb_told_get(&e->seq, &e->id, &s, VB_SHOWN_ID_WORDS));
	return s;
}

static struct vb_shown_id shown(const struct vb_cm_id *id)
{
	struct vb_shown_id s = entry_at(0, id->place);

	assert_true(s.flags & VB_SHOWN_LIVE);
	return s;
}

/* Entries that are an id's; nothing stands above `used`. */
static unsigned live(int device)
{
	unsigned n = 0;

	for (int i = 0; i < VB_SHOWN_IDS; i++) {
		bool told = below_entries[device][i].seq,
		     is = told && entry_at(device, i).flags & VB_SHOWN_LIVE;

		assert_true(!told || i < (int)below_shown[device].used);
		n += is;
	}
	return n;
}

static void before_a_connection(void **state)
{
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_id *id = two_id(c, RDMA_PS_TCP, IBV_QPT_RC);
	struct vb_shown_id s = shown(id);

	(void)state;
	assert_int_equal(s.id, 0x77);
	assert_int_equal(s.flags, VB_SHOWN_LIVE);
	assert_int_equal(s.state, VB_ID_IDLE);
	vb_cm_channel_sync(c); /* as librdmacm does before the id is made */
	assert_int_equal(s.family, AF_UNSPEC);
	assert_int_equal(s.device, VB_SHOWN_NOWHERE);
	assert_int_equal(s.space, RDMA_PS_TCP);
	assert_int_equal(s.type, IBV_QPT_RC);
	assert_int_equal(vb_cm_id_bind(id, below_addr("10.0.0.2", 7000)), 0);
	s = shown(id);
	assert_int_equal(s.flags, VB_SHOWN_LIVE | VB_SHOWN_SYNC);
	assert_int_equal(s.state, VB_ID_BOUND);
	assert_int_equal(s.family, AF_INET);
	assert_int_equal(s.src_port, 7000);
	assert_int_equal(s.src[15], 2);
	assert_int_equal(s.device, 1); /* and stands in the first one's table all the same */
	assert_int_equal(s.far, 0);
	assert_int_equal(vb_cm_id_resolve_addr(id, NULL, below_addr("10.0.0.1", TWO_PORT), 0), 0);
	s = shown(id);
	assert_int_equal(s.state, VB_ID_ADDR_RESOLVED);
	assert_int_equal(s.far, 1);
	assert_int_equal(s.dst[15], 1);
	assert_int_equal(s.dst_port, TWO_PORT);
	assert_int_equal(s.queued, 1u << RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(s.nqueued, 1);
	assert_int_equal(below_shown[0].all, 1);
	vb_cm_id_end(id);
	assert_int_equal(live(0), 0);
	assert_int_equal(below_shown[0].all, 0);
	vb_cm_channel_close(c);
}

static void a_request(void **state)
{
	struct vb_cm_news n;
	struct vb_shown_id s;
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "0.0.0.0", 5);
	s = shown(t.listener);
	assert_int_equal(s.state, VB_ID_LISTENING);
	assert_int_equal(s.backlog, 5);
	assert_int_equal(s.device, VB_SHOWN_NOWHERE);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	below.filter = two_silence;
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	s = shown(t.client);
	assert_int_equal(s.state, VB_ID_CONNECTING);
	assert_int_equal(s.cm_state, VB_CM_REQ_SENT);
	assert_int_equal(s.awaited, VB_CM_REQ);
	assert_int_equal(s.said, 1);
	assert_int_equal(s.most, 16);
	assert_int_equal(s.qpn, 0x101);
	assert_in_range(s.due, below.now + 4 * VB_SEC, below.now + 7 * VB_SEC);
	below_wait(s.due - below.now); /* only the protocol knows of that */
	assert_int_equal(shown(t.client).said, 2);
	assert_true(shown(t.client).due > below.now);
	below.filter = NULL;
	below_wait(shown(t.client).due - below.now);
	assert_int_equal(shown(t.client).cm_state, VB_CM_REQ_SENT);
	below_wait(shown(t.client).due - below.now); /* said again it is answered by an MRA */
	s = shown(t.client);
	assert_int_equal(s.cm_state, VB_CM_MRA_REQ_RCVD);
	assert_int_equal(s.said, 4);
	assert_true(s.due > below.now + 60 * VB_SEC);
	s = shown(t.listener);
	assert_int_equal(s.requests, 1);
	assert_int_equal(s.queued, 1u << RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_int_equal(vb_cm_channel_get(t.there, &n), 0);
	t.server = n.fresh;
	s = shown(t.server);
	assert_int_equal(s.state, VB_ID_REQUESTED);
	assert_int_equal(s.id, 0);
	assert_int_equal(s.flags, VB_SHOWN_LIVE | VB_SHOWN_PASSIVE);
	assert_int_equal(s.far_comm_id, shown(t.client).comm_id);
	s = shown(t.listener);
	assert_int_equal(s.requests, 0);
	assert_int_equal(s.queued, 0);
	assert_int_equal(s.unacked, 1u << RDMA_CM_EVENT_CONNECT_REQUEST);
	vb_cm_news_ack(n.id, n.event);
	assert_int_equal(shown(t.listener).unacked, 0);
	assert_int_equal(below_shown[0].counts[VB_SHOWN_RETRIED], 3);
	two_end(&t);
}

static void a_connection(void **state)
{
	struct vb_shown_id s;
	struct two t = {0};

	(void)state;
	two_connect(&t, "10.0.0.2", "10.0.0.2");
	s = shown(t.client);
	assert_int_equal(s.state, VB_ID_CONNECTED);
	assert_int_equal(s.cm_state, VB_CM_ESTABLISHED);
	assert_int_equal(s.awaited, 0);
	assert_int_equal(s.far_qpn, 0x202);
	assert_int_equal(s.unacked, 0);
	s = shown(t.server);
	assert_int_equal(s.id, 0x88);
	assert_int_equal(s.qpn, 0x202);
	assert_int_equal(vb_cm_id_disconnect(t.client), 0);
	below_next(t.there, RDMA_CM_EVENT_DISCONNECTED);
	assert_int_equal(shown(t.client).awaited, VB_CM_DREQ);
	assert_int_equal(shown(t.server).cm_state, VB_CM_DREQ_RCVD);
	assert_int_equal(vb_cm_id_disconnect(t.server), 0);
	below_next(t.here, RDMA_CM_EVENT_DISCONNECTED);
	s = shown(t.client);
	assert_int_equal(s.cm_state, VB_CM_TIMEWAIT);
	assert_true(s.due > below.now && s.due != VB_NEVER);
	assert_int_equal(below_shown[0].resting, 1);
	assert_int_equal(below_shown[1].resting, 1); /* the server's */
	vb_cm_id_end(t.client);			     /* its number rests on */
	t.client = NULL;
	assert_int_equal(below_shown[0].resting, 1);
	below_wait(60 * VB_SEC);
	assert_int_equal(below_shown[0].resting, 0);
	assert_int_equal(below_shown[1].resting, 0);
	assert_int_equal(shown(t.server).cm_state, VB_CM_IDLE);
	two_end(&t);
}

/* What is called off rests too, and what nobody has heard of does not. */
static void numbers_that_rest(void **state)
{
	struct two t = {0};

	(void)state;
	two_connect(&t, "10.0.0.2", "10.0.0.2");
	vb_cm_id_end(t.client);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(below_shown[0].resting, 1);
	below.filter = two_silence;
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	assert_int_equal(below_shown[0].resting, 1);
	vb_cm_id_end(t.client);
	t.client = NULL;
	assert_int_equal(below_shown[0].resting, 2);
	below_wait(400 * VB_SEC);
	assert_int_equal(below_shown[0].resting, 0);
	two_end(&t);
	assert_int_equal(below_shown[0].resting, 0);
}

static void what_is_refused_is_counted(void **state)
{
	struct vb_cm_channel *c = below_channel(NULL);
	struct vb_cm_id *id = two_resolve(c, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");

	(void)state;
	assert_int_equal(vb_cm_id_connect(id, &two_asking), 0);
	assert_int_equal(below_next(c, RDMA_CM_EVENT_REJECTED).status, VB_CM_REJ_INVALID_SERVICE_ID);
	assert_int_equal(shown(id).state, VB_ID_FAILED);
	assert_int_equal(shown(id).failed_by, RDMA_CM_EVENT_REJECTED);
	assert_int_equal(shown(id).failed_status, VB_CM_REJ_INVALID_SERVICE_ID);
	assert_int_equal(below_shown[1].counts[VB_SHOWN_REFUSED], 1);
	assert_int_equal(below_shown[0].counts[VB_SHOWN_REFUSED], 0);
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

enum { MANY = VB_SHOWN_IDS + 30 };

static void more_than_there_are_entries(void **state)
{
	static struct vb_cm_id *ids[MANY];
	struct vb_cm_channel *c = below_channel(NULL);

	(void)state;
	for (int i = 0; i < 3; i++)
		ids[i] = two_id(c, RDMA_PS_TCP, IBV_QPT_RC);
	assert_int_equal(below_shown[0].used, 3); /* memory is used as it fills */
	for (int i = 3; i < MANY; i++)
		ids[i] = two_id(c, RDMA_PS_TCP, IBV_QPT_RC);
	assert_int_equal(below_shown[0].all, MANY);
	assert_int_equal(live(0), VB_SHOWN_IDS);
	assert_true(ids[MANY - 1]->place < 0);
	vb_cm_id_end(ids[7]);
	assert_int_equal(live(0), VB_SHOWN_IDS - 1);
	assert_int_equal(vb_cm_id_bind(ids[MANY - 1], below_addr("10.0.0.1", 0)), 0);
	assert_int_equal(ids[MANY - 1]->place, 7);
	assert_int_equal(shown(ids[MANY - 1]).state, VB_ID_BOUND);
	for (int i = 0; i < MANY; i++)
		if (i != 7)
			vb_cm_id_end(ids[i]);
	assert_int_equal(live(0), 0);
	assert_int_equal(below_shown[0].all, 0);
	vb_cm_channel_close(c);
}

static void the_device_is_lost(void **state)
{
	struct vb_shown_id s;
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.1");
	vb_cm_ids_device_lost(below_device(0));
	assert_int_equal(below_shown[0].used, 0);
	assert_int_equal(below_shown[0].all, 0);
	assert_int_equal(below_shown[1].all, 2);
	s = entry_at(1, t.client->place);
	assert_int_equal(s.state, VB_ID_REMOVED);
	s = entry_at(1, t.listener->place);
	assert_int_equal(s.state, VB_ID_LISTENING);
	below_next(t.here, RDMA_CM_EVENT_DEVICE_REMOVAL);
	two_end(&t);
	assert_int_equal(live(1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(before_a_connection, two_open, two_close),
	    cmocka_unit_test_setup_teardown(a_request, two_open, two_close),
	    cmocka_unit_test_setup_teardown(a_connection, two_open, two_close),
	    cmocka_unit_test_setup_teardown(numbers_that_rest, two_open, two_close),
	    cmocka_unit_test_setup_teardown(what_is_refused_is_counted, two_open, two_close),
	    cmocka_unit_test_setup_teardown(more_than_there_are_entries, two_open, two_close),
	    cmocka_unit_test_setup_teardown(the_device_is_lost, two_open, two_close),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
