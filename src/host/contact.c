/* Making contact: what both must say over a connection, and which of several links counts.  How a connection
 * begins is connect.c's.
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

#define PASSES (5 * VB_SEC) /* what passes by itself has passed, in a crowd too: ETOOMANYREFS */

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

int vb_contact_say_hello(struct vb_adapter *a, struct conn *c, uint32_t index, uint32_t asked)
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

bool vb_contact_passes(const struct peer *p, uint64_t now)
{
	uint64_t began = atomic_load_explicit(&p->began, memory_order_relaxed);

	return !began || now < began + PASSES;
}

/* `lack`: which call fails here, for REFUSE_DENIED only. */
static void refuse_for(struct vb_adapter *a, struct conn *c, enum refuse_why why,
		       const struct vb_reach_trouble *lack)
{
	struct hello h = hello_of(a, MSG_REFUSE);

	h.why = (uint8_t)why;
	if (why == REFUSE_DENIED)
		h.denied = vb_hello_denied(lack);
	(void)!send(c->sock, &h, sizeof(h), MSG_DONTWAIT | MSG_NOSIGNAL);
	vb_conn_close(a, c);
}

static void refuse(struct vb_adapter *a, struct conn *c, enum refuse_why why)
{
	refuse_for(a, c, why, NULL);
}

void vb_contact_wanted(struct vb_adapter *a)
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

void vb_contact_alias(struct vb_adapter *a, struct peer *p, struct peer *q)
{
	vb_lock_take(&a->peers_lock);
	p->same = q;
	a->by_number[p->pub.number] = (uint16_t)(q->pub.index + 1);
	vb_lock_give(&a->peers_lock);
}

void vb_contact_trouble(struct peer *p, struct vb_reach_facts t)
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
	if (!p->seg)
		vb_peer_take_window(p);
	*t = (struct vb_reach_facts){.reach = VB_REACH_UNKNOWN};
	err = p->seg ? 0 : vb_segment_map(&p->window, in->fds[0], h->incarnation, &why, t);
	if (!err && !p->seg)
		err = vb_hints_map(&p->hints, in->fds[1], &why, t);
	if (!err) {
		err = vb_peer_attach(p, p->seg ? p->seg->base : p->window, p->seg ? p->seg->hints : p->hints,
				     h->index, h->incarnation);
		why = err == EPROTO ? "its first key has an invalid index" : "no memory";
		*t = err == EPROTO ? (struct vb_reach_facts){.reach = VB_REACH_STRANGER}
				   : vb_reach_trouble(err, VB_CALL_MMAP);
	}
	if (old)
		vb_segment_put(old);
	if (err) {
		vb_peer_unmap(p);
		if (t->reach == VB_REACH_STRANGER)
			t->process.pid = c->pid;
		vb_contact_trouble(p, *t);
		if (p->told != h->incarnation) /* each attempt ends like this for a while */
			vb_log(VB_LOG_WARN,
			       "the shared segment of adapter %u (PID %u) is not mapped: %s (%s)", h->number,
			       c->pid, why, strerror(err));
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
		if (p && atomic_load(&p->pub.state) == VB_PEER_UP && p->conn &&
		    vb_conn_read(a, p->conn, false))
			vb_engine_kick(a); /* the bell was read: somebody must look */
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
		err = vb_contact_say_hello(a, c, p->pub.index, h->asked);
	if (err) {
		vb_peer_unmap(p);
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
		vb_contact_alias(a, p, q);
		give_up(a, c);
		return false;
	}
	if (other) /* it should have refused */
		vb_contact_trouble(p, other_link(&in->h, c->pid));
	if (other || join(a, p, c, in, &t)) {
		decline(a, c);
		return false;
	}
	VB_FAULT_POINT("answer taken, link not up");
	came_up(a, p, c);
	return true;
}

/* The reason in a refusal, for the log of this end. */
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
	p->next_try = vb_now() + VB_CONTACT_AGAIN;
	vb_lock_give(&a->peers_lock);
	vb_contact_wanted(a);
}

static void refused(struct vb_adapter *a, struct conn *c, const struct hello *h)
{
	struct peer *p = c->peer, *q = vb_peer_by_incarnation(a, h->incarnation);

	if (!q && (h->why == REFUSE_TIE || (h->why == REFUSE_BUSY && vb_contact_passes(p, vb_now())))) {
		ask_again(a, c);
		return;
	}
	if (q)
		vb_contact_alias(a, p, q);
	else
		vb_contact_trouble(p, meant(h, c->pid ? c->pid : h->pid));
	give_up(a, c);
}

/* Checks the part that hellos of all versions have in common. */
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

/* A process connected, but did not send a hello that can be answered. */
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
					     ? "sent a first message without its two descriptors"
					     : "does not follow Verbena's protocol");
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
		vb_contact_trouble(c->peer, no_answer(a, c, &in));
		(same && in.h.kind == MSG_HELLO ? decline : give_up)(a, c); /* a hello without descriptors */
	} else {
		close_new(a, c, &in);
	}
	vb_hello_done(&in);
	return look;
}
