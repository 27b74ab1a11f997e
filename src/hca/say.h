/* What a peer has to hear, sooner or later: messages that are kept while its socket has no room. */
#ifndef VB_HCA_SAY_H
#define VB_HCA_SAY_H

#include <stddef.h>
#include <stdint.h>

#include "hca/hca.h"

/* As vb_peer_tell() without a descriptor, but what cannot be said now is said later, unless the peer goes or
 * there is no memory to keep it.  What two threads say at once may change places.  Any thread may call it,
 * and may hold any lock of a queue pair. */
void vb_hca_say(struct vb_peer *peer, uint8_t subject, const void *msg, size_t len);
/* Says what can be said now of what was kept.  Returns when to try again, VB_NEVER: nothing is left. The
 * engine. */
uint64_t vb_hca_say_on(struct vb_hca *h, uint64_t now);
/* The engine has ended. */
void vb_hca_say_close(struct vb_hca *h);

#endif
