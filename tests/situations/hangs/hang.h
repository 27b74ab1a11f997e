/* Programs that hang: each is a process, or two, of which `verbena explain PID` has to name the cause with
 * its numbers and what to do; and programs that wait rightly, of which the log has to say nothing.
 *
 * A hang runs in a process of its own.  It says what explain has to know (KNOWS), and then hangs. */
#ifndef VB_TESTS_HANG_H
#define VB_TESTS_HANG_H

#include "kit.h"

struct hang {
	const char *id;
	const char *cause;   /* of docs/waits.md; NULL: none is to be found */
	void (*run)(void);   /* until it hangs */
	const char *unasked; /* what the log says once by itself; NULL: nothing */
};
/* By the rows of docs/waits.md; each list ends with an empty one. */
extern const struct hang requests[], awaited[], polls[], sleeps[], calls[], datagrams[], cms[], more[],
    rights[];

/* What the process has after open_device(), and after open_end() and meet(). */
extern struct ibv_context *ctx;
extern struct ibv_pd *pd;
extern struct kit_end e;
extern struct kit_card far;
extern bool is_peer;   /* after two() */
extern pid_t peer_pid; /* of the process that is not explained, in the one that is */

void two(void); /* makes the second process: its copy of run() goes on with is_peer set */
void open_device(void);
void open_end(int depth);
/* A queue pair in INIT in the place of end->qp, which stays: its receives complete in e's CQ. */
void another_qp(struct kit_end *end, struct ibv_cq *scq, struct ibv_srq *srq);
/* An end of the same device that *b has, connected to e, with an SRQ of 4 receives: it has that many posted,
 * and a limit of 2. */
struct ibv_srq *open_srq_end(struct kit_end *b, int receives);
void exchange(const void *mine, void *theirs, size_t len);
void meet(void);	   /* both say what their queue pair is */
void barrier(void);	   /* both have come here */
void connected(int depth); /* all of it: two processes with connected queue pairs, timeout 14 */
void explain_peer(void);   /* it is the other process that is looked at */

void knows(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
#define KNOWS(...) knows(__VA_ARGS__)
void knows_better(const char *wrong);	   /* what explain must not say */
void hangs(void);			   /* from now on it hangs: the next call blocks */
void stay(void) __attribute__((noreturn)); /* sleeps in pause() */
void poll_for_ever(struct ibv_cq *cq) __attribute__((noreturn));
/* Waits until a thread of this process is blocked in a call (kit_until_blocked() by another thread). */
void start(void *(*f)(void *), void *arg);

/* One completion, which has to be there or come. */
void done(struct ibv_cq *cq);
/* Waits until the CQ has something, without taking it. */
void until_there(struct ibv_cq *cq);

#endif
