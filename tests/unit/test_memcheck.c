/* check/memcheck.c: which memory is closed to the program.  Without valgrind the test starts itself again
 * under it.  valgrind 3.19 ends when it reads what clang writes for debuggers. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log_self.h"
#include "check/check.h"
#include "host/private.h"
#include "mem/copy.h"
#include "mem/guard.h"
#include "mem/populate.h"
#include "mem/vma.h"

#if __has_include(<valgrind/memcheck.h>) && !VB_CHECK_SELF && !defined(__clang__)

#include <valgrind/memcheck.h>

enum { SIZE = 4 * 4096 };

static uint8_t *buffer;

static bool begin_none(unsigned place)
{
	(void)place;
	return false;
}

static const struct vb_checker none = {.name = "none", .begin = begin_none};

static int begin(void **state)
{
	(void)state;
	vb_check_begin(&none);
	buffer = malloc(SIZE);
	return !buffer || !vb_check_on;
}

/* A queue with a receive of the whole buffer. */
static struct vb_check_queue *receive(uint32_t number)
{
	struct vb_check_queue *q = vb_check_queue_new(VB_CHECK_RECEIVES, number, 4, 1);
	struct vb_check_request *r;

	assert_non_null(q);
	vb_lock_take(&vb_check_lock);
	r = vb_check_slot(q, 0);
	r->writes = true;
	r->num = 1;
	r->piece[0] = (struct vb_check_piece){.at = buffer, .length = SIZE, .lkey = 1};
	vb_check_posted(r);
	vb_lock_give(&vb_check_lock);
	return q;
}

static struct vb_check_touch part(unsigned from, unsigned to)
{
	return (struct vb_check_touch){.what = VB_CHECK_WRITE, .at = buffer + from, .length = to - from};
}

/* [from, to) is open, and all around it is closed. */
static void assert_open(unsigned from, unsigned to)
{
	for (unsigned i = 0; i < SIZE; i++) {
		uint8_t bits;
		bool open = VALGRIND_GET_VBITS(buffer + i, &bits, 1) == 1;

		if (open != (i >= from && i < to))
			fail_msg("byte %u is %s, and %u to %u are open", i, open ? "open" : "closed", from,
				 to);
	}
}

static void a_touched_part_is_open(void **state)
{
	struct vb_check_queue *q = receive(1);
	struct vb_check_touch t = part(1000, 2000);

	(void)state;
	assert_open(0, 0);
	vb_check_touches(&t);
	assert_open(1000, 2000);
	vb_check_touched(&t);
	assert_open(0, 0);
	vb_check_queue_end(q);
	assert_open(0, SIZE);
}

/* Two receives have the buffer: the program posts one, or gets one back, while the adapter writes for the
 * other. */
static void others_close_nothing_of_it(void **state)
{
	struct vb_check_queue *q = receive(1), *other;
	struct vb_check_touch t = part(1000, 2000);

	(void)state;
	vb_check_touches(&t);
	other = receive(2);
	assert_open(1000, 2000);
	vb_check_queue_end(other);
	assert_open(1000, 2000);
	vb_check_touched(&t);
	assert_open(0, 0);
	vb_check_queue_end(q);
}

static void two_threads_touch(void **state)
{
	struct vb_check_queue *q = receive(1);
	struct vb_check_touch first = part(0, 100), second = part(50, 150);

	(void)state;
	vb_check_touches(&first);
	vb_check_touches(&second);
	assert_open(0, 150);
	vb_check_touched(&first);
	assert_open(50, 150);
	vb_check_touches(&first);
	vb_check_touched(&second);
	assert_open(0, 100);
	vb_check_touched(&first);
	assert_open(0, 0);
	vb_check_queue_end(q);
}

/* memcheck knows that the library may read what it maps of a peer, whatever lies beside it: here memory
 * without access, of which the file takes the beginning, the middle, or the end. */
static void a_mapped_file_is_open(void **state)
{
	int fd = memfd_create("test", MFD_CLOEXEC);
	uint8_t *receives = buffer;

	(void)state;
	assert_true(fd >= 0 && !ftruncate(fd, SIZE));
	for (unsigned i = 0; i < 3; i++) {
		uint8_t *room = mmap(NULL, 3 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		assert_ptr_not_equal(room, MAP_FAILED);
		buffer = vb_file_map(room + i * SIZE, SIZE, PROT_READ, MAP_SHARED, fd);
		assert_ptr_equal(buffer, room + i * SIZE);
		assert_open(0, SIZE);
		munmap(room, 3 * SIZE);
	}
	buffer = receives;
	close(fd);
}

/* ibv_advise_mr() looks whether memory is there: of a buffer with a receive, beside bytes that were never
 * set. */
static void looking_reads_nothing(void **state)
{
	struct vb_check_queue *q = receive(1);
	unsigned before = VALGRIND_COUNT_ERRORS;

	(void)state;
	assert_int_equal(vb_populate_look((uintptr_t)buffer, SIZE), 0);
	assert_int_equal(VALGRIND_COUNT_ERRORS, before);
	vb_check_queue_end(q);
}

static void copy_at_each_depth(const void *hole, unsigned levels)
{
	uint8_t room[512]; /* less than a signal's frame has */
	VALGRIND_DISABLE_ERROR_REPORTING;
	assert_false(vb_copy_from_app(room, hole, 1));
	VALGRIND_ENABLE_ERROR_REPORTING;
	if (levels)
		copy_at_each_depth(hole, levels - 1);
	__asm__ volatile("" : : "r"(room) : "memory"); /* each level keeps its own */
}

/* Copies of each size have instructions of their own. */
static void copy_each_size(uint8_t *hole)
{
	static uint8_t room[600];

	VALGRIND_DISABLE_ERROR_REPORTING;
	for (size_t n = 1; n <= sizeof room; n++) {
		assert_false(vb_copy_from_app(room, hole, n));
		assert_false(vb_copy_to_app(hole, room, n));
	}
	VALGRIND_ENABLE_ERROR_REPORTING;
}

static void end(int sig)
{
	_exit(sig);
}

/* A call that leads nowhere is the program's fault, and there is no code to look at.  The handler that the
 * library has is put in but once, hence the child. */
static void a_call_leads_nowhere(void **state)
{
	void (*volatile nowhere)(void) = NULL;
	int status = 0;
	pid_t child = fork();

	(void)state;
	if (!child) {
		VALGRIND_DISABLE_ERROR_REPORTING;
		signal(SIGSEGV, end);
		vb_guard_install();
		nowhere();
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), SIGSEGV);
}

/* Memory that is gone is found by a signal, whose frame may be the first that needs the stack's next page. */
static void a_fault_has_stack(void **state)
{
	void *hole = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_ptr_not_equal(hole, MAP_FAILED);
	signal(SIGSEGV, SIG_DFL); /* the test library has a handler */
	vb_guard_install();
	copy_at_each_depth(hole, 500);
	copy_each_size(hole);
	munmap(hole, SIZE);
}

/* The program's file has a name, which the kernel writes. */
static void a_name_is_set(void **state)
{
	struct vb_vmas s;
	struct vb_vma v;

	(void)state;
	assert_int_equal(vb_vmas_begin(&s), 0);
	assert_true(vb_vmas_at(&s, (uintptr_t)a_name_is_set, &v, true));
	vb_vmas_end(&s);
	assert_int_equal(VALGRIND_CHECK_MEM_IS_DEFINED(v.name, 2), 0);
	assert_int_equal(v.name[0], '/');
}

static void ask_name(char text[16])
{
	assert_int_equal(prctl(PR_GET_NAME, text), 0);
}

/* The kernel's name of the process was that of the tool.  One that the program has chosen stays. */
static void the_process_has_its_own_name(void **state)
{
	char text[16];

	(void)state;
	assert_int_equal(prctl(PR_SET_NAME, "memcheck-amd64-"), 0);
	vb_log_self_rename();
	ask_name(text);
	assert_string_equal(text, program_invocation_short_name);
	assert_int_equal(prctl(PR_SET_NAME, "chosen"), 0);
	vb_log_self_rename();
	ask_name(text);
	assert_string_equal(text, "chosen");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_touched_part_is_open),
	    cmocka_unit_test(others_close_nothing_of_it),
	    cmocka_unit_test(two_threads_touch),
	    cmocka_unit_test(a_mapped_file_is_open),
	    cmocka_unit_test(looking_reads_nothing),
	    cmocka_unit_test(a_call_leads_nowhere),
	    cmocka_unit_test(a_fault_has_stack),
	    cmocka_unit_test(a_name_is_set),
	    cmocka_unit_test(the_process_has_its_own_name),
	};

	if (!RUNNING_ON_VALGRIND && argc == 1) {
		execlp("valgrind", "valgrind", "-q", "--leak-check=no", argv[0], "again", (char *)NULL);
		puts("SKIP: valgrind is not installed");
		return 77;
	}
	return cmocka_run_group_tests(tests, begin, NULL);
}

#else

int main(void)
{
	puts("SKIP: built with a sanitizer, by clang, or without valgrind's headers");
	return 77;
}

#endif
