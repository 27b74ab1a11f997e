/* What is said of wrong keys and addresses is true: what a sentence names as the cause is the cause, and with
 * the key and the address that it names the request succeeds.
 *
 * Both ends are in this process, so one log holds what the responder found and what the requester is told. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

#include "kit.h"

enum { SIZE = 4096 };

static char text[16384]; /* what the log has got since the last pair was opened */
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct kit_end a, b; /* a asks, b answers */
static uint8_t *area;
static struct ibv_mr *mr; /* of area: it outlives the pairs */

static void read_log(void)
{
	snprintf(text, sizeof text, "%s", kit_log_text());
}

#define SAID(...)  said(__LINE__, true, __VA_ARGS__)
#define NEVER(...) said(__LINE__, false, __VA_ARGS__)

static __attribute__((format(printf, 3, 4))) void said(int line, bool wanted, const char *fmt, ...)
{
	char what[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	CHECK(!strstr(text, what) == !wanted, "line %d: %s '%s' in:\n%s", line, wanted ? "no" : "there is",
	      what, text);
}

/* The number that stands behind these words. */
static uint64_t told(const char *words)
{
	const char *at = strstr(text, words);

	CHECK(at, "no '%s' in:\n%s", words, text);
	return strtoull(at + strlen(words), NULL, 16);
}

static void pair_open_in(struct ibv_pd *pda, struct ibv_pd *pdb)
{
	kit_end_open(&a, pda, 8, SIZE);
	kit_end_open(&b, pdb, 8, SIZE);
	kit_connect_with(&a, &b.card, 10, 1);
	kit_connect_with(&b, &a.card, 10, 1);
	kit_log_skip();
}

static void pair_close(void)
{
	struct ibv_async_event ev;

	while (!ibv_get_async_event(ctx, &ev)) /* the descriptor does not block, see main */
		ibv_ack_async_event(&ev);
	kit_end_close(&a);
	kit_end_close(&b);
}

static enum ibv_wc_status write_to(uint32_t rkey, uint64_t addr, uint32_t len)
{
	struct kit_card to = {.rkey = rkey, .addr = addr};
	enum ibv_wc_status status;

	pair_open_in(pd, pd);
	CHECK(!kit_post(&a, IBV_WR_RDMA_WRITE, 1, 0, len, &to, 0));
	status = kit_wait(&a, 10).status;
	if (status != IBV_WC_SUCCESS) /* another thread may be writing the line still */
		kit_log_await("(reported by the peer)");
	read_log();
	pair_close();
	return status;
}

/* A WRITE that the responder refuses; text has what was said, by both ends. */
static void refused(uint32_t rkey, uint64_t addr, uint32_t len)
{
	CHECK(write_to(rkey, addr, len) == IBV_WC_REM_ACCESS_ERR);
	SAID("(reported by the peer)");
}

/* With what the sentence names it goes through. */
static void works(uint32_t rkey, uint64_t addr, uint32_t len)
{
	char before[sizeof text];

	memcpy(before, text, sizeof text);
	CHECK(write_to(rkey, addr, len) == IBV_WC_SUCCESS, "after:\n%s", before);
}

static uint64_t swap64(uint64_t v)
{
	return __builtin_bswap64(v);
}

static uint32_t swap32(uint32_t v)
{
	return __builtin_bswap32(v);
}

/* --- a receive's list */

static void receive_into(struct ibv_sge sge)
{
	struct ibv_recv_wr wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1}, *bad;
	struct ibv_wc wc;

	pair_open_in(pd, pd);
	CHECK(!ibv_post_recv(b.qp, &wr, &bad));
	CHECK(!kit_post(&a, IBV_WR_SEND, 1, 0, 40, NULL, 0));
	wc = kit_wait(&b, 10);
	CHECK(wc.status == IBV_WC_LOC_PROT_ERR, "%s", ibv_wc_status_str(wc.status));
	CHECK(kit_wait(&a, 10).status == IBV_WC_REM_OP_ERR);
	read_log();
	SAID("the receive buffer [0x%" PRIxPTR ", +64) cannot be written: ", (uintptr_t)sge.addr);
	NEVER("local read only"); /* the region that it lies in permits everything */
	pair_close();
}

static void receive_lists(void)
{
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct ibv_mr *foreign = ibv_reg_mr(other, area, SIZE, KIT_ALL);
	uintptr_t at = (uintptr_t)area;
	uint32_t gone;

	CHECK(foreign);
	receive_into((struct ibv_sge){at, 64, mr->lkey ^ 0x5500});
	SAID("unknown L_Key 0x%08x", mr->lkey ^ 0x5500);
	SAID("the range [0x%" PRIxPTR ", +64) lies in the region [0x%" PRIxPTR ", +%d) of L_Key 0x%08x", at,
	     at, SIZE, mr->lkey);
	receive_into((struct ibv_sge){at, 64, foreign->lkey});
	SAID("L_Key 0x%08x belongs to a different protection domain than the queue pair", foreign->lkey);
	SAID("that range lies in the region of L_Key 0x%08x", mr->lkey);
	gone = foreign->lkey;
	CHECK(!ibv_dereg_mr(foreign) && !ibv_dealloc_pd(other));
	receive_into((struct ibv_sge){at, 64, gone});
	SAID("L_Key 0x%08x is stale: its region was deregistered; the range", gone);
	receive_into((struct ibv_sge){at, 64, mr->rkey});
	SAID("R_Key 0x%08x was used where an L_Key is required (this region's L_Key is 0x%08x)", mr->rkey,
	     mr->lkey);
	receive_into((struct ibv_sge){at + SIZE - 32, 64, mr->lkey});
	SAID("by 32 bytes at the end"); /* of the buffer, not of the 40 that came */
}

/* --- numbers that were never keys */

static void never_a_key(void)
{
	refused(0xdeadbeef, (uintptr_t)area + 8, 8);
	SAID("unknown R_Key 0xdeadbeef: the device that it was used on never issued it; the range");
	SAID("of R_Key 0x%08x", mr->rkey);
	NEVER("another process");
	works((uint32_t)told("of R_Key "), (uintptr_t)area + 8, 8);
	/* the number in it may be any process's, this one's among them */
	refused(0xc0000300 | (b.card.qpn >> 12) << 18, (uintptr_t)area, 8);
	SAID("the device that it was used on never issued it; the range");
	/* a variant that nobody was given yet */
	refused(mr->rkey + 1, (uintptr_t)area, 8);
	SAID("unknown R_Key 0x%08x", mr->rkey + 1);
	NEVER("deregistered");
	works((uint32_t)told("of R_Key "), (uintptr_t)area, 8);
}

/* Where a domain is shared such a number may be another's key.  Where the range lies is said as well. */
static void maybe_another_process(void)
{
	struct ibv_pd *ordinary = pd;
	struct ibv_shpd shpd;

	pd = ibv_alloc_pd(ctx);
	CHECK(pd && ibv_alloc_shpd(pd, 7, &shpd));
	refused(0xdeadbeef, (uintptr_t)area, 8);
	SAID("no connected process that shares the protection domain has it");
	SAID("in a different protection domain than the queue pair");
	refused(0xc0000300 | (b.card.qpn >> 12) << 18, (uintptr_t)area, 8);
	SAID("the device that it was used on never issued it; the range");
	CHECK(!ibv_dealloc_pd(pd));
	pd = ordinary;
}

/* A region with many lives at its index: its keys have come round, so nobody can tell. */
static void variants_that_came_round(void)
{
	uint32_t index, gone = 0, lives = 0;
	struct ibv_mr *m = ibv_reg_mr(pd, area, SIZE, KIT_ALL);

	CHECK(m);
	index = m->rkey >> 8;
	for (uint32_t i = 0; lives < 258; i++) {
		CHECK(i < 2000000);
		if (m->rkey >> 8 == index) {
			gone = m->rkey;
			lives++;
		}
		CHECK(!ibv_dereg_mr(m));
		m = ibv_reg_mr(pd, area, SIZE, KIT_ALL);
		CHECK(m);
	}
	refused((gone & ~0xffu) | ((gone + 9) & 0xff), (uintptr_t)area, 8);
	SAID("is not valid: its region was deregistered, or it was never issued");
	CHECK(!ibv_dereg_mr(m));
}

/* --- windows */

static uint32_t bind_window(struct ibv_mw *mw, struct ibv_mr *of, uint32_t rkey, void *at, uint64_t len)
{
	struct ibv_send_wr wr = {.wr_id = 3,
				 .opcode = IBV_WR_BIND_MW,
				 .send_flags = IBV_SEND_SIGNALED,
				 .bind_mw = {.mw = mw,
					     .rkey = rkey,
					     .bind_info = {.mr = of,
							   .addr = (uintptr_t)at,
							   .length = len,
							   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}}},
			   *bad;

	CHECK(!ibv_post_send(b.qp, &wr, &bad));
	CHECK(kit_wait(&b, 10).status == IBV_WC_SUCCESS);
	return (mw->rkey & ~0xffu) | (rkey & 0xff);
}

static void windows(void)
{
	struct ibv_mr *of = ibv_reg_mr(pd, area, SIZE, KIT_ALL | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	uint32_t now, wrong;
	struct kit_card to;

	CHECK(of && mw);
	refused(mw->rkey, (uintptr_t)area, 8);
	SAID("R_Key 0x%08x is stale: its memory window is not bound", mw->rkey);
	NEVER("region was deregistered");
	pair_open_in(pd, pd);
	now = bind_window(mw, of, 0x77, area + 64, 64);
	wrong = now ^ 5;
	to = (struct kit_card){.rkey = wrong, .addr = (uintptr_t)area + 64};
	CHECK(!kit_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &to, 0));
	CHECK(kit_wait(&a, 10).status == IBV_WC_REM_ACCESS_ERR);
	read_log();
	SAID("R_Key 0x%08x is stale: its memory window is bound under R_Key 0x%08x for [0x%" PRIxPTR ", +64)",
	     wrong, now, (uintptr_t)area + 64);
	NEVER("deregistered");
	pair_close(); /* with the queue pair the binding goes */
	refused(now, (uintptr_t)area, 8);
	SAID("R_Key 0x%08x is stale: its memory window is not bound", now);
	CHECK(!ibv_dealloc_mw(mw));
	refused(now, (uintptr_t)area, 8);
	SAID("R_Key 0x%08x is stale: its memory window is not bound (was it invalidated, unbound or "
	     "deallocated",
	     now);
	CHECK(!ibv_dereg_mr(of));
}

/* A key that can have no counterpart is not given one. */
static void one_sided_keys(void)
{
	struct ibv_mr *of = ibv_reg_mr(pd, area, SIZE, KIT_ALL | IBV_ACCESS_MW_BIND);
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_sge sge = {(uintptr_t)area, 8, 0};
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;

	CHECK(of && null && mw);
	refused(null->lkey, (uintptr_t)area, 8);
	SAID("L_Key 0x%08x was used where an R_Key is required (a null region has no R_Key", null->lkey);
	pair_open_in(pd, pd);
	sge.lkey = bind_window(mw, of, 0x11, area, 64);
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	CHECK(kit_wait(&a, 10).status == IBV_WC_LOC_PROT_ERR);
	read_log();
	SAID("(a memory window has no L_Key; its region's L_Key is 0x%08x)", of->lkey);
	pair_close();
	CHECK(!ibv_dealloc_mw(mw) && !ibv_dereg_mr(of) && !ibv_dereg_mr(null));
}

/* --- numbers that came out wrong */

static void at_the_responder(void)
{
	uint64_t at = (uintptr_t)area + 24;

	CHECK(at >> 32);
	refused(mr->rkey, swap64(at), 8);
	CHECK(told("with its bytes reversed, the address is ") == at);
	works(mr->rkey, told("with its bytes reversed, the address is "), 8);

	refused(swap32(mr->rkey), at, 8);
	CHECK(told("with its bytes reversed, the key is R_Key ") == mr->rkey);
	works((uint32_t)told("with its bytes reversed, the key is R_Key "), at, 8);

	refused(swap32(mr->rkey), swap64(at), 8);
	SAID("with their bytes reversed, they are R_Key 0x%08x and address 0x%" PRIx64 ", in its region",
	     mr->rkey, at);
	works((uint32_t)told("they are R_Key "), told(" and address "), 8);

	refused(mr->rkey, (uint32_t)at, 8);
	SAID("truncated to 32 bits");
	CHECK(told("it is the lower half of ") == at);
	works(mr->rkey, told("it is the lower half of "), 8);

	refused(mr->rkey, (uint64_t)(int64_t)(int32_t)((uint32_t)at | 0x80000000u), 8);
	if (at & 0x80000000u) /* as a signed number it begins with ones */
		SAID("truncated to 32 bits");

	refused((uint32_t)at, mr->rkey, 8);
	SAID("address and key seem to be exchanged");
	CHECK(told("the address is R_Key ") == mr->rkey &&
	      told("the key is the lower half of address ") == at);
	works((uint32_t)told("the address is R_Key "), told("the key is the lower half of address "), 8);
}

static void send_from(uint32_t lkey, uint64_t addr, enum ibv_wc_status status)
{
	struct ibv_sge sge = {addr, 8, lkey};
	struct ibv_send_wr wr = {.wr_id = 1,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;

	pair_open_in(pd, pd);
	CHECK(!kit_recv(&b, 9, 0, 64));
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	CHECK(kit_wait(&a, 10).status == status, "after:\n%s", text);
	read_log();
	pair_close();
}

static void in_the_local_list(void)
{
	uint64_t at = (uintptr_t)area + 40;

	send_from(mr->lkey, swap64(at), IBV_WC_LOC_PROT_ERR);
	CHECK(told("with its bytes reversed, the address is ") == at);
	send_from(swap32(mr->lkey), at, IBV_WC_LOC_PROT_ERR);
	send_from((uint32_t)told("with its bytes reversed, the key is L_Key "), at, IBV_WC_SUCCESS);
	send_from(mr->lkey, (uint32_t)at, IBV_WC_LOC_PROT_ERR);
	send_from(mr->lkey, told("it is the lower half of "), IBV_WC_SUCCESS);
	send_from((uint32_t)at, mr->lkey, IBV_WC_LOC_PROT_ERR);
	CHECK(told("the key is the lower half of address ") == at);
	send_from((uint32_t)told("the address is L_Key "), at, IBV_WC_SUCCESS);
}

/* What fits no reading is not given one. */
static void not_guessed(void)
{
	uint64_t at = (uintptr_t)area;

	refused(mr->rkey, swap64(at + SIZE - 4), 8); /* would end outside */
	NEVER("reversed");
	refused(swap32(mr->lkey), at, 8); /* that is no R_Key */
	NEVER("reversed");
	refused(mr->rkey, (uint32_t)(at - 64), 8);
	NEVER("truncated");
	refused((uint32_t)at, mr->lkey, 8);
	NEVER("exchanged");
}

int main(void)
{

	kit_log_begin("info");
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	area = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pd && area != MAP_FAILED);
	mr = ibv_reg_mr(pd, area, SIZE, KIT_ALL);
	CHECK(mr);
	CHECK(!fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK));
	receive_lists();
	never_a_key();
	maybe_another_process();
	variants_that_came_round();
	windows();
	one_sided_keys();
	at_the_responder();
	in_the_local_list();
	not_guessed();
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	puts("every sentence was true");
	return 0;
}
