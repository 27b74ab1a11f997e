/* Counting what a device would pin: as the kernel does, the pages of every region count, those of overlapping
 * regions each time, for the whole process; a process with CAP_IPC_LOCK is exempt.  A thread's capability
 * counts only in the initial user namespace, as for the kernel's capable(). */
#include "verbs/pin.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/pages.h"
#include "iba/profile.h"
#include "mem/populate.h"

#define KIB(pages) ((pages) * (vb_page_size() >> 10))
#define FIRST_USER "user:[4026531837]" /* inode of the initial user namespace: a constant of the kernel */
#define WHAT_TO_DO                                                                                      \
	"; raise the limit (ulimit -l, LimitMEMLOCK= of a service, --ulimit memlock= of a container), " \
	"register "                                                                                     \
	"less, or grant CAP_IPC_LOCK"

static _Atomic uint64_t pinned, regions; /* pages; how many vb_pin() */

static uint64_t pages(uint64_t addr, uint64_t length)
{
	return (addr + (length - 1)) / vb_page_size() - addr / vb_page_size() + 1;
}

static bool first_user; /* this process is in the initial user namespace; set once */

static void look_at_namespace(void)
{
	char ns[64];
	ssize_t n = readlink("/proc/self/ns/user", ns, sizeof(ns) - 1);

	first_user = n < 0 || ((size_t)n == strlen(FIRST_USER) && !memcmp(ns, FIRST_USER, (size_t)n));
}

static bool exempt(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, look_at_namespace);
	if (syscall(SYS_capget, &head, data))
		return false;
	return data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK) && first_user;
}

static int count(const char *call, uint64_t addr, uint64_t length)
{
	uint64_t more = pages(addr, length), all = atomic_fetch_add(&pinned, more) + more;
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) || (limit.rlim_cur && all <= limit.rlim_cur / vb_page_size()) ||
	    exempt())
		return 0;
	atomic_fetch_sub(&pinned, more);
	if (!limit.rlim_cur) /* the kernel asks can_do_mlock() first */
		return vb_refuse(EPERM, call,
				 "RLIMIT_MEMLOCK is 0, so this process cannot pin memory" WHAT_TO_DO);
	return vb_refuse(ENOMEM, call,
			 "the 0x%" PRIx64 " bytes at 0x%" PRIx64 " need %" PRIu64
			 " KiB of pinned pages: this process has pinned %" PRIu64
			 " KiB, and RLIMIT_MEMLOCK is %" PRIu64 " KiB" WHAT_TO_DO,
			 length, addr, KIB(more), KIB(all - more), (uint64_t)limit.rlim_cur >> 10);
}

int vb_pin(const char *call, uint64_t addr, uint64_t length, bool *marking)
{
	int err;

	*marking = false;
	if (!vb_profile()->pins)
		return 0;
	err = vb_fork_mark(call, addr, length);
	*marking = err;
	if (err)
		return err;
	err = count(call, addr, length);
	if (err)
		vb_fork_unmark(addr, length);
	else
		atomic_fetch_add(&regions, 1);
	return err;
}

void vb_unpin(uint64_t addr, uint64_t length)
{
	if (!vb_profile()->pins)
		return;
	atomic_fetch_sub(&regions, 1);
	atomic_fetch_sub(&pinned, pages(addr, length));
	vb_fork_unmark(addr, length);
}

/* Promise of a pin that cannot be kept here: that the pages outlive their mapping. */
static void tell_hole(const struct vb_mr *mr)
{
	uint64_t addr = (uintptr_t)mr->ibv.addr;
	static _Atomic bool told;

	if (!mr->ibv.length || !vb_populate_look(addr, mr->ibv.length) || atomic_exchange(&told, true))
		return;
	vb_log(VB_LOG_WARN,
	       "the region of 0x%zx bytes at 0x%" PRIx64
	       " (L_Key 0x%08x) is deregistered after part of its memory was unmapped. An adapter would have "
	       "used these pages until now; deregister a region before you free its memory",
	       mr->ibv.length, addr, mr->ibv.lkey);
}

void vb_pin_release(struct vb_mr *mr)
{
	if (vb_profile()->pins)
		tell_hole(mr);
	vb_unpin((uintptr_t)mr->ibv.addr, mr->ibv.length);
}

uint64_t vb_pin_regions(void)
{
	return atomic_load(&regions);
}

void vb_pin_forked(void)
{
	atomic_store(&regions, 0);
	atomic_store(&pinned, 0);
}
