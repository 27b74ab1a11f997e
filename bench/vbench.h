/* One side of the bench: a device, a QP that knows its peer's, one buffer that the peer may use; and the
 * tests. */
#ifndef VB_BENCH_VBENCH_H
#define VB_BENCH_VBENCH_H

#include <infiniband/verbs.h>
#include <stdbool.h>

#include "common.h"

#define DEPTH 512 /* of the send and receive queues */
#define LIST  32  /* work requests posted, and receives given back, at a time */

#define LAT_ITERS 50000u
#define LAP	  5000u /* a divisor of it, and a multiple of what a loop takes at a time */

struct side {
	bool client;	       /* measures */
	bool ring;	       /* no direct placement */
	bool shared;	       /* the buffer is shareable memory */
	bool polled;	       /* a target of WRITEs polls, though it need not */
	bool small;	       /* one of many: it has a page of memory only */
	bool joined;	       /* it uses what another side has opened */
	bool shared_qp;	       /* its QP too, of UD, which talks to another peer here */
	bool untimed;	       /* ACK timeout 0; else 14 */
	bool extended;	       /* its CQs can be polled either way */
	enum ibv_qp_type type; /* 0: RC */
	enum ibv_mtu mtu;      /* of the path; 0: 4096 */
	int sock;	       /* to the other side, for everything that is not measured */
	void *board;	       /* a page that both sides see */
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *scq, *rcq; /* rcq has the channel */
	struct ibv_qp *qp;
	char *buf;
	size_t bytes;
	int fd; /* its file, or -1 */
	struct ibv_mr *mr;
	uint64_t far_addr; /* the peer's buffer */
	uint32_t far_rkey, far_qpn;
	struct ibv_ah *ah; /* UD: where the peer is */
};

void side_open(struct side *s);
/* A further QP of a side that is open, with CQs of its own on its channel. */
void side_join(struct side *s, const struct side *to);
/* The QP of a side that is open, of UD, and another peer. */
void side_share(struct side *s, const struct side *with);
void side_close(struct side *s);
/* Both sides are here. */
void side_meet(struct side *s);
/* The first packet makes contact, and memory is backed when it is first used: neither is what a test
 * measures. */
void side_warm(struct side *s);
/* The same with n messages each way. */
void side_exchange(struct side *s, unsigned n);
/* As many descriptors as this process may have: a peer takes two. */
void side_allow_descriptors(void);
/* n processes that run peer(), which does not return; each side gets its socket. */
void side_fork(struct side *sides, unsigned n, void (*peer)(int sock));

/* The type of its QP, and what a request of it says besides. */
enum ibv_qp_type side_type(const struct side *s);
void side_address(const struct side *s, struct ibv_send_wr *wr);
/* Posts n receives of `size` bytes in lists of at most LIST; of a UD QP there is room for the GRH too. */
void side_receive(struct side *s, unsigned n, uint32_t size);
/* One request over `size` bytes of the buffer; dies when it is refused. */
void side_post(struct side *s, enum ibv_wr_opcode op, uint32_t size, unsigned flags);
/* Takes up to max completions of cq; dies on one that failed.  Returns how many there were. */
unsigned side_poll(struct ibv_cq *cq, unsigned max);
/* Takes exactly n completions. */
void side_wait(struct ibv_cq *cq, unsigned n);

/* spread.c: median, average, 99 % and 99.9 % of n times in `unit` ns each, as NAME_median and so on.  Sorts.
 */
double spread_unit(double began, uint64_t began_ticks); /* ns of a tick, by both clocks since then */
double spread_rank(double *v, unsigned n, double rank);
void spread_tell(const char *name, double *v, unsigned n, double unit);

/* sends.c */
void send_lat(struct side *s);
void send_rate(struct side *s);
void send_rate_list(struct side *s);
void send_64k(struct side *s);
void send_1m(struct side *s);
void event_lat(struct side *s);
void event_rate(struct side *s);
void poll_lat(struct side *s);

/* rdma.c */
void one_sided(struct side *s);
void write_pingpong(struct side *s);
void writes_polled(struct side *s);

/* latency.c */
void lat_inline(struct side *s);
void lat_region(struct side *s);

/* types.c */
void types(struct side *s);

/* threads.c */
void threads(struct side *s);
void threads_place(struct side *s);

/* computing.c */
void computing(struct side *s);

/* quiet.c: a whole run of its own */
void quiet_peers(void);

/* peers.c: one QP of UD that talks to n processes, each of which listens and does no more. */
void peers_listen(int sock);
void peers_open(struct side *peers, unsigned n); /* each has its socket */
void peers_close(struct side *peers, unsigned n);
void peers_rest(const struct side *s); /* until whoever was sent something has fallen asleep again */
void peers(void);		       /* a whole run of its own */

/* memory.c */
void lookup_1(struct side *s);
void lookup_1k(struct side *s);
void lookup_1m(struct side *s);
/* A whole run of its own: forks its peers before it opens the device. */
void registrations(void);

#endif
