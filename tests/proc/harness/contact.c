#include "contact.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stddef.h>

socklen_t kit_name_address(struct sockaddr_un *sa, const char *name)
{
	memset(sa, 0, sizeof *sa);
	sa->sun_family = AF_UNIX;
	strcpy(sa->sun_path + 1, name);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

int kit_name_bind(const char *name, bool deaf)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct sockaddr_un sa;
	socklen_t len = kit_name_address(&sa, name);

	CHECK(fd >= 0, "%s", strerror(errno));
	if (bind(fd, (struct sockaddr *)&sa, len) || (!deaf && listen(fd, 64))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* The name of an adapter's number. */
static const char *number_name(char name[64], uint32_t number)
{
	snprintf(name, 64, "verbena/1/%u", number);
	return name;
}

int kit_number_bind(uint32_t number, bool deaf)
{
	char name[64];

	return kit_name_bind(number_name(name, number), deaf);
}

int kit_number_connect(uint32_t number)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct sockaddr_un sa;
	char name[64];
	socklen_t len = kit_name_address(&sa, number_name(name, number));

	CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&sa, len), "%s", strerror(errno));
	return fd;
}

struct hello kit_hello(void)
{
	return (struct hello){.kind = MSG_HELLO,
			      .version = VB_SEG_VERSION,
			      .magic = VB_SEG_MAGIC,
			      .incarnation = 77,
			      .number = 17,
			      .index = 3,
			      .pid = 1,
			      .link = IBV_LINK_LAYER_ETHERNET};
}

int kit_hints(void)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0 && !ftruncate(fd, VB_HINTS_SIZE) &&
	      !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL));
	return fd;
}

int kit_lingering(int seconds)
{
	static const char bytes[65536];
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct linger l = {1, seconds};
	int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
	    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof sa;

	/* What connects stays in the backlog of `door`, which stays open. */
	CHECK(!bind(door, (struct sockaddr *)&sa, len) && !listen(door, 1) &&
	      !getsockname(door, (struct sockaddr *)&sa, &len));
	CHECK(!connect(fd, (struct sockaddr *)&sa, len), "%s", strerror(errno));
	while (send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		;
	CHECK(errno == EAGAIN && !setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
	return fd;
}

void kit_hello_send(int s, const void *h, size_t len, const int *fds, int n)
{
	struct iovec iov = {(void *)(uintptr_t)h, len};
	_Alignas(struct cmsghdr) char ctl[CMSG_SPACE(4 * sizeof(int))] = {0};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *c = (struct cmsghdr *)ctl;
	static const struct linger none;
	bool sent;

	if (n) {
		m.msg_control = ctl;
		m.msg_controllen = CMSG_SPACE((size_t)n * sizeof(int));
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
		memcpy(CMSG_DATA(c), fds, (size_t)n * sizeof(int));
	}
	sent = sendmsg(s, &m, MSG_NOSIGNAL) >= 0;
	for (int i = 0; i < n; i++) {
		if (!sent) /* kit_lingering(), and nobody else has it */
			(void)!setsockopt(fds[i], SOL_SOCKET, SO_LINGER, &none, sizeof none);
		close(fds[i]);
	}
}
