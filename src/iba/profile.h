/* Profiles: the limits and manners of the device that a process finds, as data.
 *
 * VERBENA_PROFILE (`verbena run --profile=NAME`) chooses a row for the process; what is advertised and what
 * is refused read the same row.  Rows stay within the constants of iba/limits.h, which are what tables have
 * room for.  Processes of different profiles work with one another: nothing here is on the wire.
 * docs/profiles.md shows the table. */
#ifndef VB_IBA_PROFILE_H
#define VB_IBA_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

struct vb_profile {
	const char *name;
	const char *doc; /* one line, for people */

	/* limits: more is refused with EINVAL (a size) or ENOMEM (a number of objects) */
	uint32_t max_qp, max_cq, max_mr, max_mw, max_pd, max_ah, max_srq; /* objects that live at a time */
	uint32_t max_mcast_grp;	      /* multicast groups that an adapter's queue pairs are attached to */
	uint32_t max_mcast_qp_attach; /* queue pairs of one group */
	uint32_t max_mcast_attach;    /* of all groups: max_total_mcast_qp_attach */
	uint32_t max_qp_wr, max_srq_wr, max_cqe;
	uint32_t max_sge, max_srq_sge, max_inline;
	uint32_t max_rd_atomic;	    /* of one QP, as initiator and as target */
	uint32_t max_res_rd_atomic; /* of all QPs, as advertised */
	uint32_t max_msg;
	uint64_t max_mr_size;
	uint32_t max_dm; /* bytes of device memory, of all its objects; 0: there is none */

	/* what is only told */
	uint64_t page_size_cap;
	unsigned caps; /* device_cap_flags */
	enum ibv_atomic_cap atomic_cap;
	uint8_t ack_delay; /* local_ca_ack_delay */
	uint32_t vendor_id, vendor_part;

	/* manners */
	bool page_offset;  /* a region's iova must stand at the same offset of a page as its address */
	bool on_demand;	   /* on-demand regions */
	bool pins;	   /* regions count against RLIMIT_MEMLOCK */
	bool fork_marks;   /* regions are for ibv_fork_init() to keep from children */
	bool equal_keys;   /* a region's L_Key and R_Key are the same number */
	bool late_sinks;   /* the L_Key of what READs and atomics bring is looked at when the answer comes */
	bool death_events; /* a peer that dies without a goodbye puts connected QPs into the error state */
};

/* The row that this process has, chosen at the first call. */
const struct vb_profile *vb_profile(void);

/* The name in VERBENA_PROFILE that is no row's (vb_profile() is `default` then), else NULL. */
const char *vb_profile_unknown(void);

/* By name, NULL: there is none. */
const struct vb_profile *vb_profile_find(const char *name);

/* "default, strict, rxe", for sentences. */
const char *vb_profile_names(void);

#endif
