/* ibv_fork_init() and its relatives.
 *
 * Nothing here is pinned, so fork() needs no care, and in most profiles these calls do nothing.  A device
 * that pins keeps pages that copy-on-write may take from the parent; there ibv_fork_init() has the pages of
 * every region kept from children (MADV_DONTFORK).  In the profile that is like such a device the same
 * happens, with what programs trip over: a page is kept away whole, so what stands beside a buffer that does
 * not fill its pages is missing in the child too; and huge pages cannot be marked in part, so a region that
 * does not fill them is refused, unless RDMAV_HUGEPAGES_SAFE has the library look for their size. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/pages.h"
#include "hca/capture_file.h"
#include "iba/profile.h"
#include "mem/vma.h"
#include "verbs/pin.h"
#include "verbs/verbs.h"
#include "verbs/why.h"

/* How often each address is marked: cuts[i].count from cuts[i].at up to cuts[i + 1].at, the last one up to
 * the end.  cuts[0].at is 0; neighbours differ. */
struct cut {
	uintptr_t at;
	uint32_t count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static bool ready;					 /* ibv_fork_init() was called */
static bool too_late;					 /* pages were to be marked before */
static bool huge_safe;					 /* RDMAV_HUGEPAGES_SAFE */
static bool told_parts;					 /* these sentences were written */
static bool told_fork;
static struct cut *cuts; /* NULL: nothing was ever marked */
static size_t ncuts, room;

/* As libibverbs reads its variables: set, and not to 0. */
static bool is_set(const char *name)
{
	const char *s = getenv(name);

	return s && strcmp(s, "0");
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
	if (ready || told_fork || !vb_pin_regions())
		return;
	told_fork = true;
	vb_log(VB_LOG_WARN,
	       "fork() without ibv_fork_init() while %" PRIu64
	       " memory region%s registered: an adapter keeps using the pages as they are now. A process "
	       "that writes to one gets a copy, so the parent and the adapter may no longer see each other's "
	       "data. Call ibv_fork_init() before the first registration",
	       vb_pin_regions(), vb_pin_regions() == 1 ? " is" : "s are");
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&lock);
	vb_log_tell();
}

/* The child has none of the pages that were marked, and perhaps not that of the list. */
static void after_fork_in_child(void)
{
	pthread_mutex_init(&lock, NULL);
	cuts = NULL;
	ncuts = room = 0;
	vb_pin_forked();
}

/* Sentences are kept for a capture under `lock`, so the capture's lock comes first (verbs/context.c). */
static void start(void)
{
	vb_capture_handle_fork();
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
	if (is_set("RDMAV_FORK_SAFE") || is_set("IBV_FORK_SAFE")) {
		ready = true;
		huge_safe = getenv("RDMAV_HUGEPAGES_SAFE") != NULL;
	}
}

/* Whether any of this is done in this profile. */
static bool counts(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (!vb_profile()->fork_marks)
		return false;
	pthread_once(&once, start);
	return true;
}

VB_EXPORT VB_CODE(ibv_fork_init, (), void)
{
	bool can;

	if (!counts())
		return 0;
	pthread_mutex_lock(&lock);
	huge_safe |= getenv("RDMAV_HUGEPAGES_SAFE") != NULL;
	can = ready || !too_late;
	ready |= can;
	pthread_mutex_unlock(&lock);
	return can ? 0
		   : vb_refuse(EINVAL, "ibv_fork_init",
			       "this process has registered memory before, and children inherit its pages; "
			       "call ibv_fork_init() before the first registration");
}

VB_EXPORT VB_VALUE(enum ibv_fork_status, ibv_is_fork_initialized, (), void)
{
	enum ibv_fork_status s;

	if (!counts())
		return IBV_FORK_UNNEEDED;
	pthread_mutex_lock(&lock);
	s = ready ? IBV_FORK_ENABLED : IBV_FORK_DISABLED;
	pthread_mutex_unlock(&lock);
	return s;
}

/* Room for two more cuts. */
static bool make_room(void)
{
	size_t want = room ? 2 * room : 64;
	struct cut *more;

	if (ncuts + 2 <= room)
		return true;
	more = realloc(cuts, want * sizeof(*cuts));
	if (!more)
		return false;
	if (!cuts)
		more[ncuts++] = (struct cut){0};
	cuts = more;
	room = want;
	return true;
}

/* The index of the cut at `at`, which is made where there is none.  There is room. */
static size_t cut_at(uintptr_t at)
{
	size_t low = 0, high = ncuts; /* cuts[low].at <= at < cuts[high].at */

	while (high - low > 1) {
		size_t mid = low + (high - low) / 2;

		if (cuts[mid].at <= at)
			low = mid;
		else
			high = mid;
	}
	if (cuts[low].at == at)
		return low;
	memmove(&cuts[high + 1], &cuts[high], (ncuts - high) * sizeof(*cuts));
	ncuts++;
	cuts[high] = (struct cut){at, cuts[low].count};
	return high;
}

/* Neighbours from cuts[from] to cuts[to] that do not differ become one. */
static void join(size_t from, size_t to)
{
	size_t kept = from ? from - 1 : 0, i = kept + 1;

	for (; i <= to && i < ncuts; i++)
		if (cuts[i].count != cuts[kept].count)
			cuts[++kept] = cuts[i];
	memmove(&cuts[kept + 1], &cuts[i], (ncuts - i) * sizeof(*cuts));
	ncuts -= i - (kept + 1);
}

static int advise(size_t i, int advice)
{
	return madvise((void *)cuts[i].at, cuts[i + 1].at - cuts[i].at, advice) ? errno : 0;
}

/* Memory may have been unmapped since it was marked: what is still there goes back page by page. */
static void let_go(size_t i)
{
	if (!advise(i, MADV_DOFORK))
		return;
	for (uintptr_t p = cuts[i].at; p < cuts[i + 1].at; p += vb_page_size())
		madvise((void *)p, vb_page_size(), MADV_DOFORK);
}

/* [start, end) counts once more.  0 or errno; then nothing has changed. */
static int mark(uintptr_t start, uintptr_t end)
{
	size_t from, to, i;
	int err = 0;

	vb_mutex_assert_held(&lock);
	if (!make_room())
		return ENOMEM;
	from = cut_at(start);
	to = cut_at(end);
	for (i = from; i < to && !err; i++)
		if (!cuts[i].count++)
			err = advise(i, MADV_DONTFORK);
	while (err && i-- > from)
		if (!--cuts[i].count)
			advise(i, MADV_DOFORK);
	join(from, to);
	return err;
}

static int unmark(uintptr_t start, uintptr_t end)
{
	size_t from, to;

	vb_mutex_assert_held(&lock);
	if (!make_room())
		return ENOMEM;
	from = cut_at(start);
	to = cut_at(end);
	for (size_t i = from; i < to; i++)
		if (cuts[i].count && !--cuts[i].count)
			let_go(i);
	join(from, to);
	return 0;
}

static uintptr_t page_of(uintptr_t addr)
{
	struct vb_vmas s;
	struct vb_vma v;
	uintptr_t page = vb_page_size();

	if (!huge_safe || vb_vmas_begin(&s))
		return page;
	if (vb_vmas_at(&s, addr, &v, false) && v.page)
		page = v.page;
	vb_vmas_end(&s);
	return page;
}

static int change(bool more, uintptr_t addr, size_t size)
{
	uintptr_t page;
	int err = 0;

	if (!counts() || !addr || !size)
		return 0;
	pthread_mutex_lock(&lock);
	if (!ready) {
		too_late = true;
	} else {
		page = page_of(addr);
		err = (more ? mark : unmark)(addr & ~(page - 1), (addr + size + page - 1) & ~(page - 1));
	}
	pthread_mutex_unlock(&lock);
	return err;
}

static void tell_parts(uint64_t addr, uint64_t length)
{
	uint64_t before = vb_page_offset(addr), behind = vb_page_round(addr + length) - (addr + length);
	bool tell;

	if (!before && !behind)
		return;
	pthread_mutex_lock(&lock);
	tell = ready && !told_parts;
	told_parts |= tell;
	pthread_mutex_unlock(&lock);
	if (tell)
		vb_log(VB_LOG_WARN,
		       "the region of 0x%" PRIx64 " bytes at 0x%" PRIx64
		       " does not fill its pages: after ibv_fork_init() a child process has none of these "
		       "pages. It also lacks the %" PRIu64 " bytes before and the %" PRIu64
		       " bytes after it (on the heap: other objects). Register whole pages",
		       length, addr, before, behind);
}

static void say_refused(int err, const char *call, uint64_t addr, uint64_t length)
{
	if (err == EINVAL)
		vb_refuse(err, call,
			  "the 0x%" PRIx64 " bytes at 0x%" PRIx64
			  " do not fill their huge pages: ibv_fork_init() must exclude whole pages from "
			  "child processes; set RDMAV_HUGEPAGES_SAFE, or register whole huge pages",
			  length, addr);
	else
		vb_why_fork(err, call, addr, length);
}

int vb_fork_mark(const char *call, uint64_t addr, uint64_t length)
{
	int err = change(true, addr, length);

	if (!err)
		tell_parts(addr, length);
	else
		say_refused(err, call, addr, length);
	return err;
}

void vb_fork_unmark(uint64_t addr, uint64_t length)
{
	change(false, addr, length);
}

/* For drivers and what is like them; they expect -1 and errno. */
static int change_range(bool more, const char *call, void *base, size_t size)
{
	int err = change(more, (uintptr_t)base, size);

	if (!err)
		return 0;
	say_refused(err, call, (uintptr_t)base, size);
	errno = err;
	return -1;
}

VB_EXPORT VB_CODE(ibv_dontfork_range, (base, size), void *base, size_t size)
{
	return change_range(true, "ibv_dontfork_range", base, size);
}

VB_EXPORT VB_CODE(ibv_dofork_range, (base, size), void *base, size_t size)
{
	return change_range(false, "ibv_dofork_range", base, size);
}
