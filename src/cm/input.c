/* What comes from the wire, by the table in states.c. */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "cm/conn.h"

/* A message that came, and from where. */
struct heard {
	struct vb_cm *cm;
	const struct vb_cm_av *from;
	const struct vb_cm_msg *m;
	uint64_t now;
	const uint8_t *mad; /* NULL: it is taken as heard, */
	const void *gone;   /* since its sender is gone: of vb_cm_gone() */
};

static struct vb_cm_conn *conn_of(struct vb_cm *cm, uint32_t slot)
{
	return slot == VB_CM_NONE ? NULL : vb_cm_num(&cm->numbers, slot)->conn;
}

/* Whether the process of that adapter may have sent it; an address says nothing of adapters. */
static bool is_from(const struct heard *h, uint32_t number)
{
	return h->from->whom.kind != VB_WHOM_PEER || h->from->whom.number == number;
}

/* Whether the far end of the connection may have sent it: from another host that is whose address the
 * connection has. */
static bool is_with(const struct heard *h, const struct vb_cm_conn *c)
{
	const struct vb_whom *from = &h->from->whom;

	if (from->kind == VB_WHOM_ADDRESS)
		return !memcmp(&from->gid, c->av.remote_gid, sizeof(c->av.remote_gid));
	return from->kind == VB_WHOM_NOBODY || c->av.whom.kind != VB_WHOM_ADDRESS;
}

/* The connection with that ID of ours, if the other ID is its far end's. */
static struct vb_cm_conn *find_ids(struct vb_cm *cm, uint32_t ours, uint32_t theirs, bool half)
{
	struct vb_cm_conn *c = conn_of(cm, vb_cm_num_find(&cm->numbers, VB_CM_BY_ID, 0, ours));

	if (!c)
		return NULL;
	/* Before the REP it is not known, and an MRA's may be of another attempt at the far end. */
	return vb_cm_rows[c->state].half ? (half ? c : NULL) : c->remote_comm_id == theirs ? c : NULL;
}

/* A REJ (4) may have come from somebody whom nobody has answered, so he knows of no comm ID but his own. */
static struct vb_cm_conn *find_rej(struct vb_cm *cm, const struct vb_cm_rej_msg *rej)
{
	bool half = rej->about == VB_CM_ABOUT_REQ;
	struct vb_cm_conn *c;
	uint64_t guid;

	if (rej->reason == VB_CM_REJ_TIMEOUT && rej->info_len >= sizeof(guid)) {
		memcpy(&guid, rej->info, sizeof(guid));
		c = conn_of(cm,
			    vb_cm_num_find(&cm->numbers, VB_CM_BY_REMOTE, be64toh(guid), rej->local_comm_id));
		if (c)
			return c;
		half = true;
	}
	c = find_ids(cm, rej->remote_comm_id, rej->local_comm_id, half);
	/* What was refused before the REP is over by then. */
	return c && rej->about == VB_CM_ABOUT_REQ && !vb_cm_rows[c->state].half ? NULL : c;
}

static struct vb_cm_conn *find(struct vb_cm *cm, const struct vb_cm_msg *m)
{
	switch (m->kind) {
	case VB_CM_MRA:
		return find_ids(cm, m->mra.remote_comm_id, m->mra.local_comm_id,
				m->mra.about == VB_CM_ABOUT_REQ);
	case VB_CM_REJ:
		return find_rej(cm, &m->rej);
	case VB_CM_REP:
		return find_ids(cm, m->rep.remote_comm_id, m->rep.local_comm_id, true);
	case VB_CM_RTU:
	case VB_CM_DREP:
		return find_ids(cm, m->rtu.remote_comm_id, m->rtu.local_comm_id, false);
	case VB_CM_DREQ:
		return find_ids(cm, m->dreq.remote_comm_id, m->dreq.local_comm_id, false);
	case VB_CM_SIDR_REP:
		return conn_of(cm, vb_cm_num_find(&cm->numbers, VB_CM_BY_ID, 0, m->sidr_rep.request_id));
	case VB_CM_LAP:
		return find_ids(cm, m->lap.remote_comm_id, m->lap.local_comm_id, false);
	default:
		return NULL;
	}
}

/* Nobody has that comm ID (any more).  Who waits for an answer gets one, lest it wait until all its retries
 * are over: a DREQ has been done for already, and a REP comes too late. */
static void unknown(const struct heard *h)
{
	h->cm->counts.unknown_comm_id++;
	if (h->m->kind == VB_CM_DREQ)
		vb_cm_answer_drep(h->cm, h->from, h->m);
	else if (h->m->kind == VB_CM_REP || h->m->kind == VB_CM_RTU)
		vb_cm_answer_rej(h->cm, h->from, h->m, VB_CM_REJ_INVALID_COMM_ID);
	else if (h->m->kind == VB_CM_LAP)
		vb_cm_answer_apr(h->cm, h->from, h->m, VB_CM_APR_INVALID_COMM_ID);
}

/* 12.9.8.3.1: the QP of a REQ or REP (or its comm ID) is one that a connection here is with, of which the far
 * end knows nothing any more.  The message is refused, and that connection is ended, unless somebody else
 * says so: it may be wrong. */
static void stale(const struct heard *h, uint32_t slot)
{
	struct vb_cm_conn *old = conn_of(h->cm, slot);

	h->cm->counts.refused++;
	vb_cm_answer_rej(h->cm, h->from, h->m, VB_CM_REJ_STALE_CONN);
	if (old && old->state == VB_CM_ESTABLISHED && is_from(h, vb_cm_far(old).number) && is_with(h, old))
		vb_cm_dreq(old, NULL, h->now);
}

/* A line of that far end's comm ID or QPN; VB_CM_NONE: there is none. */
static uint32_t find_stale(struct vb_cm *cm, uint64_t guid, uint32_t comm_id, uint32_t qpn)
{
	uint32_t slot = vb_cm_num_find(&cm->numbers, VB_CM_BY_REMOTE, guid, comm_id);

	return slot != VB_CM_NONE ? slot : vb_cm_num_find(&cm->numbers, VB_CM_BY_REMOTE_QPN, guid, qpn);
}

/* Makes a connection known by its far end. */
static void key_remote(struct vb_cm_conn *c)
{
	struct vb_cm_numbers *n = &c->cm->numbers;
	struct vb_cm_num *num = vb_cm_conn_num(c);

	num->guid = c->remote_ca_guid;
	num->remote_id = c->remote_comm_id;
	num->remote_qpn = c->remote_qpn;
	vb_cm_num_key(n, c->inner->slot, VB_CM_BY_REMOTE);
	vb_cm_num_key(n, c->inner->slot, VB_CM_BY_REMOTE_QPN);
}

/* The kernel's rounding of twice the packet life time and the ACK delay to one power of two: the larger, and
 * one more if the other is at least half of it. */
static uint8_t ack_timeout(uint8_t twice_life, uint8_t delay)
{
	uint8_t more = twice_life > delay ? twice_life : delay,
		less = twice_life > delay ? delay : twice_life;

	more = (uint8_t)(more + (less + 1 >= more));
	return more > 31 ? 31 : more;
}

static uint32_t rep_qpn(const struct vb_cm_conn *c, const struct vb_cm_rep *rep)
{
	return c->service_type == VB_CM_SERVICE_XRC ? rep->eecn : rep->qpn;
}

/* false: it is refused, and the state is what it was. */
static bool take_rep(const struct heard *h, struct vb_cm_conn *c)
{
	const struct vb_cm_rep *rep = &h->m->rep;
	uint32_t qpn = rep_qpn(c, rep);
	uint32_t slot = find_stale(h->cm, rep->ca_guid, rep->local_comm_id, qpn);

	/* It answers a REQ of whoever had this comm ID before, and was not told that nobody waits.  A far end
	 * that does not echo transaction IDs, as it should, is not taken for one. */
	if ((uint32_t)h->m->tid == c->local_comm_id && h->m->tid != c->inner->tid) {
		unknown(h);
		return false;
	}
	if (slot != VB_CM_NONE) { /* said again, our REQ may find that end in order */
		stale(h, slot);
		return false;
	}
	c->remote_comm_id = rep->local_comm_id;
	c->remote_ca_guid = rep->ca_guid;
	c->remote_qpn = qpn;
	c->remote_psn = rep->psn;
	c->remote_qkey = rep->qkey;
	c->initiator_depth = rep->responder_resources;
	c->responder_resources = rep->initiator_depth;
	c->rnr_retry_count = rep->rnr_retry_count;
	c->target_ack_delay = rep->target_ack_delay;
	c->srq = rep->srq;
	c->local_ack_timeout = ack_timeout(c->local_ack_timeout, rep->target_ack_delay);
	c->inner->wait += vb_cm_time(rep->target_ack_delay);
	key_remote(c);
	return true;
}

static bool take_mra(const struct heard *h, struct vb_cm_conn *c)
{
	const struct vb_cm_mra *mra = &h->m->mra;
	bool req = vb_cm_rows[c->state].unanswered == VB_CM_REQ;

	if (mra->about != (req ? VB_CM_ABOUT_REQ : VB_CM_ABOUT_REP)) {
		h->cm->counts.unexpected++;
		return false;
	}
	if (req)
		c->remote_comm_id = mra->local_comm_id;
	c->inner->prolonged = vb_cm_time(mra->service_timeout) + c->inner->life;
	return true;
}

static bool take_dreq(const struct heard *h, struct vb_cm_conn *c)
{
	if (h->m->dreq.remote_qpn != c->local_qpn) {
		h->cm->counts.unexpected++;
		return false;
	}
	c->inner->tid = h->m->tid;
	return true;
}

static bool take_sidr_rep(const struct heard *h, struct vb_cm_conn *c)
{
	c->remote_qpn = h->m->sidr_rep.qpn;
	c->remote_qkey = h->m->sidr_rep.qkey;
	return true;
}

static void take(const struct heard *h, struct vb_cm_conn *c, enum vb_cm_state to)
{
	/* By kind; what is true of all is done below. */
	static const struct {
		bool (*take)(const struct heard *h, struct vb_cm_conn *c);
		enum vb_cm_happening what;
		bool silent;
	} kinds[VB_CM_KINDS] = {
	    [VB_CM_MRA - VB_CM_REQ] = {.take = take_mra, .silent = true},
	    [VB_CM_REJ - VB_CM_REQ] = {.what = VB_CM_EV_REJ},
	    [VB_CM_REP - VB_CM_REQ] = {.take = take_rep, .what = VB_CM_EV_REP},
	    [VB_CM_RTU - VB_CM_REQ] = {.what = VB_CM_EV_RTU},
	    [VB_CM_DREQ - VB_CM_REQ] = {.take = take_dreq, .what = VB_CM_EV_DREQ},
	    [VB_CM_DREP - VB_CM_REQ] = {.what = VB_CM_EV_DREP},
	    [VB_CM_SIDR_REP - VB_CM_REQ] = {.take = take_sidr_rep, .what = VB_CM_EV_SIDR_REP},
	};
	unsigned k = h->m->kind - VB_CM_REQ;

	if (kinds[k].take && !kinds[k].take(h, c))
		return;
	if (h->from->whom.kind) /* a REQ may have gone a longer way than its answers */
		c->av.whom = h->from->whom;
	/* The far end holds our QP for one of a connection that it still has: it has to be left alone. */
	if (h->m->kind == VB_CM_REJ && h->m->rej.reason == VB_CM_REJ_STALE_CONN)
		to = VB_CM_TIMEWAIT;
	vb_cm_enter(c, to, h->now);
	if (!kinds[k].silent)
		vb_cm_tell(c, &(struct vb_cm_event){.what = kinds[k].what, .msg = h->m, .gone = h->gone});
}

/* Who comes too late is told: in the words that were said before if they are still there. */
static void refuse(const struct heard *h, struct vb_cm_conn *c)
{
	bool over = c->state == VB_CM_TIMEWAIT;

	switch (h->m->kind) {
	case VB_CM_REQ:
		vb_cm_answer_rej(h->cm, h->from, h->m, VB_CM_REJ_STALE_CONN);
		break;
	case VB_CM_REP:
		if (c->inner->said == VB_CM_REJ)
			vb_cm_say_again(c);
		else
			vb_cm_answer_rej(h->cm, h->from, h->m,
					 over ? VB_CM_REJ_STALE_CONN : VB_CM_REJ_INVALID_COMM_ID);
		break;
	case VB_CM_RTU: /* after anything but a REJ of ours it is an old one */
		if (c->inner->said == VB_CM_REJ)
			vb_cm_say_again(c);
		break;
	case VB_CM_DREQ:
		if (c->inner->said == VB_CM_DREP)
			vb_cm_say_again(c);
		else
			vb_cm_answer_drep(h->cm, h->from, h->m);
		break;
	default:
		vb_cm_answer_apr(h->cm, h->from, h->m, VB_CM_APR_UNSUPPORTED);
		break;
	}
}

/* A REP with the comm ID of the one that was taken, but of another QP: that far end has been born anew, too.
 */
static bool is_reborn(const struct vb_cm_conn *c, const struct vb_cm_msg *m)
{
	return m->kind == VB_CM_REP && c->active &&
	       (rep_qpn(c, &m->rep) != c->remote_qpn || m->rep.psn != c->remote_psn);
}

static void act(const struct heard *h, struct vb_cm_conn *c)
{
	const struct vb_cm_rule *rule = vb_cm_on(c->state, h->m->kind);

	if ((rule->action == VB_CM_KNOWN || rule->action == VB_CM_AGAIN) && is_reborn(c, h->m)) {
		stale(h, c->inner->slot);
		return;
	}
	switch (rule->action) {
	case VB_CM_TAKE:
		take(h, c, rule->to);
		break;
	case VB_CM_KNOWN:
		h->cm->counts.duplicates++;
		break;
	case VB_CM_AGAIN: /* only the end that said RTU or MRA has to say it again to a REP */
		h->cm->counts.duplicates++;
		if (c->active == (h->m->kind == VB_CM_REP))
			vb_cm_say_again(c);
		break;
	case VB_CM_REFUSE:
		if (h->m->kind == VB_CM_LAP)
			h->cm->counts.refused++;
		else
			h->cm->counts.duplicates++;
		refuse(h, c);
		break;
	default:
		h->cm->counts.unexpected++;
		break;
	}
}

bool vb_cm_service_is_known(const struct vb_cm_req *req)
{
	return req->service_type == VB_CM_SERVICE_RC || req->service_type == VB_CM_SERVICE_UC ||
	       (req->service_type == VB_CM_SERVICE_XRC && req->extended_type == 1);
}

/* Whoever listens; NULL: nobody. */
static struct vb_cm_conn *listener(const struct heard *h)
{
	struct vb_cm_conn *l = h->cm->ops->listener(h->cm, h->m, h->from);

	vb_assert(!l || l->state == VB_CM_LISTEN);
	return l;
}

/* Who listened here when the request set out may have closed its listener since, and another process of this
 * host have begun to listen. */
static bool is_handed_on(const struct heard *h)
{
	const struct vb_cm_ops *ops = h->cm->ops;

	return ops->elsewhere && ops->elsewhere(h->cm, h->m, h->from, h->mad);
}

/* Hands a new exchange to the upper layer, which may refuse it. */
static void present(const struct heard *h, struct vb_cm_conn *c, struct vb_cm_conn *l,
		    enum vb_cm_happening what)
{
	struct vb_cm_event e = {.what = what, .msg = h->m, .av = h->from};
	struct vb_cm *cm = h->cm;

	c->listener = l;
	if (vb_cm_tell(c, &e))
		return;
	cm->counts.refused++;
	if (c->inner->shown) /* it has been answered meanwhile, so the far end has to hear of its end */
		vb_cm_end(c, h->now);
	else
		vb_cm_discard(c);
}

/* The REQ that this end has taken.  With another PSN it is not: its sender has been born anew, and counts its
 * comm IDs and QPNs from the same beginning. */
static bool is_said_again(const struct vb_cm_conn *c, const struct vb_cm_req *req)
{
	return !c->active && c->remote_comm_id == req->local_comm_id && c->remote_qpn == req->qpn &&
	       c->remote_psn == req->psn;
}

static void hear_req(const struct heard *h)
{
	const struct vb_cm_req *req = &h->m->req;
	uint32_t slot = find_stale(h->cm, req->ca_guid, req->local_comm_id, req->qpn);
	struct vb_cm_conn *c = conn_of(h->cm, slot), *l;

	if (c && is_said_again(c, req) && is_with(h, c)) {
		act(h, c);
		return;
	}
	if (slot != VB_CM_NONE) {
		stale(h, slot);
		return;
	}
	l = listener(h);
	if (!l && is_handed_on(h))
		return;
	if (!l || !vb_cm_service_is_known(req)) {
		h->cm->counts.refused++;
		vb_cm_answer_rej(h->cm, h->from, h->m,
				 l ? VB_CM_REJ_INVALID_SERVICE_TYPE : VB_CM_REJ_INVALID_SERVICE_ID);
		return;
	}
	c = vb_cm_conn_new(h->cm, NULL);
	if (!c) { /* it may ask again when there is room */
		h->cm->counts.refused++;
		return;
	}
	vb_cm_agree_passive(c, h->m, h->from);
	vb_cm_enter(c, VB_CM_REQ_RCVD, h->now);
	key_remote(c);
	present(h, c, l, VB_CM_EV_REQ);
}

/* A GID as one half of a key; the other is the request ID. */
static uint64_t fold(const uint8_t gid[16])
{
	uint64_t half[2];

	memcpy(half, gid, sizeof(half));
	return half[0] ^ half[1];
}

static void hear_sidr_req(const struct heard *h)
{
	const struct vb_cm_sidr_req *req = &h->m->sidr_req;
	struct vb_cm_numbers *n = &h->cm->numbers;
	uint64_t key = fold(h->from->remote_gid);
	struct vb_cm_conn *l, *c;
	struct vb_cm_num *num;

	for (uint32_t slot = vb_cm_num_find(n, VB_CM_BY_SIDR, key, req->request_id); slot != VB_CM_NONE;
	     slot = vb_cm_num_more(n, VB_CM_BY_SIDR, slot)) {
		c = conn_of(h->cm, slot);
		if (!memcmp(c->av.remote_gid, h->from->remote_gid, sizeof(c->av.remote_gid))) {
			act(h, c);
			return;
		}
	}
	l = listener(h);
	if (!l && is_handed_on(h))
		return;
	c = l ? vb_cm_conn_new(h->cm, NULL) : NULL;
	if (!c) {
		h->cm->counts.refused++;
		if (!l)
			vb_cm_answer_sidr(h->cm, h->from, h->m, VB_CM_SIDR_UNSUPPORTED);
		return;
	}
	c->inner->begun = true;
	c->inner->tid = h->m->tid;
	c->av = *h->from;
	c->av.pkey = req->pkey;
	c->remote_comm_id = req->request_id;
	c->service_id = req->service_id;
	num = vb_cm_conn_num(c);
	num->guid = key;
	num->remote_id = req->request_id;
	vb_cm_enter(c, VB_CM_SIDR_REQ_RCVD, h->now);
	vb_cm_num_key(n, c->inner->slot, VB_CM_BY_SIDR);
	present(h, c, l, VB_CM_EV_SIDR_REQ);
}

void vb_cm_input(struct vb_cm *cm, const struct vb_cm_av *from, const uint8_t mad[VB_MAD_LEN], uint64_t now)
{
	struct vb_cm_msg m;
	const struct heard h = {cm, from, &m, now, mad, NULL};
	struct vb_cm_conn *c;
	uint32_t speaker;

	vb_lock_assert_held(cm->lock);
	if (vb_cm_msg_get(mad, &m)) {
		cm->counts.malformed++;
		return;
	}
	speaker = vb_cm_msg_speaker(&m);
	if (m.kind == VB_CM_REQ) {
		hear_req(&h);
	} else if (m.kind == VB_CM_SIDR_REQ) {
		hear_sidr_req(&h);
	} else if (speaker && !is_from(&h, VB_CM_NUMBER(speaker))) {
		cm->counts.unknown_comm_id++; /* an answer would go to whom it speaks for */
	} else {
		c = find(cm, &m);
		if (c && !is_with(&h, c))
			cm->counts.unknown_comm_id++; /* as above */
		else if (c)
			act(&h, c);
		else
			unknown(&h);
	}
}

void vb_cm_inherit(struct vb_cm_conn *c, const void *gone, uint64_t now)
{
	static const uint8_t nothing[VB_CM_PRIVATE_MAX];
	struct vb_cm_word heir = vb_cm_rows[c->state].heir;
	struct vb_cm_msg m = {.kind = heir.kind, .tid = c->inner->tid};
	const struct heard h = {c->cm, &c->av, &m, now, NULL, gone};

	if (!heir.kind) /* an event of another connection has changed its state */
		return;
	m.private_data = (struct vb_cm_private){nothing, (uint16_t)vb_cm_private_room(heir.kind)};
	switch (heir.kind) {
	case VB_CM_REJ:
		m.rej.local_comm_id = c->remote_comm_id;
		m.rej.remote_comm_id = c->local_comm_id;
		m.rej.about = VB_CM_ABOUT_OTHER;
		m.rej.reason = heir.reason;
		break;
	case VB_CM_DREQ:
		m.dreq = (struct vb_cm_dreq){c->remote_comm_id, c->local_comm_id, c->local_qpn};
		break;
	case VB_CM_DREP:
		m.drep = (struct vb_cm_ids){c->remote_comm_id, c->local_comm_id};
		break;
	default:
		m.sidr_rep.request_id = c->local_comm_id;
		m.sidr_rep.service_id = c->service_id;
		m.sidr_rep.status = (uint8_t)heir.reason;
		break;
	}
	act(&h, c);
}
