/* Every argument that is refused at the call, with its errno, on a real device: contexts, queries, protection
 * domains, address handles, QPs.  (Regions: test_reg.c.) */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bytes.h"
#include "device.h"
#include "kit.h"
#include "iba/limits.h"
#include "host/netif.h"
#include "verbs/verbs.h"

#define NEGATIVE_PAGE (0 - (uint64_t)PAGE)

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#define UNDER_TSAN __has_feature(thread_sanitizer)
#else
#define UNDER_TSAN 0
#endif

static struct ibv_context *other;
static struct ibv_cq *cq, *other_cq;
static union ibv_gid gid;

static int open_device(void **state)
{
	int err = kit_device_open(state);

	other = kit_open();
	cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	other_cq = ibv_create_cq(other, 16, NULL, NULL, 0);
	return !err && cq && other_cq && !ibv_query_gid(ctx, 1, 0, &gid) ? 0 : -1;
}

static int close_device(void **state)
{
	return ibv_destroy_cq(other_cq) | ibv_destroy_cq(cq) | ibv_close_device(other) |
	       kit_device_close(state);
}

/* The call gives NULL or -1 and this errno. */
#define REFUSED(call, err)                    \
	do {                                  \
		errno = 0;                    \
		assert_false((call));         \
		assert_int_equal(errno, err); \
	} while (0)
#define MINUS_ONE(call, err)                  \
	do {                                  \
		errno = 0;                    \
		assert_int_equal(call, -1);   \
		assert_int_equal(errno, err); \
	} while (0)

static void the_device_list(void **state)
{
	int n = 0;
	struct ibv_device **a = ibv_get_device_list(&n), **b = ibv_get_device_list(NULL);
	struct ibv_device *d;

	(void)state;
	assert_int_equal(n, 1);
	assert_null(a[1]);
	d = a[0];
	assert_ptr_equal(d, b[0]); /* programs compare pointers */
	assert_ptr_equal(d, ctx->device);
	ibv_free_device_list(a);
	ibv_free_device_list(b);
	assert_string_equal(ibv_get_device_name(d), "verbena0"); /* the context holds it */
	assert_string_equal(d->dev_name, "uverbs0");
	assert_string_equal(d->ibdev_path, "/sys/class/infiniband/verbena0");
	assert_int_equal(d->node_type, IBV_NODE_CA);
	assert_int_equal(d->transport_type, IBV_TRANSPORT_IB);
	assert_int_equal(ibv_get_device_index(d), -1);
	assert_true(ibv_get_device_guid(d) != 0);
	/* where vendor libraries look for their own mark */
	assert_null(*(void **)((char *)d + 664));
}

static void what_headers_call_is_there(void **state)
{
	struct verbs_context *v = verbs_get_ctx(ctx);
	struct ibv_qp_init_attr_ex qa = {.qp_type = IBV_QPT_RC, .comp_mask = IBV_QP_INIT_ATTR_RX_HASH};

	(void)state;
	assert_non_null(v);
	assert_non_null(v->close_xrcd);
	assert_true(ctx->ops.alloc_mw && ctx->ops.bind_mw && ctx->ops.dealloc_mw);
	REFUSED(ibv_create_qp_ex(ctx, &qa), EOPNOTSUPP);
	qa.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	qa.create_flags = IBV_QP_CREATE_SCATTER_FCS;
	qa.pd = pd;
	REFUSED(ibv_create_qp_ex(ctx, &qa), EOPNOTSUPP);
	qa.comp_mask = IBV_QP_INIT_ATTR_CREATE_FLAGS;
	qa.create_flags = 0;
	REFUSED(ibv_create_qp_ex(ctx, &qa), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, 0), EBADF);
	REFUSED(ibv_qp_to_qp_ex(NULL), EOPNOTSUPP);
	for (int op = IBV_WR_RDMA_WRITE; op <= IBV_WR_DRIVER1 + 1;
	     op++) /* asked with no flags, all, unknown */
		for (uint32_t flags = 0; flags < 16; flags++)
			assert_int_equal(ibv_query_qp_data_in_order(NULL, op, flags), 0);
	assert_int_equal(ibv_fork_init(), 0);
	assert_int_equal(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
	assert_true(ctx->num_comp_vectors >= 1);
	assert_true(fcntl(ctx->cmd_fd, F_GETFD) >= 0);
	assert_true(fcntl(ctx->async_fd, F_GETFD) >= 0);
}

static void rule_50_device_attributes(void **state)
{
	struct ibv_query_device_ex_input in = {.comp_mask = 1};
	struct ibv_device_attr_ex ex;
	struct ibv_device_attr a;
	char room[sizeof(ex) + 32];

	(void)state;
	assert_int_equal(ibv_query_device(ctx, &a), 0);
	assert_true(a.sys_image_guid != 0);
	assert_true(a.sys_image_guid == a.node_guid && a.node_guid == ibv_get_device_guid(ctx->device));
	assert_int_equal(a.max_qp, 65536);
	assert_int_equal(a.max_qp_wr, 16384);
	assert_int_equal(a.max_mr, 1 << 20);
	assert_int_equal(a.max_mw, 1 << 16);
	/* rule 48: never both kinds of type 2 */
	assert_int_equal(a.device_cap_flags & (IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A |
					       IBV_DEVICE_MEM_WINDOW_TYPE_2B),
			 IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	assert_int_equal(a.atomic_cap, IBV_ATOMIC_HCA);
	assert_true(a.vendor_id != 0 && a.vendor_id != 0xffffff && a.vendor_id != 0x02c9);
	assert_int_equal(strncmp(a.fw_ver, "verbena ", 8), 0);
	assert_int_equal(ibv_query_device_ex(ctx, NULL, &ex), 0);
	assert_memory_equal(&ex.orig_attr, &a, sizeof(a));
	assert_int_equal(ex.phys_port_cnt_ex, 1);
	assert_int_equal(ibv_query_device_ex(ctx, &in, &ex), EINVAL);
	/* older and newer callers */
	memset(room, 0xaa, sizeof(room));
	assert_int_equal(vb_query_device_ex(ctx, NULL, (void *)room, sizeof(room)), 0);
	assert_int_equal(room[sizeof(room) - 1], 0);
	memset(room, 0xaa, sizeof(room));
	assert_int_equal(vb_query_device_ex(ctx, NULL, (void *)room, 240), 0);
	assert_int_equal(room[240], (char)0xaa);
	memset(room, 0xaa, sizeof(room));
	assert_int_equal(vb_query_device_ex(ctx, NULL, (void *)room, sizeof(a)),
			 0); /* the oldest part alone */
	assert_memory_equal(room, &a, sizeof(a));
	assert_int_equal(room[sizeof(a)], (char)0xaa);
	assert_int_equal(vb_query_device_ex(ctx, NULL, (void *)room, sizeof(a) - 1), EINVAL);
}

static void vendor_id_is_settable(void **state)
{
	(void)state;
	setenv("VERBENA_VENDOR_ID", "0x02c9", 1);
	setenv("VERBENA_VENDOR_PART_ID", "4119", 1);
	assert_int_equal(vb_device_vendor_id(), 0x02c9);
	assert_int_equal(vb_device_vendor_part(), 4119);
	setenv("VERBENA_VENDOR_ID", "0x1000000", 1); /* more than 24 bits */
	setenv("VERBENA_VENDOR_PART_ID", "4119x", 1);
	assert_int_equal(vb_device_vendor_id(), 0x025642);
	assert_int_equal(vb_device_vendor_part(), 1);
	unsetenv("VERBENA_VENDOR_ID");
	unsetenv("VERBENA_VENDOR_PART_ID");
}

static void port_attributes(void **state)
{
	struct ibv_port_attr a;
	uint8_t old[64];

	(void)state;
	assert_int_equal(ibv_query_port(ctx, 1, &a), 0);
	assert_int_equal(a.state, IBV_PORT_ACTIVE);
	assert_int_equal(a.link_layer, IBV_LINK_LAYER_ETHERNET);
	assert_int_equal(a.max_msg_sz, 1u << 31); /* rule 50 */
	assert_int_equal(a.gid_tbl_len, 8);
	assert_int_equal(a.pkey_tbl_len, 1);
	assert_int_equal(ibv_query_port(ctx, 0, &a), EINVAL);
	assert_int_equal(ibv_query_port(ctx, 2, &a), EINVAL);
	/* the exported function writes the old struct and no byte more */
	memset(old, 0xaa, sizeof(old));
	assert_int_equal((ibv_query_port)(ctx, 1, (struct _compat_ibv_port_attr *)old), 0);
	assert_memory_equal(old, &a, 32);
	assert_int_equal(old[48], 0xaa);
	/* newer headers' struct has 56 bytes; a speed of 0 there sends programs to the older field */
	memset(old, 0xaa, sizeof(old));
	assert_int_equal(
	    verbs_get_ctx_op(ctx, query_port)->query_port(ctx, 1, (struct ibv_port_attr *)old, 56), 0);
	assert_int_equal(ibv_query_port(ctx, 1, &a), 0);
	assert_memory_equal(old, &a, 52);
	assert_memory_equal(old + 52, ((uint8_t[5]){0, 0, 0, 0, 0xaa}), 5);
}

static void gids(void **state)
{
	static const union ibv_gid none;
	struct ibv_gid_entry e, all[4];
	union ibv_gid g;

	(void)state;
	assert_int_equal(gid.raw[10] & gid.raw[11], 0xff); /* IPv4-mapped, at index 0 */
	/* programs have 1 or 3 written into them: none of these is empty, and what has no address of its own
	 * repeats 0 */
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(ibv_query_gid(ctx, 1, (int)i, &g), 0);
		if (i != 1 || !g.raw[0]) /* the host's own IPv6 address may stand at 1 */
			assert_memory_equal(&g, &gid, 16);
		assert_int_equal(ibv_query_gid_ex(ctx, 1, i, &e, 0), 0);
		assert_memory_equal(&e.gid, &g, 16);
		assert_int_equal(e.gid_index, i);
		assert_true(e.ndev_ifindex > 0);
	}
	for (uint32_t i = 4; i < 8; i++) { /* empty, as most of an adapter's table is */
		memset(&g, 0xaa, sizeof(g));
		assert_int_equal(ibv_query_gid(ctx, 1, (int)i, &g), 0);
		assert_memory_equal(&g, &none, 16);
		assert_int_equal(ibv_query_gid_ex(ctx, 1, i, &e, 0), ENODATA);
	}
	MINUS_ONE(ibv_query_gid(ctx, 1, 8, &g), EINVAL);
	MINUS_ONE(ibv_query_gid(ctx, 1, -1, &g), EINVAL);
	MINUS_ONE(ibv_query_gid(ctx, 2, 0, &g), EINVAL);
	assert_int_equal(ibv_query_gid_ex(ctx, 1, 0, &e, 0), 0);
	assert_memory_equal(&e.gid, &gid, 16);
	assert_int_equal(e.gid_type, IBV_GID_TYPE_ROCE_V2);
	assert_int_equal(e.port_num, 1);
	assert_int_equal(ibv_query_gid_ex(ctx, 1, 8, &e, 0), EINVAL);
	assert_int_equal(ibv_query_gid_ex(ctx, 2, 0, &e, 0), EINVAL);
	assert_int_equal(ibv_query_gid_ex(ctx, 1, 0, &e, 1), EINVAL);
	assert_int_equal(ibv_query_gid_table(ctx, all, 4, 0), 4);
	assert_memory_equal(&all[0].gid, &gid, 16);
	assert_int_equal(ibv_query_gid_table(ctx, all, 3, 0), -EINVAL);
	assert_int_equal(ibv_query_gid_table(ctx, all, 4, 1), -EINVAL);
}

static void pkeys(void **state)
{
	__be16 k;

	(void)state;
	assert_int_equal(ibv_query_pkey(ctx, 1, 0, &k), 0);
	assert_int_equal(k, 0xffff);
	MINUS_ONE(ibv_query_pkey(ctx, 1, 1, &k), EINVAL);
	MINUS_ONE(ibv_query_pkey(ctx, 1, -1, &k), EINVAL);
	MINUS_ONE(ibv_query_pkey(ctx, 3, 0, &k), EINVAL);
	assert_int_equal(ibv_get_pkey_index(ctx, 1, 0xffff), 0);
	MINUS_ONE(ibv_get_pkey_index(ctx, 1, htons(0x8001)), EINVAL);
	MINUS_ONE(ibv_get_pkey_index(ctx, 0, 0xffff), EINVAL);
}

static void *pages(int prot, unsigned n)
{
	void *p = mmap(NULL, n * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	return p;
}

static struct ibv_ah_attr good_av(void)
{
	return (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.dgid = gid}};
}

static void address_handles(void **state)
{
	struct ibv_ah_attr a = good_av();
	struct ibv_ah *ah = ibv_create_ah(pd, &a);

	(void)state;
	assert_non_null(ah);
	assert_int_equal(ibv_destroy_ah(ah), 0);
	a.is_global = 0;
	REFUSED(ibv_create_ah(pd, &a), EINVAL);
	a = good_av();
	a.port_num = 2;
	REFUSED(ibv_create_ah(pd, &a), EINVAL);
	a = good_av();
	a.grh.sgid_index = 3;
	ah = ibv_create_ah(pd, &a);
	assert_non_null(ah);
	assert_int_equal(ibv_destroy_ah(ah), 0);
	a.grh.sgid_index = 4;
	REFUSED(ibv_create_ah(pd, &a), ENODATA);
	a.grh.sgid_index = 8;
	REFUSED(ibv_create_ah(pd, &a), EINVAL);
	a = good_av();
	a.sl = 16;
	REFUSED(ibv_create_ah(pd, &a), EINVAL);
	a = good_av();
	memset(&a.grh.dgid, 0, 16);
	REFUSED(ibv_create_ah(pd, &a), EINVAL);
}

/* A header as it stands in the last 20 bytes of the GRH's place. */
static void put_ipv4(struct ibv_grh *grh, uint32_t from, uint32_t to)
{
	uint8_t *h = (uint8_t *)grh + 20;
	uint32_t sum = 0;

	memset(grh, 0, sizeof(*grh));
	h[0] = 0x45;
	h[1] = 0x20; /* TOS */
	h[8] = 64;   /* TTL */
	h[9] = 17;
	memcpy(h + 12, &from, 4);
	memcpy(h + 16, &to, 4);
	for (int i = 0; i < 20; i += 2)
		sum += (uint32_t)(h[i] << 8 | h[i + 1]);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	h[10] = (uint8_t)(~sum >> 8);
	h[11] = (uint8_t)~sum;
}

static void rule_24_address_from_a_completion(void **state)
{
	uint32_t own, sender = htonl(0xc0000201), stranger = htonl(0xc6336401);
	struct ibv_wc wc = {.wc_flags = IBV_WC_GRH, .sl = 3};
	union ibv_gid from;
	struct ibv_ah_attr a;
	struct ibv_grh grh;
	struct ibv_ah *ah;

	(void)state;
	memcpy(&own, gid.raw + 12, 4);
	put_ipv4(&grh, sender, own);
	assert_int_equal(ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &a), 0);
	vb_gid_of_ipv4(from.raw, sender);
	assert_memory_equal(&a.grh.dgid, &from, 16);
	assert_int_equal(a.grh.sgid_index, 0);
	assert_int_equal(a.grh.traffic_class, 0x20);
	assert_int_equal(a.is_global, 1);
	assert_int_equal(a.sl, 3);
	ah = ibv_create_ah_from_wc(pd, &wc, &grh, 1);
	assert_non_null(ah);
	assert_int_equal(ibv_destroy_ah(ah), 0);
	MINUS_ONE(ibv_init_ah_from_wc(ctx, 2, &wc, &grh, &a), EINVAL);
	put_ipv4(&grh, sender, stranger); /* came to an address that is not ours */
	MINUS_ONE(ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &a), EINVAL);
	REFUSED(ibv_create_ah_from_wc(pd, &wc, &grh, 1), EINVAL);
	/* IPv6, whose addresses are 16 bytes */
	memset(&grh, 0, sizeof(grh));
	grh.version_tclass_flow = htonl(0x6a512345);
	grh.next_hdr = 17;
	grh.hop_limit = 7;
	memset(grh.sgid.raw, 0x20, 16);
	grh.dgid = gid;
	assert_int_equal(ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &a), 0);
	assert_memory_equal(&a.grh.dgid, &grh.sgid, 16);
	assert_int_equal(a.grh.traffic_class, 0xa5);
	assert_int_equal(a.grh.flow_label, 0x12345);
	assert_int_equal(a.grh.hop_limit, 7);
	/* InfiniBand's header, TCP's, none at all */
	grh.next_hdr = 0x1b;
	MINUS_ONE(ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &a), EPROTONOSUPPORT);
	grh.next_hdr = 6;
	REFUSED(ibv_create_ah_from_wc(pd, &wc, &grh, 1), EPROTONOSUPPORT);
	grh.next_hdr = 17;
	grh.version_tclass_flow = htonl(0x0a512345);
	MINUS_ONE(ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &a), EPROTONOSUPPORT);
}

static void own_address_has_a_mac(void **state)
{
	struct ibv_ah_attr a = good_av();
	uint8_t mac[6];
	uint16_t vid = 0;

	(void)state;
	assert_int_equal(ibv_resolve_eth_l2_from_gid(ctx, &a, mac, &vid), 0);
	assert_int_equal(vid, 0xffff);
	assert_int_equal(ibv_resolve_eth_l2_from_gid(ctx, &a, mac, NULL), 0);	    /* who does not want it */
	a.grh.dgid.raw[12] = 203, a.grh.dgid.raw[13] = 0, a.grh.dgid.raw[14] = 113; /* 203.0.113.x */
	assert_int_equal(ibv_resolve_eth_l2_from_gid(ctx, &a, mac, &vid), EHOSTUNREACH);
	a.is_global = 0;
	assert_int_equal(ibv_resolve_eth_l2_from_gid(ctx, &a, mac, &vid), EINVAL);
}

static struct ibv_qp_init_attr good_qp(void)
{
	return (struct ibv_qp_init_attr){
	    .send_cq = cq,
	    .recv_cq = cq,
	    .qp_type = IBV_QPT_RC,
	    .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 2}};
}

/* The same for ibv_create_qp_ex(), until it is called again. */
static struct ibv_qp_init_attr_ex *ex_of(const struct ibv_qp_init_attr *a, struct ibv_xrcd *xrcd)
{
	static struct ibv_qp_init_attr_ex x;

	x = (struct ibv_qp_init_attr_ex){.send_cq = a->send_cq,
					 .recv_cq = a->recv_cq,
					 .srq = a->srq,
					 .cap = a->cap,
					 .qp_type = a->qp_type,
					 .comp_mask =
					     (uint32_t)(xrcd ? IBV_QP_INIT_ATTR_XRCD : IBV_QP_INIT_ATTR_PD),
					 .pd = pd,
					 .xrcd = xrcd};
	return &x;
}

static void rule_41_qp_arguments(void **state)
{
	const enum ibv_qp_type later[] = {IBV_QPT_RAW_PACKET, IBV_QPT_DRIVER};
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_pd *other_pd = ibv_alloc_pd(other);
	struct ibv_srq *other_srq = ibv_create_srq(other_pd, &sa), *own_srq = ibv_create_srq(pd, &sa);
	struct ibv_xrcd_init_attr xa = {
	    .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &xa);
	struct ibv_srq_init_attr_ex sx = {.attr = sa.attr,
					  .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
						       IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
					  .srq_type = IBV_SRQT_XRC,
					  .pd = pd,
					  .xrcd = xrcd,
					  .cq = cq};
	struct ibv_srq *xrc_srq = ibv_create_srq_ex(ctx, &sx);
	struct ibv_qp_init_attr a;
	struct ibv_qp *qp;

	(void)state;
	assert_non_null(other_srq);
	assert_non_null(own_srq);
	assert_non_null(xrc_srq);
	a = good_qp(), a.recv_cq = NULL;
	REFUSED(ibv_create_qp(pd, &a), EINVAL);
	a = good_qp(), a.send_cq = NULL;
	REFUSED(ibv_create_qp(pd, &a), EINVAL);
	a = good_qp(), a.send_cq = other_cq;
	REFUSED(ibv_create_qp(pd, &a), EINVAL);
	a = good_qp(), a.recv_cq = other_cq;
	REFUSED(ibv_create_qp(pd, &a), EINVAL);
	a = good_qp(), a.srq = other_srq;
	REFUSED(ibv_create_qp(pd, &a), EINVAL);
	a = good_qp(), a.qp_type = (enum ibv_qp_type)7;
	REFUSED(ibv_create_qp(pd, &a), EINVAL);
	for (unsigned i = 0; i < sizeof(later) / sizeof(later[0]); i++) {
		a = good_qp(), a.qp_type = later[i];
		REFUSED(ibv_create_qp(pd, &a), EOPNOTSUPP);
	}
	for (unsigned i = 0; i < 2; i++) { /* what only sends has no SRQ, whatever context that is of */
		a = good_qp(), a.qp_type = IBV_QPT_XRC_SEND, a.recv_cq = NULL;
		a.srq = i ? other_srq : own_srq;
		REFUSED(ibv_create_qp(pd, &a), EINVAL);
		REFUSED(ibv_create_qp_ex(ctx, ex_of(&a, NULL)), EINVAL);
	}
	a.srq = NULL;
	assert_non_null(qp = ibv_create_qp(pd, &a));
	assert_int_equal(ibv_destroy_qp(qp), 0);
	/* a target takes its SRQs from messages: one of XRC is no contradiction, another is */
	a = good_qp(), a.qp_type = IBV_QPT_XRC_RECV, a.srq = own_srq;
	REFUSED(ibv_create_qp_ex(ctx, ex_of(&a, xrcd)), EINVAL);
	a.srq = xrc_srq;
	assert_non_null(qp = ibv_create_qp_ex(ctx, ex_of(&a, xrcd)));
	assert_int_equal(ibv_destroy_qp(qp), 0);
	a = good_qp(), a.srq = xrc_srq;
	REFUSED(ibv_create_qp(pd, &a), EINVAL);
	assert_int_equal(ibv_destroy_srq(xrc_srq), 0);
	assert_int_equal(ibv_destroy_srq(own_srq), 0);
	assert_int_equal(ibv_close_xrcd(xrcd), 0);
	a = good_qp(), a.qp_type = IBV_QPT_XRC_RECV; /* has no protection domain */
	REFUSED(ibv_create_qp(pd, &a), EINVAL);
	assert_int_equal(ibv_destroy_srq(other_srq), 0);
	assert_int_equal(ibv_dealloc_pd(other_pd), 0);
}

static void limits_are_refused_and_not_clamped(void **state)
{
	struct ibv_qp_init_attr a;

	(void)state;
	a = good_qp(), a.cap.max_send_wr = VB_MAX_QP_WR + 1;
	REFUSED(ibv_create_qp(pd, &a), EINVAL);
	a = good_qp(), a.cap.max_recv_wr = VB_MAX_QP_WR + 1;
	REFUSED(ibv_create_qp(pd, &a), EINVAL);
	a = good_qp(), a.cap.max_send_sge = VB_MAX_SGE + 1;
	REFUSED(ibv_create_qp(pd, &a), EINVAL);
	a = good_qp(), a.cap.max_recv_sge = VB_MAX_SGE + 1;
	REFUSED(ibv_create_qp(pd, &a), EINVAL);
	a = good_qp(), a.cap.max_inline_data = VB_MAX_INLINE + 1;
	REFUSED(ibv_create_qp(pd, &a), EINVAL);
	assert_int_equal(a.cap.max_inline_data, VB_MAX_INLINE + 1); /* a refusal writes nothing */
}

static void granted_caps_are_told(void **state)
{
	struct ibv_qp_init_attr a = good_qp(), q;
	struct ibv_qp_attr attr;
	struct ibv_qp *qp;

	(void)state;
	a.cap.max_inline_data = 61;
	a.sq_sig_all = 1;
	a.qp_context = &a;
	qp = ibv_create_qp(pd, &a);
	assert_non_null(qp);
	assert_true(a.cap.max_inline_data >= 61); /* rule 40 */
	assert_int_equal(ibv_query_qp(qp, &attr, IBV_QP_CAP, &q), 0);
	assert_memory_equal(&q.cap, &a.cap, sizeof(a.cap));
	assert_memory_equal(&attr.cap, &a.cap, sizeof(a.cap));
	assert_int_equal(attr.qp_state, IBV_QPS_RESET);
	assert_ptr_equal(q.send_cq, cq);
	assert_ptr_equal(q.qp_context, &a);
	assert_int_equal(q.sq_sig_all, 1);
	assert_int_equal(q.qp_type, IBV_QPT_RC);
	assert_true(qp->qp_num > 1 && qp->qp_num < 0xffffff);
	assert_int_equal(ibv_destroy_qp(qp), 0);
}

enum { TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS };
enum {
	TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER
};
enum {
	TO_RTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		 IBV_QP_MAX_QP_RD_ATOMIC
};

/* All of a queue pair's, persistent flushes too: whether there can be any is for regions to say. */
enum {
	ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | 1 << 8 | 1 << 9
};

/* Values that fit every transition; qp_state is set by the caller. */
static struct ibv_qp_attr good_attr(const struct ibv_qp *qp, enum ibv_qp_state to)
{
	return (struct ibv_qp_attr){.qp_state = to,
				    .port_num = 1,
				    .qp_access_flags = ACCESS,
				    .ah_attr = good_av(),
				    .path_mtu = IBV_MTU_1024,
				    .dest_qp_num = qp->qp_num,
				    .rq_psn = 0x123456,
				    .sq_psn = 0x654321,
				    .max_dest_rd_atomic = 128,
				    .max_rd_atomic = 128,
				    .min_rnr_timer = 31,
				    .timeout = 31,
				    .retry_cnt = 7,
				    .rnr_retry = 7};
}

static struct ibv_qp *make_qp(void)
{
	struct ibv_qp_init_attr a = good_qp();
	struct ibv_qp *qp = ibv_create_qp(pd, &a);

	assert_non_null(qp);
	return qp;
}

static void move(struct ibv_qp *qp, enum ibv_qp_state to, int mask)
{
	struct ibv_qp_attr a = good_attr(qp, to);

	assert_int_equal(ibv_modify_qp(qp, &a, mask), 0);
	assert_int_equal(qp->state, to);
}

/* The attribute is refused with err, and nothing at all has changed. */
static void stays(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask, int err)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr before, after;

	memset(&before, 0, sizeof(before));
	memset(&after, 0, sizeof(after));
	assert_int_equal(ibv_query_qp(qp, &before, 0, &init), 0);
	assert_int_equal(ibv_modify_qp(qp, a, mask), err);
	assert_int_equal(ibv_query_qp(qp, &after, 0, &init), 0);
	assert_memory_equal(&before, &after, sizeof(before));
	assert_int_equal(qp->state, before.qp_state);
}

#define BAD_WITH(err, to, mask, assignment)               \
	do {                                              \
		struct ibv_qp_attr a = good_attr(qp, to); \
		assignment;                               \
		stays(qp, &a, mask, err);                 \
	} while (0)
#define BAD(to, mask, assignment) BAD_WITH(EINVAL, to, mask, assignment)

static void rule_38_values(void **state)
{
	struct ibv_qp *qp = make_qp();

	(void)state;
	BAD(IBV_QPS_INIT, TO_INIT, a.port_num = 0);
	BAD(IBV_QPS_INIT, TO_INIT, a.port_num = 2);
	BAD(IBV_QPS_INIT, TO_INIT, a.pkey_index = 1);
	BAD(IBV_QPS_INIT, TO_INIT, a.qp_access_flags = 1u << 10);
	BAD(IBV_QPS_INIT, TO_INIT | IBV_QP_QKEY, (void)a);
	BAD(IBV_QPS_INIT, TO_INIT & ~IBV_QP_PORT, (void)a);
	BAD(IBV_QPS_RTR, TO_RTR, (void)a);
	BAD(IBV_QPS_UNKNOWN, IBV_QP_STATE, (void)a);
	BAD(IBV_QPS_INIT, IBV_QP_QKEY, (void)a); /* RESET to RESET, and that takes nothing */
	assert_int_equal(ibv_destroy_qp(qp), 0);
}

static void every_gid_index_leads_to_rtr(void **state)
{
	(void)state;
	for (uint8_t i = 0; i < 4; i++) {
		struct ibv_qp *qp = make_qp();
		struct ibv_qp_attr a = good_attr(qp, IBV_QPS_RTR);
		struct ibv_qp_init_attr init;

		move(qp, IBV_QPS_INIT, TO_INIT);
		a.ah_attr.grh.sgid_index = i;
		assert_int_equal(ibv_modify_qp(qp, &a, TO_RTR), 0);
		assert_int_equal(ibv_query_qp(qp, &a, IBV_QP_AV, &init), 0);
		assert_int_equal(a.ah_attr.grh.sgid_index, i);
		assert_int_equal(ibv_destroy_qp(qp), 0);
	}
}

static void rule_38_values_to_rtr(void **state)
{
	struct ibv_qp *qp = make_qp();

	(void)state;
	move(qp, IBV_QPS_INIT, TO_INIT);
	BAD(IBV_QPS_RTR, TO_RTR, a.ah_attr.is_global = 0);
	BAD(IBV_QPS_RTR, TO_RTR, a.ah_attr.port_num = 0);
	BAD_WITH(ENODATA, IBV_QPS_RTR, TO_RTR, a.ah_attr.grh.sgid_index = 4);
	BAD(IBV_QPS_RTR, TO_RTR, a.ah_attr.grh.sgid_index = 8);
	BAD(IBV_QPS_RTR, TO_RTR, a.ah_attr.grh.sgid_index = 200);
	BAD(IBV_QPS_RTR, TO_RTR, memset(&a.ah_attr.grh.dgid, 0, 16));
	BAD(IBV_QPS_RTR, TO_RTR, a.path_mtu = (enum ibv_mtu)0);
	BAD(IBV_QPS_RTR, TO_RTR, a.path_mtu = (enum ibv_mtu)6);
	BAD(IBV_QPS_RTR, TO_RTR, a.dest_qp_num = 1 << 24);
	BAD(IBV_QPS_RTR, TO_RTR, a.max_dest_rd_atomic = 129);
	BAD(IBV_QPS_RTR, TO_RTR, a.min_rnr_timer = 32);
	BAD(IBV_QPS_RTR, TO_RTR | IBV_QP_ALT_PATH, (void)a);
	BAD(IBV_QPS_RTR, TO_RTR & ~IBV_QP_MIN_RNR_TIMER, (void)a);
	BAD(IBV_QPS_RTS, TO_RTS, (void)a);
	move(qp, IBV_QPS_RTR, TO_RTR);
	BAD(IBV_QPS_RTS, TO_RTS, a.timeout = 32);
	BAD(IBV_QPS_RTS, TO_RTS, a.retry_cnt = 8);
	BAD(IBV_QPS_RTS, TO_RTS, a.rnr_retry = 8); /* rule 1 */
	BAD(IBV_QPS_RTS, TO_RTS, a.max_rd_atomic = 129);
	BAD(IBV_QPS_RTS, TO_RTS | IBV_QP_CUR_STATE, a.cur_qp_state = IBV_QPS_RTS);
	BAD(IBV_QPS_RTS, TO_RTS | IBV_QP_PATH_MIG_STATE, a.path_mig_state = IBV_MIG_ARMED);
	BAD(IBV_QPS_SQD, IBV_QP_STATE, (void)a);
	move(qp, IBV_QPS_RTS, TO_RTS);
	assert_int_equal(ibv_destroy_qp(qp), 0);
}

static void rule_38_what_is_set_is_told(void **state)
{
	struct ibv_qp *qp = make_qp();
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a, want = good_attr(qp, IBV_QPS_RTS);

	(void)state;
	move(qp, IBV_QPS_INIT, TO_INIT);
	a = good_attr(qp, IBV_QPS_RTR);
	a.rq_psn |= 0x77000000; /* as mlx5: a PSN is 24 bits of the word */
	assert_int_equal(ibv_modify_qp(qp, &a, TO_RTR), 0);
	move(qp, IBV_QPS_RTS, TO_RTS);
	assert_int_equal(ibv_query_qp(qp, &a, 0, &init), 0);
	assert_int_equal(a.qp_state, IBV_QPS_RTS);
	assert_int_equal(a.cur_qp_state, IBV_QPS_RTS);
	assert_int_equal(a.rq_psn, want.rq_psn);
	assert_int_equal(a.sq_psn, want.sq_psn);
	assert_int_equal(a.dest_qp_num, want.dest_qp_num);
	assert_int_equal(a.path_mtu, want.path_mtu);
	assert_int_equal(a.timeout, 31);
	assert_int_equal(a.retry_cnt, 7);
	assert_int_equal(a.rnr_retry, 7);
	assert_int_equal(a.min_rnr_timer, 31);
	assert_int_equal(a.max_rd_atomic, 128);
	assert_int_equal(a.max_dest_rd_atomic, 128);
	assert_int_equal(a.port_num, 1);
	assert_int_equal(a.qp_access_flags, ACCESS);
	want.ah_attr.grh.hop_limit = 64; /* as Linux takes it from the route */
	assert_memory_equal(&a.ah_attr, &want.ah_attr, sizeof(a.ah_attr));
	assert_int_equal(a.path_mig_state, IBV_MIG_MIGRATED);
	assert_int_equal(ibv_destroy_qp(qp), 0);
}

static void rule_38_round_trips(void **state)
{
	struct ibv_qp *qp = make_qp();
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a = {0};

	(void)state;
	for (int i = 0; i < 2; i++) {
		move(qp, IBV_QPS_RESET, IBV_QP_STATE);
		move(qp, IBV_QPS_INIT, TO_INIT);
		move(qp, IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
		move(qp, IBV_QPS_RTR, TO_RTR);
		move(qp, IBV_QPS_RTS, TO_RTS);
		/* RTS to RTS, without naming the state */
		a.min_rnr_timer = 5;
		assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_MIN_RNR_TIMER), 0);
		move(qp, IBV_QPS_SQD, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
		move(qp, IBV_QPS_SQD, IBV_QP_STATE | IBV_QP_AV | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_TIMEOUT);
		move(qp, IBV_QPS_RTS, IBV_QP_STATE);
		move(qp, IBV_QPS_ERR, IBV_QP_STATE);
		move(qp, IBV_QPS_ERR, IBV_QP_STATE);
	}
	move(qp, IBV_QPS_RESET, IBV_QP_STATE);
	assert_int_equal(ibv_query_qp(qp, &a, 0, &init), 0);
	assert_int_equal(a.dest_qp_num, 0); /* RESET forgets */
	assert_int_equal(a.cap.max_send_wr, 4);
	assert_int_equal(ibv_destroy_qp(qp), 0);
}

/* Whether there is an event that the send queue is drained, which is taken then. */
static bool drained(void)
{
	struct ibv_async_event ev;

	if (poll((struct pollfd[]){{.fd = ctx->async_fd, .events = POLLIN}}, 1, 0) != 1)
		return false;
	assert_int_equal(ibv_get_async_event(ctx, &ev), 0);
	assert_int_equal(ev.event_type, IBV_EVENT_SQ_DRAINED);
	ibv_ack_async_event(&ev);
	return true;
}

/* Each time that a queue is drained there is one event, if it was asked for that time. */
static void drained_once(void **state)
{
	struct ibv_qp *qp = make_qp();
	struct ibv_qp_attr a = good_attr(qp, IBV_QPS_SQD);

	(void)state;
	a.en_sqd_async_notify = 1;
	move(qp, IBV_QPS_INIT, TO_INIT);
	move(qp, IBV_QPS_RTR, TO_RTR);
	move(qp, IBV_QPS_RTS, TO_RTS);
	assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	assert_true(drained());
	assert_int_equal(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT), 0);
	assert_false(drained());
	move(qp, IBV_QPS_RTS, IBV_QP_STATE);
	move(qp, IBV_QPS_SQD, IBV_QP_STATE);
	assert_false(drained());
	assert_int_equal(ibv_destroy_qp(qp), 0);
}

static void rule_37_busy(void **state)
{
	struct ibv_pd *p = ibv_alloc_pd(ctx);
	struct ibv_cq *c = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(p, &sa);
	struct ibv_qp_init_attr qa = good_qp();
	struct ibv_ah_attr av = good_av();
	char *m = pages(PROT_READ | PROT_WRITE, 1);
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	struct ibv_qp *qp;

	(void)state;
	qa.recv_cq = c;
	qa.srq = srq;
	qp = ibv_create_qp(p, &qa);
	assert_non_null(qp);
	assert_int_equal(ibv_destroy_cq(c), EBUSY);
	assert_int_equal(ibv_destroy_srq(srq), EBUSY);
	assert_int_equal(ibv_dealloc_pd(p), EBUSY);
	assert_int_equal(ibv_destroy_qp(qp), 0);
	assert_int_equal(ibv_destroy_cq(c), 0);
	assert_int_equal(ibv_dealloc_pd(p), EBUSY);
	assert_int_equal(ibv_destroy_srq(srq), 0);
	mr = ibv_reg_mr(p, m, PAGE, 0);
	assert_int_equal(ibv_dealloc_pd(p), EBUSY);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	ah = ibv_create_ah(p, &av);
	assert_int_equal(ibv_dealloc_pd(p), EBUSY);
	assert_int_equal(ibv_destroy_ah(ah), 0);
	assert_int_equal(ibv_dealloc_pd(p), 0);
	munmap(m, PAGE);
}

static const union ibv_gid group = {.raw = {0xff, 0x0e, [15] = 0x77}};

static void child(struct ibv_qp *qp, struct ibv_mr *mr, struct ibv_qp *member)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_device_attr da;
	struct ibv_port_attr pa;
	struct ibv_send_wr wr = {0}, *bad = NULL;
	struct ibv_recv_wr rwr = {0}, *rbad = NULL;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	struct ibv_context *own;
	struct ibv_wc wc;
	int ok = !ibv_query_device(ctx, &da) && ibv_query_port(ctx, 1, &pa) == EIO && !ibv_alloc_pd(ctx) &&
		 errno == EIO && ibv_post_send(qp, &wr, &bad) == EIO && bad == &wr &&
		 ibv_post_recv(qp, &rwr, &rbad) == EIO && rbad == &rwr && ibv_poll_cq(cq, 1, &wc) == -1 &&
		 ibv_modify_qp(qp, &a, IBV_QP_STATE) == EIO && !ibv_reg_mr(pd, &a, sizeof(a), 0) &&
		 errno == EIO && ibv_attach_mcast(member, &group, 1) == EIO &&
		 !ibv_detach_mcast(member, &group, 0) && !ibv_destroy_qp(member) && !ibv_dereg_mr(mr) &&
		 !ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx);

	if (!ok)
		_exit(1);
	if (UNDER_TSAN) /* it does not let a forked child start threads */
		_exit(0);
	own = list ? ibv_open_device(list[0]) : NULL; /* a device of its own */
	if (!own || ibv_query_device(own, &da) || ibv_close_device(own))
		_exit(2);
	ibv_free_device_list(list);
	_exit(0);
}

static void a_forked_child_has_dead_objects(void **state)
{
	char *m = pages(PROT_READ | PROT_WRITE, 1);
	struct ibv_mr *mr = ibv_reg_mr(pd, m, PAGE, 0);
	struct ibv_qp_init_attr ud = good_qp();
	struct ibv_qp *qp = make_qp(), *member;
	int status;
	pid_t pid;

	(void)state;
	ud.qp_type = IBV_QPT_UD;
	member = ibv_create_qp(pd, &ud);
	assert_int_equal(ibv_attach_mcast(member, &group, 0), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		child(qp, mr, member);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	/* the parent's are as before */
	assert_int_equal(ibv_destroy_qp(member), EBUSY);
	assert_int_equal(ibv_detach_mcast(member, &group, 0), 0);
	assert_int_equal(ibv_destroy_qp(member), 0);
	move(qp, IBV_QPS_INIT, TO_INIT);
	assert_int_equal(ibv_destroy_qp(qp), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	munmap(m, PAGE);
}

/* Not good style, but as with other devices closing succeeds, and what is destroyed afterwards does no harm.
 */
static void closing_with_children(void **state)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *c = ibv_open_device(list[0]);
	struct ibv_pd *p = ibv_alloc_pd(c);
	struct ibv_cq *q = ibv_create_cq(c, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr qa = good_qp();
	struct ibv_qp *qp;

	(void)state;
	ibv_free_device_list(list);
	qa.send_cq = qa.recv_cq = q;
	qp = ibv_create_qp(p, &qa);
	assert_int_equal(ibv_close_device(c), 0);
	assert_int_equal(ibv_destroy_qp(qp), 0);
	assert_int_equal(ibv_destroy_cq(q), 0);
	assert_int_equal(ibv_dealloc_pd(p), 0);
	assert_int_equal(ibv_close_device(c), 0); /* now it really goes */
}

/* The functions of the header read the argument before the library can: they are not among these. */
static void no_object_at_all(void **state)
{
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq};
	struct ibv_srq_init_attr_ex srq_ex = {.comp_mask = IBV_SRQ_INIT_ATTR_PD, .attr = srq.attr};
	struct ibv_qp_init_attr_ex ex = {
	    .qp_type = IBV_QPT_RC, .comp_mask = IBV_QP_INIT_ATTR_PD, .send_cq = cq, .recv_cq = cq};
	struct ibv_ah_attr to = {.port_num = 1};
	struct ibv_wc wc = {0};
	struct ibv_grh grh = {0};
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	char buf[8];

	(void)state;
	REFUSED(ibv_create_srq(NULL, &srq), EINVAL);
	REFUSED(ibv_create_srq_ex(ctx, &srq_ex), EINVAL);
	REFUSED(ibv_create_qp(NULL, &attr), EINVAL);
	REFUSED(ibv_create_qp_ex(ctx, &ex), EINVAL);
	REFUSED(ibv_create_ah(NULL, &to), EINVAL);
	REFUSED(ibv_create_ah_from_wc(NULL, &wc, &grh, 1), EINVAL);
	REFUSED((ibv_reg_mr)(NULL, buf, sizeof buf, 0), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(NULL, 0, 8, 0, 0, 0), EINVAL);
	REFUSED(ibv_import_mr(NULL, 1), EINVAL);
	REFUSED(ibv_alloc_pd(NULL), EINVAL);
	REFUSED(ibv_import_pd(NULL, 1), EINVAL);
	REFUSED(ibv_import_dm(NULL, 1), EINVAL);
	REFUSED(ibv_create_cq(NULL, 1, NULL, NULL, 0), EINVAL);
	REFUSED(ibv_create_comp_channel(NULL), EINVAL);
	attr.send_cq = NULL;
	REFUSED(ibv_create_qp(pd, &attr), EINVAL);
	attr.send_cq = cq;
	attr.recv_cq = NULL;
	REFUSED(ibv_create_qp(pd, &attr), EINVAL);
	assert_int_equal(ibv_dealloc_pd(pd), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(no_object_at_all),
	    cmocka_unit_test(the_device_list),
	    cmocka_unit_test(what_headers_call_is_there),
	    cmocka_unit_test(rule_50_device_attributes),
	    cmocka_unit_test(vendor_id_is_settable),
	    cmocka_unit_test(port_attributes),
	    cmocka_unit_test(gids),
	    cmocka_unit_test(pkeys),
	    cmocka_unit_test(address_handles),
	    cmocka_unit_test(rule_24_address_from_a_completion),
	    cmocka_unit_test(own_address_has_a_mac),
	    cmocka_unit_test(rule_41_qp_arguments),
	    cmocka_unit_test(limits_are_refused_and_not_clamped),
	    cmocka_unit_test(granted_caps_are_told),
	    cmocka_unit_test(rule_38_values),
	    cmocka_unit_test(every_gid_index_leads_to_rtr),
	    cmocka_unit_test(rule_38_values_to_rtr),
	    cmocka_unit_test(rule_38_what_is_set_is_told),
	    cmocka_unit_test(rule_38_round_trips),
	    cmocka_unit_test(drained_once),
	    cmocka_unit_test(rule_37_busy),
	    cmocka_unit_test(a_forked_child_has_dead_objects),
	    cmocka_unit_test(closing_with_children),
	};

	return cmocka_run_group_tests(tests, open_device, close_device);
}
