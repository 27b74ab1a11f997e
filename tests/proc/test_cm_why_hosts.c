/* What a message of rdma_cm's to another host says that gets no answer: each obstacle on the way has a
 * sentence of its own, in the log and in verbena explain, before the last attempt is over.
 *
 *     proc-cm_why_hosts [CASE]     default: all; `stopped`, which takes 13 s, with VERBENA_SOAK=1 only */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "cm.h"
#include "command.h"
#include "hosts.h"

enum { PORT = 7471 };

static struct kit_hosts hosts;

static void *connect_and_wait(void *id)
{
	(void)rdma_connect(id, &(struct rdma_conn_param){.qp_num = 0x123, .retry_count = 1});
	return NULL;
}

/* Of calls that wait the log tells soon. */
static void begin_log(void)
{
	kit_log_begin("warn");
	CHECK(!setenv("VERBENA_NETDEV", KIT_HOST_NIC, 1) && !setenv("VERBENA_WAIT_WARN", "0.2", 1));
}

/* On the first of two hosts, a synchronous id whose thread waits for the answer of the second one. */
static void connect_once_more(void)
{
	struct rdma_cm_id *id;
	pthread_t thread;

	kit_cm_host = kit_host_address(1, false);
	id = kit_cm_id(NULL, RDMA_PS_TCP);
	KIT_CM(rdma_resolve_addr(id, NULL, kit_cm_local(PORT), 2000));
	KIT_CM(rdma_resolve_route(id, 2000));
	CHECK(!pthread_create(&thread, NULL, connect_and_wait, id) && !pthread_detach(thread));
}

static void connect_to_the_other(void)
{
	begin_log();
	connect_once_more();
}

static void begin(void)
{
	hosts = (struct kit_hosts){.count = 2, .mtu = 1500};
	kit_hosts_make(&hosts);
	kit_host_enter(&hosts, 0);
}

/* The log, and explain with that word in brackets, have the sentence. */
static void both_say(const char *cause, const char *why)
{
	char want[400];

	KIT_LOG_SAYS(
	    "its connection request (REQ) to %s port %u was sent 1 of at most 16 times, and no REP has "
	    "come: %s",
	    kit_host_address(1, false), PORT, why);
	if (!kit_may_be_read()) {
		printf("SKIP: kernel.yama.ptrace_scope forbids to read the memory of a process\n");
		return;
	}
	snprintf(want, sizeof(want),
		 "[%s] its connection request (REQ) was sent 1 of at most 16 times, and no REP has come: %s",
		 cause, why);
	kit_command_awaits("explain", want);
}

static void nobody_is_at_the_port(void)
{
	char why[200];

	begin();
	connect_to_the_other();
	snprintf(why, sizeof(why), "nobody at %s listens on UDP port 4791 (ICMP port unreachable)",
		 kit_host_address(1, false));
	both_say("unreachable", why);
	KIT_LOG_SAYS_NOT("remove the obstacle"); /* the sentence has the remedy */
}

static void a_filter_of_this_host(void)
{
	char why[200];

	begin();
	if (system("nft list ruleset >/dev/null 2>&1")) {
		printf("SKIP: nft does not work here\n");
		return;
	}
	CHECK(!system("nft 'add table inet t; add chain inet t c { type filter hook output priority 0; }; "
		      "add rule inet t c udp dport 4791 drop'"));
	connect_to_the_other();
	snprintf(why, sizeof(why), "the packet filter of this host refuses packets to %s",
		 kit_host_address(1, false));
	both_say("unreachable", why);
}

/* The port at the other host, where nobody answers. */
static int open_port_there(void)
{
	struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons(4791)};
	int fd;

	kit_host_enter(&hosts, 1);
	fd = socket(AF_INET6, SOCK_DGRAM, 0);
	CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&at, sizeof(at)), "%s", strerror(errno));
	kit_host_enter(&hosts, 0);
	return fd;
}

/* Nothing comes back: after one attempt that may be the program. */
static void nothing_comes_back(void)
{
	int fd;

	begin();
	fd = open_port_there();
	connect_to_the_other();
	KIT_LOG_SAYS(
	    "has not called rdma_accept() or rdma_reject(), or no message has arrived, which the next "
	    "attempts will tell");
	if (kit_may_be_read())
		kit_command_awaits("explain", "no REP has come: the cause is not known yet. ");
	CHECK(!close(fd));
}

/* What ICMP said of an earlier request tells nothing of one that was sent later. */
static void somebody_is_at_the_port_by_now(void)
{
	int fd;

	begin();
	connect_to_the_other();
	KIT_LOG_SAYS("nobody at %s listens on UDP port 4791", kit_host_address(1, false));
	kit_log_skip();
	fd = open_port_there();
	connect_once_more();
	KIT_LOG_SAYS("or no message has arrived, which the next attempts will tell");
	CHECK(!close(fd));
}

static void ask_and_stop(void)
{
	struct rdma_event_channel *ch;

	raise(SIGSTOP); /* until there is a listener */
	kit_host_enter(&hosts, 1);
	kit_cm_host = kit_host_address(0, false);
	ch = kit_cm_channel();
	kit_cm_connect(kit_cm_ready(ch, RDMA_PS_TCP, PORT));
	raise(SIGSTOP);
	exit(0);
}

static void *accept_and_wait(void *id)
{
	(void)rdma_accept(id, &(struct rdma_conn_param){.qp_num = 0x123});
	return NULL;
}

/* The client was heard when its request came, before this end sent anything there. */
static void a_client_is_stopped(void)
{
	struct rdma_cm_id *listener, *id;
	pthread_t thread;
	pid_t client;
	int status;

	if (!getenv("VERBENA_SOAK")) {
		printf("SKIP: takes 13 s: VERBENA_SOAK\n");
		return;
	}
	begin();
	begin_log();
	client = kit_fork();
	if (!client)
		ask_and_stop();
	CHECK(waitpid(client, &status, WUNTRACED) == client && WIFSTOPPED(status));
	kit_cm_host = kit_host_address(0, false);
	listener = kit_cm_listen_at(NULL, RDMA_PS_TCP, &(uint16_t){PORT}, 1);
	CHECK(!kill(client, SIGCONT));
	CHECK(waitpid(client, &status, WUNTRACED) == client && WIFSTOPPED(status));
	KIT_CM(rdma_get_request(listener, &id));
	CHECK(!pthread_create(&thread, NULL, accept_and_wait, id) && !pthread_detach(thread));
	KIT_LOG_SAYS("no answer to the REP, sent 2 of at most 16 times: %s was heard last 1",
		     kit_host_address(1, false));
	CHECK(!kill(client, SIGKILL) && waitpid(client, &status, 0) == client);
}

/* A request whose addresses something has translated looks like this: its checksum is wrong. */
static void a_request_is_damaged(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(4791)};
	uint8_t pkt[12 + 8 + 256 + 4] = {0x64 /* UD SEND ONLY */, 0x40, 0xff, 0xff, [7] = 1 /* QP1 */};
	int fd;

	begin();
	CHECK(!setenv("VERBENA_NETDEV", KIT_HOST_NIC, 1));
	kit_cm_host = kit_host_address(0, false);
	kit_cm_listen(kit_cm_channel(), NULL);
	CHECK(inet_pton(AF_INET, kit_cm_host, &to.sin_addr) == 1);
	kit_host_enter(&hosts, 1);
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	CHECK(sendto(fd, pkt, sizeof(pkt), 0, (struct sockaddr *)&to, sizeof(to)) == sizeof(pkt), "%s",
	      strerror(errno));
	CHECK(!close(fd));
	kit_host_enter(&hosts, 0);
	if (kit_may_be_read())
		kit_command_awaits("explain", "[wrong-icrc] no request has come, but 1 packet with a wrong "
					      "checksum (ICRC), discarded");
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "port", .run = nobody_is_at_the_port},
	    {.name = "filter", .run = a_filter_of_this_host},
	    {.name = "silent", .run = nothing_comes_back},
	    {.name = "again", .run = somebody_is_at_the_port_by_now},
	    {.name = "stopped", .run = a_client_is_stopped},
	    {.name = "damaged", .run = a_request_is_damaged},
	};

	if (!kit_hosts_can())
		return KIT_SKIP;
	KIT_CASES(cases, 60);
	return 0;
}
