#include "kit.h"

static int log_memory = -1;
static off_t log_from;

void kit_log_begin(const char *level)
{
	char path[64];

	log_memory = memfd_create("log", 0);
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
