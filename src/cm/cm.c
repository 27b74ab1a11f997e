#include "cm/cm.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cm/conn.h"

/* Beyond that many comm IDs in use or in TIMEWAIT none is given: looking for a free one would take too long.
 */
#define IDS_MAX ((1u << VB_CM_INDEX_BITS) / 16 * 15)
#define INDICES (1u << VB_CM_INDEX_BITS)

struct whole {
	struct vb_cm_conn conn;
	struct vb_cm_inner inner;
};

int vb_cm_open(struct vb_cm **out, const struct vb_cm_ops *ops, void *user, struct vb_lock *lock,
	       uint32_t number, uint64_t ca_guid)
{
	struct vb_cm *cm = calloc(1, sizeof(*cm)); /* vb_cm_close() */

	if (!cm)
		return ENOMEM;
	cm->ops = ops;
	cm->user = user;
	cm->lock = lock;
	cm->number = number;
	cm->ca_guid = ca_guid;
	vb_slab_init(&cm->slab, sizeof(struct whole)); /* vb_cm_close() */
	vb_cm_numbers_init(&cm->numbers, (uint64_t)ops->chance(cm) << 32 | ops->chance(cm));
	/* A process that comes after one with the same number goes on elsewhere, by chance. */
	cm->index = ops->chance(cm) & (INDICES - 1);
	*out = cm;
	return 0;
}

void *vb_cm_user(const struct vb_cm *cm)
{
	return cm->user;
}

void vb_cm_close(struct vb_cm *cm)
{
	vb_assert(!cm->conns);
	vb_cm_numbers_fini(&cm->numbers);
	vb_slab_fini(&cm->slab);
	free(cm);
}

/* A comm ID that is neither in use nor in TIMEWAIT; 0: there is none. */
static uint32_t draw_id(struct vb_cm *cm)
{
	uint32_t id;

	if (cm->numbers.used >= IDS_MAX)
		return 0;
	do {
		cm->index = (cm->index + 1) & (INDICES - 1);
		id = cm->number << VB_CM_INDEX_BITS | cm->index;
	} while (!cm->index || vb_cm_num_find(&cm->numbers, VB_CM_BY_ID, 0, id) != VB_CM_NONE);
	return id;
}

struct vb_cm_conn *vb_cm_conn_new(struct vb_cm *cm, void *user)
{
	uint32_t id = draw_id(cm), slot;
	struct whole *w;

	vb_lock_assert_held(cm->lock);
	w = id ? vb_slab_take(&cm->slab) : NULL; /* vb_cm_end(), vb_cm_discard() */
	if (!w)
		return NULL;
	w->conn = (struct vb_cm_conn){.cm = cm, .user = user, .local_comm_id = id, .inner = &w->inner};
	vb_list_init(&w->inner.gone);
	w->inner.wait = vb_cm_time(VB_CM_ACK_TIMEOUT);
	slot = vb_cm_num_take(&cm->numbers, &w->conn, id);
	if (slot == VB_CM_NONE) {
		vb_slab_give(&cm->slab, w);
		return NULL;
	}
	w->inner.slot = slot;
	cm->conns++;
	return &w->conn;
}

struct vb_cm_conn *vb_cm_new(struct vb_cm *cm, void *user)
{
	return vb_cm_conn_new(cm, user);
}

/* The memory of a connection whose number is somebody else's business by now. */
static void free_conn(struct vb_cm_conn *c)
{
	vb_list_unlink(&c->inner->gone);
	if (c->inner->busy) {
		c->inner->ended = true;
		return;
	}
	c->cm->conns--;
	vb_slab_give(&c->cm->slab, vb_containerof(c, struct whole, conn));
}

void vb_cm_discard(struct vb_cm_conn *c)
{
	c->cm->resting -= c->state == VB_CM_TIMEWAIT;
	vb_cm_num_drop(&c->cm->numbers, c->inner->slot);
	free_conn(c);
}

bool vb_cm_tell(struct vb_cm_conn *c, const struct vb_cm_event *e)
{
	struct vb_cm_inner *in = c->inner;
	bool taken;

	vb_assert(!in->busy);
	in->busy = true;
	taken = c->cm->ops->event(c, e);
	in->busy = false;
	if (in->ended) {
		free_conn(c);
		return true; /* there is nothing left to refuse */
	}
	c->listener = NULL;
	return taken;
}

static void changed(struct vb_cm_conn *c)
{
	if (c->cm->ops->changed)
		c->cm->ops->changed(c);
}

/* Until the message is said again. */
static uint64_t patience(const struct vb_cm_inner *in)
{
	return in->prolonged ? in->prolonged : in->timeout;
}

void vb_cm_enter(struct vb_cm_conn *c, enum vb_cm_state to, uint64_t now)
{
	struct vb_cm_numbers *n = &c->cm->numbers;
	struct vb_cm_inner *in = c->inner;
	uint64_t due = VB_NEVER;

	if (to == VB_CM_REP_SENT || to == VB_CM_ESTABLISHED || to == VB_CM_TIMEWAIT) {
		in->about = true;
		if (vb_cm_conn_num(c)->local_qpn)
			vb_cm_num_key(n, in->slot, VB_CM_BY_QPN);
	}
	if (to == VB_CM_IDLE) {
		vb_cm_num_unkey(n, in->slot, VB_CM_BY_REMOTE);
		vb_cm_num_unkey(n, in->slot, VB_CM_BY_SIDR);
	}
	/* Only one that lives makes a REQ or REP stale, as in the kernel. */
	if (to == VB_CM_IDLE || to == VB_CM_TIMEWAIT)
		vb_cm_num_unkey(n, in->slot, VB_CM_BY_REMOTE_QPN);
	if (to != VB_CM_MRA_REQ_RCVD && to != VB_CM_MRA_REP_RCVD)
		in->prolonged = 0;
	if (vb_cm_rows[to].unanswered) {
		due = now + patience(in);
		in->since = now;
		in->repeats = 0;
		in->taken = in->prolonged;
	} else if (to == VB_CM_TIMEWAIT) {
		due = now + in->wait;
	}
	vb_cm_num_due(n, in->slot, due);
	c->cm->resting += (to == VB_CM_TIMEWAIT) - (c->state == VB_CM_TIMEWAIT);
	c->state = to;
	changed(c);
}

/* What the state calls for when the connection ends. */
static void say_last(struct vb_cm_conn *c)
{
	struct vb_cm_word last = vb_cm_rows[c->state].last;
	struct vb_cm_msg m;

	switch (last.kind) {
	case VB_CM_REJ:
		if (last.reason == VB_CM_REJ_TIMEOUT)
			vb_cm_say_timeout(c);
		else
			vb_cm_say_rej(c, last.reason, NULL, 0, NULL);
		break;
	case VB_CM_DREQ:
		/* The target's QP of XRC lives on for others who have opened it. */
		if (c->service_type != VB_CM_SERVICE_XRC || c->active)
			vb_cm_say_dreq(c, NULL);
		break;
	case VB_CM_DREP:
		m = vb_cm_compose(c, VB_CM_DREP, NULL);
		vb_cm_say(c, &m);
		break;
	case VB_CM_SIDR_REP:
		m = vb_cm_compose(c, VB_CM_SIDR_REP, NULL);
		m.sidr_rep.request_id = c->remote_comm_id;
		m.sidr_rep.service_id = c->service_id;
		m.sidr_rep.status = (uint8_t)last.reason;
		vb_cm_say(c, &m);
		break;
	default:
		break;
	}
}

void vb_cm_end(struct vb_cm_conn *c, uint64_t now)
{
	struct vb_cm_inner *in = c->inner;
	struct vb_cm *cm = c->cm;

	vb_lock_assert_held(cm->lock);
	vb_assert(!in->ended);
	say_last(c);
	if (!in->shown) { /* nobody has heard of its number */
		vb_cm_discard(c);
		return;
	}
	if (c->state != VB_CM_TIMEWAIT) {
		bool ended = c->state == VB_CM_IDLE || !in->about;
		uint64_t hold = in->about || in->late < in->wait ? in->wait : in->late;

		vb_cm_enter(c, ended ? VB_CM_IDLE : VB_CM_TIMEWAIT, now);
		vb_cm_num_due(&cm->numbers, in->slot, now + hold);
		cm->resting += c->state != VB_CM_TIMEWAIT;
	}
	vb_cm_conn_num(c)->conn = NULL;
	free_conn(c);
}

/* Nobody answers: once more, or it was in vain. */
static void unanswered(struct vb_cm_conn *c, uint64_t now)
{
	const struct vb_cm_row *row = &vb_cm_rows[c->state];
	struct vb_cm_inner *in = c->inner;
	struct vb_cm_event e = {
	    .what = VB_CM_EV_UNREACHED, .about = row->unanswered, .said = (uint8_t)(in->retries + 1)};

	if (in->left) {
		if (c->cm->ops->repeats)
			c->cm->ops->repeats(c);
		in->left--;
		in->repeats++;
		c->cm->counts.retried++;
		vb_cm_num_due(&c->cm->numbers, in->slot, now + patience(in));
		vb_cm_say_again(c);
		changed(c);
		return;
	}
	if (row->unanswered == VB_CM_DREQ)
		e = (struct vb_cm_event){.what = VB_CM_EV_DREP, .said = e.said, .timed_out = true};
	else if (row->unanswered != VB_CM_SIDR_REQ)
		vb_cm_say_timeout(c);
	vb_cm_enter(c, row->gives_up, now);
	vb_cm_tell(c, &e);
}

static void timewait_over(struct vb_cm_conn *c, uint64_t now)
{
	c->inner->about = false;
	c->inner->shown = false; /* its number may be given again once it ends */
	vb_cm_num_unkey(&c->cm->numbers, c->inner->slot, VB_CM_BY_QPN);
	vb_cm_enter(c, VB_CM_IDLE, now);
	vb_cm_tell(c, &(struct vb_cm_event){.what = VB_CM_EV_TIMEWAIT_OVER});
}

uint64_t vb_cm_next(const struct vb_cm *cm)
{
	uint32_t slot = vb_cm_num_first(&cm->numbers);

	vb_lock_assert_held(cm->lock);
	return slot == VB_CM_NONE ? VB_NEVER : cm->numbers.of[slot].due;
}

uint64_t vb_cm_timer(struct vb_cm *cm, uint64_t now)
{
	uint64_t next;

	while ((next = vb_cm_next(cm)) <= now) {
		uint32_t slot = vb_cm_num_first(&cm->numbers);
		struct vb_cm_conn *c = vb_cm_num(&cm->numbers, slot)->conn;

		if (!c) {
			cm->resting--;
			vb_cm_num_drop(&cm->numbers, slot);
		} else if (c->state == VB_CM_TIMEWAIT) {
			timewait_over(c, now);
		} else {
			unanswered(c, now);
		}
	}
	return next;
}

/* Its far end is dead.  The next process that has the number of that adapter has its QPNs again, too, and is
 * not to be taken for a far end that has forgotten this connection. */
static void forget_far(struct vb_cm_conn *c)
{
	static const enum vb_cm_key far[] = {VB_CM_BY_REMOTE, VB_CM_BY_REMOTE_QPN, VB_CM_BY_SIDR};

	for (unsigned i = 0; i < sizeof(far) / sizeof(far[0]); i++)
		vb_cm_num_unkey(&c->cm->numbers, c->inner->slot, far[i]);
}

void vb_cm_gone(struct vb_cm *cm, bool (*is_gone)(const struct vb_cm_conn *c, void *arg), void *arg,
		uint64_t now)
{
	struct vb_list gone, *node;

	vb_lock_assert_held(cm->lock);
	vb_list_init(&gone);
	for (uint32_t i = 0; i < cm->numbers.room; i++) {
		struct vb_cm_conn *c = cm->numbers.of[i].conn;

		if (!c || !is_gone(c, arg))
			continue;
		forget_far(c);
		if (vb_cm_rows[c->state].heir.kind)
			vb_list_append(&gone, &c->inner->gone);
	}
	/* Those that an event of another ends meanwhile leave the list. */
	while ((node = vb_list_pop(&gone)))
		vb_cm_inherit(&vb_list_entry(node, struct whole, inner.gone)->conn, arg, now);
}

void vb_cm_leave(struct vb_cm *cm)
{
	vb_lock_assert_held(cm->lock);
	for (uint32_t i = 0; i < cm->numbers.room; i++) {
		struct vb_cm_conn *c = cm->numbers.of[i].conn;

		if (c && vb_cm_far(c).kind == VB_WHOM_ADDRESS)
			say_last(c);
	}
}

void vb_cm_mute(struct vb_cm *cm, uint32_t number)
{
	vb_lock_assert_held(cm->lock);
	for (uint32_t i = 0; i < cm->numbers.room; i++) {
		struct vb_cm_conn *c = cm->numbers.of[i].conn;
		uint16_t kind = c ? vb_cm_rows[c->state].unanswered : 0;

		if ((kind == VB_CM_REQ || kind == VB_CM_SIDR_REQ) && !c->remote_comm_id &&
		    c->asked.number == number)
			vb_cm_say_again(c);
	}
}

bool vb_cm_qpn_waits(const struct vb_cm *cm, uint32_t qpn)
{
	vb_lock_assert_held(cm->lock);
	return vb_cm_num_find(&cm->numbers, VB_CM_BY_QPN, 0, qpn) != VB_CM_NONE;
}

void vb_cm_counts(const struct vb_cm *cm, struct vb_cm_counts *out)
{
	vb_lock_assert_held(cm->lock);
	*out = cm->counts;
	out->resting = cm->resting;
}

void vb_cm_awaits(const struct vb_cm_conn *c, struct vb_cm_awaited *out)
{
	const struct vb_cm_inner *in = c->inner;

	vb_lock_assert_held(c->cm->lock);
	*out = (struct vb_cm_awaited){.kind = vb_cm_rows[c->state].unanswered,
				      .due = vb_cm_conn_num(c)->due,
				      .since = in->since,
				      .repeats = in->repeats,
				      .taken = in->taken};
	if (out->kind) {
		out->most = in->retries < UINT8_MAX ? in->retries + 1 : UINT8_MAX;
		out->said = (uint8_t)(out->most - in->left);
	}
}
