/* Lines of the log on their way out, between log.c, which composes them, and where they are written. */
#ifndef VB_BASE_LOG_OUT_H
#define VB_BASE_LOG_OUT_H

#include <stddef.h>

#include <stdbool.h>

#include "base/log_line.h"

enum vb_log_place { VB_LOG_NOWHERE, VB_LOG_STDERR, VB_LOG_FILE };

/* Where VB_LOG_FILE leads; before the first line for it. */
void vb_log_set_path(const char *path);

/* Whether standard error is meant for messages: descriptor 2 may be a file with data of a program that has
 * closed standard error. */
bool vb_log_stderr_is_meant(void);

/* Opens it once, and says on standard error why it cannot be opened. */
void vb_log_try_path(void);

/* Before the first sentence: lines are JSON; standard error, if it is a terminal, is a smart one, whose lines
 * are wrapped, with colours. */
void vb_log_set_look(bool json, bool smart, bool colours);

/* Keeps a sentence for the next vb_log_write(), or counts it where there is no room.  The caller may hold any
 * lock. */
void vb_log_keep(enum vb_log_place place, const struct vb_log_said *s);

/* The one of vb_log_also(), NULL: nobody. */
void vb_log_set_other(void (*written)(void));

/* It is called when lines go from thread to thread: before a thread lets go of them, and after another has
 * got them.  It waits for nothing. */
void vb_log_set_handed(void (*handed)(void));

/* In a child of fork(): the parent's lines are the parent's to write. */
void vb_log_out_forked(void);

#endif
