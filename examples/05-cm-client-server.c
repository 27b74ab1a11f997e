/* The message and its answer of 01-rc-send.c, connected by rdma_cm: by IP address and port, without TCP.
 *
 *     cc 05-cm-client-server.c -o 05-cm-client-server -lrdmacm -libverbs
 *     ./05-cm-client-server            the server
 *     ./05-cm-client-server HOST       the client: an address of the server's adapter
 *
 * An identifier without an event channel makes each call wait until it is done; 06-cm-async.c uses events. */
#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RDMA_PORT = 7471, SIZE = 64, WAIT = 2000 /* ms */ };

static char buf[2][SIZE]; /* one to send from, one to receive into */

static void die_if(int failed, const char *what)
{
	if (failed) {
		fprintf(stderr, "%s: %s\n", what, strerror(errno));
		exit(1);
	}
}

/* Gives the identifier a queue pair, and posts a receive on it. */
static struct ibv_mr *prepare(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
	struct ibv_mr *mr;

	/* No domain and no completion queues are named, so rdma_cm makes them for this identifier. */
	die_if(rdma_create_qp(id, NULL, &init), "rdma_create_qp");
	mr = rdma_reg_msgs(id, buf, sizeof(buf));
	die_if(!mr, "rdma_reg_msgs");

	/* The peer may send as soon as it is connected.  Without it: "queue pair 0x7be001 was not ready: no
	 * receive request was posted there within rdma_conn_param.rnr_retry_count" */
	die_if(rdma_post_recv(id, NULL, buf[1], SIZE, mr), "rdma_post_recv");

	return mr;
}

/* rdma_get_send_comp() and rdma_get_recv_comp() sleep until the completion comes. */
static void send_text(struct rdma_cm_id *id, struct ibv_mr *mr, const char *text)
{
	struct ibv_wc wc;

	snprintf(buf[0], SIZE, "%s", text);
	die_if(rdma_post_send(id, NULL, buf[0], SIZE, mr, IBV_SEND_SIGNALED), "rdma_post_send");
	die_if(rdma_get_send_comp(id, &wc) < 1, "rdma_get_send_comp");
	errno = EIO;
	die_if(wc.status != IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
}

static void receive_text(struct rdma_cm_id *id, const char *who)
{
	struct ibv_wc wc;

	die_if(rdma_get_recv_comp(id, &wc) < 1, "rdma_get_recv_comp");
	errno = EIO;
	die_if(wc.status != IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
	printf("%s received \"%s\"\n", who, buf[1]);
}

/* Objects go in the opposite order, since each one uses those before it. */
static void finish(struct rdma_cm_id *id, struct ibv_mr *mr)
{
	die_if(rdma_dereg_mr(mr), "rdma_dereg_mr");
	rdma_destroy_qp(id);
	die_if(rdma_destroy_id(id), "rdma_destroy_id");
}

static void server(void)
{
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(RDMA_PORT)};
	struct rdma_conn_param param = {.rnr_retry_count = 6};
	struct rdma_cm_id *listener, *id;
	struct ibv_mr *mr;

	die_if(rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	die_if(rdma_bind_addr(listener, (struct sockaddr *)&any), "rdma_bind_addr");
	die_if(rdma_listen(listener, 1), "rdma_listen");
	die_if(rdma_get_request(listener, &id), "rdma_get_request"); /* an identifier for each connection */
	mr = prepare(id);
	die_if(rdma_accept(id, &param), "rdma_accept");
	receive_text(id, "server");
	send_text(id, mr, "hello, too");
	die_if(rdma_disconnect(id), "rdma_disconnect");
	finish(id, mr);
	die_if(rdma_destroy_id(listener), "rdma_destroy_id");
}

static void client(const char *host)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(RDMA_PORT)};
	struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 6};
	struct rdma_cm_id *id;
	struct ibv_mr *mr;

	errno = EINVAL;
	die_if(inet_pton(AF_INET, host, &to.sin_addr) != 1, host);
	die_if(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), "rdma_create_id");

	/* This finds the device from which the address is reached.  Without it: "call rdma_resolve_addr() and
	 * wait for RDMA_CM_EVENT_ADDR_RESOLVED" */
	die_if(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, WAIT), "rdma_resolve_addr");

	/* And this the path through the network.  Without it: "call rdma_resolve_route() and wait for
	 * RDMA_CM_EVENT_ROUTE_RESOLVED" */
	die_if(rdma_resolve_route(id, WAIT), "rdma_resolve_route");

	mr = prepare(id);

	/* The queue pairs learn each other's numbers and go to RTS.  Without it: "QP 0x703001 is in INIT: its
	 * id is not connected yet" */
	die_if(rdma_connect(id, &param), "rdma_connect");

	send_text(id, mr, "hello");
	receive_text(id, "client");
	die_if(rdma_disconnect(id), "rdma_disconnect");
	finish(id, mr);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		client(argv[1]);
	else
		server();
	return 0;
}
