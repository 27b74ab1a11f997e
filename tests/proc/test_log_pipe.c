/* Nobody blocks for the log.  Two processes write theirs into a pipe that is full: requests fail by the
 * hundred on one queue pair, one is refused by the peer, and the other queue pairs go on meanwhile.  Once the
 * pipe is read, what was kept comes out of it by itself, and what was not is counted. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>

#include "kit.h"

enum { ENDS = 3, BAD = 0, GOOD = 1, REFUSED = 2, FAILS = 400, ROUNDS = 2000, DEPTH = 16, SIZE = 4096 };

struct board {
	struct kit_card card[2][ENDS];
	_Atomic int opened, connected, done, over;
};

static struct board *board;
static int log_pipe[2];
static struct kit_end ends[ENDS];

static void expect(struct kit_end *e, enum ibv_wc_status status)
{
	struct ibv_wc wc = kit_wait(e, 20);

	CHECK(wc.status == status, "%s, not %s", ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
}

/* The L_Key is wrong, so nothing is ever sent: this end alone starts anew. */
static void *fail_often(void *arg)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET},
			   init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = KIT_ALL};
	struct kit_end *e = &ends[BAD];
	struct ibv_sge sge = {(uintptr_t)e->buf, 8, e->mr->lkey ^ 0x100};

	(void)arg;
	for (int i = 0; i < FAILS; i++) {
		struct ibv_send_wr wr = {.wr_id = (uint64_t)i,
					 .sg_list = &sge,
					 .num_sge = 1,
					 .opcode = IBV_WR_SEND,
					 .send_flags = IBV_SEND_SIGNALED},
				   *bad;

		CHECK(!ibv_post_send(e->qp, &wr, &bad));
		expect(e, IBV_WC_LOC_PROT_ERR);
		CHECK(!ibv_modify_qp(e->qp, &reset, IBV_QP_STATE));
		CHECK(!ibv_modify_qp(e->qp, &init,
				     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
		kit_connect(e, &board->card[1][BAD]);
	}
	return NULL;
}

static void open_ends(int me)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());

	CHECK(pd);
	for (int i = 0; i < ENDS; i++) {
		kit_end_open(&ends[i], pd, DEPTH, SIZE);
		board->card[me][i] = ends[i].card;
	}
	CHECK(!kit_recv(&ends[GOOD], 0, 0, 8));
	atomic_fetch_add(&board->opened, 1);
	kit_until(&board->opened, 2);
	for (int i = 0; i < ENDS; i++)
		kit_connect(&ends[i], &board->card[!me][i]);
	atomic_fetch_add(&board->connected, 1);
	kit_until(&board->connected, 2);
}

/* Sends and receives in turn.  A receive is posted before the message that it is for can come. */
static void go_on(int me)
{
	struct kit_end *e = &ends[GOOD];

	for (int i = 0; i < 2 * ROUNDS; i++) {
		if (i % 2 == me)
			CHECK(!kit_post(e, IBV_WR_SEND, 1, 0, 8, NULL, 0));
		expect(e, IBV_WC_SUCCESS);
		if (i % 2 != me)
			CHECK(!kit_recv(e, 0, 0, 8));
	}
}

static void process(int me)
{
	struct kit_card wrong;
	pthread_t failing;

	alarm(120);
	CHECK(dup2(log_pipe[1], STDERR_FILENO) == STDERR_FILENO);
	close(log_pipe[0]);
	setenv("VERBENA_LOG", "stderr", 1);
	setenv("VERBENA_LOG_LEVEL", "warn", 1);
	open_ends(me);
	if (!me) {
		wrong = board->card[1][REFUSED];
		wrong.rkey ^= 0x100;
		CHECK(!pthread_create(&failing, NULL, fail_often, NULL));
		CHECK(!kit_post(&ends[REFUSED], IBV_WR_RDMA_WRITE, 1, 0, 8, &wrong, 0));
		expect(&ends[REFUSED], IBV_WC_REM_ACCESS_ERR);
	}
	go_on(me);
	if (!me)
		CHECK(!pthread_join(failing, NULL));
	atomic_fetch_add(&board->done, 1);
	kit_until(&board->over,
		  1); /* no call of the library: its own thread is to see that the pipe is read */
	_exit(0);
}

/* Whole pages, so that there is no room at the end of the last one either. */
static int fill_pipe(void)
{
	static char page[4096];
	int flags = fcntl(log_pipe[1], F_GETFL), n = 0;

	memset(page, '.', sizeof page);
	page[sizeof page - 1] = '\n';
	CHECK(!fcntl(log_pipe[1], F_SETFL, flags | O_NONBLOCK));
	while (write(log_pipe[1], page, sizeof page) == (ssize_t)sizeof page)
		n += (int)sizeof page;
	CHECK_EQ(errno, EAGAIN);
	CHECK(!fcntl(log_pipe[1], F_SETFL, flags));
	return n;
}

/* Reads on; what is there is in `text`. */
static void more(char *text, size_t size)
{
	struct pollfd p = {.fd = log_pipe[0], .events = POLLIN};
	size_t at = strlen(text);
	ssize_t n;

	CHECK(poll(&p, 1, 20000) == 1, "nothing more comes after:\n%s", text);
	n = read(log_pipe[0], text + at, size - 1 - at);
	CHECK(n > 0);
	text[at + (size_t)n] = 0;
}

/* Lines of this process, and how many of them tell of lost ones. */
static int lines_of(const char *text, pid_t pid, int *lost)
{
	char head[64];
	int lines = 0;

	*lost = 0;
	snprintf(head, sizeof head, "[%d]: ", (int)pid);
	for (const char *l = strstr(text, head); l; l = strstr(l + 1, head)) {
		int n;

		if (!strchr(l, '\n'))
			break;
		if (sscanf(l + strlen(head), "%d more lines are lost here", &n) == 1)
			*lost += n;
		else
			lines++;
	}
	return lines;
}

/* What waits for room is tried again ten times a second.  What else wakes its thread, looks at pollers and
 * timers of queue pairs, comes to an end: two windows in a row, so that the last of it is not taken for the
 * log. */
static void until_only_the_log_wakes(pid_t pid)
{
	double until = kit_now() + 60;

	for (int calm = 0; calm < 2;) {
		struct kit_switches before = kit_switches(pid, pid), now;
		unsigned long slept;

		CHECK(kit_now() < until, "process %d does not come to rest, or to nothing at all", pid);
		kit_nap(500);
		now = kit_switches(pid, pid);
		slept = now.slept - before.slept;
		calm = slept >= 2 && slept <= 8 && !before.running && !now.running ? calm + 1 : 0;
	}
}

int main(void)
{
	static char text[1 << 20];
	int filled, there, lines, lost, none, next = 0;
	pid_t pid[2];

	board = kit_shared(sizeof *board);
	CHECK(!pipe(log_pipe));
	filled = fill_pipe();
	for (int me = 0; me < 2; me++) {
		pid[me] = kit_fork();
		if (!pid[me])
			process(me);
	}
	close(log_pipe[1]);
	kit_until(&board->done, 2);
	for (int me = 0; me < 2; me++)
		until_only_the_log_wakes(pid[me]);
	CHECK(!ioctl(log_pipe[0], FIONREAD, &there) && there == filled, "%d of %d", there, filled);

	while (filled > 0)
		filled -= (int)read(log_pipe[0], text, (size_t)filled);
	text[0] = 0;
	do
		more(text, sizeof text);
	while ((lines = lines_of(text, pid[0], &lost)) + lost < FAILS + 1 ||
	       !lines_of(text, pid[1], &none)); /* the peer says one */
	CHECK(lines + lost == FAILS + 1, "%d lines and %d lost:\n%s", lines, lost, text);
	CHECK(lost > 0 && lines >= 32, "%d lines and %d lost", lines, lost);
	for (char *l = text; (l = strstr(l, " SEND wr_id 0x")); l++)
		CHECK(strtol(l + 12, NULL, 16) == next++, "line %d is another:\n%s", next, l);
	CHECK(next >= lines - 1 && !none, "%d of %d", next, lines);
	atomic_store(&board->over, 1);
	for (int me = 0; me < 2; me++)
		CHECK_EQ(kit_reap(pid[me]), 0);
	printf("%d lines kept, %d counted\n", lines, lost);
	return 0;
}
