/* Large SENDs from memory that their receiver can map, although its region permits peers nothing: what the
 * owner tells of it, how long the mapping stays, and who dies under a copy through it.
 *
 *   proc-lend_mapped [CASE] */
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "bytes.h"
#include "pair.h"

enum { LEN = KIT_DUO_SIZE, SIZE = 4 * LEN, REMOTE_BIT = 0x40000000 };

/* Returns the limit before. */
static struct rlimit no_more_descriptors(void)
{
	struct rlimit before, none;
	int next = dup(STDERR_FILENO);

	CHECK(next >= 0 && !close(next) && !getrlimit(RLIMIT_NOFILE, &before));
	none = (struct rlimit){(rlim_t)next, before.rlim_max};
	CHECK(!setrlimit(RLIMIT_NOFILE, &none));
	return before;
}

/* ---- the end that sends ---- */

static uint8_t *memory;
static int file;
static struct ibv_mr *region;

static void register_file(struct kit_pair *d, int access)
{
	memory = kit_mapped(SIZE, &file);
	region = ibv_reg_mr(d->pd, memory, SIZE, access);
	CHECK(region);
}

static void post_send(struct kit_pair *d, unsigned seed)
{
	struct ibv_sge sge = {(uintptr_t)memory + LEN, LEN, region->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;

	if (seed)
		kit_fill(memory + LEN, LEN, seed);
	CHECK(!ibv_post_send(d->end[0].qp, &wr, &bad));
}

static void there_registers(struct kit_pair *d)
{
	register_file(d, (int)d->board->in[0]);
	d->board->out[0] = (int64_t)(uintptr_t)memory;
	d->board->out[1] = region->lkey;
}

static void there_registers_without_descriptors(struct kit_pair *d)
{
	there_registers(d);
	no_more_descriptors();
}

static void there_sends(struct kit_pair *d)
{
	post_send(d, (unsigned)d->board->in[0]);
	d->board->out[0] = kit_wait(&d->end[0], 20).status;
}

static void there_deregisters(struct kit_pair *d)
{
	(void)d;
	CHECK(!ibv_dereg_mr(region) && !munmap(memory, SIZE) && !close(file));
}

static void there_cuts_its_file(struct kit_pair *d)
{
	(void)d;
	CHECK(!ftruncate(file, 0));
}

static void there_counts_changes(struct kit_pair *d)
{
	d->board->out[0] = (int64_t)(LEN - kit_filled(memory + LEN, LEN, (unsigned)d->board->in[0]));
}

/* ---- the end that receives ---- */

/* The mappings of the other's files here: those with these permissions, or all. */
static int mapped_here(const char *how)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	CHECK(f);
	while (fgets(line, sizeof line, f))
		n += strstr(line, "/memfd:test") && (!how || strstr(line, how));
	fclose(f);
	return n;
}

/* seed 0: of bytes that are there, which nobody looks at. */
static void receive(struct kit_pair *d, unsigned seed)
{
	struct kit_end *e = &d->end[0];

	d->board->in[0] = seed;
	CHECK(!kit_recv(e, 1, 0, LEN));
	kit_duo_begin(d, there_sends);
	kit_expect(e, IBV_WC_RECV);
	kit_duo_await(d);
	CHECK_EQ(d->board->out[0], IBV_WC_SUCCESS);
	if (seed)
		CHECK_EQ(kit_filled(e->buf, LEN, seed), LEN);
}

/* The answer comes to the engine, at some time. */
static void receive_until_mapped(struct kit_pair *d)
{
	double end = kit_now() + 20;

	for (unsigned i = 0; i % 16 || !mapped_here(NULL); i++) {
		receive(d, 0);
		CHECK(kit_now() < end, "%u SENDs, and no mapping", i);
	}
}

static void let_there_register(struct kit_pair *d, int access)
{
	d->board->in[0] = access;
	kit_duo_there(d, there_registers);
}

/* ---- cases ---- */

/* It is for reading by SENDs, and for nothing else. */
static void told_for_reading(struct kit_pair *d, int access)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
						 IBV_WR_ATOMIC_FETCH_AND_ADD};
	uint32_t lkey;
	uint64_t at;
	double end;

	let_there_register(d, access);
	at = (uint64_t)d->board->out[0] + LEN;
	lkey = (uint32_t)d->board->out[1];
	receive_until_mapped(d);
	CHECK_EQ(mapped_here(" r--s "), 1);
	receive(d, 77);
	for (int i = 0; i < 6; i++) {
		uint32_t forged = i % 2 ? lkey : lkey | REMOTE_BIT;

		CHECK_EQ(kit_duo_do(d, ops[i / 2], 8, at, forged), IBV_WC_REM_ACCESS_ERR);
	}
	d->board->in[0] = 77;
	kit_duo_there(d, there_counts_changes);
	CHECK_EQ(d->board->out[0], 0);
	receive(d, 78); /* on a queue pair that is new */
	CHECK_EQ(mapped_here(NULL), 1);
	kit_duo_there(d, there_deregisters);
	/* what the owner says is heard by the engine, at some time */
	for (end = kit_now() + 20; mapped_here(NULL); kit_nap(1))
		CHECK(kit_now() < end, "the mapping stays");
}

static void for_reading(struct kit_pair *d)
{
	told_for_reading(d, IBV_ACCESS_LOCAL_WRITE);
	told_for_reading(d, 0);
}

/* What is mapped counts, and not what the owner puts in its place.  So it shows that no call copies. */
static void there_puts_other_memory(struct kit_pair *d)
{
	uint8_t *p =
	    mmap(memory, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	CHECK(p == memory);
	kit_fill(memory + LEN, LEN, (unsigned)d->board->in[0]);
}

static void no_call(struct kit_pair *d)
{
	struct kit_end *e = &d->end[0];
	double end = kit_now() + 20;

	let_there_register(d, IBV_ACCESS_LOCAL_WRITE);
	receive_until_mapped(d);
	receive(d, 44);
	d->board->in[0] = 55;
	kit_duo_there(d, there_puts_other_memory);
	for (int mapped = 0; mapped < 20;) {
		receive(d, 0);
		if (kit_filled(e->buf, LEN, 44) == LEN)
			mapped++;
		else /* the engine was about to use it */
			CHECK(!mapped && kit_filled(e->buf, LEN, 55) == LEN && kit_now() < end);
	}
	kit_duo_there(d, there_deregisters);
}

/* A process that keeps the kernel from letting others read its memory tells of none that is only lent. */
static void there_denies_itself(struct kit_pair *d)
{
	(void)d;
	CHECK(!prctl(PR_SET_DUMPABLE, 0));
}

static struct ibv_mr *for_peers;

static void there_registers_for_peers(struct kit_pair *d)
{
	int fd;
	uint8_t *p = kit_mapped(SIZE, &fd);

	for_peers = ibv_reg_mr(d->pd, p, SIZE, KIT_ALL);
	CHECK(for_peers);
	d->board->out[0] = (int64_t)(uintptr_t)p;
	d->board->out[1] = for_peers->rkey;
}

static void there_deregisters_both(struct kit_pair *d)
{
	there_deregisters(d);
	CHECK(!ibv_dereg_mr(for_peers));
}

static void not_told(struct kit_pair *d)
{
	double end = kit_now() + 20;

	kit_duo_there(d, there_denies_itself);
	let_there_register(d, IBV_ACCESS_LOCAL_WRITE);
	for (unsigned i = 1; i < 20; i++)
		receive(d, i);
	/* the question about this one is behind the other in the same socket */
	kit_duo_there(d, there_registers_for_peers);
	while (!mapped_here(" rw-s ")) {
		CHECK_EQ(kit_duo_do(d, IBV_WR_RDMA_READ, LEN, (uint64_t)d->board->out[0],
				    (uint32_t)d->board->out[1]),
			 IBV_WC_SUCCESS);
		CHECK(kit_now() < end, "no mapping");
	}
	CHECK_EQ(mapped_here(NULL), 1);
	kit_duo_there(d, there_deregisters_both);
}

/* Without a descriptor for the answer the kernel copies, until there is one again. */
static void no_descriptors_here(struct kit_pair *d)
{
	struct rlimit before;

	let_there_register(d, IBV_ACCESS_LOCAL_WRITE);
	before = no_more_descriptors();
	for (unsigned i = 1; i < 40; i++)
		receive(d, i);
	CHECK(!setrlimit(RLIMIT_NOFILE, &before));
	CHECK_EQ(mapped_here(NULL), 0);
	receive_until_mapped(d);
	kit_duo_there(d, there_deregisters);
}

static void no_descriptors_there(struct kit_pair *d)
{
	d->board->in[0] = IBV_ACCESS_LOCAL_WRITE;
	kit_duo_there(d, there_registers_without_descriptors);
	for (unsigned i = 1; i < 40; i++)
		receive(d, i);
	CHECK_EQ(mapped_here(NULL), 0);
	kit_duo_there(d, there_deregisters);
}

/* The SEND ends as from memory that is not mapped by anybody. */
static void file_is_cut(struct kit_pair *d)
{
	struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
	struct kit_end *e = &d->end[0];

	let_there_register(d, IBV_ACCESS_LOCAL_WRITE);
	receive_until_mapped(d);
	kit_duo_there(d, there_cuts_its_file);
	d->board->in[0] = 0;
	CHECK(!kit_recv(e, 1, 0, LEN));
	kit_duo_there(d, there_sends);
	CHECK_EQ(d->board->out[0], IBV_WC_LOC_PROT_ERR);
	CHECK(!ibv_modify_qp(e->qp, &err, IBV_QP_STATE));
	CHECK_EQ(kit_wait(e, 20).status, IBV_WC_WR_FLUSH_ERR);
	kit_duo_fresh(d);
	kit_duo_there(d, there_deregisters);
}

/* ---- death under a copy ---- */

/* A receive whose second page is missing, which holds the copy. */
struct held {
	pid_t dies;
	int fd;
	uint8_t *buf;
	struct ibv_mr *mr;
	pthread_t thread;
};

/* When the copy has come to that page, a process dies.  Then the copy goes on. */
static void *kill_it(void *arg)
{
	struct held *h = arg;
	struct uffdio_zeropage zero = {.range = {(uintptr_t)h->buf + PAGE, PAGE}};
	struct pollfd p = {.fd = h->fd, .events = POLLIN};
	siginfo_t how;

	CHECK(poll(&p, 1, 20000) == 1, "it was not held");
	CHECK(!kill(h->dies, SIGKILL));
	CHECK(!waitid(P_PID, (id_t)h->dies, &how, WEXITED | WNOWAIT));
	CHECK(!ioctl(h->fd, UFFDIO_ZEROPAGE, &zero));
	return NULL;
}

static void post_held(struct kit_pair *d, struct held *h, pid_t dies)
{
	struct ibv_sge sge = {.length = LEN};
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;

	h->dies = dies;
	h->buf = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(h->buf != MAP_FAILED);
	h->mr = ibv_reg_mr(d->pd, h->buf, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(h->mr);
	h->fd = kit_missing(h->buf + PAGE, PAGE);
	sge.addr = (uintptr_t)h->buf;
	sge.lkey = h->mr->lkey;
	CHECK(!ibv_post_recv(d->end[0].qp, &wr, &bad));
	CHECK(!pthread_create(&h->thread, NULL, kill_it, h));
}

/* What was begun arrives, and nothing after it. */
static void sender_dies(struct kit_pair *d)
{
	struct kit_end *e = &d->end[0];
	struct held h;

	let_there_register(d, IBV_ACCESS_LOCAL_WRITE);
	receive_until_mapped(d);
	post_held(d, &h, d->target);
	CHECK(!kit_recv(e, 2, 0, LEN));
	d->board->in[0] = 99;
	kit_duo_begin(d, there_sends);
	kit_expect(e, IBV_WC_RECV);
	CHECK_EQ(kit_filled(h.buf, LEN, 99), LEN);
	CHECK_EQ(kit_wait(e, 20).status, IBV_WC_WR_FLUSH_ERR);
	CHECK(!pthread_join(h.thread, NULL));
	CHECK(WIFSIGNALED(kit_reap(d->target)));
	_exit(0);
}

static void there_takes(struct kit_pair *d)
{
	CHECK(!kit_recv(&d->end[0], 1, 0, LEN));
	kit_expect(&d->end[0], IBV_WC_RECV);
	d->board->out[0] = mapped_here(NULL);
}

static void there_takes_and_dies(struct kit_pair *d)
{
	struct held h;

	post_held(d, &h, getpid());
	kit_wait(&d->end[0], 20);
	CHECK(false, "it lives");
}

/* Its sender hears the same, whatever its memory. */
static void receiver_dies(struct kit_pair *d)
{
	double end = kit_now() + 20;

	register_file(d, IBV_ACCESS_LOCAL_WRITE);
	do {
		kit_duo_begin(d, there_takes);
		post_send(d, 5);
		kit_expect(&d->end[0], IBV_WC_SEND);
		kit_duo_await(d);
		CHECK(kit_now() < end, "no mapping");
	} while (!d->board->out[0]);
	kit_duo_begin(d, there_takes_and_dies);
	post_send(d, 6);
	CHECK_EQ(kit_wait(&d->end[0], 20).status, IBV_WC_RETRY_EXC_ERR);
	CHECK(WIFSIGNALED(kit_reap(d->target)));
	CHECK_EQ(kit_filled(memory + LEN, LEN, 6), LEN);
	CHECK(!ibv_dereg_mr(region)); /* nobody is waited for */
	_exit(0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*test)(struct kit_pair *);
		bool held;
	} cases[] = {
	    {"for reading", for_reading, false},
	    {"no call", no_call, false},
	    {"not told", not_told, false},
	    {"no descriptors here", no_descriptors_here, false},
	    {"no descriptors there", no_descriptors_there, false},
	    {"its file is cut", file_is_cut, false},
	    {"the sender dies", sender_dies, true},
	    {"the receiver dies", receiver_dies, true},
	};
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		if (!kit_asked(cases[i].name, argc, argv))
			continue;
		if (cases[i].held && fd < 0)
			printf("%s: not tried: no userfaultfd (%s)\n", cases[i].name, strerror(errno));
		else
			kit_duo_run(cases[i].name, true, cases[i].test);
	}
	return 0;
}
