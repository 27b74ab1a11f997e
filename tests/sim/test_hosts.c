/* A device at work: several processes with several connections, of all types, and datagrams among them and to
 * groups; random operations on all of them at once, and processes that end, leave and begin by seed, over a
 * wire that may lose, against the model.  Whatever happens to a peer, all that a program posted completes,
 * once and in order; what succeeded was done; and in the end nothing is under way and no timer runs.
 *
 * The first argument or VB_SEEDS: how many seeds (100; 1000 with VERBENA_SOAK); the second argument: the
 * first of them. */
#include <stdio.h>

#include "datagrams.h"
#include "hosts.h"
#include "model.h"
#include "seeds.h"

enum { PAIRS = 10, CROWD = 8 /* sims of datagrams, two ends each */, FEW = 40 };

/* One connection, and who stands at its ends. */
struct pair {
	struct sim *s; /* NULL: both ends are gone, and it was freed */
	struct model m;
	bool dies[2]; /* the connection of this side stood when its peer died */
};

struct run {
	struct hosts *h;
	struct hosts_cfg cfg;
	struct sim dice;
	struct vb_adapter *process[16];
	unsigned processes;
	struct pair pair[PAIRS];
	unsigned pairs, ends;
	bool calm; /* nothing is lost and nobody goes, so that no timer is needed */
	/* Datagrams between all of them, and to groups. */
	bool crowded;
	struct datagrams crowd;
	struct sim *crowd_sim[CROWD];
	unsigned crowd_sims, waiting; /* waiting: programs that wait in a call */
	struct vb_adapter *stopped;
};

static unsigned ended, placed, busy, unreliable, deputies, attached, stops, came_to_groups;
static uint64_t carried;

static uint32_t below(struct run *r, uint32_t n)
{
	return sim_below(&r->dice, n);
}

static struct vb_adapter *any_alive(struct run *r)
{
	struct vb_adapter *a;

	do
		a = r->process[below(r, r->processes)];
	while (!hosts_alive(a));
	return a;
}

static void add_pair(struct run *r, struct vb_adapter *a, struct vb_adapter *b)
{
	struct pair *p = &r->pair[r->pairs];
	struct sim_cfg c = model_cfg(r->cfg.wire.seed * 100 + r->pairs);

	c.mtu = r->cfg.wire.mtu;
	c.local = r->cfg.wire.local;
	c.placing = r->cfg.wire.placing;
	c.timeout = (uint8_t)(r->calm ? 0 : 8 + below(r, 4));
	if (below(r, 3) == 0) {
		c.family = VB_FAMILY_UC;
		c.loss = r->cfg.wire.loss;
		c.dup = r->cfg.wire.dup;
		c.late = r->cfg.wire.late;
		unreliable++;
	} else if (below(r, 3) == 0) {
		c.xrc = true;
		if (c.mtu > 4096)
			c.path_mtu[0] = c.path_mtu[1] = 4096;
		c.srq_on = any_alive(r);
		if (c.srq_on !=
		    b) /* two ways, each as slow as one, where slow is lost if the wire cannot tell */
			c.timeout = 14;
		deputies += c.srq_on != b;
	}
	r->pairs++;
	p->s = sim_new_on(&c, &hosts_ground, a, b);
	model_init(&p->m, p->s, 1 + below(r, FEW));
}

static bool hears(struct sim *s, unsigned i, int event)
{
	int e;

	while ((e = sim_event(s, i)) >= 0)
		if (e == event)
			return true;
	return false;
}

/* What is there of it is as the model says. */
static void end_pair(const struct run *r, struct pair *p)
{
	model_poll(&p->m);
	model_check_end(&p->m);
	for (unsigned i = 0; i < 2; i++) {
		const struct vb_qp *qp = &p->s->n[i].qp;

		if (p->m.side[i].gone)
			continue;
		assert_int_equal(qp->req.deadline, VB_NEVER);
		if (r->calm)
			assert_int_equal(p->s->n[i].drops.count[VB_R_DROP_NOBODY], 0);
		if (!qp->acked)
			assert_int_equal(qp->state, IBV_QPS_RTS);
		if (p->dies[i]) {
			assert_int_equal(qp->state, IBV_QPS_ERR);
			assert_int_equal(qp->why.reason, VB_R_PEER_DIED);
			assert_true(hears(p->s, i, IBV_EVENT_QP_FATAL));
		}
	}
	model_fini(&p->m);
	sim_free(p->s);
	p->s = NULL;
}

/* The process ends whose SRQ a target's messages name; the target stays. */
static void srq_goes(const struct run *r, struct pair *p, bool orderly)
{
	if (orderly)
		hosts_end_srq(p->s);
	if (p->m.side[1].gone)
		return;
	model_gone(&p->m, 1);
	if (p->m.side[0].gone)
		end_pair(r, p);
}

/* The program at one end of it destroys its queue pair, or has ended. */
static void one_end_goes(const struct run *r, struct pair *p, unsigned i, bool orderly)
{
	const struct vb_qp *other = &p->s->n[!i].qp;

	if (p->m.side[i].gone) {
		if (orderly) /* a target whose SRQ was another process's */
			sim_leave(p->s, i);
		return;
	}
	/* who is not acknowledged notices nothing */
	p->dies[!i] = !orderly && other->acked && other->path.out && other->state == IBV_QPS_RTS;
	if (orderly) {
		sim_leave(p->s, i);
		model_left(&p->m, i);
	} else {
		model_gone(&p->m, i);
	}
	if (p->m.side[!i].gone)
		end_pair(r, p);
}

/* ---- datagrams ---- */

static struct vb_qp *qp_of(const struct dg_end *e)
{
	return &e->s->n[e->i].qp;
}

static struct vb_adapter *process_of(const struct dg_end *e)
{
	return e->s->on[e->i];
}

/* Two queue pairs more. */
static void join_crowd(struct run *r, struct vb_adapter *a, struct vb_adapter *b)
{
	struct sim_cfg c = model_cfg(r->cfg.wire.seed * 100 + 50 + r->crowd_sims);
	struct vb_adapter *of[2] = {a, b};
	struct sim *s;

	c.family = VB_FAMILY_UD;
	s = r->crowd_sim[r->crowd_sims++] = sim_new_on(&c, &hosts_ground, a, b);
	for (unsigned i = 0; i < 2; i++) {
		struct dg_end *e;

		assert_int_equal(vb_mcast_meet(vb_adapter_user(of[i]), "ibv_create_ah"), 0);
		e = &r->crowd.end[datagrams_add(&r->crowd, s, i, 1 + below(r, 2 * FEW))];
		e->no_echo = qp_of(e)->dests->no_echo = below(r, 3) == 0;
	}
}

static void detach(struct run *r, unsigned k, unsigned group)
{
	struct dg_end *e = &r->crowd.end[k];

	datagrams_member(&r->crowd, k, group, DG_PERHAPS);
	assert_int_equal(vb_mcast_detach(vb_adapter_user(process_of(e)), qp_of(e), &r->crowd.group[group], 0),
			 0);
	datagrams_member(&r->crowd, k, group, DG_NOT);
}

/* A program attaches a queue pair to a group, or detaches it. */
static void change_membership(struct run *r)
{
	unsigned k = below(r, r->crowd.ends), group = below(r, DG_GROUPS);
	struct dg_end *e = &r->crowd.end[k];

	if (e->gone || e->stopped || r->stopped)
		return;
	if (e->member[group] == DG_IS) {
		detach(r, k, group);
		return;
	}
	datagrams_member(&r->crowd, k, group, DG_PERHAPS);
	assert_int_equal(vb_mcast_attach(vb_adapter_user(process_of(e)), qp_of(e), &r->crowd.group[group], 0),
			 0);
	datagrams_member(&r->crowd, k, group, DG_IS);
	attached++;
}

/* Of a process that waits, or is stopped, no program makes a call. */
static void hold(struct run *r, const struct vb_adapter *a, unsigned n)
{
	for (unsigned k = 0; k < r->crowd.ends; k++)
		if (process_of(&r->crowd.end[k]) == a)
			r->crowd.end[k].stopped += n;
}

static void meanwhile(void *user, const struct vb_adapter *waits)
{
	struct run *r = user;

	if (!r->crowd.ends)
		return;
	hold(r, waits, 1);
	r->waiting++;
	datagrams_act(&r->crowd);
	if (below(r, 2))
		datagrams_poll(&r->crowd);
	if (r->waiting < 3 && !below(r, 6))
		change_membership(r);
	r->waiting--;
	hold(r, waits, -1u);
}

/* Its program destroys it, or has ended. */
static void end_goes(struct run *r, unsigned k, bool orderly)
{
	struct dg_end *e = &r->crowd.end[k];

	if (e->gone)
		return;
	if (!orderly) {
		datagrams_gone(&r->crowd, k);
		return;
	}
	for (unsigned g = 0; g < DG_GROUPS; g++)
		if (e->member[g])
			detach(r, k, g);
	datagrams_left(&r->crowd, k);
	sim_leave(e->s, e->i);
}

static void go_on(struct run *r)
{
	hosts_continue(r->stopped);
	hold(r, r->stopped, -1u);
	r->stopped = NULL;
}

/* For some time one of them is stopped, which delays what comes to it, and then that is counted. */
static void stop_somebody(struct run *r)
{
	if (r->stopped) {
		if (below(r, 2)) /* so long that what finds no room is dropped */
			hosts_run_for(r->h, below(r, 3) * VB_SEC);
		go_on(r);
		return;
	}
	r->stopped = any_alive(r);
	hosts_stop(r->stopped);
	hold(r, r->stopped, 1);
	stops++;
}

static void act_in_crowd(struct run *r, bool *acted)
{
	*acted |= datagrams_act(&r->crowd);
	if (below(r, 2))
		datagrams_poll(&r->crowd);
	if (!below(r, 20))
		change_membership(r);
	if (!r->calm && !r->pairs && !below(r, 60))
		stop_somebody(r);
}

static void end_crowd(struct run *r)
{
	datagrams_check_end(&r->crowd);
	came_to_groups += r->crowd.came_to_groups;
	for (unsigned k = 0; k < r->crowd.ends; k++)
		for (unsigned g = 0; g < DG_GROUPS && !r->crowd.end[k].gone; g++)
			if (r->crowd.end[k].member[g])
				detach(r, k, g);
	for (unsigned k = 0; k < r->crowd_sims; k++)
		sim_free(r->crowd_sim[k]);
	datagrams_fini(&r->crowd);
}

/* ---- who comes and goes ---- */

static void somebody_ends(struct run *r)
{
	struct vb_adapter *a = any_alive(r);
	bool orderly = below(r, 3) == 0;

	for (unsigned k = 0; k < r->pairs; k++)
		if (r->pair[k].s && r->pair[k].s->cfg.xrc && r->pair[k].s->cfg.srq_on == a)
			srq_goes(r, &r->pair[k], orderly);
	for (unsigned k = 0; k < r->pairs; k++)
		for (unsigned i = 0; i < 2; i++)
			if (r->pair[k].s && r->pair[k].s->on[i] == a) {
				busy += !model_finished(&r->pair[k].m);
				one_end_goes(r, &r->pair[k], i, orderly);
			}
	for (unsigned k = 0; k < r->crowd.ends; k++)
		if (process_of(&r->crowd.end[k]) == a)
			end_goes(r, k, orderly);
	if (orderly)
		hosts_leave(a);
	else
		hosts_kill(a);
	ended++;
	/* another program takes its place, and one that is there connects to it */
	r->process[r->processes++] =
	    below(r, 4) ? hosts_start(r->h) : hosts_start_as(r->h, vb_adapter_number(a));
	if (r->pairs && r->pairs < PAIRS)
		add_pair(r, any_alive(r), r->process[r->processes - 1]);
	if (r->crowded && r->crowd_sims < CROWD)
		join_crowd(r, any_alive(r), r->process[r->processes - 1]);
}

static void something_happens(struct run *r)
{
	struct pair *p = &r->pair[below(r, r->pairs ? r->pairs : 1)];
	unsigned i = below(r, 2);

	if (r->stopped)
		return;
	r->ends--;
	if (r->crowd.ends && below(r, 3) == 0) {
		end_goes(r, below(r, r->crowd.ends), true);
		return;
	}
	switch (below(r, r->pairs ? 3 : 1) + !r->pairs * 2) {
	case 0: /* one queue pair of many goes, or both ends of it, and their processes stay */
		if (p->s && hosts_alive(p->s->on[i]))
			one_end_goes(r, p, i, true);
		if (p->s && hosts_alive(p->s->on[!i]) && below(r, 2))
			one_end_goes(r, p, !i, true);
		break;
	case 1:
		if (r->pairs < PAIRS)
			add_pair(r, any_alive(r), any_alive(r));
		break;
	default:
		somebody_ends(r);
	}
}

static bool all_finished(const struct run *r)
{
	for (unsigned k = 0; k < r->pairs; k++)
		if (r->pair[k].s && !model_finished(&r->pair[k].m))
			return false;
	return datagrams_finished(&r->crowd);
}

static void stuck(const struct run *r)
{
	char buf[128];

	for (unsigned k = 0; k < r->pairs; k++)
		if (r->pair[k].s && !model_finished(&r->pair[k].m)) {
			model_say(&r->pair[k].m, buf, sizeof buf);
			fail_msg("stuck: pair %u: %s", k, buf);
		}
	datagrams_say(&r->crowd, buf, sizeof buf);
	fail_msg("stuck: %s", buf);
}

static void begin(struct run *r, uint64_t seed)
{
	*r = (struct run){.dice.rng = seed * 31 + 7};
	r->cfg.wire = model_cfg(seed);
	r->calm = below(r, 3) == 0;
	if (r->calm || below(r, 3) == 0) /* as between processes of a host */
		r->cfg.wire.loss = r->cfg.wire.dup = r->cfg.wire.late = 0;
	r->cfg.contact = below(r, 3) ? 1 + below(r, 3000000) : 0;
	r->cfg.notice = 1 + below(r, 5000000);
	r->ends = r->calm ? 0 : below(r, 6);
	r->crowded = below(r, 2);
	if (r->crowded && r->cfg.wire.mtu < 4096) /* a port's */
		r->cfg.wire.mtu = 4096;
	r->cfg.meanwhile = meanwhile;
	r->cfg.user = r;
	r->h = hosts_new(&r->cfg);
	datagrams_init(&r->crowd, &r->dice, &r->cfg.wire);
	r->crowd.groups = below(r, 3) ? 3 : 1;
	for (unsigned k = 2 + below(r, 3); k; k--)
		r->process[r->processes++] = hosts_start(r->h);
	for (unsigned k = r->crowded && below(r, 2) ? 0 : 1 + below(r, 5); k; k--)
		add_pair(r, any_alive(r), any_alive(r)); /* now and then with itself */
	for (unsigned k = r->crowded ? 1 + below(r, 3) : 0; k; k--)
		join_crowd(r, any_alive(r), any_alive(r));
}

static void finish(struct run *r)
{
	if (r->stopped)
		go_on(r);
	hosts_settle(r->h);
	carried += hosts_carried(r->h);
	placed += r->cfg.wire.placing;
	for (unsigned k = 0; k < r->pairs; k++)
		if (r->pair[k].s)
			end_pair(r, &r->pair[k]);
	end_crowd(r);
	hosts_free(r->h);
}

static void run_seed(uint64_t seed)
{
	struct run r;
	unsigned idle = 0;

	begin(&r, seed);
	while (!all_finished(&r)) {
		struct pair *p = &r.pair[below(&r, r.pairs ? r.pairs : 1)];
		bool acted = p->s && model_act(&p->m);

		for (unsigned k = below(&r, 40); k && hosts_step(r.h); k--)
			acted = true;
		if (p->s && below(&r, 2))
			model_poll(&p->m);
		if (r.crowd.ends)
			act_in_crowd(&r, &acted);
		if (r.ends && !below(&r, 30))
			something_happens(&r);
		idle = acted ? 0 : idle + 1;
		if (idle > 1000 || hosts_now(r.h) > 1000 * VB_SEC)
			stuck(&r);
	}
	finish(&r);
}

static void processes_come_and_go(void **state)
{
	(void)state;
	for_each_seed() run_seed(seeds.current);
	print_message("%u processes ended, %u connections were in use then\n", ended, busy);
	assert_true(seeds.count < 20 || (ended && busy && placed && carried && unreliable && deputies &&
					 attached && stops && came_to_groups));
}

/* ---- single rules ---- */

/* Two processes and a pair on them. */
struct two {
	struct hosts *h;
	struct vb_adapter *a[2];
	struct sim *s;
};

/* On that lane: queue pairs that are made in turn take lanes in turn. */
static struct two two_on(const struct sim_cfg *c, uint64_t contact, uint32_t lane)
{
	struct two t = {
	    .h = hosts_new(&(struct hosts_cfg){.wire = *c, .contact = contact, .notice = VB_MSEC})};

	t.a[0] = hosts_start(t.h);
	t.a[1] = hosts_start(t.h);
	for (uint32_t i = 0; i < lane; i++)
		sim_free(sim_new_on(c, &hosts_ground, t.a[0], t.a[1]));
	t.s = sim_new_on(c, &hosts_ground, t.a[0], t.a[1]);
	sim_desk_init(t.s);
	return t;
}

static struct two two(const struct sim_cfg *c, uint64_t contact)
{
	return two_on(c, contact, 0);
}

static void over(struct two *t)
{
	hosts_settle(t->h);
	sim_free(t->s);
	hosts_free(t->h);
}

/* Polls often enough that its process is taken for one that polls, whose ACKs are lazy. */
static void keep_polling(struct two *t, unsigned i)
{
	struct ibv_wc wc;

	for (int k = 0; k < 40; k++)
		assert_false(sim_poll(t->s, i, false, &wc));
}

/* What was posted before the far end was connected goes out as soon as it is, and no timer is needed for it.
 */
static void a_far_end_that_comes_late(void **state)
{
	struct two t = two(SIM_CFG(.timeout = 0, .one_end = true), VB_MSEC);
	uint64_t w = sim_op(t.s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0), m = sim_op(t.s, 0, IBV_WR_SEND, 0, 8, 0), r;

	(void)state;
	hosts_run_for(t.h, 50 * VB_MSEC);
	sim_expect_none(t.s, 0);
	assert_int_equal(hosts_packets(t.h), 0); /* there is nobody whom it could be sent to */
	hosts_run_for(t.h, VB_MSEC);
	sim_connect(t.s, 1);
	r = sim_take(t.s, 1, 64, 8);
	hosts_run_for(t.h, 3 * VB_MSEC);
	sim_expect(t.s, 0, true, w, IBV_WC_SUCCESS);
	sim_expect(t.s, 0, true, m, IBV_WC_SUCCESS);
	sim_expect(t.s, 1, false, r, IBV_WC_SUCCESS);
	over(&t);
}

/* What the receiver's program has seen is no failure for the sender, though its ACK had not left when the
 * receiver destroyed its queue pair, or died. */
static void what_was_received_was_sent(void **state)
{
	(void)state;
	for (unsigned dies = 0; dies < 2; dies++) {
		struct two t = two(SIM_CFG(.timeout = 10, .retry_cnt = 1), 0);
		uint64_t r = sim_take(t.s, 1, 64, 8), m;

		hosts_run_for(t.h, VB_MSEC);
		keep_polling(&t, 0);
		keep_polling(&t, 1);
		m = sim_op(t.s, 0, IBV_WR_SEND, 0, 8, 0);
		hosts_run_for(t.h, 2000);
		assert_int_equal(hosts_packets(t.h), 1);
		sim_expect(t.s, 1, false, r, IBV_WC_SUCCESS);
		assert_int_equal(hosts_packets(t.h), 1); /* the ACK waits */
		if (dies)
			hosts_kill(t.a[1]);
		else
			sim_leave(t.s, 1);
		hosts_settle(t.h);
		sim_expect(t.s, 0, true, m, IBV_WC_SUCCESS);
		over(&t);
	}
}

/* A program that polls no more after it took a message in: its engine sends the ACK.  Nor is the sender's
 * timer the judge of that, however short it is: the message can be seen to have been received. */
static void an_ack_does_not_lie(void **state)
{
	static const uint8_t timeouts[] = {0, 4 /* 65 us, while the engine looks after 10 ms */};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct two t = two(SIM_CFG(.timeout = timeouts[i], .retry_cnt = 0, .lossless = true), 0);
		uint64_t r = sim_take(t.s, 1, 64, 8), m;

		hosts_run_for(t.h, VB_MSEC);
		keep_polling(&t, 0);
		keep_polling(&t, 1);
		m = sim_op(t.s, 0, IBV_WR_SEND, 0, 8, 0);
		hosts_run_for(t.h, 2000);
		sim_expect(t.s, 1, false, r, IBV_WC_SUCCESS);
		hosts_run_for(t.h, 25 * VB_MSEC);
		sim_expect(t.s, 0, true, m, IBV_WC_SUCCESS);
		over(&t);
	}
}

/* What the program of the sender does after it has posted. */
enum sender {
	POLLS,
	SLEEPS,	 /* from then on */
	SLEPT,	 /* before, too */
	COMPUTES /* makes no call */
};

/* How long it takes until the request is complete, at most `most`. */
static uint64_t takes(struct two *t, enum sender how, uint64_t most)
{
	const struct vb_req *q = &t->s->n[0].qp.req;
	uint64_t began = hosts_now(t->h);
	struct ibv_wc wc;

	if (how == SLEEPS)
		hosts_sleep(t->a[0]); /* what was posted has arrived by now */
	while (q->una != q->next && hosts_now(t->h) - began < most) {
		hosts_run_for(t->h, 10 * VB_USEC);
		for (int i = 0; how == POLLS && i < 300 && q->una != q->next; i++)
			sim_poll(t->s, 0, true, &wc);
	}
	return hosts_now(t->h) - began;
}

/* A program that has polled, and then computes: what comes for it is taken in, and what it owes is sent, soon
 * if anybody waits for that, and never without end. */
static void nothing_lies(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND, IBV_WR_SEND, IBV_WR_RDMA_READ};
	static const uint8_t timeouts[] = {0, 14};
	/* where the program polls until it has the message, and owes the ACK */
	static const bool acks[] = {false, true, false};

	(void)state;
	for (unsigned i = 0; i < 2 * 3 * 2 * (COMPUTES + 1); i++) {
		enum sender how = i / 6 % (COMPUTES + 1);
		bool at_once = acks[i % 3] && (how == SLEEPS || how == SLEPT);
		uint64_t most = at_once ? 20 * VB_USEC : how == COMPUTES ? 25 * VB_MSEC : 2 * VB_MSEC, r;
		struct two t = two_on(SIM_CFG(.timeout = timeouts[i / 3 % 2], .retry_cnt = 0,
					      .lossless = true, .carried = true),
				      0, i / (6 * (COMPUTES + 1)));

		r = sim_take(t.s, 1, 64, 8);
		hosts_run_for(t.h, VB_MSEC);
		keep_polling(&t, 0);
		keep_polling(&t, 1);
		if (how == SLEPT)
			hosts_sleep(t.a[0]);
		sim_op(t.s, 0, ops[i % 3], 0, 8, 0);
		hosts_run_for(t.h, 2 * VB_USEC);
		if (acks[i % 3])
			sim_expect(t.s, 1, false, r, IBV_WC_SUCCESS);
		assert_in_range(takes(&t, how, 2 * most), 0, most);
		sim_free(t.s);
		hosts_free(t.h);
	}
}

static uint32_t lane_of(const struct sim *s, unsigned i)
{
	return s->n[i].qp.path.rxq->index % VB_LANES;
}

/* Whatever numbers their queue pairs have: what comes for one is looked for where its answers leave. */
static void both_ends_keep_to_one_lane(void **state)
{
	enum { PAIRS = 6 };
	const struct sim_cfg *c = SIM_CFG(.timeout = 14);
	struct two t = two(c, 0);
	struct sim *s[PAIRS] = {t.s};
	uint32_t used = 0;

	(void)state;
	for (unsigned i = 1; i < PAIRS; i++) {
		if (i == PAIRS / 2) /* the far end's numbers run ahead */
			sim_free(sim_new_on(c, &hosts_ground, t.a[1], hosts_start(t.h)));
		s[i] = sim_new_on(c, &hosts_ground, t.a[i % 2], t.a[1 - i % 2]);
	}
	hosts_settle(t.h);
	for (unsigned i = 0; i < PAIRS; i++) {
		assert_int_equal(lane_of(s[i], 0), lane_of(s[i], 1));
		used |= 1u << lane_of(s[i], 0);
	}
	assert_int_equal(used, 3); /* as many as a simulated peer has */
	for (unsigned i = 1; i < PAIRS; i++)
		sim_free(s[i]);
	over(&t);
}

/* What is shown as received says nothing of answers, which may be on their way. */
static void a_read_is_not_asked_for_twice(void **state)
{
	struct two t = two(SIM_CFG(.timeout = 14, .retry_cnt = 1, .lossless = true, .carried = true), 0);
	uint64_t r, m;
	struct ibv_wc wc;

	(void)state;
	hosts_run_for(t.h, VB_MSEC);
	keep_polling(&t, 0);
	keep_polling(&t, 1);
	r = sim_op(t.s, 0, IBV_WR_RDMA_READ, 0, 8, 0);
	m = sim_op(t.s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0);
	hosts_run_for(t.h, VB_USEC);
	keep_polling(&t, 1);
	for (int i = 0; i < 300; i++)
		assert_false(sim_poll(t.s, 0, true, &wc));
	assert_int_equal(t.s->n[0].qp.req.retried, 0);
	hosts_run_for(t.h, VB_USEC);
	sim_expect(t.s, 0, true, r, IBV_WC_SUCCESS);
	sim_expect(t.s, 0, true, m, IBV_WC_SUCCESS);
	over(&t);
}

/* The first packet of a connection, from which on the far end permits more (rule 37). */
static void first_packet(struct two *t)
{
	uint64_t r = sim_take(t->s, 1, 128, 8), m = sim_op(t->s, 0, IBV_WR_SEND, 0, 8, 0);

	hosts_settle(t->h);
	sim_expect(t->s, 1, false, r, IBV_WC_SUCCESS);
	sim_expect(t->s, 0, true, m, IBV_WC_SUCCESS);
}

/* Direct placement by way of the tables that the processes show one another: no packet. */
static void requests_are_placed(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						 IBV_WR_ATOMIC_FETCH_AND_ADD};
	struct two t = two(SIM_CFG(.placing = true), 0);

	(void)state;
	first_packet(&t);
	for (unsigned i = 0; i < 3; i++) {
		uint64_t packets = hosts_packets(t.h), w;

		t.s->mem[0][64] = (uint8_t)(i + 1);
		w = sim_op(t.s, 0, ops[i], 64, 8, 64);
		sim_expect(t.s, 0, true, w, IBV_WC_SUCCESS);
		assert_int_equal(hosts_packets(t.h), packets);
	}
	assert_int_equal(t.s->mem[1][64], 2); /* 1 was written, and 1 added */
	over(&t);
}

/* What is placed in several goes is cut between cache lines of the far end's memory, so that who looks at a
 * word there never sees half of it; and a small one is not cut at all.  How much goes at a time is by chance
 * here. */
static void a_placement_is_cut_between_lines(void **state)
{
	enum { LEN = 100000, WORDS = 16 };
	struct two t = two(SIM_CFG(.placing = true), 0);
	uint64_t w;

	(void)state;
	first_packet(&t);
	memset(t.s->mem[0], 0x77, LEN);
	for (uint32_t i = 0; i < 64; i++) {
		uint32_t to = 4096 + i, n = 0;

		memset(t.s->mem[1], 0, SIM_MEM);
		w = sim_op(t.s, 0, IBV_WR_RDMA_WRITE, 0, LEN, to);
		while (t.s->mem[1][to + n])
			n++;
		assert_in_range(n, 1, LEN - 1);
		assert_int_equal((uintptr_t)(t.s->mem[1] + to + n) % 64, 0);
		hosts_settle(t.h);
		sim_expect(t.s, 0, true, w, IBV_WC_SUCCESS);
		assert_memory_equal(t.s->mem[1] + to, t.s->mem[0], LEN);
	}
	for (uint32_t i = 0; i < 1000; i++) {
		struct ibv_sge sge[WORDS];
		struct ibv_send_wr wr[WORDS];

		memset(t.s->mem[1], 0, 8 * WORDS);
		for (uint32_t k = 0; k < WORDS; k++) {
			wr[k] = sim_wr(t.s, 0, IBV_WR_RDMA_WRITE, 0, 8, 8 * k, &sge[k]);
			wr[k].next = k + 1 < WORDS ? &wr[k + 1] : NULL;
		}
		assert_int_equal(sim_send(t.s, 0, wr), 0);
		for (uint32_t k = 0; k < WORDS; k++) {
			uint64_t word = ((uint64_t *)(void *)t.s->mem[1])[k];

			assert_true(!word || word == 0x7777777777777777);
		}
		hosts_settle(t.h);
		for (uint32_t k = 0; k < WORDS; k++)
			sim_expect(t.s, 0, true, wr[k].wr_id, IBV_WC_SUCCESS);
	}
	over(&t);
}

/* What was lent under the leave of one connection is not collected under that of the next. */
static void each_leave_is_another(void **state)
{
	struct two t = two(SIM_CFG(.placing = true), 0);
	uint32_t last = 0;

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		_Atomic uint32_t *may = &t.s->n[0].qp.shown->may;

		first_packet(&t);
		assert_true(atomic_load(may) >> VB_SHOWN_LEAVE > last);
		last = atomic_load(may) >> VB_SHOWN_LEAVE;
		for (unsigned n = 0; n < 2; n++) {
			sim_modify(t.s, n, IBV_QPS_ERR);
			assert_int_equal(atomic_load(&t.s->n[n].qp.shown->may), 0);
			sim_modify(t.s, n, IBV_QPS_RESET);
		}
		hosts_settle(t.h);
		sim_connect(t.s, 0);
		sim_connect(t.s, 1);
	}
	over(&t);
}

/* Requests that found no room yet when the peer said goodbye fail as if their packets were lost. */
static void a_goodbye_with_a_full_wire(void **state)
{
	struct two t = two(SIM_CFG(.timeout = 8, .retry_cnt = 1, .room = 4), 0);
	uint64_t w[20];

	(void)state;
	hosts_run_for(t.h, VB_MSEC);
	for (unsigned i = 0; i < 20; i++)
		w[i] = sim_op(t.s, 0, IBV_WR_RDMA_WRITE, 0, 64, 0);
	sim_leave(t.s, 1);
	hosts_leave(t.a[1]);
	hosts_settle(t.h);
	for (unsigned i = 0; i < 20; i++)
		sim_expect(t.s, 0, true, w[i], i ? IBV_WC_WR_FLUSH_ERR : IBV_WC_RETRY_EXC_ERR);
	over(&t);
}

/* In SQD a request that is placed in part goes on; when its peer says goodbye in the middle of that it fails
 * as if its packets were lost. */
static void a_goodbye_in_the_middle_of_a_placement(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
	enum { LEN = 200000 };

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct two t = two(SIM_CFG(.placing = true, .timeout = 8, .retry_cnt = 1), 0);
		struct vb_req *q = &t.s->n[0].qp.req;
		const struct vb_swqe *first = vb_sq_at(q, 1); /* behind first_packet()'s */
		uint64_t w, behind;

		first_packet(&t);
		t.s->n[0].qp.attr.en_sqd_async_notify = 1;
		w = sim_op(t.s, 0, ops[i], 0, LEN, 0);
		sim_modify(t.s, 0, IBV_QPS_SQD);
		behind = sim_op(t.s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0);
		hosts_stop(t.a[0]); /* so that it finds the goodbye before it goes on */
		assert_int_equal(first->wr_id, w);
		assert_int_equal(first->state, VB_WQE_POSTED);
		assert_in_range(first->placed, 1, LEN - 1);
		sim_leave(t.s, 1);
		hosts_leave(t.a[1]);
		hosts_run_for(t.h, 2 * VB_MSEC);
		hosts_continue(t.a[0]);
		hosts_settle(t.h);
		sim_expect(t.s, 0, true, w, IBV_WC_RETRY_EXC_ERR);
		sim_expect(t.s, 0, true, behind, IBV_WC_WR_FLUSH_ERR);
		sim_expect_none(t.s, 0);
		assert_int_equal(t.s->n[0].qp.state, IBV_QPS_ERR);
		assert_int_equal(sim_event(t.s, 0), -1); /* it was never drained */
		over(&t);
	}
}

/* A queue pair that has much to send does not keep the wire from one that has little. */
static void everybody_gets_room(void **state)
{
	enum { MUCH = 16 };
	const struct sim_cfg *c = SIM_CFG(.timeout = 0, .room = 8, .mtu = 256);
	struct two t = two(c, 0);
	struct sim *other = sim_new_on(c, &hosts_ground, t.a[0], t.a[1]), *s;
	const struct vb_req *much = &t.s->n[0].qp.req, *little;

	(void)state;
	s = sim_new_on(c, &hosts_ground, t.a[0], t.a[1]); /* on the same lane as the first pair */
	sim_desk_init(s);
	little = &s->n[0].qp.req;
	hosts_settle(t.h);
	for (int i = 0; i < MUCH; i++)
		sim_op(t.s, 0, IBV_WR_RDMA_WRITE, 0, 4096, 0);
	sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0);
	while (little->una != little->seen) {
		assert_true(much->una != much->seen);
		hosts_run_for(t.h, VB_USEC);
	}
	assert_in_range(much->seen - much->una, MUCH / 2, MUCH);
	hosts_settle(t.h);
	assert_int_equal(much->una, much->seen);
	sim_free(other);
	sim_free(s);
	over(&t);
}

/* A process gets the number of one that has just died, before anybody has noticed that: who connects to it is
 * not left with the dead one. */
static void a_number_changes_hands(void **state)
{
	struct two t = two(SIM_CFG(.timeout = 0), 0);
	struct vb_adapter *heir;
	struct sim *s;
	uint64_t r, m;

	(void)state;
	r = sim_take(t.s, 1, 64, 8);
	m = sim_op(t.s, 0, IBV_WR_SEND, 0, 8, 0);
	hosts_settle(t.h);
	sim_expect(t.s, 1, false, r, IBV_WC_SUCCESS);
	sim_expect(t.s, 0, true, m, IBV_WC_SUCCESS);
	hosts_kill(t.a[1]);
	heir = hosts_start_as(t.h, vb_adapter_number(t.a[1]));
	s = sim_new_on(SIM_CFG(.timeout = 0, .one_end = true), &hosts_ground, t.a[0], heir);
	sim_desk_init(s);
	m = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	hosts_run_for(t.h, 10 * VB_MSEC); /* the death is noticed */
	assert_int_equal(t.s->n[0].qp.state, IBV_QPS_ERR);
	sim_connect(s, 1);
	r = sim_take(s, 1, 64, 8);
	hosts_settle(t.h);
	sim_expect(s, 1, false, r, IBV_WC_SUCCESS);
	sim_expect(s, 0, true, m, IBV_WC_SUCCESS);
	sim_free(s);
	over(&t);
}

/* The queue pair of that number which died with the first process had not been connected yet, so that one who
 * looks there could take it for the one that is meant. */
static void a_number_changes_hands_unconnected(void **state)
{
	struct two t = two(SIM_CFG(.timeout = 0), 0);
	struct vb_adapter *heir;
	struct sim *s;
	uint64_t r, m;

	(void)state;
	r = sim_take(t.s, 1, 64, 8);
	m = sim_op(t.s, 0, IBV_WR_SEND, 0, 8, 0);
	hosts_settle(t.h); /* they have met */
	sim_expect(t.s, 1, false, r, IBV_WC_SUCCESS);
	sim_expect(t.s, 0, true, m, IBV_WC_SUCCESS);
	sim_modify(t.s, 1, IBV_QPS_RESET);
	hosts_kill(t.a[1]);
	heir = hosts_start_as(t.h, vb_adapter_number(t.a[1]));
	s = sim_new_on(SIM_CFG(.timeout = 0, .one_end = true), &hosts_ground, t.a[0], heir);
	sim_desk_init(s);
	m = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	hosts_run_for(t.h, 10 * VB_MSEC); /* the death is noticed */
	sim_expect_none(s, 0);
	sim_connect(s, 1);
	r = sim_take(s, 1, 64, 8);
	hosts_settle(t.h);
	sim_expect(s, 1, false, r, IBV_WC_SUCCESS);
	sim_expect(s, 0, true, m, IBV_WC_SUCCESS);
	sim_free(s);
	over(&t);
}

static void nobody_has_the_number(void **state)
{
	struct two t = two(SIM_CFG(.timeout = 12, .retry_cnt = 2), VB_MSEC);
	uint64_t w = sim_op(t.s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0);

	(void)state;
	hosts_kill(t.a[1]);
	hosts_settle(t.h);
	assert_int_equal(hosts_peers_up(t.a[0]), 0);
	sim_expect(t.s, 0, true, w, IBV_WC_RETRY_EXC_ERR);
	over(&t);
}

/* The time runs out while the answer lies in the queue of the one that waits for it, whose reader does
 * not run.  What comes after the answer does not put the end off: as much as the queue has room for is read.
 */
static void an_answer_lies_unread(void **state)
{
	(void)state;
	for (unsigned passed = 0; passed < 2; passed++) {
		struct two t = two(SIM_CFG(.timeout = 8 /* 1 ms */, .retry_cnt = 0), 0);
		uint64_t m = sim_op(t.s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0), r; /* for the contact */
		struct vb_rxq *q;

		hosts_run_for(t.h, VB_MSEC);
		sim_expect(t.s, 0, true, m, IBV_WC_SUCCESS);
		q = t.s->n[0].qp.path.rxq;
		hosts_hold(t.a[0]);
		m = sim_op(t.s, 0, IBV_WR_SEND, 0, 8, 0); /* which the far end has no room for */
		hosts_run_for(t.h, 100 * VB_MSEC);
		assert_true(vb_rxq_ready(q));
		sim_expect_none(t.s, 0);
		if (passed)
			atomic_fetch_add(&q->at, VB_RXQ_HOLDS);
		else
			hosts_release(t.a[0]);
		hosts_run_for(t.h, 5 * VB_MSEC);
		if (passed) {
			sim_expect(t.s, 0, true, m, IBV_WC_RETRY_EXC_ERR);
			hosts_release(t.a[0]);
		} else {
			r = sim_take(t.s, 1, 64, 8);
			hosts_settle(t.h);
			sim_expect(t.s, 0, true, m, IBV_WC_SUCCESS);
			sim_expect(t.s, 1, false, r, IBV_WC_SUCCESS);
		}
		over(&t);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_far_end_that_comes_late),
	    cmocka_unit_test(what_was_received_was_sent),
	    cmocka_unit_test(an_ack_does_not_lie),
	    cmocka_unit_test(nothing_lies),
	    cmocka_unit_test(both_ends_keep_to_one_lane),
	    cmocka_unit_test(a_read_is_not_asked_for_twice),
	    cmocka_unit_test(requests_are_placed),
	    cmocka_unit_test(a_placement_is_cut_between_lines),
	    cmocka_unit_test(each_leave_is_another),
	    cmocka_unit_test(a_goodbye_with_a_full_wire),
	    cmocka_unit_test(a_goodbye_in_the_middle_of_a_placement),
	    cmocka_unit_test(everybody_gets_room),
	    cmocka_unit_test(a_number_changes_hands),
	    cmocka_unit_test(a_number_changes_hands_unconnected),
	    cmocka_unit_test(nobody_has_the_number),
	    cmocka_unit_test(an_answer_lies_unread),
	    cmocka_unit_test_teardown(processes_come_and_go, seeds_tell),
	};

	seeds_choose(argc, argv, 100);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
