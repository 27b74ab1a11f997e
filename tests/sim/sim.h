/* The protocol in virtual time: two queue pairs, and a wire per direction that loses, reorders, duplicates
 * and delays by seed.  No thread, no clock: the same seed gives the same packets at the same times.
 *
 * A pair stands alone, and then transport/ is driven step by step, or on simulated processes (hosts.h), and
 * then hca/ drives it. */
#ifndef VB_TESTS_SIM_H
#define VB_TESTS_SIM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <cmocka.h>

#include <infiniband/verbs.h>

#include "base/clock.h"
#include "iba/limits.h"
#include "iba/loan.h"
#include "iba/out.h"
#include "iba/pkt.h"
#include "iba/shown.h"
#include "mem/peer_mem.h"
#include "mem/access.h"
#include "obj/builder.h"
#include "obj/context.h"
#include "obj/cq.h"
#include "obj/mw.h"
#include "obj/qp.h"
#include "obj/srq.h"
#include "obj/srqs.h"
#include "transport/rc.h"

enum { SIM_DROPS = 16, SIM_ALWAYS = 1 << 30, SIM_ANY = 0x100 };
enum { SIM_KEYS = 64, SIM_QPN0 = 0x11010, SIM_QPN1 = 0x22020, SIM_SRQN = 0x22001 };

/* Bytes of memory at each side, and packets of a pair that are kept: who makes many pairs wants less. */
#ifndef SIM_MEM
#define SIM_MEM	  (256 << 10)
#define SIM_TRACE (1 << 14)
#endif

/* The opcodes of RC by name. */
#define SIM_RC(operation) VB_RC_##operation = VB_FAMILY_RC | VB_##operation
enum {
	SIM_RC(SEND_FIRST),
	SIM_RC(SEND_MIDDLE),
	SIM_RC(SEND_LAST),
	SIM_RC(SEND_LAST_IMM),
	SIM_RC(SEND_ONLY),
	SIM_RC(SEND_ONLY_IMM),
	SIM_RC(WRITE_FIRST),
	SIM_RC(WRITE_MIDDLE),
	SIM_RC(WRITE_LAST),
	SIM_RC(WRITE_LAST_IMM),
	SIM_RC(WRITE_ONLY),
	SIM_RC(WRITE_ONLY_IMM),
	SIM_RC(READ_REQUEST),
	SIM_RC(READ_RESP_FIRST),
	SIM_RC(READ_RESP_MIDDLE),
	SIM_RC(READ_RESP_LAST),
	SIM_RC(READ_RESP_ONLY),
	SIM_RC(ACK),
	SIM_RC(ATOMIC_ACK),
	SIM_RC(CMP_SWAP),
	SIM_RC(FETCH_ADD),
	SIM_RC(SEND_LAST_INV),
	SIM_RC(SEND_ONLY_INV),
	SIM_RC(FLUSH),
	SIM_RC(ATOMIC_WRITE),
};

struct sim_cfg {
	uint64_t seed;
	uint32_t mtu;	      /* 256 ... */
	uint32_t path_mtu[2]; /* of the two, where the wire's own packets are larger; 0: the wire's */
	uint8_t family;	      /* enum vb_family of both QPs */
	bool xrc; /* node 0 is an initiator of XRC, node 1 its target, with an SRQ of its domain */
	struct vb_adapter *srq_on; /* which process, of simulated ones, that SRQ, its CQ and the memory
				      belong to; NULL: the target's */
	bool local;		   /* NAKs carry reasons */
	bool far;		   /* the two are on hosts of their own */
	bool srq, one_cq, sig_all;
	bool lossless;	/* the wire can tell what was taken out */
	bool lazy_acks; /* mere ACKs leave late, at random */
	bool at_once;	/* a SEND that is posted alone leaves during the post, if it may */
	uint32_t send_wr, recv_wr, sge, inl, cqe;
	uint8_t rd_atomic, dest_rd_atomic; /* of both */
	uint8_t retry_cnt, rnr_retry, timeout, min_rnr;
	uint32_t access;	  /* qp_access_flags of both */
	uint32_t psn[2];	  /* first PSN that each sends */
	uint32_t loss, dup, late; /* per 1000 packets */
	uint32_t room;		  /* packets that one direction holds */
	/* A network: so many bytes per second leave a queue of so many packets, which drops what finds it
	 * full, and arrive after the delay (ns).  The queue pairs have a window.  rate 0: none of it. */
	uint64_t rate, delay;
	uint32_t queue;
	uint32_t marks;	     /* a packet that finds so many in the queue is marked; 0: none is */
	uint64_t path_at[2]; /* when each end has its way out, after the beginning; 0: from then on */
	bool carried;	     /* the wire carries ACKs along with requests */
	bool placing;	     /* requests are placed directly where they can be, once both have it */
	bool one_end;	     /* side 1 is connected by sim_connect() only */
	const struct ibv_ah_attr *to; /* where both are connected to; NULL: to each other */
	uint32_t brief; /* longest packet that may be sent, and taken in, as a brief one; 0: none */
};

/* The transport of a pair of which its test says nothing: a program runs its tests once for each transport to
 * which they apply.  Where they name an opcode of RC, that of this transport is meant. */
enum sim_as { SIM_AS_RC, SIM_AS_XRC, SIM_AS_UC, SIM_AS_UD };
extern enum sim_as sim_as;
#define SIM_FAMILY                              \
	(sim_as == SIM_AS_RC	? VB_FAMILY_RC  \
	 : sim_as == SIM_AS_XRC ? VB_FAMILY_XRC \
	 : sim_as == SIM_AS_UC	? VB_FAMILY_UC  \
				: VB_FAMILY_UD)

/* The far end answers, and what it refuses the requester hears of. */
static inline bool sim_acked(void)
{
	return sim_as == SIM_AS_RC || sim_as == SIM_AS_XRC;
}

/* A sensible quiet wire; tests change what they are about. */
#define SIM_DEFAULTS                                                                                         \
	.family = SIM_FAMILY, .xrc = sim_as == SIM_AS_XRC, .seed = 1, .mtu = 1024, .send_wr = 64,            \
	.recv_wr = 64, .sge = 4, .inl = 64, .cqe = 256, .rd_atomic = 4, .dest_rd_atomic = 4, .retry_cnt = 3, \
	.rnr_retry = 7, .timeout = 8, .min_rnr = 3, .access = 0xf, .psn = {100, 7000}, .room = 64,           \
	.brief = VB_OUT_BRIEF

/* What differs stands behind the defaults, which is what the compilers are asked not to mind. */
#pragma GCC diagnostic ignored "-Woverride-init"
#ifdef __clang__
#pragma clang diagnostic ignored "-Winitializer-overrides"
#endif
#define SIM_CFG(...) (&(struct sim_cfg){SIM_DEFAULTS, __VA_ARGS__})
#define SIM_QUIET    (&(struct sim_cfg){SIM_DEFAULTS})

enum sim_verdict { SIM_PASS, SIM_DROP, SIM_DUP, SIM_LATE };

/* A packet as it was handed to the wire. */
struct sim_seen {
	uint64_t when;
	uint8_t from;
	bool dropped;
	struct vb_pkt p; /* payload not kept */
};

struct sim_flying {
	uint64_t at, order;
	uint32_t hdr_len, payload_len;
	bool placed, lent, marked;
	uint32_t ack;	  /* VB_OUT_ACK | PSN: an ACK that travels along; 0: none */
	uint8_t hops;	  /* of a datagram */
	uint8_t path_mtu; /* as told by the sender */
	uint8_t bytes[];
};

/* The number of the process at the other end, as a datagram's address has it. */
enum { SIM_FAR = 1 };

/* As it comes out of a wire: all of it, or as much as has room. */
void sim_flying_brief(const struct sim_flying *f, struct vb_brief *b);

struct sim;

struct sim_wire {
	struct vb_out out;
	struct sim *sim;
	unsigned from;
	struct sim_flying *building;
	struct sim_flying **flying; /* a heap: the next one first */
	uint32_t n, size, held;	    /* held: came, and was not consumed yet */
	uint64_t busy_until;	    /* rate: when the last packet has left the queue, */
	uint64_t *leaves;	    /* when each one of the last `queue` packets does, in a ring, */
	uint64_t queued, full;	    /* how many have come to it, and how many found it full */
	uint64_t committed, delivered;
	uint32_t unpushed;	/* committed, and not pushed yet */
	uint64_t lost, doubled; /* by it */
};

/* Where a datagram goes. */
struct sim_to {
	const struct vb_ah *ah;
	uint32_t qpn, qkey;
	uint32_t number; /* of the process, where a side stands alone; 0: SIM_FAR */
};

/* What a pair stands on: nothing, or a process for each side. */
struct sim_ground {
	void (*attach)(struct sim *s, unsigned n); /* before the QP is made */
	void (*made)(struct sim *s, unsigned n);   /* when it has its queues; may be NULL */
	void (*posted)(struct sim *s, unsigned n); /* requests were published, the posting lock is held */
	void (*poll)(struct sim *s, unsigned n);   /* its program found a CQ empty; may be NULL */
	/* Under the posting lock and the QP's; the QP's is given. */
	void (*modify)(struct sim *s, unsigned n, enum ibv_qp_state to);
	void (*drop)(struct sim *s, unsigned n);  /* gives the QP's lock */
	void (*leave)(struct sim *s, unsigned n); /* destroys what attach() made */
};

struct sim_node {
	struct vb_context ctx;
	struct vb_pd pd;
	struct vb_cq scq, rcq;
	struct vb_srq srq;
	struct vb_xrcd xrcd;	       /* xrc: of node 1, as what follows */
	struct vb_srqs srqs, *srqs_at; /* srqs_at: NULL: the former */
	struct vb_context srq_ctx;     /* of the SRQ, */
	struct vb_keys *srq_keys;      /* and the keys of its process; NULL: the QP's */
	struct vb_keys keys;
	struct vb_mws mws;
	struct vb_qp qp;
	struct sim_wire wire;	  /* its way out */
	struct vb_drops drops;	  /* of its QP */
	struct vb_shown_qp shown; /* what its peer may do by itself */
	struct vb_peer_mem mem;	  /* what it knows of its peer's memory */
	struct vb_source source;  /* of what it sends: a datagram's receiver looks at it */
	uint8_t gids[VB_GID_TABLE][16] __attribute__((aligned(8)));
	uint32_t qkey; /* of the datagrams that it sends; another one than the far end's: those are dropped */
	const struct sim_to *to; /* where these go; NULL: to the far end, with that key */
	bool left;		 /* its QP was destroyed */
	bool errs;		 /* its QP was seen in the error state */
	uint64_t deadline, kick; /* timer; when a held-back ACK leaves */
};

struct sim {
	const struct sim_ground *ground;
	struct vb_adapter *on[2]; /* the processes; NULL: it stands alone */
	struct sim_cfg cfg;
	uint64_t now, rng, order;
	struct sim_node n[2];
	enum sim_verdict (*filter)(struct sim *s, unsigned from, const struct vb_pkt *p); /* NULL: by rates */
	unsigned counter;	   /* the filter's own */
	uint64_t packets, carried; /* handed to the wires; ACKs that travelled along */
	uint64_t lent;		   /* packets with a loan */
	uint64_t briefs;	   /* packets that their QPs took in as brief ones */
	uint64_t lists;		   /* of brief packets that left with one call */
	uint64_t once;		   /* requests that were posted and sent in one go */
	bool talk;		   /* VB_SIM_TRACE is set: every packet is printed */
	uint64_t next_wr;
	uint8_t *mem[2]; /* memory of each side, and its L_Key; see sim_desk() */
	uint32_t lkey[2];
	struct {
		unsigned from, opcode, nth;
	} drops[SIM_DROPS];
	unsigned ndrops;
	uint32_t seen;
	struct sim_seen trace[SIM_TRACE]; /* the first ones */
};

enum { SIM_OVER_ALL = 15, SIM_OVER_ACKED = 1 << SIM_AS_RC | 1 << SIM_AS_XRC };
/* Runs the tests once over each of these transports, 1 << enum sim_as; how many failed. */
#define SIM_RUN(tests, over) sim_run((tests), sizeof(tests) / sizeof *(tests), (over))
int sim_run(const struct CMUnitTest *tests, size_t n, unsigned over);

struct sim *sim_new(const struct sim_cfg *cfg);
/* On these processes, which may be one. */
struct sim *sim_new_on(const struct sim_cfg *cfg, const struct sim_ground *g, struct vb_adapter *a,
		       struct vb_adapter *b);
void sim_free(struct sim *s);

/* Destroys the QP of one side, whose program makes no call for it any more. */
void sim_leave(struct sim *s, unsigned n);

/* A wire of s; its far end takes the packets out in the order in which they arrive. */
void sim_wire_init(struct sim_wire *w, struct sim *s, unsigned from);
uint64_t sim_wire_next(const struct sim_wire *w); /* when one arrives, VB_NEVER: none is under way */
struct sim_flying *sim_wire_take(struct sim_wire *w);
void sim_wire_free(struct sim_wire *w);
/* The test fails if its QP went to the error state without a failed request or an event, and a reason, and
 * not by its application either. */
void sim_look_for_silent_end(struct sim_node *n);
void *sim_zeroed(size_t bytes); /* on lines of their own, to be freed */
uint64_t sim_random(struct sim *s);
static inline uint32_t sim_below(struct sim *s, uint32_t n)
{
	return (uint32_t)(sim_random(s) >> 33) % n;
}

/* One event.  false: nothing will ever happen. */
bool sim_step(struct sim *s);
/* Until nothing happens any more (the test fails after `for` virtual nanoseconds), or just so long. */
void sim_settle(struct sim *s);
void sim_run_for(struct sim *s, uint64_t ns);

uint32_t sim_reg(struct sim *s, unsigned n, void *addr, uint64_t len, uint32_t access); /* L_Key */
/* The L_Key of a region that is there no more. */
uint32_t sim_stale(struct sim *s, unsigned n);
static inline uint32_t sim_rkey(uint32_t lkey)
{
	return lkey | VB_KEY_REMOTE;
}

/* As ibv_post_send, of a list, and ibv_post_recv: 0 or errno.  Some of the requests, by seed and wr_id, are
 * built call by call, as ibv_wr_* builds them; so are those that no work request can say, and here is where
 * it says them: ATOMIC WRITE and FLUSH have address and R_Key where an atomic has them, and compare_add is
 * the word that is written, or the range that is flushed; swap a FLUSH's type, and level << 8. */
int sim_send(struct sim *s, unsigned n, const struct ibv_send_wr *wr);
int sim_recv(struct sim *s, unsigned n, uint64_t wr_id, struct ibv_sge *sge, int num_sge);
/* One completion; false: none. */
bool sim_poll(struct sim *s, unsigned n, bool send, struct ibv_wc *wc);
/* The oldest asynchronous event, -1: none. */
int sim_event(struct sim *s, unsigned n);
/* A packet from nowhere, to node n at once; then what it causes. */
void sim_inject(struct sim *s, unsigned n, struct vb_pkt *p, const void *payload, uint32_t len);
void sim_modify(struct sim *s, unsigned n, enum ibv_qp_state to);
/* From RESET to RTS. */
void sim_connect(struct sim *s, unsigned n);
/* How many packets of this opcode node `from` has handed to its wire. */
unsigned sim_count(const struct sim *s, unsigned from, uint8_t opcode);
const struct sim_seen *sim_find(const struct sim *s, unsigned from, uint8_t opcode, unsigned nth);

/* ---- shorthand for tests of single rules ---- */

/* A pair with SIM_MEM bytes of memory at each side, registered for everything. */
struct sim *sim_desk(const struct sim_cfg *cfg);
void sim_desk_init(struct sim *s); /* the same for a pair that was made */
/* The request of these offsets into both memories; fetch-and-add adds 1, compare-and-swap turns 0 into 1. */
struct ibv_send_wr sim_wr(struct sim *s, unsigned n, enum ibv_wr_opcode op, uint32_t at, uint32_t len,
			  uint32_t to, struct ibv_sge *sge);
/* Posts it, signalled; returns its wr_id. */
uint64_t sim_op(struct sim *s, unsigned n, enum ibv_wr_opcode op, uint32_t at, uint32_t len, uint32_t to);
/* Posts a receive; a datagram's has room for its GRH, too. */
uint64_t sim_take(struct sim *s, unsigned n, uint32_t at, uint32_t len);
/* The next completion is this one. */
struct ibv_wc sim_expect(struct sim *s, unsigned n, bool send, uint64_t wr_id, enum ibv_wc_status status);
/* A receive request is flushed with the queue that it stands in; an SRQ keeps it (rule 35). */
void sim_flushed(struct sim *s, unsigned n, uint64_t wr_id);
/* Neither queue has a completion. */
void sim_expect_none(struct sim *s, unsigned n);
/* Loses the nth (from 0, or SIM_ALWAYS) packet of this opcode (or SIM_ANY) that `from` sends. */
void sim_drop(struct sim *s, unsigned from, unsigned opcode, unsigned nth);
/* Fills len bytes at each side with a pattern of its own. */
void sim_fill(struct sim *s, uint32_t len);

#endif
