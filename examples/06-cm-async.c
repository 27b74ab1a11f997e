/* Many connections and one event loop: rdma_cm's events and completions, both by epoll.
 *
 *     cc 06-cm-async.c -o 06-cm-async -lrdmacm -libverbs
 *     ./06-cm-async                         the server, until its last connection ends
 *     ./06-cm-async HOST [CONNECTIONS]      the client: an address of the server's adapter
 *
 * The client sends one message over each connection, and the server sends it back. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum { RDMA_PORT = 7472, SIZE = 32, WAIT = 2000 /* ms */ };

struct connection {
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char buf[2][SIZE]; /* the client sends from the first, and both receive into the second */
};

static struct rdma_event_channel *events;
/* Of all connections: they come through one device. */
static struct ibv_comp_channel *completions;
static struct ibv_pd *pd;
static int loop, live, answered, wanted; /* wanted is 0 in the server */

static void die_if(int failed, const char *what)
{
	if (failed) {
		fprintf(stderr, "%s: %s\n", what, strerror(errno));
		exit(1);
	}
}

/* The loop wakes when the descriptor has something to read.  Reading then never waits. */
static void watch(int fd)
{
	struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};

	die_if(fcntl(fd, F_SETFL, O_NONBLOCK) || epoll_ctl(loop, EPOLL_CTL_ADD, fd, &e), "epoll_ctl");
}

/* Receives into a buffer of the connection, or sends it. */
static void post(struct connection *c, int receives, int i)
{
	struct ibv_sge sge = {(uintptr_t)c->buf[i], SIZE, c->mr->lkey};
	struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
	struct ibv_recv_wr *bad_receive, receive = {.sg_list = &sge, .num_sge = 1};

	wr.send_flags = IBV_SEND_SIGNALED;
	die_if(errno = receives ? ibv_post_recv(c->id->qp, &receive, &bad_receive)
				: ibv_post_send(c->id->qp, &wr, &bad),
	       "post");
}

/* The device is known now: the identifier gets a queue pair, and a receive. */
static void prepare(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
	struct connection *c = calloc(1, sizeof(*c));

	if (!pd) { /* the first connection */
		pd = ibv_alloc_pd(id->verbs);
		completions = ibv_create_comp_channel(id->verbs);
		die_if(!pd || !completions, "ibv_alloc_pd, ibv_create_comp_channel");
		watch(completions->fd);
	}
	die_if(!c, "calloc");
	init.send_cq = init.recv_cq = c->cq = ibv_create_cq(id->verbs, 2, c, completions, 0);
	die_if(!c->cq || (errno = ibv_req_notify_cq(c->cq, 0)), "ibv_create_cq");
	die_if(rdma_create_qp(id, pd, &init), "rdma_create_qp");
	c->id = id;
	strcpy(c->buf[0], "hello");
	c->mr = ibv_reg_mr(pd, c->buf, sizeof(c->buf), IBV_ACCESS_LOCAL_WRITE);
	die_if(!c->mr, "ibv_reg_mr");
	id->context = c;
	live++;

	/* The peer may send as soon as it is connected.  Without it: "queue pair 0x7be001 was not ready: no
	 * receive request was posted there within rdma_conn_param.rnr_retry_count" */
	post(c, 1, 1);
}

static void finish(struct rdma_cm_id *id)
{
	struct connection *c = id->context;

	rdma_destroy_qp(id);
	die_if(errno = ibv_dereg_mr(c->mr), "ibv_dereg_mr");
	die_if(errno = ibv_destroy_cq(c->cq), "ibv_destroy_cq");
	die_if(rdma_destroy_id(id), "rdma_destroy_id");
	free(c);
	live--;
}

static void take_event(void)
{
	struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 6};
	struct rdma_cm_event *e, event;
	if (rdma_get_cm_event(events, &e))
		return; /* nothing to read after all */
	event = *e;
	rdma_ack_cm_event(e); /* first, since rdma_destroy_id() waits until its events are acknowledged */
	switch (event.event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		die_if(rdma_resolve_route(event.id, WAIT), "rdma_resolve_route");
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		prepare(event.id);
		die_if(rdma_connect(event.id, &param), "rdma_connect");
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		prepare(event.id);
		die_if(rdma_accept(event.id, &param), "rdma_accept");
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (wanted)
			post(event.id->context, 0, 0);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		rdma_disconnect(event.id); /* the answer; at the end that began it does nothing */
		finish(event.id);
		break;
	default: /* refused, unreachable, or no such address */
		fprintf(stderr, "%s, status %d\n", rdma_event_str(event.event), event.status);
		exit(1);
	}
}

static void take_completions(struct rdma_cm_id **ids)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *c; /* the connection: it was given to ibv_create_cq() */
	int n;

	if (ibv_get_cq_event(completions, &cq, &c))
		return; /* nothing to read after all */
	ibv_ack_cq_events(cq, 1);
	die_if(errno = ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq"); /* before the poll: see 03-events.c */
	while ((n = ibv_poll_cq(cq, 1, &wc)) > 0) {
		errno = EIO;
		die_if(wc.status != IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
		if (wc.opcode == IBV_WC_RECV && !wanted)
			post(c, 0, 1);
		if (wc.opcode == IBV_WC_RECV && ++answered == wanted)
			for (int i = 0; i < wanted; i++) /* the server stays until the last connection ends */
				die_if(rdma_disconnect(ids[i]), "rdma_disconnect");
	}
	die_if(n < 0, "ibv_poll_cq");
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(RDMA_PORT)};
	struct sockaddr *to = (struct sockaddr *)&addr;
	struct rdma_cm_id **ids;
	struct epoll_event e;

	wanted = argc > 2 ? atoi(argv[2]) : argc > 1 ? 50 : 0;
	errno = EINVAL;
	die_if(argc > 1 && (wanted < 1 || inet_pton(AF_INET, argv[1], &addr.sin_addr) != 1), "arguments");
	loop = epoll_create1(EPOLL_CLOEXEC);
	events = rdma_create_event_channel();
	ids = calloc((size_t)wanted + 1, sizeof(*ids));
	die_if(loop < 0 || !events || !ids, "epoll_create1, rdma_create_event_channel");
	watch(events->fd);
	for (int i = 0; i < wanted; i++)
		die_if(rdma_create_id(events, &ids[i], NULL, RDMA_PS_TCP) ||
			   rdma_resolve_addr(ids[i], NULL, to, WAIT),
		       "rdma_resolve_addr");
	if (!wanted)
		die_if(rdma_create_id(events, &ids[0], NULL, RDMA_PS_TCP) || rdma_bind_addr(ids[0], to) ||
			   rdma_listen(ids[0], 128),
		       "rdma_listen");
	do {
		die_if(epoll_wait(loop, &e, 1, -1) < 0, "epoll_wait");
		if (e.data.fd == events->fd)
			take_event();
		else
			take_completions(ids);
	} while (live || answered < wanted || !pd);
	printf("%s: %d messages came, and all connections have ended\n", wanted ? "client" : "server",
	       answered);
	if (!wanted)
		die_if(rdma_destroy_id(ids[0]), "rdma_destroy_id");
	die_if(errno = ibv_destroy_comp_channel(completions), "ibv_destroy_comp_channel");
	die_if(errno = ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	rdma_destroy_event_channel(events);
	free(ids);
	return 0;
}
