#include "cm/numbers.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/debug.h"
#include "cm/conn.h"

enum { ROOM_MIN = 64 };

/* Spreads all bits of the keys over the lowest, differently for each seed (the finalizer of splitmix64). */
static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static bool has_guid(enum vb_cm_key key)
{
	return key != VB_CM_BY_ID && key != VB_CM_BY_QPN;
}

static uint32_t number_of(const struct vb_cm_num *num, enum vb_cm_key key)
{
	switch (key) {
	case VB_CM_BY_ID:
		return num->local_id;
	case VB_CM_BY_QPN:
		return num->local_qpn;
	case VB_CM_BY_REMOTE_QPN:
		return num->remote_qpn;
	default:
		return num->remote_id;
	}
}

static uint32_t *head(const struct vb_cm_numbers *n, enum vb_cm_key key, uint64_t guid, uint32_t number)
{
	uint64_t h = mix(n->seed ^ number ^ (uint64_t)key << 32);

	if (has_guid(key))
		h = mix(h ^ guid);
	return &n->heads[(size_t)key * n->room + (h & (n->room - 1))];
}

void vb_cm_numbers_init(struct vb_cm_numbers *n, uint64_t seed)
{
	*n = (struct vb_cm_numbers){.seed = seed, .free = VB_CM_NONE};
}

void vb_cm_numbers_fini(struct vb_cm_numbers *n)
{
	free(n->of);
	free(n->heads);
	free(n->heap);
	vb_cm_numbers_init(n, n->seed);
}

/* Moves all lines into tables with that room; false: no memory, and all is as it was. */
static bool rebuild(struct vb_cm_numbers *n, uint32_t room)
{
	struct vb_cm_numbers fresh = {.room = room, .seed = n->seed, .free = VB_CM_NONE};
	uint32_t to = 0;

	fresh.of = calloc(room, sizeof(*fresh.of));
	fresh.heads = malloc(sizeof(*fresh.heads) * VB_CM_KEYS * room);
	fresh.heap = malloc(sizeof(*fresh.heap) * room); /* vb_cm_numbers_fini() has all three */
	if (!fresh.of || !fresh.heads || !fresh.heap) {
		vb_cm_numbers_fini(&fresh);
		return false;
	}
	memset(fresh.heads, 0xff, sizeof(*fresh.heads) * VB_CM_KEYS * room);
	for (uint32_t i = 0; i < n->room; i++) {
		struct vb_cm_num *num = &fresh.of[to];
		uint64_t due = n->of[i].due;
		uint8_t keyed = n->of[i].keyed;

		if (!n->of[i].used)
			continue;
		*num = n->of[i];
		num->keyed = 0;
		num->heap_at = VB_CM_NONE;
		for (unsigned k = 0; k < VB_CM_KEYS; k++)
			if (keyed >> k & 1)
				vb_cm_num_key(&fresh, to, k);
		vb_cm_num_due(&fresh, to, due);
		if (num->conn)
			num->conn->inner->slot = to;
		to++;
	}
	fresh.used = to;
	for (uint32_t i = room; i-- > to;) {
		fresh.of[i].next[0] = fresh.free;
		fresh.free = i;
	}
	vb_cm_numbers_fini(n);
	*n = fresh;
	return true;
}

uint32_t vb_cm_num_take(struct vb_cm_numbers *n, struct vb_cm_conn *conn, uint32_t local_id)
{
	struct vb_cm_num *num;
	uint32_t slot;

	if (n->free == VB_CM_NONE && !rebuild(n, n->room ? 2 * n->room : ROOM_MIN))
		return VB_CM_NONE;
	slot = n->free;
	num = &n->of[slot];
	n->free = num->next[0];
	n->used++;
	*num = (struct vb_cm_num){
	    .conn = conn, .local_id = local_id, .due = VB_NEVER, .heap_at = VB_CM_NONE, .used = 1};
	vb_cm_num_key(n, slot, VB_CM_BY_ID);
	return slot;
}

void vb_cm_num_drop(struct vb_cm_numbers *n, uint32_t slot)
{
	struct vb_cm_num *num = &n->of[slot];

	vb_assert(num->used);
	vb_cm_num_due(n, slot, VB_NEVER);
	for (unsigned k = 0; k < VB_CM_KEYS; k++)
		vb_cm_num_unkey(n, slot, k);
	num->used = 0;
	num->conn = NULL;
	num->next[0] = n->free;
	n->free = slot;
	n->used--;
	/* What is left of a crowd is moved together; without memory for that it stays as it is. */
	if (n->room > ROOM_MIN && n->used <= n->room / 8)
		rebuild(n, n->room / 2);
}

void vb_cm_num_key(struct vb_cm_numbers *n, uint32_t slot, enum vb_cm_key key)
{
	struct vb_cm_num *num = &n->of[slot];
	uint32_t *h;

	if (num->keyed >> key & 1)
		return;
	h = head(n, key, num->guid, number_of(num, key));
	num->next[key] = *h;
	*h = slot;
	num->keyed |= (uint8_t)(1u << key);
}

void vb_cm_num_unkey(struct vb_cm_numbers *n, uint32_t slot, enum vb_cm_key key)
{
	struct vb_cm_num *num = &n->of[slot];
	uint32_t *at;

	if (!(num->keyed >> key & 1))
		return;
	for (at = head(n, key, num->guid, number_of(num, key)); *at != slot; at = &n->of[*at].next[key])
		vb_assert(*at != VB_CM_NONE);
	*at = num->next[key];
	num->keyed &= (uint8_t) ~(1u << key);
}

static uint32_t same(const struct vb_cm_numbers *n, enum vb_cm_key key, uint64_t guid, uint32_t number,
		     uint32_t slot)
{
	for (; slot != VB_CM_NONE; slot = n->of[slot].next[key]) {
		const struct vb_cm_num *num = &n->of[slot];

		if (number_of(num, key) == number && (!has_guid(key) || num->guid == guid))
			break;
	}
	return slot;
}

uint32_t vb_cm_num_find(const struct vb_cm_numbers *n, enum vb_cm_key key, uint64_t guid, uint32_t number)
{
	return n->room ? same(n, key, guid, number, *head(n, key, guid, number)) : VB_CM_NONE;
}

uint32_t vb_cm_num_more(const struct vb_cm_numbers *n, enum vb_cm_key key, uint32_t slot)
{
	const struct vb_cm_num *num = &n->of[slot];

	return same(n, key, num->guid, number_of(num, key), num->next[key]);
}

static bool earlier(const struct vb_cm_numbers *n, uint32_t a, uint32_t b)
{
	return n->of[n->heap[a]].due < n->of[n->heap[b]].due;
}

static void exchange(struct vb_cm_numbers *n, uint32_t a, uint32_t b)
{
	uint32_t slot = n->heap[a];

	n->heap[a] = n->heap[b];
	n->heap[b] = slot;
	n->of[n->heap[a]].heap_at = a;
	n->of[n->heap[b]].heap_at = b;
}

/* Moves what stands at `at` to where it belongs. */
static void sift(struct vb_cm_numbers *n, uint32_t at)
{
	for (; at && earlier(n, at, (at - 1) / 2); at = (at - 1) / 2)
		exchange(n, at, (at - 1) / 2);
	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child + 1 < n->in_heap && earlier(n, child + 1, child))
			child++;
		if (child >= n->in_heap || !earlier(n, child, at))
			return;
		exchange(n, at, child);
		at = child;
	}
}

void vb_cm_num_due(struct vb_cm_numbers *n, uint32_t slot, uint64_t due)
{
	struct vb_cm_num *num = &n->of[slot];
	uint32_t at = num->heap_at;

	num->due = due;
	if (due == VB_NEVER) {
		if (at == VB_CM_NONE)
			return;
		exchange(n, at, --n->in_heap);
		num->heap_at = VB_CM_NONE;
		if (at < n->in_heap)
			sift(n, at);
		return;
	}
	if (at == VB_CM_NONE) {
		at = num->heap_at = n->in_heap++;
		n->heap[at] = slot;
	}
	sift(n, at);
}
