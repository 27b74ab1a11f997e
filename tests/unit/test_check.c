/* check/check.c: which requests the adapter has, as a checker is told of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "check/check.h"

enum { QPN = 0x17, OTHER = 0x18, SRQ = 0x19, ENTRIES = 4 };

static uint8_t memory[256];
static char told[256]; /* what the row was told, in one line */

static void tell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void tell(const char *fmt, ...)
{
	size_t n = strlen(told);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(told + n, sizeof(told) - n, fmt, ap);
	va_end(ap);
}

static bool begins(unsigned place)
{
	(void)place;
	return true;
}

static void polled(struct vb_check_queue *q, uint32_t index)
{
	(void)q;
	tell("p%u ", index);
}

static void returned(struct vb_check_request *r, bool by_poll)
{
	tell("%s%u%s ", vb_check_in_fork ? "c" : "r", r->index, by_poll ? "" : "-");
}

static void queue_ends(struct vb_check_queue *q)
{
	(void)q;
	tell("end ");
}

static void forked(void)
{
	tell("forked ");
}

static const struct vb_checker row = {.name = "the test",
				      .begin = begins,
				      .polled = polled,
				      .returned = returned,
				      .queue_ends = queue_ends,
				      .forked = forked};

static int begin(void **state)
{
	(void)state;
	vb_check_begin(&row);
	return !vb_check_on;
}

static void expect(const char *text)
{
	assert_string_equal(told, text);
	*told = 0;
}

static struct vb_check_queue *make(enum vb_check_kind kind, uint32_t number)
{
	struct vb_check_queue *q = vb_check_queue_new(kind, number, ENTRIES, 1);

	assert_non_null(q);
	return q;
}

/* A request of 10 bytes of `memory`. */
static struct vb_check_request *post(struct vb_check_queue *q, uint32_t index, uint64_t wr_id, unsigned at)
{
	struct vb_check_request *r;

	vb_lock_take(&vb_check_lock);
	r = vb_check_slot(q, index);
	r->wr_id = wr_id;
	r->writes = q->kind != VB_CHECK_SENDS;
	r->num = 1;
	r->piece[0] = (struct vb_check_piece){.at = memory + at, .length = 10, .lkey = 1};
	vb_check_posted(r);
	vb_lock_give(&vb_check_lock);
	return r;
}

static void a_later_completion_covers(void **state)
{
	struct vb_check_queue *q = make(VB_CHECK_SENDS, QPN);
	_Atomic uint32_t freed = 0;

	(void)state;
	q->freed = &freed;
	for (uint32_t i = 0; i < 3; i++)
		post(q, i, 5, 0);
	vb_check_polled(OTHER, 5, NULL);
	expect("");
	freed = 2;
	vb_check_polled(QPN, 5, NULL);
	expect("p1 r0 r1 ");
	vb_check_queue_end(q);
	expect("r2- end ");
}

static void a_reset_returns_all(void **state)
{
	struct vb_check_queue *q = make(VB_CHECK_RECEIVES, QPN);
	_Atomic uint32_t freed = 0;

	(void)state;
	q->freed = &freed;
	post(q, 0, 5, 0);
	vb_check_failed(QPN);
	vb_check_polled(QPN, 5, NULL);
	assert_true(q->failed);
	*told = 0;
	post(q, 1, 5, 0);
	vb_check_queue_reset(q);
	expect("r0- r1- ");
	assert_false(q->failed);
	post(q, 0, 5, 0);
	freed = 1;
	vb_check_polled(QPN, 5, NULL);
	expect("p0 r0 ");
	vb_check_queue_end(q);
	expect("end ");
}

/* One thread has polled, and calls vb_check_polled() only after another one has posted into the same slot. */
static void a_slot_is_used_again(void **state)
{
	struct vb_check_queue *q = make(VB_CHECK_SENDS, QPN);
	_Atomic uint32_t freed = 0;

	(void)state;
	q->freed = &freed;
	for (uint32_t i = 0; i < ENTRIES; i++)
		post(q, i, 5, 0);
	freed = 2;
	post(q, ENTRIES, 5, 0);
	expect("r0 r1 ");
	vb_check_polled(QPN, 5, NULL);
	expect("p1 ");
	vb_check_queue_end(q);
	expect("r2- r3- r4- end ");
}

/* A queue pair of a shared queue: its completions have the wr_id, and messages have taken some requests. */
static void a_shared_queue_goes_by_wr_id(void **state)
{
	struct vb_check_queue *q = make(VB_CHECK_SHARED, SRQ), *sends = make(VB_CHECK_SENDS, QPN);
	_Atomic uint32_t freed = 0;
	uint32_t taken = 2;

	(void)state;
	q->taken = &taken;
	sends->freed = &freed;
	sends->shared = &q;
	post(q, 0, 7, 0);
	post(q, 1, 18, 0); /* of the same hash as 7 */
	post(q, 2, 7, 0);
	vb_check_polled(QPN, 18, NULL);
	assert_non_null(strstr(told, "p1 r1 "));
	*told = 0;
	vb_check_polled(QPN, 7, NULL);
	assert_non_null(strstr(told, "p0 r0 "));
	assert_null(strstr(told, "r2"));
	assert_int_equal(q->from, 2);
	*told = 0;
	post(q, 3, 9, 0);
	vb_check_release_taken(q);
	expect("");
	taken = 3;
	vb_check_release_taken(q);
	expect("r2- ");
	post(q, 2 + ENTRIES, 9, 0); /* in the slot that was given back */
	post(q, 3 + ENTRIES, 9, 0); /* in one that was not */
	expect("r3- ");
	vb_check_queue_end(q);
	vb_check_queue_end(sends);
	*told = 0;
}

/* The completions of an SRQ of XRC go to a CQ, whichever queue pair they name. */
static void xrc_goes_by_its_cq(void **state)
{
	struct vb_check_queue *q = make(VB_CHECK_SHARED, SRQ);
	int cq, other;
	uint32_t taken = 1;

	(void)state;
	q->taken = &taken;
	vb_check_queue_xrc(q, &cq);
	post(q, 0, 7, 0);
	vb_check_polled(QPN, 7, &other);
	expect("");
	vb_check_polled(QPN, 7, &cq);
	expect("p0 r0 ");
	vb_check_queue_end(q);
	*told = 0;
	vb_check_polled(QPN, 7, &cq); /* it is not looked for any more */
	expect("");
}

static void the_oldest_is_found(void **state)
{
	struct vb_check_queue *sends = make(VB_CHECK_SENDS, QPN), *q = make(VB_CHECK_RECEIVES, QPN);
	struct vb_check_request *s = post(sends, 0, 5, 100), *a = post(q, 0, 5, 100), *b = post(q, 1, 5, 105);

	(void)state;
	vb_lock_take(&vb_check_lock);
	assert_ptr_equal(vb_check_find(memory + 107, 1, true), a);
	assert_ptr_equal(vb_check_any(memory + 107, 1, true, a)->of, b);
	assert_ptr_equal(vb_check_find(memory + 107, 1, false), s);
	assert_null(vb_check_find(memory + 90, 10, true));
	assert_ptr_equal(vb_check_find(memory + 90, 11, true), a);
	assert_ptr_equal(vb_check_find(memory + 114, 10, true), b);
	assert_null(vb_check_find(memory + 115, 10, true));
	assert_null(vb_check_any(memory + 115, 10, true, NULL));
	assert_ptr_equal(vb_check_queue_of(QPN, VB_CHECK_SENDS), sends);
	assert_ptr_equal(vb_check_queue_of(QPN, VB_CHECK_RECEIVES), q);
	assert_null(vb_check_queue_of(OTHER, VB_CHECK_SENDS));
	vb_lock_give(&vb_check_lock);
	post(q, 2, 5, 95);
	vb_lock_take(&vb_check_lock);
	assert_ptr_equal(vb_check_find(memory + 96, 10, true), a);
	vb_lock_give(&vb_check_lock);
	vb_check_queue_end(q);
	vb_check_queue_end(sends);
	*told = 0;
}

static void a_child_has_nothing(void **state)
{
	struct vb_check_queue *q = make(VB_CHECK_RECEIVES, QPN);
	pid_t child;
	int status = 0;

	(void)state;
	post(q, 0, 5, 0);
	vb_check_before_fork();
	child = fork();
	vb_check_after_fork(!child);
	if (!child) {
		vb_check_revoked();
		_exit(strcmp(told, "c0- forked ") || vb_check_on || vb_check_in_fork ||
		      !vb_list_empty(&vb_check_requests));
	}
	assert_true(child > 0 && waitpid(child, &status, 0) == child);
	assert_int_equal(status, 0);
	assert_true(vb_check_on);
	vb_check_queue_end(q);
	expect("r0- end ");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_later_completion_covers), cmocka_unit_test(a_reset_returns_all),
	    cmocka_unit_test(a_slot_is_used_again),	 cmocka_unit_test(a_shared_queue_goes_by_wr_id),
	    cmocka_unit_test(xrc_goes_by_its_cq),	 cmocka_unit_test(the_oldest_is_found),
	    cmocka_unit_test(a_child_has_nothing),
	};

	/* The next case would wait for a lock that a failed assertion leaves taken. */
	setenv("CMOCKA_TEST_ABORT", "1", 1);
	return cmocka_run_group_tests(tests, begin, NULL);
}
