/* Objects that a program destroys twice, calls that are given NULL or an object of another kind: each fails
 * with EINVAL and says so, and reads nothing of what has gone (the sanitizers would see it).  Counts, which
 * sentences and limits go by, stay right.
 *
 * Headers compile some calls into programs that look into the object themselves: these are called here past
 * the headers, through the tables. */
#include "kit.h"
#include "infiniband/verbs.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_ah *other; /* an object of another kind than most */

/* Refused, in the name of `call`, with a sentence that contains `what`. */
#define REFUSED(name, expr, what)                                                            \
	do {                                                                                 \
		errno = 0;                                                                   \
		CHECK_EQ(expr, EINVAL);                                                      \
		CHECK_EQ(errno, EINVAL);                                                     \
		CHECK(kit_log_says(name ": ") && kit_log_says(what), "no '%s' in: %s", what, \
		      kit_log_text());                                                       \
		kit_log_skip();                                                              \
	} while (0)

/* `destroy` is an expression in which `o` is the object. */
#define ENDS_ONCE(name, what, object, destroy)                      \
	do {                                                        \
		void *o = (object);                                 \
		CHECK(o, "%s", what);                               \
		CHECK_EQ(destroy, 0);                               \
		REFUSED(name, destroy, "there is no " what " at "); \
	} while (0)

/* The same, and what else is no such object.  Once a call: the log does not repeat a sentence at once. */
#define ENDS_ONE(name, what, object, destroy)                                                       \
	do {                                                                                        \
		ENDS_ONCE(name, what, object, destroy);                                             \
		void *o = NULL;                                                                     \
		REFUSED(name, destroy, "the " what " is NULL");                                     \
		o = ctx->device; /* never created, nor destroyed */                                 \
		REFUSED(name, destroy, "there is no " what " at ");                                 \
		o = other;                                                                          \
		REFUSED(name, destroy, "is not a " what ": it is another kind of object, address"); \
	} while (0)

static void domains(void)
{
	struct ibv_parent_domain_init_attr attr = {.pd = pd};
	struct ibv_td_init_attr td = {0};
	struct ibv_xrcd_init_attr x = {
	    .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = 0};

	ENDS_ONE("ibv_dealloc_pd", "protection domain", ibv_alloc_pd(ctx), ibv_dealloc_pd(o));
	ENDS_ONCE("ibv_dealloc_pd", "protection domain", ibv_alloc_parent_domain(ctx, &attr),
		  ibv_dealloc_pd(o));
	ENDS_ONE("ibv_dealloc_td", "thread domain", ibv_alloc_td(ctx, &td),
		 verbs_get_ctx(ctx)->dealloc_td(o));
	ENDS_ONE("ibv_close_xrcd", "XRC domain", ibv_open_xrcd(ctx, &x), verbs_get_ctx(ctx)->close_xrcd(o));
}

static void memory(void)
{
	static uint8_t bytes[4096];
	struct ibv_alloc_dm_attr dm = {.length = 64};
	struct ibv_dmah_init_attr dmah = {0};
	struct ibv_pd *ended = ibv_alloc_pd(ctx);
	struct ibv_mr *mr;

	CHECK_EQ(ibv_dealloc_pd(ended), 0);

	ENDS_ONE("ibv_dereg_mr", "memory region", ibv_reg_mr(pd, bytes, sizeof(bytes), 0), ibv_dereg_mr(o));
	ENDS_ONE("ibv_dereg_mr_relaxed", "memory region",
		 ibv_reg_mr_relaxed(pd, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE),
		 ibv_dereg_mr_relaxed(o));
	ENDS_ONE("ibv_dealloc_mw", "memory window", ibv_alloc_mw(pd, IBV_MW_TYPE_1), ctx->ops.dealloc_mw(o));
	ENDS_ONE("ibv_free_dm", "piece of device memory", ibv_alloc_dm(ctx, &dm),
		 verbs_get_ctx(ctx)->free_dm(o));
	ENDS_ONE("ibv_dealloc_dmah", "DMA handle", ibv_alloc_dmah(ctx, &dmah), ibv_dealloc_dmah(o));
	/* one that the wrong call refuses stays */
	mr = ibv_reg_mr(pd, bytes, sizeof(bytes), 0);
	CHECK_EQ(ibv_dereg_mr_relaxed(mr), EINVAL);
	ibv_unimport_mr(mr);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	kit_log_skip();
	/* calls that would use what has ended */
	CHECK_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	KIT_LOG_SAYS("ibv_rereg_mr: there is no memory region at ");
	CHECK(!ibv_reg_mr(ended, bytes, sizeof(bytes), 0));
	KIT_LOG_SAYS("ibv_reg_mr: there is no protection domain at ");
}

static void queues(void)
{
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_comp_cntr_init_attr cntr = {0};
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr qp = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
	struct ibv_qp *user;

	ENDS_ONE("ibv_destroy_comp_channel", "completion channel", ibv_create_comp_channel(ctx),
		 ibv_destroy_comp_channel(o));
	ENDS_ONE("ibv_destroy_srq", "shared receive queue", ibv_create_srq(pd, &srq), ibv_destroy_srq(o));
	ENDS_ONE("ibv_destroy_qp", "queue pair", ibv_create_qp(pd, &qp), ibv_destroy_qp(o));
	ENDS_ONE("ibv_destroy_comp_cntr", "completion counter", ibv_create_comp_cntr(ctx, &cntr),
		 ibv_destroy_comp_cntr(o));
	/* one that is busy stays */
	user = ibv_create_qp(pd, &qp);
	CHECK_EQ(ibv_destroy_cq(cq), EBUSY);
	CHECK_EQ(ibv_destroy_qp(user), 0);
	kit_log_skip();
	ENDS_ONE("ibv_destroy_cq", "completion queue", cq, ibv_destroy_cq(o));
}

static void other_objects(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_buf *buf;

	CHECK_EQ(ibv_destroy_ah(NULL), EINVAL);
	ENDS_ONCE("ibv_destroy_ah", "address handle", other, ibv_destroy_ah(o));
	/* these return nothing, and take NULL as free() does */
	ibv_free_device_list(list);
	ibv_free_device_list(list);
	KIT_LOG_SAYS("ibv_free_device_list: there is no device list at ");
	CHECK(ibv_alloc_buf(pd, 100, &buf));
	ibv_free_buf(buf);
	ibv_free_buf(buf);
	KIT_LOG_SAYS("ibv_free_buf: there is no buffer at ");
	kit_log_skip();
	ibv_free_device_list(NULL);
	ibv_free_buf(NULL);
	CHECK(!*kit_log_text(), "%s", kit_log_text());
}

/* Each call that is given a context, past the headers, which look into it; -1 or NULL where it has no code.
 */
static void on_a_closed_device(struct ibv_context *gone, const char *sentence)
{
	const struct verbs_context *v = verbs_get_ctx(ctx);
	struct ibv_async_event event;
	struct ibv_device_attr_ex dx;
	struct ibv_values_ex values = {0};
	struct ibv_device_attr da;
	struct ibv_port_attr pa;
	union ibv_gid gid;
	__be16 pkey;

#define GONE(name, expr) REFUSED(name, expr, sentence)
#define NO(object)	 ((object) ? 0 : errno)
	GONE("ibv_alloc_pd", NO(ibv_alloc_pd(gone)));
	GONE("ibv_create_cq", NO(ibv_create_cq(gone, 4, NULL, NULL, 0)));
	GONE("ibv_create_comp_channel", NO(ibv_create_comp_channel(gone)));
	GONE("ibv_alloc_td", NO(v->alloc_td(gone, &(struct ibv_td_init_attr){0})));
	GONE("ibv_alloc_dm", NO(v->alloc_dm(gone, &(struct ibv_alloc_dm_attr){.length = 8})));
	GONE("ibv_open_xrcd", NO(v->open_xrcd(gone, &(struct ibv_xrcd_init_attr){0})));
	GONE("ibv_query_device", ibv_query_device(gone, &da));
	GONE("ibv_query_device_ex", v->query_device_ex(gone, NULL, &dx, sizeof dx));
	GONE("ibv_query_rt_values_ex", v->query_rt_values(gone, &values));
	GONE("ibv_query_port", v->query_port(gone, 1, &pa, sizeof pa));
	GONE("ibv_query_gid", ibv_query_gid(gone, 1, 0, &gid) == -1 ? errno : 0);
	GONE("ibv_query_pkey", ibv_query_pkey(gone, 1, 0, &pkey) == -1 ? errno : 0);
	GONE("ibv_get_async_event", ibv_get_async_event(gone, &event) == -1 ? errno : 0);
}

static void closed_devices(void)
{
	struct ibv_context *gone = kit_open();
	struct ibv_pd *left;

	CHECK_EQ(ibv_close_device(gone), 0);
	on_a_closed_device(gone, "there is no open device at ");
	REFUSED("ibv_close_device", ibv_close_device(gone) == -1 ? errno : 0, "there is no open device at ");
	gone = kit_open();
	left = ibv_alloc_pd(gone);
	CHECK(left);
	CHECK_EQ(ibv_close_device(gone), 0); /* which leaves something */
	on_a_closed_device(gone, " was closed by ibv_close_device()");
	CHECK_EQ(ibv_dealloc_pd(left), 0);
	CHECK_EQ(ibv_close_device(gone), 0); /* now it has gone */
	REFUSED("ibv_close_device", ibv_close_device(gone) == -1 ? errno : 0, "there is no open device at ");
}

int main(void)
{
	struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1};

	kit_log_begin("info");
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	CHECK_EQ(ibv_query_gid(ctx, 1, 0, &ah.grh.dgid), 0);
	other = ibv_create_ah(pd, &ah);
	domains();
	memory();
	queues();
	other_objects();
	closed_devices();
	CHECK(!ibv_close_device(ctx));
	CHECK(kit_log_says("the program did not destroy 1 protection domain."), "%s", kit_log_text());
	puts("each ended once");
	return 0;
}
