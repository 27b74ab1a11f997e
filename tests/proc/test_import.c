/* Import: a process uses the protection domain and the regions of another one, by its cmd_fd and handles.
 *
 * The exporter owns a domain and memory.  The importer gets the exporter's cmd_fd, by a message or by being
 * its child, imports the three objects, and makes a QP of its own in the domain.  A third process, with a
 * domain of its own, talks to that QP.  Whether the bytes are right is seen in memory that all map. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "bytes.h"
#include "kit.h"
#include "pair.h"

enum { AREA = 1 << 16, LEN = 30000 };

struct board {
	_Atomic int step, ready[3];
	uint32_t pd, mr, rkey, dm;
	uint64_t addr, length;
	struct kit_card card[2];
};

static struct board *board;
static uint8_t *area; /* the exporter's */
static bool openable;

struct exports {
	struct ibv_dm *dm;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
};

static struct exports export(void)
{
	struct exports x = {.ctx = kit_open()};

	x.pd = ibv_alloc_pd(x.ctx);
	CHECK(x.pd);
	x.mr = ibv_reg_mr(x.pd, area, AREA, KIT_ALL);
	CHECK(x.mr);
	board->pd = x.pd->handle;
	board->mr = x.mr->handle;
	board->rkey = x.mr->rkey;
	board->addr = (uintptr_t)area;
	board->length = AREA;
	x.dm = ibv_alloc_dm(x.ctx, &(struct ibv_alloc_dm_attr){.length = 4096 + 8});
	CHECK(x.dm && !ibv_memcpy_to_dm(x.dm, 8, "four", 4));
	board->dm = x.dm->handle;
	return x;
}

struct imports {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
};

static struct imports import(int fd)
{
	struct imports i = {.ctx = ibv_import_device(fd)};

	CHECK(i.ctx, "ibv_import_device: %s", strerror(errno));
	CHECK(i.ctx->cmd_fd == fd);
	i.pd = ibv_import_pd(i.ctx, board->pd);
	CHECK(i.pd && i.pd->handle == board->pd && i.pd->context == i.ctx, "%s", strerror(errno));
	i.mr = ibv_import_mr(i.pd, board->mr);
	CHECK(i.mr, "%s", strerror(errno));
	CHECK(!i.mr->addr && i.mr->length == board->length && i.mr->rkey == board->rkey &&
	      i.mr->handle == board->mr && i.mr->pd == i.pd);
	return i;
}

/* Both see the same bytes, and a region in it is the importer's own. */
static void device_memory(const struct imports *i)
{
	struct ibv_dm *dm = ibv_import_dm(i->ctx, board->dm);
	struct ibv_mr *mr;
	char four[4];

	CHECK(dm, "%s", strerror(errno));
	CHECK(dm->handle == board->dm && dm->context == i->ctx);
	CHECK(!ibv_memcpy_from_dm(four, dm, 8, 4) && !memcmp(four, "four", 4));
	mr = ibv_reg_dm_mr(i->pd, dm, 0, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED);
	CHECK(mr && !ibv_dereg_mr(mr));
	CHECK(!ibv_memcpy_to_dm(dm, 12, "five", 4));
	mr = ibv_reg_dm_mr(i->pd, dm, 0, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED);
	CHECK(mr && ibv_free_dm(dm) == EBUSY);
	ibv_unimport_dm(dm); /* it is in use: it stays */
	CHECK(!ibv_memcpy_from_dm(four, dm, 12, 4) && !memcmp(four, "five", 4));
	CHECK(!ibv_dereg_mr(mr));
	ibv_unimport_dm(dm);
	/* as with domains and regions, whatever ends the import leaves the owner's alone */
	dm = ibv_import_dm(i->ctx, board->dm);
	CHECK(dm && !ibv_free_dm(dm));
	dm = ibv_import_dm(i->ctx, board->dm);
	CHECK(dm && !ibv_memcpy_from_dm(four, dm, 12, 4) && !memcmp(four, "five", 4));
	ibv_unimport_dm(dm);
	CHECK(!ibv_import_dm(i->ctx, board->dm + 7));
	CHECK_EQ(errno, ENOENT);
}

static void wrong_handles(const struct imports *i)
{
	struct ibv_pd *own = ibv_alloc_pd(i->ctx);

	CHECK(own);
	CHECK(!ibv_import_pd(i->ctx, board->pd + 100));
	CHECK_EQ(errno, ENOENT);
	CHECK(!ibv_import_pd(i->ctx, board->pd + 0x10000));
	CHECK_EQ(errno, ENOENT);
	CHECK(!ibv_import_mr(i->pd, 0));
	CHECK_EQ(errno, ENOENT);
	CHECK(!ibv_import_mr(i->pd, board->mr + 1));
	CHECK_EQ(errno, ENOENT);
	CHECK(!ibv_import_mr(i->pd, UINT32_MAX));
	CHECK_EQ(errno, ENOENT);
	CHECK(!ibv_import_mr(own, board->mr) && errno == EINVAL, "another domain: %d", errno);
	CHECK(ibv_dealloc_pd(i->pd) == EBUSY, "with an imported region");
	CHECK(ibv_rereg_mr(i->mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(!ibv_dealloc_pd(own));
}

/* An imported domain cannot be shared on, however deep it lies below a parent domain. */
static void no_sharing_on(const struct imports *i)
{
	struct ibv_parent_domain_init_attr attr = {.pd = i->pd};
	struct ibv_pd *parent = ibv_alloc_parent_domain(i->ctx, &attr), *above;
	struct ibv_shpd shpd;

	CHECK(parent);
	attr.pd = parent;
	above = ibv_alloc_parent_domain(i->ctx, &attr);
	CHECK(above);
	CHECK(!ibv_alloc_shpd(i->pd, 1, &shpd));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_alloc_shpd(parent, 1, &shpd));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_alloc_shpd(above, 1, &shpd));
	CHECK_EQ(errno, EINVAL);
	CHECK(ibv_dealloc_pd(parent) == EBUSY && !ibv_dealloc_pd(above) && !ibv_dealloc_pd(parent));
}

static void wrong_descriptors(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC), memory = memfd_create("x", MFD_CLOEXEC);

	CHECK(!ibv_import_device(-1));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_import_device(9999));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_import_device(fd));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_import_device(memory));
	CHECK_EQ(errno, EINVAL);
	CHECK(!close(fd) && !close(memory)); /* they stay the caller's */
}

static void is_filled(const uint8_t *p, unsigned seed, const char *what)
{
	CHECK(kit_filled(p, LEN, seed) == LEN, "%s: byte %zu", what, kit_filled(p, LEN, seed));
}

static void ok(struct kit_end *e, const char *what)
{
	struct ibv_wc wc = kit_wait(e, 20);

	CHECK(wc.status == IBV_WC_SUCCESS, "%s: %s", what, ibv_wc_status_str(wc.status));
}

static void meet(int me, int step)
{
	atomic_store(&board->ready[me], step);
	kit_until(&board->ready[!me], step);
}

/* The third one: [1].  Its own memory, and READs and WRITEs to the exporter's through the importer's QP. */
static void stranger(void)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct kit_end e;
	struct kit_card far;

	kit_end_open(&e, pd, 16, AREA);
	board->card[1] = e.card;
	meet(1, 1);
	far = board->card[0];
	kit_connect(&e, &far);
	far.rkey = board->rkey;
	far.addr = board->addr;
	CHECK(!kit_recv(&e, 1, 0, LEN));
	meet(1, 2);
	ok(&e, "a SEND from imported memory");
	is_filled(e.buf, 1, "RECV");
	CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, LEN, &far, LEN));
	ok(&e, "WRITE");
	memset(e.buf, 0, AREA);
	CHECK(!kit_post(&e, IBV_WR_RDMA_READ, 1, 8, LEN, &far, LEN));
	ok(&e, "READ");
	is_filled(e.buf + 8, 1, "READ");
	if (openable) {
		CHECK(!kit_post(&e, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 8, &far, 0));
		ok(&e, "atomic");
	}
	meet(1, 3);
	meet(1, 4);
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

static void importer(int sock, pid_t exporter, bool stop)
{
	struct imports i;
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;
	struct kit_end e;
	uint64_t before = 0;
	int status;

	wrong_descriptors();
	kit_until(&board->step, 1);
	i = import(kit_fd_receive(sock));
	device_memory(&i);
	if (stop) {
		CHECK(!kill(exporter, SIGSTOP) && waitpid(exporter, &status, WUNTRACED) == exporter);
		CHECK(!ibv_import_dm(i.ctx, board->dm));
		CHECK_EQ(errno, ETIMEDOUT);
	}
	wrong_handles(&i);
	no_sharing_on(&i);
	ibv_unimport_mr(i.mr);
	i.mr = ibv_import_mr(i.pd, board->mr); /* nothing is asked of its process */
	CHECK(i.mr);
	kit_end_open(&e, i.pd, 16, AREA);
	board->card[0] = e.card;
	meet(0, 1);
	kit_connect(&e, &board->card[1]);
	meet(0, 2);
	kit_fill(area, LEN, 1);
	memcpy(&before, area, 8); /* the peer begins as soon as it has the SEND */
	sge = (struct ibv_sge){board->addr, LEN, i.mr->lkey};
	CHECK(!ibv_post_send(e.qp, &wr, &bad));
	ok(&e, "SEND");
	meet(0, 3);
	is_filled(area + LEN, 1, "WRITE");
	if (openable)
		CHECK(*(uint64_t *)(void *)area == before + 1);
	meet(0, 4);
	kit_end_close(&e);
	if (stop)
		CHECK(!kill(exporter, SIGCONT));
	/* the owner takes its objects away: importers find that out */
	atomic_store(&board->step, 2);
	kit_until(&board->step, 3);
	CHECK(!ibv_import_mr(i.pd, board->mr));
	CHECK_EQ(errno, ENOENT);
	CHECK(!ibv_import_pd(i.ctx, board->pd));
	CHECK_EQ(errno, ENOENT);
	ibv_unimport_mr(i.mr);
	ibv_unimport_pd(i.pd);
	CHECK(!ibv_alloc_shpd(NULL, 0, NULL));
	CHECK_EQ(errno, EINVAL);
	atomic_store(&board->step, 4);
	CHECK(waitpid(exporter, &status, 0) == exporter && !status, "0x%x", status);
	/* its process is gone */
	for (double end = kit_now() + 20; !ibv_import_pd(i.ctx, board->pd) && errno != EIO;)
		CHECK(errno == ENOENT && kit_now() < end, "%d", errno); /* until the engine has heard of it */
	status = dup(i.ctx->cmd_fd);
	CHECK(!ibv_import_device(status));
	CHECK_EQ(errno, ENODEV);
	CHECK(!close(status) && !ibv_close_device(i.ctx));
}

static void exporter(int sock)
{
	struct exports x = export();
	char four[4];

	kit_fd_send(sock, x.ctx->cmd_fd);
	atomic_store(&board->step, 1);
	kit_until(&board->step, 2);
	CHECK(!ibv_memcpy_from_dm(four, x.dm, 12, 4) && !memcmp(four, "five", 4));
	CHECK(!ibv_free_dm(x.dm) && !ibv_dereg_mr(x.mr) && !ibv_dealloc_pd(x.pd));
	atomic_store(&board->step, 3);
	kit_until(&board->step, 4);
	CHECK(!ibv_close_device(x.ctx));
}

static void three(bool direct, bool file, bool stop)
{
	int sock[2], fd = -1, status;
	pid_t a, b, c;

	memset(board, 0, sizeof *board);
	setenv("VERBENA_DIRECT", direct ? "on" : "off", 1);
	area = file ? kit_mapped(AREA, &fd) : kit_shared(AREA);
	openable = file && !stop;
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock));
	a = kit_fork();
	if (!a) {
		alarm(60);
		b = kit_fork();
		if (!b) {
			alarm(60);
			exporter(sock[0]);
			exit(0);
		}
		importer(sock[1], b, stop);
		exit(0);
	}
	c = kit_fork();
	if (!c) {
		alarm(60);
		stranger();
		exit(0);
	}
	CHECK_EQ(kit_reap(a), 0);
	status = kit_reap(c);
	CHECK_EQ(status, 0);
	close(sock[0]);
	close(sock[1]);
	munmap(area, AREA);
	if (fd >= 0)
		close(fd);
	printf("direct %d, file %d, stopped %d: ok\n", direct, file, stop);
}

/* Over fork: the child's inherited context is dead, its descriptor is not. */
static void parent_and_child(void)
{
	pid_t parent, child;

	memset(board, 0, sizeof *board);
	area = kit_shared(AREA);
	parent = kit_fork();
	if (!parent) {
		struct exports x = export();

		alarm(60);
		child = kit_fork();
		if (!child) {
			struct imports i;
			struct ibv_mr *mr;

			CHECK(!ibv_import_pd(x.ctx, board->pd));
			CHECK_EQ(errno, EIO);
			i = import(dup(x.ctx->cmd_fd));
			mr = ibv_reg_mr(i.pd, area, 4096, KIT_ALL);
			CHECK(mr && mr->rkey != i.mr->rkey && ibv_dealloc_pd(i.pd) == EBUSY);
			CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(i.mr) && !ibv_dealloc_pd(i.pd));
			CHECK(!ibv_close_device(i.ctx));
			exit(0);
		}
		CHECK_EQ(kit_reap(child), 0);
		CHECK(!ibv_free_dm(x.dm) && !ibv_dereg_mr(x.mr) && !ibv_dealloc_pd(x.pd) &&
		      !ibv_close_device(x.ctx));
		exit(0);
	}
	CHECK_EQ(kit_reap(parent), 0);
	printf("parent and child: ok\n");
}

/* One's own device, in the same process. */
static void oneself(void)
{
	struct exports x;
	struct imports i;
	struct kit_end e, p;
	pid_t pid = kit_fork();

	if (!pid) {
		alarm(60);
		x = export();
		i = import(dup(x.ctx->cmd_fd));
		wrong_handles(&i);
		device_memory(&i);
		kit_end_open(&e, i.pd, 16, AREA);
		kit_end_open(&p, x.pd, 16, AREA);
		kit_connect(&e, &p.card);
		kit_connect(&p, &e.card);
		e.card.rkey = i.mr->rkey;
		e.card.addr = (uintptr_t)area;
		CHECK(!kit_post(&p, IBV_WR_RDMA_READ, 1, 0, 100, &e.card, 0));
		ok(&p, "READ by a key of the original on a QP of the import");
		kit_end_close(&e);
		kit_end_close(&p);
		ibv_unimport_mr(x.mr); /* not imported: stays */
		ibv_unimport_pd(x.pd);
		ibv_unimport_mr(i.mr);
		ibv_unimport_pd(i.pd);
		CHECK(!ibv_close_device(i.ctx));
		CHECK(!ibv_free_dm(x.dm) && !ibv_dereg_mr(x.mr) && !ibv_dealloc_pd(x.pd) &&
		      !ibv_close_device(x.ctx));
		exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
	printf("oneself: ok\n");
}

int main(void)
{
	board = kit_shared(sizeof *board);
	three(true, false, false);
	three(false, true, false);
	three(true, true, false);
	three(true, false, true);
	parent_and_child();
	oneself();
	return 0;
}
