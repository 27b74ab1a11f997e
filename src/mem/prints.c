#include "mem/prints.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "base/lock.h"
#include "base/ranges.h"
#include "mem/copy.h"

enum { CHUNK = 4096, UNKNOWN = 0 };

struct vb_print {
	struct vb_range on_all;
	uintptr_t at;
	size_t len;
	uint32_t users;
	const void *owner; /* NULL: its first user is no more */
	union {
		uint8_t copy[VB_PRINT_COPY]; /* len */
		uint32_t hashes[1];	     /* a block each; UNKNOWN: it is not compared */
	};
};

struct range {
	uintptr_t from, to;
};

static struct vb_range *prints;
static uint64_t used;	     /* bytes */
static struct range *writes; /* what the adapter is writing now: not compared, and taken anew afterwards */
static uint32_t nwrites, room;

static struct vb_print *print_of(struct vb_range *r)
{
	return vb_containerof(r, struct vb_print, on_all);
}

static bool is_copied(size_t len)
{
	return len <= VB_PRINT_COPY;
}

static size_t blocks(size_t len)
{
	return (len + VB_PRINT_BLOCK - 1) / VB_PRINT_BLOCK;
}

static size_t size_of(size_t len)
{
	return offsetof(struct vb_print, copy) + (is_copied(len) ? len : blocks(len) * sizeof(uint32_t));
}

static size_t block_length(const struct vb_print *p, size_t block)
{
	size_t from = block * VB_PRINT_BLOCK;

	return p->len - from < VB_PRINT_BLOCK ? p->len - from : VB_PRINT_BLOCK;
}

/* false: it cannot be read. */
static bool hash(const struct vb_print *p, size_t block, uint32_t *to)
{
	size_t n = block_length(p, block), done = 0;
	uint8_t chunk[CHUNK];

	for (*to = 0; done < n;) {
		size_t part = n - done < CHUNK ? n - done : CHUNK;

		if (!vb_copy_from_app(chunk, (const uint8_t *)p->at + block * VB_PRINT_BLOCK + done, part))
			return false;
		*to = vb_crc(*to, chunk, part);
		done += part;
	}
	return true;
}

/* Takes all of it as it is now. */
static bool take(struct vb_print *p)
{
	if (is_copied(p->len))
		return vb_copy_from_app(p->copy, (const uint8_t *)p->at, p->len);
	for (size_t b = 0; b < blocks(p->len); b++)
		if (!hash(p, b, &p->hashes[b]))
			return false;
	return true;
}

/* The adapter has written [from, to).  A block would have to be hashed for each packet that comes, so it is
 * known no more. */
static void take_written(struct vb_print *p, size_t from, size_t to)
{
	if (is_copied(p->len))
		(void)vb_copy_from_app(p->copy + from, (const uint8_t *)p->at + from, to - from);
	else
		for (size_t b = from / VB_PRINT_BLOCK; b < blocks(to); b++)
			p->hashes[b] = UNKNOWN;
}

static struct vb_print *find(uintptr_t at, size_t len)
{
	struct vb_range *r = vb_ranges_same(prints, at, at + len);

	return r ? print_of(r) : NULL;
}

static struct vb_print *make(uintptr_t at, size_t len, const void *owner)
{
	struct vb_print *p;

	if (used + size_of(len) > VB_PRINTS_MOST)
		return NULL;
	p = malloc(size_of(len));
	if (!p)
		return NULL;
	p->at = at;
	p->len = len;
	p->users = 0;
	p->owner = owner;
	if (!take(p)) {
		free(p);
		return NULL;
	}
	p->on_all.from = at;
	p->on_all.to = at + len;
	vb_ranges_add(&prints, &p->on_all);
	used += size_of(len);
	return p;
}

struct vb_print *vb_print_take(uintptr_t at, size_t len, const void *owner, vb_print_changed_fn *changed)
{
	struct vb_print_change c;
	struct vb_print *p;

	if (len > VB_PRINT_MOST)
		len = VB_PRINT_MOST;
	if (!len || at + len < at)
		return NULL;
	p = find(at, len);
	if (p) {
		c = vb_print_look(p); /* what was changed until now is no fault of this user */
		if (c.found == VB_PRINT_CHANGED && p->owner)
			changed(p->owner, p, &c);
	} else {
		p = make(at, len, owner);
	}
	if (p)
		p->users++;
	return p;
}

void vb_print_drop(struct vb_print *p, const void *owner)
{
	if (p->owner == owner)
		p->owner = NULL;
	if (--p->users)
		return;
	vb_ranges_remove(&prints, &p->on_all);
	used -= size_of(p->len);
	free(p);
}

/* The first range in [from, to) of p that the adapter writes now; false: none, and it is empty at `to`. */
static bool next_write(const struct vb_print *p, size_t from, size_t to, struct range *r)
{
	bool any = false;

	*r = (struct range){to, to};
	for (uint32_t i = 0; i < nwrites; i++) {
		size_t a = writes[i].from > p->at ? writes[i].from - p->at : 0;
		size_t b = writes[i].to > p->at ? writes[i].to - p->at : 0;

		a = a > from ? a : from;
		if (b <= a || a >= r->from)
			continue;
		*r = (struct range){a, b < to ? b : to};
		any = true;
	}
	return any;
}

/* Compares [from, to), which nobody writes.  false: it cannot be read. */
static bool compare_bytes(struct vb_print *p, size_t from, size_t to, struct vb_print_change *c)
{
	uint8_t chunk[CHUNK];

	while (from < to) {
		size_t n = to - from < CHUNK ? to - from : CHUNK;
		bool same;

		if (!vb_copy_from_app(chunk, (const uint8_t *)p->at + from, n))
			return false;
		same = !memcmp(chunk, p->copy + from, n);
		for (size_t i = 0; !same && i < n; i++) {
			if (chunk[i] == p->copy[from + i])
				continue;
			if (c->found == VB_PRINT_SAME)
				*c = (struct vb_print_change){VB_PRINT_CHANGED,	 from + i, 0, false,
							      p->copy[from + i], chunk[i]};
			c->to = from + i + 1;
			p->copy[from + i] = chunk[i];
		}
		from += n;
	}
	return true;
}

static bool compare_copy(struct vb_print *p, size_t from, size_t to, struct vb_print_change *c)
{
	struct range skip;

	while (next_write(p, from, to, &skip)) {
		if (!compare_bytes(p, from, skip.from, c))
			return false;
		from = skip.to;
	}
	return compare_bytes(p, from, to, c);
}

static bool compare_blocks(struct vb_print *p, struct vb_print_change *c)
{
	for (size_t b = 0; b < blocks(p->len); b++) {
		size_t from = b * VB_PRINT_BLOCK;
		struct range skip;
		uint32_t now;

		if (p->hashes[b] == UNKNOWN || next_write(p, from, from + block_length(p, b), &skip))
			continue;
		if (!hash(p, b, &now))
			return false;
		if (now == p->hashes[b])
			continue;
		if (c->found == VB_PRINT_SAME)
			*c = (struct vb_print_change){.found = VB_PRINT_CHANGED, .from = from, .block = true};
		c->to = from + block_length(p, b);
		p->hashes[b] = now;
	}
	return true;
}

struct vb_print_change vb_print_look(struct vb_print *p)
{
	struct vb_print_change c = {.found = VB_PRINT_SAME};

	if (!(is_copied(p->len) ? compare_copy(p, 0, p->len, &c) : compare_blocks(p, &c)))
		c.found = VB_PRINT_GONE;
	return c;
}

/* The part of p's range that [at, at + len), which overlaps it, is in. */
static void part_of(const struct vb_print *p, uintptr_t at, size_t len, size_t *from, size_t *to)
{
	*from = at > p->at ? at - p->at : 0;
	*to = at + len < p->at + p->len ? at + len - p->at : p->len;
}

/* Room for one more write. */
static bool grow(void)
{
	struct range *more;

	if (nwrites < room)
		return true;
	more = realloc(writes, sizeof(*more) * (room + 64) * 2);
	if (!more)
		return false;
	writes = more;
	room = (room + 64) * 2;
	return true;
}

void vb_prints_write(uintptr_t at, size_t len, vb_print_changed_fn *changed)
{
	struct vb_print_change c;
	size_t from, to;

	vb_ranges_each (r, prints, at, at + len) {
		struct vb_print *p = print_of(r);

		if (!p->owner || !is_copied(p->len))
			continue;
		part_of(p, at, len, &from, &to);
		c = (struct vb_print_change){.found = VB_PRINT_SAME};
		if (compare_copy(p, from, to, &c) && c.found == VB_PRINT_CHANGED)
			changed(p->owner, p, &c);
	}
	if (grow())
		writes[nwrites++] = (struct range){at, at + len};
}

void vb_prints_written(uintptr_t at, size_t len)
{
	size_t from, to;

	for (uint32_t i = 0; i < nwrites; i++) {
		if (writes[i].from != at || writes[i].to != at + len)
			continue;
		writes[i] = writes[--nwrites];
		break;
	}
	vb_ranges_each (r, prints, at, at + len) {
		part_of(print_of(r), at, len, &from, &to);
		take_written(print_of(r), from, to);
	}
}

void vb_prints_forget(void)
{
	prints = NULL;
	writes = NULL;
	room = nwrites = 0;
	used = 0;
}
