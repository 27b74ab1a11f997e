/* Calls that exist only to fail: each fails in the way its callers understand. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <infiniband/verbs.h>

#include "kit.h"
#include "obj/context.h"

#define POSITIVE(X)                 \
	X(execute_ioctl)            \
	X(ibv_cmd_create_comp_cntr) \
	X(ibv_cmd_create_cq_ex2)    \
	X(ibv_cmd_get_context)      \
	X(ibv_cmd_query_device)     \
	X(ibv_cmd_query_port_speed) \
	X(ibv_cmd_reg_mr)           \
	X(ibv_cmd_reg_mr_ex)        \
	X(ibv_cmd_resize_cq)

#define NOTHING(X)                        \
	X(_verbs_init_and_alloc_context)  \
	X(ibv_dmabuf_heap_alloc)          \
	X(ibv_dmabuf_heap_cc_shared_init) \
	X(verbs_open_device)

/* Their arguments do not matter, so all are called as if they had five. */
typedef long args_fn(void *, void *, void *, void *, int);

#define DECLARE(name) extern char name[];
POSITIVE(DECLARE)
NOTHING(DECLARE)
DECLARE(ibv_cmd_export_dmabuf_fd)
DECLARE(ibv_dmabuf_heap_destroy)
DECLARE(ibv_dmabuf_heap_free)
DECLARE(ibv_read_ibdev_sysfs_file)

#define CALL(name) ((args_fn *)(void *)name)(NULL, NULL, NULL, NULL, 0)

static void ints_are_a_positive_errno(void **state)
{
	(void)state;
#define FAILS(name) assert_int_equal((int)CALL(name), EOPNOTSUPP);
	POSITIVE(FAILS)
#undef FAILS
}

static void descriptors_are_minus_one(void **state)
{
	(void)state;
	errno = 0;
	assert_int_equal(ibv_dm_export_dmabuf_fd(NULL), -1);
	assert_int_equal(errno, EOPNOTSUPP);
	errno = 0;
	assert_int_equal((int)CALL(ibv_cmd_export_dmabuf_fd), -1);
	assert_int_equal(errno, EOPNOTSUPP);
	errno = 0;
	assert_int_equal((int)CALL(ibv_read_ibdev_sysfs_file), -1); /* its "no such file" */
	assert_int_equal(errno, ENOENT);
}

static void objects_are_null(void **state)
{
	(void)state;
#define FAILS(name)                      \
	errno = 0;                       \
	assert_int_equal(CALL(name), 0); \
	assert_int_equal(errno, EOPNOTSUPP);
	NOTHING(FAILS)
#undef FAILS
}

extern bool verbs_allow_disassociate_destroy;
void verbs_register_driver_34(const void *ops);
void verbs_register_driver_57(const void *ops);
void verbs_register_driver_59(const void *ops);
void verbs_register_driver_64(const void *ops);
void verbs_register_driver_65(const void *ops);

static void drivers_may_register(void **state)
{
	(void)state;
	verbs_register_driver_34("ops");
	verbs_register_driver_57("ops");
	verbs_register_driver_59("ops");
	verbs_register_driver_64("ops");
	verbs_register_driver_65("ops");
	CALL(ibv_dmabuf_heap_destroy);
	CALL(ibv_dmabuf_heap_free);
	assert_false(verbs_allow_disassociate_destroy);
	ibv_free_buf(NULL);
}

/* --- the function tables of a context: every entry is there, and says which call is refused */

static struct ibv_context *ctx;

/* Objects that no program can have made: the header only wants to know their context. */
static struct {
	struct ibv_qp qp;
	struct ibv_flow flow;
	struct ibv_flow_action action;
	struct ibv_wq wq;
	struct ibv_rwq_ind_table table;
	struct ibv_counters counters;
	struct ibv_srq srq;
} made;

static int is_null(const void *object)
{
	return object ? 0 : errno;
}

static int rows(int row)
{
	struct ibv_wq_init_attr wq_attr = {0};
	struct ibv_ops_wr op, *bad = NULL;
	uint64_t value;
	int err;

	switch (row) {
	case 0:
		return is_null(ibv_create_flow(&made.qp, NULL));
	case 1:
		return ibv_destroy_flow(&made.flow);
	case 2:
		return is_null(ibv_create_flow_action_esp(ctx, NULL));
	case 3:
		return ibv_modify_flow_action_esp(&made.action, NULL);
	case 4:
		return ibv_destroy_flow_action(&made.action);
	case 5:
		return is_null(ibv_create_wq(ctx, &wq_attr));
	case 6:
		return ibv_modify_wq(&made.wq, NULL);
	case 7:
		return ibv_destroy_wq(&made.wq);
	case 8:
		return is_null(ibv_create_rwq_ind_table(ctx, NULL));
	case 9:
		return ibv_destroy_rwq_ind_table(&made.table);
	case 10:
		return is_null(ibv_create_counters(ctx, NULL));
	case 11:
		return ibv_destroy_counters(&made.counters);
	case 12:
		return ibv_read_counters(&made.counters, &value, 1, 0);
	case 13:
		return ibv_attach_counters_point_flow(&made.counters, NULL, NULL);
	case 14:
		return ibv_modify_qp_rate_limit(&made.qp, NULL);
	case 15:
		err = ibv_post_srq_ops(&made.srq, &op, &bad);
		return bad == &op ? err : -1;
	default:
		return 0;
	}
}

static const char *const names[] = {"ibv_create_flow",
				    "ibv_destroy_flow",
				    "ibv_create_flow_action_esp",
				    "ibv_modify_flow_action_esp",
				    "ibv_destroy_flow_action",
				    "ibv_create_wq",
				    "ibv_modify_wq",
				    "ibv_destroy_wq",
				    "ibv_create_rwq_ind_table",
				    "ibv_destroy_rwq_ind_table",
				    "ibv_create_counters",
				    "ibv_destroy_counters",
				    "ibv_read_counters",
				    "ibv_attach_counters_point_flow",
				    "ibv_modify_qp_rate_limit",
				    "ibv_post_srq_ops"};

enum { ROWS = sizeof(names) / sizeof(names[0]) };

static int (*body)(void);

static int run_body(void)
{
	ctx = kit_open();
	return body();
}

/* Runs f in a child that has the device open; its exit status and the lines of its log. */
static int logged(const char *level, int (*f)(void), char *text, size_t size)
{
	int status;

	body = f;
	status = kit_said("stderr", level, run_body, text, size);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static int all_rows(void)
{
	made.qp.context = made.flow.context = made.action.context = made.wq.context = made.table.context =
	    made.counters.context = made.srq.context = ctx;
	for (int i = 0; i < ROWS; i++) {
		errno = 0;
		if (rows(i) != EOPNOTSUPP)
			return i + 1;
	}
	return 0;
}

static void each_absent_call_is_named(void **state)
{
	static char text[1 << 14];
	const char *line = text;
	char head[100];

	(void)state;
	assert_int_equal(logged("warn", all_rows, text, sizeof(text)), 0);
	for (int i = 0; i < ROWS; i++) { /* one line each, in their order */
		const char *end = strchr(line, '\n'), *words = strstr(line, ": ");

		snprintf(head, sizeof(head), ": %s: ", names[i]);
		if (!end || !words || strncmp(words, head, strlen(head)))
			fail_msg("%s is missing at: %s", names[i], line);
		words = strstr(line, " not supported (EOPNOTSUPP)\n");
		assert_true(words && words < end);
		line = end + 1;
	}
	assert_string_equal(line, "");
}

/* What a header may find: everything between the newest member and the old tables' end. */
static int look_at_all(void)
{
	struct vb_context *c = vb_context(ctx);
	char *const *at = (char *const *)(const void *)&c->newer;
	char *const *end = (char *const *)(const void *)&c->v._ABI_placeholder3;

	for (; at < end; at++)
		if (!*at && at != (char *const *)(const void *)&c->v.priv)
			return (int)(at - (char *const *)(const void *)&c->newer) + 1;
	if (c->v.sz != (size_t)((char *)(&c->v + 1) - (char *)&c->newer))
		return 98;
	return 0;
}

static void no_entry_is_null(void **state)
{
	char text[1000];

	(void)state;
	assert_int_equal(logged("warn", look_at_all, text, sizeof(text)), 0);
	assert_string_equal(text, "");
}

/* Old programs find the flow calls where they look for them. */
static int old_places(void)
{
	struct verbs_context *v = &vb_context(ctx)->v;
	struct ibv_device_attr attr = {0};

	if (v->ABI_placeholder1 != (void (*)(void))v->ibv_create_flow ||
	    v->ABI_placeholder2 != (void (*)(void))v->ibv_destroy_flow)
		return 1;
	return ctx->ops._compat_query_device(ctx, &attr) || attr.phys_port_cnt != 1;
}

static void old_programs_find_their_entries(void **state)
{
	char text[1000];

	(void)state;
	assert_int_equal(logged("warn", old_places, text, sizeof(text)), 0);
}

/* Programs ask these to learn what is there, and go on without. */
static int probe(void)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_gid_entry e;

	return ibv_query_gid_ex(ctx, 1, 7, &e, 0) == ENODATA &&
		       !ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE) && errno == EBADF &&
		       !ibv_dealloc_pd(pd) && !ibv_close_device(ctx)
		   ? 0
		   : 1;
}

static void probes_are_details(void **state)
{
	char text[4096];

	(void)state;
	assert_int_equal(logged("info", probe, text, sizeof(text)), 0);
	assert_string_equal(text, "");
	assert_int_equal(logged("debug", probe, text, sizeof(text)), 0);
	assert_non_null(strstr(text, "ibv_query_gid_ex"));
	assert_non_null(strstr(text, "ibv_reg_dmabuf_mr"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    /* first: once this process has said something itself, its children log where it does */
	    cmocka_unit_test(each_absent_call_is_named),
	    cmocka_unit_test(no_entry_is_null),
	    cmocka_unit_test(old_programs_find_their_entries),
	    cmocka_unit_test(probes_are_details),
	    cmocka_unit_test(ints_are_a_positive_errno),
	    cmocka_unit_test(descriptors_are_minus_one),
	    cmocka_unit_test(objects_are_null),
	    cmocka_unit_test(drivers_may_register),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
