/* An adapter of one's own beside the one that all contexts of the process share: a second peer in one
 * process. */
#ifndef VB_TESTS_ADAPTER_H
#define VB_TESTS_ADAPTER_H

#include <infiniband/verbs.h>

struct ibv_context *kit_adapter_open(void);
void kit_adapter_close(struct ibv_context *c);

#endif
