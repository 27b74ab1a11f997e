/* The subcommands of `verbena` and what they share. */
#ifndef VB_TOOLS_TOOLS_H
#define VB_TOOLS_TOOLS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "options.h"

/* Exit statuses, as env(1) and the shells have them.  A program's own is passed on. */
#define VB_EXIT_SAID	       124 /* the program succeeded, and what --fail-on names was said */
#define VB_EXIT_SELF	       125 /* verbena itself failed or refused */
#define VB_EXIT_NOT_EXECUTABLE 126
#define VB_EXIT_NOT_FOUND      127

extern const struct vb_command vb_run, vb_list, vb_explain, vb_mr, vb_qp_command, vb_top, vb_bundle,
    vb_doctor_command;

/* One line on standard error, begun with "verbena: ". */
void vb_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Where vb_say()'s sentences go instead; NULL: nowhere else. */
extern void (*vb_said)(const char *sentence);

/* The directory of Verbena's libraries, which stand beside this program.  false: it was said why there is
 * none. */
bool vb_libraries_find(char lib[PATH_MAX]);

/* As execvp(3) finds it.  0 or the errno of the best candidate. */
int vb_find_program(const char *name, char *path, size_t size);

#endif
