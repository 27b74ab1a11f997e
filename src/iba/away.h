/* An address that is none of this network namespace: in words. */
#ifndef VB_IBA_AWAY_H
#define VB_IBA_AWAY_H

#include <stdint.h>

#include "base/text.h"

/* Adds "not an address of this network namespace", the process of this user that has it in another one (0:
 * none is known), and what to do. */
void vb_away_add(struct vb_text *t, uint32_t pid);
/* The same of an address that a program binds to. */
void vb_away_add_source(struct vb_text *t, uint32_t pid);

#endif
