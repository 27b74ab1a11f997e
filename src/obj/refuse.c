#include "obj/refuse.h"

#include <errno.h>
#include <inttypes.h>

#include "base/log.h"

int vb_refuse_forked(const char *call)
{
	return vb_refuse(EIO, call,
			 "the device was opened before fork(); open it again in the child process");
}

int vb_refuse_memory(const char *call)
{
	return vb_refuse(ENOMEM, call, "out of memory");
}

int vb_refuse_limit(const char *call, const char *name, uint32_t is, uint32_t max)
{
	return vb_refuse(EINVAL, call, "%s %u exceeds the device's limit of %u", name, is, max);
}

int vb_refuse_bits(int err, const char *call, const char *name, uint64_t is, uint64_t known)
{
	return vb_refuse(err, call, "%s 0x%" PRIx64 " has unknown bits 0x%" PRIx64 "%s", name, is,
			 is & ~known, known ? "" : ": it must be 0");
}

int vb_refuse_used(const char *call, uint32_t n, const char *user, const char *what, const char *end)
{
	return vb_refuse_busy(call, "%u %s%s %s; %s %s first", n, user, n == 1 ? " uses" : "s use", what, end,
			      n == 1 ? "it" : "them");
}
