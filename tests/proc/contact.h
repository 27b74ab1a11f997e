/* What tests of contact share: names that anybody can bind, hellos said by hand, another user, a network
 * namespace of their own, and what the log says. */
#ifndef VB_TESTS_CONTACT_H
#define VB_TESTS_CONTACT_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "host/hello.h"
#include "host/segment.h"
#include "kit.h"

enum { SKIPPED = 77, FOREIGN = 12345 };

KIT_UNUSED static socklen_t name_address(struct sockaddr_un *sa, const char *name)
{
	memset(sa, 0, sizeof *sa);
	sa->sun_family = AF_UNIX;
	strcpy(sa->sun_path + 1, name);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

/* Binds an abstract name, and listens there unless it is to be deaf. */
KIT_UNUSED static int name_bind(const char *name, bool deaf)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct sockaddr_un sa;
	socklen_t len = name_address(&sa, name);

	CHECK(fd >= 0, "%s", strerror(errno));
	if (bind(fd, (struct sockaddr *)&sa, len) || (!deaf && listen(fd, 64))) {
		close(fd);
		return -1;
	}
	return fd;
}

KIT_UNUSED static int number_bind(uint32_t number, bool deaf)
{
	char name[64];

	snprintf(name, sizeof name, "verbena/1/%u", number);
	return name_bind(name, deaf);
}

KIT_UNUSED static int number_connect(uint32_t number)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct sockaddr_un sa;
	char name[64];
	socklen_t len;

	snprintf(name, sizeof name, "verbena/1/%u", number);
	len = name_address(&sa, name);
	CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&sa, len), "%s", strerror(errno));
	return fd;
}

/* A hello as this version says it, but for what a test changes; without a descriptor. */
KIT_UNUSED static struct hello hello_by_hand(void)
{
	return (struct hello){.kind = MSG_HELLO,
			      .version = VB_SEG_VERSION,
			      .magic = VB_SEG_MAGIC,
			      .incarnation = 77,
			      .number = 17,
			      .index = 3,
			      .pid = 1};
}

/* A child that becomes another user. */
KIT_UNUSED static pid_t fork_as(uid_t uid)
{
	pid_t pid = kit_fork();

	if (!pid && uid != geteuid()) {
		CHECK(!setresgid(uid, uid, uid) && !setresuid(uid, uid, uid));
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	}
	return pid;
}

KIT_UNUSED static bool can_be(uid_t uid)
{
	pid_t pid = kit_fork();

	if (!pid)
		_exit(setresuid(uid, uid, uid) != 0);
	return kit_reap(pid) == 0;
}

KIT_UNUSED static bool own_network(void)
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

KIT_UNUSED static int descriptors_of(pid_t pid)
{
	char path[64];
	int n = 0;
	DIR *d;

	snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
	d = opendir(path);
	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

KIT_UNUSED static int descriptors(void)
{
	return descriptors_of(getpid());
}

/* From now on this process's log goes into memory; before the device is opened. */
static int log_memory = -1;

KIT_UNUSED static void log_begin(void)
{
	char path[64];

	log_memory = memfd_create("log", 0);
	CHECK(log_memory >= 0);
	snprintf(path, sizeof path, "/proc/%d/fd/%d", getpid(), log_memory);
	CHECK(!setenv("VERBENA_LOG", path, 1) && !setenv("VERBENA_LOG_LEVEL", "info", 1));
}

KIT_UNUSED static const char *log_text(void)
{
	static char text[1 << 16];
	ssize_t n = pread(log_memory, text, sizeof text - 1, 0);

	CHECK(n >= 0);
	text[n] = 0;
	return text;
}

KIT_UNUSED static bool log_says(const char *what)
{
	return strstr(log_text(), what) != NULL;
}

/* Waits for it: the engine says things when it gets to them. */
KIT_UNUSED static void log_await(const char *what)
{
	struct timespec ms = {0, 1000000};
	double end = kit_now() + 20;

	while (!log_says(what)) {
		CHECK(kit_now() < end, "no '%s' in:\n%s", what, log_text());
		nanosleep(&ms, NULL);
	}
}

#define LOG_SAYS(...)                                       \
	do {                                                \
		char want_[512];                            \
		snprintf(want_, sizeof want_, __VA_ARGS__); \
		log_await(want_);                           \
	} while (0)
#define LOG_SAYS_NOT(what) CHECK(!log_says(what), "'%s' in:\n%s", what, log_text())

/* A SEND to a queue pair of that adapter; its status. */
KIT_UNUSED static enum ibv_wc_status ask(uint32_t number, int timeout, int retries)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct kit_card card;
	struct kit_end e;
	struct ibv_wc wc;

	CHECK(pd);
	kit_end_open(&e, pd, 4, 4096);
	card = e.card;
	card.qpn = number << 12 | 5;
	kit_connect_with(&e, &card, timeout, retries);
	CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 64, NULL, 0));
	wc = kit_wait(&e, 60);
	kit_end_close(&e);
	return wc.status;
}

#endif
