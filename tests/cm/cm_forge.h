/* MADs that nobody meant: made of nothing, of what others have said, and of what the kernel said, with
 * numbers in them that somebody knows. */
#ifndef VB_TESTS_CM_FORGE_H
#define VB_TESTS_CM_FORGE_H

#include <stdint.h>

#include "iba/cm_msg.h"

enum { FORGE_KEPT = 32, FORGE_KNOWN = 128 };

struct forge {
	uint64_t chance;
	uint8_t kept[FORGE_KEPT][VB_MAD_LEN]; /* the latest that were said */
	uint64_t known[FORGE_KNOWN];	      /* the latest comm IDs, QPNs, PSNs, GUIDs and so on in them */
	unsigned n_kept, n_known;	      /* ever */
};

void forge_begin(struct forge *f, uint64_t seed);
uint64_t forge_random(struct forge *f);
/* A number below `below`. */
uint32_t forge_pick(struct forge *f, uint32_t below);
/* Somebody says this. */
void forge_note(struct forge *f, const uint8_t mad[VB_MAD_LEN]);
/* Whatever it is, reading it and writing what was read is the same as it is. */
void forge_mad(struct forge *f, uint8_t mad[VB_MAD_LEN]);

#endif
