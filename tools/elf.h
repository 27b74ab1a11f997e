/* What an executable file says about how it will be loaded. */
#ifndef VB_TOOLS_ELF_H
#define VB_TOOLS_ELF_H

#include <stdbool.h>
#include <stddef.h>

enum vb_elf_kind {
	VB_ELF_NONE,	/* no ELF file */
	VB_ELF_FOREIGN, /* for another machine than this program */
	VB_ELF_STATIC,	/* no dynamic loader runs it */
	VB_ELF_DYNAMIC,
};

struct vb_elf {
	enum vb_elf_kind kind;
	int machine, bits;
	bool asan;	  /* needs libasan.so */
	bool verbs;	  /* has a libibverbs linked into it, as far as its symbols tell */
	char interp[256]; /* the dynamic loader that it asks for, "" if that is too long */
	char rpath[4096]; /* DT_RPATH, "" if there is none or DT_RUNPATH overrides it */
};

/* 0, or the errno with which the file could not be read.  A damaged ELF file reads as none. */
int vb_elf_read(const char *path, struct vb_elf *e);

/* The first directory of an rpath that holds `file`, $ORIGIN being the directory of `program`; false: none.
 */
bool vb_elf_rpath_find(const char *rpath, const char *program, const char *file, char *found, size_t size);

/* What stands behind `prefix` in the names of the symbol versions that a library defines: "34, 57"; "" if
 * there is none. */
void vb_elf_nodes(const char *path, const char *prefix, char *buf, size_t size);

/* Whether each of the nodes `some` is among `all`. */
bool vb_elf_nodes_cover(const char *all, const char *some);

#endif
