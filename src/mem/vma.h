/* What the kernel has mapped at an address of this process.
 *
 * Asked by PROCMAP_QUERY where there is one (Linux 6.11 on), which takes microseconds; else /proc/.../maps is
 * read, which takes milliseconds in a process with many mappings. */
#ifndef VB_MEM_VMA_H
#define VB_MEM_VMA_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct vb_vma {
	uint64_t start, end;
	uint64_t offset; /* of start, in the file */
	uint64_t ino;
	uint64_t page; /* bytes of a page, 0: not known */
	uint32_t dev_major, dev_minor;
	bool readable, writable, executable, shared;
	char name[PATH_MAX + 16]; /* as the kernel shows it: "... (deleted)"; "": none */
};

/* A look at the mappings from lower to higher addresses. */
struct vb_vmas {
	int fd;
	FILE *text; /* where PROCMAP_QUERY is not to be had; NULL: it is, or was not tried yet */
	char *line; /* of text; getline()'s */
	size_t line_size;
};

/* 0 or errno.  To be ended with vb_vmas_end(). */
int vb_vmas_begin(struct vb_vmas *s);
int vb_vmas_begin_of(struct vb_vmas *s, pid_t pid); /* another process's */
/* The mapping that holds `addr`; false: there is none, or it cannot be told.  Never with a lower address than
 * before.  v->name is filled only if `named`. */
bool vb_vmas_at(struct vb_vmas *s, uint64_t addr, struct vb_vma *v, bool named);
/* One mapping after another, from the lowest, with names; not mixed with the former.  false: that was all. */
bool vb_vmas_next(struct vb_vmas *s, struct vb_vma *v);
void vb_vmas_end(struct vb_vmas *s);

/* The size of the pages of the mapping at addr, 0: it cannot be told.  Asks no file. */
uint64_t vb_vma_page(uint64_t addr);

/* Whether all of [addr, addr + len) is mapped in huge pages (hugetlbfs, MAP_HUGETLB).  If not, *at is the
 * first address that is not and *page what is there: a page size, 0: no mapping. */
bool vb_vma_huge(uint64_t addr, uint64_t len, uint64_t *at, uint64_t *page);

#endif
