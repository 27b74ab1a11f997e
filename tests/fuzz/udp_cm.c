#include "udp_cm.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cm/cm.h"
#include "hca/gsi.h"
#include "hca/hca.h"
#include "iba/cm_msg.h"
#include "iba/grh.h"
#include "iba/pkt.h"
#include "udp_net.h"

enum { CONNS = 12, NUMBER = PORT_SLOT, SERVICE = 0x01061d2f, CODE = 14, RETRIES = 3 };

static struct {
	struct vb_hca *h;
	struct vb_cm *cm;
	struct vb_lock lock;
	struct vb_cm_conn *listener, *conn[CONNS];
	uint8_t own[16], far[16];
	uint32_t chance, qpn;
	unsigned mood;
} t;

/* ---- what the protocol needs ---- */

static void says(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_whom *to,
		 const struct vb_cm_msg *m, const uint8_t mad[VB_MAD_LEN])
{
	struct vb_whom whom = {.kind = VB_WHOM_ADDRESS, .gid = vb_gid_of(av->remote_gid)};

	(void)cm, (void)to, (void)m;
	(void)vb_gsi_send(
	    t.h, &whom,
	    vb_route(VB_GRH_WORD(vb_gid_is_ipv4(whom.gid) ? 0 : 1, av->traffic_class, av->flow_label), 64, 0),
	    mad);
}

static struct vb_cm_conn **slot_of(const struct vb_cm_conn *c)
{
	for (unsigned i = 0; i < CONNS; i++)
		if (t.conn[i] == c)
			return &t.conn[i];
	return NULL;
}

static void end(struct vb_cm_conn **slot)
{
	vb_cm_end(*slot, vb_now());
	*slot = NULL;
}

static int accept_it(struct vb_cm_conn *c)
{
	const struct vb_cm_rep rep = {.qpn = ++t.qpn & 0xffffff, .psn = 5, .target_ack_delay = 3};

	return vb_cm_rep(c, &rep, NULL, vb_now());
}

static int refuse(struct vb_cm_conn *c, unsigned how)
{
	static const uint8_t info[VB_CM_REJ_INFO];

	return vb_cm_rej(c, (uint16_t)(how % 40), info, how & 1 ? sizeof info : 0, NULL, vb_now());
}

static bool hears_request(struct vb_cm_conn *c, bool sidr)
{
	const struct vb_cm_sidr_rep found = {.qpn = 7, .qkey = 9};
	struct vb_cm_conn **slot = slot_of(NULL);

	if (!slot || t.mood & 8)
		return false;
	*slot = c;
	switch (t.mood & 3) {
	case 1:
		sidr ? vb_cm_sidr_rep(c, &found, NULL, vb_now()) : accept_it(c);
		break;
	case 2:
		sidr ? 0 : refuse(c, t.mood);
		break;
	case 3:
		sidr ? 0 : vb_cm_mra(c, CODE, vb_now());
		break;
	default:
		break;
	}
	return true;
}

static bool happens(struct vb_cm_conn *c, const struct vb_cm_event *e)
{
	struct vb_cm_conn **slot;

	if (e->what == VB_CM_EV_REQ || e->what == VB_CM_EV_SIDR_REQ)
		return hears_request(c, e->what == VB_CM_EV_SIDR_REQ);
	slot = slot_of(c);
	if (!slot)
		net_wrong("an event %d of a connection that has ended", e->what);
	if (e->what == VB_CM_EV_REP && t.mood & 4)
		vb_cm_rtu(c, NULL, vb_now());
	else if (e->what == VB_CM_EV_DREQ && t.mood & 4)
		vb_cm_drep(c, NULL, vb_now());
	if (c->state == VB_CM_IDLE || t.mood & 16)
		end(slot);
	return true;
}

static struct vb_cm_conn *listener_of(struct vb_cm *cm, const struct vb_cm_msg *m, const struct vb_cm_av *av)
{
	uint64_t service = m->kind == VB_CM_REQ ? m->req.service_id : m->sidr_req.service_id;

	(void)cm, (void)av;
	return service == SERVICE ? t.listener : NULL;
}

static uint32_t chance(struct vb_cm *cm)
{
	(void)cm;
	return t.chance = t.chance * 1664525 + 1013904223;
}

static const struct vb_cm_ops ops = {
    .send = says, .event = happens, .listener = listener_of, .chance = chance};

/* ---- QP1 ---- */

static void heard(void *user, const struct vb_gsi_mad *m)
{
	struct vb_cm_av from = {.flow_label = VB_GRH_FLOW(m->route.word),
				.traffic_class = VB_GRH_TCLASS(m->route.word),
				.hop_limit = m->route.hops,
				.pkey = VB_PKEY_DEFAULT,
				.whom = m->whom};

	(void)user;
	if (m->handed || m->whom.kind != VB_WHOM_ADDRESS)
		net_wrong("a packet passes for a message of this host");
	memcpy(from.remote_gid, &m->sgid, 16);
	memcpy(from.local_gid, &m->dgid, 16);
	vb_lock_take(&t.lock);
	vb_cm_input(t.cm, &from, m->bytes, vb_now());
	vb_lock_give(&t.lock);
}

static uint64_t timers(void *user, uint64_t now)
{
	uint64_t next;

	(void)user;
	vb_lock_take(&t.lock);
	next = vb_cm_timer(t.cm, now);
	vb_lock_give(&t.lock);
	return next;
}

static void gone(void *user, const struct vb_whom *who, enum vb_peer_end how,
		 const struct vb_reach_facts *silence)
{
	(void)user, (void)who, (void)how, (void)silence;
}

static void mute(void *user, const struct vb_whom *who)
{
	(void)user, (void)who;
}

static void established(void *user, uint32_t qpn)
{
	(void)user, (void)qpn;
}

static void lost(void *user)
{
	(void)user;
}

static const struct vb_gsi_ops gsi_ops = {heard, timers, gone, mute, established, lost};

void fuzz_cm_open(struct vb_hca *h, const uint8_t own[16], const uint8_t far[16])
{
	memcpy(t.own, own, 16);
	memcpy(t.far, far, 16);
	if (t.h)
		return;
	t.h = h;
	t.chance = t.qpn = t.mood = 0;
	if (vb_cm_open(&t.cm, &ops, NULL, &t.lock, NUMBER, 1) || vb_gsi_open(h, &gsi_ops, NULL))
		net_wrong("no QP1");
	vb_lock_take(&t.lock);
	t.listener = vb_cm_new(t.cm, NULL);
	if (!t.listener || vb_cm_listen(t.listener))
		net_wrong("no listener");
	vb_lock_give(&t.lock);
}

void fuzz_cm_close(void)
{
	if (!t.h)
		return;
	vb_lock_take(&t.lock);
	for (unsigned i = 0; i < CONNS; i++)
		if (t.conn[i])
			end(&t.conn[i]);
	vb_cm_end(t.listener, vb_now());
	vb_lock_give(&t.lock);
	vb_gsi_close(t.h);
	vb_cm_close(t.cm);
	t.h = NULL;
}

/* ---- what comes ---- */

static void put32(uint8_t *at, uint32_t v)
{
	uint32_t be = htobe32(v);

	memcpy(at, &be, 4);
}

enum { KINDS = 11, NAMED = 16, FOR_US = 32 }; /* what `how` says */

static void to_listener(uint8_t mad[VB_MAD_LEN])
{
	struct vb_cm_msg m;

	if (vb_cm_msg_get(mad, &m))
		return;
	if (m.kind == VB_CM_REQ)
		m.req.service_id = SERVICE;
	else if (m.kind == VB_CM_SIDR_REQ)
		m.sidr_req.service_id = SERVICE;
	else
		return;
	vb_cm_msg_put(mad, &m);
}

void fuzz_cm_mad(uint8_t mad[VB_MAD_LEN], unsigned how, unsigned which)
{
	const struct vb_cm_conn *c = t.conn[which % CONNS];
	const struct vb_mad_head head = {.base_version = VB_MAD_BASE_VERSION,
					 .mgmt_class = VB_MAD_CLASS_CM,
					 .class_version = VB_MAD_CM_VERSION,
					 .method = VB_MAD_SEND,
					 .tid = which,
					 .attribute = (uint16_t)(VB_CM_REQ + (how & 15) % KINDS)};
	unsigned kind = head.attribute;

	vb_mad_head_put(mad, &head);
	if (how & FOR_US)
		to_listener(mad);
	if (!c || !(how & NAMED))
		return;
	if (kind == VB_CM_SIDR_REP) {
		put32(mad + VB_MAD_DATA, c->local_comm_id);
		return;
	}
	if (c->remote_comm_id)
		put32(mad + VB_MAD_DATA, c->remote_comm_id);
	if (kind != VB_CM_REQ && kind != VB_CM_SIDR_REQ)
		put32(mad + VB_MAD_DATA + 4, c->local_comm_id);
	if (kind == VB_CM_DREQ)
		put32(mad + VB_MAD_DATA + 8, c->local_qpn << 8);
}

/* ---- what the program does ---- */

static void begin(struct vb_cm_conn **slot, unsigned how)
{
	struct vb_cm_av av = {.hop_limit = 64, .pkey = VB_PKEY_DEFAULT, .whom.kind = VB_WHOM_ADDRESS};
	const struct vb_cm_sidr_req sidr = {.service_id = SERVICE, .pkey = VB_PKEY_DEFAULT};
	const struct vb_cm_req req = {.service_id = SERVICE,
				      .qpn = ++t.qpn & 0xffffff,
				      .remote_response_timeout = CODE,
				      .local_response_timeout = CODE,
				      .max_cm_retries = RETRIES,
				      .service_type = (uint8_t)(how >> 4 & 1),
				      .primary.local_ack_timeout = CODE};

	memcpy(av.local_gid, t.own, 16);
	memcpy(av.remote_gid, t.far, 16);
	av.whom.gid = vb_gid_of(t.far);
	*slot = vb_cm_new(t.cm, NULL);
	if (!*slot)
		return;
	if (how & 1)
		vb_cm_sidr_req(*slot, &av, &sidr, CODE, RETRIES, NULL, vb_now());
	else
		vb_cm_req(*slot, &av, &req, NULL, vb_now());
}

static void call(struct vb_cm_conn **slot, unsigned how)
{
	struct vb_cm_conn *c = *slot;
	uint64_t now = vb_now();

	switch (how & 7) {
	case 0:
		accept_it(c);
		break;
	case 1:
		vb_cm_rtu(c, NULL, now);
		break;
	case 2:
		vb_cm_mra(c, (uint8_t)(CODE | (how & 8 ? VB_CM_MRA_LAZY : 0)), now);
		break;
	case 3:
		refuse(c, how >> 3);
		break;
	case 4:
		vb_cm_established(c, now);
		break;
	case 5:
		vb_cm_dreq(c, NULL, now);
		break;
	case 6:
		vb_cm_drep(c, NULL, now);
		break;
	default:
		end(slot);
		break;
	}
}

void fuzz_cm_act(unsigned which, unsigned how)
{
	struct vb_cm_conn **slot = &t.conn[which % CONNS];

	vb_lock_take(&t.lock);
	if (*slot)
		call(slot, how);
	else
		begin(slot, how);
	vb_lock_give(&t.lock);
	vb_adapter_nudge(t.h->adapter);
}

void fuzz_cm_mood(unsigned how)
{
	t.mood = how;
}
