/* What ibv_reg_mr() promises, seen by traffic: each access flag permits what it says and nothing else, keys
 * address memory as documented, the first and the last byte belong to the region and their neighbours do not,
 * and after ibv_dereg_mr() nothing does.  Between two processes, by direct placement and by the ring. */
#include "bytes.h"
#include "pair.h"
#include "profiles.h"

enum { PAGES = 3, AT = PAGE - 24, LEN = PAGE + 48 }; /* it begins and ends within pages */
enum {
	LW = IBV_ACCESS_LOCAL_WRITE,
	RR = IBV_ACCESS_REMOTE_READ,
	RW = IBV_ACCESS_REMOTE_WRITE,
	RA = IBV_ACCESS_REMOTE_ATOMIC
};

/* --- what the target does */

static uint8_t *mem;
static struct ibv_mr *mr;

/* in: access, hca_va (-1: the address itself).  out: errno, R_Key, address of the region's first byte */
static void make_region(struct kit_pair *d)
{
	int64_t *in = d->board->in, *out = d->board->out;

	if (!mem) {
		mem = aligned_alloc(PAGE, PAGES * PAGE);
		CHECK(mem);
		memset(mem, 0, PAGES * PAGE);
	}
	errno = 0;
	mr = in[1] == -1 ? ibv_reg_mr(d->pd, mem + AT, LEN, (int)in[0])
			 : ibv_reg_mr_iova(d->pd, mem + AT, LEN, (uint64_t)in[1], (int)in[0]);
	out[0] = mr ? 0 : errno;
	if (!mr)
		return;
	CHECK(mr->addr == mem + AT && mr->length == LEN && mr->pd == d->pd && mr->context == d->ctx);
	CHECK(mr->lkey != mr->rkey);
	out[1] = mr->rkey;
	out[2] = (int64_t)(uintptr_t)mr->addr;
}

static void drop_region(struct kit_pair *d)
{
	d->board->out[0] = ibv_dereg_mr(mr);
}

/* in: offset in the memory, value. */
static void set_byte(struct kit_pair *d)
{
	mem[d->board->in[0]] = (uint8_t)d->board->in[1];
}

static void get_byte(struct kit_pair *d)
{
	d->board->out[0] = mem[d->board->in[0]];
}

/* in: length */
static void post_recv(struct kit_pair *d)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr, (uint32_t)d->board->in[0], mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1}, *bad;

	CHECK(!ibv_post_recv(d->end[0].qp, &wr, &bad));
}

/* out: status */
static void wait_recv(struct kit_pair *d)
{
	struct ibv_wc wc = kit_wait(&d->end[0], 20);

	CHECK(wc.wr_id == 7);
	d->board->out[0] = wc.status;
}

/* --- what the initiator asks for */

static uint32_t region(struct kit_pair *d, int access, int64_t hca_va, uint64_t *base)
{
	d->board->in[0] = access;
	d->board->in[1] = hca_va;
	kit_duo_there(d, make_region);
	CHECK(!d->board->out[0], "access 0x%x: errno %d", access, (int)d->board->out[0]);
	*base = hca_va == -1 ? (uint64_t)d->board->out[2] : (uint64_t)hca_va;
	return (uint32_t)d->board->out[1];
}

static void no_region(struct kit_pair *d)
{
	kit_duo_there(d, drop_region);
	CHECK(!d->board->out[0]);
}

static uint8_t byte_there(struct kit_pair *d, size_t at)
{
	d->board->in[0] = (int64_t)at;
	kit_duo_there(d, get_byte);
	return (uint8_t)d->board->out[0];
}

static void byte_is(struct kit_pair *d, size_t at, uint8_t value)
{
	d->board->in[0] = (int64_t)at;
	d->board->in[1] = value;
	kit_duo_there(d, set_byte);
}

static enum ibv_wc_status expect(bool permitted)
{
	return permitted ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR;
}

static enum ibv_wc_status sent_to(struct kit_pair *d, uint32_t len)
{
	d->board->in[0] = len;
	kit_duo_there(d, post_recv);
	return kit_duo_do(d, IBV_WR_SEND, len, 0, 0);
}

/* Rule 42: every combination of the five flags that matter to traffic. */
static void every_flag_permits_what_it_says(struct kit_pair *d)
{
	static const int flags[] = {LW, RW, RR, RA, IBV_ACCESS_MW_BIND};
	uint64_t base;

	for (int set = 0; set < 32; set++) {
		uint32_t rkey;
		int access = 0;

		for (int k = 0; k < 5; k++)
			access |= set >> k & 1 ? flags[k] : 0;
		if (access & (RW | RA) && !(access & LW)) {
			d->board->in[0] = access;
			d->board->in[1] = -1;
			kit_duo_there(d, make_region);
			CHECK(d->board->out[0] == EINVAL, "access 0x%x", access);
			continue;
		}
		rkey = region(d, access, -1, &base);
		CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 8, base, rkey) == expect(access & RW), "WRITE, 0x%x",
		      access);
		CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, 8, base, rkey) == expect(access & RR), "READ, 0x%x",
		      access);
		CHECK(kit_duo_do(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, base, rkey) == expect(access & RA),
		      "atomic, 0x%x", access);
		CHECK(sent_to(d, 8) == (access & LW ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR), "SEND, 0x%x",
		      access);
		if (access & LW)
			kit_duo_there(d, wait_recv);
		no_region(d);
	}
}

/* A region of the initiator's own in each local role: which need local write. */
static void local_read_is_always_permitted(struct kit_pair *d)
{
	uint64_t base, addr;
	uint32_t rkey = region(d, LW | RW | RR | RA, -1, &base), gone;

	for (int access = 0; access <= LW; access += LW) {
		enum ibv_wc_status sink = access ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
		uint8_t *buf = calloc(1, 64);
		struct ibv_mr *own;

		CHECK(buf);
		own = ibv_reg_mr(d->pd, buf, 64, access);
		CHECK(own);
		addr = (uintptr_t)buf;
		d->board->in[0] = 64;
		kit_duo_there(d, post_recv);
		CHECK(kit_duo_try(d, IBV_WR_SEND, addr, 64, own->lkey, 0, 0) == IBV_WC_SUCCESS);
		kit_duo_there(d, wait_recv);
		CHECK(!d->board->out[0]);
		CHECK(kit_duo_try(d, IBV_WR_RDMA_WRITE, addr, 64, own->lkey, base, rkey) == IBV_WC_SUCCESS);
		CHECK(kit_duo_try(d, IBV_WR_RDMA_READ, addr, 64, own->lkey, base, rkey) == sink);
		CHECK(kit_duo_try(d, IBV_WR_ATOMIC_CMP_AND_SWP, addr, 8, own->lkey, base, rkey) == sink);
		/* the two keys are different things (DESIGN, Memory) */
		CHECK(kit_duo_try(d, IBV_WR_SEND, addr, 64, own->rkey, 0, 0) == IBV_WC_LOC_PROT_ERR);
		gone = own->lkey;
		CHECK(!ibv_dereg_mr(own));
		CHECK(kit_duo_try(d, IBV_WR_RDMA_WRITE, addr, 64, gone, base, rkey) == IBV_WC_LOC_PROT_ERR);
		free(buf);
	}
	no_region(d);
}

/* The region's first byte is at `base`; the initiator's first byte is what is written. */
static void bounds(struct kit_pair *d, uint64_t base, uint32_t rkey)
{
	/* its first and its last byte */
	byte_is(d, AT - 1, 0), byte_is(d, AT, 0), byte_is(d, AT + LEN - 1, 0), byte_is(d, AT + LEN, 0);
	memset(d->end[0].buf, 0x77, LEN + 1);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 1, base, rkey) == IBV_WC_SUCCESS);
	CHECK(byte_there(d, AT) == 0x77);
	memset(d->end[0].buf, 0x77, LEN + 1);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 1, base + LEN - 1, rkey) == IBV_WC_SUCCESS);
	CHECK(byte_there(d, AT + LEN - 1) == 0x77);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, LEN, base, rkey) == IBV_WC_SUCCESS);
	CHECK(d->end[0].buf[0] == 0x77 && d->end[0].buf[LEN - 1] == 0x77);
	/* one before, one behind, one too many */
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 1, base - 1, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 1, base + LEN, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, LEN + 1, base, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, 2, base + LEN - 1, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(byte_there(d, AT - 1) == 0 && byte_there(d, AT + LEN) == 0);
	/* length 0 names no memory (rule 18) */
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 0, base + LEN + 1, rkey) == IBV_WC_SUCCESS);
}

static void first_and_last_byte(struct kit_pair *d)
{
	uint64_t base;
	uint32_t rkey = region(d, LW | RW | RR, -1, &base);

	bounds(d, base, rkey);
	no_region(d);
}

/* Rule 43: offset = addr + (iova - hca_va); 0 and IBV_ACCESS_ZERO_BASED are the same. */
static void hca_va_is_where_keys_begin(struct kit_pair *d)
{
	static const int64_t vas[] = {0x700000fe8, 0x123457, PAGE, INT64_MIN /* 2^63 */};
	uint64_t base;
	uint32_t rkey;

	for (unsigned i = 0; i < sizeof vas / sizeof vas[0]; i++) {
		rkey = region(d, LW | RW | RR | RA, vas[i], &base);
		bounds(d, base, rkey);
		no_region(d);
	}
	rkey = region(d, LW | RW | RR, 0, &base);
	CHECK(base == 0);
	bounds(d, 0, rkey);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 1, (uint64_t)d->board->out[2], rkey) == IBV_WC_REM_ACCESS_ERR);
	no_region(d);
	rkey = region(d, LW | RW | RR | IBV_ACCESS_ZERO_BASED, -1, &base);
	bounds(d, 0, rkey);
	no_region(d);
	rkey = region(d, LW | RW | RR | IBV_ACCESS_ZERO_BASED, 0x5000, &base); /* the flag wins */
	bounds(d, 0, rkey);
	no_region(d);
}

/* The L_Key addresses memory in the same way. */
static void hca_va_for_local_keys(struct kit_pair *d)
{
	static const uint64_t vas[] = {0, 0x10003, 1ull << 63};
	uint64_t base;
	uint32_t rkey = region(d, LW | RW | RR, -1, &base);

	for (unsigned i = 0; i < 3; i++) {
		struct ibv_mr *own = ibv_reg_mr_iova(d->pd, d->end[0].buf + 16, 4096, vas[i], LW);

		CHECK(own);
		memset(d->end[0].buf, 0, 8192);
		d->end[0].buf[16 + 100] = 0x42;
		CHECK(kit_duo_try(d, IBV_WR_RDMA_WRITE, vas[i] + 100, 1, own->lkey, base, rkey) ==
		      IBV_WC_SUCCESS);
		CHECK(byte_there(d, AT) == 0x42);
		CHECK(kit_duo_try(d, IBV_WR_RDMA_READ, vas[i] + 4095, 1, own->lkey, base, rkey) ==
		      IBV_WC_SUCCESS);
		CHECK(d->end[0].buf[16 + 4095] == 0x42 && !d->end[0].buf[16 + 4096]);
		CHECK(!ibv_dereg_mr(own));
	}
	no_region(d);
}

/* Deregistered: neither key leads anywhere, and a region made afterwards has others. */
static void deregistered_is_gone(struct kit_pair *d)
{
	uint64_t base;
	uint32_t rkey = region(d, LW | RW | RR | RA, -1, &base), next;

	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 8, base, rkey) == IBV_WC_SUCCESS);
	no_region(d);
	byte_is(d, AT, 0x11);
	memset(d->end[0].buf, 0x99, 64);
	next = region(d, LW | RW | RR | RA, -1, &base);
	CHECK(next != rkey);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 8, base, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, 8, base, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(kit_duo_do(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, base, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(byte_there(d, AT) == 0x11);
	no_region(d);
}

/* In another domain than that of the target's QP. */
static void make_region_elsewhere(struct kit_pair *d)
{
	struct kit_pair elsewhere = *d;

	elsewhere.pd = ibv_alloc_pd(d->ctx);
	CHECK(elsewhere.pd);
	make_region(&elsewhere);
}

static void drop_region_elsewhere(struct kit_pair *d)
{
	struct ibv_pd *pd = mr->pd;

	drop_region(d);
	CHECK(!ibv_dealloc_pd(pd));
}

/* A region is its domain's: to a QP of another one neither key leads anywhere, whatever the region permits.
 */
static void a_region_belongs_to_its_domain(struct kit_pair *d)
{
	struct ibv_pd *pd = ibv_alloc_pd(d->ctx);
	uint64_t base, addr;
	uint32_t rkey;

	CHECK(pd);
	d->board->in[0] = LW | RW | RR | RA;
	d->board->in[1] = 0; /* keys begin there: the same for every region */
	kit_duo_there(d, make_region_elsewhere);
	CHECK(!d->board->out[0]);
	base = 0;
	rkey = (uint32_t)d->board->out[1];
	byte_is(d, AT, 0x11);
	memset(d->end[0].buf, 0x99, 8);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 8, base, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, 8, base, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(kit_duo_do(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, base, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(sent_to(d, 8) == IBV_WC_REM_OP_ERR);
	CHECK(byte_there(d, AT) == 0x11);
	kit_duo_there(d, drop_region_elsewhere);
	/* the initiator's own, in each local role */
	rkey = region(d, LW | RW | RR | RA, -1, &base);
	for (int other = 0; other < 2; other++) {
		enum ibv_wc_status expected = other ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS;
		uint8_t *buf = calloc(1, 64);
		struct ibv_mr *own;

		CHECK(buf);
		addr = (uintptr_t)buf;
		own = ibv_reg_mr(other ? pd : d->pd, buf, 64, LW);
		CHECK(own && own->pd == (other ? pd : d->pd));
		CHECK(kit_duo_try(d, IBV_WR_RDMA_WRITE, addr, 64, own->lkey, base, rkey) == expected);
		CHECK(kit_duo_try(d, IBV_WR_RDMA_READ, addr, 64, own->lkey, base, rkey) == expected);
		CHECK(kit_duo_try(d, IBV_WR_ATOMIC_CMP_AND_SWP, addr, 8, own->lkey, base, rkey) == expected);
		CHECK(!ibv_dereg_mr(own));
		free(buf);
	}
	no_region(d);
	CHECK(!ibv_dealloc_pd(pd));
}

/* What rdma_reg_msgs(), rdma_reg_read() and rdma_reg_write() register, in terms of verbs (semantics.md, 4).
 */
static void rights_of_the_connection_managers_calls(struct kit_pair *d)
{
	uint64_t base;
	uint32_t rkey;
	struct ibv_mr *msgs;

	/* msgs: SEND, RECV, the target of an RDMA READ and the source of an RDMA WRITE, as the page has it */
	rkey = region(d, LW, -1, &base);
	CHECK(sent_to(d, 64) == IBV_WC_SUCCESS);
	kit_duo_there(d, wait_recv);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, 8, base, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 8, base, rkey) == IBV_WC_REM_ACCESS_ERR);
	no_region(d);
	rkey = region(d, LW | RR, -1, &base);
	msgs = ibv_reg_mr(d->pd, d->end[0].buf, 4096, LW);
	CHECK(msgs);
	CHECK(kit_duo_try(d, IBV_WR_RDMA_READ, (uintptr_t)d->end[0].buf, 64, msgs->lkey, base, rkey) ==
	      IBV_WC_SUCCESS);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 8, base, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_dereg_mr(msgs));
	no_region(d);
	rkey = region(d, LW | RW, -1, &base);
	msgs = ibv_reg_mr(d->pd, d->end[0].buf, 4096, LW);
	CHECK(msgs);
	CHECK(kit_duo_try(d, IBV_WR_RDMA_WRITE, (uintptr_t)d->end[0].buf, 64, msgs->lkey, base, rkey) ==
	      IBV_WC_SUCCESS);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, 8, base, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_dereg_mr(msgs));
	no_region(d);
}

/* RELAXED_ORDERING and the rest of the optional range change nothing. */
static void optional_flags_are_accepted(struct kit_pair *d)
{
	uint64_t base;
	uint32_t rkey = region(d, LW | RW | RR | RA | (int)IBV_ACCESS_OPTIONAL_RANGE, -1, &base);

	bounds(d, base, rkey);
	no_region(d);
	rkey = region(d, LW | RW | RR | IBV_ACCESS_RELAXED_ORDERING, -1, &base);
	bounds(d, base, rkey);
	no_region(d);
}

/* What profiles refuse: iova at another offset of the page than the address, and on-demand regions. */
static void profiles(void)
{
	for (size_t i = 0; kit_profile(i); i++) {
		const struct vb_profile *row = kit_profile(i);
		struct ibv_device_attr_ex attr;
		struct ibv_context *ctx;
		struct ibv_mr *same, *moved, *demand;
		struct ibv_pd *pd;
		pid_t pid = kit_fork();

		if (pid) {
			CHECK(!kit_reap(pid), "%s", row->name);
			continue;
		}
		setenv("VERBENA_PROFILE", row->name, 1);
		ctx = kit_open();
		pd = ibv_alloc_pd(ctx);
		mem = aligned_alloc(PAGE, PAGE);
		CHECK(pd && mem);
		same = ibv_reg_mr_iova(pd, mem + 8, 100, 0x70008, LW);
		CHECK(same && !ibv_dereg_mr(same));
		errno = 0;
		moved = ibv_reg_mr_iova(pd, mem + 8, 100, 0x70009, LW);
		CHECK(!moved == row->page_offset && (moved || errno == EINVAL), "%s", row->name);
		CHECK(!moved || !ibv_dereg_mr(moved));
		errno = 0;
		demand = ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND);
		CHECK(!!demand == row->on_demand && (demand || errno == EOPNOTSUPP), "%s", row->name);
		CHECK(!demand || !ibv_dereg_mr(demand));
		CHECK(!ibv_query_device_ex(ctx, NULL, &attr));
		CHECK(!attr.odp_caps.general_caps != row->on_demand);
		CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
		exit(0);
	}
	printf("profiles: ok\n");
}

int main(void)
{
	profiles();
	KIT_DUO_BOTH(every_flag_permits_what_it_says);
	KIT_DUO_BOTH(local_read_is_always_permitted);
	KIT_DUO_BOTH(first_and_last_byte);
	KIT_DUO_BOTH(hca_va_is_where_keys_begin);
	KIT_DUO_BOTH(hca_va_for_local_keys);
	KIT_DUO_BOTH(deregistered_is_gone);
	KIT_DUO_BOTH(a_region_belongs_to_its_domain);
	KIT_DUO_BOTH(rights_of_the_connection_managers_calls);
	KIT_DUO_BOTH(optional_flags_are_accepted);
	return 0;
}
