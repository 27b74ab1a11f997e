/* What tools that look into this process see of its identifiers (iba/shown_id.h): all of them in one table,
 * that of a device at work.  Ids that have changed are listed, and written as they are when the lock is given
 * back. */
#include <string.h>

#include "base/clock.h"
#include "base/told.h"
#include "cm/id.h"

enum { PER_WORD = 64, WORDS = VB_SHOWN_IDS / PER_WORD };

/* Guarded by the lock. */
static struct {
	struct vb_shown_ids at; /* no marks: no device is at work */
	uint32_t ids;
	uint64_t taken[WORDS]; /* entries, by bits */
	struct vb_list changed;
} board = {.changed = {&board.changed, &board.changed}};

void vb_cm_board_forked(void)
{
	board.at = (struct vb_shown_ids){0};
	board.ids = 0;
	memset(board.taken, 0, sizeof(board.taken));
	vb_list_init(&board.changed);
}

/* The lowest that is free, so that memory is used as it fills; -1: there is none. */
static int take_place(void)
{
	for (int w = 0; w < WORDS; w++) {
		int bit = __builtin_ffsll((long long)~board.taken[w]);

		if (!bit)
			continue;
		board.taken[w] |= 1ull << (bit - 1);
		return w * PER_WORD + bit - 1;
	}
	return -1;
}

/* ---- one id ---- */

static void address(uint8_t gid[16], uint16_t *port, const struct sockaddr_storage *s)
{
	vb_cm_sock_gid((const struct sockaddr *)s, gid);
	*port = vb_cm_sock_port((const struct sockaddr *)s);
}

static void connection(struct vb_shown_id *out, const struct vb_cm_id *id)
{
	const struct vb_cm_conn *c = id->conn;
	struct vb_cm_awaited awaited;

	if (!c)
		return;
	vb_cm_awaits(c, &awaited);
	out->awaited = awaited.kind;
	out->said = awaited.said;
	out->most = awaited.most;
	out->due = awaited.due;
	if (awaited.kind && awaited.since == id->silence_of)
		out->silence = id->silence;
	if (awaited.kind && awaited.taken)
		out->flags |= VB_SHOWN_TAKEN;
	if (vb_cm_far(c).kind == VB_WHOM_ADDRESS)
		out->flags |= VB_SHOWN_FAR;
	out->cm_state = (uint8_t)c->state;
	out->comm_id = c->local_comm_id;
	out->far_comm_id = c->remote_comm_id;
	out->far_qpn = c->remote_qpn;
}

static void events(struct vb_shown_id *out, const struct vb_cm_id *id)
{
	for (unsigned e = 0; e < VB_CM_EVENTS; e++) {
		out->nqueued += id->queued[e];
		out->queued |= (uint32_t)(id->queued[e] != 0) << e;
		out->unacked |= (uint32_t)(id->unacked[e] != 0) << e;
	}
}

static void describe(struct vb_shown_id *out, const struct vb_cm_id *id)
{
	*out = (struct vb_shown_id){
	    .id = (uintptr_t)id->user,
	    .due = VB_NEVER,
	    .family = id->src.ss_family,
	    .far = id->dst.ss_family != AF_UNSPEC,
	    .space = id->ps,
	    .qpn = id->qpn,
	    .requests = id->waiting,
	    .backlog = id->backlog,
	    .state = (uint8_t)id->state,
	    .type = (uint8_t)id->type,
	    .device = id->device ? (uint8_t)id->device->index : VB_SHOWN_NOWHERE,
	    .flags = VB_SHOWN_LIVE | (id->ends ? VB_SHOWN_ENDS : 0) | (id->passive ? VB_SHOWN_PASSIVE : 0) |
		     (id->channel->sync ? VB_SHOWN_SYNC : 0),
	};
	if (id->state == VB_ID_FAILED) {
		out->failed_by = (uint8_t)id->failed_by;
		out->failed_status = (int16_t)id->failed_status;
	}
	address(out->src, &out->src_port, &id->src);
	address(out->dst, &out->dst_port, &id->dst);
	connection(out, id);
	events(out, id);
}

static void put(uint32_t place, const struct vb_shown_id *facts)
{
	struct vb_shown_id_entry *e = &board.at.entries[place];

	vb_told_put(&e->seq, &e->id, facts, VB_SHOWN_ID_WORDS);
	if (place >= atomic_load_explicit(&board.at.marks->used, memory_order_relaxed))
		atomic_store_explicit(&board.at.marks->used, place + 1, memory_order_release);
}

static void show(struct vb_cm_id *id)
{
	struct vb_shown_id facts;

	if (id->place < 0)
		id->place = take_place(); /* vb_cm_unshow() */
	if (id->place < 0)
		return;
	describe(&facts, id);
	put((uint32_t)id->place, &facts);
}

static void clear(struct vb_cm_id *id)
{
	if (id->place < 0)
		return;
	if (board.at.marks)
		put((uint32_t)id->place, &(struct vb_shown_id){0});
	board.taken[id->place / PER_WORD] &= ~(1ull << id->place % PER_WORD);
	id->place = -1;
}

static void count(int more)
{
	board.ids += (uint32_t)more;
	if (board.at.marks)
		atomic_store_explicit(&board.at.marks->all, board.ids, memory_order_relaxed);
}

/* ---- all of them ---- */

void vb_cm_show(struct vb_cm_id *id)
{
	vb_lock_assert_held(&vb_cm_ids_lock);
	if (!vb_list_linked(&id->on_changed))
		vb_list_append(&board.changed, &id->on_changed);
}

void vb_cm_show_first(struct vb_cm_id *id)
{
	id->place = -1;
	vb_list_init(&id->on_changed);
	count(1);
	vb_cm_show(id);
}

void vb_cm_unshow(struct vb_cm_id *id)
{
	vb_lock_assert_held(&vb_cm_ids_lock);
	vb_list_unlink(&id->on_changed);
	clear(id);
	count(-1);
}

bool vb_cm_shown_flush(void)
{
	struct vb_list *n;
	bool any = false;

	vb_lock_assert_held(&vb_cm_ids_lock);
	while ((n = vb_list_pop(&board.changed))) {
		any = true;
		if (board.at.marks)
			show(vb_list_entry(n, struct vb_cm_id, on_changed));
	}
	return any;
}

bool vb_cm_board_use(const struct vb_shown_ids *at)
{
	vb_lock_assert_held(&vb_cm_ids_lock);
	if (board.at.marks || !at->marks)
		return false;
	board.at = *at;
	count(0);
	return true;
}

bool vb_cm_board_leave(const struct vb_shown_ids *at)
{
	vb_lock_assert_held(&vb_cm_ids_lock);
	if (!at->marks || board.at.marks != at->marks)
		return false;
	atomic_store_explicit(&at->marks->used, 0, memory_order_relaxed);
	atomic_store_explicit(&at->marks->all, 0, memory_order_relaxed);
	board.at = (struct vb_shown_ids){0}; /* ids keep their places, for the next one */
	return true;
}

/* ---- what engines have counted ---- */

void vb_cm_ids_counted(struct vb_cm_device *d)
{
	struct vb_shown_marks *marks = d->shown.marks;
	_Atomic uint64_t *to;
	struct vb_cm_counts c;

	vb_lock_assert_held(&vb_cm_ids_lock);
	if (!marks)
		return;
	vb_cm_counts(d->cm, &c);
	to = marks->counts;
	atomic_store_explicit(&to[VB_SHOWN_MALFORMED], c.malformed, memory_order_relaxed);
	atomic_store_explicit(&to[VB_SHOWN_UNKNOWN], c.unknown_comm_id, memory_order_relaxed);
	atomic_store_explicit(&to[VB_SHOWN_UNEXPECTED], c.unexpected, memory_order_relaxed);
	atomic_store_explicit(&to[VB_SHOWN_DUPLICATES], c.duplicates, memory_order_relaxed);
	atomic_store_explicit(&to[VB_SHOWN_REFUSED], c.refused, memory_order_relaxed);
	atomic_store_explicit(&to[VB_SHOWN_RETRIED], c.retried, memory_order_relaxed);
	atomic_store_explicit(&marks->resting, c.resting, memory_order_relaxed);
}
