/* Ports of rdma_cm between processes: who may bind what beside whom, who is found, and what is left of those
 * that end (host/ports.h).
 *
 *     proc-ports [CASE]     default: all */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/log.h"
#include "host/ports_priv.h"
#include "ports.h"
#include "verbs/verbs.h"

enum { PORT = 7174, LISTENER = 77 };

/* How many locks there are on the file of this network. */
static int locks(void)
{
	struct stat st;
	char line[256], want[64];
	FILE *f = fopen("/proc/locks", "re");
	int n = 0;

	CHECK(f && !stat("/proc/self/ns/net", &st));
	snprintf(want, sizeof want, ":%lu ", (unsigned long)st.st_ino);
	while (fgets(line, sizeof line, f))
		n += strstr(line, want) != NULL;
	fclose(f);
	return n;
}

/* ---- the cases ---- */

/* Ports are a network's: nobody else is to be in it, nor what another case has left there. */
static void begin(void)
{
	CHECK(kit_own_network(), "%s", strerror(errno));
}

static void spaces_are_rdma_cms(void)
{
	CHECK((int)VB_PORTS_IPOIB == (int)RDMA_PS_IPOIB && (int)VB_PORTS_TCP == (int)RDMA_PS_TCP);
	CHECK((int)VB_PORTS_UDP == (int)RDMA_PS_UDP && (int)VB_PORTS_IB == (int)RDMA_PS_IB);
}

/* What may stand beside what, by the kernel's cma_check_port(), between processes and within one. */
static void beside(void)
{
	begin();
	const struct vb_port_name any4 = name_v4("0.0.0.0", PORT), lo4 = name_v4("127.0.0.1", PORT),
				  ten = name_v4("10.0.0.1", PORT), any6 = name_v6("::", PORT),
				  lo6 = name_v6("::1", PORT), some6 = name_v6("2001:db8::1", PORT);
	const struct {
		struct vb_port_name a, b;
		bool both;
	} pairs[] = {
	    {lo4, lo4, false},
	    {lo4, ten, true},
	    {any4, any4, false},
	    {any4, lo4, false},
	    {any6, any6, false},
	    {any6, lo6, false},
	    {lo6, lo6, false},
	    {lo6, some6, true},
	    {lo4, lo6, true},
	    {any6, lo4, false}, /* it takes IPv4 as well */
	    {any6, any4, false},
	    {any4, lo6, false}, /* an IPv6 id that does not say "only" */
	    {any4, name_only(lo6), true},
	    {name_only(any6), any4, true},
	    {name_only(any6), lo4, true},
	    {name_only(any6), any6, false},
	    {name_only(any6), name_only(lo6), false},
	    {name_reusing(lo4), name_reusing(lo4), true},
	    {name_reusing(any4), name_reusing(lo4), true},
	    {name_reusing(any6), name_reusing(any4), true},
	    {name_reusing(lo4), lo4, false},
	    {name_reusing(any4), lo4, false},
	    {name_reusing(lo4), any6, false},
	    {lo4, name_v4("127.0.0.1", PORT + 1), true},
	    {any6, name_v4("127.0.0.1", PORT - 1), true},
	    {any6, name_in_space(any6, RDMA_PS_UDP), true},
	    {any4, name_in_space(lo4, RDMA_PS_IB), true},
	};
	struct other a = other_new(), b = other_new();

	for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
		for (int turn = 0; turn < 4; turn++) { /* either is first; in two processes, then in one */
			const struct vb_port_name *x = turn & 1 ? &pairs[i].b : &pairs[i].a;
			const struct vb_port_name *y = turn & 1 ? &pairs[i].a : &pairs[i].b;
			const struct other *second = turn & 2 ? &a : &b;
			int err;

			CHECK(!other_bind(&a, 0, *x), "pair %zu, turn %d", i, turn);
			err = other_bind(second, 1, *y);
			CHECK(err == (pairs[i].both ? 0 : EADDRINUSE), "pair %zu, turn %d: %s", i, turn,
			      strerror(err));
			if (!err)
				other_free(second, 1);
			other_free(&a, 0);
		}
	}
	CHECK(locks() == 0, "%d are left", locks());
}

static void refused_names(void)
{
	begin();
	struct other a = other_new();
	struct vb_port_name n = name_v4("127.0.0.1", PORT);

	CHECK(other_bind(&a, 0, name_in_space(n, 0x1234)) == EINVAL);
	n.family = AF_UNIX;
	CHECK(other_bind(&a, 0, n) == EAFNOSUPPORT);
}

/* REUSEADDR lets the bind pass; who listens has to be alone, and stays so. */
static void reuse_ends_with_listening(void)
{
	begin();
	struct vb_port_name n = name_reusing(name_v4("127.0.0.1", PORT));

	for (int same = 0; same < 2; same++) {
		struct other a = other_new(), c = other_new(), b = same ? a : c;

		CHECK(!other_bind(&a, 0, n) && !other_bind(&b, 1, n));
		CHECK(other_listen(&a, 0, LISTENER) == EADDRINUSE);
		CHECK(other_listen(&b, 1, LISTENER) == EADDRINUSE);
		CHECK(other_find(&b, n) == 0);
		other_free(&b, 1);
		CHECK(other_bind(&c, 2, name_v4("127.0.0.1", PORT)) == EADDRINUSE); /* one is left */
		CHECK(!other_listen(&a, 0, LISTENER));
		CHECK(other_listen(&a, 0, LISTENER) == EINVAL);
		CHECK(other_find(&b, n) == LISTENER);
		CHECK(other_bind(&b, 1, n) == EADDRINUSE);
		other_free(&a, 0);
		CHECK(!other_bind(&b, 1, n));
		other_kill(&a);
		other_kill(&c);
	}
}

/* Options that are set once it is bound. */
static void options_later(void)
{
	begin();
	struct other a = other_new(), b = other_new();
	struct vb_port_name n = name_v6("::", PORT);

	CHECK(!other_bind(&a, 0, n));
	CHECK(other_bind(&b, 0, name_v4("127.0.0.1", PORT)) == EADDRINUSE);
	CHECK(!other_tell(&a, (struct order){ORDER_SET, 0, .name = name_only(n)}).err);
	CHECK(!other_bind(&b, 0, name_v4("127.0.0.1", PORT)));
	CHECK(other_bind(&b, 1, name_reusing(name_only(n))) == EADDRINUSE);
	CHECK(!other_tell(&a, (struct order){ORDER_SET, 0, .name = name_reusing(name_only(n))}).err);
	CHECK(!other_bind(&b, 1, name_reusing(name_only(n))));
	CHECK(other_tell(&a, (struct order){ORDER_SET, 0, .name = name_only(n)}).err ==
	      EINVAL); /* never back */
	CHECK(other_listen(&a, 0, LISTENER) == EADDRINUSE);
	other_free(&b, 1);
	CHECK(!other_listen(&a, 0, LISTENER));
	CHECK(other_tell(&a, (struct order){ORDER_SET, 0, .name = n}).err == EINVAL);
	other_free(&a, 0);
	other_free(&b, 0);
	CHECK(locks() == 0, "%d are left", locks());
}

/* Who is told to whom: at the address, and at wildcards of the families that they take. */
static void who_listens(void)
{
	begin();
	const struct {
		struct vb_port_name at, to;
		bool found;
	} cases[] = {
	    {name_v4("10.0.0.1", PORT), name_v4("10.0.0.1", PORT), true},
	    {name_v4("10.0.0.1", PORT), name_v4("10.0.0.2", PORT), false},
	    {name_v4("10.0.0.1", PORT), name_v4("10.0.0.1", PORT + 1), false},
	    {name_v4("10.0.0.1", PORT), name_in_space(name_v4("10.0.0.1", PORT), RDMA_PS_UDP), false},
	    {name_v4("10.0.0.1", PORT), name_v6("::1", PORT), false},
	    {name_v4("0.0.0.0", PORT), name_v4("127.0.0.1", PORT), true},
	    {name_v4("0.0.0.0", PORT), name_v6("::1", PORT), false},
	    {name_v6("::1", PORT), name_v6("::1", PORT), true},
	    {name_v6("::1", PORT), name_v6("::2", PORT), false},
	    {name_v6("::", PORT), name_v6("2001:db8::1", PORT), true},
	    {name_v6("::", PORT), name_v4("192.0.2.7", PORT), true},
	    {name_only(name_v6("::", PORT)), name_v6("2001:db8::1", PORT), true},
	    {name_only(name_v6("::", PORT)), name_v4("192.0.2.7", PORT), false},
	    {name_v4("255.255.255.254", 65535), name_v4("255.255.255.254", 65535), true},
	};
	struct other a = other_new(), b = other_new();

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		for (uint32_t number = 1; number < 4096; number += 1365) { /* 1, 1366, 2731 */
			CHECK(!other_bind(&a, 0, cases[i].at));
			CHECK(other_find(&b, cases[i].to) == 0, "case %zu: it is bound only", i);
			CHECK(!other_listen(&a, 0, number));
			CHECK(other_find(&b, cases[i].to) == (cases[i].found ? number : 0), "case %zu", i);
			CHECK(other_find(&a, cases[i].to) == (cases[i].found ? number : 0),
			      "case %zu, its own", i);
			other_free(&a, 0);
			CHECK(other_find(&b, cases[i].to) == 0, "case %zu: it is gone", i);
		}
	}
	CHECK(other_find(&b, name_in_space(name_v4("10.0.0.1", PORT), 0x1234)) == 0);
}

/* Two of a port at different addresses are told apart. */
static void each_its_own(void)
{
	begin();
	struct other a = other_new(), b = other_new(), c = other_new();
	struct vb_port_name lo = name_v4("127.0.0.1", PORT), ten = name_v4("10.0.0.1", PORT),
			    six = name_only(name_v6("::", PORT));

	CHECK(!other_bind(&a, 0, lo) && !other_listen(&a, 0, 100));
	CHECK(!other_bind(&b, 0, ten) && !other_listen(&b, 0, 101));
	CHECK(!other_bind(&b, 1, six) && !other_listen(&b, 1, 102));
	CHECK(other_find(&c, lo) == 100 && other_find(&c, ten) == 101 &&
	      other_find(&c, name_v6("::1", PORT)) == 102);
	CHECK(other_find(&a, ten) == 101 && other_find(&b, lo) == 100);
	CHECK(other_find(&c, name_v4("10.0.0.2", PORT)) == 0);
}

/* Who is in the way is told by its PID, be it by a block of ephemeral ports. */
static void who_is_in_the_way(void)
{
	struct vb_port_name lo, any, ephemeral;
	struct other a, b, c;

	begin();
	a = other_new();
	b = other_new();
	c = other_new();
	lo = name_v4("127.0.0.1", PORT);
	any = name_v6("::", PORT);
	CHECK(!other_bind(&a, 0, lo) && !other_bind(&b, 0, name_v4("127.0.0.2", PORT)));
	CHECK(!other_bind(&b, 1, name_v4("127.0.0.3", PORT)) &&
	      !other_bind(&b, 2, name_v4("0.0.0.0", PORT + 1)));
	CHECK(other_who(&c, lo) == a.pid && other_who(&a, lo) == a.pid);
	CHECK(other_who(&c, name_v4("127.0.0.3", PORT)) == b.pid);
	CHECK(other_who(&c, any) == a.pid || other_who(&c, any) == b.pid);
	CHECK(other_who(&c, name_only(any)) == 0 && other_who(&c, name_v4("127.0.0.4", PORT)) == 0);
	CHECK(other_who(&c, name_v4("127.0.0.4", PORT + 1)) == b.pid);
	CHECK(other_who(&c, name_v4("127.0.0.4", PORT + 2)) == 0);
	CHECK(!other_bind(&a, 1, name_v4("127.0.0.1", 0)));
	ephemeral = name_v4("127.0.0.9", other_port(&a, 1));
	CHECK(other_bind(&c, 0, ephemeral) == EADDRINUSE && other_who(&c, ephemeral) == a.pid);
}

static void the_dead_have_nothing(void)
{
	begin();
	struct other a = other_new(), b = other_new();
	struct vb_port_name n = name_v6("::", PORT), any = name_v4("0.0.0.0", 0);

	CHECK(!other_bind(&a, 0, n) && !other_listen(&a, 0, LISTENER) && !other_bind(&a, 1, any));
	CHECK(other_bind(&b, 0, n) == EADDRINUSE && other_find(&b, n) == LISTENER);
	other_kill(&a);
	CHECK(other_find(&b, n) == 0);
	CHECK(!other_bind(&b, 0, n));
	other_free(&b, 0);
	CHECK(locks() == 0, "%d are left", locks());
}

/* A forked child has none of its parent's ports, however long it lives. */
static void children_have_nothing(void)
{
	begin();
	struct other a = other_new(), b = other_new();
	struct vb_port_name n = name_v4("0.0.0.0", PORT);
	pid_t child;

	CHECK(!other_bind(&a, 0, n) && !other_listen(&a, 0, LISTENER));
	child = (pid_t)other_tell(&a, (struct order){.op = ORDER_FORK}).number;
	CHECK(other_find(&b, n) == LISTENER);
	other_kill(&a);
	CHECK(other_find(&b, n) == 0);
	CHECK(!other_bind(&b, 0, n));
	kill(child, SIGKILL);
}

static void a_child_begins_anew(void)
{
	begin();
	struct vb_port_name n = name_v4("127.0.0.1", PORT);
	struct vb_ports *ports, *own;
	struct vb_port *port, *again;
	int before = kit_descriptors();
	uint32_t number;
	pid_t pid;

	CHECK(!vb_ports_open(&ports) && !vb_port_bind(ports, &port, &n) && !vb_port_listen(port, LISTENER));
	pid = kit_fork();
	if (!pid) {
		CHECK(vb_port_bind(ports, &again, &n) == EIO && vb_port_listen(port, 1) == EIO);
		CHECK(vb_ports_find(ports, n.space, n.port, n.family, n.addr, &number) == EIO);
		vb_port_free(port);
		vb_ports_close(ports);
		CHECK(!vb_ports_open(&own));
		CHECK(vb_port_bind(own, &again, &n) == EADDRINUSE); /* the parent has it still */
		CHECK(!vb_ports_find(own, n.space, n.port, n.family, n.addr, &number) && number == LISTENER);
		n.port++;
		CHECK(!vb_port_bind(own, &again, &n));
		vb_ports_close(own);
		_exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
	CHECK(!vb_ports_find(ports, n.space, n.port, n.family, n.addr, &number) && number == LISTENER);
	vb_port_free(port);
	CHECK(!vb_port_bind(ports, &port, &n));
	vb_port_free(port);
	vb_ports_close(ports);
	CHECK(kit_descriptors() == before);
}

/* Ephemeral ports: each once, none costs a descriptor, and none is left. */
static void ephemeral(void)
{
	begin();
	enum { MANY = 2000 };
	static bool seen[65536];
	struct other a = other_new(), b = other_new();
	int before = kit_descriptors_of(a.pid);

	for (int i = 0; i < MANY; i++) {
		const struct other *o = i & 1 ? &a : &b;
		uint32_t port;

		CHECK(!other_bind(o, i, i & 2 ? name_v4("0.0.0.0", 0) : name_v6("::1", 0)));
		port = other_port(o, i);
		CHECK(port >= 1024 && port < 65536 && !seen[port], "%u", port);
		seen[port] = true;
	}
	CHECK(kit_descriptors_of(a.pid) == before);
	CHECK(locks() < 40, "%d", locks());
	for (int i = 0; i < MANY; i += 2) /* what the other has is in use here */
		CHECK(other_bind(&a, SLOTS - 1, name_v4("127.0.0.1", other_port(&b, i))) == EADDRINUSE);
	for (int i = 0; i < MANY; i++)
		other_free(i & 1 ? &a : &b, i);
	CHECK(locks() == 0, "%d are left", locks());
}

/* One that is given back is not the next that is given out. */
static void ephemeral_ports_rest(void)
{
	begin();
	enum { TURNS = 1000 };
	static bool seen[65536];
	struct other a = other_new();

	for (int i = 0; i < TURNS; i++) {
		uint32_t port;

		CHECK(!other_bind(&a, 0, name_v4("127.0.0.1", 0)));
		port = other_port(&a, 0);
		CHECK(!seen[port], "%u after %d", port, i);
		seen[port] = true;
		other_free(&a, 0);
	}
}

/* A range of ten ports is used up to the last, by explicit binds, too, and is whole again afterwards. */
static void ephemeral_to_the_last(void)
{
	begin();
	struct other a, b;
	FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "w");

	CHECK(f && fprintf(f, "40000 40009") > 0 && !fclose(f), "%s", strerror(errno));
	a = other_new();
	b = other_new();
	for (int turn = 0; turn < 3; turn++) {
		CHECK(!other_bind(&a, 0, name_v4("127.0.0.1", 40004)));
		CHECK(!other_bind(&b, 10, name_reusing(name_v4("127.0.0.1", 0))));
		for (int i = 1; i < 9; i++)
			CHECK(!other_bind(i & 1 ? &a : &b, i, name_v4("127.0.0.1", 0)), "port %d", i);
		CHECK(other_bind(&a, 11, name_v4("127.0.0.1", 0)) == EADDRNOTAVAIL);
		CHECK(other_bind(&b, 11, name_reusing(name_v4("127.0.0.1", 0))) == EADDRNOTAVAIL);
		for (int i = 1; i < 9; i++)
			other_free(i & 1 ? &a : &b, i);
		other_free(&a, 0);
		other_free(&b, 10);
		CHECK(locks() == 0, "%d are left", locks());
	}
	/* Explicit ports in one's own block outlive the port that it was taken for. */
	CHECK(!other_bind(&a, 0, name_v4("127.0.0.1", 0)));
	for (uint16_t i = 0; i < 10; i++)
		CHECK(!other_bind(&a, 1 + i, name_v4("10.0.0.1", (uint16_t)(40000 + i))));
	other_free(&a, 0);
	for (uint16_t i = 0; i < 10; i++) {
		CHECK(other_bind(&b, 0, name_v4("10.0.0.1", (uint16_t)(40000 + i))) == EADDRINUSE);
		other_free(&a, 1 + i);
	}
	CHECK(locks() == 0, "%d are left", locks());
}

/* Two that want what clashes at the same instant: exactly one has it. */
static void at_once(void)
{
	begin();
	enum { ROUNDS = 300 };
	struct {
		_Atomic int round, done, won;
	} *board = kit_shared(sizeof *board);
	struct vb_port_name n[2] = {name_v6("::", PORT), name_v4("127.0.0.1", PORT)};
	pid_t pid[2];

	for (int k = 0; k < 2; k++) {
		pid[k] = kit_fork();
		if (!pid[k]) {
			struct vb_ports *ports;
			struct vb_port *port;

			CHECK(!vb_ports_open(&ports));
			for (int i = 1; i <= ROUNDS; i++) {
				int err;

				kit_reach(&board->round, i);
				err = vb_port_bind(ports, &port, &n[k]);
				CHECK(!err || err == EADDRINUSE);
				if (!err)
					atomic_fetch_add(&board->won, 1);
				atomic_fetch_add(&board->done, 1);
				kit_reach(&board->done, 2 * i);
				if (!err)
					vb_port_free(port);
				atomic_fetch_add(&board->done, 0);
			}
			_exit(0);
		}
	}
	for (int i = 1; i <= ROUNDS; i++) {
		atomic_store(&board->won, 0);
		atomic_store(&board->round, i);
		kit_reach(&board->done, 2 * i);
		CHECK(atomic_load(&board->won) == 1, "%d in round %d", atomic_load(&board->won), i);
		while (locks()) /* the winner's is given back */
			sched_yield();
	}
	CHECK_EQ(kit_reap(pid[0]), 0);
	CHECK_EQ(kit_reap(pid[1]), 0);
}

/* Who stands still in his turn is passed over. */
static void nobody_is_waited_for(void)
{
	begin();
	struct other a = other_new();
	int fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	double begun;

	CHECK(fd >= 0 && !flock(fd, LOCK_EX));
	begun = kit_now();
	CHECK(!other_bind(&a, 0, name_v4("127.0.0.1", PORT)) && !other_listen(&a, 0, LISTENER));
	CHECK(kit_now() - begun < 1, "%.3f s", kit_now() - begun);
	CHECK(other_find(&a, name_v4("127.0.0.1", PORT)) == LISTENER);
}

/* Ports are the network's: another user's are in use, and whose a listener is is not told here. */
static void other_users(void)
{
	begin();
	struct other a = other_as(KIT_FOREIGN), b = other_new();
	struct vb_port_name n = name_v4("127.0.0.1", PORT);

	CHECK(!other_bind(&a, 0, n));
	CHECK(other_bind(&b, 0, n) == EADDRINUSE);
	other_free(&a, 0);
	CHECK(!other_bind(&b, 0, n));
}

/* Somebody who locks all of the file occupies all ports, and nothing worse: no listener is made up. */
static void all_occupied(void)
{
	begin();
	struct other a = other_new();
	struct flock all = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
	int fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	double begun = kit_now();

	CHECK(fd >= 0 && !fcntl(fd, F_OFD_SETLK, &all));
	CHECK(other_bind(&a, 0, name_v4("127.0.0.1", PORT)) == EADDRINUSE);
	CHECK(other_bind(&a, 0, name_v4("127.0.0.1", 0)) == EADDRNOTAVAIL);
	CHECK(other_find(&a, name_v4("127.0.0.1", PORT)) == 0);
	CHECK(kit_now() - begun < 2, "%.3f s", kit_now() - begun);
	close(fd);
	CHECK(!other_bind(&a, 0, name_v4("127.0.0.1", PORT)));
}

/* Whoever listens is found, whatever is locked besides: a lock that no listener has is looked behind. */
static void behind_a_lock(void)
{
	static const struct {
		off_t at, len;
	} spans[] = {{0, 0}, {1ll << 62, 0}, {1ll << 62, 1ll << 61}}; /* all; all listeners; two spaces' */
	struct vb_port_name n = name_v4("127.0.0.1", PORT), any = name_v4("0.0.0.0", PORT);
	struct other a, b;
	uint32_t number;

	begin();
	a = other_new();
	b = other_new();
	for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
		struct flock f = {
		    .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = spans[i].at, .l_len = spans[i].len};
		int fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

		if (i) /* else nothing can be bound any more */
			CHECK(fd >= 0 && !fcntl(fd, F_OFD_SETLK, &f), "%s", strerror(errno));
		CHECK(!other_bind(&a, 0, n) && !other_listen(&a, 0, LISTENER));
		if (!i)
			CHECK(fd >= 0 && !fcntl(fd, F_OFD_SETLK, &f), "%s", strerror(errno));
		number = other_find(&b, n);
		CHECK_EQ(number, LISTENER);
		CHECK_EQ(other_find(&b, name_v4("127.0.0.1", PORT + 1)), 0);
		CHECK_EQ(other_find(&b, name_in_space(n, RDMA_PS_UDP)), 0);
		other_free(&a, 0);
		close(fd);
	}
	/* A false one, at the very address, before the one at the wildcard. */
	CHECK(!other_bind(&a, 0, n) && !other_listen(&a, 0, LISTENER));
	other_free(&a, 0);
	CHECK(!other_bind(&b, 0, any) && !other_listen(&b, 0, LISTENER + 1));
	{
		struct vb_span s = vb_port_listener(&n, LISTENER);
		struct flock f = {
		    .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t)s.at, .l_len = 1};
		int fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

		CHECK(fd >= 0 && !fcntl(fd, F_OFD_SETLK, &f), "%s", strerror(errno));
	}
	CHECK_EQ(other_find(&a, n), LISTENER);
	other_tell(&a, (struct order){.op = ORDER_SHUN, .number = LISTENER});
	number = other_find(&a, n);
	CHECK(number == LISTENER + 1 || number == LISTENER, "%u", number); /* the latter: half a second ago */
}

/* A program that closes descriptors that it did not open, and opens its own: these are not touched. */
static void closed_by_the_program(void)
{
	enum { FILES = 8 };
	struct vb_port_name n = name_v4("127.0.0.1", PORT);
	struct vb_ports *ports;
	struct vb_port *port, *more;
	uint32_t number;
	struct other b;
	int first;

	begin();
	kit_log_begin("error");
	b = other_new();
	first = dup(0); /* what is opened from now on has this number or a higher one */
	CHECK(first >= 0 && !close(first));
	CHECK(!vb_ports_open(&ports) && !vb_port_bind(ports, &port, &n));
	for (int fd = first; fd < first + FILES; fd++)
		close(fd);
	for (int i = 0; i < FILES; i++)
		CHECK(memfd_create("mine", 0) == first + i);
	CHECK(vb_port_bind(ports, &more, &n) == EIO && vb_port_listen(port, 1) == EIO);
	CHECK(vb_ports_find(ports, n.space, n.port, n.family, n.addr, &number) == EIO);
	CHECK(!other_bind(&b, 0, n)); /* it is free */
	vb_port_free(port);
	vb_ports_close(ports);
	for (int fd = first; fd < first + FILES; fd++)
		CHECK(fcntl(fd, F_GETFD) >= 0);
	vb_log_tell();
	KIT_LOG_SAYS("this process closed the descriptor that reserves its rdma_cm ports");
}

static struct vb_ports *threads_ports;
static _Atomic int holders;

static void *thread(void *arg)
{
	struct vb_port_name mine = name_v4("127.0.0.1", 0), same = name_v6("::", PORT);
	struct vb_port *port, *p[20];
	uint32_t number;

	(void)arg;
	for (int i = 0; i < 300; i++) {
		int err = vb_port_bind(threads_ports, &port, &same);

		CHECK(!err || err == EADDRINUSE);
		if (!err) {
			CHECK(atomic_fetch_add(&holders, 1) == 0);
			CHECK(!vb_port_listen(port, LISTENER));
			CHECK(!vb_ports_find(threads_ports, same.space, PORT, AF_INET,
					     name_v4("10.0.0.1", 0).addr, &number));
			atomic_fetch_sub(&holders, 1);
			vb_port_free(port);
		}
		for (int k = 0; k < 20; k++)
			CHECK(!vb_port_bind(threads_ports, &p[k], &mine));
		for (int k = 0; k < 20; k++)
			vb_port_free(p[k]);
	}
	return NULL;
}

static void threads(void)
{
	begin();
	pthread_t t[4];

	CHECK(!vb_ports_open(&threads_ports));
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&t[i], NULL, thread, NULL));
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(t[i], NULL));
	CHECK(locks() == 0, "%d are left", locks());
	vb_ports_close(threads_ports);
}

static struct vb_ports *looked_at;
static bool held;

static void look(void)
{
	held = pthread_mutex_trylock(&looked_at->lock);
	if (!held)
		pthread_mutex_unlock(&looked_at->lock);
}

/* Ports are looked for under the locks of the device and of rdma_cm, so fork() takes theirs after those: what
 * was registered later than the device's handlers is called while the ports are nobody's. */
static void fork_takes_them_last(void)
{
	pid_t pid;

	vb_device_handle_fork();
	CHECK(!pthread_atfork(look, NULL, NULL) && !vb_ports_open(&looked_at));
	held = true;
	pid = kit_fork();
	if (!pid)
		_exit(0);
	CHECK_EQ(kit_reap(pid), 0);
	CHECK(!held);
	vb_ports_close(looked_at);
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "spaces", .run = spaces_are_rdma_cms, .clean = true},
	    {.name = "beside", .run = beside},
	    {.name = "refused", .run = refused_names},
	    {.name = "reuse", .run = reuse_ends_with_listening},
	    {.name = "options", .run = options_later},
	    {.name = "who", .run = who_listens},
	    {.name = "each", .run = each_its_own},
	    {.name = "way", .run = who_is_in_the_way},
	    {.name = "dead", .run = the_dead_have_nothing},
	    {.name = "children", .run = children_have_nothing},
	    {.name = "child", .run = a_child_begins_anew, .clean = true},
	    {.name = "order", .run = fork_takes_them_last},
	    {.name = "ephemeral", .run = ephemeral},
	    {.name = "rest", .run = ephemeral_ports_rest},
	    {.name = "last", .run = ephemeral_to_the_last},
	    {.name = "once", .run = at_once},
	    {.name = "stopped", .run = nobody_is_waited_for},
	    {"users", other_users, .foreign = true},
	    {.name = "occupied", .run = all_occupied},
	    {.name = "behind", .run = behind_a_lock},
	    {.name = "closed", .run = closed_by_the_program},
	    {.name = "threads", .run = threads, .clean = true},
	};

	if (!kit_own_network()) {
		printf("SKIP: no network namespace of its own: %s\n", strerror(errno));
		return KIT_SKIP;
	}
	KIT_CASES(cases, 60);
	return 0;
}
