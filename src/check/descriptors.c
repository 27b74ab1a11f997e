/* Telling a descriptor costs a system call, and listing it costs more.  So the lowest numbers are told
 * without being listed.  The kernel lists descriptors in order of their numbers, and number n has position n
 * + 2.  If it does not, or there is no /proc, the numbers below 1,024 are all that is looked at. */
#include "check/descriptors.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/own.h"

enum {
	FEW = 64,
	UNLISTED = 1024,
	AGAIN = 4096, /* after so many times it begins with FEW again */
};

static int folder = -1; /* /proc/self/fd; -1: not open */
static struct vb_own own;
static int below = FEW; /* these numbers are not listed */
static unsigned asked;
static int first; /* what is_first() has heard */

/* Descriptors from that number on, in /proc/self/fd.  Returns how many are below twice that number, -1: the
 * kernel fails. */
static int list(int proc, int from, void act(int fd))
{
	static _Alignas(struct dirent64) char entries[4096];
	int near = 0;
	long n;

	if (lseek(proc, from + 2, SEEK_SET) < 0)
		return -1;
	while ((n = syscall(SYS_getdents64, proc, entries, sizeof(entries))) > 0)
		for (long at = 0; at < n; at += ((struct dirent64 *)(entries + at))->d_reclen) {
			int fd = atoi(((struct dirent64 *)(entries + at))->d_name);

			near += fd < 2 * from;
			act(fd);
		}
	return n < 0 ? -1 : near;
}

static void hear_first(int fd)
{
	if (first < 0)
		first = fd;
}

/* Moves it to a high number, by a call that the sanitizer sees: vb_own_high() does it unseen. */
static int keep(int fd)
{
	int up = vb_own_high(dup(fd));

	(void)dup3(fd, up, O_CLOEXEC);
	close(fd);
	return up;
}

/* The file that it leads to stays the same, as does all else of it. */
static void make_known(int fd)
{
	int flags = fcntl(fd, F_GETFD), known;
	struct stat st;

	if (fstat(fd, &st) || !(S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)))
		return;
	known = eventfd(0, EFD_CLOEXEC);
	if (known < 0)
		return;
	if (syscall(SYS_dup3, fd, known, O_CLOEXEC) == known) /* unseen */
		(void)dup3(known, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0);
	close(known);
}

void vb_check_descriptors_inherited(void)
{
	int proc = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (proc < 0)
		return;
	(void)list(proc, 0, make_known);
	close(proc);
}

static void open_folder(void)
{
	folder = keep(open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	own = vb_own_of(folder);
	first = -1;
	if (folder >= 0 && (list(folder, folder, hear_first) < 0 || first != folder)) {
		close(folder);
		folder = -1;
	}
}

void vb_check_descriptors_open(void)
{
	(void)keep(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	open_folder();
}

void vb_check_each_descriptor(void act(int fd))
{
	int upto = below, near = -1;

	if (folder >= 0 && !vb_own_is(&own, folder)) /* the program has closed it */
		open_folder();
	if (folder >= 0)
		near = list(folder, below, act);
	if (near < 0 && upto < UNLISTED)
		upto = UNLISTED;
	for (int fd = 0; fd < upto; fd++)
		act(fd);
	if (near > below / 2)
		below *= 2;
	if (++asked % AGAIN == 0)
		below = FEW;
}
