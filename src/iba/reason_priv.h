/* The parts of vb_reason_say(), in iba/reason.c and iba/reason_key.c. */
#ifndef VB_IBA_REASON_PRIV_H
#define VB_IBA_REASON_PRIV_H

#include "base/text.h"
#include "iba/reason.h"

/* [0x1000, +64) */
void vb_text_range(struct vb_text *t, uint64_t start, uint64_t size);
/* "64 bytes", "1 byte" */
void vb_text_bytes(struct vb_text *t, uint64_t n);
/* Access bits by name, joined by `between`, each with `prefix`. */
void vb_text_access(struct vb_text *t, uint32_t bits, const char *prefix, const char *between,
		    const char *nothing);

/* The sentences, one for each reason.  `of` are f's facts of the reason's kind. */
#define REASON(r, name, nak, remote_wc, local_wc, event, kind, say) \
	void say(struct vb_text *t, const struct vb_facts *f, const struct vb_##kind##_facts *of);
#include "iba/reason_list.h"
#undef REASON
/* Adds the sentence of f->reason, whatever the facts are. */
void vb_reason_add(struct vb_text *t, const struct vb_facts *f);

#endif
