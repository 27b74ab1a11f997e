/* rdma_getaddrinfo(3): names and services by the C library, whose first answer is the answer. */
#include <endian.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/ib.h>

#include "rdmacm/call.h"
#include "rdmacm/rdmacm.h"

socklen_t vb_rdma_addrlen(const struct sockaddr *addr)
{
	switch (addr->sa_family) {
	case AF_INET:
		return sizeof(struct sockaddr_in);
	case AF_INET6:
		return sizeof(struct sockaddr_in6);
	case AF_IB:
		return sizeof(struct sockaddr_ib);
	default:
		return 0;
	}
}

/* What a kind of service is called in both worlds. */
static const struct kind {
	int qp_type, socktype;
} kinds[] = {
    {IBV_QPT_RC, SOCK_STREAM},	     {IBV_QPT_UC, SOCK_STREAM}, {IBV_QPT_XRC_SEND, SOCK_STREAM},
    {IBV_QPT_XRC_RECV, SOCK_STREAM}, {IBV_QPT_UD, SOCK_DGRAM},
};
static const struct space {
	int port_space, protocol;
} spaces[] = {{RDMA_PS_TCP, IPPROTO_TCP}, {RDMA_PS_UDP, IPPROTO_UDP}, {RDMA_PS_IPOIB, IPPROTO_UDP}};

#define ENTRIES(a) (sizeof(a) / sizeof((a)[0]))

static int socktype_of(int qp_type)
{
	for (size_t i = 0; i < ENTRIES(kinds); i++)
		if (kinds[i].qp_type == qp_type)
			return kinds[i].socktype;
	return 0;
}

static int protocol_of(int port_space, int socktype)
{
	for (size_t i = 0; i < ENTRIES(spaces); i++)
		if (spaces[i].port_space == port_space)
			return spaces[i].protocol;
	if (port_space != RDMA_PS_IB) /* which has both */
		return 0;
	return socktype == SOCK_STREAM ? IPPROTO_TCP : socktype == SOCK_DGRAM ? IPPROTO_UDP : 0;
}

/* The first of its row. */
static int qp_type_of(int socktype)
{
	for (size_t i = 0; i < ENTRIES(kinds); i++)
		if (kinds[i].socktype == socktype)
			return kinds[i].qp_type;
	return 0;
}

static int port_space_of(int protocol)
{
	for (size_t i = 0; i < ENTRIES(spaces); i++)
		if (spaces[i].protocol == protocol)
			return spaces[i].port_space;
	return 0;
}

/* A GID is written as an IPv6 address. */
static bool wants_gid(const struct rdma_addrinfo *hints)
{
	return (hints->ai_flags & RAI_FAMILY) && (hints->ai_flags & RAI_NUMERICHOST) &&
	       hints->ai_family == AF_IB;
}

static struct addrinfo question(const struct rdma_addrinfo *hints)
{
	struct addrinfo q = {.ai_socktype = socktype_of(hints->ai_qp_type)};

	if (hints->ai_flags & RAI_PASSIVE)
		q.ai_flags |= AI_PASSIVE;
	if (hints->ai_flags & RAI_NUMERICHOST)
		q.ai_flags |= AI_NUMERICHOST;
	q.ai_family = wants_gid(hints) ? AF_INET6 : hints->ai_family == AF_IB ? AF_UNSPEC : hints->ai_family;
	q.ai_protocol = protocol_of(hints->ai_port_space, q.ai_socktype);
	return q;
}

static int copy_bytes(void **out, const void *from, size_t len)
{
	*out = len ? malloc(len) : NULL;
	if (len && !*out)
		return ENOMEM;
	if (len)
		memcpy(*out, from, len);
	return 0;
}

static int copy_addr(struct sockaddr **out, socklen_t *out_len, const struct sockaddr *from, socklen_t len)
{
	void *at;
	int err = copy_bytes(&at, from, from ? len : 0);

	if (!err) {
		*out = at;
		*out_len = at ? len : 0;
	}
	return err;
}

static int make_gid_addr(struct sockaddr **out, socklen_t *len, const struct sockaddr_in6 *from,
			 int port_space)
{
	struct sockaddr_ib *ib = calloc(1, sizeof *ib);
	uint16_t port = be16toh(from->sin6_port);
	uint64_t mask = 0;

	if (!ib)
		return ENOMEM;
	ib->sib_family = AF_IB;
	ib->sib_pkey = 0xffff; /* the default partition */
	ib->sib_flowinfo = from->sin6_flowinfo;
	memcpy(&ib->sib_addr, &from->sin6_addr, sizeof ib->sib_addr);
	ib->sib_sid = htobe64((uint64_t)port_space << 16 | port);
	if (port_space)
		mask |= RDMA_IB_IP_PS_MASK;
	if (port)
		mask |= RDMA_IB_IP_PORT_MASK;
	ib->sib_sid_mask = htobe64(mask);
	ib->sib_scope_id = from->sin6_scope_id;
	*out = (struct sockaddr *)ib;
	*len = sizeof *ib;
	return 0;
}

/* What the C library said, as rdma_cm says it. */
static int translate(struct rdma_addrinfo *rai, const struct rdma_addrinfo *hints, const struct addrinfo *ai)
{
	bool passive = hints->ai_flags & RAI_PASSIVE;
	struct sockaddr **addr = passive ? &rai->ai_src_addr : &rai->ai_dst_addr;
	socklen_t *len = passive ? &rai->ai_src_len : &rai->ai_dst_len;

	rai->ai_flags = passive ? RAI_PASSIVE : 0;
	rai->ai_qp_type = hints->ai_qp_type ? hints->ai_qp_type : qp_type_of(ai->ai_socktype);
	rai->ai_port_space = hints->ai_port_space ? hints->ai_port_space : port_space_of(ai->ai_protocol);
	if (wants_gid(hints)) {
		rai->ai_family = AF_IB;
		return make_gid_addr(addr, len, (const struct sockaddr_in6 *)ai->ai_addr, rai->ai_port_space);
	}
	rai->ai_family = ai->ai_family;
	return copy_addr(addr, len, ai->ai_addr, ai->ai_addrlen);
}

/* Where the program gives no hints. */
static const struct rdma_addrinfo none;

/* No hints are the C library's, too: it then answers with no family of which this host has no address
 * (AI_ADDRCONFIG), while hints that say nothing ask for all. */
static int ask(struct rdma_addrinfo *rai, const char *node, const char *service,
	       const struct rdma_addrinfo *hints, int *err)
{
	struct addrinfo q = question(hints), *ai = NULL;
	int code = getaddrinfo(node, service, hints == &none ? NULL : &q, &ai);

	if (code) {
		*err = errno; /* of EAI_SYSTEM */
		return code;
	}
	*err = translate(rai, hints, ai);
	freeaddrinfo(ai);
	return *err ? -1 : 0;
}

/* Nothing to look up: the hints are the answer. */
static int repeat(struct rdma_addrinfo *rai, const struct rdma_addrinfo *hints)
{
	rai->ai_flags = hints->ai_flags;
	rai->ai_family = hints->ai_family;
	rai->ai_qp_type = hints->ai_qp_type;
	rai->ai_port_space = hints->ai_port_space;
	return copy_addr(&rai->ai_dst_addr, &rai->ai_dst_len, hints->ai_dst_addr, hints->ai_dst_len);
}

int vb_rdma_addrinfo_find(const char *node, const char *service, const struct rdma_addrinfo *hints,
			  struct rdma_addrinfo **out, int *err)
{
	struct rdma_addrinfo *rai = calloc(1, sizeof *rai);
	int code = 0;

	*err = rai ? 0 : ENOMEM;
	if (!rai)
		return -1;
	if (!hints)
		hints = &none;
	if (node || service)
		code = ask(rai, node, service, hints, err);
	else
		*err = repeat(rai, hints);
	if (!code && !*err && !rai->ai_src_len)
		*err = copy_addr(&rai->ai_src_addr, &rai->ai_src_len, hints->ai_src_addr, hints->ai_src_len);
	if (!code && *err)
		code = -1;
	if (code)
		vb_rdma_addrinfo_free(rai);
	else
		*out = rai;
	return code;
}

/* Codes of getaddrinfo(3), which gai_strerror(3) explains, or -1 and errno (rdma_getaddrinfo(3)). */
VB_EXPORT int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
			       struct rdma_addrinfo **res)
{
	int was = vb_rdma_enter("rdma_getaddrinfo"), err = 0, code = -1;

	if (!node && !service && !hints)
		err = vb_cm_refuse(EINVAL, "rdma_getaddrinfo", VB_RDMA_NO_QUESTION);
	else
		code = vb_rdma_addrinfo_find(node, service, hints, res, &err);
	VB_RDMA_GIVE(res);
	vb_cm_call_end();
	errno = code == -1 || code == EAI_SYSTEM ? err : was;
	return code;
}

void vb_rdma_addrinfo_free(struct rdma_addrinfo *ai)
{
	while (ai) {
		struct rdma_addrinfo *next = ai->ai_next;

		free(ai->ai_src_addr);
		free(ai->ai_dst_addr);
		free(ai->ai_src_canonname);
		free(ai->ai_dst_canonname);
		free(ai->ai_route);
		free(ai->ai_connect);
		free(ai);
		ai = next;
	}
}

VB_EXPORT VB_RDMA_NOTHING(rdma_freeaddrinfo, (res), struct rdma_addrinfo *res)
{
	vb_rdma_addrinfo_free(res);
}

/* A string or nothing. */
static int copy_name(char **out, const char *from)
{
	*out = from ? strdup(from) : NULL;
	return from && !*out ? ENOMEM : 0;
}

struct rdma_addrinfo *vb_rdma_addrinfo_copy(const struct rdma_addrinfo *from)
{
	struct rdma_addrinfo *to = calloc(1, sizeof *to);
	int err;

	if (!to)
		return NULL;
	to->ai_flags = from->ai_flags;
	to->ai_family = from->ai_family;
	to->ai_qp_type = from->ai_qp_type;
	to->ai_port_space = from->ai_port_space;
	err = copy_addr(&to->ai_src_addr, &to->ai_src_len, from->ai_src_addr, from->ai_src_len);
	if (!err)
		err = copy_addr(&to->ai_dst_addr, &to->ai_dst_len, from->ai_dst_addr, from->ai_dst_len);
	if (!err)
		err = copy_name(&to->ai_src_canonname, from->ai_src_canonname);
	if (!err)
		err = copy_name(&to->ai_dst_canonname, from->ai_dst_canonname);
	if (!err)
		err = copy_bytes(&to->ai_route, from->ai_route, from->ai_route_len);
	if (!err)
		err = copy_bytes(&to->ai_connect, from->ai_connect, from->ai_connect_len);
	if (err) {
		vb_rdma_addrinfo_free(to);
		return NULL;
	}
	to->ai_route_len = from->ai_route_len;
	to->ai_connect_len = from->ai_connect_len;
	return to;
}
