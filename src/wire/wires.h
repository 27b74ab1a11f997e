/* The wires that there are: a further one is a file here and a row in the table. */
#ifndef VB_WIRE_WIRES_H
#define VB_WIRE_WIRES_H

#include "host/adapter.h"
#include "iba/net.h"

/* That between processes of this host: what VERBENA_WIRE names, if this build has it; it says once if not. */
const struct vb_wire *vb_wire_to_peers(void);

/* By which way packets go: `auto` takes shared memory to processes of this user in this network namespace,
 * and UDP to all others; the others force one of the two, UDP also to this very process. */
enum vb_wire_way { VB_WIRE_AUTO, VB_WIRE_SHM, VB_WIRE_UDP };
enum vb_wire_way vb_wire_way(void);

/* That to other hosts (iba/net.h). */
const struct vb_net_wire *vb_wire_to_hosts(void);

/* What is wrong with VERBENA_WIRE, as a clause; NULL: nothing.  The first of the others says it once. */
const char *vb_wire_wrong(void);

#endif
