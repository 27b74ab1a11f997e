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
/* Adds members to o. */
void vb_ids_json(const struct peek *p, struct json_object *o);

#endif
