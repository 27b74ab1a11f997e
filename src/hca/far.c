#include "hca/far.h"

#include "hca/hosts.h"
#include "hca/peers.h"
#include "obj/dests.h"

#ifdef VB_FAULTS
extern const struct vb_far_kind vb_far_null; /* hca/far_null.c */
#endif

/* An address that leads to a process of this host is no network's. */
static const struct vb_far_kind *const kinds[VB_WHOM_KINDS] = {
    [VB_WHOM_PEER] = &vb_far_peer,
    [VB_WHOM_ADDRESS] = &vb_far_host,
#ifdef VB_FAULTS
    [VB_WHOM_NULL] = &vb_far_null,
#endif
};

struct vb_far *vb_far_find(struct vb_hca *h, const struct vb_qp *qp)
{
	struct vb_far *far = NULL;

	for (unsigned i = 0; i < VB_WHOM_KINDS && !far; i++)
		far = !kinds[i] ? NULL : kinds[i]->find(h, qp);
	return far;
}

uint32_t vb_far_leads(struct vb_hca *h, const struct ibv_ah_attr *av, struct vb_far **held)
{
	uint32_t number = VB_DEST_NOWHERE;

	*held = NULL;
	for (unsigned i = 0; i < VB_WHOM_KINDS && number == VB_DEST_NOWHERE; i++)
		if (kinds[i])
			number = kinds[i]->leads(h, av, held);
	return number;
}

struct vb_far *vb_far_at(struct vb_hca *h, uint32_t number)
{
	struct vb_far *far = NULL;

	for (unsigned i = 0; i < VB_WHOM_KINDS && !far; i++)
		far = !kinds[i] ? NULL : kinds[i]->at(h, number);
	return far;
}

struct vb_far *vb_far_named(struct vb_hca *h, const struct vb_whom *whom, uint32_t *number)
{
	const struct vb_far_kind *kind = kinds[whom->kind];

	*number = VB_DEST_NOWHERE;
	return kind ? kind->named(h, whom, number) : NULL;
}

bool vb_far_is_there(struct vb_hca *h, const struct vb_whom *whom)
{
	const struct vb_far_kind *kind = kinds[whom->kind];

	return kind && kind->there(h, whom);
}

uint32_t vb_far_count(const struct vb_hca *h)
{
	return vb_peer_count(h->adapter);
}

struct vb_far *vb_far_member(const struct vb_hca *h, uint32_t index)
{
	struct vb_peer *peer = vb_hca_peer(h, index);

	return peer ? &peer->far : NULL;
}
