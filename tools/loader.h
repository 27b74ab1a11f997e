/* What the dynamic loader will do with a program, before it does it. */
#ifndef VB_TOOLS_LOADER_H
#define VB_TOOLS_LOADER_H

#include <limits.h>
#include <stdbool.h>

enum { VB_LOADER_OURS = 2, VB_LOADER_LACKS = 8 };

struct vb_loader_answer {
	/* Libraries that it would take in place of ours, "" if none: one for each of vb_loader_ours. */
	char other[VB_LOADER_OURS][PATH_MAX];
	bool ours; /* one of ours is taken */
	/* Versions that something needs of a library of ours, which has not got them; the first ones. */
	struct vb_loader_lack {
		char file[PATH_MAX], version[64], who[PATH_MAX];
	} lacks[VB_LOADER_LACKS];
	unsigned n;
};

extern const char *const vb_loader_ours[VB_LOADER_OURS];

/* Asks `interp`, the dynamic loader that the program names, with the environment as it is; `lib` is the
 * directory of our libraries.  The loader looks for the libraries and maps them, and runs nothing of them. An
 * answer that cannot be had is empty: then the loader speaks for itself when the program starts. */
void vb_loader_ask(struct vb_loader_answer *a, const char *interp, const char *program, const char *lib);

#endif
