/* Socket addresses of the three families that rdma_cm knows, as GIDs, service IDs and headers of private
 * data. */
#include <arpa/inet.h>
#include <endian.h>
#include <netinet/in.h>
#include <string.h>

#include <infiniband/ib.h>

#include "cm/id.h"

/* Programs hand in addresses of any alignment. */
static struct sockaddr_in v4_of(const struct sockaddr *a)
{
	struct sockaddr_in v;

	memcpy(&v, a, sizeof(v));
	return v;
}

static struct sockaddr_in6 v6_of(const struct sockaddr *a)
{
	struct sockaddr_in6 v;

	memcpy(&v, a, sizeof(v));
	return v;
}

static struct sockaddr_ib ib_of(const struct sockaddr *a)
{
	struct sockaddr_ib v;

	memcpy(&v, a, sizeof(v));
	return v;
}

size_t vb_cm_sock_size(const struct sockaddr *a)
{
	switch (a->sa_family) {
	case AF_INET:
		return sizeof(struct sockaddr_in);
	case AF_INET6:
		return sizeof(struct sockaddr_in6);
	case AF_IB:
		return sizeof(struct sockaddr_ib);
	}
	return 0;
}

void vb_cm_sock_gid(const struct sockaddr *a, uint8_t gid[16])
{
	uint32_t v4;

	memset(gid, 0, 16);
	switch (a->sa_family) {
	case AF_INET:
		v4 = v4_of(a).sin_addr.s_addr;
		if (!v4)
			return;
		gid[10] = gid[11] = 0xff;
		memcpy(gid + 12, &v4, sizeof(v4));
		return;
	case AF_INET6: {
		struct sockaddr_in6 v = v6_of(a);

		memcpy(gid, &v.sin6_addr, 16);
		return;
	}
	case AF_IB: {
		struct sockaddr_ib v = ib_of(a);

		memcpy(gid, &v.sib_addr, 16);
		return;
	}
	}
}

bool vb_cm_sock_any(const struct sockaddr *a)
{
	static const uint8_t zero[16];
	uint8_t gid[16];

	vb_cm_sock_gid(a, gid);
	return !memcmp(gid, zero, sizeof(zero));
}

bool vb_cm_sock_linklocal(const struct sockaddr *a)
{
	uint8_t gid[16];

	if (a->sa_family != AF_INET6)
		return false;
	vb_cm_sock_gid(a, gid);
	return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

uint16_t vb_cm_sock_port(const struct sockaddr *a)
{
	switch (a->sa_family) {
	case AF_INET:
		return ntohs(v4_of(a).sin_port);
	case AF_INET6:
		return ntohs(v6_of(a).sin6_port);
	case AF_IB:
		return (uint16_t)be64toh(ib_of(a).sib_sid);
	}
	return 0;
}

void vb_cm_sock_set_port(struct sockaddr_storage *a, uint16_t port)
{
	switch (a->ss_family) {
	case AF_INET:
		((struct sockaddr_in *)a)->sin_port = htons(port);
		return;
	case AF_INET6:
		((struct sockaddr_in6 *)a)->sin6_port = htons(port);
		return;
	case AF_IB: {
		struct sockaddr_ib *v = (struct sockaddr_ib *)a;

		v->sib_sid = htobe64((be64toh(v->sib_sid) & ~0xffffull) | port);
		v->sib_sid_mask = htobe64(~0ull);
		return;
	}
	}
}

void vb_cm_sock_of_gid(struct sockaddr_storage *a, int family, const uint8_t gid[16])
{
	uint16_t port = a->ss_family == family ? vb_cm_sock_port((struct sockaddr *)a) : 0;
	uint64_t sid = 0;

	if (family == AF_IB && a->ss_family == AF_IB)
		sid = ((struct sockaddr_ib *)a)->sib_sid;
	memset(a, 0, sizeof(*a));
	a->ss_family = (sa_family_t)family;
	switch (family) {
	case AF_INET:
		memcpy(&((struct sockaddr_in *)a)->sin_addr, gid + 12, 4);
		break;
	case AF_INET6:
		memcpy(&((struct sockaddr_in6 *)a)->sin6_addr, gid, 16);
		break;
	case AF_IB:
		memcpy(&((struct sockaddr_ib *)a)->sib_addr, gid, 16);
		((struct sockaddr_ib *)a)->sib_sid = sid;
		((struct sockaddr_ib *)a)->sib_pkey = htons(0xffff);
		break;
	}
	vb_cm_sock_set_port(a, port);
}

/* ---- service IDs (IBTA annex A11) ---- */

uint16_t vb_cm_sock_space(const struct sockaddr *a, enum rdma_port_space own)
{
	struct sockaddr_ib ib;
	uint64_t sid, mask;

	if (a->sa_family != AF_IB)
		return (uint16_t)own;
	ib = ib_of(a);
	mask = be64toh(ib.sib_sid_mask);
	sid = be64toh(ib.sib_sid) & mask;
	/* ids of the port space IB may have a service ID of each of the others (rdma_cm(7)) */
	if (own == RDMA_PS_IB && (sid & RDMA_IB_IP_PS_MASK) == (RDMA_IB_PS_IB & mask))
		return RDMA_PS_IB;
	if ((own == RDMA_PS_IB || own == RDMA_PS_TCP) &&
	    (sid & RDMA_IB_IP_PS_MASK) == (RDMA_IB_IP_PS_TCP & mask))
		return RDMA_PS_TCP;
	if ((own == RDMA_PS_IB || own == RDMA_PS_UDP) &&
	    (sid & RDMA_IB_IP_PS_MASK) == (RDMA_IB_IP_PS_UDP & mask))
		return RDMA_PS_UDP;
	return 0;
}

void vb_cm_sock_set_service(struct sockaddr_storage *a, uint64_t service_id)
{
	((struct sockaddr_ib *)a)->sib_sid = htobe64(service_id);
}

uint64_t vb_cm_sock_service(const struct sockaddr *a, enum rdma_port_space own)
{
	if (a->sa_family == AF_IB)
		return be64toh(ib_of(a).sib_sid);
	return vb_cm_service_id((uint32_t)own, vb_cm_sock_port(a));
}

void vb_cm_sock_add(struct vb_text *t, const struct sockaddr *a)
{
	char text[INET6_ADDRSTRLEN];
	uint8_t gid[16];
	bool v4 = a->sa_family == AF_INET;

	if (!vb_cm_sock_size(a)) {
		vb_text_add(t, "no address");
		return;
	}
	vb_cm_sock_gid(a, gid);
	inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? gid + 12 : gid, text, sizeof(text));
	vb_text_add(t, "%s port %u", text, vb_cm_sock_port(a));
}

/* ---- the header ---- */

static void ip_address(uint8_t to[16], const struct sockaddr *a)
{
	vb_cm_sock_gid(a, to);
	if (a->sa_family == AF_INET)
		memset(to, 0, 12);
}

void vb_cm_sock_name(struct vb_port_name *n, const struct sockaddr *a, enum rdma_port_space own)
{
	*n = (struct vb_port_name){
	    .space = vb_cm_sock_space(a, own), .port = vb_cm_sock_port(a), .family = a->sa_family};
	ip_address(n->addr, a);
}

void vb_cm_sock_ip(struct vb_cm_ip *out, const struct sockaddr *src, const struct sockaddr *dst)
{
	*out = (struct vb_cm_ip){.version = dst->sa_family == AF_INET ? 4 : 6, .port = vb_cm_sock_port(src)};
	ip_address(out->src, src);
	ip_address(out->dst, dst);
}

void vb_cm_sock_of_ip(const struct vb_cm_ip *ip, uint16_t local_port, struct sockaddr_storage *local,
		      struct sockaddr_storage *remote)
{
	int family = ip->version == 4 ? AF_INET : AF_INET6;

	local->ss_family = remote->ss_family = AF_UNSPEC;
	vb_cm_sock_of_gid(local, family, ip->dst);
	vb_cm_sock_of_gid(remote, family, ip->src);
	vb_cm_sock_set_port(local, local_port);
	vb_cm_sock_set_port(remote, ip->port);
}

bool vb_cm_sock_takes(const struct sockaddr *own, bool afonly, const struct vb_cm_ip *ip)
{
	uint8_t mine[16];

	if (vb_cm_sock_any(own) && own->sa_family == AF_INET6 && !afonly)
		return true;
	if ((own->sa_family == AF_INET ? 4 : 6) != ip->version)
		return false;
	if (vb_cm_sock_any(own))
		return true;
	ip_address(mine, own);
	return !memcmp(mine, ip->dst, sizeof(mine));
}
