/* The group of sockets that share the port: made once, then passed from process to process.
 *
 * The group has a door: a listening socket whose abstract name only one can bind.  Who binds it makes the 64
 * sockets, and listens when all of them exist.  Who cannot bind it connects to it, and is sent all 64 and the
 * door by the first holder that runs.  The door is one open file, which each holder has in its epoll set: so
 * the name stands as long as the group does, and no holder is needed more than another.
 *
 * Where no holder runs, since all are stopped, a process takes their descriptors by pidfd_getfd()
 * (Linux 5.6).
 *
 * Anybody may bind the name, and connect to it: the kernel tells both ends the user of the other. */
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/debug.h"
#include "base/poll.h"
#include "host/hello.h"
#include "host/private.h"
#include "host/roce_priv.h"

#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif

#define PAUSE  VB_MSEC	     /* between two tries */
#define ANSWER (VB_SEC / 4)  /* how long an answer is waited for before the descriptors are taken */
#define SILENT (10 * VB_SEC) /* how long all in all */

enum { VERSION = 1 };

enum answer_kind {
	ANSWER_FILES = 1, /* with the descriptors */
	ANSWER_BUSY,	  /* they cannot be sent just now: ask again */
};

struct answer {
	uint32_t version, kind;
};

/* The group's index of a datagram, from its first bytes: those of UDP's payload, a BTH. */
static int steer(int fd)
{
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),
	    BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xffffff),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xffffff, 0, 1), /* a group's, but not to its address */
	    BPF_STMT(BPF_RET | BPF_K, 0),
	    BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, VB_QPN_INDEX_BITS),
	    BPF_STMT(BPF_ALU | BPF_AND | BPF_K, VB_ROCE_SLOTS - 1),
	    BPF_STMT(BPF_RET | BPF_A, 0),
	};
	struct sock_fprog p;

	memset(&p, 0, sizeof(p)); /* memcheck looks at the bytes between the members */
	p.len = sizeof(code) / sizeof(code[0]);
	p.filter = code;
	return setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &p, sizeof(p));
}

/* One socket of the group; its index is how many were bound before. */
static int make_one(struct vb_roce *r, uint32_t i, struct vb_roce_why *why)
{
	struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_port = htons(VB_ROCE_PORT)};
	int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, off = 0, none = 0;
	int place = (int)i + 1; /* for vb_roce_take() */

	if (fd < 0)
		return vb_roce_failed(why, "socket");
	vb_roce_keep(&r->shared[i], fd); /* vb_roce_close() */
	fd = r->shared[i].fd;
	if (setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) ||
	    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &none, sizeof(none)) ||
	    setsockopt(fd, IPPROTO_UDP, UDP_NO_CHECK6_RX, &on, sizeof(on)) || /* adapters, and soft-RoCE */
	    setsockopt(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, &place, sizeof(place)))
		return vb_roce_failed(why, "setsockopt");
	if (setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, r->interface, (socklen_t)strlen(r->interface)))
		return vb_roce_failed(why, "setsockopt(SO_BINDTODEVICE)");
	(void)!setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof(on)); /* Linux 5.0 */
	/* Only what it has joined itself comes to it (IPv6: Linux 4.20). */
	(void)!setsockopt(fd, IPPROTO_IP, IP_MULTICAST_ALL, &off, sizeof(off));
	(void)!setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, &off, sizeof(off));
	if (bind(fd, (struct sockaddr *)&sa, sizeof(sa))) {
		int err = vb_roce_failed(why, "bind");

		if (err == EADDRINUSE)
			vb_roce_find_owner(r, why);
		return err;
	}
	if (!i && steer(fd))
		return vb_roce_failed(why, "setsockopt(SO_ATTACH_REUSEPORT_CBPF)");
	return 0;
}

/* The door is bound, and nobody is let in yet. */
static int make_group(struct vb_roce *r, struct vb_roce_why *why)
{
	int err = 0;

	for (uint32_t i = 0; !err && i < VB_ROCE_SLOTS; i++)
		err = make_one(r, i, why);
	if (!err && listen(r->shared[ROCE_DOOR].fd, VB_BACKLOG))
		err = vb_roce_failed(why, "listen");
	return err;
}

/* Tries to bind the door.  EADDRINUSE: somebody else has. */
static int bind_door(struct vb_roce *r, struct vb_roce_why *why)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sockaddr_un sa;
	socklen_t len = vb_roce_address(&sa, r->ifindex, 0);

	if (fd < 0)
		return vb_roce_failed(why, "socket");
	if (bind(fd, (struct sockaddr *)&sa, len)) {
		int err = vb_roce_failed(why, "bind");

		close(fd);
		return err;
	}
	vb_roce_keep(&r->shared[ROCE_DOOR], fd); /* vb_roce_close() */
	return 0;
}

/* Takes the descriptors of an answer.  EAGAIN: there is none, so ask again. */
static int take_answer(struct vb_roce *r, int sock, struct vb_roce_why *why)
{
	struct answer answer = {0};
	struct iovec iov = {&answer, sizeof(answer)};
	struct foreign_room room;
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = room.bytes,
			   .msg_controllen = sizeof(room.bytes)};
	ssize_t n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int fds[ROCE_SHARED], got;

	if (n <= 0)
		return EAGAIN; /* the holder is gone */
	got = vb_foreign_take(&m, fds, ROCE_SHARED);
	if (n == sizeof(answer) && answer.kind == ANSWER_FILES && answer.version == VERSION &&
	    got == ROCE_SHARED) {
		for (int i = 0; i < ROCE_SHARED; i++)
			vb_roce_keep(&r->shared[i], fds[i]); /* vb_roce_close() */
		return 0;
	}
	for (int i = 0; i < got && i < ROCE_SHARED; i++)
		vb_foreign_close(fds[i]);
	if (m.msg_flags & MSG_CTRUNC) {
		errno = EMFILE;
		return vb_roce_failed(why, "recvmsg");
	}
	if (n == sizeof(answer) && answer.version != VERSION) {
		errno = EPROTO;
		return vb_roce_failed(why, "recvmsg");
	}
	return EAGAIN;
}

/* Asks a holder.  EAGAIN: ask again.  ETIMEDOUT: there are holders, and none has answered. */
static int ask(struct vb_roce *r, struct vb_roce_why *why)
{
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), err;
	struct pollfd answered = {.fd = sock, .events = POLLIN};
	struct vb_reach_facts t;
	struct sockaddr_un sa;
	socklen_t len = vb_roce_address(&sa, r->ifindex, 0);

	if (sock < 0)
		return vb_roce_failed(why, "socket");
	/* Refused: it is being made, or is gone by now.  EAGAIN: many have asked. */
	if (syscall(SYS_connect, sock, &sa, len)) {
		err = errno == ECONNREFUSED || errno == EAGAIN ? EAGAIN : vb_roce_failed(why, "connect");
	} else {
		err = vb_contact_may(sock, &why->pid, &t);
		if (err == EACCES) {
			why->trouble = VB_ROCE_USER;
			why->uid = t.reach == VB_REACH_USER ? t.user.uid : (uint32_t)-1;
			err = EADDRINUSE;
		} else if (!err) {
			err = vb_poll(&answered, 1, ANSWER) > 0 ? take_answer(r, sock, why) : ETIMEDOUT;
		}
	}
	vb_foreign_hang_up(sock);
	return err;
}

int vb_roce_join(struct vb_roce *r, struct vb_roce_why *why)
{
	uint64_t until = vb_now() + SILENT;
	int err;

	for (;;) {
		err = bind_door(r, why);
		if (!err)
			return make_group(r, why);
		if (err != EADDRINUSE)
			return err;
		err = ask(r, why);
		if (err == ETIMEDOUT)
			err = vb_roce_take(r);
		if (err != EAGAIN)
			return err;
		if (vb_now() > until) {
			vb_roce_find_silent(r, why);
			return EADDRINUSE;
		}
		vb_poll(NULL, 0, PAUSE);
	}
}

static bool is_whole(const struct vb_roce *r)
{
	for (uint32_t i = 0; i < ROCE_SHARED; i++)
		if (!vb_own_is(&r->shared[i].own, r->shared[i].fd))
			return false;
	return true;
}

static bool send_answer(const struct vb_roce *r, int sock, uint32_t kind)
{
	struct answer answer = {.version = VERSION, .kind = kind};
	struct iovec iov = {&answer, sizeof(answer)};
	_Alignas(struct cmsghdr) char ctl[CMSG_SPACE(ROCE_SHARED * sizeof(int))] = {0};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *cm = (struct cmsghdr *)ctl;
	int fds[ROCE_SHARED];

	if (kind == ANSWER_FILES) {
		for (uint32_t i = 0; i < ROCE_SHARED; i++)
			fds[i] = r->shared[i].fd;
		m.msg_control = ctl;
		m.msg_controllen = sizeof(ctl);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(sizeof(fds));
		memcpy(CMSG_DATA(cm), fds, sizeof(fds));
	}
	return sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(answer);
}

bool vb_roce_serve(struct vb_roce *r, struct vb_adapter *a)
{
	int door = r->shared[ROCE_DOOR].fd, sock;
	struct vb_reach_facts t;
	uint32_t pid;

	if (!is_whole(r))
		return false;
	/* Edges: what cannot be accepted, for want of descriptors, another holder accepts, or the asker asks
	 * again. */
	while ((sock = accept4(door, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
		if (vb_contact_may(sock, &pid, &t))
			vb_contact_tell_away(a, &t, pid);
		else if (!send_answer(r, sock, ANSWER_FILES)) /* ETOOMANYREFS */
			send_answer(r, sock, ANSWER_BUSY);
		vb_foreign_hang_up(sock);
	}
	return true;
}

void vb_roce_listen(struct vb_roce *r)
{
	const struct vb_roce_file *door = &r->shared[ROCE_DOOR];

	if (vb_own_is(&door->own, door->fd))
		(void)!listen(door->fd, VB_BACKLOG);
}
