/* Memory that is shared with peers: how it is mapped. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

#include "bytes.h"
#include "host/private.h"
#include "kit.h"

enum { SIZE = 16 * PAGE };

static int file_with(uint8_t byte, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0 && !ftruncate(fd, SIZE));
	assert_int_equal(pwrite(fd, &byte, 1, SIZE - PAGE), 1);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

/* Whether the program could be given an address within it. */
static bool has_hole(void *at)
{
	for (int i = 0; i < SIZE / PAGE; i++) {
		void *p = mmap((uint8_t *)at + i * PAGE, PAGE, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

		if (p != MAP_FAILED)
			return true;
	}
	return false;
}

static void a_window_is_replaced(void **state)
{
	int one = file_with(1, F_SEAL_SHRINK), two = file_with(2, F_SEAL_SHRINK);
	uint8_t *at = vb_file_map(NULL, SIZE, PROT_READ, MAP_SHARED, one);

	(void)state;
	assert_ptr_not_equal(at, MAP_FAILED);
	assert_int_equal(at[SIZE - PAGE], 1);
	assert_ptr_equal(vb_file_map(at, SIZE, PROT_READ, MAP_SHARED, two), at);
	assert_int_equal(at[SIZE - PAGE], 2);
	assert_ptr_equal(vb_file_map(at, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1), at);
	assert_int_equal(at[SIZE - PAGE], 0);
	assert_false(has_hole(at));
	munmap(at, SIZE);
	close(one);
	close(two);
}

static void what_fails_leaves_no_hole(void **state)
{
	/* The kernel says no before it makes room, and when it has. */
	int one = file_with(1, F_SEAL_SHRINK),
	    not [] = {file_with(2, F_SEAL_WRITE), socket(AF_UNIX, SOCK_STREAM, 0)};
	uint8_t *at = vb_file_map(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, one);

	(void)state;
	assert_ptr_not_equal(at, MAP_FAILED);
	for (int i = 0; i < 2; i++) {
		assert_ptr_equal(vb_file_map(at, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, not [i]),
				 MAP_FAILED);
		assert_false(has_hole(at));
		assert_int_equal(at[SIZE - PAGE], 1);
		close(not [i]);
	}
	munmap(at, SIZE);
	close(one);
}

/* A file whose server does not answer would hold up whoever asks for its size. */
static void a_file_that_cannot_be_sealed_is_not_looked_at(void **state)
{
	pid_t pid = kit_fork();

	(void)state;
	if (!pid) {
		int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
		struct vb_reach_facts t;
		const char *why;

		if (!kit_deny(SYS_newfstatat, EIO, true) || !kit_deny(SYS_fstat, EIO, true))
			_exit(KIT_SKIP);
		_exit(vb_file_check(fd, SIZE, &why, &t) != EPROTO);
	}
	switch (kit_reap(pid)) {
	case KIT_SKIP:
		skip();
		break;
	case 0:
		break;
	default:
		fail();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_window_is_replaced),
	    cmocka_unit_test(what_fails_leaves_no_hole),
	    cmocka_unit_test(a_file_that_cannot_be_sealed_is_not_looked_at),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
