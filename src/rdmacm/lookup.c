/* rdma_resolve_addrinfo(3), rdma_query_addrinfo(3), rdma_write_cm_event(3): newer calls (RDMACM_1.4).
 *
 * Names are looked up by a thread of its own, since the C library's getaddrinfo(3) may take long.  Thread and
 * id share the lookup: the id may be destroyed before the answer comes, and then nobody hears of it. */
#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "rdmacm/call.h"
#include "rdmacm/rdmacm.h"

struct vb_rdma_lookup {
	pthread_mutex_t lock; /* guards the following */
	int holders;
	bool done;
	struct vb_rdma_id *id; /* NULL: nobody wants the answer */
	struct rdma_addrinfo *found;
	/* The thread's alone: */
	char *node, *service;
	struct rdma_addrinfo *hints;
};

int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t arg);

static void free_lookup(struct vb_rdma_lookup *l)
{
	vb_rdma_addrinfo_free(l->found);
	vb_rdma_addrinfo_free(l->hints);
	free(l->node);
	free(l->service);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

static void release(struct vb_rdma_lookup *l)
{
	bool last;

	pthread_mutex_lock(&l->lock);
	last = !--l->holders;
	pthread_mutex_unlock(&l->lock);
	if (last)
		free_lookup(l);
}

/* The event's status is a negative errno; the library's codes are none. */
static int status_of(int code, int err)
{
	switch (code) {
	case 0:
		return 0;
	case -1: /* which is EAI_BADFLAGS, too */
		return err ? -err : -EINVAL;
	case EAI_SYSTEM:
		return err ? -err : -EIO;
	case EAI_MEMORY:
		return -ENOMEM;
	case EAI_AGAIN:
		return -EAGAIN;
	case EAI_FAMILY:
		return -EAFNOSUPPORT;
	case EAI_SOCKTYPE:
	case EAI_SERVICE:
		return -EPROTONOSUPPORT;
	default: /* no such name, no such address */
		return -ENODATA;
	}
}

static void *look_up(void *argument)
{
	struct vb_rdma_lookup *l = argument;
	struct rdma_addrinfo *found = NULL;
	int err = 0, code;

	vb_cm_call_begin("rdma_resolve_addrinfo");
	code = vb_rdma_addrinfo_find(l->node, l->service, l->hints, &found, &err);
	pthread_mutex_lock(&l->lock);
	l->done = true;
	l->found = found;
	if (l->id && vb_cm_id_write(l->id->cm,
				    (enum rdma_cm_event_type)(code ? VB_RDMA_EVENT_ADDRINFO_ERROR
								   : VB_RDMA_EVENT_ADDRINFO_RESOLVED),
				    status_of(code, err), 0))
		vb_cm_refuse(ENOMEM, "rdma_resolve_addrinfo",
			     "out of memory for the event: the result of the lookup is lost");
	pthread_mutex_unlock(&l->lock);
	release(l);
	vb_cm_call_end();
	return NULL;
}

/* A detached thread in which no signal of the program's is handled. */
static int start(struct vb_rdma_lookup *l)
{
	sigset_t all, before;
	pthread_attr_t attr;
	pthread_t thread;
	int err = pthread_attr_init(&attr);

	if (err)
		return err;
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&thread, &attr, look_up, l);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return err;
}

static struct vb_rdma_lookup *make(struct vb_rdma_id *p, const char *node, const char *service,
				   const struct rdma_addrinfo *hints)
{
	struct vb_rdma_lookup *l = calloc(1, sizeof *l);

	if (!l)
		return NULL;
	pthread_mutex_init(&l->lock, NULL);
	l->holders = 1;
	l->id = p;
	l->node = node ? strdup(node) : NULL;
	l->service = service ? strdup(service) : NULL;
	l->hints = hints ? vb_rdma_addrinfo_copy(hints) : NULL;
	if ((node && !l->node) || (service && !l->service) || (hints && !l->hints)) {
		free_lookup(l);
		return NULL;
	}
	return l;
}

void vb_rdma_lookup_end(struct vb_rdma_id *p)
{
	struct vb_rdma_lookup *l = p->lookup;

	/* In a forked child the thread is not there, and may have left the lock locked. */
	if (!l || p->forks != vb_rdma_forks())
		return;
	p->lookup = NULL;
	pthread_mutex_lock(&l->lock);
	l->id = NULL;
	pthread_mutex_unlock(&l->lock);
	release(l);
}

static int check(const char *call, const struct vb_rdma_id *p, const char *node, const char *service,
		 const struct rdma_addrinfo *hints)
{
	int flags = hints ? hints->ai_flags : 0;

	if (p->forks != vb_rdma_forks())
		return vb_cm_refuse(EIO, call, VB_CM_ID_OF_PARENT);
	if ((flags & VB_RDMA_RAI_SA) && (flags & VB_RDMA_RAI_DNS))
		return vb_cm_refuse(EINVAL, call, "RAI_SA and RAI_DNS exclude each other");
	if (flags & VB_RDMA_RAI_SA)
		return vb_cm_refuse(EOPNOTSUPP, call,
				    "RAI_SA is not supported: there is no subnet administrator");
	if (!node && !service && !hints)
		return vb_cm_refuse(EINVAL, call, VB_RDMA_NO_QUESTION);
	return 0;
}

static bool busy(struct vb_rdma_lookup *l)
{
	bool done;

	if (!l)
		return false;
	pthread_mutex_lock(&l->lock);
	done = l->done;
	pthread_mutex_unlock(&l->lock);
	return !done;
}

VB_EXPORT VB_RDMA_CALL(rdma_resolve_addrinfo, (id, node, service, hints), struct rdma_cm_id *id,
		       const char *node, const char *service, const struct rdma_addrinfo *hints)
{
	static const char call[] = "rdma_resolve_addrinfo";
	struct vb_rdma_id *p = vb_rdma_id(id);
	bool sync = p->sync;
	struct vb_rdma_lookup *l;
	int err = check(call, p, node, service, hints);

	if (err)
		return err;
	if (busy(p->lookup))
		return vb_cm_refuse(EBUSY, call,
				    "the id's previous lookup is still running; wait for its event");
	l = make(p, node, service, hints);
	if (!l)
		return ENOMEM;
	vb_rdma_lookup_end(p);
	p->lookup = l;
	l->holders++; /* the thread's, which is not there yet */
	err = start(l);
	if (err) {
		l->holders--;
		vb_rdma_lookup_end(p);
		return err;
	}
	return vb_rdma_id_complete(p, sync);
}

VB_EXPORT VB_RDMA_CALL(rdma_query_addrinfo, (id, info), struct rdma_cm_id *id, struct rdma_addrinfo **info)
{
	struct vb_rdma_id *p = vb_rdma_id(id);
	struct vb_rdma_lookup *l = p->lookup;
	int err = 0;

	if (p->forks != vb_rdma_forks())
		return vb_cm_refuse(EIO, "rdma_query_addrinfo", VB_CM_ID_OF_PARENT);
	if (!l)
		return vb_cm_refuse(ENODATA, "rdma_query_addrinfo",
				    "the id has no lookup; first call rdma_resolve_addrinfo()");
	pthread_mutex_lock(&l->lock);
	if (l->found) {
		*info = vb_rdma_addrinfo_copy(l->found);
		err = *info ? 0 : ENOMEM;
	} else {
		err = vb_cm_refuse(ENODATA, "rdma_query_addrinfo",
				   l->done ? "the lookup found nothing"
					   : "the lookup is still running; wait for its event");
	}
	pthread_mutex_unlock(&l->lock);
	return err;
}

VB_EXPORT VB_RDMA_CALL(rdma_write_cm_event, (id, event, status, arg), struct rdma_cm_id *id,
		       enum rdma_cm_event_type event, int status, uint64_t arg)
{
	char name[24];

	if ((unsigned)event != VB_RDMA_EVENT_USER)
		return vb_cm_refuse(EINVAL, "rdma_write_cm_event",
				    "%s is not allowed: a program may write only RDMA_CM_EVENT_USER",
				    vb_rdma_event_name(event, name));
	return vb_cm_id_write(vb_rdma_id(id)->cm, event, status, arg);
}
