/* Wrong programs, and their right twins one line apart: what `verbena run --check` says of each.
 *
 * A program has two connected RC queue pairs, a and b, in one process, unless it says otherwise.  WRONG(x)
 * stands at the one line: x runs in the wrong program only.  They need the system's headers alone. */
#ifndef VB_TESTS_WRONGS_H
#define VB_TESTS_WRONGS_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIE_IF(x)                                                                                    \
	do {                                                                                         \
		if (x) {                                                                             \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #x, strerror(errno)); \
			exit(1);                                                                     \
		}                                                                                    \
	} while (0)

enum { SIZE = 4096, PAGES = 4 };

extern bool wrong;
#define WRONG(x)           \
	do {               \
		if (wrong) \
			x; \
	} while (0)
#define RIGHT(x)            \
	do {                \
		if (!wrong) \
			x;  \
	} while (0)

/* One end: a queue pair, its queues, and registered pages. */
struct end {
	struct ibv_cq *scq, *rcq;
	struct ibv_srq *srq; /* NULL: none */
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *buf; /* PAGES pages */
};
extern struct ibv_context *ctx;
extern struct ibv_pd *pd;
extern struct end a, b;
extern struct ibv_comp_channel *events; /* of receive CQs that are made; NULL: none */

void open_device(void);
void open_end(struct end *e, enum ibv_qp_type type, bool srq);
void open_qp(struct end *e, enum ibv_qp_type type); /* another one, with the queues of the first */
void to_init(struct ibv_qp *qp, enum ibv_qp_type type);
void connect_ends(struct end *x, struct end *y);
void pair(void); /* all of it: a and b, RC, connected */
/* a and b, UD; b has a receive of wr_id 1, and *wr is a SEND of wr_id 5 to it, of 100 bytes. */
void ud_pair(struct ibv_send_wr *wr, struct ibv_sge *sge);
void close_end(struct end *e);
void close_all(void);

struct ibv_sge at(const struct end *e, size_t offset, uint32_t len);
int post(struct end *e, enum ibv_wr_opcode op, uint64_t wr_id, struct ibv_sge sge, unsigned flags,
	 uint64_t to);
int receive(struct end *e, uint64_t wr_id, struct ibv_sge sge);
void done(struct ibv_cq *cq, uint64_t wr_id); /* the next completion is a success of that request */
struct ibv_wc next(struct ibv_cq *cq);

struct program {
	const char *name;
	void (*run)(void);
};
extern const struct program sends[], others[], cms[], callers[], legal[]; /* each ends with an empty one */

#endif
