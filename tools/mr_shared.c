#include "mr_shared.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "mem/share.h"
#include "mem/vma.h"

/* Whether the process has that file open: one without a name is found by a descriptor only. */
static bool is_open(pid_t pid, const struct vb_vma *v)
{
	char path[64];
	struct stat st;
	bool found = false;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	if (!dir)
		return true; /* it cannot be told */
	for (struct dirent *e; !found && (e = readdir(dir));)
		found = !fstatat(dirfd(dir), e->d_name, &st, 0) && st.st_ino == v->ino &&
			st.st_dev == makedev(v->dev_major, v->dev_minor);
	closedir(dir);
	return found;
}

static bool has_name(const struct vb_vma *v)
{
	const char *gone = " (deleted)";
	size_t n = strlen(v->name), end = strlen(gone);

	return !strncmp(v->name, "/SYSV", 5) || n < end || strcmp(v->name + n - end, gone) != 0;
}

static const char *why_not_file(pid_t pid, const struct vb_vma *v, bool write)
{
	if (!v->shared)
		return "its memory is private (verbena run --share-buffers gives the program other memory)";
	if (!v->readable || (write && !v->writable))
		return "the program has protected its memory";
	if (!vb_share_dev_is_memory(makedev(v->dev_major, v->dev_minor)))
		return "its memory is a file on a disk or of a device";
	if (!has_name(v) && !is_open(pid, v))
		return "the program has no descriptor open on the file of its memory";
	return NULL;
}

const char *vb_why_not_shared(pid_t pid, uint64_t addr, uint64_t length, bool write)
{
	static struct vb_vma first, v;
	const char *why = NULL;
	struct vb_vmas s;

	if (vb_vmas_begin_of(&s, pid))
		return "the mappings of the process cannot be read";
	for (uint64_t at = addr; !why && at < addr + length; at = v.end) {
		if (!vb_vmas_at(&s, at, &v, true)) {
			why = "no memory is mapped there";
			break;
		}
		if (at == addr)
			first = v;
		else if (v.shared && (v.ino != first.ino || v.dev_major != first.dev_major ||
				      v.dev_minor != first.dev_minor ||
				      v.offset + (at - v.start) != first.offset + (at - first.start)))
			why = "its memory lies in several files or places";
		if (!why)
			why = why_not_file(pid, &v, write);
	}
	vb_vmas_end(&s);
	return why;
}
