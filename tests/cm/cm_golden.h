/* What the kernel's rdma_cm said (golden/mads.h), as tables. */
#ifndef VB_TESTS_CM_GOLDEN_H
#define VB_TESTS_CM_GOLDEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "iba/cm_msg.h"
#include "iba/frame.h"
#include "iba/icrc.h"

enum golden_end { ACTIVE, PASSIVE };

enum { GOLDEN_HEAD = 40 + VB_UDP_LEN + 20 /* IPv6, UDP, BTH and DETH */ };

struct golden {
	const char *story;
	enum golden_end by;
	uint32_t icrc;
	const char *head_hex, *mad_hex;
	/* golden_read(): */
	size_t head_len;
	uint8_t head[GOLDEN_HEAD], mad[VB_MAD_LEN];
	struct vb_cm_msg m;
};

/* What the ends of a story were told. */
struct golden_told {
	const char *story;
	enum golden_end end;
	const char *events;
};

/* The attributes that the kernel made of a connection's messages. */
struct golden_attr {
	const char *story;
	enum golden_end end;
	uint32_t dest_qpn, rq_psn, sq_psn;
	uint8_t path_mtu, timeout, retry_cnt, rnr_retry, max_rd_atomic, max_dest_rd_atomic;
};

extern struct golden golden[];
extern const struct golden_told golden_told[];
extern const struct golden_attr golden_attrs[];
extern const size_t golden_n, golden_told_n, golden_attrs_n;

/* A setup of a group of tests: takes the digits apart. */
int golden_read(void **state);
const char *golden_kind(const struct golden *g);
/* The length of the IP header. */
size_t golden_ip_len(const struct golden *g);
/* From or to where, as a GID. */
struct vb_gid golden_from(const struct golden *g);
struct vb_gid golden_to(const struct golden *g);

#endif
