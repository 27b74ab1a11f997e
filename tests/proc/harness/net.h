/* Interfaces of a network namespace of the test's own (kit_own_network): made, addressed, set up and down. */
#ifndef VB_TESTS_NET_H
#define VB_TESTS_NET_H

#include <stdbool.h>

/* Whether there can be such a namespace with interfaces; false: it has been said why not.  To be asked first.
 */
bool kit_net_can(void);
/* A namespace of this process's own whose lo is up. */
void kit_net_begin(void);
/* A new interface, which is down. */
void kit_net_make(const char *name);
void kit_net_set(const char *name, bool up);
/* Gives the interface an IPv4 address, with 24 bits of network, or takes it away. */
void kit_net_address(const char *name, const char *address, bool there);

#endif
