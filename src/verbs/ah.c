/* Address handles, and address vectors wherever they come from. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "iba/grh.h"
#include "iba/profile.h"
#include "host/devices.h"
#include "hca/far.h"
#include "hca/hca.h"
#include "hca/hosts.h"
#include "hca/port.h"
#include "verbs/checked.h"
#include "verbs/verbs.h"

#define MAX_SL 15 /* four bits */

static_assert(sizeof(struct ibv_ah) == 24 && sizeof(struct ibv_grh) == 40, "ABI");

static _Atomic uint32_t live;
static _Atomic uint32_t handles; /* the next one's */

bool vb_gid_missed(const struct vb_context *c)
{
	return !vb_devices_infiniband() && !atomic_exchange(&vb_hca(c->adapter)->gid_asked, true);
}

/* On InfiniBand the LID leads there, and what has no GRH needs no GID. */
static int check_av_infiniband(const char *call, const char *about, const struct vb_context *c,
			       const struct ibv_ah_attr *av)
{
	if (!av->dlid && vb_gid_is_ipv4(vb_gid_of(av->grh.dgid.raw)) && !vb_gid_is_group(av->grh.dgid.raw))
		return vb_refuse(
		    EINVAL, call,
		    "%sthe address has an IPv4 GID and no LID (dlid 0): the peer's port is Ethernet, this "
		    "port is InfiniBand; start both ends with the same verbena run --link (VERBENA_LINK)",
		    about);
	return av->is_global ? vb_check_gid(call, about, c, av->grh.sgid_index) : 0;
}

/* RoCE knows no LIDs. An index that leads nowhere is named before a peer's GID that is missing: mostly both
 * ends were given the same index, and read nothing there. */
static int check_av_ethernet(const char *call, const char *about, const struct vb_context *c,
			     const struct ibv_ah_attr *av)
{
	bool no_gid = vb_gid_is_zero(av->grh.dgid.raw);
	int err;

	if (av->dlid && (!av->is_global || no_gid))
		return vb_refuse(
		    EINVAL, call,
		    "%sthe address has a LID (dlid 0x%x) and no GID: the peer's port is InfiniBand, this "
		    "port is Ethernet; start both ends with the same verbena run --link (VERBENA_LINK)",
		    about, av->dlid);
	err = av->is_global ? vb_check_gid(call, about, c, av->grh.sgid_index) : 0;
	if (err)
		return err;
	if (no_gid)
		return vb_refuse(
		    EINVAL, call,
		    "%s%sgrh.dgid is zero: the peer did not send its GID or read an empty entry of its GID "
		    "table, or this program did not copy it%s",
		    about, av->is_global ? "" : "is_global is 0, but RoCE requires a GRH; ",
		    vb_gid_missed(c) ? "; " VB_GID_MISSED : "");
	if (!av->is_global)
		return vb_refuse(
		    EINVAL, call,
		    "%sis_global is 0, but RoCE requires a GRH; grh.dgid is set, so set is_global to 1",
		    about);
	return 0;
}

int vb_check_av(const char *call, const char *about, const struct vb_context *c, const struct ibv_ah_attr *av)
{
	int err = vb_check_port_of(call, about, av->port_num);

	if (err)
		return err;
	if (av->sl > MAX_SL)
		return vb_refuse(EINVAL, call, "%ssl %u exceeds the limit of %d", about, av->sl, MAX_SL);
	return vb_devices_infiniband() ? check_av_infiniband(call, about, c, av)
				       : check_av_ethernet(call, about, c, av);
}

int vb_check_versions(const char *call, const char *about, const struct vb_hca *h,
		      const struct ibv_ah_attr *av)
{
	const struct vb_gids *t = vb_port_gids(h);
	bool ipv4 = vb_gid_is_ipv4(vb_gid_of(av->grh.dgid.raw));
	char buf[2 * INET6_ADDRSTRLEN + 200] = "";
	struct vb_text text = {buf, sizeof(buf)};
	uint32_t other = 0;

	if (av->grh.sgid_index >= t->n || vb_gid_is_ipv4(vb_gid_of(t->gid[av->grh.sgid_index])) == ipv4)
		return 0;
	while (other < t->n && vb_gid_is_ipv4(vb_gid_of(t->gid[other])) != ipv4)
		other++;
	vb_text_add(&text, "sgid_index %u is ", av->grh.sgid_index);
	vb_gid_add(&text, t->gid[av->grh.sgid_index]);
	vb_text_add(&text, ", but dgid is ");
	vb_gid_add(&text, av->grh.dgid.raw);
	if (other < t->n)
		vb_text_add(&text, "; both must be %s: set sgid_index to %u, which is ",
			    ipv4 ? "IPv4" : "IPv6", other);
	else
		vb_text_add(&text, "; both must be %s, of which the port has no address",
			    ipv4 ? "IPv4" : "IPv6");
	if (other < t->n)
		vb_gid_add(&text, t->gid[other]);
	return vb_refuse(EINVAL, call, "%s%s", about, buf);
}

void vb_ah_lead(struct vb_hca *h, struct vb_ah *ah)
{
	struct vb_far *held, *none = NULL;
	uint32_t dest = vb_far_leads(h, &ah->attr, &held);

	/* Another thread may be at it. */
	if (held && !atomic_compare_exchange_strong(&ah->far, &none, held))
		vb_far_put(&held);
	atomic_store_explicit(&ah->dest, dest, memory_order_relaxed);
}

/* Another host's address. */
static int check_away(struct vb_hca *h, const struct ibv_ah_attr *av)
{
	return vb_port_has_wire(h) && !vb_port_leads_here(h, av)
		   ? vb_check_versions("ibv_create_ah", "", h, av)
		   : 0;
}

/* What is known of an address that leads nowhere. */
static void set_away(struct vb_hca *h, struct vb_ah *ah)
{
	if (vb_devices_infiniband())
		return;
	memcpy(ah->away.gid, ah->attr.grh.dgid.raw, sizeof(ah->away.gid));
	ah->away.pid = vb_addresses_whose(&h->addresses, &ah->attr, ah->away.ifname);
	ah->away.obstacle = h->away;
}

/* The members of a group on other hosts. */
static struct vb_far *to_hosts(struct vb_hca *h, const struct ibv_ah_attr *group)
{
	struct vb_far *far;

	vb_hosts_say_group(h, group);
	(void)vb_hosts_group(h, group->grh.dgid.raw, &far);
	return far;
}

VB_EXPORT VB_OBJECT(struct ibv_ah *, ibv_create_ah, (ibpd, attr), struct ibv_pd *ibpd,
		    struct ibv_ah_attr *attr)
{
	struct vb_context *c;
	struct vb_ah *ah = NULL;
	bool group;
	int err;

	errno = vb_pd_check("ibv_create_ah", ibpd);
	if (errno)
		return NULL;
	c = vb_context(ibpd->context);
	errno = vb_check_av("ibv_create_ah", "", c, attr);
	if (errno)
		return NULL;
	group = attr->is_global && vb_gid_is_group(attr->grh.dgid.raw);
	if (!group) /* the kernel is asked, and files are read: none of their errors is this call's */
		vb_addresses_learn(&vb_hca(c->adapter)->addresses, attr);
	errno =
	    group ? vb_mcast_meet(vb_hca(c->adapter), "ibv_create_ah") : check_away(vb_hca(c->adapter), attr);
	if (errno)
		return NULL;
	if (atomic_fetch_add(&live, 1) < vb_profile()->max_ah) /* pairs with ibv_destroy_ah() */
		ah = calloc(1, sizeof(*ah));
	if (!ah) {
		err = vb_refuse(ENOMEM, "ibv_create_ah",
				"out of memory, or all %u address handles of the device are in use",
				vb_profile()->max_ah);
		atomic_fetch_sub(&live, 1);
		errno = err;
		return NULL;
	}
	vb_pd_count(vb_pd(ibpd), VB_CHILD_AH, 1); /* pairs with ibv_destroy_ah() */
	ah->ibv.context = ibpd->context;
	ah->ibv.pd = ibpd;
	ah->ibv.handle = ah->number = atomic_fetch_add(&handles, 1);
	ah->pd_id = vb_pd(ibpd)->id;
	ah->attr = *attr;
	ah->route =
	    attr->is_global
		? vb_route(VB_GRH_WORD(attr->grh.sgid_index, attr->grh.traffic_class, attr->grh.flow_label),
			   attr->grh.hop_limit, attr->sl)
		: vb_route(0, 0, attr->sl);
	ah->group = group;
	ah->dest = VB_DEST_NOWHERE;
	if (group)
		ah->far = to_hosts(vb_hca(c->adapter), attr); /* pairs with ibv_destroy_ah() */
	else
		vb_ah_lead(vb_hca(c->adapter), ah); /* as that */
	if (!group && ah->dest == VB_DEST_NOWHERE)
		set_away(vb_hca(c->adapter), ah);
	vb_live_enter(&ah->ibv, VB_LIVE_AH);
	return &ah->ibv;
}

/* Who uses it later, which --check tells, has it looked up again. */
static void put_far(struct vb_ah *ah)
{
	struct vb_far *far = atomic_exchange(&ah->far, NULL);

	if (!far)
		return;
	vb_far_put(&far);
	atomic_store(&ah->dest, VB_DEST_NOWHERE);
}

VB_EXPORT VB_END(ibv_destroy_ah, "ibv_destroy_ah", VB_LIVE_AH, ibah, struct ibv_ah *ibah)
{
	if (vb_context_dead(vb_context(ibah->context)))
		return 0;
	if (ibah->handle != ((struct vb_ah *)ibah)->number) /* rule 37 */
		return vb_refuse(ENOENT, "ibv_destroy_ah", "the program changed the handle from 0x%x to 0x%x",
				 ((struct vb_ah *)ibah)->number, ibah->handle);
	vb_pd_count(vb_pd(ibah->pd), VB_CHILD_AH, -1u);
	put_far((struct vb_ah *)ibah);
	if (!vb_checked_bury(ibah))
		free(ibah);
	atomic_fetch_sub(&live, 1);
	return 0;
}

/* The header that stands in the last 20 of the GRH's 40 bytes when the packet came by IPv4 (rule 24). */
struct ipv4 {
	uint8_t version_ihl, tos;
	uint16_t len, id, frag;
	uint8_t ttl, protocol;
	uint16_t check;
	uint32_t saddr, daddr;
};

static bool checksum_fits(const struct ipv4 *h)
{
	uint16_t words[sizeof(*h) / 2];
	uint32_t sum = 0;

	memcpy(words, h, sizeof(words));
	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return ((sum + (sum >> 16)) & 0xffff) == 0xffff;
}

/* The sender's address becomes the destination; `own` receives the address that the packet came to. */
static bool by_ipv4(const struct ibv_grh *grh, struct ibv_ah_attr *a, uint8_t own[16])
{
	struct ipv4 h;

	static_assert(sizeof(h) == 20, "as on the wire");
	memcpy(&h, (const uint8_t *)grh + sizeof(*grh) - sizeof(h), sizeof(h));
	/* an IPv6 header has 6 in its own first nibble; its addresses may look like anything */
	if (ntohl(grh->version_tclass_flow) >> 28 == 6 || h.version_ihl != 0x45 || !checksum_fits(&h))
		return false;
	vb_gid_of_ipv4(a->grh.dgid.raw, h.saddr);
	vb_gid_of_ipv4(own, h.daddr);
	a->grh.traffic_class = h.tos;
	a->grh.hop_limit = h.ttl;
	return true;
}

static bool by_ipv6(const struct ibv_grh *grh, struct ibv_ah_attr *a, uint8_t own[16])
{
	uint32_t first = ntohl(grh->version_tclass_flow);

	if (first >> 28 != 6 || grh->next_hdr != vb_grh_next(vb_devices_infiniband()))
		return false;
	a->grh.dgid = grh->sgid;
	memcpy(own, grh->dgid.raw, 16);
	a->grh.traffic_class = (uint8_t)(first >> 20);
	a->grh.flow_label = first & 0xfffff;
	a->grh.hop_limit = grh->hop_limit;
	return true;
}

static int refuse_destination(const uint8_t own[16], uint8_t port)
{
	char text[INET6_ADDRSTRLEN];

	return vb_refuse(EINVAL, "ibv_init_ah_from_wc",
			 "the destination address of the packet, %s, is not in the GID table of port %u",
			 inet_ntop(AF_INET6, own, text, sizeof(text)), port);
}

VB_EXPORT VB_CODE(ibv_init_ah_from_wc, (context, port, wc, grh, attr), struct ibv_context *context,
		  uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
	const struct vb_context *c = vb_context(context);
	uint8_t own[16];
	int index;

	errno = vb_context_check("ibv_init_ah_from_wc", context);
	if (errno)
		return -1;
	errno = vb_check_port("ibv_init_ah_from_wc", port);
	if (errno)
		return -1;
	*attr = (struct ibv_ah_attr){
	    .dlid = wc->slid, .sl = wc->sl, .src_path_bits = wc->dlid_path_bits, .port_num = port};
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	attr->is_global = 1;
	if (!by_ipv4(grh, attr, own) && !by_ipv6(grh, attr, own)) {
		errno =
		    vb_refuse(EPROTONOSUPPORT, "ibv_init_ah_from_wc",
			      "the GRH is not of a RoCE v2 packet (IPv4 or IPv6) or an InfiniBand packet");
		return -1;
	}
	index = vb_gids_index(vb_port_gids(vb_hca(c->adapter)), own);
	if (index < 0 || vb_gid_is_zero(own)) {
		errno = refuse_destination(own, port);
		return -1;
	}
	attr->grh.sgid_index = (uint8_t)index;
	return 0;
}

VB_EXPORT VB_OBJECT_AS(struct ibv_ah *, ibv_create_ah_from_wc, "ibv_create_ah_from_wc", (pd, wc, grh, port),
		       struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr attr;

	errno = vb_pd_check("ibv_create_ah_from_wc", pd);
	if (errno || ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr))
		return NULL;
	return ibv_create_ah(pd, &attr);
}
