/* The parts of `verbena explain`. */
#ifndef VB_TOOLS_EXPLAIN_H
#define VB_TOOLS_EXPLAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "peek.h"

enum { VB_TIME_TEXT = 40 };

/* Nanoseconds of CLOCK_REALTIME: in UTC, as logs of several machines are compared; or local, for people. */
void vb_time_text(char buf[VB_TIME_TEXT], uint64_t ns, bool utc);

/* ids.c: the rdma_cm ids of the process, and what its connection managers have counted. */
void vb_ids_print(const struct peek *p);
/* Calls look() with each id; returns how many there are. */
struct vb_shown_id;
uint32_t vb_ids_each(const struct peek *p, void (*look)(const struct vb_shown_id *id, void *with),
		     void *with);
struct vb_text;
void vb_ids_add_events(struct vb_text *t, uint32_t events); /* a mask, as names */
void vb_ids_add_address(struct vb_text *t, const struct vb_shown_id *id, const uint8_t gid[16],
			uint16_t port);
/* Adds members to o. */
void vb_ids_json(const struct peek *p, struct json_object *o);

#endif
