/* verbena run: the program, and the environment that it gets. */
#ifndef VB_TOOLS_PROGRAM_H
#define VB_TOOLS_PROGRAM_H

#include <stdbool.h>

/* Whose libraries a program gets. */
enum vb_program_fate {
	VB_PROGRAM_FINE,
	VB_PROGRAM_UNLINKED,  /* it is linked with none of ours */
	VB_PROGRAM_PRELOADED, /* ours, since they are preloaded */
	VB_PROGRAM_OTHER,     /* not ours, or it will not start */
};

/* Checks the program's file, and of a script its interpreter, and what env(1) would run as interpreter. Where
 * the loader would not take the libraries of the directory `lib`, prepares the environment for that.  0, or
 * the exit status of a refusal, which was said.  `fate` may be NULL. */
int vb_program_check(const char *program, const char *lib, enum vb_program_fate *fate);

/* Adds to a colon-separated list in the environment; false: no memory. */
bool vb_env_join(const char *env, const char *item, bool in_front);

#endif
