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

void vb_hello_receive(int sock, struct heard *in)
{
	struct iovec iov = {&in->h, sizeof(in->h)};
	_Alignas(struct cmsghdr) char ctl[CMSG_SPACE(HELLO_FDS * sizeof(int))];
	/* CMSG_LEN: room for as many as are wanted, and not for one that the padding would take. */
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = ctl,
			   .msg_controllen = CMSG_LEN(HELLO_FDS * sizeof(int))};
	struct cmsghdr *cm;

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
	cm = CMSG_FIRSTHDR(&m);
	if (cm && cm->cmsg_level == SOL_SOCKET && cm->cmsg_type == SCM_RIGHTS)
		memcpy(in->fds, CMSG_DATA(cm), cm->cmsg_len - CMSG_LEN(0));
	in->complete = in->fds[HELLO_FDS - 1] >= 0;
	in->no_place = !in->complete && m.msg_flags & MSG_CTRUNC;
	if (in->no_place)
		in->err = EMFILE;
}

void vb_hello_done(struct heard *in)
{
	for (int i = 0; i < HELLO_FDS; i++) {
		if (in->fds[i] >= 0)
			close(in->fds[i]);
		in->fds[i] = -1;
	}
}
