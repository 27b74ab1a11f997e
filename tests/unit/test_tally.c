/* The table of what was said: kinds and levels, more kinds than slots, several processes and threads, and
 * what is counted though nobody reads it. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
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

#include "base/log.h"
#include "base/settings.h"
#include "base/tally.h"
#include "kit.h"

static struct vb_tally *t;
static int fd;
static char text[1 << 16];

static int setup(void **state)
{
	(void)state;
	t = vb_tally_make(&fd);
	assert_non_null(t);
	return 0;
}

/* The table's mapping stays, as it does in a program. */
static int teardown(void **state)
{
	(void)state;
	close(fd);
	return 0;
}

static uint64_t counted(unsigned level, const char *kind)
{
	uint64_t n, sum = 0;
	char has[VB_TALLY_KIND];
	unsigned l;

	for (unsigned i = 0; i < VB_TALLY_SLOTS; i++)
		if (vb_tally_read(t, i, &l, &n, has) && l == level && !strcmp(has, kind))
			sum += n;
	return sum;
}

static void kinds_and_levels_are_counted_apart(void **state)
{
	(void)state;
	vb_tally_put(t, VB_LOG_WARN, "ibv_reg_mr", 1);
	vb_tally_put(t, VB_LOG_WARN, "ibv_reg_mr", 2);
	vb_tally_put(t, VB_LOG_ERROR, "ibv_reg_mr", 4);
	vb_tally_put(t, VB_LOG_WARN, "rkey-unknown", 8);
	vb_tally_put(t, VB_LOG_WARN, "", 16);
	vb_tally_put(t, VB_LOG_INFO, "ibv_reg_mr", 32);
	assert_int_equal(counted(VB_LOG_WARN, "ibv_reg_mr"), 3);
	assert_int_equal(counted(VB_LOG_ERROR, "ibv_reg_mr"), 4);
	assert_int_equal(counted(VB_LOG_WARN, "rkey-unknown"), 8);
	assert_int_equal(counted(VB_LOG_WARN, ""), 16);
	assert_int_equal(vb_tally_sum(t, VB_LOG_ERROR), 4);
	assert_int_equal(vb_tally_sum(t, VB_LOG_WARN), 27);
}

static void what_finds_no_slot_counts(void **state)
{
	char name[100];

	(void)state;
	for (int i = 0; i < VB_TALLY_SLOTS + 45; i++) {
		snprintf(name, sizeof name, "kind-%d", i);
		vb_tally_put(t, VB_LOG_WARN, name, 1);
	}
	vb_tally_put(t, VB_LOG_ERROR, "late", 5);
	assert_int_equal(counted(VB_LOG_WARN, "kind-0"), 1);
	assert_int_equal(vb_tally_sum(t, VB_LOG_WARN), VB_TALLY_SLOTS + 45);
	assert_int_equal(vb_tally_sum(t, VB_LOG_ERROR), 5);
	memset(name, 'x', sizeof name - 1);
	name[sizeof name - 1] = 0;
	assert_int_equal(setup(NULL), 0);
	vb_tally_put(t, VB_LOG_WARN, name, 1); /* a long name is cut */
	name[VB_TALLY_KIND - 1] = 0;
	assert_int_equal(counted(VB_LOG_WARN, name), 1);
}

static void *put_many(void *arg)
{
	char name[20];

	for (int i = 0; i < 20000; i++) {
		snprintf(name, sizeof name, "kind-%d", i % 50);
		vb_tally_put(t, VB_LOG_WARN, name, 1);
	}
	return arg;
}

static void threads_and_processes_count_together(void **state)
{
	pthread_t thread;
	int status;
	pid_t pid;

	(void)state;
	pid = fork();
	assert_true(pid >= 0);
	assert_int_equal(pthread_create(&thread, NULL, put_many, NULL), 0);
	put_many(NULL);
	pthread_join(thread, NULL);
	if (!pid)
		_exit(0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	for (int i = 0; i < 50; i++) {
		char name[20];

		snprintf(name, sizeof name, "kind-%d", i);
		assert_int_equal(counted(VB_LOG_WARN, name), 4 * 400);
	}
}

/* In a child: the log's settings are read once. */
static int says_much(void)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	setenv(VB_TALLY_ENV, path, 1);
	assert_int_equal(vb_tally_map(), 0);
	assert_true(vb_tally_kept());
	closefrom(3);
	for (int i = 0; i < 5; i++)
		vb_refuse(EINVAL, "ibv_reg_mr", "%d is too much", i);
	for (int i = 0; i < 3; i++)
		vb_refuse_busy("ibv_dealloc_pd", "%d objects use it", i);
	vb_decline(EOPNOTSUPP, "ibv_alloc_td", "no such thing");
	vb_log_reason("rkey-unknown", "no such key");
	vb_log_note("nobody cares");
	vb_log(VB_LOG_ERROR, "it is broken");
	if (vb_log_wanted(VB_LOG_WARN))
		vb_log(VB_LOG_WARN, "it is odd");
	return 0;
}

static void what_is_not_written_counts(void **state)
{
	(void)state;
	assert_int_equal(kit_said("off", NULL, says_much, text, sizeof text), 0);
	assert_string_equal(text, "");
	assert_int_equal(counted(VB_LOG_WARN, "ibv_reg_mr"), 5);
	assert_int_equal(counted(VB_LOG_WARN, "ibv_dealloc_pd"), 1);
	assert_int_equal(counted(VB_LOG_WARN, "ibv_alloc_td"), 0);
	assert_int_equal(counted(VB_LOG_WARN, "rkey-unknown"), 1);
	assert_int_equal(counted(VB_LOG_ERROR, ""), 1);
	assert_int_equal(counted(VB_LOG_WARN, ""), 1);
	assert_int_equal(vb_tally_sum(t, VB_LOG_WARN), 8);
	assert_int_equal(kit_said("stderr", "debug", says_much, text, sizeof text), 0);
	assert_int_equal(vb_tally_sum(t, VB_LOG_WARN), 16);
}

static char named[64];

static int names_one(void)
{
	setenv(VB_TALLY_ENV, named, 1);
	vb_settings_check();
	vb_log_tell();
	return vb_tally_kept() ? 3 : 0;
}

static void refuses(const char *why)
{
	assert_int_equal(kit_said("stderr", NULL, names_one, text, sizeof text), 0);
	if (!strstr(text, named) || !strstr(text, why))
		fail_msg("%s is not refused for \"%s\": %s", named, why, text);
}

static void what_is_no_table_is_refused(void **state)
{
	char file[] = "/tmp/vb-test-tally-XXXXXX";
	int other = mkstemp(file), empty;

	(void)state;
	assert_true(other >= 0);
	assert_int_equal(ftruncate(other, sizeof *t), 0);
	snprintf(named, sizeof named, "%s", file);
	refuses("Invalid argument"); /* no link */
	snprintf(named, sizeof named, "/proc/self/fd/%d", other);
	refuses("not such a table");
	unlink(file);
	close(other);
	refuses("No such file");
	empty = memfd_create(VB_TALLY_NAME, MFD_ALLOW_SEALING);
	assert_true(empty >= 0);
	snprintf(named, sizeof named, "/proc/self/fd/%d", empty);
	refuses("not such a table");
	assert_int_equal(ftruncate(empty, sizeof *t), 0);
	refuses("not such a table"); /* not sealed */
	assert_int_equal(fcntl(empty, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	refuses("not such a table"); /* all zeroes */
	close(empty);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(kinds_and_levels_are_counted_apart, setup, teardown),
	    cmocka_unit_test_setup_teardown(what_finds_no_slot_counts, setup, teardown),
	    cmocka_unit_test_setup_teardown(threads_and_processes_count_together, setup, teardown),
	    cmocka_unit_test_setup_teardown(what_is_not_written_counts, setup, teardown),
	    cmocka_unit_test_setup_teardown(what_is_no_table_is_refused, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
