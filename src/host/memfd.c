/* Memory that is shared with peers: whether what a peer handed over as a memfd can be mapped without harm,
 * and mapping it. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/memcheck.h"
#include "base/pages.h"
#include "host/private.h"
#include "iba/reach.h"

int vb_file_denied(struct vb_reach_facts *t, enum vb_reach_call call, const char **why)
{
	*t = vb_reach_trouble(errno, call);
	*why = "this process may not examine it";
	return errno;
}

int vb_file_check(int fd, uint64_t size, const char **why, struct vb_reach_facts *t)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;
	struct statfs fs;

	*t = (struct vb_reach_facts){.reach = VB_REACH_STRANGER};
	*why = NULL;
	if (seals < 0 && errno != EINVAL && errno != EBADF) /* these say: a file that has none */
		return vb_file_denied(t, VB_CALL_GET_SEALS, why);
	/* Without this seal the owner could take pages away under our reads.  Nothing else is asked of such a
	 * file: of some file systems the process that serves them answers, or never does. */
	if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
		*why = "it can shrink (it lacks F_SEAL_SHRINK)";
		return EPROTO;
	}
	if (fstat(fd, &st))
		return vb_file_denied(t, VB_CALL_FSTAT, why);
	if (fstatfs(fd, &fs))
		return vb_file_denied(t, VB_CALL_FSTATFS, why);
	/* A file that can be mapped now can also be mapped later. */
	if (!(seals & F_SEAL_SEAL))
		*why = "it can be sealed further (it lacks F_SEAL_SEAL)";
	else if (seals & F_SEAL_WRITE)
		*why = "it cannot be written";
	else if ((uint64_t)st.st_size != size)
		*why = "its size is not that of this version";
	else if (fs.f_type != TMPFS_MAGIC)
		*why = "it is not in ordinary memory (tmpfs)";
	return *why ? EPROTO : 0;
}

void *vb_file_map(void *at, uint64_t size, int prot, int flags, int fd)
{
	/* mmap() with MAP_FIXED may fail after it has taken away what was there, and the program could map
	 * something of its own in the hole.  So one page is mapped elsewhere first, which shows that the file
	 * can be mapped, and is then moved there. */
	size_t small = vb_page_size();
	void *page = mmap(NULL, small, prot, flags, fd, 0), *all;

	if (page == MAP_FAILED)
		return MAP_FAILED;
	/* Where the program has what it maps locked (mlockall), all of it would be made present, and count
	 * against RLIMIT_MEMLOCK.  What is not locked grows by what is not. */
	munlock(page, small);
	/* Not by mremap(): libraries that watch what a program maps put one in its place that knows no fifth
	 * argument. */
	all = (void *)syscall(SYS_mremap, page, small, size, MREMAP_MAYMOVE | (at ? MREMAP_FIXED : 0), at);
	if (all != MAP_FAILED) {
		/* memcheck may take the pages by which mremap() makes a mapping longer for inaccessible: it
		 * looks up the permissions in an entry of its table that is another mapping's by then. */
		vb_memcheck_open(all, size);
		return all;
	}
	munmap(page, small);
	/* Some kernels count it beside what it replaces (RLIMIT_AS). */
	return mmap(at, size, prot, flags | (at ? MAP_FIXED : 0), fd, 0);
}
