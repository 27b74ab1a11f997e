/* Requests that one function posts for several callers: the sentences name the right one.  This file has
 * frame pointers, and the other ones mostly have none (check.cmake).
 *
 * Two callers post at the same place of the stack.  The library remembers the callers of the first post, and
 * has to see that those of another one differ, even where the old return address still stands on the stack.
 */
#include <alloca.h>

#include "wrongs.h"

enum { ROOM = 4096 };

static char *below; /* where the stack ends in functions with a frame of variable size */
static int (*poster)(uint64_t wr_id);
static int rounds;

/* These are exported, so that sentences have their names. */
#define EXPORTED __attribute__((noinline, visibility("default")))
EXPORTED int post_here(uint64_t wr_id);
EXPORTED int through(uint64_t wr_id);
EXPORTED int through_room(uint64_t wr_id);
EXPORTED int through_other_file(uint64_t wr_id);
EXPORTED int through_aligned(uint64_t wr_id);
EXPORTED int post_in_room(uint64_t wr_id);
EXPORTED int first_caller(void);
EXPORTED int second_caller(void);
EXPORTED int third_caller(void);

/* The address of what is used is taken, so that it stays. */
static void use(const volatile char *p)
{
	__asm__ volatile("" : : "r"(p) : "memory");
}

static struct ibv_sge part_of(uint64_t wr_id)
{
	return at(&a, wr_id * 64, 64);
}

int post_here(uint64_t wr_id)
{
	struct ibv_sge sge = part_of(wr_id);
	struct ibv_send_wr wr = {.wr_id = wr_id,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;
	int err = ibv_post_send(a.qp, &wr, &bad);

	use((char *)&wr);
	return err;
}

int through(uint64_t wr_id)
{
	volatile char local = 0;
	int err = post_here(wr_id);

	use(&local);
	return err;
}

#define ROOM_BELOW alloca((size_t)((char *)__builtin_frame_address(0) - below))

int through_room(uint64_t wr_id)
{
	char *room = ROOM_BELOW;
	int err = post_here(wr_id);

	use(room);
	return err;
}

int through_other_file(uint64_t wr_id)
{
	char *room = ROOM_BELOW;
	int err = post(&a, IBV_WR_SEND, wr_id, part_of(wr_id), IBV_SEND_SIGNALED, 0);

	use(room);
	return err;
}

/* Such a frame ends at a multiple of 64, so its size depends on the caller. */
int through_aligned(uint64_t wr_id)
{
	_Alignas(64) volatile char local[64];
	char *room = ROOM_BELOW;
	int err;

	use(local);
	err = post(&a, IBV_WR_SEND, wr_id, part_of(wr_id), IBV_SEND_SIGNALED, 0);
	use(room);
	return err;
}

int post_in_room(uint64_t wr_id)
{
	struct ibv_sge sge = part_of(wr_id);
	struct ibv_send_wr wr = {.wr_id = wr_id,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;
	char *room = ROOM_BELOW;
	int err = ibv_post_send(a.qp, &wr, &bad);

	use(room);
	return err;
}

int first_caller(void)
{
	volatile char local[64];
	int err = poster(5);

	use(local);
	return err;
}

/* What the first one left on the stack stands among `local`. */
int second_caller(void)
{
	volatile char local[512];
	int err = poster(6);

	use(local);
	return err;
}

/* Its stack is as large as the second one's. */
int third_caller(void)
{
	volatile char local[512];
	int err = poster(5);

	use(local);
	return err;
}

static void post_twice(int (*how)(uint64_t wr_id), int (*one)(void), int (*other)(void))
{
	int (*const both[])(void) = {one, other};

	poster = how;
	for (uint64_t i = 5; i <= 6; i++)
		DIE_IF(receive(&b, i, at(&b, i * 64, 64)));
	for (volatile unsigned i = 0; i < 2; i++) /* by one instruction */
		DIE_IF(both[i]());
	WRONG(if (rounds) a.buf[5 * 64] = ++a.buf[6 * 64]);
	for (uint64_t i = 5; i <= 6; i++) {
		done(a.scq, i);
		done(b.rcq, i);
	}
}

static void several_callers(void)
{
	char here;

	pair();
	below = (char *)((uintptr_t)&here & ~(uintptr_t)63) - ROOM;
	for (rounds = 0; rounds < 2; rounds++) {
		post_twice(through, third_caller, second_caller);
		post_twice(through_room, first_caller, second_caller);
		post_twice(through_other_file, first_caller, second_caller);
		post_twice(through_aligned, first_caller, second_caller);
		post_twice(post_in_room, first_caller, second_caller);
	}
	close_all();
}

const struct program callers[] = {{"several-callers", several_callers}, {NULL, NULL}};
