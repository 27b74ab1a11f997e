/* verbena mr: the live memory regions and windows of a running process, from the key table that it shows to
 * its peers. */
#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "counts.h"
#include "host/segment.h"
#include "iba/profile.h"
#include "iba/reason.h"
#include "mem/peer_mem.h"
#include "mem/keys.h"
#include "obj/pd.h"
#include "mr_shared.h"
#include "peek.h"
#include "tools.h"

enum { USERS = 4 }; /* PIDs that are listed as users of one region */

struct region {
	uint32_t index, key, access, kind, qpn, told, users;
	uint64_t pd, iova, length, addr, tied;
	pid_t user[USERS];
};

static const struct vb_key_entry *entries_of(const struct peek *p)
{
	return (const void *)(p->base + VB_SEG_KEYS);
}

static const struct vb_key_slot *slots_of(const struct peek *p)
{
	return (const void *)(p->base + VB_SEG_KEY_SLOTS);
}

static const struct vb_key_marks *marks_of(const struct peek *p)
{
	return (const void *)(p->base + VB_SEG_KEY_MARKS);
}

static uint32_t number_of(const struct peek *p)
{
	return ((const struct vb_seg_head *)(const void *)p->base)->number & (VB_ADAPTERS - 1);
}

/* The limits and manners that the process has. */
static const struct vb_profile *profile_of(const struct peek *p)
{
	const struct vb_seg_head *h = (const void *)p->base;
	const struct vb_profile *row;
	char name[sizeof h->profile + 1] = {0};

	memcpy(name, h->profile, sizeof h->profile);
	row = vb_profile_find(name);
	return row ? row : vb_profile_find("default");
}

/* As its owner has it: in profiles whose keys are equal with the bit of R_Keys. */
static uint32_t as_lkey(uint32_t key, const struct peek *p)
{
	return profile_of(p)->equal_keys ? key | VB_KEY_REMOTE : key;
}

static uint32_t slots_used(const struct peek *p)
{
	uint32_t n = atomic_load_explicit(&marks_of(p)->slots, memory_order_relaxed);

	return n < VB_MEM_SLOTS ? n : VB_MEM_SLOTS;
}

/* An entry as it stands at one moment; false: nothing is registered there, or it is changing. */
static bool read_entry(const struct vb_key_entry *e, struct region *r)
{
	for (int tries = 0; tries < 100; tries++) {
		uint32_t seq = atomic_load_explicit(&e->seq, memory_order_acquire);

		r->key = atomic_load_explicit(&e->key, memory_order_acquire);
		r->access = atomic_load_explicit(&e->access, memory_order_acquire);
		r->kind = atomic_load_explicit(&e->kind, memory_order_acquire);
		r->qpn = atomic_load_explicit(&e->qpn, memory_order_acquire);
		r->told = atomic_load_explicit(&e->told, memory_order_acquire);
		r->pd = atomic_load_explicit(&e->pd, memory_order_acquire);
		r->iova = atomic_load_explicit(&e->iova, memory_order_acquire);
		r->length = atomic_load_explicit(&e->length, memory_order_acquire);
		r->addr = atomic_load_explicit(&e->addr, memory_order_acquire);
		r->tied = atomic_load_explicit(&e->tied, memory_order_acquire);
		if (!(seq & 1) && atomic_load_explicit(&e->seq, memory_order_relaxed) == seq)
			return r->key && r->length;
		vb_cpu_relax();
	}
	return false;
}

static void add_user(struct region *r, pid_t pid)
{
	for (uint32_t i = 0; i < r->users && i < USERS; i++)
		if (r->user[i] == pid)
			return;
	if (r->users < USERS)
		r->user[r->users] = pid;
	r->users++;
}

static struct region *by_index(struct region *list, size_t n, uint32_t index)
{
	size_t low = 0, high = n;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (list[mid].index < index)
			low = mid + 1;
		else
			high = mid;
	}
	return low < n && list[low].index == index ? &list[low] : NULL;
}

static void mark_user(struct region *list, size_t n, uint32_t index, pid_t pid)
{
	struct region *r = by_index(list, n, index);

	if (r)
		add_user(r, pid);
}

/* Threads announce what they use: of their own process's regions, and of those of others. */
static void mark_users(const struct peek *p, struct region *list, size_t n)
{
	const struct vb_key_slot *slots = slots_of(p);
	uint32_t number = number_of(p);
	struct peek *all;
	size_t peers;

	for (uint32_t i = 0; i < slots_used(p); i++) {
		mark_user(list, n, atomic_load(&slots[i].index), p->pid);
	}
	peers = vb_peek_all(&all, p->user);
	for (size_t k = 0; k < peers; k++) {
		slots = slots_of(&all[k]);
		for (uint32_t i = 0; i < slots_used(&all[k]); i++) {
			mark_user(list, n, vb_announce_word_index(atomic_load(&slots[i].placing), number),
				  all[k].pid);
			mark_user(list, n, vb_announce_word_index(atomic_load(&slots[i].via), number),
				  all[k].pid);
		}
		vb_peek_close(&all[k]);
	}
	free(all);
}

static int by_address(const void *a, const void *b)
{
	const struct region *x = a, *y = b;

	if (x->addr != y->addr)
		return (x->addr > y->addr) - (x->addr < y->addr);
	return (x->index > y->index) - (x->index < y->index);
}

/* The regions, sorted by address.  NULL with *n 0: none; with *n 1: no memory. */
static struct region *read_regions(const struct peek *p, size_t *n)
{
	const struct vb_key_entry *entries = entries_of(p);
	struct region *list = NULL;
	size_t room = 0, have = 0;

	for (uint32_t i = 0; (i = vb_key_next(marks_of(p), i));) {
		struct region r = {.index = i};

		if (!read_entry(&entries[i], &r))
			continue;
		if (have == room) {
			struct region *more;

			room = room ? 2 * room : 64;
			more = reallocarray(list, room, sizeof *list);
			if (!more) {
				free(list);
				*n = 1;
				return NULL;
			}
			list = more;
		}
		list[have++] = r;
	}
	if (have) {
		mark_users(p, list, have);
		qsort(list, have, sizeof *list, by_address);
	}
	*n = have;
	return list;
}

static const char *kind_name(const struct region *r)
{
	static const char *const names[] = {[VB_KEY_MEMORY] = "memory",
					    [VB_KEY_ON_DEMAND] = "on-demand",
					    [VB_KEY_NULL] = "null",
					    [VB_KEY_WINDOW] = "window"};

	if (r->kind == VB_KEY_MEMORY && r->qpn == VB_MR_RELAXED)
		return "relaxed";
	if (r->kind == VB_KEY_MEMORY && r->qpn == VB_MR_DM)
		return "device-memory";
	if (r->kind == VB_KEY_MEMORY && r->qpn == VB_MR_DMABUF)
		return "dma-buf";
	return r->kind < sizeof names / sizeof *names && names[r->kind] ? names[r->kind] : "other";
}

/* Null regions have no R_Key, windows no L_Key. */
static bool has_lkey(const struct region *r)
{
	return r->kind != VB_KEY_WINDOW;
}

static bool has_rkey(const struct region *r)
{
	return r->kind != VB_KEY_NULL;
}

struct totals {
	size_t regions, windows;
	uint64_t bytes; /* of regions of memory; on-demand ones may span everything */
};

static struct totals add_up(const struct region *list, size_t n)
{
	struct totals t = {0};

	for (size_t i = 0; i < n; i++) {
		if (list[i].kind == VB_KEY_WINDOW)
			t.windows++;
		else
			t.regions++;
		if (list[i].kind == VB_KEY_MEMORY)
			t.bytes += list[i].length;
	}
	return t;
}

void vb_mr_sum(const struct peek *p, unsigned device, uint64_t *regions, uint64_t *bytes)
{
	const struct vb_key_entry *entries = (const void *)(p->all[device] + VB_SEG_KEYS);
	const struct vb_key_marks *marks = (const void *)(p->all[device] + VB_SEG_KEY_MARKS);
	struct totals t;

	*regions = *bytes = 0;
	for (uint32_t i = 0; (i = vb_key_next(marks, i));) {
		struct region r = {.index = i};

		if (!read_entry(&entries[i], &r))
			continue;
		t = add_up(&r, 1);
		*regions += t.regions;
		*bytes += t.bytes;
	}
}

static void print_users(const struct region *r, pid_t owner)
{
	if (!r->users) {
		printf("; not in use now");
		return;
	}
	printf("; in use by");
	for (uint32_t i = 0; i < r->users && i < USERS; i++) {
		printf(i ? ", " : " ");
		if (r->user[i] == owner)
			printf("itself");
		else
			printf("process %d", (int)r->user[i]);
	}
	if (r->users > USERS)
		printf(" and %u more", r->users - USERS);
}

static bool is_region(const struct region *r)
{
	return r->kind == VB_KEY_MEMORY || r->kind == VB_KEY_ON_DEMAND;
}

/* NULL: peers can map its memory; else why they cannot. */
static const char *why_not_mapped(const struct region *r, const struct peek *p)
{
	const uint32_t writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

	if (r->kind == VB_KEY_ON_DEMAND)
		return "it follows what the program maps";
	return vb_why_not_shared(p->pid, r->addr, r->length, (r->access & writes) != 0);
}

static void print_sharing(const struct region *r, const struct peek *p)
{
	const char *why;

	if (r->told)
		printf("; peers may map it");
	if (r->told || !is_region(r))
		return;
	why = why_not_mapped(r, p);
	printf(why ? "; peers cannot map it: %s" : "; peers can map it", why);
}

static void print_region(const struct region *r, const struct peek *p)
{
	char access[256];

	printf("0x%012" PRIx64 " +%" PRIu64 "  ", r->addr, r->length);
	if (has_lkey(r))
		printf("L_Key 0x%08x ", as_lkey(r->key, p));
	if (has_rkey(r))
		printf("R_Key 0x%08x ", r->key | VB_KEY_REMOTE);
	printf(" %s  PD %u", kind_name(r), (uint32_t)r->pd);
	if (VB_PD_HOME(r->pd) != number_of(p))
		printf(" of adapter %u", VB_PD_HOME(r->pd));
	printf("  %s", vb_access_say(access, sizeof access, r->access));
	if (r->iova != r->addr)
		printf("; iova 0x%" PRIx64, r->iova);
	if (r->kind == VB_KEY_WINDOW)
		printf("; bound to the region of L_Key 0x%08x", as_lkey((uint32_t)r->tied, p));
	else if ((uint32_t)r->tied)
		printf("; %u window%s bound", (uint32_t)r->tied, (uint32_t)r->tied == 1 ? "" : "s");
	if (r->kind == VB_KEY_WINDOW && r->qpn)
		printf("; for QP 0x%06x", r->qpn);
	print_users(r, p->pid);
	print_sharing(r, p);
	printf("\n");
}

static void print_text(const struct peek *p, const struct region *list, size_t n)
{
	struct totals t = add_up(list, n);

	printf("process %d (%s), adapter %u: %zu memory region%s of at most %u, %" PRIu64
	       " bytes of memory, %zu memory window%s\n",
	       (int)p->pid, p->program, number_of(p), t.regions, t.regions == 1 ? "" : "s",
	       profile_of(p)->max_mr, t.bytes, t.windows, t.windows == 1 ? "" : "s");
	for (size_t i = 0; i < n; i++)
		print_region(&list[i], p);
}

static void add_hex(json_object *o, const char *name, uint64_t v, int digits)
{
	char buf[24];

	snprintf(buf, sizeof buf, "0x%0*" PRIx64, digits, v);
	json_object_object_add(o, name, json_object_new_string(buf));
}

static json_object *region_json(const struct region *r, const struct peek *p)
{
	json_object *o = json_object_new_object(), *users = json_object_new_array();
	char access[256];

	add_hex(o, "address", r->addr, 1);
	add_hex(o, "iova", r->iova, 1);
	json_object_object_add(o, "size", json_object_new_uint64(r->length));
	if (has_lkey(r))
		add_hex(o, "lkey", as_lkey(r->key, p), 8);
	if (has_rkey(r))
		add_hex(o, "rkey", r->key | VB_KEY_REMOTE, 8);
	json_object_object_add(o, "kind", json_object_new_string(kind_name(r)));
	json_object_object_add(o, "pd", json_object_new_int64((uint32_t)r->pd));
	json_object_object_add(o, "pd_adapter", json_object_new_int64(VB_PD_HOME(r->pd)));
	json_object_object_add(o, "access",
			       json_object_new_string(vb_access_say(access, sizeof access, r->access)));
	if (r->kind == VB_KEY_WINDOW) {
		add_hex(o, "region_lkey", as_lkey((uint32_t)r->tied, p), 8);
		if (r->qpn)
			add_hex(o, "qp", r->qpn, 6);
	} else {
		json_object_object_add(o, "windows", json_object_new_int64((uint32_t)r->tied));
	}
	for (uint32_t i = 0; i < r->users && i < USERS; i++)
		json_object_array_add(users, json_object_new_int(r->user[i]));
	json_object_object_add(o, "used_by", users);
	json_object_object_add(o, "peers_may_map", json_object_new_boolean(r->told != 0));
	if (is_region(r)) {
		const char *why = r->told ? NULL : why_not_mapped(r, p);

		json_object_object_add(o, "peers_can_map", json_object_new_boolean(!why));
		if (why)
			json_object_object_add(o, "why_not", json_object_new_string(why));
	}
	return o;
}

static void add_device(json_object *o, const struct peek *p, const struct region *list, size_t n)
{
	json_object *regions = json_object_new_array(), *totals = json_object_new_object();
	struct totals t = add_up(list, n);

	json_object_object_add(o, "adapter", json_object_new_int64(number_of(p)));
	for (size_t i = 0; i < n; i++)
		json_object_array_add(regions, region_json(&list[i], p));
	json_object_object_add(o, "regions", regions);
	json_object_object_add(totals, "regions", json_object_new_uint64(t.regions));
	json_object_object_add(totals, "limit", json_object_new_int64(profile_of(p)->max_mr));
	json_object_object_add(totals, "bytes", json_object_new_uint64(t.bytes));
	json_object_object_add(totals, "windows", json_object_new_uint64(t.windows));
	json_object_object_add(o, "totals", totals);
}

/* Prints what the segment p->base shows, or adds it to `o`: the first device's to that itself, those of
 * others to a list. */
static bool show_device(const struct peek *p, json_object *o, json_object *further)
{
	size_t n;
	struct region *list = read_regions(p, &n);

	if (!list && n) {
		vb_say("there is no memory for the list of regions");
		return false;
	}
	if (o && p->base != p->all[0]) {
		json_object_array_add(further, o = json_object_new_object());
		add_device(o, p, list, n);
	} else if (o) {
		add_device(o, p, list, n);
	} else {
		print_text(p, list, n);
	}
	free(list);
	return true;
}

static int mr(const struct vb_command *c, int argc, char **argv)
{
	json_object *o = NULL, *further = NULL;
	struct peek_ask a;
	bool good = true;
	int status;

	if (!vb_peek_open(&a, c, argc, argv))
		return VB_EXIT_SELF;
	if (a.json) {
		o = json_object_new_object();
		further = json_object_new_array();
		json_object_object_add(o, "pid", json_object_new_int(a.at.pid));
		json_object_object_add(o, "program", json_object_new_string(a.at.program));
	}
	for (unsigned i = 0; i < a.at.n && good; i++) {
		a.at.base = a.at.all[i];
		good = show_device(&a.at, o, further);
	}
	if (o)
		json_object_object_add(o, "further_devices", further);
	status = !good ? VB_EXIT_SELF : o ? vb_peek_print_json(o) : 0;
	vb_peek_close(&a.at);
	return status;
}

const struct vb_command vb_mr = {
    .name = "mr",
    .brief = "list the memory regions of a process",
    .main = mr,
    .usage = "[--json] [PID]",
    .text =
	"Lists the memory regions and windows of a running process by address: size, keys, kind, protection "
	"domain, access, and the processes that use them now.\n\n"
	"Without PID it looks at your only process that uses Verbena. If there are several, it lists them.",
    .after = "Exit status: 0; 125 if the process is not found or cannot be read, or if verbena fails.",
    .example = "verbena mr 4711",
    .options = vb_peek_options,
    .noptions = VB_PEEK_OPTIONS,
};
