/* A peer that is not what it was: it calls exec or _exit, is stopped, forks; and one that comes to have its
 * PID.
 *
 *     proc-doubt [CASE]     default: all */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>

#include "kit.h"

enum { SIZE = 64 << 10, DEPTH = 32, SKIPPED = 77 };

/* Where the peer's memory lies: what comes after it can have memory at the same place. */
#define PLACE ((void *)0x5a0000000000)

struct board {
	_Atomic int step;
	_Atomic int touched; /* the newcomer's memory is not what it was */
	_Atomic int quiet;   /* the newcomer has looked for the last time */
	struct kit_card a, b, c, d;
};

static struct board *board;

static void *place_map(void)
{
	void *p = mmap(PLACE, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
		       -1, 0);

	CHECK(p == PLACE, "%s", strerror(errno));
	return p;
}

struct side {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct kit_end e;
};

static void side_open(struct side *s, bool placed)
{
	s->ctx = kit_open();
	s->pd = ibv_alloc_pd(s->ctx);
	CHECK(s->pd);
	kit_end_open(&s->e, s->pd, DEPTH, SIZE);
	if (placed) {
		CHECK(!ibv_dereg_mr(s->e.mr));
		free(s->e.buf);
		s->e.buf = place_map();
		s->e.mr = ibv_reg_mr(s->pd, s->e.buf, SIZE, KIT_ALL);
		CHECK(s->e.mr);
		s->e.card.addr = (uintptr_t)s->e.buf;
		s->e.card.rkey = s->e.mr->rkey;
	}
}

static void side_close(struct side *s)
{
	void *placed = s->e.buf == PLACE ? s->e.buf : NULL;

	if (placed)
		s->e.buf = NULL;
	kit_end_close(&s->e);
	if (placed)
		munmap(placed, SIZE);
	CHECK(!ibv_dealloc_pd(s->pd));
	CHECK(!ibv_close_device(s->ctx));
}

/* The peer's part until both have heard of each other. */
static void peer_begin(struct side *s)
{
	side_open(s, true);
	for (int i = 0; i < DEPTH; i++)
		CHECK(!kit_recv(&s->e, 1, 0, 64));
	board->b = s->e.card;
	atomic_store(&board->step, 1);
	kit_until(&board->step, 2);
	kit_connect(&s->e, &board->a);
	atomic_store(&board->step, 3);
}

/* timeout, retries: as in kit_connect_with. */
static void begin(struct side *s, int timeout, int retries)
{
	side_open(s, false);
	kit_until(&board->step, 1);
	board->a = s->e.card;
	atomic_store(&board->step, 2);
	kit_until(&board->step, 3);
	kit_connect_with(&s->e, &board->b, timeout, retries);
}

static void say_hello(struct side *s)
{
	CHECK(!kit_post(&s->e, IBV_WR_SEND, 7, 0, 64, NULL, 0));
	CHECK(kit_wait(&s->e, 10).status == IBV_WC_SUCCESS);
	CHECK(!kit_post(&s->e, IBV_WR_RDMA_WRITE, 8, 0, 64, &board->b, 0));
	CHECK(kit_wait(&s->e, 10).status == IBV_WC_SUCCESS);
}

static void peer_with(struct side *s)
{
	atomic_store(&board->step, 0);
	atomic_store(&board->touched, 0);
	atomic_store(&board->quiet, 0);
	memset(s, 0, sizeof *s);
}

/* Requests to a peer that is gone, or is about to go, end: in success as long as it is there, then in error;
 * and the QP has its event. */
static void requests_end(struct side *s)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND,
						 IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE_WITH_IMM};
	struct ibv_async_event ev;
	double end = kit_now() + 15;
	struct ibv_wc wc;
	unsigned i = 0;

	do {
		enum ibv_wr_opcode op = ops[i++ % 5];

		CHECK(!kit_post(&s->e, op, 9, 64, op == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : 64, &board->b, 64));
		wc = kit_wait(&s->e, 10);
		CHECK(kit_now() < end, "it does not end");
	} while (wc.status == IBV_WC_SUCCESS);
	CHECK(wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_WR_FLUSH_ERR, "%s",
	      ibv_wc_status_str(wc.status));
	CHECK(poll((struct pollfd[]){{.fd = s->ctx->async_fd, .events = POLLIN}}, 1, 10000) == 1);
	CHECK(!ibv_get_async_event(s->ctx, &ev));
	CHECK(ev.event_type == IBV_EVENT_QP_FATAL);
	ibv_ack_async_event(&ev);
}

/* What runs in the place of the peer: memory of its own at the peer's address, which nobody may touch. */
static int newcomer(void)
{
	struct timespec ms = {0, 1000000};
	uint8_t *p = place_map();

	memset(p, 0x5a, SIZE);
	atomic_fetch_add(&board->step, 1);
	while (!atomic_load(&board->quiet))
		nanosleep(&ms, NULL);
	for (int i = 0; i < SIZE; i++)
		if (p[i] != 0x5a)
			atomic_store(&board->touched, 1);
	return 0;
}

static void exec_is_death(void)
{
	char fd[16];
	struct side s;
	pid_t pid;

	peer_with(&s);
	pid = kit_fork();
	if (!pid) {
		struct side p;

		peer_begin(&p);
		kit_until(&board->step, 4);
		snprintf(fd, sizeof fd, "%d", dup(100));
		execl("/proc/self/exe", "doubt", "newcomer", fd, NULL);
		_exit(1);
	}
	begin(&s, 14, 7);
	say_hello(&s);
	atomic_store(&board->step, 4);
	requests_end(&s);
	kit_until(&board->step, 5);
	side_close(&s);
	atomic_store(&board->quiet, 1);
	CHECK(kit_reap(pid) == 0);
	CHECK(!atomic_load(&board->touched), "the program after exec was written to");
}

static void exit_at_once_is_death(void)
{
	struct side s;
	pid_t pid;

	peer_with(&s);
	pid = kit_fork();
	if (!pid) {
		struct side p;

		peer_begin(&p);
		kit_until(&board->step, 4);
		_exit(0);
	}
	begin(&s, 14, 7);
	say_hello(&s);
	atomic_store(&board->step, 4);
	requests_end(&s);
	side_close(&s);
	CHECK(kit_reap(pid) == 0);
}

/* Requests to a stopped process stay, and go on where it goes on. */
static void stopped_for(struct side *s, pid_t pid, double seconds)
{
	struct ibv_wc wc;

	for (uint64_t i = 0; i < 10; i++)
		CHECK(!kit_post(&s->e, i % 2 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM, i, 0, 64, &board->b,
				0));
	for (double t = kit_now() + seconds; kit_now() < t;)
		CHECK(!ibv_poll_cq(s->e.cq, 1, &wc), "%s", ibv_wc_status_str(wc.status));
	CHECK(!kill(pid, SIGCONT));
	for (uint64_t i = 0; i < 10; i++) {
		wc = kit_wait(&s->e, 10);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == i, "%s, vendor_err 0x%x",
		      ibv_wc_status_str(wc.status), wc.vendor_err);
	}
	atomic_store(&board->step, 4);
	CHECK(kit_reap(pid) == 0);
	side_close(s);
}

/* early: it stops before there was any contact. */
static pid_t stopping_peer(bool early)
{
	struct side p;
	pid_t pid = kit_fork();

	if (pid)
		return pid;
	if (early) {
		side_open(&p, true);
		for (int i = 0; i < DEPTH; i++)
			CHECK(!kit_recv(&p.e, 1, 0, 64));
		board->b = p.e.card;
		atomic_store(&board->step, 3);
		raise(SIGSTOP);
		kit_connect(&p.e, &board->a);
	} else {
		peer_begin(&p);
	}
	kit_until(&board->step, 4);
	side_close(&p);
	_exit(0);
}

static void stop_after_contact_delays(void)
{
	struct side s;
	pid_t pid;

	peer_with(&s);
	pid = stopping_peer(false);
	begin(&s, 13, 2); /* 34 ms, twice again: an error would come in 0.1 s */
	say_hello(&s);
	kit_stop(pid);
	stopped_for(&s, pid, getenv("VERBENA_SOAK") ? 20 : 0.7);
}

static void stop_before_contact_delays(void)
{
	bool soak = getenv("VERBENA_SOAK");
	struct side s;
	int status;
	pid_t pid;

	peer_with(&s);
	pid = stopping_peer(true);
	CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
	side_open(&s, false);
	board->a = s.e.card;
	/* 0.27 s; or 4.3 s, in which the peer connects its queue pair where many others want the CPU. */
	kit_connect_with(&s.e, &board->b, soak ? 18 : 14, 3);
	stopped_for(&s, pid, soak ? 20 : 1);
}

static void stop_only_delays(void)
{
	stop_after_contact_delays();
	stop_before_contact_delays();
}

/* The parent of the fork: a thread of it talks all the while. */
static _Atomic bool talk_on;

static void *talker(void *arg)
{
	struct side *s = arg;
	uint64_t n = 0;

	while (atomic_load(&talk_on)) {
		memset(s->e.buf, (int)(n & 0x7f), 64);
		CHECK(!kit_post(&s->e, n % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, n, n % 2 ? 0 : 64, 64,
				&board->b, 0));
		CHECK(kit_wait(&s->e, 10).status == IBV_WC_SUCCESS);
		if (n % 2 == 0 && n)
			CHECK(s->e.buf[64] == ((n - 1) & 0x7f), "what was written is not what is read");
		n++;
	}
	return NULL;
}

/* A forked child with a device of its own, which talks to its parent. */
static void forked_child(struct side *inherited)
{
	struct side own = {0};
	struct ibv_wc wc;

	memset(inherited->e.buf, 0xee, SIZE); /* its memory is its own, registered or not */
	CHECK(kit_post(&inherited->e, IBV_WR_SEND, 1, 0, 8, NULL, 0), "an inherited QP works");
	CHECK(ibv_poll_cq(inherited->e.cq, 1, &wc) <= 0);
	CHECK(!ibv_destroy_qp(inherited->e.qp) && !ibv_dereg_mr(inherited->e.mr) &&
	      !ibv_destroy_cq(inherited->e.cq) && !ibv_dealloc_pd(inherited->pd) &&
	      !ibv_close_device(inherited->ctx));
	side_open(&own, false);
	board->c = own.e.card;
	atomic_store(&board->step, 10);
	kit_until(&board->step, 11);
	kit_connect(&own.e, &board->d);
	for (int i = 0; i < 100; i++) {
		CHECK(!kit_post(&own.e, i % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, 1, 0, 4096, &board->d,
				0));
		CHECK(kit_wait(&own.e, 10).status == IBV_WC_SUCCESS);
	}
	side_close(&own);
	atomic_store(&board->step, 12);
	for (;;)
		pause(); /* it outlives its parent */
}

static void forking_parent(pid_t *child)
{
	struct side s = {0}, extra = {0};
	pthread_t t;
	pid_t pid;

	begin(&s, 14, 7);
	say_hello(&s);
	atomic_store(&talk_on, true);
	CHECK(!pthread_create(&t, NULL, talker, &s));
	for (int i = 0; i < 20; i++) { /* at any instant */
		pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			memset(s.e.buf, 0xee, SIZE);
			free(malloc(1000));
			_exit(ibv_get_device_list(NULL) ? 0 : 1);
		}
		CHECK(kit_reap(pid) == 0);
	}
	side_open(&extra, false);
	board->d = extra.e.card;
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		forked_child(&s);
	*child = pid;
	kit_until(&board->step, 10);
	kit_connect(&extra.e, &board->c);
	atomic_store(&board->step, 11);
	kit_until(&board->step, 12);
	atomic_store(&talk_on, false);
	CHECK(!pthread_join(t, NULL));
	side_close(&extra);
	atomic_store(&board->step, 13);
	for (;;)
		pause();
}

static void fork_disturbs_nobody(void)
{
	pid_t parent, *child = kit_shared(sizeof *child);
	struct ibv_async_event ev;
	struct side s;

	peer_with(&s);
	parent = kit_fork();
	if (!parent)
		forking_parent(child);
	peer_begin(&s); /* we are its peer */
	kit_until(&board->step, 13);
	CHECK(!kill(parent, SIGKILL));
	kit_reap(parent);
	/* its child lives, but that is not it */
	CHECK(!kill(*child, 0));
	CHECK(poll((struct pollfd[]){{.fd = s.ctx->async_fd, .events = POLLIN}}, 1, 10000) == 1,
	      "the parent's death is not seen");
	do { /* established, of the first message; then fatal */
		CHECK(!ibv_get_async_event(s.ctx, &ev));
		ibv_ack_async_event(&ev);
	} while (ev.event_type == IBV_EVENT_COMM_EST);
	CHECK(ev.event_type == IBV_EVENT_QP_FATAL);
	CHECK(!kit_bound(board->a.qpn), "the child keeps its parent's name");
	CHECK(!kill(*child, SIGKILL));
	side_close(&s);
	munmap(child, sizeof *child);
}

/* Another process's PID and TIDs, one process for each. */
static int tids_of(pid_t pid, pid_t *tids, int max)
{
	char path[64];
	struct dirent *e;
	int n = 0;
	DIR *d;

	snprintf(path, sizeof path, "/proc/%d/task", pid);
	d = opendir(path);
	while (d && (e = readdir(d)) && n < max)
		if (e->d_name[0] != '.')
			tids[n++] = atoi(e->d_name);
	if (d)
		closedir(d);
	return n;
}

static pid_t fork_as(pid_t pid)
{
	struct clone_args a = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&pid, .set_tid_size = 1};

	return (pid_t)syscall(SYS_clone3, &a, sizeof a);
}

/* It goes on writing to the peer, whoever is there.  It stops between two requests: one that the kernel is
 * about to carry out could not know any more. */
static void survivor(unsigned warm_up)
{
	struct side s = {0};

	begin(&s, 14, 7);
	say_hello(&s);
	for (unsigned i = 0; i < warm_up; i++) {
		CHECK(!kit_post(&s.e, IBV_WR_RDMA_WRITE, 8, 0, 64, &board->b, 0));
		CHECK(kit_wait(&s.e, 10).status == IBV_WC_SUCCESS);
	}
	raise(SIGSTOP);
	requests_end(&s);
	side_close(&s);
	_exit(0);
}

static void stale_round(unsigned warm_up)
{
	pid_t peer, surv, tids[16], heirs[16];
	struct timespec t = {0, 40000000};
	struct side p;
	int n, status;

	peer_with(&p);
	peer = kit_fork();
	if (!peer) {
		peer_begin(&p);
		for (;;)
			pause();
	}
	surv = kit_fork();
	if (!surv)
		survivor(warm_up);
	CHECK(waitpid(surv, &status, WUNTRACED) == surv && WIFSTOPPED(status));
	n = tids_of(peer, tids, 16);
	CHECK(n >= 2, "%d threads", n);
	atomic_store(&board->step, 4);
	CHECK(!kill(peer, SIGKILL));
	kit_reap(peer);
	for (int i = 0; i < n; i++) {
		heirs[i] = fork_as(tids[i]);
		CHECK(heirs[i] == tids[i] || !heirs[i], "%s", strerror(errno));
		if (!heirs[i])
			_exit(newcomer());
	}
	kit_until(&board->step, 4 + n);
	nanosleep(&t, NULL); /* PIDs that are not chosen take longer to come around */
	CHECK(!kill(surv, SIGCONT));
	CHECK(kit_reap(surv) == 0);
	atomic_store(&board->quiet, 1);
	for (int i = 0; i < n; i++)
		CHECK(kit_reap(heirs[i]) == 0);
	CHECK(!atomic_load(&board->touched), "a process that was given the dead one's PID was written to");
}

static bool write_to(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (fd >= 0)
		close(fd);
	return n == (ssize_t)strlen(text);
}

/* A PID namespace of our own, with its own /proc, in which PIDs can be chosen. */
static int enter_namespace(void)
{
	char map[64];
	uid_t uid = geteuid();
	gid_t gid = getegid();

	if (unshare(CLONE_NEWPID | CLONE_NEWNS)) {
		if (unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS))
			return errno;
		snprintf(map, sizeof map, "%u %u 1", uid, uid);
		if (!write_to("/proc/self/uid_map", map))
			return EPERM;
		write_to("/proc/self/setgroups", "deny");
		snprintf(map, sizeof map, "%u %u 1", gid, gid);
		if (!write_to("/proc/self/gid_map", map))
			return EPERM;
	}
	return 0;
}

/* A leak checker cannot work in the first process of a namespace. */
static void leave(int status)
{
	fflush(stdout);
	_exit(status);
}

static void a_pid_is_used_again(void)
{
	unsigned rounds = getenv("VERBENA_SOAK") ? 200 : 5;
	pid_t pid = kit_fork(), test;
	int status, err;

	if (!pid) {
		err = enter_namespace();
		if (err) {
			printf("SKIP a PID is used again: no PID namespace here: %s\n", strerror(err));
			leave(SKIPPED);
		}
		test = kit_fork();
		if (test) {
			status = kit_reap(test);
			leave(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
		}
		/* the first process of the namespace */
		if (mount("proc", "/proc", "proc", 0, NULL)) {
			printf("SKIP a PID is used again: /proc cannot be mounted: %s\n", strerror(errno));
			leave(SKIPPED);
		}
		test = fork_as(1000);
		if (test < 0) {
			printf("SKIP a PID is used again: PIDs cannot be chosen: %s\n", strerror(errno));
			leave(SKIPPED);
		}
		if (!test)
			_exit(0);
		kit_reap(test);
		for (unsigned i = 0; i < rounds; i++)
			stale_round(i);
		leave(0);
	}
	status = kit_reap(pid);
	CHECK(WIFEXITED(status) && (!WEXITSTATUS(status) || WEXITSTATUS(status) == SKIPPED), "0x%x", status);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
    {"exec is death", exec_is_death},
    {"_exit is death", exit_at_once_is_death},
    {"a stop only delays", stop_only_delays},
    {"fork disturbs nobody", fork_disturbs_nobody},
    {"a PID is used again", a_pid_is_used_again},
};

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "newcomer")) {
		board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[2]), 0);
		CHECK(board != MAP_FAILED);
		return newcomer();
	}
	/* shared across exec too */
	CHECK(dup2(memfd_create("board", 0), 100) == 100 && !ftruncate(100, sizeof *board));
	board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, 100, 0);
	CHECK(board != MAP_FAILED);
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (!kit_asked(cases[i].name, argc, argv))
			continue;
		printf("%s\n", cases[i].name);
		cases[i].run();
	}
	return 0;
}
