#include "base/where.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unwind.h>

#include "base/symbol.h"
#include "base/text.h"

enum {
	DEEP = 24,	  /* frames that are looked at: those of this library stand first */
	KNOWN = 64,	  /* calls whose callers are remembered */
	FRAME_POINTER = 6 /* the register's number on x86-64 */
};

static uintptr_t first, last; /* of this library's code; set once */

/* The unwinder of libgcc_s.  The library is not linked with it: few processes need it. */
static struct {
	_Unwind_Reason_Code (*walk)(_Unwind_Trace_Fn step, void *arg);
	_Unwind_Ptr (*address)(struct _Unwind_Context *c);
	_Unwind_Word (*stack)(struct _Unwind_Context *c);
	_Unwind_Word (*reg)(struct _Unwind_Context *c, int number);
} unwinder;

/* A walk up the stack, and what it found.  slot: where on the stack an address of `where` stands.
 * frame_pointer: the register's value in the function that at[i] is in. */
struct found {
	struct vb_where where;
	void *const *slot[VB_WHERE];
	uintptr_t frame_pointer[VB_WHERE];
	unsigned looked, kept;
};

/* One object of the process: whether it is the one that this function is in. */
static int look(struct dl_phdr_info *info, size_t size, void *found)
{
	uintptr_t here = (uintptr_t)look;

	(void)size;
	(void)found;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t from = info->dlpi_addr + p->p_vaddr;

		if (p->p_type != PT_LOAD || here < from || here - from >= p->p_memsz)
			continue;
		first = from;
		last = from + p->p_memsz - 1;
		return 1;
	}
	return 0;
}

void vb_where_prepare(void)
{
	void *library = dlopen("libgcc_s.so.1", RTLD_NOW); /* for the life of the process */

	if (!first)
		dl_iterate_phdr(look, NULL);
	if (library && vb_symbol_find_in(library, "_Unwind_GetIP", &unwinder.address) &&
	    vb_symbol_find_in(library, "_Unwind_GetCFA", &unwinder.stack) &&
	    vb_symbol_find_in(library, "_Unwind_GetGR", &unwinder.reg))
		(void)vb_symbol_find_in(library, "_Unwind_Backtrace", &unwinder.walk);
}

static bool is_ours(const void *at)
{
	return (uintptr_t)at >= first && (uintptr_t)at <= last;
}

static _Unwind_Reason_Code step(struct _Unwind_Context *c, void *arg)
{
	void *at = (void *)unwinder.address(c); /* NOLINT(performance-no-int-to-ptr) */
	struct found *f = arg;

	if (f->looked++ == DEEP)
		return _URC_END_OF_STACK;
	if (!f->kept && is_ours(at))
		return _URC_NO_REASON;
	f->where.at[f->kept] = at;
#if defined(__x86_64__)
	f->slot[f->kept] = (void *const *)unwinder.stack(c) - 1; /* NOLINT(performance-no-int-to-ptr) */
	f->frame_pointer[f->kept] = unwinder.reg(c, FRAME_POINTER);
#endif
	return ++f->kept == VB_WHERE ? _URC_END_OF_STACK : _URC_NO_REASON;
}

static void walk(struct found *f)
{
	*f = (struct found){.kept = 0};
	if (unwinder.walk)
		(void)unwinder.walk(step, f);
}

void vb_where_take(struct vb_where *w)
{
	struct found f;

	walk(&f);
	*w = f.where;
}

/* ---- calls that come again ---- */

/* A call whose callers were found.  Another call has the same callers if it comes from the same code, at the
 * same place of the stack, and the return addresses still stand where they stood.  For a function's frame has
 * one size at one instruction, so the place of its return address is known.  A frame of variable size has a
 * frame pointer, which then has to be the same one too; calls from one that is aligned are not remembered. */
static struct {
	struct vb_caller call;
	struct found found;
} known[KNOWN];

/* at[i] returns to a function whose frame is found by the frame pointer. */
static bool by_pointer(const struct found *f, unsigned i)
{
	return f->frame_pointer[i] + sizeof(void *) == (uintptr_t)f->slot[i + 1];
}

/* The function that at[i] is in may have aligned its frame to more than 16 bytes, and the frame's size then
 * depends on the caller.  The frame pointer leads into such a frame.  It does so, too, if the function uses
 * the register for an address on its stack. */
static bool may_be_aligned(const struct found *f, unsigned i)
{
	return f->frame_pointer[i] > (uintptr_t)f->slot[i] &&
	       f->frame_pointer[i] < (uintptr_t)f->slot[i + 1] && !by_pointer(f, i);
}

/* Whether `found` can be compared with later calls.  The frame pointer of a function is known if the one that
 * it calls has saved it at its own, or has left the register alone. */
static bool can_be_compared(const struct found *f, const struct vb_caller *call)
{
	bool is_known = true;

	if (!f->kept || f->where.at[0] != call->where || f->slot[0] != call->frame + 1)
		return false;
	for (unsigned i = 0; i < f->kept; i++) {
		if (*f->slot[i] != f->where.at[i])
			return false;
		if (i + 1 == f->kept)
			break;
		if (may_be_aligned(f, i) || (by_pointer(f, i) && !is_known))
			return false;
		is_known = by_pointer(f, i) || (is_known && f->frame_pointer[i] == f->frame_pointer[i + 1]);
	}
	return true;
}

static bool is_same(const struct found *f, const struct vb_caller *call)
{
	uintptr_t pointer = (uintptr_t)call->frame[0];

	for (unsigned i = 0; i + 1 < f->kept; i++) {
		if (by_pointer(f, i)) {
			if (pointer != f->frame_pointer[i])
				return false;
			pointer = *(const uintptr_t *)pointer; /* NOLINT(performance-no-int-to-ptr) */
		}
		if (*f->slot[i + 1] != f->where.at[i + 1])
			return false;
	}
	return true;
}

void vb_where_recall(struct vb_where *w, const struct vb_caller *call)
{
	uint64_t hash = ((uintptr_t)call->where + (uintptr_t)call->frame * 31) * 0x9e3779b97f4a7c15;
	unsigned i = (unsigned)(hash >> 32) % KNOWN;
	struct found f;

	if (known[i].call.where == call->where && known[i].call.frame == call->frame &&
	    is_same(&known[i].found, call)) {
		*w = known[i].found.where;
		return;
	}
	walk(&f);
	*w = f.where;
	if (!can_be_compared(&f, call))
		return;
	known[i].call = *call;
	known[i].found = f;
}

static const char *base_name(const char *path)
{
	const char *slash = path ? strrchr(path, '/') : NULL;

	return slash ? slash + 1 : path && *path ? path : "?";
}

/* What stands below main() says nothing of the program. */
static bool is_beginning(const Dl_info *info)
{
	return !strncmp(base_name(info->dli_fname), "libc.so", 7);
}

const char *vb_where_say(char text[VB_WHERE_TEXT], const struct vb_where *w, int first_frame)
{
	struct vb_text t = {text, VB_WHERE_TEXT};
	Dl_info info;

	*text = 0;
	for (int i = first_frame; i < VB_WHERE && w->at[i]; i++) {
		/* a return address may be the next function's first: the call stands before it */
		const uint8_t *call = (const uint8_t *)w->at[i] - 1;

		if (!dladdr(call, &info) || (i && is_beginning(&info)))
			break;
		vb_text_add(&t, "%s", i > first_frame ? ", called from " : "");
		if (info.dli_sname)
			vb_text_add(&t, "%s() (", info.dli_sname);
		vb_text_add(&t, "%s+0x%zx%s", base_name(info.dli_fname),
			    (size_t)(call - (const uint8_t *)info.dli_fbase), info.dli_sname ? ")" : "");
	}
	return text;
}
