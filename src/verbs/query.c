/* What the device and its port say about themselves.  Only what is enforced is advertised (rule 50); what is
 * not there is zero. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include "base/clock.h"
#include "base/log.h"
#include "iba/grh.h"
#include "iba/limits.h"
#include "iba/pkt.h"
#include "iba/profile.h"
#include "host/devices.h"
#include "host/identity.h"
#include "hca/hca.h"
#include "hca/port.h"
#include "verbs/verbs.h"

#define PORTS 1

#define CLOCK_KHZ     1000000 /* of the clock that completions are stamped with: nanoseconds */
#define PHYS_LINK_UP  5
#define PHYS_DISABLED 3
#define GRH_REQUIRED  1 /* IBV_QPF_GRH_REQUIRED */
#define TABLE	      " is out of range: the table has %u entries, 0 to %u"
#define EMPTY	      "GID index %u is empty: the table has %u entries, and only 0 to %u are filled"
#define OLD_PORT_ATTR offsetof(struct ibv_port_attr, port_cap_flags2)

static_assert(sizeof(struct ibv_port_attr) == 52 && OLD_PORT_ATTR == 48, "ABI");
static_assert(sizeof(struct ibv_device_attr) == 232 && sizeof(struct ibv_device_attr_ex) == 400, "ABI");
static_assert(sizeof(struct ibv_gid_entry) == 32, "ABI");

int vb_check_port_of(const char *call, const char *about, unsigned port)
{
	if (port >= 1 && port <= PORTS)
		return 0;
	return vb_refuse(EINVAL, call, "%sport %u does not exist: the device has only port 1", about, port);
}

int vb_check_port(const char *call, unsigned port)
{
	return vb_check_port_of(call, "", port);
}

static const struct vb_gids *gids_of(const struct vb_context *c)
{
	return vb_port_gids(vb_hca(c->adapter));
}

/* The program asks, so that it can tell others. */
static const struct vb_gids *asked_gids(const struct vb_context *c)
{
	atomic_store_explicit(&vb_hca(c->adapter)->gid_asked, true, memory_order_relaxed);
	return gids_of(c);
}

/* With what the filled entries are, of which the program should have taken one. */
static int refuse_empty(const char *call, const char *about, const struct vb_gids *t, unsigned index)
{
	char text[400] = "";
	struct vb_text list = {text, sizeof(text)};

	for (uint32_t i = 0; i < t->n; i++) {
		vb_text_add(&list, "%s%u = ", i ? ", " : "", i);
		vb_gid_add(&list, t->gid[i]);
	}
	return vb_refuse(ENODATA, call,
			 "%ssgid_index %u is an empty entry of the GID table; entries 0 to %u are filled: %s",
			 about, index, t->n - 1, text);
}

int vb_check_gid(const char *call, const char *about, const struct vb_context *c, unsigned index)
{
	const struct vb_gids *t = gids_of(c);

	if (index >= VB_GID_ROOM)
		return vb_refuse(
		    EINVAL, call, "%sGID index %u" TABLE "%s%s", about, index, VB_GID_ROOM, VB_GID_ROOM - 1,
		    index == UINT8_MAX ? "; the program set sgid_index to -1, so it chose no index" : "",
		    vb_gid_missed(c) ? "; " VB_GID_MISSED : "");
	if (index >= t->n) /* Linux tells the two apart */
		return refuse_empty(call, about, t, index);
	return 0;
}

static void device_attr(const struct vb_context *c, struct ibv_device_attr *a)
{
	const struct vb_profile *p = vb_profile();

	*a = (struct ibv_device_attr){
	    .node_guid = c->dev->guid,
	    .sys_image_guid = c->dev->guid,
	    .max_mr_size = p->max_mr_size,
	    .page_size_cap = p->page_size_cap,
	    .vendor_id = vb_device_vendor_id(),
	    .vendor_part_id = vb_device_vendor_part(),
	    .max_qp = (int)p->max_qp,
	    .max_qp_wr = (int)p->max_qp_wr,
	    .device_cap_flags = p->caps,
	    .max_sge = (int)p->max_sge,
	    .max_sge_rd = (int)p->max_sge,
	    .max_cq = (int)p->max_cq,
	    .max_cqe = (int)p->max_cqe,
	    .max_mr = (int)p->max_mr,
	    .max_pd = (int)p->max_pd,
	    .max_qp_rd_atom = (int)p->max_rd_atomic,
	    .max_res_rd_atom = (int)p->max_res_rd_atomic,
	    .max_qp_init_rd_atom = (int)p->max_rd_atomic,
	    .atomic_cap = p->atomic_cap,
	    .max_ah = (int)p->max_ah,
	    .max_srq = (int)p->max_srq,
	    .max_srq_wr = (int)p->max_srq_wr,
	    .max_srq_sge = (int)p->max_srq_sge,
	    .max_mw = (int)p->max_mw,
	    .max_mcast_grp = (int)p->max_mcast_grp,
	    .max_mcast_qp_attach = (int)p->max_mcast_qp_attach,
	    .max_total_mcast_qp_attach = (int)p->max_mcast_attach,
	    .max_pkeys = VB_PKEY_TABLE,
	    .local_ca_ack_delay = p->ack_delay,
	    .phys_port_cnt = PORTS,
	};
	snprintf(a->fw_ver, sizeof(a->fw_ver), "%s", VB_FW_VER);
}

/* What the device is needs no adapter, so a forked child may ask its parent's too, as it may allocate device
 * memory. */
VB_EXPORT VB_CODE(ibv_query_device, (context, attr), struct ibv_context *context,
		  struct ibv_device_attr *attr)
{
	int err = vb_context_find("ibv_query_device", context);

	if (!err)
		device_attr(vb_context(context), attr);
	return err;
}

/* Of newer headers: device_cap_flags_ex, enum ibv_odp_transport_cap_bits. */
#define CAP_FLUSH_GLOBAL (UINT64_C(1) << 38)
#define CAP_ATOMIC_WRITE (UINT64_C(1) << 40)
enum { ODP_FLUSH = 1 << 6, ODP_ATOMIC_WRITE = 1 << 7 };

/* On-demand paging works for every request of the transports that there are. */
static struct ibv_odp_caps on_demand_caps(void)
{
	struct ibv_odp_caps caps = {0};

	if (!vb_profile()->on_demand)
		return caps;
	caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
	caps.per_transport_caps.rc_odp_caps =
	    IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
	    IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV | ODP_FLUSH | ODP_ATOMIC_WRITE;
	caps.per_transport_caps.uc_odp_caps =
	    IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE;
	caps.per_transport_caps.ud_odp_caps =
	    IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
	return caps;
}

VB_CODE(vb_query_device_ex, (context, input, attr, size), struct ibv_context *context,
	const struct ibv_query_device_ex_input *input, struct ibv_device_attr_ex *attr, size_t size)
{
	const struct vb_context *c = vb_context(context);
	struct ibv_device_attr_ex a = {.device_cap_flags_ex =
					   vb_profile()->caps | CAP_FLUSH_GLOBAL | CAP_ATOMIC_WRITE,
				       .phys_port_cnt_ex = PORTS};
	int err = vb_context_find("ibv_query_device_ex", context);

	if (err)
		return err;
	if (input && input->comp_mask)
		return vb_refuse_bits(EINVAL, "ibv_query_device_ex", "comp_mask", input->comp_mask, 0);
	if (size < sizeof(a.orig_attr))
		return vb_refuse(EINVAL, "ibv_query_device_ex",
				 "attr_size %zu is too small: the attributes have at least %zu bytes", size,
				 sizeof(a.orig_attr));
	device_attr(c, &a.orig_attr);
	a.odp_caps = on_demand_caps();
	a.xrc_odp_caps = a.odp_caps.per_transport_caps.rc_odp_caps;
	a.completion_timestamp_mask = UINT64_MAX;
	a.hca_core_clock = CLOCK_KHZ;
	a.cq_mod_caps = (struct ibv_cq_moderation_caps){.max_cq_count = VB_MAX_CQ_COUNT,
							.max_cq_period = VB_MAX_CQ_PERIOD};
	a.max_dm_size = vb_profile()->max_dm;
	/* the caller may be older or newer than we are */
	memset(attr, 0, size);
	memcpy(attr, &a, size < sizeof(a) ? size : sizeof(a));
	vb_msan_gives(attr, size);
	return 0;
}

/* The clock of completion timestamps.  As on mlx5 all of it is in tv_nsec, so that programs which take that
 * for the clock's value find it, and those that add the seconds too. */
VB_CODE(vb_query_rt_values_ex, (context, values), struct ibv_context *context, struct ibv_values_ex *values)
{
	int err = vb_context_check("ibv_query_rt_values_ex", context);

	if (err)
		return err;
	if (values->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
		return vb_refuse_bits(EINVAL, "ibv_query_rt_values_ex", "comp_mask", values->comp_mask,
				      IBV_VALUES_MASK_RAW_CLOCK);
	if (values->comp_mask & IBV_VALUES_MASK_RAW_CLOCK)
		values->raw_clock = (struct timespec){.tv_nsec = (long)vb_now()};
	return 0;
}

static void port_attr(const struct vb_context *c, struct ibv_port_attr *a)
{
	bool up = vb_port_is_up(vb_hca(c->adapter));

	*a = (struct ibv_port_attr){
	    .state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN,
	    .max_mtu = IBV_MTU_4096,
	    .active_mtu = vb_port_mtu(vb_hca(c->adapter)),
	    .gid_tbl_len = VB_GID_ROOM,
	    .port_cap_flags = VB_PORT_CAPS,
	    .max_msg_sz = vb_profile()->max_msg,
	    .pkey_tbl_len = VB_PKEY_TABLE,
	    .max_vl_num = 1,
	    .active_width = VB_LINK_WIDTH,
	    .active_speed = VB_LINK_SPEED,
	    .phys_state = up ? PHYS_LINK_UP : PHYS_DISABLED,
	    .link_layer = IBV_LINK_LAYER_ETHERNET,
	    .flags = GRH_REQUIRED,
	};
	if (!vb_devices_infiniband())
		return;
	a->link_layer = IBV_LINK_LAYER_INFINIBAND;
	a->flags = 0;
	a->port_cap_flags = VB_PORT_CAPS_IB;
	a->lid = vb_devices_lid(c->dev->index);
	a->sm_lid = VB_SM_LID;
}

VB_CODE(vb_query_port, (context, port, attr, size), struct ibv_context *context, uint8_t port,
	struct ibv_port_attr *attr, size_t size)
{
	struct ibv_port_attr a;
	int err = vb_context_check("ibv_query_port", context);

	if (err)
		return err;
	err = vb_check_port("ibv_query_port", port);
	if (err)
		return err;
	port_attr(vb_context(context), &a);
	memset(attr, 0, size); /* the caller may be newer than we are */
	memcpy(attr, &a, size < sizeof(a) ? size : sizeof(a));
	vb_msan_gives(attr, size);
	return 0;
}

/* For programs older than the query_port operation: their struct ends with `flags`. */
#undef ibv_query_port
VB_EXPORT VB_CODE(ibv_query_port, (context, port, attr), struct ibv_context *context, uint8_t port,
		  struct _compat_ibv_port_attr *attr)
{
	return vb_query_port(context, port, (struct ibv_port_attr *)attr, OLD_PORT_ATTR);
}

VB_EXPORT VB_CODE(ibv_query_gid, (context, port, index, gid), struct ibv_context *context, uint8_t port,
		  int index, union ibv_gid *gid)
{
	const struct vb_context *c = vb_context(context);
	const struct vb_gids *t;

	errno = vb_context_check("ibv_query_gid", context);
	if (errno)
		return -1;
	errno = vb_check_port("ibv_query_gid", port);
	if (errno)
		return -1;
	t = asked_gids(c); /* also if it asks for the wrong one */
	if (index < 0 || index >= VB_GID_ROOM) {
		errno = vb_refuse(EINVAL, "ibv_query_gid", "GID index %d" TABLE, index, VB_GID_ROOM,
				  VB_GID_ROOM - 1);
		return -1;
	}
	if ((uint32_t)index < t->n)
		memcpy(gid->raw, t->gid[index], 16);
	else
		memset(gid->raw, 0,
		       16); /* programs look through the table, and take this for an empty entry */
	return 0;
}

static struct ibv_gid_entry entry_of(const struct vb_gids *t, uint32_t index)
{
	struct ibv_gid_entry e = {.gid_index = index,
				  .port_num = 1,
				  .gid_type =
				      vb_devices_infiniband() ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2,
				  .ndev_ifindex = t->ifindex[index]};

	memcpy(e.gid.raw, t->gid[index], 16);
	return e;
}

static void give_entry(void *to, const struct ibv_gid_entry *e, size_t size)
{
	memset(to, 0, size);
	memcpy(to, e, size < sizeof(*e) ? size : sizeof(*e));
	vb_msan_gives(to, size);
}

VB_EXPORT VB_CODE(_ibv_query_gid_ex, (context, port, index, entry, flags, entry_size),
		  struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
		  uint32_t flags, size_t entry_size)
{
	const struct vb_context *c = vb_context(context);
	const struct vb_gids *t;
	struct ibv_gid_entry e;
	int err;

	err = vb_context_check("ibv_query_gid_ex", context);
	if (err)
		return err;
	err = vb_check_port("ibv_query_gid_ex", port);
	if (err)
		return err;
	if (flags)
		return vb_refuse_bits(EINVAL, "ibv_query_gid_ex", "flags", flags, 0);
	t = asked_gids(c);
	if (index >= VB_GID_ROOM)
		return vb_refuse(EINVAL, "ibv_query_gid_ex", "GID index %u" TABLE, index, VB_GID_ROOM,
				 VB_GID_ROOM - 1);
	if (index >= t->n)
		return vb_decline(ENODATA, "ibv_query_gid_ex", EMPTY, index, VB_GID_ROOM, t->n - 1);
	e = entry_of(t, index);
	give_entry(entry, &e, entry_size);
	return 0;
}

/* Counts the entries in *n, which begins at 0; 0 or errno. */
static int list_gids(struct ibv_context *context, char *entries, size_t max_entries, uint32_t flags,
		     size_t entry_size, size_t *n)
{
	static const char call[] = "ibv_query_gid_table";
	const struct vb_context *c = vb_context(context);
	const struct vb_gids *t;
	int err = vb_context_check(call, context);

	if (err)
		return err;
	if (flags)
		return vb_refuse_bits(EINVAL, call, "flags", flags, 0);
	t = asked_gids(c);
	for (uint32_t i = 0; i < t->n; i++) {
		struct ibv_gid_entry e = entry_of(t, i);

		if (*n == max_entries)
			return vb_refuse(EINVAL, call,
					 "max_entries %zu is too small: %u entries of the table are filled",
					 max_entries, t->n);
		give_entry(entries + (*n)++ * entry_size, &e, entry_size);
	}
	return 0;
}

VB_EXPORT VB_VALUE(ssize_t, _ibv_query_gid_table, (context, entries, max_entries, flags, entry_size),
		   struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries,
		   uint32_t flags, size_t entry_size)
{
	size_t n = 0;
	int err = list_gids(context, (char *)entries, max_entries, flags, entry_size, &n);

	errno = err;
	return err ? -err : (ssize_t)n;
}

VB_EXPORT VB_CODE(ibv_query_pkey, (context, port, index, pkey), struct ibv_context *context, uint8_t port,
		  int index, __be16 *pkey)
{
	errno = vb_context_check("ibv_query_pkey", context);
	if (errno)
		return -1;
	errno = vb_check_port("ibv_query_pkey", port);
	if (errno)
		return -1;
	if (index < 0 || index >= VB_PKEY_TABLE) {
		errno =
		    vb_refuse(EINVAL, "ibv_query_pkey",
			      "P_Key index %d is out of range: the table has %d entry", index, VB_PKEY_TABLE);
		return -1;
	}
	*pkey = htons(VB_PKEY_DEFAULT);
	return 0;
}

VB_EXPORT VB_VALUE(int, ibv_get_pkey_index, (context, port, pkey), struct ibv_context *context, uint8_t port,
		   __be16 pkey)
{
	__be16 own;

	if (ibv_query_pkey(context, port, 0, &own))
		return -1;
	if (pkey == own)
		return 0;
	errno = vb_refuse(EINVAL, "ibv_get_pkey_index",
			  "P_Key 0x%04x is not in the table, which has only 0xffff", ntohs(pkey));
	return -1;
}

/* Packets of this device have no Ethernet header of its own making, so this answers for addresses of this
 * host only: another host's is the kernel's business. */
VB_EXPORT VB_CODE(ibv_resolve_eth_l2_from_gid, (context, attr, eth_mac, vid), struct ibv_context *context,
		  struct ibv_ah_attr *attr, uint8_t eth_mac[ETHERNET_LL_SIZE], uint16_t *vid)
{
	const struct vb_context *c = vb_context(context);
	int err = vb_context_check("ibv_resolve_eth_l2_from_gid", context);

	if (err)
		return err;
	err = vb_check_av("ibv_resolve_eth_l2_from_gid", "", c, attr);
	if (err)
		return err;
	if (!vb_gid_mac(attr->grh.dgid.raw, eth_mac))
		return vb_refuse(
		    EHOSTUNREACH, "ibv_resolve_eth_l2_from_gid",
		    "the GID is not an address of this host: resolving remote GIDs is not supported");
	vb_msan_gives(eth_mac, ETHERNET_LL_SIZE);
	if (vid)
		*vid = 0xffff; /* none */
	return 0;
}

/* Connection establishment options are a vendor's, and both ends have to be of the same: then they use those
 * that both know.  This one has none, which two of its queue pairs can agree upon. */
VB_EXPORT VB_CODE(ibv_query_ece, (qp, ece), struct ibv_qp *qp, struct ibv_ece *ece)
{
	if (vb_context_dead(vb_context(qp->context)))
		return vb_refuse_forked("ibv_query_ece");
	*ece = (struct ibv_ece){.vendor_id = vb_device_vendor_id()};
	return 0;
}

VB_EXPORT VB_CODE(ibv_set_ece, (qp, ece), struct ibv_qp *qp, struct ibv_ece *ece)
{
	if (vb_context_dead(vb_context(qp->context)))
		return vb_refuse_forked("ibv_set_ece");
	if (ece->comp_mask)
		return vb_refuse_bits(EINVAL, "ibv_set_ece", "comp_mask", ece->comp_mask, 0);
	if (!ece->vendor_id) /* the far end's, which has none */
		return vb_refuse(EOPNOTSUPP, "ibv_set_ece", "vendor_id is 0: the peer has no options");
	if (ece->vendor_id != vb_device_vendor_id())
		return vb_refuse(EINVAL, "ibv_set_ece",
				 "vendor_id 0x%06x is not this device's vendor, 0x%06x", ece->vendor_id,
				 vb_device_vendor_id());
	ece->options = 0; /* those that are accepted */
	return 0;
}

/* Neither the whole message nor blocks of 128 bytes, whatever the operation, the type and the flags: what is
 * long is copied by the CPU's string instruction, which may store in any order within it, or by the kernel
 * (process_vm_writev), which promises none; and pieces that overlap write bytes twice.  Programs that poll
 * memory may wait for the last bytes all the same, which come last (mem/copy.c). */
VB_EXPORT VB_VALUE(int, ibv_query_qp_data_in_order, (qp, op, flags), struct ibv_qp *qp, enum ibv_wr_opcode op,
		   uint32_t flags)
{
	(void)qp;
	(void)op;
	(void)flags;
	return 0;
}
