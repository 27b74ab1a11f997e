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

/* f->reason is one of KEY_*, MEM_* or ATOMIC_FOREIGN; RECV_LOCAL; INV_*; BIND_*. */
void vb_reason_say_key(struct vb_text *t, const struct vb_facts *f);
void vb_reason_say_receive_buffer(struct vb_text *t, const struct vb_facts *f);
void vb_reason_say_invalidate(struct vb_text *t, const struct vb_facts *f);
void vb_reason_say_bind(struct vb_text *t, const struct vb_facts *f);

#endif
