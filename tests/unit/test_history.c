/* The history: what is kept, what is given up, and that a reader never sees half an entry. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/history.h"
#include "base/log.h"

static struct vb_history *h;

static int setup(void **state)
{
	(void)state;
	h = mmap(NULL, sizeof *h, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(h, MAP_FAILED);
	vb_history_keep(h);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	vb_history_stop(h);
	assert_false(vb_history_kept());
	munmap(h, sizeof *h);
	return 0;
}

static struct vb_history_line line_at(uint32_t i)
{
	struct vb_history_line l;

	assert_true(vb_history_read(h, i, &l));
	return l;
}

static void refusals_are_kept_without_a_log(void **state)
{
	struct vb_history_line l;

	(void)state;
	errno = 7;
	vb_refuse(EINVAL, "ibv_nothing", "%d apples are too many", 5);
	assert_int_equal(errno, 7);
	l = line_at(0);
	assert_string_equal(l.name, "ibv_nothing");
	assert_string_equal(l.text, "ibv_nothing: 5 apples are too many (EINVAL)");
	assert_int_equal(l.err, EINVAL);
	assert_int_equal(l.count, 1);
	assert_true(l.first && l.first == l.last);
	vb_log_reason("key-stale", "QP %d: stale", 9);
	l = line_at(1);
	assert_string_equal(l.name, "key-stale");
	assert_string_equal(l.text, "QP 9: stale");
	assert_int_equal(l.err, 0);
	vb_log(VB_LOG_WARN, "a warning");
	assert_string_equal(line_at(2).text, "a warning");
	vb_log(VB_LOG_INFO, "no failure");
	assert_false(vb_history_read(h, 3, &l));
	assert_int_equal(atomic_load(&h->said), 3);
}

static void what_is_repeated_is_counted(void **state)
{
	struct vb_history_line l;

	(void)state;
	for (int i = 0; i < 10; i++) {
		vb_refuse(ENOMEM, "ibv_a", "full");
		vb_refuse(ENOMEM, "ibv_b", "full");
	}
	assert_int_equal(line_at(0).count, 10);
	l = line_at(1);
	assert_int_equal(l.count, 10);
	assert_true(l.last > l.first);
	assert_false(vb_history_read(h, 2, &l));
	assert_int_equal(atomic_load(&h->said), 20);
}

static void the_oldest_makes_room(void **state)
{
	struct vb_history_line l;

	(void)state;
	for (int i = 0; i < VB_HISTORY; i++)
		vb_log(VB_LOG_WARN, "line %d", i);
	vb_log(VB_LOG_WARN, "line 0"); /* said again: now line 1 is the oldest */
	vb_log(VB_LOG_WARN, "a new one");
	assert_string_equal(line_at(0).text, "line 0");
	assert_string_equal(line_at(1).text, "a new one");
	assert_int_equal(line_at(1).count, 1);
	assert_string_equal(line_at(2).text, "line 2");
	assert_false(vb_history_read(h, VB_HISTORY, &l));
	assert_false(vb_history_read(h, UINT32_MAX, &l));
}

static void long_texts_are_cut(void **state)
{
	char text[3000];
	struct vb_history_line l;

	(void)state;
	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = 0;
	vb_log_reason(text, "%s", text);
	l = line_at(0);
	assert_int_equal(strlen(l.name), VB_HISTORY_NAME - 1);
	assert_int_equal(strlen(l.text), VB_HISTORY_TEXT - 1);
}

static void one_place_at_a_time(void **state)
{
	static struct vb_history other;

	(void)state;
	vb_history_keep(&other); /* the first one stays */
	vb_log(VB_LOG_WARN, "here");
	assert_int_equal(atomic_load(&other.said), 0);
	vb_history_stop(&other);
	assert_true(vb_history_kept());
	vb_history_stop(h);
	vb_history_keep(&other);
	vb_log(VB_LOG_WARN, "there");
	assert_int_equal(atomic_load(&h->said), 1);
	assert_int_equal(atomic_load(&other.said), 1);
	vb_history_stop(&other);
}

/* A process with two devices closes the one whose segment has its sentences. */
static void what_was_kept_moves_to_the_next_place(void **state)
{
	static struct vb_history next;
	struct vb_history_line l;

	(void)state;
	vb_history_keep(&next);
	vb_refuse(EINVAL, "ibv_one", "first");
	vb_refuse(EINVAL, "ibv_one", "first");
	vb_refuse(EIO, "ibv_two", "second");
	assert_int_equal(atomic_load(&next.said), 0);
	vb_history_stop(h);
	assert_true(vb_history_kept());
	vb_refuse(EINVAL, "ibv_one", "first");
	assert_int_equal(atomic_load(&h->said), 3);
	assert_int_equal(atomic_load(&next.said), 4);
	assert_true(vb_history_read(&next, 0, &l));
	assert_string_equal(l.text, "ibv_one: first (EINVAL)");
	assert_int_equal(l.count, 3);
	assert_true(vb_history_read(&next, 1, &l));
	assert_string_equal(l.name, "ibv_two");
	assert_false(vb_history_read(&next, 2, &l));
	vb_history_stop(&next);
}

static void a_forked_child_has_none(void **state)
{
	int status;
	pid_t pid = fork();

	(void)state;
	if (!pid) {
		vb_refuse(EIO, "ibv_child", "nothing of this is the parent's");
		_exit(vb_history_kept());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(atomic_load(&h->said), 0);
}

/* Each text is one letter, repeated, and its count belongs to the same moment as its times. */
static int watch(void)
{
	unsigned long seen = 0;
	struct vb_history_line l;

	while (atomic_load(&h->said) < 200000) {
		if (!vb_history_read(h, 0, &l))
			continue;
		seen++;
		for (const char *p = l.text; *p; p++)
			if (*p != l.text[0])
				return 1;
		if (l.first > l.last || !l.count || strlen(l.text) < 100)
			return 2;
	}
	return seen ? 0 : 3;
}

static void readers_see_whole_entries(void **state)
{
	char text[400];
	int status;
	pid_t pid = fork();

	(void)state;
	if (!pid)
		_exit(watch());
	for (unsigned i = 0; atomic_load(&h->said) < 200000; i++) {
		unsigned n = 100 + i % 299;

		memset(text, 'a' + (int)(i % 26), n);
		text[n] = 0;
		vb_log(VB_LOG_WARN, "%s", text);
		vb_log(VB_LOG_WARN, "%s", text);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(refusals_are_kept_without_a_log, setup, teardown),
	    cmocka_unit_test_setup_teardown(what_is_repeated_is_counted, setup, teardown),
	    cmocka_unit_test_setup_teardown(the_oldest_makes_room, setup, teardown),
	    cmocka_unit_test_setup_teardown(long_texts_are_cut, setup, teardown),
	    cmocka_unit_test_setup_teardown(one_place_at_a_time, setup, teardown),
	    cmocka_unit_test_setup_teardown(what_was_kept_moves_to_the_next_place, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_forked_child_has_none, setup, teardown),
	    cmocka_unit_test_setup_teardown(readers_see_whole_entries, setup, teardown),
	};

	unsetenv("VERBENA_LOG");
	return cmocka_run_group_tests_name("history", tests, NULL, NULL);
}
