/* Checked processes: those that run under a sanitizer, or are asked to check their use of buffers.
 *
 * A checker is told what the adapter has and does: a row of functions for each means (AddressSanitizer,
 * ThreadSanitizer, ...).  The adapter has a request's memory from the post until the program polls the
 * completion that covers the request, also if that is the completion of a later one.  This file keeps the
 * requests that the adapter has, and calls the rows.
 *
 * A process without a checker executes nothing of this.  vb_check_on is read when objects are made, and they
 * then get other functions for post and poll; in the key table (mem/keys.h) no key is found the short way, so
 * that each access to the program's memory comes by mem/access.c.  A checked process carries out each access
 * to its memory itself: peers place nothing there, and collect nothing from there (hca/direct.c). */
#ifndef VB_CHECK_CHECK_H
#define VB_CHECK_CHECK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/ranges.h"

/* A build of Verbena with a sanitizer looks for its own mistakes; the program's then go unnoticed. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VB_CHECK_SELF 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define VB_CHECK_SELF 1
#endif
#endif
#ifndef VB_CHECK_SELF
#define VB_CHECK_SELF 0
#endif

enum { VB_CHECKERS = 6 }; /* rows in vb_check_rows */

/* Whether this process is checked.  Set by vb_check_begin(), before there is a device; never cleared but in a
 * forked child, if no row stays at work there. */
extern bool vb_check_on;
/* A row carries out an atomic of its own where the adapter does. */
extern bool vb_check_repeats_atomics;
/* fork() has not returned in this child yet. */
extern bool vb_check_in_fork;

enum vb_check_kind { VB_CHECK_SENDS, VB_CHECK_RECEIVES, VB_CHECK_SHARED /* an SRQ's */ };

/* Memory of the program, by its address in this process. */
struct vb_check_piece {
	uint8_t *at;
	uint32_t length;
	uint32_t lkey;
	uint32_t number;      /* in the program's list, from 0 */
	struct vb_range held; /* the same memory, in vb_check_pieces while the adapter has it */
	struct vb_check_request *of;
};

/* A request that the adapter has. */
struct vb_check_request {
	struct vb_list on_all; /* of all such requests of the process; unlinked: the adapter has it no more */
	struct vb_list on_id;  /* of a shared queue: of those whose wr_id has the same hash, oldest first */
	struct vb_check_queue *queue;
	uint64_t age; /* later ones have more */
	uint64_t wr_id;
	uint32_t index;	   /* in its queue; runs freely */
	uint8_t opcode;	   /* enum ibv_wr_opcode; of a receive 0 */
	bool writes;	   /* the adapter writes to the pieces: a receive, READ, atomic; else it reads them */
	const void *where; /* the program's code that posted it: a return address */
	void *const *frame;	 /* while it is being posted: as in struct vb_caller */
	void *kept[VB_CHECKERS]; /* each row's own, by its place; NULL when the request is posted */
	uint32_t num;		 /* pieces that are memory: without empty ones and wrong keys */
	struct vb_check_piece piece[];
};

/* The requests of one queue that the adapter has: those from `from` to `to`, in the order of their posts.  Of
 * a shared one some may have returned before others. */
struct vb_check_queue {
	enum vb_check_kind kind;
	uint32_t number; /* of the QP, or of the SRQ */
	struct vb_list on_all, on_xrc;
	struct vb_check_queue *const *shared; /* of sends: where the queue is of the SRQ that the QP receives
						 from, NULL: it has none */
	const void *cq;			      /* of an SRQ of XRC: where its completions go */
	const uint32_t *taken;		      /* of an SRQ: how many requests messages have taken */
	const _Atomic uint32_t *freed;	      /* else: up to which index completions were polled */
	bool failed; /* a completion that was polled is no success: others may be flushed */
	uint32_t from, to, mask;
	size_t stride;
	uint8_t *slots;
	struct vb_list *ids;	 /* of a shared one: mask + 1 heads */
	void *kept[VB_CHECKERS]; /* each row's own */
};

/* The adapter touches memory behind a key. */
enum vb_check_what { VB_CHECK_READ, VB_CHECK_WRITE, VB_CHECK_ATOMIC };
struct vb_check_touch {
	enum vb_check_what what;
	uint8_t *at;
	uint64_t length;
	bool remote;  /* for a peer's request */
	uint32_t qpn; /* remote: the QP that it came to; else 0 */
	uint32_t key;
	/* When it has touched, and of an atomic if vb_check_repeats_atomics: the memory is not there, or
	 * lacks the permission. */
	bool failed;
};

/* All functions but begin() are called under vb_check_lock, with locks of the adapter held, in any thread. A
 * member may be NULL. */
struct vb_checker {
	const char *name;
	bool in_child; /* it stays at work in a forked child, where the program may begin anew */
	bool (*begin)(unsigned place); /* false: its means is not in this process.  place: in kept[] */
	/* This thread has copied inline data of the program's into the library's memory. */
	void (*inlined)(void *to, const void *from, size_t n);
	/* The adapter is about to send that copy; before posted() of the request, which has no pieces. */
	void (*sends_inline)(const struct vb_check_request *r, void *copy, size_t n);
	/* The adapter is about to have the request. */
	void (*posted)(struct vb_check_request *r);
	/* This thread has polled the completion that covers the requests of q up to `index`; before
	 * returned() of those. */
	void (*polled)(struct vb_check_queue *q, uint32_t index);
	/* The program has the request's memory again: by a poll, or since the queue is reset or ends. */
	void (*returned)(struct vb_check_request *r, bool polled);
	/* Before and after the adapter touches memory; of an atomic before only. */
	void (*touches)(const struct vb_check_touch *t);
	void (*touched)(const struct vb_check_touch *t);
	void (*queue_ends)(struct vb_check_queue *q);
	/* Peers cannot reach some memory any more, and this thread has waited for those that did. */
	void (*revoked)(void);
	/* Memory of the library goes from thread to thread: both call it, the one that lets go of it before.
	 * In any thread, without the lock. */
	void (*handed)(void);
	void (*hush)(bool on); /* nothing is reported of what this thread does meanwhile */
	void (*forked)(void);  /* in a child: the adapter has nothing here; returned() was called for all */
};
/* The rows, in the order in which they are called; NULL ends. */
extern const struct vb_checker *const vb_check_rows[];

/* Once, before the first device is opened: asks each row whether it is at work here.  above: a row of a
 * higher layer, which comes last. */
void vb_check_begin(const struct vb_checker *above);
/* Around fork(), in this order; in the child only rows that stay are at work. */
void vb_check_before_fork(void);
void vb_check_after_fork(bool child);

extern struct vb_lock vb_check_lock;	 /* guards all queues and requests; a leaf */
extern struct vb_list vb_check_requests; /* those that the adapter has, oldest first */
/* Their pieces, by whether the request writes to them.  Guarded by the lock, too. */
extern struct vb_range *vb_check_pieces[2];

static inline struct vb_check_piece *vb_check_piece(struct vb_range *r)
{
	return vb_containerof(r, struct vb_check_piece, held);
}

/* A queue with room for `entries` requests of up to max_sge pieces; NULL: no memory.  Ends with
 * vb_check_queue_end(), which returns all of its requests. */
struct vb_check_queue *vb_check_queue_new(enum vb_check_kind kind, uint32_t number, uint32_t entries,
					  uint32_t max_sge);
/* An SRQ of XRC, whose completions go to cq. */
void vb_check_queue_xrc(struct vb_check_queue *q, const void *cq);
void vb_check_queue_end(struct vb_check_queue *q);
/* A QP of a shared queue ends, and completions of it are not polled any more: what messages have taken may be
 * any of its requests, so all of these return. */
void vb_check_release_taken(struct vb_check_queue *q);
/* The queue begins anew, at index 0. */
void vb_check_queue_reset(struct vb_check_queue *q);

/* Posting, with the lock held, before the adapter can see the request: vb_check_slot() is where to write it
 * down (queue and index are), vb_check_posted() tells the rows. */
struct vb_check_request *vb_check_slot(struct vb_check_queue *q, uint32_t index);
void vb_check_posted(struct vb_check_request *r);
/* Before it, if the request has inline data. */
void vb_check_sends_inline(const struct vb_check_request *r, void *copy, size_t n);
/* Earlier, without the lock: n bytes of inline data were copied. */
void vb_check_inlined(void *to, const void *from, size_t n);

/* This thread has polled a completion of the queue pair `qpn` from `cq`.  A poll may return several.  Then
 * vb_check_failed() comes first, for each that is no success. */
void vb_check_polled(uint32_t qpn, uint64_t wr_id, const void *cq);
void vb_check_failed(uint32_t qpn);

/* The adapter touches memory: before it does, and after. */
void vb_check_touches(const struct vb_check_touch *t);
void vb_check_touched(const struct vb_check_touch *t);

/* This thread has taken a right from peers: it deregistered a region, or changed a queue pair's state. */
void vb_check_revoked(void);
/* An object, or what is told of one, is put down for another thread, or is taken from there. */
void vb_check_handed(void);

/* Rows call these while they hold the lock.  The queue of that number, NULL: none.  Its slot for an index,
 * whose address is the same for all of the queue's life. */
struct vb_check_queue *vb_check_queue_of(uint32_t number, enum vb_check_kind kind);
struct vb_check_request *vb_check_slot_at(const struct vb_check_queue *q, uint32_t index);
/* Whether VERBENA_CHECK has this word, between commas: "on", "guard", "no-remote". */
bool vb_check_has_word(const char *word);
/* Rows call these while they hold the lock.  A piece in [at, at + length) of a request other than `but` that
 * writes to it, or that reads it; NULL: none.  And the oldest request with such a piece, which may take a
 * look at all of them. */
struct vb_check_piece *vb_check_any(const void *at, uint64_t length, bool writes,
				    const struct vb_check_request *but);
struct vb_check_request *vb_check_find(const void *at, uint64_t length, bool writes);
/* "the receive of wr_id 5 on QP 0x000001, posted at main+0x1f (prog)": its name in sentences. */
const char *vb_check_name(char *text, size_t size, const struct vb_check_request *r);
/* Says a sentence about the use of buffers, a warning of that kind.  It goes to standard error if there is no
 * log, since the means that stops the program writes there. */
void vb_check_say(const char *kind, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Whether a mistake at a place of the program is to be written: a loop that makes it a million times is told
 * a few times.  false: it has been counted, and that is all.  The caller holds vb_check_lock. */
bool vb_check_is_news(const char *kind, const void *where);
/* The program sends that byte of a piece, or of its inline data, which it never set. */
void vb_check_say_unset(const struct vb_check_request *r, uint32_t piece, size_t byte);
void vb_check_say_unset_inline(const struct vb_check_request *r, size_t byte);

extern const struct vb_checker vb_check_asan, vb_check_tsan, vb_check_memcheck, vb_check_msan;

#endif
