/* Descriptors that the program closed under the adapter: how that is noticed.  lost.c has what follows.
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
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

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

bool vb_adapter_dead(const struct vb_adapter *a)
{
	return atomic_load_explicit(&a->dead, memory_order_relaxed);
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
