/* What the queue pairs of another process are and have counted, from its segments. */
#ifndef VB_TOOLS_COUNTS_H
#define VB_TOOLS_COUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "iba/traffic.h"
#include "peek.h"

enum { VB_QP_STATES = 7 }; /* IBV_QPS_RESET to IBV_QPS_ERR */

struct vb_qp_row {
	unsigned device; /* index into peek.all */
	uint32_t qpn, dest_qpn, srq, type;
	uint32_t state;	   /* enum ibv_qp_state */
	uint32_t expected; /* PSN that it expects next, if `receives` */
	bool receives;
	struct vb_traffic traffic;
	/* The process at the other end, as far as it can be read: 0: not known. */
	pid_t peer;
	char peer_program[64];
	struct vb_traffic peer_traffic;
};

/* The queue pairs of a process by device and number.  NULL with *n 0: none; with *n 1: no memory. */
struct vb_qp_row *vb_counts_qps(const struct peek *p, size_t *n);
/* Who is at the other end: looks among these processes. */
void vb_counts_meet(const struct peek *p, struct vb_qp_row *rows, size_t n, const struct peek *all,
		    size_t nall);

struct vb_counts {
	uint32_t state[VB_QP_STATES]; /* queue pairs */
	uint32_t qps;
	uint32_t peers;		   /* processes connected to, as their adapters' numbers say */
	uint64_t regions, bytes;   /* memory */
	struct vb_traffic traffic; /* also of queue pairs that are destroyed */
};

/* One device of a process.  false: no memory. */
bool vb_counts_device(const struct peek *p, unsigned device, struct vb_counts *c);
void vb_counts_add(struct vb_counts *sum, const struct vb_counts *c);
/* All of them. */
bool vb_counts_process(const struct peek *p, struct vb_counts *sum);

const char *vb_counts_state(uint32_t state); /* "RTS" */
const char *vb_counts_type(uint32_t type);   /* "RC" */
/* The device's name without what a terminal would obey.  Returns buf. */
const char *vb_counts_device_name(char *buf, size_t size, const struct peek *p, unsigned device);

struct json_object;
void vb_counts_json(struct json_object *o, const struct vb_counts *c);
void vb_counts_traffic_json(struct json_object *o, const struct vb_traffic *t);

/* tools/mr.c */
void vb_mr_sum(const struct peek *p, unsigned device, uint64_t *regions, uint64_t *bytes);

/* tools/metrics.c: Prometheus' text format. */
int vb_metrics_print(const struct peek *all, size_t n);

#endif
