#include "iba/facts.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/text.h"
#include "iba/names.h"
#include "iba/opcode.h"
#include "iba/qp_state.h"

/* How a member is written.  Numbers that identify something are strings, as the sentences have them. */
enum form {
	NUMBER,	   /* of JSON */
	KNOWN,	   /* the same; 0: nothing is known, it is left out */
	HEX,	   /* "0x..." */
	KNOWN_HEX, /* 0 is left out */
	QPN,	   /* "0x......", 0 is left out */
	KEY,	   /* "0x........", 0 is left out */
	ACCESS,	   /* "REMOTE_WRITE|..." */
	QP_TYPE,   /* "IBV_QPT_RC", 0 is left out */
	WR_OPCODE, /* "IBV_WR_SEND" */
};

#define MEMBER(kind, member, name, form)                                            \
	{                                                                           \
		VB_FACTS_##kind, form, sizeof(((struct vb_facts *)0)->kind.member), \
		    offsetof(struct vb_facts, kind.member), name                    \
	}

/* What only the sentence explains (flags, and enumerations of ours) is not here. */
static const struct member {
	uint8_t kind, form, size, offset;
	const char *name;
} members[] = {
    MEMBER(mem, start, "region_addr", KNOWN_HEX),
    MEMBER(mem, size, "region_len", KNOWN),
    MEMBER(mem, cur_key, "other_key", KEY),
    MEMBER(mem, want, "want", ACCESS),
    MEMBER(mem, have, "have", ACCESS),
    MEMBER(mem, pd_want, "pd_want", KNOWN),
    MEMBER(mem, pd_have, "pd_have", KNOWN),
    MEMBER(mem, process, "process", KNOWN),
    MEMBER(mem, meant_addr, "meant_addr", KNOWN_HEX),
    MEMBER(mem, reached, "reached", KNOWN_HEX),
    MEMBER(window, bound_key, "bound_key", KEY),
    MEMBER(window, bound_qpn, "bound_qpn", QPN),
    MEMBER(window, region, "region_key", KEY),
    MEMBER(window, start, "region_addr", KNOWN_HEX),
    MEMBER(window, size, "region_len", KNOWN),
    MEMBER(window, want, "want", ACCESS),
    MEMBER(window, have, "have", ACCESS),
    MEMBER(access, want, "want", ACCESS),
    MEMBER(access, have, "have", ACCESS),
    MEMBER(atomic, memory, "memory", KNOWN_HEX),
    MEMBER(limit, most, "most", NUMBER),
    MEMBER(packet, opcode, "opcode", HEX),
    MEMBER(packet, before, "before", HEX),
    MEMBER(length, bytes, "bytes", NUMBER),
    MEMBER(length, fit, "fit", NUMBER),
    MEMBER(mtu, sender, "mtu_sender", NUMBER),
    MEMBER(mtu, receiver, "mtu_receiver", NUMBER),
    MEMBER(retry, retries, "retries", NUMBER),
    MEMBER(retry, peer_qpn, "peer_qpn", QPN),
    MEMBER(retry, slow_ms, "slow_ms", KNOWN),
    MEMBER(retry, srq, "srq", QPN),
    MEMBER(gone, pid, "process", KNOWN),
    MEMBER(srq, number, "srq", QPN),
    MEMBER(srq, pid, "process", KNOWN),
    MEMBER(no_qp, type, "qp_type", QP_TYPE),
    MEMBER(no_qp, sent, "sent_type", QP_TYPE),
    MEMBER(no_qp, dest, "dest_qpn", QPN),
    MEMBER(psn, expected, "psn_expected", NUMBER),
    MEMBER(psn, came, "psn", NUMBER),
    MEMBER(qkey, have, "qkey_expected", HEX),
    MEMBER(qkey, came, "qkey", HEX),
    MEMBER(request, opcode, "opcode", WR_OPCODE),
    MEMBER(request, type, "qp_type", QP_TYPE),
};

/* Adds a member, after a comma if it is not the first. */
static void add_text(struct vb_text *t, const char *first, const char *name, const char *value, bool quoted)
{
	const char *quote = quoted ? "\"" : "";

	vb_text_add(t, "%s\"%s\":%s%s%s", t->at == first ? "" : ",", name, quote, value, quote);
}

static void add(struct vb_text *t, const char *first, const char *name, enum form form, uint64_t value)
{
	static const int digits[] = {[QPN] = 6, [KEY] = 8, [WR_OPCODE] = 0};
	char text[300];
	struct vb_text v = {text, sizeof text};
	const char *known = form == QP_TYPE	? vb_name_qp_type((uint32_t)value)
			    : form == WR_OPCODE ? vb_name_wr_opcode((uint32_t)value)
						: NULL;

	if (!value && (form == KNOWN || form == KNOWN_HEX || form == QPN || form == KEY || form == QP_TYPE))
		return;
	if (form == NUMBER || form == KNOWN)
		vb_text_add(&v, "%" PRIu64, value);
	else if (form == ACCESS)
		vb_access_say(text, sizeof text, (uint32_t)value);
	else if (known)
		vb_text_add(&v, "%s", known);
	else
		vb_text_add(&v, "0x%0*" PRIx64, digits[form], value);
	add_text(t, first, name, text, form != NUMBER && form != KNOWN);
}

static void add_kind(struct vb_text *t, const char *first, unsigned kind, const struct vb_facts *f)
{
	for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
		const struct member *m = &members[i];
		uint64_t value = 0;

		if (m->kind != kind)
			continue;
		memcpy(&value, (const char *)f + m->offset, m->size); /* little-endian, as all of Verbena */
		if (m->form == KEY && value == f->key)		      /* told already */
			continue;
		add(t, first, m->name, m->form, value);
	}
}

const char *vb_facts_json(char *buf, size_t size, const struct vb_facts *f)
{
	struct vb_text t = {buf, size};
	const char *first;

	vb_text_add(&t, "{");
	first = t.at;
	add(&t, first, "qpn", QPN, f->qpn);
	add(&t, first, "key", KEY, f->key);
	add(&t, first, "addr", f->key ? HEX : KNOWN_HEX, f->addr);
	add(&t, first, "len", f->key ? NUMBER : KNOWN, f->len);
	if (f->reason == VB_R_RECV_LOCAL && f->check < VB_REASONS)
		add_text(&t, first, "check", vb_reasons[f->check].name, true);
	if (f->reason < VB_REASONS)
		add_kind(&t, first, vb_reasons[f->reason].facts, f);
	vb_text_add(&t, "}");
	if (t.left <= 1)
		*buf = 0;
	return buf;
}

const char *vb_facts_logged(char buf[VB_LOG_FACTS], const struct vb_facts *f)
{
	return vb_log_wants_facts() ? vb_facts_json(buf, VB_LOG_FACTS, f) : "";
}
