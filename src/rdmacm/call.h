/* Where a program's call of librdmacm comes in and goes out again: the rule of errno stands here alone (as
 * verbs/call.h of libibverbs has it).  rdma_cm(7): 0, or -1 and errno; a pointer, or NULL and errno.  A call
 * that succeeds leaves errno as it was.  What was said meanwhile goes to the log here, where no lock is held,
 * and meanwhile the thread is not cancelled but where it waits for an event (cm/cancel.c). */
#ifndef VB_RDMACM_CALL_H
#define VB_RDMACM_CALL_H

#include <errno.h>
#include <stddef.h>

#include "cm/api.h"

/* Returns errno, for the end of the call. */
static inline int vb_rdma_enter(const char *name)
{
	int was = errno;

	vb_cm_call_begin(name);
	return was;
}

/* A public function.  The version script decides what leaves the library. */
#define VB_EXPORT __attribute__((visibility("default")))

static inline int vb_rdma_leave(int was, int err)
{
	vb_cm_call_end();
	errno = err ? err : was;
	return err ? -1 : 0;
}

static inline void *vb_rdma_leave_object(int was, int err, void *object)
{
	vb_cm_call_end();
	errno = err ? err : was;
	return err ? NULL : object;
}

#define VB_RDMA_GIVEN(x)                                                                         \
	_Generic((x), VB_GIVES_VERBS, VB_GIVES_TYPE(struct rdma_cm_id **),                       \
		 VB_GIVES_TYPE(struct rdma_cm_event **), VB_GIVES_TYPE(struct rdma_addrinfo **), \
		 default : 0)
#define VB_RDMA_GIVE(...) VB_GIVES(vb_cm_gives, VB_RDMA_GIVEN, ##__VA_ARGS__)

/* The body follows the macro, as it follows the head of a function, and returns 0 or a positive errno; `args`
 * are the names in the parameters. */
#define VB_RDMA_CALL(name, args, ...)                           \
	int name(__VA_ARGS__);                                  \
	static int name##_within(__VA_ARGS__);                  \
	int name(__VA_ARGS__)                                   \
	{                                                       \
		int was = vb_rdma_enter(#name);                 \
		int r = vb_rdma_leave(was, name##_within args); \
                                                                \
		VB_RDMA_GIVE args;                              \
		return r;                                       \
	}                                                       \
	static int name##_within(__VA_ARGS__)

#define VB_RDMA_NOTHING(name, args, ...)        \
	void name(__VA_ARGS__);                 \
	static void name##_within(__VA_ARGS__); \
	void name(__VA_ARGS__)                  \
	{                                       \
		int was = vb_rdma_enter(#name); \
                                                \
		name##_within args;             \
		vb_cm_call_end();               \
		errno = was;                    \
	}                                       \
	static void name##_within(__VA_ARGS__)

#endif
