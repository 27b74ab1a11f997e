/* Targets of XRC that are open more than once, in this process or in several (open_qp.c, peer_target.c,
 * openings.c). */
#ifndef VB_VERBS_TARGET_H
#define VB_VERBS_TARGET_H

#include "hca/ask.h"
#include "hca/hca.h"
#include "obj/qp.h"
#include "obj/xrcd.h"

/* ---- open_qp.c: what stands for a target, in its own process ---- */

/* Has h, whose qpn, ctx and domain are set, stand for the target of that number, if some context of the
 * device has it and it is of h's domain. */
bool vb_target_join(struct vb_qp *h);
/* h stands for it no more.  The target, if that was the last that had it open: it is to end (vb_qp_end());
 * else NULL.  Under hca->openings_lock, as the end. */
struct vb_qp *vb_target_leave(struct vb_qp *h);
/* What stands for a target, with the domain counted; `size` bytes, of which struct vb_qp is the first member.
 * NULL: no memory.  Pairs with vb_target_unmake(). */
struct vb_qp *vb_target_stand_in(const struct ibv_qp_open_attr *a, size_t size);
void vb_target_unmake(struct vb_qp *h);

/* ---- what two processes say to one another about a target that one of them has open ---- */

enum {
	VB_TARGET_OPEN = 1, /* questions: all of them name what stands for the target at the asker's end */
	VB_TARGET_QUERY,
	VB_TARGET_MODIFY,
	VB_TARGET_ANSWER,
	VB_TARGET_CLOSE, /* and what is not answered: the asker has it open no more; */
	VB_TARGET_EVENT, /* an asynchronous event; */
	VB_TARGET_ENDED, /* the target has ended, though its process lives */
};

/* struct ibv_qp_attr without what no target has. */
struct vb_target_attr {
	struct ibv_ah_attr ah;
	uint32_t qkey, rq_psn, sq_psn, dest_qp_num, access;
	uint16_t pkey_index;
	uint8_t state, cur_state, path_mtu, mig_state, en_sqd_async_notify, sq_draining;
	uint8_t max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry;
};

struct vb_target_tell {
	struct vb_ask_head head;
	uint32_t handle; /* the asker's name for what it has open, unique in its process */
	uint32_t reserved;
	union {
		struct {
			uint64_t dev, ino; /* the domain */
			uint32_t qpn, device;
		} open;
		struct {
			uint32_t mask, from; /* the state in which it was found, and was checked for */
			struct vb_target_attr attr;
		} modify;
		struct {
			int32_t err; /* EAGAIN: it is in another state */
			uint32_t reserved;
			struct vb_target_attr attr; /* as it is now */
		} answer;
		uint32_t event; /* as vb_qp_event_at() counts */
	};
};
_Static_assert(sizeof(struct vb_target_tell) <= VB_TELL_MAX, "it fits a message");

void vb_target_pack(struct vb_target_attr *to, const struct ibv_qp_attr *a);
void vb_target_unpack(struct ibv_qp_attr *to, const struct vb_target_attr *a);

/* ---- peer_target.c: targets of other processes that are open here ---- */

/* 0 or errno, which has been said; what stands for it then, which vb_target_close_far() ends. */
int vb_target_open_far(struct ibv_qp_open_attr *a, struct vb_qp **h);
void vb_target_close_far(struct vb_qp *h);
int vb_target_query(struct vb_qp *h, struct ibv_qp_attr *attr); /* 0 or errno, which has been said */
int vb_target_modify(struct vb_qp *h, const struct ibv_qp_attr *a, uint32_t mask);
/* A message to the one who has it open. */
void vb_target_told(struct vb_peer *peer, const struct vb_target_tell *t);
void vb_targets_lose(struct vb_peer *peer, enum vb_peer_end how);
/* The context closes, whatever it leaves behind. */
void vb_targets_release(struct vb_context *c);

/* ---- openings.c: targets of this process that others have open ---- */

void vb_openings_prepare(struct vb_hca *h); /* before the adapter is there */
void vb_openings_peer_down(struct vb_peer *peer, enum vb_peer_end how);
uint64_t vb_openings_tick(struct vb_hca *h, uint64_t now); /* vb_hca_upper.timers */
/* The context closes: those of its targets end that nobody in this process has open any more, and so do,
 * for the others that have them open, those that it leaves behind.  Under openings_lock. */
void vb_openings_expel(struct vb_context *c);

#endif
