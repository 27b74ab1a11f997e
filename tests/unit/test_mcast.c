/* Multicast groups of a device: which GIDs are groups, who is attached, and what the limits are. */
#include "obj_fixture.h"

#include "host/netif.h"
#include "iba/profile.h"
#include "obj/mcast.h"
#include "transport/transport.h"

struct table {
	struct vb_mcasts t;
	struct vb_mcast_change c; /* what the last call did */
};

static int setup(void **state)
{
	struct table *b = calloc(1, sizeof(*b));

	vb_mcasts_init(&b->t);
	*state = b;
	return 0;
}

static int teardown(void **state)
{
	struct table *b = *state;

	assert_int_equal(b->t.groups, 0);
	assert_int_equal(b->t.members, 0);
	vb_mcasts_fini(&b->t);
	free(b);
	return 0;
}

static struct vb_qp *make(uint32_t n)
{
	struct vb_qp *qps = aligned_alloc(VB_LINE, n * sizeof(*qps));

	assert_non_null(qps);
	memset(qps, 0, n * sizeof(*qps));
	for (uint32_t i = 0; i < n; i++)
		vb_list_init(&qps[i].mcasts);
	return qps;
}

static union ibv_gid group(uint32_t n)
{
	union ibv_gid g = {.raw = {0xff, 0x0e, [12] = (uint8_t)(n >> 24), (uint8_t)(n >> 16),
				   (uint8_t)(n >> 8), (uint8_t)n}};

	return g;
}

static int attach(struct table *b, struct vb_qp *qp, uint32_t n, uint16_t lid)
{
	union ibv_gid g = group(n);
	int err;

	pthread_mutex_lock(&b->t.lock);
	err = vb_mcasts_attach(&b->t, qp, &g, lid, &b->c);
	pthread_mutex_unlock(&b->t.lock);
	return err;
}

/* What has ended is freed. */
static int detach(struct table *b, struct vb_qp *qp, uint32_t n, uint16_t lid)
{
	union ibv_gid g = group(n);
	int err;

	pthread_mutex_lock(&b->t.lock);
	err = vb_mcasts_detach(&b->t, qp, &g, lid, &b->c);
	pthread_mutex_unlock(&b->t.lock);
	vb_mcasts_free(&b->c);
	return err;
}

/* How many members the group has, and how often the queue pair is one. */
static uint32_t members(struct table *b, uint32_t n, const struct vb_qp *qp, uint32_t *times)
{
	union ibv_gid g = group(n);
	uint32_t count = 0;

	*times = 0;
	for (const struct vb_mcast_member *m = vb_mcasts_first(&b->t, g.raw); m; m = vb_mcasts_next(m)) {
		*times += m->qp == qp;
		count++;
	}
	return count;
}

static void which_gids_are_groups(void **state)
{
	static const struct {
		uint8_t gid[16];
		bool is;
	} gids[] = {
	    {{0xff, 0x02, [15] = 1}, true},
	    {{0xff}, true},
	    {{[10] = 0xff, 0xff, 224, 0, 0, 1}, true},
	    {{[10] = 0xff, 0xff, 239, 255, 255, 255}, true},
	    {{[10] = 0xff, 0xff, 223, 255, 255, 255}, false},
	    {{[10] = 0xff, 0xff, 240, 0, 0, 1}, false},
	    {{[10] = 0xff, 0xff, 127, 0, 0, 1}, false},
	    {{[9] = 1, 0xff, 0xff, 224, 0, 0, 1}, false}, /* no mapped address */
	    {{[10] = 0xff, 0xfe, 224, 0, 0, 1}, false},
	    {{0xfe, 0x80, [15] = 1}, false},
	    {{0}, false},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(gids) / sizeof(gids[0]); i++)
		assert_int_equal(vb_gid_is_group(gids[i].gid), gids[i].is);
}

static void a_queue_pair_is_a_member_once(void **state)
{
	struct table *b = *state;
	struct vb_qp *qp = make(2);
	uint32_t times;

	assert_int_equal(attach(b, &qp[0], 1, 0), 0);
	assert_true(!b->c.met && b->c.group && b->c.member);
	assert_int_equal(attach(b, &qp[0], 1, 0), 0); /* as the kernel has it: nothing more */
	assert_true(!b->c.met && !b->c.group && !b->c.member);
	assert_int_equal(attach(b, &qp[0], 1, 7), 0); /* with another LID it is one more */
	assert_true(!b->c.met && !b->c.group && !b->c.member);
	assert_int_equal(attach(b, &qp[1], 1, 0), 0);
	assert_true(!b->c.met && !b->c.group && b->c.member);
	assert_int_equal(members(b, 1, &qp[0], &times), 2);
	assert_int_equal(times, 1);
	assert_int_equal(detach(b, &qp[0], 1, 8), EINVAL);
	assert_int_equal(detach(b, &qp[0], 2, 0), EINVAL);
	assert_int_equal(detach(b, &qp[0], 1, 0), 0);
	assert_int_equal(members(b, 1, &qp[0], &times), 2);
	assert_int_equal(times, 1);
	assert_int_equal(detach(b, &qp[0], 1, 0), EINVAL);
	assert_int_equal(detach(b, &qp[0], 1, 7), 0);
	assert_true(b->c.member && !b->c.group);
	assert_int_equal(members(b, 1, &qp[0], &times), 1);
	assert_int_equal(times, 0);
	assert_true(vb_list_empty(&qp[0].mcasts) && !vb_list_empty(&qp[1].mcasts));
	assert_int_equal(detach(b, &qp[1], 1, 0), 0);
	assert_true(b->c.member && b->c.group);
	assert_int_equal(members(b, 1, &qp[1], &times), 0);
	free(qp);
}

/* Groups that share a list come and go in any order, and none hides another. */
static void groups_do_not_hide_one_another(void **state)
{
	enum { MANY = 8 * VB_MCAST_LISTS };
	struct table *b = *state;
	struct vb_qp *qp = make(1);
	uint32_t times;

	for (uint32_t i = 0; i < MANY; i++)
		assert_int_equal(attach(b, qp, i, 0), 0);
	for (uint32_t i = 0; i < MANY; i += 2)
		assert_int_equal(detach(b, qp, i, 0), 0);
	for (uint32_t i = 0; i < MANY; i++)
		assert_int_equal(members(b, i, qp, &times), i % 2);
	for (uint32_t i = MANY - 1; i < MANY; i -= 2)
		assert_int_equal(detach(b, qp, i, 0), 0);
	free(qp);
}

/* Who is at a member that is taken off comes to those behind it. */
static void a_reader_goes_on_from_who_has_left(void **state)
{
	struct table *b = *state;
	struct vb_qp *qp = make(3);
	union ibv_gid g = group(1);
	const struct vb_mcast_member *m;
	struct vb_mcast_change ended;

	for (int i = 0; i < 3; i++)
		assert_int_equal(attach(b, &qp[i], 1, 0), 0);
	m = vb_mcasts_first(&b->t, g.raw);
	while (m->qp != &qp[1])
		m = vb_mcasts_next(m);
	pthread_mutex_lock(&b->t.lock);
	assert_int_equal(vb_mcasts_detach(&b->t, &qp[1], &g, 0, &ended), 0);
	pthread_mutex_unlock(&b->t.lock);
	assert_ptr_equal(ended.member, m);
	assert_non_null(vb_mcasts_next(m));
	assert_ptr_equal(vb_mcasts_next(m)->qp, &qp[0]);
	vb_mcasts_free(&ended);
	assert_int_equal(detach(b, &qp[0], 1, 0), 0);
	assert_int_equal(detach(b, &qp[2], 1, 0), 0);
	free(qp);
}

static void all_groups_can_be_had_and_no_more(void **state)
{
	struct table *b = *state;
	struct vb_qp *qp = make(1);
	uint32_t max = vb_profile()->max_mcast_grp;

	for (uint32_t i = 0; i < max; i++)
		assert_int_equal(attach(b, qp, i, 0), 0);
	assert_int_equal(attach(b, qp, max, 0), ENOMEM);
	assert_int_equal(attach(b, qp, 0, 1), 0); /* no other group */
	assert_int_equal(detach(b, qp, 0, 1), 0);
	assert_int_equal(detach(b, qp, max - 1, 0), 0);
	assert_int_equal(attach(b, qp, max, 0), 0);
	assert_int_equal(detach(b, qp, max, 0), 0);
	for (uint32_t i = 0; i < max - 1; i++)
		assert_int_equal(detach(b, qp, i, 0), 0);
	free(qp);
}

static void a_group_takes_so_many_queue_pairs(void **state)
{
	struct table *b = *state;
	uint32_t max = vb_profile()->max_mcast_qp_attach;
	struct vb_qp *qp = make(max + 1);

	for (uint32_t i = 0; i < max; i++)
		assert_int_equal(attach(b, &qp[i], 1, 0), 0);
	assert_int_equal(attach(b, &qp[max], 1, 0), ENOMEM);
	assert_int_equal(attach(b, &qp[0], 1, 0), 0); /* a member already */
	assert_int_equal(attach(b, &qp[max], 2, 0), 0);
	b->t.members += vb_profile()->max_mcast_attach - (max + 1); /* as many elsewhere */
	assert_int_equal(attach(b, &qp[max], 3, 0), ENOMEM);
	b->t.members -= vb_profile()->max_mcast_attach - (max + 1);
	assert_int_equal(detach(b, &qp[max], 2, 0), 0);
	for (uint32_t i = 0; i < max; i++)
		assert_int_equal(detach(b, &qp[i], 1, 0), 0);
	free(qp);
}

/* The rows of the types say who takes part. */
static void rule_29_only_datagrams_take_part(void **state)
{
	(void)state;
	for (uint32_t type = 0; type < VB_TRANSPORTS; type++)
		if (vb_transport_of(type))
			assert_int_equal(vb_transport_of(type)->multicast, type == IBV_QPT_UD);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
	    CASE(which_gids_are_groups),
	    CASE(a_queue_pair_is_a_member_once),
	    CASE(groups_do_not_hide_one_another),
	    CASE(a_reader_goes_on_from_who_has_left),
	    CASE(all_groups_can_be_had_and_no_more),
	    CASE(a_group_takes_so_many_queue_pairs),
	    CASE(rule_29_only_datagrams_take_part),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
