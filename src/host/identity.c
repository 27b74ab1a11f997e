#include "host/identity.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t mix(uint64_t h, const void *data, size_t n)
{
	const uint8_t *p = data;

	while (n--)
		h = (h ^ *p++) * 0x100000001b3ull; /* FNV-1a */
	return h;
}

uint64_t vb_identity_guid(const char *ifname)
{
	uint64_t h = 0xcbf29ce484222325ull;
	char id[64];
	struct stat st;
	uint8_t guid[8];
	ssize_t n;
	int fd = open("/etc/machine-id", O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		n = read(fd, id, sizeof(id));
		close(fd);
		if (n > 0)
			h = mix(h, id, (size_t)n);
	}
	if (!stat("/proc/self/ns/net", &st))
		h = mix(h, &st.st_ino, sizeof(st.st_ino));
	h = mix(h, ifname, strlen(ifname));
	memcpy(guid, &h, sizeof(guid));
	guid[0] = (uint8_t)((guid[0] & ~1u) | 2u); /* EUI-64: one station's, locally administered; never 0 */
	memcpy(&h, guid, sizeof(h));
	return h;
}
