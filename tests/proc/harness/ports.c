#include "ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <sys/socket.h>

struct side {
	struct vb_ports *ports;
	struct vb_port *port[SLOTS];
};

/* A child that is one: what is done in the child at fork() has been done. */
static uint32_t fork_that_stays(void)
{
	char byte = 0;
	int up[2];
	pid_t pid;

	CHECK(!pipe(up));
	pid = kit_fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, 0); /* it is to outlive its parent; the test ends it, or this: */
		alarm(30);
		CHECK(write(up[1], &byte, 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(up[0], &byte, 1) == 1);
	close(up[0]);
	close(up[1]);
	return (uint32_t)pid;
}

/* The PID in what is said of a name that is taken; 0: there is none. */
static uint32_t who(struct vb_ports *ports, const struct vb_port_name *n)
{
	char text[512] = "", *at;
	struct vb_text t = {text, sizeof text};
	unsigned pid = 0;

	vb_ports_why(ports, n, EADDRINUSE, &t);
	at = strstr(text, "process");
	CHECK(at, "%s", text);
	at += strcspn(at, " ");
	return sscanf(at, "%u", &pid) == 1 ? pid : 0;
}

static struct answer obey(struct side *s, const struct order *o)
{
	struct vb_port **port = &s->port[o->slot];
	struct answer a = {0};

	switch (o->op) {
	case ORDER_BIND:
		a.err = vb_port_bind(s->ports, port, &o->name);
		break;
	case ORDER_LISTEN:
		a.err = vb_port_listen(*port, o->number);
		break;
	case ORDER_SET:
		a.err = vb_port_set(*port, o->name.afonly, o->name.reuse);
		break;
	case ORDER_FREE:
		vb_port_free(*port);
		*port = NULL;
		break;
	case ORDER_FIND:
		a.err = vb_ports_find(s->ports, o->name.space, o->name.port, o->name.family, o->name.addr,
				      &a.number);
		break;
	case ORDER_LOOK:
		vb_ports_look(s->ports);
		break;
	case ORDER_SHUN:
		vb_ports_shun(s->ports, o->number);
		break;
	case ORDER_WHO:
		a.number = who(s->ports, &o->name);
		break;
	case ORDER_NAME:
		a.number = vb_port_name(*port)->port;
		break;
	case ORDER_FORK:
		a.number = fork_that_stays();
		break;
	}
	return a;
}

static void serve(int sock)
{
	static struct side s;
	struct order o;
	char byte = 0;

	CHECK(!vb_ports_open(&s.ports));
	CHECK(send(sock, &byte, 1, 0) == 1);
	while (recv(sock, &o, sizeof o, 0) == sizeof o) {
		struct answer a = obey(&s, &o);

		CHECK(send(sock, &a, sizeof a, 0) == sizeof a);
	}
	_exit(0);
}

struct other other_as(uint32_t uid)
{
	struct other o;
	int pair[2];
	char byte;

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
	o.pid = kit_fork_as(uid);
	if (!o.pid) {
		close(pair[0]);
		serve(pair[1]);
	}
	close(pair[1]);
	o.sock = pair[0];
	CHECK(recv(o.sock, &byte, 1, 0) == 1); /* it has its descriptor: they are counted */
	return o;
}

struct other other_new(void)
{
	return other_as(geteuid());
}

struct answer other_tell(const struct other *o, struct order what)
{
	struct answer a;

	CHECK(send(o->sock, &what, sizeof what, 0) == sizeof what);
	CHECK(recv(o->sock, &a, sizeof a, 0) == sizeof a);
	return a;
}

int other_bind(const struct other *o, int slot, struct vb_port_name name)
{
	return other_tell(o, (struct order){.op = ORDER_BIND, .slot = slot, .name = name}).err;
}

int other_listen(const struct other *o, int slot, uint32_t number)
{
	return other_tell(o, (struct order){.op = ORDER_LISTEN, .slot = slot, .number = number}).err;
}

void other_free(const struct other *o, int slot)
{
	other_tell(o, (struct order){.op = ORDER_FREE, .slot = slot});
}

uint32_t other_find(const struct other *o, struct vb_port_name to)
{
	const struct order find = {.op = ORDER_FIND, .name = to};
	struct answer a = other_tell(o, find);

	/* What was seen is good for 50 ms only, and this process may not get a CPU. */
	for (int i = 0; a.err == EBUSY && i < 100; i++) {
		other_tell(o, (struct order){.op = ORDER_LOOK});
		a = other_tell(o, find);
	}
	CHECK(!a.err || a.err == ENOENT, "%s", strerror(a.err));
	return a.err ? 0 : a.number;
}

pid_t other_who(const struct other *o, struct vb_port_name n)
{
	return (pid_t)other_tell(o, (struct order){.op = ORDER_WHO, .name = n}).number;
}

uint16_t other_port(const struct other *o, int slot)
{
	return (uint16_t)other_tell(o, (struct order){.op = ORDER_NAME, .slot = slot}).number;
}

void other_kill(const struct other *o)
{
	CHECK(!kill(o->pid, SIGKILL));
	kit_reap(o->pid);
	close(o->sock);
}

struct vb_port_name name_v4(const char *addr, uint16_t port)
{
	struct vb_port_name n = {.space = RDMA_PS_TCP, .port = port, .family = AF_INET, .afonly = true};

	CHECK(inet_pton(AF_INET, addr, n.addr + 12) == 1);
	return n;
}

struct vb_port_name name_v6(const char *addr, uint16_t port)
{
	struct vb_port_name n = {.space = RDMA_PS_TCP, .port = port, .family = AF_INET6};

	CHECK(inet_pton(AF_INET6, addr, n.addr) == 1);
	return n;
}

struct vb_port_name name_only(struct vb_port_name n)
{
	n.afonly = true;
	return n;
}

struct vb_port_name name_reusing(struct vb_port_name n)
{
	n.reuse = true;
	return n;
}

struct vb_port_name name_in_space(struct vb_port_name n, uint16_t space)
{
	n.space = space;
	return n;
}
