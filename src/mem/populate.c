#include "mem/populate.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/memcheck.h"
#include "base/pages.h"
#include "mem/check_buffers.h"
#include "mem/copy.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

/* The whole pages of a range.  false: they reach the end of the address space, where nobody's memory is. */
static bool whole(uint64_t addr, uint64_t length, uint64_t *start, uint64_t *end)
{
	uint64_t last = addr + (length - 1);

	*start = vb_page_start(addr);
	*end = vb_page_start(last) + vb_page_size();
	return last >= addr && *end;
}

/* A kernel that does not know MADV_POPULATE_*: each page is touched by our copies, which survive a fault. */
static int touch(uint64_t start, uint64_t end, bool write)
{
	uint64_t orig, page = vb_page_size();
	uint8_t byte;

	for (uint64_t p = start; p < end; p += page) {
		void *at = (void *)(uintptr_t)p;

		if (write ? !vb_atomic_fetch_add(at, 0, &orig) : !vb_copy_from_app(&byte, at, 1))
			return EFAULT;
	}
	return 0;
}

/* (m: madvise() checks the advice before the range.) */
int vb_populate(uint64_t addr, uint64_t length, bool write)
{
	int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
	uint64_t start, end;
	void *at;

	if (!whole(addr, length, &start, &end))
		return EFAULT;
	at = (void *)(uintptr_t)start;
	vb_check_looks(start, end);
	while (madvise(at, end - start, advice)) {
		switch (errno) {
		case EAGAIN:
		case EINTR:
			continue;
		case EINVAL: /* no such advice, or not with this mapping or its permissions */
			return madvise(at, 0, advice) ? touch(start, end, write) : EFAULT;
		case ENOMEM: /* a hole, or no memory for the pages */
			return vb_populate_look(addr, length) ? EFAULT : ENOMEM;
		default: /* EFAULT, EHWPOISON */
			return EFAULT;
		}
	}
	return 0;
}

int vb_populate_look(uint64_t addr, uint64_t length)
{
	uint64_t start, end;
	int err;

	if (!whole(addr, length, &start, &end))
		return EFAULT;
	/* It does nothing but mind holes.  memcheck would have it read the pages, with bytes that were never
	 * set, or that are not the program's now. */
	vb_memcheck_hush(true);
	err = msync((void *)(uintptr_t)start, end - start, MS_ASYNC) && errno == ENOMEM ? EFAULT : 0;
	vb_memcheck_hush(false);
	return err;
}
