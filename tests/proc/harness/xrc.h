/* XRC: one process's half, and how it is opened, connected and used. */
#ifndef VB_TESTS_XRC_H
#define VB_TESTS_XRC_H

#include "kit.h"

enum { XRC_SIZE = 1 << 20, XRC_DEPTH = 16 };

/* One process's half: both kinds of queue pair, in a domain that a file stands for. */
struct xrc_side {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq, *rcq; /* of the initiator, of the SRQ */
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	struct ibv_qp *ini, *tgt;
	struct ibv_mr *mr;
	uint8_t *buf;
	uint32_t srqn;
	union ibv_gid gid;
};

/* Of the initiators that are moved to RTS from then on: rnr_retry, 1: a receive request that is missing is
 * soon told; and timeout, 14, or 0: nothing is sent again without being asked for. */
extern uint8_t xrc_rnr_retry, xrc_timeout;

int xrc_domain_file(void);
struct ibv_xrcd *xrc_open_domain(struct ibv_context *ctx, int fd, int oflags);
struct ibv_srq *xrc_make_srq(struct ibv_pd *pd, struct ibv_xrcd *x, struct ibv_cq *cq, uint32_t *number);
struct ibv_qp *xrc_make_target(struct ibv_context *ctx, struct ibv_xrcd *x);
struct ibv_qp *xrc_make_initiator(struct ibv_pd *pd, struct ibv_cq *cq);
void xrc_open_side(struct xrc_side *s, int fd);
void xrc_close_side(struct xrc_side *s);
void xrc_reset(struct ibv_qp *qp);
void xrc_to_rtr(struct ibv_qp *qp, const union ibv_gid *gid, uint32_t dest);
void xrc_to_rts(struct ibv_qp *qp, const union ibv_gid *gid, uint32_t dest);
void xrc_connect_self(struct xrc_side *s);
void xrc_give(struct ibv_srq *srq, const struct ibv_mr *mr, uint64_t wr_id, size_t at, uint32_t len);
void xrc_post(const struct xrc_side *s, enum ibv_wr_opcode op, uint32_t srqn, size_t at, uint32_t len,
	      uint64_t raddr, uint32_t rkey);
struct ibv_wc xrc_wait_on(struct ibv_cq *cq);
enum ibv_wc_status xrc_ends(const struct xrc_side *s);
void xrc_received(const struct xrc_side *s, struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_opcode op,
		  uint32_t len);
enum ibv_event_type xrc_event_of(struct ibv_context *ctx, void *element);
struct ibv_qp *xrc_open_target(struct ibv_context *ctx, struct ibv_xrcd *x, uint32_t number);

#endif
