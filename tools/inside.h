/* The objects of another process that uses Verbena, read out of its memory from outside: it may be stopped,
 * and does not notice.  The command and the library have to be of the same build. */
#ifndef VB_TOOLS_INSIDE_H
#define VB_TOOLS_INSIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/waiting.h"
#include "obj/context.h"
#include "obj/cq.h"
#include "obj/qp.h"
#include "obj/srq.h"
#include "peek.h"

enum vb_inside_state {
	VB_INSIDE_READ,
	VB_INSIDE_DENIED, /* the kernel does not permit it; err says why */
	VB_INSIDE_BUILD,  /* it runs another build */
	VB_INSIDE_GONE,	  /* it ended meanwhile */
};

/* Copies of objects.  `at` is where each stands there; what their pointers mean is another question. */
struct vb_inside_qp {
	uint64_t at;
	struct vb_qp qp __attribute__((aligned(VB_LINE)));
};
struct vb_inside_cq {
	uint64_t at;
	struct vb_cq cq __attribute__((aligned(VB_LINE)));
};
struct vb_inside_srq {
	uint64_t at;
	struct vb_srq srq __attribute__((aligned(VB_LINE)));
};
struct vb_inside_channel {
	uint64_t at;
	struct vb_channel channel __attribute__((aligned(VB_LINE)));
};

struct vb_inside {
	enum vb_inside_state state;
	int err;
	pid_t pid;
	uint64_t now; /* CLOCK_MONOTONIC of the copies */
	size_t nqps, ncqs, nsrqs, nchannels, nwaitings;
	struct vb_inside_qp **qps;
	struct vb_inside_cq **cqs;
	struct vb_inside_srq **srqs;
	struct vb_inside_channel **channels;
	struct vb_waiting *waitings; /* of threads that exist */
};

void vb_inside_open(struct vb_inside *in, const struct peek *p); /* pairs with vb_inside_close() */
void vb_inside_close(struct vb_inside *in);

/* Copies memory of the process.  false: not all of it is there. */
bool vb_inside_get(const struct vb_inside *in, const void *there, void *here, size_t len);

const struct vb_inside_cq *vb_inside_find_cq(const struct vb_inside *in, const void *at);
const struct vb_inside_srq *vb_inside_find_srq(const struct vb_inside *in, const void *at);
const struct vb_inside_channel *vb_inside_find_channel(const struct vb_inside *in, const void *at);
/* By its number. */
const struct vb_inside_qp *vb_inside_find_qp(const struct vb_inside *in, uint32_t qpn);

/* The address to which the queue pair's path leads over a network, 16 bytes; NULL: it leads nowhere, or to a
 * process of this host. */
const uint8_t *vb_inside_host(const struct vb_qp *qp);

#endif
