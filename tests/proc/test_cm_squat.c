/* Anybody may lock the file in which ports of rdma_cm are kept.  A lock that is no listener's hides nobody
 * who listens, and one that names a process which takes no requests costs a client nothing; what it does
 * block is said with the bytes of the lock. */
#include <fcntl.h>

#include "cm.h"
#include "host/ports_priv.h"
#include "iba/limits.h"

enum { PORT = 7471 };

static struct board {
	_Atomic int ready, locked;
	_Atomic uint32_t number; /* of an adapter without rdma_cm */
} * board;

/* Holds it as long as the process lives. */
static void lock(struct vb_span s)
{
	struct flock f = {
	    .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t)s.at, .l_len = (off_t)s.len};
	static int fd = -1;

	if (fd < 0)
		fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && !fcntl(fd, F_OFD_SETLK, &f), "%s", strerror(errno));
}

static struct vb_port_name name_of(uint32_t space)
{
	const struct sockaddr_in *in = (const void *)kit_cm_local(PORT);
	struct vb_port_name n = {.space = (uint16_t)space, .port = PORT, .family = AF_INET, .afonly = true};

	memcpy(n.addr + 12, &in->sin_addr, 4);
	return n;
}

/* All places of listeners, of all ports. */
static const struct vb_span everywhere = {1ull << 62, 0};

/* That adapter at the port, at its address and at the wildcard, in whichever port space. */
static void lock_as(uint32_t number)
{
	static const uint32_t spaces[] = {RDMA_PS_TCP, RDMA_PS_UDP};

	for (int i = 0; i < 2; i++) {
		struct vb_port_name n = name_of(spaces[i]);

		lock(vb_port_listener(&n, number));
		memset(n.addr, 0, sizeof n.addr);
		lock(vb_port_listener(&n, number));
		n.afonly = false;
		lock(vb_port_listener(&n, number));
	}
}

/* A process that says when it is ready, and stays as long as the case. */
static void child(void (*run)(void))
{
	atomic_store(&board->ready, 0);
	if (kit_fork()) {
		kit_until(&board->ready, 1);
		return;
	}
	run();
	for (;;)
		pause();
}

/* It has a device, and contact with nobody. */
static void idle(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct kit_end e;

	kit_log_begin("debug");
	kit_end_open(&e, pd, 1, 64);
	atomic_store(&board->number, e.card.qpn >> VB_QPN_INDEX_BITS);
	atomic_store(&board->ready, 1);
}

static void serve(void)
{
	struct rdma_event_channel *c = kit_cm_channel();
	uint16_t port = PORT;

	kit_cm_listen(c, &port);
	atomic_store(&board->ready, 1);
	kit_cm_take(c);
	kit_cm_expect(c, RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void connects(void)
{
	struct rdma_event_channel *c = kit_cm_channel();
	double began = kit_now();

	kit_cm_connect(kit_cm_ready(c, RDMA_PS_TCP, PORT));
	kit_cm_expect(c, RDMA_CM_EVENT_ESTABLISHED, 0);
	printf("connected after %.3f s\n", kit_now() - began);
}

static void a_long_lock_hides_nobody(void)
{
	lock(everywhere); /* first, so that the kernel answers with it */
	child(serve);
	connects();
}

static void a_lock_of_number_0_hides_nobody(void)
{
	lock_as(0);
	child(serve);
	connects();
}

static void a_listener_behind_a_false_one(void)
{
	child(idle);
	lock_as(atomic_load(&board->number));
	child(serve);
	kit_log_begin("debug");
	connects();
	KIT_LOG_SAYS_NOT("queue pair 0x000001");
}

/* Not after all retries, which take 105 s. */
static void only_a_false_listener(void)
{
	static const struct {
		enum rdma_port_space ps;
		enum rdma_cm_event_type type;
		int status;
		const char *said;
	} of[] = {{RDMA_PS_TCP, RDMA_CM_EVENT_REJECTED, 8,
		   "rdma_connect to 127.0.0.1 port 7471: REJECTED, status 8: invalid service ID: no "
		   "listener on this address and port; a lock over byte "},
		  {RDMA_PS_UDP, RDMA_CM_EVENT_UNREACHABLE, 1,
		   "rdma_connect to 127.0.0.1 port 7471: UNREACHABLE, status 1: service ID not supported: "
		   "no listener on this address and port; a lock over byte "}};
	struct rdma_event_channel *c;

	child(idle);
	lock_as(atomic_load(&board->number));
	kit_log_begin("warn");
	c = kit_cm_channel();
	for (int i = 0; i < 4; i++) { /* without contact, and with it */
		struct kit_cm_event e;

		kit_cm_connect(kit_cm_ready(c, of[i % 2].ps, PORT));
		e = kit_cm_next(c);

		CHECK(e.type == of[i % 2].type, "%s: %s", rdma_event_str(e.type), kit_log_text());
		CHECK_EQ(e.status, of[i % 2].status);
		KIT_LOG_SAYS("%s", of[i % 2].said);
		KIT_LOG_SAYS("names a listener that accepts no requests; as root, lslocks shows");
		kit_log_skip();
	}
}

static void nobody_behind_a_long_lock(void)
{
	struct rdma_event_channel *c;

	lock(everywhere);
	kit_log_begin("warn");
	c = kit_cm_channel();
	kit_cm_connect(kit_cm_ready(c, RDMA_PS_TCP, PORT));
	kit_cm_expect(c, RDMA_CM_EVENT_REJECTED, 8);
	KIT_LOG_SAYS("no listener on this address and port; start the listener first: only listeners on this "
		     "address or on the wildcard address");
}

static void bind_fails(uint16_t port, int err, const char *say)
{
	struct rdma_cm_id *id = kit_cm_id(kit_cm_channel(), RDMA_PS_TCP);

	KIT_CM_FAILS(rdma_bind_addr(id, kit_cm_local(port)), err);
	KIT_LOG_SAYS("rdma_bind_addr: %s", say);
}

/* Whose lock it is can be seen: nobody else is blamed. */
static void a_lock_of_this_user(void)
{
	char say[256];

	kit_log_begin("warn");
	lock((struct vb_span){0, 0});
	snprintf(say, sizeof say, "port %d is taken at this address by process %d (EADDRINUSE)", PORT,
		 (int)getpid());
	bind_fails(PORT, EADDRINUSE, say);
	bind_fails(0, EADDRNOTAVAIL, "no ephemeral port is free (net.ipv4.ip_local_port_range: ");
	snprintf(say, sizeof say,
		 "they are blocked by process %d, with a lock over bytes 0 to the end of this network "
		 "namespace's file (/proc/self/ns/net) (EADDRNOTAVAIL)",
		 (int)getpid());
	kit_log_await(say);
}

/* And cannot: another user's. */
static void a_lock_of_another_user(void)
{
	pid_t pid;

	atomic_store(&board->locked, 0);
	pid = kit_fork_as(KIT_FOREIGN); /* before: it has no part in the descriptor */
	if (!pid) {
		kit_until(&board->locked, 1);
		kit_log_begin("warn");
		bind_fails(PORT, EADDRINUSE,
			   "port 7471 is blocked by a process of another user (or PID namespace), with a "
			   "lock over bytes 0 to the end of this network namespace's file "
			   "(/proc/self/ns/net); as root, lslocks shows which process holds it (EADDRINUSE)");
		bind_fails(0, EADDRNOTAVAIL, "no ephemeral port is free (net.ipv4.ip_local_port_range: ");
		KIT_LOG_SAYS(
		    "): they are blocked by a process of another user (or PID namespace), with a "
		    "lock over bytes 0 to the end of this network namespace's file "
		    "(/proc/self/ns/net); as root, lslocks shows which process holds it (EADDRNOTAVAIL)");
		_exit(0);
	}
	lock((struct vb_span){0, 0});
	atomic_store(&board->locked, 1);
	CHECK_EQ(kit_reap(pid), 0);
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "a long lock hides nobody", .run = a_long_lock_hides_nobody},
	    {.name = "a lock of number 0 hides nobody", .run = a_lock_of_number_0_hides_nobody},
	    {.name = "a listener behind a false one", .run = a_listener_behind_a_false_one},
	    {.name = "only a false listener", .run = only_a_false_listener},
	    {.name = "nobody behind a long lock", .run = nobody_behind_a_long_lock},
	    {.name = "a lock of this user", .run = a_lock_of_this_user},
	    {"a lock of another user", a_lock_of_another_user, .foreign = true},
	};

	if (!kit_own_network()) {
		printf("SKIP: no network namespace of its own: %s\n", strerror(errno));
		return KIT_SKIP;
	}
	board = kit_shared(sizeof *board);
	KIT_CASES(cases, 60);
	return 0;
}
