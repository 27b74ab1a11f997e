/* One control connection: its descriptors, and the messages after the hello. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "host/hello.h"
#include "host/private.h"

enum {
	BATCH = 16,	    /* messages taken with one call */
	MAX_LEFT = 1 << 16, /* messages read from a peer that is gone */
};

static int watch(struct vb_adapter *a, int fd, struct source *s)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = s};

	return epoll_ctl(a->ctl, EPOLL_CTL_ADD, fd, &ev) ? errno : 0;
}

static void forget(struct vb_adapter *a, int fd)
{
	if (fd < 0)
		return;
	/* A forked child may hold the description, so that closing alone would leave it in the epoll set. */
	epoll_ctl(a->ctl, EPOLL_CTL_DEL, fd, NULL);
	close(fd);
}

/* Besides the hang-up: a child that the peer forked may keep its sockets open.  In another PID namespace the
 * peer has no PID here, and a kernel or sandbox may refuse; then the hang-up must do.  A lack of descriptors
 * or memory passes: contact is made another time. */
static int watch_process(struct vb_adapter *a, struct conn *c)
{
	int err;

	if (!c->pid || c->pid == (uint32_t)getpid())
		return 0;
	c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
	if (c->pidfd < 0)
		return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? errno : 0;
	err = watch(a, c->pidfd, &c->on_pid);
	if (err) {
		close(c->pidfd);
		c->pidfd = -1;
	}
	return err;
}

/* Takes over `sock` (also when it fails). */
int vb_conn_make(struct vb_adapter *a, struct conn **out, int sock, uint32_t pid, enum conn_state state)
{
	struct conn *c = calloc(1, sizeof(*c));
	int err;

	if (!c) {
		close(sock);
		return ENOMEM;
	}
	c->on_sock.kind = SRC_SOCK;
	c->on_pid.kind = SRC_PID;
	c->state = state;
	c->sock = sock;
	c->pid = pid;
	c->pidfd = -1;
	err = watch(a, sock, &c->on_sock);
	if (err)
		goto close_sock;
	err = watch_process(a, c);
	if (err)
		goto unwatch;
	vb_list_append(&a->conns, &c->node);
	if (state == CONN_NEW)
		a->nconns_new++;
	*out = c;
	return 0;
unwatch:
	epoll_ctl(a->ctl, EPOLL_CTL_DEL, sock, NULL);
close_sock:
	close(sock);
	free(c);
	return err;
}

/* The object goes at the end of the batch: an event that points to it may be in hand. */
void vb_conn_close(struct vb_adapter *a, struct conn *c)
{
	if (c->state == CONN_DEAD)
		return;
	if (c->state == CONN_NEW)
		a->nconns_new--;
	forget(a, c->sock);
	forget(a, c->pidfd);
	c->sock = c->pidfd = -1;
	c->state = CONN_DEAD;
	vb_list_unlink(&c->node);
	vb_list_append(&a->dead_conns, &c->node);
}

void vb_conn_bye(int sock)
{
	uint8_t msg = MSG_BYE;

	/* Best effort: a socket that is full of doorbells belongs to a peer that does not read. */
	(void)!send(sock, &msg, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void vb_conn_unable(int sock)
{
	uint8_t msg = MSG_UNABLE;

	(void)!send(sock, &msg, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* One round of reading.  Returns the number of messages, -1: no more; sets *gone when the peer has closed. */
static int take_messages(struct conn *c, bool *rang, bool *gone, bool *rubbish)
{
	uint8_t bytes[BATCH][2];
	struct iovec iov[BATCH];
	struct mmsghdr m[BATCH];
	int n;

	memset(m, 0, sizeof(m));
	for (int i = 0; i < BATCH; i++) {
		iov[i] = (struct iovec){bytes[i], sizeof(bytes[i])};
		m[i].msg_hdr.msg_iov = &iov[i];
		m[i].msg_hdr.msg_iovlen = 1;
	}
	n = recvmmsg(c->sock, m, BATCH, MSG_DONTWAIT, NULL);
	if (n < 0) {
		/* The reset is told once, before what still can be read. */
		if (errno == ECONNRESET || errno == EINTR) {
			*gone |= errno == ECONNRESET;
			return 0;
		}
		*gone |= errno != EAGAIN;
		return -1;
	}
	for (int i = 0; i < n; i++) {
		if (!m[i].msg_len) {
			*gone = true;
			return -1;
		}
		if (m[i].msg_len == 1 && bytes[i][0] == MSG_BELL)
			*rang = true;
		else if (m[i].msg_len == 1 && bytes[i][0] == MSG_BYE)
			c->bye = true;
		else if (m[i].msg_len == 1 && bytes[i][0] == MSG_UNABLE)
			c->bye = c->unable = true;
		else
			*rubbish = true;
	}
	return n;
}

/* An UP connection has something to say, or `dead`: its process is known to be gone. */
bool vb_conn_read(struct vb_adapter *a, struct conn *c, bool dead)
{
	bool rang = false, gone = dead, rubbish = false;
	int n;

	/* One round, and the epoll set tells whether there is more; but a peer that is gone is read to its
	 * end, since the goodbye is the last thing that it said. */
	for (uint32_t read = 0; read < MAX_LEFT; read += BATCH) {
		n = take_messages(c, &rang, &gone, &rubbish);
		if (n < 0 || !gone)
			break;
	}
	if (rubbish)
		vb_peer_fall(c->peer, false, "rubbish on its control socket");
	else if (gone)
		vb_peer_fall(c->peer, c->bye,
			     c->unable ? "it has no room for this process's segment"
			     : c->bye  ? "it said goodbye"
				       : "its process is gone");
	else if (rang)
		atomic_fetch_add_explicit(&a->events, 1, memory_order_relaxed);
	return rang;
}

void vb_link_ring(struct vb_link *l)
{
	struct peer *p = vb_peer(l);
	uint8_t msg = MSG_BELL;

	if (l->index == 0) { /* oneself */
		vb_engine_kick(l->adapter);
		return;
	}
	atomic_fetch_add_explicit(&p->ringing, 1,
				  memory_order_seq_cst); /* the socket stays until it is 0 again */
	if (atomic_load_explicit(&l->state, memory_order_seq_cst) == VB_LINK_UP)
		(void)!send(l->sock, &msg, 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* EAGAIN: rung already */
	atomic_fetch_sub_explicit(&p->ringing, 1, memory_order_release);
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
		vb_conn_bye(vb_list_entry(n, struct conn, node)->sock);
	pthread_mutex_unlock(&a->control);
}
