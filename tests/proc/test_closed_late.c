/* A program closes descriptors that are the library's, and what it calls next would use them: nothing of ours
 * goes into an epoll set of the program's that has the number of ours, and nothing is written to or read from
 * an eventfd of the program's that has the number of one of ours.
 *
 *     proc-closed_late [CASE]     default: all */
#include <pthread.h>
#include <sys/syscall.h>

#include "kit.h"
#include "mine.h"

enum { DEPTH = 8, SIZE = 4096 };

struct device {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct kit_end e, other; /* connected with each other */
};

static void device_open(struct device *d)
{
	d->ctx = kit_open();
	d->pd = ibv_alloc_pd(d->ctx);
	CHECK(d->pd);
	kit_end_open(&d->e, d->pd, DEPTH, SIZE);
	kit_end_open(&d->other, d->pd, DEPTH, SIZE);
	kit_connect(&d->e, &d->other.card);
	kit_connect(&d->other, &d->e.card);
}

static void device_close(struct device *d)
{
	kit_end_close(&d->e);
	kit_end_close(&d->other);
	CHECK(!ibv_dealloc_pd(d->pd) && !ibv_close_device(d->ctx));
}

static void share_pd(struct device *d)
{
	struct ibv_shpd sh = {0};

	CHECK(ibv_alloc_shpd(d->pd, 5, &sh));
	errno = 0;
	CHECK(!ibv_share_pd(d->ctx, &sh, 5) && errno == EIO, "%s", strerror(errno));
}

static void channel(struct device *d)
{
	errno = 0;
	CHECK(!ibv_create_comp_channel(d->ctx) && errno == EIO, "%s", strerror(errno));
}

/* A queue pair of 4,096 more than there are makes the adapter take a further number, and listen at it. */
static void more_numbers(struct device *d)
{
	struct ibv_qp_init_attr a = {.qp_type = IBV_QPT_RC,
				     .send_cq = d->e.cq,
				     .recv_cq = d->e.cq,
				     .cap = {.max_send_wr = 1, .max_recv_wr = 1}};
	struct ibv_qp *qp = NULL;

	for (int i = 0; i < 4200; i++) {
		errno = 0;
		qp = ibv_create_qp(d->pd, &a);
		if (!qp)
			break;
	}
	CHECK(!qp && errno == EIO, "%s", strerror(errno));
	_exit(0); /* as many as these are not destroyed one by one */
}

/* The call is the first thing that happens after the loss; all numbers are epoll sets of the program's. */
static void epoll_sets(void (*call)(struct device *))
{
	struct device d;
	int last = 0;
	char is[128];

	device_open(&d);
	kit_until_blocked(); /* nobody finds the loss by itself */
	for (int fd = 3; fd < KIT_MINE_MOST; fd++) {
		kit_fd_kind(fd, is, sizeof is);
		if (is[0])
			last = fd;
	}
	CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
	while (kit_mine_put(2) < last)
		;
	call(&d);
	kit_mine_check("after the call");
	device_close(&d);
	kit_mine_check("with the device closed");
}

/* An asynchronous event is due at the queue pair that answers: its peer may not write there. */
static void cause_event(struct device *d)
{
	struct kit_card wrong = d->other.card;

	wrong.rkey ^= 1;
	CHECK(!kit_post(&d->e, IBV_WR_RDMA_WRITE, 7, 0, 8, &wrong, 16));
	CHECK(kit_wait(&d->e, 10).status == IBV_WC_REM_ACCESS_ERR);
}

static void write_some(struct device *d)
{
	for (int i = 0; i < 100; i++) {
		CHECK(!kit_post(&d->e, IBV_WR_RDMA_WRITE, 7, 0, 8, &d->other.card, 16));
		CHECK(kit_wait(&d->e, 10).status == IBV_WC_SUCCESS);
	}
}

/* The event is told, from the library's own list, and after it there can be none. */
static void told_without_a_descriptor(struct device *d, bool there_is_one)
{
	struct ibv_async_event ev;

	if (there_is_one) {
		CHECK(!ibv_get_async_event(d->ctx, &ev) && ev.event_type == IBV_EVENT_QP_ACCESS_ERR);
		ibv_ack_async_event(&ev);
	}
	errno = 0;
	CHECK(ibv_get_async_event(d->ctx, &ev) == -1 && errno == EBADF, "%s", strerror(errno));
}

/* The number of the asynchronous events is an eventfd of the program's.  read_first: who finds it is a call
 * that would read; else it is the event, which would be written. */
static void own_eventfd(bool read_first)
{
	struct device d;

	device_open(&d);
	kit_mine_put_at(d.ctx->async_fd, 1);
	write_some(&d);
	kit_mine_check("after requests that end well");
	if (read_first)
		told_without_a_descriptor(&d, false);
	kit_mine_check("after a call that would read");
	cause_event(&d);
	kit_mine_check("after an event");
	told_without_a_descriptor(&d, true);
	kit_mine_check("after the event was told");
	device_close(&d);
	kit_mine_check("with the device closed");
}

static void channel_and_sets(void)
{
	epoll_sets(channel);
}

static void share_pd_and_sets(void)
{
	epoll_sets(share_pd);
}

static void numbers_and_sets(void)
{
	epoll_sets(more_numbers);
}

static void eventfd_to_write(void)
{
	own_eventfd(false);
}

static void eventfd_to_read(void)
{
	own_eventfd(true);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {{"ibv_create_comp_channel and epoll sets", channel_and_sets},
		     {"ibv_share_pd and epoll sets", share_pd_and_sets},
		     {"a further adapter number and epoll sets", numbers_and_sets},
		     {"an eventfd that would be written", eventfd_to_write},
		     {"an eventfd that would be read", eventfd_to_read}};

	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
		pid_t pid;

		if (!kit_asked(cases[i].name, argc, argv))
			continue;
		pid = kit_fork();
		if (!pid) {
			alarm(60);
			cases[i].run();
			_exit(0);
		}
		CHECK(kit_reap(pid) == 0, "%s", cases[i].name);
		printf("%s: ok\n", cases[i].name);
	}
	return 0;
}
