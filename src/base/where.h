/* Where in the program something was called: a few return addresses, outside this library.
 *
 * Taking them costs microseconds (vb_where_recall() less), and their names are looked up when a sentence
 * needs them. */
#ifndef VB_BASE_WHERE_H
#define VB_BASE_WHERE_H

#include <stddef.h>

enum { VB_WHERE = 3, VB_WHERE_TEXT = 200 };

struct vb_where {
	void *at[VB_WHERE]; /* the innermost first; NULL: no further ones */
};

/* A call of the program: the code that it returns to, and the frame of the function that it has called
 * (__builtin_frame_address(0)). */
struct vb_caller {
	const void *where;
	void *const *frame;
};

/* Loads what the functions below need, which they may not do with locks held. */
void vb_where_prepare(void);
void vb_where_take(struct vb_where *w);
/* The same in a call of the program's, which is quick when that comes again.  One thread calls it at a time.
 */
void vb_where_recall(struct vb_where *w, const struct vb_caller *call);
/* "send_all() (prog+0x11f0), called from main() (prog+0x1300)", from the frame `first` on (0: all).  A
 * function without a name has the file and the offset in it alone, as addr2line(1) wants it.  "": there is
 * none. */
const char *vb_where_say(char text[VB_WHERE_TEXT], const struct vb_where *w, int first);

#endif
