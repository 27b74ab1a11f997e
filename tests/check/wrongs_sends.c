/* Buffers that the program changes while the adapter has them. */
#include "wrongs.h"

#define SIGNAL IBV_SEND_SIGNALED

static void send_changed(void)
{
	pair();
	DIE_IF(receive(&b, 1, at(&b, 0, SIZE)) || post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	WRONG(a.buf[17] = 1);
	done(a.scq, 5);
	done(b.rcq, 1);
	close_all();
}

/* Inline data is the program's own again when the call returns. */
static void send_inline(void)
{
	unsigned flags = SIGNAL;

	pair();
	RIGHT(flags |= IBV_SEND_INLINE);
	DIE_IF(receive(&b, 1, at(&b, 0, SIZE)) || post(&a, IBV_WR_SEND, 5, at(&a, 8, 64), flags, 0));
	a.buf[8] = 1;
	done(a.scq, 5);
	done(b.rcq, 1);
	close_all();
}

/* An unsignaled request is complete when the completion of a later one is polled. */
static void unsignaled(void)
{
	pair();
	for (int i = 0; i < 3; i++)
		DIE_IF(receive(&b, 1, at(&b, 0, SIZE)));
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), 0, 0) ||
	       post(&a, IBV_WR_SEND, 6, at(&a, SIZE, 100), SIGNAL, 0));
	for (int i = 0; i < 2; i++)
		done(b.rcq, 1);
	WRONG(a.buf[99] = 1);
	done(a.scq, 6);
	a.buf[99] = 2;
	DIE_IF(post(&a, IBV_WR_SEND, 7, at(&a, 0, 100), SIGNAL, 0));
	done(a.scq, 7);
	close_all();
}

/* Two requests may send one buffer at the same time. */
static void shared_buffer(void)
{
	pair();
	for (uint64_t i = 1; i <= 2; i++)
		DIE_IF(receive(&b, i, at(&b, 0, SIZE)) ||
		       post(&a, IBV_WR_SEND, 4 + i, at(&a, 0, 300), SIGNAL, 0));
	done(a.scq, 5);
	WRONG(a.buf[200]++);
	done(a.scq, 6);
	a.buf[200]++;
	close_all();
}

static void write_changed(void)
{
	pair();
	DIE_IF(post(&a, IBV_WR_RDMA_WRITE, 5, at(&a, 0, 2 * SIZE), SIGNAL, (uintptr_t)b.buf));
	WRONG(a.buf[SIZE + 1] = 1);
	done(a.scq, 5);
	close_all();
}

/* Above what is copied for comparing: blocks are hashed. */
static void large_changed(void)
{
	const size_t size = 1 << 20;
	uint8_t *large;
	struct ibv_mr *mr;

	pair();
	large = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	DIE_IF(large == MAP_FAILED);
	mr = ibv_reg_mr(pd, large, 2 * size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	DIE_IF(!mr);
	b.mr->rkey = mr->rkey;
	DIE_IF(post(&a, IBV_WR_RDMA_WRITE, 5, (struct ibv_sge){(uintptr_t)large, (uint32_t)size, mr->lkey},
		    SIGNAL, (uintptr_t)large + size));
	WRONG(large[200000] = 1);
	done(a.scq, 5);
	DIE_IF(ibv_dereg_mr(mr));
	close_all();
}

/* The READ waits for no one: what the program writes before its completion is lost, or mixed in. */
static void read_target(void)
{
	pair();
	DIE_IF(post(&a, IBV_WR_RDMA_READ, 5, at(&a, 0, SIZE), SIGNAL, (uintptr_t)b.buf));
	WRONG(a.buf[40] = 1);
	done(a.scq, 5);
	close_all();
}

static void atomic_target(void)
{
	pair();
	DIE_IF(post(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, 5, at(&a, 64, 8), SIGNAL, (uintptr_t)b.buf));
	WRONG(a.buf[66] = 1);
	done(a.scq, 5);
	close_all();
}

/* A peer's atomic changes the buffer of a SEND that waits for a receive.  The program does so before. */
static void changed_before_atomic(void)
{
	pair();
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, SIZE), SIGNAL, 0));
	WRONG(a.buf[201] = 1);
	DIE_IF(post(&b, IBV_WR_ATOMIC_FETCH_AND_ADD, 6, at(&b, 64, 8), SIGNAL, (uintptr_t)a.buf + 200));
	done(b.scq, 6);
	DIE_IF(receive(&b, 1, at(&b, SIZE, SIZE)));
	done(a.scq, 5);
	close_all();
}

/* The program does so afterwards. */
static void changed_behind_atomic(void)
{
	pair();
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, SIZE), SIGNAL, 0));
	DIE_IF(post(&b, IBV_WR_ATOMIC_FETCH_AND_ADD, 6, at(&b, 64, 8), SIGNAL, (uintptr_t)a.buf + 200));
	DIE_IF(post(&b, IBV_WR_RDMA_WRITE, 7, at(&b, 64, 8), SIGNAL, (uintptr_t)a.buf + SIZE));
	done(b.scq, 6);
	done(b.scq, 7);
	WRONG(a.buf[201] = 1);
	DIE_IF(receive(&b, 1, at(&b, SIZE, SIZE)));
	done(a.scq, 5);
	close_all();
}

static void receive_changed(void)
{
	pair();
	DIE_IF(receive(&b, 9, at(&b, 0, SIZE)));
	WRONG(b.buf[60] = 1);
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	done(a.scq, 5);
	done(b.rcq, 9);
	b.buf[1000] = 2;
	close_all();
}

static void srq_receive_changed(void)
{
	open_device();
	open_end(&a, IBV_QPT_RC, false);
	open_end(&b, IBV_QPT_RC, true);
	connect_ends(&a, &b);
	DIE_IF(receive(&b, 9, at(&b, 0, SIZE)));
	WRONG(b.buf[3] = 1);
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	done(a.scq, 5);
	done(b.rcq, 9);
	close_all();
}

/* One list of pieces, and the calls of the extended interface. */
static void extended_changed(void)
{
	struct ibv_qp_init_attr_ex attr;
	struct ibv_qp_ex *ex;

	open_device();
	open_end(&a, IBV_QPT_RC, false);
	open_end(&b, IBV_QPT_RC, false);
	DIE_IF(ibv_destroy_qp(a.qp));
	attr = (struct ibv_qp_init_attr_ex){
	    .send_cq = a.scq,
	    .recv_cq = a.rcq,
	    .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 4, .max_recv_sge = 1},
	    .qp_type = IBV_QPT_RC,
	    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
	    .pd = pd,
	    .send_ops_flags = IBV_QP_EX_WITH_SEND};
	a.qp = ibv_create_qp_ex(ctx, &attr);
	DIE_IF(!a.qp);
	DIE_IF(ibv_modify_qp(a.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1},
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	connect_ends(&a, &b);
	DIE_IF(receive(&b, 1, at(&b, 0, SIZE)));
	ex = ibv_qp_to_qp_ex(a.qp);
	ibv_wr_start(ex);
	ex->wr_id = 5;
	ex->wr_flags = SIGNAL;
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 4,
			    (struct ibv_sge[]){at(&a, 0, 10), at(&a, 0, 0), at(&a, 0, 0), at(&a, SIZE, 10)});
	DIE_IF(ibv_wr_complete(ex));
	WRONG(a.buf[SIZE + 2] = 1);
	done(a.scq, 5);
	close_all();
}

/* The buffer of a message that no receive waits for is in use for as long as it takes. */
static void waits_for_receive(void)
{
	pair();
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	WRONG(a.buf[0] = 1);
	DIE_IF(receive(&b, 1, at(&b, 0, SIZE)));
	done(a.scq, 5);
	close_all();
}

static void ud_changed(void)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	ud_pair(&wr, &sge);
	DIE_IF(ibv_post_send(a.qp, &wr, &bad));
	WRONG(a.buf[50] = 1);
	done(a.scq, 5);
	done(b.rcq, 1);
	DIE_IF(ibv_destroy_ah(wr.wr.ud.ah));
	close_all();
}

/* What is written through a window belongs to the adapter here, too. */
static void window_changed(void)
{
	struct ibv_mw *mw;
	struct ibv_send_wr wr, *bad;

	pair();
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	DIE_IF(!mw);
	wr = (struct ibv_send_wr){.wr_id = 2,
				  .opcode = IBV_WR_BIND_MW,
				  .send_flags = SIGNAL,
				  .bind_mw = {.mw = mw,
					      .rkey = ibv_inc_rkey(mw->rkey),
					      .bind_info = {.mr = b.mr,
							    .addr = (uintptr_t)b.buf,
							    .length = SIZE,
							    .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}}};
	DIE_IF(ibv_post_send(b.qp, &wr, &bad));
	done(b.scq, 2);
	b.mr->rkey = ibv_inc_rkey(mw->rkey);
	DIE_IF(post(&a, IBV_WR_RDMA_WRITE, 5, at(&a, 0, 100), SIGNAL, (uintptr_t)b.buf));
	WRONG(a.buf[30] = 1);
	done(a.scq, 5);
	DIE_IF(ibv_dealloc_mw(mw));
	close_all();
}

static pthread_barrier_t polled;

static void *poller(void *arg)
{
	(void)arg;
	RIGHT(done(a.scq, 5));
	pthread_barrier_wait(&polled);
	WRONG(pthread_barrier_wait(&polled));
	WRONG(done(a.scq, 5));
	return NULL;
}

/* The thread that posts does not wait for the one that polls. */
static void two_threads(void)
{
	pthread_t t;

	pair();
	DIE_IF(pthread_barrier_init(&polled, NULL, 2) || receive(&b, 1, at(&b, 0, SIZE)) ||
	       post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0) || pthread_create(&t, NULL, poller, NULL));
	pthread_barrier_wait(&polled);
	a.buf[12] = 1;
	WRONG(pthread_barrier_wait(&polled));
	pthread_join(t, NULL);
	close_all();
}

/* A child has its own copy of the buffer: only the parent's is the adapter's. */
static void forked(void)
{
	int status;
	pid_t child;

	DIE_IF(ibv_fork_init());
	pair();
	DIE_IF(receive(&b, 1, at(&b, 0, SIZE)) || post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	child = fork();
	DIE_IF(child < 0);
	if (!child)
		_exit(0);
	DIE_IF(waitpid(child, &status, 0) != child || status);
	WRONG(a.buf[17] = 1);
	done(a.scq, 5);
	close_all();
}

const struct program sends[] = {{"send-changed", send_changed},
				{"send-inline", send_inline},
				{"unsignaled", unsignaled},
				{"shared-buffer", shared_buffer},
				{"write-changed", write_changed},
				{"large-changed", large_changed},
				{"read-target", read_target},
				{"atomic-target", atomic_target},
				{"changed-before-atomic", changed_before_atomic},
				{"changed-behind-atomic", changed_behind_atomic},
				{"receive-changed", receive_changed},
				{"srq-receive-changed", srq_receive_changed},
				{"extended-changed", extended_changed},
				{"waits-for-receive", waits_for_receive},
				{"ud-changed", ud_changed},
				{"window-changed", window_changed},
				{"two-threads", two_threads},
				{"forked", forked},
				{NULL, NULL}};
