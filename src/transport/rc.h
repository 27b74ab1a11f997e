/* The protocol of connected queue pairs: requester, responder, completer.  Reliable ones (RC) have the whole
 * of it; of unreliable ones (UC) a request is complete when its packets have left, and the responder drops
 * what it would refuse otherwise. */
#ifndef VB_TRANSPORT_RC_H
#define VB_TRANSPORT_RC_H

#include <stdint.h>

#include "base/clock.h"
#include "transport/transport.h"

extern const struct vb_transport vb_rc_transport;
extern const struct vb_transport vb_xrc_initiator_transport, vb_xrc_target_transport;
extern const struct vb_transport vb_uc_transport;
extern const struct vb_transport vb_ud_transport; /* ud.c: no connection, and a short file of its own */

/* Local ACK Timeout code in nanoseconds: 4.096 us * 2^code, 0: VB_NEVER; and a min_rnr_timer code
 * (IBTA 9.7.5.2.8). */
uint64_t vb_rc_ack_timeout(uint8_t code);
uint64_t vb_rc_rnr_delay(uint8_t code);

#endif
