/* Where a program's call comes in and goes out again.  Every function that programs reach, exported or
 * through the tables that the headers look into, is defined by one of these macros, so what a call does to
 * errno stands here alone; `scripts/calls-check` finds one that is not.
 *
 * A call that fails sets errno, those that return the code included: programs print strerror(errno).  A call
 * that succeeds leaves errno as it was, whatever the system calls within it left there.
 *
 * What was said meanwhile goes to the log here, since here the thread holds no lock any more.  And here
 * MemorySanitizer is told what a call has written (base/msan.h); post and poll, VB_POST_CODE,
 * VB_CODE_AT_ONCE and VB_VALUE_FOUND, are not: in a program that has the sanitizer other functions stand for
 * them. */
#ifndef VB_VERBS_CALL_H
#define VB_VERBS_CALL_H

#include <errno.h>
#include <stddef.h>

#include "base/log.h"
#include "base/msan.h"
#include "base/where.h"
#include "iba/gives.h"
#include "obj/live.h"
#include "obj/refuse.h"

/* A public function.  The version script decides what leaves the library. */
#define VB_EXPORT __attribute__((visibility("default")))

/* 0, a positive errno, or a negative value of the call's own; for that the call has set errno itself. */
static inline int vb_leave_code(int was, int r)
{
	vb_log_tell();
	if (r >= 0)
		errno = r ? r : was;
	return r;
}

/* 0, ENOENT where there is nothing, which is no failure, or a positive errno.  The caller may hold the
 * consumer's side of a CQ, which no thread needs for the log. */
static inline int vb_leave_found(int was, int r)
{
	vb_log_tell();
	errno = r && r != ENOENT ? r : was;
	return r;
}

/* A value, or a negative one where the call has failed and set errno itself. */
static inline long vb_leave_value(int was, long r)
{
	vb_log_tell();
	if (r >= 0)
		errno = was;
	return r;
}

/* An object, or NULL where the call has failed and set errno itself. */
static inline void *vb_leave_object(int was, void *r)
{
	vb_log_tell();
	if (r)
		errno = was;
	return r;
}

/* Returns errno, for the end of the call. */
static inline int vb_enter(void)
{
	vb_msan_enter();
	return errno;
}

#define VB_GIVEN(x)  _Generic((x), VB_GIVES_VERBS, default : 0)
#define VB_GIVE(...) VB_GIVES(vb_msan_gives, VB_GIVEN, ##__VA_ARGS__)

/* The body follows the macro, as it follows the head of a function; `args` are the names in `params`. */
#define VB_CODE(name, args, ...)                                \
	int name(__VA_ARGS__);                                  \
	static int name##_within(__VA_ARGS__);                  \
	int name(__VA_ARGS__)                                   \
	{                                                       \
		int was = vb_enter();                           \
		int r = vb_leave_code(was, name##_within args); \
                                                                \
		VB_GIVE args;                                   \
		vb_msan_leave();                                \
		return r;                                       \
	}                                                       \
	static int name##_within(__VA_ARGS__)

/* As VB_CODE, of a post. */
#define VB_POST_CODE(name, args, ...)                          \
	int name(__VA_ARGS__);                                 \
	static int name##_within(__VA_ARGS__);                 \
	int name(__VA_ARGS__)                                  \
	{                                                      \
		int was = errno;                               \
                                                               \
		return vb_leave_code(was, name##_within args); \
	}                                                      \
	static int name##_within(__VA_ARGS__)

/* The same for a call that mostly succeeds without anything that could change errno.  Where the expression
 * `common` is true, at_once is tried, which leaves errno alone, and is true where it has done all that there
 * is to do.  Else the body does it. */
#define VB_CODE_AT_ONCE(name, common, at_once, args, ...)             \
	int name(__VA_ARGS__);                                        \
	static int name##_within(__VA_ARGS__);                        \
	static __attribute__((noinline)) int name##_all(__VA_ARGS__)  \
	{                                                             \
		int was = errno;                                      \
                                                                      \
		return vb_leave_code(was, name##_within args);        \
	}                                                             \
	static __attribute__((noinline)) int name##_once(__VA_ARGS__) \
	{                                                             \
		if (vb_unlikely(!(at_once)))                          \
			return name##_all args;                       \
		vb_log_tell();                                        \
		return 0;                                             \
	}                                                             \
	int name(__VA_ARGS__)                                         \
	{                                                             \
		/* apart, so that others do not save its registers */ \
		return common ? name##_once args : name##_all args;   \
	}                                                             \
	static int name##_within(__VA_ARGS__)

/* As VB_CODE, of a checked process: the body has `caller`, the program's code that calls. */
#define VB_POSTED(name, args, ...)                                                                       \
	int name(__VA_ARGS__);                                                                           \
	static int name##_within(__VA_ARGS__, const struct vb_caller *caller);                           \
	int name(__VA_ARGS__)                                                                            \
	{                                                                                                \
		const struct vb_caller here = {__builtin_return_address(0), __builtin_frame_address(0)}; \
		const struct vb_caller *caller = &here;                                                  \
		int was = vb_enter();                                                                    \
		int r = vb_leave_code(was, name##_within args);                                          \
                                                                                                         \
		VB_GIVE args;                                                                            \
		vb_msan_leave();                                                                         \
		return r;                                                                                \
	}                                                                                                \
	static int name##_within(__VA_ARGS__, const struct vb_caller *caller)

/* A call that ends an object, by the name that programs know: what is no live object of that kind is refused
 * before anything of it is read.  The object stays where the body fails. */
#define VB_END(name, call, kind, object, param)              \
	int name(param);                                     \
	static int name##_within(param);                     \
	int name(param)                                      \
	{                                                    \
		int was = vb_enter();                        \
		int err = vb_live_leave(call, object, kind); \
                                                             \
		if (!err) {                                  \
			err = name##_within(object);         \
			if (err)                             \
				vb_live_enter(object, kind); \
		}                                            \
		err = vb_leave_code(was, err);               \
		vb_msan_leave();                             \
		return err;                                  \
	}                                                    \
	static int name##_within(param)

#define VB_VALUE(type, name, args, ...)                                 \
	type name(__VA_ARGS__);                                         \
	static type name##_within(__VA_ARGS__);                         \
	type name(__VA_ARGS__)                                          \
	{                                                               \
		int was = vb_enter();                                   \
		type r = (type)vb_leave_value(was, name##_within args); \
                                                                        \
		VB_GIVE args;                                           \
		vb_msan_leave();                                        \
		return r;                                               \
	}                                                               \
	static type name##_within(__VA_ARGS__)

/* The same for a call that mostly needs no more than a look.  Where there(args), take(args) is all that there
 * is to do, and leaves errno alone unless it fails.  Else find(args) leaves errno alone, and says whether
 * there is anything to do.  NULL: the call returns 0 at once; else it is the body's last argument, and `any`
 * is where nobody has looked.  Lines of the log that are left are told by the long way. */
#define VB_VALUE_FOUND(type, name, there, take, find, any, args, params, found_type)       \
	type name(VB_BARE params);                                                         \
	static type name##_within(VB_BARE params, found_type found);                       \
	static __attribute__((noinline)) type name##_all(VB_BARE params, found_type found) \
	{                                                                                  \
		int was = errno;                                                           \
                                                                                           \
		return (type)vb_leave_value(was, name##_within(VB_BARE args, found));      \
	}                                                                                  \
	type name(VB_BARE params)                                                          \
	{                                                                                  \
		found_type found;                                                          \
                                                                                           \
		if (there args)                                                            \
			return vb_log_left() ? name##_all(VB_BARE args, any) : take args;  \
		found = find args;                                                         \
		if (vb_likely(!found && !vb_log_left()))                                   \
			return 0;                                                          \
		return name##_all(VB_BARE args, found);                                    \
	}                                                                                  \
	static type name##_within(VB_BARE params, found_type found)
#define VB_BARE(...) __VA_ARGS__

#define VB_OBJECT(type, name, args, ...)                           \
	type name(__VA_ARGS__);                                    \
	static type name##_within(__VA_ARGS__);                    \
	type name(__VA_ARGS__)                                     \
	{                                                          \
		int was = vb_enter();                              \
		type r = vb_leave_object(was, name##_within args); \
                                                                   \
		VB_GIVE args;                                      \
		VB_GIVE(r);                                        \
		vb_msan_leave();                                   \
		return r;                                          \
	}                                                          \
	static type name##_within(__VA_ARGS__)

/* A call that carries out others, all of whose refusals are in its name. */
#define VB_OBJECT_AS(type, name, call, args, ...)         \
	type name(__VA_ARGS__);                           \
	static type name##_as(__VA_ARGS__);               \
	VB_OBJECT(type, name, args, __VA_ARGS__)          \
	{                                                 \
		const char *before = vb_call_begin(call); \
		type r = name##_as args;                  \
                                                          \
		vb_call_end(before);                      \
		return r;                                 \
	}                                                 \
	static type name##_as(__VA_ARGS__)

#define VB_NOTHING(name, args, ...)             \
	void name(__VA_ARGS__);                 \
	static void name##_within(__VA_ARGS__); \
	void name(__VA_ARGS__)                  \
	{                                       \
		int was = vb_enter();           \
                                                \
		name##_within args;             \
		vb_log_tell();                  \
		vb_msan_leave();                \
		errno = was;                    \
	}                                       \
	static void name##_within(__VA_ARGS__)

#endif
