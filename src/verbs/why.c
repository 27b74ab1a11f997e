#include "verbs/why.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/sysinfo.h>

#include "base/log.h"
#include "mem/ground.h"

static int no_memory(int err, const char *call, uint64_t addr, uint64_t length)
{
	struct sysinfo s;

	if (sysinfo(&s))
		return vb_refuse(err, call, "no memory for the pages of the %" PRIu64 " bytes at 0x%" PRIx64,
				 length, addr);
	return vb_refuse(err, call,
			 "no memory for the pages of the %" PRIu64 " bytes at 0x%" PRIx64 ": %" PRIu64
			 " MiB are free on this machine, and the process's control group may permit less; "
			 "register "
			 "less, or on demand (IBV_ACCESS_ON_DEMAND)",
			 length, addr, ((uint64_t)s.freeram * s.mem_unit) >> 20);
}

int vb_why_memory(int err, const char *call, uint64_t addr, uint64_t length, bool write)
{
	struct vb_ground g;
	char text[900];

	if (err == ENOMEM)
		return no_memory(err, call, addr, length);
	if (!vb_log_wanted(VB_LOG_WARN))
		return err;
	vb_ground_look(&g, addr, length, write);
	return vb_refuse(err, call, "the %" PRIu64 " bytes at 0x%" PRIx64 " cannot be %s: %s", length, addr,
			 write ? "written" : "read", vb_ground_say(text, sizeof(text), &g));
}
