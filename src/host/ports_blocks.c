/* Ephemeral ports: a process takes them in blocks, each one range of claims.  The first block of a process is
 * small, and each further one twice as large, so that many processes with few ports fit into the range as
 * well as few with many.  A block ends with its last port: nothing is kept in store. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/chance.h"
#include "base/lock.h"
#include "host/ports_priv.h"

enum { LOW = 32768, HIGH = 60999 }; /* where the kernel does not tell */

static struct vb_port_block *block_of(struct vb_list *n)
{
	return vb_list_entry(n, struct vb_port_block, node);
}

void vb_ephemeral_init(struct vb_ephemeral *e)
{
	FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
	unsigned low = LOW, high = HIGH;

	if (f) {
		if (fscanf(f, "%u %u", &low, &high) != 2 || !low || low > high || high >= VB_PORT_NUMBERS) {
			low = LOW;
			high = HIGH;
		}
		fclose(f);
	}
	e->low = low;
	e->high = high;
	for (int i = 0; i < VB_PORT_SPACES; i++) {
		vb_list_init(&e->space[i].open);
		vb_list_init(&e->space[i].full);
		/* processes that begin together do not meet */
		e->space[i].next = low + (uint32_t)vb_chance() % (high - low + 1);
	}
}

void vb_ephemeral_free(struct vb_ephemeral *e)
{
	struct vb_list *n;

	for (int i = 0; i < VB_PORT_SPACES; i++)
		while ((n = vb_list_pop(&e->space[i].open)) || (n = vb_list_pop(&e->space[i].full)))
			free(block_of(n));
}

bool vb_ephemeral_ours(const struct vb_ephemeral *e, int space, uint32_t port)
{
	return e->space[space].ours[port / 64] >> port % 64 & 1;
}

void vb_ephemeral_mark(struct vb_ephemeral *e, int space, uint32_t port, bool ours)
{
	uint64_t *word = &e->space[space].ours[port / 64], bit = 1ull << port % 64;

	*word = ours ? *word | bit : *word & ~bit;
}

/* The first port from `first` on, of `count`, that is ours, else the one behind the last. */
static uint32_t first_ours(const struct vb_ephemeral *e, int space, uint32_t first, uint32_t count)
{
	uint32_t port = first;

	while (port < first + count && !vb_ephemeral_ours(e, space, port))
		port++;
	return port;
}

/* Whether `count` ports are nobody's; where they are not, *behind is where to look next. */
static int look(const struct vb_ephemeral *e, const struct vb_registry *r, int space, uint32_t first,
		uint32_t count, uint32_t *behind)
{
	uint32_t mine = first_ours(e, space, first, count);
	struct vb_span found, all = vb_port_claims(space, first, count);
	uint64_t last = all.at + all.len - 1;
	int err;

	if (mine < first + count) {
		*behind = mine + 1;
		return EADDRINUSE;
	}
	err = vb_registry_others(r, all, &found);
	if (err == EADDRINUSE) {
		if (found.len && found.at + found.len - 1 < last)
			last = found.at + found.len - 1;
		*behind = vb_port_first(last) + 1;
	}
	return err;
}

/* The next `count` ports, all round the range, that are nobody's: 0, EADDRNOTAVAIL or errno. */
static int seek(struct vb_ephemeral *e, const struct vb_registry *r, int space, uint32_t count,
		uint32_t *first)
{
	uint32_t size = e->high - e->low + 1, from = e->space[space].next - e->low, gone = 0, behind;

	while (gone < size) {
		uint32_t at = (from + gone) % size;
		int err;

		if (at + count > size) { /* none reaches over the end */
			gone += size - at;
			continue;
		}
		err = look(e, r, space, e->low + at, count, &behind);
		if (!err)
			*first = e->low + at;
		if (err != EADDRINUSE)
			return err;
		gone += behind - (e->low + at);
	}
	return EADDRNOTAVAIL;
}

/* The next search of that space begins behind what was found, so a port that was given back rests. */
static void pass(struct vb_ephemeral *e, int space, uint32_t behind)
{
	e->space[space].next = behind > e->high ? e->low : behind;
}

/* Claims first, and asks then, as all do. */
static int claim_block(const struct vb_registry *r, int space, uint32_t first, uint32_t count)
{
	struct vb_span all = vb_port_claims(space, first, count);
	int err = vb_registry_hold(r, all);

	if (err)
		return err;
	err = vb_registry_others(r, all, NULL);
	if (err)
		vb_registry_drop(r, all);
	return err;
}

static int new_block(struct vb_ephemeral *e, const struct vb_registry *r, int space,
		     struct vb_port_block **out)
{
	uint32_t blocks = e->space[space].blocks, first;
	uint32_t count = blocks < 5 ? VB_BLOCK_MIN << blocks : VB_BLOCK_MAX;
	struct vb_port_block *b;
	int err = EADDRNOTAVAIL;

	while (count && (err = seek(e, r, space, count, &first)) == EADDRNOTAVAIL)
		count /= 2; /* what is left of the range is in pieces */
	if (err)
		return err;
	b = calloc(1, sizeof(*b)); /* vb_block_give(), vb_ephemeral_free() */
	if (!b)
		return ENOMEM;
	pass(e, space, first + count);
	err = claim_block(r, space, first, count);
	if (err) {
		free(b);
		return err;
	}
	b->space = space;
	b->first = first;
	b->count = count;
	for (uint32_t i = 0; i < count; i++)
		vb_ephemeral_mark(e, space, first + i, true);
	e->space[space].blocks++;
	vb_list_append(&e->space[space].open, &b->node);
	*out = b;
	return 0;
}

static bool is_taken(const struct vb_port_block *b, uint32_t i)
{
	return b->taken[i / 64] >> i % 64 & 1;
}

int vb_ephemeral_take(struct vb_ephemeral *e, const struct vb_registry *r, int space, uint32_t *port)
{
	struct vb_list *open = &e->space[space].open;
	struct vb_port_block *b;
	int err;

	if (vb_list_empty(open)) {
		do /* somebody who did not wait for his turn was faster: there is another one */
			err = new_block(e, r, space, &b);
		while (err == EADDRINUSE);
		if (err)
			return err;
	}
	b = block_of(open->next);
	while (is_taken(b, b->next))
		b->next = (b->next + 1) % b->count;
	*port = b->first + b->next;
	b->next = (b->next + 1) % b->count;
	vb_block_use(e, b, *port);
	return 0;
}

int vb_ephemeral_seek(struct vb_ephemeral *e, const struct vb_registry *r, int space, uint32_t *port)
{
	int err = seek(e, r, space, 1, port);

	if (!err)
		pass(e, space, *port + 1);
	return err;
}

struct vb_port_block *vb_ephemeral_block(const struct vb_ephemeral *e, int space, uint32_t port)
{
	const struct vb_list *lists[] = {&e->space[space].open, &e->space[space].full};

	if (!vb_ephemeral_ours(e, space, port))
		return NULL;
	for (unsigned i = 0; i < 2; i++) {
		for (struct vb_list *n = lists[i]->next; n != lists[i]; n = n->next) {
			struct vb_port_block *b = block_of(n);

			if (port - b->first < b->count)
				return b;
		}
	}
	return NULL;
}

void vb_block_use(struct vb_ephemeral *e, struct vb_port_block *b, uint32_t port)
{
	uint32_t i = port - b->first;

	vb_assert(i < b->count);
	if (is_taken(b, i))
		return;
	b->taken[i / 64] |= 1ull << i % 64;
	if (++b->used == b->count) {
		vb_list_unlink(&b->node);
		vb_list_append(&e->space[b->space].full, &b->node);
	}
}

void vb_block_give(struct vb_ephemeral *e, const struct vb_registry *r, struct vb_port_block *b,
		   uint32_t port)
{
	uint32_t i = port - b->first;

	vb_assert(i < b->count && is_taken(b, i));
	b->taken[i / 64] &= ~(1ull << i % 64);
	if (b->used-- == b->count) {
		vb_list_unlink(&b->node);
		vb_list_append(&e->space[b->space].open, &b->node);
	}
	if (b->used)
		return;
	for (i = 0; i < b->count; i++)
		vb_ephemeral_mark(e, b->space, b->first + i, false);
	vb_registry_drop(r, vb_port_claims(b->space, b->first, b->count));
	e->space[b->space].blocks--;
	vb_list_unlink(&b->node);
	free(b);
}
