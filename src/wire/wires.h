/* The wires that there are: a further one is a file here and a row in the table. */
#ifndef VB_WIRE_WIRES_H
#define VB_WIRE_WIRES_H

#include "host/adapter.h"

/* That between processes of this host: what VERBENA_WIRE names, if this build has it; it says once if not. */
const struct vb_wire *vb_wire_to_peers(void);

#endif
