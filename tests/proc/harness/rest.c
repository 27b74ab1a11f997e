#include <dirent.h>

#include "kit.h"

void kit_until_blocked(void)
{
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
		kit_nap(1);
	}
	CHECK(blocked >= 20, "the threads did not come to rest");
}

static double cpu(clockid_t which)
{
	struct timespec t;

	clock_gettime(which, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void kit_nobody_spins(void)
{
	double thread = cpu(CLOCK_THREAD_CPUTIME_ID), all = cpu(CLOCK_PROCESS_CPUTIME_ID), others;

	while (cpu(CLOCK_THREAD_CPUTIME_ID) - thread < 0.2)
		;
	others = cpu(CLOCK_PROCESS_CPUTIME_ID) - all - (cpu(CLOCK_THREAD_CPUTIME_ID) - thread);
	CHECK(others < 0.03, "other threads used %.3f s in 0.2 s", others);
}

struct kit_switches kit_switches(pid_t pid, pid_t but)
{
	struct kit_switches s = {0};
	char path[300], line[256], state;
	unsigned long n;
	struct dirent *t;
	DIR *d;

	snprintf(path, sizeof path, "/proc/%d/task", pid);
	d = opendir(path);
	CHECK(d);
	while ((t = readdir(d))) {
		FILE *f;

		if (t->d_name[0] == '.' || atoi(t->d_name) == but)
			continue;
		snprintf(path, sizeof path, "/proc/%d/task/%.20s/status", pid, t->d_name);
		f = fopen(path, "re");
		if (!f)
			continue; /* it has ended */
		while (fgets(line, sizeof line, f)) {
			if (sscanf(line, "State: %c", &state) == 1)
				s.running |= state == 'R';
			else if (sscanf(line, "voluntary_ctxt_switches: %lu", &n) == 1)
				s.slept += n;
			else if (sscanf(line, "nonvoluntary_ctxt_switches: %lu", &n) == 1)
				s.forced += n;
		}
		fclose(f);
	}
	closedir(d);
	return s;
}
