/* A key is announced before its entry is read.  The order shows only to an owner who takes the region back
 * just between the two, a moment of a few instructions; so the user is traced here, and the region taken back
 * after each of its instructions in turn.  Whenever the owner then finds nobody in it, the user must not get
 * through. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <infiniband/verbs.h>

#include "mem/access.h"

enum { PD = 7, KEYS = 16, MOST_STEPS = 20000, NOT_HERE = 77 };

struct shared {
	struct vb_keys t;
	struct vb_key_marks marks;
	_Alignas(64) struct vb_key_slot slots[VB_MEM_SLOTS];
	_Alignas(64) struct vb_key_entry entries[KEYS];
	uint32_t key;
	volatile int at; /* 1: in vb_mem_begin(), 2: after it */
	volatile enum vb_reason got;
};

static void use(struct shared *s)
{
	struct vb_mem_want w = {.key = s->key | VB_KEY_REMOTE,
				.remote = true,
				.pd = PD,
				.addr = 0x1000,
				.len = 8,
				.access = IBV_ACCESS_REMOTE_WRITE};
	struct vb_mem_use u;

	/* once before, so that no instruction of the linker's or of a first time is traced */
	if (vb_mem_begin(&s->t, &u, &w, NULL) == VB_OK)
		vb_mem_end(&u);
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		_exit(NOT_HERE);
	raise(SIGSTOP);
	s->at = 1;
	s->got = vb_mem_begin(&s->t, &u, &w, NULL);
	s->at = 2;
	_exit(0);
}

/* One instruction of the user's; false: it has ended. */
static bool step(pid_t pid, int *status)
{
	return !ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) && waitpid(pid, status, 0) == pid &&
	       WIFSTOPPED(*status);
}

/* The region is taken back after `steps` instructions.  1: the user was still on its way, 0: it was not, -1:
 * nobody may be traced. */
static int take_back_after(struct shared *s, int steps)
{
	bool on_its_way, nobody;
	int status;
	pid_t pid;

	vb_keys_init(&s->t, s->entries, KEYS, s->slots, &s->marks);
	s->key = vb_key_publish(&s->t, &(struct vb_key_spec){.pd = PD,
							     .access = IBV_ACCESS_REMOTE_WRITE,
							     .iova = 0x1000,
							     .addr = (uintptr_t)s,
							     .length = 64});
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		use(s);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status)) {
		assert_int_equal(WEXITSTATUS(status), NOT_HERE);
		return -1;
	}
	while (s->at == 0)
		assert_true(step(pid, &status));
	for (int i = 0; i < steps && s->at == 1; i++)
		assert_true(step(pid, &status));
	on_its_way = s->at == 1;
	vb_key_hide(&s->t, s->key);
	nobody = vb_key_settled(&s->t, s->key, 0);
	assert_int_equal(ptrace(PTRACE_CONT, pid, NULL, NULL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	if (nobody && s->got == VB_OK)
		fail_msg("taken back after %d instructions: nobody was announced, and the user got through",
			 steps);
	return on_its_way;
}

static void announced_before_it_is_read(void **state)
{
	int steps, was, refused = 0, let_in = 0;

	(void)state;
#ifdef __SANITIZE_THREAD__
	print_message("SKIP: the sanitizer's instructions are too many to be traced\n");
	return;
#endif
	for (steps = 0; steps < MOST_STEPS; steps++) {
		struct shared *s =
		    mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

		assert_ptr_not_equal(s, MAP_FAILED);
		was = take_back_after(s, steps);
		refused += s->got != VB_OK;
		let_in += s->got == VB_OK;
		munmap(s, sizeof *s);
		if (was < 0) {
			print_message("SKIP: no process may be traced here\n");
			return;
		}
		if (!was)
			break;
	}
	assert_in_range(steps, 20, MOST_STEPS - 1);
	assert_true(refused && let_in);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(announced_before_it_is_read)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
