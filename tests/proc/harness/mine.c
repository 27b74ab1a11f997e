#include "mine.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { MAX = 1024 };

/* What the program puts in the place of what it closed. */
struct mine {
	int fd, other; /* other: what belongs to it */
	ino_t ino;
	int kind;
};

static struct mine mine[KIT_MINE_MOST];
static int nmine;

static const char text[] = "the program's own";

int kit_mine_put(int kind)
{
	struct mine *m = &mine[nmine++];
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = 0x1234};
	struct stat st;
	int fd = -1, two[2];

	CHECK(nmine <= KIT_MINE_MOST);
	*m = (struct mine){.other = -1, .kind = kind};
	if (kind == 0) {
		fd = memfd_create("mine", 0);
		CHECK(write(fd, text, sizeof text) == sizeof text && !lseek(fd, 0, SEEK_SET));
	} else if (kind == 1) {
		fd = eventfd(5, EFD_NONBLOCK);
	} else if (kind == 2) {
		int member = eventfd(1, EFD_NONBLOCK);

		m->other = fcntl(member, F_DUPFD, 200);
		close(member);
		fd = epoll_create1(0);
		CHECK(!epoll_ctl(fd, EPOLL_CTL_ADD, m->other, &ev));
	} else {
		CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, two));
		fd = two[0];
		m->other = fcntl(two[1], F_DUPFD, 200);
		close(two[1]);
		CHECK(write(m->other, text, sizeof text) == sizeof text);
	}
	CHECK(fd >= 0 && !fstat(fd, &st));
	m->fd = fd;
	m->ino = st.st_ino;
	return fd;
}

void kit_mine_put_at(int number, int kind)
{
	CHECK(dup2(kit_mine_put(kind), number) == number);
	close(mine[nmine - 1].fd);
	mine[nmine - 1].fd = number;
}

void kit_mine_forget(void)
{
	nmine = 0;
}

/* How many descriptors an epoll set watches: those that ask for no events are seen only so. */
static int members(int set)
{
	char path[64], line[256];
	int n = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", set);
	f = fopen(path, "r");
	CHECK(f);
	while (fgets(line, sizeof line, f))
		n += !strncmp(line, "tfd:", 4);
	fclose(f);
	return n;
}

void kit_mine_check(const char *where)
{
	for (struct mine *m = mine; m < mine + nmine; m++) {
		char buf[64];
		struct stat st;
		struct epoll_event ev = {0};
		uint64_t n;

		CHECK(!fstat(m->fd, &st) && st.st_ino == m->ino, "%s: %d is closed", where, m->fd);
		if (m->kind == 0) {
			CHECK(st.st_size == sizeof text, "%s: %d was written to", where, m->fd);
			CHECK(lseek(m->fd, 0, SEEK_CUR) == 0, "%s: %d was read", where, m->fd);
			CHECK(pread(m->fd, buf, sizeof buf, 0) == sizeof text &&
			      !memcmp(buf, text, sizeof text));
		} else if (m->kind == 1) {
			CHECK(read(m->fd, &n, sizeof n) == sizeof n && n == 5, "%s: the count of %d", where,
			      m->fd);
			CHECK(write(m->fd, &n, sizeof n) == sizeof n);
		} else if (m->kind == 2) {
			CHECK(members(m->fd) == 1, "%s: %d watches %d descriptors", where, m->fd,
			      members(m->fd));
			CHECK(epoll_wait(m->fd, &ev, 1, 0) == 1 && ev.data.u64 == 0x1234 &&
				  ev.events == EPOLLIN,
			      "%s: the member of %d", where, m->fd);
		} else {
			CHECK(recv(m->fd, buf, sizeof buf, MSG_PEEK) == sizeof text, "%s: %d was read", where,
			      m->fd);
			CHECK(recv(m->other, buf, sizeof buf, MSG_PEEK) < 0 && errno == EAGAIN,
			      "%s: something was written to %d", where, m->fd);
		}
	}
}

void kit_fd_kind(int fd, char *to, size_t size)
{
	char path[64];
	ssize_t n;

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	n = readlink(path, to, size - 1);
	to[n > 0 ? n : 0] = 0;
}

int kit_fd_find(const char *kind, int not1, int not2)
{
	char is[128];

	for (int fd = 3; fd < MAX; fd++) {
		kit_fd_kind(fd, is, sizeof is);
		if (strstr(is, kind) && fd != not1 && fd != not2)
			return fd;
	}
	return -1;
}
