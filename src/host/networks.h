/* Other network namespaces of this host, as /proc shows them. */
#ifndef VB_HOST_NETWORKS_H
#define VB_HOST_NETWORKS_H

#include <stdbool.h>
#include <stdint.h>

/* The PID of a process of this user in another network namespace that has this address (as a GID); 0: none is
 * known.  A process that has an adapter is preferred.  Reads files of many processes: no lock may be held. */
uint32_t vb_network_whose(const uint8_t address[16]);

/* One number for each network namespace: that of the process (its directory in /proc); 0: unknown. */
unsigned long vb_network_of(const char *pid);
/* Whether the process has that socket open; false also where this process may not look. */
bool vb_network_has_open(const char *pid, unsigned long inode);

/* This thread's directory.  Not "self": the first thread may have ended, or be in another network namespace.
 */
#define VB_NETWORK_SELF "thread-self"

#endif
