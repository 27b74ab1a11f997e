/* One side of the bench: a device, a connected RC QP, one buffer that the peer may use; and the tests. */
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
	bool client; /* measures */
	bool ring;   /* no direct placement */
	bool shared; /* the buffer is shareable memory */
	int sock;    /* to the other side, for everything that is not measured */
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *scq, *rcq; /* rcq has the channel */
	struct ibv_qp *qp;
	char *buf; /* BUFFER bytes */
	int fd;	   /* its file, or -1 */
	struct ibv_mr *mr;
	uint64_t far_addr; /* the peer's buffer */
	uint32_t far_rkey;
};

void side_open(struct side *s);
void side_close(struct side *s);
/* Both sides are here. */
void side_meet(struct side *s);
/* The first packet makes contact, and memory is backed when it is first used: neither is what a test
 * measures. */
void side_warm(struct side *s);

/* Posts n receives of `size` bytes in lists of at most LIST. */
void side_receive(struct side *s, unsigned n, uint32_t size);
/* One request over `size` bytes of the buffer; dies when it is refused. */
void side_post(struct side *s, enum ibv_wr_opcode op, uint32_t size, unsigned flags);
/* Takes up to max completions of cq; dies on one that failed.  Returns how many there were. */
unsigned side_poll(struct ibv_cq *cq, unsigned max);
/* Takes exactly n completions. */
void side_wait(struct ibv_cq *cq, unsigned n);

/* sends.c */
void send_lat(struct side *s);
void send_rate(struct side *s);
void send_rate_list(struct side *s);
void send_64k(struct side *s);
void send_1m(struct side *s);
void event_lat(struct side *s);
void poll_lat(struct side *s);

/* rdma.c */
void one_sided(struct side *s);
void write_pingpong(struct side *s);

/* memory.c */
void lookup_1(struct side *s);
void lookup_1k(struct side *s);
void lookup_1m(struct side *s);
/* A whole run of its own: forks its peers before it opens the device. */
void registrations(void);

#endif
