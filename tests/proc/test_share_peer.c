/* Peers of a program of --share-buffers: the log names a region that they cannot map, and what to do.  One
 * that dies while it has memory mapped leaves that memory as any other. */
#include <malloc.h>

#include "buffers.h"
#include "bytes.h"
#include "pair.h"

enum { SIZE = 1 << 20 };

static void log_information(void)
{
	kit_log_begin("info");
}

static void log_without_the_option(void)
{
	CHECK(!unsetenv("VERBENA_SHARE_BUFFERS"));
	kit_log_begin("info");
}

/* in: address and R_Key of the region. */
static void write_on(struct kit_pair *d)
{
	struct kit_card to = {.addr = (uint64_t)d->board->in[0], .rkey = (uint32_t)d->board->in[1]};
	struct kit_end *e = &d->end[0];

	for (uint64_t n = 1; !atomic_load(&d->board->step); n++) {
		CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, n, 0, 8, &to, 0));
		CHECK_EQ(kit_wait(e, 20).status, IBV_WC_SUCCESS);
	}
}

static struct ibv_mr *have_it_written(struct kit_pair *d, void *p)
{
	struct ibv_mr *mr = ibv_reg_mr(d->pd, p, SIZE, KIT_ALL);

	CHECK(mr);
	d->board->in[0] = (int64_t)(uintptr_t)p;
	d->board->in[1] = mr->rkey;
	kit_duo_begin(d, write_on);
	return mr;
}

static void private_region(struct kit_pair *d)
{
	void *p = malloc(SIZE);
	struct ibv_mr *mr = have_it_written(d, p);

	CHECK(kit_in_buffers(p, SIZE) == 0);
	KIT_LOG_SAYS("process %d often uses the region of 0x%x bytes at 0x%" PRIxPTR, d->target, SIZE,
		     (uintptr_t)p);
	KIT_LOG_SAYS("%s", getenv("VERBENA_SHARE_BUFFERS") ? "Allocate the buffer by posix_memalign()"
							   : "verbena run --share-buffers gives the program");
	atomic_store(&d->board->step, 1);
	kit_duo_await(d);
	CHECK(!ibv_dereg_mr(mr));
	free(p);
}

/* The inode of what is mapped at p, or of any mapping of a process that has this inode; 0: there is none. */
static unsigned long inode_in(pid_t pid, const void *p, unsigned long inode)
{
	unsigned long start, end, one, found = 0;
	char line[512], name[64];
	FILE *f;

	snprintf(name, sizeof(name), "/proc/%d/maps", pid);
	f = fopen(name, "re");
	CHECK(f);
	while (!found && fgets(line, sizeof(line), f)) {
		CHECK(sscanf(line, "%lx-%lx %*s %*s %*s %lu", &start, &end, &one) == 3);
		if (p ? start <= (uintptr_t)p && (uintptr_t)p < end : one == inode)
			found = one;
	}
	fclose(f);
	return found;
}

static void dies(struct kit_pair *d)
{
	uint8_t *p = memalign(PAGE, SIZE);
	struct ibv_mr *mr = have_it_written(d, p);
	unsigned long inode = inode_in(getpid(), p, 0);
	double began = kit_now();
	pid_t pid;

	CHECK(kit_in_buffers(p, SIZE) == 1 && inode);
	while (!inode_in(d->target, NULL, inode)) { /* no event tells this */
		CHECK(kit_now() - began < 20, "it does not map the region");
		sched_yield();
	}
	CHECK(!kill(d->target, SIGKILL));
	kit_reap(d->target);
	kit_fill(p, SIZE, 1);
	pid = kit_fork();
	if (!pid)
		_exit(kit_filled(p, SIZE, 1) != SIZE);
	CHECK_EQ(kit_reap(pid), 0);
	CHECK(!ibv_dereg_mr(mr) && kit_filled(p, SIZE, 1) == SIZE);
	free(p);
	p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED && kit_in_buffers(p, SIZE) == 1);
	for (int i = 0; i < SIZE; i++)
		CHECK_EQ(p[i], 0);
	exit(0);
}

int main(int argc, char **argv)
{
	(void)argc;
	kit_buffers_begin(argv);
	kit_duo_run("dies", true, dies);
	kit_pair_before = log_information;
	kit_duo_run("private region", true, private_region);
	kit_pair_before = log_without_the_option;
	kit_duo_run("private region without the option", true, private_region);
	return 0;
}
