/* rdma_cm: buffers that its helpers post, and what is left of it at exit(). */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "wrongs.h"

static struct rdma_cm_id *listener, *client, *server;
static struct ibv_mr *sent, *got; /* the client's */
static uint8_t sends_from[64], receives_to[64];
static pthread_t thread;

/* The server sends a message and receives one. */
static void *serve(void *unused)
{
	static uint8_t from[64], to[64];
	struct ibv_mr *out, *in;
	struct ibv_wc wc;

	DIE_IF(rdma_get_request(listener, &server));
	out = rdma_reg_msgs(server, from, sizeof from);
	in = rdma_reg_msgs(server, to, sizeof to);
	DIE_IF(!out || !in || rdma_post_recv(server, NULL, to, sizeof to, in) || rdma_accept(server, NULL));
	DIE_IF(rdma_post_send(server, NULL, from, sizeof from, out, 0));
	DIE_IF(rdma_get_send_comp(server, &wc) != 1 || wc.status);
	DIE_IF(rdma_get_recv_comp(server, &wc) != 1 || wc.status);
	rdma_disconnect(server); /* both ends do */
	DIE_IF(rdma_dereg_mr(in) || rdma_dereg_mr(out));
	return unused;
}

static void make_ends(void)
{
	struct ibv_qp_init_attr attr = {
	    .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	    .sq_sig_all = 1};
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = RAI_PASSIVE}, *info;
	char port[8];

	DIE_IF(rdma_getaddrinfo("127.0.0.1", "0", &hints, &info) ||
	       rdma_create_ep(&listener, info, NULL, &attr) || rdma_listen(listener, 1));
	rdma_freeaddrinfo(info);
	snprintf(port, sizeof port, "%u", ntohs(rdma_get_src_port(listener)));
	DIE_IF(pthread_create(&thread, NULL, serve, NULL));
	hints.ai_flags = 0;
	DIE_IF(rdma_getaddrinfo("127.0.0.1", port, &hints, &info) ||
	       rdma_create_ep(&client, info, NULL, &attr));
	rdma_freeaddrinfo(info);
	sent = rdma_reg_msgs(client, sends_from, sizeof sends_from);
	got = rdma_reg_msgs(client, receives_to, sizeof receives_to);
	DIE_IF(!sent || !got);
}

static void end_it(void)
{
	struct ibv_wc wc;

	DIE_IF(rdma_get_send_comp(client, &wc) != 1 || wc.status);
	DIE_IF(rdma_get_recv_comp(client, &wc) != 1 || wc.status);
	rdma_disconnect(client);
	pthread_join(thread, NULL);
	DIE_IF(rdma_dereg_mr(got) || rdma_dereg_mr(sent));
	rdma_destroy_ep(client);
	rdma_destroy_ep(server);
	rdma_destroy_ep(listener);
}

static void cm_changed(void)
{
	make_ends();
	DIE_IF(rdma_post_recv(client, NULL, receives_to, 64, got) || rdma_connect(client, NULL));
	DIE_IF(rdma_post_send(client, (void *)5, sends_from, 64, sent, 0));
	WRONG(sends_from[33] = 1);
	end_it();
}

static void cm_receive_changed(void)
{
	make_ends();
	DIE_IF(rdma_post_recv(client, (void *)9, receives_to, 64, got));
	WRONG(receives_to[34] = 1);
	DIE_IF(rdma_connect(client, NULL) || rdma_post_send(client, NULL, sends_from, 64, sent, 0));
	end_it();
}

/* An id that has its answer: an event, which the program has fetched. */
static struct rdma_cm_event *resolve(struct rdma_event_channel *channel, struct rdma_cm_id **id)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct rdma_cm_event *event;

	DIE_IF(!channel || rdma_create_id(channel, id, NULL, RDMA_PS_TCP));
	DIE_IF(rdma_resolve_addr(*id, NULL, (struct sockaddr *)&to, 1000));
	DIE_IF(rdma_get_cm_event(channel, &event) || event->event != RDMA_CM_EVENT_ADDR_RESOLVED);
	return event;
}

static void left_cm_event(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_cm_event *event = resolve(channel, &id);

	if (wrong) /* rdma_destroy_id() would wait for the acknowledgement */
		return;
	DIE_IF(rdma_ack_cm_event(event) || rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void left_cm_id(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;

	DIE_IF(rdma_ack_cm_event(resolve(channel, &id)));
	RIGHT(DIE_IF(rdma_destroy_id(id)));
	RIGHT(rdma_destroy_event_channel(channel));
}

const struct program cms[] = {{"cm-changed", cm_changed},
			      {"cm-receive-changed", cm_receive_changed},
			      {"left-cm-event", left_cm_event},
			      {"left-cm-id", left_cm_id},
			      {NULL, NULL}};
