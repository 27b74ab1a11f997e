/* Calls that exist only to fail: each fails in the way its callers understand. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <infiniband/verbs.h>

#define POSITIVE(X)                  \
	X(ibv_destroy_comp_cntr)     \
	X(ibv_set_comp_cntr)         \
	X(ibv_set_err_comp_cntr)     \
	X(ibv_inc_comp_cntr)         \
	X(ibv_inc_err_comp_cntr)     \
	X(ibv_read_comp_cntr)        \
	X(ibv_read_err_comp_cntr)    \
	X(ibv_qp_attach_comp_cntr)   \
	X(_ibv_query_comp_cntr_caps) \
	X(execute_ioctl)             \
	X(ibv_cmd_get_context)       \
	X(ibv_cmd_reg_mr)            \
	X(ibv_cmd_resize_cq)

#define NOTHING(X)                       \
	X(ibv_create_comp_cntr)          \
	X(_verbs_init_and_alloc_context) \
	X(verbs_open_device)

/* Their arguments do not matter, so all are called as if they had five. */
typedef long args_fn(void *, void *, void *, void *, int);

#define DECLARE(name) extern char name[];
POSITIVE(DECLARE)
NOTHING(DECLARE)

#define CALL(name) ((args_fn *)(void *)name)(NULL, NULL, NULL, NULL, 0)

static void ints_are_a_positive_errno(void **state)
{
	(void)state;
#define CHECK(name) assert_int_equal((int)CALL(name), EOPNOTSUPP);
	POSITIVE(CHECK)
#undef CHECK
}

static void descriptors_are_minus_one(void **state)
{
	(void)state;
	errno = 0;
	assert_int_equal(ibv_dm_export_dmabuf_fd(NULL), -1);
	assert_int_equal(errno, EOPNOTSUPP);
}

static void objects_are_null(void **state)
{
	(void)state;
#define CHECK(name)                      \
	errno = 0;                       \
	assert_int_equal(CALL(name), 0); \
	assert_int_equal(errno, EOPNOTSUPP);
	NOTHING(CHECK)
#undef CHECK
}

extern bool verbs_allow_disassociate_destroy;
void verbs_register_driver_34(const void *ops);

static void drivers_may_register(void **state)
{
	(void)state;
	verbs_register_driver_34("ops");
	assert_false(verbs_allow_disassociate_destroy);
	ibv_free_buf(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(ints_are_a_positive_errno),
	    cmocka_unit_test(descriptors_are_minus_one),
	    cmocka_unit_test(objects_are_null),
	    cmocka_unit_test(drivers_may_register),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
