/* What the two files of import share. */
#ifndef VB_VERBS_IMPORT_H
#define VB_VERBS_IMPORT_H

#include <stddef.h>

#include "host/adapter.h"
#include "obj/context.h"

/* The link to the adapter into whose tables the context's handles lead; NULL with errno, which has been said:
 * it is gone. */
struct vb_peer *vb_import_owner(struct ibv_context *context, const char *call);

#define OWNER_ENDED "the process whose device was imported has ended"

/* A message of the peer's import_dm.c. */
void vb_import_told(struct vb_peer *peer, const void *msg, size_t len, int fd);

#endif
