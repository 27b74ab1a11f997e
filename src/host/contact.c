/* Making contact: who connects to whom, who may, and what both must say.
 *
 * Exactly one link results for a pair of adapters, whoever began and through whichever of its numbers:
 * - When both connect at once, the connection of the one with the lower primary number wins.  It refuses the
 *   other's (REFUSE_TIE); the other drops its own when the winner's arrives, and adopts that.
 * - A number may turn out to belong to a peer with a link already, because contact was asked for through two
 * of its numbers before the first was UP.  The peer refuses (REFUSE_KNOWN), or its published list says so
 * before the second attempt; then the second link goes back to IDLE for good, remembers the first one
 * (peer.same), and peer_up() has the upper layer move its QPs there with vb_peer_current(). */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "host/devices.h"
#include "host/hello.h"
#include "host/private.h"
#include "iba/reach.h"

#define RETRY_AFTER  (10 * VB_MSEC)  /* between two attempts at a number */
#define BUSY_AFTER   VB_MSEC	     /* the peer's backlog is full */
#define PASSES	     VB_SEC	     /* what passes by itself has passed: ETOOMANYREFS */
#define ACCEPT_AFTER (100 * VB_MSEC) /* we have no descriptors */
#define SEEK_AFTER   VB_SEC	     /* that nobody has a number is looked into once in this time */
#define SPEAK_WITHIN (5 * VB_SEC)    /* who connects says hello at once, unless it is stopped just then */

enum { MAX_NEW = 128, ACCEPT_BATCH = 64 };

static struct hello hello_of(const struct vb_adapter *a, enum msg_kind kind)
{
	return (struct hello){
	    .kind = (uint8_t)kind,
	    .version = VB_SEG_VERSION,
	    .magic = VB_SEG_MAGIC,
	    .incarnation = a->seg->incarnation,
	    .number = a->head->number,
	    .pid = a->pid,
	    .link = vb_devices_link(),
	};
}

static int say_hello(struct vb_adapter *a, struct conn *c, uint32_t index, uint32_t asked)
{
	struct hello h = hello_of(a, MSG_HELLO);
	int fds[HELLO_FDS] = {a->seg->fd, a->seg->hints_fd};

	/* Another file than ours would go to the peer. */
	if (!vb_own_is(&a->seg->own, fds[0]) || !vb_own_is(&a->seg->hints_own, fds[1])) {
		vb_adapter_lose(a);
		return EIO;
	}
	h.index = index;
	h.asked = asked;
	return vb_hello_send(c->sock, &h, fds);
}

/* The kernel counts the descriptors of a user that are on their way through sockets, and lets nobody send
 * more who may not have as many open (unix(7)).  They arrive in a moment, unless somebody does not read. */
static bool passes(const struct peer *p, uint64_t now)
{
	uint64_t began = atomic_load_explicit(&p->began, memory_order_relaxed);

	return !began || now < began + PASSES;
}

/* For the peer, which says it where its user looks. */
static struct denied denied(const struct vb_reach_trouble *t)
{
	return (struct denied){.err = (uint16_t)t->err, .call = (uint16_t)t->call};
}

/* `lack`: which call fails here, for REFUSE_DENIED only. */
static void refuse_for(struct vb_adapter *a, struct conn *c, enum refuse_why why,
		       const struct vb_reach_trouble *lack)
{
	struct hello h = hello_of(a, MSG_REFUSE);

	h.why = (uint8_t)why;
	if (why == REFUSE_DENIED)
		h.denied = denied(lack);
	(void)!send(c->sock, &h, sizeof(h), MSG_DONTWAIT | MSG_NOSIGNAL);
	vb_conn_close(a, c);
}

static void refuse(struct vb_adapter *a, struct conn *c, enum refuse_why why)
{
	refuse_for(a, c, why, NULL);
}

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
		h.denied = denied(&t->trouble);
	(void)!send(sock, &h, sizeof(h), MSG_DONTWAIT | MSG_NOSIGNAL);
	close(sock);
}

/* The engine is to call vb_contact_run() again. */
static void have_it_run(struct vb_adapter *a)
{
	atomic_store(&a->contact_work, true);
	vb_adapter_nudge(a);
}

/* Our attempt came to nothing; trying again is the upper layer's business. */
static void give_up(struct vb_adapter *a, struct conn *c)
{
	struct peer *p = c->peer;

	vb_conn_close(a, c);
	p->conn = NULL;
	vb_peer_failed(p, true);
}

/* p's number leads to the peer of q. */
static void alias(struct vb_adapter *a, struct peer *p, struct peer *q)
{
	vb_lock_take(&a->peers_lock);
	p->same = q;
	a->by_number[p->pub.number] = (uint16_t)(q->pub.index + 1);
	vb_lock_give(&a->peers_lock);
}

/* Contact with p failed. */
static void in_trouble(struct peer *p, struct vb_reach_facts t)
{
	vb_lock_take(&p->pub.adapter->peers_lock);
	p->trouble = t;
	vb_lock_give(&p->pub.adapter->peers_lock);
}

/* Maps the peer's segment and hints (or finds the mappings of their owner, if that is in this process) and
 * makes the wire. */
static int join(struct vb_adapter *a, struct peer *p, struct conn *c, const struct heard *in,
		struct vb_reach_facts *t)
{
	const struct hello *h = &in->h;
	struct vb_segment *old = p->seg;
	const char *why = "no memory";
	int err;

	p->seg = c->pid == a->pid ? vb_segment_find(h->incarnation) : NULL;
	*t = (struct vb_reach_facts){.reach = VB_REACH_UNKNOWN};
	err = p->seg ? 0 : vb_segment_map(&p->window, in->fds[0], h->incarnation, &why, t);
	if (!err && !p->seg)
		err = vb_hints_map(&p->hints, in->fds[1], &why, t);
	if (!err) {
		err = vb_peer_attach(p, p->seg ? p->seg->base : p->window, p->seg ? p->seg->hints : p->hints,
				     h->index, h->incarnation);
		why = err == EPROTO ? "its keys begin where none can" : "no memory";
		*t = err == EPROTO ? (struct vb_reach_facts){.reach = VB_REACH_STRANGER}
				   : vb_reach_trouble(err, VB_CALL_MMAP);
	}
	if (old)
		vb_segment_put(old);
	if (err) {
		if (t->reach == VB_REACH_STRANGER)
			t->process.pid = c->pid;
		in_trouble(p, *t);
		if (p->told != h->incarnation) /* each attempt ends like this for a while */
			vb_log(VB_LOG_WARN, "the segment of adapter %u (PID %u) is not taken: %s (%s)",
			       h->number, c->pid, why, strerror(err));
		p->told = h->incarnation;
		return err;
	}
	if (p->pub.number != h->number)
		p->pub.number = h->number;
	p->pub.incarnation = h->incarnation;
	p->pub.pid = c->pid ? c->pid : h->pid;
	p->pub.sock = c->sock;
	p->own = c->own;
	p->conn = c;
	c->peer = p;
	return 0;
}

static void came_up(struct vb_adapter *a, struct peer *p, struct conn *c)
{
	if (c->state == CONN_NEW)
		a->nconns_new--;
	c->state = CONN_UP;
	vb_log(VB_LOG_DEBUG, "connected to adapter %u (PID %u), link %u", p->pub.number, p->pub.pid,
	       p->pub.index);
	vb_peer_rise(p);
}

/* The link to whoever says hello, among those that we have: NULL and *refused 0: none. */
static struct peer *candidate(struct vb_adapter *a, const struct hello *h, int fd, enum refuse_why *refused,
			      struct vb_reach_facts *t)
{
	uint32_t numbers[VB_ADAPTER_NUMBERS + 1], n = vb_segment_numbers(fd, numbers, t);
	struct peer *found = NULL;

	*refused = n ? 0 : t->reach == VB_REACH_TROUBLE ? REFUSE_DENIED : REFUSE_OTHER;
	if (*refused)
		return NULL;
	numbers[n] = h->number;
	for (uint32_t i = 0; i <= n; i++) {
		struct peer *p = NULL;
		uint32_t k;

		if (!numbers[i] || numbers[i] >= VB_ADAPTERS ||
		    atomic_load_explicit(&a->slot_of[numbers[i]], memory_order_acquire)) {
			*refused = REFUSE_OTHER; /* a number is ours: it is of another network namespace */
			return NULL;
		}
		vb_lock_take(&a->peers_lock);
		k = a->by_number[numbers[i]];
		if (k)
			p = atomic_load_explicit(&a->peers[k - 1], memory_order_acquire);
		vb_lock_give(&a->peers_lock);
		/* The number's last owner may be gone without our having read it yet. */
		if (p && atomic_load(&p->pub.state) == VB_PEER_UP && p->conn)
			vb_conn_read(a, p->conn, false);
		if (!p || atomic_load(&p->pub.state) == VB_PEER_DOWN)
			continue;
		if (atomic_load(&p->pub.state) == VB_PEER_UP) {
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
static bool greeted(struct vb_adapter *a, struct conn *c, const struct heard *in)
{
	const struct hello *h = &in->h;
	enum refuse_why why = 0;
	struct vb_reach_facts t = {0};
	struct peer *p;
	int err;

	if (vb_peer_by_incarnation(a, h->incarnation)) {
		refuse(a, c, REFUSE_KNOWN);
		return false;
	}
	if (h->link != vb_devices_link()) {
		refuse(a, c, REFUSE_LINK);
		return false;
	}
	p = candidate(a, h, in->fds[0], &why, &t);
	if (p && p->conn && a->head->number < h->number)
		why = REFUSE_TIE;
	if (why) {
		if (why == REFUSE_DENIED)
			vb_contact_tell_lack(a, &t);
		refuse_for(a, c, why, &t.trouble);
		return false;
	}
	if (p && p->conn) {
		vb_conn_close(a, p->conn);
		p->conn = NULL;
	}
	if (!p)
		p = vb_peer_make(a, h->number, false);
	if (!p) {
		refuse(a, c, REFUSE_UNABLE);
		return false;
	}
	VB_FAULT_POINT("greeted, no answer yet");
	err = join(a, p, c, in, &t);
	if (!err)
		err = say_hello(a, c, p->pub.index, h->asked);
	if (err) {
		refuse(a, c,
		       err == EPROTO || err == EIO ? REFUSE_OTHER
		       : err == ETOOMANYREFS	   ? REFUSE_BUSY
						   : REFUSE_UNABLE);
		vb_peer_failed(p, true);
		return false;
	}
	VB_FAULT_POINT("answered, link not up");
	came_up(a, p, c);
	return true;
}

static struct vb_reach_facts other_link(const struct hello *h, uint32_t pid)
{
	return (struct vb_reach_facts){VB_REACH_LINK, .link = {pid, h->link}};
}

/* For who answered our hello the link is UP: that we do not take the answer is not to look like a death. */
static void decline(struct vb_adapter *a, struct conn *c)
{
	vb_conn_unable(c);
	give_up(a, c);
}

/* The answer to our hello. */
static bool answered(struct vb_adapter *a, struct conn *c, const struct heard *in)
{
	struct peer *p = c->peer, *q = vb_peer_by_incarnation(a, in->h.incarnation);
	bool other = in->h.link != vb_devices_link();
	struct vb_reach_facts t;

	if (q) {
		alias(a, p, q);
		give_up(a, c);
		return false;
	}
	if (other) /* it should have refused */
		in_trouble(p, other_link(&in->h, c->pid));
	if (other || join(a, p, c, in, &t)) {
		decline(a, c);
		return false;
	}
	VB_FAULT_POINT("answer taken, link not up");
	came_up(a, p, c);
	return true;
}

/* What a refusal says, for the sentence at this end. */
static struct vb_reach_facts meant(const struct hello *h, uint32_t pid)
{
	switch (h->why) {
	case REFUSE_UNABLE:
	case REFUSE_BUSY: /* for long */
		return (struct vb_reach_facts){VB_REACH_UNABLE, .process = {pid}};
	case REFUSE_LINK:
		return other_link(h, pid);
	case REFUSE_USER:
		return (struct vb_reach_facts){VB_REACH_NOT_ITS_OWN, .process = {pid}};
	case REFUSE_DENIED:
		return (struct vb_reach_facts){VB_REACH_DENIED,
					       .denied = {pid, h->denied.err, h->denied.call}};
	default:
		return (struct vb_reach_facts){VB_REACH_REFUSED, .process = {pid}};
	}
}

/* Contact is being made still: the peer's own hello is on its way, however long that takes, or the peer can
 * answer in a moment.  Should it not get to it, another attempt will tell. */
static void ask_again(struct vb_adapter *a, struct conn *c)
{
	struct peer *p = c->peer;

	vb_conn_close(a, c);
	p->conn = NULL;
	vb_lock_take(&a->peers_lock);
	p->want = true;
	p->next_try = vb_now() + RETRY_AFTER;
	vb_lock_give(&a->peers_lock);
	have_it_run(a);
}

static void refused(struct vb_adapter *a, struct conn *c, const struct hello *h)
{
	struct peer *p = c->peer, *q = vb_peer_by_incarnation(a, h->incarnation);

	if (!q && (h->why == REFUSE_TIE || (h->why == REFUSE_BUSY && passes(p, vb_now())))) {
		ask_again(a, c);
		return;
	}
	if (q)
		alias(a, p, q);
	else
		in_trouble(p, meant(h, c->pid ? c->pid : h->pid));
	give_up(a, c);
}

/* Of whatever version: what all of them have in common. */
static bool is_ours(const struct heard *in)
{
	return in->n >= (ssize_t)offsetof(struct hello, incarnation) && in->h.magic == VB_SEG_MAGIC &&
	       (in->h.kind == MSG_HELLO || in->h.kind == MSG_REFUSE);
}

static bool hello_is_sane(const struct hello *h, ssize_t n)
{
	return n == sizeof(*h) && h->incarnation && h->number && h->number < VB_ADAPTERS &&
	       h->index < VB_MAX_PEERS;
}

/* Whoever connected did not say a hello that can be answered. */
static void close_new(struct vb_adapter *a, struct conn *c, const struct heard *in)
{
	if (in->err) {
		struct vb_reach_facts lack = vb_reach_trouble(in->err, VB_CALL_RECVMSG);

		vb_contact_tell_lack(a, &lack);
		refuse_for(a, c, in->no_place ? REFUSE_UNABLE : REFUSE_DENIED, &lack.trouble);
		return;
	}
	if (is_ours(in) && in->h.version != VB_SEG_VERSION) {
		vb_contact_tell_version(a, c->pid, in->h.version);
		refuse(a, c, REFUSE_VERSION);
		return;
	}
	if (in->n > 0)
		vb_contact_tell_stranger(a, c->pid,
					 is_ours(in) && in->h.kind == MSG_HELLO &&
						 hello_is_sane(&in->h, in->n)
					     ? "sent its hello without its segment and hints"
					     : "did not say hello as Verbena does");
	if (is_ours(in))
		refuse(a, c, REFUSE_OTHER);
	else
		vb_conn_close(a, c);
}

/* We asked, and what came is no answer: which trouble that is. */
static struct vb_reach_facts no_answer(struct vb_adapter *a, const struct conn *c, const struct heard *in)
{
	struct vb_reach_facts t = {VB_REACH_STRANGER, .process = {c->pid}};

	if (in->err) {
		t = vb_reach_trouble(in->err, VB_CALL_RECVMSG);
		vb_contact_tell_lack(a, &t);
	} else if (in->n <= 0) {
		t.reach = VB_REACH_CLOSED;
	} else if (is_ours(in) && in->h.version != VB_SEG_VERSION) {
		t = (struct vb_reach_facts){VB_REACH_VERSION,
					    .version = {c->pid, in->h.version, VB_SEG_VERSION}};
		vb_contact_tell_version(a, c->pid, in->h.version);
	}
	return t;
}

bool vb_contact_hello(struct vb_adapter *a, struct conn *c, bool dead)
{
	struct heard in;
	bool look = false, same;

	vb_mutex_assert_held(&a->control);
	if (!vb_conn_is_ours(a, c))
		return false;
	vb_hello_receive(c->sock, &in);
	if (in.n < 0 && !dead)
		return false;
	same = is_ours(&in) && in.h.version == VB_SEG_VERSION;
	if (same && in.h.kind == MSG_HELLO && in.complete && hello_is_sane(&in.h, in.n)) {
		look = c->state == CONN_NEW ? greeted(a, c, &in) : answered(a, c, &in);
	} else if (same && in.h.kind == MSG_REFUSE && in.n == sizeof(in.h) && c->state == CONN_ASKED) {
		refused(a, c, &in.h);
	} else if (c->state == CONN_ASKED) {
		in_trouble(c->peer, no_answer(a, c, &in));
		(same && in.h.kind == MSG_HELLO ? decline : give_up)(a, c); /* a hello without descriptors */
	} else {
		close_new(a, c, &in);
	}
	vb_hello_done(&in);
	return look;
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
		if (c->since + SPEAK_WITHIN <= now)
			vb_conn_close(a, c);
		else if (c->since + SPEAK_WITHIN < next)
			next = c->since + SPEAK_WITHIN;
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
		have_it_run(a); /* close_silent() */
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
		have_it_run(a);
		return;
	}
	a->accept_again = vb_now(); /* there may be more, and no edge would tell of them */
	have_it_run(a);
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
	err = say_hello(a, c, p->pub.index, p->pub.number);
	/* Who hung up at once may have said why: that is read as any answer is. */
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
	close(fd);
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
		alias(a, p, q);
		vb_peer_failed(p, true);
		return;
	}
	err = reach(a, p, &t);
	if (err == ETOOMANYREFS && passes(p, now))
		err = EAGAIN;
	vb_lock_take(&a->peers_lock);
	p->next_try = now + (err == EAGAIN ? BUSY_AFTER : RETRY_AFTER);
	p->want = err == EAGAIN;
	vb_lock_give(&a->peers_lock);
	if (!err && is_about_others(before.reach)) {
		/* Somebody has our hello now: what was wrong is over, and he has all the time to answer. */
		in_trouble(p, (struct vb_reach_facts){0});
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
	in_trouble(p, t);
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
		vb_peer_fall(p, VB_END_RUBBISH, "it breaks the rules of the shared ring");
	}
}

/* What the engine has to begin by itself; returns when it wants to be called again. */
uint64_t vb_contact_run(struct vb_adapter *a, uint64_t now)
{
	uint64_t next = VB_NEVER;
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
	vb_peers_sweep(a);
	if (next != VB_NEVER)
		atomic_store(&a->contact_work, true);
	return next;
}
