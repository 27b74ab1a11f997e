/* QP1: management datagrams go to the process whose adapter number the sender names, come there once, in
 * order and whole, and say which port sent them; who is gone is told to who uses it; what is for nobody is
 * lost. */
#include "bytes.h"
#include "gsi.h"
#include "kit.h"
#include "obj/context.h"

enum { MADS = 2000 }; /* at once, as a thousand connects are */

static struct board {
	_Atomic int ready, done;
	_Atomic uint32_t number; /* of the one who answers */
} * board;

static struct vb_hca *hca;
static _Atomic int came;
static _Atomic uint32_t wrong;

static void make_mad(uint8_t mad[VB_MAD_LEN], uint32_t sender, uint32_t n)
{
	kit_fill(mad, VB_MAD_LEN, n);
	memcpy(mad, &sender, 4);
	memcpy(mad + 4, &n, 4);
}

/* The engine of either side: who answers sends each back. */
static void heard(void *answers, const struct vb_gsi_mad *m)
{
	uint8_t want[VB_MAD_LEN];
	struct vb_whom whom;
	uint32_t to;

	memcpy(&to, m->bytes, 4);
	whom = vb_whom_at(to);
	make_mad(want, to, (uint32_t)atomic_load(&came));
	if (memcmp(want, m->bytes, VB_MAD_LEN) || !(m->route.word & VB_GRH_GLOBAL) ||
	    !(m->sgid.high | m->sgid.low))
		atomic_fetch_add(&wrong, 1);
	if (*(bool *)answers)
		CHECK(!vb_gsi_send(hca, &whom, vb_route(VB_GRH_WORD(0, 0, 0), 64, 0), m->bytes));
	atomic_fetch_add(&came, 1);
}

static struct ibv_context *begin(bool *answers)
{
	struct ibv_context *ctx = kit_open();

	hca = vb_hca(vb_context(ctx)->adapter);
	kit_gsi_open(hca, heard, answers);
	return ctx;
}

static void answer(void)
{
	static bool answers = true;
	struct ibv_context *ctx = begin(&answers);

	atomic_store(&board->number, vb_adapter_number(hca->adapter));
	atomic_store(&board->ready, 1);
	kit_until(&board->done, 1);
	kit_until(&came, MADS); /* the last is counted after it is answered */
	CHECK(!atomic_load(&wrong) && atomic_load(&came) == MADS, "%d", atomic_load(&came));
	CHECK(!ibv_close_device(ctx));
	exit(0);
}

int main(void)
{
	static bool answers;
	struct ibv_context *ctx;
	uint8_t mad[VB_MAD_LEN];
	struct vb_whom whom;
	uint32_t own;
	pid_t pid;

	kit_alone();
	board = kit_shared(sizeof *board);
	pid = kit_fork();
	if (!pid)
		answer();
	kit_until(&board->ready, 1);
	ctx = begin(&answers);
	own = vb_adapter_number(hca->adapter);
	whom = vb_whom_at(atomic_load(&board->number));
	make_mad(mad, own, 0);
	CHECK(!vb_gsi_send(hca, &(struct vb_whom){0}, vb_route(VB_GRH_WORD(0, 0, 0), 64, 0), mad));
	for (uint32_t n = 0; n < MADS; n++) {
		make_mad(mad, own, n);
		CHECK(!vb_gsi_send(hca, &whom, vb_route(VB_GRH_WORD(0, 0, 0), 64, 0), mad));
	}
	kit_until(&came, MADS);
	CHECK(!atomic_load(&wrong), "%u", atomic_load(&wrong));
	atomic_store(&board->done, 1);
	CHECK_EQ(kit_reap(pid), 0);
	kit_until(&kit_gsi_gone, 1);
	CHECK(!ibv_close_device(ctx));
	return 0;
}
