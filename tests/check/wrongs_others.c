/* Memory, keys and objects that end too early, or never; and posted receive buffers that are read. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>

#include "wrongs.h"

#define SIGNAL IBV_SEND_SIGNALED

/* The SEND waits for a receive, and its region is gone meanwhile. */
static void deregistered(void)
{
	pair();
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	RIGHT(DIE_IF(receive(&b, 1, at(&b, 0, SIZE))));
	RIGHT(done(a.scq, 5));
	DIE_IF(ibv_dereg_mr(a.mr));
	a.mr = NULL;
	close_all();
}

static void reregistered(void)
{
	pair();
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	RIGHT(DIE_IF(receive(&b, 1, at(&b, 0, SIZE))));
	RIGHT(done(a.scq, 5));
	DIE_IF(ibv_rereg_mr(a.mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, a.buf, SIZE, 0));
	close_all();
}

static void receive_deregistered(void)
{
	pair();
	DIE_IF(receive(&b, 9, at(&b, 0, SIZE)));
	RIGHT(DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0)));
	RIGHT(done(b.rcq, 9));
	DIE_IF(ibv_dereg_mr(b.mr));
	b.mr = NULL;
	close_all();
}

static void unmapped(void)
{
	pair();
	DIE_IF(post(&a, IBV_WR_RDMA_WRITE, 5, at(&a, 0, 100), SIGNAL, (uintptr_t)b.buf));
	WRONG(DIE_IF(munmap(a.buf, SIZE)));
	done(a.scq, 5);
	close_all();
}

static void ah_destroyed(void)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	ud_pair(&wr, &sge);
	WRONG(DIE_IF(ibv_destroy_ah(wr.wr.ud.ah)));
	DIE_IF(ibv_post_send(a.qp, &wr, &bad));
	done(a.scq, 5);
	done(b.rcq, 1);
	RIGHT(DIE_IF(ibv_destroy_ah(wr.wr.ud.ah)));
	close_all();
}

/* By the calls of the extended interface. */
static void ah_extended(void)
{
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}};
	struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_UD,
					   .cap = {.max_send_wr = 4, .max_send_sge = 1},
					   .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					   .send_ops_flags = IBV_QP_EX_WITH_SEND};
	struct ibv_qp_ex *ex;
	struct ibv_ah *ah;

	open_device();
	open_end(&a, IBV_QPT_UD, false);
	open_end(&b, IBV_QPT_UD, false);
	attr.pd = pd;
	attr.send_cq = a.scq;
	attr.recv_cq = a.rcq;
	DIE_IF(ibv_destroy_qp(a.qp) || ibv_query_gid(ctx, 1, 0, &to.grh.dgid));
	a.qp = ibv_create_qp_ex(ctx, &attr);
	ah = ibv_create_ah(pd, &to);
	DIE_IF(!a.qp || !ah);
	to_init(a.qp, IBV_QPT_UD);
	connect_ends(&a, &b);
	DIE_IF(receive(&b, 1, at(&b, 0, SIZE)));
	WRONG(DIE_IF(ibv_destroy_ah(ah)));
	ex = ibv_qp_to_qp_ex(a.qp);
	ibv_wr_start(ex);
	ex->wr_id = 5;
	ex->wr_flags = SIGNAL;
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, ah, b.qp->qp_num, 7);
	ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 100);
	DIE_IF(ibv_wr_complete(ex));
	done(a.scq, 5);
	done(b.rcq, 1);
	RIGHT(DIE_IF(ibv_destroy_ah(ah)));
	close_all();
}

enum { OFTEN = 7 };

static void ah_often(void)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	ud_pair(&wr, &sge);
	WRONG(DIE_IF(ibv_destroy_ah(wr.wr.ud.ah)));
	for (unsigned i = 0; i < OFTEN; i++) {
		DIE_IF(i && receive(&b, 1, at(&b, SIZE + 256 * i, 256)));
		DIE_IF(ibv_post_send(a.qp, &wr, &bad));
		done(a.scq, 5);
		done(b.rcq, 1);
	}
	RIGHT(DIE_IF(ibv_destroy_ah(wr.wr.ud.ah)));
	close_all();
}

static void next_datagram(void)
{
	done(a.scq, 5);
	done(b.rcq, 1);
	DIE_IF(receive(&b, 1, at(&b, 0, SIZE)));
}

#define POST                                                     \
	failed |= a.qp->context->ops.post_send(a.qp, &wr, &bad); \
	next_datagram();
#define TEN(x) x x x x x x x x x x

/* The same mistake at more places of the program than are remembered. */
static void ah_places(void)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	int failed = 0;

	ud_pair(&wr, &sge);
	WRONG(DIE_IF(ibv_destroy_ah(wr.wr.ud.ah)));
	TEN(POST POST POST POST POST POST POST)
	DIE_IF(failed);
	RIGHT(DIE_IF(ibv_destroy_ah(wr.wr.ud.ah)));
	close_all();
}

/* So many handles are destroyed that the first of them is nearly forgotten. */
static void ah_remembered(void)
{
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}};
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	ud_pair(&wr, &sge);
	WRONG(DIE_IF(ibv_destroy_ah(wr.wr.ud.ah)));
	DIE_IF(ibv_query_gid(ctx, 1, 0, &to.grh.dgid));
	for (int i = 0; i < 1023; i++)
		DIE_IF(ibv_destroy_ah(ibv_create_ah(pd, &to)));
	DIE_IF(ibv_post_send(a.qp, &wr, &bad));
	done(a.scq, 5);
	done(b.rcq, 1);
	RIGHT(DIE_IF(ibv_destroy_ah(wr.wr.ud.ah)));
	close_all();
}

static void deregistered_often(void)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	struct ibv_mr *mr[OFTEN];

	pair();
	for (unsigned i = 0; i < OFTEN; i++) {
		mr[i] = ibv_reg_mr(pd, b.buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
		DIE_IF(!mr[i] || receive(&b, 9, (struct ibv_sge){(uintptr_t)b.buf, SIZE, mr[i]->lkey}));
	}
	RIGHT(DIE_IF(ibv_modify_qp(b.qp, &reset, IBV_QP_STATE)));
	for (unsigned i = 0; i < OFTEN; i++)
		DIE_IF(ibv_dereg_mr(mr[i]));
	close_all();
}

/* The peer is told a key, and uses it when the region has ended. */
static void stale_key(void)
{
	uint32_t told;
	struct ibv_mr *mr;

	pair();
	mr = ibv_reg_mr(pd, b.buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	DIE_IF(!mr);
	told = b.mr->rkey;
	WRONG(told = mr->rkey);
	DIE_IF(ibv_dereg_mr(mr));
	b.mr->rkey = told;
	DIE_IF(post(&a, IBV_WR_RDMA_WRITE, 5, at(&a, 0, 100), SIGNAL, (uintptr_t)b.buf));
	next(a.scq);
	close_all();
}

static void left_objects(void)
{
	pair();
	RIGHT(close_all());
}

static void left_completions(void)
{
	pair();
	DIE_IF(receive(&b, 1, at(&b, 0, SIZE)) || post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	done(b.rcq, 1);
	RIGHT(done(a.scq, 5));
	RIGHT(close_all());
	if (wrong)
		while (!ibv_poll_cq(b.scq, 1, &(struct ibv_wc){0}) && a.buf[0]) /* the ACK comes by the way */
			;
}

/* The completion is polled, and the event that told of it never fetched. */
static void left_event(void)
{
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	void *context;

	open_device();
	channel = ibv_create_comp_channel(ctx);
	DIE_IF(!channel);
	events = channel;
	open_end(&a, IBV_QPT_RC, false);
	open_end(&b, IBV_QPT_RC, false);
	connect_ends(&a, &b);
	DIE_IF(ibv_req_notify_cq(b.rcq, 0) || receive(&b, 1, at(&b, 0, SIZE)) ||
	       post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	done(a.scq, 5);
	RIGHT(DIE_IF(ibv_get_cq_event(channel, &cq, &context)));
	done(b.rcq, 1);
	if (wrong)
		return;
	ibv_ack_cq_events(cq, 1);
	close_end(&a);
	close_end(&b);
	DIE_IF(ibv_destroy_comp_channel(channel) || ibv_dealloc_pd(pd) || ibv_close_device(ctx));
}

static sigjmp_buf back;

static void on_fault(int sig)
{
	(void)sig;
	siglongjmp(back, 1);
}

/* A handler on a stack of its own, which has little more than what the kernel needs: too little for a
 * sentence. */
static void handle_faults(void)
{
	size_t size = (size_t)sysconf(_SC_MINSIGSTKSZ) + 3584;
	uint8_t *m = mmap(NULL, SIZE + size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stack_t stack = {.ss_sp = m + SIZE, .ss_size = size};
	struct sigaction act = {.sa_handler = on_fault, .sa_flags = SA_ONSTACK};

	DIE_IF(m == MAP_FAILED || mprotect(m + SIZE, size, PROT_READ | PROT_WRITE));
	DIE_IF(sigaltstack(&stack, NULL) || sigaction(SIGSEGV, &act, NULL));
}

/* With --check=guard: the program looks for its message in a buffer that the adapter has.  It has a handler
 * of its own, which runs as ever. */
static void guard_read(void)
{
	volatile uint8_t byte = 0;

	pair();
	handle_faults();
	DIE_IF(receive(&b, 9, at(&b, 0, SIZE)));
	if (wrong && !sigsetjmp(back, 1)) {
		byte = b.buf[0];
		return; /* it must have faulted */
	}
	a.buf[0] = 42;
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	done(a.scq, 5);
	done(b.rcq, 9);
	byte = b.buf[0];
	printf("%d\n", byte);
	close_all();
}

static volatile sig_atomic_t reading, left;

/* It comes while the fault is being told, too. */
static void on_interrupt(int sig)
{
	(void)sig;
	if (!reading)
		return;
	reading = 0;
	left++;
	siglongjmp(back, 1);
}

enum { LEAVES = 20 };

static void *interrupts(void *reader)
{
	while (left < LEAVES) {
		if (reading)
			pthread_kill(*(pthread_t *)reader, SIGUSR1);
		sched_yield();
	}
	return NULL;
}

static void *reads(void *at)
{
	if (wrong && !sigsetjmp(back, 1))
		DIE_IF(*(volatile uint8_t *)at || true); /* it must have faulted */
	return NULL;
}

/* With --check=guard: the handler of another signal leaves the fault, too.  What is told of further faults,
 * and all else, goes on. */
static void guard_left(void)
{
	struct sigaction act = {.sa_handler = on_interrupt}, faults = {.sa_handler = on_fault};
	pthread_t me = pthread_self(), t;

	pair();
	DIE_IF(sigaction(SIGSEGV, &faults, NULL) || sigaction(SIGUSR1, &act, NULL));
	DIE_IF(receive(&b, 9, at(&b, 0, SIZE)));
	if (wrong) {
		DIE_IF(pthread_create(&t, NULL, interrupts, &me));
		while (left < LEAVES) {
			if (!sigsetjmp(back, 1)) {
				reading = 1;
				(void)*(volatile uint8_t *)b.buf;
			}
			reading = 0;
		}
		pthread_join(t, NULL);
	}
	DIE_IF(pthread_create(&t, NULL, reads, b.buf));
	pthread_join(t, NULL);
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	done(a.scq, 5);
	done(b.rcq, 9);
	close_all();
}

/* With --check=guard: a page that another request has, too, is not guarded.  A change is found as without. */
static void guard_shared(void)
{
	pair();
	DIE_IF(receive(&a, 9, at(&a, 0, SIZE)) || post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	WRONG(a.buf[17] = 1);
	DIE_IF(receive(&b, 1, at(&b, 0, SIZE)));
	done(a.scq, 5);
	close_all();
}

/* With --check=guard: so does the kernel. */
static void guard_syscall(void)
{
	int pipes[2];

	pair();
	DIE_IF(pipe(pipes) || receive(&b, 9, at(&b, 0, SIZE)));
	if (wrong) {
		DIE_IF(write(pipes[1], b.buf, 1) != -1 || errno != EFAULT);
		printf("EFAULT\n");
	}
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	done(a.scq, 5);
	done(b.rcq, 9);
	DIE_IF(write(pipes[1], b.buf, 1) != 1);
	close_all();
}

/* A window of b's whole first page, of a type; the peer is told its key. */
static struct ibv_mw *bind_window(enum ibv_mw_type type)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, type);
	struct ibv_mw_bind_info info = {
	    .mr = b.mr, .addr = (uintptr_t)b.buf, .length = SIZE, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
	struct ibv_mw_bind one = {.wr_id = 2, .send_flags = SIGNAL, .bind_info = info};
	struct ibv_send_wr two = {.wr_id = 2, .opcode = IBV_WR_BIND_MW, .send_flags = SIGNAL}, *bad;

	DIE_IF(!mw);
	two.bind_mw.mw = mw;
	two.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	two.bind_mw.bind_info = info;
	DIE_IF(type == IBV_MW_TYPE_1 ? ibv_bind_mw(b.qp, mw, &one) : ibv_post_send(b.qp, &two, &bad));
	done(b.scq, 2);
	b.mr->rkey = type == IBV_MW_TYPE_1 ? mw->rkey : two.bind_mw.rkey;
	return mw;
}

static void write_to_window(void)
{
	DIE_IF(post(&a, IBV_WR_RDMA_WRITE, 5, at(&a, 0, 100), SIGNAL, (uintptr_t)b.buf));
	next(a.scq);
}

static void unbind_window(void)
{
	struct ibv_send_wr wr = {.wr_id = 3,
				 .opcode = IBV_WR_LOCAL_INV,
				 .send_flags = SIGNAL,
				 .invalidate_rkey = b.mr->rkey},
			   *bad;

	DIE_IF(ibv_post_send(b.qp, &wr, &bad));
	done(b.scq, 3);
}

/* The window ends while the peer has its key. */
static void window_unbound(void)
{
	struct ibv_mw *mw;

	pair();
	mw = bind_window(IBV_MW_TYPE_2);
	WRONG(unbind_window());
	write_to_window();
	RIGHT(unbind_window());
	DIE_IF(ibv_dealloc_mw(mw));
	close_all();
}

/* A window of type 1 has another key with each bind. */
static void window_bound_again(void)
{
	struct ibv_mw_bind again = {.wr_id = 4, .send_flags = SIGNAL};
	struct ibv_mw *mw;
	uint32_t old;

	pair();
	mw = bind_window(IBV_MW_TYPE_1);
	old = b.mr->rkey;
	again.bind_info = (struct ibv_mw_bind_info){.mr = b.mr,
						    .addr = (uintptr_t)b.buf,
						    .length = 2 * SIZE,
						    .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
	DIE_IF(ibv_bind_mw(b.qp, mw, &again));
	done(b.scq, 4);
	b.mr->rkey = wrong ? old : mw->rkey;
	write_to_window();
	DIE_IF(ibv_dealloc_mw(mw));
	close_all();
}

/* The peer ends it, and uses it again. */
static void invalidate_window(void)
{
	struct ibv_sge sge = at(&a, 0, 8);
	struct ibv_send_wr wr = {.wr_id = 6,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND_WITH_INV,
				 .send_flags = SIGNAL,
				 .invalidate_rkey = b.mr->rkey},
			   *bad;

	DIE_IF(receive(&b, 1, at(&b, 2 * SIZE, 8)) || ibv_post_send(a.qp, &wr, &bad));
	done(a.scq, 6);
	done(b.rcq, 1);
}

static void window_invalidated(void)
{
	struct ibv_mw *mw;

	pair();
	mw = bind_window(IBV_MW_TYPE_2);
	WRONG(invalidate_window());
	write_to_window();
	RIGHT(invalidate_window());
	DIE_IF(ibv_dealloc_mw(mw));
	close_all();
}

/* A window of type 2 ends with its queue pair.  Another one knows its key. */
static void window_queue_pair_destroyed(void)
{
	struct ibv_qp *first[2];
	struct ibv_mw *mw;
	uint32_t own;

	pair();
	own = b.mr->rkey;
	mw = bind_window(IBV_MW_TYPE_2);
	RIGHT(b.mr->rkey = own);
	first[0] = a.qp;
	first[1] = b.qp;
	open_qp(&a, IBV_QPT_RC);
	open_qp(&b, IBV_QPT_RC);
	connect_ends(&a, &b);
	DIE_IF(ibv_destroy_qp(first[0]) || ibv_destroy_qp(first[1]));
	write_to_window();
	DIE_IF(ibv_dealloc_mw(mw));
	close_all();
}

static void window_deallocated(void)
{
	struct ibv_mw *mw;

	pair();
	mw = bind_window(IBV_MW_TYPE_2);
	WRONG(DIE_IF(ibv_dealloc_mw(mw)));
	write_to_window();
	RIGHT(DIE_IF(ibv_dealloc_mw(mw)));
	close_all();
}

/* The receives of an SRQ in an XRC domain, whose completions go to a CQ of its own. */
static void xrc_receive_changed(void)
{
	struct ibv_xrcd_init_attr domain = {
	    .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	struct ibv_srq_init_attr_ex init = {.attr = {.max_wr = 16, .max_sge = 1},
					    .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD |
							 IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
					    .srq_type = IBV_SRQT_XRC};
	struct ibv_qp_init_attr_ex to = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	struct ibv_send_wr wr = {.wr_id = 5, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = SIGNAL}, *bad;
	struct ibv_sge sge;

	open_device();
	open_end(&a, IBV_QPT_XRC_SEND, false);
	open_end(&b, IBV_QPT_RC, false);
	DIE_IF(ibv_destroy_qp(b.qp));
	to.xrcd = init.xrcd = ibv_open_xrcd(ctx, &domain);
	init.cq = b.rcq;
	init.pd = pd;
	b.srq = ibv_create_srq_ex(ctx, &init);
	b.qp = ibv_create_qp_ex(ctx, &to);
	DIE_IF(!init.xrcd || !b.srq || !b.qp || ibv_get_srq_num(b.srq, &wr.qp_type.xrc.remote_srqn));
	to_init(b.qp, IBV_QPT_XRC_RECV);
	connect_ends(&a, &b);
	DIE_IF(receive(&b, 9, at(&b, 0, SIZE)));
	WRONG(b.buf[5] = 1);
	sge = at(&a, 0, 100);
	wr.sg_list = &sge;
	DIE_IF(ibv_post_send(a.qp, &wr, &bad));
	done(a.scq, 5);
	done(b.rcq, 9);
	DIE_IF(ibv_destroy_qp(b.qp) || ibv_destroy_srq(b.srq) || ibv_close_xrcd(init.xrcd));
	b.srq = NULL;
	b.qp = NULL;
	DIE_IF(ibv_dereg_mr(b.mr) || ibv_destroy_cq(b.scq) || ibv_destroy_cq(b.rcq));
	close_all();
}

const struct program others[] = {{"deregistered", deregistered},
				 {"reregistered", reregistered},
				 {"receive-deregistered", receive_deregistered},
				 {"unmapped", unmapped},
				 {"ah-destroyed", ah_destroyed},
				 {"ah-extended", ah_extended},
				 {"ah-often", ah_often},
				 {"ah-places", ah_places},
				 {"ah-remembered", ah_remembered},
				 {"deregistered-often", deregistered_often},
				 {"stale-key", stale_key},
				 {"left-objects", left_objects},
				 {"left-completions", left_completions},
				 {"left-event", left_event},
				 {"guard-read", guard_read},
				 {"guard-shared", guard_shared},
				 {"guard-syscall", guard_syscall},
				 {"window-unbound", window_unbound},
				 {"window-bound-again", window_bound_again},
				 {"window-deallocated", window_deallocated},
				 {"window-invalidated", window_invalidated},
				 {"window-queue-pair-destroyed", window_queue_pair_destroyed},
				 {"guard-left", guard_left},
				 {"xrc-receive-changed", xrc_receive_changed},
				 {NULL, NULL}};
