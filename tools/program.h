/* verbena run: the program, and the environment that it gets. */
#ifndef VB_TOOLS_PROGRAM_H
#define VB_TOOLS_PROGRAM_H

#include <stdbool.h>

/* Checks the program's file, and of a script its interpreter, and what env(1) would run as interpreter. Where
 * the loader would not take the libraries of the directory `lib`, prepares the environment for that.  0, or
 * the exit status of a refusal, which was said. */
int vb_program_check(const char *program, const char *lib);

/* Adds to a colon-separated list in the environment; false: no memory. */
bool vb_env_join(const char *env, const char *item, bool in_front);

#endif
