/* What rdma_reg_msgs(3), rdma_reg_read(3), rdma_reg_write(3) and rdma_dereg_mr(3) promise, sentence by
 * sentence (docs/memory.md has the list): these calls as <rdma/rdma_verbs.h> compiles them into a program, on
 * ids of one process and between two that have connected by rdma_cm. */
#include <errno.h>

#include "bytes.h"
#include "ep.h"

enum { PAGES = 3, AT = PAGE - 24, LEN = PAGE + 48 }; /* the region begins and ends within pages */

/* The prototypes of the pages: what has another one does not compile. */
enum which { MSGS, READ, WRITE, CALLS };
static struct ibv_mr *(*const calls[CALLS])(struct rdma_cm_id *id, void *addr,
					    size_t length) = {rdma_reg_msgs, rdma_reg_read, rdma_reg_write};
static int (*const dereg)(struct ibv_mr *mr) = rdma_dereg_mr;
static const char *const names[CALLS] = {"rdma_reg_msgs", "rdma_reg_read", "rdma_reg_write"};

/* Of each process: its memory, and a region in it. */
static uint8_t *mem;
static struct ibv_mr *mr;

static uint8_t *memory(void)
{
	if (!mem)
		mem = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mem != MAP_FAILED);
	return mem;
}

static void make(struct kit_pair *d, enum which which)
{
	mr = calls[which](kit_ep(d)->id, memory() + AT, LEN);
	CHECK(mr, "%s: %m", names[which]);
}

static void drop(void)
{
	CHECK(!dereg(mr), "%m");
	mr = NULL;
}

/* --- what the target does */

/* in: which call.  out: R_Key, address. */
static void make_there(struct kit_pair *d)
{
	make(d, (enum which)d->board->in[0]);
	d->board->out[0] = mr->rkey;
	d->board->out[1] = (int64_t)(uintptr_t)mr->addr;
}

static void drop_there(struct kit_pair *d)
{
	(void)d;
	drop();
}

/* in: offset in the memory, value; all LEN bytes of the region. */
static void set_there(struct kit_pair *d)
{
	memset(memory() + d->board->in[0], (int)d->board->in[1], LEN);
}

/* in: offset.  out: the byte. */
static void get_there(struct kit_pair *d)
{
	d->board->out[0] = mem[d->board->in[0]];
}

/* in: offset and length. */
static void post_there(struct kit_pair *d)
{
	CHECK(!rdma_post_recv(kit_ep(d)->id, mem, mem + d->board->in[0], (size_t)d->board->in[1], mr), "%m");
}

/* The same without the assertion of the header, that the buffer lies in the region. */
static void post_unchecked_there(struct kit_pair *d)
{
	struct ibv_sge sge = {(uintptr_t)mem + (size_t)d->board->in[0], (uint32_t)d->board->in[1], mr->lkey};

	CHECK(!rdma_post_recvv(kit_ep(d)->id, mem, &sge, 1), "%m");
}

/* out: status, length. */
static void receive_there(struct kit_pair *d)
{
	struct ibv_wc wc;

	CHECK(rdma_get_recv_comp(kit_ep(d)->id, &wc) == 1 && wc.wr_id == (uintptr_t)mem, "%m");
	d->board->out[0] = wc.status;
	d->board->out[1] = wc.byte_len;
}

/* --- what the initiator asks for */

static struct {
	uint64_t addr;
	uint32_t rkey;
} there; /* the target's region */

static void region(struct kit_pair *d, enum which which)
{
	d->board->in[0] = which;
	kit_duo_there(d, make_there);
	there.rkey = (uint32_t)d->board->out[0];
	there.addr = (uint64_t)d->board->out[1];
}

static void no_region(struct kit_pair *d)
{
	kit_duo_there(d, drop_there);
}

static void bytes_are(struct kit_pair *d, int value)
{
	d->board->in[0] = AT;
	d->board->in[1] = value;
	kit_duo_there(d, set_there);
}

static int byte_there(struct kit_pair *d, size_t at)
{
	d->board->in[0] = (int64_t)at;
	kit_duo_there(d, get_there);
	return (int)d->board->out[0];
}

/* One request with this process's region (or an element that is made up), and how it ends. */
static enum ibv_wc_status sends(struct kit_pair *d, void *at, size_t len, uint32_t lkey)
{
	struct ibv_sge sge = {(uintptr_t)at, (uint32_t)len, lkey};

	CHECK(!rdma_post_sendv(kit_ep(d)->id, NULL, &sge, 1, 0), "%m");
	return kit_ep_ends(d);
}

static enum ibv_wc_status reads(struct kit_pair *d, size_t len, uint64_t from)
{
	CHECK(!rdma_post_read(kit_ep(d)->id, NULL, mr->addr, len, mr, 0, from, there.rkey), "%m");
	return kit_ep_ends(d);
}

static enum ibv_wc_status writes(struct kit_pair *d, size_t len, uint64_t to)
{
	CHECK(!rdma_post_write(kit_ep(d)->id, NULL, mr->addr, len, mr, 0, to, there.rkey), "%m");
	return kit_ep_ends(d);
}

static void receive_at(struct kit_pair *d, size_t at, size_t len, void (*post)(struct kit_pair *))
{
	d->board->in[0] = (int64_t)at;
	d->board->in[1] = (int64_t)len;
	kit_duo_there(d, post);
}

static bool all(const uint8_t *at, int value)
{
	for (size_t i = 0; i < LEN; i++)
		if (at[i] != value)
			return false;
	return true;
}

/* --- rdma_reg_msgs */

/* "registers an array of memory buffers for sending or receiving messages or for RDMA operations": it goes
 * out of one region and comes into the other whole, in buffers of which the array has several. */
static void messages(struct kit_pair *d)
{
	struct rdma_cm_id *id = kit_ep(d)->id;
	struct ibv_wc wc;

	make(d, MSGS);
	region(d, MSGS);
	bytes_are(d, 0);
	memset(mem + AT, 0x5a, LEN);
	receive_at(d, AT, LEN, post_there);
	CHECK(!rdma_post_send(id, mem, mem + AT, LEN, mr, 0), "%m");
	wc = kit_ep_sent(id);
	CHECK(wc.wr_id == (uintptr_t)mem && wc.opcode == IBV_WC_SEND);
	kit_duo_there(d, receive_there);
	CHECK(!d->board->out[0] && d->board->out[1] == LEN);
	CHECK(byte_there(d, AT) == 0x5a && byte_there(d, AT + LEN - 1) == 0x5a);
	/* two buffers of one array */
	for (int i = 0; i < 2; i++)
		receive_at(d, AT + 100 * (size_t)i, 100, post_there);
	for (int i = 0; i < 2; i++) {
		memset(mem + AT + 64 * i, 'a' + i, 64);
		CHECK(!rdma_post_send(id, mem, mem + AT + 64 * i, 64, mr, 0), "%m");
		kit_ep_sent(id);
		kit_duo_there(d, receive_there);
		CHECK(!d->board->out[0] && d->board->out[1] == 64);
		CHECK(byte_there(d, AT + 100 * (size_t)i + 63) == 'a' + i);
	}
	/* one of NULL is for what travels in the request itself */
	receive_at(d, AT, 8, post_there);
	CHECK(!rdma_post_send(id, NULL, (void *)"inlined", 8, NULL, IBV_SEND_INLINE), "%m");
	kit_ep_sent(id);
	kit_duo_there(d, receive_there);
	CHECK(!d->board->out[0] && byte_there(d, AT) == 'i');
	drop();
	no_region(d);
}

/* "the target of an RDMA read operation or the source of an RDMA write request". */
static void sink_and_source(struct kit_pair *d)
{
	make(d, MSGS);
	region(d, READ);
	bytes_are(d, 0x11);
	memset(mem, 0, PAGES * PAGE);
	CHECK(reads(d, LEN, there.addr) == IBV_WC_SUCCESS);
	CHECK(all(mem + AT, 0x11) && !mem[AT - 1] && !mem[AT + LEN]);
	no_region(d);
	region(d, WRITE);
	memset(mem + AT, 0x22, LEN);
	CHECK(writes(d, LEN, there.addr) == IBV_WC_SUCCESS);
	CHECK(byte_there(d, AT) == 0x22 && byte_there(d, AT + LEN - 1) == 0x22 && !byte_there(d, AT + LEN));
	drop();
	no_region(d);
}

/* It is for this end only: no peer reads or writes it. */
static void peers_reach_no_messages(struct kit_pair *d)
{
	make(d, MSGS);
	region(d, MSGS);
	bytes_are(d, 0x33);
	memset(mem + AT, 0x44, LEN);
	CHECK(reads(d, 8, there.addr) == IBV_WC_REM_ACCESS_ERR);
	KIT_LOG_SAYS("R_Key 0x%08x does not permit", there.rkey);
	CHECK(writes(d, 8, there.addr) == IBV_WC_REM_ACCESS_ERR);
	CHECK(byte_there(d, AT) == 0x33 && mem[AT] == 0x44);
	drop();
	no_region(d);
}

/* "The start of the data buffer array ... and the total size": its first and its last byte are in it, those
 * beside them are not. */
static void first_and_last_byte(struct kit_pair *d)
{
	make(d, MSGS);
	region(d, MSGS);
	for (int last = 0; last < 2; last++) {
		receive_at(d, last ? AT + LEN - 1 : AT, 1, post_there);
		CHECK(sends(d, mem + AT + (last ? LEN - 1 : 0), 1, mr->lkey) == IBV_WC_SUCCESS);
		kit_duo_there(d, receive_there);
		CHECK(!d->board->out[0] && d->board->out[1] == 1);
	}
	receive_at(d, AT, LEN, post_there);
	CHECK(sends(d, mem + AT - 1, 1, mr->lkey) == IBV_WC_LOC_PROT_ERR);
	receive_at(d, AT, LEN, post_there);
	CHECK(sends(d, mem + AT + LEN, 1, mr->lkey) == IBV_WC_LOC_PROT_ERR);
	receive_at(d, AT, LEN, post_there);
	CHECK(sends(d, mem + AT, LEN + 1, mr->lkey) == IBV_WC_LOC_PROT_ERR);
	/* what a message does not fit into at the far end */
	for (int last = 0; last < 2; last++) {
		struct ibv_sge sge = {(uintptr_t)mem + AT, 1, mr->lkey};

		receive_at(d, last ? AT + LEN : AT - 1, 1, post_unchecked_there);
		CHECK(!rdma_post_sendv(kit_ep(d)->id, NULL, &sge, 1, 0), "%m");
		kit_duo_there(d, receive_there);
		CHECK(d->board->out[0] == IBV_WC_LOC_PROT_ERR);
		CHECK(kit_ep_ends(d) == IBV_WC_REM_OP_ERR);
	}
	drop();
	no_region(d);
}

/* "must be registered before being posted": what was not is refused, and why is said. */
static void not_registered(struct kit_pair *d)
{
	uint32_t gone;

	make(d, MSGS);
	region(d, MSGS);
	receive_at(d, AT, 64, post_there);
	CHECK(sends(d, mem + AT, 64, mr->lkey ^ 0x5500) == IBV_WC_LOC_PROT_ERR);
	KIT_LOG_SAYS("unknown L_Key 0x%08x", mr->lkey ^ 0x5500);
	/* "must be deregistered by calling rdma_dereg_mr": which ends it */
	gone = mr->lkey;
	drop();
	receive_at(d, AT, 64, post_there);
	CHECK(sends(d, mem + AT, 64, gone) == IBV_WC_LOC_PROT_ERR);
	KIT_LOG_SAYS("L_Key 0x%08x", gone);
	no_region(d);
}

/* A datagram goes from one such region into another, behind the 40 bytes of its GRH, with the Q_Key that
 * rdma_post_ud_send() says: that of the other end's id. */
static void equip(struct kit_pair *d, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = kit_ep(d)->attr;

	CHECK(!rdma_create_qp(id, NULL, &attr), "%m");
	mr = calls[MSGS](id, memory() + AT, LEN);
	CHECK(mr && !rdma_post_recv(id, mem, mem + AT, LEN, mr), "%m");
}

static void equip_there(struct kit_pair *d)
{
	kit_ep(d)->equip = equip;
}

enum { GRH = 40 };

static void datagrams(struct kit_pair *d)
{
	const struct rdma_ud_param *to;
	struct rdma_cm_id *id;
	struct ibv_ah *ah;

	kit_duo_there(d, equip_there);
	kit_ep_connect(d);
	id = kit_ep(d)->id;
	make(d, MSGS);
	to = &id->event->param.ud; /* of ESTABLISHED */
	CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED && to->qkey == RDMA_UDP_QKEY);
	ah = ibv_create_ah(id->pd, (struct ibv_ah_attr *)&to->ah_attr);
	CHECK(ah, "%m");
	memset(mem + AT, 0x6c, 64);
	CHECK(!rdma_post_ud_send(id, mem, mem + AT, 64, mr, 0, ah, to->qp_num), "%m");
	kit_ep_sent(id);
	kit_duo_there(d, receive_there);
	CHECK(!d->board->out[0] && d->board->out[1] == GRH + 64);
	CHECK(byte_there(d, AT + GRH) == 0x6c && byte_there(d, AT + GRH + 63) == 0x6c);
	CHECK(!ibv_destroy_ah(ah));
	drop();
	kit_duo_there(d, drop_there);
	kit_ep_disconnect(d);
}

/* --- domains: "registered with the protection domain associated with the rdma_cm_id" */

static void in_its_own_domain(struct kit_pair *d)
{
	struct rdma_cm_id *elsewhere = kit_ep_bound(IBV_QPT_RC); /* of this device, in its default domain */
	struct ibv_mr *other;

	/* the id was given a domain with its QP */
	kit_ep(d)->pd = ibv_alloc_pd(elsewhere->verbs);
	CHECK(kit_ep(d)->pd);
	kit_ep_connect(d);
	CHECK(kit_ep(d)->id->pd == kit_ep(d)->pd && elsewhere->pd != kit_ep(d)->pd);
	CHECK(kit_ep(d)->id->verbs == elsewhere->verbs);
	region(d, MSGS);
	for (enum which w = MSGS; w < CALLS; w++) {
		make(d, w);
		other = calls[w](elsewhere, mem + AT, LEN);
		CHECK(other && other->pd == elsewhere->pd && mr->pd == kit_ep(d)->pd);
		receive_at(d, AT, 64, post_there);
		CHECK(sends(d, mem + AT, 64, mr->lkey) == IBV_WC_SUCCESS);
		kit_duo_there(d, receive_there);
		receive_at(d, AT, 64, post_there);
		CHECK(sends(d, mem + AT, 64, other->lkey) == IBV_WC_LOC_PROT_ERR);
		KIT_LOG_SAYS("L_Key 0x%08x belongs to a different protection domain than the queue pair",
			     other->lkey);
		CHECK(!dereg(other));
		drop();
	}
	no_region(d);
	kit_ep_disconnect(d);
	rdma_destroy_ep(elsewhere);
	CHECK(!ibv_dealloc_pd(kit_ep(d)->pd));
}

/* --- rdma_reg_read and rdma_reg_write: the far end's requests */

/* "will be accessed by a remote RDMA read operation", and by no other. */
static void for_reads(struct kit_pair *d)
{
	make(d, MSGS);
	region(d, READ);
	bytes_are(d, 0x61);
	CHECK(reads(d, LEN, there.addr) == IBV_WC_SUCCESS);
	CHECK(all(mem + AT, 0x61));
	CHECK(reads(d, 1, there.addr + LEN - 1) == IBV_WC_SUCCESS);
	CHECK(reads(d, 1, there.addr - 1) == IBV_WC_REM_ACCESS_ERR);
	CHECK(reads(d, 1, there.addr + LEN) == IBV_WC_REM_ACCESS_ERR);
	CHECK(reads(d, LEN, there.addr + 1) == IBV_WC_REM_ACCESS_ERR);
	kit_log_skip();
	memset(mem + AT, 0x62, LEN);
	CHECK(writes(d, 8, there.addr) == IBV_WC_REM_ACCESS_ERR);
	KIT_LOG_SAYS("R_Key 0x%08x does not permit", there.rkey);
	KIT_LOG_SAYS("register it with IBV_ACCESS_REMOTE_WRITE");
	CHECK(byte_there(d, AT) == 0x61);
	/* an R_Key that never was, and one that is no more */
	there.rkey ^= 0x55;
	CHECK(reads(d, 8, there.addr) == IBV_WC_REM_ACCESS_ERR);
	there.rkey ^= 0x55;
	no_region(d);
	CHECK(reads(d, 8, there.addr) == IBV_WC_REM_ACCESS_ERR);
	drop();
}

/* "will be accessed by a remote RDMA write operation", and by no other. */
static void for_writes(struct kit_pair *d)
{
	make(d, MSGS);
	region(d, WRITE);
	bytes_are(d, 0x71);
	memset(mem + AT, 0x72, LEN);
	CHECK(writes(d, LEN, there.addr) == IBV_WC_SUCCESS);
	CHECK(byte_there(d, AT) == 0x72 && byte_there(d, AT + LEN - 1) == 0x72);
	memset(mem + AT, 0x73, LEN);
	CHECK(writes(d, 1, there.addr + LEN - 1) == IBV_WC_SUCCESS);
	CHECK(byte_there(d, AT + LEN - 1) == 0x73 && byte_there(d, AT + LEN - 2) == 0x72);
	CHECK(writes(d, 1, there.addr - 1) == IBV_WC_REM_ACCESS_ERR);
	CHECK(writes(d, 1, there.addr + LEN) == IBV_WC_REM_ACCESS_ERR);
	CHECK(writes(d, LEN, there.addr + 1) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!byte_there(d, AT - 1) && !byte_there(d, AT + LEN));
	kit_log_skip();
	CHECK(reads(d, 8, there.addr) == IBV_WC_REM_ACCESS_ERR);
	KIT_LOG_SAYS("R_Key 0x%08x does not permit", there.rkey);
	KIT_LOG_SAYS("register it with IBV_ACCESS_REMOTE_READ");
	CHECK(mem[AT] == 0x73);
	there.rkey ^= 0x55;
	CHECK(writes(d, 8, there.addr) == IBV_WC_REM_ACCESS_ERR);
	there.rkey ^= 0x55;
	no_region(d);
	CHECK(writes(d, 8, there.addr) == IBV_WC_REM_ACCESS_ERR);
	CHECK(byte_there(d, AT) == 0x72);
	drop();
}

/* Both are for messages at their own end, too (the header asks for local write). */
static void for_messages_too(struct kit_pair *d)
{
	for (enum which w = READ; w < CALLS; w++) {
		make(d, w);
		region(d, w);
		receive_at(d, AT, 64, post_there);
		CHECK(sends(d, mem + AT, 64, mr->lkey) == IBV_WC_SUCCESS);
		kit_duo_there(d, receive_there);
		CHECK(!d->board->out[0]);
		drop();
		no_region(d);
	}
}

/* --- rdma_dereg_mr */

/* "0 on success, -1 on error", and errno: it is not the value, as it is of ibv_dereg_mr(). */
static void busy(struct kit_pair *d)
{
	struct rdma_cm_id *id = kit_ep(d)->id;
	struct ibv_mw *mw = ibv_alloc_mw(id->pd, IBV_MW_TYPE_1);
	struct ibv_mr *of = ibv_reg_mr(id->pd, memory(), PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw_bind bind = {
	    .bind_info = {
		.mr = of, .addr = (uintptr_t)mem, .length = PAGE, .mw_access_flags = IBV_ACCESS_REMOTE_READ}};

	CHECK(mw && of);
	CHECK(!ibv_bind_mw(id->qp, mw, &bind));
	kit_ep_sent(id);
	errno = 0;
	CHECK(dereg(of) == -1);
	CHECK_EQ(errno, EBUSY);
	CHECK(!ibv_dealloc_mw(mw));
	errno = ENOTTY;
	CHECK(!dereg(of));
	CHECK_EQ(errno, ENOTTY); /* which it leaves alone */
}

/* --- on an id of this process alone */

static void a_region_has_what_the_page_says(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC);

	memory();
	for (enum which w = MSGS; w < CALLS; w++) {
		errno = ENOTTY;
		mr = calls[w](id, mem + AT, LEN);
		CHECK(mr && errno == ENOTTY, "%s: %m", names[w]);
		CHECK(mr->addr == mem + AT && mr->length == LEN, "%s", names[w]);
		CHECK(mr->pd == id->pd && mr->context == id->verbs && mr->lkey != mr->rkey, "%s", names[w]);
		CHECK(dereg(mr) == 0);
	}
	rdma_destroy_ep(id);
}

/* "NULL on failure ... errno will be set to indicate the failure reason". */
static void what_is_refused(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC);

	memory();
	CHECK(!mprotect(mem + PAGE, PAGE, PROT_READ) && !munmap(mem + 2 * PAGE, PAGE));
	for (enum which w = MSGS; w < CALLS; w++) {
		errno = 0; /* the far end would only read: but the header asks for local write */
		CHECK(!calls[w](id, mem + PAGE, 64) && errno == EFAULT, "%s: %m", names[w]);
		errno = 0;
		CHECK(!calls[w](id, mem + 2 * PAGE, 64) && errno == EFAULT, "%s: %m", names[w]);
		errno = 0; /* begins well */
		CHECK(!calls[w](id, mem, PAGE + 1) && errno == EFAULT, "%s: %m", names[w]);
		errno = 0; /* beyond the end of all addresses */
		CHECK(!calls[w](id, mem, SIZE_MAX) && errno == EINVAL, "%s: %m", names[w]);
	}
	rdma_destroy_ep(id);
}

/* More regions than the device has: the smallest of the profiles. */
static void none_is_left(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC);
	struct ibv_device_attr attr;
	struct ibv_mr **some;
	int n = 0;

	memory();
	CHECK(!ibv_query_device(id->verbs, &attr));
	some = calloc((size_t)attr.max_mr + 1, sizeof *some);
	CHECK(some);
	errno = 0;
	while (n <= attr.max_mr && (some[n] = calls[n % CALLS](id, mem, 64)))
		n++;
	CHECK(n == attr.max_mr && errno == ENOMEM, "%d of %d: %m", n, attr.max_mr);
	while (n--)
		CHECK(!dereg(some[n]));
	free(some);
	rdma_destroy_ep(id);
}

/* "must be called for all registered memory ... before destroying the rdma_cm_id": who forgets it has regions
 * that go on, since the domain does, and rdma_dereg_mr() is still there for them.  A domain of the program's
 * own cannot go before them. */
static void the_id_goes_first(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC);
	struct ibv_context *verbs = id->verbs;
	struct ibv_pd *pd = ibv_alloc_pd(verbs);
	struct ibv_mr *of[CALLS], *ours;

	CHECK(pd);
	memory();
	for (enum which w = MSGS; w < CALLS; w++)
		CHECK((of[w] = calls[w](id, mem, PAGE)));
	id->pd = pd; /* as rdma_create_qp() leaves it */
	CHECK((ours = rdma_reg_msgs(id, mem, PAGE)));
	CHECK(!rdma_destroy_id(id), "%m");
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!dereg(ours) && !ibv_dealloc_pd(pd));
	for (enum which w = MSGS; w < CALLS; w++)
		CHECK(of[w]->context == verbs && !dereg(of[w]), "%m");
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "a_region_has_what_the_page_says", .run = a_region_has_what_the_page_says},
	    {.name = "what_is_refused", .run = what_is_refused},
	    {.name = "none_is_left", .run = none_is_left},
	    {.name = "the_id_goes_first", .run = the_id_goes_first},
	};
	static const struct {
		const char *name;
		void (*test)(struct kit_pair *);
	} pairs[] = {{"messages", messages},
		     {"sink_and_source", sink_and_source},
		     {"peers_reach_no_messages", peers_reach_no_messages},
		     {"first_and_last_byte", first_and_last_byte},
		     {"not_registered", not_registered},
		     {"for_reads", for_reads},
		     {"for_writes", for_writes},
		     {"for_messages_too", for_messages_too},
		     {"busy", busy}};

	kit_log_begin("info");
	KIT_CASES(cases, 60);
	for (size_t i = 0; i < 2 * sizeof pairs / sizeof pairs[0]; i++)
		if (kit_asked(pairs[i / 2].name, argc, argv))
			kit_ep_run(pairs[i / 2].name, i % 2, IBV_QPT_RC, pairs[i / 2].test);
	if (kit_asked("in_its_own_domain", argc, argv))
		kit_ep_run_apart("in_its_own_domain", IBV_QPT_RC, in_its_own_domain);
	if (kit_asked("datagrams", argc, argv))
		kit_ep_run_apart("datagrams", IBV_QPT_UD, datagrams);
	return 0;
}
