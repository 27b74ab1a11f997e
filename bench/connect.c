/* Connections by rdma_cm beside those by TCP: from nothing to the first byte that the server sends, one after
 * another, and the steps of which that consists; and many at once.
 *
 *   vconnect
 *
 *   connect_tcp         ns: socket, connect; accept, write of a byte; read
 *   connect_one         ns: the same by rdma_create_id ... rdma_connect, with a queue pair and a receive
 * posted; rdma_accept and, established, a SEND of a byte; its completion connect_STEP        ns, of that: id,
 * addr, route, qp, connect, byte, and down: disconnect and destroy, which connect_one does without
 *   connect_many        ns for each of 100 that are made at once, by one thread at each end
 *
 * Median of the laps' means. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "common.h"

enum { EACH = 100, LAPS = 15, MANY = 100 };
enum step { ID, ADDR, ROUTE, QP, CONNECT, BYTE, DOWN, STEPS };

static const char *const step_names[STEPS] = {"id", "addr", "route", "qp", "connect", "byte", "down"};

static void check(bool well, const char *what)
{
	if (!well)
		die(what);
}

static struct sockaddr_in local(uint16_t port)
{
	return (struct sockaddr_in){
	    .sin_family = AF_INET, .sin_port = port, .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

/* A child that ends with its parent. */
static pid_t start(void (*side)(int tell), int *told)
{
	int pipes[2];
	pid_t pid;

	check(!pipe(pipes), "pipe");
	pid = fork();
	check(pid >= 0, "fork");
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		side(pipes[1]);
		_exit(0);
	}
	close(pipes[1]);
	*told = pipes[0];
	return pid;
}

static uint16_t port_told(int told)
{
	uint16_t port;

	check(read(told, &port, sizeof(port)) == sizeof(port), "the server ended");
	close(told);
	return port;
}

static void tell_port(int tell, uint16_t port)
{
	check(write(tell, &port, sizeof(port)) == sizeof(port), "write");
	close(tell);
}

/* ---- TCP ---- */

static void tcp_server(int tell)
{
	struct sockaddr_in a = local(0);
	socklen_t len = sizeof(a);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	check(!bind(l, (struct sockaddr *)&a, sizeof(a)) && !listen(l, 128) &&
		  !getsockname(l, (struct sockaddr *)&a, &len),
	      "listen");
	tell_port(tell, a.sin_port);
	for (;;) {
		int s = accept(l, NULL, NULL);

		check(s >= 0 && write(s, "", 1) == 1, "accept");
		close(s);
	}
}

static double tcp_one(uint16_t port)
{
	const struct linger at_once = {1, 0}; /* no TIME_WAIT that uses the ports up */
	struct sockaddr_in a = local(port);
	double began = now();
	char byte;
	int s = socket(AF_INET, SOCK_STREAM, 0);

	check(!connect(s, (struct sockaddr *)&a, sizeof(a)) && read(s, &byte, 1) == 1, "connect");
	began = now() - began;
	setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
	close(s);
	return began;
}

static void tcp(void)
{
	double v[LAPS];
	int told;
	pid_t pid = start(tcp_server, &told);
	uint16_t port = port_told(told);

	for (unsigned lap = 0; lap < LAPS; lap++) {
		v[lap] = 0;
		for (unsigned i = 0; i < EACH; i++)
			v[lap] += tcp_one(port) / EACH;
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	figure("connect_tcp", median(v, LAPS));
}

/* ---- rdma_cm ---- */

/* What all connections of a side share. */
static struct {
	struct rdma_event_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char byte[64];
} side;

static void equip(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
	    .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
	    .qp_type = IBV_QPT_RC,
	    .sq_sig_all = 1};

	if (!side.cq) {
		side.cq = ibv_create_cq(id->verbs, 8 * MANY, NULL, NULL, 0);
		side.mr = ibv_reg_mr(id->pd, side.byte, sizeof(side.byte), IBV_ACCESS_LOCAL_WRITE);
		check(side.cq && side.mr, "ibv_create_cq, ibv_reg_mr");
	}
	attr.send_cq = attr.recv_cq = side.cq;
	check(!rdma_create_qp(id, id->pd, &attr), "rdma_create_qp");
}

static void take_completion(void)
{
	struct ibv_wc wc;
	int n;

	do
		n = ibv_poll_cq(side.cq, 1, &wc);
	while (!n);
	check(n == 1 && (!wc.status || wc.status == IBV_WC_WR_FLUSH_ERR), "a completion");
}

static void send_byte(struct rdma_cm_id *id)
{
	struct ibv_sge sge = {(uintptr_t)side.byte, 1, side.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;

	check(!ibv_post_send(id->qp, &wr, &bad), "ibv_post_send");
}

static void serve(struct rdma_cm_event *e)
{
	struct rdma_cm_id *id = e->id;
	enum rdma_cm_event_type type = e->event;

	if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
		equip(id);
		check(!rdma_accept(id, NULL), "rdma_accept");
	} else if (type == RDMA_CM_EVENT_ESTABLISHED) {
		send_byte(id);
		take_completion();
	} else if (type == RDMA_CM_EVENT_DISCONNECTED) {
		rdma_disconnect(id);
	}
	check(!rdma_ack_cm_event(e), "rdma_ack_cm_event");
	if (type == RDMA_CM_EVENT_DISCONNECTED) {
		rdma_destroy_qp(id);
		rdma_destroy_id(id);
	}
}

static void rdma_server(int tell)
{
	struct sockaddr_in a = local(0);
	struct rdma_cm_event *e;
	struct rdma_cm_id *id = NULL;

	side.channel = rdma_create_event_channel();
	check(side.channel && !rdma_create_id(side.channel, &id, NULL, RDMA_PS_TCP) &&
		  !rdma_bind_addr(id, (struct sockaddr *)&a) && !rdma_listen(id, 0),
	      "rdma_listen");
	tell_port(tell, rdma_get_src_port(id));
	while (!rdma_get_cm_event(side.channel, &e))
		serve(e);
	die("rdma_get_cm_event");
}

static void expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *e;

	check(!rdma_get_cm_event(side.channel, &e), "rdma_get_cm_event");
	check(e->event == type, rdma_event_str(e->event));
	check(!rdma_ack_cm_event(e), "rdma_ack_cm_event");
}

static void receive_byte(struct rdma_cm_id *id)
{
	struct ibv_sge sge = {(uintptr_t)side.byte, sizeof(side.byte), side.mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

	check(!ibv_post_recv(id->qp, &wr, &bad), "ibv_post_recv");
}

/* Adds the time since *at to a step. */
static void note(double *step, double *at)
{
	double t = now();

	*step += t - *at;
	*at = t;
}

static void rdma_one(uint16_t port, double steps[STEPS])
{
	struct sockaddr_in a = local(port);
	struct rdma_conn_param param = {
	    .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
	struct rdma_cm_id *id;
	double at = now();

	check(!rdma_create_id(side.channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	note(&steps[ID], &at);
	check(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&a, 1000), "rdma_resolve_addr");
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	note(&steps[ADDR], &at);
	check(!rdma_resolve_route(id, 1000), "rdma_resolve_route");
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	note(&steps[ROUTE], &at);
	equip(id);
	receive_byte(id);
	note(&steps[QP], &at);
	check(!rdma_connect(id, &param), "rdma_connect");
	expect(RDMA_CM_EVENT_ESTABLISHED);
	note(&steps[CONNECT], &at);
	take_completion();
	note(&steps[BYTE], &at);
	check(!rdma_disconnect(id), "rdma_disconnect");
	expect(RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(id);
	check(!rdma_destroy_id(id), "rdma_destroy_id");
	note(&steps[DOWN], &at);
}

/* One thread brings each of many on as events come. */
static double rdma_many(uint16_t port)
{
	struct sockaddr_in a = local(port);
	struct rdma_cm_id *ids[MANY];
	unsigned done = 0;
	double began = now();

	for (unsigned i = 0; i < MANY; i++)
		check(!rdma_create_id(side.channel, &ids[i], NULL, RDMA_PS_TCP) &&
			  !rdma_resolve_addr(ids[i], NULL, (struct sockaddr *)&a, 1000),
		      "rdma_resolve_addr");
	while (done < MANY) {
		struct rdma_cm_event *e;
		struct rdma_cm_id *id;
		enum rdma_cm_event_type type;

		check(!rdma_get_cm_event(side.channel, &e), "rdma_get_cm_event");
		id = e->id;
		type = e->event;
		check(!rdma_ack_cm_event(e), "rdma_ack_cm_event");
		if (type == RDMA_CM_EVENT_ADDR_RESOLVED) {
			check(!rdma_resolve_route(id, 1000), "rdma_resolve_route");
		} else if (type == RDMA_CM_EVENT_ROUTE_RESOLVED) {
			struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};

			equip(id);
			receive_byte(id);
			check(!rdma_connect(id, &param), "rdma_connect");
		} else {
			check(type == RDMA_CM_EVENT_ESTABLISHED, rdma_event_str(type));
			done++;
		}
	}
	for (unsigned i = 0; i < MANY; i++)
		take_completion();
	began = now() - began;
	for (unsigned i = 0; i < MANY; i++)
		check(!rdma_disconnect(ids[i]), "rdma_disconnect");
	for (unsigned i = 0; i < MANY; i++)
		expect(RDMA_CM_EVENT_DISCONNECTED);
	for (unsigned i = 0; i < MANY; i++) {
		rdma_destroy_qp(ids[i]);
		check(!rdma_destroy_id(ids[i]), "rdma_destroy_id");
	}
	return began / MANY;
}

static void rdma(void)
{
	double one[LAPS], many[LAPS], steps[STEPS][LAPS] = {0}, before[STEPS] = {0};
	int told;
	pid_t pid = start(rdma_server, &told); /* before this process opens the device */
	uint16_t port = port_told(told);
	char name[32];

	side.channel = rdma_create_event_channel();
	check(side.channel, "rdma_create_event_channel");
	rdma_one(port, before); /* contact, memory */
	for (unsigned lap = 0; lap < LAPS; lap++) {
		double sum[STEPS] = {0};

		for (unsigned i = 0; i < EACH; i++)
			rdma_one(port, sum);
		one[lap] = 0;
		for (int s = 0; s < STEPS; s++) {
			steps[s][lap] = sum[s] / EACH;
			one[lap] += s == DOWN ? 0 : sum[s] / EACH;
		}
		many[lap] = rdma_many(port);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	figure("connect_one", median(one, LAPS));
	for (int s = 0; s < STEPS; s++) {
		snprintf(name, sizeof(name), "connect_%s", step_names[s]);
		figure(name, median(steps[s], LAPS));
	}
	figure("connect_many", median(many, LAPS));
}

int main(void)
{
	tcp();
	rdma();
	return 0;
}
