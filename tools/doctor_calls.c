/* verbena doctor: the system calls that the libraries make, each in a child.  What is opened with the device
 * comes first, then what connects two processes, then what there is a substitute for. */
#include "doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#pragma GCC diagnostic ignored "-Wunused-parameter" /* what tries a call needs none of them */

/* ---- calls ---- */

static int try_epoll(void *arg, int out)
{
	int set = epoll_create1(EPOLL_CLOEXEC), fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	struct epoll_event ev = {.events = EPOLLIN};

	return set < 0 || fd < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev) ? errno : 0;
}

static int try_memfd(void *arg, int out)
{
	int fd = memfd_create("verbena-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	size_t size = (size_t)sysconf(_SC_PAGESIZE);
	void *p;

	if (fd < 0)
		return errno;
	if (ftruncate(fd, (off_t)size) && errno != EFBIG) /* vb_doctor_limits() says so */
		return errno;
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (p == MAP_FAILED || madvise(p, size, MADV_DONTFORK) || madvise(p, size, MADV_DONTDUMP))
		return errno;
	return fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ? errno
												       : 0;
}

static void *nothing(void *arg)
{
	return arg;
}

int vb_try_thread(void *arg, int out)
{
	pthread_t t;
	int err = pthread_create(&t, NULL, nothing, NULL);

	return err ? err : pthread_join(t, NULL);
}

/* A name that the kernel chooses, which is an abstract one too. */
static int listen_somewhere(int *fd, struct sockaddr_un *sa, socklen_t *len)
{
	*fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	*sa = (struct sockaddr_un){.sun_family = AF_UNIX};
	*len = sizeof(*sa);
	if (*fd < 0 || bind(*fd, (struct sockaddr *)sa, sizeof(sa_family_t)) || listen(*fd, 1))
		return errno;
	return getsockname(*fd, (struct sockaddr *)sa, len) ? errno : 0;
}

static int try_listen(void *arg, int out)
{
	struct sockaddr_un sa;
	socklen_t len;
	int fd;

	return listen_somewhere(&fd, &sa, &len);
}

/* Hands a descriptor over, as a segment is handed to a peer. */
static int hand_over(int to, int from, int fd)
{
	char byte = 0, room[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
	struct iovec v = {&byte, 1};
	struct msghdr m = {
	    .msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	*c = (struct cmsghdr){
	    .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	if (sendmsg(to, &m, MSG_NOSIGNAL) < 0 || recvmsg(from, &m, MSG_CMSG_CLOEXEC) < 0)
		return errno;
	return CMSG_FIRSTHDR(&m) ? 0 : EPROTO;
}

static int try_connect(void *arg, int out)
{
	struct ucred cred;
	struct sockaddr_un sa;
	socklen_t len, size = sizeof(cred);
	struct statfs fs;
	struct stat st;
	char byte;
	int fd, there, here = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), err,
		       file = memfd_create("verbena-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	err = listen_somewhere(&fd, &sa, &len);
	if (err)
		return err;
	if (here < 0 || connect(here, (struct sockaddr *)&sa, len))
		return errno;
	there = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
	if (there < 0 || getsockopt(here, SOL_SOCKET, SO_PEERCRED, &cred, &size))
		return errno;
	if (fcntl(file, F_GET_SEALS) < 0 || fstat(file, &st) || fstatfs(file, &fs) ||
	    pread(file, &byte, 1, 0) < 0)
		return errno;
	return hand_over(here, there, file);
}

static int try_pidfd(void *arg, int out)
{
	return syscall(SYS_pidfd_open, getppid(), 0) < 0 ? errno : 0;
}

static int try_tgkill(void *arg, int out)
{
	return syscall(SYS_tgkill, getppid(), getppid(), 0) ? errno : 0;
}

static int try_populate(void *arg, int out)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE);
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED || madvise(p, size, MADV_POPULATE_READ) ? errno : 0;
}

static int try_statx(void *arg, int out)
{
	struct statx s;

	return statx(out, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, &s) ? errno : 0;
}

static int try_addresses(void *arg, int out)
{
	struct ifaddrs *all;

	if (getifaddrs(&all))
		return errno;
	freeifaddrs(all);
	return 0;
}

static int try_diag(void *arg, int out)
{
	return socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG) < 0 ? errno : 0;
}

#define PACKETS "packets carry all data between processes, so large messages take more CPU and time"
#define SECCOMP                                                                                          \
	"allow the call in the sandbox (docker and podman run: --security-opt seccomp=unconfined, or a " \
	"profile that has it)"

static const struct call {
	vb_child_fn *try;
	const char *name;
	enum vb_grade grade; /* where it is refused */
	const char *cost;
} calls[] = {
    {try_epoll, "epoll_create1, eventfd2 and epoll_ctl", VB_FAILS, "the device cannot be opened"},
    {try_memfd, "memfd_create, ftruncate, mmap, madvise and fcntl(F_ADD_SEALS)", VB_FAILS,
     "the device cannot be opened"},
    {vb_try_thread, "clone3, or clone on a kernel without clone3", VB_FAILS, "the device cannot be opened"},
    {try_listen, "socket, bind and listen on abstract names", VB_FAILS, "the device cannot be opened"},
    {try_connect,
     "connect, accept4, getsockopt(SO_PEERCRED), sendmsg and recvmsg with a descriptor, fcntl(F_GET_SEALS), "
     "fstat, "
     "fstatfs and pread",
     VB_FAILS, "no process can reach another: requests end with IBV_WC_RETRY_EXC_ERR"},
    {try_pidfd, "pidfd_open", VB_LIMIT, PACKETS},
    {try_tgkill, "tgkill", VB_LIMIT, PACKETS},
    {try_statx, "statx", VB_LIMIT,
     "shared memory of two programs is not mapped directly, so its transfers are slower"},
    {try_addresses, "getifaddrs (a netlink socket)", VB_LIMIT,
     "the device has 127.0.0.1 alone, and does not follow the interfaces of the host"},
    {try_diag, "socket(AF_NETLINK, NETLINK_SOCK_DIAG)", VB_NOTE,
     "sentences about adapter numbers cannot name the users that hold them"},
};

enum { CALLS = sizeof(calls) / sizeof(*calls) };

static bool has_filter(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[256];
	int mode = 0;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "Seccomp: %d", &mode) == 1)
			break;
	if (f)
		fclose(f);
	return mode == 2;
}

static void look_at_populate(struct vb_doctor *d)
{
	int err = vb_child(try_populate, NULL, NULL, 0);
	char why[200];

	if (err == EINVAL)
		vb_found(d, VB_LIMIT, "calls",
			 "registering a memory region takes longer: each page is touched by itself",
			 "use Linux 5.14 or later",
			 "madvise(MADV_POPULATE_READ) is not known to this kernel");
	else if (err)
		vb_found(d, VB_FAILS, "calls", "no memory region can be registered: ibv_reg_mr() fails",
			 SECCOMP, "madvise(MADV_POPULATE_READ) is refused: %s",
			 vb_child_why(why, sizeof(why), err));
}

void vb_doctor_calls(struct vb_doctor *d)
{
	unsigned before = d->n;
	char why[200];
	int err;

	for (unsigned i = 0; i < CALLS; i++) {
		if (calls[i].try == try_connect && d->n > before)
			continue; /* it makes the calls before it, too */
		err = vb_child(calls[i].try, NULL, NULL, 0);
		if (err)
			vb_found(d, calls[i].grade, "calls", calls[i].cost, SECCOMP,
				 "the kernel or a sandbox refuses %s%s: %s",
				 strpbrk(calls[i].name, ",") ? "one of " : "", calls[i].name,
				 vb_child_why(why, sizeof(why), err));
	}
	look_at_populate(d);
	if (d->n == before)
		vb_found(d, VB_OK, "calls", NULL, NULL,
			 "the kernel permits each system call that Verbena needs%s",
			 has_filter() ? ", although a seccomp filter is in place" : "");
}

/* ---- the memory of peers ---- */

static char place[64]; /* at the same address in every child */

struct owner {
	pid_t pid;
	int keep; /* closed: it ends */
};

/* A process that lets others read it, or (asks) does not say so to Yama. */
static int start_owner(struct owner *o, bool asks)
{
	int ready[2], keep[2];
	char byte;
	ssize_t n;

	if (pipe(ready) || pipe(keep))
		return errno;
	o->pid = fork();
	if (o->pid < 0)
		return errno;
	if (!o->pid) {
		close(keep[1]);
		close(ready[0]);
		alarm(20);
		if (asks)
			prctl(PR_SET_PTRACER, -1ul, 0, 0, 0);
		if (write(ready[1], "r", 1) == 1)
			(void)!read(keep[0], &byte, 1);
		_exit(0);
	}
	close(ready[1]);
	close(keep[0]);
	n = read(ready[0], &byte, 1);
	close(ready[0]);
	o->keep = keep[1];
	return n == 1 ? 0 : EIO;
}

static int read_owner(void *arg, int out)
{
	char copy[sizeof(place)];
	struct iovec here = {copy, sizeof(copy)}, there = {place, sizeof(place)};

	if (process_vm_readv(*(pid_t *)arg, &here, 1, &there, 1, 0) < 0)
		return errno;
	return process_vm_writev(*(pid_t *)arg, &here, 1, &there, 1, 0) < 0 ? errno : 0;
}

/* Whether one process of this user reads another that is not its child. */
static int reach(bool asks)
{
	struct owner o;
	int err = start_owner(&o, asks);

	if (err)
		return err;
	err = vb_child(read_owner, &o.pid, NULL, 0);
	close(o.keep);
	while (waitpid(o.pid, NULL, 0) < 0 && errno == EINTR)
		;
	return err;
}

static int yama_scope(void)
{
	FILE *f = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
	int scope = -1;

	if (f && fscanf(f, "%d", &scope) != 1)
		scope = -1;
	if (f)
		fclose(f);
	return scope;
}

static bool is_off(const char *variable)
{
	const char *s = getenv(variable);

	return s && !strcmp(s, "off");
}

/* Without asking Yama nobody reads it. */
static void look_at_yama(struct vb_doctor *d, int scope)
{
	static const char remedy[] = "sudo sysctl kernel.yama.ptrace_scope=0";

	if (is_off("VERBENA_PTRACE"))
		vb_found(d, VB_LIMIT, "memory", PACKETS,
			 "unset VERBENA_PTRACE, or sudo sysctl kernel.yama.ptrace_scope=0",
			 "kernel.yama.ptrace_scope is %d, and VERBENA_PTRACE=off keeps processes from "
			 "permitting access to "
			 "their memory",
			 scope);
	else
		vb_found(d, VB_LIMIT, "memory",
			 "packets carry large SENDs of a process that has no memory region with remote "
			 "access. A process that "
			 "has one permits all processes of its user to access it, and to attach a debugger",
			 remedy,
			 "kernel.yama.ptrace_scope is %d: a process reads another's memory only if that one "
			 "permits it",
			 scope);
}

void vb_doctor_memory(struct vb_doctor *d)
{
	int err = reach(false), scope = yama_scope();
	char why[200];

	if (is_off("VERBENA_DIRECT"))
		vb_found(d, VB_LIMIT, "memory", PACKETS, "unset VERBENA_DIRECT",
			 "VERBENA_DIRECT=off: this user's programs take no part in direct placement");
	else if (!err)
		vb_found(d, VB_OK, "memory", NULL, NULL,
			 "a process can copy from and to another one's memory (process_vm_readv, "
			 "process_vm_writev)");
	else if (!reach(true))
		look_at_yama(d, scope);
	else if (scope > 1)
		vb_found(d, VB_LIMIT, "memory", PACKETS,
			 "sudo sysctl kernel.yama.ptrace_scope=1 (3 lasts until the next boot)",
			 "kernel.yama.ptrace_scope is %d: no process may access another one's memory without "
			 "CAP_SYS_PTRACE",
			 scope);
	else
		vb_found(d, VB_LIMIT, "memory", PACKETS,
			 "allow process_vm_readv and process_vm_writev (docker and podman run: "
			 "--cap-add=SYS_PTRACE, or "
			 "--security-opt seccomp=unconfined)",
			 "a process may not access another one's memory by process_vm_readv and "
			 "process_vm_writev: %s",
			 vb_child_why(why, sizeof(why), err));
}
