/* Direct placement, composed; see direct.h.  The protocol's part is transport/place.c, the checks and means
 * are mem/peer_mem.c.
 *
 * A QP gives its peer leave (vb_shown_qp.may) only once its link is UP here, that is once this process reads
 * the peer's announcements: whoever then retracts something sees every user.
 *
 * An error that the protocol finds takes the leave back at once, but does not wait: whoever found it may be
 * the engine, which a stopped peer must not hold.  An application that asks (modify, destroy, deregister)
 * waits.  Where a link ends the engine waits as well, for a second at most (fade()): then the peer's
 * announcements are unmapped, and nobody could. */
#include "hca/direct.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "check/check.h"
#include "iba/out.h"
#include "mem/peer_mem.h"
#include "obj/comp_cntr.h"
#include "obj/context.h"
#include "hca/hca.h"
#include "hca/peers.h"
#include "hca/send.h"

#define FADES_WITHIN VB_SEC /* an access that is begun ends, unless its process is stopped */

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif

static bool direct_on, ptrace_on, yama;
static _Atomic int asked; /* Yama, by this process: a forked child asks again */
static pthread_once_t settings_once = PTHREAD_ONCE_INIT;

static bool is_off(const char *name)
{
	const char *s = secure_getenv(name);

	if (!s || !*s || !strcmp(s, "on"))
		return false;
	if (strcmp(s, "off"))
		vb_log_complain("%s=%s is not on or off; on is used", name, s);
	return !strcmp(s, "off");
}

static bool yama_restricts(void)
{
	int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
	char scope = '0';

	if (fd < 0)
		return false; /* no Yama, or nothing is known: the kernel will say */
	if (read(fd, &scope, 1) != 1)
		scope = '0';
	close(fd);
	return scope != '0';
}

static void read_settings(void)
{
	direct_on = !is_off("VERBENA_DIRECT");
	ptrace_on = !is_off("VERBENA_PTRACE");
	yama = yama_restricts();
}

/* SENDs alone are no reason to ask Yama: that lets debuggers in, too. */
static bool lets_in(void)
{
	return !yama || atomic_load(&asked) == (int)getpid();
}

/* Whether the kernel lets peers read this process's memory: then they may map what is lent, for reading. */
static bool may_be_read(void)
{
	return lets_in() && prctl(PR_GET_DUMPABLE) == 1;
}

static bool wanted(void)
{
	pthread_once(&settings_once, read_settings);
	return direct_on;
}

/* The directory leads from a number to this peer; what it was before at this index is forgotten. */
static void enter(struct vb_peer *peer, struct vb_peer_mem *f)
{
	struct vb_hca *h = vb_hca(peer->adapter);

	for (uint32_t i = 0; i < VB_ADAPTERS; i++)
		if (atomic_load_explicit(&h->peer_mems[i], memory_order_relaxed) == f)
			atomic_store_explicit(&h->peer_mems[i], NULL, memory_order_relaxed);
	atomic_store_explicit(&h->peer_mems[peer->number], f, memory_order_release); /* pairs with find() */
}

static const struct vb_key_marks *marks_of(struct vb_peer_mem *f)
{
	const struct vb_key_marks *marks;

	vb_lock_take(&f->lock); /* see vb_direct_peer_up() */
	marks = f->marks;
	vb_lock_give(&f->lock);
	return marks;
}

/* Under another of its numbers, which tagged keys may carry. */
static struct vb_peer_mem *find_slowly(struct vb_adapter *a, uint32_t number)
{
	struct vb_peer *peer;

	for (uint32_t i = 0; (peer = vb_hca_next_peer(a, &i));) {
		struct vb_peer_mem *f = atomic_load(&peer->mem);
		bool there = f && atomic_load(&f->there); /* first: a former peer's tables may be unmapped */
		const struct vb_key_marks *marks = there ? marks_of(f) : NULL;

		for (uint32_t k = 0; there && k < VB_ADAPTER_NUMBERS; k++) {
			uint32_t one = atomic_load_explicit(&marks->numbers[k], memory_order_acquire);

			if (one == number)
				return f;
			if (!one)
				break;
		}
	}
	return NULL;
}

static struct vb_peer_mem *find(void *owner, uint32_t number)
{
	struct vb_peer_mem *f =
	    atomic_load_explicit(&vb_hca(owner)->peer_mems[number % VB_ADAPTERS], memory_order_acquire);
	struct vb_peer_mem *other = f && atomic_load(&f->there) ? NULL : find_slowly(owner, number);

	return other ? other : f; /* one that has gone tells at least whose it was */
}

static uint32_t number_for_keys(void *owner, uint32_t k)
{
	while (k >= vb_adapter_number_count(owner))
		if (vb_adapter_number_add(owner))
			return 0;
	return vb_adapter_number_at(owner, k);
}

void vb_direct_peer_up(struct vb_peer *peer)
{
	struct vb_peer_mem *f = atomic_load(&peer->mem);
	struct vb_peer_tables at;

	wanted(); /* reads the settings while no queue pair's lock is held */
	/* Also where direct placement is off: keys of shared domains lead to the memory of peers. */
	if (!f)
		f = calloc(1, sizeof(*f)); /* vb_direct_peer_free() */
	if (!f) {
		vb_log(VB_LOG_WARN, "no memory for direct access to process %u: packets carry all data",
		       peer->pid);
		return;
	}
	vb_peer_tables(peer, &at);
	vb_lock_take(&f->lock); /* threads may still look at those of a former peer; see wait_for_peers() */
	f->keys = at.keys;
	f->marks = at.marks;
	f->slots = at.slots;
	f->heard = at.heard;
	f->token = at.token;
	f->here = vb_adapter_incarnation(peer->adapter);
	f->number = peer->number;
	f->offset = at.key_offset;
	f->pid = peer->pid;
	f->same = at.same;
	f->tid = at.tid;
	f->pidfd = vb_peer_pidfd(peer);
	vb_lock_give(&f->lock);
	vb_prompt_begin(&f->prompt, vb_adapter_presence(peer->adapter)->awake, at.awake, at.polls);
	f->denied = !at.same && (at.tid <= 0 || f->pidfd < 0);
	f->seen = 0;
	f->gone = false;
	enter(peer, f);
	/* Pairs with vb_direct_attach(), user() and is_there() in mem/peer_key.c. */
	atomic_store(&f->there, peer->incarnation);
	if (f->denied)
		vb_log(VB_LOG_INFO,
		       "process %u cannot be identified by a thread ID here (another PID namespace, or no "
		       "pidfd): packets carry all data",
		       peer->pid);
	atomic_store(&peer->mem, f); /* before any QP permits anything; see wait_for_peers() */
}

/* Whoever may be using memory of this process.  Before `f` is filled for it a peer has no leave to use
 * anything, and once it is DOWN and has faded no more.  The tables of a former peer may be unmapped. */
static struct vb_peer_mem *user(struct vb_peer *peer)
{
	struct vb_peer_mem *f = atomic_load(&peer->mem);
	bool there = f && atomic_load(&f->there); /* pairs with vb_direct_peer_up() */

	return there && (atomic_load(&peer->state) == VB_PEER_UP || atomic_load(&peer->fades)) ? f : NULL;
}

/* A process that has lost its link and lives ends the access that it is in the middle of, and begins no
 * other: its leave was taken back.  One that is stopped there does not, and is not waited for any longer. */
static void fade(struct vb_peer *peer, struct vb_peer_mem *f)
{
	uint32_t number = vb_adapter_number(peer->adapter);
	uint64_t began = 0, until = vb_now() + FADES_WITHIN;

	while (f && vb_peer_mem_in_use(f, number, 0)) {
		if (vb_now() > until) {
			vb_log(VB_LOG_WARN,
			       "process %u was accessing this process's memory when the connection ended, "
			       "and has not finished within 1 s: this process no longer waits for it",
			       peer->pid);
			break;
		}
		vb_cpu_offer(&began);
	}
	atomic_store(&peer->fades, false);
}

void vb_direct_peer_down(struct vb_peer *peer)
{
	struct vb_peer_mem *f = atomic_load(&peer->mem);

	if (atomic_load(&peer->fades))
		fade(peer, f);
	if (!f)
		return;
	atomic_store(&f->there, 0); /* the next peer at this index is another */
	/* Threads of this process that still touch memory of it through its keys; pairs with is_there(). */
	vb_peer_mem_settle(f, &vb_hca(peer->adapter)->keys);
	vb_peer_mem_drop(f, &vb_hca(peer->adapter)->keys, 0);
}

void vb_direct_peer_free(struct vb_peer *peer)
{
	vb_direct_peer_down(peer);
	free(atomic_exchange(&peer->mem, NULL));
}

/* Access by which peers change a region's memory. */
enum { WRITES = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC };

/* The messages of the two ends about a region. */
enum { TELL_ASK = 1, TELL_ANSWER, TELL_DROP };

struct tell {
	uint32_t kind;
	uint32_t rkey;
	uint32_t write; /* ANSWER: it permits writing or atomics */
	uint32_t seq;	/* ANSWER: the key's entry had this when it said what follows */
	uint64_t addr;	/* ANSWER: where it begins in its owner's process */
	struct vb_share_desc what;
};
_Static_assert(sizeof(struct tell) <= VB_TELL_MAX, "it fits a message");

static void ask_peer(struct vb_peer *peer)
{
	struct vb_peer_mem *f = atomic_load(&peer->mem);
	struct tell t = {.kind = TELL_ASK};

	while ((t.rkey = vb_peer_mem_next_ask(f))) {
		if (!vb_peer_tell(peer, VB_SUBJECT_DIRECT, &t, sizeof(t), -1))
			vb_peer_mem_ask_failed(f, t.rkey);
	}
}

void vb_direct_ask(struct vb_path *p)
{
	vb_lock_assert_held(&p->qp->lock);
	ask_peer(vb_peer_of(p->far));
}

/* A peer uses the region again and again. */
static void say_private(const struct vb_peer *peer, const struct vb_key_spec *v)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	const char *s = secure_getenv("VERBENA_SHARE_BUFFERS");
	bool on = s && !strcmp(s, "on");

	if (!vb_log_wanted(VB_LOG_INFO) || atomic_flag_test_and_set(&said))
		return;
	vb_log(VB_LOG_INFO,
	       "process %u often uses the region of 0x%" PRIx64 " bytes at 0x%" PRIx64
	       ", whose memory it cannot map: each %s takes a system call. %s",
	       peer->pid, v->length, v->addr,
	       v->access & (WRITES | IBV_ACCESS_REMOTE_READ) ? "WRITE, READ and large SEND"
							     : "large SEND from it",
	       on ? "Allocate the buffer by posix_memalign() with whole pages, or by mmap(), for "
		    "--share-buffers to serve it"
		  : "verbena run --share-buffers gives the program buffers that peers can map");
}

/* The peer may map what it asks about, if it is shared memory; it is told when the key goes. */
static void answer(struct vb_peer *peer, uint32_t rkey)
{
	struct vb_keys *keys = &vb_hca(peer->adapter)->keys;
	struct tell t = {.kind = TELL_ANSWER, .rkey = rkey};
	uint32_t lkey = rkey & ~VB_KEY_REMOTE;
	struct vb_key_spec v;
	int fd = -1;

	t.seq = vb_key_seq(keys, lkey); /* first: should the rest be of a later meaning, the answer is void */
	if (!(rkey & VB_KEY_REMOTE) || !vb_key_look(keys, lkey, &v))
		return; /* gone: the peer finds out by itself */
	if (!(v.access & (WRITES | IBV_ACCESS_REMOTE_READ)) && !may_be_read())
		return; /* nothing of it is lent */
	t.addr = v.addr;
	t.write = (v.access & WRITES) != 0;
	vb_key_tell(keys, lkey);
	if (v.kind == VB_KEY_MEMORY) /* what is on demand follows what the program maps */
		vb_share_find(v.addr, v.length, t.write, &t.what, &fd);
	if (t.what.kind == VB_SHARE_NONE) {
		vb_key_told(keys, lkey); /* nothing to take back */
		if (v.kind == VB_KEY_MEMORY)
			say_private(peer, &v);
	}
	vb_peer_tell(peer, VB_SUBJECT_DIRECT, &t, sizeof(t), fd); /* else it asks again some time */
	if (fd >= 0)
		close(fd);
	t.kind = TELL_DROP;
	if (!vb_key_look(keys, lkey, &v)) /* it went meanwhile */
		vb_peer_tell(peer, VB_SUBJECT_DIRECT, &t, sizeof(t), -1);
}

void vb_direct_told(struct vb_peer *peer, const void *msg, size_t len, int fd)
{
	struct vb_peer_mem *f = atomic_load(&peer->mem);
	struct tell t;
	int err;

	if (len != sizeof(t))
		return;
	memcpy(&t, msg, sizeof(t));
	if (f)
		vb_peer_mem_sweep(f, &vb_hca(peer->adapter)->keys);
	switch (t.kind) {
	case TELL_ASK:
		answer(peer, t.rkey);
		break;
	case TELL_ANSWER:
		err = f ? vb_peer_mem_answer(f, t.rkey, t.seq, t.addr, &t.what, fd, t.write) : 0;
		if (err && t.what.kind != VB_SHARE_NONE)
			vb_log(VB_LOG_DEBUG,
			       "R_Key 0x%08x of process %u refers to shared memory that cannot be mapped: %s",
			       t.rkey, peer->pid, strerror(err));
		break;
	case TELL_DROP:
		if (f && t.rkey)
			vb_peer_mem_drop(f, &vb_hca(peer->adapter)->keys, t.rkey);
		break;
	default:
		break;
	}
}

/* Peers that have mapped the region let go of it. */
static void tell_gone(struct vb_adapter *a, uint32_t lkey)
{
	struct tell t = {.kind = TELL_DROP, .rkey = lkey | VB_KEY_REMOTE};
	struct vb_peer *peer;

	for (uint32_t i = 0; (peer = vb_hca_next_peer(a, &i));) {
		if (peer->index && atomic_load(&peer->state) == VB_PEER_UP)
			vb_peer_tell(peer, VB_SUBJECT_DIRECT, &t, sizeof(t), -1);
	}
}

void vb_direct_attach(struct vb_path *p)
{
	struct vb_peer *peer = vb_peer_of(p->far);

	vb_lock_assert_held(&p->qp->lock);
	vb_grant_drop(&p->qp->grant);
	p->apart = p->lossy;
	p->mem = !vb_check_on && wanted() && peer->lanes[0].out->places ? atomic_load(&peer->mem) : NULL;
	if (p->mem && atomic_load(&p->mem->there) != peer->incarnation)
		p->mem = NULL; /* not made for this peer yet: vb_hca_peer_up() comes back to the QP */
	p->peer_qp = p->mem ? vb_peer_shown(peer, p->qp->dest_qpn) : NULL;
	if (!p->peer_qp)
		p->mem = NULL;
}

/* Whether the QP gives its peer leave now.  In RTR the first packet is an event (rule 37), so it has to come.
 */
static bool gives_leave(const struct vb_qp *qp)
{
	return qp->path.rxq && qp->path.mem && !qp->forgotten && !qp->unsettled && qp->state >= IBV_QPS_RTR &&
	       qp->state <= IBV_QPS_SQD && (qp->state != IBV_QPS_RTR || qp->comm_est);
}

/* The access that it permits, under the present leave or the next one.  had: the access that it permitted
 * before. */
static uint32_t permits(const struct vb_qp *qp, uint32_t had)
{
	uint32_t access = qp->access & IBV_ACCESS_REMOTE_WRITE, leave = had >> VB_SHOWN_LEAVE;
	const uint32_t most = UINT32_MAX >> VB_SHOWN_LEAVE;

	if (!gives_leave(qp) || qp->xrcd) /* what a target's peer may reach each message says anew */
		return 0;
	if (vb_comp_counts_remote(qp)) /* so each request has to come here */
		return 0;
	if (qp->ibv.qp_type == IBV_QPT_XRC_SEND) /* it takes no requests, and lends all the same */
		access = 0;
	else if (qp->resp.res_size) /* else a READ or atomic is one too many */
		access |= qp->access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	if (!leave && lets_in())
		leave = qp->shown->leaves = qp->shown->leaves < most ? qp->shown->leaves + 1 : 1;
	return leave << VB_SHOWN_LEAVE | access;
}

void vb_direct_show(struct vb_qp *qp)
{
	struct vb_shown_qp *s = qp->shown;
	uint32_t state = qp->forgotten ? 0 : 1 + (uint32_t)qp->state, may, had;

	vb_lock_assert_held(&qp->lock);
	atomic_store_explicit(&s->received, qp->state >= IBV_QPS_RTR ? VB_SHOWN_RECEIVED | qp->resp.epsn : 0,
			      memory_order_release); /* pairs with vb_peer_qp_received() */
	atomic_store_explicit(&s->reads, qp->resp.res_size, memory_order_relaxed);
	if (qp->state < IBV_QPS_RTR) /* what strayed was of an earlier connection */
		atomic_store_explicit(&s->stray, 0, memory_order_relaxed);
	if (vb_unlikely(atomic_load_explicit(&s->state, memory_order_relaxed) != state)) {
		/* pairs with vb_path_is_connected() */
		atomic_store_explicit(&s->dest_qpn, qp->state < IBV_QPS_RTR ? 0 : qp->dest_qpn,
				      memory_order_relaxed);
		atomic_store_explicit(&s->type, qp->ibv.qp_type, memory_order_relaxed);
		atomic_store_explicit(&s->srq, qp->srq ? qp->srq->number : 0, memory_order_relaxed);
		atomic_store_explicit(&s->by_cm, qp->by_cm != VB_BY_HAND, memory_order_relaxed);
		if (qp->state < IBV_QPS_RTR)
			atomic_store_explicit(&s->waits, 0, memory_order_relaxed);
		atomic_store_explicit(&s->state, state, memory_order_release);
	}
	had = atomic_load_explicit(&s->may, memory_order_relaxed);
	may = permits(qp, had);
	if (vb_likely(may == had))
		return;
	if (!had) { /* nobody reads the rest: its users were waited for */
		atomic_store_explicit(&s->pd, qp->pd_id, memory_order_relaxed);
		atomic_store_explicit(&s->path_mtu, qp->path_mtu, memory_order_relaxed);
		atomic_store_explicit(&s->peer, qp->path.source.low, memory_order_relaxed);
	}
	VB_FAULT_POINT("what a QP permits is about to change");
	atomic_store(&s->may, may); /* pairs with vb_peer_mem_begin() */
	if (had & ~may)
		qp->unsettled = true; /* vb_direct_revoked() */
}

void vb_direct_await(struct vb_qp *qp)
{
	vb_lock_assert_held(&qp->lock);
	atomic_store_explicit(&qp->shown->waits, 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst); /* pairs with stir() of hca/peers.c */
}

static void wait_for_peers(struct vb_adapter *a, uint32_t index, uint32_t qpn, const char *what)
{
	uint32_t number = vb_adapter_number(a);
	struct vb_peer *peer;

	for (uint32_t i = 0; (peer = vb_hca_next_peer(a, &i));) {
		struct vb_peer_mem *f = user(peer);

		if (f)
			vb_peer_mem_wait(f, number, index, qpn, what);
	}
}

void vb_direct_revoked(struct vb_qp *qp)
{
	bool unsettled;

	vb_check_revoked();
	vb_lock_take(&qp->lock);
	unsettled = qp->unsettled;
	vb_hca_give(qp);
	if (!unsettled)
		return;
	wait_for_peers(qp->ctx->adapter, 0, qp->qpn, "revoking the access that a QP permits");
	vb_lock_take(&qp->lock);
	qp->unsettled = false;
	vb_direct_show(qp); /* what it permits in its new state */
	vb_hca_give(qp);
}

static bool in_use(void *owner, uint32_t index)
{
	struct vb_adapter *a = owner;
	uint32_t number = vb_adapter_number(a);
	struct vb_peer *peer;

	for (uint32_t i = 0; (peer = vb_hca_next_peer(a, &i));) {
		struct vb_peer_mem *f = user(peer);

		if (f && vb_peer_mem_in_use(f, number, index))
			return true;
	}
	return false;
}

void vb_direct_key_retracted(struct vb_adapter *a, uint32_t lkey)
{
	uint32_t index = vb_keys_index(&vb_hca(a)->keys, lkey);
	char what[64];

	if (vb_unlikely(in_use(a, index))) { /* else nobody is, and who comes now finds the key gone */
		snprintf(what, sizeof(what), "revoking or changing L_Key 0x%08x", lkey);
		wait_for_peers(a, index, 0, what);
	}
	vb_direct_key_settled(a, lkey);
}

void vb_direct_key_settled(struct vb_adapter *a, uint32_t lkey)
{
	vb_check_revoked();
	if (vb_key_told(&vb_hca(a)->keys, lkey))
		tell_gone(a, lkey);
}

static uint32_t whose(void *owner, uint32_t rkey, uint64_t addr, uint64_t len)
{
	struct vb_peer *peer;

	for (uint32_t i = 0; (peer = vb_hca_next_peer(owner, &i));) {
		struct vb_peer_mem *f = atomic_load(&peer->mem);

		if (f && !f->same && atomic_load(&peer->state) == VB_PEER_UP &&
		    vb_peer_mem_has_key(f, rkey, addr, len))
			return f->pid;
	}
	return 0;
}

static void ask(void *owner, struct vb_peer_mem *f)
{
	struct vb_peer *peer;

	for (uint32_t i = 1; (peer = vb_hca_next_peer(owner, &i));) {
		if (atomic_load(&peer->mem) == f && atomic_load(&peer->state) == VB_PEER_UP)
			ask_peer(peer);
	}
}

static bool peers_hold(void *owner, uint64_t pd)
{
	const struct vb_pds *own = &vb_hca(owner)->pds;
	struct vb_pd_view v;

	return pd >> 32 != vb_hca(owner)->keys.home || /* another process made it */
	       (vb_pds_look(own->slots, own->marks, (uint32_t)pd, &v) && v.shared);
}

const struct vb_keys_ops vb_direct_keys_ops = {.in_use = in_use,
					       .peers_hold = peers_hold,
					       .whose = whose,
					       .find = find,
					       .number = number_for_keys,
					       .ask = ask};

static void admit(void)
{
	if (!ptrace_on || atomic_load(&asked) == (int)getpid())
		return;
	atomic_store(&asked, (int)getpid());
	prctl(PR_SET_PTRACER, -1ul, 0, 0, 0); /* EINVAL: a kernel without Yama asks for nothing */
}

void vb_direct_admit(void)
{
	if (wanted())
		admit();
}

void vb_direct_admit_members(void)
{
	wanted(); /* reads the settings; keys lead to memory also where direct placement is off */
	admit();
}
