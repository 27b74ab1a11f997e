#include "check/check.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/log_out.h"
#include "base/pages.h"

enum { BUCKETS = 256 };

bool vb_check_on, vb_check_repeats_atomics, vb_check_in_fork;
struct vb_lock vb_check_lock;
struct vb_list vb_check_requests = {&vb_check_requests, &vb_check_requests};
struct vb_range *vb_check_pieces[2];

static const struct vb_checker *rows[VB_CHECKERS]; /* those at work, each at its place; set once */
static struct vb_list queues[BUCKETS];		   /* by their numbers' hash; guarded by the lock */
static struct vb_list xrc = {&xrc, &xrc};	   /* SRQs of XRC */

static const struct vb_checker *_Atomic last; /* of a higher layer, the same in each vb_check_begin() */

static void begin_row(const struct vb_checker *row, unsigned place)
{
	if (!row->begin(place))
		return;
	rows[place] = row;
	vb_check_on = true;
	vb_log_note("the process is checked by %s: each access to its memory is carried out in it",
		    row->name);
}

static void begin(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < BUCKETS; i++)
		vb_list_init(&queues[i]);
	for (; n < VB_CHECKERS - 1 && vb_check_rows[n]; n++)
		begin_row(vb_check_rows[n], n);
	begin_row(atomic_load_explicit(&last, memory_order_relaxed), n);
	if (vb_check_on)
		vb_log_set_handed(vb_check_handed);
}

void vb_check_begin(const struct vb_checker *above)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	atomic_store_explicit(&last, above, memory_order_relaxed);
	pthread_once(&once, begin);
}

/* The row of a higher layer reads buffers that memcheck has closed. */
static void hush(unsigned row, bool on)
{
	if (rows[row] != atomic_load_explicit(&last, memory_order_relaxed))
		return;
	for (unsigned i = 0; i < VB_CHECKERS; i++)
		if (rows[i] && rows[i]->hush)
			rows[i]->hush(on);
}

#define EACH_ROW(member, ...)                                      \
	do {                                                       \
		vb_lock_assert_held(&vb_check_lock);               \
		for (unsigned row = 0; row < VB_CHECKERS; row++) { \
			if (!rows[row] || !rows[row]->member)      \
				continue;                          \
			hush(row, true);                           \
			rows[row]->member(__VA_ARGS__);            \
			hush(row, false);                          \
		}                                                  \
	} while (0)

static struct vb_list *id_head(const struct vb_check_queue *q, uint64_t wr_id)
{
	return &q->ids[(wr_id * 0x9e3779b97f4a7c15 >> 32) & q->mask];
}

static struct vb_list *bucket_of(uint32_t number)
{
	return &queues[(number ^ number >> 12) % BUCKETS];
}

struct vb_check_request *vb_check_slot_at(const struct vb_check_queue *q, uint32_t index)
{
	return (struct vb_check_request *)(q->slots + (index & q->mask) * q->stride);
}

struct vb_check_queue *vb_check_queue_new(enum vb_check_kind kind, uint32_t number, uint32_t entries,
					  uint32_t max_sge)
{
	size_t stride = sizeof(struct vb_check_request) + max_sge * sizeof(struct vb_check_piece);
	size_t ids = kind == VB_CHECK_SHARED ? entries * sizeof(struct vb_list) : 0;
	struct vb_check_queue *q =
	    vb_pages_alloc(sizeof(*q) + ids + entries * stride); /* pairs with _end() */

	if (!q)
		return NULL;
	*q = (struct vb_check_queue){.kind = kind,
				     .number = number,
				     .mask = entries - 1,
				     .stride = stride,
				     .slots = (uint8_t *)(q + 1) + ids,
				     .ids = ids ? (struct vb_list *)(q + 1) : NULL};
	vb_list_init(&q->on_xrc);
	for (uint32_t i = 0; i < entries; i++) {
		vb_list_init(&vb_check_slot_at(q, i)->on_all);
		vb_list_init(&vb_check_slot_at(q, i)->on_id);
		if (ids)
			vb_list_init(&q->ids[i]);
	}
	vb_lock_take(&vb_check_lock);
	vb_list_append(bucket_of(number), &q->on_all);
	vb_lock_give(&vb_check_lock);
	return q;
}

void vb_check_queue_xrc(struct vb_check_queue *q, const void *cq)
{
	vb_lock_take(&vb_check_lock);
	q->cq = cq;
	vb_list_append(&xrc, &q->on_xrc);
	vb_lock_give(&vb_check_lock);
}

static void give_back(struct vb_check_request *r, bool polled)
{
	vb_lock_assert_held(&vb_check_lock);
	if (!vb_list_linked(&r->on_all))
		return;
	vb_list_unlink(&r->on_all);
	vb_list_unlink(&r->on_id);
	for (uint32_t i = 0; i < r->num; i++)
		vb_ranges_remove(&vb_check_pieces[r->writes], &r->piece[i].held);
	EACH_ROW(returned, r, polled);
}

/* What stands before `upto`. */
static void settle(struct vb_check_queue *q, uint32_t upto, bool polled)
{
	for (; (int32_t)(upto - q->from) > 0 && q->from != q->to; q->from++)
		give_back(vb_check_slot_at(q, q->from), polled);
}

void vb_check_queue_reset(struct vb_check_queue *q)
{
	vb_lock_take(&vb_check_lock);
	settle(q, q->to, false);
	q->from = q->to = 0;
	q->failed = false;
	vb_lock_give(&vb_check_lock);
}

void vb_check_queue_end(struct vb_check_queue *q)
{
	vb_check_queue_reset(q);
	vb_lock_take(&vb_check_lock);
	EACH_ROW(queue_ends, q);
	vb_list_unlink(&q->on_all);
	vb_list_unlink(&q->on_xrc);
	vb_lock_give(&vb_check_lock);
	free(q);
}

struct vb_check_request *vb_check_slot(struct vb_check_queue *q, uint32_t index)
{
	struct vb_check_request *r = vb_check_slot_at(q, index);

	vb_lock_assert_held(&vb_check_lock);
	if (q->freed) /* another thread polls, and has not come to vb_check_polled() yet */
		settle(q, atomic_load_explicit(q->freed, memory_order_acquire), true);
	give_back(r, false); /* of a shared queue: room that a later request gave back */
	if (q->from == q->to)
		q->from = index;
	q->to = index + 1;
	r->queue = q;
	r->index = index;
	r->num = 0;
	memset(r->kept, 0, sizeof(r->kept));
	return r;
}

void vb_check_posted(struct vb_check_request *r)
{
	static uint64_t age; /* guarded by the lock */

	vb_lock_assert_held(&vb_check_lock);
	vb_list_append(&vb_check_requests, &r->on_all);
	if (r->queue->ids)
		vb_list_append(id_head(r->queue, r->wr_id), &r->on_id);
	r->age = age++;
	for (uint32_t i = 0; i < r->num; i++) {
		struct vb_check_piece *p = &r->piece[i];

		p->of = r;
		p->held.from = (uintptr_t)p->at;
		p->held.to = (uintptr_t)p->at + p->length;
		vb_ranges_add(&vb_check_pieces[r->writes], &p->held);
	}
	EACH_ROW(posted, r);
}

void vb_check_sends_inline(const struct vb_check_request *r, void *copy, size_t n)
{
	if (n)
		EACH_ROW(sends_inline, r, copy, n);
}

void vb_check_inlined(void *to, const void *from, size_t n)
{
	if (!n)
		return;
	vb_lock_take(&vb_check_lock);
	EACH_ROW(inlined, to, from, n);
	vb_lock_give(&vb_check_lock);
}

struct vb_check_queue *vb_check_queue_of(uint32_t number, enum vb_check_kind kind)
{
	vb_lock_assert_held(&vb_check_lock);
	vb_list_each (n, bucket_of(number)) {
		struct vb_check_queue *q = vb_list_entry(n, struct vb_check_queue, on_all);

		if (q->number == number && q->kind == kind)
			return q;
	}
	return NULL;
}

static void polled_in_order(struct vb_check_queue *q)
{
	uint32_t upto = atomic_load_explicit(q->freed, memory_order_acquire);

	EACH_ROW(polled, q, upto - 1);
	settle(q, upto, true);
}

/* A completion of a shared queue has no more than the wr_id.  A program that gives it to several requests
 * cannot know either which of them it is, so all those that messages have taken return. */
static void polled_by_id(struct vb_check_queue *q, uint64_t wr_id)
{
	uint32_t taken = __atomic_load_n(q->taken, __ATOMIC_ACQUIRE);

	vb_list_each_safe (n, next, id_head(q, wr_id)) {
		struct vb_check_request *r = vb_list_entry(n, struct vb_check_request, on_id);

		if ((int32_t)(taken - r->index) <= 0)
			break;
		if (r->wr_id != wr_id)
			continue;
		EACH_ROW(polled, q, r->index);
		give_back(r, true);
	}
	while (q->from != q->to && (vb_check_slot_at(q, q->from)->index != q->from ||
				    !vb_list_linked(&vb_check_slot_at(q, q->from)->on_all)))
		q->from++;
}

void vb_check_release_taken(struct vb_check_queue *q)
{
	uint32_t taken = __atomic_load_n(q->taken, __ATOMIC_ACQUIRE);

	vb_lock_take(&vb_check_lock);
	for (uint32_t i = q->from; i != q->to && (int32_t)(taken - i) > 0; i++)
		if (vb_check_slot_at(q, i)->index == i)
			give_back(vb_check_slot_at(q, i), false);
	vb_lock_give(&vb_check_lock);
}

static void note_failure(struct vb_check_queue *q)
{
	if (q)
		q->failed = true;
}

void vb_check_failed(uint32_t qpn)
{
	vb_lock_take(&vb_check_lock);
	note_failure(vb_check_queue_of(qpn, VB_CHECK_SENDS));
	note_failure(vb_check_queue_of(qpn, VB_CHECK_RECEIVES));
	vb_lock_give(&vb_check_lock);
}

void vb_check_polled(uint32_t qpn, uint64_t wr_id, const void *cq)
{
	struct vb_check_queue *sends, *receives;

	vb_lock_take(&vb_check_lock);
	sends = vb_check_queue_of(qpn, VB_CHECK_SENDS);
	receives = vb_check_queue_of(qpn, VB_CHECK_RECEIVES);
	if (sends && sends->freed)
		polled_in_order(sends);
	if (receives && receives->freed)
		polled_in_order(receives);
	else if (sends && sends->shared && *sends->shared)
		polled_by_id(*sends->shared, wr_id);
	vb_list_each (n, &xrc) {
		struct vb_check_queue *q = vb_list_entry(n, struct vb_check_queue, on_xrc);

		if (q->cq == cq)
			polled_by_id(q, wr_id);
	}
	vb_lock_give(&vb_check_lock);
}

void vb_check_touches(const struct vb_check_touch *t)
{
	vb_lock_take(&vb_check_lock);
	EACH_ROW(touches, t);
	vb_lock_give(&vb_check_lock);
}

void vb_check_touched(const struct vb_check_touch *t)
{
	vb_lock_take(&vb_check_lock);
	EACH_ROW(touched, t);
	vb_lock_give(&vb_check_lock);
}

void vb_check_revoked(void)
{
	if (!vb_check_on)
		return;
	vb_lock_take(&vb_check_lock);
	EACH_ROW(revoked);
	vb_lock_give(&vb_check_lock);
}

void vb_check_handed(void)
{
	for (unsigned row = 0; vb_check_on && row < VB_CHECKERS; row++)
		if (rows[row] && rows[row]->handed)
			rows[row]->handed();
}

void vb_check_before_fork(void)
{
	if (vb_check_on)
		vb_lock_take(&vb_check_lock);
}

void vb_check_after_fork(bool child)
{
	if (!vb_check_on)
		return;
	if (child) {
		vb_check_in_fork = true;
		while (!vb_list_empty(&vb_check_requests))
			give_back(vb_list_entry(vb_check_requests.next, struct vb_check_request, on_all),
				  false);
		EACH_ROW(forked);
		vb_check_on = false;
		for (unsigned i = 0; i < VB_CHECKERS; i++)
			if (rows[i] && rows[i]->in_child)
				vb_check_on = true;
			else
				rows[i] = NULL;
		vb_check_in_fork = false;
	}
	vb_lock_give(&vb_check_lock);
}

struct vb_check_piece *vb_check_any(const void *at, uint64_t length, bool writes,
				    const struct vb_check_request *but)
{
	vb_lock_assert_held(&vb_check_lock);
	vb_ranges_each (r, vb_check_pieces[writes], (uintptr_t)at, (uintptr_t)at + length)
		if (vb_check_piece(r)->of != but)
			return vb_check_piece(r);
	return NULL;
}

struct vb_check_request *vb_check_find(const void *at, uint64_t length, bool writes)
{
	struct vb_check_request *oldest = NULL;

	vb_lock_assert_held(&vb_check_lock);
	vb_ranges_each (r, vb_check_pieces[writes], (uintptr_t)at, (uintptr_t)at + length)
		if (!oldest || vb_check_piece(r)->of->age < oldest->age)
			oldest = vb_check_piece(r)->of;
	return oldest;
}
