/* Queues of events behind a descriptor: asynchronous events of a context, completion events of a channel.
 *
 * The descriptor is an eventfd in semaphore mode that counts the queue's length, so blocking, O_NONBLOCK,
 * poll and edge-triggered epoll work as on a kernel's file (rule 33: one wake-up per event written).  The
 * queue is a list of nodes that live in the objects, so posting allocates nothing and cannot fail.  If the
 * program closes the descriptor, the events stay in the list and have no tokens. */
#ifndef VB_OBJ_EVENT_H
#define VB_OBJ_EVENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "base/list.h"
#include "base/lock.h"

struct vb_context;

struct vb_evq {
	struct vb_lock lock;	  /* guards the list and every node's counters */
	struct vb_list nodes;	  /* nodes with undelivered events, in order of their first one */
	uint32_t debt;		  /* tokens of events that were taken back while a reader held the token */
	int fd;			  /* eventfd, EFD_SEMAPHORE; set once */
	struct vb_adapter *owner; /* who tells whether fd is still ours; NULL: nobody */
	const char *what;	  /* in words */
	_Atomic bool gone;	  /* the program closed it */
	/* Instead of a descriptor, which there is none of then: an event was added.  NULL: there is one. */
	void (*added)(struct vb_evq *q);
};

int vb_evq_init(struct vb_evq *q); /* 0 or errno */
/* Has it looked at before each use whether the descriptor is still ours, with the adapter's help; `what`
 * names it in the sentence that says that it is not.  0 or errno. */
int vb_evq_guard(struct vb_evq *q, struct vb_adapter *owner, const char *what);
void vb_evq_fini(struct vb_evq *q);

/* Tokens: there is one in the descriptor for every event in the queue.  A poster links its node under the
 * lock and adds the token after giving the lock back.  A reader takes a token first and then, under the lock,
 * the event that it stands for; vb_evq_spent() tells it that the event was taken back meanwhile. */
void vb_evq_add(struct vb_evq *q);
int vb_evq_try(
    struct vb_evq *q); /* never blocks: 0, EAGAIN, EBADF (not ours any more), or what else it says */
int vb_evq_read(struct vb_evq *q); /* read(2): 0, EAGAIN if O_NONBLOCK, EINTR */
/* A reader that makes progress itself may be the one that adds the token it waits for: that stays in its
 * hand, and nothing is written or read.  From vb_evq_expect() on, in the calling thread, which looks at what
 * is returned; until vb_evq_expected(): whether it has one. */
const bool *vb_evq_expect(struct vb_evq *q);
bool vb_evq_expected(void);
bool vb_evq_idle(struct vb_evq *q);		     /* there is no event, so that a token is none either */
bool vb_evq_spent(struct vb_evq *q);		     /* under lock */
void vb_evq_take_back(struct vb_evq *q, uint32_t n); /* under lock: n events were unlinked */

/* One asynchronous event that an object can raise.  An object has one node per event type that it can raise;
 * a second event of the same kind before the first was fetched is the same event (as devices coalesce). */
struct vb_async_node {
	struct vb_list link;
	struct ibv_async_event ev; /* type and element; set at the object's creation */
	/* Of a queue pair that others have opened: theirs, in which the event is raised too.  Guarded by that
	 * queue pair's lock, under which its events are posted. */
	struct vb_async_node *also; /* NULL: there is none more */
	struct vb_context *also_in;
	bool deaf; /* whoever made the object has closed it: only the others hear */
};

void vb_async_init(struct vb_async_node *n, enum ibv_event_type type, void *element);
void vb_async_post(struct vb_context *c, struct vb_async_node *n);
/* Of two events of which each ends what the other says: one that is waiting already, with its opposite behind
 * it, is true again, and the opposite is taken back.  An event that has none is its own opposite. */
void vb_async_turn(struct vb_context *c, struct vb_async_node *n, struct vb_async_node *opposite);
/* At destruction: takes an undelivered event back. */
void vb_async_cancel(struct vb_context *c, struct vb_async_node *n);
/* How many events of this element ibv_get_async_event() handed out is counted by the object, see *_delivered.
 */

#endif
