/* Events as a program meets them: a peer's SEND wakes whoever waits, in whatever way; the limit of an SRQ and
 * an overrun are told; destruction waits for acknowledgements; a forked child has nothing of it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

#include "hca/hca.h"
#include "kit.h"
#include "verbs/verbs.h"

enum { ROUNDS = 300, DEPTH = 16 };

/* kit_end with a channel and perhaps an SRQ. */
struct end {
	struct kit_end e;
	struct ibv_comp_channel *ch;
	struct ibv_srq *srq;
};

static void end_open(struct end *x, struct ibv_pd *pd, int cqe, bool with_srq)
{
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = DEPTH, .max_sge = 1}};
	struct ibv_qp_init_attr qa = {
	    .qp_type = IBV_QPT_RC,
	    .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = KIT_ALL};

	memset(x, 0, sizeof(*x));
	CHECK(!ibv_query_gid(pd->context, 1, 0, &x->e.card.gid));
	x->ch = ibv_create_comp_channel(pd->context);
	CHECK(x->ch);
	x->e.cq = ibv_create_cq(pd->context, cqe, x, x->ch, 0);
	CHECK(x->e.cq);
	if (with_srq) {
		x->srq = ibv_create_srq(pd, &sa);
		CHECK(x->srq);
	}
	qa.send_cq = qa.recv_cq = x->e.cq;
	qa.srq = x->srq;
	x->e.qp = ibv_create_qp(pd, &qa);
	CHECK(x->e.qp);
	CHECK(!ibv_modify_qp(x->e.qp, &a,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	x->e.buf = calloc(1, 4096);
	x->e.mr = ibv_reg_mr(pd, x->e.buf, 4096, KIT_ALL);
	CHECK(x->e.buf && x->e.mr);
	x->e.card.qpn = x->e.qp->qp_num;
	x->e.card.psn = x->e.qp->qp_num & 0xfff;
}

static void end_close(struct end *x)
{
	if (x->e.qp)
		CHECK(!ibv_destroy_qp(x->e.qp));
	if (x->srq)
		CHECK(!ibv_destroy_srq(x->srq));
	CHECK(!ibv_dereg_mr(x->e.mr));
	CHECK(!ibv_destroy_cq(x->e.cq));
	CHECK(!ibv_destroy_comp_channel(x->ch));
	free(x->e.buf);
}

static bool readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

static void post_recv(struct end *x)
{
	CHECK(!kit_recv(&x->e, 1, 0, 64));
}

static void post_srq(struct end *x)
{
	struct ibv_sge sge = {(uintptr_t)x->e.buf, 64, x->e.mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;

	CHECK(!ibv_post_srq_recv(x->srq, &wr, &bad));
}

static void send_one(struct end *x, unsigned flags)
{
	struct ibv_sge sge = {(uintptr_t)x->e.buf, 8, x->e.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags};
	struct ibv_send_wr *bad;

	CHECK(!ibv_post_send(x->e.qp, &wr, &bad));
}

static void take_event(struct end *x)
{
	struct ibv_cq *cq;
	void *context;

	CHECK(!ibv_get_cq_event(x->ch, &cq, &context), "errno %d", errno);
	CHECK(cq == x->e.cq && context == x);
	ibv_ack_cq_events(cq, 1);
}

static void expect_wc(struct end *x, enum ibv_wc_status status)
{
	struct ibv_wc wc = kit_wait(&x->e, 30);

	CHECK(wc.status == status, "status %d", (int)wc.status);
}

/* The sender: one SEND for each byte in the pipe, 's' for a solicited one. */
static void sender(int card_in, int card_out, int orders)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct kit_card peer;
	struct end x;
	char c;

	CHECK(pd);
	end_open(&x, pd, 2 * DEPTH, false);
	CHECK(write(card_out, &x.e.card, sizeof(peer)) == sizeof(peer));
	CHECK(read(card_in, &peer, sizeof(peer)) == sizeof(peer));
	kit_connect(&x.e, &peer);
	while (read(orders, &c, 1) == 1) {
		send_one(&x, IBV_SEND_SIGNALED | (c == 's' ? IBV_SEND_SOLICITED : 0));
		expect_wc(&x, IBV_WC_SUCCESS);
	}
	end_close(&x);
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(ctx));
	_exit(0);
}

static void order(int fd, char c)
{
	CHECK(write(fd, &c, 1) == 1);
}

/* Blocking, as ibv_rc_pingpong -e does it. */
static void a_send_wakes_a_blocked_reader(struct end *x, int orders)
{
	for (int i = 0; i < ROUNDS; i++) {
		CHECK(!ibv_req_notify_cq(x->e.cq, 0));
		post_recv(x);
		order(orders, 'p');
		take_event(x);
		expect_wc(x, IBV_WC_SUCCESS);
	}
	CHECK(!readable(x->ch->fd));
}

/* The thread sleeps in poll(2), so the engine alone makes progress. */
static void a_send_wakes_poll(struct end *x, int orders)
{
	struct pollfd p = {.fd = x->ch->fd, .events = POLLIN};
	int flags = fcntl(x->ch->fd, F_GETFL);
	struct ibv_cq *cq;
	void *context;

	CHECK(!fcntl(x->ch->fd, F_SETFL, flags | O_NONBLOCK));
	for (int i = 0; i < ROUNDS; i++) {
		CHECK(!ibv_req_notify_cq(x->e.cq, 0));
		CHECK(ibv_get_cq_event(x->ch, &cq, &context) == -1 && errno == EAGAIN);
		post_recv(x);
		order(orders, 'p');
		CHECK(poll(&p, 1, 30000) == 1);
		take_event(x);
		expect_wc(x, IBV_WC_SUCCESS);
	}
	CHECK(!fcntl(x->ch->fd, F_SETFL, flags));
}

static void only_a_solicited_send_wakes(struct end *x, int orders)
{
	for (int i = 0; i < ROUNDS; i++) {
		CHECK(!ibv_req_notify_cq(x->e.cq, 1));
		post_recv(x);
		post_recv(x);
		order(orders, 'p');
		expect_wc(x, IBV_WC_SUCCESS);
		CHECK(!readable(x->ch->fd));
		order(orders, 's');
		take_event(x);
		expect_wc(x, IBV_WC_SUCCESS);
		CHECK(!readable(x->ch->fd));
	}
}

static void *wait_for_event(void *arg)
{
	take_event(arg);
	return NULL;
}

/* Two threads on one channel: one event wakes one of them, a second one the other. */
static void two_readers_share_a_channel(struct end *x, int orders)
{
	pthread_t t[2];

	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&t[i], NULL, wait_for_event, x));
	for (int i = 0; i < 2; i++) {
		CHECK(!ibv_req_notify_cq(x->e.cq, 0));
		post_recv(x);
		order(orders, 'p');
		expect_wc(x, IBV_WC_SUCCESS);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
}

static void between_two_processes(void)
{
	int to[2], from[2], orders[2];
	struct ibv_context *ctx;
	struct kit_card peer;
	struct ibv_pd *pd;
	struct end x;
	pid_t pid;

	CHECK(!pipe(to) && !pipe(from) && !pipe(orders));
	pid = kit_fork();
	if (!pid) {
		close(orders[1]);
		sender(to[0], from[1], orders[0]);
	}
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	end_open(&x, pd, 2 * DEPTH, false);
	CHECK(write(to[1], &x.e.card, sizeof(peer)) == sizeof(peer));
	CHECK(read(from[0], &peer, sizeof(peer)) == sizeof(peer));
	kit_connect(&x.e, &peer);
	a_send_wakes_a_blocked_reader(&x, orders[1]);
	a_send_wakes_poll(&x, orders[1]);
	only_a_solicited_send_wakes(&x, orders[1]);
	two_readers_share_a_channel(&x, orders[1]);
	close(orders[1]);
	CHECK(kit_reap(pid) == 0);
	end_close(&x);
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(ctx));
}

static void connect_pair(struct end *a, struct end *b)
{
	kit_connect(&a->e, &b->e.card);
	kit_connect(&b->e, &a->e.card);
}

static struct ibv_async_event expect_async(struct ibv_context *ctx, enum ibv_event_type type)
{
	struct ibv_async_event ev;

	CHECK(!ibv_get_async_event(ctx, &ev));
	CHECK(ev.event_type == type, "%s", ibv_event_type_str(ev.event_type));
	return ev;
}

struct destruction {
	struct ibv_qp *qp;
	_Atomic bool acked;
};

static void *destroy_qp(void *arg)
{
	struct destruction *d = arg;

	CHECK(!ibv_destroy_qp(d->qp));
	CHECK(d->acked, "ibv_destroy_qp did not wait");
	return NULL;
}

/* Rules 34, 35 and 36.  Nobody polls while the limit event is waited for: the engine makes the progress. */
static void srq_events(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct ibv_srq_attr limit = {.srq_limit = 3};
	struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
	struct destruction d = {0};
	struct ibv_async_event ev;
	struct end a, b;
	pthread_t t;

	end_open(&a, pd, DEPTH, false);
	end_open(&b, pd, DEPTH, true);
	connect_pair(&a, &b);
	for (int i = 0; i < 5; i++)
		post_srq(&b);
	CHECK(!ibv_modify_srq(b.srq, &limit, IBV_SRQ_LIMIT));
	for (int i = 0; i < 4; i++)
		send_one(&a, IBV_SEND_SIGNALED);
	ev = expect_async(ctx, IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(ev.element.srq == b.srq);
	ibv_ack_async_event(&ev);
	for (int i = 0; i < 4; i++) {
		expect_wc(&a, IBV_WC_SUCCESS);
		expect_wc(&b, IBV_WC_SUCCESS);
	}
	CHECK(!readable(ctx->async_fd)); /* once */
	CHECK(ibv_destroy_srq(b.srq) == EBUSY);
	CHECK(!ibv_modify_qp(b.e.qp, &err, IBV_QP_STATE));
	ev = expect_async(ctx, IBV_EVENT_QP_LAST_WQE_REACHED);
	CHECK(ev.element.qp == b.e.qp);
	d.qp = b.e.qp;
	CHECK(!pthread_create(&t, NULL, destroy_qp, &d));
	d.acked = true;
	ibv_ack_async_event(&ev);
	pthread_join(t, NULL);
	b.e.qp = NULL;
	end_close(&b);
	end_close(&a);
}

static void *destroy_cq(void *arg)
{
	CHECK(!ibv_destroy_cq(arg));
	return NULL;
}

/* Whoever handles an event uses the queue pair or CQ until it is acknowledged, while another thread destroys
 * that: what it does then is refused, or leaves nothing behind (rule 36). */
static void handlers_of_what_is_destroyed(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct vb_presence *presence = vb_adapter_presence(vb_context(ctx)->adapter);
	struct ibv_modify_cq_attr few = {.attr_mask = IBV_CQ_ATTR_MODERATE,
					 .moderate = {.cq_count = 4, .cq_period = 100}};
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_ERR, .port_num = 1};
	struct destruction d = {0};
	struct ibv_async_event ev;
	struct ibv_cq *cq;
	void *context;
	struct end a, b;
	uint32_t armed;
	pthread_t t;

	armed = atomic_load(&presence->armed);
	end_open(&a, pd, DEPTH, false);
	end_open(&b, pd, DEPTH, true);
	connect_pair(&a, &b);
	post_srq(&b);
	CHECK(!ibv_req_notify_cq(b.e.cq, 0));
	send_one(&a, IBV_SEND_SIGNALED);
	CHECK(!ibv_get_cq_event(b.ch, &cq, &context) && cq == b.e.cq);
	expect_wc(&a, IBV_WC_SUCCESS);
	expect_wc(&b, IBV_WC_SUCCESS);
	CHECK(!ibv_modify_qp(b.e.qp, &to, IBV_QP_STATE));
	ev = expect_async(ctx, IBV_EVENT_QP_LAST_WQE_REACHED);
	d.qp = b.e.qp;
	CHECK(!pthread_create(&t, NULL, destroy_qp, &d));
	kit_until_blocked();
	CHECK(ibv_modify_qp(b.e.qp, &to, IBV_QP_STATE) == EINVAL);
	to.qp_state = IBV_QPS_INIT;
	CHECK(ibv_modify_qp(b.e.qp, &to,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == EINVAL);
	d.acked = true;
	ibv_ack_async_event(&ev);
	CHECK(!pthread_join(t, NULL) && !readable(ctx->async_fd));
	CHECK(!ibv_destroy_srq(b.srq));
	CHECK(!pthread_create(&t, NULL, destroy_cq, b.e.cq));
	kit_until_blocked();
	CHECK(!ibv_req_notify_cq(b.e.cq, 0));
	CHECK(!ibv_modify_cq(b.e.cq, &few));
	CHECK(!ibv_resize_cq(b.e.cq, 4 * DEPTH));
	ibv_ack_cq_events(b.e.cq, 1);
	CHECK(!pthread_join(t, NULL));
	end_close(&a);
	CHECK(atomic_load(&presence->armed) == armed, "the adapter counts a CQ that is gone as armed");
	CHECK(vb_list_empty(&vb_hca(vb_context(ctx)->adapter)->moderated));
	CHECK(!ibv_dereg_mr(b.e.mr) && !ibv_destroy_comp_channel(b.ch));
	free(b.e.buf);
}

/* The same of a queue pair that would be attached to a group. */
static void a_group_does_not_get_what_is_destroyed(struct ibv_context *ctx, struct ibv_pd *pd)
{
	union ibv_gid group = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 239, [13] = 1, [14] = 2, [15] = 3}};
	struct ibv_qp_attr drain = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
	struct destruction d = {0};
	struct ibv_async_event ev;
	struct kit_end e;
	pthread_t t;

	kit_end_open_as(&e, pd, DEPTH, 64, IBV_QPT_UD);
	CHECK(!ibv_modify_qp(e.qp, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	ev = expect_async(ctx, IBV_EVENT_SQ_DRAINED);
	d.qp = e.qp;
	CHECK(!pthread_create(&t, NULL, destroy_qp, &d));
	kit_until_blocked();
	CHECK(ibv_attach_mcast(e.qp, &group, 0) == EINVAL);
	d.acked = true;
	ibv_ack_async_event(&ev);
	CHECK(!pthread_join(t, NULL));
	CHECK(!ibv_dereg_mr(e.mr) && !ibv_destroy_cq(e.cq));
	free(e.buf);
}

struct teller {
	struct end a, b;
	_Atomic bool enough;
	_Atomic int rounds;
};

static void *tell(void *arg)
{
	struct teller *x = arg;

	while (!atomic_load(&x->enough)) {
		post_recv(&x->b);
		CHECK(!ibv_req_notify_cq(x->b.e.cq, 0));
		send_one(&x->a, IBV_SEND_SIGNALED);
		expect_wc(&x->a, IBV_WC_SUCCESS);
		expect_wc(&x->b, IBV_WC_SUCCESS);
		atomic_fetch_add(&x->rounds, 1);
	}
	return arg;
}

/* Whoever polls may tell of completions elsewhere, with locks held that others want. */
static void telling_is_no_cancellation_point(struct ibv_pd *pd)
{
	struct teller x = {0};
	struct ibv_cq *cq;
	void *context, *end;
	unsigned events = 0;
	pthread_t t;

	end_open(&x.a, pd, DEPTH, false);
	end_open(&x.b, pd, DEPTH, false);
	connect_pair(&x.a, &x.b);
	CHECK(!pthread_create(&t, NULL, tell, &x));
	CHECK(!pthread_cancel(t));
	while (atomic_load(&x.rounds) < ROUNDS) {
		CHECK(pthread_tryjoin_np(t, &end) == EBUSY, "a verb was a cancellation point");
		kit_nap(1);
	}
	atomic_store(&x.enough, true);
	CHECK(!pthread_join(t, &end) && end == &x);
	for (; readable(x.b.ch->fd); events++)
		CHECK(!ibv_get_cq_event(x.b.ch, &cq, &context));
	CHECK(events == (unsigned)x.rounds, "%u events of %d", events, x.rounds);
	ibv_ack_cq_events(x.b.e.cq, events);
	end_close(&x.a);
	end_close(&x.b);
}

/* Rule 31 with traffic: the receiver's CQ has room for one completion. */
static void overrun(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct ibv_qp_init_attr init;
	struct ibv_async_event ev;
	struct ibv_qp_attr attr;
	struct ibv_wc wc;
	struct end a, b;
	int n;

	end_open(&a, pd, DEPTH, false);
	end_open(&b, pd, 1, false);
	connect_pair(&a, &b);
	for (int i = 0; i < 3; i++)
		post_recv(&b);
	for (int i = 0; i < 3; i++)
		send_one(&a, 0);
	do /* a QP that goes with its CQ may tell that too */
		CHECK(!ibv_get_async_event(ctx, &ev));
	while (ibv_ack_async_event(&ev), ev.event_type != IBV_EVENT_CQ_ERR);
	CHECK(ev.element.cq == b.e.cq);
	expect_wc(&b, IBV_WC_SUCCESS);
	while (!(n = ibv_poll_cq(b.e.cq, 1, &wc)))
		;
	CHECK(n < 0);
	CHECK(!ibv_query_qp(b.e.qp, &attr, IBV_QP_STATE, &init));
	CHECK(attr.qp_state == IBV_QPS_ERR);
	end_close(&a);
	end_close(&b);
}

/* The child's copies are dead and end quietly; the parent's go on. */
static void a_forked_child_has_dead_objects(struct ibv_pd *pd)
{
	struct ibv_srq_attr limit = {.srq_limit = 1};
	struct ibv_cq *cq;
	struct ibv_wc wc;
	struct end a, b;
	void *context;
	pid_t pid;

	end_open(&a, pd, DEPTH, false);
	end_open(&b, pd, DEPTH, true);
	connect_pair(&a, &b);
	pid = kit_fork();
	if (!pid) {
		CHECK(ibv_poll_cq(b.e.cq, 1, &wc) < 0);
		CHECK(ibv_req_notify_cq(b.e.cq, 0) == EIO);
		CHECK(ibv_get_cq_event(b.ch, &cq, &context) == -1 && errno == EIO);
		CHECK(ibv_modify_srq(b.srq, &limit, IBV_SRQ_LIMIT) == EIO);
		CHECK(!ibv_destroy_cq(b.e.cq));
		CHECK(!ibv_destroy_comp_channel(b.ch));
		CHECK(!ibv_destroy_srq(b.srq));
		_exit(0);
	}
	CHECK(kit_reap(pid) == 0);
	post_srq(&b);
	CHECK(!ibv_req_notify_cq(b.e.cq, 0));
	send_one(&a, IBV_SEND_SIGNALED);
	take_event(&b);
	expect_wc(&b, IBV_WC_SUCCESS);
	end_close(&a);
	end_close(&b);
}

static void fail_qp(void *arg)
{
	struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};

	CHECK(!ibv_modify_qp(((struct end *)arg)->e.qp, &err, IBV_QP_STATE));
}

static void *wait_for_ever(void *arg)
{
	struct end *x = arg;

	pthread_cleanup_push(fail_qp, x);
	take_event(x);
	pthread_cleanup_pop(0);
	return NULL;
}

/* What a cancelled thread brings about while it ends is for those that are left. */
static void a_cancelled_waiter_takes_no_event_along(struct ibv_pd *pd)
{
	struct end a, b;
	pthread_t t;

	end_open(&a, pd, DEPTH, false);
	end_open(&b, pd, DEPTH, false);
	connect_pair(&a, &b);
	post_recv(&b);
	CHECK(!ibv_req_notify_cq(b.e.cq, 0));
	CHECK(!pthread_create(&t, NULL, wait_for_ever, &b));
	kit_until_blocked();
	CHECK(!pthread_cancel(t) && !pthread_join(t, NULL));
	CHECK(poll((struct pollfd[]){{.fd = b.ch->fd, .events = POLLIN}}, 1, 10000) == 1);
	take_event(&b);
	expect_wc(&b, IBV_WC_WR_FLUSH_ERR);
	end_close(&a);
	end_close(&b);
}

int main(void)
{
	struct ibv_context *ctx;
	struct ibv_pd *pd;

	between_two_processes();
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	srq_events(ctx, pd);
	handlers_of_what_is_destroyed(ctx, pd);
	a_group_does_not_get_what_is_destroyed(ctx, pd);
	telling_is_no_cancellation_point(pd);
	overrun(ctx, pd);
	a_cancelled_waiter_takes_no_event_along(pd);
	a_forked_child_has_dead_objects(pd);
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(ctx));
	return 0;
}
