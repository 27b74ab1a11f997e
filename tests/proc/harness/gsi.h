/* QP1's user in a test: one that only listens. */
#ifndef VB_TESTS_GSI_H
#define VB_TESTS_GSI_H

#include "hca/gsi.h"

/* Opens QP1 of an adapter; `heard` is called for each MAD, with `user`, by that adapter's engine.  One user
 * in a process: what it was given stays until the process ends. */
void kit_gsi_open(struct vb_hca *hca, void (*heard)(void *user, const struct vb_gsi_mad *m), void *user);
/* How many other processes its user was told to be gone, or not to be reached. */
extern _Atomic int kit_gsi_gone;

#endif
