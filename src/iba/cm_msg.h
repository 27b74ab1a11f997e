/* The messages of the communication management class (IBTA volume 1, 12.6 and 12.11): their fields, and the
 * two pure functions between fields and bytes.  Where each field stands is a row in cm_msg.c, by its name in
 * the specification; the codec, the capture and the tests read the same rows.
 *
 * All numbers are in host order; GIDs and private data are bytes as they stand on the wire. */
#ifndef VB_IBA_CM_MSG_H
#define VB_IBA_CM_MSG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "iba/mad.h"

enum vb_cm_kind {
	VB_CM_REQ = 0x10,
	VB_CM_MRA = 0x11,
	VB_CM_REJ = 0x12,
	VB_CM_REP = 0x13,
	VB_CM_RTU = 0x14,
	VB_CM_DREQ = 0x15,
	VB_CM_DREP = 0x16,
	VB_CM_SIDR_REQ = 0x17,
	VB_CM_SIDR_REP = 0x18,
	VB_CM_LAP = 0x19,
	VB_CM_APR = 0x1a,
};

/* Bytes of private data that each kind has room for. */
enum {
	VB_CM_REQ_PRIVATE = 92,
	VB_CM_MRA_PRIVATE = 222,
	VB_CM_REJ_PRIVATE = 148,
	VB_CM_REP_PRIVATE = 196,
	VB_CM_RTU_PRIVATE = 224,
	VB_CM_DREQ_PRIVATE = 220,
	VB_CM_DREP_PRIVATE = 224,
	VB_CM_SIDR_REQ_PRIVATE = 216,
	VB_CM_SIDR_REP_PRIVATE = 136,
	VB_CM_LAP_PRIVATE = 168,
	VB_CM_APR_PRIVATE = 148,
	VB_CM_PRIVATE_MAX = 224,
	VB_CM_REJ_INFO = 72, /* additional rejection information (ARI), and APR's additional information */
	VB_CM_SIDR_INFO = 72,
};

/* REQ's transport service type. */
enum { VB_CM_SERVICE_RC = 0, VB_CM_SERVICE_UC = 1, VB_CM_SERVICE_XRC = 3 }; /* 3: extended transport types */

/* What an MRA or REJ is about, as they say it themselves. */
enum vb_cm_about { VB_CM_ABOUT_REQ = 0, VB_CM_ABOUT_REP = 1, VB_CM_ABOUT_OTHER = 2 }; /* MRA: 2 is LAP */

/* Reasons of a REJ (12.6.7.2); any other number is passed on as it came. */
enum vb_cm_rej {
	VB_CM_REJ_NO_QP = 1,
	VB_CM_REJ_NO_EEC = 2,
	VB_CM_REJ_NO_RESOURCES = 3,
	VB_CM_REJ_TIMEOUT = 4,
	VB_CM_REJ_UNSUPPORTED = 5,
	VB_CM_REJ_INVALID_COMM_ID = 6,
	VB_CM_REJ_INVALID_COMM_INSTANCE = 7,
	VB_CM_REJ_INVALID_SERVICE_ID = 8,
	VB_CM_REJ_INVALID_SERVICE_TYPE = 9,
	VB_CM_REJ_STALE_CONN = 10,
	VB_CM_REJ_NO_RDC = 11,
	VB_CM_REJ_INVALID_GID = 12,
	VB_CM_REJ_INVALID_LID = 13,
	VB_CM_REJ_INVALID_SL = 14,
	VB_CM_REJ_INVALID_TRAFFIC_CLASS = 15,
	VB_CM_REJ_INVALID_HOP_LIMIT = 16,
	VB_CM_REJ_INVALID_RATE = 17,
	VB_CM_REJ_INVALID_ALT_GID = 18,
	VB_CM_REJ_INVALID_ALT_LID = 19,
	VB_CM_REJ_INVALID_ALT_SL = 20,
	VB_CM_REJ_INVALID_ALT_TRAFFIC_CLASS = 21,
	VB_CM_REJ_INVALID_ALT_HOP_LIMIT = 22,
	VB_CM_REJ_INVALID_ALT_RATE = 23,
	VB_CM_REJ_REDIRECT = 24,
	VB_CM_REJ_PORT_REDIRECT = 25,
	VB_CM_REJ_INVALID_MTU = 26,
	VB_CM_REJ_RESPONDER_RESOURCES = 27,
	VB_CM_REJ_CONSUMER = 28,
	VB_CM_REJ_RNR_RETRY = 29,
	VB_CM_REJ_DUPLICATE_COMM_ID = 30,
	VB_CM_REJ_CLASS_VERSION = 31,
	VB_CM_REJ_INVALID_FLOW_LABEL = 32,
	VB_CM_REJ_INVALID_ALT_FLOW_LABEL = 33,
	VB_CM_REJ_VENDOR_OPTION = 35, /* ECE: what the vendor's options ask for is not there */
};

/* Status of a SIDR_REP (12.11.2). */
enum vb_cm_sidr {
	VB_CM_SIDR_SUCCESS = 0,
	VB_CM_SIDR_UNSUPPORTED = 1, /* no such service ID */
	VB_CM_SIDR_REJECT = 2,
	VB_CM_SIDR_NO_QP = 3,
	VB_CM_SIDR_REDIRECT = 4,
	VB_CM_SIDR_UNSUPPORTED_VERSION = 5,
};

/* What a REP says about REQ's alternate path. */
enum vb_cm_failover {
	VB_CM_FAILOVER_ACCEPTED = 0,
	VB_CM_FAILOVER_UNSUPPORTED = 1,
	VB_CM_FAILOVER_REJECTED = 2,
};

/* Status of an APR (12.8.2). */
enum vb_cm_apr_status {
	VB_CM_APR_LOADED = 0,
	VB_CM_APR_INVALID_COMM_ID = 1,
	VB_CM_APR_UNSUPPORTED = 2, /* no alternate paths here */
	VB_CM_APR_REJECTED = 3,
};

/* One of REQ's two paths. */
struct vb_cm_path {
	uint16_t local_lid, remote_lid; /* RoCE has 0xffff where hop_limit is above 1 */
	uint8_t local_gid[16], remote_gid[16];
	uint32_t flow_label; /* 20 bits */
	uint8_t rate;	     /* 6 bits */
	uint8_t traffic_class;
	uint8_t hop_limit;
	uint8_t sl;		   /* 4 bits */
	uint8_t subnet_local;	   /* 1 bit: hop_limit is 0 or 1 */
	uint8_t local_ack_timeout; /* 5 bits */
};

struct vb_cm_private {
	const uint8_t *at; /* encode: the caller's, `len` bytes, and zeros follow; decode: within the MAD, */
	uint16_t len;	   /* all of the field */
};

struct vb_cm_req {
	uint32_t local_comm_id;
	uint32_t vendor_id; /* 24 bits: of ECE (vb_cm_msg.modifier has its options), 0: none */
	uint64_t service_id;
	uint64_t ca_guid;
	uint32_t qkey; /* 0: of no meaning here */
	uint32_t qpn;
	uint8_t responder_resources;
	uint32_t eecn;
	uint8_t initiator_depth;
	uint32_t remote_eecn;
	uint8_t remote_response_timeout; /* 5 bits: 4.096 us << this */
	uint8_t service_type;		 /* 2 bits, VB_CM_SERVICE_* */
	uint8_t flow_control;		 /* 1 bit */
	uint32_t psn;
	uint8_t local_response_timeout; /* 5 bits */
	uint8_t retry_count;		/* 3 bits */
	uint16_t pkey;
	uint8_t path_mtu; /* 4 bits: enum ibv_mtu */
	uint8_t rdc_exists;
	uint8_t rnr_retry_count; /* 3 bits */
	uint8_t max_cm_retries;	 /* 4 bits */
	uint8_t srq;		 /* 1 bit */
	uint8_t extended_type;	 /* 3 bits; 1: XRC, where service_type is 3 */
	struct vb_cm_path primary;
	struct vb_cm_path alternate; /* all 0: none */
};

struct vb_cm_mra {
	uint32_t local_comm_id, remote_comm_id;
	uint8_t about;		 /* enum vb_cm_about */
	uint8_t service_timeout; /* 5 bits */
};

struct vb_cm_rej_msg {
	uint32_t local_comm_id, remote_comm_id; /* local: 0 where the REQ was not taken in */
	uint8_t about;				/* enum vb_cm_about */
	uint8_t info_len;			/* 7 bits: bytes of info that count */
	uint16_t reason;			/* enum vb_cm_rej */
	uint8_t info[VB_CM_REJ_INFO];
};

struct vb_cm_rep {
	uint32_t local_comm_id, remote_comm_id;
	uint32_t qkey;
	uint32_t qpn;
	uint32_t eecn; /* XRC: the target's QPN, and qpn is 0 */
	uint32_t psn;
	uint8_t responder_resources;
	uint8_t initiator_depth;
	uint8_t target_ack_delay;  /* 5 bits */
	uint8_t failover_accepted; /* 2 bits, enum vb_cm_failover */
	uint8_t flow_control;
	uint8_t rnr_retry_count; /* 3 bits */
	uint8_t srq;
	uint32_t vendor_id; /* as in REQ; stands in three pieces between the other fields */
	uint64_t ca_guid;
};

struct vb_cm_ids { /* RTU, DREP */
	uint32_t local_comm_id, remote_comm_id;
};

struct vb_cm_dreq {
	uint32_t local_comm_id, remote_comm_id;
	uint32_t remote_qpn; /* the receiver's */
};

struct vb_cm_sidr_req {
	uint32_t request_id;
	uint16_t pkey;
	uint64_t service_id;
};

struct vb_cm_sidr_rep {
	uint32_t request_id;
	uint8_t status; /* enum vb_cm_sidr */
	uint8_t info_len;
	uint32_t qpn;
	uint64_t service_id;
	uint32_t qkey;
	uint32_t vendor_id; /* as in REQ, in two pieces */
	uint8_t info[VB_CM_SIDR_INFO];
};

struct vb_cm_lap { /* refused here: only what the refusal needs */
	uint32_t local_comm_id, remote_comm_id;
};

struct vb_cm_apr {
	uint32_t local_comm_id, remote_comm_id;
	uint8_t info_len;
	uint8_t status; /* enum vb_cm_apr_status */
	uint8_t info[VB_CM_REJ_INFO];
};

struct vb_cm_msg {
	uint16_t kind; /* enum vb_cm_kind */
	uint64_t tid;
	uint32_t modifier; /* ECE's options in REQ, REP and SIDR_REP; else 0 */
	union {
		struct vb_cm_req req;
		struct vb_cm_mra mra;
		struct vb_cm_rej_msg rej;
		struct vb_cm_rep rep;
		struct vb_cm_ids rtu, drep;
		struct vb_cm_dreq dreq;
		struct vb_cm_sidr_req sidr_req;
		struct vb_cm_sidr_rep sidr_rep;
		struct vb_cm_lap lap;
		struct vb_cm_apr apr;
	};
	struct vb_cm_private private_data;
};

/* One field of a message, or one piece of it. */
struct vb_cm_field {
	const char *name;   /* the specification's */
	uint16_t bit;	    /* where it begins, from the MAD's data (byte 24), */
	uint16_t bits;	    /* and how wide it is.  Above 64: bytes in the order of the wire */
	uint8_t shift;	    /* of the value's bits this one has those from here up: 0 but in pieces */
	uint8_t value_bits; /* of all pieces together; bytes: 0 */
	uint16_t at, size;  /* of the value in struct vb_cm_msg */
};
/* The fields of a kind, in the order of the MAD, without private data; NULL: no such kind. */
const struct vb_cm_field *vb_cm_fields(uint16_t kind, size_t *n);

/* Writes the message as a MAD of its kind, all of it; fields wider than their place are cut to it (asserted
 * in debug builds), private data is at most what its kind has room for (the caller has checked:
 * vb_cm_private_room), and lies elsewhere than mad. */
void vb_cm_msg_put(uint8_t mad[VB_MAD_LEN], const struct vb_cm_msg *m);
/* Reads one; m->private_data points into mad.  0; EPROTO: it is no MAD of this class and version, no Send, or
 * of no kind above, and *m is as it was; nothing else about it can be wrong, since each bit pattern is some
 * message.  Bits that are no field are not looked at. */
int vb_cm_msg_get(const uint8_t mad[VB_MAD_LEN], struct vb_cm_msg *m);
/* Bytes of private data that a kind has room for; 0: no such kind. */
size_t vb_cm_private_room(uint16_t kind);
/* "REQ"; "message 0x33" in buf of a kind that there is none of. */
const char *vb_cm_kind_name(uint16_t kind, char buf[32]);
/* What a REJ's reason means, for sentences: "invalid service ID: no listener on this address and port". */
const char *vb_cm_rej_text(uint16_t reason);
/* The same of a SIDR_REP's status; 0 has one too. */
const char *vb_cm_sidr_text(uint8_t status);

/* 4.096 us << code, in ns; codes above 31 do not exist. */
static inline uint64_t vb_cm_time(uint8_t code)
{
	return 4096ull << (code & 31);
}

/* rdma_cm's service IDs and header in the private data of REQ and SIDR_REQ (IBTA annex A11, "IP addressing").
 */
#define VB_CM_IP_LEN 36
struct vb_cm_ip {
	uint8_t version;	  /* of IP: 4 or 6 */
	uint16_t port;		  /* the sender's */
	uint8_t src[16], dst[16]; /* IPv4: the last four bytes, the others 0 */
};
/* port space << 16 | port, below the prefix of IP service IDs: 0x0000000001060000 and so on for TCP */
static inline uint64_t vb_cm_service_id(uint32_t port_space, uint16_t port)
{
	return (uint64_t)port_space << 16 | port;
}
void vb_cm_ip_put(uint8_t at[VB_CM_IP_LEN], const struct vb_cm_ip *ip);
/* 0; EPROTO: another CMA version or IP version. */
int vb_cm_ip_get(const uint8_t at[VB_CM_IP_LEN], struct vb_cm_ip *ip);

#endif
