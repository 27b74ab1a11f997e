/* The calls of releases after Debian 12's (RDMACM_1.4), on the real library: names that are looked up while
 * the program goes on, and events that it writes itself. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>

#include "ep.h"

/* What the system's header lacks. */
enum { ADDRINFO_RESOLVED = 16, ADDRINFO_ERROR = 17, USER = 18, INTERNAL = 19, RAI_SA = 16, RAI_DNS = 32 };
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t arg);

static const struct rdma_addrinfo numbers = {.ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP};

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;

static void begin(void)
{
	channel = rdma_create_event_channel();
	CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "%m");
}

static void end(void)
{
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* param.arg of newer headers is the first member of the union. */
static uint64_t expect(int type, int status)
{
	struct rdma_cm_event *e;
	uint64_t arg;

	CHECK(!rdma_get_cm_event(channel, &e), "%m");
	CHECK((int)e->event == type && e->status == status && e->id == id, "%s, status %d",
	      rdma_event_str(e->event), e->status);
	memcpy(&arg, &e->param, sizeof arg);
	CHECK(!rdma_ack_cm_event(e));
	return arg;
}

static void an_answer_is_an_event(void)
{
	struct rdma_addrinfo *found = NULL;

	begin();
	errno = 0;
	CHECK(rdma_query_addrinfo(id, &found) == -1 && errno == ENODATA);
	CHECK(!rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &numbers), "%m");
	expect(ADDRINFO_RESOLVED, 0);
	CHECK(!rdma_query_addrinfo(id, &found) && !found->ai_next);
	CHECK(((struct sockaddr_in *)found->ai_dst_addr)->sin_port == htobe16(7471));
	/* which is what it is for */
	CHECK(!rdma_resolve_addr(id, NULL, found->ai_dst_addr, 1000), "%m");
	expect(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	rdma_freeaddrinfo(found);
	CHECK(!rdma_resolve_addrinfo(id, "no.number", "7471", &numbers), "%m");
	expect(ADDRINFO_ERROR, -ENODATA);
	errno = 0;
	CHECK(rdma_query_addrinfo(id, &found) == -1 && errno == ENODATA);
	end();
}

static void who_answers_can_be_chosen(void)
{
	struct rdma_addrinfo hints = numbers, *found;

	begin();
	hints.ai_flags |= RAI_DNS;
	CHECK(!rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints), "%m");
	expect(ADDRINFO_RESOLVED, 0);
	CHECK(!rdma_query_addrinfo(id, &found));
	rdma_freeaddrinfo(found);
	errno = 0;
	hints.ai_flags |= RAI_SA;
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints) == -1 && errno == EINVAL);
	errno = 0;
	hints.ai_flags &= ~RAI_DNS;
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints) == -1 && errno == EOPNOTSUPP);
	end();
}

/* A synchronous id waits for it. */
static void without_a_channel(void)
{
	struct rdma_addrinfo *found = NULL;

	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &numbers), "%m");
	CHECK((int)id->event->event == ADDRINFO_RESOLVED && !rdma_query_addrinfo(id, &found));
	rdma_freeaddrinfo(found);
	errno = 0;
	CHECK(rdma_resolve_addrinfo(id, "no.number", "7471", &numbers) == -1 && errno == ENODATA);
	CHECK(!rdma_destroy_id(id));
}

static void *wait_for_one(void *arg)
{
	CHECK(expect(USER, -7) == 0x0123456789abcdefull);
	return arg;
}

/* One that waits hears of it at once; others find it in their turn. */
static void what_a_program_writes(void)
{
	struct pollfd p;
	pthread_t thread;

	begin();
	p = (struct pollfd){.fd = channel->fd, .events = POLLIN};
	CHECK(poll(&p, 1, 0) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(!rdma_write_cm_event(id, (enum rdma_cm_event_type)USER, i, (uint64_t)i << 60));
	CHECK(poll(&p, 1, 0) == 1);
	for (int i = 0; i < 3; i++)
		CHECK(expect(USER, i) == (uint64_t)i << 60);
	CHECK(poll(&p, 1, 0) == 0);
	CHECK(!pthread_create(&thread, NULL, wait_for_one, NULL));
	kit_until_blocked();
	CHECK(!rdma_write_cm_event(id, (enum rdma_cm_event_type)USER, -7, 0x0123456789abcdefull));
	CHECK(!pthread_join(thread, NULL));
	for (int type = 0; type < 24; type++) {
		errno = 0;
		CHECK(type == USER || (rdma_write_cm_event(id, (enum rdma_cm_event_type)type, 0, 0) == -1 &&
				       errno == EINVAL));
	}
	CHECK(poll(&p, 1, 0) == 0);
	end();
}

/* The id goes while its name is looked up, and with events that nobody took. */
static void nobody_waits(void)
{
	for (int i = 0; i < 50; i++) {
		begin();
		CHECK(!rdma_write_cm_event(id, (enum rdma_cm_event_type)USER, 0, 0));
		CHECK(!rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &numbers), "%m");
		end();
	}
}

int main(int argc, char **argv)
{
#define CASE(function)                                            \
	{                                                         \
		.name = #function, .run = function, .clean = true \
	}
	static const struct kit_case cases[] = {CASE(an_answer_is_an_event), CASE(who_answers_can_be_chosen),
						CASE(without_a_channel), CASE(what_a_program_writes),
						CASE(nobody_waits)};

	KIT_CASES(cases, 60);
	return 0;
}
