#include "base/where.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/text.h"

enum { DEEP = 24 }; /* frames that are looked at: those of this library stand first */

static uintptr_t first, last; /* of this library's code; set once */

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
	void *at[1];

	(void)backtrace(at, 1); /* loads libgcc_s at its first call */
	if (!first)
		dl_iterate_phdr(look, NULL);
}

static bool is_ours(const void *at)
{
	return (uintptr_t)at >= first && (uintptr_t)at <= last;
}

void vb_where_take(struct vb_where *w)
{
	void *at[DEEP];
	int n = backtrace(at, DEEP), i = 0;

	memset(w, 0, sizeof *w);
	while (i < n && !is_ours(at[i])) /* a sanitizer has a backtrace() of its own */
		i++;
	while (i < n && is_ours(at[i]))
		i++;
	for (int kept = 0; i < n && kept < VB_WHERE; i++)
		w->at[kept++] = at[i];
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
