#include "iba/profile.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "iba/limits.h"

/* A locally administered OUI: no manufacturer's, and in no program's list of special devices. */
#define VENDOR_ID      0x025642
#define VENDOR_PART    1
#define VENDOR_ID_NONE 0xffffff /* IBTA: a device without a manufacturer */

#define CAPS                                                                             \
	(IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_MEM_WINDOW | \
	 IBV_DEVICE_MEM_WINDOW_TYPE_2B) /* never both 2A and 2B (rule 48) */

static const struct vb_profile rows[] = {
    {
	.name = "default",
	.doc = "all features of Verbena; memory is not pinned, and fork() is safe",
	.max_qp = VB_MAX_QP,
	.max_cq = VB_MAX_CQ,
	.max_mr = VB_MAX_MR,
	.max_mw = VB_MAX_MW,
	.max_pd = VB_MAX_PD,
	.max_ah = VB_MAX_AH,
	.max_srq = VB_MAX_SRQ,
	.max_mcast_grp = VB_MAX_MCAST_GRP,
	.max_mcast_qp_attach = 240,
	.max_mcast_attach = 240 * VB_MAX_MCAST_GRP,
	.max_qp_wr = VB_MAX_QP_WR,
	.max_srq_wr = VB_MAX_SRQ_WR,
	.max_cqe = VB_MAX_CQE,
	.max_sge = VB_MAX_SGE,
	.max_srq_sge = VB_MAX_SGE,
	.max_inline = VB_MAX_INLINE,
	.max_rd_atomic = VB_MAX_RD_ATOMIC,
	.max_res_rd_atomic = VB_MAX_RD_ATOMIC * VB_MAX_QP,
	.max_msg = VB_MAX_MSG,
	.max_mr_size = 1ull << 47, /* what an address space holds */
	.max_dm = VB_MAX_DM,
	.page_size_cap = ~0xfffull,
	.caps = CAPS | IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_XRC,
	.atomic_cap = IBV_ATOMIC_HCA, /* they are more, GLOB, but programs look for what adapters say */
	.ack_delay = 16,
	.vendor_id = VENDOR_ID,
	.vendor_part = VENDOR_PART,
	.on_demand = true,
	.death_events = true,
    },
    {
	/* A ConnectX-5 or -6 as ibv_devinfo shows it (driver mlx5), where our tables do not end first.  Its
	 * inline limit depends on the rest of a QP's attributes; this much is always to be had. */
	.name = "strict",
	.doc = "like a common adapter: pins memory (RLIMIT_MEMLOCK), no on-demand regions, lower limits",
	.max_qp = VB_MAX_QP,
	.max_cq = VB_MAX_CQ,
	.max_mr = VB_MAX_MR,
	.max_mw = VB_MAX_MW,
	.max_pd = VB_MAX_PD,
	.max_ah = VB_MAX_AH,
	.max_srq = VB_MAX_SRQ,
	.max_mcast_grp = VB_MAX_MCAST_GRP,
	.max_mcast_qp_attach = 240,
	.max_mcast_attach = 240 * VB_MAX_MCAST_GRP,
	.max_qp_wr = VB_MAX_QP_WR,
	.max_srq_wr = VB_MAX_SRQ_WR,
	.max_cqe = VB_MAX_CQE - 1,
	.max_sge = 30,
	.max_srq_sge = 31,
	.max_inline = 512,
	.max_rd_atomic = 16,
	.max_res_rd_atomic = 16 * VB_MAX_QP,
	.max_msg = 1u << 30,
	.max_mr_size = UINT64_MAX,
	.max_dm = 256u << 10,
	.page_size_cap = ~0xfffull,
	.caps = CAPS | IBV_DEVICE_XRC,
	.atomic_cap = IBV_ATOMIC_HCA,
	.ack_delay = 16,
	.vendor_id = VENDOR_ID,
	.vendor_part = VENDOR_PART,
	.page_offset = true,
	.pins = true,
	.fork_marks = true,
	.late_sinks = true,
    },
    {
	/* Linux 6.1 and later: drivers/infiniband/sw/rxe/rxe_param.h, where our tables do not end first; its
	 * message size as later ones have it, since that is what it takes. */
	.name = "rxe",
	.doc = "like the kernel's soft-RoCE: its limits, and a region's L_Key and R_Key are equal",
	.max_qp = VB_MAX_QP,
	.max_cq = VB_MAX_CQ,
	.max_mr = (1 << 19) - 1,
	.max_mw = VB_MAX_MW,
	.max_pd = VB_MAX_PD,
	.max_ah = (1 << 15) - 1,
	.max_srq = VB_MAX_SRQ,
	.max_mcast_grp = 8192,
	.max_mcast_qp_attach = 56,
	.max_mcast_attach = 0x70000,
	.max_qp_wr = VB_MAX_QP_WR,
	.max_srq_wr = VB_MAX_SRQ_WR,
	.max_cqe = (1 << 15) - 1,
	.max_sge = 32,
	.max_srq_sge = 27,
	.max_inline = 512,
	.max_rd_atomic = 128,
	.max_res_rd_atomic = 0x3f000,
	.max_msg = VB_MAX_MSG,
	.max_mr_size = UINT64_MAX,
	.page_size_cap = 0xfffff000,
	.caps = CAPS,
	.atomic_cap = IBV_ATOMIC_HCA,
	.ack_delay = 15,
	.vendor_id = VENDOR_ID_NONE,
	.vendor_part = 0,
	.page_offset = true,
	.equal_keys = true,
	.death_events = true,
    },
};

enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

static_assert(VB_MAX_INLINE >= 512 && VB_MAX_SGE >= 32 && VB_MAX_RD_ATOMIC >= 128, "rows fit the tables");

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct vb_profile *chosen; /* set once */
static char unknown[64];		/* set once; "": none */

static void choose(void)
{
	const char *name = secure_getenv("VERBENA_PROFILE");

	chosen = name && *name ? vb_profile_find(name) : &rows[0];
	if (!chosen) {
		snprintf(unknown, sizeof(unknown), "%s", name);
		chosen = &rows[0];
	}
}

const struct vb_profile *vb_profile(void)
{
	pthread_once(&once, choose);
	return chosen;
}

const char *vb_profile_unknown(void)
{
	pthread_once(&once, choose);
	return *unknown ? unknown : NULL;
}

const struct vb_profile *vb_profile_find(const char *name)
{
	for (size_t i = 0; i < ROWS; i++)
		if (!strcmp(rows[i].name, name))
			return &rows[i];
	return NULL;
}

const char *vb_profile_names(void)
{
	static_assert(ROWS == 3, "each row is named here");
	return "default, strict, rxe";
}
