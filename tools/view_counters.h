/* The files of ports/1/counters/ and ports/1/hw_counters/. */
#ifndef VB_TOOLS_VIEW_COUNTERS_H
#define VB_TOOLS_VIEW_COUNTERS_H

#include <stdint.h>

#include "iba/traffic.h"

/* The i-th file; NULL: there are not so many. */
const char *vb_view_counter(unsigned i);
const char *vb_view_hw_counter(unsigned i);
uint64_t vb_view_counter_value(const struct vb_traffic *t, unsigned i);
uint64_t vb_view_hw_counter_value(const struct vb_traffic *t, unsigned i);

#endif
