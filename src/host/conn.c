/* One control connection: its descriptors, and the messages after the hello. */
#include <errno.h>
#include <linux/sockios.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/pages.h"
#include "base/poll.h"
#include "host/hello.h"
#include "host/private.h"

enum {
	BATCH = 4,	    /* messages taken with one call */
	MAX_LEFT = 1 << 16, /* messages read from a peer that is gone */
};

/* A process ends once: where its pidfd cannot be taken out of the set again (forget()), the set is not to
 * tell of it for ever. */
enum { PID_EVENTS = EPOLLIN | EPOLLET };

/* Only what is ours goes.  `own`: of a socket; NULL: a pidfd, whose inode does not tell; where the set cannot
 * be asked either, the number stays as it is.  false: the set may go on to tell of it. */
static bool forget(struct vb_adapter *a, int fd, const struct vb_own *own)
{
	/* A forked child may hold the description, so that closing alone would leave it in the epoll set. */
	bool gone = vb_ctl_is_ours(a) && !syscall(SYS_epoll_ctl, a->ctl, EPOLL_CTL_DEL, fd, NULL);

	if (own && (gone || vb_own_is(own, fd)))
		vb_foreign_hang_up(fd);
	else if (gone)
		close(fd);
	return gone;
}

bool vb_conn_holds_pidfd(struct vb_adapter *a, struct conn *c)
{
	struct epoll_event ev = {.events = PID_EVENTS, .data.ptr = &c->on_pid};

	return c->pidfd >= 0 && !epoll_ctl(a->ctl, EPOLL_CTL_MOD, c->pidfd, &ev);
}

bool vb_conn_is_ours(struct vb_adapter *a, struct conn *c)
{
	vb_mutex_assert_held(&a->control);
	if (vb_own_is(&c->own, c->sock))
		return true;
	vb_adapter_lose(a);
	return false;
}

/* Besides the hang-up: a child that the peer forked may keep its sockets open.  In another PID namespace the
 * peer has no PID here, and a kernel or sandbox may refuse; then the hang-up must do.  A lack of descriptors
 * or memory passes: contact is made another time. */
static int watch_process(struct vb_adapter *a, struct conn *c, struct vb_reach_facts *t)
{
	int err;

	if (!c->pid || c->pid == (uint32_t)getpid())
		return 0;
	c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
	if (c->pidfd < 0) {
		err = errno == EMFILE || errno == ENFILE || errno == ENOMEM ? errno : 0;
		*t = vb_reach_trouble(err, VB_CALL_PIDFD_OPEN);
		return err;
	}
	err = vb_ctl_add(a, c->pidfd, PID_EVENTS, &c->on_pid);
	if (err) {
		*t = vb_reach_trouble(err, VB_CALL_EPOLL);
		close(c->pidfd);
		c->pidfd = -1;
	}
	return err;
}

/* Takes over `sock`, but not when it fails: *t says why then. */
int vb_conn_make(struct vb_adapter *a, struct conn **out, int sock, uint32_t pid, enum conn_state state,
		 struct vb_reach_facts *t)
{
	struct conn *c = vb_pages_alloc(sizeof(*c));
	int err;

	vb_mutex_assert_held(&a->control);
	if (!c) {
		*t = vb_reach_trouble(ENOMEM, VB_CALL_MMAP);
		return ENOMEM;
	}
	c->on_sock.kind = SRC_SOCK;
	c->on_pid.kind = SRC_PID;
	c->state = state;
	c->since = vb_now();
	c->sock = sock;
	c->pid = pid;
	c->pidfd = -1;
	c->own = vb_own_of(sock);
	err = vb_ctl_add(a, sock, EPOLLIN, &c->on_sock);
	*t = vb_reach_trouble(err, VB_CALL_EPOLL);
	if (err)
		goto free_conn;
	err = watch_process(a, c, t);
	if (err)
		goto unwatch;
	vb_list_append(&a->conns, &c->node);
	if (state == CONN_NEW)
		a->nconns_new++;
	*out = c;
	return 0;
unwatch:
	epoll_ctl(a->ctl, EPOLL_CTL_DEL, sock, NULL);
free_conn:
	free(c);
	return err;
}

/* The object goes at the end of the batch: an event that points to it may be in hand.  Where a sandbox denies
 * epoll_ctl there may be events for it later too, so it stays until the adapter is closed. */
void vb_conn_close(struct vb_adapter *a, struct conn *c)
{
	bool gone;

	vb_mutex_assert_held(&a->control);
	if (c->state == CONN_DEAD)
		return;
	if (c->state == CONN_NEW)
		a->nconns_new--;
	gone = forget(a, c->sock, &c->own);
	gone &= c->pidfd < 0 || forget(a, c->pidfd, NULL);
	c->sock = c->pidfd = -1;
	c->state = CONN_DEAD;
	vb_list_unlink(&c->node);
	vb_list_append(gone ? &a->dead_conns : &a->stuck_conns, &c->node);
}

void vb_conns_bury(struct vb_adapter *a)
{
	struct vb_list *n;

	vb_mutex_assert_held(&a->control);
	while ((n = vb_list_pop(&a->dead_conns)))
		free(vb_list_entry(n, struct conn, node));
}

/* Best effort: a socket that is full of doorbells belongs to a peer that does not read. */
static void say_byte(struct conn *c, uint8_t msg)
{
	if (vb_own_is(&c->own, c->sock))
		(void)!send(c->sock, &msg, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void vb_conn_bye(struct conn *c)
{
	say_byte(c, MSG_BYE);
}

void vb_conn_unable(struct conn *c)
{
	say_byte(c, MSG_UNABLE);
}

void vb_conn_broken(struct conn *c)
{
	say_byte(c, MSG_BROKEN);
}

/* Room for a message, one byte more than the longest, and for what comes with it. */
struct letter {
	_Alignas(8) uint8_t bytes[sizeof(struct tell) + 1];
	struct foreign_room fds;
};

/* The result of one round of reading, besides the messages for the upper layer. */
struct haul {
	bool rang;    /* look at the ring */
	bool gone;    /* the peer has closed */
	bool rubbish; /* it said what nobody says */
};

/* The descriptor that came with a message, -1: none, or not all that were sent. */
static int descriptor_of(struct msghdr *m)
{
	int fd = -1, n = vb_foreign_take(m, &fd, 1);

	if (n > 1 || m->msg_flags & MSG_CTRUNC) {
		vb_foreign_close(fd);
		fd = -1;
	}
	return fd;
}

/* Acts on one message. */
static void open_letter(struct vb_adapter *a, struct conn *c, const struct letter *l, size_t len, int fd,
			struct haul *h)
{
	size_t head = offsetof(struct tell, msg);

	if (!len) {
		h->gone = true;
	} else if (h->rubbish) {
		/* Nothing that follows counts. */
	} else if (len == 1 && fd < 0 && l->bytes[0] == MSG_BELL) {
		h->rang = true;
	} else if (len == 1 && fd < 0 && l->bytes[0] == MSG_BYE) {
		c->bye = true;
	} else if (len == 1 && fd < 0 && l->bytes[0] == MSG_UNABLE) {
		c->bye = c->unable = true;
	} else if (len == 1 && fd < 0 && l->bytes[0] == MSG_BROKEN) {
		c->broken = true;
	} else if (len > head && len <= sizeof(struct tell) && l->bytes[0] == MSG_TELL) {
		/* It may stand where a bell found no room. */
		h->rang = true;
		if (a->ops->told)
			a->ops->told(&c->peer->pub, l->bytes[offsetof(struct tell, subject)], l->bytes + head,
				     len - head, fd);
	} else {
		h->rubbish = true;
	}
}

/* One round of reading; whether there may be more. */
static bool take_messages(struct vb_adapter *a, struct conn *c, struct haul *h)
{
	struct letter *in = (struct letter *)a->inbox;
	struct iovec iov[BATCH];
	struct mmsghdr m[BATCH];
	int n;

	_Static_assert(BATCH * sizeof(*in) <= sizeof(a->inbox), "letters have room");
	memset(m, 0, sizeof(m));
	for (int i = 0; i < BATCH; i++) {
		iov[i] = (struct iovec){in[i].bytes, sizeof(in[i].bytes)};
		m[i].msg_hdr.msg_iov = &iov[i];
		m[i].msg_hdr.msg_iovlen = 1;
		m[i].msg_hdr.msg_control = in[i].fds.bytes;
		m[i].msg_hdr.msg_controllen = sizeof(in[i].fds.bytes);
	}
	n = recvmmsg(c->sock, m, BATCH, MSG_DONTWAIT | MSG_CMSG_CLOEXEC, NULL);
	if (n < 0) {
		/* The reset is told once, before what still can be read. */
		if (errno == ECONNRESET || errno == EINTR) {
			h->gone |= errno == ECONNRESET;
			return true;
		}
		h->gone |= errno != EAGAIN;
		return false;
	}
	for (int i = 0; i < n; i++) {
		int fd = descriptor_of(&m[i].msg_hdr);

		open_letter(a, c, &in[i], m[i].msg_len, fd, h);
		vb_foreign_close(fd);
	}
	return n && m[n - 1].msg_len;
}

/* A connection that was UP is over. */
static void end(struct vb_adapter *a, struct conn *c, bool dead)
{
	static const char *const why[] = {
	    [VB_END_GOODBYE] = "it disconnected",
	    [VB_END_DIED] = "its process has ended",
	    [VB_END_UNCLEAR] = "it disconnected without a message",
	    [VB_END_CLOSED] = "its process is alive but closed the descriptors of its device",
	    [VB_END_REPLACED] = "its process executed another program",
	    [VB_END_BROKEN] = "this process sent it a malformed message",
	};
	enum vb_peer_end how = c->bye	   ? VB_END_GOODBYE
			       : c->broken ? VB_END_BROKEN
			       : dead	   ? VB_END_DIED
					   : vb_conn_end(a, c);

	if (how == VB_END_CLOSED) /* it may not know, see own.c */
		vb_number_poke(c->peer->pub.number);
	vb_peer_fall(c->peer, how,
		     c->unable ? "it has no address space for this process's segment" : why[how]);
}

/* An UP connection has something to say, or `dead`: its process is known to be gone. */
bool vb_conn_read(struct vb_adapter *a, struct conn *c, bool dead)
{
	struct haul h = {.gone = dead};

	vb_mutex_assert_held(&a->control);
	if (!vb_conn_is_ours(a, c))
		return false;
	/* One round, and the epoll set tells whether there is more; but a peer that is gone is read to its
	 * end, since the goodbye is the last thing that it said. */
	for (uint32_t read = 0; read < MAX_LEFT; read += BATCH) {
		if (!take_messages(a, c, &h) || !h.gone)
			break;
	}
	if (h.gone && c->unable)
		atomic_store(&c->peer->unable, c->peer->pub.pid);
	if (h.rubbish) {
		vb_conn_broken(c);
		vb_peer_fall(c->peer, VB_END_RUBBISH, "it sent a malformed message");
	} else if (h.gone) {
		end(a, c, dead);
	} else if (h.rang) {
		atomic_fetch_add_explicit(&a->events, 1, memory_order_relaxed);
		/* After the reading, before the look at the rings; pairs with is_rung(). */
		atomic_fetch_add_explicit(bells_of(a->seg->base, c->peer->pub.index), 1,
					  memory_order_seq_cst);
		if (a->ops->rang)
			a->ops->rang(&c->peer->pub);
	}
	return h.rang;
}

/* `ringing` is held. */
static bool is_up(struct peer *p)
{
	return atomic_load_explicit(&p->pub.state, memory_order_seq_cst) == VB_PEER_UP &&
	       !vb_adapter_lost(p->pub.adapter);
}

/* `ringing` is held.  A bell is a system call, so one more in front of it is no loss. */
static bool may_write(struct peer *p)
{
	struct vb_adapter *a = p->pub.adapter;

	if (!is_up(p))
		return false;
	if (vb_own_is(&p->own, p->pub.sock))
		return true;
	vb_adapter_lose(a);
	return false;
}

/* Whether the peer has a bell of ours that it has not heard: one bell wakes it for all packets.  No wake-up
 * is lost:
 *
 *     sender   store packet; load the word: asleep; load bells
 *     peer     read the bell; add 1 to bells; look at the rings
 *
 * All of it is sequentially consistent.  A sender that finds `bells` as before its bell loads it before the
 * peer adds, so the peer's look, which follows, sees the packet.  The bell that was sent stands in the socket
 * until then, and wakes whoever blocks there, also a thread that comes later.  `rung` is noted only when a
 * bell has been sent, with a value loaded before: what is noted too late by a thread that was held up is an
 * old value, and costs one bell more.  *bells: what was found. */
static bool is_rung(struct peer *p, uint32_t *bells)
{
	*bells = atomic_load_explicit(bells_of(p->pub.view, p->pub.view_index), memory_order_seq_cst);
	return atomic_load_explicit(&p->rung, memory_order_seq_cst) == (uint64_t)*bells + 1;
}

/* EAGAIN is no bell: messages stand in the socket, and the next packet tries again. */
static void ring(struct peer *p, uint32_t bells)
{
	uint8_t msg = MSG_BELL;

	/* no cancellation point, since locks are held */
	if (syscall(SYS_sendto, p->pub.sock, &msg, 1, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0) == 1)
		atomic_store_explicit(&p->rung, (uint64_t)bells + 1, memory_order_seq_cst);
}

/* Apart, so that no sender keeps registers for it. */
__attribute__((cold, noinline)) void vb_peer_ring(struct vb_peer *peer)
{
	struct peer *p = peer_of(peer);
	int err = errno;
	uint32_t bells;

	if (peer->index == 0) { /* oneself */
		if (peer->adapter->ops->rang)
			peer->adapter->ops->rang(peer);
		vb_engine_kick(peer->adapter);
		errno = err;
		return;
	}
	atomic_fetch_add_explicit(&p->ringing, 1,
				  memory_order_seq_cst); /* the socket stays until it is 0 again */
	if (is_up(p) && !is_rung(p, &bells) && may_write(p))
		ring(p, bells);
	atomic_fetch_sub_explicit(&p->ringing, 1, memory_order_release);
	errno = err;
}

bool vb_peer_is_over(struct vb_peer *peer)
{
	struct peer *p = peer_of(peer);
	struct pollfd fds[2] = {{.fd = -1, .events = POLLRDHUP}, {.fd = -1, .events = POLLIN}};
	bool over = false;

	atomic_fetch_add_explicit(&p->ringing, 1, memory_order_seq_cst); /* as in vb_peer_ring() */
	if (peer->index && may_write(p) && p->conn) {
		fds[0].fd = peer->sock;
		fds[1].fd = p->conn->pidfd;
		over = vb_poll(fds, 2, 0) > 0 &&
		       (fds[0].revents & (POLLHUP | POLLRDHUP) || fds[1].revents & POLLIN);
	}
	atomic_fetch_sub_explicit(&p->ringing, 1, memory_order_release);
	return over;
}

__attribute__((cold, noinline)) void vb_peer_leave(struct vb_peer *peer)
{
	const struct vb_adapter *a = peer->adapter;

	if (a->ops->left)
		a->ops->left(peer);
}

/* Half of the socket stays free for bells and the goodbye. */
static bool has_room(int sock)
{
	int size, queued;
	socklen_t len = sizeof(size);

	return !getsockopt(sock, SOL_SOCKET, SO_SNDBUF, &size, &len) && !ioctl(sock, SIOCOUTQ, &queued) &&
	       queued < size / 2;
}

static bool send_letter(int sock, uint8_t subject, const void *msg, size_t len, int fd)
{
	struct tell head = {.kind = MSG_TELL, .subject = subject};
	struct iovec iov[] = {{&head, offsetof(struct tell, msg)}, {(void *)(uintptr_t)msg, len}};
	_Alignas(struct cmsghdr) char ctl[CMSG_SPACE(sizeof(int))] = {0};
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};
	struct cmsghdr *cm = (struct cmsghdr *)ctl;

	if (fd >= 0) {
		m.msg_control = ctl;
		m.msg_controllen = sizeof(ctl);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cm), &fd, sizeof(int));
	}
	/* no cancellation point: locks are held */
	return syscall(SYS_sendmsg, sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
}

bool vb_peer_tell(struct vb_peer *peer, uint8_t subject, const void *msg, size_t len, int fd)
{
	struct peer *p = peer_of(peer);
	bool said = false;

	if (peer->index == 0 || !len || len > VB_TELL_MAX || vb_adapter_dead(peer->adapter))
		return false;
	atomic_fetch_add_explicit(&p->ringing, 1, memory_order_seq_cst); /* as in vb_peer_ring() */
	if (may_write(p))
		said = has_room(peer->sock) && send_letter(peer->sock, subject, msg, len, fd);
	atomic_fetch_sub_explicit(&p->ringing, 1, memory_order_release);
	return said;
}

/* At exit: the engine may be in the middle of making a link that its peer takes for made. */
void vb_conns_bye(struct vb_adapter *a)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	if (pthread_mutex_timedlock(&a->control, &until))
		return;
	vb_list_each (n, &a->conns)
		vb_conn_bye(vb_list_entry(n, struct conn, node));
	pthread_mutex_unlock(&a->control);
}
