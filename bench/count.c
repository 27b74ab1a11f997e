/* Does what `make bench` has callgrind count: ping-pongs of 8 B SENDs between two QPs of this process, of RC,
 * UC and UD, whose one thread takes both ends in turn, so that every run does the same; and datagrams to one
 * and to many other processes.
 *
 * Each vcount_...() makes one call of the library (two, for a completion by the extended calls), so what
 * callgrind books on that call is what the library spends: no clock, no other call and nothing of this
 * program is in it.  The library is the one that all use; callgrind knows the functions by their names, so
 * they begin as none of the library's does. They are called in batches of one kind, all other calls of a
 * batch being made past them, and callgrind writes down what it has booked when batch_over() returns: not in
 * between, since that takes so long that the library would think that nobody polls. */
#include <pthread.h>
#include <sys/socket.h>

#include "vbench.h"

#define BATCHES 10u /* of each kind */
#define BATCH	20u /* calls */
/* That find nothing, before each exchange: nothing is owed any more.  Fewer than a thread makes before it may
 * look at the clock (hca/idle.h): what that finds depends on the time, and changes the next post. */
#define POLLS 2u
#define WARM  300u
/* Polls after which queues of earlier exchanges are cold (COOL_EVERY, hca/progress.c). */
#define COOL 40000u

#ifdef __clang__
#define COUNTED __attribute__((noinline))
#else
#define COUNTED __attribute__((noinline, noclone)) /* a clone would have another name */
#endif

/* A call that is counted, by a name of its own: vcount_NAME(). */
#define POST(name)                                                           \
	int vcount_##name(struct ibv_qp *qp, struct ibv_send_wr *wr);        \
	COUNTED int vcount_##name(struct ibv_qp *qp, struct ibv_send_wr *wr) \
	{                                                                    \
		struct ibv_send_wr *bad;                                     \
                                                                             \
		return ibv_post_send(qp, wr, &bad);                          \
	}
#define POLL(name)                                                      \
	int vcount_##name(struct ibv_cq *cq, struct ibv_wc *wc);        \
	COUNTED int vcount_##name(struct ibv_cq *cq, struct ibv_wc *wc) \
	{                                                               \
		return ibv_poll_cq(cq, 1, wc);                          \
	}

POST(post_inline)
POST(post_region)
POST(write_inline)
POST(write_region)
POST(read)
POST(fetch_add)
POST(uc_post_inline)
POST(uc_post_region)
POST(ud_post_inline)
POST(ud_post_region)
POST(peers_1_post)
POST(peers_64_post)
POLL(empty)
POLL(receive)
POLL(receive_ack)
POLL(ack)
POLL(completion)
POLL(uc_receive)
POLL(uc_completion)
POLL(ud_receive)
POLL(ud_completion)

int vcount_wr_inline(struct ibv_qp_ex *qp, void *data);
int vcount_wr_region(struct ibv_qp_ex *qp, void *data, uint32_t lkey);
int vcount_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr);
int vcount_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr);
int vcount_ex_empty(struct ibv_cq *cq, struct ibv_wc *wc);
int vcount_ex_receive(struct ibv_cq *cq, struct ibv_wc *wc);
int vcount_ex_ack(struct ibv_cq *cq, struct ibv_wc *wc);
int vcount_ex_completion(struct ibv_cq *cq, struct ibv_wc *wc);

/* The same request call by call: four calls. */
COUNTED int vcount_wr_inline(struct ibv_qp_ex *qp, void *data)
{
	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, data, 8);
	return ibv_wr_complete(qp);
}

COUNTED int vcount_wr_region(struct ibv_qp_ex *qp, void *data, uint32_t lkey)
{
	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, lkey, (uintptr_t)data, 8);
	return ibv_wr_complete(qp);
}

COUNTED int vcount_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr)
{
	struct ibv_recv_wr *bad;

	return ibv_post_recv(qp, wr, &bad);
}

COUNTED int vcount_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr)
{
	struct ibv_recv_wr *bad;

	return ibv_post_srq_recv(srq, wr, &bad);
}

/* One completion by the extended calls: from the start to the end of a batch.  What its program reads of it
 * costs the same in all cases, and is not counted. */
static inline __attribute__((always_inline)) int poll_ex(struct ibv_cq *cq)
{
	struct ibv_cq_ex *ex = (struct ibv_cq_ex *)cq;
	struct ibv_poll_cq_attr attr = {0};

	if (ibv_start_poll(ex, &attr))
		return 0;
	ibv_end_poll(ex);
	return 1;
}

COUNTED int vcount_ex_empty(struct ibv_cq *cq, struct ibv_wc *wc)
{
	(void)wc;
	return poll_ex(cq);
}

COUNTED int vcount_ex_receive(struct ibv_cq *cq, struct ibv_wc *wc)
{
	(void)wc;
	return poll_ex(cq);
}

COUNTED int vcount_ex_ack(struct ibv_cq *cq, struct ibv_wc *wc)
{
	(void)wc;
	return poll_ex(cq);
}

COUNTED int vcount_ex_completion(struct ibv_cq *cq, struct ibv_wc *wc)
{
	(void)wc;
	return poll_ex(cq);
}

/* Callgrind ends a part of its file when this returns. */
void batch_over(void);

COUNTED void batch_over(void)
{
	__asm__ volatile("");
}

enum kind {
	EMPTY,
	POST_INLINE,
	POST_REGION,
	WR_INLINE,
	WR_REGION,
	POST_RECV,
	RECEIVE,
	RECEIVE_ACK,
	ACK,
	COMPLETION,
	EX_EMPTY,
	EX_RECEIVE,
	EX_ACK,
	EX_COMPLETION,
	WRITE_INLINE,
	WRITE_REGION,
	READ,
	FETCH_ADD,
	POST_SRQ_RECV,
	KINDS,
	NONE
};

/* What is counted of each type: all kinds of RC, and of the others those that stand beside RC's. */
static const struct counted {
	int (*post_inline)(struct ibv_qp *qp, struct ibv_send_wr *wr);
	int (*post_region)(struct ibv_qp *qp, struct ibv_send_wr *wr);
	int (*receive)(struct ibv_cq *cq, struct ibv_wc *wc);
	int (*completion)(struct ibv_cq *cq, struct ibv_wc *wc);
} counted[] = {
    [IBV_QPT_RC] = {vcount_post_inline, vcount_post_region, vcount_receive, vcount_completion},
    [IBV_QPT_UC] = {vcount_uc_post_inline, vcount_uc_post_region, vcount_uc_receive, vcount_uc_completion},
    [IBV_QPT_UD] = {vcount_ud_post_inline, vcount_ud_post_region, vcount_ud_receive, vcount_ud_completion},
};

static bool is_counted(enum ibv_qp_type type, enum kind k)
{
	return type == IBV_QPT_RC || k == POST_INLINE || k == POST_REGION || k == RECEIVE || k == COMPLETION;
}

static void post(struct side *s, enum kind k)
{
	struct ibv_sge sge = {(uintptr_t)s->buf, 8, s->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED | (k == POST_REGION ? 0 : IBV_SEND_INLINE)};
	struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1};
	bool by_calls = k == WR_INLINE || k == WR_REGION;
	struct ibv_qp_ex *ex = by_calls ? ibv_qp_to_qp_ex(s->qp) : NULL; /* NULL: an older library's */
	const struct counted *c = &counted[side_type(s)];
	struct ibv_send_wr *bad;

	if (s->ah)
		side_address(s, &wr);
	if (k == POST_RECV)
		errno = vcount_post_recv(s->qp, &recv);
	else if (side_type(s) == IBV_QPT_RC)
		side_receive(s, 1, 8); /* for the answer */
	if (k == POST_INLINE)
		errno = c->post_inline(s->qp, &wr);
	else if (k == POST_REGION)
		errno = c->post_region(s->qp, &wr);
	else if (ex && k == WR_INLINE)
		errno = vcount_wr_inline(ex, s->buf);
	else if (ex)
		errno = vcount_wr_region(ex, s->buf, s->mr->lkey);
	else
		errno = ibv_post_send(s->qp, &wr, &bad);
	if (errno)
		die("a post");
}

static int poll_one(struct ibv_cq *cq, struct ibv_wc *wc)
{
	return ibv_poll_cq(cq, 1, wc);
}

/* Nothing is under way, or owed, any more. */
static void rest(struct side *s, unsigned polls)
{
	struct ibv_wc wc;

	for (unsigned n = 0; n < polls; n++)
		if (poll_one(s->rcq, &wc))
			die("a message that nobody sent");
}

/* The poll that is counted in a batch of this kind, else one that is not. */
static int poll_as(enum kind k, enum kind plain, int (*counted)(struct ibv_cq *, struct ibv_wc *),
		   enum kind extended, int (*counted_ex)(struct ibv_cq *, struct ibv_wc *), struct ibv_cq *cq)
{
	struct ibv_wc wc;

	return (k == plain ? counted : k == extended ? counted_ex : poll_one)(cq, &wc);
}

/* A poll that is counted may meet the engine at the ring; then another one finds what it was to find. */
static unsigned misses;

static void find(struct ibv_cq *cq, int n)
{
	misses += n != 1;
	side_wait(cq, n == 1 ? 0 : 1);
}

/* A message comes alone, and is acknowledged. */
static void one_way(struct side *from, struct side *to, enum kind k)
{
	struct ibv_wc wc;

	side_receive(to, 1, 8);
	side_post(from, IBV_WR_SEND, 8, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
	find(to->rcq, poll_as(k, RECEIVE, vcount_receive, EX_RECEIVE, vcount_ex_receive, to->rcq));
	if (poll_one(to->rcq, &wc)) /* it finds nothing, and sends what is owed */
		die("a message that nobody sent");
	find(from->scq, poll_as(k, ACK, vcount_ack, EX_ACK, vcount_ex_ack, from->scq));
}

/* Nobody acknowledges it: it is complete when it has left. */
static void unanswered(struct side *from, struct side *to, enum kind k)
{
	const struct counted *c = &counted[side_type(from)];

	side_receive(to, 1, 8);
	post(from, k);
	find(to->rcq, poll_as(k, RECEIVE, c->receive, NONE, NULL, to->rcq));
	find(from->scq, poll_as(k, COMPLETION, c->completion, NONE, NULL, from->scq));
}

/* The answer carries the ACK along, as in a ping-pong. */
static void there_and_back(struct side *here, struct side *there, enum kind k)
{
	struct ibv_wc wc;

	if (k == EMPTY)
		vcount_empty(here->rcq, &wc);
	if (k == EX_EMPTY)
		vcount_ex_empty(here->rcq, &wc);
	side_receive(there, 1, 8);
	post(here, k);
	side_wait(there->rcq, 1);
	side_post(there, IBV_WR_SEND, 8, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
	find(here->rcq, (k == RECEIVE_ACK ? vcount_receive_ack : poll_one)(here->rcq, &wc));
	find(here->scq,
	     poll_as(k, COMPLETION, vcount_completion, EX_COMPLETION, vcount_ex_completion, here->scq));
	side_wait(there->scq, 1);
}

/* To memory that this process has itself, as it has a region of a peer that it has mapped. */
static void placed(struct side *from, struct side *to, enum kind k)
{
	static const struct {
		int (*post)(struct ibv_qp *qp, struct ibv_send_wr *wr);
		enum ibv_wr_opcode opcode;
		unsigned flags;
	} how[KINDS] = {[WRITE_INLINE] = {vcount_write_inline, IBV_WR_RDMA_WRITE, IBV_SEND_INLINE},
			[WRITE_REGION] = {vcount_write_region, IBV_WR_RDMA_WRITE, 0},
			[READ] = {vcount_read, IBV_WR_RDMA_READ, 0},
			[FETCH_ADD] = {vcount_fetch_add, IBV_WR_ATOMIC_FETCH_AND_ADD, 0}};
	struct ibv_sge sge = {(uintptr_t)from->buf, 8, from->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = how[k].opcode,
				 .send_flags = IBV_SEND_SIGNALED | how[k].flags};

	if (k == FETCH_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)to->buf;
		wr.wr.atomic.rkey = to->mr->rkey;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)to->buf;
		wr.wr.rdma.rkey = to->mr->rkey;
	}
	errno = how[k].post(from->qp, &wr);
	if (errno)
		die("a WRITE, a READ or an atomic");
	side_wait(from->scq, 1);
}

/* To a queue that nobody receives from. */
static void shared_receive(const struct side *s)
{
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = BATCHES * BATCH, .max_sge = 1}};
	struct ibv_sge sge = {(uintptr_t)s->buf, 8, s->mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1};
	static struct ibv_srq *srq;
	static unsigned posted;

	if (!srq)
		srq = ibv_create_srq(s->pd, &attr);
	if (!srq)
		die("an SRQ");
	errno = vcount_post_srq_recv(srq, &wr);
	if (errno)
		die("a receive of an SRQ");
	if (++posted == BATCHES * BATCH && ibv_destroy_srq(srq))
		die("closing an SRQ");
}

static void exchange(struct side *here, struct side *there, enum kind k)
{
	rest(here, POLLS);
	if (side_type(here) != IBV_QPT_RC)
		unanswered(here, there, k);
	else if (k >= WRITE_INLINE && k <= FETCH_ADD)
		placed(here, there, k);
	else if (k == POST_SRQ_RECV)
		shared_receive(here);
	else if (k == RECEIVE || k == ACK || k == EX_RECEIVE || k == EX_ACK)
		one_way(here, there, k);
	else
		there_and_back(here, there, k);
}

static void *open_side(void *arg)
{
	side_open(arg);
	return NULL;
}

static void *close_side(void *arg)
{
	side_close(arg);
	return NULL;
}

/* The sides meet while they are opened and closed, so each needs a thread for that. */
static void both(void *(*step)(void *), struct side *here, struct side *there)
{
	pthread_t t;

	errno = pthread_create(&t, NULL, step, there);
	if (errno)
		die("pthread_create");
	step(here);
	pthread_join(t, NULL);
}

static void count(enum ibv_qp_type type)
{
	struct side here = {.client = true, .extended = true, .type = type};
	struct side there = {.client = false, .extended = true, .type = type};
	int sock[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock))
		die("socketpair");
	here.sock = sock[0];
	there.sock = sock[1];
	both(open_side, &here, &there);
	rest(&here, COOL);
	for (unsigned i = 0; i < WARM; i++)
		exchange(&here, &there, KINDS);
	for (enum kind k = 0; k < KINDS; k++) {
		for (unsigned b = 0; is_counted(type, k) && b < BATCHES; b++) {
			for (unsigned n = 0; n < BATCH; n++)
				exchange(&here, &there, k);
			batch_over();
		}
	}
	both(close_side, &here, &there);
	close(here.sock);
	close(there.sock);
}

/* The peers are no part of what is counted, and too many for callgrind: each is a program of its own. */
static const char *program;

static void become_peer(int sock)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", sock);
	execl(program, program, "peer", number, NULL);
	die(program);
}

/* One QP of UD that talks to n processes in turn, which have fallen asleep when the next datagram comes.
 * (Callgrind has address space for the segments of about a hundred.) */
static void count_peers(unsigned n, int (*counted)(struct ibv_qp *qp, struct ibv_send_wr *wr))
{
	struct side *p = calloc(n, sizeof(*p));

	if (!p)
		die("calloc");
	side_fork(p, n, become_peer);
	peers_open(p, n);
	for (unsigned b = 0; b < BATCHES; b++) {
		for (unsigned i = 0; i < BATCH; i++) {
			struct side *to = &p[(b * BATCH + i) % n];
			struct ibv_sge sge = {(uintptr_t)to->buf, 8, to->mr->lkey};
			struct ibv_send_wr wr = {.sg_list = &sge,
						 .num_sge = 1,
						 .opcode = IBV_WR_SEND,
						 .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE};

			side_address(to, &wr);
			peers_rest(to);
			if (counted(to->qp, &wr))
				die("a post");
			side_wait(to->scq, 1);
		}
		batch_over();
	}
	peers_close(p, n);
	free(p);
}

int main(int argc, char **argv)
{
	program = argv[0];
	if (argc == 3) {
		peers_listen(atoi(argv[2]));
		return 0;
	}
	side_allow_descriptors();
	count(IBV_QPT_RC);
	count(IBV_QPT_UC);
	count(IBV_QPT_UD);
	count_peers(1, vcount_peers_1_post);
	count_peers(64, vcount_peers_64_post);
	if (misses > KINDS * BATCH) {
		fprintf(stderr, "%u polls found nothing that should have\n", misses);
		return 1;
	}
	return 0;
}
