/* An opened device.  The public struct grows downwards in newer releases, so the members that Debian 12's
 * header does not know stand before it (reference/newer-abi.md). */
#ifndef VB_OBJ_CONTEXT_H
#define VB_OBJ_CONTEXT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/own.h"
#include "obj/event.h"

struct vb_adapter;
struct vb_hca;

struct vb_device {
	struct ibv_device ibv;	/* first */
	void *verbs_device_ops; /* offset 664: what vendor libraries compare with their own; always NULL */
	uint64_t guid;		/* network order */
	uint32_t index;		/* among the process's devices */
	struct vb_hca *hca;	/* what new contexts use, NULL: none is open; guarded in verbs/context.c */
};

struct vb_newer_ops { /* lowest address first */
	void (*free_buf)(struct ibv_buf *buf);
	void *(*alloc_buf)(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
	int (*dm_export_dmabuf_fd)(struct ibv_dm *dm);
	struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *pd, struct ibv_mr_init_attr *attr);
	int (*dealloc_dmah)(struct ibv_dmah *dmah);
	struct ibv_dmah *(*alloc_dmah)(struct ibv_context *context, struct ibv_dmah_init_attr *attr);
};

/* What may happen to the port, by its node in the context. */
enum vb_port_event { VB_PORT_GID_CHANGE, VB_PORT_ERR, VB_PORT_ACTIVE, VB_PORT_REREGISTER, VB_PORT_EVENTS };

struct vb_context {
	struct vb_newer_ops newer;
	struct verbs_context v; /* v.context is what the application holds */
	struct vb_device *dev;
	struct vb_adapter *adapter;
	_Atomic bool closing; /* ibv_close_device() was called; children may be left */
	bool dead;	      /* in a forked child: what extended CQs look at, whose functions stay */
	uint64_t
	    from; /* imported: incarnation of the adapter whose handles it takes, maybe our own; else 0 */
	struct vb_evq async;
	struct vb_lock lock; /* guards qps and pd_list */
	struct vb_list qps;
	struct vb_list on_hca;	       /* guarded by hca->contexts_lock */
	struct vb_async_node ev_fatal; /* the device is lost */
	struct vb_async_node ev_port[VB_PORT_EVENTS];
	/* A queue pair in RTR has heard its far end.  NULL: nobody is to be told.  Set once; called under the
	 * queue pair's lock. */
	void (*established)(struct vb_context *c, uint32_t qpn);
	struct vb_own cmd;					     /* v.context.cmd_fd */
	struct vb_list pd_list;					     /* those of ibv_alloc_pd() */
	_Atomic uint32_t pds, cqs, channels, tds, dms, xrcds, cntrs; /* children, for close */
};

static inline struct vb_context *vb_context(struct ibv_context *c)
{
	/* By a number, for c may be NULL until vb_context_check() has looked. */
	return (struct vb_context *)((uintptr_t)c - offsetof(struct vb_context, v) -
				     offsetof(struct verbs_context, context));
}

#endif
