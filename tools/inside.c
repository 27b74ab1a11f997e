#include "inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "hca/roots.h"
#include "host/segment.h"
#include "iba/grh.h"
#include "obj/live.h"

enum { MOST_PLACES = 1 << 24 }; /* of a shard; more is rubbish */

bool vb_inside_get(const struct vb_inside *in, const void *there, void *here, size_t len)
{
	struct iovec to = {here, len}, from = {(void *)(uintptr_t)there, len};

	return process_vm_readv(in->pid, &to, 1, &from, 1, 0) == (ssize_t)len;
}

/* Copies an object, whose address stands before it, to the end of an array of pointers; what cannot be copied
 * has ended meanwhile. */
static void add(const struct vb_inside *in, void *array, size_t *n, size_t size, uint64_t at)
{
	void **all = *(void ***)array, *entry;

	if (!(*n & (*n - 1))) { /* full, or empty */
		all = realloc(all, (*n ? 2 * *n : 1) * sizeof(*all));
		if (!all)
			return;
		*(void ***)array = all;
	}
	entry = aligned_alloc(VB_LINE, VB_LINE + ((size + VB_LINE - 1) & ~(size_t)(VB_LINE - 1)));
	if (!entry)
		return;
	memcpy(entry, &at, sizeof(at));
	if (vb_inside_get(in, (const void *)(uintptr_t)at, (uint8_t *)entry + VB_LINE, size))
		all[(*n)++] = entry;
	else
		free(entry);
}

static void take_in(struct vb_inside *in, uint64_t entry)
{
	uint64_t at = vb_live_address(entry);

	switch (vb_live_kind(entry)) {
	case VB_LIVE_QP:
		add(in, &in->qps, &in->nqps, sizeof(struct vb_qp), at);
		break;
	case VB_LIVE_CQ:
		add(in, &in->cqs, &in->ncqs, sizeof(struct vb_cq), at);
		break;
	case VB_LIVE_SRQ:
		add(in, &in->srqs, &in->nsrqs, sizeof(struct vb_srq), at);
		break;
	case VB_LIVE_CHANNEL:
		add(in, &in->channels, &in->nchannels, sizeof(struct vb_channel), at);
		break;
	default:
		break;
	}
}

static void read_shard(struct vb_inside *in, const struct vb_live_shard *s)
{
	uint64_t *places;

	if (!s->used || s->size > MOST_PLACES)
		return;
	places = malloc(s->size * sizeof(*places));
	if (places && vb_inside_get(in, s->places, places, s->size * sizeof(*places)))
		for (uint32_t i = 0; i < s->size; i++)
			if (places[i])
				take_in(in, places[i]);
	free(places);
}

static bool thread_exists(pid_t pid, uint32_t tid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task/%u", (int)pid, tid);
	return !access(path, F_OK);
}

static void read_waitings(struct vb_inside *in, const struct vb_roots *r)
{
	struct vb_waiting *all = malloc(VB_WAITINGS * sizeof(*all));

	if (!all ||
	    !vb_inside_get(in, (const void *)(uintptr_t)r->waitings, all, VB_WAITINGS * sizeof(*all))) {
		free(all);
		return;
	}
	for (uint32_t i = 0; i < VB_WAITINGS; i++)
		if (atomic_load(&all[i].tid) && all[i].what && all[i].what < VB_WAITING_KINDS &&
		    thread_exists(in->pid, atomic_load(&all[i].tid)))
			all[in->nwaitings++] = all[i];
	in->waitings = all;
}

static int by_number(const void *a, const void *b)
{
	const struct vb_inside_qp *x = *(struct vb_inside_qp *const *)a,
				  *y = *(struct vb_inside_qp *const *)b;

	return (x->qp.qpn > y->qp.qpn) - (x->qp.qpn < y->qp.qpn);
}

/* Each begins with its address there. */
static int by_address(const void *a, const void *b)
{
	const uint64_t *x = *(uint64_t *const *)a, *y = *(uint64_t *const *)b;

	return (*x > *y) - (*x < *y);
}

static void sort(void *array, size_t n, int (*by)(const void *, const void *))
{
	if (n)
		qsort(array, n, sizeof(void *), by);
}

static void read_all(struct vb_inside *in, const struct vb_roots *r)
{
	struct vb_live_shard shards[VB_LIVE_SHARDS];

	if (!vb_inside_get(in, (const void *)(uintptr_t)r->live, shards, sizeof(shards)))
		return;
	for (unsigned i = 0; i < VB_LIVE_SHARDS; i++)
		read_shard(in, &shards[i]);
	read_waitings(in, r);
	sort(in->qps, in->nqps, by_number);
	sort(in->cqs, in->ncqs, by_address);
	sort(in->srqs, in->nsrqs, by_address);
	sort(in->channels, in->nchannels, by_address);
}

void vb_inside_open(struct vb_inside *in, const struct peek *p)
{
	const struct vb_seg_head *h = (const void *)p->base;
	struct vb_roots r;

	*in = (struct vb_inside){.pid = p->pid, .now = vb_now()};
	errno = 0;
	if (!h->roots || !vb_inside_get(in, (const void *)(uintptr_t)h->roots, &r, sizeof(r))) {
		in->err = errno;
		in->state = errno == ESRCH					   ? VB_INSIDE_GONE
			    : errno == EPERM || errno == ENOSYS || errno == EACCES ? VB_INSIDE_DENIED
										   : VB_INSIDE_BUILD;
		return;
	}
	if (r.layout != vb_roots.layout) {
		in->state = VB_INSIDE_BUILD;
		return;
	}
	read_all(in, &r);
}

static void free_list(void *array, size_t n)
{
	void **all = array;

	for (size_t i = 0; i < n; i++)
		free(all[i]);
	free(all);
}

void vb_inside_close(struct vb_inside *in)
{
	free_list(in->qps, in->nqps);
	free_list(in->cqs, in->ncqs);
	free_list(in->srqs, in->nsrqs);
	free_list(in->channels, in->nchannels);
	free(in->waitings);
	*in = (struct vb_inside){0};
}

const struct vb_inside_cq *vb_inside_find_cq(const struct vb_inside *in, const void *at)
{
	for (size_t i = 0; at && i < in->ncqs; i++)
		if (in->cqs[i]->at == (uint64_t)(uintptr_t)at)
			return in->cqs[i];
	return NULL;
}

const struct vb_inside_srq *vb_inside_find_srq(const struct vb_inside *in, const void *at)
{
	for (size_t i = 0; at && i < in->nsrqs; i++)
		if (in->srqs[i]->at == (uint64_t)(uintptr_t)at)
			return in->srqs[i];
	return NULL;
}

const struct vb_inside_channel *vb_inside_find_channel(const struct vb_inside *in, const void *at)
{
	for (size_t i = 0; at && i < in->nchannels; i++)
		if (in->channels[i]->at == (uint64_t)(uintptr_t)at)
			return in->channels[i];
	return NULL;
}

const struct vb_inside_qp *vb_inside_find_qp(const struct vb_inside *in, uint32_t qpn)
{
	for (size_t i = 0; i < in->nqps; i++)
		if (in->qps[i]->qp.qpn == qpn && !in->qps[i]->qp.of)
			return in->qps[i];
	return NULL;
}

const uint8_t *vb_inside_host(const struct vb_qp *qp)
{
	const struct ibv_ah_attr *av = &qp->attr.ah_attr;
	struct vb_gid gid = vb_gid_of(av->grh.dgid.raw);

	/* what comes from a process has its number there, which is no address */
	return qp->path.rxq && av->is_global && qp->path.source.high == gid.high &&
		       qp->path.source.low == gid.low
		   ? av->grh.dgid.raw
		   : NULL;
}
