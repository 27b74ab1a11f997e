/* What the command `verbena` says of a test's process. */
#ifndef VB_TESTS_COMMAND_H
#define VB_TESTS_COMMAND_H

#include <stdbool.h>

/* Its output for this process, until the next call; words: the subcommand, and options. */
const char *kit_command(const char *words);
/* It has to say that; what: for the %s in fmt. */
void kit_command_says(const char *words, const char *fmt, const char *what);
/* The same, as soon as it says so: there is no event for what another process can read. */
void kit_command_awaits(const char *words, const char *what);
/* Whether the command may read this process's memory, which it must to explain. */
bool kit_may_be_read(void);

#endif
