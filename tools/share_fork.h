/* fork() and shared memory; see share_fork.c. */
#ifndef VB_TOOLS_SHARE_FORK_H
#define VB_TOOLS_SHARE_FORK_H

#include "share.h"

/* What is needed then is opened before: false, it cannot be. */
bool vb_fork_ready(void);
/* Whether one goes on, so that no pages are given out: a child would share them.  Under the lock. */
bool vb_fork_goes_on(void);
/* vb_share_enter() when none goes on.  It does not wait for ever: this thread may hold a lock of the C
 * library that fork() waits for. */
void vb_fork_enter(struct vb_share_turn *t);
/* The C library's fork(), on a stack of its own. */
pid_t vb_fork_elsewhere(pid_t (*fork)(void));
void vb_fork_handlers(void (**before)(void), void (**parent)(void), void (**child)(void));

#endif
