/* Taking back waits for a user that does not go on.  A writer is held in the middle of its WRITE into our
 * memory, by a page of its own that is missing (userfaultfd); ibv_dereg_mr(), ibv_modify_qp() and
 * ibv_destroy_qp() wait, name its process after a second, and return when it goes on or is killed.  The other
 * queue pair works meanwhile. */
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "bytes.h"
#include "pair.h"

enum { SIZE = 64 << 10, DEPTH = 16, LEN = 5000, PATTERN = 0x5a };

enum way { DEREG, ERR, DESTROY };

static char log_path[] = "/tmp/verbena-held-XXXXXX";
static enum way way;
static bool killed; /* the writer is, else it gets its page */

static int said(pid_t pid)
{
	char line[1024], who[32];
	FILE *f = fopen(log_path, "r");
	int n = 0;

	CHECK(f);
	snprintf(who, sizeof who, "process %d,", (int)pid);
	while (fgets(line, sizeof line, f))
		n += strstr(line, "waits for") && strstr(line, who);
	fclose(f);
	return n;
}

struct taking {
	struct kit_pair *p;
	_Atomic bool done;
};

static void *take_back(void *arg)
{
	struct taking *t = arg;
	struct kit_end *e = &t->p->end[0];
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};

	if (way == DEREG)
		CHECK(!ibv_dereg_mr(e->mr));
	else if (way == ERR)
		CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE));
	else
		CHECK(!ibv_destroy_qp(e->qp));
	memset(e->buf, PATTERN, SIZE);
	atomic_store(&t->done, true);
	return NULL;
}

/* A message each way on the other queue pair. */
static void still_works(struct kit_pair *p)
{
	struct kit_end *e = &p->end[1];

	CHECK(!kit_recv(e, 1, 0, 0));
	while (atomic_load(&p->board->step) != 2)
		kit_nap(1);
	atomic_store(&p->board->step, 3);
	kit_until(&p->board->step, 4);
	CHECK(!kit_post(e, IBV_WR_SEND, 2, 0, 0, NULL, 0));
	for (int i = 0; i < 2; i++)
		CHECK_EQ(kit_wait(e, 20).status, IBV_WC_SUCCESS);
}

static void owner(struct kit_pair *p)
{
	struct taking t = {.p = p};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	double began;
	pthread_t thread;

	kit_pair_open(p, DEPTH, SIZE);
	kit_until(&p->board->step, 1); /* the writer is held */
	began = kit_now();
	CHECK(!pthread_create(&thread, NULL, take_back, &t));
	kit_nap(50);
	atomic_store(&p->board->step, 2);
	still_works(p);
	while (!said(p->target)) {
		CHECK(!atomic_load(&t.done), "it did not wait");
		CHECK(kit_now() - began < 20, "nothing is said");
		kit_nap(10);
	}
	CHECK(kit_now() - began >= 1);
	still_works(p); /* no more to say, and all goes on */
	CHECK(!atomic_load(&t.done));
	if (killed)
		CHECK(!kill(p->target, SIGKILL));
	else
		atomic_store(&p->board->step, 5);
	CHECK(!pthread_join(thread, NULL));
	CHECK(said(p->target) == 1);
	if (killed)
		kit_reap(p->target);
	else
		kit_until(&p->board->step, 6);
	for (int i = 0; i < SIZE; i++)
		CHECK(p->end[0].buf[i] == PATTERN, "byte %d was touched afterwards", i);
	if (way != DESTROY) {
		ibv_modify_qp(p->end[0].qp, &a, IBV_QP_STATE);
		CHECK(!ibv_destroy_qp(p->end[0].qp));
	}
	if (way != DEREG)
		CHECK(!ibv_dereg_mr(p->end[0].mr));
	CHECK(!ibv_destroy_cq(p->end[0].cq));
	kit_end_close(&p->end[1]);
	CHECK(!ibv_dealloc_pd(p->pd) && !ibv_destroy_comp_channel(p->chan) && !ibv_close_device(p->ctx));
	if (!killed)
		CHECK_EQ(kit_reap(p->target), 0);
	_exit(0);
}

static void *write_from(void *arg)
{
	struct kit_pair *p = arg;
	struct kit_end *e = &p->end[0];

	CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 1, PAGE - 100, LEN, &p->board->card[0][0], 0));
	return NULL;
}

static void writer(struct kit_pair *p)
{
	struct uffdio_zeropage zero = {0};
	struct pollfd fd = {.events = POLLIN};
	struct kit_end *e = &p->end[0];
	struct ibv_wc wc;
	pthread_t thread;

	kit_pair_open(p, DEPTH, SIZE);
	/* a page of ours in the middle of the message: the first bytes are copied, then it stops */
	CHECK(!ibv_dereg_mr(e->mr));
	free(e->buf);
	e->buf = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(e->buf != MAP_FAILED);
	e->mr = ibv_reg_mr(p->pd, e->buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(e->mr);
	fd.fd = kit_missing(e->buf + PAGE, PAGE);
	CHECK(!pthread_create(&thread, NULL, write_from, p));
	CHECK(poll(&fd, 1, 20000) == 1, "it was not held");
	atomic_store(&p->board->step, 1);
	for (int i = 0; i < 2; i++) {
		kit_until(&p->board->step, 3);
		CHECK(!kit_recv(&p->end[1], 1, 0, 0));
		CHECK(!kit_post(&p->end[1], IBV_WR_SEND, 2, 0, 0, NULL, 0));
		atomic_store(&p->board->step, 4);
		for (int k = 0; k < 2; k++)
			CHECK_EQ(kit_wait(&p->end[1], 20).status, IBV_WC_SUCCESS);
		if (!i)
			atomic_store(&p->board->step, 2);
	}
	kit_until(&p->board->step, 5);
	zero.range = (struct uffdio_range){(uintptr_t)e->buf + PAGE, PAGE};
	CHECK(!ioctl(fd.fd, UFFDIO_ZEROPAGE, &zero));
	CHECK(!pthread_join(thread, NULL));
	wc = kit_wait(e, 20); /* it was let finish, or the rest was refused */
	CHECK(wc.wr_id == 1);
	atomic_store(&p->board->step, 6);
	close(fd.fd);
	exit(0);
}

int main(void)
{
	static const bool both[] = {true, true};
	static const struct {
		const char *name;
		enum way way;
		bool killed;
	} rows[] = {
	    {"ibv_dereg_mr, the writer goes on", DEREG, false},
	    {"ibv_dereg_mr, the writer is killed", DEREG, true},
	    {"ibv_modify_qp, the writer goes on", ERR, false},
	    {"ibv_destroy_qp, the writer is killed", DESTROY, true},
	};
	int fd = mkstemp(log_path);

	CHECK(fd >= 0 && !fchmod(fd, 0666));
	close(fd);
	setenv("VERBENA_LOG", log_path, 1);
	fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		printf("SKIP: no userfaultfd for faults in system calls (%s)\n", strerror(errno));
		unlink(log_path);
		return KIT_SKIP;
	}
	close(fd);
	for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		way = rows[i].way;
		killed = rows[i].killed;
		CHECK(!truncate(log_path, 0));
		CHECK(kit_pair_run(rows[i].name, both, owner, writer));
	}
	unlink(log_path);
	return 0;
}
