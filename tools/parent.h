/* verbena run --fail-on and --summary: stays as the program's parent, and counts what is said. */
#ifndef VB_TOOLS_PARENT_H
#define VB_TOOLS_PARENT_H

#include <stdbool.h>

struct vb_watch {
	const char *fail_on; /* "warn", "error"; NULL: the program's exit status is ours */
	bool summary;
};

/* What the environment asks for, by itself or for options; false: it was said which value is not valid. */
bool vb_watch_read(struct vb_watch *w);

/* Runs the program, with this environment, and waits for its end.  Stops, continues and dies as the program
 * does. Otherwise the exit status; *err is the errno of a program that could not be executed. */
int vb_parent_run(const struct vb_watch *w, char **program, int *err);

#endif
