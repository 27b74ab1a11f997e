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
#include "iba/profile.h"
#include "hca/direct.h"
#include "host/netif.h"
#include "hca/progress.h"
#include "verbs/import.h"
#include "verbs/verbs.h"
#include "verbs/why.h"

static_assert(offsetof(struct vb_context, v) == sizeof(struct vb_newer_ops), "newer members stand before");
static_assert(sizeof(struct vb_key_entry) == VB_LINE && sizeof(struct vb_key_slot) == VB_LINE,
	      "one line each");

struct hca {
	struct vb_hca pub;   /* first */
	struct vb_gids gids; /* set once: what the adapter publishes */
	unsigned sharers;    /* contexts on it; guarded by lock */
};

struct context {
	struct vb_context pub; /* first */
	struct vb_list on_all; /* guarded by lock */
};

/* The process's adapter: opened with the first context, closed with the last.  One that is lost
 * (hca/lost.c) stays with the contexts that it has, and the next one gets another.  `lock` is held over
 * both, so that fork(), which takes it, never finds an adapter half made: its child would keep descriptors
 * that it knows nothing of, and with them the parent's name. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct vb_hca *shared;		  /* that of new contexts; guarded by lock */
static struct vb_list all = {&all, &all}; /* of struct context; guarded by lock */

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&lock);
}

/* The child has none of the threads that made progress, and its objects' locks may be held for ever: all that
 * it inherited is dead from here on.  The memory stays, since the program has pointers to it. */
static void after_fork_in_child(void)
{
	pthread_mutex_init(&lock, NULL);
	vb_list_each (n, &all) {
		struct context *c = vb_list_entry(n, struct context, on_all);

		if (!vb_context_dead(&c->pub))
			vb_adapter_forked(c->pub.adapter);
		vb_ops_fill_dead(&c->pub);
	}
	vb_list_init(&all);
	shared = NULL;
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
	vb_adapter_handle_fork(); /* first, so that its handler takes its locks after ours */
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
	atexit(at_exit);
}

static void handle_fork(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, register_handlers);
}

static int open_hca(struct vb_hca **out, enum vb_open_step *step)
{
	struct hca *h = calloc(1, sizeof(*h));
	struct vb_adapter_cfg cfg = {.ops = &vb_progress_ops, .step = step};
	int err;

	if (!h)
		return ENOMEM;
	vb_gids_find(&h->gids);
	h->pub.told = vb_import_told;
	vb_list_init(&h->pub.timed);
	vb_list_init(&h->pub.imports);
	vb_list_init(&h->pub.dms);
	vb_slab_init(&h->pub.mr_slab, sizeof(struct vb_mr)); /* pairs with vb_hca_close() */
	vb_list_init(&h->pub.contexts);
	err = vb_mws_init(&h->pub.mws, &h->pub.keys, vb_profile()->max_mw); /* pairs with vb_hca_close() */
	if (err)
		goto free_hca;
	vb_relaxed_open(&h->pub); /* before the engine looks; pairs with vb_hca_close() */
	cfg.user = h;
	cfg.gids = (const uint8_t(*)[16])h->gids.gid;
	err = vb_adapter_open(&h->pub.adapter, &cfg); /* pairs with vb_hca_close() */
	if (err)
		goto fini_windows;
	vb_keys_init(&h->pub.keys, vb_adapter_key_entries(h->pub.adapter),
		     vb_profile()->max_mr + vb_profile()->max_mw + 1, vb_adapter_key_slots(h->pub.adapter),
		     vb_adapter_key_marks(h->pub.adapter));
	/* The number may be given to another process once this one is gone: chance tells their PDs apart. */
	h->pub.keys.home = vb_adapter_number(h->pub.adapter) << 20 |
			   (uint32_t)(vb_adapter_incarnation(h->pub.adapter) & 0xfffff);
	h->pub.keys.offset = vb_adapter_key_offset(h->pub.adapter);
	h->pub.keys.variant = vb_adapter_incarnation(h->pub.adapter) >> 20 & 0xff;
	h->pub.keys.local_bit = vb_profile()->equal_keys ? VB_KEY_REMOTE : 0;
	h->pub.keys.ops = &vb_direct_keys_ops;
	h->pub.keys.owner = h->pub.adapter;
	vb_pds_init(&h->pub.pds, vb_adapter_pds(h->pub.adapter), vb_adapter_pd_marks(h->pub.adapter),
		    (uint64_t)h->pub.keys.home << 32);
	vb_direct_peer_up(vb_peer_at(h->pub.adapter, 0)); /* the link to oneself is UP from the beginning */
	*out = &h->pub;
	return 0;
fini_windows:
	vb_mws_fini(&h->pub.mws);
free_hca:
	free(h);
	return err;
}

int vb_hca_open(struct vb_hca **out)
{
	return open_hca(out, NULL);
}

void vb_hca_close(struct vb_hca *h)
{
	vb_adapter_close(h->adapter);
	vb_relaxed_fini(&h->relaxed);
	vb_mws_fini(&h->mws);
	vb_slab_fini(&h->mr_slab);
	free(h);
}

const struct vb_gids *vb_hca_gids(const struct vb_hca *h)
{
	return &((const struct hca *)h)->gids;
}

static int vectors(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n < 1 ? 1 : n > 64 ? 64 : (int)n;
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
	vb_list_init(&c->qps);
	vb_list_init(&c->pd_list);
	vb_ops_fill(c);
	c->v.context.device = &dev->ibv;
	c->v.context.num_comp_vectors = vectors();
	pthread_mutex_init(&c->v.context.mutex, NULL);
	vb_async_init(&c->ev_fatal, IBV_EVENT_DEVICE_FATAL, NULL);
	err = vb_evq_init(&c->async); /* pairs with vb_context_close() */
	if (err)
		goto free_context;
	err = vb_evq_guard(&c->async, h->adapter, "the asynchronous events of a context");
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
	handle_fork();
	pthread_mutex_lock(&lock);
	vb_list_append(&all, &x->on_all);
	pthread_mutex_unlock(&lock);
	*out = c;
	return 0;
fini_events:
	vb_evq_fini(&c->async);
free_context:
	pthread_mutex_destroy(&c->v.context.mutex);
	free(x);
	return err;
}

/* What the kernel does when a device's file is closed: QPs stop and the peers hear nothing more. */
static unsigned silence(struct vb_context *c)
{
	unsigned n = 0;

	vb_lock_take(&c->lock);
	vb_list_each (node, &c->qps) {
		struct vb_qp *qp = vb_list_entry(node, struct vb_qp, on_ctx);

		vb_lock_take(&qp->lock);
		vb_qp_to_reset(qp);
		vb_lock_give(&qp->lock);
		n++;
	}
	vb_lock_give(&c->lock);
	/* Without the lock, since a stopped peer may hold it up; a program that closes destroys nothing
	 * meanwhile. */
	vb_list_each (node, &c->qps)
		vb_direct_revoked(vb_list_entry(node, struct vb_qp, on_ctx));
	return n;
}

bool vb_context_close(struct vb_context *c)
{
	struct context *x = (struct context *)c;
	unsigned qps = silence(c), pds = atomic_load(&c->pds), cqs = atomic_load(&c->cqs),
		 channels = atomic_load(&c->channels), tds = atomic_load(&c->tds), dms = atomic_load(&c->dms);

	if (qps || pds || cqs || channels || tds || dms) {
		const struct vb_why_count left[] = {{"queue pair", qps},
						    {"protection domain", pds},
						    {"CQ", cqs},
						    {"completion channel", channels},
						    {"thread domain", tds},
						    {"piece of device memory", dms}};

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

/* As if the device were not there: what a wrong name means cannot be guessed. */
static bool profile_known(void)
{
	const char *name = vb_profile_unknown();

	if (!name)
		return true;
	vb_refuse(EINVAL, "ibv_open_device", "VERBENA_PROFILE=%s is no profile; there are %s", name,
		  vb_profile_names());
	return false;
}

static int share(struct vb_hca **out, enum vb_open_step *step)
{
	int err = 0;

	handle_fork();
	pthread_mutex_lock(&lock);
	if (shared && !vb_adapter_whole(shared->adapter))
		shared = NULL;
	if (!shared)
		err = open_hca(&shared, step);
	if (!err) {
		((struct hca *)shared)->sharers++; /* pairs with unshare_hca() */
		*out = shared;
	}
	pthread_mutex_unlock(&lock);
	return err;
}

static void unshare_hca(struct vb_hca *h)
{
	pthread_mutex_lock(&lock);
	if (!--((struct hca *)h)->sharers) {
		if (h == shared)
			shared = NULL;
		vb_hca_close(h);
	}
	pthread_mutex_unlock(&lock);
}

int vb_device_open(struct ibv_device *ibdev, struct vb_context **out, const char *call)
{
	struct vb_device *dev = (struct vb_device *)ibdev;
	enum vb_open_step step = VB_OPEN_DESCRIPTORS;
	struct vb_hca *h = NULL;
	int err;

	if (!profile_known())
		return EINVAL;
	err = share(&h, &step);
	if (err)
		goto refused;
	err = vb_context_open(out, dev, h);
	if (err)
		goto unshare;
	atomic_fetch_add(&dev->refs, 1); /* pairs with ibv_close_device() */
	return 0;
unshare:
	unshare_hca(h);
refused:
	return vb_why_open(err, call, ibdev->name, step);
}

VB_EXPORT VB_OBJECT(struct ibv_context *, ibv_open_device, (ibdev), struct ibv_device *ibdev)
{
	struct vb_context *c;
	int err = vb_device_open(ibdev, &c, "ibv_open_device");

	if (!err)
		return &c->v.context;
	errno = err;
	return NULL;
}

/* As with other devices closing succeeds whatever is left, and what is left is stopped.  A context with
 * children keeps its memory and its descriptors, so that destroying them afterwards, or the mere fact that
 * the program forgot them, does no harm. */
VB_EXPORT VB_CODE(ibv_close_device, (context), struct ibv_context *context)
{
	struct vb_context *c = vb_context(context);
	struct vb_device *dev = c->dev;
	struct vb_hca *h;

	if (vb_context_dead(c))
		return 0;
	h = vb_hca(c->adapter);
	if (vb_context_close(c))
		return 0;
	vb_device_put(dev);
	unshare_hca(h);
	return 0;
}
