/* Multicast groups of ids (rdma_join_multicast(3)).  The event of a join carries a token, not an address: who
 * takes it may find that another thread has left the group meanwhile. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/ib.h>

#include "rdmacm/call.h"
#include "rdmacm/rdmacm.h"

struct vb_rdma_mcast {
	struct vb_rdma_mcast *next;
	uintptr_t token;
	void *context; /* the program's */
	struct sockaddr_storage addr;
	uint32_t flags;	 /* enum rdma_cm_mc_join_flags */
	bool attached;	 /* the id's queue pair, to: */
	bool unattached; /* it had none: the program attaches the one that it makes, to these: */
	union ibv_gid gid;
	uint16_t lid;
};

/* A group is its address: ports mean nothing here. */
static bool same_group(const struct sockaddr *a, const struct sockaddr *b)
{
	if (a->sa_family != b->sa_family)
		return false;
	switch (a->sa_family) {
	case AF_INET:
		return !memcmp(&((const struct sockaddr_in *)a)->sin_addr,
			       &((const struct sockaddr_in *)b)->sin_addr, sizeof(struct in_addr));
	case AF_INET6:
		return !memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
			       &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr));
	default:
		return !memcmp(&((const struct sockaddr_ib *)a)->sib_addr,
			       &((const struct sockaddr_ib *)b)->sib_addr, sizeof(struct ib_addr));
	}
}

/* Lock held. */
static struct vb_rdma_mcast *by_token(struct vb_rdma_id *p, const void *token)
{
	struct vb_rdma_mcast *m = p->mcasts;

	while (m && m->token != (uintptr_t)token)
		m = m->next;
	return m;
}

/* Takes the one that *at leads to off the list.  Lock held. */
static struct vb_rdma_mcast *take_off(struct vb_rdma_mcast **at)
{
	struct vb_rdma_mcast *m = *at;

	if (m)
		*at = m->next;
	return m;
}

bool vb_rdma_mcast_context(struct vb_rdma_id *p, const void *token, void **context)
{
	struct vb_rdma_mcast *m;

	pthread_mutex_lock(&p->lock);
	m = by_token(p, token);
	if (m)
		*context = m->context;
	pthread_mutex_unlock(&p->lock);
	return m != NULL;
}

int vb_rdma_mcast_joined(struct vb_rdma_id *p, const void *token, const struct ibv_ah_attr *group)
{
	struct vb_rdma_mcast *m;
	struct ibv_qp *qp;
	int err = 0;

	pthread_mutex_lock(&p->lock);
	m = by_token(p, token);
	qp = p->id.qp && vb_cm_qp_lives(p->id.qp) ? p->id.qp : NULL;
	if (m && m->flags != RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER) {
		m->gid = group->grh.dgid;
		m->lid = group->dlid;
		m->unattached = !qp;
		err = qp ? ibv_attach_mcast(qp, &m->gid, m->lid) : 0;
		m->attached = qp && !err;
	}
	pthread_mutex_unlock(&p->lock);
	return err;
}

/* From the queue pair, which is held; NULL: there is none.  */
static void detach(struct ibv_qp *qp, struct vb_rdma_mcast *m)
{
	if (m->attached && qp)
		ibv_detach_mcast(qp, &m->gid, m->lid);
	m->attached = false;
}

/* In a child the parent's lock stays as the fork found it, and the attachments are the parent's. */
static bool is_the_parents(const struct vb_rdma_id *p)
{
	return p->forks != vb_rdma_forks();
}

void vb_rdma_mcast_detach_all(struct vb_rdma_id *p, struct ibv_qp *qp)
{
	for (struct vb_rdma_mcast *m = p->mcasts; m; m = m->next)
		detach(qp, m);
}

void vb_rdma_mcast_free_all(struct vb_rdma_id *p)
{
	struct vb_rdma_mcast *m;

	while ((m = take_off(&p->mcasts)))
		free(m);
}

static int join(struct vb_rdma_id *p, const char *call, const struct sockaddr *addr, uint32_t flags,
		void *context)
{
	socklen_t len = addr ? vb_rdma_addrlen(addr) : 0;
	struct vb_rdma_mcast *m, **at;
	bool sync = p->sync;
	uintptr_t token;
	int err;

	if (!len)
		return vb_cm_refuse(EINVAL, call,
				    "the address is NULL or has an unsupported family: rdma_cm has AF_INET, "
				    "AF_INET6 and AF_IB");
	if (is_the_parents(p))
		return vb_cm_refuse(EIO, call, VB_CM_ID_OF_PARENT);
	m = calloc(1, sizeof *m);
	if (!m)
		return ENOMEM;
	memcpy(&m->addr, addr, len);
	m->context = context;
	m->flags = flags;
	pthread_mutex_lock(&p->lock);
	token = m->token = ++p->joins;
	m->next = p->mcasts;
	p->mcasts = m;
	pthread_mutex_unlock(&p->lock);
	/* From here on another thread may leave the group, and free this; with the event, the id too. */
	err = vb_cm_id_join(p->cm, addr, RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
			    flags, (void *)token);
	if (!err)
		return vb_rdma_id_complete(p, sync);
	pthread_mutex_lock(&p->lock);
	for (at = &p->mcasts; *at && (*at)->token != token; at = &(*at)->next)
		;
	m = take_off(at);
	pthread_mutex_unlock(&p->lock);
	free(m);
	return err;
}

VB_EXPORT VB_RDMA_CALL(rdma_join_multicast, (id, addr, context), struct rdma_cm_id *id, struct sockaddr *addr,
		       void *context)
{
	return join(vb_rdma_id(id), "rdma_join_multicast", addr, RDMA_MC_JOIN_FLAG_FULLMEMBER, context);
}

VB_EXPORT VB_RDMA_CALL(rdma_join_multicast_ex, (id, attr, context), struct rdma_cm_id *id,
		       struct rdma_cm_join_mc_attr_ex *attr, void *context)
{
	static const char call[] = "rdma_join_multicast_ex";

	if (attr->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED)
		return vb_cm_refuse(EOPNOTSUPP, call, "comp_mask 0x%x has unknown bits 0x%x", attr->comp_mask,
				    attr->comp_mask & ~(RDMA_CM_JOIN_MC_ATTR_RESERVED - 1u));
	if (!(attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS) ||
	    !(attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS))
		return vb_cm_refuse(
		    EINVAL, call,
		    "comp_mask 0x%x lacks a bit: it requires RDMA_CM_JOIN_MC_ATTR_ADDRESS and "
		    "RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS",
		    attr->comp_mask);
	if (attr->join_flags >= RDMA_MC_JOIN_FLAG_RESERVED)
		return vb_cm_refuse(EINVAL, call,
				    "join_flags %u is invalid; set RDMA_MC_JOIN_FLAG_FULLMEMBER or "
				    "RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER",
				    attr->join_flags);
	return join(vb_rdma_id(id), call, attr->addr, attr->join_flags, context);
}

VB_EXPORT VB_RDMA_CALL(rdma_leave_multicast, (id, addr), struct rdma_cm_id *id, struct sockaddr *addr)
{
	static const char call[] = "rdma_leave_multicast";
	struct vb_rdma_id *p = vb_rdma_id(id);
	struct vb_rdma_mcast *m, **at = &p->mcasts;
	struct ibv_qp *qp;
	uint32_t delivered; /* their tokens lead nowhere from here on */
	int err;

	if (!addr || !vb_rdma_addrlen(addr))
		return vb_cm_refuse(EINVAL, call,
				    "the address is NULL or has an unsupported family: rdma_cm has AF_INET, "
				    "AF_INET6 and AF_IB");
	if (is_the_parents(p))
		return vb_cm_refuse(EIO, call, VB_CM_ID_OF_PARENT);
	pthread_mutex_lock(&p->lock);
	while (*at && !same_group((const struct sockaddr *)&(*at)->addr, addr))
		at = &(*at)->next;
	m = take_off(at);
	pthread_mutex_unlock(&p->lock);
	if (!m)
		return vb_cm_refuse(EADDRNOTAVAIL, call, VB_CM_NOT_JOINED);
	m->attached |= m->unattached;
	qp = vb_rdma_qp_hold(p);
	detach(qp, m);
	if (qp)
		vb_rdma_qp_give(p);
	err = vb_cm_id_leave(p->cm, (const struct sockaddr *)&m->addr, &delivered);
	free(m);
	return err;
}
