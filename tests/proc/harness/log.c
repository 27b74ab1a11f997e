#include "kit.h"

static int log_memory = -1;
static off_t log_from;

void kit_log_begin(const char *level)
{
	char path[64];

	log_memory = memfd_create(KIT_LOG_NAME, 0);
	CHECK(log_memory >= 0);
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), log_memory);
	CHECK(!setenv("VERBENA_LOG", path, 1) && !setenv("VERBENA_LOG_LEVEL", level, 1));
}

const char *kit_log_text(void)
{
	static char text[1 << 16];
	ssize_t n = pread(log_memory, text, sizeof text - 1, log_from);

	CHECK(n >= 0);
	text[n] = 0;
	return text;
}

void kit_log_skip(void)
{
	log_from += (off_t)strlen(kit_log_text());
}

const char *kit_log_take(void)
{
	const char *text = kit_log_text();

	log_from += (off_t)strlen(text);
	return text;
}

bool kit_log_says(const char *what)
{
	return strstr(kit_log_text(), what) != NULL;
}

void kit_log_await(const char *what)
{
	double end = kit_now() + 20;

	while (!kit_log_says(what)) {
		CHECK(kit_now() < end, "no '%s' in:\n%s", what, kit_log_text());
		kit_nap(1);
	}
}

int kit_log_count(const char *what)
{
	int n = 0;

	for (const char *p = kit_log_text(); (p = strstr(p, what)); p++)
		n++;
	return n;
}

static void set(const char *name, const char *value)
{
	if (value)
		setenv(name, value, 1);
	else
		unsetenv(name);
}

int kit_said(const char *log, const char *level, int (*f)(void), char *text, size_t size)
{
	size_t n = 0;
	ssize_t got;
	int p[2], status;
	pid_t pid;

	fflush(NULL);
	CHECK(!pipe(p));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		dup2(p[1], 2);
		close(p[0]);
		close(p[1]);
		set("VERBENA_LOG", log);
		set("VERBENA_LOG_LEVEL", level);
		_exit(f());
	}
	close(p[1]);
	while ((got = read(p[0], text + n, size - 1 - n)) > 0)
		n += (size_t)got;
	text[n] = 0;
	close(p[0]);
	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}
