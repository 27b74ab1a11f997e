#include "iba/qp_state.h"

#include <stdio.h>
#include <string.h>

#define CUR	IBV_QP_CUR_STATE
#define NOTIFY	IBV_QP_EN_SQD_ASYNC_NOTIFY
#define ACCESS	IBV_QP_ACCESS_FLAGS
#define PKEY	IBV_QP_PKEY_INDEX
#define PORT	IBV_QP_PORT
#define QKEY	IBV_QP_QKEY
#define AV	IBV_QP_AV
#define MTU	IBV_QP_PATH_MTU
#define TIMEOUT IBV_QP_TIMEOUT
#define RETRY	IBV_QP_RETRY_CNT
#define RNR	IBV_QP_RNR_RETRY
#define RQ_PSN	IBV_QP_RQ_PSN
#define DEPTH	IBV_QP_MAX_QP_RD_ATOMIC
#define ALT	IBV_QP_ALT_PATH
#define MIN_RNR IBV_QP_MIN_RNR_TIMER
#define SQ_PSN	IBV_QP_SQ_PSN
#define DEST_RD IBV_QP_MAX_DEST_RD_ATOMIC
#define MIG	IBV_QP_PATH_MIG_STATE
#define DEST	IBV_QP_DEST_QPN

#define ANY_TO_RESET_AND_ERROR [IBV_QPS_RESET] = {.valid = true}, [IBV_QPS_ERR] = {.valid = true}

/* The columns: RC, UC, UD, XRC's sending end, XRC's receiving end. */
const struct vb_qp_transition vb_qp_transitions[VB_QP_STATES][VB_QP_STATES] =
    {
	[IBV_QPS_RESET] =
	    {
		ANY_TO_RESET_AND_ERROR,
		[IBV_QPS_INIT] = {true,
				  {PKEY | PORT | ACCESS, 0},
				  {PKEY | PORT | ACCESS, 0},
				  {PKEY | PORT | QKEY, 0},
				  {PKEY | PORT | ACCESS, 0},
				  {PKEY | PORT | ACCESS, 0}},
	    },
	[IBV_QPS_INIT] =
	    {
		ANY_TO_RESET_AND_ERROR,
		[IBV_QPS_INIT] = {true,
				  {0, PKEY | PORT | ACCESS},
				  {0, PKEY | PORT | ACCESS},
				  {0, PKEY | PORT | QKEY},
				  {0, PKEY | PORT | ACCESS},
				  {0, PKEY | PORT | ACCESS}},
		[IBV_QPS_RTR] = {true,
				 {AV | MTU | DEST | RQ_PSN | DEST_RD | MIN_RNR, ALT | ACCESS | PKEY},
				 {AV | MTU | DEST | RQ_PSN, ALT | ACCESS | PKEY},
				 {0, PKEY | QKEY},
				 {AV | MTU | DEST | RQ_PSN, ALT | ACCESS | PKEY},
				 {AV | MTU | DEST | RQ_PSN | DEST_RD | MIN_RNR, ALT | ACCESS | PKEY}},
	    },
	[IBV_QPS_RTR] =
	    {
		ANY_TO_RESET_AND_ERROR,
		[IBV_QPS_RTS] = {true,
				 {TIMEOUT | RETRY | RNR | SQ_PSN | DEPTH, CUR | ALT | ACCESS | MIN_RNR | MIG},
				 {SQ_PSN, CUR | ALT | ACCESS | MIG},
				 {SQ_PSN, CUR | QKEY},
				 {TIMEOUT | RETRY | RNR | SQ_PSN | DEPTH, CUR | ALT | ACCESS | MIG},
				 {TIMEOUT | SQ_PSN, CUR | ALT | ACCESS | MIN_RNR | MIG}},
	    },
	[IBV_QPS_RTS] =
	    {
		ANY_TO_RESET_AND_ERROR,
		[IBV_QPS_RTS] = {true,
				 {0, CUR | ACCESS | ALT | MIG | MIN_RNR},
				 {0, CUR | ACCESS | ALT | MIG},
				 {0, CUR | QKEY},
				 {0, CUR | ACCESS | ALT | MIG},
				 {0, CUR | ACCESS | ALT | MIG | MIN_RNR}},
		[IBV_QPS_SQD] = {true, {0, NOTIFY}, {0, NOTIFY}, {0, NOTIFY}, {0, NOTIFY}, {0, NOTIFY}},
	    },
	[IBV_QPS_SQD] =
	    {
		ANY_TO_RESET_AND_ERROR,
		[IBV_QPS_RTS] = {true,
				 {0, CUR | ACCESS | ALT | MIG | MIN_RNR},
				 {0, CUR | ACCESS | ALT | MIG},
				 {0, CUR | QKEY},
				 {0, CUR | ACCESS | ALT | MIG},
				 {0, CUR | ACCESS | ALT | MIG | MIN_RNR}},
		[IBV_QPS_SQD] = {true,
				 {0, PORT | AV | TIMEOUT | RETRY | RNR | DEPTH | DEST_RD | ALT | ACCESS |
					 PKEY | MIN_RNR | MIG},
				 {0, AV | ALT | ACCESS | PKEY | MIG},
				 {0, PKEY | QKEY},
				 {0, PORT | AV | TIMEOUT | RETRY | RNR | DEPTH | ALT | ACCESS | PKEY | MIG},
				 {0, PORT | AV | TIMEOUT | DEST_RD | ALT | ACCESS | PKEY | MIN_RNR | MIG}},
	    },
	/* the reliable types never get to SQE: their send errors lead to ERR */
	[IBV_QPS_SQE] =
	    {
		ANY_TO_RESET_AND_ERROR,
		[IBV_QPS_RTS] = {true, {0, 0}, {0, CUR | ACCESS}, {0, CUR | QKEY}, {0, 0}, {0, 0}},
	    },
	[IBV_QPS_ERR] = {ANY_TO_RESET_AND_ERROR},
};

static bool reliable(enum ibv_qp_type type)
{
	return type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV;
}

static const struct vb_qp_masks *masks_of(const struct vb_qp_transition *t, enum ibv_qp_type type)
{
	switch (type) {
	case IBV_QPT_RC:
		return &t->rc;
	case IBV_QPT_UC:
		return &t->uc;
	case IBV_QPT_XRC_SEND:
		return &t->xrc_send;
	case IBV_QPT_XRC_RECV:
		return &t->xrc_recv;
	case IBV_QPT_UD:
	case IBV_QPT_RAW_PACKET: /* these last two are not made */
	case IBV_QPT_DRIVER:
		break;
	}
	return &t->ud;
}

uint32_t vb_qp_ignores(enum ibv_qp_type type)
{
	switch (type) {
	case IBV_QPT_XRC_SEND:
		return DEST_RD | MIN_RNR;
	case IBV_QPT_XRC_RECV:
		return DEPTH | RETRY | RNR;
	default:
		return 0;
	}
}

enum vb_qp_verdict vb_qp_judge(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to,
			       uint32_t mask, uint32_t *bits)
{
	const struct vb_qp_transition *t;
	const struct vb_qp_masks *m;

	*bits = 0;
	if ((unsigned)from >= VB_QP_STATES || (unsigned)to >= VB_QP_STATES)
		return VB_QP_NO_WAY;
	t = &vb_qp_transitions[from][to];
	if (!t->valid || (from == IBV_QPS_SQE && reliable(type)))
		return VB_QP_NO_WAY;
	m = masks_of(t, type);
	*bits = m->required & ~mask;
	if (*bits)
		return VB_QP_MISSING;
	*bits = mask & ~(m->required | m->optional | IBV_QP_STATE);
	return *bits ? VB_QP_EXCESS : VB_QP_FINE;
}

const char *vb_qp_state_name(enum ibv_qp_state s)
{
	static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};

	return (unsigned)s < VB_QP_STATES ? names[s] : "an unknown state";
}

const char *vb_qp_attr_names(char *buf, size_t size, uint32_t mask)
{
	static const char *const names[] = {
	    "IBV_QP_STATE",
	    "IBV_QP_CUR_STATE",
	    "IBV_QP_EN_SQD_ASYNC_NOTIFY",
	    "IBV_QP_ACCESS_FLAGS",
	    "IBV_QP_PKEY_INDEX",
	    "IBV_QP_PORT",
	    "IBV_QP_QKEY",
	    "IBV_QP_AV",
	    "IBV_QP_PATH_MTU",
	    "IBV_QP_TIMEOUT",
	    "IBV_QP_RETRY_CNT",
	    "IBV_QP_RNR_RETRY",
	    "IBV_QP_RQ_PSN",
	    "IBV_QP_MAX_QP_RD_ATOMIC",
	    "IBV_QP_ALT_PATH",
	    "IBV_QP_MIN_RNR_TIMER",
	    "IBV_QP_SQ_PSN",
	    "IBV_QP_MAX_DEST_RD_ATOMIC",
	    "IBV_QP_PATH_MIG_STATE",
	    "IBV_QP_CAP",
	    "IBV_QP_DEST_QPN",
	};
	const uint32_t known = (1u << (sizeof(names) / sizeof(names[0]))) - 1;
	size_t len = 0;

	buf[0] = '\0';
	for (unsigned i = 0; known >> i && len < size; i++)
		if (mask >> i & 1)
			len += (size_t)snprintf(buf + len, size - len, "%s%s", len ? ", " : "", names[i]);
	if (mask & ~known && len < size)
		snprintf(buf + len, size - len, "%s0x%x", len ? ", " : "", mask & ~known);
	return buf;
}
