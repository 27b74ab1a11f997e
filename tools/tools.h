/* The subcommands of `verbena` and what they share. */
#ifndef VB_TOOLS_TOOLS_H
#define VB_TOOLS_TOOLS_H

/* Exit statuses, as env(1) and the shells have them.  A program's own is passed on. */
#define VB_EXIT_SELF	       125 /* verbena itself failed or refused */
#define VB_EXIT_NOT_EXECUTABLE 126
#define VB_EXIT_NOT_FOUND      127

/* Each gets its own argv, argv[0] being "verbena NAME", and returns the exit status. */
int vb_run(int argc, char **argv);
int vb_explain(int argc, char **argv);
int vb_mr(int argc, char **argv);

/* One line on standard error, begun with "verbena: ". */
void vb_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
