/* An address that is none of this network namespace: in words. */
#ifndef VB_IBA_AWAY_H
#define VB_IBA_AWAY_H

#include <stdint.h>

#include "base/text.h"

/* Why packets do not leave for an address of another host. */
enum vb_away {
	VB_AWAY_CLOSED, /* no interface is open for that */
	VB_AWAY_SHM,	/* the user wants shared memory only */
	VB_AWAY_FAILED, /* an interface was to be opened, which failed */
};

struct vb_reach_away {
	uint32_t pid; /* a process of this user in another network namespace that has the address; 0: none is
			 known */
	uint32_t obstacle; /* enum vb_away */
	uint8_t gid[16];   /* the address; all zero: it is not at hand */
	char ifname[16];   /* of the interface that leads there; "": none does, or it is not at hand.  Not
			      terminated if it is full */
};

/* Adds "not an address of this network namespace", the process of this user that has it in another one, why
 * other hosts are not reached, and what to do. */
void vb_away_add(struct vb_text *t, const struct vb_reach_away *a);
/* The same of an address that a program binds to.  pid: as in struct vb_reach_away. */
void vb_away_add_source(struct vb_text *t, uint32_t pid);

#endif
