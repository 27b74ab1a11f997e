/* Sentences about keys, the memory behind them, and memory windows. */
#include <inttypes.h>

#include <infiniband/verbs.h>

#include "iba/pkt.h"
#include "iba/profile.h"
#include "iba/reason_priv.h"
#include "iba/wr.h"

/* A sentence takes what its row says, and needs little of it. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum {
	REMOTE_BIT = 0x40000000, /* of a key, see mem/keys.h */
	FAR = 1 << 30,		 /* bytes: a longer distance tells a reader nothing */
};

static const char *key_kind(const struct vb_facts *f, const struct vb_mem_facts *of)
{
	bool remote = f->key & REMOTE_BIT;

	if (remote && vb_profile()->equal_keys && f->reason != VB_R_MEM_VANISHED)
		remote = of->flags & VB_KEYF_REMOTE; /* both look alike */
	return remote ? "R_Key" : "L_Key";
}

/* What it was used as. */
static const char *role(const struct vb_mem_facts *of)
{
	return of->flags & VB_KEYF_REMOTE ? "R_Key" : "L_Key";
}

/* What the key of a remote access names. */
static const char *thing(const struct vb_mem_facts *of)
{
	return of->flags & VB_KEYF_WINDOW ? "memory window" : "region";
}

static const char *near_thing(const struct vb_mem_facts *of)
{
	return of->flags & VB_KEYF_NEAR_WINDOW ? "memory window" : "region";
}

void vb_say_key_access(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	uint32_t lacks = of->want & ~of->have;

	vb_text_add(t, "%s 0x%08x does not permit ", key_kind(f, of), f->key);
	vb_text_access(t, lacks, "", "|", "this");
	vb_text_add(t, ": the %s ", thing(of));
	vb_text_range(t, of->start, of->size);
	vb_text_add(t, " has ");
	vb_text_access(t, of->have, "", "|", of->flags & VB_KEYF_WINDOW ? "nothing" : "local read only");
	if (lacks != VB_ACCESS_FLUSH_PERSISTENT) {
		vb_text_add(t, "; %s it with ", of->flags & VB_KEYF_WINDOW ? "bind" : "register");
		vb_text_access(t, lacks & ~(uint32_t)VB_ACCESS_FLUSH_PERSISTENT, "IBV_ACCESS_", " | ",
			       "more access");
	}
	if (lacks & VB_ACCESS_FLUSH_PERSISTENT) /* which no region can have */
		vb_text_add(t, "; persistent memory is not supported: flush with IBV_FLUSH_GLOBAL only");
}

/* How the numbers of the request must be read to lead somewhere: true if that is known. */
static bool say_meant(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	uint32_t key = of->cur_key;

	switch (of->meant) {
	case VB_MEANT_ADDR_REVERSED:
		vb_text_add(t, "; with its bytes reversed, the address is 0x%" PRIx64 ", in the %s ",
			    of->meant_addr, near_thing(of));
		break;
	case VB_MEANT_KEY_REVERSED:
		vb_text_add(
		    t, "; with its bytes reversed, the key is %s 0x%08x, and the address lies in its %s ",
		    role(of), key, near_thing(of));
		break;
	case VB_MEANT_BOTH_REVERSED:
		vb_text_add(t,
			    "; with their bytes reversed, they are %s 0x%08x and address 0x%" PRIx64
			    ", in its %s ",
			    role(of), key, of->meant_addr, near_thing(of));
		break;
	case VB_MEANT_WHOLE:
		vb_text_add(
		    t,
		    "; the address seems to be truncated to 32 bits: it is the lower half of 0x%" PRIx64
		    ", in the %s ",
		    of->meant_addr, near_thing(of));
		break;
	case VB_MEANT_EXCHANGED:
		vb_text_add(
		    t,
		    "; address and key seem to be exchanged: the address is %s 0x%08x, and the key is "
		    "the lower half of address 0x%" PRIx64 ", in its %s ",
		    role(of), key, of->meant_addr, near_thing(of));
		break;
	default:
		return false;
	}
	vb_text_range(t, of->start, of->size);
	if (of->meant == VB_MEANT_WHOLE)
		vb_text_add(t, "; use 64 bits for addresses (uint64_t, PRIx64)");
	else if (of->meant != VB_MEANT_EXCHANGED)
		vb_text_add(t, "; convert it once (htobe64, htonl) and back once (be64toh, ntohl)");
	return true;
}

/* Where the range does lie, which the key does not say. */
static void say_near(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	uint64_t by = vb_range_missed(of->start, of->size, f->addr, f->len);

	if (say_meant(t, f, of) || !(of->flags & VB_KEYF_NEAR) || !of->size)
		return;
	if (by)
		vb_text_add(t, "; the %s nearest to the range ", near_thing(of));
	else
		vb_text_add(t, "; the range ");
	vb_text_range(t, f->addr, f->len);
	if (by)
		vb_text_add(t, " is ");
	else
		vb_text_add(t, " lies in the %s ", near_thing(of));
	vb_text_range(t, of->start, of->size);
	vb_text_add(t, " of %s 0x%08x", role(of), of->cur_key);
	if (by && by <= FAR) {
		vb_text_add(t, ", missed by ");
		vb_text_bytes(t, by);
	}
	if (of->flags & VB_KEYF_NEAR_PD)
		vb_text_add(t, ", in a different protection domain than the queue pair");
}

static void say_whose(struct vb_text *t, const struct vb_mem_facts *of)
{
	if (of->flags & VB_KEYF_ASKER)
		vb_text_add(
		    t,
		    "; process %u, which used it, has such an R_Key itself: it must use the key that its "
		    "peer sends, and not its own",
		    of->process);
	else if (of->flags & VB_KEYF_PEERS)
		vb_text_add(
		    t,
		    "; process %u on this host has such an R_Key: connect to that process, or use a key of "
		    "this one",
		    of->process);
}

static void say_own(struct vb_text *t, const struct vb_mem_facts *of)
{
	if (of->flags & VB_KEYF_OWN)
		vb_text_add(t,
			    "; the range lies in a region of the requester's own process: the remote address "
			    "must be an address of the peer");
	if (of->flags & VB_KEYF_SELF)
		vb_text_add(
		    t, "; dest_qp_num is this queue pair's own number, so the request came back to its own "
		       "process; set it to the qp_num of the peer's queue pair");
}

/* A region of the queue's own domain that has the whole range. */
static void say_better_key(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	if (!say_meant(t, f, of) && of->flags & VB_KEYF_NEAR)
		vb_text_add(t, "; that range lies in the %s of %s 0x%08x", near_thing(of), role(of),
			    of->cur_key);
}

/* The bytes between the range wanted and [start, +size); 0: they overlap, or meet. */
static uint64_t gap(const struct vb_facts *f, uint64_t start, uint64_t size)
{
	uint64_t below = start - f->addr, off = f->addr - start;

	if (f->addr < start)
		return below > f->len ? below - f->len : 0;
	return off > size ? off - size : 0;
}

/* No other clause says where the address comes from: the reader gets to think of it. */
static void ask_source(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	bool remote = of->flags & VB_KEYF_REMOTE;

	if (of->meant || of->flags & (VB_KEYF_NEAR | VB_KEYF_OWN))
		return;
	if (f->addr)
		vb_text_add(t, "; is it the address of another buffer%s?",
			    remote ? ", or of another process's memory" : "");
	else if (remote)
		vb_text_add(
		    t, "; remote_addr is 0, so it was never set; set it to the address that the peer sends");
	else
		vb_text_add(t, "; addr of the sg_list is 0, so it was never set");
}

static void say_exceeds(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	uint64_t off = f->addr - of->start;

	vb_text_add(t, " by ");
	vb_text_bytes(t, f->addr < of->start ? of->start - f->addr : f->len - (of->size - off));
	vb_text_add(t, " at the %s", f->addr < of->start ? "start" : "end");
}

void vb_say_key_bounds(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	uint64_t by = gap(f, of->start, of->size);

	vb_text_add(t, "range ");
	vb_text_range(t, f->addr, f->len);
	vb_text_add(t, " %s %s ", by ? "lies outside" : "exceeds", thing(of));
	vb_text_range(t, of->start, of->size);
	vb_text_add(t, " of %s 0x%08x", key_kind(f, of), f->key);
	if (!by) {
		say_exceeds(t, f, of);
	} else if (by <= FAR) {
		vb_text_add(t, ": ");
		vb_text_bytes(t, by);
		vb_text_add(t, " %s it", f->addr < of->start ? "below" : "above");
	}
	if (by > FAR || (by && !f->addr))
		ask_source(t, f, of);
	say_better_key(t, f, of);
	say_own(t, of);
}

void vb_say_key_unknown(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	vb_text_add(t, "unknown %s 0x%08x: the device that it was used on never issued it", role(of), f->key);
	if (!f->key)
		vb_text_add(
		    t, of->flags & VB_KEYF_REMOTE
			   ? "; rkey of the request is 0, so it was never set; set it to the mr->rkey that "
			     "the peer sends"
			   : "; lkey of the sg_list is 0, so it was never set; set it to mr->lkey");
	say_whose(t, of);
	say_near(t, f, of);
	say_own(t, of);
}

static void say_stale_window(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	vb_text_add(t, "R_Key 0x%08x is stale: its memory window is ", f->key);
	if (!of->cur_key || of->flags & VB_KEYF_NEAR || of->meant) {
		vb_text_add(t, "not bound (was it invalidated, unbound or deallocated?)");
		say_near(t, f, of);
		return;
	}
	vb_text_add(t, "bound under R_Key 0x%08x for ", of->cur_key);
	vb_text_range(t, of->start, of->size);
}

void vb_say_key_stale(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	if ((of->flags & (VB_KEYF_WINDOW | VB_KEYF_REMOTE)) == (VB_KEYF_WINDOW | VB_KEYF_REMOTE)) {
		say_stale_window(t, f, of);
		return;
	}
	if (of->flags & VB_KEYF_UNSURE)
		vb_text_add(t, "%s 0x%08x is not valid: its region was deregistered, or it was never issued",
			    key_kind(f, of), f->key);
	else
		vb_text_add(t, "%s 0x%08x is stale: its region was deregistered", key_kind(f, of), f->key);
	if (of->flags & VB_KEYF_NEAR || of->meant) {
		say_near(t, f, of);
	} else if (of->cur_key) {
		vb_text_add(t, "; the key that replaced it is 0x%08x, of %s ", of->cur_key, thing(of));
		vb_text_range(t, of->start, of->size);
	}
	say_own(t, of);
}

/* Domains have no number that a program sees. */
void vb_say_key_pd(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	vb_text_add(t, "%s 0x%08x belongs to a different protection domain than the queue pair",
		    key_kind(f, of), f->key);
	if (of->flags & VB_KEYF_OTHER_HOME)
		vb_text_add(t, " (different processes created the two domains)");
	vb_text_add(t, "; %s the %s ", of->flags & VB_KEYF_WINDOW ? "allocate" : "register", thing(of));
	vb_text_range(t, of->start, of->size);
	vb_text_add(t, " in the domain of the queue pair");
	say_better_key(t, f, of);
}

/* Memory of another process, in a protection domain that both hold; one of another PID namespace has no
 * number here. */
static void say_peers_memory(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	vb_text_add(t, "%s 0x%08x refers to memory of ", key_kind(f, of), f->key);
	if (of->process)
		vb_text_add(t, "process %u, ", of->process);
	else
		vb_text_add(t, "a process in another PID namespace, ");
}

void vb_say_key_owner_gone(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	say_peers_memory(t, f, of);
	vb_text_add(t, "which has ended");
	say_near(t, f, of);
}

void vb_say_key_no_contact(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	if (of->process) {
		say_peers_memory(t, f, of);
		vb_text_add(t, "with which no connection exists yet");
	} else { /* nobody is known who has the number that is in the key */
		vb_text_add(
		    t,
		    "unknown %s 0x%08x: no connected process that shares the protection domain has it; it "
		    "was never issued, or its process has closed the device, ended or is stopped",
		    role(of), f->key);
	}
	say_near(t, f, of);
}

void vb_say_mem_forbidden(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	say_peers_memory(t, f, of);
	vb_text_add(t, "but the kernel denies access to it; that process must be dumpable, permit ptrace and "
		       "be in the same PID namespace");
	say_near(t, f, of);
}

void vb_say_atomic_peer(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	say_peers_memory(t, f, of);
	vb_text_add(t, "but that memory is private: an atomic at ");
	vb_text_range(t, f->addr, f->len);
	vb_text_add(t, " needs memory that both processes can map (a memfd, tmpfs or SysV segment)");
	say_near(t, f, of);
}

void vb_say_key_is_local(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	vb_text_add(t, "L_Key 0x%08x was used where an R_Key is required ", f->key);
	if (of->cur_key)
		vb_text_add(
		    t,
		    "(this region's R_Key is 0x%08x); the process that owns the region must send mr->rkey "
		    "to its peer, and not mr->lkey; a program that relies on equal keys, as some "
		    "adapters have them, needs --profile=rxe",
		    of->cur_key);
	else
		vb_text_add(t, "(a null region has no R_Key: peers cannot access it)");
}

void vb_say_key_is_remote(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	vb_text_add(t, "R_Key 0x%08x was used where an L_Key is required ", f->key);
	if (of->flags & VB_KEYF_WINDOW)
		vb_text_add(t, "(a memory window has no L_Key; its region's L_Key is 0x%08x)", of->cur_key);
	else
		vb_text_add(t, "(this region's L_Key is 0x%08x)", of->cur_key);
}

void vb_say_key_qp(struct vb_text *t, const struct vb_facts *f, const struct vb_window_facts *of)
{
	vb_text_add(t,
		    "the memory window of R_Key 0x%08x is bound to QP 0x%06x, but the request came to QP "
		    "0x%06x; use a window of type 1, which serves its whole protection domain",
		    f->key, of->bound_qpn & VB_QPN_MASK, f->qpn);
}

void vb_say_key_not_window(struct vb_text *t, const struct vb_facts *f, const struct vb_window_facts *of)
{
	vb_text_add(t,
		    "R_Key 0x%08x cannot be invalidated: it does not belong to a memory window; deregister a "
		    "region of ibv_reg_mr with ibv_dereg_mr",
		    f->key);
}

void vb_say_mem_vanished(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	vb_text_add(t, "the memory at ");
	vb_text_range(t, f->addr, f->len);
	vb_text_add(t, " of %s 0x%08x is no longer mapped, or lacks the required permission", key_kind(f, of),
		    f->key);
	if (of->reached > f->addr)
		vb_text_add(t, "; the bytes before 0x%" PRIx64 " are accessible", of->reached);
	if (vb_profile()->pins)
		vb_text_add(t, " (an adapter that pins memory keeps using the pages that were mapped at "
			       "registration)");
}

/* The sentence goes on with that of the check that failed.  A far end may say that this was anything: what is
 * no check of a key, and this very reason, are left out. */
void vb_say_recv_local(struct vb_text *t, const struct vb_facts *f, const struct vb_mem_facts *of)
{
	struct vb_facts check = *f;

	vb_text_add(t, "the receive buffer ");
	vb_text_range(t, f->addr, f->len);
	vb_text_add(t, " cannot be written");
	if (f->check >= VB_REASONS || vb_reasons[f->check].facts != VB_FACTS_mem || f->check == f->reason)
		return;
	check.reason = f->check;
	vb_text_add(t, ": ");
	vb_reason_add(t, &check);
}

static void say_not_invalidated(struct vb_text *t, const struct vb_facts *f)
{
	vb_text_add(t, "R_Key 0x%08x cannot be invalidated: ", f->key);
}

void vb_say_invalidate_type(struct vb_text *t, const struct vb_facts *f, const struct vb_window_facts *of)
{
	say_not_invalidated(t, f);
	vb_text_add(t, "its memory window is of type 1; unbind it with ibv_bind_mw and length 0");
}

void vb_say_invalidate_key(struct vb_text *t, const struct vb_facts *f, const struct vb_window_facts *of)
{
	say_not_invalidated(t, f);
	if (of->bound_key)
		vb_text_add(t, "its memory window is bound under R_Key 0x%08x; use that key", of->bound_key);
	else
		vb_text_add(t, "its memory window is not bound (was it invalidated before?)");
}

void vb_say_invalidate_qp(struct vb_text *t, const struct vb_facts *f, const struct vb_window_facts *of)
{
	say_not_invalidated(t, f);
	vb_text_add(t, "its memory window is bound to queue pair 0x%06x; invalidate it there",
		    of->bound_qpn & VB_QPN_MASK);
}

static void say_not_bound(struct vb_text *t, const struct vb_facts *f)
{
	vb_text_add(t, "the memory window cannot be bound under R_Key 0x%08x: ", f->key);
}

void vb_say_bind_gone(struct vb_text *t, const struct vb_facts *f, const struct vb_window_facts *of)
{
	say_not_bound(t, f);
	vb_text_add(t, "it was deallocated while the request was in the queue; wait for the completion of "
		       "the bind first");
}

void vb_say_bind_zero(struct vb_text *t, const struct vb_facts *f, const struct vb_window_facts *of)
{
	say_not_bound(t, f);
	vb_text_add(t, "length 0 unbinds windows of type 1 only, and this one is of type 2; invalidate it "
		       "(IBV_WR_LOCAL_INV)");
}

void vb_say_bind_bound(struct vb_text *t, const struct vb_facts *f, const struct vb_window_facts *of)
{
	say_not_bound(t, f);
	vb_text_add(t,
		    "it is of type 2 and still bound under R_Key 0x%08x; invalidate that key first "
		    "(IBV_WR_LOCAL_INV)",
		    of->bound_key);
}

void vb_say_bind_region(struct vb_text *t, const struct vb_facts *f, const struct vb_window_facts *of)
{
	say_not_bound(t, f);
	vb_text_add(t, "L_Key 0x%08x names no region that permits windows (was it deregistered?)",
		    of->region);
}

void vb_say_bind_pd(struct vb_text *t, const struct vb_facts *f, const struct vb_window_facts *of)
{
	say_not_bound(t, f);
	vb_text_add(
	    t,
	    "%s belongs to a different protection domain than the queue pair; create all three in one "
	    "domain",
	    of->region ? "the region" : "it");
}

void vb_say_bind_range(struct vb_text *t, const struct vb_facts *f, const struct vb_window_facts *of)
{
	say_not_bound(t, f);
	vb_text_add(t, "its range ");
	vb_text_range(t, f->addr, f->len);
	vb_text_add(t, " %s region ", gap(f, of->start, of->size) ? "lies outside" : "exceeds");
	vb_text_range(t, of->start, of->size);
	vb_text_add(t, " of L_Key 0x%08x", of->region);
}

void vb_say_bind_access(struct vb_text *t, const struct vb_facts *f, const struct vb_window_facts *of)
{
	say_not_bound(t, f);
	vb_text_add(t, "the region ");
	vb_text_range(t, of->start, of->size);
	vb_text_add(t, " of L_Key 0x%08x has ", of->region);
	vb_text_access(t, of->have, "", "|", "local read only");
	vb_text_add(t, "; register it with ");
	vb_text_access(t, of->want & ~of->have, "IBV_ACCESS_", " | ", "more access");
	if (of->want & ~of->have & IBV_ACCESS_LOCAL_WRITE)
		vb_text_add(t, ", which a window for REMOTE_WRITE or REMOTE_ATOMIC needs");
}
