/* A sandbox denies epoll_ctl, with which the library tells its own descriptors from those that a program made
 * at the same numbers: before the device is opened, before contact, or after it.  Nothing is taken for lost
 * that is not, what worked goes on, and what cannot work says why. */
#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>

#include "mine.h"

enum { SIZE = 4096 };

struct board {
	_Atomic int step;
	struct kit_card a, b;
};
static struct board *board;

static void denied(void)
{
	CHECK(kit_deny(SYS_epoll_ctl, EPERM, true), "%s", strerror(errno));
}

static void nothing_is_lost(void)
{
	KIT_LOG_SAYS_NOT("the device is lost");
	KIT_LOG_SAYS_NOT("this process closed");
}

static void opening(void)
{
	struct ibv_device **list;
	int before;

	kit_log_begin("info");
	denied();
	list = ibv_get_device_list(NULL);
	CHECK(!ibv_open_device(list[0])); /* the first line of the log leaves a descriptor open */
	before = kit_descriptors();
	errno = 0;
	CHECK(!ibv_open_device(list[0]));
	CHECK_EQ(errno, EPERM);
	KIT_LOG_SAYS(
	    "ibv_open_device: verbena0 cannot be opened: Operation not permitted; it needs epoll_create1, "
	    "eventfd2 and epoll_ctl (does a sandbox deny one?)");
	nothing_is_lost();
	CHECK(kit_descriptors() == before, "%d descriptors, then %d", before, kit_descriptors());
}

/* glibc begins a thread by clone3(), and by clone() only where the kernel has no clone3(). */
static void without_threads(void)
{
	struct ibv_device **list;

	kit_log_begin("info");
	CHECK(kit_deny(SYS_clone3, EPERM, true), "%s", strerror(errno));
	list = ibv_get_device_list(NULL);
	errno = 0;
	CHECK(!ibv_open_device(list[0]));
	CHECK_EQ(errno, EPERM);
	KIT_LOG_SAYS(
	    "ibv_open_device: verbena0 cannot be opened: Operation not permitted; it needs clone3, or clone "
	    "on a kernel without clone3 (does a sandbox deny one?)");
}

/* The other process: answers with a SEND to each that it gets. */
static pid_t echo(void)
{
	pid_t pid;

	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid) {
		struct ibv_pd *pd = ibv_alloc_pd(kit_open());
		struct kit_end e;

		kit_end_open(&e, pd, 8, SIZE);
		CHECK(!kit_recv(&e, 1, 0, 64));
		board->b = e.card;
		atomic_store(&board->step, 1);
		kit_until(&board->step, 2);
		kit_connect(&e, &board->a);
		atomic_store(&board->step, 3);
		for (;;) {
			struct ibv_wc wc = kit_wait(&e, 60);

			CHECK_EQ(wc.status, IBV_WC_SUCCESS);
			if (!(wc.opcode & IBV_WC_RECV))
				continue;
			CHECK(!kit_recv(&e, 1, 0, 64));
			CHECK(!kit_post(&e, IBV_WR_SEND, 2, 0, 64, NULL, 0));
		}
	}
	kit_until(&board->step, 1);
	return pid;
}

struct asker {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *ch;
	struct kit_end e;
};

static void asker_open(struct asker *k)
{
	k->ctx = kit_open();
	k->pd = ibv_alloc_pd(k->ctx);
	k->ch = ibv_create_comp_channel(k->ctx);
	CHECK(k->pd && k->ch);
	kit_end_open_on(&k->e, k->pd, k->ch, 8, SIZE);
	board->a = k->e.card;
}

static void asker_close(struct asker *k)
{
	kit_end_close(&k->e);
	CHECK(!ibv_destroy_comp_channel(k->ch) && !ibv_dealloc_pd(k->pd) && !ibv_close_device(k->ctx));
}

static void asker_connect(struct asker *k, const struct kit_card *to)
{
	atomic_store(&board->step, 2);
	kit_until(&board->step, 3);
	kit_connect_with(&k->e, to, 12, 4);
}

/* There and back, waiting for events. */
static void ask_once(struct asker *k)
{
	CHECK(!kit_recv(&k->e, 1, 64, 64));
	CHECK(!kit_post(&k->e, IBV_WR_SEND, 2, 0, 64, NULL, 0));
	for (int got = 0; got < 2;) {
		struct ibv_cq *cq;
		struct ibv_wc wc;
		void *x;

		CHECK(!ibv_req_notify_cq(k->e.cq, 0));
		while (got < 2 && ibv_poll_cq(k->e.cq, 1, &wc)) {
			CHECK_EQ(wc.status, IBV_WC_SUCCESS);
			got++;
		}
		if (got == 2)
			break;
		CHECK(!ibv_get_cq_event(k->ch, &cq, &x), "%s", strerror(errno));
		ibv_ack_cq_events(cq, 1);
	}
}

static void before_contact(void)
{
	pid_t pid = echo();
	struct asker k;

	kit_log_begin("info");
	asker_open(&k);
	denied();
	asker_connect(&k, &board->b);
	CHECK(!kit_post(&k.e, IBV_WR_SEND, 2, 0, 64, NULL, 0));
	CHECK_EQ(kit_wait(&k.e, 20).status, IBV_WC_RETRY_EXC_ERR);
	KIT_LOG_SAYS("this process cannot connect: epoll_ctl fails: Operation not permitted (does a sandbox "
		     "deny it?)");
	nothing_is_lost();
	kit_nobody_spins();
	asker_close(&k);
	kill(pid, SIGKILL);
	kit_reap(pid);
}

static void after_contact(void)
{
	struct ibv_async_event ev;
	struct ibv_comp_channel *ch;
	pid_t pid = echo();
	struct asker k;

	kit_log_begin("info");
	asker_open(&k);
	asker_connect(&k, &board->b);
	ask_once(&k);
	kit_until_blocked();
	denied();
	for (int i = 0; i < 100; i++)
		ask_once(&k);
	ch = ibv_create_comp_channel(k.ctx);
	CHECK(ch && !ibv_destroy_comp_channel(ch));
	nothing_is_lost();
	kit_nobody_spins();
	/* its end is noticed, and told */
	kill(pid, SIGKILL);
	kit_reap(pid);
	CHECK(!kit_recv(&k.e, 1, 64, 64));
	CHECK_EQ(kit_wait(&k.e, 20).status, IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_get_async_event(k.ctx, &ev));
	ibv_ack_async_event(&ev);
	nothing_is_lost();
	kit_nobody_spins();
	asker_close(&k);
	nothing_is_lost();
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "denied before the device is opened", .run = opening},
	    {.name = "threads denied", .run = without_threads},
	    {.name = "denied before contact", .run = before_contact},
	    {.name = "denied after contact", .run = after_contact}};

	board = kit_shared(sizeof *board);
	KIT_CASES(cases, 60);
	return 0;
}
