/* What a queue pair has sent and received, as an adapter shows it to tools in its segment.  The owner alone
 * writes, under the queue pair's lock; the words are whole for a reader, and what is behind one may be newer.
 */
#ifndef VB_IBA_TRAFFIC_H
#define VB_IBA_TRAFFIC_H

#include <stdint.h>

#include "base/lock.h"

enum vb_traffic_count {
#define TRAFFIC(name, json, mlx5, rxe, help) VB_TRAFFIC_##name,
#include "iba/traffic_list.h"
#undef TRAFFIC
	VB_TRAFFIC_COUNTS
};

/* A common message adds to two words. */
struct vb_traffic {
	/* The two that are added to together do not stand side by side: the compiler would make vectors of
	 * them, which takes more instructions. */
	uint64_t sent;		 /* requests begun */
	uint64_t received;	 /* messages */
	uint64_t sent_bytes;	 /* what requests carry there, and answers to READs */
	uint64_t received_bytes; /* what messages bring, and the READs of this end */
	uint64_t count[VB_TRAFFIC_COUNTS];
} __attribute__((aligned(VB_LINE)));

/* Of the queue pairs of an adapter that have been destroyed. */
struct vb_traffic_past {
	_Atomic uint32_t seq; /* odd: one of them is being added */
	struct vb_traffic all;
	_Atomic uint64_t wrong_icrcs; /* of the adapter itself: VB_TRAFFIC_WRONG_ICRC, not in `all` */
};

struct vb_traffic_row {
	const char *name, *mlx5, *rxe, *help;
};
extern const struct vb_traffic_row vb_traffic_rows[VB_TRAFFIC_COUNTS];

/* A request begins. */
static inline void vb_traffic_send(struct vb_traffic *t, uint32_t bytes)
{
	t->sent++;
	t->sent_bytes += bytes;
}

static inline void vb_traffic_receive(struct vb_traffic *t, uint32_t bytes)
{
	t->received++;
	t->received_bytes += bytes;
}

/* Adds what one has counted to a sum. */
void vb_traffic_add(struct vb_traffic *sum, const struct vb_traffic *t);

#endif
