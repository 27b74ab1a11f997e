/* Members of multicast groups and those who send to them find one another, whoever comes first: what a sender
 * knows is asked for through vb_mcast_route(), as a send does.  (Queue pairs are RC's: who is attached does
 * not matter here.)
 *
 *     proc-groups [CASE] */
#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "adapter.h"
#include "base/log.h"
#include "hca/hca.h"
#include "hca/progress.h"
#include "kit.h"
#include "obj/context.h"

enum { MOST = 24, ON_THE_WAY = 100 };

static struct board {
	_Atomic int ready, go, attached, detached, done, left;
	_Atomic uint32_t number[MOST];
} * board;
static pid_t run; /* of the process that began */

/* One process's device, with a queue pair. */
struct side {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct kit_end end;
	struct vb_hca *hca;
};

static void side_on(struct side *s, struct ibv_context *ctx)
{
	s->ctx = ctx;
	s->pd = ibv_alloc_pd(ctx);
	CHECK(s->pd);
	s->hca = vb_hca(vb_context(ctx)->adapter);
	kit_end_open(&s->end, s->pd, 1, 64);
}

static void side_open(struct side *s)
{
	side_on(s, kit_open());
}

static void side_free(struct side *s)
{
	kit_end_close(&s->end);
	CHECK(!ibv_dealloc_pd(s->pd));
}

static void side_close(struct side *s)
{
	side_free(s);
	CHECK(!ibv_close_device(s->ctx));
}

/* Groups of this run's own: others of the network namespace may be at the same.  Of both families, by turns:
 * half of an IPv4 group's GID is zero. */
static union ibv_gid group(uint8_t n)
{
	union ibv_gid g = {.raw = {0xff, 0x15, [15] = n}};

	if (n % 2)
		g = (union ibv_gid){.raw = {[10] = 0xff, 0xff, 0xe4, (uint8_t)run, (uint8_t)(run >> 8), n}};
	else
		memcpy(g.raw + 4, &run, sizeof(run));
	return g;
}

static int attach(struct side *s, uint8_t n)
{
	union ibv_gid g = group(n);

	int err = vb_mcast_attach(s->hca, vb_qp(s->end.qp), &g, 0);

	vb_log_tell(); /* as a call does when it returns */
	return err;
}

static int detach(struct side *s, uint8_t n)
{
	union ibv_gid g = group(n);

	return vb_mcast_detach(s->hca, vb_qp(s->end.qp), &g, 0);
}

/* How many processes a send to the group would go to, and whether one is the adapter of that number. */
static int targets(struct side *s, uint8_t n, uint32_t number, bool *there)
{
	struct vb_targets to;
	union ibv_gid g = group(n);
	uint64_t mgid[2];
	int count = 0;

	*there = false;
	memcpy(mgid, g.raw, sizeof(mgid));
	vb_mcast_route(s->hca, mgid, &to);
	for (uint32_t i = 0; i < to.words * 64; i++) {
		if (!(to.peers[i / 64] >> i % 64 & 1))
			continue;
		*there |= vb_peer_at(s->hca->adapter, i)->number == number;
		count++;
	}
	return count;
}

static void goes_to(struct side *s, uint8_t n, int count)
{
	bool there;

	CHECK(targets(s, n, 0, &there) == count, "group %u: %d", n, targets(s, n, 0, &there));
}

static void goes_also_to(struct side *s, uint8_t n, uint32_t number)
{
	bool there;

	targets(s, n, number, &there);
	CHECK(there, "group %u goes to %d, not to %u", n, targets(s, n, number, &there), number);
}

static void step(_Atomic int *what)
{
	atomic_fetch_add(what, 1);
}

static uint32_t number_of(const struct side *s)
{
	return vb_adapter_number(s->hca->adapter);
}

/* A process that attaches one group, then another, and detaches them as it is told. */
static void be_member(void)
{
	struct side s;

	side_open(&s);
	atomic_store(&board->number[0], number_of(&s));
	CHECK(!attach(&s, 1));
	step(&board->attached);
	kit_until(&board->go, 1);
	CHECK(!attach(&s, 2));
	step(&board->attached);
	kit_until(&board->go, 2);
	CHECK(!detach(&s, 1));
	step(&board->detached);
	kit_until(&board->go, 3);
	CHECK(!detach(&s, 2) && detach(&s, 2) == EINVAL);
	side_close(&s);
}

static pid_t start(void (*f)(void))
{
	pid_t pid;

	if (!board)
		board = kit_shared(sizeof(*board));
	pid = kit_fork();

	if (!pid) {
		alarm(60);
		f();
		exit(0);
	}
	return pid;
}

/* The sender is there first, has sent to the group before it had members, and has never met anybody. */
static void a_member_comes_later(void)
{
	struct side s;
	pid_t pid;

	side_open(&s);
	CHECK(!vb_mcast_meet(s.hca, "test"));
	goes_to(&s, 1, 0);
	goes_to(&s, 2, 0);
	pid = start(be_member);
	kit_until(&board->attached, 1);
	goes_also_to(&s, 1, atomic_load(&board->number[0]));
	goes_to(&s, 2, 0);
	step(&board->go);
	kit_until(&board->attached, 2);
	goes_to(&s, 1, 1);
	goes_also_to(&s, 2, atomic_load(&board->number[0]));
	step(&board->go);
	kit_until(&board->detached, 1);
	goes_to(&s, 1, 0);
	goes_to(&s, 2, 1);
	step(&board->go);
	CHECK(!kit_reap(pid));
	side_close(&s);
}

/* The member is there first; who only opens its device afterwards has to look for it. */
static void a_sender_comes_later(void)
{
	pid_t pid = start(be_member);
	struct side s;

	kit_until(&board->attached, 1);
	side_open(&s);
	goes_to(&s, 1, 0);
	CHECK(!vb_mcast_meet(s.hca, "test"));
	goes_also_to(&s, 1, atomic_load(&board->number[0]));
	goes_to(&s, 2, 0);
	step(&board->go);
	kit_until(&board->attached, 2); /* who has met it need not look again */
	goes_to(&s, 2, 1);
	step(&board->go);
	step(&board->go);
	CHECK(!kit_reap(pid));
	side_close(&s);
}

/* All at once: each process attaches, and is to send, in the order that chance makes. */
static void be_one_of_many(int me, int all)
{
	uint64_t chance = (uint64_t)me * 77 + 5;
	struct side s;

	kit_until(&board->ready, all);
	kit_some_time(&chance, 100000);
	side_open(&s);
	atomic_store(&board->number[me], number_of(&s));
	if (me % 2)
		CHECK(!vb_mcast_meet(s.hca, "test"));
	kit_some_time(&chance, 100000);
	CHECK(!attach(&s, 1));
	CHECK(!vb_mcast_meet(s.hca, "test"));
	step(&board->attached);
	kit_until(&board->attached, all);
	for (int i = 0; i < all; i++)
		goes_also_to(&s, 1, atomic_load(&board->number[i]));
	goes_to(&s, 1, all);
	step(&board->done);
	kit_until(&board->done, all); /* nobody goes before all have looked */
	CHECK(!detach(&s, 1));
	side_close(&s);
}

static void everybody_at_once(void)
{
	pid_t pids[MOST];
	int all = 10;

	for (int round = 0; round < 3; round++) {
		board = kit_shared(sizeof(*board));
		for (int i = 0; i < all; i++) {
			pids[i] = kit_fork();
			if (!pids[i]) {
				alarm(60);
				step(&board->ready);
				be_one_of_many(i, all);
				exit(0);
			}
		}
		for (int i = 0; i < all; i++)
			CHECK(!kit_reap(pids[i]));
	}
}

static void a_dead_member_is_none(void)
{
	struct side s;
	double end;
	bool there;
	pid_t pid;

	side_open(&s);
	CHECK(!vb_mcast_meet(s.hca, "test"));
	pid = start(be_member);
	kit_until(&board->attached, 1);
	goes_to(&s, 1, 1);
	CHECK(!kill(pid, SIGKILL));
	CHECK(kit_reap(pid) == SIGKILL);
	for (end = kit_now() + 20; targets(&s, 1, 0, &there);) {
		CHECK(kit_now() < end, "it is sent to still");
		kit_nap(1);
	}
	/* Its name is gone too: who comes now waits for nobody. */
	pid = kit_fork();
	if (!pid) {
		double begun = kit_now();
		struct side late;

		side_open(&late);
		CHECK(!vb_mcast_meet(late.hca, "test"));
		goes_to(&late, 1, 0);
		CHECK(kit_now() - begun < 4);
		_exit(0);
	}
	CHECK(!kit_reap(pid));
	side_close(&s);
}

static void be_sender(void)
{
	struct side s;

	side_open(&s);
	CHECK(!vb_mcast_meet(s.hca, "test"));
	step(&board->ready);
	kit_until(&board->go, 1);
	goes_to(&s, 1, 1);
	side_close(&s);
}

/* A process that stands still delays who attaches for a while, and is there when it goes on. */
static void a_stopped_sender_is_waited_for(void)
{
	struct side s;
	double begun;
	pid_t pid;

	kit_log_begin("warn");
	pid = start(be_sender);
	kit_until(&board->ready, 1);
	kit_stop(pid);
	side_open(&s);
	begun = kit_now();
	CHECK(!attach(&s, 1));
	CHECK(kit_now() - begun < 20);
	kit_log_await(" not answer (stopped?)");
	kit_cont(pid);
	CHECK(!attach(&s, 2)); /* which waits until it has answered */
	step(&board->go);
	CHECK(!kit_reap(pid));
	CHECK(!detach(&s, 1) && !detach(&s, 2));
	side_close(&s);
}

struct attaching {
	struct side *s;
	_Atomic int begun, ended;
};

static bool is_attached(struct side *s)
{
	bool is;

	pthread_mutex_lock(&s->hca->mcast.groups.lock);
	is = !vb_list_empty(&vb_qp(s->end.qp)->mcasts);
	pthread_mutex_unlock(&s->hca->mcast.groups.lock);
	return is;
}

static void *attach_as_well(void *arg)
{
	struct attaching *a = arg;

	atomic_fetch_add(&a->begun, 1);
	CHECK(!attach(a->s, 1));
	atomic_fetch_add(&a->ended, 1);
	return NULL;
}

/* Threads that attach the same queue pair at once: none returns before everybody is met, also one that finds
 * it attached. */
static void threads_attach_the_same(void)
{
	struct attaching a = {0};
	pthread_t t[2];
	struct side s;
	pid_t pid;

	pid = start(be_sender);
	kit_until(&board->ready, 1);
	kit_stop(pid);
	side_open(&s);
	a.s = &s;
	for (int i = 0; i < 2; i++) {
		CHECK(!pthread_create(&t[i], NULL, attach_as_well, &a));
		kit_until(&a.begun, i + 1);
		while (!is_attached(&s))
			sched_yield();
	}
	kit_nap(50); /* it would be enough for who does not wait */
	CHECK(!a.ended);
	kit_cont(pid);
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(t[i], NULL));
	step(&board->go);
	CHECK(!kit_reap(pid));
	CHECK(!detach(&s, 1));
	CHECK(detach(&s, 1) == EINVAL);
	side_close(&s);
}

static bool is_met(struct side *s)
{
	struct vb_list *of = &vb_qp(s->end.qp)->mcasts;
	bool met;

	pthread_mutex_lock(&s->hca->mcast.groups.lock);
	met = !vb_list_empty(of) && vb_list_entry(of->next, struct vb_mcast_attachment, on_qp)->met;
	pthread_mutex_unlock(&s->hca->mcast.groups.lock);
	return met;
}

/* Groups that share a place among the routes that a sender keeps: what was found of one is not another's. */
static void groups_of_one_place(void)
{
	struct side s;

	side_open(&s);
	CHECK(!attach(&s, 1));
	for (int n = 2; n < 256; n++) {
		goes_to(&s, (uint8_t)n, 0);
		goes_to(&s, 1, 1);
	}
	CHECK(!detach(&s, 1));
	side_close(&s);
}

/* Who finds that another thread has met everybody returns at once, and what is sent from then on comes. */
static void who_finds_it_attached_relies_on_it(void)
{
	struct attaching a = {0};
	struct side s;

	side_open(&s);
	a.s = &s;
	for (int i = 0; i < 200; i++) {
		pthread_t t;

		goes_to(&s, 1, 0);
		CHECK(!pthread_create(&t, NULL, attach_as_well, &a));
		while (!is_met(&s))
			sched_yield();
		CHECK(!attach(&s, 1));
		goes_to(&s, 1, 1);
		CHECK(!pthread_join(t, NULL) && !detach(&s, 1));
	}
	side_close(&s);
}

/* Each adapter of a process is one of its own, and the sender's own is one too. */
static void several_devices_of_a_process(void)
{
	struct side a, b, c;
	struct ibv_context *second = kit_adapter_open(), *third = kit_adapter_open();

	side_open(&a);
	side_on(&b, second);
	side_on(&c, third);
	CHECK(!vb_mcast_meet(a.hca, "test") && !vb_mcast_meet(b.hca, "test") &&
	      !vb_mcast_meet(c.hca, "test"));
	CHECK(!attach(&b, 1) && !attach(&c, 1) && !attach(&c, 2));
	goes_to(&a, 1, 2);
	goes_to(&b, 1, 2);
	goes_to(&c, 1, 2);
	goes_to(&a, 2, 1);
	goes_to(&c, 2, 1);
	CHECK(!attach(&a, 2));
	goes_to(&a, 2, 2);
	goes_to(&b, 2, 2);
	CHECK(!detach(&b, 1) && !detach(&c, 1) && !detach(&c, 2) && !detach(&a, 2));
	goes_to(&a, 1, 0);
	goes_to(&a, 2, 0);
	side_free(&b);
	side_free(&c);
	kit_adapter_close(second);
	kit_adapter_close(third);
	side_close(&a);
}

/* Where contact fails for want of descriptors nothing is attached, and nobody believes so. */
static void without_descriptors(void)
{
	struct rlimit few, many;
	struct side s;
	pid_t pid;

	kit_log_begin("error");
	pid = start(be_sender);
	kit_until(&board->ready, 1);
	side_open(&s);
	CHECK(!getrlimit(RLIMIT_NOFILE, &many));
	few = many;
	for (few.rlim_cur = 0; few.rlim_cur < many.rlim_cur; few.rlim_cur++) {
		int err;

		CHECK(!setrlimit(RLIMIT_NOFILE, &few));
		err = attach(&s, 1);
		CHECK(!setrlimit(RLIMIT_NOFILE, &many));
		if (!err)
			break;
		CHECK(err == EMFILE, "%u descriptors: %s", (unsigned)few.rlim_cur, strerror(err));
		CHECK(vb_list_empty(&vb_qp(s.end.qp)->mcasts) && !s.hca->mcast.groups.groups);
		goes_to(&s, 1, 0);
		CHECK(!vb_member_count(s.hca->adapter, "mcast"));
	}
	CHECK(few.rlim_cur > 3);
	goes_to(&s, 1, 1);
	step(&board->go);
	CHECK(!kit_reap(pid));
	CHECK(!detach(&s, 1));
	side_close(&s);
}

static void limit_descriptors(rlim_t n)
{
	struct rlimit r;

	CHECK(!getrlimit(RLIMIT_NOFILE, &r));
	r.rlim_cur = n < r.rlim_max ? n : r.rlim_max;
	CHECK(!setrlimit(RLIMIT_NOFILE, &r));
}

/* A message with that many descriptors, which nobody has received yet. */
static void send_descriptors(const int way[2])
{
	_Alignas(struct cmsghdr) char ctl[CMSG_SPACE(ON_THE_WAY * sizeof(int))] = {0};
	struct iovec iov = {"", 1};
	struct msghdr m = {
	    .msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof(ctl)};
	struct cmsghdr *cm = (struct cmsghdr *)ctl;

	cm->cmsg_level = SOL_SOCKET;
	cm->cmsg_type = SCM_RIGHTS;
	cm->cmsg_len = CMSG_LEN(ON_THE_WAY * sizeof(int));
	CHECK(sendmsg(way[0], &m, MSG_DONTWAIT) == 1, "%s", strerror(errno));
}

static void be_limited_sender(void)
{
	limit_descriptors(ON_THE_WAY - 1);
	be_sender();
}

/* Who may have fewer descriptors open than its user has on their way cannot send any, and cannot make contact
 * meanwhile: the one that asks for it, or the one that is asked. */
static void wait_for_the_way(bool asker)
{
	struct attaching a = {0};
	struct rlimit few, many;
	struct side s;
	pthread_t t;
	int way[2];
	pid_t pid;

	pid = start(asker ? be_sender : be_limited_sender);
	kit_until(&board->ready, 1);
	side_open(&s);
	CHECK(!socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, way));
	send_descriptors(way);
	CHECK(!getrlimit(RLIMIT_NOFILE, &many));
	few = many;
	if (asker)
		few.rlim_cur = ON_THE_WAY - 1;
	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
	a.s = &s;
	CHECK(!pthread_create(&t, NULL, attach_as_well, &a));
	kit_until(&a.begun, 1);
	kit_nap(150); /* four attempts take 40 ms */
	CHECK(!a.ended);
	CHECK(!close(way[0]) && !close(way[1]));
	CHECK(!pthread_join(t, NULL));
	CHECK(!setrlimit(RLIMIT_NOFILE, &many));
	step(&board->go);
	CHECK(!kit_reap(pid));
	CHECK(!detach(&s, 1));
	side_close(&s);
	memset(board, 0, sizeof(*board));
}

/* The superuser may send what it likes. */
static void descriptors_on_their_way(void)
{
	pid_t pid = kit_fork_as(KIT_FOREIGN);

	if (!pid) {
		alarm(60);
		wait_for_the_way(true);
		wait_for_the_way(false);
		exit(0);
	}
	CHECK(!kit_reap(pid));
}

/* Who connects can be told that there is no room for what a hello brings, or not even that. */
static void be_poor(void)
{
	struct rlimit many;
	struct side s;
	int next;

	CHECK(!setenv("VERBENA_LOG", "off", 1)); /* which takes a descriptor, too */
	side_open(&s);
	CHECK(!vb_mcast_meet(s.hca, "test") && !attach(&s, 2));
	CHECK(!getrlimit(RLIMIT_NOFILE, &many));
	next = dup(0);
	CHECK(next >= 0 && !close(next));
	limit_descriptors((rlim_t)(next + atomic_load(&board->left)));
	step(&board->ready);
	kit_until(&board->go, 1);
	goes_to(&s, 1, 0);
	limit_descriptors(many.rlim_cur);
	step(&board->ready);
	kit_until(&board->go, 2);
	goes_to(&s, 1, 1);
	step(&board->ready);
	kit_until(&board->go, 3);
	CHECK(!detach(&s, 2));
	side_close(&s);
}

static int attach_again(struct side *s)
{
	return attach(s, 1);
}

static int meet_again(struct side *s)
{
	return vb_mcast_meet(s->hca, "test");
}

/* A process that lacks descriptors refuses.  It is asked again by whoever attaches once more, and by who is
 * to send. */
static void asked_again(int left, int (*again)(struct side *s))
{
	struct side s;
	pid_t pid;

	board = kit_shared(sizeof(*board));
	atomic_store(&board->left, left);
	pid = start(be_poor);
	kit_log_begin("warn");
	kit_until(&board->ready, 1);
	side_open(&s);
	CHECK(!attach(&s, 1) && !vb_mcast_meet(s.hca, "test"));
	kit_log_await("connecting to 1 process fails: ");
	goes_to(&s, 2, 0);
	step(&board->go);
	kit_until(&board->ready, 2);
	CHECK(!again(&s));
	goes_to(&s, 2, 1);
	step(&board->go);
	kit_until(&board->ready, 3);
	step(&board->go);
	CHECK(!kit_reap(pid));
	CHECK(!detach(&s, 1));
	side_close(&s);
}

static void who_lacks_descriptors_is_asked_again(void)
{
	asked_again(2, attach_again);
}

static void who_can_say_nothing_is_asked_again(void)
{
	asked_again(1, meet_again);
}

static struct reader {
	struct vb_hca *hca;
	_Atomic bool stop;
	_Atomic int looks;
} reader;

/* Reads as who delivers a packet does. */
static void *read_members(void *unused)
{
	struct vb_rxq *r = vb_peer_at(reader.hca->adapter, 0)->lanes[0].rxq;
	union ibv_gid g = group(1);

	while (!atomic_load(&reader.stop)) {
		vb_lock_take(&r->rx);
		for (const struct vb_mcast_member *m = vb_mcasts_first(&reader.hca->mcast.groups, g.raw); m;
		     m = vb_mcasts_next(m)) {
			sched_yield();
			CHECK(m->qp->qpn);
		}
		vb_lock_give(&r->rx);
		atomic_fetch_add(&reader.looks, 1);
		kit_nap_us(50); /* or the lock would be this thread's nearly all the time */
	}
	return unused;
}

/* After a detach nobody holds the queue pair: it may be destroyed at once. */
static void who_reads_while_members_go(void)
{
	struct side s;
	pthread_t t;

	side_open(&s);
	reader.hca = s.hca;
	CHECK(!pthread_create(&t, NULL, read_members, NULL));
	kit_until(&reader.looks, 1);
	for (int i = 0; i < 60; i++) {
		struct kit_end more;
		union ibv_gid g = group(1);

		CHECK(!attach(&s, 1));
		kit_end_open(&more, s.pd, 1, 64);
		CHECK(!vb_mcast_attach(s.hca, vb_qp(more.qp), &g, 0));
		CHECK(ibv_destroy_qp(more.qp) == EBUSY);
		CHECK(!detach(&s, 1));
		CHECK(!vb_mcast_detach(s.hca, vb_qp(more.qp), &g, 0));
		kit_end_close(&more);
	}
	atomic_store(&reader.stop, true);
	CHECK(!pthread_join(t, NULL) && atomic_load(&reader.looks));
	side_close(&s);
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {"a member comes later", a_member_comes_later, .clean = true},
	    {"a sender comes later", a_sender_comes_later, .clean = true},
	    {"everybody at once", everybody_at_once, .clean = true},
	    {"a dead member is none", a_dead_member_is_none, .clean = true},
	    {"a stopped sender is waited for", a_stopped_sender_is_waited_for, .clean = true},
	    {"threads attach the same", threads_attach_the_same, .clean = true},
	    {"groups of one place", groups_of_one_place, .clean = true},
	    {"who finds it attached relies on it", who_finds_it_attached_relies_on_it, .clean = true},
	    {"several devices of a process", several_devices_of_a_process, .clean = true},
	    {"without descriptors", without_descriptors, .clean = true},
	    {"descriptors on their way", descriptors_on_their_way, .foreign = true, .clean = true},
	    {"who lacks descriptors is asked again", who_lacks_descriptors_is_asked_again, .clean = true},
	    {"who can say nothing is asked again", who_can_say_nothing_is_asked_again, .clean = true},
	    {"who reads while members go", who_reads_while_members_go, .clean = true},
	};

	run = getpid();
	kit_alone();
	KIT_CASES(cases, 100);
	return 0;
}
