#include "buffers.h"

#include <dlfcn.h>
#include <limits.h>

#include "kit.h"

void kit_buffers_begin(char **argv)
{
	char self[PATH_MAX], lib[PATH_MAX + 64];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (dlsym(RTLD_DEFAULT, "__asan_init") || dlsym(RTLD_DEFAULT, "__tsan_init") ||
	    dlsym(RTLD_DEFAULT, "__msan_init")) {
		printf("SKIP: a sanitizer replaces malloc(), so no buffer is shared\n");
		exit(KIT_SKIP);
	}
	if (getenv("VERBENA_SHARE_BUFFERS"))
		return;
	CHECK(n > 0);
	self[n] = '\0';
	for (int i = 0; i < 2; i++)
		*strrchr(self, '/') = '\0';
	snprintf(lib, sizeof(lib), "%s/lib/libverbena-share.so", self);
	CHECK(!access(lib, R_OK), "%s", lib);
	CHECK(!setenv("LD_PRELOAD", lib, 1) && !setenv("VERBENA_SHARE_BUFFERS", "on", 1));
	execv("/proc/self/exe", argv);
	CHECK(!"exec");
}

int kit_in_buffers(const void *p, size_t size)
{
	uintptr_t at = (uintptr_t)p;
	unsigned long start, end;
	size_t in = 0;
	char line[512];
	FILE *f = fopen("/proc/self/maps", "re");

	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		CHECK(sscanf(line, "%lx-%lx", &start, &end) == 2);
		if (!strstr(line, "/memfd:shared-buffers") || end <= at || start >= at + size)
			continue;
		in += (end < at + size ? end : at + size) - (start > at ? start : at);
	}
	fclose(f);
	return in == size ? 1 : in ? -1 : 0;
}
