/* Questions to a peer's process, which its engine answers whatever its program does.  The message of each
 * begins with a struct vb_ask_head, and so does its answer, whose ticket is the question's. */
#ifndef VB_HCA_ASK_H
#define VB_HCA_ASK_H

#include <stddef.h>
#include <stdint.h>

#include "hca/hca.h"

struct vb_ask_head {
	uint32_t kind;	 /* the asker's own matter */
	uint32_t ticket; /* of the question; vb_ask() sets it */
};

struct vb_answer {
	size_t len;
	int fd; /* the caller's; -1: none came, or this process has no room for it */
	_Alignas(8) uint8_t msg[VB_TELL_MAX];
};

/* How long the calls are willing to wait. */
#define VB_ASK_PATIENCE (2 * VB_SEC)

/* Asks, and waits for the answer, until `until` at most.  0; EIO: the peer is gone; ETIMEDOUT: it does not
 * answer.  A question may be heard more than once, and also after this has returned.  Without locks. */
int vb_ask(struct vb_peer *peer, uint8_t subject, void *msg, size_t len, uint64_t until,
	   struct vb_answer *answer);
/* An answer came, to a question of that subject; fd stays the caller's.  For the one who hears it. */
void vb_ask_answered(struct vb_peer *peer, uint8_t subject, const void *msg, size_t len, int fd);

#endif
