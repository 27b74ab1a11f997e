/* Descriptors that the program closed under the adapter: how that is noticed, and what becomes of the
 * adapter.
 *
 * What has an inode of its own is told by it (base/own.h).  The epoll set and the eventfds share theirs with
 * all others of their kind, and a daemon that closes everything makes such ones next.  The kernel's own
 * notion of identity tells them: an epoll set knows its members by file and number.  So the set is ours if
 * our listening socket, which has an inode, is a member of it, and an eventfd is ours if it is a member of
 * our set.  Such eventfds are members that ask for no events.
 *
 * A blocked poll() keeps the files that it waits for, whoever closes them: nobody could wake it.  So the
 * threads of the adapter that block for long poll the listening socket too.  As long as one of them does, its
 * name stands, and a connection to that name wakes them all: whoever finds the loss makes one
 * (vb_number_poke), in this process or in a peer that saw the connection end.  A poll() that is woken looks
 * its numbers up anew, and goes back to sleep if files of the program's that stand there have nothing to say;
 * so the listening socket has a high number, where a program opens nothing.
 *
 * What remains: a thread that has looked, and loses its descriptors to others before it blocks, within a
 * microsecond; a program that opens as many files as it takes to reach that high number; and a process in
 * which nothing happens after the loss, and which has no peer.  It learns of it with its next call. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "host/private.h"

/* Not a fault point (base/fault.h), since it takes nothing; and no cancellation point. */
static int ask(int set, int op, int fd)
{
	struct epoll_event none = {0};

	return (int)syscall(SYS_epoll_ctl, set, op, fd, &none);
}

/* What a listening socket is in the set for: edges, or nothing while nobody is to accept.  Whoever looks next
 * makes it what it is to be. */
static struct epoll_event listening(const struct vb_adapter *a, const struct number *n)
{
	return (struct epoll_event){.events = atomic_load(&a->accept_again) ? 0 : EPOLLIN | EPOLLET,
				    .data.ptr = (void *)&n->src};
}

/* Asks the set to make the member what it is.  That has no effect on a set of the program's, which does not
 * have it, nor any on ours but one more edge if somebody is to be accepted just now.  Where a sandbox forbids
 * to ask, it is as if nobody had looked. */
static bool has_member(const struct vb_adapter *a, const struct number *n)
{
	struct epoll_event ev = listening(a, n);

	if (!syscall(SYS_epoll_ctl, a->ctl, EPOLL_CTL_MOD, n->sock, &ev))
		return true;
	return errno != EBADF && errno != EINVAL && errno != ENOENT;
}

static bool listens(const struct vb_adapter *a)
{
	return vb_own_is(&a->numbers[0].own, a->numbers[0].sock);
}

/* Whose set this thread has looked at since it last blocked or came in: what it does in one go for an event
 * needs no second look. */
static __thread const struct vb_adapter *sure;

void vb_ctl_sure(const struct vb_adapter *a)
{
	sure = a;
}

bool vb_ctl_is_ours(const struct vb_adapter *a)
{
	int err = errno;
	bool is;

	if (sure == a && !vb_adapter_lost(a))
		return true;
	if (!atomic_load_explicit(&a->nnumbers, memory_order_acquire))
		return true; /* being opened */
	is = listens(a) && has_member(a, &a->numbers[0]);
	errno = err;
	return is;
}

int vb_ctl_add(struct vb_adapter *a, int fd, uint32_t events, struct source *s)
{
	struct epoll_event ev = {.events = events, .data.ptr = s};

	if (!vb_ctl_is_ours(a)) { /* never a pointer of ours into a set of the program's */
		vb_adapter_lose(a);
		return EIO;
	}
	return epoll_ctl(a->ctl, EPOLL_CTL_ADD, fd, &ev) ? errno : 0;
}

int vb_adapter_adopt(struct vb_adapter *a, int fd)
{
	int err = vb_ctl_add(a, fd, 0, NULL);

	return err == EPERM ? 0 : err; /* forbidden by a sandbox: then nobody can look either */
}

bool vb_adapter_owns(struct vb_adapter *a, int fd)
{
	int err = errno;
	bool owns;

	if (vb_ctl_is_ours(a)) {
		/* A sandbox forbids to ask; a file, of which no set can be made, is no eventfd. */
		owns = !ask(a->ctl, EPOLL_CTL_MOD, fd) || (errno == EPERM && vb_own_is(&a->shared_inode, fd));
	} else {
		vb_adapter_lose(a);
		owns = false; /* it may be, but all eventfds look alike: then it is left alone */
	}
	errno = err;
	return owns;
}

void vb_adapter_disown(struct vb_adapter *a, int fd)
{
	/* A forked child may hold the description, so that closing alone would leave it in the set. */
	if (vb_adapter_owns(a, fd)) {
		ask(a->ctl, EPOLL_CTL_DEL, fd);
		close(fd);
	}
}

void vb_adapter_rouse(struct vb_adapter *a)
{
	vb_number_poke(a->numbers[0].number);
}

bool vb_adapter_lost(const struct vb_adapter *a)
{
	return atomic_load_explicit(&a->lost, memory_order_acquire);
}

bool vb_adapter_whole(struct vb_adapter *a)
{
	/* Other descriptors, those of sockets and of the segment, are checked where they are used. */
	bool whole = !vb_adapter_lost(a) && vb_adapter_owns(a, a->kick);

	if (!whole)
		vb_adapter_lose(a);
	return whole;
}

void vb_lost_wake(struct vb_adapter *a)
{
	atomic_fetch_add_explicit(&a->lost_kicks, 1, memory_order_seq_cst);
	syscall(SYS_futex, &a->lost_kicks, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void vb_lost_block(struct vb_adapter *a, uint64_t for_ns)
{
	struct timespec ts = {(time_t)(for_ns / VB_SEC), (long)(for_ns % VB_SEC)};
	uint32_t seen = atomic_load_explicit(&a->lost_kicks, memory_order_seq_cst);

	/* Who wants to be heard from now on wakes it; who came before is seen here. */
	atomic_store_explicit(&a->dozing, true, memory_order_seq_cst);
	if (!atomic_load_explicit(&a->nudged, memory_order_seq_cst) &&
	    !atomic_load_explicit(&a->stop, memory_order_seq_cst))
		syscall(SYS_futex, &a->lost_kicks, FUTEX_WAIT_PRIVATE, seen, for_ns == VB_NEVER ? NULL : &ts,
			NULL, 0);
	atomic_store_explicit(&a->dozing, false, memory_order_relaxed);
}

void vb_adapter_lose(struct vb_adapter *a)
{
	int err = errno;

	if (vb_adapter_dead(a) || atomic_exchange(&a->lost, true))
		return;
	vb_log(
	    VB_LOG_ERROR,
	    "this process closed descriptors that belong to its open device (did it close all descriptors "
	    "from 3 up?): the device is lost, its queue pairs enter the error state, and their requests are "
	    "flushed. Open the device after closing descriptors, or close only those that the program "
	    "opened");
	vb_lost_wake(a);
	vb_number_poke(a->numbers[0].number);
	errno = err;
}

static void let_all_go(struct vb_adapter *a)
{
	uint32_t n = atomic_load_explicit(&a->nnumbers, memory_order_acquire);

	vb_mutex_assert_held(&a->control);
	for (uint32_t i = 0; i < n; i++) /* who asks for contact is refused; and whoever waits here wakes */
		if (vb_own_is(&a->numbers[i].own, a->numbers[i].sock))
			shutdown(a->numbers[i].sock, SHUT_RDWR);
	for (uint32_t i = 1; i < vb_peer_count(a); i++) {
		struct peer *p = peer_of(vb_peer_at(a, i));
		int state = atomic_load(&p->pub.state);

		if (state == VB_PEER_UP)
			vb_peer_fall(p, VB_END_LOST, "this process closed descriptors of the device");
		else if (state == VB_PEER_CONTACTING)
			vb_peer_failed(p, false);
	}
	while (a->conns.next != &a->conns)
		vb_conn_close(a, vb_list_entry(a->conns.next, struct conn, node));
}

void vb_lost_settle(struct vb_adapter *a)
{
	int cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE,
			       &cancel); /* a poller may be here, and close() is a point */
	pthread_mutex_lock(&a->control);
	if (!a->settled) {
		a->settled = true;
		let_all_go(a);
		if (a->ops->lost)
			a->ops->lost(a);
		atomic_store_explicit(a->presence.awake, VB_ASLEEP, memory_order_seq_cst);
	}
	pthread_mutex_unlock(&a->control);
	pthread_setcancelstate(cancel, NULL);
}
