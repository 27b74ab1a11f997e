/* N3, N4, N7: why did the request fail? */
#include <arpa/inet.h>
#include <sys/resource.h>

#include "situation.h"

static void open_all_descriptors(void)
{
	struct rlimit r;

	CHECK(!getrlimit(RLIMIT_NOFILE, &r));
	r.rlim_cur = 128;
	CHECK(!setrlimit(RLIMIT_NOFILE, &r));
	while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0)
		;
	CHECK(errno == EMFILE);
}

static void close_some_descriptors(void)
{
	for (int fd = 100; fd < 128; fd++)
		close(fd);
}

struct board {
	struct kit_card card[2]; /* [0]: the situation's, [1]: its peer's */
	_Atomic int step;
};

/* A queue pair whose number is a number with its bytes reversed, too, and another one. */
static void open_reversible(struct kit_end *e, struct ibv_pd *domain)
{
	do
		kit_end_open(e, domain, 8, PAGE);
	while (e->card.qpn & 0xff || htonl(e->card.qpn) == e->card.qpn);
}

/* A peer that is there, and does nothing. */
static void be_a_peer(struct board *d)
{
	struct ibv_context *c = kit_open();
	struct kit_end e;

	open_reversible(&e, ibv_alloc_pd(c));
	d->card[1] = e.card;
	atomic_fetch_add(&d->step, 1);
	kit_until(&d->step, 2);
	_exit(0);
}

/* N3.11, the other half: a destination GID that is some other machine's.  The call takes it, the request
 * fails. */
static void gid_of_another_machine(void)
{
	struct board *d = kit_shared(sizeof *d);
	struct kit_card far;
	pid_t pid = kit_fork();

	if (!pid)
		be_a_peer(d);
	kit_until(&d->step, 1);
	far = d->card[1];
	memcpy(far.gid.raw + 12, "\xcb\0\x71\7", 4); /* 203.0.113.7 */
	kit_end_open(&a, pd, 8, PAGE);
	kit_connect_with(&a, &far, 10, 1);
	CHECK(!kit_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0));
	expect(IBV_WC_RETRY_EXC_ERR);
	SAID("no acknowledgement from queue pair 0x%06x within retry_cnt = 1 retry", far.qpn);
	SAID("the GID in the path (dgid 203.0.113.7) is not an address of this network namespace");
	atomic_fetch_add(&d->step, 1);
	CHECK(!kit_reap(pid));
}

/* The far end is of another type. */
static void another_type(void)
{
	static const struct {
		enum ibv_qp_type type;
		const char *name;
		enum ibv_wr_opcode op;
	} rows[] = {{IBV_QPT_UD, "IBV_QPT_UD", IBV_WR_SEND},
		    {IBV_QPT_UC, "IBV_QPT_UC", IBV_WR_SEND},
		    {IBV_QPT_UC, "IBV_QPT_UC", IBV_WR_RDMA_WRITE}};
	enum { ROWS = sizeof rows / sizeof rows[0] };
	struct kit_end b;

	for (int i = 0; i < ROWS; i++) {
		kit_end_open(&a, pd, 8, PAGE);
		kit_end_open_as(&b, pd, 8, PAGE, rows[i].type);
		if (rows[i].type == IBV_QPT_UC)
			kit_connect(&b, &a.card);
		kit_connect_with(&a, &b.card, 10, 1);
		CHECK_EQ(kit_post(&a, rows[i].op, 1, 0, 8, &b.card, 0), 0);
		expect(IBV_WC_RETRY_EXC_ERR);
		SAID("no acknowledgement from queue pair 0x%06x within retry_cnt = 1 retry: it has type %s, "
		     "but this queue pair has type IBV_QPT_RC; both ends must have the same type",
		     b.card.qpn, rows[i].name);
		kit_end_close(&b);
		if (i + 1 < ROWS)
			kit_end_close(&a);
	}
}

/* The far end's number was never copied: 0 is nobody's. */
static void number_never_filled_in(void)
{
	struct kit_card far;

	kit_end_open(&a, pd, 8, PAGE);
	far = a.card;
	far.qpn = 0;
	kit_connect_with(&a, &far, 10, 1);
	CHECK_EQ(kit_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0), 0);
	expect(IBV_WC_RETRY_EXC_ERR);
	SAID(
	    "no acknowledgement from queue pair 0x000000 within retry_cnt = 1 retry: dest_qp_num is 0, so it "
	    "was never set");
}

/* The far end's number came in network byte order, and was not converted: of another process, and of this. */
static void number_in_network_order(void)
{
	struct board *d = kit_shared(sizeof *d);
	pid_t pid = kit_fork();
	struct kit_card far;

	if (!pid)
		be_a_peer(d);
	kit_until(&d->step, 1);
	open_reversible(&b, pd);
	d->card[0] = b.card;
	for (int i = 0; i < 2; i++) {
		far = d->card[i];
		far.qpn = htonl(far.qpn);
		kit_end_open(&a, pd, 8, PAGE);
		kit_connect_with(&a, &far, 10, 1);
		CHECK_EQ(kit_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0), 0);
		expect(IBV_WC_RETRY_EXC_ERR);
		SAID(
		    "no acknowledgement from queue pair 0x%06x within retry_cnt = 1 retry: no queue pair has "
		    "that number, but with its bytes reversed it is 0x%06x, a queue pair number of process "
		    "%d; dest_qp_num is in host byte order: convert it once",
		    far.qpn, d->card[i].qpn, (int)(i ? pid : getpid()));
		if (!i)
			kit_end_close(&a);
	}
	atomic_fetch_add(&d->step, 1);
	CHECK(!kit_reap(pid));
}

/* N3.4: no further connection after a thousand: descriptors. */
static void out_of_descriptors(void)
{
	struct board *d = kit_shared(sizeof *d);
	pid_t pid = kit_fork();

	if (!pid)
		be_a_peer(d);
	kit_until(&d->step, 1);
	kit_end_open(&a, pd, 8, PAGE);
	open_all_descriptors();
	kit_connect_with(&a, &d->card[1], 10, 1);
	CHECK(!kit_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0));
	CHECK(kit_wait(&a, 60).status == IBV_WC_RETRY_EXC_ERR);
	close_some_descriptors();
	kept("no acknowledgement from queue pair 0x%06x within retry_cnt = 1 retry", d->card[1].qpn);
	kept("Too many open files (each peer needs two descriptors");
	atomic_fetch_add(&d->step, 1);
	CHECK(!kit_reap(pid));
}

/* N3.5: the device is there and cannot be opened. */
static void cannot_be_opened(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list);
	open_all_descriptors();
	CHECK(!ibv_open_device(list[0]) && errno == EMFILE);
	close_some_descriptors();
	kept("ibv_open_device: verbena0 cannot be opened: Too many open files; RLIMIT_NOFILE (ulimit -n) is "
	     "%d "
	     "(EMFILE)",
	     128);
}

/* N3.6: a local protection error on legal-looking memory: the message is longer than its region. */
static void longer_than_its_region(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;

	pair_open();
	sge = (struct ibv_sge){(uintptr_t)a.buf + 1000, PAGE, a.mr->lkey};
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	expect(IBV_WC_LOC_PROT_ERR);
	SAID("range [0x%" PRIxPTR ", +%d) exceeds region [0x%" PRIxPTR
	     ", +%d) of L_Key 0x%08x by 1000 bytes at "
	     "the end",
	     (uintptr_t)a.buf + 1000, PAGE, (uintptr_t)a.buf, PAGE, a.mr->lkey);
}

/* N3.7: "status 12", retries exceeded.  What is wrong at the other end? */
static void status_12(void)
{
	struct kit_card gone;

	pair_open();
	gone = b.card;
	CHECK(!ibv_destroy_qp(b.qp));
	CHECK(!kit_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0));
	expect(IBV_WC_RETRY_EXC_ERR);
	SAID("QP 0x%06x: SEND wr_id 0x1 ended with IBV_WC_RETRY_EXC_ERR", a.qp->qp_num);
	SAID("no acknowledgement from queue pair 0x%06x within retry_cnt = 1 retry", gone.qpn);
	SAID("its process has no such queue pair");
}

/* N3.7, the inline size: a library asks for more than the device has. */
static void inline_size(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr qa = {.send_cq = cq,
				      .recv_cq = cq,
				      .qp_type = IBV_QPT_RC,
				      .cap = {.max_send_wr = 4, .max_send_sge = 1, .max_inline_data = 5000}};

	CHECK(cq && !ibv_create_qp(pd, &qa) && errno == EINVAL);
	SAID("max_inline_data 5000");
	SAID("limit of 512");
}

/* N3.9: a full receive queue; the error comes back with the sign that the manual page promises. */
static void receive_queue_full(void)
{
	int n = 0, err;

	pair_open();
	while (!(err = kit_recv(&b, 9, 0, 8)))
		n++;
	CHECK(err == ENOMEM, "%d", err);
	SAID("ibv_post_recv");
	SAID("(ENOMEM)");
	SAID("the receive queue of QP 0x%06x is full: all %d requests (max_recv_wr) are outstanding; no "
	     "message "
	     "has arrived for them: post fewer, or create the QP with a larger max_recv_wr",
	     b.qp->qp_num, n);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(kit_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0), 0);
		expect(IBV_WC_SUCCESS);
	}
	CHECK_EQ(kit_recv(&b, 9, 0, 8), ENOMEM);
	SAID("are outstanding; messages have arrived for 2 of them: poll the CQ");
}

/* The same of an SRQ. */
static void srq_full(void)
{
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = 2, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &attr);
	struct ibv_sge none[2] = {0};
	struct ibv_recv_wr wr = {0}, *bad;
	uint32_t number = 0;
	int n = 0, err;

	CHECK(srq && !ibv_get_srq_num(srq, &number));
	while (!(err = ibv_post_srq_recv(srq, &wr, &bad)))
		n++;
	CHECK_EQ(err, ENOMEM);
	SAID("ibv_post_srq_recv: the receive queue of SRQ 0x%06x is full: all %d requests (max_wr) are "
	     "outstanding; no message has arrived for them: post fewer, or create the SRQ with a larger "
	     "max_wr",
	     number, n);
	wr.sg_list = none;
	wr.num_sge = 33;
	CHECK_EQ(ibv_post_srq_recv(srq, &wr, &bad), EINVAL);
	SAID("num_sge 33 exceeds the limit of SRQ 0x%06x, ", number);
	CHECK(!ibv_destroy_srq(srq));
}

/* N3.11: to RTR with an index beyond the GID table. */
static void gid_beyond_the_table(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
				   .path_mtu = IBV_MTU_1024,
				   .max_dest_rd_atomic = 1,
				   .min_rnr_timer = 1,
				   .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 8}}};

	kit_end_open(&a, pd, 8, PAGE);
	attr.dest_qp_num = a.qp->qp_num;
	attr.ah_attr.grh.dgid = a.card.gid;
	CHECK(ibv_modify_qp(a.qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == EINVAL);
	SAID("ibv_modify_qp");
	SAID("GID index 8 is out of range: the table has 8 entries, 0 to 7");
}

/* N3.11, in other words: an attribute is missing. */
static void attributes_missing(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024};

	kit_end_open(&a, pd, 8, PAGE);
	CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_PATH_MTU) == EINVAL);
	SAID("ibv_modify_qp");
	SAID("INIT to RTR");
	SAID("IBV_QP_DEST_QPN");
}

/* N3.11, at the other end: it was started without a GID's index, and what it sent is copied. */
static void gid_never_given(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
				   .path_mtu = IBV_MTU_1024,
				   .max_dest_rd_atomic = 1,
				   .min_rnr_timer = 1,
				   .ah_attr = {.port_num = 1}};

	kit_end_open(&a, pd, 8, PAGE);
	attr.dest_qp_num = a.qp->qp_num;
	CHECK(ibv_modify_qp(a.qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == EINVAL);
	SAID("ibv_modify_qp");
	SAID("is_global is 0, but RoCE requires a GRH");
	SAID("QP 0x%06x: is_global is 0, but RoCE requires a GRH; grh.dgid is zero", a.qp->qp_num);
	SAID("the peer did not send its GID or read an empty entry of its GID table");
}

/* N4.1: a local protection error: the buffer's region was deregistered while the request was on its way. */
static void stale_local_key(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	uint32_t gone;

	pair_open();
	gone = a.mr->lkey;
	sge = (struct ibv_sge){(uintptr_t)a.buf, 8, gone};
	CHECK(!ibv_dereg_mr(a.mr));
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	expect(IBV_WC_LOC_PROT_ERR);
	SAID("QP 0x%06x: SEND wr_id 0x1 ended with IBV_WC_LOC_PROT_ERR", a.qp->qp_num);
	SAID("L_Key 0x%08x is stale: its region was deregistered", gone);
}

/* N4.2: the remote address was never filled in. */
static void remote_address_0(void)
{
	pair_open();
	ask(IBV_WR_RDMA_READ, b.mr->rkey, 0, 64);
	expect(IBV_WC_REM_ACCESS_ERR);
	SAID("RDMA READ wr_id 0x1");
	SAID("range [0x0, +64) lies outside region [0x%" PRIxPTR
	     ", +%d) of R_Key 0x%08x; remote_addr is 0, so it was never set; set it to the address that the "
	     "peer sends",
	     (uintptr_t)b.buf, PAGE, b.mr->rkey);
	SAID("(reported by the peer)");
}

/* N4.3: a key that is right, but of another protection domain. */
static void key_of_another_pd(void)
{
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct ibv_mr *mr;

	pair_open();
	mr = other ? ibv_reg_mr(other, b.buf, PAGE, KIT_ALL) : NULL;
	CHECK(mr);
	ask(IBV_WR_RDMA_WRITE, mr->rkey, (uintptr_t)b.buf, 8);
	expect(IBV_WC_REM_ACCESS_ERR);
	SAID("R_Key 0x%08x belongs to a different protection domain than the queue pair", mr->rkey);
	SAID("that range lies in the region of R_Key 0x%08x", b.mr->rkey);
}

/* N4.4: a region from a cache, which was registered without atomics. */
static void no_atomics(void)
{
	struct ibv_mr *mr;

	pair_open();
	mr = ibv_reg_mr(pd, b.buf, PAGE,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	ask(IBV_WR_ATOMIC_FETCH_AND_ADD, mr->rkey, (uintptr_t)b.buf, 8);
	expect(IBV_WC_REM_ACCESS_ERR);
	SAID("fetch-and-add wr_id 0x1");
	SAID("R_Key 0x%08x does not permit REMOTE_ATOMIC", mr->rkey);
	SAID("has LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ; register it with IBV_ACCESS_REMOTE_ATOMIC");
}

static void meet(struct board *d, struct kit_end *e, int me)
{
	d->card[me] = e->card;
	atomic_fetch_add(&d->step, 1);
	kit_until(&d->step, 2);
	kit_connect(e, &d->card[!me]);
	atomic_fetch_add(&d->step, 1);
	kit_until(&d->step, 4);
}

/* The process that asks uses a key of its own where its peer's belongs. */
static void ask_with_own_key(struct board *d)
{
	struct ibv_context *c = kit_open();
	struct ibv_pd *domain = ibv_alloc_pd(c);
	struct ibv_mr *mr = NULL;
	struct kit_card to;
	struct kit_end e;

	kit_end_open(&e, domain, 8, PAGE);
	for (int i = 0; i < 20; i++)
		mr = ibv_reg_mr(domain, e.buf, PAGE, KIT_ALL);
	meet(d, &e, 1);
	to = d->card[0];
	to.rkey = mr->rkey;
	CHECK(!kit_post(&e, IBV_WR_RDMA_READ, 1, 0, 8, &to, 0));
	CHECK(kit_wait(&e, 20).status == IBV_WC_REM_ACCESS_ERR);
	_exit(0);
}

/* The process that asks gives an address of its own, with the peer's key. */
static void ask_with_own_address(struct board *d)
{
	struct ibv_pd *domain = ibv_alloc_pd(kit_open());
	uint8_t *own = alone(4 * PAGE, PROT_READ | PROT_WRITE);
	struct kit_card to;
	struct kit_end e;

	kit_end_open(&e, domain, 8, PAGE);
	CHECK(ibv_reg_mr(domain, own, 4 * PAGE, KIT_ALL));
	meet(d, &e, 1);
	to = d->card[0];
	CHECK((uintptr_t)own + 4 * PAGE <= to.addr || to.addr + PAGE <= (uintptr_t)own, "they overlap");
	to.addr = (uintptr_t)own;
	CHECK_EQ(kit_post(&e, IBV_WR_RDMA_READ, 1, 0, 8, &to, 0), 0);
	CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_REM_ACCESS_ERR);
	_exit(0);
}

/* N4.2, another way: the remote address is one of the requester's own. */
static void own_address(void)
{
	struct board *d = kit_shared(sizeof *d);
	pid_t pid = kit_fork();

	if (!pid)
		ask_with_own_address(d);
	kit_end_open(&b, pd, 8, PAGE);
	meet(d, &b, 0);
	CHECK(!kit_reap(pid));
	SAID(", +8) lies outside region [0x%" PRIxPTR ", +%d) of R_Key 0x%08x", (uintptr_t)b.buf, PAGE,
	     b.mr->rkey);
	LOGGED("; the range lies in a region of the requester's own process: the remote address must be an "
	       "address of the peer (reported by the peer)");
}

/* N4.2-own, but the key is stale: the address was right while it was not. */
static void own_address_and_stale_key(void)
{
	struct board *d = kit_shared(sizeof *d);
	pid_t pid = kit_fork();

	if (!pid)
		ask_with_own_address(d);
	kit_end_open(&b, pd, 8, PAGE);
	CHECK(!ibv_dereg_mr(b.mr));
	meet(d, &b, 0);
	CHECK(!kit_reap(pid));
	SAID("R_Key 0x%08x is stale: its region was deregistered", b.card.rkey);
	LOGGED("(reported by the peer)");
	SAID_NOT("requester's own process");
}

/* N4.4, the other half: a key is used on an endpoint that it does not belong to. */
static void key_of_another_endpoint(void)
{
	struct board *d = kit_shared(sizeof *d);
	pid_t pid = kit_fork();

	if (!pid)
		ask_with_own_key(d);
	kit_end_open(&b, pd, 8, PAGE);
	meet(d, &b, 0);
	CHECK(!kit_reap(pid));
	SAID(": the device that it was used on never issued it");
	SAID("process %d, which used it, has such an R_Key itself: it must use the key that its peer "
	     "sends, and not its own",
	     (int)pid);
	LOGGED("[%d]: QP ", (int)pid); /* the other end knows it as well */
	LOGGED("(reported by the peer)");
	SAID("the range [0x%" PRIxPTR ", +8) lies in the region [0x%" PRIxPTR ", +%d) of R_Key 0x%08x",
	     (uintptr_t)b.buf, (uintptr_t)b.buf, PAGE, b.mr->rkey);
}

/* N4.5: the L_Key was sent to the peer. */
static void lkey_for_rkey(void)
{
	pair_open();
	ask(IBV_WR_RDMA_WRITE, b.mr->lkey, (uintptr_t)b.buf, 8);
	expect(IBV_WC_REM_ACCESS_ERR);
	SAID("L_Key 0x%08x was used where an R_Key is required (this region's R_Key is 0x%08x); the process "
	     "that "
	     "owns the region must send mr->rkey to its peer, and not mr->lkey; a program that relies on "
	     "equal keys, as some adapters have them, needs --profile=rxe",
	     b.mr->lkey, b.mr->rkey);
}

/* N4.6: the opcode of a failed completion means nothing; which request was it? */
static void which_request(void)
{
	struct ibv_wc wc;

	pair_open();
	ask(IBV_WR_RDMA_READ, b.mr->rkey, (uintptr_t)b.buf + PAGE - 4, 8);
	do {
		wc = kit_wait(&a, 10);
	} while (wc.wr_id != 1);
	CHECK(wc.status == IBV_WC_REM_ACCESS_ERR && wc.qp_num == a.qp->qp_num);
	SAID("QP 0x%06x: RDMA READ wr_id 0x1 ended with IBV_WC_REM_ACCESS_ERR", a.qp->qp_num);
	SAID("by 4 bytes at the end");
}

/* N6.2: the memory was freed before its region was deregistered. */
static void freed_before_deregistration(void)
{
	uint8_t *p = alone(PAGE, PROT_READ | PROT_WRITE);
	struct ibv_mr *mr;

	pair_open();
	mr = ibv_reg_mr(pd, p, PAGE, KIT_ALL);
	CHECK(mr && !munmap(p, PAGE));
	ask(IBV_WR_RDMA_WRITE, mr->rkey, (uintptr_t)p, 8);
	expect(IBV_WC_REM_ACCESS_ERR);
	SAID("the memory at [0x%" PRIxPTR ", +8) of R_Key 0x%08x is no longer mapped", (uintptr_t)p,
	     mr->rkey);
}

/* N6.2, in part: the request's own range, and where in it the memory ends. */
static void half_of_it_freed(void)
{
	uint8_t *p = alone(2 * PAGE, PROT_READ | PROT_WRITE);
	struct ibv_sge piece;
	struct ibv_mr *mr;

	pair_open();
	mr = ibv_reg_mr(pd, p, 2 * PAGE, KIT_ALL | IBV_ACCESS_ON_DEMAND);
	CHECK(mr && !munmap(p + PAGE, PAGE));
	piece = (struct ibv_sge){(uintptr_t)p, 2 * PAGE, mr->lkey};
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &piece, 1) == EFAULT);
	SAID("ibv_advise_mr: the %d bytes at 0x%" PRIxPTR
	     " cannot be written: nothing is mapped at 0x%" PRIxPTR,
	     2 * PAGE, (uintptr_t)p, (uintptr_t)p + PAGE);
	ask(IBV_WR_RDMA_WRITE, mr->rkey, (uintptr_t)p + PAGE - 1000, 2000);
	expect(IBV_WC_REM_ACCESS_ERR);
	SAID("the memory at [0x%" PRIxPTR ", +2000) of R_Key 0x%08x is no longer mapped",
	     (uintptr_t)p + PAGE - 1000, mr->rkey);
	SAID("the bytes before 0x%" PRIxPTR " are accessible", (uintptr_t)p + PAGE);
}

/* N7.5: a reason for what fails on demand: the region is registered for writing, its memory may only be read.
 */
static void on_demand_over_read_only(void)
{
	uint8_t *p = alone(PAGE, PROT_READ);
	struct ibv_mr *mr;

	pair_open();
	mr = ibv_reg_mr(pd, p, PAGE, KIT_ALL | IBV_ACCESS_ON_DEMAND);
	CHECK(mr);
	ask(IBV_WR_RDMA_WRITE, mr->rkey, (uintptr_t)p + 24, 16);
	expect(IBV_WC_REM_ACCESS_ERR);
	SAID("the memory at [0x%" PRIxPTR ", +16) of R_Key 0x%08x is no longer mapped, or lacks the "
	     "required permission",
	     (uintptr_t)p + 24, mr->rkey);
}

/* Its queue pair is another one, which receives from the SRQ. */
static void share_receives(struct kit_end *e, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr qa = {.send_cq = e->cq,
				      .recv_cq = e->cq,
				      .srq = srq,
				      .qp_type = IBV_QPT_RC,
				      .cap = {.max_send_wr = 8, .max_send_sge = 1}};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	CHECK(!ibv_destroy_qp(e->qp));
	e->qp = ibv_create_qp(pd, &qa);
	CHECK(e->qp);
	CHECK(!ibv_modify_qp(e->qp, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	e->card.qpn = e->qp->qp_num;
}

/* b has just been connected to a, which is to give up at the first RNR NAK. */
static void connect_impatient(struct ibv_srq *srq)
{
	struct ibv_qp_attr attr = {
	    .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 0, .max_rd_atomic = 1};
	struct kit_card card;

	pair_open();
	kit_end_close(&a);
	kit_end_open(&a, pd, 8, PAGE);
	card = a.card;
	kit_end_close(&b);
	kit_end_open(&b, pd, 8, PAGE);
	if (srq)
		share_receives(&b, srq);
	kit_connect(&b, &card);
	{
		struct ibv_qp_attr rtr = {
		    .qp_state = IBV_QPS_RTR,
		    .path_mtu = IBV_MTU_1024,
		    .dest_qp_num = b.card.qpn,
		    .rq_psn = b.card.psn,
		    .max_dest_rd_atomic = 1,
		    .min_rnr_timer = 1,
		    .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = b.card.gid}}};

		CHECK(!ibv_modify_qp(a.qp, &rtr,
				     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	}
	attr.sq_psn = a.card.psn;
	CHECK(!ibv_modify_qp(a.qp, &attr,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				 IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* N7.7: the receiver is not ready, and rnr_retry is 0. */
static void no_rnr_retries(void)
{
	connect_impatient(NULL);
	CHECK(!kit_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0));
	expect(IBV_WC_RNR_RETRY_EXC_ERR);
	SAID("queue pair 0x%06x had no receive request for this message, and rnr_retry = 0 permits no retry; "
	     "post receive requests earlier",
	     b.qp->qp_num);
	SAID_NOT("none followed");
}

/* N7.7-used-up: the receiver had posted, and does not post again. */
static void no_second_receive(void)
{
	connect_impatient(NULL);
	CHECK(!kit_recv(&b, 7, 0, 8));
	CHECK(!kit_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0));
	expect(IBV_WC_SUCCESS);
	CHECK(!kit_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0));
	expect(IBV_WC_RNR_RETRY_EXC_ERR);
	SAID("queue pair 0x%06x had no receive request for this message, and rnr_retry = 0 permits no retry "
	     "(those posted earlier were used, and none followed for 20 ms); post more",
	     b.qp->qp_num);
}

/* N7.7-srq: the SRQ of the receiver is empty. */
static void starved_srq(void)
{
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = 2, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &attr);
	uint32_t number = 0;

	CHECK(srq && !ibv_get_srq_num(srq, &number));
	connect_impatient(srq);
	CHECK_EQ(kit_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0), 0);
	expect(IBV_WC_RNR_RETRY_EXC_ERR);
	SAID("queue pair 0x%06x had no receive request for this message, and rnr_retry = 0 permits no retry; "
	     "it receives from SRQ 0x%06x: post receive requests to that SRQ (ibv_post_srq_recv) earlier",
	     b.qp->qp_num, number);
}

const struct situation protection[] = {
    {"N3.4", out_of_descriptors, NULL},
    {"N3.5", cannot_be_opened, NULL},
    {"N3.6", longer_than_its_region, NULL},
    {"N3.7", status_12, NULL},
    {"N3.7-inline", inline_size, NULL},
    {"N3.9", receive_queue_full, NULL},
    {"N3.9-srq", srq_full, NULL},
    {"N3.11", gid_beyond_the_table, NULL},
    {"N3.11-mask", attributes_missing, NULL},
    {"N3.11-gid", gid_never_given, NULL},
    {"N3.11-dgid", gid_of_another_machine, NULL},
    {"N3.11-number", number_never_filled_in, NULL},
    {"N3.11-byte-order", number_in_network_order, NULL},
    {"N3.11-type", another_type, NULL},
    {"N4.1", stale_local_key, NULL},
    {"N4.2", remote_address_0, NULL},
    {"N4.2-own", own_address, NULL},
    {"N4.1-own", own_address_and_stale_key, NULL},
    {"N4.3", key_of_another_pd, NULL},
    {"N4.4", no_atomics, NULL},
    {"N4.4-endpoint", key_of_another_endpoint, NULL},
    {"N4.5", lkey_for_rkey, NULL},
    {"N4.6", which_request, NULL},
    {"N6.2", freed_before_deregistration, NULL},
    {"N6.2-part", half_of_it_freed, NULL},
    {"N7.5", on_demand_over_read_only, NULL},
    {"N7.7", no_rnr_retries, NULL},
    {"N7.7-srq", starved_srq, NULL},
    {"N7.7-used-up", no_second_receive, NULL},
    {0},
};
