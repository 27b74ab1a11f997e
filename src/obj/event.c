#include "obj/event.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/eventfd.h"
#include "check/check.h"
#include "host/adapter.h"
#include "obj/context.h"

int vb_evq_init(struct vb_evq *q)
{
	*q = (struct vb_evq){.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC)};
	vb_list_init(&q->nodes);
	return q->fd < 0 ? errno : 0;
}

int vb_evq_guard(struct vb_evq *q, struct vb_adapter *owner, const char *what)
{
	int err = vb_adapter_adopt(owner, q->fd);

	if (err)
		return err;
	q->owner = owner; /* vb_evq_fini() */
	q->what = what;
	return 0;
}

static bool is_ours(struct vb_evq *q)
{
	if (!q->owner)
		return true;
	if (atomic_load_explicit(&q->gone, memory_order_relaxed))
		return false;
	if (vb_likely(vb_adapter_owns(q->owner, q->fd)))
		return true;
	if (!atomic_exchange(&q->gone, true) && !vb_adapter_lost(q->owner))
		vb_log(VB_LOG_ERROR,
		       "this process closed descriptor %d (%s), which belongs to the device: its events no "
		       "longer arrive. Close only descriptors that the program opened, or open the device "
		       "after closing them",
		       q->fd, q->what);
	vb_adapter_rouse(q->owner); /* who waits for it waits for somebody else's */
	return false;
}

void vb_evq_fini(struct vb_evq *q)
{
	if (q->owner)
		vb_adapter_disown(q->owner, q->fd);
	else if (q->fd >= 0)
		close(q->fd);
	q->fd = -1;
}

static __thread struct {
	struct vb_evq *q; /* NULL: none */
	bool come;
} expected;

const bool *vb_evq_expect(struct vb_evq *q)
{
	expected.q = q;
	expected.come = false;
	return &expected.come;
}

bool vb_evq_expected(void)
{
	expected.q = NULL;
	return expected.come;
}

/* Each write is a new edge for edge-triggered epoll, also when tokens are there already (rule 33).  It cannot
 * fail or block: the counter is never near its end. */
void vb_evq_add(struct vb_evq *q)
{
	int err = errno;
	uint64_t one = 1;
	ssize_t n;

	if (expected.q == q && !expected.come) {
		expected.come = true;
		return;
	}
	if (q->added) {
		q->added(q);
		return;
	}
	if (!is_ours(q))
		return;
	do
		n = syscall(SYS_write, q->fd, &one, sizeof(one)); /* no cancellation point: locks are held */
	while (n < 0 && errno == EINTR);
	errno = err; /* whoever makes progress is in the middle of another call */
}

int vb_evq_read(struct vb_evq *q)
{
	uint64_t token;

	if (!is_ours(q))
		return EBADF;
	return read(q->fd, &token, sizeof(token)) < 0 ? errno : 0;
}

bool vb_evq_idle(struct vb_evq *q)
{
	bool idle;

	vb_lock_take(&q->lock);
	idle = vb_list_empty(&q->nodes) && !atomic_load_explicit(&q->gone, memory_order_relaxed);
	vb_lock_give(&q->lock);
	return idle;
}

int vb_evq_try(struct vb_evq *q)
{
	return is_ours(q) ? vb_eventfd_try(q->fd) : EBADF;
}

bool vb_evq_spent(struct vb_evq *q)
{
	vb_lock_assert_held(&q->lock);
	if (vb_likely(!q->debt))
		return false;
	q->debt--;
	return true;
}

void vb_evq_take_back(struct vb_evq *q, uint32_t n)
{
	vb_lock_assert_held(&q->lock);
	if (q->added)
		return;
	while (n && vb_evq_try(q) == 0)
		n--;
	q->debt += n; /* the rest are in the hands of readers */
}

void vb_async_init(struct vb_async_node *n, enum ibv_event_type type, void *element)
{
	*n = (struct vb_async_node){.ev.event_type = type};
	vb_check_handed();	    /* the object is new, and its events may come from any thread */
	n->ev.element.qp = element; /* all members of the union are pointers */
	vb_list_init(&n->link);
}

static void post_one(struct vb_context *c, struct vb_async_node *n)
{
	bool fresh;

	vb_lock_take(&c->async.lock);
	fresh = !vb_list_linked(&n->link);
	if (fresh) {
		vb_check_handed();
		vb_list_append(&c->async.nodes, &n->link);
	}
	vb_lock_give(&c->async.lock);
	if (fresh)
		vb_evq_add(&c->async);
}

void vb_async_post(struct vb_context *c, struct vb_async_node *n)
{
	for (; n; c = n->also_in, n = n->also)
		if (vb_likely(!n->deaf))
			post_one(c, n);
}

void vb_async_turn(struct vb_context *c, struct vb_async_node *n, struct vb_async_node *opposite)
{
	bool fresh;

	vb_lock_take(&c->async.lock);
	fresh = !vb_list_linked(&n->link);
	if (fresh) {
		vb_check_handed();
		vb_list_append(&c->async.nodes, &n->link);
	} else if (opposite != n && vb_list_linked(&opposite->link)) {
		vb_list_unlink(&opposite->link);
		vb_evq_take_back(&c->async, 1);
	}
	vb_lock_give(&c->async.lock);
	if (fresh)
		vb_evq_add(&c->async);
}

void vb_async_cancel(struct vb_context *c, struct vb_async_node *n)
{
	vb_lock_take(&c->async.lock);
	if (vb_list_linked(&n->link)) {
		vb_list_unlink(&n->link);
		vb_evq_take_back(&c->async, 1);
	}
	vb_lock_give(&c->async.lock);
}
