/* The messages of communication management as bytes: each kind against bytes written by hand after the tables
 * of IBTA volume 1, 12.6, 12.8 and 12.11, and the header of annex A11. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <rdma/rdma_cma.h>

#include "iba/cm_msg.h"

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

/* The head of all samples: version 1, class 7, version 2, Send, a transaction ID, the kind, a modifier. */
#define TID	   0x0102030405060708ull
#define MODIFIER   0x11121314u
#define HEAD(kind) "\1\7\2\3" ZERO4 "\x01\x02\x03\x04\x05\x06\x07\x08\0" kind "\0\0\x11\x12\x13\x14"
#define LOCAL	   0xa0a1a2a3u
#define REMOTE	   0xb0b1b2b3u
#define IDS	   "\xa0\xa1\xa2\xa3\xb0\xb1\xb2\xb3"
#define GUID	   "\xc0\xc1\xc2\xc3\xc4\xc5\xc6\xc7"
#define GID_E	   "\xe0\xe1\xe2\xe3\xe4\xe5\xe6\xe7\xe8\xe9\xea\xeb\xec\xed\xee\xef"
#define GID_F	   "\xf0\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9\xfa\xfb\xfc\xfd\xfe\xff"
#define GID_5	   "\x50\x51\x52\x53\x54\x55\x56\x57\x58\x59\x5a\x5b\x5c\x5d\x5e\x5f"
#define GID_6	   "\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f"
#define GID_IS(first)                                                                                 \
	{                                                                                             \
		first, first + 1, first + 2, first + 3, first + 4, first + 5, first + 6, first + 7,   \
		    first + 8, first + 9, first + 10, first + 11, first + 12, first + 13, first + 14, \
		    first + 15                                                                        \
	}
#define ZERO4 "\0\0\0\0"
#define ZERO8 ZERO4 ZERO4
#define INFO  "\xe1\xe2" ZERO8 ZERO8 ZERO8 ZERO8 ZERO8 ZERO8 ZERO8 ZERO8 ZERO4 "\0\xef" /* 72 bytes */
#define HELLO "hello"
#define MSG(name)                                               \
	.kind = VB_CM_##name, .tid = TID, .modifier = MODIFIER, \
	.private_data = {(const uint8_t *)HELLO, sizeof(HELLO) - 1}

struct sample {
	struct vb_cm_msg msg;
	const char *bytes; /* up to the end of the private data; zeros follow */
	size_t len;
	size_t private_at; /* of the MAD's data */
};

#define BYTES(...) .bytes = (__VA_ARGS__), .len = sizeof(__VA_ARGS__) - 1

static const struct sample sample_req = {
    .msg = {MSG(REQ), .req = {.local_comm_id = LOCAL,
			      .vendor_id = 0xb5b6b7,
			      .service_id = 0x0000000001061f90,
			      .ca_guid = 0xc0c1c2c3c4c5c6c7,
			      .qkey = 0xd0d1d2d3,
			      .qpn = 0x123456,
			      .responder_resources = 0x9a,
			      .eecn = 0x234567,
			      .initiator_depth = 0x7b,
			      .remote_eecn = 0x345678,
			      .remote_response_timeout = 20,
			      .service_type = VB_CM_SERVICE_UC,
			      .flow_control = 1,
			      .psn = 0xabcdef,
			      .local_response_timeout = 19,
			      .retry_count = 3,
			      .pkey = 0xfffe,
			      .path_mtu = 5,
			      .rdc_exists = 1,
			      .rnr_retry_count = 6,
			      .max_cm_retries = 11,
			      .srq = 0,
			      .extended_type = 4,
			      .primary = {.local_lid = 0x1e1f,
					  .remote_lid = 0x2e2f,
					  .local_gid = GID_IS(0xe0),
					  .remote_gid = GID_IS(0xf0),
					  .flow_label = 0xfedcb,
					  .rate = 37,
					  .traffic_class = 0x6a,
					  .hop_limit = 64,
					  .sl = 12,
					  .subnet_local = 1,
					  .local_ack_timeout = 18},
			      .alternate = {.local_lid = 0x3e3f,
					    .remote_lid = 0x4e4f,
					    .local_gid = GID_IS(0x50),
					    .remote_gid = GID_IS(0x60),
					    .flow_label = 0x12345,
					    .rate = 63,
					    .traffic_class = 0x7c,
					    .hop_limit = 61,
					    .sl = 5,
					    .subnet_local = 0,
					    .local_ack_timeout = 31}}},
    BYTES(HEAD("\x10") "\xa0\xa1\xa2\xa3"	  /* local communication ID */
		       "\0\xb5\xb6\xb7"		  /* vendor */
		       "\0\0\0\0\x01\x06\x1f\x90" /* service ID */
	  GUID ZERO4				  /* reserved */
		       "\xd0\xd1\xd2\xd3"	  /* Q_Key */
		       "\x12\x34\x56\x9a"	  /* QPN, responder resources */
		       "\x23\x45\x67\x7b"	  /* EECN, initiator depth */
		       "\x34\x56\x78\xa3" /* remote EECN; response timeout 20, type 1 (UC), flow control:
					     10100 01 1 */
		       "\xab\xcd\xef\x9b" /* PSN; response timeout 19, 3 retries: 10011 011 */
		       "\xff\xfe"	  /* P_Key */
		       "\x5e"		  /* MTU 5, RDC exists, RNR retry count 6: 0101 1 110 */
		       "\xb4"		  /* 11 CM retries, no SRQ, extended type 4: 1011 0 100 */
		       "\x1e\x1f\x2e\x2f" /* the primary path: LIDs */
	  GID_E GID_F "\xfe\xdc\xb0\x25"  /* flow label of 20 bits, 6 reserved, rate of 6 */
		       "\x6a\x40"	  /* traffic class, hop limit */
		       "\xc8\x90" /* SL 12, subnet local: 1100 1 000; local ACK timeout 18: 10010 000 */
		       "\x3e\x3f\x4e\x4f" GID_5 GID_6
		       "\x12\x34\x50\x3f\x7c\x3d\x50\xf8" /* the alternate path */
	  HELLO),
    .private_at = 140,
};

static const struct sample sample_mra = {
    .msg = {MSG(MRA), .mra = {LOCAL, REMOTE, .about = VB_CM_ABOUT_REP, .service_timeout = 24}},
    BYTES(HEAD("\x11") IDS "\x40\xc0" /* about REP: 01 000000; timeout 24: 11000 000 */
	  HELLO),
    .private_at = 10,
};

static const struct sample sample_rej = {
    .msg = {MSG(REJ), .rej = {LOCAL, REMOTE, .about = VB_CM_ABOUT_OTHER, .info_len = 72, .reason = 0x011c,
			      .info = {[0] = 0xe1, [1] = 0xe2, [71] = 0xef}}},
    BYTES(HEAD("\x12") IDS
	  "\x80\x90" /* about something else: 10 000000; 72 bytes of information: 1001000 0 */
	  "\x01\x1c" /* reason */
	  INFO HELLO),
    .private_at = 84,
};

static const struct sample sample_rep = {
    .msg = {MSG(REP),
	    .rep = {LOCAL, REMOTE, .qkey = 0xd0d1d2d3, .qpn = 0x123456, .eecn = 0x234567, .psn = 0xabcdef,
		    .responder_resources = 0x9a, .initiator_depth = 0x7b, .target_ack_delay = 21,
		    .failover_accepted = VB_CM_FAILOVER_REJECTED, .flow_control = 1, .rnr_retry_count = 5,
		    .srq = 1, .vendor_id = 0xb5b6b7, .ca_guid = 0xc0c1c2c3c4c5c6c7}},
    BYTES(HEAD("\x13") IDS "\xd0\xd1\xd2\xd3" /* Q_Key */
			   "\x12\x34\x56\xb5" /* QPN; a third of the vendor's ID, as in the next two lines */
			   "\x23\x45\x67\xb6" /* EECN */
			   "\xab\xcd\xef\xb7" /* PSN */
			   "\x9a\x7b"	      /* responder resources, initiator depth */
			   "\xad"	      /* target ACK delay 21, failover 2, flow control: 10101 10 1 */
			   "\xb0"	      /* RNR retry count 5, SRQ: 101 1 0000 */
	  GUID HELLO),
    .private_at = 36,
};

static const struct sample sample_rtu = {
    .msg = {MSG(RTU), .rtu = {LOCAL, REMOTE}},
    BYTES(HEAD("\x14") IDS HELLO),
    .private_at = 8,
};

static const struct sample sample_dreq = {
    .msg = {MSG(DREQ), .dreq = {LOCAL, REMOTE, .remote_qpn = 0x123456}},
    BYTES(HEAD("\x15") IDS "\x12\x34\x56\0" /* QPN, reserved */
	  HELLO),
    .private_at = 12,
};

static const struct sample sample_drep = {
    .msg = {MSG(DREP), .drep = {LOCAL, REMOTE}},
    BYTES(HEAD("\x16") IDS HELLO),
    .private_at = 8,
};

static const struct sample sample_sidr_req = {
    .msg = {MSG(SIDR_REQ),
	    .sidr_req = {.request_id = LOCAL, .pkey = 0xfffe, .service_id = 0x0000000001111c06}},
    BYTES(HEAD("\x17") "\xa0\xa1\xa2\xa3"	  /* request ID */
		       "\xff\xfe\0\0"		  /* P_Key, reserved */
		       "\0\0\0\0\x01\x11\x1c\x06" /* service ID */
	  HELLO),
    .private_at = 16,
};

static const struct sample sample_sidr_rep = {
    .msg = {MSG(SIDR_REP), .sidr_rep = {.request_id = LOCAL,
					.status = VB_CM_SIDR_NO_QP,
					.info_len = 72,
					.qpn = 0x123456,
					.service_id = 0x0000000001111c06,
					.qkey = 0x01234567,
					.vendor_id = 0xb5b6b7,
					.info = {[0] = 0xe1, [1] = 0xe2, [71] = 0xef}}},
    BYTES(HEAD("\x18") "\xa0\xa1\xa2\xa3"	  /* request ID */
		       "\x03\x48"		  /* status, 72 bytes of information */
		       "\xb5\xb6"		  /* two thirds of the vendor's ID */
		       "\x12\x34\x56\xb7"	  /* QPN, and the third */
		       "\0\0\0\0\x01\x11\x1c\x06" /* service ID */
		       "\x01\x23\x45\x67"	  /* Q_Key */
	  INFO HELLO),
    .private_at = 96,
};

static const struct sample sample_lap = {
    .msg = {MSG(LAP), .lap = {LOCAL, REMOTE}},
    BYTES(HEAD("\x19") IDS ZERO8 ZERO8 ZERO8 ZERO8 ZERO8 ZERO8 ZERO8 /* the path that it proposes: 56 bytes */
	      HELLO),
    .private_at = 64,
};

static const struct sample sample_apr = {
    .msg = {MSG(APR), .apr = {LOCAL, REMOTE, .info_len = 3, .status = VB_CM_APR_UNSUPPORTED,
			      .info = {[0] = 0xe1, [1] = 0xe2, [71] = 0xef}}},
    BYTES(HEAD("\x1a") IDS "\x03\x02\0\0" /* 3 bytes of information, status, reserved */
	  INFO HELLO),
    .private_at = 84,
};

static const struct sample *const samples[] = {
    &sample_req,  &sample_mra, &sample_rej,	 &sample_rep,	   &sample_rtu, &sample_dreq,
    &sample_drep, &sample_lap, &sample_sidr_req, &sample_sidr_rep, &sample_apr,
};

/* Bits of the MAD's data that no field has, by hand as well: the rest belongs to some. */
static const struct {
	uint8_t kind, from, to; /* bytes, both included */
	uint8_t bits;
} reserved[] = {
    {VB_CM_REQ, 4, 4, 0xff},	 {VB_CM_REQ, 24, 27, 0xff},    {VB_CM_REQ, 90, 90, 0x0f},
    {VB_CM_REQ, 91, 91, 0xc0},	 {VB_CM_REQ, 94, 94, 0x07},    {VB_CM_REQ, 95, 95, 0x07},
    {VB_CM_REQ, 134, 134, 0x0f}, {VB_CM_REQ, 135, 135, 0xc0},  {VB_CM_REQ, 138, 138, 0x07},
    {VB_CM_REQ, 139, 139, 0x07}, {VB_CM_MRA, 8, 8, 0x3f},      {VB_CM_MRA, 9, 9, 0x07},
    {VB_CM_REJ, 8, 8, 0x3f},	 {VB_CM_REJ, 9, 9, 0x01},      {VB_CM_REP, 27, 27, 0x0f},
    {VB_CM_DREQ, 11, 11, 0xff},	 {VB_CM_SIDR_REQ, 6, 7, 0xff}, {VB_CM_APR, 10, 11, 0xff},
    {VB_CM_LAP, 8, 63, 0xff}, /* the path that it proposes: not read here */
};

static uint64_t chance_state = 0x9e3779b97f4a7c15;

static uint64_t chance(void)
{
	chance_state ^= chance_state << 13;
	chance_state ^= chance_state >> 7;
	chance_state ^= chance_state << 17;
	return chance_state;
}

/* The sample as a MAD. */
static void mad_of(uint8_t mad[VB_MAD_LEN], const struct sample *s)
{
	memset(mad, 0, VB_MAD_LEN);
	memcpy(mad, s->bytes, s->len);
}

/* All fields of `a`, private data aside, which stands elsewhere in both. */
static void assert_same_fields(const struct vb_cm_msg *a, const struct vb_cm_msg *b)
{
	assert_memory_equal(a, b, offsetof(struct vb_cm_msg, private_data));
}

static void every_kind_is_put_as_its_bytes(void **state)
{
	uint8_t mad[VB_MAD_LEN], want[VB_MAD_LEN];

	(void)state;
	assert_int_equal(LENGTH(samples), VB_CM_APR - VB_CM_REQ + 1);
	for (size_t i = 0; i < LENGTH(samples); i++) {
		memset(mad, 0xee, sizeof(mad));
		vb_cm_msg_put(mad, &samples[i]->msg);
		mad_of(want, samples[i]);
		for (size_t j = 0; j < VB_MAD_LEN; j++)
			if (mad[j] != want[j])
				fail_msg("%s: byte %zu is 0x%02x, not 0x%02x",
					 vb_cm_kind_name(samples[i]->msg.kind, NULL), j, mad[j], want[j]);
	}
}

static void every_kind_is_read_from_its_bytes(void **state)
{
	uint8_t mad[VB_MAD_LEN];
	struct vb_cm_msg m;

	(void)state;
	for (size_t i = 0; i < LENGTH(samples); i++) {
		const struct sample *s = samples[i];

		mad_of(mad, s);
		memset(&m, 0xee, sizeof(m));
		assert_int_equal(vb_cm_msg_get(mad, &m), 0);
		assert_same_fields(&m, &s->msg);
		/* Programs see the whole field: zeros follow what was sent. */
		assert_ptr_equal(m.private_data.at, mad + VB_MAD_DATA + s->private_at);
		assert_int_equal(m.private_data.len, VB_MAD_LEN - VB_MAD_DATA - s->private_at);
		assert_int_equal(m.private_data.len, vb_cm_private_room(s->msg.kind));
		assert_memory_equal(m.private_data.at, "hello\0\0", 7);
	}
}

/* What shares a byte with others, each alone and full: a sample cannot tell two bits from one another. */
#define REQ_BITS(member, byte, bits)                                          \
	{                                                                     \
		VB_CM_REQ, offsetof(struct vb_cm_msg, req.member), byte, bits \
	}
#define REP_BITS(member, byte, bits)                                          \
	{                                                                     \
		VB_CM_REP, offsetof(struct vb_cm_msg, rep.member), byte, bits \
	}
static const struct {
	uint16_t kind;
	size_t at;
	uint8_t byte, bits;
} narrow[] = {
    REQ_BITS(remote_response_timeout, 43, 0xf8),
    REQ_BITS(service_type, 43, 0x06),
    REQ_BITS(flow_control, 43, 0x01),
    REQ_BITS(local_response_timeout, 47, 0xf8),
    REQ_BITS(retry_count, 47, 0x07),
    REQ_BITS(path_mtu, 50, 0xf0),
    REQ_BITS(rdc_exists, 50, 0x08),
    REQ_BITS(rnr_retry_count, 50, 0x07),
    REQ_BITS(max_cm_retries, 51, 0xf0),
    REQ_BITS(srq, 51, 0x08),
    REQ_BITS(extended_type, 51, 0x07),
    REQ_BITS(primary.rate, 91, 0x3f),
    REQ_BITS(primary.sl, 94, 0xf0),
    REQ_BITS(primary.subnet_local, 94, 0x08),
    REQ_BITS(primary.local_ack_timeout, 95, 0xf8),
    REQ_BITS(alternate.rate, 135, 0x3f),
    REQ_BITS(alternate.sl, 138, 0xf0),
    REQ_BITS(alternate.subnet_local, 138, 0x08),
    REQ_BITS(alternate.local_ack_timeout, 139, 0xf8),
    REP_BITS(target_ack_delay, 26, 0xf8),
    REP_BITS(failover_accepted, 26, 0x06),
    REP_BITS(flow_control, 26, 0x01),
    REP_BITS(rnr_retry_count, 27, 0xe0),
    REP_BITS(srq, 27, 0x10),
    {VB_CM_MRA, offsetof(struct vb_cm_msg, mra.about), 8, 0xc0},
    {VB_CM_MRA, offsetof(struct vb_cm_msg, mra.service_timeout), 9, 0xf8},
    {VB_CM_REJ, offsetof(struct vb_cm_msg, rej.about), 8, 0xc0},
    {VB_CM_REJ, offsetof(struct vb_cm_msg, rej.info_len), 9, 0xfe},
};

static void each_narrow_field_alone(void **state)
{
	(void)state;
	for (size_t i = 0; i < LENGTH(narrow); i++) {
		struct vb_cm_msg m = {.kind = narrow[i].kind};
		uint8_t mad[VB_MAD_LEN], bits = narrow[i].bits;

		((uint8_t *)&m)[narrow[i].at] = (uint8_t)(bits / (bits & -bits));
		vb_cm_msg_put(mad, &m);
		for (size_t j = VB_MAD_DATA; j < VB_MAD_LEN; j++)
			assert_int_equal(mad[j], j == VB_MAD_DATA + (size_t)narrow[i].byte ? bits : 0);
	}
}

/* Fields of chance, as wide as their rows say, with private data that ends where its memory does. */
static void choose_message(struct vb_cm_msg *m, uint16_t kind, uint8_t *data, size_t len)
{
	const struct vb_cm_field *f;
	size_t n;

	memset(m, 0, sizeof(*m));
	m->kind = kind;
	m->tid = chance();
	m->modifier = (uint32_t)chance();
	f = vb_cm_fields(kind, &n);
	assert_non_null(f);
	for (size_t i = 0; i < n; i++) {
		uint8_t *at = (uint8_t *)m + f[i].at;
		uint64_t v = chance();

		if (f[i].bits <= 64) {
			v &= UINT64_MAX >> (64 - f[i].value_bits);
			memcpy(at, &v, f[i].size); /* little-endian, as all machines that it runs on */
		} else {
			for (size_t j = 0; j < f[i].size; j++)
				at[j] = (uint8_t)chance();
		}
	}
	for (size_t i = 0; i < len; i++)
		data[i] = (uint8_t)chance();
	m->private_data.at = data;
	m->private_data.len = (uint16_t)len;
}

static void what_was_put_is_read(void **state)
{
	uint8_t *mad = malloc(VB_MAD_LEN);
	struct vb_cm_msg in, out;

	(void)state;
	for (uint16_t kind = VB_CM_REQ; kind <= VB_CM_APR; kind++) {
		size_t room = vb_cm_private_room(kind);

		for (int i = 0; i < 500; i++) {
			/* nothing, all that there is room for, and what is between */
			size_t len = i ? i == 1 ? room : chance() % (room + 1) : 0;
			uint8_t *data = len ? malloc(len) : NULL;

			choose_message(&in, kind, data, len);
			vb_cm_msg_put(mad, &in);
			assert_int_equal(vb_cm_msg_get(mad, &out), 0);
			assert_same_fields(&in, &out);
			if (len)
				assert_memory_equal(out.private_data.at, data, len);
			for (size_t j = len; j < room; j++)
				assert_int_equal(out.private_data.at[j], 0);
			free(data);
		}
	}
	free(mad);
}

/* Clears the bits that are no field's, by the list above. */
static void clear_reserved(uint8_t mad[VB_MAD_LEN], uint16_t kind)
{
	memset(mad + 4, 0, 4); /* status; reserved */
	memset(mad + 18, 0, 2);
	for (size_t i = 0; i < LENGTH(reserved); i++)
		for (int j = reserved[i].from; reserved[i].kind == kind && j <= reserved[i].to; j++)
			mad[VB_MAD_DATA + j] &= (uint8_t)~reserved[i].bits;
}

static void any_bytes_are_some_message(void **state)
{
	uint8_t *mad = malloc(VB_MAD_LEN), again[VB_MAD_LEN];
	struct vb_cm_msg m;

	(void)state;
	for (uint16_t kind = VB_CM_REQ; kind <= VB_CM_APR; kind++) {
		for (int i = 0; i < 500; i++) {
			const uint8_t head[] = {1, 7, 2, 3};

			for (size_t j = 0; j < VB_MAD_LEN; j++)
				mad[j] = (uint8_t)(i ? chance() : 0xff);
			memcpy(mad, head, sizeof(head));
			mad[16] = 0;
			mad[17] = (uint8_t)kind;
			assert_int_equal(vb_cm_msg_get(mad, &m), 0);
			vb_cm_msg_put(again, &m);
			clear_reserved(mad, kind);
			assert_memory_equal(again, mad, VB_MAD_LEN);
		}
	}
	free(mad);
}

static void rows_are_in_order(void **state)
{
	size_t n;

	(void)state;
	for (uint16_t kind = VB_CM_REQ; kind <= VB_CM_APR; kind++) {
		const struct vb_cm_field *f = vb_cm_fields(kind, &n);
		size_t end = 0;

		for (size_t i = 0; i < n; i++) {
			assert_true(f[i].name && f[i].bit >= end);
			end = (size_t)f[i].bit + f[i].bits;
		}
		assert_true(end <= 8 * (VB_MAD_LEN - VB_MAD_DATA - vb_cm_private_room(kind)));
	}
	assert_null(vb_cm_fields(0x0f, &n));
	assert_int_equal(n, 0);
	assert_null(vb_cm_fields(0x1b, &n));
}

static void others_are_refused(void **state)
{
	struct vb_cm_msg m, before;
	uint8_t mad[VB_MAD_LEN], good[VB_MAD_LEN];

	(void)state;
	memset(&before, 0x77, sizeof(before));
	m = before;
	mad_of(good, &sample_rtu);
	memcpy(mad, good, sizeof(mad));
	/* base version, class, class version, method: any other value of each */
	for (int i = 0; i < 4; i++) {
		for (int v = 0; v < 256; v++) {
			mad[i] = (uint8_t)v;
			if (v != good[i])
				assert_int_equal(vb_cm_msg_get(mad, &m), EPROTO);
		}
		mad[i] = good[i];
	}
	for (unsigned kind = 0; kind < 65536; kind++) {
		mad[16] = (uint8_t)(kind >> 8);
		mad[17] = (uint8_t)kind;
		if (kind >= 0x10 && kind <= 0x1a)
			continue;
		assert_int_equal(vb_cm_msg_get(mad, &m), EPROTO);
		assert_int_equal(vb_cm_private_room((uint16_t)kind), 0);
	}
	assert_memory_equal(&m, &before, sizeof(m));
	memcpy(mad + 16, good + 16, 2);
	assert_int_equal(vb_cm_msg_get(mad, &m), 0);
	/* what a status or reserved bits say is nothing to look at */
	memset(mad + 4, 0xff, 4);
	memset(mad + 18, 0xff, 2);
	assert_int_equal(vb_cm_msg_get(mad, &m), 0);
	assert_int_equal(m.kind, VB_CM_RTU);
}

static void the_head(void **state)
{
	const struct vb_mad_head h = {.base_version = 1,
				      .mgmt_class = 3,
				      .class_version = 2,
				      .method = 0x92,
				      .status = 0x1c0d,
				      .tid = TID,
				      .attribute = 0x0038,
				      .modifier = MODIFIER};
	static const uint8_t want[VB_MAD_DATA] = {1, 3, 2, 0x92, 0x1c, 0x0d, 0, 0, 1,	 2,    3,    4,
						  5, 6, 7, 8,	 0,    0x38, 0, 0, 0x11, 0x12, 0x13, 0x14};
	uint8_t mad[VB_MAD_LEN];
	struct vb_mad_head got;

	(void)state;
	memset(mad, 0xee, sizeof(mad));
	vb_mad_head_put(mad, &h);
	assert_memory_equal(mad, want, sizeof(want));
	assert_int_equal(mad[VB_MAD_DATA], 0xee);
	vb_mad_head_get(mad, &got);
	assert_int_equal(got.base_version, 1);
	assert_int_equal(got.mgmt_class, 3);
	assert_int_equal(got.class_version, 2);
	assert_int_equal(got.method, 0x92);
	assert_int_equal(got.status, 0x1c0d);
	assert_true(got.tid == TID);
	assert_int_equal(got.attribute, 0x38);
	assert_int_equal(got.modifier, MODIFIER);
}

/* Annex A11. */
static const uint8_t header_v4[VB_CM_IP_LEN] = {0, 0x40, 0x1f,	     0x90, [16] = 192, 0,
						2, 1,	 [32] = 198, 51,   100,	       7};
static const uint8_t header_v6[VB_CM_IP_LEN] = {
    0, 0x60, 0xff, 0x01, 0xfe, 0x80, [19] = 1, 0x20, 0x01, 0x0d, 0xb8, [35] = 9};

static void ip_headers(void **state)
{
	/* Bytes before an IPv4 address are not the address's. */
	const struct vb_cm_ip v4 = {.version = 4,
				    .port = 8080,
				    .src = {[0] = 0xee, [11] = 0xee, 192, 0, 2, 1},
				    .dst = {[0] = 0xee, [11] = 0xee, 198, 51, 100, 7}};
	const struct vb_cm_ip v6 = {.version = 6,
				    .port = 0xff01,
				    .src = {0xfe, 0x80, [15] = 1},
				    .dst = {0x20, 0x01, 0x0d, 0xb8, [15] = 9}};
	uint8_t at[VB_CM_IP_LEN];
	struct vb_cm_ip got;

	(void)state;
	memset(at, 0xee, sizeof(at));
	vb_cm_ip_put(at, &v4);
	assert_memory_equal(at, header_v4, sizeof(at));
	memset(at, 0xee, sizeof(at));
	vb_cm_ip_put(at, &v6);
	assert_memory_equal(at, header_v6, sizeof(at));

	memset(&got, 0xee, sizeof(got));
	assert_int_equal(vb_cm_ip_get(header_v6, &got), 0);
	assert_int_equal(got.version, 6);
	assert_int_equal(got.port, 0xff01);
	assert_memory_equal(got.src, v6.src, 16);
	assert_memory_equal(got.dst, v6.dst, 16);

	memcpy(at, header_v4, sizeof(at));
	memset(at + 4, 0xee, 12); /* a sender that leaves rubbish there */
	at[1] |= 0x0f;		  /* reserved */
	memset(&got, 0xee, sizeof(got));
	assert_int_equal(vb_cm_ip_get(at, &got), 0);
	assert_int_equal(got.version, 4);
	assert_int_equal(got.port, 8080);
	assert_memory_equal(got.src, header_v4 + 4, 16);
	assert_memory_equal(got.dst, header_v4 + 20, 16);
}

static void other_ip_headers_are_refused(void **state)
{
	uint8_t *at = malloc(VB_CM_IP_LEN);
	struct vb_cm_ip got;

	(void)state;
	memcpy(at, header_v4, VB_CM_IP_LEN);
	for (int version = 0; version < 16; version++) {
		at[1] = (uint8_t)(version << 4);
		assert_int_equal(vb_cm_ip_get(at, &got), version == 4 || version == 6 ? 0 : EPROTO);
	}
	at[1] = 0x40;
	for (int version = 1; version < 256; version++) {
		at[0] = (uint8_t)version;
		assert_int_equal(vb_cm_ip_get(at, &got), EPROTO);
	}
	free(at);
}

static void service_ids(void **state)
{
	(void)state;
	assert_true(vb_cm_service_id(RDMA_PS_TCP, 0) == RDMA_IB_IP_PS_TCP);
	assert_true(vb_cm_service_id(RDMA_PS_TCP, 7471) == 0x0000000001061d2f);
	assert_true(vb_cm_service_id(RDMA_PS_UDP, 7174) == 0x0000000001111c06);
	assert_true(vb_cm_service_id(RDMA_PS_UDP, 0) == RDMA_IB_IP_PS_UDP);
	assert_true(vb_cm_service_id(RDMA_PS_IPOIB, 0xffff) == 0x000000000002ffff);
	assert_true(vb_cm_service_id(RDMA_PS_IB, 1) == 0x00000000013f0001);
}

static void words(void **state)
{
	static const char *const names[] = {"REQ",  "MRA",	"REJ",	    "REP", "RTU", "DREQ",
					    "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"};
	char buf[32];

	(void)state;
	for (uint16_t kind = VB_CM_REQ; kind <= VB_CM_APR; kind++)
		assert_string_equal(vb_cm_kind_name(kind, buf), names[kind - VB_CM_REQ]);
	assert_string_equal(vb_cm_kind_name(0x33, buf), "message 0x33");
	assert_string_equal(vb_cm_kind_name(0xffff, buf), "message 0xffff");
	assert_non_null(
	    strstr(vb_cm_rej_text(VB_CM_REJ_INVALID_SERVICE_ID), "no listener on this address and port"));
	/* Each reason has words of its own; others have some too. */
	for (uint16_t a = 1; a <= VB_CM_REJ_VENDOR_OPTION; a++)
		for (uint16_t b = 0; b < a && a != 34; b++)
			assert_string_not_equal(vb_cm_rej_text(a), vb_cm_rej_text(b));
	assert_string_equal(vb_cm_rej_text(34), vb_cm_rej_text(0));
	assert_string_equal(vb_cm_rej_text(36), vb_cm_rej_text(0));
	assert_string_equal(vb_cm_rej_text(65535), vb_cm_rej_text(0));
	for (uint8_t a = 0; a <= VB_CM_SIDR_UNSUPPORTED_VERSION; a++)
		for (uint8_t b = 0; b < a; b++)
			assert_string_not_equal(vb_cm_sidr_text(a), vb_cm_sidr_text(b));
	assert_string_equal(vb_cm_sidr_text(6), vb_cm_sidr_text(255));
}

static void times(void **state)
{
	(void)state;
	assert_true(vb_cm_time(0) == 4096);
	assert_true(vb_cm_time(20) == 4294967296);
	assert_true(vb_cm_time(24) == 68719476736);
	assert_true(vb_cm_time(31) == 8796093022208);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_kind_is_put_as_its_bytes),
	    cmocka_unit_test(every_kind_is_read_from_its_bytes),
	    cmocka_unit_test(each_narrow_field_alone),
	    cmocka_unit_test(what_was_put_is_read),
	    cmocka_unit_test(any_bytes_are_some_message),
	    cmocka_unit_test(rows_are_in_order),
	    cmocka_unit_test(others_are_refused),
	    cmocka_unit_test(the_head),
	    cmocka_unit_test(ip_headers),
	    cmocka_unit_test(other_ip_headers_are_refused),
	    cmocka_unit_test(service_ids),
	    cmocka_unit_test(words),
	    cmocka_unit_test(times),
	};

	return cmocka_run_group_tests_name("cm_msg", tests, NULL, NULL);
}
