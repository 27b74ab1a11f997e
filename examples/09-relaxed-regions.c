/* A relaxed region for each message: a pool makes registration cheap enough for that.
 *
 *     cc 09-relaxed-regions.c -o 09-relaxed-regions $(pkg-config --cflags --libs verbena)
 *     verbena run ./09-relaxed-regions [MESSAGES]
 *
 * The parent sends and the child receives.  Both register a buffer anew for each message.  In return, an
 * access that is under way may go on after deregistration, until ibv_flush_relaxed_mr() returns.  The calls
 * are ibv_reg_mr_relaxed(3), as Solaris had them. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* The adapter's port, a message's size, and the most messages under way.  Access to a relaxed region reaches
 * to page boundaries, so a buffer is whole pages. */
enum { PORT = 1, SIZE = 4096, DEPTH = 8 };

/* The attributes that the queue pair needs for each state. */
enum {
	TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	TO_RTS = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		 IBV_QP_MAX_QP_RD_ATOMIC
};

struct end { /* what the peer must know */
	union ibv_gid gid;
	uint32_t qpn;
};

static struct ibv_pd *pd;
static struct ibv_qp *qp;
static unsigned char (*buf)[SIZE]; /* one for each message under way */
static struct ibv_mr *mr[DEPTH];   /* of the message in each buffer */
static unsigned long retries;

static void die_if(int failed, const char *what)
{
	if (failed) {
		fprintf(stderr, "%s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static void exchange(int sock, const void *mine, void *theirs, size_t size)
{
	die_if(send(sock, mine, size, MSG_NOSIGNAL) != (ssize_t)size, "send to the peer");
	die_if(recv(sock, theirs, size, MSG_WAITALL) != (ssize_t)size, "the peer is gone");
}

/* RTR (ready to receive), then RTS (ready to send); 01-rc-send.c explains each attribute. */
static void connect_to(const struct end *there)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 1};

	a.dest_qp_num = there->qpn;
	a.rq_psn = there->qpn;
	a.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = PORT};
	a.ah_attr.grh.dgid = there->gid;
	die_if(errno = ibv_modify_qp(qp, &a, TO_RTR), "RTR");
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = qp->qp_num};
	a.timeout = 14, a.retry_cnt = 7, a.rnr_retry = 7; /* 7: a receiver may take as long as it likes */
	die_if(errno = ibv_modify_qp(qp, &a, TO_RTS), "RTS");
}

/* The message's own region, from the pool.  EAGAIN is transient: the pool is empty until deregistered regions
 * return to it. */
static struct ibv_sge region(unsigned slot, int access)
{
	struct ibv_sge sge = {.addr = (uintptr_t)buf[slot], .length = SIZE};

	for (; !(mr[slot] = ibv_reg_mr_relaxed(pd, buf[slot], SIZE, access)); retries++) {
		die_if(errno != EAGAIN, "ibv_reg_mr_relaxed");
		usleep(1);
	}

	/* Each region has a key of its own.  Without it: "unknown L_Key 0x00000000" */
	sge.lkey = mr[slot]->lkey;

	return sge;
}

static void send_one(unsigned slot, unsigned long message)
{
	memset(buf[slot], (int)message & 0xff, SIZE);

	struct ibv_sge sge = region(slot, 0); /* reading by this end needs no flag */
	struct ibv_send_wr *bad, wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
	die_if(errno = ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

static void receive_one(unsigned slot)
{
	int access = 0;

	/* A receive writes to the buffer.  Without it: "L_Key 0x00b2c600 does not permit LOCAL_WRITE" */
	access |= IBV_ACCESS_LOCAL_WRITE;

	struct ibv_sge sge = region(slot, access);
	struct ibv_recv_wr *bad, wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1};
	die_if(errno = ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
}

/* Waits for a message's completion, and ends its region. */
static unsigned completed(void)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(qp->send_cq, 1, &wc)))
		sched_yield(); /* the peer may need this core */
	die_if(n < 0, "ibv_poll_cq");
	errno = EIO;
	die_if(wc.status != IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));

	/* The region goes back to the pool; the call waits for no access.  Without it: "the protection domain
	 * still has 20000 memory regions" */
	die_if(errno = ibv_dereg_mr_relaxed(mr[wc.wr_id]), "ibv_dereg_mr_relaxed");

	return (unsigned)wc.wr_id;
}

static void send_all(unsigned long messages)
{
	unsigned long sent = 0;
	for (; sent < DEPTH && sent < messages; sent++)
		send_one((unsigned)sent, sent);
	for (unsigned long done = 0; done < messages; done++) {
		unsigned slot = completed();
		if (sent < messages)
			send_one(slot, sent++); /* the region has ended, so the buffer is free */
	}
}

static void receive_all(unsigned long messages)
{
	for (unsigned long n = 0; n < messages; n++) {
		unsigned slot = completed();
		for (size_t i = 0; i < SIZE; i++)
			die_if(buf[slot][i] != (n & 0xff), "a message has a wrong byte");
		if (n + DEPTH < messages)
			receive_one(slot);
	}
}

int main(int argc, char **argv)
{
	unsigned long messages = argc > 1 ? strtoul(argv[1], NULL, 0) : 20000;
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {DEPTH, DEPTH, 1, 1, 0}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
	static struct end here, there; /* zeroed, since all of it is sent */
	int sock[2], status = 0;
	/* The fork comes before the device is opened: each process opens its own. */
	pid_t child = socketpair(AF_UNIX, SOCK_STREAM, 0, sock) ? -1 : fork();
	die_if(child < 0, "socketpair, fork");
	int receives = !child, s = sock[receives];
	close(sock[!receives]);

	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	die_if(!ctx || ibv_query_gid(ctx, PORT, 0, &here.gid), "no device");
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(ctx);
	init.sq_sig_all = 1; /* each send makes a completion */
	init.send_cq = init.recv_cq = ibv_create_cq(ctx, DEPTH, NULL, NULL, 0);
	qp = pd && init.send_cq ? ibv_create_qp(pd, &init) : NULL;
	buf = mmap(NULL, DEPTH * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	die_if(!qp || buf == MAP_FAILED, "ibv_alloc_pd, ibv_create_cq, ibv_create_qp, mmap");
	die_if(errno = ibv_modify_qp(qp, &a, TO_INIT), "INIT");
	for (unsigned i = 0; receives && i < DEPTH && i < messages; i++)
		receive_one(i);
	here.qpn = qp->qp_num;
	exchange(s, &here, &there, sizeof(here));
	connect_to(&there);
	exchange(s, "r", &(char){0}, 1); /* now both can receive */
	if (receives)
		receive_all(messages);
	else
		send_all(messages);
	printf("%s: %lu messages of %d bytes, each with a region of its own; %lu times the pool was empty\n",
	       receives ? "receiver" : "sender", messages, SIZE, retries);

	/* Afterwards no access to an ended region is under way, so the pages may go back to the system. */
	die_if(errno = ibv_flush_relaxed_mr(pd), "ibv_flush_relaxed_mr");
	munmap(buf, DEPTH * SIZE);

	die_if((errno = ibv_destroy_qp(qp)) || (errno = ibv_destroy_cq(init.send_cq)), "destroy");
	die_if(errno = ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	die_if(errno = ibv_close_device(ctx), "ibv_close_device");
	if (!receives)
		die_if(waitpid(child, &status, 0) < 0, "waitpid");
	return status != 0;
}
