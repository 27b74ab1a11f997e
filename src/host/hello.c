/* Hellos and refusals as the socket carries them: one message, and the descriptors of those who speak. */
#include "host/hello.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host/private.h"

int vb_hello_send(int sock, const struct hello *h, const int *fds)
{
	struct iovec iov = {(void *)(uintptr_t)h, sizeof(*h)};
	_Alignas(struct cmsghdr) char ctl[CMSG_SPACE(HELLO_FDS * sizeof(int))] = {0};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *cm = (struct cmsghdr *)ctl;

	if (fds) {
		m.msg_control = ctl;
		m.msg_controllen = sizeof(ctl);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(HELLO_FDS * sizeof(int));
		memcpy(CMSG_DATA(cm), fds, HELLO_FDS * sizeof(int));
	}
	return sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(*h) ? 0 : errno;
}

void vb_foreign_close(int fd)
{
	static const struct linger none;

	if (fd < 0)
		return;
	(void)!setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	close(fd);
}

int vb_foreign_take(struct msghdr *m, int *fds, int most)
{
	struct cmsghdr *cm = CMSG_FIRSTHDR(m);
	int n = 0;

	while (cm && (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS))
		cm = CMSG_NXTHDR(m, cm);
	if (cm)
		n = (int)((cm->cmsg_len - CMSG_LEN(0)) / sizeof(int));
	for (int i = 0; i < n; i++) {
		int fd;

		memcpy(&fd, CMSG_DATA(cm) + (size_t)i * sizeof(fd), sizeof(fd));
		if (i < most)
			fds[i] = fd;
		else
			vb_foreign_close(fd);
	}
	return n;
}

void vb_foreign_hang_up(int sock)
{
	struct foreign_room room;
	struct msghdr m;
	int on = 1;
	ssize_t n;

	(void)!shutdown(sock, SHUT_RD);
	/* Each message then comes with who sent it, and the end does not, which is as long as an empty one.
	 */
	(void)!setsockopt(sock, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
	do {
		m = (struct msghdr){.msg_control = room.bytes, .msg_controllen = sizeof(room.bytes)};
		n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (n >= 0)
			vb_foreign_take(&m, NULL, 0);
	} while (n < 0 ? errno == ECONNRESET || errno == EINTR : m.msg_controllen > 0);
	close(sock);
}

void vb_hello_receive(int sock, struct heard *in)
{
	struct iovec iov = {&in->h, sizeof(in->h)};
	struct foreign_room room;
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = room.bytes,
			   .msg_controllen = sizeof(room.bytes)};

	*in = (struct heard){.fds = {-1, -1}};
	in->n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (in->n < 0 && errno == ECONNRESET) /* told once, before what still can be read: why it hung up */
		in->n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (in->n < 0) {
		if (errno == EAGAIN || errno == EINTR)
			return;
		in->err = errno == ECONNRESET ? 0 : errno;
		in->n = 0;
		return;
	}
	vb_foreign_take(&m, in->fds, HELLO_FDS);
	in->complete = in->fds[HELLO_FDS - 1] >= 0;
	in->no_place = !in->complete && m.msg_flags & MSG_CTRUNC;
	if (in->no_place)
		in->err = EMFILE;
}

void vb_hello_done(struct heard *in)
{
	for (int i = 0; i < HELLO_FDS; i++) {
		vb_foreign_close(in->fds[i]);
		in->fds[i] = -1;
	}
}
