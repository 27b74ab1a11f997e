/* A reason's facts for programs: an object of JSON, as the log has it (VERBENA_LOG_FORMAT=json). */
#ifndef VB_IBA_FACTS_H
#define VB_IBA_FACTS_H

#include <stddef.h>

#include "base/log_line.h"
#include "iba/reason.h"

/* The object, "" if it does not fit; returns buf.  Facts from a peer are bounds-checked here. */
const char *vb_facts_json(char *buf, size_t size, const struct vb_facts *f);
/* For vb_log_reason_facts(): the same, "" if the log does not want it; returns buf or a constant. */
const char *vb_facts_logged(char buf[VB_LOG_FACTS], const struct vb_facts *f);

#endif
