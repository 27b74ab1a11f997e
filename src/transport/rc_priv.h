/* Shared by the three engines of the reliable-connected protocol.  Everything here runs under qp->lock. */
#ifndef VB_TRANSPORT_RC_PRIV_H
#define VB_TRANSPORT_RC_PRIV_H

#include "base/trace.h"
#include "iba/limits.h"
#include "iba/out.h"
#include "iba/wr.h"
#include "mem/copy.h"
#include "mem/access.h"
#include "obj/comp_cntr.h"
#include "obj/mw.h"
#include "transport/rc.h"

/* Half of the PSN space less one: what may be outstanding while PSNs still compare (rule 12). */
#define PSN_WINDOW 0x7fffffu

/* requester.c */
/* true: blocked by the wire, or `place` bytes are placed directly and there is more */
bool vb_requester_run(struct vb_qp *qp, uint32_t place);
bool vb_requester_output(struct vb_path *p, uint32_t place); /* vb_transport.output */
void vb_requester_list(struct vb_qp *qp);	 /* requests that are common and brief, as many as are next */
bool vb_requester_ready(const struct vb_qp *qp); /* whether a request could be sent now */
/* Sends again from the oldest unacknowledged PSN.  Apart, so that what looks whether it has to stays small.
 */
void vb_requester_back(struct vb_qp *qp) __attribute__((noinline));
/* rc.c: the same, and tracers are told why.  Apart, so that no caller keeps registers for them. */
void vb_rc_again(struct vb_qp *qp, enum vb_trace_cause cause) __attribute__((cold, noinline));
void vb_requester_arm(struct vb_qp *qp); /* the timer starts over, or stops if nothing is outstanding */
bool vb_requester_outstanding(const struct vb_qp *qp); /* whether the timer has to run */
void vb_requester_turn(struct vb_qp *qp);	       /* a failed request whose turn has come; SQ drained */

void vb_requester_refused(struct vb_qp *qp, struct vb_swqe *w); /* VB_WQE_REFUSED: its turn fails it */
bool vb_requester_settles(const struct vb_qp *qp); /* its oldest request waits for users of a window */

/* Nothing is sent in an RNR wait (rule 2: a post does not end it). */
static inline bool vb_requester_may_work(const struct vb_qp *qp)
{
	return !qp->req.waiting_rnr && (qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_SQD);
}

/* window.c: the request at q->next.  DONE: it is carried out, and to be completed. */
enum vb_mw_step vb_window_run(struct vb_qp *qp, struct vb_swqe *w, struct vb_facts *f);
bool vb_window_local(struct vb_qp *qp); /* what is next and needs no packet; true: something was done */
/* A SEND of the peer invalidates this key.  false: it cannot (rule 46); the facts say why. */
bool vb_window_invalidated(struct vb_qp *qp, uint32_t rkey, struct vb_facts *f);

/* A request that was checked cannot be sent: it fails in its turn. */
void vb_requester_fail(struct vb_qp *qp, struct vb_swqe *w, enum vb_reason r, struct vb_facts *f);
void vb_requester_probe(struct vb_qp *qp); /* sends the oldest packet once more, by itself */

/* fetch.c */
bool vb_fetch_send(struct vb_qp *qp, struct vb_swqe *w); /* the request at q->next; true: all of it is out */
void vb_fetch_again(struct vb_qp *qp, struct vb_swqe *w,
		    uint32_t at); /* what was asked for at that PSN of it */

/* flight.c: the window of a path that loses packets, or of UC the rate; all of it only where qp->path.lossy.
 * k, from, n: PSNs of request w, counted from its first. */
void vb_flight_begin(struct vb_path *p, struct vb_out *out); /* the path gets this way out, or NULL */
bool vb_flight_fits(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t from, uint32_t n);
bool vb_flight_opens(struct vb_qp *qp, const struct vb_swqe *w, uint32_t from,
		     uint32_t n); /* it is sent, if so */
/* The same for a request of one packet, before which `*ahead` bytes leave with it. */
bool vb_flight_joins(struct vb_qp *qp, const struct vb_swqe *w, uint64_t *ahead);
bool vb_flight_asks(const struct vb_qp *qp, const struct vb_swqe *w,
		    uint32_t k);	 /* the packet asks for an ACK */
bool vb_flight_counts(struct vb_qp *qp); /* the far end has missed a packet: that is one of retry_cnt */
void vb_flight_sent(struct vb_qp *qp, const struct vb_swqe *w, uint32_t from, uint32_t n);
void vb_flight_arrived(struct vb_qp *qp, const struct vb_swqe *w, uint32_t from, uint32_t n);
void vb_flight_progress(struct vb_qp *qp);	/* something was acknowledged; it may go back */
bool vb_flight_is_news(const struct vb_qp *qp); /* a sign of a loss, after a step back */
void vb_flight_lost(struct vb_qp *qp);		/* before it goes back for a packet that was lost */
/* The ACK timer runs until q->deadline: probes the oldest packet meanwhile; when to look again. */
uint64_t vb_flight_timer(struct vb_qp *qp, uint64_t now);
/* The same for UC, which waits until more may leave. */
uint64_t vb_flight_waits(struct vb_qp *qp, uint64_t now);
/* A READ is split: how many PSNs each request takes, those of the request that is sent from there on, and
 * what of its answer is missing. */
uint32_t vb_flight_cut(const struct vb_qp *qp, const struct vb_swqe *w);
uint32_t vb_flight_piece(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t from);
uint32_t vb_flight_left(const struct vb_qp *qp, const struct vb_swqe *w);
bool vb_flight_leads_ack(const struct vb_qp *qp); /* what is next, and goes, has the owed ACK behind it */
bool vb_flight_deep(const struct vb_qp *qp);	  /* as many READs are in flight as may be */
void vb_flight_astray(struct vb_qp *qp, uint32_t psn);	    /* responder: a request came too early */
void vb_flight_credits(struct vb_qp *qp, uint8_t syndrome); /* of what acknowledges */
/* On its way to this end p met a long queue: the far end is sent a CNP. */
void vb_flight_marked(struct vb_qp *qp, const struct vb_pkt *p);
/* p is of no family of the queue pair's: it is a CNP, or is not taken. */
void vb_flight_other(struct vb_qp *qp, const struct vb_pkt *p);

/* completer.c */
void vb_completer_input(struct vb_qp *qp, const struct vb_pkt *p);
bool vb_completer_brief(struct vb_qp *qp, const struct vb_brief *b); /* an ACK; vb_transport.brief */
void vb_completer_ack(struct vb_qp *qp, uint32_t psn);		     /* vb_transport.ack */
void vb_completer_received(struct vb_qp *qp, uint32_t psn);	     /* vb_transport.received */
/* Of a NAK that ends the connection: the responder's own words, if they came along and fit the syndrome; else
 * what the syndrome says. */
void vb_nak_facts(struct vb_facts *f, const struct vb_pkt *p);

/* responder.c */
void vb_responder_input(struct vb_qp *qp, const struct vb_pkt *p);
bool vb_responder_brief(struct vb_qp *qp, struct vb_brief *b); /* a SEND of one packet; vb_transport.brief */
/* A request came: to a QP in RTR the first one is an event. */
static inline void vb_responder_met(struct vb_qp *qp)
{
	if (vb_likely(qp->state != IBV_QPS_RTR) || qp->comm_est)
		return;
	qp->comm_est = true;
	vb_qp_established(qp);
}
/* Executes a request whose PSN is the one expected; of a message of UC, perhaps of another that it begins. */
void vb_responder_next(struct vb_qp *qp, const struct vb_pkt *p);
/* A request of the peer cannot be carried out: finds the process that has the key, and calls
 * vb_rc_fail_recv(). */
void vb_responder_fault(struct vb_qp *qp, struct vb_facts *f, enum vb_reason r, bool take_wqe);

/* uc.c */
/* The message that a packet is of is dropped, without a word to the far end, since its type is not
 * acknowledged. Its receive request stays for the next message (IBTA 9.8.2: the responder of unreliable
 * connections). */
void vb_uc_drop(struct vb_qp *qp, struct vb_facts *f, enum vb_reason r);
/* A request of a type whose packets are not sent again, with any PSN.  Those of a dropped message count too,
 * so that none is counted twice. */
void vb_uc_take(struct vb_qp *qp, const struct vb_pkt *p);

/* answers.c */
bool vb_responder_run(struct vb_qp *qp);    /* answers and NAKs; true: blocked by the wire */
bool vb_responder_ack(struct vb_qp *qp);    /* the owed ACK; true: blocked */
void vb_responder_follow(struct vb_qp *qp); /* it, behind what was put together; the caller pushes */
/* A brief request, and the owed ACK behind it; as vb_out_ops.send. */
uint64_t vb_responder_send_before(struct vb_qp *qp, const struct vb_brief *b);
bool vb_responder_notify(struct vb_qp *qp); /* a CNP; false: blocked */

/* rc.c */
/* Sends what is owed, then requests (requests before a mere ACK: the ACK can wait, the request is what
 * somebody waits for); place, and true: as vb_transport.output has it. */
bool vb_rc_output(struct vb_qp *qp, uint32_t place);
void vb_rc_error(struct vb_qp *qp, const struct vb_facts *f); /* vb_transport.error */
void vb_rc_input(struct vb_qp *qp, const struct vb_pkt *p);   /* vb_transport.input */
uint64_t vb_rc_timer(struct vb_qp *qp, uint64_t now);	      /* vb_transport.timer */
void vb_rc_path(struct vb_path *p, struct vb_out *out);	      /* vb_transport.path */
void vb_rc_enter(struct vb_qp *qp, enum ibv_qp_state from);   /* vb_transport.enter */
void vb_rc_flush(struct vb_qp *qp);			      /* vb_transport.flush */
void vb_rc_complete_send(struct vb_qp *qp, struct vb_swqe *w, uint8_t wc_status);
void vb_rc_fail_send(struct vb_qp *qp, const struct vb_facts *f, uint8_t wc_status);
void vb_rc_push(struct vb_qp *qp, struct vb_cq *cq, const struct vb_cqe *e, bool solicited);
/* Something is dropped, at either end, without anybody being told by a packet or a completion: it is counted,
 * and said once for each QP and reason. */
void vb_drop(struct vb_qp *qp, const struct vb_facts *f);
/* The queue pair takes nothing of p's kind, or nothing now: where nobody will tell p's sender, the message
 * counts as dropped. */
void vb_not_taken(struct vb_qp *qp, const struct vb_pkt *p);
/* The responder found a fault: NAK it (unless the reason has none), complete the receive WQE in use with the
 * reason's local status (a refused key's: local access error) if `take_wqe`, else post the reason's event;
 * then the error state. */
void vb_rc_fail_recv(struct vb_qp *qp, const struct vb_facts *f, bool take_wqe);

/* Something rare has happened: one more for tools (iba/traffic_list.h). */
static inline void count(const struct vb_qp *qp, enum vb_traffic_count what, uint64_t n)
{
	qp->traffic->count[what] += n;
}

static inline uint32_t psn_count(uint64_t length, uint32_t mtu)
{
	return length ? (uint32_t)((length + mtu - 1) / mtu) : 1;
}

/* The way out may be missing (no contact yet); then packets are counted as if the path MTU held. */
static inline uint32_t path_mtu(const struct vb_qp *qp)
{
	return qp->path.out ? qp->path.out->mtu : 128u << qp->attr.path_mtu;
}

enum { SHORTEST_MTU = 256 }; /* of a path */

/* Packets of the path MTU behind the first one of a message. */
static inline uint32_t further_packets(const struct vb_qp *qp, uint64_t bytes)
{
	return psn_count(bytes, 128u << (qp->path_mtu ? qp->path_mtu : IBV_MTU_4096)) - 1;
}

/* The path MTU of a packet's sender is told and another than this end's. */
static inline bool mtus_differ(const struct vb_qp *qp, const struct vb_pkt *p)
{
	return p->path_mtu && p->path_mtu != qp->path_mtu && qp->path_mtu;
}

static inline uint32_t smaller_mtu(const struct vb_qp *qp, const struct vb_pkt *p)
{
	return 128u << (p->path_mtu < qp->path_mtu ? p->path_mtu : qp->path_mtu);
}

/* A message of at least len bytes does not go by both. */
static inline struct vb_facts mtu_facts(const struct vb_qp *qp, const struct vb_pkt *p, uint32_t len)
{
	return (struct vb_facts){.len = len,
				 .mtu = {.sender = 128u << p->path_mtu, .receiver = 128u << qp->path_mtu}};
}

/* The owed ACK, as a packet takes it along (vb_outbuf.ack). */
static inline uint32_t ack_word(const struct vb_resp *s)
{
	return VB_OUT_ACK | vb_psn_add(s->epsn, VB_PSN_MASK);
}

/* The packet in b may take the owed ACK along, so that no request overtakes the ACK of what it answers. */
static inline void carry_ack(struct vb_qp *qp, struct vb_outbuf *b)
{
	struct vb_resp *s = &qp->resp;

	if (!s->ack_owed || !qp->path.out->carries_acks || s->res_next != s->res_head || s->nak_owed)
		return;
	b->ack = ack_word(s);
	s->ack_owed = false;
}

/* For so long a receiver counts as slow that has used up its receive requests. */
enum { VB_USED_UP_MS = 20 };

/* The RNR NAK to a request that finds no receive request, or (used_up false) has to wait for something else.
 */
static inline uint8_t rnr_syndrome(const struct vb_qp *qp, bool used_up)
{
	bool told = used_up && qp->path.out && qp->path.out->local;

	return VB_AETH_RNR | (told ? VB_AETH_USED_UP : 0) | (qp->attr.min_rnr_timer & 0x1f);
}

/* The access to our memory that a request of the peer needs. */
static inline struct vb_mem_want remote_want(const struct vb_qp *qp, uint32_t rkey, uint32_t access,
					     uint64_t addr, uint64_t len)
{
	return (struct vb_mem_want){.key = rkey,
				    .remote = true,
				    .access = access,
				    .qpn = qp->qpn,
				    .pd = qp->pd_id,
				    .addr = addr,
				    .len = len};
}

enum vb_sg_way {
	VB_SG_GATHER,  /* from the list to buf, which is ours */
	VB_SG_SCATTER, /* from buf to the list */
	VB_SG_PLACE,   /* the same two with a buf that is application memory itself */
	VB_SG_FETCH,
};

/* Copies n bytes between `buf` and position `off` of a scatter/gather list, checking each piece's key.  On
 * failure f says why. */
enum vb_reason vb_sg_copy(struct vb_qp *qp, uint64_t pd, const struct ibv_sge *sge, uint32_t num_sge,
			  uint64_t off, uint8_t *buf, uint32_t n, enum vb_sg_way way, struct vb_facts *f);

/* Copies the first n bytes, a few, of one piece of a list to buf, which is ours.  false: it is not permitted,
 * or no plain memory of this process; vb_sg_copy() finds out. */
static inline __attribute__((always_inline)) bool vb_sg_gather(struct vb_qp *qp, const struct ibv_sge *s,
							       uint8_t *buf, uint32_t n)
{
	const struct vb_mem_want w = {.key = s->lkey, .pd = qp->pd_id, .addr = s->addr, .len = n};
	struct vb_mem_use u;
	bool ok;

	if (vb_unlikely(!vb_mem_begin_plain(qp->keys, &u, &w)))
		return false;
	ok = vb_likely(u.how == VB_USE_HERE) && vb_copy_from_app(buf, u.ptr, n);
	vb_mem_end(&u);
	return ok;
}

/* The other way round, into a piece that lies in memory of domain pd: with the last bytes last. */
static inline __attribute__((always_inline)) bool
vb_sg_scatter(struct vb_qp *qp, uint64_t pd, const struct ibv_sge *s, const uint8_t *buf, uint32_t n)
{
	const struct vb_mem_want w = {
	    .key = s->lkey, .access = IBV_ACCESS_LOCAL_WRITE, .pd = pd, .addr = s->addr, .len = n};
	struct vb_mem_use u;
	bool ok;

	if (vb_unlikely(!vb_mem_begin_plain(qp->keys, &u, &w)))
		return false;
	ok = vb_likely(u.how == VB_USE_HERE) && vb_copy_to_app(u.ptr, buf, n);
	vb_mem_end(&u);
	return ok;
}

/* Whether one piece of a request's list may be used so. */
static inline enum vb_reason vb_sg_check(struct vb_qp *qp, const struct ibv_sge *s, uint32_t access,
					 struct vb_facts *f)
{
	return vb_mem_check(
	    qp->keys,
	    &(struct vb_mem_want){
		.key = s->lkey, .access = access, .pd = qp->pd_id, .addr = s->addr, .len = s->length},
	    f);
}

#endif
