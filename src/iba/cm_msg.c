#include "iba/cm_msg.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/debug.h"

#define LENGTH(a)      (sizeof(a) / sizeof((a)[0]))
#define MEMBER_SIZE(m) sizeof(((struct vb_cm_msg *)0)->m)

/* Rows: the name, the byte of the MAD's data and the bit within it (0 is the highest) at which the field
 * begins, its width in bits, the value.  PIECE: bits of the value from `shift` up, of `whole` altogether. */
#define PIECE(name, byte, bit, bits, member, shift, whole)                                      \
	{                                                                                       \
		name, (byte)*8 + (bit), bits, shift, whole, offsetof(struct vb_cm_msg, member), \
		    MEMBER_SIZE(member)                                                         \
	}
#define FIELD(name, byte, bit, bits, member) PIECE(name, byte, bit, bits, member, 0, bits)
/* A number of whole bytes, as wide as the value; bytes. */
#define WHOLE(name, byte, member) FIELD(name, byte, 0, MEMBER_SIZE(member) * 8, member)
#define BYTES(name, byte, member) PIECE(name, byte, 0, MEMBER_SIZE(member) * 8, member, 0, 0)

/* 12.6.5, table of REQ's contents: 44 bytes for each of both paths. */
#define PATH(text, byte, member)                                                 \
	WHOLE(text " Local Port LID", byte, member.local_lid),                   \
	    WHOLE(text " Remote Port LID", (byte) + 2, member.remote_lid),       \
	    BYTES(text " Local Port GID", (byte) + 4, member.local_gid),         \
	    BYTES(text " Remote Port GID", (byte) + 20, member.remote_gid),      \
	    FIELD(text " Flow Label", (byte) + 36, 0, 20, member.flow_label),    \
	    FIELD(text " Packet Rate", (byte) + 39, 2, 6, member.rate),          \
	    WHOLE(text " Traffic Class", (byte) + 40, member.traffic_class),     \
	    WHOLE(text " Hop Limit", (byte) + 41, member.hop_limit),             \
	    FIELD(text " SL", (byte) + 42, 0, 4, member.sl),                     \
	    FIELD(text " Subnet Local", (byte) + 42, 4, 1, member.subnet_local), \
	    FIELD(text " Local ACK Timeout", (byte) + 43, 0, 5, member.local_ack_timeout)

static const struct vb_cm_field req[] = {
    WHOLE("Local Communication ID", 0, req.local_comm_id),
    FIELD("Vendor ID", 5, 0, 24, req.vendor_id),
    WHOLE("ServiceID", 8, req.service_id),
    WHOLE("Local CA GUID", 16, req.ca_guid),
    WHOLE("Local Q_Key", 28, req.qkey),
    FIELD("Local QPN", 32, 0, 24, req.qpn),
    WHOLE("Responder Resources", 35, req.responder_resources),
    FIELD("Local EECN", 36, 0, 24, req.eecn),
    WHOLE("Initiator Depth", 39, req.initiator_depth),
    FIELD("Remote EECN", 40, 0, 24, req.remote_eecn),
    FIELD("Remote CM Response Timeout", 43, 0, 5, req.remote_response_timeout),
    FIELD("Transport Service Type", 43, 5, 2, req.service_type),
    FIELD("End-to-End Flow Control", 43, 7, 1, req.flow_control),
    FIELD("Starting PSN", 44, 0, 24, req.psn),
    FIELD("Local CM Response Timeout", 47, 0, 5, req.local_response_timeout),
    FIELD("Retry Count", 47, 5, 3, req.retry_count),
    WHOLE("Partition Key", 48, req.pkey),
    FIELD("Path Packet Payload MTU", 50, 0, 4, req.path_mtu),
    FIELD("RDC Exists", 50, 4, 1, req.rdc_exists),
    FIELD("RNR Retry Count", 50, 5, 3, req.rnr_retry_count),
    FIELD("Max CM Retries", 51, 0, 4, req.max_cm_retries),
    FIELD("SRQ", 51, 4, 1, req.srq),
    FIELD("Extended Transport Type", 51, 5, 3, req.extended_type),
    PATH("Primary", 52, req.primary),
    PATH("Alternate", 96, req.alternate),
};

/* 12.6.6 */
static const struct vb_cm_field mra[] = {
    WHOLE("Local Communication ID", 0, mra.local_comm_id),
    WHOLE("Remote Communication ID", 4, mra.remote_comm_id),
    FIELD("Message MRAed", 8, 0, 2, mra.about),
    FIELD("Service Timeout", 9, 0, 5, mra.service_timeout),
};

/* 12.6.7 */
static const struct vb_cm_field rej[] = {
    WHOLE("Local Communication ID", 0, rej.local_comm_id),
    WHOLE("Remote Communication ID", 4, rej.remote_comm_id),
    FIELD("Message REJected", 8, 0, 2, rej.about),
    FIELD("Reject Info Length", 9, 0, 7, rej.info_len),
    WHOLE("Reason", 10, rej.reason),
    BYTES("Additional Reject Information", 12, rej.info),
};

/* 12.6.8; the vendor's ID has the bytes that fill up three numbers of 24 bits. */
static const struct vb_cm_field rep[] = {
    WHOLE("Local Communication ID", 0, rep.local_comm_id),
    WHOLE("Remote Communication ID", 4, rep.remote_comm_id),
    WHOLE("Local Q_Key", 8, rep.qkey),
    FIELD("Local QPN", 12, 0, 24, rep.qpn),
    PIECE("Vendor ID high", 15, 0, 8, rep.vendor_id, 16, 24),
    FIELD("Local EE Context Number", 16, 0, 24, rep.eecn),
    PIECE("Vendor ID middle", 19, 0, 8, rep.vendor_id, 8, 24),
    FIELD("Starting PSN", 20, 0, 24, rep.psn),
    PIECE("Vendor ID low", 23, 0, 8, rep.vendor_id, 0, 24),
    WHOLE("Responder Resources", 24, rep.responder_resources),
    WHOLE("Initiator Depth", 25, rep.initiator_depth),
    FIELD("Target ACK Delay", 26, 0, 5, rep.target_ack_delay),
    FIELD("Failover Accepted", 26, 5, 2, rep.failover_accepted),
    FIELD("End-To-End Flow Control", 26, 7, 1, rep.flow_control),
    FIELD("RNR Retry Count", 27, 0, 3, rep.rnr_retry_count),
    FIELD("SRQ", 27, 3, 1, rep.srq),
    WHOLE("Local CA GUID", 28, rep.ca_guid),
};

/* 12.6.9 */
static const struct vb_cm_field rtu[] = {
    WHOLE("Local Communication ID", 0, rtu.local_comm_id),
    WHOLE("Remote Communication ID", 4, rtu.remote_comm_id),
};

/* 12.6.10 */
static const struct vb_cm_field dreq[] = {
    WHOLE("Local Communication ID", 0, dreq.local_comm_id),
    WHOLE("Remote Communication ID", 4, dreq.remote_comm_id),
    FIELD("Remote QPN/EECN", 8, 0, 24, dreq.remote_qpn),
};

/* 12.6.11 */
static const struct vb_cm_field drep[] = {
    WHOLE("Local Communication ID", 0, drep.local_comm_id),
    WHOLE("Remote Communication ID", 4, drep.remote_comm_id),
};

/* 12.11.1 */
static const struct vb_cm_field sidr_req[] = {
    WHOLE("RequestID", 0, sidr_req.request_id),
    WHOLE("Partition Key", 4, sidr_req.pkey),
    WHOLE("ServiceID", 8, sidr_req.service_id),
};

/* 12.11.2 */
static const struct vb_cm_field sidr_rep[] = {
    WHOLE("RequestID", 0, sidr_rep.request_id),
    WHOLE("Status", 4, sidr_rep.status),
    WHOLE("Additional Information Length", 5, sidr_rep.info_len),
    PIECE("Vendor ID high", 6, 0, 16, sidr_rep.vendor_id, 8, 24),
    FIELD("QPN", 8, 0, 24, sidr_rep.qpn),
    PIECE("Vendor ID low", 11, 0, 8, sidr_rep.vendor_id, 0, 24),
    WHOLE("ServiceID", 12, sidr_rep.service_id),
    WHOLE("Q_Key", 20, sidr_rep.qkey),
    BYTES("Additional Information", 24, sidr_rep.info),
};

/* 12.8.1; the path that it proposes is not read. */
static const struct vb_cm_field lap[] = {
    WHOLE("Local Communication ID", 0, lap.local_comm_id),
    WHOLE("Remote Communication ID", 4, lap.remote_comm_id),
};

/* 12.8.2 */
static const struct vb_cm_field apr[] = {
    WHOLE("Local Communication ID", 0, apr.local_comm_id),
    WHOLE("Remote Communication ID", 4, apr.remote_comm_id),
    WHOLE("Additional Information Length", 8, apr.info_len),
    WHOLE("AP Status", 9, apr.status),
    BYTES("Additional Information", 12, apr.info),
};

/* A row per kind; private data reaches from its byte of the MAD's data to the end in all of them. */
struct kind {
	const char *name;
	const struct vb_cm_field *fields;
	uint16_t n;
	uint16_t room;
};
#define KIND(name, text, table) \
	[VB_CM_##name - VB_CM_REQ] = {text, table, LENGTH(table), VB_CM_##name##_PRIVATE}

static const struct kind kinds[] = {
    KIND(REQ, "REQ", req),
    KIND(MRA, "MRA", mra),
    KIND(REJ, "REJ", rej),
    KIND(REP, "REP", rep),
    KIND(RTU, "RTU", rtu),
    KIND(DREQ, "DREQ", dreq),
    KIND(DREP, "DREP", drep),
    KIND(SIDR_REQ, "SIDR_REQ", sidr_req),
    KIND(SIDR_REP, "SIDR_REP", sidr_rep),
    KIND(LAP, "LAP", lap),
    KIND(APR, "APR", apr),
};

static const struct kind *kind_of(uint16_t kind)
{
	if (kind < VB_CM_REQ || kind - VB_CM_REQ >= (int)LENGTH(kinds))
		return NULL;
	return &kinds[kind - VB_CM_REQ];
}

const struct vb_cm_field *vb_cm_fields(uint16_t kind, size_t *n)
{
	const struct kind *k = kind_of(kind);

	*n = k ? k->n : 0;
	return k ? k->fields : NULL;
}

size_t vb_cm_private_room(uint16_t kind)
{
	const struct kind *k = kind_of(kind);

	return k ? k->room : 0;
}

const char *vb_cm_kind_name(uint16_t kind, char buf[32])
{
	const struct kind *k = kind_of(kind);

	if (k)
		return k->name;
	snprintf(buf, 32, "message 0x%x", kind);
	return buf;
}

static uint64_t low_bits(unsigned n)
{
	return UINT64_MAX >> (64 - n);
}

/* What follows a field in its last byte, in bits. */
static unsigned tail(const struct vb_cm_field *f)
{
	return (8u - (unsigned)(f->bit + f->bits) % 8u) % 8u;
}

static uint64_t load(const void *at, size_t size)
{
	switch (size) {
	case 1:
		return *(const uint8_t *)at;
	case 2:
		return *(const uint16_t *)at;
	case 4:
		return *(const uint32_t *)at;
	default:
		return *(const uint64_t *)at;
	}
}

static void store(void *at, size_t size, uint64_t v)
{
	switch (size) {
	case 1:
		*(uint8_t *)at = (uint8_t)v;
		break;
	case 2:
		*(uint16_t *)at = (uint16_t)v;
		break;
	case 4:
		*(uint32_t *)at = (uint32_t)v;
		break;
	default:
		*(uint64_t *)at = v;
	}
}

/* The bits there are 0: what shares a byte is put one after the other. */
static void put_field(uint8_t *data, const struct vb_cm_field *f, const void *value)
{
	uint64_t v;

	if (f->bits > 64) {
		memcpy(data + f->bit / 8, value, f->size);
		return;
	}
	v = load(value, f->size);
	vb_assert(!(v & ~low_bits(f->value_bits)));
	v = (v >> f->shift & low_bits(f->bits)) << tail(f);
	for (int i = (f->bit + f->bits - 1) / 8; i >= f->bit / 8; i--, v >>= 8)
		data[i] |= (uint8_t)v;
}

static void get_field(const uint8_t *data, const struct vb_cm_field *f, void *value)
{
	uint64_t v = 0;

	if (f->bits > 64) {
		memcpy(value, data + f->bit / 8, f->size);
		return;
	}
	for (int i = f->bit / 8; i <= (f->bit + f->bits - 1) / 8; i++)
		v = v << 8 | data[i];
	v = v >> tail(f) & low_bits(f->bits);
	store(value, f->size, load(value, f->size) | v << f->shift);
}

void vb_cm_msg_put(uint8_t mad[VB_MAD_LEN], const struct vb_cm_msg *m)
{
	const struct kind *k = kind_of(m->kind);
	const struct vb_mad_head head = {
	    .base_version = VB_MAD_BASE_VERSION,
	    .mgmt_class = VB_MAD_CLASS_CM,
	    .class_version = VB_MAD_CM_VERSION,
	    .method = VB_MAD_SEND,
	    .tid = m->tid,
	    .attribute = m->kind,
	    .modifier = m->modifier,
	};
	size_t len = m->private_data.len;

	vb_mad_head_put(mad, &head);
	memset(mad + VB_MAD_DATA, 0, VB_MAD_LEN - VB_MAD_DATA);
	vb_assert(k);
	if (!k)
		return;
	for (size_t i = 0; i < k->n; i++)
		put_field(mad + VB_MAD_DATA, &k->fields[i], (const uint8_t *)m + k->fields[i].at);
	vb_assert(len <= k->room);
	if (len > k->room)
		len = k->room;
	if (len)
		memcpy(mad + VB_MAD_LEN - k->room, m->private_data.at, len);
}

int vb_cm_msg_get(const uint8_t mad[VB_MAD_LEN], struct vb_cm_msg *m)
{
	const struct kind *k;
	struct vb_mad_head head;

	vb_mad_head_get(mad, &head);
	k = kind_of(head.attribute);
	if (head.base_version != VB_MAD_BASE_VERSION || head.mgmt_class != VB_MAD_CLASS_CM ||
	    head.class_version != VB_MAD_CM_VERSION || head.method != VB_MAD_SEND || !k)
		return EPROTO;
	memset(m, 0, sizeof(*m));
	m->kind = head.attribute;
	m->tid = head.tid;
	m->modifier = head.modifier;
	for (size_t i = 0; i < k->n; i++)
		get_field(mad + VB_MAD_DATA, &k->fields[i], (uint8_t *)m + k->fields[i].at);
	m->private_data.at = mad + VB_MAD_LEN - k->room;
	m->private_data.len = k->room;
	return 0;
}

/* Annex A11: the version of the header (0), then in a byte of its own that of IP above four reserved bits,
 * the port, and an address of 16 bytes for each end. */
enum { IP_VERSION = 1, IP_PORT = 2, IP_SRC = 4, IP_DST = 20, IP_CMA_VERSION = 0, IPV4_LEN = 4 };

void vb_cm_ip_put(uint8_t at[VB_CM_IP_LEN], const struct vb_cm_ip *ip)
{
	size_t len = ip->version == 4 ? IPV4_LEN : 16, skip = 16 - len;
	uint16_t port = htobe16(ip->port);

	vb_assert(ip->version == 4 || ip->version == 6);
	memset(at, 0, VB_CM_IP_LEN);
	at[0] = IP_CMA_VERSION;
	at[IP_VERSION] = (uint8_t)(ip->version << 4);
	memcpy(at + IP_PORT, &port, sizeof(port));
	memcpy(at + IP_SRC + skip, ip->src + skip, len);
	memcpy(at + IP_DST + skip, ip->dst + skip, len);
}

int vb_cm_ip_get(const uint8_t at[VB_CM_IP_LEN], struct vb_cm_ip *ip)
{
	uint8_t version = at[IP_VERSION] >> 4;
	size_t len = version == 4 ? IPV4_LEN : 16, skip = 16 - len;
	uint16_t port;

	if (at[0] != IP_CMA_VERSION || (version != 4 && version != 6))
		return EPROTO;
	memcpy(&port, at + IP_PORT, sizeof(port));
	*ip = (struct vb_cm_ip){.version = version, .port = be16toh(port)};
	memcpy(ip->src + skip, at + IP_SRC + skip, len);
	memcpy(ip->dst + skip, at + IP_DST + skip, len);
	return 0;
}
