/* What waits in a process, and why: the part of `verbena explain` for programs that hang. */
#ifndef VB_TOOLS_WAITS_H
#define VB_TOOLS_WAITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"
#include "inside.h"
#include "iba/waits.h"
#include "peek.h"

struct json_object;

/* ---- processes (world.c) ---- */

/* A process, seen twice: what has changed between moves. */
struct vb_side {
	struct peek at;
	bool read; /* `before` and `in` are there */
	struct vb_inside before, in;
	uint64_t polls[2]; /* the sums of its counts of polls */
	char state;	   /* as /proc has it: T, t, R, S, ... */
	pid_t debugger;	   /* attached to it; 0: none */
	unsigned running;  /* threads of the program that run, at both looks */
};

struct vb_world {
	struct vb_side *sides; /* all that this user's processes show in that network namespace */
	size_t n;
	struct vb_side *self; /* the one that is explained */
};

bool vb_world_open(struct vb_world *w, const struct peek *p); /* pairs with vb_world_close() */
void vb_world_close(struct vb_world *w);

static inline bool vb_side_is_stopped(const struct vb_side *s)
{
	return s->state == 'T' || s->state == 't';
}

static inline bool vb_side_polls(const struct vb_side *s)
{
	return s->polls[0] != s->polls[1];
}

/* Where a connected queue pair leads. */
enum vb_far_how {
	VB_FAR_UNSET,	  /* it is not connected, or of a type that has no connection */
	VB_FAR_NOBODY,	  /* no process has the number */
	VB_FAR_STRANGER,  /* a process has it that cannot be read */
	VB_FAR_ELSEWHERE, /* the address is not of this host, as far as can be seen */
	VB_FAR_HOST,	  /* its packets go over a network, to an address of no process that is seen */
	VB_FAR_SHOWN,	  /* its segment is read, its memory is not */
	VB_FAR_READ,
};
struct vb_far_end {
	enum vb_far_how how;
	struct vb_side *side;
	unsigned device;
	const struct vb_shown_qp *shown;	/* NULL: the number has no entry */
	const struct vb_inside_qp *qp, *before; /* READ only; NULL: no such queue pair */
};
/* What a queue pair shows, by its number; NULL: no process that is seen has it. */
const struct vb_shown_qp *vb_world_shown(const struct vb_world *w, uint32_t qpn);
/* The letter of a process's state in /proc; 0: there is none. */
char vb_process_state(unsigned pid);
struct vb_far_end vb_world_far(const struct vb_world *w, const struct vb_side *s, const struct vb_qp *qp);
/* The process to whose queue pair a queue pair has sent its last datagram; NULL: none that is seen. */
const struct vb_side *vb_world_receiver(const struct vb_world *w, const struct vb_inside *in,
					const struct vb_qp *qp);
/* "PID 12 (server)" */
const char *vb_side_name(const struct vb_side *s, char *buf, size_t size);

/* ---- what was found (waits.c) ---- */

struct vb_wait {
	enum vb_wait_cause cause;
	uint64_t since; /* CLOCK_MONOTONIC; 0: not known */
	char what[320], why[900];
	const struct vb_side *peer; /* the other end; NULL: not known */
	/* Instead of what the cause's row has; "": that */
	enum vb_wait_place place;
	char advice[400];
	char also[200]; /* what else to do, in the process that waits; "": nothing */
};
struct vb_waits {
	struct vb_world world;
	struct vb_wait *all;
	size_t n;
};

/* One more.  what: the object and what it waits for, why: the sentence with the numbers. */
void vb_wait_add(struct vb_waits *l, enum vb_wait_cause cause, uint64_t since, const struct vb_text *what,
		 const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Of the last one that was added: the other end, what to do, and what else to do. */
void vb_wait_peer(struct vb_waits *l, const struct vb_side *peer);
void vb_wait_advise(struct vb_waits *l, enum vb_wait_place place, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void vb_wait_also(struct vb_waits *l, const char *text);
/* How many there are that an idle program does not have; `all`: of all. */
size_t vb_waits_count(const struct vb_waits *l, bool all);

void vb_waits_open(struct vb_waits *l, const struct peek *p);
void vb_waits_close(struct vb_waits *l);
void vb_waits_print(const struct vb_waits *l);
void vb_waits_json(const struct vb_waits *l, struct json_object *o);

/* The parts of the search: wait_request.c, wait_awaited.c, wait_queue.c, wait_call.c, wait_cm.c. */
void vb_wait_requests(struct vb_waits *l, const struct vb_inside_qp *q);
void vb_wait_receives(struct vb_waits *l, const struct vb_inside_qp *q);
void vb_wait_host_request(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_text *what);
void vb_wait_host(struct vb_waits *l, const struct vb_inside_qp *q);
void vb_wait_host_receive(struct vb_waits *l, const struct vb_inside_qp *q, const struct vb_text *what);
void vb_wait_datagrams(struct vb_waits *l, const struct vb_inside_qp *q);
void vb_wait_cq(struct vb_waits *l, const struct vb_inside_cq *c);
void vb_wait_channel(struct vb_waits *l, const struct vb_inside_channel *c);
void vb_wait_srq(struct vb_waits *l, const struct vb_inside_srq *s);
void vb_wait_call(struct vb_waits *l, const struct vb_waiting *w);
void vb_wait_ids(struct vb_waits *l);
void vb_wait_awaited(struct vb_waits *l);

/* Names of objects, as the findings begin with them. */
void vb_name_qp(struct vb_text *t, const struct vb_waits *l, const struct vb_inside_qp *q);
void vb_name_cq(struct vb_text *t, const struct vb_waits *l, const struct vb_inside_cq *c);

/* Whether it got on between the two looks; a request that came in between is new. */
bool vb_wait_moves(const struct vb_side *s, const struct vb_inside_qp *q);
/* Since when the oldest request is outstanding; 0: not known. */
uint64_t vb_wait_since(const struct vb_qp *qp);
/* "2 requests outstanding, the oldest a SEND (wr_id 0x1)", of a process's queue pair. */
void vb_wait_add_request(struct vb_text *t, const struct vb_side *s, const struct vb_qp *qp);

/* Copies the request at an index of the send queue, but for its list. */
bool vb_wait_request_at(const struct vb_inside *in, const struct vb_qp *qp, uint32_t index,
			struct vb_swqe *w);

#endif
