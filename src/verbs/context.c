/* Opening and closing the device, and what happens to it across fork(). */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/pages.h"
#include "base/settings.h"
#include "base/tally.h"
#include "check/check.h"
#include "iba/profile.h"
#include "hca/capture_file.h"
#include "hca/direct.h"
#include "hca/gsi.h"
#include "host/adapter.h"
#include "host/devices.h"
#include "host/ports.h"
#include "hca/hca.h"
#include "devices/cm_devices.h"
#include "verbs/import.h"
#include "verbs/target.h"
#include "verbs/verbs.h"
#include "verbs/why.h"

static_assert(offsetof(struct vb_context, v) == sizeof(struct vb_newer_ops), "newer members stand before");

struct context {
	struct vb_context pub; /* first */
	struct vb_list on_all; /* guarded by lock */
};

/* The process's adapter: opened with the first context, closed with the last.  One that is lost
 * (hca/lost.c) stays with the contexts that it has, and the next one gets another.  `lock` is held over
 * both, so that fork(), which takes it, never finds an adapter half made: its child would keep descriptors
 * that it knows nothing of, and with them the parent's name. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct vb_list all = {&all, &all}; /* of struct context; guarded by lock */

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
	vb_check_before_fork();
}

static void after_fork_in_parent(void)
{
	vb_check_after_fork(false);
	pthread_mutex_unlock(&lock);
}

/* The child has none of the threads that made progress, and its objects' locks may be held for ever: all that
 * it inherited is dead from here on.  The memory stays, since the program has pointers to it. */
static void after_fork_in_child(void)
{
	pthread_mutex_init(&lock, NULL);
	vb_check_after_fork(true);
	vb_list_each (n, &all) {
		struct context *c = vb_list_entry(n, struct context, on_all);

		if (!vb_context_dead(&c->pub))
			vb_adapter_forked(c->pub.adapter);
		vb_ops_fill_dead(&c->pub);
	}
	vb_list_init(&all);
	for (struct vb_device *d = vb_devices; d->ibv.name[0]; d++)
		d->hca = NULL;
}

/* A program whose other end has given up with it ends with its queue pairs in INIT.  It may be in the middle
 * of anything, since exit() is also called by signal handlers. */
static void at_exit(void)
{
	uint32_t unheard = 0;

	if (pthread_mutex_trylock(&lock))
		return;
	vb_list_each (n, &all) {
		struct vb_context *c = &vb_list_entry(n, struct context, on_all)->pub;

		if (!vb_lock_try(&c->lock))
			continue;
		vb_list_each (node, &c->qps) {
			struct vb_qp *qp = vb_list_entry(node, struct vb_qp, on_ctx);

			if (vb_qp_unheard(qp))
				unheard = qp->qpn;
		}
		vb_lock_give(&c->lock);
	}
	pthread_mutex_unlock(&lock);
	if (unheard)
		vb_qp_say_unheard(unheard);
}

static void register_handlers(void)
{
	/* fork() takes the locks of the last registered first, so those that are taken under others' come
	 * first; that of obj/live.c is still earlier: packets are kept under every lock, and ports are looked
	 * for under rdma_cm's, which is taken under the adapter's.  All of them do so here, without a lock:
	 * older C libraries hold theirs over the handlers of a fork(). */
	vb_log_handle_fork();
	vb_history_handle_fork();
	vb_slots_handle_fork();
	vb_capture_handle_fork();
	vb_ports_handle_fork();
	vb_adapter_handle_fork();
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
	atexit(at_exit);
}

void vb_device_handle_fork(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, register_handlers);
}

static void prepare(struct vb_hca *h)
{
	vb_slab_init(&h->mr_slab, sizeof(struct vb_mr));
	vb_relaxed_open(h);
	h->hear[VB_SUBJECT_DM] = vb_import_told;
	vb_openings_prepare(h);
}

const struct vb_hca_upper vb_verbs_upper = {
    .prepare = prepare, .peer_down = vb_openings_peer_down, .timers = vb_openings_tick};

static int vectors(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n < 1 ? 1 : n > 64 ? 64 : (int)n;
}

/* Those that are of no object. */
static void init_events(struct vb_context *c)
{
	static const enum ibv_event_type types[VB_PORT_EVENTS] = {
	    [VB_PORT_GID_CHANGE] = IBV_EVENT_GID_CHANGE,
	    [VB_PORT_ERR] = IBV_EVENT_PORT_ERR,
	    [VB_PORT_ACTIVE] = IBV_EVENT_PORT_ACTIVE,
	    [VB_PORT_REREGISTER] = IBV_EVENT_CLIENT_REREGISTER,
	};

	vb_async_init(&c->ev_fatal, IBV_EVENT_DEVICE_FATAL, NULL);
	for (int i = 0; i < VB_PORT_EVENTS; i++) {
		vb_async_init(&c->ev_port[i], types[i], NULL);
		c->ev_port[i].ev.element.port_num = 1;
	}
}

int vb_context_open(struct vb_context **out, struct vb_device *dev, struct vb_hca *h)
{
	struct context *x = vb_pages_alloc(sizeof(*x));
	struct vb_context *c;
	int err = ENOMEM;

	if (!x)
		return err;
	c = &x->pub;
	c->dev = dev;
	c->adapter = h->adapter;
	c->established = vb_gsi_established;
	vb_list_init(&c->qps);
	vb_list_init(&c->pd_list);
	vb_ops_fill(c);
	c->v.context.device = &dev->ibv;
	c->v.context.num_comp_vectors = vectors();
	pthread_mutex_init(&c->v.context.mutex, NULL);
	init_events(c);
	err = vb_evq_init(&c->async); /* pairs with vb_context_close() */
	if (err)
		goto free_context;
	err = vb_evq_guard(&c->async, h->adapter, "async_fd of a context");
	if (err)
		goto fini_events;
	c->v.context.async_fd = c->async.fd;
	c->v.context.cmd_fd = fcntl(vb_adapter_fd(h->adapter), F_DUPFD_CLOEXEC, 3);
	if (c->v.context.cmd_fd < 0) {
		err = errno;
		goto fini_events;
	}
	c->cmd = vb_own_of(c->v.context.cmd_fd);
	vb_lock_take(&h->contexts_lock);
	vb_list_append(&h->contexts, &c->on_hca);
	vb_lock_give(&h->contexts_lock);
	vb_device_handle_fork();
	pthread_mutex_lock(&lock);
	vb_list_append(&all, &x->on_all);
	pthread_mutex_unlock(&lock);
	vb_live_enter(&c->v.context, VB_LIVE_CONTEXT); /* ibv_close_device() takes it out */
	*out = c;
	return 0;
fini_events:
	vb_evq_fini(&c->async);
free_context:
	pthread_mutex_destroy(&c->v.context.mutex);
	free(x);
	return err;
}

/* Waits without the lock, since a stopped peer may hold it up: a program that closes destroys nothing
 * meanwhile, but others may end a target, which permits nothing to wait for. */
static void settle(struct vb_context *c)
{
	vb_lock_take(&c->lock);
	vb_list_each (node, &c->qps) {
		struct vb_qp *qp = vb_list_entry(node, struct vb_qp, on_ctx);

		if (qp->ibv.qp_type == IBV_QPT_XRC_RECV)
			continue;
		vb_lock_give(&c->lock);
		vb_direct_revoked(qp);
		vb_lock_take(&c->lock);
	}
	vb_lock_give(&c->lock);
}

/* What the kernel does when a device's file is closed: QPs stop and the peers hear nothing more. */
static unsigned silence(struct vb_context *c)
{
	unsigned n = 0;

	vb_lock_take(&c->lock);
	vb_list_each (node, &c->qps) {
		struct vb_qp *qp = vb_list_entry(node, struct vb_qp, on_ctx);

		n++;
		vb_qp_hold(qp);
		if (vb_list_empty(&qp->opened)) /* else it is a target that lives on (verbs/open_qp.c) */
			vb_qp_to_reset(qp);
		vb_qp_drop(qp);
	}
	vb_lock_give(&c->lock);
	settle(c);
	return n;
}

/* What is left of its queue pairs. */
static unsigned leave(struct vb_context *c)
{
	struct vb_hca *h = vb_hca(c->adapter);
	unsigned n;

	atomic_store(&c->closing, true);
	vb_targets_release(c);
	pthread_mutex_lock(&h->openings_lock);
	vb_openings_expel(c);
	pthread_mutex_unlock(&h->openings_lock);
	n = silence(c);
	pthread_mutex_lock(&h->openings_lock); /* whoever was ending one of its targets has done so */
	pthread_mutex_unlock(&h->openings_lock);
	return n;
}

bool vb_context_close(struct vb_context *c)
{
	struct context *x = (struct context *)c;
	unsigned qps = leave(c), pds = atomic_load(&c->pds), cqs = atomic_load(&c->cqs),
		 channels = atomic_load(&c->channels), tds = atomic_load(&c->tds), dms = atomic_load(&c->dms),
		 xrcds = atomic_load(&c->xrcds), cntrs = atomic_load(&c->cntrs);

	if (qps || pds || cqs || channels || tds || dms || xrcds || cntrs) {
		const struct vb_why_count left[] = {{"queue pair", qps},
						    {"protection domain", pds},
						    {"CQ", cqs},
						    {"completion channel", channels},
						    {"thread domain", tds},
						    {"piece of device memory", dms},
						    {"XRC domain", xrcds},
						    {"completion counter", cntrs}};

		vb_why_left(c, left, sizeof(left) / sizeof(*left));
		return true;
	}
	pthread_mutex_lock(&lock);
	vb_list_unlink(&x->on_all);
	pthread_mutex_unlock(&lock);
	vb_lock_take(&vb_hca(c->adapter)->contexts_lock);
	vb_list_unlink(&c->on_hca);
	vb_lock_give(&vb_hca(c->adapter)->contexts_lock);
	vb_own_close(&c->cmd, c->v.context.cmd_fd);
	vb_evq_fini(&c->async);
	pthread_mutex_destroy(&c->v.context.mutex);
	free(x);
	return false;
}

/* As if the device were not there: what a wrong setting means cannot be guessed. */
static bool settings_are_good(void)
{
	const char *name = vb_profile_unknown(), *wrong = vb_devices_wrong();

	if (name)
		vb_refuse(EINVAL, "ibv_open_device", "VERBENA_PROFILE=%s is not a profile; use one of %s",
			  name, vb_profile_names());
	else if (wrong)
		vb_refuse(EINVAL, "ibv_open_device", "%s", wrong);
	return !name && !wrong;
}

static int share(struct vb_device *dev, struct vb_hca **out, enum vb_open_step *step)
{
	int cancel, err = 0;

	vb_device_handle_fork();
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); /* not with `lock` */
	pthread_mutex_lock(&lock);
	if (dev->hca && !vb_adapter_whole(dev->hca->adapter))
		dev->hca = NULL;
	if (!dev->hca)
		err = vb_hca_open(&dev->hca, dev->index, step,
				  &vb_verbs_upper); /* pairs with vb_device_unshare() */
	if (!err) {
		dev->hca->sharers++;
		*out = dev->hca;
		vb_tally_add_opened();
	}
	pthread_mutex_unlock(&lock);
	pthread_setcancelstate(cancel, NULL);
	return err;
}

void vb_device_unshare(uint32_t index, struct vb_hca *h)
{
	struct vb_device *dev = vb_device_row(index);
	int cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&lock);
	if (!--h->sharers) {
		if (h == dev->hca)
			dev->hca = NULL;
		vb_hca_close(h);
	}
	pthread_mutex_unlock(&lock);
	pthread_setcancelstate(cancel, NULL);
}

int vb_device_share(uint32_t index, struct vb_hca **out, const char *call)
{
	struct vb_device *dev = vb_device_row(index);
	enum vb_open_step step = VB_OPEN_DESCRIPTORS;
	int err;

	vb_settings_check();
	if (!settings_are_good())
		return EINVAL;
	err = share(dev, out, &step); /* pairs with vb_device_unshare() */
	return err ? vb_why_open(err, call, dev->ibv.name, step) : 0;
}

static const struct vb_cm_shares for_cm = {vb_device_handle_fork, vb_device_share, vb_device_unshare};

__attribute__((constructor)) static void begin(void)
{
	vb_cm_devices_share(&for_cm);
}

int vb_device_open(struct ibv_device *ibdev, struct vb_context **out, const char *call)
{
	struct vb_device *dev = (struct vb_device *)ibdev;
	struct vb_hca *h;
	int err = vb_device_share(dev->index, &h, call);

	if (err)
		return err;
	err = vb_context_open(out, dev, h);
	if (!err)
		return 0;
	vb_device_unshare(dev->index, h);
	return vb_why_open(err, call, ibdev->name, VB_OPEN_DESCRIPTORS);
}

VB_EXPORT VB_OBJECT(struct ibv_context *, ibv_open_device, (ibdev), struct ibv_device *ibdev)
{
	struct vb_context *c;
	int err = vb_device_open(ibdev, &c, "ibv_open_device");

	if (!err) {
		vb_msan_gives(c, sizeof(*c));
		return &c->v.context;
	}
	errno = err;
	return NULL;
}

/* As with other devices closing succeeds whatever is left, and what is left is stopped.  A context with
 * children keeps its memory and its descriptors, so that destroying them afterwards, or the mere fact that
 * the program forgot them, does no harm. */
VB_EXPORT VB_CODE(ibv_close_device, (context), struct ibv_context *context)
{
	struct vb_context *c = vb_context(context);
	struct vb_device *dev;
	struct vb_hca *h;

	errno = vb_live_leave("ibv_close_device", context, VB_LIVE_CONTEXT);
	if (errno)
		return -1;
	dev = c->dev;
	if (vb_context_dead(c))
		return 0;
	h = vb_hca(c->adapter);
	if (vb_context_close(c)) { /* a later call may close it for good */
		vb_live_enter(context, VB_LIVE_CONTEXT);
		return 0;
	}
	vb_device_unshare(dev->index, h);
	return 0;
}
