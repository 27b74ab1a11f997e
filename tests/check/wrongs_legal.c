/* What programs may do, and what looks like a mistake: nothing may be said of these. */
#include "wrongs.h"

#include <signal.h>

#define SIGNAL IBV_SEND_SIGNALED

/* A peer's WRITE and atomic change a buffer while it is being sent. */
static void written_while_sent(void)
{
	pair();
	memset(b.buf, 7, SIZE);
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, SIZE), SIGNAL, 0));
	DIE_IF(post(&b, IBV_WR_RDMA_WRITE, 6, at(&b, 0, 64), SIGNAL, (uintptr_t)a.buf + 100));
	done(b.scq, 6);
	DIE_IF(post(&b, IBV_WR_ATOMIC_FETCH_AND_ADD, 7, at(&b, 2 * SIZE, 8), SIGNAL, (uintptr_t)a.buf + 200));
	done(b.scq, 7);
	DIE_IF(receive(&b, 1, at(&b, SIZE, SIZE)));
	done(a.scq, 5);
	close_all();
}

/* One buffer is sent from and received into. */
static void one_buffer(void)
{
	pair();
	memset(b.buf, 7, SIZE);
	DIE_IF(receive(&a, 1, at(&a, 0, SIZE)) || post(&a, IBV_WR_SEND, 5, at(&a, 0, SIZE), SIGNAL, 0));
	DIE_IF(post(&b, IBV_WR_SEND, 6, at(&b, 0, SIZE), SIGNAL, 0));
	done(a.rcq, 1);
	DIE_IF(receive(&b, 2, at(&b, 0, SIZE)));
	done(a.scq, 5);
	done(b.scq, 6);
	close_all();
}

/* All receives have the same buffer, and the program reads what came, though others have it still, also one
 * that was posted since. */
static void receives_share(void)
{
	unsigned sum = 0;

	pair();
	for (uint64_t i = 1; i <= 8; i++)
		DIE_IF(receive(&b, i, at(&b, 0, SIZE)));
	for (uint64_t i = 1; i <= 8; i++) {
		memset(a.buf, (int)i, 200);
		DIE_IF(post(&a, IBV_WR_SEND, i, at(&a, 0, 200), SIGNAL, 0));
		done(a.scq, i);
		DIE_IF(receive(&b, 8 + i, at(&b, 0, SIZE)));
		done(b.rcq, i);
		for (int k = 0; k < SIZE; k++)
			sum += b.buf[k];
	}
	DIE_IF(sum != 200 * 36);
	close_all();
}

/* Two READs into one buffer at once. */
static void reads_share(void)
{
	pair();
	for (uint64_t i = 1; i <= 2; i++)
		DIE_IF(post(&a, IBV_WR_RDMA_READ, i, at(&a, 0, SIZE), SIGNAL, (uintptr_t)b.buf));
	done(a.scq, 1);
	done(a.scq, 2);
	a.buf[0] = 9;
	close_all();
}

/* The target of a READ is being sent. */
static void read_while_sent(void)
{
	pair();
	memset(b.buf, 5, SIZE);
	DIE_IF(post(&a, IBV_WR_RDMA_READ, 4, at(&a, 0, SIZE), SIGNAL, (uintptr_t)b.buf));
	DIE_IF(post(&a, IBV_WR_RDMA_WRITE, 5, at(&a, 0, SIZE), SIGNAL, (uintptr_t)b.buf));
	done(a.scq, 4);
	done(a.scq, 5);
	close_all();
}

/* What was flushed never was the adapter's, and a destroyed queue pair has no requests. */
static void flushed(void)
{
	struct ibv_wc wc;

	pair();
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0) || receive(&a, 6, at(&a, SIZE, 100)));
	DIE_IF(ibv_modify_qp(a.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE));
	a.buf[0] = 1;
	a.buf[SIZE] = 1;
	wc = next(a.scq);
	DIE_IF(wc.status != IBV_WC_WR_FLUSH_ERR);
	DIE_IF(ibv_destroy_qp(a.qp) || ibv_dereg_mr(a.mr));
	a.qp = NULL;
	memset(a.buf, 1, SIZE);
	DIE_IF(ibv_destroy_cq(a.scq) || ibv_destroy_cq(a.rcq));
	close_all();
}

/* One call polls a success and a flushed request. */
static void flushed_behind(void)
{
	struct ibv_wc wc[2];

	pair();
	DIE_IF(receive(&a, 3, at(&a, SIZE, 100)) || receive(&b, 4, at(&b, SIZE, 100)));
	DIE_IF(post(&a, IBV_WR_SEND, 4, at(&a, 0, 100), SIGNAL, 0));
	done(b.rcq, 4);
	DIE_IF(post(&b, IBV_WR_SEND, 3, at(&b, 0, 100), SIGNAL, 0));
	done(a.rcq, 3); /* behind the acknowledgement */
	DIE_IF(ibv_modify_qp(a.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE));
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	a.buf[0] = 1;
	DIE_IF(ibv_poll_cq(a.scq, 2, wc) != 2 || wc[0].status != IBV_WC_SUCCESS ||
	       wc[1].status != IBV_WC_WR_FLUSH_ERR);
	close_all();
}

/* After a reset the same slots are used again, and buffers that requests had before. */
static void reset(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

	pair();
	for (uint64_t i = 1; i <= 3; i++)
		DIE_IF(post(&a, IBV_WR_SEND, i, at(&a, 100 * i, 100), SIGNAL, 0) ||
		       receive(&a, i, at(&a, SIZE, 100)));
	DIE_IF(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) || ibv_modify_qp(b.qp, &attr, IBV_QP_STATE));
	memset(a.buf, 1, 2 * SIZE);
	to_init(a.qp, IBV_QPT_RC);
	to_init(b.qp, IBV_QPT_RC);
	connect_ends(&a, &b);
	DIE_IF(receive(&b, 4, at(&b, 0, SIZE)) || post(&a, IBV_WR_SEND, 4, at(&a, 200, 100), SIGNAL, 0));
	done(a.scq, 4);
	close_all();
}

/* What is sent inline is no list of pieces, although it looks like one: the program sends its peer the
 * address of a buffer. */
static void inline_list(void)
{
	struct ibv_sge list;

	pair();
	list = at(&a, SIZE, 100);
	memcpy(a.buf, &list, sizeof(list));
	DIE_IF(receive(&b, 1, at(&b, 0, SIZE)) ||
	       post(&a, IBV_WR_SEND, 5, at(&a, 0, sizeof(list)), SIGNAL | IBV_SEND_INLINE, 0));
	a.buf[SIZE] = 1;
	done(a.scq, 5);
	close_all();
}

/* A request that is complete needs its region no more, although its completion waits to be polled. */
static void regions_end(void)
{
	pair();
	DIE_IF(receive(&b, 1, at(&b, 0, SIZE)) || post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	done(b.rcq, 1);
	/* When a has the second one, it also has the acknowledgement of its own SEND. */
	for (uint64_t i = 6; i <= 7; i++) {
		DIE_IF(receive(&a, i, at(&a, SIZE, 100)) ||
		       post(&b, IBV_WR_SEND, i, at(&b, 0, 8), SIGNAL | IBV_SEND_INLINE, 0));
		done(b.scq, i);
	}
	DIE_IF(ibv_dereg_mr(a.mr));
	a.mr = NULL;
	done(a.rcq, 6);
	done(a.rcq, 7);
	done(a.scq, 5);
	close_all();
}

/* The program takes away the right to touch a buffer that is being sent, and not the buffer. */
static void protected(void)
{
	pair();
	DIE_IF(post(&a, IBV_WR_RDMA_WRITE, 5, at(&a, 0, 100), SIGNAL, (uintptr_t)b.buf));
	DIE_IF(mprotect(a.buf, SIZE, PROT_NONE));
	done(a.scq, 5);
	close_all();
}

/* A child changes its own copy, and the parent's is as it was. */
static void child_writes(void)
{
	pid_t child;
	int status;

	pair();
	DIE_IF(receive(&b, 1, at(&b, 0, SIZE)) || post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	child = fork();
	DIE_IF(child < 0);
	if (!child) {
		memset(a.buf, 1, SIZE);
		memset(b.buf, 1, SIZE);
		ibv_destroy_qp(a.qp);
		exit(0); /* with all that it inherited */
	}
	DIE_IF(waitpid(child, &status, 0) != child || status);
	done(a.scq, 5);
	done(b.rcq, 1);
	close_all();
}

/* A whole queue of requests again and again, one in four with a completion. */
static void ring_around(void)
{
	pair();
	for (int i = 0; i < 1000; i++) {
		uint32_t where = (uint32_t)(i % 16) * 64;
		unsigned flags = i % 4 == 3 ? SIGNAL : 0;

		memset(a.buf + where, i, 64);
		DIE_IF(receive(&b, 1, at(&b, where, 64)) ||
		       post(&a, IBV_WR_SEND, (uint64_t)i, at(&a, where, 64), flags, 0));
		done(b.rcq, 1);
		if (flags)
			done(a.scq, (uint64_t)i);
	}
	close_all();
}

static void *work(void *arg)
{
	struct end *e = arg;
	size_t offset = e == &a ? 0 : 2 * SIZE;

	for (int i = 0; i < 2000; i++) {
		memset(e->buf + offset, i, 500);
		DIE_IF(post(e, IBV_WR_RDMA_WRITE, (uint64_t)i, at(e, offset, 500), SIGNAL,
			    (uintptr_t)(e == &a ? b.buf : a.buf) + SIZE + offset));
		done(e->scq, (uint64_t)i);
	}
	return NULL;
}

static void threads_write(void)
{
	pthread_t t;

	pair();
	DIE_IF(pthread_create(&t, NULL, work, &a));
	work(&b);
	pthread_join(t, NULL);
	close_all();
}

/* It has all of its own open when it ends without exit(). */
static void leaves_by_exit(void)
{
	pair();
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	a.buf[0] = 1;
	_exit(0);
}

static uint8_t *barrier;
static volatile sig_atomic_t own_faults;

/* As a garbage collector's write barrier. */
static void lift(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	if ((uint8_t *)info->si_addr != barrier + 9)
		_exit(3);
	own_faults++;
	mprotect(barrier, SIZE, PROT_READ | PROT_WRITE);
}

/* The program has faults of its own, and a handler for them, while receives are posted. */
static void own_handler(void)
{
	struct sigaction act = {.sa_sigaction = lift, .sa_flags = SA_SIGINFO}, was;

	pair();
	barrier = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	DIE_IF(barrier == MAP_FAILED || sigaction(SIGSEGV, &act, NULL) || receive(&b, 1, at(&b, 0, SIZE)));
	barrier[9] = 1;
	DIE_IF(own_faults != 1 || sigaction(SIGSEGV, NULL, &was) || was.sa_sigaction != lift);
	memset(a.buf, 7, 100);
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	done(a.scq, 5);
	done(b.rcq, 1);
	DIE_IF(b.buf[99] != 7);
	close_all();
}

/* A child may read and write its copy of a posted receive buffer. */
static void child_reads(void)
{
	int status;
	pid_t child;

	pair();
	b.buf[1] = 5;
	DIE_IF(receive(&b, 1, at(&b, 0, SIZE)));
	child = fork();
	if (!child) {
		b.buf[0] = b.buf[1];
		_exit(b.buf[0] != 5);
	}
	DIE_IF(child < 0 || waitpid(child, &status, 0) != child || status);
	DIE_IF(post(&a, IBV_WR_SEND, 5, at(&a, 0, 100), SIGNAL, 0));
	done(a.scq, 5);
	done(b.rcq, 1);
	close_all();
}

/* Another program takes the process over. */
static void executes(void)
{
	pair();
	DIE_IF(receive(&b, 1, at(&b, 0, SIZE)));
	execl("/proc/self/exe", "wrongs", "one-buffer", "right", (char *)NULL);
	DIE_IF(true);
}

/* An allocator of the program's own moves and discards buffers that the adapter has given back. */
static void arena(void)
{
	pair();
	for (uint64_t i = 1; i <= 4; i++) {
		uint8_t *at_new,
		    *mine = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct ibv_mr *mr = ibv_reg_mr(pd, mine, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE);
		struct ibv_sge sge = {(uintptr_t)mine, 2 * SIZE, mr->lkey};

		DIE_IF(!mr || receive(&b, i, sge) || post(&a, IBV_WR_SEND, i, at(&a, 0, SIZE), SIGNAL, 0));
		done(a.scq, i);
		done(b.rcq, i);
		DIE_IF(ibv_dereg_mr(mr) || madvise(mine, SIZE, MADV_DONTNEED));
		at_new = mremap(mine, 2 * SIZE, 16 * SIZE, MREMAP_MAYMOVE);
		DIE_IF(at_new == MAP_FAILED);
		memset(at_new, 1, 16 * SIZE);
		DIE_IF(munmap(at_new, 16 * SIZE));
	}
	close_all();
}

/* It has many mappings, and receives in so many places that the system would not let it have more. */
static void many_places(void)
{
	enum { OWN = 45000, RECEIVES = 384, PIECES = 32 };
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = RECEIVES, .max_sge = PIECES}};
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	uint8_t *own, *at;

	pair();
	own = mmap(NULL, (OWN + 2ul * RECEIVES * PIECES) * SIZE, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	mr = ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
	srq = ibv_create_srq(pd, &attr);
	DIE_IF(own == MAP_FAILED || !mr || !srq);
	at = own + OWN * (size_t)SIZE;
	for (unsigned i = 1; i < OWN; i += 2)
		DIE_IF(mprotect(own + i * (size_t)SIZE, SIZE, PROT_READ));
	for (unsigned i = 0; i < RECEIVES; i++) {
		struct ibv_sge sge[PIECES];
		struct ibv_recv_wr wr = {.wr_id = i, .sg_list = sge, .num_sge = PIECES}, *bad;

		for (unsigned k = 0; k < PIECES; k++, at += 2 * SIZE)
			sge[k] = (struct ibv_sge){(uintptr_t)at, SIZE, mr->lkey};
		DIE_IF(ibv_post_srq_recv(srq, &wr, &bad));
	}
	for (unsigned i = 0; i < 1000; i++)
		DIE_IF(mmap(NULL, SIZE, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
		       MAP_FAILED);
	DIE_IF(ibv_destroy_srq(srq) || ibv_dereg_mr(mr));
	close_all();
}

const struct program legal[] = {{"written-while-sent", written_while_sent},
				{"one-buffer", one_buffer},
				{"receives-share", receives_share},
				{"reads-share", reads_share},
				{"read-while-sent", read_while_sent},
				{"flushed", flushed},
				{"flushed-behind", flushed_behind},
				{"reset", reset},
				{"inline-list", inline_list},
				{"regions-end", regions_end},
				{"protected", protected},
				{"child-writes", child_writes},
				{"ring-around", ring_around},
				{"threads-write", threads_write},
				{"leaves-by-exit", leaves_by_exit},
				{"own-handler", own_handler},
				{"child-reads", child_reads},
				{"executes", executes},
				{"arena", arena},
				{"many-places", many_places},
				{NULL, NULL}};
