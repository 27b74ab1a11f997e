/* Whether threads rest: by what the kernel says of them, and by the CPU time that they use. */
#ifndef VB_TESTS_REST_H
#define VB_TESTS_REST_H

#include <dirent.h>

#include "kit.h"

/* A thread has blocked when it has nothing to do; asked of the kernel and not of the clock. */
KIT_UNUSED static void until_blocked(void)
{
	struct timespec ms = {0, 1000000};
	int blocked = 0;

	for (int i = 0; i < 20000 && blocked < 20; i++) {
		DIR *d = opendir("/proc/self/task");
		struct dirent *t;
		bool all = true;

		CHECK(d);
		while ((t = readdir(d))) {
			char path[300], line[256] = "";
			FILE *f;

			if (t->d_name[0] == '.' || atoi(t->d_name) == getpid())
				continue;
			snprintf(path, sizeof path, "/proc/self/task/%s/stat", t->d_name);
			f = fopen(path, "r");
			if (!f)
				continue;
			if (fgets(line, sizeof line, f))
				all &= strstr(line, ") S ") != NULL;
			fclose(f);
		}
		closedir(d);
		blocked = all ? blocked + 1 : 0;
		nanosleep(&ms, NULL);
	}
	CHECK(blocked >= 20, "the threads did not come to rest");
}

KIT_UNUSED static double cpu(clockid_t which)
{
	struct timespec t;

	clock_gettime(which, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* While this thread uses 0.2 s of CPU time, the others use next to none. */
KIT_UNUSED static void nobody_spins(void)
{
	double thread = cpu(CLOCK_THREAD_CPUTIME_ID), all = cpu(CLOCK_PROCESS_CPUTIME_ID), others;

	while (cpu(CLOCK_THREAD_CPUTIME_ID) - thread < 0.2)
		;
	others = cpu(CLOCK_PROCESS_CPUTIME_ID) - all - (cpu(CLOCK_THREAD_CPUTIME_ID) - thread);
	CHECK(others < 0.03, "other threads used %.3f s in 0.2 s", others);
}

#endif
