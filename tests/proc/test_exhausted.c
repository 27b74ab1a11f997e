/* Descriptors and memory run out, at either end: a clear error where one is due, in time, and all goes on
 * when there is room again.  A process with the ordinary limit of descriptors reaches as many peers as that
 * allows.
 *
 *     proc-exhausted [CASE]     default: all */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>

#include "bytes.h"
#include "contact.h"
#include "obj/context.h"

enum { SIZE = 4096 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* the tool takes more address space than a limit would leave */
#else
#define SANITIZED 0
#endif

struct board {
	_Atomic int step;
	struct kit_card a, b;
	struct kit_card many[1024], mine[1024];
	_Atomic int listed;
};

static struct board *board;

static int highest_descriptor(void)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	int high = 0;

	CHECK(d);
	while ((e = readdir(d)))
		if (atoi(e->d_name) > high && atoi(e->d_name) != dirfd(d))
			high = atoi(e->d_name);
	closedir(d);
	return high;
}

/* Every free descriptor below the limit goes. */
static int used_up[4096], n_used_up;

static void limit_descriptors(bool on)
{
	struct rlimit r;
	int fd;

	CHECK(!getrlimit(RLIMIT_NOFILE, &r));
	if (on) {
		r.rlim_cur = (rlim_t)highest_descriptor() + 1;
		CHECK(!setrlimit(RLIMIT_NOFILE, &r));
		while ((fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
			used_up[n_used_up++] = fd;
		CHECK(errno == EMFILE);
		return;
	}
	while (n_used_up)
		close(used_up[--n_used_up]);
	r.rlim_cur = r.rlim_max;
	CHECK(!setrlimit(RLIMIT_NOFILE, &r));
}

static void leave(bool on, int n)
{
	limit_descriptors(on);
	while (on && n--)
		close(used_up[--n_used_up]);
}

/* A connection takes it, and then cannot be kept. */
static void leave_one(bool on)
{
	leave(on, 1);
}

/* A connection can be kept, and what its hello brings cannot: neither of its two descriptors, or the second.
 */
static void leave_two(bool on)
{
	leave(on, 2);
}

static void leave_three(bool on)
{
	leave(on, 3);
}

static void limit_memory(bool on)
{
	struct rlimit r;
	FILE *f = fopen("/proc/self/statm", "r");
	unsigned long pages = 0;

	CHECK(f && fscanf(f, "%lu", &pages) == 1);
	fclose(f);
	CHECK(!getrlimit(RLIMIT_AS, &r));
	r.rlim_cur = on ? pages * PAGE + (16 << 20) : r.rlim_max; /* nothing as large as a segment */
	CHECK(!setrlimit(RLIMIT_AS, &r));
}

static struct ibv_pd *pd_open(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());

	CHECK(pd);
	return pd;
}

static void pd_close(struct ibv_pd *pd)
{
	struct ibv_context *ctx = pd->context;

	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* The other end, which may be the one that has nothing left. */
static void other_end(void (*limit)(bool))
{
	struct ibv_pd *pd = pd_open();

	for (int round = 0; round < 3; round++) {
		struct kit_end e;

		kit_end_open(&e, pd, 8, SIZE);
		CHECK(!kit_recv(&e, 1, 0, 64));
		if (limit && round == 0)
			limit(true);
		if (limit && round == 1)
			limit(false);
		board->b = e.card;
		atomic_store(&board->step, 10 * round + 1);
		kit_until(&board->step, 10 * round + 2);
		kit_connect_with(&e, &board->a, 12, 5);
		atomic_store(&board->step, 10 * round + 3);
		kit_until(&board->step, 10 * round + 4);
		kit_end_close(&e);
	}
	pd_close(pd);
	exit(0);
}

/* One SEND to the other end, over a QP of its own. */
static enum ibv_wc_status try_once(struct ibv_pd *pd, int round)
{
	struct kit_end e;
	struct ibv_wc wc;

	kit_end_open(&e, pd, 8, SIZE);
	kit_until(&board->step, 10 * round + 1);
	board->a = e.card;
	atomic_store(&board->step, 10 * round + 2);
	kit_until(&board->step, 10 * round + 3);
	/* 0.1 s, and 0.5 s where there is room again: who lacked a descriptor accepts nobody for 0.1 s. */
	kit_connect_with(&e, &board->b, round ? 14 : 12, round ? 7 : 5);
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 64, NULL, 0));
	wc = kit_wait(&e, 10);
	kit_end_close(&e);
	atomic_store(&board->step, 10 * round + 4);
	return wc.status;
}

/* What the log says meanwhile. */
static int errors_go_to(int fd)
{
	int old = dup(2);

	CHECK(old >= 0 && dup2(fd, 2) == 2);
	return old;
}

static const char *what_was_said(int fd)
{
	static char text[1 << 16];
	ssize_t n = pread(fd, text, sizeof text - 1, 0);

	CHECK(n >= 0);
	text[n] = 0;
	return text;
}

static bool said(int fd, const char *what)
{
	return strstr(what_was_said(fd), what);
}

/* Contact cannot be made while this or the other end has nothing left; it can when there is room again, and
 * stays when it runs out again. */
static void out_of(void (*limit)(bool), bool here, const char *why)
{
	int log = memfd_create("log", MFD_CLOEXEC), errors;
	struct ibv_pd *pd;
	pid_t pid;

	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid)
		other_end(here ? NULL : limit);
	CHECK(log >= 0 && !setenv("VERBENA_LOG", "stderr", 1));
	errors = errors_go_to(log);
	pd = pd_open();
	for (int round = 0; round < 3; round++) {
		enum ibv_wc_status st;

		if (here && round == 0)
			limit(true);
		if (here && round == 1)
			limit(false);
		st = try_once(pd, round);
		if (st != (round ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR))
			dup2(errors, 2);
		CHECK(st == (round ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR), "round %d: %s", round,
		      ibv_wc_status_str(st));
	}
	dup2(errors, 2);
	CHECK(said(log, "no acknowledgement") && said(log, why), "the log does not say: %s\nIt says:\n%s",
	      why, what_was_said(log));
	CHECK(kit_reap(pid) == 0);
	pd_close(pd);
}

static void descriptors_here(void)
{
	out_of(limit_descriptors, true, "Too many open files");
}

static void descriptors_there(void)
{
	out_of(limit_descriptors, false, "does not answer");
}

static void one_here(void)
{
	out_of(leave_one, true, "this process cannot connect: pidfd_open fails: Too many open files");
}

static void one_there(void)
{
	out_of(leave_one, false, "lacks address space (ulimit -v) or descriptors");
}

static void two_here(void)
{
	out_of(leave_two, true, "this process cannot connect: recvmsg fails: Too many open files");
}

static void two_there(void)
{
	for (int i = 0; i < 8; i++) /* who asks whom is chance */
		out_of(leave_two, false, "lacks address space (ulimit -v) or descriptors");
}

static void three_here(void)
{
	out_of(leave_three, true, "this process cannot connect: recvmsg fails: Too many open files");
}

static void three_there(void)
{
	for (int i = 0; i < 8; i++)
		out_of(leave_three, false, "lacks address space (ulimit -v) or descriptors");
}

static void memory_here(void)
{
	if (SANITIZED)
		printf("SKIP memory: a sanitizer needs the address space\n");
	else
		out_of(limit_memory, true, "Cannot allocate memory");
}

static void memory_there(void)
{
	if (!SANITIZED)
		out_of(limit_memory, false, "lacks address space");
}

/* The device itself does not fit. */
static void memory_for_the_device(void)
{
	struct ibv_device **list;

	if (SANITIZED)
		return;
	list = ibv_get_device_list(NULL);
	limit_memory(true);
	CHECK(!ibv_open_device(list[0]) && errno == ENOMEM, "%s", strerror(errno));
	limit_memory(false);
	pd_close(pd_open());
	ibv_free_device_list(list);
}

/* Any number of descriptors: each call works or says EMFILE, and with enough of them all do. */
static void few_descriptors(void)
{
	int spare;

	for (spare = 0; spare < 20; spare++) {
		pid_t pid = kit_fork();
		int status;

		if (!pid) {
			struct ibv_device **list = ibv_get_device_list(NULL);
			struct rlimit r = {(rlim_t)(highest_descriptor() + 1 + spare), 1024};
			struct ibv_comp_channel *ch;
			struct ibv_context *ctx;
			struct kit_end a, b;
			struct ibv_pd *pd;

			alarm(20);
			CHECK(list && !setrlimit(RLIMIT_NOFILE, &r));
			ctx = ibv_open_device(list[0]);
			if (!ctx)
				_exit(errno == EMFILE ? 2 : 1);
			ch = ibv_create_comp_channel(ctx);
			if (!ch)
				_exit(errno == EMFILE ? 2 : 1);
			pd = ibv_alloc_pd(ctx);
			kit_end_open_on(&a, pd, ch, 4, SIZE);
			kit_end_open_on(&b, pd, ch, 4, SIZE);
			kit_connect(&a, &b.card);
			kit_connect(&b, &a.card);
			CHECK(!kit_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 64, &b.card, 0));
			CHECK(kit_wait(&a, 10).status == IBV_WC_SUCCESS);
			_exit(0); /* a leak checker would want descriptors */
		}
		status = kit_reap(pid);
		CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 2),
		      "%d descriptors: 0x%x", spare, status);
		if (!status)
			break;
	}
	CHECK(spare > 2 && spare < 20);
	printf("a device and a channel need %d descriptors\n", spare);
}

/* A process with an adapter per QP, so that each QP is a peer. */
static void crowd(int peers)
{
	for (int i = 0; i < peers; i++) {
		pid_t pid = kit_fork();
		struct kit_end e;

		if (pid)
			continue;
		kit_end_open(&e, pd_open(), 4, SIZE);
		CHECK(!kit_recv(&e, 1, 0, 64));
		board->many[i] = e.card;
		atomic_fetch_add(&board->listed, 1);
		kit_until(&board->step, 1);
		kit_connect(&e, &board->mine[i]);
		atomic_fetch_add(&board->listed, 1);
		for (;;)
			pause();
	}
	for (;;)
		pause();
}

static int connected(struct kit_end *e, int n)
{
	int ok = 0;

	for (int i = 0; i < n; i++) {
		kit_connect_with(&e[i], &board->many[i], 14, 7);
		CHECK(!kit_post(&e[i], IBV_WR_RDMA_WRITE, 1, 0, 8, &board->many[i], 0));
	}
	for (int i = 0; i < n; i++) {
		enum ibv_wc_status st = kit_wait(&e[i], 60).status;

		CHECK(st == IBV_WC_SUCCESS || st == IBV_WC_RETRY_EXC_ERR, "%s", ibv_wc_status_str(st));
		ok += st == IBV_WC_SUCCESS;
	}
	return ok;
}

/* As many peers as the limit of descriptors allows, then a clear error; the first ones work on. */
static void as_many_as_possible(void)
{
	bool soak = getenv("VERBENA_SOAK");
	int limit = soak ? 1024 : 64, peers = soak ? 560 : 40, base, ok;
	struct kit_end *e = calloc((size_t)peers, sizeof *e);
	struct rlimit r;
	struct ibv_pd *pd;
	pid_t pid;

	CHECK(e);
	memset(board, 0, sizeof *board);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setpgid(0, 0);
		crowd(peers);
	}
	setpgid(pid, pid);
	pd = pd_open();
	for (int i = 0; i < peers; i++) {
		kit_end_open(&e[i], pd, 4, SIZE);
		board->mine[i] = e[i].card;
	}
	kit_until(&board->listed, peers);
	base = highest_descriptor() + 1;
	CHECK(!getrlimit(RLIMIT_NOFILE, &r));
	r.rlim_cur = (rlim_t)limit;
	CHECK(!setrlimit(RLIMIT_NOFILE, &r));
	atomic_store(&board->step, 1);
	kit_until(&board->listed, 2 * peers);
	ok = connected(e, peers);
	printf("RLIMIT_NOFILE %d, %d in use before: %d peers of %d, %.2f descriptors each\n", limit, base, ok,
	       peers, ok ? (double)(limit - base) / ok : 0);
	CHECK(ok >= (limit - base) / 2 - 3 && ok < peers);
	kill(-pid, SIGKILL);
	kit_reap(pid);
	for (int i = 0; i < peers; i++)
		kit_end_close(&e[i]);
	pd_close(pd);
	free(e);
}

/* Two threads that wait for what does not come. */
static void *wait_for_completion(void *channel)
{
	struct ibv_cq *cq;
	void *ctx;

	ibv_get_cq_event(channel, &cq, &ctx);
	CHECK(false, "a completion");
	return NULL;
}

static void *wait_for_event(void *context)
{
	struct ibv_async_event ev;

	ibv_get_async_event(context, &ev);
	CHECK(false, "an event");
	return NULL;
}

/* Connections lie in the backlog, and cannot be accepted: that is no reason to look all the time.  They are
 * accepted when there is room again. */
static void backlog(bool waiting)
{
	enum { KNOCKS = 3 };
	int log = memfd_create("log", MFD_CLOEXEC), errors, before;
	struct ibv_comp_channel *ch;
	struct ibv_pd *pd;
	pthread_t threads[2];
	struct kit_end e;
	double end;
	pid_t pid;

	CHECK(log >= 0 && !setenv("VERBENA_LOG", "stderr", 1));
	errors = errors_go_to(log);
	pd = pd_open();
	ch = ibv_create_comp_channel(pd->context);
	kit_end_open_on(&e, pd, ch, 4, SIZE);
	CHECK(!ibv_req_notify_cq(e.cq, 0));
	if (waiting) {
		CHECK(!pthread_create(&threads[0], NULL, wait_for_completion, ch));
		CHECK(!pthread_create(&threads[1], NULL, wait_for_event, pd->context));
	}
	kit_until_blocked();
	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid) {
		kit_until(&board->step, 1);
		for (int i = 0; i < KNOCKS; i++)
			kit_number_connect(e.card.qpn >> 12);
		atomic_store(&board->step, 2);
		for (;;)
			pause();
	}
	before = kit_descriptors();
	limit_descriptors(true);
	atomic_store(&board->step, 1);
	kit_until(&board->step, 2);
	for (end = kit_now() + 20; !said(log, "accept");)
		CHECK(kit_now() < end, "nothing was to be accepted");
	dup2(errors, 2);
	kit_nobody_spins();
	limit_descriptors(false);
	for (end = kit_now() + 20; kit_descriptors() < before + KNOCKS;)
		CHECK(kit_now() < end, "those who knocked are not let in");
	kill(pid, SIGKILL);
	kit_reap(pid);
	_exit(0); /* with threads that wait */
}

static void backlog_idle(void)
{
	backlog(false);
}

static void backlog_waiting(void)
{
	backlog(true);
}

static bool every_one_rests(void *user, uint32_t qpn)
{
	(void)user, (void)qpn;
	return true;
}

/* After connections of rdma_cm their numbers rest in TIMEWAIT, and nothing else is short. */
static void numbers_that_rest(void)
{
	struct ibv_qp_init_attr a = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qps[VB_ADAPTER_NUMBERS + 1];
	int n = 0;

	kit_log_begin("warn");
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	CHECK(pd && cq);
	a.send_cq = a.recv_cq = cq;
	vb_qpn_rest(vb_context(ctx)->adapter, every_one_rests, NULL);
	while (n <= VB_ADAPTER_NUMBERS && (qps[n] = ibv_create_qp(pd, &a)))
		n++; /* the first of a number that the adapter takes anew */
	CHECK_EQ(errno, ENOMEM);
	CHECK_EQ(n, VB_ADAPTER_NUMBERS);
	KIT_LOG_SAYS("ibv_create_qp: no QP number is left: ");
	KIT_LOG_SAYS(" of this device's %d are in TIMEWAIT after rdma_cm connections",
		     VB_ADAPTER_NUMBERS * VB_QPN_INDICES);
	KIT_LOG_SAYS("RDMA_OPTION_ID_ACK_TIMEOUT (ENOMEM)");
	KIT_LOG_SAYS_NOT("cannot be allocated");
	CHECK_EQ(kit_log_count("\n"), 1);
	while (n--)
		CHECK(!ibv_destroy_qp(qps[n]));
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* The device has all the adapter numbers that it may, and all their indices are in use. */
static void numbers_in_use(void)
{
	struct ibv_srq_init_attr a = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_context *ctx;
	struct ibv_pd *pd;

	kit_log_begin("warn");
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	while (vb_srqn_take(vb_context(ctx)->adapter, NULL)) /* in the name of no call */
		;
	CHECK(pd && !ibv_create_srq(pd, &a));
	CHECK_EQ(errno, ENOMEM);
	KIT_LOG_SAYS("]: no SRQ number is left: all %d of this device are in use\n",
		     VB_ADAPTER_NUMBERS * VB_QPN_INDICES);
	KIT_LOG_SAYS("]: ibv_create_srq: no SRQ number is left: all %d of this device are in use (ENOMEM)\n",
		     VB_ADAPTER_NUMBERS * VB_QPN_INDICES);
	CHECK_EQ(kit_log_count("\n"), 2);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

static const struct kit_case cases[] = {
    {.name = "no descriptors here", .run = descriptors_here, .clean = true},
    {.name = "no descriptors there", .run = descriptors_there, .clean = true},
    {.name = "one descriptor here", .run = one_here, .clean = true},
    {.name = "one descriptor there", .run = one_there, .clean = true},
    {.name = "two descriptors here", .run = two_here, .clean = true},
    {.name = "two descriptors there", .run = two_there, .clean = true},
    {.name = "three descriptors here", .run = three_here, .clean = true},
    {.name = "three descriptors there", .run = three_there, .clean = true},
    {.name = "no memory here", .run = memory_here, .clean = true},
    {.name = "no memory there", .run = memory_there, .clean = true},
    {.name = "no memory for the device", .run = memory_for_the_device, .clean = true},
    {.name = "few descriptors", .run = few_descriptors, .clean = true},
    {.name = "no descriptors, and somebody knocks", .run = backlog_idle},
    {.name = "no descriptors, somebody knocks, and threads wait", .run = backlog_waiting},
    {.name = "numbers that rest", .run = numbers_that_rest, .clean = true},
    {.name = "numbers in use", .run = numbers_in_use, .clean = true},
    {.name = "as many peers as possible", .run = as_many_as_possible, .clean = true},
};

int main(int argc, char **argv)
{
	CHECK(!close_range(3, ~0u, 0)); /* what was inherited would be counted */
	/* Who attaches to a group meets everybody, which takes descriptors here, and gives them back. */
	kit_alone();
	board = kit_shared(sizeof *board);
	KIT_CASES(cases, 200);
	return 0;
}
