/* Import: another context's domains and regions, by the handles that they have there.
 *
 * A context's cmd_fd stands for its adapter's segment, whoever holds it: possession is the permission,
 * besides being the same user.  Handles lead into the tables that the owner shows, so nothing is asked of its
 * process, which may be stopped.  What was imported is a name only: the owner may take the object away at any
 * time, and nobody but the owner can. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "iba/profile.h"
#include "iba/reach.h"
#include "mem/keys.h"
#include "hca/direct.h"
#include "verbs/import.h"
#include "verbs/mr.h"
#include "hca/hca.h"
#include "verbs/verbs.h"
#include "verbs/why.h"

#define PATIENCE (2 * VB_SEC)

/* Contact with the adapter that the descriptor stands for. */
static int meet_owner(struct vb_context *c, const struct vb_owner *o, const char *call)
{
	struct vb_reach_facts why;
	struct vb_peer *peer;
	char text[400] = "";
	struct vb_text t = {text, sizeof(text)};
	int err;

	if (o->incarnation == vb_adapter_incarnation(c->adapter))
		return 0;
	err = vb_peer_reach(c->adapter, o->number, vb_now() + PATIENCE, &peer,
			    &why); /* pairs with vb_peer_put() */
	if (!err) {
		if (peer->incarnation != o->incarnation) { /* its number is another process's now */
			err = ECONNREFUSED;
			why = (struct vb_reach_facts){.reach = VB_REACH_NOBODY};
		}
		vb_peer_put(peer);
	}
	if (err == ECONNREFUSED && why.reach == VB_REACH_NOBODY)
		return vb_refuse(ENODEV, call,
				 "process %u opened the device and cannot be reached: it closed the device, "
				 "ended, or is in another network namespace",
				 o->pid);
	if (err == ECONNREFUSED && vb_reach_add(&t, &why))
		return vb_refuse(ENODEV, call, "process %u opened the device and cannot be reached: %s",
				 o->pid, text);
	if (err == ETIMEDOUT)
		return vb_refuse(err, call,
				 "process %u opened the device and does not answer (is it stopped?)", o->pid);
	return err ? vb_refuse(err, call, "process %u opened the device and cannot be reached: %s", o->pid,
			       strerror(err))
		   : 0;
}

/* The device of the same index: that of another one would have another address. */
static int open_same(struct vb_context **c, const struct vb_owner *o, const char *call)
{
	struct ibv_device **list;
	int err, n;

	list = ibv_get_device_list(&n);
	if (!list)
		return errno;
	if (o->device < (uint32_t)n)
		err = vb_device_open(list[o->device], c, call);
	else
		err = vb_refuse(ENODEV, call,
				"the descriptor is of device %u of process %u, but this process has %d "
				"device%s; start both with the same verbena run --devices (VERBENA_DEVICES)",
				o->device + 1, o->pid, n, n == 1 ? "" : "s");
	ibv_free_device_list(list);
	return err;
}

VB_EXPORT VB_OBJECT(struct ibv_context *, ibv_import_device, (cmd_fd), int cmd_fd)
{
	const char *call = "ibv_import_device";
	struct vb_context *c;
	struct vb_owner o;
	int err = vb_adapter_owner(cmd_fd, &o);

	if (err == EINVAL && o.version && o.version != VB_SEG_VERSION)
		err = vb_refuse(err, call,
				"descriptor %d is of a process with another version of Verbena: segment "
				"version %u, here %u",
				cmd_fd, o.version, VB_SEG_VERSION);
	else if (err == EINVAL)
		err = vb_refuse(err, call, "descriptor %d is not a duplicate of a context's cmd_fd", cmd_fd);
	else if (err)
		err = vb_refuse(err, call, "descriptor %d cannot be examined: %s", cmd_fd, strerror(err));
	else
		err = open_same(&c, &o, call);
	if (err)
		goto refused;
	err = meet_owner(c, &o, call);
	if (err) {
		ibv_close_device(&c->v.context);
		goto refused;
	}
	c->from = o.incarnation;
	vb_own_close(&c->cmd, c->v.context.cmd_fd);
	c->cmd = vb_own_of(cmd_fd);
	c->v.context.cmd_fd = cmd_fd; /* the context's from now on: ibv_close_device() closes it */
	return &c->v.context;
refused:
	errno = err;
	return NULL;
}

struct vb_peer *vb_import_owner(struct ibv_context *context, const char *call)
{
	const struct vb_context *c = vb_context(context);
	uint64_t from;

	errno = vb_context_check(call, context);
	if (errno)
		return NULL;
	from = c->from ? c->from : vb_adapter_incarnation(c->adapter);
	for (uint32_t i = 0; i < vb_peer_count(c->adapter); i++) {
		struct vb_peer *peer = vb_peer_at(c->adapter, i);

		if (peer && atomic_load(&peer->state) == VB_PEER_UP && peer->incarnation == from)
			return peer;
	}
	errno = vb_refuse(EIO, call, OWNER_ENDED);
	return NULL;
}

/* The tables into which the context's handles lead.  0, or EIO after saying that they are gone. */
static int owner_tables(struct ibv_context *context, struct vb_peer_tables *at, const char *call)
{
	struct vb_peer *peer = vb_import_owner(context, call);

	if (!peer)
		return errno;
	vb_peer_tables(peer, at);
	return 0;
}

VB_EXPORT VB_OBJECT(struct ibv_pd *, ibv_import_pd, (context, handle), struct ibv_context *context,
		    uint32_t handle)
{
	struct vb_context *c = vb_context(context);
	const char *call = "ibv_import_pd";
	struct vb_pd *pd = NULL;
	struct vb_peer_tables at;
	struct vb_pd_view v;
	struct vb_met met;
	int err = owner_tables(context, &at, call);
	bool there = !err && vb_pds_look(at.pds, at.pd_marks, handle, &v);

	if (!err && !vb_import_owner(context, call)) /* it may have ended meanwhile */
		err = errno;
	if (!err && !there)
		err =
		    vb_refuse(ENOENT, call, "the context has no protection domain of handle 0x%08x", handle);
	if (!err)
		err = vb_pd_make(&pd, context, call);
	if (err)
		goto refused;
	pd->imported = true;
	pd->ibv.handle = handle;
	pd->id = v.id;
	if ((uint32_t)(v.id >> 32) != vb_hca(c->adapter)->keys.home)
		err = vb_pd_join(pd, vb_pd_domain(v.id), &met, call);
	if (!err) {
		vb_live_enter(&pd->ibv, VB_LIVE_PD);
		return &pd->ibv; /* pairs with ibv_unimport_pd() */
	}
	vb_pd_unmake(pd);
refused:
	errno = err;
	return NULL;
}

VB_EXPORT VB_NOTHING(ibv_unimport_pd, (ibpd), struct ibv_pd *ibpd)
{
	static const char call[] = "ibv_unimport_pd";
	struct vb_pd *pd = vb_pd(ibpd);
	int err = 0;

	if (vb_live_leave(call, ibpd, VB_LIVE_PD) || vb_context_dead(vb_context(ibpd->context)))
		return;
	if (!pd->imported)
		err =
		    vb_refuse(EINVAL, call,
			      "the protection domain was not imported; deallocate it with ibv_dealloc_pd()");
	else if (atomic_load(&pd->refs))
		err = vb_why_pd_busy(pd, call);
	if (err)
		vb_live_enter(ibpd, VB_LIVE_PD);
	else
		vb_pd_unmake(pd);
}

/* What stands behind a region's handle. */
static int look_up(struct vb_pd *pd, uint32_t handle, uint32_t *lkey, struct vb_key_spec *spec,
		   const char *call)
{
	struct vb_peer_tables at;
	int err = owner_tables(pd->ibv.context, &at, call);
	bool there;

	if (err)
		return err;
	there = handle && vb_key_used(at.marks, handle) && vb_key_read(&at.keys[handle], lkey, spec) &&
		spec->kind != VB_KEY_WINDOW;
	if (!vb_import_owner(pd->ibv.context, call)) /* it may have ended meanwhile */
		return errno;
	if (!there)
		return vb_refuse(ENOENT, call, "the context has no memory region of handle 0x%08x", handle);
	if (spec->pd != pd->id)
		return vb_refuse(EINVAL, call,
				 "the memory region of handle 0x%08x belongs to another protection domain",
				 handle);
	return 0;
}

VB_EXPORT VB_OBJECT(struct ibv_mr *, ibv_import_mr, (ibpd, handle), struct ibv_pd *ibpd, uint32_t handle)
{
	const char *call = "ibv_import_mr";
	struct vb_pd *pd = vb_pd(ibpd);
	struct vb_key_spec spec;
	struct vb_mr *mr = NULL;
	uint32_t lkey;
	int err = vb_pd_check(call, ibpd);

	if (!err)
		err = look_up(pd, handle, &lkey, &spec, call);
	if (err)
		goto refused;
	mr = calloc(1, sizeof(*mr));
	if (!mr) {
		err = vb_refuse_memory(call);
		goto refused;
	}
	vb_pd_count(pd, VB_CHILD_MR, 1); /* pairs with ibv_unimport_mr() */
	mr->source = VB_MR_IMPORTED;
	mr->pd = pd;
	mr->iova = spec.iova;
	mr->access = spec.access;
	mr->ibv.context = ibpd->context;
	mr->ibv.pd = ibpd;
	mr->ibv.length = spec.length;
	mr->ibv.handle = handle;
	mr->ibv.lkey = vb_key_local(&vb_hca(vb_context(ibpd->context)->adapter)->keys, lkey);
	mr->ibv.rkey = spec.kind == VB_KEY_NULL ? lkey : lkey | VB_KEY_REMOTE;
	vb_live_enter(&mr->ibv, VB_LIVE_MR);
	return &mr->ibv;
refused:
	errno = err;
	return NULL;
}

void vb_mr_unimport(struct vb_mr *mr)
{
	vb_pd_count(mr->pd, VB_CHILD_MR, -1u);
	free(mr);
}

VB_EXPORT VB_NOTHING(ibv_unimport_mr, (ibmr), struct ibv_mr *ibmr)
{
	static const char call[] = "ibv_unimport_mr";
	struct vb_mr *mr = (struct vb_mr *)ibmr;

	if (vb_live_leave(call, ibmr, VB_LIVE_MR) || vb_context_dead(vb_context(ibmr->context)))
		return;
	if (mr->source == VB_MR_IMPORTED) {
		vb_mr_unimport(mr);
		return;
	}
	vb_refuse(EINVAL, call, "the memory region was not imported; deregister it with ibv_dereg_mr()");
	vb_live_enter(ibmr, VB_LIVE_MR);
}
