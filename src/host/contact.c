/* Making contact: who connects to whom, who may, and what both must say.
 *
 * Exactly one link results for a pair of adapters, whoever began and through whichever of its numbers:
 * - When both connect at once, the connection of the one with the lower primary number wins.  It refuses the
 *   other's (REFUSE_TIE); the other drops its own when the winner's arrives, and adopts that.
 * - A number may turn out to belong to a peer with a link already, because contact was asked for through two
 * of its numbers before the first was UP.  The peer refuses (REFUSE_KNOWN), or its published list says so
 * before the second attempt; then the second link goes back to IDLE for good, remembers the first one
 * (peer.same), and link_up() has the upper layer move its QPs there with vb_link_current(). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "host/hello.h"
#include "host/private.h"

#define RETRY_AFTER  (10 * VB_MSEC)  /* between two attempts at a number */
#define BUSY_AFTER   VB_MSEC	     /* the peer's backlog is full */
#define ACCEPT_AFTER (100 * VB_MSEC) /* we have no descriptors */

enum { MAX_NEW = 128, ACCEPT_BATCH = 64, OVERFLOW_UID = 65534 };

/* Whether the user that reads as `uid` here is one, and not "anybody who has no name here". */
static bool uid_is_mapped(uint32_t uid)
{
	unsigned long in, out, n;
	bool mapped = false;
	FILE *f = fopen("/proc/self/uid_map", "re");

	if (!f)
		return false;
	while (!mapped && fscanf(f, "%lu %lu %lu", &in, &out, &n) == 3)
		mapped = uid >= in && uid - in < n;
	fclose(f);
	return mapped;
}

static uint32_t overflow_uid(void)
{
	uint32_t uid = OVERFLOW_UID;
	FILE *f = fopen("/proc/sys/kernel/overflowuid", "re");

	if (f) {
		if (fscanf(f, "%u", &uid) != 1)
			uid = OVERFLOW_UID;
		fclose(f);
	}
	return uid;
}

bool vb_contact_may(uint32_t uid)
{
	if (uid != geteuid())
		return false;
	return uid != overflow_uid() || uid_is_mapped(uid);
}

/* Asks the kernel who is at the other end. */
static bool check_peer(struct vb_adapter *a, int sock, uint32_t *pid)
{
	struct ucred cred = {0};
	socklen_t len = sizeof(cred);

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return false;
	*pid = (uint32_t)cred.pid;
	if (vb_contact_may(cred.uid))
		return true;
	if (!a->told_uid)
		vb_log(VB_LOG_WARN,
		       "a process of user %u (PID %d) is refused: only processes of the same user, here %u, "
		       "may reach "
		       "one another",
		       cred.uid, cred.pid, geteuid());
	a->told_uid = true;
	return false;
}

static void tell_fds(struct vb_adapter *a, int err)
{
	if (!a->told_fds)
		vb_log(VB_LOG_WARN,
		       "no connection to a peer can be made now: %s (a peer takes two descriptors and the "
		       "address "
		       "space of its segment)",
		       strerror(err));
	a->told_fds = true;
}

static struct hello hello_of(const struct vb_adapter *a, enum msg_kind kind)
{
	return (struct hello){
	    .kind = (uint8_t)kind,
	    .version = VB_SEG_VERSION,
	    .magic = VB_SEG_MAGIC,
	    .incarnation = a->seg->incarnation,
	    .number = a->head->number,
	    .pid = a->pid,
	};
}

static int say_hello(struct vb_adapter *a, struct conn *c, uint32_t index, uint32_t asked)
{
	struct hello h = hello_of(a, MSG_HELLO);
	struct iovec iov = {&h, sizeof(h)};
	_Alignas(struct cmsghdr) char ctl[CMSG_SPACE(sizeof(int))] = {0};
	struct msghdr m = {
	    .msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof(ctl)};
	struct cmsghdr *cm = CMSG_FIRSTHDR(&m);

	h.index = index;
	h.asked = asked;
	cm->cmsg_level = SOL_SOCKET;
	cm->cmsg_type = SCM_RIGHTS;
	cm->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cm), &a->seg->fd, sizeof(int));
	return sendmsg(c->sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(h) ? 0 : errno;
}

static void refuse(struct vb_adapter *a, struct conn *c, enum refuse_why why)
{
	struct hello h = hello_of(a, MSG_REFUSE);

	h.why = (uint8_t)why;
	(void)!send(c->sock, &h, sizeof(h), MSG_DONTWAIT | MSG_NOSIGNAL);
	vb_conn_close(a, c);
}

/* Our attempt came to nothing; the upper layer is told if trying again is its business. */
static void give_up(struct vb_adapter *a, struct conn *c, bool tell)
{
	struct peer *p = c->peer;

	vb_conn_close(a, c);
	p->conn = NULL;
	vb_peer_failed(p, tell);
}

/* p's number leads to the peer of q. */
static void alias(struct vb_adapter *a, struct peer *p, struct peer *q)
{
	vb_lock_take(&a->links_lock);
	p->same = q;
	a->by_number[p->link.number] = (uint16_t)(q->link.index + 1);
	vb_lock_give(&a->links_lock);
}

/* Contact with p failed; whether that is news. */
static bool in_trouble(struct peer *p, int err)
{
	return atomic_exchange(&p->trouble, err) != err;
}

/* Maps the peer's segment (or finds the mapping of its owner, if that is in this process) and makes the wire.
 */
static int join(struct vb_adapter *a, struct peer *p, struct conn *c, const struct hello *h, int fd)
{
	struct vb_segment *old = p->seg;
	const char *why = "no memory";
	const uint8_t *base;
	int err;

	p->seg = c->pid == a->pid ? vb_segment_find(h->incarnation) : NULL;
	err = p->seg ? 0 : vb_segment_map(&p->window, fd, h->incarnation, &why);
	base = p->seg ? p->seg->base : p->window;
	if (!err) {
		why = "no memory, or its keys begin where none can";
		err = vb_peer_attach(p, base, h->index);
	}
	if (old)
		vb_segment_put(old);
	if (err) {
		in_trouble(p, err);
		if (p->told != h->incarnation) /* each attempt ends like this for a while */
			vb_log(VB_LOG_WARN, "the segment of adapter %u (PID %u) is not taken: %s (%s)",
			       h->number, c->pid, why, strerror(err));
		p->told = h->incarnation;
		return err;
	}
	if (p->link.number != h->number)
		p->link.number = h->number;
	p->link.incarnation = h->incarnation;
	p->link.pid = c->pid ? c->pid : h->pid;
	p->link.sock = c->sock;
	p->conn = c;
	c->peer = p;
	return 0;
}

static void came_up(struct vb_adapter *a, struct peer *p, struct conn *c)
{
	if (c->state == CONN_NEW)
		a->nconns_new--;
	c->state = CONN_UP;
	vb_log(VB_LOG_DEBUG, "connected to adapter %u (PID %u), link %u", p->link.number, p->link.pid,
	       p->link.index);
	vb_peer_rise(p);
}

/* The link to whoever says hello, among those that we have: NULL and *refused 0: none. */
static struct peer *candidate(struct vb_adapter *a, const struct hello *h, int fd, enum refuse_why *refused)
{
	uint32_t numbers[VB_ADAPTER_NUMBERS + 1], n = vb_segment_numbers(fd, numbers);
	struct peer *found = NULL;

	*refused = 0;
	numbers[n] = h->number;
	for (uint32_t i = 0; i <= n; i++) {
		struct peer *p = NULL;
		uint32_t k;

		if (!n || !numbers[i] || numbers[i] >= VB_ADAPTERS ||
		    atomic_load_explicit(&a->slot_of[numbers[i]], memory_order_acquire)) {
			*refused = REFUSE_OTHER; /* no numbers, or ours: it is of another network namespace */
			return NULL;
		}
		vb_lock_take(&a->links_lock);
		k = a->by_number[numbers[i]];
		if (k)
			p = atomic_load_explicit(&a->peers[k - 1], memory_order_acquire);
		vb_lock_give(&a->links_lock);
		/* The number's last owner may be gone without our having read it yet. */
		if (p && atomic_load(&p->link.state) == VB_LINK_UP && p->conn)
			vb_conn_read(a, p->conn, false);
		if (!p || atomic_load(&p->link.state) == VB_LINK_DOWN)
			continue;
		if (atomic_load(&p->link.state) == VB_LINK_UP) {
			*refused = REFUSE_OTHER;
			return NULL;
		}
		/* A connection that is on its way decides. */
		if (!found || (p->conn && !found->conn))
			found = p;
	}
	return found;
}

/* Somebody connected to us and says hello. */
static bool greeted(struct vb_adapter *a, struct conn *c, const struct hello *h, int fd)
{
	enum refuse_why why = 0;
	struct peer *p;
	int err;

	if (vb_peer_by_incarnation(a, h->incarnation)) {
		refuse(a, c, REFUSE_KNOWN);
		return false;
	}
	p = candidate(a, h, fd, &why);
	if (p && p->conn && a->head->number < h->number)
		why = REFUSE_TIE;
	if (why) {
		refuse(a, c, why);
		return false;
	}
	if (p && p->conn) {
		vb_conn_close(a, p->conn);
		p->conn = NULL;
	}
	if (!p)
		p = vb_peer_make(a, h->number, false);
	if (!p) {
		refuse(a, c, REFUSE_OTHER);
		return false;
	}
	VB_FAULT_POINT("greeted, no answer yet");
	err = join(a, p, c, h, fd);
	if (err || say_hello(a, c, p->link.index, h->asked)) {
		refuse(a, c, err && err != EPROTO ? REFUSE_UNABLE : REFUSE_OTHER);
		vb_peer_failed(p, true);
		return false;
	}
	VB_FAULT_POINT("answered, link not up");
	came_up(a, p, c);
	return true;
}

/* The answer to our hello. */
static bool answered(struct vb_adapter *a, struct conn *c, const struct hello *h, int fd)
{
	struct peer *p = c->peer, *q = vb_peer_by_incarnation(a, h->incarnation);

	if (q) {
		alias(a, p, q);
		give_up(a, c, true);
		return false;
	}
	if (join(a, p, c, h, fd)) {
		vb_conn_unable(c->sock); /* for it the link is UP: this is no death */
		give_up(a, c, true);
		return false;
	}
	VB_FAULT_POINT("answer taken, link not up");
	came_up(a, p, c);
	return true;
}

static void refused(struct vb_adapter *a, struct conn *c, const struct hello *h)
{
	struct peer *p = c->peer, *q = vb_peer_by_incarnation(a, h->incarnation);

	if (q)
		alias(a, p, q);
	else if (h->why != REFUSE_TIE)
		in_trouble(p, ECONNREFUSED);
	if (h->why == REFUSE_UNABLE)
		atomic_store(&p->unable, c->pid ? c->pid : h->pid);
	/* In a tie the peer's own hello is on its way. */
	give_up(a, c, h->why != REFUSE_TIE || q);
}

/* One message and perhaps one descriptor; -1: nothing yet. */
static ssize_t receive(struct conn *c, struct hello *h, int *fd)
{
	struct iovec iov = {h, sizeof(*h)};
	_Alignas(struct cmsghdr) char ctl[CMSG_SPACE(sizeof(int))];
	/* CMSG_LEN: room for one descriptor, and not for the two that the padding would take. */
	struct msghdr m = {
	    .msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = CMSG_LEN(sizeof(int))};
	struct cmsghdr *cm;
	ssize_t n;

	*fd = -1;
	memset(h, 0, sizeof(*h));
	n = recvmsg(c->sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? -1 : 0;
	cm = CMSG_FIRSTHDR(&m);
	if (cm && cm->cmsg_level == SOL_SOCKET && cm->cmsg_type == SCM_RIGHTS &&
	    cm->cmsg_len >= CMSG_LEN(sizeof(int)))
		memcpy(fd, CMSG_DATA(cm), sizeof(int));
	return n;
}

static bool hello_is_sane(const struct hello *h, ssize_t n)
{
	return n == sizeof(*h) && h->magic == VB_SEG_MAGIC && h->version == VB_SEG_VERSION &&
	       h->incarnation && h->number && h->number < VB_ADAPTERS && h->index < VB_MAX_LINKS;
}

bool vb_contact_hello(struct vb_adapter *a, struct conn *c, bool dead)
{
	struct hello h;
	bool look = false;
	int fd;
	ssize_t n = receive(c, &h, &fd);
	bool sane = n > 0 && hello_is_sane(&h, n);

	if (n < 0 && !dead)
		return false;
	if (sane && h.kind == MSG_HELLO && fd >= 0) {
		look = c->state == CONN_NEW ? greeted(a, c, &h, fd) : answered(a, c, &h, fd);
	} else if (sane && h.kind == MSG_REFUSE && c->state == CONN_ASKED) {
		refused(a, c, &h);
	} else {
		if (sane && h.kind == MSG_HELLO) {
			tell_fds(a, EMFILE); /* the descriptor found no place */
			if (c->peer)
				in_trouble(c->peer, EMFILE);
		} else if (c->peer) {
			in_trouble(c->peer, ECONNREFUSED); /* closed, or no hello */
		}
		if (c->state == CONN_ASKED)
			give_up(a, c, true);
		else
			vb_conn_close(a, c);
	}
	if (fd >= 0)
		close(fd);
	return look;
}

/* A peer that connects and never speaks must not keep others out. */
static void make_room(struct vb_adapter *a)
{
	if (a->nconns_new < MAX_NEW)
		return;
	vb_list_each (n, &a->conns) {
		struct conn *c = vb_list_entry(n, struct conn, node);

		if (c->state == CONN_NEW) {
			vb_conn_close(a, c);
			return;
		}
	}
}

static void listen_all(struct vb_adapter *a, bool on)
{
	uint32_t n = atomic_load_explicit(&a->nnumbers, memory_order_acquire);

	for (uint32_t i = 0; i < n; i++) {
		struct epoll_event ev = {.events = on ? EPOLLIN : 0, .data.ptr = &a->numbers[i].src};

		epoll_ctl(a->ctl, EPOLL_CTL_MOD, a->numbers[i].sock, &ev);
	}
}

void vb_contact_accept(struct vb_adapter *a, struct number *nr)
{
	for (int i = 0; i < ACCEPT_BATCH; i++) {
		int fd = accept4(nr->sock, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), err;
		struct conn *c;
		uint32_t pid;

		if (fd < 0) {
			if (errno == ECONNABORTED || errno == EINTR)
				continue;
			if (errno == EAGAIN)
				return;
			/* No descriptors: they wait in the backlog, and we must not spin meanwhile. */
			tell_fds(a, errno);
			listen_all(a, false);
			a->accept_again = vb_now() + ACCEPT_AFTER;
			atomic_store(&a->contact_work, true);
			vb_engine_kick(a);
			return;
		}
		if (!check_peer(a, fd, &pid)) {
			close(fd);
			continue;
		}
		make_room(a);
		err = vb_conn_make(a, &c, fd, pid, CONN_NEW);
		if (err)
			tell_fds(a, err);
	}
}

/* Connects to p's number and says hello.  0, EAGAIN (later), or why it failed. */
static int reach(struct vb_adapter *a, struct peer *p)
{
	int err, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sockaddr_un sa;
	socklen_t len;
	struct conn *c;
	uint32_t pid;

	if (fd < 0)
		return errno;
	vb_number_address(&sa, &len, p->link.number);
	if (connect(fd, (struct sockaddr *)&sa, len)) {
		err = errno;
		goto close_fd;
	}
	if (!check_peer(a, fd, &pid)) {
		err = ECONNREFUSED;
		goto close_fd;
	}
	err = vb_conn_make(a, &c, fd, pid, CONN_ASKED);
	if (err)
		return err;
	c->peer = p;
	VB_FAULT_POINT("connected, no hello yet");
	err = say_hello(a, c, p->link.index, p->link.number);
	if (err) {
		vb_conn_close(a, c);
		return err == EAGAIN ? ECONNREFUSED : err;
	}
	p->conn = c;
	atomic_store_explicit(&p->asked, pid, memory_order_relaxed); /* vb_peer_rise(), vb_peer_failed() */
	VB_FAULT_POINT("hello said, no answer yet");
	return 0;
close_fd:
	close(fd);
	return err;
}

static void attempt(struct vb_adapter *a, struct peer *p, uint64_t now)
{
	struct peer *q;
	int err;

	vb_lock_take(&a->links_lock);
	q = vb_peer_publishing(a, p->link.number);
	vb_lock_give(&a->links_lock);
	if (q) {
		alias(a, p, q);
		vb_peer_failed(p, true);
		return;
	}
	err = reach(a, p);
	if (err == ESRCH || err == EPIPE || err == ECONNRESET)
		err = ECONNREFUSED; /* it ended in the middle of this */
	vb_lock_take(&a->links_lock);
	p->next_try = now + (err == EAGAIN ? BUSY_AFTER : RETRY_AFTER);
	p->want = err == EAGAIN;
	vb_lock_give(&a->links_lock);
	if (!err || err == EAGAIN)
		return;
	in_trouble(p, err);
	if (err != ECONNREFUSED)
		tell_fds(a, err);
	vb_peer_failed(p, true);
}

static void break_links(struct vb_adapter *a)
{
	for (uint32_t i = 1; i < vb_link_count(a); i++) {
		struct peer *p = vb_peer(vb_link_at(a, i));

		if (atomic_load(&p->broken) && atomic_load(&p->link.state) == VB_LINK_UP)
			vb_peer_fall(p, false, "it breaks the rules of the shared ring");
	}
}

/* What the engine has to begin by itself; returns when it wants to be called again. */
uint64_t vb_contact_run(struct vb_adapter *a, uint64_t now)
{
	uint64_t next = VB_NEVER;

	if (atomic_exchange(&a->breaks, false))
		break_links(a);
	atomic_store(&a->contact_work, false);
	if (a->accept_again && a->accept_again <= now) {
		a->accept_again = 0;
		listen_all(a, true);
	}
	if (a->accept_again)
		next = a->accept_again;
	for (uint32_t i = 1; i < vb_link_count(a); i++) {
		struct peer *p = vb_peer(vb_link_at(a, i));
		uint64_t at;
		bool want;

		vb_lock_take(&a->links_lock);
		want = p->want;
		at = p->next_try;
		vb_lock_give(&a->links_lock);
		if (want && at <= now) {
			attempt(a, p, now);
			vb_lock_take(&a->links_lock);
			want = p->want;
			at = p->next_try;
			vb_lock_give(&a->links_lock);
		}
		if (want && at < next)
			next = at;
	}
	vb_conns_bury(a);
	if (next != VB_NEVER)
		atomic_store(&a->contact_work, true);
	return next;
}
