/* A program that closes descriptors which it never opened: all from 3 up, as daemons do, or one of ours, or
 * the one of a channel.  Its own files, which get the numbers, stay open and as they were, here and in a
 * forked child; requests and waits end; nothing spins; the sentence comes once, and the peer hears the truth.
 *
 *     proc-closed [WAY]     only that one of enum way, or the channels (WAYS) */
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "kit.h"
#include "mine.h"
#include "obj/context.h"
#include "host/adapter.h"

enum way { ALL, ALL_QUIETLY, KICK, EPOLL, LISTENER, CONNECTION, PIDFD, SEGMENT, SEGMENT_EARLY, EXEC, WAYS };

static const char *const names[WAYS] = {
    [ALL] = "all",
    [ALL_QUIETLY] = "all, and no call after that",
    [KICK] = "the wake-up eventfd",
    [EPOLL] = "the epoll set",
    [LISTENER] = "the listening socket",
    [CONNECTION] = "a peer's control socket",
    [PIDFD] = "a peer's pidfd",
    [SEGMENT] = "the segment",
    [SEGMENT_EARLY] = "the segment, before contact",
    [EXEC] = "exec()",
};

struct board {
	struct kit_card card[2]; /* [0]: who closes, [1]: its peer */
	_Atomic int opened, connected, greeted, left, closed, done;
	char log[2][64];
};

static struct board *board;
static bool lasting; /* the way does not touch what a connected QP needs */
static bool quiet;   /* nothing is sent either */

struct victim {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *ch;
	struct kit_end e;
	pthread_t waiter, hearer;
};

static void *wait_events(void *arg)
{
	struct victim *v = arg;
	struct ibv_cq *cq;
	void *x;
	intptr_t n = 0;

	while (!ibv_get_cq_event(v->ch, &cq, &x)) {
		ibv_ack_cq_events(cq, 1);
		n++;
		ibv_req_notify_cq(cq, 0);
	}
	CHECK_EQ(errno, EIO);
	return (void *)n;
}

static void *hear(void *arg)
{
	struct victim *v = arg;
	struct ibv_async_event ev;
	intptr_t fatal = 0;

	while (!ibv_get_async_event(v->ctx, &ev)) {
		fatal += ev.event_type == IBV_EVENT_DEVICE_FATAL;
		ibv_ack_async_event(&ev);
	}
	CHECK_EQ(errno, EIO);
	return (void *)fatal;
}

static int count_in(const char *path, const char *what)
{
	FILE *f = fopen(path, "r");
	char line[4096];
	int n = 0;

	while (f && fgets(line, sizeof line, f))
		n += strstr(line, what) != NULL;
	if (f)
		fclose(f);
	return n;
}

/* How often it stands there, once it does: a thread of the library may be about to write it. */
static int says(const char *path, const char *what)
{
	double end = kit_now() + 20;
	int n;

	while (!(n = count_in(path, what))) {
		CHECK(kit_now() < end, "no '%s' in %s", what, path);
		kit_nap(1);
	}
	return n;
}

static void open_all(struct victim *v, int me)
{
	setenv("VERBENA_LOG", board->log[me], 1);
	v->ctx = kit_open();
	v->pd = ibv_alloc_pd(v->ctx);
	v->ch = ibv_create_comp_channel(v->ctx);
	CHECK(v->pd && v->ch);
	kit_end_open_on(&v->e, v->pd, v->ch, 32, 4096);
	board->card[me] = v->e.card;
	CHECK(!kit_recv(&v->e, 1000, 0, 0));
	atomic_fetch_add(&board->opened, 1);
	kit_until(&board->opened, 2);
}

static void greet(struct victim *v)
{
	CHECK(!kit_post(&v->e, IBV_WR_SEND, 1, 0, 0, NULL, 0));
	for (int n = 0; n < 2; n++) {
		struct ibv_wc wc = kit_wait(&v->e, 20);

		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	}
	atomic_fetch_add(&board->greeted, 1);
	kit_until(&board->greeted, 2);
}

/* What is outstanding: a receive, or a SEND that the other end has no receive for.  It says so rarely. */
static void leave_one(struct victim *v)
{
	struct ibv_qp_attr a = {.min_rnr_timer = 0};

	CHECK(!ibv_modify_qp(v->e.qp, &a, IBV_QP_MIN_RNR_TIMER));
	CHECK(!(quiet ? kit_recv(&v->e, 50, 0, 0) : kit_post(&v->e, IBV_WR_SEND, 50, 0, 0, NULL, 0)));
	atomic_fetch_add(&board->left, 1);
	kit_until(&board->left, 2);
}

/* Fresh ones: a run that failed may have left one of this name. */
static void begin_logs(void)
{
	for (int i = 0; i < 2; i++) {
		snprintf(board->log[i], sizeof board->log[i], "/tmp/verbena-closed-%d-%d", (int)getpid(), i);
		unlink(board->log[i]);
	}
}

static void end_logs(void)
{
	for (int i = 0; i < 2; i++)
		unlink(board->log[i]);
}

static void close_all(struct victim *v)
{
	CHECK(!ibv_destroy_qp(v->e.qp));
	CHECK(!ibv_dereg_mr(v->e.mr));
	CHECK(!ibv_destroy_cq(v->e.cq));
	CHECK(!ibv_destroy_comp_channel(v->ch) && !ibv_dealloc_pd(v->pd) && !ibv_close_device(v->ctx));
}

/* Contact is made: no other of its family is open but the listening one. */
static int control_socket(int listening)
{
	for (int fd = 3; fd < KIT_MINE_MOST; fd++) {
		socklen_t n = sizeof(int);
		int family;

		if (fd != listening && !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &n) &&
		    family == AF_UNIX)
			return fd;
	}
	return -1;
}

/* Closes, and puts other files there; kind: of the first of them. */
static void close_descriptors(struct victim *v, enum way way, int kind, int listening)
{
	int number = -1;

	switch (way) {
	case KICK:
		number = kit_fd_find("[eventfd]", v->ctx->async_fd, v->ch->fd);
		break;
	case EPOLL:
		number = kit_fd_find("[eventpoll]", -1, -1);
		break;
	case LISTENER:
		number = listening;
		break;
	case CONNECTION:
		number = control_socket(listening);
		break;
	case PIDFD:
		number = kit_fd_find("pidfd", -1, -1);
		break;
	case SEGMENT:
	case SEGMENT_EARLY:
		number = kit_fd_find("memfd:verbena", v->ctx->cmd_fd, -1);
		break;
	default: {
		int last = 0;
		char is[128];

		for (int fd = 3; fd < KIT_MINE_MOST; fd++) { /* and one that is far up */
			kit_fd_kind(fd, is, sizeof is);
			if (is[0])
				last = fd;
		}
		CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
		while (kit_mine_put(kind++ % KIT_MINE_KINDS) < last)
			;
		return;
	}
	}
	CHECK(number >= 3, "%s is not to be found", names[way]);
	kit_mine_put_at(number, kind);
}

static void child_keeps(void)
{
	pid_t pid = kit_fork();

	if (!pid) {
		kit_mine_check("in the child");
		_exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
}

/* The one by which peers come: another socket may be open for an instant. */
static int find_listener(void)
{
	for (int fd = 3; fd < 65536; fd++) {
		int accepts = 0;
		socklen_t n = sizeof accepts;

		if (!getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &n) && accepts)
			return fd;
	}
	return -1;
}

/* The device again, and a QP that talks to itself. */
static void opens_anew(void)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct kit_end e;

	kit_end_open(&e, pd, 4, 64);
	kit_connect(&e, &e.card);
	CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 7, 0, 8, &e.card, 16));
	CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_SUCCESS);
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* What was outstanding and what is posted now ends with errors, the waits end, and it was said once. */
static void everything_ends(struct victim *v, bool call)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr ia;
	void *x;
	int ended = 0;

	if (call)
		CHECK(!kit_post(&v->e, IBV_WR_SEND, 51, 0, 0, NULL, 0));
	CHECK(!pthread_join(v->hearer, &x) && (intptr_t)x == 1, "DEVICE_FATAL came %d times",
	      (int)(intptr_t)x);
	CHECK(!pthread_join(v->waiter, &x) && (intptr_t)x > 0, "no event of a completion");
	while (ended < 1 + call) {
		struct ibv_wc wc = kit_wait(&v->e, 10);

		CHECK(wc.status != IBV_WC_SUCCESS && (wc.wr_id == 50 || wc.wr_id == 51 || wc.wr_id == 1000),
		      "%d of %d: %s", (int)wc.wr_id, ended, ibv_wc_status_str(wc.status));
		ended++;
	}
	CHECK(!ibv_query_qp(v->e.qp, &a, IBV_QP_STATE, &ia) && a.qp_state == IBV_QPS_ERR);
	kit_nobody_spins();
	CHECK(says(board->log[0], "the device is lost, its queue pairs enter the error state") == 1);
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RESET};
	CHECK(!ibv_modify_qp(v->e.qp, &a, IBV_QP_STATE));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1};
	errno = 0;
	CHECK(ibv_modify_qp(v->e.qp, &a,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == EIO);
}

/* Nothing of it was needed until now. */
static void goes_on(struct victim *v)
{
	struct ibv_wc wc;

	CHECK(!kit_post(&v->e, IBV_WR_RDMA_WRITE, 60, 0, 8, &board->card[1], 0));
	wc = kit_wait(&v->e, 10);
	CHECK_EQ(wc.wr_id, 60);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
}

/* With a process that is there: the hello would carry the segment. */
static void make_contact(struct victim *v)
{
	struct ibv_qp_attr a = {
	    .qp_state = IBV_QPS_RTR,
	    .path_mtu = IBV_MTU_1024,
	    .dest_qp_num = board->card[1].qpn,
	    .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = board->card[1].gid}}};

	CHECK(!ibv_modify_qp(v->e.qp, &a,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

static void victim(enum way way, int kind, char **argv)
{
	struct victim v;
	int listening;

	alarm(100);
	open_all(&v, 0);
	listening = find_listener();
	if (way == SEGMENT_EARLY) {
		close_descriptors(&v, way, kind, listening);
	} else {
		kit_connect(&v.e, &board->card[1]);
		atomic_fetch_add(&board->connected, 1);
		kit_until(&board->connected, 2);
		greet(&v);
	}
	if (!lasting) {
		CHECK(!ibv_req_notify_cq(v.e.cq, 0));
		if (way != SEGMENT_EARLY)
			leave_one(&v);
		CHECK(!pthread_create(&v.waiter, NULL, wait_events, &v));
		CHECK(!pthread_create(&v.hearer, NULL, hear, &v));
	}
	if (way == ALL_QUIETLY || way == SEGMENT_EARLY)
		kit_until_blocked();
	if (way == SEGMENT_EARLY)
		make_contact(&v);
	if (way == EXEC) {
		execv("/proc/self/exe", (char *[]){argv[0], (char *)"sleep", NULL});
		CHECK(false, "exec: %s", strerror(errno));
	}
	if (way != SEGMENT_EARLY)
		close_descriptors(&v, way, kind, listening);
	child_keeps();
	if (lasting)
		goes_on(&v);
	else
		everything_ends(&v, way != ALL_QUIETLY && way != SEGMENT_EARLY);
	kit_mine_check("afterwards");
	atomic_store(&board->closed, 1);
	if (lasting)
		kit_until(&board->done, 1);
	if (way == ALL && kind % 2)
		opens_anew(); /* though the lost one was not closed */
	close_all(&v);
	kit_mine_check("with the device closed");
	opens_anew();
	kit_mine_check("with the device opened and closed again");
	if (!lasting)
		kit_until(&board->done, 1); /* the peer has seen a process that lives */
	exit(0);
}

static void peer(enum way way)
{
	struct victim v;

	alarm(100);
	open_all(&v, 1);
	if (way == SEGMENT_EARLY) { /* it is there, and that is all */
		kit_until(&board->closed, 1);
		atomic_store(&board->done, 1);
		close_all(&v);
		exit(0);
	}
	kit_connect(&v.e, &board->card[0]);
	atomic_fetch_add(&board->connected, 1);
	kit_until(&board->connected, 2);
	greet(&v);
	if (lasting) {
		kit_until(&board->closed, 1);
	} else {
		struct ibv_wc wc;

		leave_one(&v);
		wc = kit_wait(&v.e, 60);
		CHECK(wc.wr_id == 50 && wc.status == (quiet ? IBV_WC_WR_FLUSH_ERR : IBV_WC_RETRY_EXC_ERR),
		      "%s", ibv_wc_status_str(wc.status));
		CHECK(says(board->log[1], way == EXEC
					      ? "is alive but executed another program (exec)"
					      : "is alive but closed the descriptors of its open device"));
		CHECK(!count_in(board->log[1], "ended without closing"));
	}
	atomic_store(&board->done, 1);
	close_all(&v);
	exit(0);
}

static void run(enum way way, int kind, char **argv)
{
	pid_t pids[2];
	int status;

	memset(board, 0, sizeof *board);
	lasting = way == SEGMENT || way == PIDFD;
	quiet = way == ALL_QUIETLY;
	begin_logs();
	pids[0] = kit_fork();
	if (!pids[0])
		victim(way, kind, argv);
	pids[1] = kit_fork();
	if (!pids[1])
		peer(way);
	status = kit_reap(pids[1]);
	CHECK(!status, "the peer: %s, kind %d: status 0x%x", names[way], kind, status);
	if (way == EXEC)
		kill(pids[0], SIGKILL);
	status = kit_reap(pids[0]);
	CHECK(way == EXEC ? WIFSIGNALED(status) : !status, "%s, kind %d: status 0x%x", names[way], kind,
	      status);
	end_logs();
	printf("%s, kind %d: ok\n", names[way], kind);
	fflush(stdout);
}

/* The program closes the descriptor of its channel, or of its asynchronous events: the rest goes on. */
static void own_channel(bool async, int kind)
{
	pid_t pid = kit_fork();
	int status;

	if (!pid) {
		struct victim v = {0};
		struct ibv_async_event ev;
		struct ibv_cq *cq;
		struct ibv_wc wc;
		void *x;

		alarm(100);
		kit_mine_forget();
		begin_logs();
		setenv("VERBENA_LOG", board->log[0], 1);
		v.ctx = kit_open();
		v.pd = ibv_alloc_pd(v.ctx);
		v.ch = ibv_create_comp_channel(v.ctx);
		kit_end_open_on(&v.e, v.pd, v.ch, 8, 4096);
		kit_connect(&v.e, &v.e.card);
		close(async ? v.ctx->async_fd : v.ch->fd);
		CHECK(kit_mine_put(kind) == (async ? v.ctx->async_fd : v.ch->fd));
		child_keeps();
		CHECK(!ibv_req_notify_cq(v.e.cq, 0));
		CHECK(!kit_post(&v.e, IBV_WR_RDMA_WRITE, 7, 0, 8, &v.e.card, 16));
		wc = kit_wait(&v.e, 10);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		if (async) {
			errno = 0;
			CHECK(ibv_get_async_event(v.ctx, &ev) == -1);
			CHECK_EQ(errno, EBADF);
		} else {
			/* the event is there, and after it there can be none */
			CHECK(!ibv_get_cq_event(v.ch, &cq, &x));
			ibv_ack_cq_events(cq, 1);
			errno = 0;
			CHECK(ibv_get_cq_event(v.ch, &cq, &x) == -1);
			CHECK_EQ(errno, EBADF);
		}
		CHECK(says(board->log[0], ", which belongs to the device: its events no longer arrive") == 1);
		CHECK(!count_in(board->log[0], "the device is lost"));
		kit_nobody_spins();
		close_all(&v);
		kit_mine_check("with the channel closed");
		end_logs();
		exit(0);
	}
	status = kit_reap(pid);
	CHECK(!status, "kind %d: status 0x%x", kind, status);
	printf("the descriptor of %s, kind %d: ok\n", async ? "the asynchronous events" : "a channel", kind);
}

static void breaker(void)
{
	struct vb_peer *peer;
	struct victim v;
	struct ibv_wc wc;

	alarm(60);
	open_all(&v, 0);
	kit_connect(&v.e, &board->card[1]);
	greet(&v);
	leave_one(&v);
	peer = vb_peer_get(vb_context(v.ctx)->adapter, board->card[1].qpn >> VB_QPN_INDEX_BITS);
	vb_peer_insane(peer);
	vb_peer_put(peer);
	wc = kit_wait(&v.e, 20);
	CHECK_EQ(wc.wr_id, 50);
	CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
	CHECK(says(board->log[0], "this process closed the connection to") == 1);
	CHECK(!count_in(board->log[0], "ended without closing"));
	kit_until(&board->done, 1);
	close_all(&v);
	exit(0);
}

/* A peer that ends the connection since it got rubbish from here has closed nothing and has not ended. */
static void breaks_off(void)
{
	pid_t pids[2];

	memset(board, 0, sizeof *board);
	quiet = true;
	begin_logs();
	pids[0] = kit_fork();
	if (!pids[0])
		breaker();
	pids[1] = kit_fork();
	if (!pids[1]) {
		struct victim v;
		struct ibv_wc wc;

		alarm(60);
		open_all(&v, 1);
		kit_connect(&v.e, &board->card[0]);
		greet(&v);
		leave_one(&v);
		wc = kit_wait(&v.e, 20);
		CHECK_EQ(wc.wr_id, 50);
		CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
		CHECK(says(board->log[1], "is alive but closed the connection") == 1);
		CHECK(!count_in(board->log[1], "closed the descriptors"));
		CHECK(!count_in(board->log[1], "ended without closing"));
		atomic_store(&board->done, 1);
		close_all(&v);
		exit(0);
	}
	CHECK_EQ(kit_reap(pids[1]), 0);
	CHECK_EQ(kit_reap(pids[0]), 0);
	end_logs();
	puts("a peer that breaks off: ok");
}

/* A daemon that does it the right way. */
static void closes_first(void)
{
	pid_t pid = kit_fork();

	if (!pid) {
		alarm(60);
		CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
		opens_anew();
		exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "sleep")) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	/* Nobody else makes contact meanwhile, whose sockets would be found instead of those looked for. */
	if (!kit_own_network())
		puts("in the network of others");
	board = kit_shared(sizeof *board);
	closes_first();
	breaks_off();
	for (int kind = 0; kind < KIT_MINE_KINDS; kind++)
		for (enum way way = 0; way < EXEC; way++)
			if (argc < 2 || atoi(argv[1]) == (int)way)
				run(way, kind, argv);
	if (argc < 2 || atoi(argv[1]) == EXEC)
		run(EXEC, 0, argv);
	for (int kind = 0; kind < KIT_MINE_KINDS && (argc < 2 || atoi(argv[1]) == WAYS); kind++) {
		own_channel(false, kind);
		own_channel(true, kind);
	}
	puts("what the program opened stayed its own");
	return 0;
}
