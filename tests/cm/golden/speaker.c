/* Has the kernel's rdma_cm say what a story needs, without a queue pair: what it says of one is a number.
 *
 *     speaker STORY ACTIVE-ADDRESS PASSIVE-ADDRESS
 *
 * Both ends are this process.  It writes what each of them is told, and what the kernel makes of the
 * messages for the attributes of their queue pairs:
 *
 *     told END EVENT STATUS
 *     attr END dest_qpn rq_psn sq_psn path_mtu timeout retry_cnt rnr_retry max_rd_atomic max_dest_rd_atomic
 *
 * golden/capture compiles it where the kernel has rdma_cm, and links it with the distribution's library. */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

#include "values.h"

enum { ACTIVE, PASSIVE };
enum { PATIENCE = 60, THINKING = 9 /* seconds: more than a response timeout and two packet life times */ };

static const char *const ends[] = {"active", "passive"};
static struct rdma_event_channel *channel[2];
static struct sockaddr_storage address[2];
static struct rdma_cm_id *listener, *client, *server;
static uint32_t asked; /* connections so far */

static void die(const char *what)
{
	perror(what);
	exit(1);
}

#define MUST(call)                  \
	do                          \
		if (call)           \
			die(#call); \
	while (0)

static void hear(int end, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *e;

	MUST(rdma_get_cm_event(channel[end], &e));
	if (e->event >= RDMA_CM_EVENT_CONNECT_REQUEST)
		printf("told %s %s %d\n", ends[end], rdma_event_str(e->event) + strlen("RDMA_CM_EVENT_"),
		       e->status);
	if (e->event != want) {
		fprintf(stderr, "%s: %s and not %s\n", ends[end], rdma_event_str(e->event),
			rdma_event_str(want));
		exit(1);
	}
	if (want == RDMA_CM_EVENT_CONNECT_REQUEST)
		server = e->id;
	rdma_ack_cm_event(e);
}

static struct sockaddr *at(int end, uint16_t port)
{
	static struct sockaddr_storage a;

	a = address[end];
	if (a.ss_family == AF_INET)
		((struct sockaddr_in *)&a)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)&a)->sin6_port = htons(port);
	return (struct sockaddr *)&a;
}

/* ---- ids ---- */

static void listen_at(enum rdma_port_space ps)
{
	MUST(rdma_create_id(channel[PASSIVE], &listener, NULL, ps));
	MUST(rdma_bind_addr(listener, at(PASSIVE, AT_PORT)));
	MUST(rdma_listen(listener, 4));
}

static void find(enum rdma_port_space ps, const uint8_t *tos, const uint8_t *ack)
{
	struct sockaddr_storage from = address[ACTIVE];

	MUST(rdma_create_id(channel[ACTIVE], &client, NULL, ps));
	if (tos)
		MUST(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, (void *)tos, 1));
	if (ack)
		MUST(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, (void *)ack, 1));
	MUST(rdma_resolve_addr(client, (struct sockaddr *)&from, at(PASSIVE, AT_PORT), 2000));
	hear(ACTIVE, RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(rdma_resolve_route(client, 2000));
	hear(ACTIVE, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

/* Ids of a type that only rdma_create_ep() gives. */
static struct rdma_cm_id *endpoint(int end, enum ibv_qp_type type)
{
	struct sockaddr_storage from = address[ACTIVE];
	struct rdma_addrinfo ai = {
	    .ai_flags = end == PASSIVE ? RAI_PASSIVE : 0,
	    .ai_family = address[end].ss_family,
	    .ai_qp_type = type,
	    .ai_port_space = RDMA_PS_IB,
	};
	struct rdma_cm_id *id;

	ai.ai_src_len = ai.ai_dst_len = sizeof(struct sockaddr_in);
	ai.ai_src_addr = end == PASSIVE ? at(PASSIVE, AT_PORT) : (struct sockaddr *)&from;
	ai.ai_dst_addr = end == PASSIVE ? NULL : at(PASSIVE, AT_PORT);
	if (end == PASSIVE)
		ai.ai_dst_len = 0;
	MUST(rdma_create_ep(&id, &ai, NULL, NULL));
	MUST(rdma_migrate_id(id, channel[end]));
	return id;
}

/* ---- what is said ---- */

#define DATA(text) .private_data = (text), .private_data_len = (uint8_t)strlen(text)

static void ask(void)
{
	struct rdma_conn_param p = {.responder_resources = ASK_RESOURCES,
				    .initiator_depth = ASK_DEPTH,
				    .flow_control = 1,
				    .retry_count = ASK_RETRIES,
				    .rnr_retry_count = ASK_RNR,
				    .qp_num = ACTIVE_QPN + asked++,
				    DATA(SAID_REQ)};

	MUST(rdma_connect(client, &p));
}

static void give(void)
{
	struct rdma_conn_param p = {.responder_resources = GIVE_RESOURCES,
				    .initiator_depth = GIVE_DEPTH,
				    .flow_control = 1,
				    .rnr_retry_count = GIVE_RNR,
				    .srq = 1,
				    .qp_num = PASSIVE_QPN + asked,
				    DATA(SAID_REP)};

	MUST(rdma_accept(server, &p));
}

static void show(int end, struct rdma_cm_id *id)
{
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR}, rts = {.qp_state = IBV_QPS_RTS};
	int mask;

	MUST(rdma_init_qp_attr(id, &rtr, &mask));
	MUST(rdma_init_qp_attr(id, &rts, &mask));
	printf("attr %s 0x%x 0x%x 0x%x %d %d %d %d %d %d\n", ends[end], rtr.dest_qp_num, rtr.rq_psn,
	       rts.sq_psn, rtr.path_mtu, rts.timeout, rts.retry_cnt, rts.rnr_retry, rts.max_rd_atomic,
	       rtr.max_dest_rd_atomic);
}

static void asked_for(enum rdma_port_space ps)
{
	listen_at(ps);
	find(ps, NULL, NULL);
	ask();
	hear(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST);
}

static void answered(void)
{
	give();
	hear(ACTIVE, RDMA_CM_EVENT_CONNECT_RESPONSE);
}

static void established(void)
{
	answered();
	MUST(rdma_establish(client));
	hear(PASSIVE, RDMA_CM_EVENT_ESTABLISHED);
	show(ACTIVE, client);
	show(PASSIVE, server);
}

static void parted(void)
{
	MUST(rdma_disconnect(client));
	hear(PASSIVE, RDMA_CM_EVENT_DISCONNECTED);
	MUST(rdma_disconnect(server));
	hear(ACTIVE, RDMA_CM_EVENT_DISCONNECTED);
}

/* ---- the stories ---- */

static void whole(void)
{
	asked_for(RDMA_PS_TCP);
	established();
	parted();
	hear(PASSIVE, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	hear(ACTIVE, RDMA_CM_EVENT_TIMEWAIT_EXIT);
}

static void passive_parts(void)
{
	asked_for(RDMA_PS_TCP);
	established();
	MUST(rdma_disconnect(server));
	hear(ACTIVE, RDMA_CM_EVENT_DISCONNECTED);
	MUST(rdma_disconnect(client));
	hear(PASSIVE, RDMA_CM_EVENT_DISCONNECTED);
}

static void slow_to_part(void)
{
	asked_for(RDMA_PS_TCP);
	established();
	MUST(rdma_disconnect(client));
	hear(PASSIVE, RDMA_CM_EVENT_DISCONNECTED);
	sleep(THINKING);
	MUST(rdma_disconnect(server));
	hear(ACTIVE, RDMA_CM_EVENT_DISCONNECTED);
}

static void rejected(void)
{
	asked_for(RDMA_PS_TCP);
	MUST(rdma_reject(server, SAID_REJ, strlen(SAID_REJ)));
	hear(ACTIVE, RDMA_CM_EVENT_REJECTED);
}

static void answer_rejected(void)
{
	asked_for(RDMA_PS_TCP);
	answered();
	MUST(rdma_reject(client, SAID_REJ, strlen(SAID_REJ)));
	hear(PASSIVE, RDMA_CM_EVENT_REJECTED);
}

static void nobody(void)
{
	find(RDMA_PS_TCP, NULL, NULL);
	ask();
	hear(ACTIVE, RDMA_CM_EVENT_REJECTED);
}

static void thinks_it_over(void)
{
	asked_for(RDMA_PS_TCP);
	sleep(THINKING);
	established();
	parted();
}

static void slow_to_establish(void)
{
	asked_for(RDMA_PS_TCP);
	answered();
	sleep(THINKING);
	MUST(rdma_establish(client));
	hear(PASSIVE, RDMA_CM_EVENT_ESTABLISHED);
	parted();
}

static void gone_asking(void)
{
	asked_for(RDMA_PS_TCP);
	MUST(rdma_destroy_id(client));
	sleep(1); /* a program that has not accepted yet is told nothing */
}

static void gone_asked(void)
{
	asked_for(RDMA_PS_TCP);
	MUST(rdma_destroy_id(server));
	hear(ACTIVE, RDMA_CM_EVENT_REJECTED);
}

static void gone_answering(void)
{
	asked_for(RDMA_PS_TCP);
	answered();
	MUST(rdma_destroy_id(server));
	hear(ACTIVE, RDMA_CM_EVENT_REJECTED);
}

static void gone_answered(void)
{
	asked_for(RDMA_PS_TCP);
	answered();
	MUST(rdma_destroy_id(client));
	hear(PASSIVE, RDMA_CM_EVENT_REJECTED);
}

static void gone_live(void)
{
	asked_for(RDMA_PS_TCP);
	established();
	MUST(rdma_destroy_id(client));
	hear(PASSIVE, RDMA_CM_EVENT_DISCONNECTED);
	MUST(rdma_disconnect(server));
	sleep(1);
}

/* The same queue pair once more, while its first connection is there. */
static void stale(void)
{
	struct rdma_cm_id *first;

	asked_for(RDMA_PS_TCP);
	established();
	first = client;
	find(RDMA_PS_TCP, NULL, NULL);
	asked = 0;
	ask();
	/* the refusal of the second, and the end of the first, in that order */
	hear(ACTIVE, RDMA_CM_EVENT_REJECTED);
	hear(ACTIVE, RDMA_CM_EVENT_DISCONNECTED);
	MUST(rdma_disconnect(first));
	hear(PASSIVE, RDMA_CM_EVENT_DISCONNECTED);
}

/* The same queue pair once more, while its first connection is in TIMEWAIT. */
static void again(void)
{
	asked_for(RDMA_PS_TCP);
	established();
	parted();
	find(RDMA_PS_TCP, NULL, NULL);
	asked = 0;
	ask();
	hear(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST);
	established();
	parted();
}

static void options(void)
{
	struct ibv_ece ece = {.vendor_id = ECE_VENDOR, .options = ECE_OPTIONS};
	const uint8_t tos = TOS, ack = ACK_TIMEOUT;

	listen_at(RDMA_PS_TCP);
	find(RDMA_PS_TCP, &tos, &ack);
	MUST(rdma_set_local_ece(client, &ece));
	ask();
	hear(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST);
	ece.options = ~ECE_OPTIONS;
	MUST(rdma_set_local_ece(server, &ece));
	established();
	parted();
}

static void other_type(enum ibv_qp_type type, enum ibv_qp_type far)
{
	listener = endpoint(PASSIVE, far);
	MUST(rdma_listen(listener, 4));
	client = endpoint(ACTIVE, type);
	ask();
	hear(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST);
	established();
	parted();
}

static void uc(void)
{
	other_type(IBV_QPT_UC, IBV_QPT_UC);
}

static void xrc(void)
{
	other_type(IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV);
}

/* A listener of another type. */
static void wrong_type(void)
{
	listener = endpoint(PASSIVE, IBV_QPT_UC);
	MUST(rdma_listen(listener, 4));
	client = endpoint(ACTIVE, IBV_QPT_RC);
	ask();
	hear(ACTIVE, RDMA_CM_EVENT_REJECTED);
}

static void sidr_asked(void)
{
	struct rdma_conn_param p = {DATA(SAID_SIDR)};

	find(RDMA_PS_UDP, NULL, NULL);
	MUST(rdma_connect(client, &p));
}

static void sidr(void)
{
	struct rdma_conn_param p = {.qp_num = PASSIVE_QPN, DATA(SAID_HERE)};

	listen_at(RDMA_PS_UDP);
	sidr_asked();
	hear(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST);
	MUST(rdma_accept(server, &p));
	hear(ACTIVE, RDMA_CM_EVENT_ESTABLISHED);
}

static void sidr_rejected(void)
{
	listen_at(RDMA_PS_UDP);
	sidr_asked();
	hear(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST);
	MUST(rdma_reject(server, SAID_REJ, strlen(SAID_REJ)));
	hear(ACTIVE, RDMA_CM_EVENT_UNREACHABLE);
}

static void sidr_nobody(void)
{
	sidr_asked();
	hear(ACTIVE, RDMA_CM_EVENT_UNREACHABLE);
}

static const struct {
	const char *name;
	void (*tell)(void);
} stories[] = {
    {"whole", whole},
    {"passive-parts", passive_parts},
    {"slow-to-part", slow_to_part},
    {"rejected", rejected},
    {"answer-rejected", answer_rejected},
    {"nobody", nobody},
    {"thinks-it-over", thinks_it_over},
    {"slow-to-establish", slow_to_establish},
    {"gone-asking", gone_asking},
    {"gone-asked", gone_asked},
    {"gone-answering", gone_answering},
    {"gone-answered", gone_answered},
    {"gone-live", gone_live},
    {"stale", stale},
    {"again", again},
    {"options", options},
    {"uc", uc},
    {"xrc", xrc},
    {"wrong-type", wrong_type},
    {"sidr", sidr},
    {"sidr-rejected", sidr_rejected},
    {"sidr-nobody", sidr_nobody},
};

static void locate(int end, const char *text)
{
	const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST};
	struct addrinfo *found;

	if (getaddrinfo(text, NULL, &hints, &found)) {
		fprintf(stderr, "%s is no address\n", text);
		exit(2);
	}
	memcpy(&address[end], found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	alarm(PATIENCE);
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int end = ACTIVE; end <= PASSIVE; end++) {
		locate(end, argv[2 + end]);
		channel[end] = rdma_create_event_channel();
		if (!channel[end])
			die("rdma_create_event_channel");
	}
	for (size_t i = 0; i < sizeof(stories) / sizeof(stories[0]); i++) {
		if (strcmp(stories[i].name, argv[1]) != 0)
			continue;
		stories[i].tell();
		return 0;
	}
	fprintf(stderr, "there is no story %s\n", argv[1]);
	return 2;
}
