/* Refusals that many calls have in common: one sentence for one kind of fault.  Each returns its errno, as
 * vb_refuse() does. */
#ifndef VB_OBJ_REFUSE_H
#define VB_OBJ_REFUSE_H

#include <stdint.h>

/* EIO: a forked child uses what belongs to its parent's device. */
int vb_refuse_forked(const char *call);
/* ENOMEM: malloc() failed. */
int vb_refuse_memory(const char *call);
/* EINVAL: the member `name` is larger than the device permits. */
int vb_refuse_limit(const char *call, const char *name, uint32_t is, uint32_t max);
/* `err`: the member `name` has bits that are not in `known`. */
int vb_refuse_bits(int err, const char *call, const char *name, uint64_t is, uint64_t known);
/* EBUSY: `n` objects of the kind `user` use the object `what`; `end` is the verb that ends them. */
int vb_refuse_used(const char *call, uint32_t n, const char *user, const char *what, const char *end);

#endif
