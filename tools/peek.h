/* Looking into another process that uses Verbena: its adapters' segments, read-only, without its help. */
#ifndef VB_TOOLS_PEEK_H
#define VB_TOOLS_PEEK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "iba/limits.h"
#include "options.h"

struct json_object;

struct peek {
	pid_t pid;
	uid_t user;
	uint64_t network;    /* the inode of its network namespace; 0: not known */
	char program[64];    /* what it calls itself */
	const uint8_t *base; /* of one of its segments, VB_SEG_SIZE bytes; what stands there may change or be
				rubbish */
	unsigned n;	     /* it has one for each device that it has open, by index: */
	const uint8_t *all[VB_MAX_DEVICES];
	uint64_t inode[VB_MAX_DEVICES];
};

/* The command line of `verbena explain` and `verbena mr`: [--json] [PID].  Finds the process, or the only one
 * of this user if no PID is given.  false: it was said why not. */
enum { VB_PEEK_OPTIONS = 1 };
extern const struct vb_option vb_peek_options[VB_PEEK_OPTIONS];
struct peek_ask {
	bool json;
	struct peek at;
};
bool vb_peek_open(struct peek_ask *a, const struct vb_command *c, int argc, char **argv);
void vb_peek_close(struct peek *p);

/* What another process wrote goes to a terminal and into JSON: UTF-8 without control characters; else a '?'.
 */
void vb_peek_clean(char *text);

/* The process that has attached to it by ptrace(2), as debuggers and strace do; 0: none. */
pid_t vb_peek_debugger(pid_t pid);

/* Whether its network namespace is this process's own, so that both can meet. */
bool vb_peek_is_here(const struct peek *p);

/* Every further process of that user that has an adapter, by PID. */
size_t vb_peek_all(struct peek **list, uid_t user); /* *list: free() it, after vb_peek_close() of each */

/* Processes of that user that have an adapter of another version. */
struct vb_peek_other {
	pid_t pid;
	uint32_t version;
};
size_t vb_peek_others(struct vb_peek_other **list, uid_t user); /* *list: free() it */

/* Prints and frees. */
int vb_peek_print_json(struct json_object *o);

#endif
