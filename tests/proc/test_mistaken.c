/* Mistakes that an adapter does not let pass, and that nothing in shared memory would have to refuse: each
 * ends over the ring as it does where requests are placed directly. */
#include "pair.h"
#include "profiles.h"
#include "iba/reason.h"

enum { MANY = 16 };

static int log_fd; /* both processes write to it */

/* ---- keys ---- */

/* A program sends its own R_Key where the peer's belongs.  Both ends have made the same objects in the same
 * order, as the two ends of a program do, so only where keys begin tells them apart. */
static void own_key(struct kit_pair *d)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						 IBV_WR_ATOMIC_FETCH_AND_ADD};
	struct kit_card *mine = &d->board->card[0][0], *theirs = &d->board->card[1][0];

	for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
		/* both of them: the address may be the right one */
		CHECK(kit_duo_do(d, ops[i], 8, theirs->addr, mine->rkey) == IBV_WC_REM_ACCESS_ERR);
		CHECK(kit_duo_do(d, ops[i], 8, mine->addr, mine->rkey) == IBV_WC_REM_ACCESS_ERR);
		CHECK(kit_duo_do(d, ops[i], 8, theirs->addr, theirs->rkey) == IBV_WC_SUCCESS);
	}
}

static void in_every_profile(void)
{
	for (size_t i = 0; kit_profile(i); i++) {
		setenv("VERBENA_PROFILE", kit_profile(i)->name, 1);
		printf("%s:\n", kit_profile(i)->name);
		fflush(stdout);
		KIT_DUO_BOTH(own_key);
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
		CHECK_EQ(kit_reap(pid[i]), 0);
	for (int i = 0; i < MANY; i++) {
		CHECK(keys[i][0] && keys[i][1]);
		for (int k = 0; k < i; k++)
			CHECK(keys[i][0] != keys[k][0] && keys[i][1] != keys[k][1], "0x%08x", keys[i][0]);
	}
	munmap(keys, MANY * sizeof *keys);
}

/* ---- what both ends must agree upon ---- */

/* How the two ends are connected; each from its own point of view, in board->in. */
enum { MY_MTU, THEIR_MTU, MY_PSN, THEIR_PSN, RQ_AHEAD, READS };
enum { PSN_0 = 0xfffff0, PSN_1 = 0x777 }; /* of the initiator, of the target */

/* The target expects RQ_AHEAD more than the initiator sends. */
static void connect_so(struct kit_pair *d)
{
	const int64_t *in = d->board->in;
	const struct kit_card *peer = &d->board->card[!d->me][0];
	uint32_t rq = (uint32_t)(d->me ? in[MY_PSN] + in[RQ_AHEAD] : in[THEIR_PSN]) & 0xffffff;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
				.path_mtu = (enum ibv_mtu)in[d->me ? THEIR_MTU : MY_MTU],
				.dest_qp_num = peer->qpn,
				.rq_psn = rq,
				.max_dest_rd_atomic = (uint8_t)in[READS],
				.min_rnr_timer = 1,
				.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid}}};

	CHECK(!ibv_modify_qp(d->end[0].qp, &a,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
				 .sq_psn = (uint32_t)in[d->me ? THEIR_PSN : MY_PSN],
				 .timeout = 11, /* 8 ms */
				 .retry_cnt = 2,
				 .rnr_retry = 7,
				 .max_rd_atomic = 4};
	CHECK(!ibv_modify_qp(d->end[0].qp, &a,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				 IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* RESET, and on the way to be connected anew. */
static void reset(struct kit_pair *d)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};
	struct ibv_wc wc;

	CHECK(!ibv_modify_qp(d->end[0].qp, &a, IBV_QP_STATE));
	while (ibv_poll_cq(d->end[0].cq, 1, &wc) > 0)
		;
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = KIT_ALL};
	CHECK(!ibv_modify_qp(d->end[0].qp, &a,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	if (!d->me)
		CHECK(!kit_recv(&d->end[0], 1000, 0, 0)); /* the target's hello */
}

static void reset_and_connect(struct kit_pair *d)
{
	reset(d);
	connect_so(d);
}

static void say_hello(struct kit_pair *d)
{
	CHECK(!kit_post(&d->end[0], IBV_WR_SEND, 1, 0, 0, NULL, 0));
	CHECK_EQ(kit_wait(&d->end[0], 20).status, IBV_WC_SUCCESS);
}

/* A message from the target: from then on it permits what it permits. */
static void hear_hello(struct kit_pair *d)
{
	kit_duo_begin(d, say_hello);
	CHECK_EQ(kit_wait(&d->end[0], 20).status, IBV_WC_SUCCESS);
	kit_until(&d->board->done, atomic_load(&d->board->asked));
}

/* reads: max_dest_rd_atomic, where max_rd_atomic is 4. */
static void connect_reads(struct kit_pair *d, enum ibv_mtu my_mtu, enum ibv_mtu their_mtu, int64_t ahead,
			  int64_t reads)
{
	const int64_t in[] = {my_mtu, their_mtu, PSN_0, PSN_1, ahead, reads};

	memcpy(d->board->in, in, sizeof in);
	reset_and_connect(d);
	kit_duo_there(d, reset_and_connect);
	hear_hello(d);
}

static void connect_both(struct kit_pair *d, enum ibv_mtu my_mtu, enum ibv_mtu their_mtu, int64_t ahead)
{
	connect_reads(d, my_mtu, their_mtu, ahead, 4);
}

static uint32_t next_psn(struct kit_pair *d)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;

	CHECK(!ibv_query_qp(d->end[0].qp, &a, IBV_QP_SQ_PSN, &init));
	return a.sq_psn;
}

static void look(struct kit_pair *d)
{
	d->board->out[0] = d->end[0].buf[0];
}

static void take(struct kit_pair *d)
{
	memset(d->end[0].buf, 0, KIT_DUO_SIZE);
	CHECK(!kit_recv(&d->end[0], 2000, 0, KIT_DUO_SIZE));
}

/* One request, not more; how it ends, and whether its bytes are there. */
static enum ibv_wc_status ask(struct kit_pair *d, enum ibv_wr_opcode op, uint32_t len, bool *there)
{
	struct ibv_wc wc;

	kit_duo_there(d, take);
	d->end[0].buf[0] = op == IBV_WR_RDMA_READ ? 0 : 0xa5;
	CHECK(!kit_post(&d->end[0], op, 5, 0, len, &d->board->card[1][0], 0));
	wc = kit_wait(&d->end[0], 20);
	CHECK(wc.wr_id == 5);
	kit_duo_there(d, look);
	*there = d->board->out[0] == 0xa5;
	return wc.status;
}

static bool said(struct kit_pair *d, const char *what)
{
	static char text[1 << 16];
	ssize_t n = pread(log_fd, text, sizeof text - 1, 0);

	(void)d;
	CHECK(n >= 0 && !ftruncate(log_fd, 0));
	text[n] = 0;
	return strstr(text, what);
}

static bool direct(void)
{
	return !strcmp(getenv("VERBENA_DIRECT"), "on");
}

/* Under a PSN that is not expected nothing is placed, and it ends as packets would. */
static void wrong_psn(struct kit_pair *d)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND,
						 IBV_WR_ATOMIC_FETCH_AND_ADD};
	static const int64_t ahead[] = {-5, 5, -4000, 4000};
	char want[128];
	bool there;

	for (size_t i = 0; i < sizeof ahead / sizeof ahead[0]; i++)
		for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++) {
			connect_both(d, IBV_MTU_1024, IBV_MTU_1024, ahead[i]);
			said(d, "");
			CHECK(ask(d, ops[k], 8, &there) == IBV_WC_RETRY_EXC_ERR, "%" PRId64, ahead[i]);
			CHECK(!there, "%zu, %" PRId64, k, ahead[i]);
			snprintf(
			    want, sizeof want,
			    "expects PSN 0x%06x, but this end sends PSN 0x%06x; set sq_psn here and rq_psn",
			    (unsigned)(PSN_0 + ahead[i]) & 0xffffff, PSN_0);
			CHECK(said(d, want), "%s", want);
		}
	/* A READ's answer takes so many PSNs that what is expected is one of them.  It was not received. */
	connect_both(d, IBV_MTU_4096, IBV_MTU_4096, 2);
	CHECK(ask(d, IBV_WR_RDMA_READ, KIT_DUO_SIZE, &there) == IBV_WC_RETRY_EXC_ERR);
	CHECK(said(d, "set sq_psn here and rq_psn there to the same value"));
}

/* What was connected anew goes on where both agree, and is placed as before; also after messages that were
 * sent.  Where only one end has begun anew, the other notices. */
static void connected_anew(struct kit_pair *d)
{
	bool there;

	for (int round = 0; round < 20; round++) {
		uint32_t before;

		connect_both(d, IBV_MTU_1024 + round % 2, IBV_MTU_1024 + round % 2, 0);
		for (int i = 0; i < round % 4; i++)
			CHECK(ask(d, IBV_WR_SEND, 64, &there) == IBV_WC_SUCCESS);
		before = next_psn(d);
		CHECK(before == ((PSN_0 + (unsigned)round % 4) & 0xffffff));
		CHECK(ask(d, IBV_WR_RDMA_WRITE, 3000, &there) == IBV_WC_SUCCESS && there);
		CHECK((next_psn(d) == before) == direct()); /* what is placed takes none */
	}
	connect_both(d, IBV_MTU_1024, IBV_MTU_1024, 0);
	for (int i = 0; i < 3; i++)
		CHECK(ask(d, IBV_WR_SEND, 64, &there) == IBV_WC_SUCCESS);
	kit_duo_there(d, reset_and_connect); /* as before, but this end is 3 further */
	CHECK(ask(d, IBV_WR_RDMA_WRITE, 64, &there) == IBV_WC_RETRY_EXC_ERR && !there);
	connect_both(d, IBV_MTU_1024, IBV_MTU_1024, 0);
	for (int i = 0; i < 3; i++)
		CHECK(ask(d, IBV_WR_SEND, 64, &there) == IBV_WC_SUCCESS);
	d->board->in[RQ_AHEAD] = 3; /* where this end stands */
	kit_duo_there(d, reset_and_connect);
	CHECK(ask(d, IBV_WR_RDMA_WRITE, 64, &there) == IBV_WC_SUCCESS && there);
}

/* A message that takes more than one packet of the smaller path MTU fails where they differ. */
static void wrong_mtu(struct kit_pair *d)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
						 IBV_WR_RDMA_READ};
	static const enum ibv_mtu mtus[][2] = {{IBV_MTU_1024, IBV_MTU_4096}, {IBV_MTU_4096, IBV_MTU_1024}};
	static const uint32_t lens[] = {0, 8, 1024, 1025, 4096, 4097, 16384, 40000};
	bool there;

	for (int m = 0; m < 2; m++) {
		connect_both(d, mtus[m][0], mtus[m][1], 0);
		CHECK(ask(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, &there) == IBV_WC_SUCCESS);
		for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++)
			for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
				bool read = ops[k] == IBV_WR_RDMA_READ;
				enum ibv_wc_status want = lens[i] <= 1024 ? IBV_WC_SUCCESS
							  : read	  ? IBV_WC_BAD_RESP_ERR
									  : IBV_WC_REM_INV_REQ_ERR;

				connect_both(d, mtus[m][0], mtus[m][1], 0);
				said(d, "");
				CHECK(ask(d, ops[k], lens[i], &there) == want, "%zu: %u bytes", k, lens[i]);
				CHECK(read || there == (lens[i] && !want), "%zu: %u bytes", k, lens[i]);
				if (want)
					CHECK(said(d, m == 0 ? "path_mtu is 1024 bytes at the "
							       "requester and 4096 bytes at"
							     : "path_mtu is 4096 bytes at the "
							       "requester and 1024 bytes "
							       "at"),
					      "%zu: %u bytes", k, lens[i]);
			}
	}
}

/* As many as max_rd_atomic permits, at once: the target, which is stopped, finds all of them. */
static enum ibv_wc_status ask_at_once(struct kit_pair *d, enum ibv_wr_opcode op)
{
	enum ibv_wc_status first = IBV_WC_SUCCESS;

	kit_stop(d->target);
	for (uint64_t i = 0; i < 4; i++)
		CHECK(!kit_post(&d->end[0], op, i, 0, 8, &d->board->card[1][0], 0));
	kit_cont(d->target);
	for (uint64_t i = 0; i < 4; i++) {
		struct ibv_wc wc = kit_wait(&d->end[0], 20);

		CHECK(wc.wr_id == i, "%" PRIu64, wc.wr_id);
		if (first == IBV_WC_SUCCESS)
			first = wc.status;
	}
	return first;
}

/* The target answers fewer READs at a time than the initiator has outstanding. */
static void more_reads(struct kit_pair *d)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
	bool there;

	for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
		for (int reads = 1; reads <= 4; reads += 3) {
			enum ibv_wc_status want = reads < 4 ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_SUCCESS, got;
			char limit[64];

			connect_reads(d, IBV_MTU_1024, IBV_MTU_1024, 0, reads);
			said(d, "");
			CHECK(ask(d, ops[i], 8, &there) == IBV_WC_SUCCESS, "one alone of %zu", i);
			got = ask_at_once(d, ops[i]);
			CHECK(got == want, "%zu, limit %d: status %d", i, reads, got);
			snprintf(limit, sizeof limit, "the responder's limit of %d", reads);
			CHECK(said(d, limit) == (want != IBV_WC_SUCCESS), "%zu, limit %d", i, reads);
		}
}

static void open_log(void)
{
	char path[64];

	log_fd = memfd_create("log", 0);
	CHECK(log_fd >= 0);
	snprintf(path, sizeof path, "/proc/%d/fd/%d", getpid(), log_fd);
	setenv("VERBENA_LOG", path, 1);
}

int main(void)
{
	first_keys_differ();
	in_every_profile();
	open_log();
	KIT_DUO_BOTH(wrong_psn);
	KIT_DUO_BOTH(connected_anew);
	KIT_DUO_BOTH(wrong_mtu);
	KIT_DUO_BOTH(more_reads);
	puts("no mistake passed");
	return 0;
}
