#include "contact.h"

#include <errno.h>
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
			      .pid = 1};
}
