/* Situations that users of RDMA software reported, each as a program that gets into it: what Verbena says
 * must name the true cause with the right numbers, in the log and to `verbena explain`.
 *
 * A situation runs in a process of its own, with its own log and profile.  docs/situations.md lists them. */
#ifndef VB_TESTS_SITUATION_H
#define VB_TESTS_SITUATION_H

#include <errno.h>
#include <fcntl.h>

#include "bytes.h"
#include "kit.h"

enum { SKIP = 77 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

struct situation {
	const char *id;	     /* as in docs/situations.md: "N1.13" */
	void (*run)(void);   /* until it has SAID what was to be said; leaves the device open */
	const char *profile; /* NULL: the default one */
};
extern const struct situation registration[], limits[], protection[], lifetime[],
    connections[]; /* each ends with an empty one */

/* What the situation's process has, made before run(). */
extern struct ibv_context *ctx;
extern struct ibv_pd *pd;
extern struct kit_end a, b; /* pair_open() */

/* Two connected queue pairs of this process: a asks, b answers.  b's queue pair permits everything. */
void pair_open(void);
/* The completion of a's request 1. */
void expect(enum ibv_wc_status status);
/* A WRITE of a to b's memory, say. */
void ask(enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr, uint32_t len);

/* The log has said this since the last silence(), and `verbena explain` will know it too. */
void said(int line, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define SAID(...) said(__LINE__, __VA_ARGS__)
/* The log has said this, and `verbena explain` does not know it: a child of the situation said it. */
void logged(int line, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define LOGGED(...) logged(__LINE__, __VA_ARGS__)
/* The log has not said this since the last silence(). */
void said_not(int line, const char *what);
#define SAID_NOT(what) said_not(__LINE__, what)
/* `verbena explain` knows this, whether or not the log does. */
void kept(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Forgets what was said so far. */
void silence(void);

/* Leaves the situation, which this machine cannot show. */
void skip(const char *why) __attribute__((noreturn));

/* Memory with nothing mapped on either side of it. */
uint8_t *alone(size_t size, int prot);

#endif
