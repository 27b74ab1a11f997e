/* verbena bundle: the parts that other commands do not print. */
#ifndef VB_TOOLS_BUNDLE_H
#define VB_TOOLS_BUNDLE_H

#include <stdio.h>

#include "peek.h"

/* The interfaces of the process's network namespace, and the routes to the hosts that its queue pairs lead
 * to. */
void vb_bundle_network(FILE *f, const struct peek *p);

#endif
