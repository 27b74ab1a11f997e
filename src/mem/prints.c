#include "mem/prints.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "mem/copy.h"

enum { CHUNK = 4096, UNKNOWN = 0 };

struct vb_print {
	uintptr_t at;
	size_t len;
	uint32_t index; /* in `prints` */
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

static struct vb_print **prints;
static uint32_t nprints, room;
static uint64_t used;	     /* bytes */
static struct range *writes; /* what the adapter is writing now: not compared, and taken anew afterwards */
static uint32_t nwrites, writes_room;

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
	for (uint32_t i = 0; i < nprints; i++)
		if (prints[i]->at == at && prints[i]->len == len)
			return prints[i];
	return NULL;
}

/* Room for one more entry of an array. */
static bool grow(void **array, size_t size, uint32_t n, uint32_t *has)
{
	void *more;

	if (n < *has)
		return true;
	more = realloc(*array, size * (*has + 64) * 2);
	if (!more)
		return false;
	*array = more;
	*has = (*has + 64) * 2;
	return true;
}

static struct vb_print *make(uintptr_t at, size_t len, const void *owner)
{
	struct vb_print *p;

	if (used + size_of(len) > VB_PRINTS_MOST || !grow((void **)&prints, sizeof(*prints), nprints, &room))
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
	p->index = nprints;
	prints[nprints++] = p;
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
	prints[p->index] = prints[--nprints];
	prints[p->index]->index = p->index;
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

/* The part of p's range that [at, at + len) is in; false: none. */
static bool part_of(const struct vb_print *p, uintptr_t at, size_t len, size_t *from, size_t *to)
{
	if (at >= p->at + p->len || p->at >= at + len)
		return false;
	*from = at > p->at ? at - p->at : 0;
	*to = at + len < p->at + p->len ? at + len - p->at : p->len;
	return true;
}

void vb_prints_write(uintptr_t at, size_t len, vb_print_changed_fn *changed)
{
	struct vb_print_change c;
	size_t from, to;

	for (uint32_t i = 0; i < nprints; i++) {
		struct vb_print *p = prints[i];

		if (!p->owner || !is_copied(p->len) || !part_of(p, at, len, &from, &to))
			continue;
		c = (struct vb_print_change){.found = VB_PRINT_SAME};
		if (compare_copy(p, from, to, &c) && c.found == VB_PRINT_CHANGED)
			changed(p->owner, p, &c);
	}
	if (grow((void **)&writes, sizeof(*writes), nwrites, &writes_room))
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
	for (uint32_t i = 0; i < nprints; i++)
		if (part_of(prints[i], at, len, &from, &to))
			take_written(prints[i], from, to);
}

void vb_prints_forget(void)
{
	prints = NULL;
	writes = NULL;
	nprints = room = nwrites = writes_room = 0;
	used = 0;
}
