/* Programs that touch buffers which the adapter has, and their right twins.
 *
 *	pairs [CASE...] right|wrong [wait]		all of them, without a name
 *
 * Each case does something with two connected queue pairs of its own.  The wrong program has one line
 *more, or that line at another place: if (wrong).  It is built with each sanitizer, and runs on an ordinary
 *build of Verbena; pairs.py says which means notices which case. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rdma_verbs.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 4096, MANY = 8, QUEUES = 140, ACCESS = 15 | IBV_ACCESS_MW_BIND };

static bool wrong;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *scq, *rcq;
static struct ibv_qp *qp[2];
static struct ibv_srq *srq;
static struct ibv_ah *ah;
static char *a, *b; /* two buffers */
static struct ibv_mr *am, *bm;
static volatile char sink;

#define CHECK(x)                                                            \
	do {                                                                \
		if (!(x)) {                                                 \
			fprintf(stderr, "line %d: %s: %m\n", __LINE__, #x); \
			exit(3);                                            \
		}                                                           \
	} while (0)

static void connect_to(struct ibv_qp *q, uint32_t peer, const union ibv_gid *gid)
{
	struct ibv_qp_attr x; /* its other members are not set: the mask does not name them */
	int ud = q->qp_type == IBV_QPT_UD;

	x.qp_state = IBV_QPS_INIT;
	x.pkey_index = 0;
	x.port_num = 1;
	if (ud)
		x.qkey = 0x111;
	else
		x.qp_access_flags =
		    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	CHECK(!ibv_modify_qp(q, &x,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				 (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
	x = (struct ibv_qp_attr){
	    .qp_state = IBV_QPS_RTR,
	    .path_mtu = IBV_MTU_1024,
	    .dest_qp_num = peer,
	    .max_dest_rd_atomic = 4,
	    .min_rnr_timer = 1,
	    .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 1}}};
	CHECK(!ibv_modify_qp(q, &x,
			     ud ? IBV_QP_STATE
				: IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	if (ud)
		CHECK(ah = ibv_create_ah(pd, &x.ah_attr));
	x = (struct ibv_qp_attr){
	    .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
	CHECK(!ibv_modify_qp(q, &x,
			     ud ? IBV_QP_STATE | IBV_QP_SQ_PSN
				: IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void open_all(enum ibv_qp_type type, bool shared)
{
	struct ibv_srq_init_attr s = {.attr = {.max_wr = 16, .max_sge = 2}};
	struct ibv_device **list = ibv_get_device_list(NULL);
	union ibv_gid gid;

	srq = NULL;
	ah = NULL;
	CHECK(list && list[0]);
	CHECK(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(scq = ibv_create_cq(context, 64, NULL, NULL, 0));
	CHECK(rcq = ibv_create_cq(context, 64, NULL, NULL, 0));
	CHECK(!shared || (srq = ibv_create_srq(pd, &s)));
	CHECK(a = malloc(SIZE));
	CHECK(b = malloc(SIZE));
	memset(a, 1, SIZE);
	memset(b, 2, SIZE);
	CHECK(am = ibv_reg_mr(pd, a, SIZE, ACCESS));
	CHECK(bm = ibv_reg_mr(pd, b, SIZE, ACCESS));
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr x = {
		    .send_cq = scq, .recv_cq = rcq, .srq = srq, .qp_type = type, .cap = {16, 16, 2, 2, 64}};

		CHECK(qp[i] = ibv_create_qp(pd, &x));
	}
	connect_to(qp[0], qp[1]->qp_num, &gid);
	connect_to(qp[1], qp[0]->qp_num, &gid);
}

static struct ibv_send_wr request(enum ibv_wr_opcode opcode, struct ibv_sge *s)
{
	struct ibv_send_wr w = {
	    .wr_id = 5, .sg_list = s, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		w.wr.atomic.remote_addr = (uintptr_t)b;
		w.wr.atomic.rkey = bm->rkey;
		w.wr.atomic.compare_add = 1;
	} else if (opcode != IBV_WR_SEND) {
		w.wr.rdma.remote_addr = (uintptr_t)b;
		w.wr.rdma.rkey = bm->rkey;
	}
	return w;
}

static void post(enum ibv_wr_opcode opcode, char *at, uint32_t n, unsigned flags)
{
	struct ibv_sge s = {(uintptr_t)at, n, am->lkey};
	struct ibv_send_wr w = request(opcode, &s), *bad;

	w.send_flags = flags;
	if (ah) {
		w.wr.ud.ah = ah;
		w.wr.ud.remote_qpn = qp[1]->qp_num;
		w.wr.ud.remote_qkey = 0x111;
	}
	CHECK(!ibv_post_send(qp[0], &w, &bad));
}

static void receive(char *at, uint32_t n, uint64_t id)
{
	struct ibv_sge s = {(uintptr_t)at, n, bm->lkey};
	struct ibv_recv_wr w = {.wr_id = id, .sg_list = &s, .num_sge = 1}, *bad;

	CHECK(srq ? !ibv_post_srq_recv(srq, &w, &bad) : !ibv_post_recv(qp[1], &w, &bad));
}

static struct ibv_wc poll(struct ibv_cq *cq)
{
	struct ibv_wc wc; /* MemorySanitizer has to be told that it was filled in */
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		sched_yield(); /* valgrind runs one thread at a time */
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
	return wc;
}

static void use(const char *at, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (at[i] > 1) /* MemorySanitizer looks at branches */
			sink = 1;
}

/* ---- the cases ---- */

static void send_buffer(void)
{
	receive(b, SIZE, 1);
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	if (wrong)
		a[17] = 9;
	poll(scq);
	a[17] = 9;
	poll(rcq);
}

static void send_freed(void)
{
	char *p = malloc(SIZE);

	memset(p, 1, SIZE);
	CHECK(!ibv_dereg_mr(am));
	CHECK(am = ibv_reg_mr(pd, p, SIZE, 15));
	receive(b, SIZE, 1);
	if (wrong)
		free(p);
	post(IBV_WR_SEND, p, 64, IBV_SEND_SIGNALED);
	poll(scq);
	poll(rcq);
}

/* The adapter mostly has read the buffer by then; an adapter of hardware has not. */
static void freed_early(void)
{
	char *p = malloc(SIZE);

	memset(p, 1, SIZE);
	CHECK(!ibv_dereg_mr(am));
	CHECK(am = ibv_reg_mr(pd, p, SIZE, 15));
	receive(b, SIZE, 1);
	post(IBV_WR_SEND, p, 64, IBV_SEND_SIGNALED);
	if (wrong)
		free(p);
	poll(scq);
	if (!wrong)
		free(p);
	poll(rcq);
}

static void send_undefined(void)
{
	char *p = malloc(SIZE);

	if (!wrong)
		memset(p, 1, SIZE);
	CHECK(!ibv_dereg_mr(am));
	CHECK(am = ibv_reg_mr(pd, p, SIZE, 15));
	receive(b, SIZE, 1);
	receive(b, SIZE, 2); /* it is outstanding when the report is counted */
	post(IBV_WR_SEND, p, 64, IBV_SEND_SIGNALED);
	poll(scq);
	poll(rcq);
}

static void receive_buffer(void)
{
	receive(b, 100, 5);
	if (wrong)
		use(b + 8, 1);
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	poll(rcq);
	use(b, 64);
	b[99] = 1;
}

/* The completion of one receive says nothing of the next. */
static void receive_next(void)
{
	receive(b, 64, 1);
	receive(b + 128, 64, 2);
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	poll(rcq);
	use(wrong ? b + 128 : b, 64);
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	poll(rcq);
	use(b + 128, 64);
}

/* Two receives of one buffer are legal; it is the program's once both are back, also what no message filled.
 */
static void receive_twice(void)
{
	receive(b, 128, 1);
	receive(b, 128, 2);
	for (int i = 0; i < 2; i++) {
		post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
		poll(scq);
		poll(rcq);
		if (i || wrong)
			use(b, 128);
	}
}

/* The second one begins within the first one. */
static void receive_overlap(void)
{
	receive(b, 128, 1);
	receive(b + 64, 128, 2);
	for (int i = 0; i < 2; i++) {
		post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
		poll(scq);
		poll(rcq);
		if (i || wrong)
			use(b + 64, 64);
	}
}

static void receive_freed(void)
{
	char *p = malloc(SIZE);

	CHECK(!ibv_dereg_mr(bm));
	CHECK(bm = ibv_reg_mr(pd, p, SIZE, 15));
	receive(p, SIZE, 1);
	if (wrong)
		free(p);
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	poll(rcq);
	if (!wrong)
		free(p);
}

static void write_source(void)
{
	post(IBV_WR_RDMA_WRITE, a, SIZE, IBV_SEND_SIGNALED);
	if (wrong)
		a[3] = 3;
	poll(scq);
	a[3] = 3;
	use(b, 8); /* the completion tells of the peer's side, too, which is this process */
}

static void write_target_freed(void)
{
	char *p = malloc(SIZE);

	CHECK(!ibv_dereg_mr(bm));
	CHECK(bm = ibv_reg_mr(pd, p, SIZE, 15));
	b = p;
	if (wrong)
		free(p);
	post(IBV_WR_RDMA_WRITE, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	if (!wrong)
		free(p);
}

static _Atomic int looks;

static void *waits_for_word(void *word)
{
	_Atomic uint32_t *half = (_Atomic uint32_t *)((char *)word + 4); /* of what the peer stores */
	volatile uint32_t *plain = (volatile uint32_t *)half;

	while (wrong ? *plain != 0x01010101 : atomic_load(half) != 0x01010101) {
		atomic_fetch_add_explicit(&looks, 1, memory_order_relaxed); /* which orders nothing */
		sched_yield();
	}
	use(word, 8);
	return NULL;
}

/* A sanitizer sees by chance that nothing orders a WRITE and such a look, so there are many. */
static void write_watched(void)
{
	struct ibv_sge s = {(uintptr_t)a, 8, am->lkey};
	struct ibv_send_wr w = request(IBV_WR_RDMA_WRITE, &s), *bad;
	pthread_t t;

	for (char *word = b; word < b + 128; word += 8) {
		atomic_store(&looks, 0);
		CHECK(!pthread_create(&t, NULL, waits_for_word, word));
		while (!atomic_load_explicit(&looks, memory_order_relaxed)) /* at the old word */
			sched_yield();
		w.wr.rdma.remote_addr = (uintptr_t)word;
		CHECK(!ibv_post_send(qp[0], &w, &bad));
		CHECK(!pthread_join(t, NULL));
		poll(scq);
	}
}

static void read_target(void)
{
	post(IBV_WR_RDMA_READ, a, SIZE, IBV_SEND_SIGNALED);
	if (wrong)
		use(a + 100, 1);
	poll(scq);
	use(a, SIZE);
}

static void atomic_result(void)
{
	post(IBV_WR_ATOMIC_FETCH_AND_ADD, a, 8, IBV_SEND_SIGNALED);
	if (wrong)
		use(a, 8);
	poll(scq);
	use(a, 8);
}

static void datagram(void)
{
	receive(b, 256, 1);
	if (wrong)
		b[45] = 1;
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	poll(rcq);
	use(b + 40, 64);
}

static void shared_queue(void)
{
	receive(b, 64, 1);
	receive(b + 128, 64, 2);
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	CHECK(poll(rcq).wr_id == 1);
	use(wrong ? b + 128 : b, 64);
}

/* Inline data is the program's again at once. */
static void inline_data(void)
{
	receive(b, SIZE, 1);
	post(IBV_WR_SEND, a, 32, IBV_SEND_SIGNALED | (wrong ? 0 : IBV_SEND_INLINE));
	a[3] = 7;
	poll(scq);
	poll(rcq);
}

/* A completion covers the unsignaled requests before it, and none behind it. */
static void unsignaled(void)
{
	for (int i = 0; i < 3; i++)
		receive(b + 64 * i, 64, i);
	post(IBV_WR_SEND, a, 64, 0);
	post(IBV_WR_SEND, a + 64, 64, IBV_SEND_SIGNALED);
	post(IBV_WR_SEND, a + 128, 64, IBV_SEND_SIGNALED);
	poll(scq);
	a[wrong ? 130 : 1] = 5;
	poll(scq);
	for (int i = 0; i < 3; i++)
		poll(rcq);
}

static void *polls(void *unused)
{
	poll(rcq);
	if (!wrong)
		use(b, 64);
	return unused;
}

/* One thread polls, and the other one uses the buffer. */
static void two_threads(void)
{
	pthread_t t;

	receive(b, 64, 1);
	CHECK(!pthread_create(&t, NULL, polls, NULL));
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	if (wrong)
		use(b, 64);
	CHECK(!pthread_join(t, NULL));
	use(b, 64);
	poll(scq);
}

static int said; /* set before the message that tells of it */

static void *hears(void *unused)
{
	if (!wrong)
		poll(rcq);
	use(said == 7 ? a : b, 1);
	return unused;
}

/* A message orders what two threads do, as one of a pipe does. */
static void ordered(void)
{
	pthread_t t;

	receive(b, 64, 1);
	CHECK(!pthread_create(&t, NULL, hears, NULL));
	said = 7;
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	CHECK(!pthread_join(t, NULL));
	poll(scq);
}

/* A child's copy of a posted buffer is its own. */
static void forked(void)
{
	int status;
	pid_t child;

	receive(b, 64, 1);
	child = fork();
	if (!child) {
		use(b, 64);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
	if (wrong)
		use(b, 64);
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	poll(rcq);
	use(b, 64);
}

/* A queue pair that is gone has no buffers. */
static void destroyed(void)
{
	receive(b, 64, 1);
	if (wrong)
		use(b, 64);
	CHECK(!ibv_destroy_qp(qp[1]));
	use(b, 64);
	free(b);
}

/* What a message did not fill is as it was. */
static void received_short(void)
{
	char *p = malloc(SIZE);

	CHECK(!ibv_dereg_mr(bm));
	CHECK(bm = ibv_reg_mr(pd, p, SIZE, 15));
	receive(p, 128, 1);
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	poll(rcq);
	if (p[wrong ? 100 : 63] == 1)
		sink = 1;
}

/* Buffers that do not begin or end at 8 bytes leave their neighbours alone. */
static void neighbours(void)
{
	receive(b + 3, 10, 1);
	if (wrong)
		b[5] = 1;
	b[0] = b[1] = b[2] = b[13] = b[14] = 1;
	post(IBV_WR_SEND, a, 10, IBV_SEND_SIGNALED);
	poll(scq);
	poll(rcq);
	use(b, 16);
}

/* A buffer that ends within 8 bytes, as its memory does. */
static void tail(void)
{
	char *p = malloc(100);

	CHECK(!ibv_dereg_mr(bm));
	CHECK(bm = ibv_reg_mr(pd, p, 100, 15));
	receive(p, 100, 1);
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	poll(rcq);
	use(p + (wrong ? 100 : 0), 1);
}

/* The queue pairs' accesses to one buffer, of more than a page and of less, are none of the program's. */
static void large(void)
{
	enum { LONG = 3 * SIZE };
	char *p = malloc(2 * LONG);
	struct ibv_sge s;
	struct ibv_send_wr w = request(IBV_WR_RDMA_READ, &s), *bad;

	memset(p, 1, 2 * LONG);
	CHECK(am = bm = ibv_reg_mr(pd, p, 2 * LONG, 15));
	w.wr.rdma.rkey = bm->rkey;
	w.wr.rdma.remote_addr = (uintptr_t)p + LONG;
	for (int i = 0; i < 3; i++) {
		receive(p + LONG, LONG, 1);
		if (i)
			post(IBV_WR_SEND, p, LONG, IBV_SEND_SIGNALED);
		s = (struct ibv_sge){(uintptr_t)p + SIZE, i == 2 ? 2 * SIZE : 64, am->lkey};
		CHECK(!ibv_post_send(qp[1], &w, &bad));
		if (!i)
			post(IBV_WR_SEND, p, LONG, IBV_SEND_SIGNALED);
		if (wrong)
			p[2 * SIZE] = 1;
		poll(scq);
		poll(scq);
		poll(rcq);
	}
	p[2 * SIZE] = 1;
}

static void many(void)
{
	for (int i = 0; i < MANY; i++)
		receive(b + 64 * i, 64, 1);
	for (int i = 0; i < MANY; i++)
		post(IBV_WR_SEND, a, 64, i == MANY - 1 ? IBV_SEND_SIGNALED : 0);
	poll(scq);
	for (int i = 0; i < MANY; i++) {
		poll(rcq);
		use(b + 64 * (wrong && i < MANY - 1 ? i + 1 : i), 64);
	}
}

/* More queues than the sanitizer has slots for threads; each sends twice. */
static void queues(void)
{
	struct ibv_qp_init_attr x = {.qp_type = IBV_QPT_RC, .cap = {2, 2, 1, 1, 0}};
	struct ibv_qp *all[QUEUES][2], *first[2] = {qp[0], qp[1]};
	union ibv_gid gid;

	CHECK(x.send_cq = ibv_create_cq(context, QUEUES, NULL, NULL, 0));
	CHECK(x.recv_cq = ibv_create_cq(context, QUEUES, NULL, NULL, 0));
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	for (int i = 0; i < QUEUES; i++) {
		for (int k = 0; k < 2; k++)
			CHECK(all[i][k] = ibv_create_qp(pd, &x));
		connect_to(all[i][0], all[i][1]->qp_num, &gid);
		connect_to(all[i][1], all[i][0]->qp_num, &gid);
	}
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < QUEUES; i++) {
			memcpy(qp, all[i], sizeof(qp));
			receive(b + 16 * i, 16, 1);
			post(IBV_WR_SEND, a + 16 * i, 16, IBV_SEND_SIGNALED);
		}
		if (wrong && round)
			a[16 * 3] = 9;
		for (int i = 0; i < QUEUES; i++) {
			poll(x.send_cq);
			poll(x.recv_cq);
		}
		use(b, 16 * QUEUES);
		a[16 * 3] = 9;
	}
	for (int i = 0; i < QUEUES; i++)
		CHECK(!ibv_destroy_qp(all[i][0]) && !ibv_destroy_qp(all[i][1]));
	memcpy(qp, first, sizeof(qp));
}

/* ---- what is made another way ---- */

/* Another CQ, SRQ or kind of queue pair: all is made anew. */
static void open_with(struct ibv_qp_init_attr_ex x, struct ibv_qp_init_attr_ex y)
{
	union ibv_gid gid;

	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr_ex *at = i ? &y : &x;

		CHECK(!ibv_destroy_qp(qp[i]));
		at->cap = (struct ibv_qp_cap){16, 16, 2, 2, 64};
		at->send_cq = scq;
		at->recv_cq = rcq;
		at->pd = pd;
		at->comp_mask |= at->qp_type == IBV_QPT_XRC_RECV ? 0 : IBV_QP_INIT_ATTR_PD;
		CHECK(qp[i] = ibv_create_qp_ex(context, at));
	}
	connect_to(qp[0], qp[1]->qp_num, &gid);
	connect_to(qp[1], qp[0]->qp_num, &gid);
}

/* The calls that build requests one by one. */
static void builder(void)
{
	struct ibv_qp_ex *x;

	open_with((struct ibv_qp_init_attr_ex){.qp_type = IBV_QPT_RC,
					       .comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					       .send_ops_flags = IBV_QP_EX_WITH_SEND},
		  (struct ibv_qp_init_attr_ex){.qp_type = IBV_QPT_RC});
	receive(b, SIZE, 1);
	x = ibv_qp_to_qp_ex(qp[0]);
	ibv_wr_start(x);
	x->wr_id = 5;
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(x);
	ibv_wr_set_sge(x, am->lkey, (uintptr_t)a, 64);
	CHECK(!ibv_wr_complete(x));
	if (wrong)
		a[17] = 9;
	poll(scq);
	a[17] = 9;
	poll(rcq);
}

/* Each step of a poll is one completion, and gives back one buffer. */
static void extended_cq(void)
{
	struct ibv_cq_init_attr_ex c = {.cqe = 64, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
	struct ibv_poll_cq_attr none = {0};
	struct ibv_cq_ex *cq;

	CHECK(cq = ibv_create_cq_ex(context, &c));
	rcq = ibv_cq_ex_to_cq(cq);
	open_with((struct ibv_qp_init_attr_ex){.qp_type = IBV_QPT_RC},
		  (struct ibv_qp_init_attr_ex){.qp_type = IBV_QPT_RC});
	for (int i = 0; i < 2; i++)
		receive(b + 128 * i, 64, 1 + (unsigned)i);
	for (int i = 0; i < 2; i++) {
		post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
		poll(scq);
	}
	while (ibv_start_poll(cq, &none) == ENOENT)
		sched_yield();
	CHECK(cq->wr_id == 1 && cq->status == IBV_WC_SUCCESS && ibv_wc_read_byte_len(cq) == 64);
	use(wrong ? b + 128 : b, 64);
	while (ibv_next_poll(cq) == ENOENT)
		sched_yield();
	CHECK(cq->wr_id == 2);
	use(b + 128, 64);
	ibv_end_poll(cq);
}

/* The receive of a shared queue in an XRC domain. */
static void xrc(void)
{
	struct ibv_xrcd_init_attr d = {
	    .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	struct ibv_srq_init_attr_ex s = {.attr = {.max_wr = 16, .max_sge = 2},
					 .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD |
						      IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
					 .srq_type = IBV_SRQT_XRC,
					 .cq = rcq,
					 .pd = pd};
	struct ibv_sge from = {(uintptr_t)a, 64, am->lkey};
	struct ibv_send_wr w = request(IBV_WR_SEND, &from), *bad;

	CHECK(s.xrcd = ibv_open_xrcd(context, &d));
	CHECK(srq = ibv_create_srq_ex(context, &s));
	open_with((struct ibv_qp_init_attr_ex){.qp_type = IBV_QPT_XRC_SEND},
		  (struct ibv_qp_init_attr_ex){
		      .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = s.xrcd});
	CHECK(!ibv_get_srq_num(srq, &w.qp_type.xrc.remote_srqn));
	receive(b, 64, 1);
	receive(b + 128, 64, 2);
	CHECK(!ibv_post_send(qp[0], &w, &bad));
	poll(scq);
	CHECK(poll(rcq).wr_id == 1);
	use(wrong ? b + 128 : b, 64);
}

/* A peer writes through a window, which ends before the region does. */
static void window(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_send_wr w = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;

	CHECK(mw);
	w.bind_mw.mw = mw;
	w.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	w.bind_mw.bind_info.mr = bm;
	w.bind_mw.bind_info.addr = (uintptr_t)b;
	w.bind_mw.bind_info.length = SIZE;
	w.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
	CHECK(!ibv_post_send(qp[1], &w, &bad));
	poll(scq);
	bm->rkey = w.bind_mw.rkey;
	if (wrong)
		free(b);
	post(IBV_WR_RDMA_WRITE, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	w = (struct ibv_send_wr){
	    .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = bm->rkey};
	CHECK(!ibv_post_send(qp[1], &w, &bad));
	poll(scq);
	CHECK(!ibv_dealloc_mw(mw));
	if (!wrong)
		free(b);
}

/* The first 40 bytes of a datagram's buffer are the adapter's too. */
static void datagram_header(void)
{
	receive(b, 256, 1);
	if (wrong)
		use(b + 20, 1);
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	if (poll(rcq).wc_flags & IBV_WC_GRH)
		use(b + 20, 20);
}

/* The buffer is the adapter's again once it is posted again. */
static void shared_queue_again(void)
{
	receive(b, 64, 1);
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	CHECK(poll(rcq).wr_id == 1);
	if (!wrong)
		use(b, 64);
	receive(b, 64, 1);
	if (wrong)
		use(b, 64);
}

/* The queue pair ends, and with it what its message has taken of the shared queue. */
static void shared_queue_left(void)
{
	receive(b, 64, 1);
	post(IBV_WR_SEND, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	if (wrong)
		use(b, 64);
	CHECK(!ibv_destroy_qp(qp[1]));
	use(b, 64);
}

static struct rdma_cm_id *listener;

static void *answers(void *unused)
{
	struct rdma_cm_id *id;
	struct ibv_wc wc;
	struct ibv_mr *mr;

	CHECK(!rdma_get_request(listener, &id));
	CHECK(said == 7);
	said = 8;
	CHECK(mr = rdma_reg_msgs(id, a, SIZE));
	use(id->event->param.conn.private_data, 6);
	CHECK(!rdma_accept(id, &(struct rdma_conn_param){.private_data = "world", .private_data_len = 6}));
	CHECK(!rdma_post_send(id, (void *)5, a, 64, mr, IBV_SEND_SIGNALED));
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!rdma_disconnect(id));
	return unused;
}

/* The helpers of rdma_cm.  Its messages order what two threads do, too. */
static void manager(void)
{
	struct ibv_qp_init_attr x = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *info;
	struct rdma_cm_id *id;
	char port[8];
	struct ibv_mr *mr;
	struct ibv_wc wc;
	pthread_t t;

	CHECK(!rdma_getaddrinfo("127.0.0.1", "0", &hints, &info));
	CHECK(!rdma_create_ep(&listener, info, NULL, &x));
	rdma_freeaddrinfo(info);
	CHECK(!rdma_listen(listener, 1));
	snprintf(port, sizeof(port), "%u", ntohs(rdma_get_src_port(listener)));
	CHECK(!pthread_create(&t, NULL, answers, NULL));
	hints.ai_flags = 0;
	CHECK(!rdma_getaddrinfo("127.0.0.1", port, &hints, &info));
	CHECK(!rdma_create_ep(&id, info, NULL, &x));
	rdma_freeaddrinfo(info);
	CHECK(mr = rdma_reg_msgs(id, b, SIZE));
	CHECK(!rdma_post_recv(id, (void *)7, b, 64, mr));
	said = 7;
	CHECK(!rdma_connect(id, &(struct rdma_conn_param){.private_data = "hello", .private_data_len = 6}));
	CHECK(said == 8);
	use(id->event->param.conn.private_data, 6);
	if (wrong)
		use(b, 64);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.wr_id == 7);
	use(b, wc.byte_len);
	rdma_disconnect(id); /* each end waits for the other */
	CHECK(!pthread_join(t, NULL));
}

/* A peer's WRITE ends before the region is deregistered.  No completion tells of it: the program looks for
 * the next WRITE, by a call that the sanitizer does not see. */
static void revoked(void)
{
	struct ibv_sge one = {(uintptr_t)a, 1, am->lkey};
	struct ibv_send_wr w = request(IBV_WR_RDMA_WRITE, &one), *bad;
	char next = 2;
	struct iovec to = {&next, 1}, from = {b + 128, 1};
	struct ibv_wc wc;

	post(IBV_WR_RDMA_WRITE, a, 64, IBV_SEND_SIGNALED);
	w.wr.rdma.remote_addr += 128;
	CHECK(!ibv_post_send(qp[0], &w, &bad));
	while (next == 2) {
		CHECK(!ibv_poll_cq(rcq, 1, &wc)); /* it goes on meanwhile, and its own CQ is not polled */
		CHECK(syscall(SYS_process_vm_readv, getpid(), &to, 1L, &from, 1L, 0L) == 1);
	}
	if (wrong)
		use(b, 64);
	CHECK(!ibv_dereg_mr(bm));
	use(b, 64);
	free(b);
}

static void ask_nowhere(enum ibv_wr_opcode opcode, uint64_t at)
{
	struct ibv_send_wr w, *bad;
	struct ibv_sge s;
	struct ibv_wc wc;

	open_all(IBV_QPT_RC, false);
	CHECK(bm = ibv_reg_mr(pd, NULL, SIZE_MAX, 15 | IBV_ACCESS_ON_DEMAND));
	s = (struct ibv_sge){(uintptr_t)a, 8, am->lkey};
	w = request(opcode, &s);
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		w.wr.atomic.remote_addr = at;
	else
		w.wr.rdma.remote_addr = at;
	CHECK(!ibv_post_send(qp[0], &w, &bad));
	while (!ibv_poll_cq(scq, 1, &wc))
		sched_yield();
	if (wc.status != IBV_WC_REM_ACCESS_ERR)
		fprintf(stderr, "%d of %#llx: %s\n", opcode, (unsigned long long)at,
			ibv_wc_status_str(wc.status));
	CHECK(wc.status == IBV_WC_REM_ACCESS_ERR);
}

/* A region has all addresses, also those without memory: a request that names one fails, and that is all. */
static void nowhere(void)
{
	char *gone = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const uint64_t at[] = {8, (uintptr_t)gone, 0x123456789abcd00, UINT64_MAX - SIZE + 1};

	CHECK(gone != MAP_FAILED);
	for (unsigned i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		ask_nowhere(IBV_WR_RDMA_READ, at[i]);
		ask_nowhere(IBV_WR_RDMA_WRITE, at[i]);
		ask_nowhere(IBV_WR_ATOMIC_FETCH_AND_ADD, at[i]);
	}
}

enum { MADE = 40 };

/* Each has an event when it is in ERR, since it receives from an SRQ. */
static void *makes_queue_pairs(void *unused)
{
	_Atomic int acknowledged = 0;
	struct ibv_qp_init_attr x = {.qp_context = &acknowledged,
				     .send_cq = scq,
				     .recv_cq = rcq,
				     .srq = srq,
				     .qp_type = IBV_QPT_RC,
				     .cap = {4, 4, 1, 1, 0}};
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
	struct ibv_qp *q;

	for (int i = 0; i < MADE; i++) {
		CHECK(q = ibv_create_qp(pd, &x));
		CHECK(!ibv_modify_qp(q, &error, IBV_QP_STATE));
		while (atomic_load_explicit(&acknowledged, memory_order_relaxed) <= i)
			sched_yield();
		CHECK(!ibv_destroy_qp(q));
	}
	return unused;
}

/* Objects and events of several threads meet in the library, whose locks no sanitizer knows. */
static void in_library(void)
{
	struct ibv_async_event event;
	_Atomic int *acknowledged;
	pthread_t t[2];

	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&t[i], NULL, makes_queue_pairs, NULL));
	for (int i = 0; i < 2 * MADE; i++) {
		CHECK(!ibv_get_async_event(context, &event));
		CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED);
		acknowledged = event.element.qp->qp_context;
		ibv_ack_async_event(&event);
		atomic_fetch_add_explicit(acknowledged, 1, memory_order_relaxed); /* which orders nothing */
	}
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(t[i], NULL));
}

static void *writes_and_tells(void *to)
{
	post(IBV_WR_RDMA_WRITE, a, 64, IBV_SEND_SIGNALED);
	poll(scq);
	CHECK(write(*(int *)to, "", 1) == 1);
	return NULL;
}

/* Another process is in between, so nothing but the descriptor tells of the WRITE. */
static void hear(int from, int to)
{
	pthread_t t;
	char byte;

	CHECK(!pthread_create(&t, NULL, writes_and_tells, &to));
	CHECK((wrong ? syscall(SYS_read, from, &byte, 1) : read(from, &byte, 1)) == 1); /* unseen, or seen */
	use(b, 64);
	CHECK(!pthread_join(t, NULL));
}

static void echo(int from, int to)
{
	char byte;

	if (read(from, &byte, 1) == 1)
		CHECK(write(to, &byte, 1) == 1);
}

/* By that number, or the next one that is free. */
static void told_by_descriptor(int number)
{
	int there[2], back[2], status;
	pid_t child;

	CHECK(!pipe(there) && !pipe(back));
	child = fork();
	if (!child) {
		echo(there[0], back[1]);
		_exit(0);
	}
	while (fcntl(number, F_GETFD) >= 0)
		number++;
	CHECK(dup2(back[0], number) == number && !close(back[0]) && !close(back[1]));
	hear(number, there[1]);
	CHECK(waitpid(child, &status, 0) == child && !status);
	CHECK(!close(number) && !close(there[0]) && !close(there[1]));
}

/* A program learns of a WRITE by any of its descriptors, also if it has many. */
static void descriptors(void)
{
	static const int numbers[] = {40, 70, 1500, 5000, 400};
	struct rlimit all;

	CHECK(!getrlimit(RLIMIT_NOFILE, &all));
	all.rlim_cur = all.rlim_max;
	CHECK(!setrlimit(RLIMIT_NOFILE, &all));
	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		for (int k = 0; numbers[i] == 400 && k < 300; k++)
			CHECK(dup(1) >= 0);
		if ((rlim_t)numbers[i] + 200 < all.rlim_max)
			told_by_descriptor(numbers[i]);
	}
}

/* The sanitizer did not see them made. */
static void inherited(void)
{
	int there[2], back[2], status;
	pid_t child;

	if (getenv("PAIRS_INHERITED")) {
		hear(STDIN_FILENO, STDOUT_FILENO);
		return;
	}
	CHECK(!pipe(there) && !pipe(back));
	child = fork();
	if (!child) {
		setenv("PAIRS_INHERITED", "1", 1);
		dup2(back[0], STDIN_FILENO);
		dup2(there[1], STDOUT_FILENO);
		execl("/proc/self/exe", "pairs", "inherited", wrong ? "wrong" : "right", NULL);
		_exit(2);
	}
	CHECK(!close(there[1]));
	echo(there[0], back[1]);
	CHECK(waitpid(child, &status, 0) == child);
	if (status)
		exit(WEXITSTATUS(status));
}

/* Inline data is read by the post. */
static void inline_undefined(void)
{
	char *p = malloc(SIZE);
	struct ibv_sge s[2] = {{(uintptr_t)a, 3, 0}, {(uintptr_t)p, 12, 0}};
	struct ibv_send_wr w = request(IBV_WR_SEND, s), *bad;

	if (!wrong)
		memset(p, 1, SIZE);
	receive(b, SIZE, 1);
	w.num_sge = 2;
	w.send_flags |= IBV_SEND_INLINE;
	CHECK(!ibv_post_send(qp[0], &w, &bad));
	poll(scq);
	poll(rcq);
	use(b, 15);
}

static void builder_inline_undefined(void)
{
	char *p = malloc(SIZE);
	struct ibv_qp_ex *x;

	if (!wrong)
		memset(p, 1, SIZE);
	open_with((struct ibv_qp_init_attr_ex){.qp_type = IBV_QPT_RC,
					       .comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					       .send_ops_flags = IBV_QP_EX_WITH_SEND},
		  (struct ibv_qp_init_attr_ex){.qp_type = IBV_QPT_RC});
	receive(b, SIZE, 1);
	receive(b + 64, 64, 2);
	x = ibv_qp_to_qp_ex(qp[0]);
	ibv_wr_start(x);
	x->wr_id = 4;
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(x);
	ibv_wr_set_inline_data_list(x, 2, (struct ibv_data_buf[]){{a, 8}, {a, 2}});
	x->wr_id = 5;
	ibv_wr_send(x);
	ibv_wr_set_inline_data(x, p, 10);
	CHECK(!ibv_wr_complete(x));
	poll(scq);
	poll(scq);
	poll(rcq);
	poll(rcq);
}

static void inline_freed(void)
{
	char *p = malloc(SIZE);

	memset(p, 1, SIZE);
	receive(b, SIZE, 1);
	if (wrong)
		free(p);
	post(IBV_WR_SEND, p, 12, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
	poll(scq);
	poll(rcq);
}

static const struct {
	const char *name;
	void (*run)(void);
	enum ibv_qp_type type;
	bool shared;
} cases[] = {
    {"send", send_buffer, IBV_QPT_RC, 0},
    {"send-freed", send_freed, IBV_QPT_RC, 0},
    {"freed-early", freed_early, IBV_QPT_RC, 0},
    {"send-undefined", send_undefined, IBV_QPT_RC, 0},
    {"receive", receive_buffer, IBV_QPT_RC, 0},
    {"receive-next", receive_next, IBV_QPT_RC, 0},
    {"receive-twice", receive_twice, IBV_QPT_RC, 0},
    {"receive-overlap", receive_overlap, IBV_QPT_RC, 0},
    {"receive-freed", receive_freed, IBV_QPT_RC, 0},
    {"receive-short", received_short, IBV_QPT_RC, 0},
    {"neighbours", neighbours, IBV_QPT_RC, 0},
    {"tail", tail, IBV_QPT_RC, 0},
    {"large", large, IBV_QPT_RC, 0},
    {"many", many, IBV_QPT_RC, 0},
    {"write", write_source, IBV_QPT_RC, 0},
    {"write-freed", write_target_freed, IBV_QPT_RC, 0},
    {"write-watched", write_watched, IBV_QPT_RC, 0},
    {"read", read_target, IBV_QPT_RC, 0},
    {"atomic", atomic_result, IBV_QPT_RC, 0},
    {"ud", datagram, IBV_QPT_UD, 0},
    {"srq", shared_queue, IBV_QPT_RC, 1},
    {"inline", inline_data, IBV_QPT_RC, 0},
    {"unsignaled", unsignaled, IBV_QPT_RC, 0},
    {"threads", two_threads, IBV_QPT_RC, 0},
    {"ordered", ordered, IBV_QPT_RC, 0},
    {"fork", forked, IBV_QPT_RC, 0},
    {"destroyed", destroyed, IBV_QPT_RC, 0},
    {"builder", builder, IBV_QPT_RC, 0},
    {"extended-cq", extended_cq, IBV_QPT_RC, 0},
    {"xrc", xrc, IBV_QPT_RC, 0},
    {"window", window, IBV_QPT_RC, 0},
    {"ud-header", datagram_header, IBV_QPT_UD, 0},
    {"srq-again", shared_queue_again, IBV_QPT_RC, 1},
    {"srq-left", shared_queue_left, IBV_QPT_RC, 1},
    {"rdma_cm", manager, IBV_QPT_RC, 0},
    {"revoked", revoked, IBV_QPT_RC, 0},
    {"nowhere", nowhere, IBV_QPT_RC, 0},
    {"descriptors", descriptors, IBV_QPT_RC, 0},
    {"inherited", inherited, IBV_QPT_RC, 0},
    {"inline-undefined", inline_undefined, IBV_QPT_RC, 0},
    {"builder-inline-undefined", builder_inline_undefined, IBV_QPT_RC, 0},
    {"inline-freed", inline_freed, IBV_QPT_RC, 0},
    {"in-library", in_library, IBV_QPT_RC, 1},
    {"queues", queues, IBV_QPT_RC, 0}, /* last, since ThreadSanitizer sees less behind so many */
};

/* Of the sanitizer, if it has them. */
void __asan_set_error_report_callback(void (*callback)(const char *)) __attribute__((weak));
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void hears_report(const char *text)
{
	fprintf(stderr, "the program's callback: %zu bytes\n", strlen(text));
}

static void hears_death(void)
{
	fprintf(stderr, "the program's callback\n");
}

static void set_callbacks(void)
{
	if (__asan_set_error_report_callback)
		__asan_set_error_report_callback(hears_report);
	else if (__sanitizer_set_death_callback)
		__sanitizer_set_death_callback(hears_death);
}

static bool run(const char *name)
{
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (strcmp(cases[i].name, name))
			continue;
		alarm(30);
		open_all(cases[i].type, cases[i].shared);
		cases[i].run();
		return true;
	}
	return false;
}

int main(int argc, char **argv)
{
	bool waits = argc > 1 && !strcmp(argv[argc - 1], "wait");

	argc -= waits;
	if (argc < 2)
		return 2;
	wrong = !strcmp(argv[argc - 1], "wrong");
	if (getenv("CALLBACKS"))
		set_callbacks();
	for (unsigned i = 0; argc == 2 && i < sizeof(cases) / sizeof(cases[0]); i++)
		run(cases[i].name);
	for (int i = 1; i < argc - 1; i++) {
		fprintf(stderr, "case %s\n", argv[i]);
		if (!run(argv[i]))
			return 2;
	}
	puts("done");
	fflush(stdout);
	if (waits) {
		(void)getchar(); /* the process can be looked at until its input ends */
		exit(0);
	}
	_exit(0);
}
