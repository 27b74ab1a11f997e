/* What a wrong key was probably meant to be: for the sentence about it. */
#ifndef VB_MEM_NEAR_H
#define VB_MEM_NEAR_H

#include "iba/reason.h"
#include "mem/keys.h"

struct vb_mem_want;

enum { VB_NEAR_LOOK = 65536 }; /* entries looked at: this runs with a QP's lock held */

/* Adds to the facts of a key that is unknown, stale, of another domain or too short, or whose process is not
 * there: how address and key would be right (the bytes reversed, one taken for the other, half of the address
 * lost), else the region that the range lies in or the nearest one, and whether the key is another
 * process's. */
void vb_key_near(struct vb_keys *t, const struct vb_mem_want *w, struct vb_facts *f);

/* A far end has refused a request, by facts about a key: notes that the range lies in a region of this
 * process (of that domain), where it lies in none of the far end's.  Then the address may be the requester's
 * own. */
void vb_key_own(struct vb_keys *t, uint64_t pd, struct vb_facts *f);

#endif
