/* Where a range cannot be registered, and what is said of it: holes, permissions, the end of a file. */
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "bytes.h"
#include "mem/ground.h"

static uint8_t *pages(int n, int prot)
{
	/* a guard on both sides, so that the kernel merges it with nothing */
	uint8_t *p = mmap(NULL, (size_t)(n + 2) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	assert_int_equal(mprotect(p + PAGE, (size_t)n * PAGE, prot), 0);
	return p + PAGE;
}

static void drop(uint8_t *p, int n)
{
	assert_int_equal(munmap(p - PAGE, (size_t)(n + 2) * PAGE), 0);
}

static struct vb_ground look(const uint8_t *p, uint64_t length, bool write)
{
	struct vb_ground g;

	vb_ground_look(&g, (uintptr_t)p, length, write);
	return g;
}

static void says(const struct vb_ground *g, const char *fmt, ...)
{
	char text[1024], want[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(want, sizeof want, fmt, ap);
	va_end(ap);
	vb_ground_say(text, sizeof text, g);
	if (!strstr(text, want))
		fail_msg("no '%s' in '%s'", want, text);
}

static void a_hole(void **state)
{
	uint8_t *p = pages(4, PROT_READ | PROT_WRITE);
	struct vb_ground g;

	(void)state;
	munmap(p + 2 * PAGE, PAGE);
	g = look(p + 100, 4 * PAGE - 100, true);
	assert_int_equal(g.trouble, VB_GROUND_HOLE);
	assert_int_equal(g.bad, (uintptr_t)p + 2 * PAGE);
	assert_int_equal(g.bad_end, (uintptr_t)p + 3 * PAGE);
	assert_int_equal(g.before, 2 * PAGE - 100);
	assert_int_equal(g.behind, PAGE);
	says(&g, "nothing is mapped at 0x%" PRIxPTR " (%d bytes before it and %d after it are accessible)",
	     (uintptr_t)p + 2 * PAGE, 2 * PAGE - 100, PAGE);
	says(&g, "[0x%" PRIxPTR ", 0x%" PRIxPTR ") rw-p of anonymous memory", (uintptr_t)p,
	     (uintptr_t)p + 2 * PAGE);
	says(&g, "begins %d bytes after 0x%" PRIxPTR, PAGE, (uintptr_t)p + 2 * PAGE);
	drop(p, 4);
}

/* Where nothing follows at all, and at the very beginning of the address space. */
static void far_from_everything(void **state)
{
	struct vb_ground g;

	(void)state;
	g = look((uint8_t *)0x1000, 64, false);
	assert_int_equal(g.trouble, VB_GROUND_HOLE);
	assert_int_equal(g.bad, 0x1000);
	assert_int_equal(g.before, 0);
	assert_int_equal(g.below.end, 0);
	assert_true(g.next.end);
	g = look((uint8_t *)0x7ffffffff000, PAGE, false);
	assert_int_equal(g.trouble, VB_GROUND_HOLE);
	assert_true(g.below.end);
}

static void permissions(void **state)
{
	uint8_t *p = pages(3, PROT_READ | PROT_WRITE);
	struct vb_ground g;

	(void)state;
	mprotect(p + PAGE, PAGE, PROT_READ);
	g = look(p, 3 * PAGE, true);
	assert_int_equal(g.trouble, VB_GROUND_NO_WRITE);
	assert_int_equal(g.bad, (uintptr_t)p + PAGE);
	assert_int_equal(g.before, PAGE);
	assert_int_equal(g.behind, PAGE);
	says(&g, "[0x%" PRIxPTR ", 0x%" PRIxPTR ") r--p of anonymous memory in pages of 4 KiB",
	     (uintptr_t)p + PAGE, (uintptr_t)p + 2 * PAGE);
	says(&g, "without IBV_ACCESS_LOCAL_WRITE");
	assert_int_equal(look(p, 3 * PAGE, false).trouble, VB_GROUND_FINE);
	mprotect(p + PAGE, PAGE, PROT_NONE);
	g = look(p, 3 * PAGE, false);
	assert_int_equal(g.trouble, VB_GROUND_NO_READ);
	says(&g, "mprotect()");
	drop(p, 3);
}

static void a_files_end(void **state)
{
	char path[] = "/tmp/vb-ground-XXXXXX";
	int fd = mkstemp(path);
	struct vb_ground g;
	uint8_t *p;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, PAGE + 1), 0);
	p = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	g = look(p, 4 * PAGE, false);
	assert_int_equal(g.trouble, VB_GROUND_FILE_END);
	assert_int_equal(g.bad, (uintptr_t)p + 2 * PAGE);
	assert_int_equal(g.before, 2 * PAGE);
	says(&g, "the file %s from offset 0x0", path);
	says(&g, "extend the file");
	g = look(p, PAGE, true); /* mapped for reading only */
	assert_int_equal(g.trouble, VB_GROUND_NO_WRITE);
	says(&g, "r--s of the file %s", path);
	munmap(p, 4 * PAGE);
	close(fd);
	unlink(path);
}

/* What nobody may write is not advised to be mapped for that. */
static void nobody_may_write(void **state)
{
	int fd = memfd_create("verbena", MFD_CLOEXEC);
	char text[900];
	struct vb_ground g;
	uint8_t *p;

	(void)state;
	assert_int_equal(ftruncate(fd, PAGE), 0);
	p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	g = look(p, PAGE, true);
	says(&g, "which does not belong to the program");
	assert_null(strstr(vb_ground_say(text, sizeof text, &g), "PROT_WRITE"));
	munmap(p, PAGE);
	close(fd);
}

/* Holes in several places: only the stretch that follows the first one is counted. */
static void one_stretch_is_counted(void **state)
{
	uint8_t *p = mmap(NULL, 7 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct vb_ground g;

	(void)state;
	assert_ptr_not_equal(p, MAP_FAILED);
	munmap(p + PAGE, PAGE);
	munmap(p + 4 * PAGE, PAGE);
	g = look(p, 7 * PAGE, true);
	assert_int_equal(g.bad, (uintptr_t)p + PAGE);
	assert_int_equal(g.before, PAGE);
	assert_int_equal(g.behind, 2 * PAGE);
	munmap(p, 7 * PAGE);
}

static void kinds(void **state)
{
	int local = 0;
	void *shared = mmap(NULL, PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct vb_ground g;

	(void)state;
	assert_ptr_not_equal(shared, MAP_FAILED);
	g = look(shared, PAGE, true);
	says(&g, "anonymous shared memory");
	munmap(shared, PAGE);
	g = look((const uint8_t *)(uintptr_t)&kinds, 16, true); /* the program's own code */
	assert_int_equal(g.trouble, VB_GROUND_NO_WRITE);
	says(&g, "the file /");
	assert_int_equal(look((const uint8_t *)&local, sizeof local, true).trouble, VB_GROUND_FINE);
}

static void short_buffers(void **state)
{
	struct vb_ground g = look((uint8_t *)0x1000, 64, false);
	char text[16] = "before";

	(void)state;
	vb_ground_say(text, 0, &g);
	assert_string_equal(text, "before");
	vb_ground_say(text, sizeof text, &g);
	assert_int_equal(strlen(text), sizeof text - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_hole),
	    cmocka_unit_test(far_from_everything),
	    cmocka_unit_test(permissions),
	    cmocka_unit_test(a_files_end),
	    cmocka_unit_test(nobody_may_write),
	    cmocka_unit_test(one_stretch_is_counted),
	    cmocka_unit_test(kinds),
	    cmocka_unit_test(short_buffers),
	};

	return cmocka_run_group_tests_name("ground", tests, NULL, NULL);
}
