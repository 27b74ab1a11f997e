/* Open addressing with linear probing, in shards with a lock each.  An entry has the address inverted, so
 * that tools which look for leaks do not take it for a reference to the object. */
#include "obj/live.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/pages.h"

enum {
	FIRST = 32,			      /* places of a shard that are always there */
	PAGEFUL = VB_PAGE / sizeof(uint64_t), /* the next size; from there on it doubles */
	SPARSE = 32, /* of so many places fewer than one is used: the table shrinks */
};
#define ADDRESS VB_LIVE_ADDRESS

static uint64_t first[VB_LIVE_SHARDS][FIRST];
struct vb_live_shard vb_live_shards[VB_LIVE_SHARDS];

static const char *const names[VB_LIVE_KINDS] = {
    [VB_LIVE_CONTEXT] = "open device",
    [VB_LIVE_PD] = "protection domain",
    [VB_LIVE_MR] = "memory region",
    [VB_LIVE_MW] = "memory window",
    [VB_LIVE_AH] = "address handle",
    [VB_LIVE_CQ] = "completion queue",
    [VB_LIVE_QP] = "queue pair",
    [VB_LIVE_SRQ] = "shared receive queue",
    [VB_LIVE_CHANNEL] = "completion channel",
    [VB_LIVE_XRCD] = "XRC domain",
    [VB_LIVE_DM] = "piece of device memory",
    [VB_LIVE_TD] = "thread domain",
    [VB_LIVE_DMAH] = "DMA handle",
    [VB_LIVE_BUF] = "buffer",
    [VB_LIVE_CNTR] = "completion counter",
    [VB_LIVE_DEVICES] = "device list",
    [VB_LIVE_CM_ID] = "rdma_cm_id",
    [VB_LIVE_CM_CHANNEL] = "event channel",
    [VB_LIVE_CM_EVENT] = "event",
};

static uint64_t entry_of(const void *object, enum vb_live kind)
{
	return (~(uint64_t)(uintptr_t)object & ADDRESS) | (uint64_t)kind << VB_LIVE_KIND_SHIFT;
}

static uint64_t hash(uint64_t entry)
{
	return ((entry & ADDRESS) >> 3) * UINT64_C(0x9e3779b97f4a7c15);
}

static struct vb_live_shard *shard_of(uint64_t entry)
{
	return &vb_live_shards[hash(entry) >> (64 - VB_LIVE_SHARD_BITS)];
}

static uint32_t home(const struct vb_live_shard *s, uint64_t entry)
{
	return (uint32_t)(hash(entry) >> 20) & (s->size - 1);
}

/* Where the address stands, or the free place where it would.  Lock held. */
static uint32_t place_of(const struct vb_live_shard *s, uint64_t entry)
{
	uint32_t i = home(s, entry);

	while (s->places[i] && (s->places[i] ^ entry) & ADDRESS)
		i = (i + 1) & (s->size - 1);
	return i;
}

static void prepare(struct vb_live_shard *s)
{
	vb_lock_assert_held(&s->lock);
	if (s->places)
		return;
	s->places = first[s - vb_live_shards];
	s->size = FIRST;
}

static bool is_full(const struct vb_live_shard *s)
{
	return s->used >= s->size - s->size / 4;
}

static size_t bytes(uint32_t size)
{
	return size * sizeof(uint64_t);
}

/* Another number of places: FIRST, or as many as pages of their own have, which go back to the system.  Lock
 * held, but given back over what may block: others may have resized it meanwhile, even there and back.
 * Without memory it stays as it is. */
static void resize(struct vb_live_shard *s, uint32_t size)
{
	uint32_t before = s->size;
	uint64_t *places = first[s - vb_live_shards], *old = s->places;

	vb_lock_give(&s->lock);
	if (size != FIRST)
		places = mmap(NULL, bytes(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	vb_lock_take(&s->lock); /* given below */
	if (places != MAP_FAILED && s->places == old && s->size == before && s->used <= size - size / 4) {
		s->places = places;
		s->size = size;
		for (uint32_t i = 0; i < before; i++)
			if (old[i])
				places[place_of(s, old[i])] = old[i];
		places = old;
		size = before;
		if (size == FIRST)
			memset(old, 0, bytes(FIRST));
	}
	vb_lock_give(&s->lock);
	if (places != MAP_FAILED && size != FIRST) /* nobody's any more */
		munmap(places, bytes(size));
	vb_lock_take(&s->lock);
}

void vb_live_enter(const void *object, enum vb_live kind)
{
	uint64_t entry = entry_of(object, kind);
	struct vb_live_shard *s = shard_of(entry);
	uint32_t i;

	vb_lock_take(&s->lock); /* given below */
	prepare(s);
	if (vb_unlikely(is_full(s)))
		resize(s, s->size == FIRST ? PAGEFUL : s->size * 2);
	i = place_of(s, entry);
	if (s->places[i]) {
		s->places[i] = entry;
	} else if (s->used + 1 < s->size) { /* a free place stays: probing ends there */
		s->places[i] = entry;
		s->used++;
	} else {
		s->incomplete = true;
	}
	vb_lock_give(&s->lock);
}

/* Entries behind it that could not be found past a free place move up.  Lock held. */
static void take_out(struct vb_live_shard *s, uint32_t hole)
{
	uint32_t mask = s->size - 1;

	for (uint32_t i = (hole + 1) & mask; s->places[i]; i = (i + 1) & mask)
		if (((i - home(s, s->places[i])) & mask) >= ((i - hole) & mask)) {
			s->places[hole] = s->places[i];
			hole = i;
		}
	s->places[hole] = 0;
	s->used--;
}

/* What the object is.  `kind` where that cannot be told. */
static enum vb_live look(const void *object, enum vb_live kind, bool leave)
{
	uint64_t entry = entry_of(object, kind);
	struct vb_live_shard *s = shard_of(entry);
	enum vb_live found;
	uint32_t i;

	vb_lock_take(&s->lock); /* given below */
	prepare(s);
	i = place_of(s, entry);
	found = (enum vb_live)(s->places[i] >> VB_LIVE_KIND_SHIFT);
	if (leave && found == kind) {
		take_out(s, i);
		if (vb_unlikely(s->size != FIRST && s->used < s->size / SPARSE))
			resize(s, s->size == PAGEFUL ? FIRST : s->size / 2);
	}
	if (!found && s->incomplete)
		found = kind;
	vb_lock_give(&s->lock);
	return found;
}

bool vb_live_is(const void *object, enum vb_live kind)
{
	return object && look(object, kind, false) == kind;
}

static int refuse(const char *call, const void *object, enum vb_live kind, enum vb_live found)
{
	if (!object)
		return vb_refuse(EINVAL, call, "the %s is NULL; did the call that creates it fail?",
				 names[kind]);
	if (found)
		return vb_refuse(EINVAL, call,
				 "the object at %p is not a %s: it is another kind of object, %s", object,
				 names[kind], names[found]);
	return vb_refuse(EINVAL, call, "there is no %s at %p: it was %s before, or the pointer is wrong",
			 names[kind], object, kind == VB_LIVE_CONTEXT ? "closed" : "destroyed");
}

static int find(const char *call, const void *object, enum vb_live kind, bool leave)
{
	enum vb_live found = object ? look(object, kind, leave) : VB_LIVE_NONE;

	return vb_likely(found == kind) ? 0 : refuse(call, object, kind, found);
}

int vb_live_leave(const char *call, const void *object, enum vb_live kind)
{
	return find(call, object, kind, true);
}

int vb_live_check(const char *call, const void *object, enum vb_live kind)
{
	return find(call, object, kind, false);
}

static void before_fork(void)
{
	for (unsigned i = 0; i < VB_LIVE_SHARDS; i++)
		vb_lock_take(&vb_live_shards[i].lock); /* given below */
}

static void after_fork(void)
{
	for (unsigned i = 0; i < VB_LIVE_SHARDS; i++)
		vb_lock_give(&vb_live_shards[i].lock);
}

/* Before any call: device lists and identifiers enter long before a device is opened, where the other
 * handlers are registered.  fork() takes the locks of the first registered last: these are leaves. */
static __attribute__((constructor)) void handle_fork(void)
{
	pthread_atfork(before_fork, after_fork, after_fork);
}
