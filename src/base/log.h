/* Where sentences go.
 *
 * VERBENA_LOG names the place: "stderr", a file's path (appended to), or "off"; nothing is written where it
 * is unset.  `verbena run` sets it to stderr.  VERBENA_LOG_LEVEL is one of error, warn (the default), info,
 * debug.  VERBENA_LOG_FORMAT is text (the default) or json; base/log_line.h says what a line looks like.  A
 * line is one write(2), so lines of several threads and processes do not mix.
 *
 * Whoever says something may hold locks.  So the line is only left here, and written when vb_log_tell() is
 * called: by each thread before it returns to the program and before it blocks, holding no lock.  No thread
 * blocks for the log: what would block is kept, then counted (base/log_out.c).
 *
 * Errors and warnings, and with them every refusal and every reason, are also remembered for other processes
 * to read, wherever VERBENA_LOG leads (base/history.h), and counted for `verbena run` (base/tally.h). */
#ifndef VB_BASE_LOG_H
#define VB_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"

enum vb_log_level { VB_LOG_ERROR, VB_LOG_WARN, VB_LOG_INFO, VB_LOG_DEBUG };

/* Whether a line of this level would be written or remembered: test it before composing an expensive
 * sentence. */
bool vb_log_wanted(enum vb_log_level level);

/* Registers what a forked child does: before any lock is held that fork() takes. */
void vb_log_handle_fork(void);
void vb_log(enum vb_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Something that harms nobody and that `verbena explain` is to know: written at the level info, and
 * remembered as a warning is. */
void vb_log_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A setting is wrong: a warning, which goes to standard error if VERBENA_LOG is not set. */
void vb_log_complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same with a reason's name. */
void vb_log_complain_reason(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Says what is wrong with the log's settings, and that its file cannot be written. */
void vb_log_check(void);
/* Why something failed: as vb_log() at the level of warnings; `name` is the reason's, for tools that read the
 * history. */
void vb_log_reason(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same with the numbers that the sentence tells, an object of JSON (iba/facts.h); "": none. */
void vb_log_reason_facts(const char *name, const char *facts, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool vb_log_wants_facts(void);

/* What waits to be written, as bits.  Read at each call of the program, so it changes with what waits only.
 */
enum { VB_LOG_LINES = 1, VB_LOG_OTHER = 2 };
extern _Atomic uint8_t vb_log_waits;

static inline bool vb_log_left(void)
{
	return vb_unlikely(atomic_load_explicit(&vb_log_waits, memory_order_relaxed));
}

/* Somebody else who writes where the log does (hca/capture_file.c).  heard() is given each sentence that
 * tells of a failure, whatever the log is set to, and whatever locks are held; written() is called by
 * vb_log_write() while VB_LOG_OTHER is set in vb_log_waits, which he sets and clears. */
void vb_log_also(void (*heard)(const char *sentence), void (*written)(void));

/* Writes the lines that wait, as far as they are taken now; for threads that hold no lock.  Never blocks, is
 * no cancellation point, leaves errno as it was. */
void vb_log_write(void) __attribute__((cold));

static inline void vb_log_tell(void)
{
	if (vb_log_left())
		vb_log_write();
}

/* A call is refused: says why, in one sentence, and returns `err`.  `call` is the public function's name.
 * Refusals of one kind, whose sentences differ in amounts only, are written once a minute: a program may look
 * for the greatest amount that is possible.  All of them are remembered.  Takes errno's value by argument and
 * leaves errno itself as it was. */
int vb_refuse(int err, const char *call, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same for an object that is not destroyed, since others use it; returns EBUSY.  A program that ends
 * without destroying all of them meets this in one call after the other, and mostly does not care: the first
 * in a minute is a warning, the others are written at the level info.  So is one of a call that the program's
 * call carries out (vb_call_begin()), since the program does not get this EBUSY. */
int vb_refuse_busy(const char *call, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Whether vb_refuse() has said anything in this process: a program that ends then has ended for that. */
bool vb_log_has_refused(void);
/* The program's call `name` begins, which may call others of its kind.  Until vb_call_end() what is refused
 * on this thread is said in its name: instead of the other call's, if both are the same library's, or for the
 * same thing (rdma_create_qp() and ibv_create_qp_ex()); else before it.  Of nested calls the outermost
 * counts. Returns what vb_call_end() wants. */
const char *vb_call_begin(const char *name);
void vb_call_end(const char *before);
const char *vb_call_name(void); /* the program's call on this thread; NULL: none that was begun so */
/* Refuses a call by which programs look for what there is: no failure to remember, and written at the level
 * debug only.  Sets errno. */
int vb_decline(int err, const char *call, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
