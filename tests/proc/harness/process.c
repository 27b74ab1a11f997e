#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "kit.h"

double kit_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void kit_nap_us(unsigned us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000L};

	nanosleep(&t, NULL);
}

void kit_nap(int ms)
{
	kit_nap_us((unsigned)ms * 1000);
}

/* The parent may have ended before that was said.  From within a new PID namespace it is seen as 0. */
static void end_with(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() && getppid() != parent)
		_exit(1);
}

pid_t kit_fork(void)
{
	pid_t pid, parent = getpid();

	fflush(stdout);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		end_with(parent);
	return pid;
}

pid_t kit_fork_as(uid_t uid)
{
	pid_t parent = getpid(), pid = kit_fork();

	if (!pid && uid != geteuid()) {
		CHECK(!setresgid(uid, uid, uid) && !setresuid(uid, uid, uid));
		end_with(parent); /* a change of the user forgets it */
	}
	return pid;
}

bool kit_can_be(uid_t uid)
{
	pid_t pid = kit_fork();

	if (!pid)
		_exit(setresuid(uid, uid, uid) != 0);
	return kit_reap(pid) == 0;
}

int kit_reap(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

void kit_stop(pid_t pid)
{
	int status;

	CHECK(!kill(pid, SIGSTOP));
	CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status), "0x%x", status);
}

void kit_cont(pid_t pid)
{
	int status;

	CHECK(!kill(pid, SIGCONT));
	CHECK(waitpid(pid, &status, WCONTINUED) == pid && WIFCONTINUED(status), "0x%x", status);
}

void kit_until(_Atomic int *v, int n)
{
	int seen = atomic_load(v), now = seen;

	for (int i = 0; now < n; i++) {
		CHECK(i < 6000, "waited for %d of %d", now, n);
		kit_nap(i < 100 ? 1 : 10); /* hundreds of processes may wait here, for one that works */
		now = atomic_load(v);
		if (now != seen)
			i = 0;
		seen = now;
	}
}

void kit_reach(_Atomic int *v, int n)
{
	double end = kit_now() + 60;

	while (atomic_load(v) < n && atomic_load(v) >= 0) {
		CHECK(kit_now() < end, "waited for %d, it is %d", n, atomic_load(v));
		sched_yield();
	}
}

bool kit_own_network(void)
{
	char map[64];
	uid_t uid = geteuid();
	int fd;

	if (!unshare(CLONE_NEWNET))
		return true;
	if (unshare(CLONE_NEWUSER | CLONE_NEWNET))
		return false;
	snprintf(map, sizeof map, "%u %u 1", uid, uid);
	fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, map, strlen(map)) < 0)
		return false;
	close(fd);
	return true;
}

void kit_alone(void)
{
	if (!kit_own_network())
		printf("no network namespace of its own: %s\n", strerror(errno));
}

int kit_descriptors(void)
{
	return kit_descriptors_of(getpid());
}

int kit_descriptors_of(pid_t pid)
{
	char path[64], to[sizeof KIT_LOG_LINK];
	struct dirent *e;
	int n = 0;
	DIR *d;

	snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
	d = opendir(path);
	CHECK(d);
	while ((e = readdir(d))) {
		to[0] = 0;
		if (readlinkat(dirfd(d), e->d_name, to, sizeof to - 1) < 0 ||
		    strncmp(to, KIT_LOG_LINK, sizeof to - 1))
			n++;
	}
	closedir(d);
	return n;
}

int kit_files(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	int n = 0;

	while (d && (e = readdir(d)))
		n += strstr(e->d_name, "verbena") != NULL;
	if (d)
		closedir(d);
	return n;
}

void kit_fd_send(int sock, int fd)
{
	char byte = 0;
	struct iovec iov = {&byte, 1};
	_Alignas(struct cmsghdr) char ctl[CMSG_SPACE(sizeof(int))] = {0};
	struct msghdr m = {
	    .msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	CHECK(sendmsg(sock, &m, 0) == 1);
}

int kit_fd_receive(int sock)
{
	char byte;
	struct iovec iov = {&byte, 1};
	_Alignas(struct cmsghdr) char ctl[CMSG_SPACE(sizeof(int))];
	struct msghdr m = {
	    .msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl};
	int fd;

	if (recvmsg(sock, &m, 0) != 1 || !CMSG_FIRSTHDR(&m))
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	return fd;
}

void *kit_shared(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

void *kit_mapped(size_t size, int *fd)
{
	void *p;

	*fd = memfd_create("test", MFD_CLOEXEC);
	CHECK(*fd >= 0 && !ftruncate(*fd, (off_t)size));
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

int kit_missing(void *page, size_t size)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register reg = {.range = {(uintptr_t)page, size}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	CHECK(fd >= 0 && !ioctl(fd, UFFDIO_API, &api), "%s", strerror(errno));
	CHECK(!madvise(page, size, MADV_DONTNEED));
	CHECK(!ioctl(fd, UFFDIO_REGISTER, &reg), "%s", strerror(errno));
	return fd;
}

static bool found; /* a case that argv[1] names */

static void check_found(void)
{
	if (found)
		return;
	fprintf(stderr, "no case has the name that was given\n");
	fflush(NULL);
	_exit(1);
}

bool kit_asked(const char *name, int argc, char **argv)
{
	static bool checked;
	bool asked = argc < 2 || strstr(name, argv[1]);

	found |= asked;
	if (!checked && !asked)
		atexit(check_found);
	checked |= !asked;
	return asked;
}

void kit_cases(const struct kit_case *cases, size_t n, unsigned seconds, int argc, char **argv)
{
	bool foreign = kit_can_be(KIT_FOREIGN);

	for (const struct kit_case *c = cases; c < cases + n; c++) {
		pid_t pid;

		if (!kit_asked(c->name, argc, argv))
			continue;
		printf("%s\n", c->name);
		if (c->foreign && !foreign) {
			printf("SKIP: this user cannot become another one\n");
			continue;
		}
		pid = kit_fork();
		if (!pid) {
			alarm(seconds);
			c->run();
			if (c->clean)
				exit(0);
			fflush(NULL);
			_exit(0); /* what a case leaves open is no leak */
		}
		CHECK(kit_reap(pid) == 0, "%s", c->name);
	}
}

uint64_t kit_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

uint32_t kit_below(uint64_t *state, uint32_t n)
{
	return (uint32_t)(kit_random(state) % n);
}

void kit_some_time(uint64_t *state, uint32_t max)
{
	uint32_t n = kit_below(state, max);

	if (!kit_below(state, 8))
		sched_yield();
	for (uint32_t i = 0; i < n; i++)
		__asm__ volatile("" ::: "memory");
}
