/* Whoever polls the last byte of a message and sees it may use the whole: WRITEs at the target, READs at the
 * initiator, by every way that data can go.  An aligned word of 1, 2, 4 or 8 bytes is never seen half.
 *
 * One observation: the sender posts a message whose bytes are all the same value; a thread that is not the
 * poster polls its last byte, then looks at all of it and says so.
 *
 *     proc-last_byte [OBSERVATIONS]      for each of the ways; 12,000, as far as a second suffices; in make
 * soak 1,000,000 */
#include <sched.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "pair.h"

enum { AREA = 128 << 10, LONGEST = 64 << 10, VALUES = 7, DEPTH = 16, SPARE = AREA };

struct job {	     /* of the observation in hand; the poster writes, then stores `asked` */
	uint8_t *at; /* in the looker's address space */
	uint32_t len;
	uint8_t value;
};

struct board {
	struct kit_card card[2];
	_Atomic int ready[2], over;
	struct job job;
	_Atomic int64_t asked, seen;
};

enum way { RING, PROCESS_VM, SHARED, SAME_PROCESS, WAYS };
static const char *const ways[] = {"ring", "process_vm", "shared memory", "same process"};

static struct board *board;
static int64_t observations = 12000;
static double seconds = 1;
static uint64_t rng;

/* The kernel copies piece by piece, so what holds the last up to 8 aligned bytes must be a piece of its own:
 * looked at here, since an observer needs luck to see it.  Messages are posted one at a time and placed
 * whole. */
ssize_t process_vm_writev(pid_t pid, const struct iovec *here, unsigned long nhere, const struct iovec *there,
			  unsigned long nthere, unsigned long flags)
{
	unsigned long k = 0;

	for (unsigned long i = 0; i < nthere; i++) {
		size_t left = there[i].iov_len, tail = (((uintptr_t)there[i].iov_base + left - 1) & 7) + 1;

		tail = tail < left ? tail : left;
		while (left) {
			CHECK(k < nhere && here[k].iov_len <= left);
			left -= here[k++].iov_len;
		}
		CHECK(here[k - 1].iov_len == tail, "%zu bytes end with a piece of %zu, not %zu",
		      there[i].iov_len, here[k - 1].iov_len, tail);
	}
	return syscall(SYS_process_vm_writev, pid, here, nhere, there, nthere, flags);
}

static void turn(uint32_t *spins)
{
	if (++*spins > 2000)
		sched_yield();
}

/* Words that fit one store are there as a whole or not at all. */
static bool half(const struct job *j, uint64_t v)
{
	uint64_t whole = 0x0101010101010101ull * j->value;

	if (j->len < 8)
		whole &= (1ull << 8 * j->len) - 1;
	return v != whole;
}

/* Polls the last byte; then first of all reads some bytes that a careless copy might bring later, each as
 * fast as can be.  What else there is, is looked at afterwards. */
static void look_at_message(const struct job *j)
{
	enum { SAMPLES = 8 };
	const uint8_t *p = j->at, *last = p + j->len - 1, *from[SAMPLES];
	uint32_t back[SAMPLES] = {1, 8, 17, 64, j->len / 2, j->len - 1, j->len / 3, j->len / 5 * 4},
		 spins = 0;
	uint8_t got[SAMPLES];

	for (int i = 0; i < SAMPLES; i++)
		from[i] = last - (back[i] < j->len ? back[i] : 0);
	while (__atomic_load_n(last, __ATOMIC_ACQUIRE) != j->value)
		turn(&spins);
	for (int i = 0; i < SAMPLES; i++)
		got[i] = __atomic_load_n(from[i], __ATOMIC_RELAXED);
	for (int i = 0; i < SAMPLES; i++)
		CHECK(got[i] == j->value, "%d bytes before the last of %u at %p: %u, not %u",
		      (int)(last - from[i]), j->len, (const void *)p, got[i], j->value);
	for (uint32_t i = 0; i < j->len; i++)
		CHECK(p[i] == j->value, "byte %u of %u at %p: %u, not %u", i, j->len, (const void *)p, p[i],
		      j->value);
}

static bool look(const struct job *j)
{
	const uint8_t *p = j->at;
	uint64_t v;
	uint32_t spins = 0;

	if (j->len > 8 || (j->len & (j->len - 1)) || (uintptr_t)p % j->len) {
		look_at_message(j);
		return true;
	}
	do { /* any byte of it */
		v = j->len == 8	  ? __atomic_load_n((const uint64_t *)(const void *)p, __ATOMIC_ACQUIRE)
		    : j->len == 4 ? __atomic_load_n((const uint32_t *)(const void *)p, __ATOMIC_ACQUIRE)
		    : j->len == 2 ? __atomic_load_n((const uint16_t *)(const void *)p, __ATOMIC_ACQUIRE)
				  : __atomic_load_n(p, __ATOMIC_ACQUIRE);
		turn(&spins);
	} while (!memchr(&v, j->value, j->len));
	return !half(j, v);
}

static _Atomic int64_t halves;

static void *looker(void *arg)
{
	(void)arg;
	for (int64_t n = 1;; n++) {
		uint32_t spins = 0;

		while (atomic_load_explicit(&board->asked, memory_order_acquire) < n) {
			if (atomic_load(&board->over))
				return NULL;
			turn(&spins);
		}
		if (!look(&board->job))
			atomic_fetch_add(&halves, 1);
		memset(board->job.at, 0, board->job.len); /* for the next one that comes here */
		atomic_store_explicit(&board->seen, n, memory_order_release);
	}
}

static uint32_t some_length(void)
{
	switch (kit_below(&rng, 4)) {
	case 0:
		return 1u << kit_below(&rng, 4);
	case 1:
		return 1 + kit_below(&rng, 200);
	case 2:
		return 1 + kit_below(&rng, 5000);
	default:
		return 1 + kit_below(&rng, 1u << (kit_below(&rng, 16) + 1));
	}
}

static uint32_t split(struct kit_end *e, struct ibv_sge *sge, uint8_t *at, uint32_t len, bool reads)
{
	uint32_t n = kit_below(&rng, 2) || (reads && len <= 8)
			 ? 1
			 : 2; /* a word is not to lie in two pieces of a sink */

	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = i == n - 1 ? len : kit_below(&rng, len + 1);

		sge[i] = (struct ibv_sge){(uintptr_t)at, k, e->mr->lkey};
		at += k;
		len -= k;
	}
	return n;
}

/* WRITEs into the other's area; READs from it into one's own. */
static void poster(struct kit_end *e, const struct kit_card *peer, bool reads)
{
	double end = kit_now() + seconds;

	for (int64_t n = 1; n <= observations && kit_now() < end; n++) {
		uint32_t len = some_length(), at = kit_below(&rng, 64) + kit_below(&rng, 1000) * 64,
			 spins = 0;
		uint8_t value = (uint8_t)(1 + n % VALUES), *from = e->buf + (size_t)value * AREA;
		struct ibv_sge sge[2];
		struct ibv_send_wr wr = {.wr_id = (uint64_t)n,
					 .sg_list = sge,
					 .opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
					 .send_flags = IBV_SEND_SIGNALED},
				   *bad;
		struct ibv_wc wc;

		if (len > LONGEST)
			len = LONGEST;
		if (!kit_below(&rng, 3)) /* aligned words */
			at &= ~7u;
		if (at + len > AREA)
			at = 0;
		/* value 0's area is where everything goes, the others are where it comes from */
		wr.num_sge = (int)split(e, sge, reads ? e->buf + at : from + kit_below(&rng, 9), len, reads);
		wr.wr.rdma.remote_addr =
		    peer->addr + (reads ? (uint64_t)value * AREA + kit_below(&rng, 9) : at);
		wr.wr.rdma.rkey = peer->rkey;
		if (!reads && len <= 64 && kit_below(&rng, 2))
			wr.send_flags |= IBV_SEND_INLINE;
		board->job =
		    (struct job){(reads ? e->buf : (uint8_t *)(uintptr_t)peer->addr) + at, len, value};
		atomic_store_explicit(&board->asked, n, memory_order_release);
		for (uint32_t i = kit_below(&rng, 3) ? 0 : kit_below(&rng, 400); i; i--)
			__asm__ volatile("" ::: "memory");
		CHECK(!ibv_post_send(e->qp, &wr, &bad));
		wc = kit_wait(e, 30);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)n, "%s",
		      ibv_wc_status_str(wc.status));
		while (atomic_load_explicit(&board->seen, memory_order_acquire) < n)
			turn(&spins);
	}
	atomic_store(&board->over, 1);
}

/* An end whose memory is as wanted, filled. */
static void end_open(struct kit_end *e, struct ibv_pd *pd, enum way way)
{
	size_t size = (VALUES + 1) * AREA + SPARE;

	kit_end_open(e, pd, DEPTH, 64);
	CHECK(!ibv_dereg_mr(e->mr));
	free(e->buf);
	if (way == SHARED) {
		int fd = memfd_create("area", 0); /* stays open */

		CHECK(fd >= 0 && !ftruncate(fd, (off_t)size));
		e->buf = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	} else {
		e->buf = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	}
	CHECK(e->buf != MAP_FAILED);
	for (int v = 1; v <= VALUES; v++)
		memset(e->buf + (size_t)v * AREA, v, v == VALUES ? AREA + SPARE : AREA);
	e->mr = ibv_reg_mr(pd, e->buf, size, KIT_ALL);
	CHECK(e->mr);
	e->card.rkey = e->mr->rkey;
	e->card.addr = (uintptr_t)e->buf;
}

static void end_close(struct kit_end *e)
{
	size_t size = e->mr->length;
	uint8_t *buf = e->buf;

	e->buf = NULL;
	kit_end_close(e);
	munmap(buf, size);
}

static void one_process(bool reads)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct kit_end a, b;
	pthread_t t;

	end_open(&a, pd, SAME_PROCESS);
	end_open(&b, pd, SAME_PROCESS);
	kit_connect(&a, &b.card);
	kit_connect(&b, &a.card);
	CHECK(!pthread_create(&t, NULL, looker, NULL));
	poster(&a, &b.card, reads);
	pthread_join(t, NULL);
	end_close(&a);
	end_close(&b);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

static void end_of(int me, enum way way, bool reads)
{
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct kit_end e;
	struct ibv_wc wc;
	pthread_t t;

	setenv("VERBENA_DIRECT", way == RING ? "off" : "on", 1);
	rng = (uint64_t)getpid() << 20 ^ (uint64_t)clock();
	if (way == SAME_PROCESS) {
		one_process(reads);
	} else {
		ctx = kit_open();
		pd = ibv_alloc_pd(ctx);
		CHECK(pd);
		end_open(&e, pd, way);
		board->card[me] = e.card;
		atomic_store(&board->ready[me], 1);
		kit_until(&board->ready[!me], 1);
		kit_connect(&e, &board->card[!me]);
		if (me == !reads)
			CHECK(!pthread_create(&t, NULL, looker, NULL));
		atomic_store(&board->ready[me], 2);
		kit_until(&board->ready[!me], 2);
		if (me == 0)
			poster(&e, &board->card[1], reads);
		while (!atomic_load(&board->over)) /* for the ring: requests are answered */
			if (way != RING)
				kit_nap(1);
			else if (ibv_poll_cq(e.cq, 1, &wc) == 0)
				sched_yield();
		if (me == !reads)
			pthread_join(t, NULL);
		end_close(&e);
		CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	}
	board->card[me].addr = (uint64_t)atomic_load(&halves);
	exit(0);
}

static void run(enum way way, bool reads)
{
	int ends = way == SAME_PROCESS ? 1 : 2;
	uint64_t n = 0;
	pid_t pid[2];

	memset(board, 0, sizeof *board);
	for (int me = 0; me < ends; me++) {
		pid[me] = kit_fork();
		if (!pid[me])
			end_of(me, way, reads);
	}
	for (int me = 0; me < ends; me++) {
		CHECK(kit_reap(pid[me]) == 0, "%s, %s: end %d", ways[way], reads ? "READs" : "WRITEs", me);
		n += board->card[me].addr;
	}
	printf("%s, %s: %" PRId64 " messages whole, %" PRIu64 " words half\n", ways[way],
	       reads ? "READs" : "WRITEs", atomic_load(&board->seen), n);
	CHECK(!n || way == PROCESS_VM, "words are seen half");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	if (argc > 1 || getenv("VERBENA_SOAK"))
		observations = argc > 1 ? atoll(argv[1]) : 1000000, seconds = 3600;
	board = kit_shared(sizeof *board);
	for (int way = 0; way < WAYS; way++)
		for (int reads = 0; reads < 2; reads++)
			run((enum way)way, reads);
	return 0;
}
