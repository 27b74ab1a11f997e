/* A program with rdma_cm ids, for `verbena explain` to look at: does what it is told line by line, and
 * answers each with a line.  It has one channel, one id that it makes, and the one of the last request.
 *
 *   listen ADDRESS BACKLOG    at a port that is free: "listening PORT ID"
 *   bind ADDRESS PORT         a further id: "bound" or the errno's name
 *   resolve ADDRESS PORT      address and route: "resolved ID"
 *   connect, accept, establish, disconnect     "done"
 *   get                       an event, which is not acknowledged: its name
 *   ack                       acknowledges the last one
 *   destroy                   the request's id, or else the own one, in a thread: "going"
 *   await                     the end of that thread: "gone" */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(c)                                                                        \
	do {                                                                            \
		if (!(c)) {                                                             \
			fprintf(stderr, "%d: %s: %s\n", __LINE__, #c, strerror(errno)); \
			exit(1);                                                        \
		}                                                                       \
	} while (0)

static struct rdma_event_channel *channel;
static struct rdma_cm_id *own, *request;
static struct rdma_cm_event *event;
static pthread_t thread;

static struct rdma_conn_param param = {.qp_num = 0x123, .retry_count = 7, .rnr_retry_count = 7};

static struct sockaddr *address(const char *text, int port)
{
	static struct sockaddr_in a;

	a = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	CHECK(inet_pton(AF_INET, text, &a.sin_addr) == 1);
	return (struct sockaddr *)&a;
}

static struct rdma_cm_id *new_id(void)
{
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	return id;
}

static void expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *e;

	CHECK(!rdma_get_cm_event(channel, &e) && e->event == type && !rdma_ack_cm_event(e));
}

static void begin(const char *verb, const char *at, int number)
{
	if (!strcmp(verb, "listen")) {
		own = new_id();
		CHECK(!rdma_bind_addr(own, address(at, 0)) && !rdma_listen(own, number));
		printf("listening %u %p\n", ntohs(rdma_get_src_port(own)), (void *)own);
	} else if (!strcmp(verb, "bind")) {
		struct rdma_cm_id *id = new_id();

		printf("%s\n", rdma_bind_addr(id, address(at, number)) ? strerrorname_np(errno) : "bound");
		CHECK(!rdma_destroy_id(id));
	} else {
		own = new_id();
		CHECK(!rdma_resolve_addr(own, NULL, address(at, number), 1000));
		expect(RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(!rdma_resolve_route(own, 1000));
		expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
		printf("resolved %p\n", (void *)own);
	}
}

static void *destroy(void *id)
{
	CHECK(!rdma_destroy_id(id));
	return NULL;
}

static void go_on(const char *verb)
{
	struct rdma_cm_id *last = request ? request : own;

	if (!strcmp(verb, "get")) {
		CHECK(!rdma_get_cm_event(channel, &event));
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
			request = event->id;
		printf("%s %d\n", rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_"), event->status);
		return;
	}
	if (!strcmp(verb, "destroy")) {
		CHECK(!pthread_create(&thread, NULL, destroy, last));
		printf("going\n");
		return;
	}
	if (!strcmp(verb, "await")) {
		CHECK(!pthread_join(thread, NULL));
		*(request ? &request : &own) = NULL;
		printf("gone\n");
		return;
	}
	CHECK(strcmp(verb, "ack") || !rdma_ack_cm_event(event));
	CHECK(strcmp(verb, "connect") || !rdma_connect(own, &param));
	CHECK(strcmp(verb, "accept") || !rdma_accept(request, &param));
	CHECK(strcmp(verb, "establish") || !rdma_establish(own));
	CHECK(strcmp(verb, "disconnect") || !rdma_disconnect(last));
	printf("done\n");
}

int main(void)
{
	char line[128], verb[16], at[64];
	int number;

	channel = rdma_create_event_channel();
	CHECK(channel);
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		int n = sscanf(line, "%15s %63s %d", verb, at, &number);

		if (n == 3)
			begin(verb, at, number);
		else
			go_on(verb);
	}
	return 0;
}
