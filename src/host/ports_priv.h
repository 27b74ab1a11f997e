/* Ports from inside: shared by the files host/ports*.c. */
#ifndef VB_HOST_PORTS_PRIV_H
#define VB_HOST_PORTS_PRIV_H

#include <pthread.h>

#include "base/list.h"
#include "base/own.h"
#include "host/ports.h"
#include "iba/limits.h"

enum { VB_PORT_SPACES = 4, VB_PORT_NUMBERS = 65536, VB_PORT_BUCKETS = 1024, VB_PORTS_SHUNNED = 8 };

/* A range of offsets in the namespace's file. */
struct vb_span {
	uint64_t at, len;
};

/* ports_names.c: names as offsets, and the kernel's answers about them */
struct vb_registry {
	int fd; /* -1: none */
	struct vb_own own;
};

int vb_port_space(uint32_t space); /* its index, -1: there is no such space */
bool vb_port_is_wild(const struct vb_port_name *n);
bool vb_port_families_meet(uint16_t a, bool a_only, uint16_t b, bool b_only);
/* Whether two that are held by different ids cannot both be. */
bool vb_port_names_clash(const struct vb_port_name *a, const struct vb_port_name *b);
struct vb_span vb_port_claim(const struct vb_port_name *n);
struct vb_span vb_port_claims(int space, uint32_t first,
			      uint32_t count); /* all that there can be on these ports */
uint32_t vb_port_first(uint64_t at);	       /* the port of a claim at that offset */
struct vb_span vb_port_listener(const struct vb_port_name *n, uint32_t number);

int vb_registry_open(struct vb_registry *r);
void vb_registry_close(struct vb_registry *r);
bool vb_registry_whole(const struct vb_registry *r); /* its descriptor is still ours */
/* Takes a span, of which some may be held already, and lets go of one.  0, or errno of fcntl(). */
int vb_registry_hold(const struct vb_registry *r, struct vb_span s);
int vb_registry_drop(const struct vb_registry *r, struct vb_span s);
/* Whether others hold anything in it: 0: nothing; EADDRINUSE, and some of it in *found if that is not NULL;
 * errno. */
int vb_registry_others(const struct vb_registry *r, struct vb_span s, struct vb_span *found);
/* Whether others hold something that clashes with a name: 0, EADDRINUSE, and some of it in *found if that is
 * not NULL, or errno. */
int vb_registry_clash(const struct vb_registry *r, const struct vb_port_name *n, struct vb_span *found);
/* The call of this thread that failed last, in words. */
const char *vb_registry_failed(void);

/* ports_locks.c: the locks that a long one hides.  Offsets of listeners, in order. */
struct vb_listeners {
	uint64_t *at; /* to be freed */
	uint32_t n, room;
};
/* The offset of a lock that represents a listener: this bit, and its adapter's number below. */
enum { VB_LISTENER_AT = 62 };
static inline bool vb_port_is_listener(uint64_t at)
{
	return at >> VB_LISTENER_AT && at & (VB_ADAPTERS - 1);
}
/* 0 or errno; reads /proc/locks, which may take some ms: no lock may be held. */
int vb_listeners_read(const struct vb_registry *r, struct vb_listeners *l);
uint32_t vb_listeners_from(const struct vb_listeners *l, uint64_t at); /* the first that is not before `at` */
int vb_locks_each(const struct vb_registry *r, void (*each)(struct vb_span s, void *arg), void *arg);
/* The longest lock that has any of `in`; false: there is none. */
bool vb_locks_longest(const struct vb_registry *r, struct vb_span in, struct vb_span *found);

/* How listeners are looked for. */
struct vb_search {
	const struct vb_listeners *behind; /* NULL: /proc/locks has not been read */
	const uint32_t *shunned;	   /* numbers that are passed over */
	uint32_t nshunned;
};
bool vb_port_is_shunned(const struct vb_search *how, uint64_t at);
/* Who of the others listens at n's address: 0; ENOENT; EBUSY: a lock that is no listener's is in the way, and
 * `behind` is not known; or errno. */
int vb_registry_find(const struct vb_registry *r, const struct vb_port_name *n, const struct vb_search *how,
		     uint32_t *number);
/* Whether others hold anything where listeners at n's address stand, and what. */
bool vb_registry_hides(const struct vb_registry *r, const struct vb_port_name *n, struct vb_span *found);
/* One's turn to claim; may take some ms. */
void vb_registry_enter(const struct vb_registry *r);
void vb_registry_leave(const struct vb_registry *r);

/* Whether somebody who holds that span holds something that clashes with a name. */
bool vb_port_span_clashes(struct vb_span s, const struct vb_port_name *n);

/* ports_who.c: the PID of a process that does, this one's maybe; 0: that cannot be told */
uint32_t vb_registry_who(const struct vb_registry *r, const struct vb_port_name *n);

/* ports_blocks.c: ephemeral ports */
enum { VB_BLOCK_MIN = 8, VB_BLOCK_MAX = 256 };
struct vb_port_block {
	struct vb_list node; /* among those of its space with or without a free port */
	int space;
	uint32_t first, count, used;
	uint32_t next; /* where the search for a free one begins */
	uint64_t taken[VB_BLOCK_MAX / 64];
};

struct vb_ephemeral {
	uint32_t low, high; /* the range, both included; set once */
	struct {
		struct vb_list open, full; /* blocks */
		uint32_t blocks;
		uint32_t next;			     /* where the search for a new one begins */
		uint64_t ours[VB_PORT_NUMBERS / 64]; /* ports held here, and all of our blocks */
	} space[VB_PORT_SPACES];
};

void vb_ephemeral_init(struct vb_ephemeral *e);
void vb_ephemeral_free(struct vb_ephemeral *e); /* blocks; the locks are the caller's */
bool vb_ephemeral_ours(const struct vb_ephemeral *e, int space, uint32_t port);
void vb_ephemeral_mark(struct vb_ephemeral *e, int space, uint32_t port, bool ours);
/* A port of a block, taking a new one where those at hand are full: 0, EADDRNOTAVAIL or errno. */
int vb_ephemeral_take(struct vb_ephemeral *e, const struct vb_registry *r, int space, uint32_t *port);
/* A port outside all blocks that nobody has a claim on; it is not claimed. */
int vb_ephemeral_seek(struct vb_ephemeral *e, const struct vb_registry *r, int space, uint32_t *port);
/* Our block that has this port, NULL: none.  A port of it becomes used, and nobody's again: then a block that
 * is all unused is given back. */
struct vb_port_block *vb_ephemeral_block(const struct vb_ephemeral *e, int space, uint32_t port);
void vb_block_use(struct vb_ephemeral *e, struct vb_port_block *b, uint32_t port);
void vb_block_give(struct vb_ephemeral *e, const struct vb_registry *r, struct vb_port_block *b,
		   uint32_t port);

/* Two mutexes.  `turns` is held by who binds or begins to listen, over its turn in the namespace; `lock`, a
 * leaf, guards all else, and is held over some calls of fcntl(), none of which waits.  Order: turns, lock. */
struct vb_ports {
	struct vb_list node; /* of all of the process; guarded by a lock of ports.c */
	pthread_mutex_t turns, lock;
	struct vb_registry registry; /* set once */
	_Atomic bool dead;	     /* we are a forked child */
	_Atomic bool told;	     /* that it is lost */
	struct vb_ephemeral ephemeral;
	struct vb_list buckets[VB_PORT_BUCKETS]; /* struct vb_port, by space and number */
	struct vb_listeners behind;		 /* as they were at `looked` */
	uint64_t looked;			 /* 0: never */
	_Atomic int unseen;			 /* errno of the last look; 0: it has seen all */
	struct {
		uint32_t number;
		uint64_t until;
	} shunned[VB_PORTS_SHUNNED]; /* vb_ports_shun() */
};

/* Whether the number of the listener at that offset is shunned. */
bool vb_ports_shuns(struct vb_ports *p, uint64_t at);
/* An id of this process that holds what clashes with `name`.  Under ports->lock. */
bool vb_ports_clash_here(struct vb_ports *p, const struct vb_port_name *name);

#endif
