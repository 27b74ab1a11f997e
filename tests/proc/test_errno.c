/* errno: a call that fails sets it, also where it returns the code, and says why in a sentence; a call that
 * succeeds leaves it as it was.  All calls, each failing and succeeding where it can (scripts/calls-check
 * compares with what is exported). */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>

#include "bytes.h"
#include "base/history.h"
#include "kit.h"

enum { SENTINEL = 4095 }; /* no error has that number */

/* Why was said by an earlier call of which this one tells, or there is nothing, which is no refusal. */
#define FAILS_UNSAID(call, answer, err)                                                     \
	do {                                                                                \
		errno = SENTINEL;                                                           \
		CHECK((call) == (answer));                                                  \
		CHECK(errno == (err), "errno is %s, not %s", strerrorname_np(errno), #err); \
	} while (0)
#define FAILS_AS(call, answer, err)              \
	do {                                     \
		uint64_t before_ = said();       \
		FAILS_UNSAID(call, answer, err); \
		refused(#call, err, before_);    \
	} while (0)
/* The code, -1, or NULL is returned. */
#define FAILS_CODE(call, err)  FAILS_AS(call, err, err)
#define FAILS_MINUS(call, err) FAILS_AS(call, -1, err)
#define FAILS_NULL(call, err)  FAILS_AS(call, NULL, err)

#define WORKS_IF(call, condition)                                                                            \
	do {                                                                                                 \
		errno = SENTINEL;                                                                            \
		call;                                                                                        \
		CHECK(errno == SENTINEL, "%s: it succeeds, and errno is %s", #call, strerrorname_np(errno)); \
		CHECK(condition, "%s", #call);                                                               \
	} while (0)
#define WORKS(call)	     WORKS_IF(int ok = (call), !ok)
#define WORKS_MAKE(to, call) WORKS_IF((to) = (call), (to) != NULL)
#define WORKS_VOID(call)     WORKS_IF(call, true)

/* Of the private node and of newer releases. */
int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index, unsigned int *type);
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);
int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);
int ibv_cmd_modify_qp(void);
void *verbs_open_device(void);
void verbs_uninit_context(void);
int ibv_read_ibdev_sysfs_file(void);

static struct ibv_context *ctx, *other;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static uint8_t *mem;
static struct vb_history sentences;

static uint64_t said(void)
{
	return atomic_load(&sentences.said);
}

/* A sentence tells of the call, and has its errno. */
static void refused(const char *call, int err, uint64_t before)
{
	struct vb_history_line l, last = {0};

	CHECK(said() > before, "%s: no sentence says why", call);
	for (uint32_t i = 0; vb_history_read(&sentences, i, &l); i++)
		if (l.last >= last.last)
			last = l;
	CHECK(last.err == err && strstr(last.text, strerrorname_np(err)), "%s: its sentence: %s", call,
	      last.text);
}

static void devices(void)
{
	struct ibv_device **list;
	struct ibv_device_attr a;
	struct ibv_device_attr_ex ex;
	struct ibv_query_device_ex_input in = {.comp_mask = 1};
	struct ibv_context *c;

	WORKS_MAKE(list, ibv_get_device_list(NULL));
	WORKS_MAKE(ctx, ibv_open_device(list[0]));
	WORKS_MAKE(other, ibv_open_device(list[0]));
	WORKS_MAKE(c, ibv_open_device(list[0]));
	WORKS(ibv_close_device(c));
	WORKS_VOID(ibv_free_device_list(list));
	WORKS(ibv_query_device(ctx, &a));
	WORKS(ibv_query_device_ex(ctx, NULL, &ex));
	/* what the header refuses by itself leaves errno alone, so this goes past it */
	FAILS_CODE(verbs_get_ctx(ctx)->query_device_ex(ctx, &in, &ex, sizeof(ex)), EINVAL);
	FAILS_NULL(ibv_import_device(-1), EINVAL);
	WORKS_MAKE(c, ibv_import_device(dup(ctx->cmd_fd)));
	WORKS(ibv_close_device(c));
}

static void ports(void)
{
	struct ibv_gid_entry e, table[8];
	struct ibv_port_attr p;
	union ibv_gid gid;
	unsigned type;
	uint64_t speed;
	__be16 pkey;

	FAILS_CODE(ibv_query_port(ctx, 2, &p), EINVAL);
	WORKS(ibv_query_port(ctx, 1, &p));
	FAILS_CODE(ibv_query_port_speed(ctx, 2, &speed), EINVAL);
	WORKS(ibv_query_port_speed(ctx, 1, &speed));
	FAILS_MINUS(ibv_query_gid(ctx, 1, 1000, &gid), EINVAL);
	WORKS(ibv_query_gid(ctx, 1, 0, &gid));
	FAILS_CODE(ibv_query_gid_ex(ctx, 1, 1000, &e, 0), EINVAL);
	FAILS_CODE(_ibv_query_gid_ex(ctx, 2, 0, &e, 0, sizeof(e)), EINVAL);
	WORKS(_ibv_query_gid_ex(ctx, 1, 0, &e, 0, sizeof(e)));
	FAILS_AS(_ibv_query_gid_table(ctx, table, 0, 0, sizeof(e)), -EINVAL, EINVAL);
	WORKS(_ibv_query_gid_table(ctx, table, 8, 0, sizeof(e)) < 1);
	FAILS_MINUS(ibv_query_gid_type(ctx, 1, 1000, &type), EINVAL);
	WORKS(ibv_query_gid_type(ctx, 1, 0, &type));
	FAILS_MINUS(ibv_query_pkey(ctx, 1, 1, &pkey), EINVAL);
	WORKS(ibv_query_pkey(ctx, 1, 0, &pkey));
	FAILS_MINUS(ibv_get_pkey_index(ctx, 1, 0), EINVAL);
	WORKS(ibv_get_pkey_index(ctx, 1, pkey));
}

static void addresses(void)
{
	struct ibv_ah_attr av = {.is_global = 1, .port_num = 1}, bad = {.port_num = 2}, out;
	struct ibv_wc wc = {.wc_flags = IBV_WC_GRH};
	struct ibv_grh grh;
	uint8_t mac[6];
	uint16_t vid;
	struct ibv_ah *ah;

	WORKS(ibv_query_gid(ctx, 1, 0, &av.grh.dgid));
	FAILS_NULL(ibv_create_ah(pd, &bad), EINVAL);
	WORKS_MAKE(ah, ibv_create_ah(pd, &av));
	FAILS_CODE(ibv_destroy_ah(NULL), EINVAL);
	WORKS(ibv_destroy_ah(ah));
	memset(&grh, 0, sizeof(grh));
	grh.version_tclass_flow = htonl(6u << 28);
	FAILS_MINUS(ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &out), EPROTONOSUPPORT);
	grh.next_hdr = 17; /* UDP */
	FAILS_MINUS(ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &out), EINVAL);
	FAILS_NULL(ibv_create_ah_from_wc(pd, &wc, &grh, 1), EINVAL);
	grh.dgid = grh.sgid = av.grh.dgid;
	WORKS(ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &out));
	WORKS_MAKE(ah, ibv_create_ah_from_wc(pd, &wc, &grh, 1));
	WORKS(ibv_destroy_ah(ah));
	FAILS_CODE(ibv_resolve_eth_l2_from_gid(ctx, &bad, mac, &vid), EINVAL);
	WORKS(ibv_resolve_eth_l2_from_gid(ctx, &av, mac, &vid));
}

static void domains(void)
{
	struct ibv_parent_domain_init_attr pa = {.pd = NULL};
	struct ibv_td_init_attr ta = {.comp_mask = 1};
	struct ibv_shpd *s, shpd, none = {.handle = 0x7fffffff};
	struct ibv_pd *p, *q;
	struct ibv_mr *mr;
	struct ibv_td *td;

	WORKS_MAKE(pd, ibv_alloc_pd(ctx));
	WORKS_MAKE(p, ibv_alloc_pd(ctx));
	mr = ibv_reg_mr(p, mem, PAGE, 0);
	FAILS_CODE(ibv_dealloc_pd(p), EBUSY);
	WORKS(ibv_dereg_mr(mr));
	FAILS_NULL(ibv_alloc_td(ctx, &ta), EINVAL);
	ta.comp_mask = 0;
	WORKS_MAKE(td, ibv_alloc_td(ctx, &ta));
	FAILS_NULL(ibv_alloc_parent_domain(ctx, &pa), EINVAL);
	pa.pd = p;
	pa.td = td;
	WORKS_MAKE(q, ibv_alloc_parent_domain(ctx, &pa));
	FAILS_CODE(ibv_dealloc_td(td), EBUSY);
	WORKS(ibv_dealloc_pd(q));
	WORKS(ibv_dealloc_td(td));
	FAILS_NULL(ibv_alloc_shpd(NULL, 1, &shpd), EINVAL);
	WORKS_MAKE(s, ibv_alloc_shpd(p, 1, &shpd));
	FAILS_NULL(ibv_share_pd(ctx, &none, 1), ENOENT);
	WORKS_MAKE(q, ibv_share_pd(ctx, &shpd, 1));
	WORKS(ibv_dealloc_pd(q));
	FAILS_NULL(ibv_import_pd(ctx, 0x7fffffff), ENOENT);
	WORKS_MAKE(q, ibv_import_pd(ctx, p->handle));
	WORKS_VOID(ibv_unimport_pd(q));
	WORKS_VOID(ibv_unimport_pd(p)); /* nothing was imported: it is said, and the domain stays */
	WORKS(ibv_dealloc_pd(p));
}

static void regions(void)
{
	struct ibv_mr_init_attr xa = {.length = PAGE, .addr = mem, .access = 0};
	struct ibv_sge sge = {(uintptr_t)mem, PAGE, 0};
	struct ibv_mr *mr, *m;
	void *hole = mem + 8 * PAGE;

	FAILS_NULL(ibv_reg_mr(pd, hole, PAGE, 0), EFAULT);
	FAILS_NULL(ibv_reg_mr_iova(pd, hole, PAGE, 0, 0), EFAULT);
	FAILS_NULL(ibv_reg_mr_iova2(pd, hole, PAGE, 0, 0), EFAULT);
	WORKS_MAKE(mr, ibv_reg_mr_iova(pd, mem, PAGE, 0, 0));
	WORKS(ibv_dereg_mr(mr));
	WORKS_MAKE(mr, ibv_reg_mr_iova2(pd, mem, PAGE, 0, 0));
	WORKS(ibv_dereg_mr(mr));
	WORKS_MAKE(mr, ibv_reg_mr(pd, mem, PAGE, IBV_ACCESS_ON_DEMAND));
	FAILS_AS(ibv_rereg_mr(mr, 1 << 30, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT, EINVAL);
	WORKS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_ON_DEMAND));
	FAILS_CODE(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 0), EINVAL);
	sge.lkey = mr->lkey;
	WORKS(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1));
	FAILS_NULL(ibv_import_mr(pd, 0x7fffffff), ENOENT);
	WORKS_MAKE(m, ibv_import_mr(pd, mr->handle));
	WORKS_VOID(ibv_unimport_mr(m));
	WORKS_VOID(ibv_unimport_mr(mr)); /* of what was not imported */
	FAILS_CODE(ibv_dereg_mr_relaxed(mr), EINVAL);
	WORKS(ibv_dereg_mr(mr));
	FAILS_NULL(ibv_reg_mr_relaxed(pd, hole, PAGE, 0), EFAULT);
	WORKS_MAKE(mr, ibv_reg_mr_relaxed(pd, mem, PAGE, 0));
	FAILS_CODE(ibv_dereg_mr(mr), EINVAL);
	WORKS(ibv_dereg_mr_relaxed(mr));
	FAILS_CODE(ibv_flush_relaxed_mr(NULL), EINVAL);
	WORKS(ibv_flush_relaxed_mr(pd));
	WORKS_MAKE(mr, ibv_alloc_null_mr(pd));
	WORKS(ibv_dereg_mr(mr));
	FAILS_NULL(ibv_reg_dmabuf_mr(pd, 0, PAGE, PAGE, -1, 0),
		   EBADF); /* with an iova of 0 it asks for support */
	FAILS_NULL(ibv_reg_mr_ex(pd, &xa), EINVAL);
	xa.comp_mask = IBV_REG_MR_MASK_ADDR;
	WORKS_MAKE(mr, ibv_reg_mr_ex(pd, &xa));
	WORKS(ibv_dereg_mr(mr));
	WORKS(ibv_dontfork_range(mem, PAGE));
	WORKS(ibv_dofork_range(mem, PAGE));
}

static void device_memory(void)
{
	struct ibv_dmah_init_attr da = {.comp_mask = 1u << 31};
	struct ibv_alloc_dm_attr a = {.length = 0};
	struct ibv_mr_init_attr xa = {.comp_mask = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH,
				      .length = PAGE};
	struct ibv_dm *dm, *d;
	struct ibv_dmah *dmah;
	struct ibv_buf *buf;
	struct ibv_mr *mr;
	void *at;

	FAILS_NULL(ibv_alloc_dm(ctx, &a), EINVAL);
	a.length = PAGE;
	WORKS_MAKE(dm, ibv_alloc_dm(ctx, &a));
	FAILS_CODE(ibv_memcpy_to_dm(dm, PAGE, mem, 64), EFAULT);
	WORKS(ibv_memcpy_to_dm(dm, 0, mem, 64));
	FAILS_CODE(ibv_memcpy_from_dm(mem, dm, PAGE, 64), EFAULT);
	WORKS(ibv_memcpy_from_dm(mem, dm, 0, 64));
	FAILS_NULL(ibv_reg_dm_mr(pd, dm, PAGE, PAGE, IBV_ACCESS_ZERO_BASED), EINVAL);
	WORKS_MAKE(mr, ibv_reg_dm_mr(pd, dm, 0, PAGE, IBV_ACCESS_ZERO_BASED));
	FAILS_CODE(ibv_free_dm(dm), EBUSY);
	WORKS(ibv_dereg_mr(mr));
	FAILS_NULL(ibv_import_dm(ctx, 0x7fffffff), ENOENT);
	WORKS_MAKE(d, ibv_import_dm(ctx, dm->handle));
	WORKS_VOID(ibv_unimport_dm(d));
	FAILS_MINUS(ibv_dm_export_dmabuf_fd(dm), EOPNOTSUPP);
	WORKS(ibv_free_dm(dm));
	FAILS_NULL(ibv_alloc_dmah(ctx, &da), EINVAL);
	da.comp_mask = 0;
	WORKS_MAKE(dmah, ibv_alloc_dmah(ctx, &da));
	xa.dmah = dmah;
	xa.addr = mem;
	WORKS_MAKE(mr, ibv_reg_mr_ex(pd, &xa));
	FAILS_CODE(ibv_dealloc_dmah(dmah), EBUSY);
	WORKS(ibv_dereg_mr(mr));
	WORKS(ibv_dealloc_dmah(dmah));
	FAILS_NULL(ibv_alloc_buf(pd, 0, &buf), EINVAL);
	WORKS_MAKE(at, ibv_alloc_buf(pd, PAGE, &buf));
	FAILS_NULL(ibv_reg_buf_mr(pd, buf, at, 2 * PAGE, 0), EINVAL);
	WORKS_MAKE(mr, ibv_reg_buf_mr(pd, buf, at, PAGE, 0));
	WORKS(ibv_dereg_mr(mr));
	FAILS_MINUS(ibv_export_buf_dmabuf_fd(buf), ENODATA);
	WORKS_VOID(ibv_free_buf(buf));
}

/* That a CQ holds nothing is no failure. */
static void extended_cqs(void)
{
	struct ibv_cq_init_attr_ex a = {.cqe = 4, .wc_flags = IBV_WC_EX_WITH_FLOW_TAG};
	struct ibv_values_ex v = {.comp_mask = IBV_VALUES_MASK_RESERVED};
	struct ibv_poll_cq_attr p = {.comp_mask = 1};
	struct ibv_cq_ex *c;

	FAILS_NULL(ibv_create_cq_ex(ctx, &a), EOPNOTSUPP);
	a.wc_flags = 0;
	a.comp_mask = 1u << 31;
	FAILS_NULL(ibv_create_cq_ex(ctx, &a), EINVAL);
	a.comp_mask = 0;
	WORKS_MAKE(c, ibv_create_cq_ex(ctx, &a));
	FAILS_CODE(ibv_start_poll(c, &p), EINVAL);
	p.comp_mask = 0;
	WORKS_IF(int none = ibv_start_poll(c, &p), none == ENOENT);
	WORKS(ibv_destroy_cq((struct ibv_cq *)c));
	FAILS_CODE(ibv_query_rt_values_ex(ctx, &v), EINVAL);
	v.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
	WORKS(ibv_query_rt_values_ex(ctx, &v));
}

static void queues(void)
{
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = 4, .max_sge = 1000}};
	struct ibv_srq_init_attr_ex sx = {.comp_mask = 0};
	struct ibv_modify_cq_attr ma = {.attr_mask = 0};
	struct ibv_recv_wr wr = {.num_sge = 100}, *bad;
	struct ibv_comp_channel *ch;
	struct ibv_srq_attr s;
	struct ibv_srq *srq;
	struct ibv_cq *c;
	struct ibv_wc wc;
	uint32_t number;

	WORKS_MAKE(ch, ibv_create_comp_channel(ctx));
	FAILS_NULL(ibv_create_cq(ctx, 0, NULL, NULL, 0), EINVAL);
	WORKS_MAKE(cq, ibv_create_cq(ctx, 16, NULL, NULL, 0));
	WORKS_MAKE(c, ibv_create_cq(ctx, 16, NULL, ch, 0));
	FAILS_CODE(ibv_destroy_comp_channel(ch), EBUSY);
	FAILS_CODE(ibv_resize_cq(c, 0), EINVAL);
	WORKS(ibv_resize_cq(c, 32));
	FAILS_CODE(ibv_modify_cq(c, &ma), EINVAL);
	ma.attr_mask = IBV_CQ_ATTR_MODERATE;
	WORKS(ibv_modify_cq(c, &ma));
	WORKS(ibv_poll_cq(c, 1, &wc));
	WORKS(ibv_req_notify_cq(c, 0));
	WORKS(ibv_destroy_cq(c));
	WORKS(ibv_destroy_comp_channel(ch));
	FAILS_NULL(ibv_create_srq(pd, &sa), EINVAL);
	FAILS_NULL(ibv_create_srq_ex(ctx, &sx), EINVAL);
	sa.attr.max_sge = sx.attr.max_wr = sx.attr.max_sge = 4;
	sx.comp_mask = IBV_SRQ_INIT_ATTR_PD;
	sx.pd = pd;
	WORKS_MAKE(srq, ibv_create_srq_ex(ctx, &sx));
	WORKS(ibv_destroy_srq(srq));
	WORKS_MAKE(srq, ibv_create_srq(pd, &sa));
	s.srq_limit = 1000;
	FAILS_CODE(ibv_modify_srq(srq, &s, IBV_SRQ_LIMIT), EINVAL);
	s.srq_limit = 1;
	WORKS(ibv_modify_srq(srq, &s, IBV_SRQ_LIMIT));
	WORKS(ibv_query_srq(srq, &s));
	WORKS(ibv_get_srq_num(srq, &number));
	FAILS_CODE(ibv_post_srq_recv(srq, &wr, &bad), EINVAL);
	wr.num_sge = 0;
	WORKS(ibv_post_srq_recv(srq, &wr, &bad));
	{
		struct ibv_qp_init_attr qa = {
		    .qp_type = IBV_QPT_RC, .srq = srq, .send_cq = cq, .recv_cq = cq};
		struct ibv_qp *qp;

		qa.cap.max_send_wr = qa.cap.max_send_sge = 1;
		WORKS_MAKE(qp, ibv_create_qp(pd, &qa));
		FAILS_CODE(ibv_destroy_cq(cq), EBUSY);
		FAILS_CODE(ibv_destroy_srq(srq), EBUSY);
		FAILS_CODE(ibv_post_recv(qp, &wr, &bad), EINVAL);
		FAILS_CODE(ibv_destroy_qp(NULL), EINVAL);
		WORKS(ibv_destroy_qp(qp));
	}
	WORKS(ibv_destroy_srq(srq));
}

/* Requests that are built call by call: the calls in between fail by nothing that they return. */
static void built_requests(void)
{
	struct ibv_qp_ex *x;
	struct kit_end e;

	x = kit_end_open_ex(&e, pd, 4, 64, IBV_QP_EX_WITH_SEND);
	WORKS_MAKE(x, ibv_qp_to_qp_ex(e.qp));
	WORKS_VOID(ibv_wr_start(x));
	WORKS_VOID(ibv_wr_send(x));
	FAILS_UNSAID(ibv_wr_complete(x), EINVAL, EINVAL);
	kit_connect(&e, &e.card);
	WORKS_VOID(ibv_wr_start(x));
	WORKS_VOID(ibv_wr_rdma_read(x, 1, 1));
	WORKS_VOID(ibv_wr_set_inline_data(x, e.buf, 1));
	FAILS_UNSAID(ibv_wr_complete(x), EINVAL, EINVAL);
	WORKS_VOID(ibv_wr_start(x));
	WORKS_VOID(ibv_wr_send(x));
	WORKS_VOID(ibv_wr_set_inline_data(x, e.buf, 65));
	WORKS_VOID(ibv_wr_abort(x));
	WORKS_VOID(ibv_wr_start(x));
	WORKS(ibv_wr_complete(x));
	kit_end_close(&e);
}

static void groups(void)
{
	struct ibv_qp_init_attr qa = {
	    .qp_type = IBV_QPT_UD,
	    .send_cq = cq,
	    .recv_cq = cq,
	    .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
	union ibv_gid group = {.raw = {0xff, 2, [15] = 9}}, none = {.raw = {0xfe, 0x80, [15] = 9}};
	struct ibv_qp *qp;

	WORKS_MAKE(qp, ibv_create_qp(pd, &qa));
	FAILS_CODE(ibv_attach_mcast(qp, &none, 0), EINVAL);
	FAILS_CODE(ibv_detach_mcast(qp, &none, 0), EINVAL);
	FAILS_CODE(ibv_detach_mcast(qp, &group, 0), EINVAL);
	WORKS(ibv_attach_mcast(qp, &group, 0));
	WORKS(ibv_attach_mcast(qp, &group, 0));
	FAILS_CODE(ibv_destroy_qp(qp), EBUSY);
	WORKS(ibv_detach_mcast(qp, &group, 0));
	FAILS_CODE(ibv_detach_mcast(qp, &group, 0), EINVAL);
	WORKS(ibv_destroy_qp(qp));
}

static void queue_pairs(void)
{
	struct ibv_qp_init_attr qa = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq};
	struct ibv_qp_init_attr_ex qx = {.qp_type = IBV_QPT_RC};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS};
	struct ibv_send_wr wr = {.num_sge = 0}, *bad;
	struct ibv_recv_wr rr = {.num_sge = 0}, *bad_rr;
	struct ibv_async_event ev;
	struct ibv_device_attr device;
	struct ibv_ece ece;
	struct ibv_qp *qp;
	union ibv_gid gid;

	qa.cap.max_send_sge = 1000;
	FAILS_NULL(ibv_create_qp(pd, &qa), EINVAL);
	FAILS_NULL(ibv_create_qp_ex(ctx, &qx), EINVAL);
	qa.cap =
	    (struct ibv_qp_cap){.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1};
	WORKS_MAKE(qp, ibv_create_qp(pd, &qa));
	WORKS(ibv_query_qp(qp, &a, IBV_QP_STATE, &qa));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1};
	WORKS(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a.qp_state = IBV_QPS_RESET;
	WORKS(ibv_modify_qp(qp, &a, IBV_QP_STATE));
	a.qp_state = IBV_QPS_RTS;
	FAILS_CODE(ibv_modify_qp(qp, &a, IBV_QP_STATE), EINVAL);
	FAILS_CODE(ibv_post_send(qp, &wr, &bad), EINVAL);
	FAILS_CODE(ibv_post_recv(qp, &rr, &bad_rr), EINVAL);
	WORKS(ibv_destroy_qp(qp));
	qx.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	qx.pd = pd;
	qx.send_cq = qx.recv_cq = cq;
	qx.cap = qa.cap;
	WORKS_MAKE(qp, ibv_create_qp_ex(ctx, &qx));
	FAILS_NULL(ibv_qp_to_qp_ex(qp), EOPNOTSUPP);
	built_requests();
	memset(&ece, 0xee, sizeof(ece));
	CHECK(!ibv_query_device(ctx, &device));
	WORKS(ibv_query_ece(qp, &ece));
	CHECK(ece.vendor_id == device.vendor_id && !ece.options && !ece.comp_mask);
	ece.options = 5; /* which the far end has, say */
	WORKS(ibv_set_ece(qp, &ece));
	CHECK(!ece.options);
	ece.vendor_id++;
	FAILS_CODE(ibv_set_ece(qp, &ece), EINVAL);
	ece.vendor_id = 0; /* what a far end without it sends */
	FAILS_CODE(ibv_set_ece(qp, &ece), EOPNOTSUPP);
	ece.vendor_id = device.vendor_id;
	ece.comp_mask = 1;
	FAILS_CODE(ibv_set_ece(qp, &ece), EINVAL);
	memset(&gid, 0, sizeof(gid));
	FAILS_CODE(ibv_attach_mcast(qp, &gid, 0), EINVAL);
	FAILS_CODE(ibv_detach_mcast(qp, &gid, 0), EINVAL);
	WORKS(ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 0));
	WORKS(ibv_destroy_qp(qp));
	CHECK(!fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK));
	FAILS_UNSAID(ibv_get_async_event(ctx, &ev), -1, EAGAIN);
}

static void windows(struct kit_end *e)
{
	struct ibv_mw_bind b = {.bind_info = {.mr = NULL, .addr = (uintptr_t)e->buf, .length = 64}};
	struct ibv_mw *mw;
	struct ibv_mr *mr = ibv_reg_mr(e->qp->pd, e->buf, 64, IBV_ACCESS_MW_BIND);

	FAILS_NULL(ibv_alloc_mw(e->qp->pd, (enum ibv_mw_type)9), EINVAL);
	WORKS_MAKE(mw, ibv_alloc_mw(e->qp->pd, IBV_MW_TYPE_1));
	b.bind_info.mr = mr;
	b.bind_info.mw_access_flags = 1u << 31; /* without a region the header refuses it */
	FAILS_CODE(ibv_bind_mw(e->qp, mw, &b), EINVAL);
	b.bind_info.mw_access_flags = 0;
	WORKS(ibv_bind_mw(e->qp, mw, &b));
	FAILS_CODE(ibv_dereg_mr(mr), EBUSY);
	WORKS(ibv_dealloc_mw(mw));
	WORKS(ibv_dereg_mr(mr));
}

static void files(void)
{
	char dir[] = "/tmp/verbena.XXXXXX", path[64], text[16];
	FILE *f;

	CHECK(mkdtemp(dir));
	FAILS_UNSAID(ibv_read_sysfs_file(dir, "x", text, sizeof(text)), -1, ENOENT);
	snprintf(path, sizeof(path), "%s/x", dir);
	f = fopen(path, "w");
	CHECK(f && fputs("a\n", f) >= 0 && !fclose(f));
	WORKS(ibv_read_sysfs_file(dir, "x", text, sizeof(text)) != 1);
	CHECK(!unlink(path) && !rmdir(dir));
	WORKS(ibv_fork_init());
	WORKS_IF(int s = (int)ibv_is_fork_initialized(), s == IBV_FORK_UNNEEDED);
}

static void xrc_domains(void)
{
	struct ibv_xrcd_init_attr a = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
				       .fd = 1000};
	struct ibv_srq_init_attr_ex sa = {.attr = {.max_wr = 1, .max_sge = 1},
					  .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
						       IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
					  .srq_type = IBV_SRQT_XRC,
					  .pd = pd};
	struct ibv_cq *c = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex qa = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	struct ibv_qp_open_attr oa = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
						   IBV_QP_OPEN_ATTR_TYPE,
				      .qp_type = IBV_QPT_XRC_RECV};
	struct ibv_qp *target, *opened;
	struct ibv_xrcd *x;
	struct ibv_srq *srq;

	FAILS_NULL(ibv_open_xrcd(ctx, &a), EBADF);
	a.fd = -1;
	WORKS_IF(x = ibv_open_xrcd(ctx, &a), x);
	sa.cq = c;
	FAILS_NULL(ibv_create_srq_ex(ctx, &sa), EINVAL);
	sa.xrcd = x;
	WORKS_IF(srq = ibv_create_srq_ex(ctx, &sa), srq);
	FAILS_CODE(ibv_close_xrcd(x), EBUSY);
	CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(c));
	qa.xrcd = x;
	WORKS_IF(target = ibv_create_qp_ex(ctx, &qa), target);
	oa.xrcd = x;
	FAILS_NULL(ibv_open_qp(ctx, &oa), EINVAL);
	oa.qp_num = target->qp_num;
	WORKS_IF(opened = ibv_open_qp(ctx, &oa), opened);
	WORKS(ibv_destroy_qp(target));
	WORKS(ibv_destroy_qp(opened));
	WORKS(ibv_close_xrcd(x));
}

static void completion_counters(void)
{
	struct ibv_comp_cntr_init_attr ia = {.type = IBV_COMP_CNTR_TYPE_BYTES};
	struct ibv_qp_attach_comp_cntr_attr aa = {.op_mask = 1 << 6};
	struct ibv_qp_init_attr qa = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
	struct ibv_comp_cntr_caps caps;
	struct ibv_comp_cntr *c, *second;
	struct ibv_qp *qp;
	uint64_t value;

	WORKS(_ibv_query_comp_cntr_caps(ctx, &caps, sizeof(caps)));
	CHECK(caps.max_value == UINT64_MAX && caps.max_counters == 65536 &&
	      caps.supported_qp_attach_ops == 0x3f);
	WORKS_MAKE(c, ibv_create_comp_cntr(ctx, &ia));
	WORKS_MAKE(second, ibv_create_comp_cntr(ctx, &ia));
	CHECK(c->context == ctx && c->handle != second->handle);
	ia.flags = 1;
	FAILS_NULL(ibv_create_comp_cntr(ctx, &ia), EINVAL);
	ia = (struct ibv_comp_cntr_init_attr){.comp_mask = 1};
	FAILS_NULL(ibv_create_comp_cntr(ctx, &ia), EINVAL);
	ia = (struct ibv_comp_cntr_init_attr){.type = (enum ibv_comp_cntr_type)2};
	FAILS_NULL(ibv_create_comp_cntr(ctx, &ia), EINVAL);
	WORKS(ibv_set_comp_cntr(c, UINT64_MAX));
	WORKS(ibv_inc_comp_cntr(c, 3)); /* it wraps */
	WORKS(ibv_set_err_comp_cntr(c, 7));
	WORKS(ibv_inc_err_comp_cntr(c, 3));
	WORKS(ibv_read_comp_cntr(c, &value));
	CHECK(value == 2);
	WORKS(ibv_read_err_comp_cntr(c, &value));
	CHECK(value == 10);
	WORKS_MAKE(qp, ibv_create_qp(pd, &qa));
	FAILS_CODE(ibv_qp_attach_comp_cntr(qp, c, &aa), EOPNOTSUPP);
	aa.op_mask = 0;
	FAILS_CODE(ibv_qp_attach_comp_cntr(qp, c, &aa), EINVAL);
	aa = (struct ibv_qp_attach_comp_cntr_attr){.comp_mask = 1, .op_mask = 1};
	FAILS_CODE(ibv_qp_attach_comp_cntr(qp, c, &aa), EINVAL);
	aa = (struct ibv_qp_attach_comp_cntr_attr){.op_mask = 3};
	WORKS(ibv_qp_attach_comp_cntr(qp, c, &aa));
	aa.op_mask = 2 | 4;
	FAILS_CODE(ibv_qp_attach_comp_cntr(qp, second, &aa), EBUSY);
	aa.op_mask = 4;
	WORKS(ibv_qp_attach_comp_cntr(qp, second, &aa));
	FAILS_CODE(ibv_destroy_comp_cntr(second), EBUSY);
	WORKS(ibv_destroy_qp(qp));
	WORKS(ibv_destroy_comp_cntr(second));
	WORKS(ibv_destroy_comp_cntr(c));
}

/* One of each macro that makes calls which always fail. */
static void calls_that_always_fail(void)
{
	FAILS_CODE(ibv_cmd_modify_qp(), EOPNOTSUPP);
	FAILS_NULL(verbs_open_device(), EOPNOTSUPP);
	FAILS_UNSAID(ibv_read_ibdev_sysfs_file(), -1, ENOENT);
	WORKS_VOID(verbs_uninit_context());
}

/* A process that posts, polls and waits under all kinds of system calls: the kernel forbids reaching the
 * peer's memory, bells are rung and events read. */
struct board {
	struct kit_card card[2];
	_Atomic int opened, connected, over;
};

static void talk(struct board *b, int me)
{
	struct ibv_comp_channel *ch;
	struct ibv_context *c = kit_open();
	struct ibv_pd *p = ibv_alloc_pd(c);
	struct ibv_sge sge = {.length = 64};
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge},
			   *bad_send;
	struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad_recv;
	struct kit_end e;
	struct ibv_cq *got;
	struct ibv_wc wc;
	void *context;
	int n;

	WORKS_MAKE(ch, ibv_create_comp_channel(c));
	kit_end_open_on(&e, p, ch, 16, PAGE);
	b->card[me] = e.card;
	sge.addr = (uintptr_t)e.buf;
	sge.lkey = e.mr->lkey;
	send.num_sge = 1;
	atomic_fetch_add(&b->opened, 1);
	kit_until(&b->opened, 2);
	WORKS_VOID(kit_connect(&e, &b->card[!me]));
	for (int i = 0; i < 8; i++)
		WORKS(ibv_post_recv(e.qp, &recv, &bad_recv));
	atomic_fetch_add(&b->connected, 1);
	kit_until(&b->connected, 2);
	for (int i = 0; i < 8; i++) {
		WORKS(ibv_req_notify_cq(e.cq, 0));
		WORKS(ibv_post_send(e.qp, &send, &bad_send));
		WORKS(ibv_get_cq_event(ch, &got, &context));
		WORKS_VOID(ibv_ack_cq_events(got, 1));
		for (int seen = 0; seen < 2; seen += n) /* its completion, and the other's message */
			WORKS_IF(n = ibv_poll_cq(e.cq, 1, &wc), n == 0 || (n == 1 && !wc.status));
	}
	for (int i = 0; i < 8; i++) {
		WORKS(kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, PAGE, &b->card[!me], 0));
		do {
			WORKS_IF(n = ibv_poll_cq(e.cq, 1, &wc), n == 0 || (n == 1 && !wc.status));
		} while (!n);
	}
	if (!me)
		windows(&e);
	CHECK(!fcntl(ch->fd, F_SETFL, O_NONBLOCK));
	while (!ibv_get_cq_event(ch, &got, &context))
		ibv_ack_cq_events(got, 1);
	FAILS_UNSAID(ibv_get_cq_event(ch, &got, &context), -1, EAGAIN);
	atomic_fetch_add(&b->over, 1);
	kit_until(&b->over, 2);
	kit_end_close(&e);
	WORKS(ibv_destroy_comp_channel(ch));
	WORKS(ibv_dealloc_pd(p));
	WORKS(ibv_close_device(c));
}

static void inherited_counter(struct ibv_comp_cntr *c)
{
	struct ibv_comp_cntr_caps caps;
	uint64_t value;

	FAILS_CODE(_ibv_query_comp_cntr_caps(ctx, &caps, sizeof(caps)), EIO);
	FAILS_CODE(ibv_read_comp_cntr(c, &value), EIO);
	FAILS_CODE(ibv_read_err_comp_cntr(c, &value), EIO);
	FAILS_CODE(ibv_set_comp_cntr(c, 1), EIO);
	FAILS_CODE(ibv_set_err_comp_cntr(c, 1), EIO);
	FAILS_CODE(ibv_inc_comp_cntr(c, 1), EIO);
	FAILS_CODE(ibv_inc_err_comp_cntr(c, 1), EIO);
	WORKS(ibv_destroy_comp_cntr(c));
}

/* Whoever fails behind fork() says so too. */
static void inherited(void)
{
	struct ibv_comp_cntr_init_attr ia = {0};
	struct ibv_comp_cntr *counter = ibv_create_comp_cntr(ctx, &ia);
	struct ibv_cq_ex *extended = ibv_create_cq_ex(ctx, &(struct ibv_cq_init_attr_ex){.cqe = 4});
	struct ibv_poll_cq_attr p = {0};
	struct kit_end e;
	struct ibv_wc wc;
	pid_t child;

	CHECK(extended);
	kit_end_open(&e, pd, 4, PAGE);
	child = kit_fork();
	if (!child) {
		vb_history_keep(&sentences);
		FAILS_CODE(kit_recv(&e, 1, 0, 8), EIO);
		FAILS_CODE(kit_post(&e, IBV_WR_SEND, 1, 0, 8, NULL, 0), EIO);
		FAILS_MINUS(ibv_poll_cq(e.cq, 1, &wc), EIO);
		FAILS_CODE(ibv_start_poll(extended, &p), EIO);
		FAILS_CODE(ibv_req_notify_cq(e.cq, 0), EIO);
		FAILS_NULL(ibv_create_comp_channel(ctx), EIO);
		FAILS_CODE(ibv_query_qp(e.qp, NULL, 0, NULL), EIO);
		inherited_counter(counter);
		_exit(0);
	}
	CHECK(!kit_reap(child));
	WORKS(ibv_destroy_comp_cntr(counter));
	WORKS(ibv_destroy_cq((struct ibv_cq *)extended));
	kit_end_close(&e);
}

/* What fails only on a device that keeps pages from children. */
static void strict(void)
{
	struct ibv_mr *mr;

	setenv("VERBENA_PROFILE", "strict", 1);
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	WORKS_IF(int s = (int)ibv_is_fork_initialized(), s == IBV_FORK_DISABLED);
	WORKS_MAKE(mr, ibv_reg_mr(pd, mem, PAGE, 0));
	FAILS_CODE(ibv_fork_init(), EINVAL); /* too late */
	WORKS(ibv_dereg_mr(mr));
	exit(0);
}

/* The calls of strict() again, with children in view from the beginning. */
static void strict_with_fork(void)
{
	setenv("VERBENA_PROFILE", "strict", 1);
	WORKS(ibv_fork_init());
	FAILS_MINUS(ibv_dontfork_range(mem + 8 * PAGE, PAGE), ENOMEM);
	WORKS(ibv_dontfork_range(mem, PAGE));
	WORKS(ibv_dofork_range(mem, PAGE));
	exit(0);
}

static void in_child(void (*what)(void))
{
	pid_t child = kit_fork();

	if (!child) {
		vb_history_keep(&sentences);
		what();
	}
	CHECK(!kit_reap(child));
}

int main(void)
{
	struct board *b = kit_shared(sizeof(*b));
	pid_t peer;

	vb_history_keep(&sentences);
	mem = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mem != MAP_FAILED && !munmap(mem + 8 * PAGE, 8 * PAGE));
	in_child(strict);
	in_child(strict_with_fork);

	peer = kit_fork();
	if (!peer) {
		vb_history_keep(&sentences);
		CHECK(!prctl(PR_SET_DUMPABLE, 0));
		talk(b, 1);
		exit(0);
	}
	talk(b, 0);
	CHECK(!kit_reap(peer));
	devices();
	ports();
	domains();
	addresses();
	regions();
	device_memory();
	extended_cqs();
	queues();
	queue_pairs();
	groups();
	files();
	xrc_domains();
	completion_counters();
	calls_that_always_fail();
	inherited();
	WORKS(ibv_destroy_cq(cq));
	WORKS(ibv_dealloc_pd(pd));
	WORKS(ibv_close_device(other));
	WORKS(ibv_close_device(ctx));
	puts("errno: ok");
	return 0;
}
