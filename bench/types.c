/* Half round trips of 8 B SENDs over each type of queue pair, and over RC by the extended calls: in turns, so
 * that what the machine does meanwhile befalls all. */
#include "vbench.h"

#define TURNS 100u
#define TURN  500u /* messages */

static const struct way {
	const char *name;
	enum ibv_qp_type type;
	bool extended;
} ways[] = {
    {"types_rc", IBV_QPT_RC, false},
    {"types_uc", IBV_QPT_UC, false},
    {"types_ud", IBV_QPT_UD, false},
    {"types_extended", IBV_QPT_RC, true},
};

enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static void post(struct side *s, unsigned flags)
{
	struct ibv_qp_ex *qp;

	if (!s->extended) {
		side_post(s, IBV_WR_SEND, 8, IBV_SEND_INLINE | flags);
		return;
	}
	qp = ibv_qp_to_qp_ex(s->qp);
	ibv_wr_start(qp);
	qp->wr_id = 0;
	qp->wr_flags = flags;
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, s->buf, 8);
	errno = ibv_wr_complete(qp);
	if (errno)
		die("ibv_wr_complete");
}

/* Takes a completion, if there is one, with what programs look at of it. */
static unsigned take_one(struct side *s, struct ibv_cq *cq)
{
	struct ibv_poll_cq_attr attr = {0};
	struct ibv_cq_ex *ex = (struct ibv_cq_ex *)cq;

	if (!s->extended)
		return side_poll(cq, 1);
	if (ibv_start_poll(ex, &attr))
		return 0;
	if (ex->status || ibv_wc_read_opcode(ex) == IBV_WC_DRIVER1)
		die("a completion");
	ibv_end_poll(ex);
	return 1;
}

static void wait_one(struct side *s, struct ibv_cq *cq)
{
	while (!take_one(s, cq))
		;
}

static void turn(struct side *s, double *v)
{
	uint64_t last = ticks();

	for (unsigned i = 0; i < TURN; i++) {
		bool signal = i % LIST == LIST - 1;
		uint64_t t;

		side_receive(s, 1, 8); /* for the next: there is one already */
		if (!s->client)
			wait_one(s, s->rcq);
		post(s, signal ? IBV_SEND_SIGNALED : 0);
		if (s->client)
			wait_one(s, s->rcq);
		if (signal)
			wait_one(s, s->scq);
		t = ticks();
		v[i] = (double)(t - last) / 2;
		last = t;
	}
}

void types(struct side *s)
{
	static double v[WAYS][TURNS * TURN];
	struct side w[WAYS];
	uint64_t began_ticks;
	double began;

	for (unsigned i = 0; i < WAYS; i++) {
		w[i] = (struct side){.sock = s->sock, .type = ways[i].type, .extended = ways[i].extended};
		side_join(&w[i], s);
		side_receive(&w[i], 1, 8);
	}
	side_meet(s);
	began = now();
	began_ticks = ticks();
	for (unsigned k = 0; k < TURNS; k++)
		for (unsigned i = 0; i < WAYS; i++)
			turn(&w[i], v[i] + k * TURN);
	for (unsigned i = 0; i < WAYS; i++) {
		if (s->client)
			figure(ways[i].name,
			       spread_rank(v[i], TURNS * TURN, 0.5) * spread_unit(began, began_ticks));
		side_close(&w[i]);
	}
}
