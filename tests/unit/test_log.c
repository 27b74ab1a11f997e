/* The log: where it goes, what a line is, what a refusal leaves alone. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/log_line.h"
#include "base/log_self.h"
#include "base/log_out.h"
#include "base/settings.h"
#include "kit.h"

static char text[1 << 20];

static void (*body)(void);

static int run_body(void)
{
	body();
	vb_log_tell();
	return 0;
}

/* What f writes to its standard error. */
static const char *said(const char *log, const char *level, void (*f)(void))
{
	body = f;
	assert_int_equal(kit_said(log, level, run_body, text, sizeof text), 0);
	return text;
}

static unsigned lines(const char *s)
{
	unsigned n = 0;

	for (; *s; s++)
		n += *s == '\n';
	return n;
}

static void say_levels(void)
{
	vb_log(VB_LOG_ERROR, "an error");
	vb_log(VB_LOG_WARN, "a warning");
	vb_log(VB_LOG_INFO, "information");
	vb_log(VB_LOG_DEBUG, "detail %d", 7);
}

static void goes_where_it_is_told(void **state)
{
	char path[] = "/tmp/vb-test-log-XXXXXX", line[200];
	int fd = mkstemp(path);
	FILE *f;

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	assert_string_equal(said(NULL, NULL, say_levels), "");
	assert_string_equal(said("off", "debug", say_levels), "");
	assert_int_equal(lines(said("stderr", NULL, say_levels)), 2);
	assert_int_equal(lines(said("stderr", "error", say_levels)), 1);
	assert_int_equal(lines(said("stderr", "debug", say_levels)), 4);
	assert_non_null(strstr(text, "]: detail 7\n"));
	assert_string_equal(said(path, NULL, say_levels), "");
	f = fopen(path, "r");
	assert_non_null(f);
	assert_non_null(fgets(line, sizeof line, f));
	assert_non_null(strstr(line, "]: an error\n"));
	fclose(f);
	unlink(path);
}

/* What it does to its name and its clock later changes no line. */
static void say_in_another_place(void)
{
	setenv("TZ", "XYZ-05:30", 1);
	tzset();
	prctl(PR_SET_NAME, "two w\rds\xff");
	vb_log_handle_fork(); /* as when a device is opened */
	prctl(PR_SET_NAME, "renamed");
	setenv("TZ", "UTC", 1);
	tzset();
	vb_log(VB_LOG_ERROR, "an error");
	vb_log(VB_LOG_ERROR, "\x1b[31m \xc2\x9b"
			     "2J \xff\xc3\xa4\t");
}

/* Hours, minutes and seconds of UTC+5:30 between two moments. */
static void assert_between(const char *clock, time_t from, time_t to)
{
	char other[9] = "";

	for (; from <= to; from++) {
		time_t there = from + 5 * 3600 + 1800;
		struct tm tm;

		strftime(other, sizeof other, "%H:%M:%S", gmtime_r(&there, &tm));
		if (!strncmp(clock, other, 8))
			return;
	}
	fail_msg("the line begins with %.8s, it was %s there", clock, other);
}

static void a_line_tells_when_and_who(void **state)
{
	time_t before = time(NULL), after;
	char head[64], *second;
	int pid;

	(void)state;
	assert_int_equal(lines(said("stderr", NULL, say_in_another_place)), 2);
	after = time(NULL);
	second = strchr(text, '\n') + 1;
	assert_int_equal(sscanf(text + 8, " verbena two w\\x0dds\\xff[%d]: an error", &pid), 1);
	assert_between(text, before, after);
	assert_between(second, before, after);
	snprintf(head, sizeof head, " verbena two w\\x0dds\\xff[%d]: ", pid);
	assert_int_equal(strncmp(second + 8, head, strlen(head)), 0);
	assert_string_equal(second + 8 + strlen(head), "\\x1b[31m \\xc2\\x9b2J \\xff\xc3\xa4\\x09\n");
}

static void say_for_two_years(void)
{
	static const struct vb_log_look look;
	struct vb_log_said s;
	char line[VB_LOG_LINE], there[9];
	unsigned winter = 0, days = 700;
	time_t t = time(NULL);
	struct tm tm;

	setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
	tzset(); /* the parent may have looked for UTC */
	vb_log_self_prepare();
	for (unsigned day = 0; day < days; day++, t += 24 * 3600) {
		vb_log_said_begin(&s, VB_LOG_WARN, "", 0);
		s.when = (uint64_t)t * 1000000000u;
		vb_log_line_write(line, &look, &s);
		strftime(there, sizeof there, "%H:%M:%S", localtime_r(&t, &tm));
		if (strncmp(line, there, 8))
			fprintf(stderr, "day %u: %.8s, it is %s there\n", day, line, there);
		winter += !tm.tm_isdst;
	}
	if (!winter || winter == days)
		fprintf(stderr, "%u of %u days are in winter\n", winter, days);
}

/* A process that runs on has the clock that its user reads, at both sides of a change. */
static void a_line_follows_summer_time(void **state)
{
	(void)state;
	assert_string_equal(said("stderr", NULL, say_for_two_years), "");
}

static void refuse(void)
{
	errno = 3;
	for (int i = 0; i < 1000; i++)
		if (vb_refuse(EINVAL, "ibv_reg_mr", "length %d is out of range", 17) != EINVAL)
			_exit(1);
	vb_refuse(EINVAL, "ibv_rereg_mr", "length %d is out of range", 17);
	vb_refuse(EINVAL, "ibv_reg_mr", "iova %d is out of range", 17);
	if (errno != 3)
		_exit(2);
}

static void refusals_are_said_once(void **state)
{
	(void)state;
	assert_int_equal(lines(said("stderr", NULL, refuse)), 3);
	assert_non_null(strstr(text, "ibv_reg_mr: length 17 is out of range (EINVAL)\n"));
	assert_string_equal(said(NULL, NULL, refuse), "");
}

/* As libfabric looks for the greatest size that is taken inline. */
static void look_for_a_size(void)
{
	for (unsigned n = 512; n; n /= 2)
		vb_refuse(EINVAL, "ibv_create_qp", "max_inline_data %u, at most %d is possible", n, 0);
}

static void amounts_are_no_news(void **state)
{
	(void)state;
	assert_int_equal(lines(said("stderr", NULL, look_for_a_size)), 1);
	assert_non_null(strstr(text, "max_inline_data 512, at most 0 is possible (EINVAL)\n"));
}

/* What names something tells refusals apart; an amount does not. */
static void refuse_others(void)
{
	static const char *const told[] = {"L_Key 0x00001234 is none",
					   "L_Key 0x00001235 is none",
					   "the 16 bytes at 0x1000 are",
					   "the 16 bytes at 0x2000 are",
					   "127.0.0.1:7471 is in use",
					   "127.0.0.1:7472 is in use",
					   "127.0.0.2:7471 is in use",
					   "fe80::1 is in use",
					   "fe80::2 is in use",
					   "verbena_1 is open",
					   "verbena_2 is open",
					   "IPv4 is",
					   "IPv6 is",
					   "it has 7."};

	for (size_t i = 0; i < sizeof told / sizeof *told; i++)
		vb_refuse(EINVAL, "ibv_any", "%s", told[i]);
	vb_refuse(EINVAL, "ibv_any", "the 17 bytes at 0x2000 are");
	vb_refuse(EINVAL, "ibv_any", "it has 8.");
}

static void names_are_news(void **state)
{
	(void)state;
	assert_int_equal(lines(said("stderr", NULL, refuse_others)), 14);
	assert_null(strstr(text, "17 bytes"));
	assert_null(strstr(text, "has 8"));
}

/* The end of a program that destroys only some of what it made. */
static void end_in_disorder(void)
{
	const char *before = vb_call_begin("rdma_destroy_qp");

	vb_refuse_busy("ibv_destroy_cq", "%d queues complete to it", 9); /* the program is told nothing */
	vb_call_end(before);
	if (vb_refuse_busy("ibv_destroy_cq", "%d queues complete to it", 2) != EBUSY)
		_exit(1);
	vb_refuse_busy("ibv_destroy_comp_channel", "%d CQ uses the channel", 1);
	vb_refuse_busy("ibv_dealloc_pd", "the domain still has %d memory regions", 3);
	vb_refuse(EINVAL, "ibv_destroy_qp", "it has been destroyed before");
}

static void the_first_busy_object_is_warned_of(void **state)
{
	(void)state;
	assert_int_equal(lines(said("stderr", NULL, end_in_disorder)), 2);
	assert_non_null(strstr(text, "]: ibv_destroy_cq: 2 queues complete to it (EBUSY)\n"));
	assert_non_null(strstr(text, "]: ibv_destroy_qp: it has been destroyed before (EINVAL)\n"));
	assert_int_equal(lines(said("stderr", "info", end_in_disorder)), 5);
	assert_non_null(
	    strstr(text, "]: rdma_destroy_qp: ibv_destroy_cq: 9 queues complete to it (EBUSY)\n"));
	assert_non_null(strstr(text, "]: ibv_destroy_comp_channel: 1 CQ uses the channel (EBUSY)\n"));
	assert_non_null(strstr(text, "still has 3 memory regions (EBUSY)\n"));
}

static void note(void)
{
	vb_log_note("%d objects are left", 3);
}

static void notes_are_information(void **state)
{
	(void)state;
	assert_string_equal(said("stderr", "warn", note), "");
	assert_non_null(strstr(said("stderr", "info", note), "]: 3 objects are left\n"));
}

static void check_settings(void)
{
	setenv("VERBENA_PROFIL", "strict", 1);
	setenv("VERBENA_SOAK", "0", 1);
	setenv("VERBENA_SOMETHING_ELSE", "1", 1);
	vb_settings_check();
	vb_settings_check();
}

static void wrong_settings_are_said(void **state)
{
	char path[] = "/tmp/vb-test-log-XXXXXX";
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(lines(said(NULL, NULL, check_settings)), 1);
	assert_non_null(strstr(text,
			       "]: VERBENA_PROFIL is not a setting of Verbena and has no effect: did you "
			       "mean VERBENA_PROFILE?"));
	assert_int_equal(lines(said("stderr", NULL, check_settings)), 2);
	assert_non_null(
	    strstr(text, "]: VERBENA_SOMETHING_ELSE is not a setting of Verbena and has no effect ("));
	assert_string_equal(said("off", NULL, check_settings), "");
	assert_string_equal(said(path, NULL, check_settings), "");
	unlink(path);
}

static void only_check(void)
{
	vb_settings_check();
	vb_settings_check();
}

/* Also where there is nothing to write. */
static void an_unwritable_log_is_said(void **state)
{
	(void)state;
	assert_int_equal(lines(said("/nonexistent/dir/log", NULL, only_check)), 1);
	assert_non_null(strstr(text,
			       "VERBENA_LOG=/nonexistent/dir/log cannot be opened, lines are lost: No such "
			       "file or directory\n"));
	assert_string_equal(said(NULL, NULL, only_check), "");
}

static void say_twice(void)
{
	vb_log(VB_LOG_WARN, "a line");
	vb_log_tell();
	vb_log(VB_LOG_WARN, "a line");
	vb_log_tell();
}

static void a_full_disk_is_said_once(void **state)
{
	(void)state;
	assert_int_equal(lines(said("/dev/full", NULL, say_twice)), 1);
	assert_non_null(strstr(
	    text, "VERBENA_LOG=/dev/full cannot be written, lines are lost: No space left on device\n"));
}

/* Whoever reads a pipe must not see it opened and closed before there is a line. */
static void a_pipe_is_not_tried(void **state)
{
	char dir[] = "/tmp/vb-test-log-XXXXXX", path[sizeof dir + 5];
	struct pollfd p;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/pipe", dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	p = (struct pollfd){.fd = open(path, O_RDONLY | O_NONBLOCK), .events = POLLIN};
	assert_true(p.fd >= 0);
	assert_string_equal(said(path, NULL, only_check), "");
	poll(&p, 1, 0);
	assert_int_equal(p.revents, 0); /* POLLHUP: somebody was there and left */
	close(p.fd);
	unlink(path);
	rmdir(dir);
}

static void errno_survives(void)
{
	errno = 42;
	vb_log(VB_LOG_ERROR, "to nowhere");
	if (errno != 42)
		_exit(1);
	vb_log_tell();
	if (errno != 42)
		_exit(2);
}

static void errno_is_left_alone(void **state)
{
	(void)state;
	said("/nonexistent/dir/log", NULL, errno_survives);
	said("stderr", NULL, errno_survives);
}

static void say_much(void)
{
	static char much[5000];

	memset(much, 'm', sizeof much - 1);
	vb_log(VB_LOG_ERROR, "%s", much);
}

static void *say_often(void *arg)
{
	for (int i = 0; i < 200; i++) {
		vb_log(VB_LOG_ERROR, "%s", (const char *)arg);
		vb_log_tell();
	}
	return NULL;
}

static void say_together(void)
{
	pthread_t t[2];

	pthread_create(&t[0], NULL, say_often, "aaaaaaaaaaaaaaaaaaaa");
	pthread_create(&t[1], NULL, say_often, "bbbbbbbbbbbbbbbbbbbb");
	pthread_join(t[0], NULL);
	pthread_join(t[1], NULL);
}

static void a_line_is_whole(void **state)
{
	char *save = NULL;

	(void)state;
	assert_int_equal(lines(said("stderr", NULL, say_much)), 1);
	assert_in_range(strlen(text), 1000, VB_LOG_TEXT + 100);
	assert_int_equal(lines(said("stderr", NULL, say_together)), 400);
	for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		char *s = strstr(l, "]: ");

		assert_non_null(s);
		assert_true(!strcmp(s + 3, "aaaaaaaaaaaaaaaaaaaa") || !strcmp(s + 3, "bbbbbbbbbbbbbbbbbbbb"));
	}
}

static void check_and_say_levels(void)
{
	vb_settings_check();
	say_levels();
}

static void wrong_settings_are_told(void **state)
{
	(void)state;
	said("/nonexistent/dir/log", NULL, say_levels);
	assert_int_equal(lines(text), 1); /* once, though two lines are lost */
	assert_non_null(strstr(text, "VERBENA_LOG=/nonexistent/dir/log cannot be opened"));
	said("stderr", "loud", check_and_say_levels);
	assert_int_equal(lines(text), 3); /* as with warn */
	assert_non_null(strstr(text, "VERBENA_LOG_LEVEL=loud is not one of error, warn, info, debug"));
	said(NULL, "loud", check_and_say_levels);
	assert_int_equal(lines(text), 1);
	assert_non_null(strstr(text, "VERBENA_LOG_LEVEL=loud is not one of error, warn, info, debug"));
	said("off", "loud", check_and_say_levels);
	assert_string_equal(text, "");
	setenv("VERBENA_LOG_FORMAT", "xml", 1);
	said(NULL, NULL, check_and_say_levels);
	assert_int_equal(lines(text), 1);
	assert_non_null(strstr(text, "VERBENA_LOG_FORMAT=xml is not text or json; text is used"));
	setenv("VERBENA_LOG_FORMAT", "json", 1);
	said("stderr", NULL, check_and_say_levels);
	unsetenv("VERBENA_LOG_FORMAT");
	assert_int_equal(lines(text), 2);
	assert_memory_equal(text, "{\"time\":\"", 9);
	assert_non_null(strstr(text, ",\"level\":\"error\",\"program\":\"unit-log\",\"pid\":"));
	assert_non_null(strstr(text, ",\"text\":\"a warning\"}\n"));
}

static void say_and_fork(void)
{
	int status;
	pid_t pid;

	vb_log(VB_LOG_ERROR, "of the parent");
	pid = fork();
	if (!pid) {
		vb_log(VB_LOG_ERROR, "of the child");
		vb_log_tell();
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		_exit(1);
}

static void a_child_writes_its_own_lines(void **state)
{
	const char *text_of_child;
	int child, parent;

	(void)state;
	assert_int_equal(lines(said("stderr", NULL, say_and_fork)), 2);
	assert_int_equal(sscanf(text + 8, " verbena unit-log[%d]: of the child", &child), 1);
	assert_int_equal(sscanf(strchr(text, '\n') + 9, " verbena unit-log[%d]: of the parent", &parent), 1);
	assert_int_not_equal(child, parent);
	text_of_child = strstr(text, "of the child\n");
	assert_non_null(text_of_child);
	assert_non_null(strstr(text_of_child, "of the parent\n"));
}

/* Room is only for some of these. */
enum { MANY = 1000 };

/* No room is left, not even at the end of the last page. */
static size_t fill_pipe(int fd)
{
	static char page[4096];
	int flags = fcntl(fd, F_GETFL);
	size_t n = 0;

	assert_int_equal(fcntl(fd, F_SETFL, flags | O_NONBLOCK), 0);
	while (write(fd, page, sizeof page) == (ssize_t)sizeof page)
		n += sizeof page;
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(fcntl(fd, F_SETFL, flags), 0);
	return n;
}

/* Says many lines into a full pipe and tells so; when it was told that there is room, leaves in the given
 * way. */
static void say_into_full_pipe(int told, int go, bool by_exit)
{
	static const struct timespec ms = {0, 1000000};
	char byte = 0;

	setenv("VERBENA_LOG", "stderr", 1);
	for (int i = 0; i < MANY; i++) {
		vb_log(VB_LOG_ERROR, "line %d", i);
		vb_log_tell();
	}
	if (write(told, &byte, 1) != 1 || read(go, &byte, 1) != 1)
		_exit(1);
	if (by_exit)
		exit(0);
	while (vb_log_left()) {
		vb_log_tell();
		nanosleep(&ms, NULL);
	}
	vb_log(VB_LOG_ERROR, "line %d", MANY);
	vb_log_tell();
	_exit(0);
}

/* Lines come in order, and where some are missing stands how many. */
static void assert_counted(int n)
{
	char *save = NULL;
	int next = 0, kept = 0, i;

	for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		char *s = strstr(l, "]: ");

		assert_non_null(s);
		if (sscanf(s, "]: line %d", &i) == 1) {
			assert_int_equal(i, next);
			kept++;
			next++;
		} else {
			assert_int_equal(sscanf(s, "]: %d more lines are lost here", &i), 1);
			next += i;
		}
	}
	assert_int_equal(next, n);
	assert_in_range(kept, 32, n - 1);
}

static void full_pipe(bool by_exit)
{
	int p[2], told[2], go[2], status;
	struct pollfd wait = {.events = POLLIN};
	size_t n = 0, filled;
	ssize_t got;
	pid_t pid;
	char byte = 0;

	assert_true(!pipe(p) && !pipe(told) && !pipe(go));
	filled = fill_pipe(p[1]);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		dup2(p[1], 2);
		close(p[0]);
		close(p[1]);
		say_into_full_pipe(told[1], go[0], by_exit);
	}
	close(p[1]);
	wait.fd = told[0];
	if (poll(&wait, 1, 20000) != 1) {
		kill(pid, SIGKILL);
		fail_msg("a thread blocks for the log");
	}
	while (n < filled && (got = read(p[0], text, filled - n)) > 0)
		n += (size_t)got;
	assert_int_equal(n, filled);
	assert_int_equal(write(go[1], &byte, 1), 1);
	for (n = 0; (got = read(p[0], text + n, sizeof text - 1 - n)) > 0;)
		n += (size_t)got;
	text[n] = 0;
	assert_counted(by_exit ? MANY : MANY + 1);
	assert_true(waitpid(pid, &status, 0) == pid && !status);
	for (int i = 0; i < 2; i++) {
		close(told[i]);
		close(go[i]);
	}
	close(p[0]);
}

static void a_full_pipe_holds_nobody_up(void **state)
{
	(void)state;
	full_pipe(false);
	full_pipe(true);
}

static void say_one(void)
{
	vb_log(VB_LOG_ERROR, "to nobody");
	vb_log_tell();
	if (vb_log_left())
		_exit(1);
}

/* Nor does a line raise SIGPIPE. */
static void a_pipe_without_a_reader_takes_nothing(void **state)
{
	int p[2], status;
	pid_t pid;

	(void)state;
	assert_int_equal(pipe(p), 0);
	close(p[0]); /* before the child begins, which is quick */
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		dup2(p[1], 2);
		close(p[1]);
		setenv("VERBENA_LOG", "stderr", 1);
		say_one();
		_exit(0);
	}
	close(p[1]);
	assert_true(waitpid(pid, &status, 0) == pid && !status);
}

/* A program may lower the limit once it has begun. */
static void a_file_that_may_not_grow_takes_nothing(void **state)
{
	char path[] = "/tmp/verbena-log-XXXXXX";
	int fd = mkstemp(path), status;
	pid_t pid;

	(void)state;
	assert_true(fd >= 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		const struct rlimit none = {0};

		signal(SIGXFSZ, SIG_DFL);
		if (setrlimit(RLIMIT_FSIZE, &none))
			_exit(1);
		setenv("VERBENA_LOG", path, 1);
		say_one();
		_exit(0);
	}
	assert_true(waitpid(pid, &status, 0) == pid);
	close(fd);
	unlink(path);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(goes_where_it_is_told),
	    cmocka_unit_test(a_line_tells_when_and_who),
	    cmocka_unit_test(a_line_follows_summer_time),
	    cmocka_unit_test(refusals_are_said_once),
	    cmocka_unit_test(amounts_are_no_news),
	    cmocka_unit_test(names_are_news),
	    cmocka_unit_test(the_first_busy_object_is_warned_of),
	    cmocka_unit_test(notes_are_information),
	    cmocka_unit_test(wrong_settings_are_said),
	    cmocka_unit_test(an_unwritable_log_is_said),
	    cmocka_unit_test(a_full_disk_is_said_once),
	    cmocka_unit_test(a_pipe_is_not_tried),
	    cmocka_unit_test(errno_is_left_alone),
	    cmocka_unit_test(a_line_is_whole),
	    cmocka_unit_test(wrong_settings_are_told),
	    cmocka_unit_test(a_child_writes_its_own_lines),
	    cmocka_unit_test(a_full_pipe_holds_nobody_up),
	    cmocka_unit_test(a_pipe_without_a_reader_takes_nothing),
	    cmocka_unit_test(a_file_that_may_not_grow_takes_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
