/* How a connection to another process begins: attempts at the numbers of others, those that others make, and
 * what the engine has to begin by itself.  What is said over it is contact.c's. */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fault.h"
#include "host/hello.h"
#include "host/private.h"
#include "host/roce.h"
#include "iba/reach.h"

#define BUSY_AFTER   VB_MSEC	     /* the peer's backlog is full */
#define ACCEPT_AFTER (100 * VB_MSEC) /* we have no descriptors */
#define SEEK_AFTER   VB_SEC	     /* that nobody has a number is looked into once in this time */
#define SPEAK_WITHIN (5 * VB_SEC)    /* who connects says hello at once, unless it is stopped just then */

enum { MAX_NEW = 128, ACCEPT_BATCH = 64 };

/* Whether what an errno says may be over the next time. */
static bool is_lack(int err)
{
	return err == EMFILE || err == ENFILE || err == ENOMEM;
}

/* Says why to one who may not know us: nothing but that. */
static void send_away(struct vb_adapter *a, int sock, const struct vb_reach_facts *t)
{
	struct hello h = {.kind = MSG_REFUSE,
			  .why = t->reach != VB_REACH_TROUBLE ? REFUSE_USER
				 : is_lack(t->trouble.err)    ? REFUSE_UNABLE
							      : REFUSE_DENIED,
			  .version = VB_SEG_VERSION,
			  .magic = VB_SEG_MAGIC,
			  .pid = a->pid};

	if (h.why == REFUSE_DENIED)
		h.denied = vb_hello_denied(&t->trouble);
	(void)!send(sock, &h, sizeof(h), MSG_DONTWAIT | MSG_NOSIGNAL);
	vb_foreign_hang_up(sock);
}

/* A process that connects and never speaks is not kept for ever; returns when the next one has to go. */
static uint64_t close_silent(struct vb_adapter *a, uint64_t now)
{
	uint64_t next = VB_NEVER;

	if (!a->nconns_new)
		return next;
	vb_list_each_safe (n, tmp, &a->conns) {
		struct conn *c = vb_list_entry(n, struct conn, node);

		if (c->state != CONN_NEW)
			continue;
		if (c->since + SPEAK_WITHIN <= now) { /* it may have spoken, and this engine not have run */
			if (vb_contact_hello(a, c, false))
				vb_adapter_nudge(a);
			if (c->state == CONN_NEW)
				vb_conn_close(a, c);
		} else if (c->since + SPEAK_WITHIN < next) {
			next = c->since + SPEAK_WITHIN;
		}
		if (c->state != CONN_NEW) /* what it said may have ended the next one, too */
			tmp = a->conns.next;
	}
	return next;
}

/* A process that connects and does not speak must not keep others out meanwhile. */
static void make_room(struct vb_adapter *a)
{
	if (a->nconns_new < MAX_NEW)
		return;
	vb_list_each (n, &a->conns) {
		struct conn *c = vb_list_entry(n, struct conn, node);

		if (c->state == CONN_NEW) {
			uint32_t before = a->nconns_new;

			vb_contact_hello(a, c, false); /* it may have spoken */
			if (a->nconns_new == before)
				vb_conn_close(a, c);
			return;
		}
	}
}

static void accepted(struct vb_adapter *a, int fd)
{
	struct vb_reach_facts t;
	struct conn *c;
	uint32_t pid;
	int err = vb_contact_may(fd, &pid, &t);

	if (!err) {
		make_room(a);
		err = vb_conn_make(a, &c, fd, pid, CONN_NEW, &t);
	}
	if (!err) {
		vb_contact_wanted(a); /* close_silent() */
		return;
	}
	if (t.reach == VB_REACH_TROUBLE)
		vb_contact_tell_lack(a, &t);
	else
		vb_contact_tell_away(a, &t, pid);
	send_away(a, fd, &t);
}

void vb_contact_accept(struct vb_adapter *a, struct number *nr)
{
	vb_mutex_assert_held(&a->control);
	if (!vb_own_is(&nr->own, nr->sock)) {
		vb_adapter_lose(a);
		return;
	}
	if (a->accept_again > vb_now())
		return;
	for (int i = 0; i < ACCEPT_BATCH; i++) {
		int fd = accept4(nr->sock, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		struct vb_reach_facts t;

		if (fd >= 0) {
			accepted(a, fd);
			continue;
		}
		if (errno == ECONNABORTED || errno == EINTR)
			continue;
		if (errno == EAGAIN)
			return;
		/* No descriptors: they wait in the backlog. */
		t = vb_reach_trouble(errno, VB_CALL_ACCEPT);
		vb_contact_tell_lack(a, &t);
		a->accept_again = vb_now() + ACCEPT_AFTER;
		vb_contact_wanted(a);
		return;
	}
	a->accept_again = vb_now(); /* there may be more, and no edge would tell of them */
	vb_contact_wanted(a);
}

static int failed(struct vb_reach_facts *t, int err, enum vb_reach_call call)
{
	*t = vb_reach_trouble(err, call);
	return err;
}

/* Connects to p's number and says hello.  0, EAGAIN (later), or why it failed, which *t says too. */
static int reach(struct vb_adapter *a, struct peer *p, struct vb_reach_facts *t)
{
	int err, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sockaddr_un sa;
	socklen_t len;
	struct conn *c;
	uint32_t pid;

	if (fd < 0)
		return failed(t, errno, VB_CALL_SOCKET);
	vb_number_address(&sa, &len, p->pub.number);
	if (connect(fd, (struct sockaddr *)&sa, len)) {
		err = failed(t, errno, VB_CALL_CONNECT);
		if (err == ECONNREFUSED || err == ECONNRESET)
			*t = (struct vb_reach_facts){.reach = VB_REACH_NOBODY};
		goto close_fd;
	}
	err = vb_contact_may(fd, &pid, t);
	if (err)
		goto close_fd;
	err = vb_conn_make(a, &c, fd, pid, CONN_ASKED, t);
	if (err)
		goto close_fd;
	c->peer = p;
	VB_FAULT_POINT("connected, no hello yet");
	err = vb_contact_say_hello(a, c, p->pub.index, p->pub.number);
	/* A process that disconnects at once may have sent a reason, which is read as any answer is. */
	if (err && err != EPIPE && err != ECONNRESET) {
		vb_conn_close(a, c);
		failed(t, err, VB_CALL_SENDMSG);
		return err == EAGAIN ? ECONNREFUSED : err;
	}
	p->conn = c;
	atomic_store_explicit(&p->asked, pid, memory_order_relaxed); /* vb_peer_rise(), vb_peer_failed() */
	VB_FAULT_POINT("hello said, no answer yet");
	return 0;
close_fd:
	vb_foreign_hang_up(fd);
	return err;
}

/* Trouble that is over as soon as a process of this user has been connected to. */
static bool is_about_others(uint32_t reach)
{
	return reach == VB_REACH_NOBODY || reach == VB_REACH_ELSEWHERE || reach == VB_REACH_DEAF ||
	       reach == VB_REACH_USER || reach == VB_REACH_UNMAPPED;
}

static void attempt(struct vb_adapter *a, struct peer *p, uint64_t now)
{
	struct vb_reach_facts t, before;
	struct peer *q;
	int err;

	vb_lock_take(&a->peers_lock);
	q = vb_peer_publishing(a, p->pub.number);
	before = p->trouble;
	vb_lock_give(&a->peers_lock);
	if (q) {
		vb_contact_alias(a, p, q);
		vb_peer_failed(p, true);
		return;
	}
	err = reach(a, p, &t);
	if (err == ETOOMANYREFS && vb_contact_passes(p, now))
		err = EAGAIN;
	vb_lock_take(&a->peers_lock);
	p->next_try = now + (err == EAGAIN ? BUSY_AFTER : VB_CONTACT_AGAIN);
	p->want = err == EAGAIN;
	vb_lock_give(&a->peers_lock);
	if (!err && is_about_others(before.reach)) {
		/* Somebody has our hello now: what was wrong is over, and he has all the time to answer. */
		vb_contact_trouble(p, (struct vb_reach_facts){0});
		atomic_store_explicit(&p->began, now, memory_order_relaxed);
	}
	if (!err || err == EAGAIN)
		return;
	if (t.reach == VB_REACH_NOBODY && (!p->sought || now - p->sought > SEEK_AFTER)) {
		if (vb_number_seek(a, p->pub.number, &t))
			p->sought = now;
	} else if (t.reach == VB_REACH_NOBODY &&
		   (before.reach == VB_REACH_ELSEWHERE || before.reach == VB_REACH_DEAF)) {
		t = before;
	}
	vb_contact_trouble(p, t);
	if (t.reach == VB_REACH_TROUBLE)
		vb_contact_tell_lack(a, &t);
	vb_peer_failed(p, true);
}

static void break_links(struct vb_adapter *a)
{
	for (uint32_t i = 1; i < vb_peer_count(a); i++) {
		struct peer *p = peer_of(vb_peer_at(a, i));

		if (!atomic_load(&p->broken) || atomic_load(&p->pub.state) != VB_PEER_UP)
			continue;
		if (p->conn)
			vb_conn_broken(p->conn);
		vb_peer_fall(p, VB_END_RUBBISH, "it wrote an invalid packet to its ring");
	}
}

/* The work that the engine starts by itself; returns when to be called again. */
uint64_t vb_contact_run(struct vb_adapter *a, uint64_t now)
{
	uint64_t next = VB_NEVER, swept;
	bool more;

	vb_mutex_assert_held(&a->control);
	if (atomic_exchange(&a->breaks, false))
		break_links(a);
	atomic_store(&a->contact_work, false);
	more = atomic_exchange(&a->members_wait, false) && vb_members_accept(a);
	if (a->accept_again && a->accept_again <= now) {
		uint32_t n = atomic_load_explicit(&a->nnumbers, memory_order_acquire);

		a->accept_again = 0;
		for (uint32_t i = 0; i < n && !vb_adapter_lost(a); i++)
			vb_contact_accept(a, &a->numbers[i]);
	}
	next = close_silent(a, now);
	if (a->accept_again && a->accept_again < next)
		next = a->accept_again;
	for (uint32_t i = 1; i < vb_peer_count(a); i++) {
		struct peer *p = peer_of(vb_peer_at(a, i));
		uint64_t at;
		bool want;

		vb_lock_take(&a->peers_lock);
		want = p->want;
		at = p->next_try;
		vb_lock_give(&a->peers_lock);
		if (want && at <= now) {
			attempt(a, p, now);
			vb_lock_take(&a->peers_lock);
			want = p->want;
			at = p->next_try;
			vb_lock_give(&a->peers_lock);
		}
		if (want && at < next)
			next = at;
	}
	if (more) {
		atomic_store(&a->members_wait, true);
		next = now;
	}
	vb_conns_bury(a);
	swept = vb_peers_sweep(a, now);
	if (swept < next)
		next = swept;
	if (next != VB_NEVER)
		atomic_store(&a->contact_work, true);
	return next;
}

/* A socket shows who listened at it.  A program that opens the device and then changes its user would be
 * taken for the one that it was, by processes of the user that it now is. */
void vb_contact_user(struct vb_adapter *a)
{
	uint32_t uid = geteuid(), n;

	if (uid == a->listens_as)
		return;
	pthread_mutex_lock(&a->control);
	a->listens_as = uid;
	n = atomic_load_explicit(&a->nnumbers, memory_order_acquire);
	for (uint32_t i = 0; i < n; i++)
		if (vb_own_is(&a->numbers[i].own, a->numbers[i].sock))
			(void)!listen(a->numbers[i].sock, VB_BACKLOG); /* again: it shows who we are now */
	vb_members_listen(a);
	if (a->roce)
		vb_roce_listen(a->roce);
	pthread_mutex_unlock(&a->control);
}
