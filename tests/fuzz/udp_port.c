#include "udp_port.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>

#include "wire/udp.h"

struct port_inlet port_inlet, port_steady_inlet;

void port_put(struct msghdr *h, size_t *used, int level, int type, const void *data, size_t n)
{
	struct cmsghdr *c = (struct cmsghdr *)(void *)((uint8_t *)h->msg_control + *used);

	c->cmsg_level = level;
	c->cmsg_type = type;
	c->cmsg_len = CMSG_LEN(n);
	memcpy(CMSG_DATA(c), data, n);
	*used += CMSG_SPACE(n);
}

long port_nothing_comes(void)
{
	errno = EAGAIN;
	return -1;
}

/* As libc's, which reads six arguments whether they were given or not. */
__attribute__((no_sanitize_address)) long syscall(long nr, ...)
{
	static long (*real)(long, ...);
	struct mmsghdr one;
	struct pollfd *p;
	va_list args;
	long a[6];

	va_start(args, nr);
	for (unsigned i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	switch (nr) {
	case SYS_recvmsg:
		return a[0] < PORT_TX ? port_receives((struct msghdr *)a[1])
				      : port_tells((struct msghdr *)a[1]);
	case SYS_sendmsg:
		one = (struct mmsghdr){.msg_hdr = *(struct msghdr *)a[1]};
		return port_sends((int)a[0], &one, 1);
	case SYS_sendmmsg:
		return port_sends((int)a[0], (const struct mmsghdr *)a[1], (unsigned)a[2]);
	case SYS_ppoll:
		p = (struct pollfd *)a[0];
		if (a[1] == 1 && p->fd == PORT_RX) {
			p->revents = port_ready() ? POLLIN : 0;
			return p->revents != 0;
		}
		break;
	default:
		break;
	}
	if (!real)
		real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	return real(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	(void)fd, (void)level, (void)name, (void)value, (void)len;
	return 0;
}

int vb_inlet_add(struct vb_adapter *a, int fd, void (*came)(void *user), void *user)
{
	(void)a;
	port_inlet = (struct port_inlet){fd, came, user};
	return 0;
}

int vb_inlet_add_steady(struct vb_adapter *a, int fd, void (*came)(void *user), void *user)
{
	(void)a;
	port_steady_inlet = (struct port_inlet){fd, came, user};
	return 0;
}

void vb_inlet_open(struct vb_adapter *a, int fd)
{
	(void)a, (void)fd;
}

uint32_t vb_roce_slot(const struct vb_roce *r)
{
	(void)r;
	return PORT_SLOT;
}

uint32_t vb_roce_ifindex(const struct vb_roce *r)
{
	(void)r;
	return PORT_IFINDEX;
}

int vb_roce_fd(const struct vb_roce *r)
{
	(void)r;
	return PORT_RX;
}

int vb_roce_fd_shared(struct vb_roce *r)
{
	(void)r;
	return PORT_SHARED;
}

struct vb_roce_tx vb_roce_tx(struct vb_roce *r, uint32_t i)
{
	(void)r;
	return (struct vb_roce_tx){.fd = PORT_TX + (int)i, .port = (uint16_t)(PORT_TX_PORT + i)};
}
