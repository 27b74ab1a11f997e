/* Memory and objects that end too early, or never; and posted receive buffers that are read. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
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

/* With --check=guard: the program looks for its message in a buffer that the adapter has.  It has a handler
 * of its own, which runs as ever. */
static void guard_read(void)
{
	volatile uint8_t byte = 0;

	pair();
	signal(SIGSEGV, on_fault);
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

static struct rdma_cm_id *server_id;

static void *serve(void *listener)
{
	char buf[64];
	struct ibv_mr *mr;
	struct ibv_wc wc;

	DIE_IF(rdma_get_request(listener, &server_id));
	mr = rdma_reg_msgs(server_id, buf, sizeof buf);
	DIE_IF(!mr || rdma_post_recv(server_id, NULL, buf, sizeof buf, mr) || rdma_accept(server_id, NULL));
	DIE_IF(rdma_get_recv_comp(server_id, &wc) != 1 || wc.status);
	rdma_disconnect(server_id); /* both ends do */
	DIE_IF(rdma_dereg_mr(mr));
	return NULL;
}

static void cm_changed(void)
{
	struct ibv_qp_init_attr attr = {
	    .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	    .sq_sig_all = 1};
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = RAI_PASSIVE}, *info;
	struct rdma_cm_id *listener, *id;
	static char buf[64];
	struct ibv_mr *mr;
	struct ibv_wc wc;
	pthread_t t;

	DIE_IF(rdma_getaddrinfo("127.0.0.1", "18650", &hints, &info) ||
	       rdma_create_ep(&listener, info, NULL, &attr) || rdma_listen(listener, 1));
	rdma_freeaddrinfo(info);
	DIE_IF(pthread_create(&t, NULL, serve, listener));
	hints.ai_flags = 0;
	DIE_IF(rdma_getaddrinfo("127.0.0.1", "18650", &hints, &info) ||
	       rdma_create_ep(&id, info, NULL, &attr));
	rdma_freeaddrinfo(info);
	mr = rdma_reg_msgs(id, buf, sizeof buf);
	DIE_IF(!mr || rdma_connect(id, NULL) || rdma_post_send(id, (void *)5, buf, sizeof buf, mr, 0));
	WRONG(buf[33] = 1);
	DIE_IF(rdma_get_send_comp(id, &wc) != 1 || wc.status);
	rdma_disconnect(id);
	pthread_join(t, NULL);
	DIE_IF(rdma_dereg_mr(mr));
	rdma_destroy_ep(id);
	rdma_destroy_ep(server_id);
	rdma_destroy_ep(listener);
}

const struct program others[] = {{"deregistered", deregistered},
				 {"receive-deregistered", receive_deregistered},
				 {"unmapped", unmapped},
				 {"ah-destroyed", ah_destroyed},
				 {"stale-key", stale_key},
				 {"left-objects", left_objects},
				 {"left-completions", left_completions},
				 {"left-event", left_event},
				 {"guard-read", guard_read},
				 {"guard-syscall", guard_syscall},
				 {"cm-changed", cm_changed},
				 {NULL, NULL}};
