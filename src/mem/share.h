/* Memory that another process can map: what file lies under a range of our addresses, and mapping such a
 * range of a peer's.
 *
 * Only shared mappings of memory count: tmpfs with memfd, hugetlbfs, and SysV shared memory.  A private
 * mapping never does, since what its owner sees are copies; nor does a file of a disk or of a FUSE server,
 * whose pages may take for ever to come.  Neither side calls anything that could wait for such a server, and
 * neither touches the memory itself.
 *
 * Both look into /proc and make a dozen system calls: not for the path of a post. */
#ifndef VB_MEM_SHARE_H
#define VB_MEM_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum vb_share_kind {
	VB_SHARE_NONE, /* not shareable */
	VB_SHARE_FILE, /* a descriptor goes along */
	VB_SHARE_SYSV, /* a segment of the same IPC namespace */
};

/* What is told to the peer: fixed layout, same machine. */
struct vb_share_desc {
	uint32_t kind;	   /* enum vb_share_kind */
	int32_t shmid;	   /* VB_SHARE_SYSV */
	uint64_t offset;   /* of the range's first byte in the file or segment */
	uint64_t length;   /* of the range */
	uint64_t dev, ino; /* of the file; VB_SHARE_SYSV: of the IPC namespace */
	uint64_t page;	   /* that it is mapped in; larger than others for huge pages */
};

/* Describes [addr, addr + len) of this process to somebody who is to read it, and to write it if `write`.
 * VB_SHARE_NONE if it is not shareable or that is not certain (no descriptors left, no /proc); it does not
 * fail otherwise.  The range may lie in several mappings if they continue one another in the file too.
 *
 * VB_SHARE_FILE: *fd is a new descriptor, the caller's, that only names the file (O_PATH): whoever maps opens
 * it anew, for reading only where nothing is to be written.  Else *fd is -1.  (Not a descriptor that can
 * read: closing one would take away all the POSIX record locks that the program holds on its file.) */
void vb_share_find(uint64_t addr, uint64_t len, bool write, struct vb_share_desc *d, int *fd);

/* Whether files of that device (makedev()) are memory, which can be mapped without asking a server. */
bool vb_share_dev_is_memory(uint64_t dev);

struct vb_share_map {
	void *base; /* of the mapping, with size: whole pages, or a whole SysV segment */
	size_t size;
	uint8_t *at; /* the range's first byte */
	bool sysv;
};

/* Maps what a peer described, after checking all that it says; not inherited over fork(), not in core dumps.
 * `fd` may name the file (O_PATH) or have it open, and stays the caller's.  0, or errno:
 *   EINVAL  no such description   ENODEV  not memory that may be shared   ESTALE  another file than described
 *   ENXIO   file or segment ends before the range does                    EXDEV   another IPC namespace
 *   EBUSY   this process holds POSIX record locks on the file, which opening and closing it would take away
 * or what opening and mapping say (EACCES, EPERM for a seal, EMFILE, ENOMEM, ...).
 * A file that is truncated later raises SIGBUS when it is touched behind its end. */
int vb_share_map(struct vb_share_map *m, const struct vb_share_desc *d, int fd, bool write);
/* Also one that was never mapped, if it is all zeros. */
void vb_share_unmap(struct vb_share_map *m);

#endif
