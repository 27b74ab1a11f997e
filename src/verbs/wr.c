/* ibv_wr_*: send requests that are built call by call, in place, between ibv_wr_start() and
 * ibv_wr_complete().
 *
 * The calls in between return nothing.  The first fault is kept, with its sentence; what comes after it is
 * left alone, ibv_wr_complete() returns its errno, and nothing is posted.  One test of `may` (or of the
 * request's bits) finds out that something is rare: a fault before, an operation that was not asked for, a
 * call where none belongs.
 *
 * The posting lock is held all the while and no other: whoever polls goes on.  So these calls write no log
 * either, and need none of the macros of call.h: nothing in them reaches errno but what has a fault, which
 * keeps it.  ibv_wr_complete() and ibv_wr_abort() are where the program comes out again. */
#include "verbs/wr.h"

#include <errno.h>

#include "base/log.h"
#include "iba/names.h"
#include "hca/send.h"
#include "obj/custody.h"
#include "verbs/checked.h"
#include "verbs/mw.h"
#include "verbs/post.h"
#include "verbs/verbs.h"

#define inline_always inline __attribute__((always_inline))

/* In `may`, beside the operations: a builder is open, and without a fault. */
#define OPEN (1u << 31)

/* A request with any of these takes no data from a setter. */
enum { NO_LIST = VB_WR_SELF | VB_WR_LOCAL };

static inline struct vb_wr_qp *wr_qp(struct ibv_qp_ex *ex)
{
	return (struct vb_wr_qp *)ex;
}

/* Keeps the first fault: nothing is built from here on. */
static void keep(struct vb_wr_qp *x, int err)
{
	x->err = err;
	x->may = 0;
	x->b.bits = VB_WR_SELF;
}

static VB_POST_COLD void refuse(struct vb_wr_qp *x, const char *call, enum vb_build_fault fault,
				const struct vb_post_facts *f)
{
	int was = errno;

	keep(x, vb_post_refuse(&x->qp, call, fault, f));
	errno = was;
}

static VB_POST_COLD void refuse_full(struct vb_wr_qp *x, const char *call)
{
	int was = errno;

	keep(x, vb_post_refuse_full(&x->qp, call));
	errno = was;
}

/* The request before this one, or the last one, named no destination: a datagram's. */
static VB_POST_COLD void refuse_unaddressed(struct vb_wr_qp *x, const char *call)
{
	x->unaddressed = false;
	refuse(x, call, VB_BUILD_NO_ADDRESS, &(struct vb_post_facts){.opcode = x->b.w->opcode});
}

/* `may` has not got the operation, or the request before this one was not whole. */
static VB_POST_COLD void refuse_operation(struct vb_wr_qp *x, const char *call, uint32_t opcode)
{
	char names[VB_FLAGS_TEXT];
	int was = errno;

	if (x->unaddressed)
		refuse_unaddressed(x, call);
	if (!(x->may & OPEN)) /* what is wrong was said, or ibv_wr_start() is missing */
		return;
	if (vb_wr_askable(x->qp.ibv.qp_type) & vb_wr_asked(opcode))
		keep(x,
		     vb_refuse(EINVAL, call, "QP 0x%06x was created without %s in send_ops_flags", x->qp.qpn,
			       vb_name_flags(names, sizeof names, VB_FLAGS_SEND_OPS, vb_wr_asked(opcode))));
	else
		refuse(x, call, VB_BUILD_OPCODE, &(struct vb_post_facts){.opcode = opcode});
	errno = was;
}

/* Begins a request; NULL: it cannot be, which is noted. */
static inline_always struct vb_builder *begin(struct ibv_qp_ex *ex, uint32_t opcode, const char *call)
{
	struct vb_wr_qp *x = wr_qp(ex);
	uint32_t flags = ex->wr_flags & ~(uint32_t)IBV_SEND_INLINE; /* the setter of the data says that */
	struct vb_builder *b = &x->b;
	enum vb_build_fault fault;

	if (vb_unlikely(!(x->may & vb_wr_asked(opcode)) || x->unaddressed)) {
		refuse_operation(x, call, opcode);
		return NULL;
	}
	if (vb_unlikely(!vb_builder_room(b))) {
		refuse_full(x, call);
		return NULL;
	}
	fault = vb_builder_start(b, opcode, flags, ex->wr_id);
	if (vb_unlikely(fault)) {
		refuse(x, call, fault, &(struct vb_post_facts){.opcode = opcode, .flags = flags});
		return NULL;
	}
	vb_builder_bare(b);
	vb_builder_next(b);
	x->unaddressed = x->qp.dests != NULL;
	return b;
}

static inline_always struct vb_builder *begin_remote(struct ibv_qp_ex *ex, uint32_t opcode, const char *call,
						     uint32_t rkey, uint64_t addr)
{
	struct vb_builder *b = begin(ex, opcode, call);

	if (vb_likely(b != NULL))
		vb_builder_remote(b, rkey, addr);
	return b;
}

static void wr_send(struct ibv_qp_ex *ex)
{
	begin(ex, IBV_WR_SEND, "ibv_wr_send");
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
	struct vb_builder *b = begin(ex, IBV_WR_SEND_WITH_IMM, "ibv_wr_send_imm");

	if (vb_likely(b != NULL))
		vb_builder_imm(b, imm);
}

static void wr_send_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	struct vb_builder *b = begin(ex, IBV_WR_SEND_WITH_INV, "ibv_wr_send_inv");

	if (vb_likely(b != NULL))
		vb_builder_imm(b, rkey);
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	begin_remote(ex, IBV_WR_RDMA_WRITE, "ibv_wr_rdma_write", rkey, addr);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct vb_builder *b =
	    begin_remote(ex, IBV_WR_RDMA_WRITE_WITH_IMM, "ibv_wr_rdma_write_imm", rkey, addr);

	if (vb_likely(b != NULL))
		vb_builder_imm(b, imm);
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	begin_remote(ex, IBV_WR_RDMA_READ, "ibv_wr_rdma_read", rkey, addr);
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t compare,
			      uint64_t swap)
{
	struct vb_builder *b =
	    begin_remote(ex, IBV_WR_ATOMIC_CMP_AND_SWP, "ibv_wr_atomic_cmp_swp", rkey, addr);

	if (vb_likely(b != NULL))
		vb_builder_operands(b, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t add)
{
	struct vb_builder *b =
	    begin_remote(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, "ibv_wr_atomic_fetch_add", rkey, addr);

	if (vb_likely(b != NULL))
		vb_builder_operands(b, add, 0);
}

static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey,
		       const struct ibv_mw_bind_info *info)
{
	struct vb_builder *b = begin(ex, IBV_WR_BIND_MW, "ibv_wr_bind_mw");
	int was = errno, err;

	if (vb_unlikely(!b))
		return;
	err = vb_mw_check(b->qp, mw, info, "ibv_wr_bind_mw", IBV_MW_TYPE_2);
	if (vb_likely(!err))
		vb_builder_bind(b->w, mw, rkey, info);
	else
		keep(wr_qp(ex), err);
	errno = was;
}

static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	struct vb_builder *b = begin(ex, IBV_WR_LOCAL_INV, "ibv_wr_local_inv");

	if (vb_likely(b != NULL))
		vb_builder_invalidate(b->w, rkey);
}

/* Segmentation is for packets of TCP. */
static void wr_send_tso(struct ibv_qp_ex *ex, void *header, uint16_t size, uint16_t mss)
{
	(void)header;
	(void)size;
	(void)mss;
	refuse_operation(wr_qp(ex), "ibv_wr_send_tso", IBV_WR_TSO);
}

static void wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, const void *word)
{
	struct vb_builder *b = begin_remote(ex, IBV_WR_ATOMIC_WRITE, "ibv_wr_atomic_write", rkey, addr);

	if (vb_likely(b != NULL))
		vb_builder_word(b, word);
}

static void wr_flush(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, size_t length, uint8_t type,
		     uint8_t level)
{
	struct vb_builder *b = begin_remote(ex, VB_WR_FLUSH, "ibv_wr_flush", rkey, addr);
	enum vb_build_fault fault;

	if (vb_unlikely(!b))
		return;
	fault = vb_builder_flush(b, length, type, level);
	if (vb_unlikely(fault))
		refuse(
		    wr_qp(ex), "ibv_wr_flush", fault,
		    &(struct vb_post_facts){
			.opcode = VB_WR_FLUSH, .length = length, .flush_type = type, .flush_level = level});
}

/* What a setter gives does not fit the request at hand. */
static VB_POST_COLD void refuse_data(struct vb_wr_qp *x, const char *call, enum vb_build_fault fault,
				     size_t pieces, uint64_t length)
{
	refuse(
	    x, call, fault,
	    &(struct vb_post_facts){.opcode = x->b.w->opcode, .pieces = (long long)pieces, .length = length});
}

static void set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	const struct ibv_sge piece = {.addr = addr, .length = length, .lkey = lkey};
	struct vb_wr_qp *x = wr_qp(ex);
	struct vb_swqe *w = x->b.w;
	enum vb_build_fault fault;

	if (vb_unlikely(x->b.bits & NO_LIST))
		return;
	w->flags &= (uint8_t)~IBV_SEND_INLINE;
	fault = vb_builder_piece(&x->qp.req, w, &piece);
	if (vb_unlikely(fault))
		refuse_data(x, "ibv_wr_set_sge", fault, 1, length);
}

static void set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
	struct vb_wr_qp *x = wr_qp(ex);
	struct vb_swqe *w = x->b.w;
	enum vb_build_fault fault;
	uint64_t length = 0;

	if (vb_unlikely(x->b.bits & NO_LIST))
		return;
	w->flags &= (uint8_t)~IBV_SEND_INLINE;
	fault = vb_builder_pieces(&x->qp.req, w, list, n);
	if (vb_likely(!fault))
		return;
	for (size_t i = 0; fault == VB_BUILD_LENGTH && i < n; i++)
		length += list[i].length;
	refuse_data(x, "ibv_wr_set_sge_list", fault, n, length);
}

/* Whether the request at hand may bring its data along. */
static inline_always bool takes_inline(struct vb_wr_qp *x, const char *call)
{
	if (vb_likely(x->b.bits & VB_WR_INLINE))
		return true;
	if (!(x->b.bits & VB_WR_SELF))
		refuse_data(x, call, VB_BUILD_NOT_INLINE, 0, 0);
	return false;
}

static void set_inline_data(struct ibv_qp_ex *ex, void *data, size_t length)
{
	struct vb_wr_qp *x = wr_qp(ex);
	struct vb_swqe *w = x->b.w;
	enum vb_build_fault fault;

	if (vb_unlikely(!takes_inline(x, "ibv_wr_set_inline_data")))
		return;
	w->flags |= IBV_SEND_INLINE;
	fault = vb_builder_inline(&x->qp.req, w, data, length);
	if (vb_unlikely(fault))
		refuse_data(x, "ibv_wr_set_inline_data", fault, 0, length);
}

static void set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
	struct vb_wr_qp *x = wr_qp(ex);
	struct vb_swqe *w = x->b.w;
	enum vb_build_fault fault;
	uint64_t length = 0;

	if (vb_unlikely(!takes_inline(x, "ibv_wr_set_inline_data_list")))
		return;
	w->flags |= IBV_SEND_INLINE;
	fault = vb_builder_inlines(&x->qp.req, w, list, n);
	if (vb_likely(!fault))
		return;
	for (size_t i = 0; i < n; i++)
		length += list[i].length;
	refuse_data(x, "ibv_wr_set_inline_data_list", fault, n, length);
}

/* In a checked process, after its likes: the request has data of these bits; off: behind that many bytes. */
static void inlined(struct vb_wr_qp *x, uint32_t bits, size_t off, const void *data, size_t length)
{
	if (x->may && x->b.bits & bits)
		vb_check_inlined(x->b.w->inline_data + off, data, length);
}

static void set_inline_data_checked(struct ibv_qp_ex *ex, void *data, size_t length)
{
	set_inline_data(ex, data, length);
	inlined(wr_qp(ex), VB_WR_INLINE, 0, data, length);
}

static void set_inline_data_list_checked(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
	size_t off = 0;

	set_inline_data_list(ex, n, list);
	for (size_t i = 0; i < n; off += list[i++].length)
		inlined(wr_qp(ex), VB_WR_INLINE, off, list[i].addr, list[i].length);
}

static void wr_atomic_write_checked(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, const void *word)
{
	wr_atomic_write(ex, rkey, addr, word);
	inlined(wr_qp(ex), VB_WR_WORD, 0, word, 8);
}

/* A queue pair that is connected knows where its requests go. */
static VB_POST_COLD void refuse_address(struct vb_wr_qp *x, const char *call, const char *what)
{
	int was = errno;

	if (x->may & OPEN)
		keep(x, vb_refuse(EINVAL, call, "QP 0x%06x is of type %s: its requests have no %s", x->qp.qpn,
				  vb_name_qp_type(x->qp.ibv.qp_type), what));
	errno = was;
}

static void set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct vb_wr_qp *x = wr_qp(ex);
	enum vb_build_fault fault;

	if (vb_unlikely(!x->qp.dests)) {
		refuse_address(x, "ibv_wr_set_ud_addr", "address");
		return;
	}
	if (vb_unlikely(x->b.bits == VB_WR_SELF)) /* there is no request, or a fault was kept */
		return;
	x->unaddressed = false;
	fault = vb_post_to(&x->qp, x->b.w, ah, qpn, qkey);
	if (vb_unlikely(fault))
		refuse(x, "ibv_wr_set_ud_addr", fault, &(struct vb_post_facts){.opcode = x->b.w->opcode});
}

static void set_ud_addr_checked(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	vb_checked_ah(&wr_qp(ex)->qp, ah, ex->wr_id, __builtin_return_address(0));
	set_ud_addr(ex, ah, qpn, qkey);
}

static void set_xrc_srqn(struct ibv_qp_ex *ex, uint32_t srqn)
{
	struct vb_wr_qp *x = wr_qp(ex);

	if (vb_unlikely(x->qp.ibv.qp_type != IBV_QPT_XRC_SEND))
		refuse_address(x, "ibv_wr_set_xrc_srqn", "shared receive queue");
	else if (x->b.bits != VB_WR_SELF && !(x->b.bits & VB_WR_LOCAL)) /* a request that goes there */
		vb_builder_srqn(&x->b, srqn);
}

/* Whether this is a forked child's, where the lock may be held for ever: nothing is touched. */
static inline bool is_dead(const struct vb_wr_qp *x)
{
	return vb_context_dead(x->qp.ctx);
}

static VB_POST_COLD void start_refused(struct vb_wr_qp *x, enum ibv_qp_state state)
{
	int was = errno;

	keep(x, is_dead(x) ? vb_refuse_forked("ibv_wr_start")
			   : vb_post_refuse_state(&x->qp, state, "ibv_wr_start"));
	errno = was;
}

/* In another state than RTS. */
static VB_POST_COLD void start_elsewhere(struct vb_wr_qp *x, enum ibv_qp_state state)
{
	if (state < IBV_QPS_RTS)
		start_refused(x, state);
	else if (state == IBV_QPS_ERR)
		vb_post_say_late(&x->qp, "ibv_wr_start");
}

/* The second in a row.  What was built so far is not posted either: ibv_wr_complete() returns the error. */
static VB_POST_COLD void start_twice(struct vb_wr_qp *x)
{
	int was = errno;

	x->b.bits = VB_WR_SELF;
	keep(x, vb_post_refuse_open(&x->qp, "ibv_wr_start"));
	errno = was;
}

static void wr_start(struct ibv_qp_ex *ex)
{
	struct vb_wr_qp *x = wr_qp(ex);
	enum ibv_qp_state state;

	if (vb_unlikely(is_dead(x))) {
		start_refused(x, IBV_QPS_ERR);
		return;
	}
	if (vb_unlikely(!vb_builder_begin(&x->b, &x->qp))) {
		start_twice(x);
		return;
	}
	atomic_store_explicit(&x->qp.post.builder, vb_thread_self(), memory_order_relaxed);
	x->may = x->asked | OPEN;
	x->err = 0;
	x->unaddressed = false;
	x->b.bits = VB_WR_SELF;
	state = vb_qp_state_now(&x->qp); /* nobody changes it but to ERR, where requests are taken as well */
	if (vb_unlikely(state != IBV_QPS_RTS))
		start_elsewhere(x, state);
}

/* The builder is closed. */
static inline void drop(struct vb_wr_qp *x)
{
	x->may = 0;
	x->b.bits = VB_WR_SELF;
	atomic_store_explicit(&x->qp.post.builder, 0, memory_order_relaxed);
	vb_builder_end(&x->b);
}

static VB_POST_COLD int complete_refused(struct vb_wr_qp *x)
{
	int err = x->err;

	if (is_dead(x))
		return err ? err : vb_refuse_forked("ibv_wr_complete");
	if (!err)
		return vb_refuse(EINVAL, "ibv_wr_complete",
				 "this thread has not called ibv_wr_start(); call it first");
	x->err = 0;
	drop(x);
	return err;
}

static inline_always int complete(struct ibv_qp_ex *ex, const struct vb_caller *caller)
{
	struct vb_wr_qp *x = wr_qp(ex);

	if (vb_unlikely(x->unaddressed))
		refuse_unaddressed(x, "ibv_wr_complete");
	if (vb_unlikely(!x->may || is_dead(x)))
		return complete_refused(x);
	if (caller)
		vb_custody_sends(&x->qp, x->b.next, caller);
	vb_builder_publish(&x->b);
	vb_hca_posted(&x->qp);
	drop(x);
	return 0;
}

static VB_POST_CODE(wr_complete, (ex), struct ibv_qp_ex *ex)
{
	return complete(ex, NULL);
}

static VB_POSTED(wr_complete_checked, (ex, caller), struct ibv_qp_ex *ex)
{
	return complete(ex, caller);
}

static VB_NOTHING(wr_abort, (ex), struct ibv_qp_ex *ex)
{
	struct vb_wr_qp *x = wr_qp(ex);

	if (is_dead(x) || (!x->may && !x->err)) /* the latter: ibv_wr_start() is missing */
		return;
	x->err = 0;
	drop(x);
}

void vb_wr_open(struct vb_wr_qp *x, uint32_t asked)
{
	struct ibv_qp_ex *ex = &x->qp.ex;

	x->asked = asked;
	x->b.bits = VB_WR_SELF;
	ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
	ex->wr_atomic_write = vb_check_on ? wr_atomic_write_checked : wr_atomic_write;
	ex->wr_bind_mw = wr_bind_mw;
	x->qp.newer.wr_flush = wr_flush;
	ex->wr_local_inv = wr_local_inv;
	ex->wr_rdma_read = wr_rdma_read;
	ex->wr_rdma_write = wr_rdma_write;
	ex->wr_rdma_write_imm = wr_rdma_write_imm;
	ex->wr_send = wr_send;
	ex->wr_send_imm = wr_send_imm;
	ex->wr_send_inv = wr_send_inv;
	ex->wr_send_tso = wr_send_tso;
	ex->wr_set_ud_addr = vb_check_on ? set_ud_addr_checked : set_ud_addr;
	ex->wr_set_xrc_srqn = set_xrc_srqn;
	ex->wr_set_inline_data = vb_check_on ? set_inline_data_checked : set_inline_data;
	ex->wr_set_inline_data_list = vb_check_on ? set_inline_data_list_checked : set_inline_data_list;
	ex->wr_set_sge = set_sge;
	ex->wr_set_sge_list = set_sge_list;
	ex->wr_start = wr_start;
	ex->wr_complete = vb_check_on ? wr_complete_checked : wr_complete;
	ex->wr_abort = wr_abort;
}
