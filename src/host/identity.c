#include "host/identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t vb_identity_mix(uint64_t h, const void *data, size_t n)
{
	const uint8_t *p = data;

	h ^= 0xcbf29ce484222325ull;
	while (n--)
		h = (h ^ *p++) * 0x100000001b3ull; /* FNV-1a */
	h ^= h >> 33; /* its upper bytes have little of the last ones, its lower ones nothing of the upper */
	h *= 0xff51afd7ed558ccdull;
	return h ^ h >> 33;
}

static uint64_t mix_file(uint64_t h, const char *path)
{
	char text[64];
	ssize_t n;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return h;
	n = read(fd, text, sizeof(text));
	close(fd);
	return n > 0 ? vb_identity_mix(h, text, (size_t)n) : h;
}

uint64_t vb_identity_chance(void)
{
	/* No two boots have one boot_id.  Containers that share a network namespace have each a machine-id of
	 * their own, and clones of an image one: it is the last resort. */
	uint64_t h = mix_file(0, "/proc/sys/kernel/random/boot_id");
	struct stat st;

	if (!h)
		h = mix_file(0, "/etc/machine-id");
	if (!stat("/proc/thread-self/ns/net", &st))
		h = vb_identity_mix(h, &st.st_ino, sizeof(st.st_ino));
	return h;
}
