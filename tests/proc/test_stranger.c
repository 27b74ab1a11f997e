/* A QP takes packets from the process at the other end of its path only, though anybody who knows its number
 * and its PSN can send some: the target has two QPs connected to one another, and the initiator, in contact
 * with that process by a QP of its own, sends to one of them as if it were the other. */
#include "pair.h"

static struct kit_end one, two;

/* out: QPN of the one that is sent to, the PSN that it expects, its R_Key and address */
static void make_two(struct kit_pair *d)
{
	kit_end_open(&one, d->pd, 8, 4096);
	kit_end_open(&two, d->pd, 8, 4096);
	kit_connect(&one, &two.card);
	kit_connect(&two, &one.card);
	CHECK(!kit_recv(&two, 7, 0, 64));
	d->board->out[0] = two.card.qpn;
	d->board->out[1] = one.card.psn;
	d->board->out[2] = two.card.rkey;
	d->board->out[3] = (int64_t)two.card.addr;
}

/* Nothing has come; what its own peer sends does. */
static void look_at_two(struct kit_pair *d)
{
	struct ibv_wc wc;

	(void)d;
	CHECK(!ibv_poll_cq(two.cq, 1, &wc));
	for (int i = 0; i < 4096; i++)
		CHECK(!two.buf[i]);
	CHECK(!kit_post(&one, IBV_WR_SEND, 8, 0, 64, NULL, 0));
	wc = kit_wait(&two, 20);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 7);
	wc = kit_wait(&one, 20);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 8);
	kit_end_close(&one);
	kit_end_close(&two);
}

static void sends_as_another(struct kit_pair *d)
{
	for (int i = 0; i < 2; i++) {
		struct kit_card card = d->board->card[1][0];
		struct kit_end e;
		struct ibv_wc wc;

		kit_duo_there(d, make_two);
		card.qpn = (uint32_t)d->board->out[0];
		card.rkey = (uint32_t)d->board->out[2];
		card.addr = (uint64_t)d->board->out[3];
		kit_end_open(&e, d->pd, 8, 4096);
		memset(e.buf, 0x55, 4096);
		e.card.psn = (uint32_t)d->board->out[1];
		kit_connect_with(&e, &card, 12, 2); /* 16.8 ms, twice again */
		CHECK(!kit_post(&e, i ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, 1, 0, 64, &card, 0));
		wc = kit_wait(&e, 20);
		CHECK(wc.status == IBV_WC_RETRY_EXC_ERR, "%s", ibv_wc_status_str(wc.status));
		kit_duo_there(d, look_at_two);
		kit_end_close(&e);
	}
}

int main(void)
{
	KIT_DUO_BOTH(sends_as_another);
	return 0;
}
