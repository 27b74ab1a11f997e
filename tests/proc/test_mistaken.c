/* Mistakes that an adapter does not let pass, and that nothing in shared memory would have to refuse: each
 * ends over the ring as it does where requests are placed directly. */
#include "duo.h"
#include "iba/profile.h"
#include "iba/reason.h"

enum { MANY = 16 };

/* ---- keys ---- */

/* A program sends its own R_Key where the peer's belongs.  Both ends have made the same objects in the same
 * order, as the two ends of a program do, so only where keys begin tells them apart. */
static void own_key(struct duo *d)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						 IBV_WR_ATOMIC_FETCH_AND_ADD};
	struct kit_card *mine = &d->board->card[0], *theirs = &d->board->card[1];

	for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
		/* both of them: the address may be the right one */
		CHECK(duo_do(d, ops[i], 8, theirs->addr, mine->rkey) == IBV_WC_REM_ACCESS_ERR);
		CHECK(duo_do(d, ops[i], 8, mine->addr, mine->rkey) == IBV_WC_REM_ACCESS_ERR);
		CHECK(duo_do(d, ops[i], 8, theirs->addr, theirs->rkey) == IBV_WC_SUCCESS);
	}
}

static void in_every_profile(void)
{
	for (size_t i = 0; vb_profile_at(i); i++) {
		setenv("VERBENA_PROFILE", vb_profile_at(i)->name, 1);
		printf("%s:\n", vb_profile_at(i)->name);
		fflush(stdout);
		DUO_BOTH(own_key);
	}
	unsetenv("VERBENA_PROFILE");
}

static void first_keys_differ(void)
{
	uint32_t(*keys)[2] = kit_shared(MANY * sizeof *keys);
	pid_t pid[MANY];

	for (int i = 0; i < MANY; i++) {
		pid[i] = kit_fork();
		if (!pid[i]) {
			struct ibv_context *ctx = kit_open();
			struct kit_end e;

			kit_end_open(&e, ibv_alloc_pd(ctx), 4, 64);
			keys[i][0] = e.mr->lkey;
			keys[i][1] = e.mr->rkey;
			exit(0);
		}
	}
	for (int i = 0; i < MANY; i++)
		CHECK(!kit_reap(pid[i]));
	for (int i = 0; i < MANY; i++) {
		CHECK(keys[i][0] && keys[i][1]);
		for (int k = 0; k < i; k++)
			CHECK(keys[i][0] != keys[k][0] && keys[i][1] != keys[k][1], "0x%08x", keys[i][0]);
	}
	munmap(keys, MANY * sizeof *keys);
}

int main(void)
{
	first_keys_differ();
	in_every_profile();
	puts("no mistake passed");
	return 0;
}
