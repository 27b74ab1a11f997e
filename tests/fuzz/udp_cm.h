/* Connections of rdma_cm (cm/cm.h) over QP1 of a device at work, for the fuzz target. */
#ifndef VB_TESTS_FUZZ_UDP_CM_H
#define VB_TESTS_FUZZ_UDP_CM_H

#include <stdbool.h>
#include <stdint.h>

#include "iba/mad.h"

struct vb_hca;

/* Opens QP1, if it is not open; a listener is there.  `far`: an address of another host, `own`: one of the
 * port. */
void fuzz_cm_open(struct vb_hca *h, const uint8_t own[16], const uint8_t far[16]);
/* What is left ends, and QP1 is closed, if it was open. */
void fuzz_cm_close(void);
/* Makes bytes a MAD of the kind that `how` says, about the connection that `which` says, as far as it says
 * so. */
void fuzz_cm_mad(uint8_t mad[VB_MAD_LEN], unsigned how, unsigned which);
/* The program begins a connection, or makes one of the calls. */
void fuzz_cm_act(unsigned which, unsigned how);
/* What the program does when it hears of something. */
void fuzz_cm_mood(unsigned how);

#endif
