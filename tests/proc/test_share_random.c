/* A program of --share-buffers that allocates, grows, shrinks, purges, protects, forks, runs programs and
 * frees, at random, while its peer writes into regions of it.  Each byte of each block is known, in the
 * parent and in every child.
 *
 *   proc-share_random [OPERATIONS [SEED]] */
#include <malloc.h>
#include <spawn.h>

#include "bytes.h"
#include "pair.h"
#include "buffers.h"

enum {
	SLOTS = 48,
	MOST = 12,     /* pages of a block */
	REGIONS = 2,   /* slots that the peer writes to */
	HIS = 64,      /* where in each page */
	FORK_IN = 500, /* one operation of so many */
};

extern char **environ;

static uint64_t rng;

static uint64_t draw(uint64_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return rng % n;
}

/* ---- the model ---- */

static struct slot {
	uint8_t *at; /* NULL: empty */
	size_t pages;
	bool mapped; /* by mmap() */
	int prot;
	uint64_t seed;
	bool zero[2 * MOST]; /* pages that read zero */
	struct ibv_mr *mr;
} slots[SLOTS];

static uint64_t word_of(const struct slot *s, size_t page, size_t i)
{
	return s->zero[page] ? 0 : s->seed * 0x9e3779b97f4a7c15u + page * 512 + i;
}

/* One word of each page of a region is the peer's. */
static bool is_his(const struct slot *s, size_t i)
{
	return s->mr && i == HIS / 8;
}

static void fill(struct slot *s, size_t from, size_t to)
{
	for (size_t p = from; p < to; p++) {
		uint64_t *w = (uint64_t *)(s->at + p * PAGE);

		s->zero[p] = false;
		for (size_t i = 0; i < PAGE / 8; i++)
			if (!is_his(s, i))
				w[i] = word_of(s, p, i);
	}
}

static void check_pages(const struct slot *s, size_t from, size_t to, const char *when)
{
	for (size_t p = from; p < to; p++) {
		const uint64_t *w = (const uint64_t *)(s->at + p * PAGE);

		for (size_t i = 0; i < PAGE / 8; i++)
			CHECK(is_his(s, i) || w[i] == word_of(s, p, i),
			      "%s: word %zu of page %zu of the block of %zu at %p is 0x%" PRIx64
			      ", not 0x%" PRIx64,
			      when, i, p, s->pages, (void *)s->at, w[i], word_of(s, p, i));
	}
}

static void check_slot(const struct slot *s, const char *when)
{
	if (s->at && s->prot & PROT_READ)
		check_pages(s, 0, s->pages, when);
}

static void check_all(const char *when)
{
	for (int i = 0; i < SLOTS; i++)
		check_slot(&slots[i], when);
}

/* ---- operations ---- */

static void allocate(struct slot *s)
{
	size_t pages = 1 + draw(MOST);
	void *p = NULL;

	*s = (struct slot){.prot = PROT_READ | PROT_WRITE, .seed = draw(UINT32_MAX)};
	s->mapped = draw(2);
	if (s->mapped) {
		s->pages = pages < 16 ? 16 : pages;
		p = mmap(NULL, s->pages * PAGE, s->prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(p != MAP_FAILED);
		s->at = p;
		memset(s->zero, true, sizeof(s->zero));
		check_slot(s, "a new mapping");
	} else {
		s->pages = pages;
		CHECK_EQ(posix_memalign(&p, PAGE << draw(4), pages * PAGE - (pages > 1 ? draw(PAGE) : 0)), 0);
		s->at = p;
		CHECK(malloc_usable_size(p) >= pages * PAGE);
	}
	CHECK(draw(16) || kit_in_buffers(p, s->pages * PAGE) == 1);
	fill(s, 0, s->pages);
}

static void protect(struct slot *s, int prot)
{
	CHECK(!mprotect(s->at, s->pages * PAGE, prot));
	s->prot = prot;
}

static void release(struct slot *s)
{
	check_slot(s, "before it is freed");
	if (s->mapped)
		CHECK(!munmap(s->at, s->pages * PAGE));
	else
		free(s->at);
	s->at = NULL;
}

static void resize(struct slot *s)
{
	size_t pages = 1 + draw(MOST), old = s->pages;

	if (s->mapped) {
		s->at = mremap(s->at, old * PAGE, pages * PAGE, MREMAP_MAYMOVE);
		CHECK(s->at != MAP_FAILED);
	} else {
		s->at = realloc(s->at, pages * PAGE);
		CHECK(s->at);
	}
	s->pages = pages;
	for (size_t p = old; p < pages; p++)
		s->zero[p] = true;
	check_pages(s, 0, s->mapped || pages < old ? pages : old, "resized");
	if (pages > old)
		fill(s, old, pages);
}

static void purge(struct slot *s)
{
	size_t from = draw(s->pages), n = 1 + draw(s->pages - from);

	CHECK(!madvise(s->at + from * PAGE, n * PAGE, MADV_DONTNEED));
	for (size_t p = from; p < from + n; p++)
		s->zero[p] = true;
	check_slot(s, "purged");
	if (draw(2))
		fill(s, from, from + n);
}

/* The middle of a mapping goes, and its end is another one. */
static void cut(struct slot *s)
{
	size_t from = 1 + draw(s->pages - 2);

	if (!s->mapped || s->pages < 3)
		return;
	CHECK(!munmap(s->at + from * PAGE, (s->pages - from) * PAGE));
	s->pages = from;
	check_slot(s, "cut");
}

/* ---- children ---- */

static void change_all(void)
{
	for (int i = 0; i < SLOTS; i++) {
		struct slot *s = &slots[i];

		if (!s->at)
			continue;
		if (!(s->prot & PROT_WRITE))
			protect(s, PROT_READ | PROT_WRITE);
		s->seed += 12345;
		s->mr = NULL; /* and the peer's words are none any more */
		fill(s, 0, s->pages);
	}
}

/* What a child does: it has all of it, and nobody else sees what it changes. */
static void be_child(int depth)
{
	check_all("in a child");
	change_all();
	for (int k = 0; k < 40; k++) {
		struct slot *s = &slots[draw(SLOTS)];

		if (!s->at)
			allocate(s);
		else if (draw(3))
			resize(s);
		else
			release(s);
	}
	if (depth) {
		pid_t pid = kit_fork();

		if (!pid) {
			be_child(depth - 1);
			_exit(0);
		}
		CHECK_EQ(kit_reap(pid), 0);
	}
	check_all("at the end of a child");
}

static void divide(void)
{
	int kind = (int)draw(4);
	pid_t pid;

	if (kind == 0) {
		char *argv[] = {"true", NULL};

		CHECK(!posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ));
	} else {
		pid = kit_fork();
		if (!pid && kind == 1)
			execl("/bin/true", "true", (char *)NULL);
		if (!pid) {
			be_child(kind - 2);
			_exit(0);
		}
	}
	CHECK_EQ(kit_reap(pid), 0);
	check_all("after a child");
}

/* ---- the peer ---- */

/* in: address, pages and R_Key of each region; out: how many it has written. */
static void write_there(struct kit_pair *d)
{
	struct kit_end *e = &d->end[0];
	uint64_t n = 0;

	while (!atomic_load(&d->board->step)) {
		for (int i = 0; i < REGIONS; i++) {
			struct kit_card to = {.addr = (uint64_t)d->board->in[3 * i],
					      .rkey = (uint32_t)d->board->in[3 * i + 2]};
			size_t page = n * 7 % (size_t)d->board->in[3 * i + 1];

			n++;
			memcpy(e->buf, &n, 8);
			CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, n, 0, 8, &to, page * PAGE + HIS));
			CHECK_EQ(kit_wait(e, 20).status, IBV_WC_SUCCESS);
		}
	}
	d->board->out[0] = (int64_t)n;
}

static void begin_writing(struct kit_pair *d)
{
	for (int i = 0; i < REGIONS; i++) {
		struct slot *s = &slots[i];

		if (!s->at)
			allocate(s);
		if (!(s->prot & PROT_WRITE))
			protect(s, PROT_READ | PROT_WRITE);
		for (size_t p = 0; p < s->pages; p++)
			((uint64_t *)(s->at + p * PAGE))[HIS / 8] = 0;
		s->mr = ibv_reg_mr(d->pd, s->at, s->pages * PAGE, KIT_ALL);
		CHECK(s->mr);
		d->board->in[3 * i] = (int64_t)(uintptr_t)s->at;
		d->board->in[3 * i + 1] = (int64_t)s->pages;
		d->board->in[3 * i + 2] = s->mr->rkey;
	}
	atomic_store(&d->board->step, 0);
	kit_duo_begin(d, write_there);
}

static uint64_t end_writing(struct kit_pair *d)
{
	uint64_t n, seen = 0;

	atomic_store(&d->board->step, 1);
	kit_duo_await(d);
	n = (uint64_t)d->board->out[0];
	for (int i = 0; i < REGIONS; i++) {
		struct slot *s = &slots[i];

		check_slot(s, "a region");
		for (size_t p = 0; p < s->pages; p++) {
			uint64_t *w = (uint64_t *)(s->at + p * PAGE) + HIS / 8;

			CHECK(*w <= n, "0x%" PRIx64 " of %" PRIu64, *w, n);
			seen += *w != 0;
			*w = word_of(s, p, HIS / 8);
		}
		CHECK(!ibv_dereg_mr(s->mr));
		s->mr = NULL;
		check_slot(s, "after a region");
	}
	CHECK(seen || !n);
	return n;
}

/* ---- */

static unsigned long operations = 100000;
static uint64_t seed = 1;

static void one(void)
{
	struct slot *s = &slots[draw(SLOTS)];

	if (!draw(FORK_IN)) {
		divide();
		return;
	}
	if (!s->at) {
		allocate(s);
		return;
	}
	if (s->mr) { /* it stays where it is */
		if (draw(2))
			purge(s);
		else
			check_slot(s, "a region in use");
		return;
	}
	if (s->prot != (PROT_READ | PROT_WRITE)) {
		protect(s, PROT_READ | PROT_WRITE);
		check_slot(s, "after protection");
		return;
	}
	switch (draw(8)) {
	case 0:
	case 1:
		release(s);
		break;
	case 2:
	case 3:
		resize(s);
		break;
	case 4:
	case 5:
		purge(s);
		break;
	case 6:
		protect(s, draw(2) ? PROT_NONE : PROT_READ);
		break;
	default:
		cut(s);
	}
}

static void run(struct kit_pair *d)
{
	uint64_t writes = 0;

	rng = seed * 0x9e3779b97f4a7c15u | 1;
	for (unsigned long n = 0; n < operations; n++) {
		if (n % 2000 == 0)
			begin_writing(d);
		one();
		if (n % 2000 == 1999 || n + 1 == operations)
			writes += end_writing(d);
	}
	check_all("at the end");
	for (int i = 0; i < SLOTS; i++)
		if (slots[i].at && slots[i].prot != (PROT_READ | PROT_WRITE))
			protect(&slots[i], PROT_READ | PROT_WRITE);
	for (int i = 0; i < SLOTS; i++)
		if (slots[i].at)
			release(&slots[i]);
	printf("seed %" PRIu64 ": %lu operations, %" PRIu64 " WRITEs of the peer\n", seed, operations,
	       writes);
	CHECK(writes > operations / 100);
}

int main(int argc, char **argv)
{
	kit_buffers_begin(argv);
	if (argc > 1)
		operations = strtoul(argv[1], NULL, 10);
	else if (getenv("VERBENA_SOAK"))
		operations = 1000000;
	if (argc > 2)
		seed = strtoull(argv[2], NULL, 10);
	kit_duo_run("share_random", true, run);
	return 0;
}
