/* fork() and shared memory; see share_fork.c. */
#ifndef VB_TOOLS_SHARE_FORK_H
#define VB_TOOLS_SHARE_FORK_H

#include "share.h"

/* What is needed then is opened before: false, it cannot be. */
bool vb_fork_ready(void);
void vb_fork_handlers(void (**before)(void), void (**parent)(void), void (**child)(void));

#endif
