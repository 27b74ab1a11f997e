/* Large SENDs: the receiver collects them from the sender's memory by itself, and where it cannot, the ring
 * carries them, with the same bytes and the same ends.  The parent receives, its child sends. */
#include <errno.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "bytes.h"
#include "pair.h"

enum { SIZE = 5 << 20, DEPTH = 8, HELD = 32 * PAGE };

static const uint32_t lengths[] = {1,	   32767,   32768,	 32769,	 65536,	 65537,	       131072 + 5,
				   262143, 262144,  262144 + 1,	 262152, 262150, 524288 + 333, 32768,
				   65537,  1048576, 4194304 + 13};
enum { LENGTHS = sizeof lengths / sizeof lengths[0], ROUNDS = 2 * LENGTHS };

static void ended(struct kit_end *e, enum ibv_wc_status status)
{
	struct ibv_wc wc = kit_wait(e, 20);

	CHECK_EQ(wc.status, status);
}

/* ---- every length ---- */

static bool denied, shared, from_srq;

/* Memory that its peer may open. */
static void in_a_file(struct kit_end *e, struct ibv_pd *pd)
{
	int fd;

	CHECK(!ibv_dereg_mr(e->mr));
	free(e->buf);
	e->buf = kit_mapped(SIZE, &fd);
	e->mr = ibv_reg_mr(pd, e->buf, SIZE, KIT_ALL);
	CHECK(e->mr);
}

/* In two pieces, the first of `cut` bytes, by keys of different regions. */
static void two_pieces(struct ibv_sge *s, const struct kit_end *e, const struct ibv_mr *other, size_t at,
		       uint32_t len)
{
	uint32_t cut = len / 3;

	s[0] = (struct ibv_sge){(uintptr_t)e->buf + at, cut, e->mr->lkey};
	s[1] = (struct ibv_sge){(uintptr_t)e->buf + at + cut, len - cut, other->lkey};
}

/* What comes on an SRQ goes to buffers of the SRQ's domain. */
static struct ibv_srq *take_from_srq(struct kit_pair *p, struct kit_end *e, struct ibv_pd *pd)
{
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = DEPTH, .max_sge = 2}};
	struct ibv_srq *srq = ibv_create_srq(pd, &sa);
	struct ibv_qp_init_attr qa = {.qp_type = IBV_QPT_RC,
				      .send_cq = e->cq,
				      .recv_cq = e->cq,
				      .srq = srq,
				      .cap = {.max_send_wr = DEPTH, .max_send_sge = 2}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = KIT_ALL};

	CHECK(srq && !ibv_destroy_qp(e->qp));
	e->qp = ibv_create_qp(p->pd, &qa);
	CHECK(e->qp);
	CHECK(
	    !ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	e->card.qpn = e->qp->qp_num;
	CHECK(!ibv_dereg_mr(e->mr));
	e->mr = ibv_reg_mr(pd, e->buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(e->mr);
	return srq;
}

/* The first end anew, with what the case asks for. */
static struct ibv_srq *dress(struct kit_pair *p, struct ibv_pd *pd)
{
	struct kit_end *e = &p->end[0];
	struct ibv_srq *srq = NULL;

	if (shared)
		in_a_file(e, p->pd);
	if (from_srq && !p->me) {
		srq = take_from_srq(p, e, pd);
	} else if (from_srq) {
		kit_end_close(e);
		kit_end_open(e, p->pd, DEPTH, SIZE);
	}
	if (from_srq) {
		p->board->card[p->me][0] = e->card;
		atomic_fetch_add(&p->board->step, 1);
		kit_until(&p->board->step, 2);
		kit_connect(e, &p->board->card[!p->me][0]);
	}
	return srq;
}

static void take_all(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];
	struct ibv_mr *other;
	struct ibv_srq *srq;
	struct ibv_pd *pd;
	uint8_t *want = malloc(SIZE);

	if (denied)
		kit_log_begin("info");
	kit_pair_open(p, DEPTH, SIZE);
	pd = from_srq ? ibv_alloc_pd(p->ctx) : p->pd;
	srq = dress(p, pd);
	other = ibv_reg_mr(pd, e->buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(pd && other && want);
	if (denied)
		CHECK(kit_deny(SYS_process_vm_readv, EPERM, true), "%s", strerror(errno));
	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint32_t len = lengths[i % LENGTHS], at = i % 13;
		struct ibv_sge sge[2];
		struct ibv_recv_wr wr = {.wr_id = i, .sg_list = sge, .num_sge = 2}, *bad;
		struct ibv_wc wc;

		memset(e->buf, 0xee, at + len + 64);
		two_pieces(sge, e, other, at, len);
		CHECK(!(srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad)));
		wc = kit_wait(e, 20);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == i &&
			  wc.byte_len == len,
		      "%s, %u bytes of %u", ibv_wc_status_str(wc.status), wc.byte_len, len);
		CHECK(wc.imm_data == i && wc.wc_flags == IBV_WC_WITH_IMM);
		kit_fill(want, len, i);
		CHECK(!memcmp(e->buf + at, want, len), "%u bytes, round %u", len, i);
		CHECK((!at || e->buf[at - 1] == 0xee) && e->buf[at + len] == 0xee, "%u bytes", len);
	}
	if (denied) {
		KIT_LOG_SAYS("the kernel denies access to the memory of process %d (Operation not "
			     "permitted): packets carry",
			     (int)p->target);
		CHECK(kit_log_count("the kernel denies access") == 1);
	}
	_exit(kit_reap(p->target) ? 1 : 0);
}

static void send_all(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];
	struct ibv_mr *other;

	kit_pair_open(p, DEPTH, SIZE);
	dress(p, p->pd);
	other = ibv_reg_mr(p->pd, e->buf, SIZE, 0);
	CHECK(other);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint32_t len = lengths[i % LENGTHS], at = i % 7;
		struct ibv_sge sge[2];
		struct ibv_send_wr wr = {.wr_id = i,
					 .sg_list = sge,
					 .num_sge = 1,
					 .opcode = IBV_WR_SEND_WITH_IMM,
					 .imm_data = i,
					 .send_flags = IBV_SEND_SIGNALED},
				   *bad;

		kit_fill(e->buf + at, len, i);
		two_pieces(sge, e, other, at, len);
		if (i % 2)
			wr.num_sge = 2;
		else
			sge[0].length = len;
		CHECK(!ibv_post_send(e->qp, &wr, &bad));
		ended(e, IBV_WC_SUCCESS);
		memset(e->buf, 0x77, at + len); /* it is the program's again */
	}
	_exit(0);
}

/* ---- the sender is stopped ---- */

static void take_from_stopped(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];
	uint8_t *want = malloc(SIZE);
	siginfo_t how;

	kit_pair_open(p, DEPTH, SIZE);
	CHECK(want && !kit_recv(e, 1, 3, SIZE - 3));
	atomic_store(&p->board->step, 1);
	CHECK(!waitid(P_PID, (id_t)p->target, &how, WSTOPPED | WEXITED | WNOWAIT) &&
	      how.si_code == CLD_STOPPED);
	ended(e, IBV_WC_SUCCESS);
	kit_fill(want, SIZE - 7, 5);
	CHECK(!memcmp(e->buf + 3, want, SIZE - 7));
	free(want);
	kit_cont(p->target);
	kit_pair_close(p);
}

/* The ring has room for 256 KiB. */
static void send_and_stop(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];

	kit_pair_open(p, DEPTH, SIZE);
	kit_fill(e->buf, SIZE - 7, 5);
	kit_until(&p->board->step, 1);
	CHECK(!kit_post(e, IBV_WR_SEND, 2, 0, SIZE - 7, NULL, 0));
	raise(SIGSTOP);
	ended(e, IBV_WC_SUCCESS);
	kit_pair_close(p);
}

/* ---- in the middle of the copy ---- */

static enum { FAILS, DIES } what;

static void take_held(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];
	struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
	struct ibv_wc wc;

	kit_pair_open(p, DEPTH, SIZE);
	CHECK(!kit_recv(e, 1, 0, HELD) && !kit_recv(e, 3, HELD, HELD) && !kit_recv(&p->end[1], 2, 0, 8));
	atomic_store(&p->board->step, 1);
	if (what == DIES) {
		/* the copy that was held keeps the memory, and ends; then nobody is there any more */
		ended(e, IBV_WC_SUCCESS);
		ended(e, IBV_WC_WR_FLUSH_ERR);
		CHECK(WIFSIGNALED(kit_reap(p->target)));
		_exit(0);
	}
	/* what comes behind it through the same ring */
	ended(&p->end[1], IBV_WC_SUCCESS);
	CHECK(ibv_poll_cq(e->cq, 1, &wc) == 0, "%s", ibv_wc_status_str(wc.status));
	CHECK(!ibv_modify_qp(e->qp, &err, IBV_QP_STATE));
	ended(e, IBV_WC_WR_FLUSH_ERR);
	ended(e, IBV_WC_WR_FLUSH_ERR);
	kit_pair_close(p);
}

static _Atomic int back;

static void *fail(void *qp)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};

	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
	atomic_store(&back, 1);
	return NULL;
}

/* A page of its memory is missing until it says so, which holds the copy. */
static void send_held(struct kit_pair *p)
{
	struct uffdio_zeropage zero = {0};
	struct pollfd fd = {.events = POLLIN};
	struct kit_end *e = &p->end[0];
	pthread_t thread;

	kit_pair_open(p, DEPTH, SIZE);
	CHECK(!ibv_dereg_mr(e->mr));
	free(e->buf);
	e->buf = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(e->buf != MAP_FAILED);
	e->mr = ibv_reg_mr(p->pd, e->buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(e->mr);
	fd.fd = kit_missing(e->buf + PAGE, PAGE);
	kit_until(&p->board->step, 1);
	CHECK(!kit_post(e, IBV_WR_SEND, 2, 0, HELD, NULL, 0));
	CHECK(poll(&fd, 1, 20000) == 1, "it was not held");
	if (what == DIES) {
		CHECK(!kit_post(e, IBV_WR_SEND, 4, HELD, HELD, NULL, 0));
		raise(SIGKILL);
	}
	CHECK(!pthread_create(&thread, NULL, fail, e->qp));
	ended(e, IBV_WC_WR_FLUSH_ERR);
	memset(e->buf + 2 * PAGE, 0x99, HELD - 2 * PAGE); /* it is the program's again */
	CHECK(!atomic_load(&back), "ibv_modify_qp() waits for whoever uses the leave");
	zero.range = (struct uffdio_range){(uintptr_t)e->buf + PAGE, PAGE};
	CHECK(!ioctl(fd.fd, UFFDIO_ZEROPAGE, &zero));
	CHECK(!pthread_join(thread, NULL));
	CHECK(!kit_post(&p->end[1], IBV_WR_SEND, 3, 0, 8, NULL, 0));
	ended(&p->end[1], IBV_WC_SUCCESS);
	close(fd.fd);
	munmap(e->buf, SIZE);
	e->buf = NULL;
	kit_pair_close(p);
}

/* ---- memory that is not there any more ---- */

static void take_nothing(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];
	struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};

	kit_pair_open(p, DEPTH, SIZE);
	CHECK(!kit_recv(e, 1, 0, HELD));
	atomic_store(&p->board->step, 1);
	kit_until(&p->board->step, 2);
	CHECK(!ibv_modify_qp(e->qp, &err, IBV_QP_STATE));
	ended(e, IBV_WC_WR_FLUSH_ERR);
	kit_pair_close(p);
}

static void send_nothing(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];

	kit_pair_open(p, DEPTH, SIZE);
	CHECK(!ibv_dereg_mr(e->mr));
	free(e->buf);
	e->buf = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(e->buf != MAP_FAILED);
	e->mr = ibv_reg_mr(p->pd, e->buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(e->mr && !munmap(e->buf + HELD / 2, PAGE));
	kit_until(&p->board->step, 1);
	CHECK(!kit_post(e, IBV_WR_SEND, 2, 0, HELD, NULL, 0));
	ended(e, IBV_WC_LOC_PROT_ERR);
	atomic_store(&p->board->step, 2);
	munmap(e->buf, SIZE);
	e->buf = NULL;
	kit_pair_close(p);
}

static void lengths_of(const char *name, bool here, bool there)
{
	CHECK(kit_pair_run(name, (const bool[]){here, there}, take_all, send_all));
}

int main(void)
{
	static const bool both[] = {true, true}, none[] = {false, false};
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	lengths_of("every length", true, true);
	lengths_of("a receiver that does not reach in", false, true);
	lengths_of("a sender that lets nobody in", true, false);
	denied = true;
	lengths_of("the kernel does not let the receiver in", true, true);
	denied = false;
	shared = true;
	lengths_of("memory that both can open", true, true);
	shared = false;
	from_srq = true;
	lengths_of("an SRQ of another domain", true, true);
	CHECK(kit_pair_run("the sender is stopped", both, take_from_stopped, send_and_stop));
	CHECK(kit_pair_run("its memory is gone", both, take_nothing, send_nothing));
	CHECK(kit_pair_run("its memory is gone, by the ring", none, take_nothing, send_nothing));
	if (fd < 0) {
		printf("SKIP: no userfaultfd for faults in system calls (%s)\n", strerror(errno));
		return 0;
	}
	close(fd);
	CHECK(kit_pair_run("the sender's QP fails under the copy", both, take_held, send_held));
	what = DIES;
	CHECK(kit_pair_run("the sender dies under the copy", both, take_held, send_held));
	return 0;
}
