/* What the communication manager says: messages of connections, which are kept to be said again, and answers
 * to what leads to none. */
#include <endian.h>
#include <string.h>

#include "cm/conn.h"

uint32_t vb_cm_msg_number(const struct vb_cm_msg *m)
{
	switch (m->kind) {
	case VB_CM_MRA:
		return VB_CM_NUMBER(m->mra.remote_comm_id);
	case VB_CM_REJ:
		return VB_CM_NUMBER(m->rej.remote_comm_id);
	case VB_CM_REP:
		return VB_CM_NUMBER(m->rep.remote_comm_id);
	case VB_CM_RTU:
		return VB_CM_NUMBER(m->rtu.remote_comm_id);
	case VB_CM_DREQ:
		return VB_CM_NUMBER(m->dreq.remote_comm_id);
	case VB_CM_DREP:
		return VB_CM_NUMBER(m->drep.remote_comm_id);
	case VB_CM_SIDR_REP:
		return VB_CM_NUMBER(m->sidr_rep.request_id);
	case VB_CM_LAP:
		return VB_CM_NUMBER(m->lap.remote_comm_id);
	case VB_CM_APR:
		return VB_CM_NUMBER(m->apr.remote_comm_id);
	default:
		return 0;
	}
}

uint32_t vb_cm_msg_speaker(const struct vb_cm_msg *m)
{
	switch (m->kind) {
	case VB_CM_MRA:
		return m->mra.local_comm_id;
	case VB_CM_REJ:
		return m->rej.local_comm_id;
	case VB_CM_REP:
		return m->rep.local_comm_id;
	case VB_CM_RTU:
	case VB_CM_DREP:
		return m->rtu.local_comm_id;
	case VB_CM_DREQ:
		return m->dreq.local_comm_id;
	case VB_CM_LAP:
		return m->lap.local_comm_id;
	case VB_CM_APR:
		return m->apr.local_comm_id;
	default:
		return 0;
	}
}

/* Whose REQ or SIDR_REQ it is; NULL: nobody's any more. */
static struct vb_cm_conn *asking(struct vb_cm *cm, const struct vb_cm_msg *m)
{
	uint32_t id = m->kind == VB_CM_REQ ? m->req.local_comm_id : m->sidr_req.request_id;
	uint32_t slot = vb_cm_num_find(&cm->numbers, VB_CM_BY_ID, 0, id);

	vb_lock_assert_held(cm->lock);
	return slot == VB_CM_NONE ? NULL : vb_cm_num(&cm->numbers, slot)->conn;
}

void vb_cm_went(struct vb_cm *cm, const struct vb_cm_msg *m, const struct vb_whom *to)
{
	struct vb_cm_conn *c = asking(cm, m);

	if (c)
		c->asked = *to;
}

bool vb_cm_asks(struct vb_cm *cm, const struct vb_cm_msg *m)
{
	const struct vb_cm_conn *c = asking(cm, m);

	return c && vb_cm_rows[c->state].unanswered == m->kind;
}

/* Comm IDs of another host name no adapter of this one.  Of a process of this host the very one is meant that
 * av tells of, if it has the number.  asked: who it is if no comm ID tells. */
static void send(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_whom *asked,
		 const struct vb_cm_msg *m, const uint8_t *mad)
{
	uint32_t number = vb_cm_msg_number(m);
	struct vb_whom to = number ? vb_whom_at(number) : *asked;

	vb_lock_assert_held(cm->lock);
	if (av->whom.kind == VB_WHOM_ADDRESS || (to.kind == VB_WHOM_PEER && to.number == av->whom.number))
		to = av->whom;
	cm->ops->send(cm, av, &to, m, mad);
}

struct vb_cm_msg vb_cm_compose(const struct vb_cm_conn *c, enum vb_cm_kind kind,
			       const struct vb_cm_private *private)
{
	struct vb_cm_msg m = {.kind = (uint16_t)kind, .tid = c->inner->tid};

	if (private)
		m.private_data = *private;
	switch (kind) {
	case VB_CM_MRA:
		m.mra.local_comm_id = c->local_comm_id;
		m.mra.remote_comm_id = c->remote_comm_id;
		break;
	case VB_CM_REJ:
		m.rej.local_comm_id = c->local_comm_id;
		m.rej.remote_comm_id = c->remote_comm_id;
		break;
	case VB_CM_RTU:
	case VB_CM_DREP:
		m.rtu = (struct vb_cm_ids){c->local_comm_id, c->remote_comm_id};
		break;
	case VB_CM_DREQ:
		m.dreq = (struct vb_cm_dreq){c->local_comm_id, c->remote_comm_id, c->remote_qpn};
		break;
	default: /* the others carry more than that, which comes with the call */
		break;
	}
	return m;
}

void vb_cm_keep(struct vb_cm_conn *c, const struct vb_cm_msg *m)
{
	vb_cm_msg_put(c->inner->mad, m);
	c->inner->said = m->kind;
}

void vb_cm_say(struct vb_cm_conn *c, const struct vb_cm_msg *m)
{
	vb_cm_keep(c, m);
	vb_cm_say_again(c);
}

void vb_cm_say_again(struct vb_cm_conn *c)
{
	struct vb_cm_msg m;

	if (!c->inner->said || vb_cm_msg_get(c->inner->mad, &m))
		return;
	/* A REJ without the comm ID, and the answer of a SIDR exchange, do not show it. */
	if (m.kind != VB_CM_SIDR_REP && !(m.kind == VB_CM_REJ && !m.rej.local_comm_id))
		c->inner->shown = true;
	send(c->cm, &c->av, &c->asked, &m, c->inner->mad);
}

void vb_cm_say_rej(struct vb_cm_conn *c, uint16_t reason, const uint8_t *info, size_t info_len,
		   const struct vb_cm_private *private)
{
	const struct vb_cm_row *row = &vb_cm_rows[c->state];
	struct vb_cm_msg m = vb_cm_compose(c, VB_CM_REJ, private);

	m.rej.reason = reason;
	m.rej.about = row->about;
	if (row->nameless)
		m.rej.local_comm_id = 0;
	m.rej.info_len = (uint8_t)info_len;
	if (info_len)
		memcpy(m.rej.info, info, info_len);
	vb_cm_say(c, &m);
}

void vb_cm_say_timeout(struct vb_cm_conn *c)
{
	uint64_t guid = htobe64(c->cm->ca_guid);

	vb_cm_say_rej(c, VB_CM_REJ_TIMEOUT, (const uint8_t *)&guid, sizeof(guid), NULL);
}

void vb_cm_new_tid(struct vb_cm_conn *c)
{
	c->inner->tid = (uint64_t)c->cm->ops->chance(c->cm) << 32 | c->local_comm_id;
}

void vb_cm_say_dreq(struct vb_cm_conn *c, const struct vb_cm_private *private)
{
	struct vb_cm_msg m;

	vb_cm_new_tid(c);
	m = vb_cm_compose(c, VB_CM_DREQ, private);
	vb_cm_say(c, &m);
}

static void answer(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_cm_msg *m)
{
	static const struct vb_whom nobody;
	uint8_t mad[VB_MAD_LEN];

	vb_cm_msg_put(mad, m);
	send(cm, av, &nobody, m, mad);
}

void vb_cm_answer_rej(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_cm_msg *to,
		      uint16_t reason)
{
	struct vb_cm_msg m = {.kind = VB_CM_REJ, .tid = to->tid, .rej.reason = reason};

	if (to->kind == VB_CM_REQ) {
		m.rej.about = VB_CM_ABOUT_REQ;
		m.rej.remote_comm_id = to->req.local_comm_id;
	} else if (to->kind == VB_CM_REP) {
		m.rej.about = VB_CM_ABOUT_REP;
		m.rej.local_comm_id = to->rep.remote_comm_id;
		m.rej.remote_comm_id = to->rep.local_comm_id;
	} else {
		m.rej.about = VB_CM_ABOUT_OTHER;
		m.rej.local_comm_id = to->rtu.remote_comm_id;
		m.rej.remote_comm_id = to->rtu.local_comm_id;
	}
	answer(cm, av, &m);
}

void vb_cm_answer_drep(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_cm_msg *to)
{
	const struct vb_cm_msg m = {
	    .kind = VB_CM_DREP, .tid = to->tid, .drep = {to->dreq.remote_comm_id, to->dreq.local_comm_id}};

	answer(cm, av, &m);
}

void vb_cm_answer_apr(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_cm_msg *to, uint8_t status)
{
	const struct vb_cm_msg m = {.kind = VB_CM_APR,
				    .tid = to->tid,
				    .apr = {.local_comm_id = to->lap.remote_comm_id,
					    .remote_comm_id = to->lap.local_comm_id,
					    .status = status}};

	answer(cm, av, &m);
}

void vb_cm_answer_sidr(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_cm_msg *to,
		       uint8_t status)
{
	const struct vb_cm_msg m = {.kind = VB_CM_SIDR_REP,
				    .tid = to->tid,
				    .sidr_rep = {.request_id = to->sidr_req.request_id,
						 .service_id = to->sidr_req.service_id,
						 .status = status}};

	answer(cm, av, &m);
}
