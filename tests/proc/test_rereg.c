/* ibv_rereg_mr() under a peer's traffic: each access goes by the old properties or by the new ones, what is
 * permitted throughout never fails, and once the call has returned nothing goes by the old ones: not a byte
 * of the old memory is touched.  Between two processes, by direct placement and by the ring.
 *
 *     proc-rereg [SECONDS]       for each kind of traffic; in make soak 100 */
#include "bytes.h"
#include "pair.h"

enum { SIZE = KIT_DUO_SIZE, WINDOW = 8, PATTERN = 0x5a };
enum {
	LW = IBV_ACCESS_LOCAL_WRITE,
	RR = IBV_ACCESS_REMOTE_READ,
	RW = IBV_ACCESS_REMOTE_WRITE,
	RA = IBV_ACCESS_REMOTE_ATOMIC
};
enum {
	TRANSLATION = IBV_REREG_MR_CHANGE_TRANSLATION,
	PD = IBV_REREG_MR_CHANGE_PD,
	ACCESS = IBV_REREG_MR_CHANGE_ACCESS
};

static uint64_t rng = 88172645463325252ull;
static double seconds = 0.4;

static void some_time(uint32_t max)
{
	for (uint32_t i = kit_below(&rng, max); i; i--)
		__asm__ volatile("" ::: "memory");
}

/* --- the target's: two pieces of memory and one region, addressed from 0 on */

static uint8_t *piece[2];
static int file[2];
static struct ibv_mr *mr;
static struct ibv_pd *other_pd;

/* in: whether the memory is such that peers can open it.  out: R_Key */
static void set_up(struct kit_pair *d)
{
	for (int i = 0; i < 2; i++) {
		file[i] = -1;
		piece[i] = d->board->in[0] ? kit_mapped(SIZE, &file[i]) : aligned_alloc(PAGE, SIZE);
		CHECK(piece[i]);
		memset(piece[i], 0, SIZE);
	}
	mr = ibv_reg_mr_iova(d->pd, piece[0], SIZE, 0, LW | RR | RW | RA);
	other_pd = ibv_alloc_pd(d->ctx);
	CHECK(mr && other_pd);
	d->board->out[0] = mr->rkey;
}

static void tear_down(struct kit_pair *d)
{
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(other_pd));
	for (int i = 0; i < 2; i++) {
		if (file[i] >= 0) {
			munmap(piece[i], SIZE);
			close(file[i]);
		} else {
			free(piece[i]);
		}
	}
	(void)d;
}

/* To the other piece; returns the one that it was. */
static uint8_t *swap_pieces(void)
{
	int now = mr->addr == piece[1];
	uint32_t lkey = mr->lkey, rkey = mr->rkey;

	CHECK(!ibv_rereg_mr(mr, TRANSLATION, NULL, piece[!now], SIZE, 0));
	CHECK(mr->addr == piece[!now] && mr->length == SIZE && mr->lkey == lkey && mr->rkey == rkey);
	return piece[now];
}

/* At once, beginning anywhere: where a copy that goes on would be. */
static void take(uint8_t *p)
{
	size_t k = kit_below(&rng, SIZE);

	memset(p + k, PATTERN, SIZE - k);
	memset(p, PATTERN, k);
}

static void intact(const uint8_t *p)
{
	for (size_t i = 0; i < SIZE; i++)
		CHECK(p[i] == PATTERN, "byte %zu was touched after the region had moved", i);
}

/* in: milliseconds, and whether the peer writes.  out: how often, and how often the peer was seen at it */
static void move_to_and_fro(struct kit_pair *d)
{
	double end = kit_now() + (double)d->board->in[0] / 1000;
	bool writes = d->board->in[1];
	int64_t rounds = 0, seen = 0;

	/* on a busy machine the peer may take its time */
	for (; kit_now() < end || rounds < 3 || (writes && !seen && kit_now() < end + 30); rounds++) {
		uint8_t *old = swap_pieces();

		seen += old[0] != PATTERN;
		take(old);
		some_time(kit_below(&rng, 4) ? 20000 : 200000);
		intact(old);
	}
	d->board->out[0] = rounds;
	d->board->out[1] = seen;
}

/* The same where nobody writes: each piece has its own contents. */
static void move_contents(struct kit_pair *d)
{
	double end = kit_now() + (double)d->board->in[0] / 1000;
	int64_t rounds = 0;

	for (; kit_now() < end || rounds < 3; rounds++) {
		swap_pieces();
		some_time(kit_below(&rng, 4) ? 2000 : 100000);
	}
	d->board->out[0] = rounds;
}

static void fill_pieces(struct kit_pair *d)
{
	memset(piece[0], 0xaa, SIZE);
	memset(piece[1], 0xbb, SIZE);
	(void)d;
}

static void clear_words(struct kit_pair *d)
{
	memset(piece[0], 0, 8);
	memset(piece[1], 0, 8);
	(void)d;
}

/* out: the sum of both pieces' first words */
static void sum_words(struct kit_pair *d)
{
	uint64_t a, b;

	memcpy(&a, piece[0], 8);
	memcpy(&b, piece[1], 8);
	d->board->out[0] = (int64_t)(a + b);
}

/* After a while of traffic.  in: flags, access; the other domain if it is that. */
static void change_soon(struct kit_pair *d)
{
	int flags = (int)d->board->in[0], access = (int)d->board->in[1];
	struct timespec t = {0, 1000000 + kit_below(&rng, 3000000)};

	nanosleep(&t, NULL);
	CHECK(!ibv_rereg_mr(mr, flags, flags & PD ? other_pd : NULL, NULL, 0, access));
	take(mr->addr);
	some_time(200000);
	intact(mr->addr);
	nanosleep(&t, NULL);
	intact(mr->addr);
}

static void change_back(struct kit_pair *d)
{
	CHECK(!ibv_rereg_mr(mr, PD | ACCESS, d->pd, NULL, 0, LW | RR | RW | RA | IBV_ACCESS_ZERO_BASED));
	CHECK(mr->pd == d->pd);
}

/* --- the initiator's */

static uint32_t begin(struct kit_pair *d, bool shared)
{
	d->board->in[0] = shared;
	kit_duo_there(d, set_up);
	return (uint32_t)d->board->out[0];
}

static bool still(struct kit_pair *d)
{
	return atomic_load(&d->board->done) < atomic_load(&d->board->asked);
}

static void post(struct kit_pair *d, enum ibv_wr_opcode op, uint32_t len, uint32_t rkey)
{
	struct kit_card to = {.rkey = rkey};

	CHECK(!kit_post(&d->end[0], op, 5, 0, len, &to, 0));
}

static enum ibv_wc_status next(struct kit_pair *d)
{
	return kit_wait(&d->end[0], 20).status;
}

/* One request after another, WINDOW at a time, as long as the target is at it; all succeed. */
static uint64_t traffic(struct kit_pair *d, enum ibv_wr_opcode op, uint32_t rkey)
{
	uint64_t done = 0;
	int posted = 0;

	while (still(d) || posted) {
		while (posted < WINDOW && still(d)) {
			post(d, op, 1 + kit_below(&rng, kit_below(&rng, 3) ? 300 : SIZE), rkey);
			posted++;
		}
		if (!posted)
			break;
		CHECK(next(d) == IBV_WC_SUCCESS);
		posted--;
		done++;
	}
	return done;
}

static void translations(struct kit_pair *d, bool shared)
{
	uint32_t rkey = begin(d, shared);
	uint64_t n;

	memset(d->end[0].buf, 0xc3, SIZE);
	d->board->in[0] = (int64_t)(seconds * 1000);
	d->board->in[1] = true;
	kit_duo_begin(d, move_to_and_fro);
	n = traffic(d, IBV_WR_RDMA_WRITE, rkey);
	printf("  %" PRId64 " changes under %" PRIu64 " WRITEs, %" PRId64 " of them with a WRITE between\n",
	       d->board->out[0], n, d->board->out[1]);
	CHECK(d->board->out[1] > 0);

	d->board->in[0] = (int64_t)(seconds * 500);
	d->board->in[1] = false;
	kit_duo_begin(d, move_to_and_fro);
	traffic(d, IBV_WR_RDMA_READ, rkey);

	/* what is read is of one piece or the other */
	kit_duo_there(d, fill_pieces);
	d->board->in[0] = (int64_t)(seconds * 1000);
	kit_duo_begin(d, move_contents);
	for (n = 0; still(d) || n < 10; n++) {
		uint32_t len = 1 + kit_below(&rng, 4096);

		post(d, IBV_WR_RDMA_READ, len, rkey);
		CHECK(next(d) == IBV_WC_SUCCESS);
		CHECK(d->end[0].buf[0] == 0xaa || d->end[0].buf[0] == 0xbb);
		for (uint32_t i = 1; i < len; i++)
			CHECK(d->end[0].buf[i] == d->end[0].buf[0], "%u bytes of both pieces", len);
	}

	/* no atomic is lost, none is carried out twice */
	kit_duo_there(d, clear_words);
	d->board->in[0] = (int64_t)(seconds * 1000);
	kit_duo_begin(d, move_contents);
	for (n = 0; still(d); n++) {
		post(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, rkey);
		CHECK(next(d) == IBV_WC_SUCCESS);
	}
	kit_duo_there(d, sum_words);
	CHECK((uint64_t)d->board->out[0] == n, "%" PRId64 " of %" PRIu64 " atomics", d->board->out[0], n);
	kit_duo_there(d, tear_down);
}

static void translations_under_traffic(struct kit_pair *d)
{
	translations(d, false);
}

static void translations_of_shared_memory(struct kit_pair *d)
{
	translations(d, true);
}

/* WRITEs until one fails; the memory's owner looks whether it is left alone. */
static void change_under_traffic(struct kit_pair *d, int flags, int access, uint32_t rkey)
{
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	int posted = 0;

	d->board->in[0] = flags;
	d->board->in[1] = access;
	kit_duo_begin(d, change_soon);
	while (status == IBV_WC_SUCCESS) {
		for (; posted < WINDOW; posted++)
			post(d, IBV_WR_RDMA_WRITE, 1 + kit_below(&rng, SIZE), rkey);
		status = next(d);
		posted--;
	}
	CHECK_EQ(status, IBV_WC_REM_ACCESS_ERR);
	for (; posted; posted--)
		CHECK(next(d) == IBV_WC_WR_FLUSH_ERR);
	kit_until(&d->board->done, atomic_load(&d->board->asked));
	kit_duo_fresh(d);
}

static void domains_under_traffic(struct kit_pair *d)
{
	uint32_t rkey = begin(d, false);

	for (int i = 0; i < 8; i++) {
		change_under_traffic(d, PD, 0, rkey);
		CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, 8, 0, rkey) == IBV_WC_REM_ACCESS_ERR);
		kit_duo_there(d, change_back);
		CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, 8, 0, rkey) == IBV_WC_SUCCESS);
		CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 8, 0, rkey) == IBV_WC_SUCCESS);
	}
	kit_duo_there(d, tear_down);
}

static void access_under_traffic(struct kit_pair *d)
{
	uint32_t rkey = begin(d, false);

	for (int i = 0; i < 8; i++) {
		change_under_traffic(d, ACCESS, LW | RR | IBV_ACCESS_ZERO_BASED, rkey);
		CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, 8, 0, rkey) == IBV_WC_SUCCESS);
		CHECK(kit_duo_do(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, rkey) == IBV_WC_REM_ACCESS_ERR);
		CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 8, 0, rkey) == IBV_WC_REM_ACCESS_ERR);
		kit_duo_there(d, change_back);
		CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 8, 0, rkey) == IBV_WC_SUCCESS);
	}
	kit_duo_there(d, tear_down);
}

/* in: the byte; out: whether the memory's pieces begin with it */
static void look(struct kit_pair *d)
{
	for (int i = 0; i < 2; i++)
		d->board->out[i] = piece[i][0] == (uint8_t)d->board->in[0];
}

static void swap_once(struct kit_pair *d)
{
	(void)d;
	swap_pieces();
}

/* A peer that has mapped the memory of the region lets go of it, and maps the next. */
static void a_mapping_of_peers_goes_along(struct kit_pair *d)
{
	uint32_t rkey = begin(d, true);
	int at = 0;

	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 30; i++) {
			d->end[0].buf[0] = (uint8_t)(100 + round);
			post(d, IBV_WR_RDMA_WRITE, 1, rkey);
			CHECK(next(d) == IBV_WC_SUCCESS);
			if (i % 10 == 0) {
				d->board->in[0] = 100 + round;
				kit_duo_there(d, look);
				CHECK(d->board->out[at] && !d->board->out[!at], "round %d, WRITE %d", round,
				      i);
			}
		}
		kit_duo_there(d, swap_once);
		at = !at;
	}
	kit_duo_there(d, tear_down);
}

static void post_recv(struct kit_pair *d)
{
	struct ibv_sge sge = {0, 64, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1}, *bad;

	CHECK(!ibv_post_recv(d->end[0].qp, &wr, &bad));
}

/* Keys are looked at when they are used, not when a request is posted. */
static void a_receive_that_was_posted_before(struct kit_pair *d)
{
	begin(d, false);
	kit_duo_there(d, post_recv);
	kit_duo_there(d, swap_once);
	memset(d->end[0].buf, 0x61, 64);
	CHECK(kit_duo_do(d, IBV_WR_SEND, 64, 0, 0) == IBV_WC_SUCCESS);
	d->board->in[0] = 0x61;
	kit_duo_there(d, look);
	CHECK(!d->board->out[0] && d->board->out[1]);
	kit_duo_there(d, tear_down);
}

static uint8_t *by_address[2];

/* out: R_Key, both addresses */
static void set_up_by_address(struct kit_pair *d)
{
	for (int i = 0; i < 2; i++) {
		by_address[i] = calloc(1, SIZE);
		CHECK(by_address[i]);
		d->board->out[1 + i] = (int64_t)(uintptr_t)by_address[i];
	}
	mr = ibv_reg_mr(d->pd, by_address[0], SIZE, LW | RR | RW);
	CHECK(mr);
	d->board->out[0] = mr->rkey;
}

static void move_by_address(struct kit_pair *d)
{
	CHECK(!ibv_rereg_mr(mr, TRANSLATION, NULL, by_address[1] + 8, 100, 0));
	(void)d;
}

static void end_by_address(struct kit_pair *d)
{
	CHECK(!ibv_dereg_mr(mr));
	free(by_address[0]);
	free(by_address[1]);
	(void)d;
}

/* Addresses and length are the new ones. */
static void addresses_are_the_new_ones(struct kit_pair *d)
{
	uint64_t a, b;
	uint32_t rkey;

	kit_duo_there(d, set_up_by_address);
	rkey = (uint32_t)d->board->out[0];
	a = (uint64_t)d->board->out[1];
	b = (uint64_t)d->board->out[2];
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 8, a, rkey) == IBV_WC_SUCCESS);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 8, b + 8, rkey) == IBV_WC_REM_ACCESS_ERR);
	kit_duo_there(d, move_by_address);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 8, a, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 100, b + 8, rkey) == IBV_WC_SUCCESS);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 101, b + 8, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 8, b, rkey) == IBV_WC_REM_ACCESS_ERR);
	kit_duo_there(d, end_by_address);
}

int main(int argc, char **argv)
{
	if (argc > 1 || getenv("VERBENA_SOAK"))
		seconds = argc > 1 ? atof(argv[1]) : 30;
	KIT_DUO_BOTH(translations_under_traffic);
	kit_duo_run("translations_of_shared_memory", true, translations_of_shared_memory);
	KIT_DUO_BOTH(domains_under_traffic);
	KIT_DUO_BOTH(access_under_traffic);
	KIT_DUO_BOTH(a_mapping_of_peers_goes_along);
	KIT_DUO_BOTH(a_receive_that_was_posted_before);
	KIT_DUO_BOTH(addresses_are_the_new_ones);
	return 0;
}
