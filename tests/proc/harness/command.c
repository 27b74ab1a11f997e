#include "command.h"

#include <unistd.h>

#include "kit.h"

const char *kit_command(const char *words)
{
	static char text[1 << 16];
	char self[4096], line[4300];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	size_t got;
	FILE *f;

	CHECK(n > 0);
	self[n] = 0;
	*strrchr(self, '/') = 0;
	snprintf(line, sizeof(line), "'%s/../verbena' %s %d 2>&1", self, words, (int)getpid());
	f = popen(line, "re");
	CHECK(f);
	got = fread(text, 1, sizeof(text) - 1, f);
	text[got] = 0;
	(void)pclose(f);
	return text;
}

void kit_command_says(const char *words, const char *fmt, const char *what)
{
	char want[300];
	const char *text;

	snprintf(want, sizeof(want), fmt, what);
	text = kit_command(words);
	CHECK(strstr(text, want), "'%s' is not in: %s", want, text);
}

void kit_command_awaits(const char *words, const char *what)
{
	time_t until = time(NULL) + 60;
	const char *text;

	while (!strstr(text = kit_command(words), what)) /* nothing tells when the command will say it */
		CHECK(time(NULL) < until, "'%s' is not in: %s", what, text);
}

bool kit_may_be_read(void)
{
	FILE *f = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
	int scope = 0;

	if (f && fscanf(f, "%d", &scope) != 1)
		scope = 0;
	if (f)
		fclose(f);
	return scope < 2; /* to 1 the library itself permits it (VERBENA_PTRACE) */
}
