/* Profiles: each limit that is advertised is usable and one more is refused; what else a row says, holds.  A
 * process has one profile, so each is tried in a process of its own. */
#include <errno.h>
#include <sys/resource.h>

#include "bytes.h"
#include "iba/limits.h"
#include "pair.h"
#include "profiles.h"

struct world {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_device_attr dev;
	const struct vb_profile *profile;
};

static struct ibv_qp_init_attr small_qp(const struct world *w)
{
	return (struct ibv_qp_init_attr){
	    .send_cq = w->cq, .recv_cq = w->cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
}

/* The QP is made and, with one more of `field`, refused. */
#define QP_LIMIT(w, field, max)                                                                           \
	do {                                                                                              \
		struct ibv_qp_init_attr a = small_qp(w);                                                  \
		struct ibv_qp *qp;                                                                        \
		a.cap.field = (uint32_t)(max);                                                            \
		qp = ibv_create_qp((w)->pd, &a);                                                          \
		CHECK(qp &&a.cap.field >= (uint32_t)(max), #field " %u: %s", (unsigned)(max),             \
		      strerror(errno));                                                                   \
		CHECK(!ibv_destroy_qp(qp));                                                               \
		a = small_qp(w);                                                                          \
		a.cap.field = (uint32_t)(max) + 1;                                                        \
		CHECK(!ibv_create_qp((w)->pd, &a) && errno == EINVAL, #field " %u", (unsigned)(max) + 1); \
	} while (0)

static void sizes_of_qps(const struct world *w)
{
	QP_LIMIT(w, max_send_wr, w->dev.max_qp_wr);
	QP_LIMIT(w, max_recv_wr, w->dev.max_qp_wr);
	QP_LIMIT(w, max_send_sge, w->dev.max_sge);
	QP_LIMIT(w, max_recv_sge, w->dev.max_sge);
	QP_LIMIT(w, max_inline_data, w->profile->max_inline);
}

static void sizes_of_srqs(const struct world *w)
{
	struct ibv_srq_init_attr a = {
	    .attr = {.max_wr = (uint32_t)w->dev.max_srq_wr, .max_sge = (uint32_t)w->dev.max_srq_sge}};
	struct ibv_srq *s = ibv_create_srq(w->pd, &a);

	CHECK(s && !ibv_destroy_srq(s));
	a.attr.max_wr++;
	CHECK(!ibv_create_srq(w->pd, &a));
	CHECK_EQ(errno, EINVAL);
	a.attr.max_wr--;
	a.attr.max_sge++;
	CHECK(!ibv_create_srq(w->pd, &a));
	CHECK_EQ(errno, EINVAL);
}

static void sizes_of_cqs(const struct world *w)
{
	struct ibv_cq *cq = ibv_create_cq(w->ctx, w->dev.max_cqe, NULL, NULL, 0);

	CHECK(cq);
	CHECK(ibv_resize_cq(cq, w->dev.max_cqe + 1) == EINVAL);
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_create_cq(w->ctx, w->dev.max_cqe + 1, NULL, NULL, 0));
	CHECK_EQ(errno, EINVAL);
}

/* An end connected to itself with the largest initiator depth and responder resources; a message one byte
 * longer than the port takes is refused at the post, and so is a depth of one more. */
static void depth_and_messages(const struct world *w)
{
	struct ibv_port_attr port;
	struct kit_end e;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
				.path_mtu = IBV_MTU_1024,
				.min_rnr_timer = 1,
				.ah_attr = {.is_global = 1, .port_num = 1}};
	const int to_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
		  to_rts = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			   IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	struct ibv_sge sge[2] = {{.length = 1u << 31}, {.length = 1}};
	struct ibv_send_wr wr = {.sg_list = sge, .num_sge = 2, .opcode = IBV_WR_SEND}, *bad;

	kit_end_open(&e, w->pd, 4, 64);
	a.ah_attr.grh.dgid = e.card.gid;
	a.dest_qp_num = e.card.qpn;
	a.rq_psn = e.card.psn;
	a.max_dest_rd_atomic = (uint8_t)(w->dev.max_qp_rd_atom + 1);
	CHECK(ibv_modify_qp(e.qp, &a, to_rtr) == EINVAL);
	a.max_dest_rd_atomic = (uint8_t)w->dev.max_qp_rd_atom;
	CHECK(!ibv_modify_qp(e.qp, &a, to_rtr));
	a = (struct ibv_qp_attr){
	    .qp_state = IBV_QPS_RTS, .sq_psn = e.card.psn, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
	a.max_rd_atomic = (uint8_t)(w->dev.max_qp_init_rd_atom + 1);
	CHECK(ibv_modify_qp(e.qp, &a, to_rts) == EINVAL);
	a.max_rd_atomic = (uint8_t)w->dev.max_qp_init_rd_atom;
	CHECK(!ibv_modify_qp(e.qp, &a, to_rts));
	CHECK(!kit_post(&e, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 8, 8, &e.card, 0));
	CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_SUCCESS);

	CHECK(!ibv_query_port(w->ctx, 1, &port));
	CHECK(port.max_msg_sz == w->profile->max_msg);
	sge[0].length = port.max_msg_sz;
	CHECK(ibv_post_send(e.qp, &wr, &bad) == EINVAL && bad == &wr);
	wr.num_sge = 1; /* taken; that nothing is registered there is another matter */
	CHECK(!ibv_post_send(e.qp, &wr, &bad));
	CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_LOC_PROT_ERR);
	kit_end_close(&e);
}

/* What registering gives: 0, or the errno. */
static int registers(const struct world *w, void *addr, size_t length, uint64_t iova, unsigned access)
{
	struct ibv_mr *mr;

	errno = 0;
	mr = ibv_reg_mr_iova2(w->pd, addr, length, iova, access | IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		return errno;
	CHECK_EQ(mr->lkey == mr->rkey, w->profile->equal_keys);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	return 0;
}

static int registers_relaxed(const struct world *w, void *addr, int access)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(w->pd, addr, 100, access | IBV_ACCESS_LOCAL_WRITE);

	return mr ? ibv_dereg_mr_relaxed(mr) : errno;
}

/* The differences D1 to D5 of docs/memory.md. */
static void differences(const struct world *w)
{
	static uint8_t mem[2 * PAGE] __attribute__((aligned(PAGE)));
	bool page = strcmp(w->profile->name, "default") != 0, demand = !page;
	uint8_t *odd = mem + 5;

	CHECK_EQ(registers(w, mem, 100, (uintptr_t)mem, 0), 0);
	CHECK_EQ(registers(w, odd, 100, 0x7005, 0), 0);
	CHECK_EQ(registers(w, odd, 100, 0x7000, 0), page ? EINVAL : 0);
	CHECK_EQ(registers(w, odd, 100, 0, 0), page ? EINVAL : 0);
	CHECK_EQ(registers(w, mem, 100, 0, 0), 0);
	CHECK_EQ(registers(w, mem, 100, 1, IBV_ACCESS_ZERO_BASED), 0); /* the flag wins */
	CHECK_EQ(registers(w, odd, 100, 1, IBV_ACCESS_ZERO_BASED), page ? EINVAL : 0);
	CHECK_EQ(registers(w, mem, 100, (uintptr_t)mem, IBV_ACCESS_ON_DEMAND), demand ? 0 : EOPNOTSUPP);
	CHECK_EQ(registers(w, NULL, SIZE_MAX, 0, IBV_ACCESS_ON_DEMAND), demand ? 0 : EOPNOTSUPP);
	CHECK_EQ(registers(w, mem, 100, (uintptr_t)mem, IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB),
		 demand ? EINVAL : EOPNOTSUPP); /* it is not in huge pages */
	CHECK_EQ(registers(w, mem, 100, (uintptr_t)mem, IBV_ACCESS_HUGETLB), EINVAL);
	CHECK_EQ(registers(w, mem, 100, (uintptr_t)mem, IBV_ACCESS_FLUSH_PERSISTENT), EOPNOTSUPP);
	CHECK_EQ(registers_relaxed(w, odd, IBV_ACCESS_MW_BIND | IBV_ACCESS_RELAXED_ORDERING), 0);
	CHECK_EQ(registers_relaxed(w, mem, IBV_ACCESS_ZERO_BASED), EINVAL);
	CHECK_EQ(registers_relaxed(w, mem, IBV_ACCESS_ON_DEMAND), EINVAL);
	CHECK_EQ(registers_relaxed(w, mem, IBV_ACCESS_HUGETLB), EINVAL);
}

/* Objects of one kind until no more is given. */
static void *make_pd(struct world *w)
{
	return ibv_alloc_pd(w->ctx);
}

static int drop_pd(void *p)
{
	return ibv_dealloc_pd(p);
}

static void *make_cq(struct world *w)
{
	return ibv_create_cq(w->ctx, 1, NULL, NULL, 0);
}

static int drop_cq(void *p)
{
	return ibv_destroy_cq(p);
}

static void *make_srq(struct world *w)
{
	struct ibv_srq_init_attr a = {.attr = {.max_wr = 1, .max_sge = 1}};

	return ibv_create_srq(w->pd, &a);
}

static int drop_srq(void *p)
{
	return ibv_destroy_srq(p);
}

static void *make_qp(struct world *w)
{
	struct ibv_qp_init_attr a = small_qp(w);

	return ibv_create_qp(w->pd, &a);
}

static int drop_qp(void *p)
{
	return ibv_destroy_qp(p);
}

static void *make_ah(struct world *w)
{
	struct ibv_ah_attr a = {.is_global = 1, .port_num = 1};

	CHECK(!ibv_query_gid(w->ctx, 1, 0, &a.grh.dgid));
	return ibv_create_ah(w->pd, &a);
}

static int drop_ah(void *p)
{
	return ibv_destroy_ah(p);
}

static void *make_mr(struct world *w)
{
	static char page[64] __attribute__((aligned(64)));

	return ibv_reg_mr(w->pd, page, sizeof page, KIT_ALL);
}

static int drop_mr(void *p)
{
	return ibv_dereg_mr(p);
}

static void *make_mw(struct world *w)
{
	return ibv_alloc_mw(w->pd, IBV_MW_TYPE_2);
}

static int drop_mw(void *p)
{
	return ibv_dealloc_mw(p);
}

/* How many pages this process may pin in the profile, if a limit counts for it. */
static int pinnable(const struct world *w)
{
	struct rlimit r;

	CHECK(!getrlimit(RLIMIT_MEMLOCK, &r));
	return w->profile->pins && r.rlim_cur / PAGE < (rlim_t)w->dev.max_mr ? (int)(r.rlim_cur / PAGE) : -1;
}

static void numbers(struct world *w)
{
	const struct {
		const char *what;
		void *(*make)(struct world *w);
		int (*drop)(void *p);
		int max, there;
	} kinds[] = {
	    {"PDs", make_pd, drop_pd, w->dev.max_pd, 1},     {"CQs", make_cq, drop_cq, w->dev.max_cq, 1},
	    {"SRQs", make_srq, drop_srq, w->dev.max_srq, 0}, {"QPs", make_qp, drop_qp, w->dev.max_qp, 0},
	    {"AHs", make_ah, drop_ah, w->dev.max_ah, 0},     {"MRs", make_mr, drop_mr, w->dev.max_mr, 0},
	    {"MWs", make_mw, drop_mw, w->dev.max_mw, 0},
	};
	void **all = calloc((size_t)VB_MAX_MR, sizeof *all);

	CHECK(all);
	for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
		int n = kinds[k].max - kinds[k].there;

		for (int i = 0; i < n; i++) {
			all[i] = kinds[k].make(w);
			if (!all[i] && kinds[k].make == make_mr && errno == ENOMEM && i == pinnable(w)) {
				printf("  %d regions of a page are all that RLIMIT_MEMLOCK allows\n", i);
				n = i;
				break;
			}
			CHECK(all[i], "%s: %d of %d: %s", kinds[k].what, i, n, strerror(errno));
		}
		CHECK(!kinds[k].make(w) && errno == ENOMEM, "%s: %d and one more", kinds[k].what, n);
		for (int i = 0; i < n; i++)
			CHECK(!kinds[k].drop(all[i]), "%s", kinds[k].what);
	}
	free(all);
}

static void what_is_told(const struct world *w)
{
	const struct vb_profile *p = w->profile;
	const struct ibv_device_attr *d = &w->dev;

	CHECK(d->max_qp == (int)p->max_qp && d->max_mr == (int)p->max_mr && d->max_mw == (int)p->max_mw);
	CHECK(d->max_mr_size == p->max_mr_size && d->page_size_cap == p->page_size_cap);
	CHECK(d->device_cap_flags == p->caps && d->atomic_cap == p->atomic_cap);
	CHECK(d->vendor_id == p->vendor_id && d->vendor_part_id == p->vendor_part);
	CHECK(d->max_sge == (int)p->max_sge && d->max_sge_rd == (int)p->max_sge);
	CHECK(d->max_mcast_grp == (int)p->max_mcast_grp); /* unit.mcast has each of them and one more */
	CHECK(d->max_mcast_qp_attach == (int)p->max_mcast_qp_attach &&
	      d->max_total_mcast_qp_attach == (int)p->max_mcast_attach);
	CHECK(d->max_res_rd_atom == (int)p->max_res_rd_atomic && d->local_ca_ack_delay == p->ack_delay);
}

/* A region's keys are two numbers or one, and each is taken where the profile takes it.  The sentence for a
 * mix-up is proc.reasons'. */
static void keys(const struct world *w)
{
	bool equal = w->profile->equal_keys;
	struct kit_end a, b;
	struct kit_card mixed;

	for (int local = 0; local < 2; local++) {
		enum ibv_wc_status bad = local ? IBV_WC_LOC_PROT_ERR : IBV_WC_REM_ACCESS_ERR, got;

		kit_end_open(&a, w->pd, 4, 64);
		kit_end_open(&b, w->pd, 4, 64);
		kit_connect(&a, &b.card);
		kit_connect(&b, &a.card);
		CHECK((a.mr->lkey == a.mr->rkey) == equal, "0x%08x 0x%08x", a.mr->lkey, a.mr->rkey);
		mixed = b.card;
		mixed.rkey = local ? b.mr->rkey : b.mr->lkey;
		if (local)
			a.mr->lkey = a.mr->rkey;
		CHECK(!kit_post(&a, IBV_WR_RDMA_WRITE, 1, 8, 8, &mixed, 0));
		got = kit_wait(&a, 20).status;
		CHECK(got == (equal ? IBV_WC_SUCCESS : bad), "%d: %s", local, ibv_wc_status_str(got));
		kit_end_close(&a);
		kit_end_close(&b);
	}
}

static int run(const char *name)
{
	struct world w = {0};

	setenv("VERBENA_PROFILE", name, 1);
	alarm(200);
	w.profile = vb_profile();
	CHECK(!strcmp(w.profile->name, name));
	w.ctx = kit_open();
	w.pd = ibv_alloc_pd(w.ctx);
	w.cq = ibv_create_cq(w.ctx, 16, NULL, NULL, 0);
	CHECK(w.pd && w.cq && !ibv_query_device(w.ctx, &w.dev));
	what_is_told(&w);
	sizes_of_qps(&w);
	sizes_of_srqs(&w);
	sizes_of_cqs(&w);
	depth_and_messages(&w);
	differences(&w);
	keys(&w);
	numbers(&w);
	CHECK(!ibv_destroy_cq(w.cq) && !ibv_dealloc_pd(w.pd) && !ibv_close_device(w.ctx));
	return 0;
}

/* As if the device were not there. */
static int unknown(void)
{
	struct ibv_device **list;

	setenv("VERBENA_PROFILE", "mlx9", 1);
	list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	CHECK(!ibv_open_device(list[0]));
	CHECK_EQ(errno, EINVAL);
	ibv_free_device_list(list);
	CHECK(!strcmp(vb_profile_unknown(), "mlx9"));
	return 0;
}

/* Rows keep within what the tables hold. */
static void the_table(void)
{
	for (size_t i = 0; kit_profile(i); i++) {
		const struct vb_profile *p = kit_profile(i);

		CHECK(p->max_qp <= VB_MAX_QP && p->max_cq <= VB_MAX_CQ && p->max_srq <= VB_MAX_SRQ);
		CHECK(p->max_mr <= VB_MAX_MR && p->max_qp_wr <= VB_MAX_QP_WR);
		CHECK(p->max_srq_wr <= VB_MAX_SRQ_WR && p->max_cqe <= VB_MAX_CQE);
		CHECK(p->max_sge <= VB_MAX_SGE && p->max_srq_sge <= VB_MAX_SGE);
		CHECK(p->max_inline <= VB_MAX_INLINE && p->max_rd_atomic <= VB_MAX_RD_ATOMIC);
		CHECK(p->max_msg <= VB_MAX_MSG);
	}
	CHECK(!vb_profile_find("") && !vb_profile_find("Strict"));
}

/* Between processes of different profiles everything works that works within one. */
static const char *mine[2];

static void talk(struct kit_pair *p)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						 IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE};

	setenv("VERBENA_PROFILE", mine[p->me], 1);
	kit_pair_open(p, 16, 4096);
	for (int round = 0; round < 12 && !p->me; round++) /* often enough that regions are asked about */
		for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
			struct ibv_wc wc;

			CHECK(!kit_post(&p->end[0], ops[i], i, 64, 8, &p->board->card[1][0], 8));
			wc = kit_wait(&p->end[0], 20);
			CHECK_EQ(wc.status, IBV_WC_SUCCESS);
			CHECK(wc.wr_id == i);
		}
	if (!p->me) { /* the far end's L_Key passes for an R_Key only where they are one */
		struct kit_card mixed = p->board->card[1][1];

		mixed.rkey ^= 0x40000000;
		CHECK(!kit_post(&p->end[1], IBV_WR_RDMA_WRITE, 1, 0, 8, &mixed, 0));
		CHECK_EQ(kit_wait(&p->end[1], 20).status, IBV_WC_REM_ACCESS_ERR);
	}
	kit_pair_close(p);
}

static void mixtures(void)
{
	char name[128];

	for (size_t i = 0; kit_profile(i); i++)
		for (size_t k = 0; kit_profile(k); k++)
			for (int direct = 0; direct < 2; direct++) {
				mine[0] = kit_profile(i)->name;
				mine[1] = kit_profile(k)->name;
				snprintf(name, sizeof name, "%s to %s, direct %s", mine[0], mine[1],
					 direct ? "on" : "off");
				CHECK(kit_pair_run(name, (const bool[]){direct, direct}, talk, talk));
			}
}

static int in_child(int (*f)(void), const char *name)
{
	pid_t pid = kit_fork();

	if (!pid)
		exit(f ? f() : run(name));
	return kit_reap(pid);
}

int main(void)
{
	the_table();
	CHECK(!in_child(unknown, NULL));
	mixtures();
	for (size_t i = 0; kit_profile(i); i++) {
		double t = kit_now();

		CHECK(!in_child(NULL, kit_profile(i)->name), "%s", kit_profile(i)->name);
		printf("%s: ok, %.1f s\n", kit_profile(i)->name, kit_now() - t);
	}
	return 0;
}
