/* verbena bundle: one file about a process, for a report.  It is a text file: it can be read before it is
 * sent, pasted into an issue, and searched, and needs nothing to unpack it.
 *
 * The parts are what other commands print.  Keys are taken out of every line: a key opens memory to whoever
 * reaches the process. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bundle.h"
#include "commit.h"
#include "host/segment.h"
#include "peek.h"
#include "tools.h"

enum { LINES = 1000 }; /* of the log */

static bool with_keys;

/* Whether the word before a number says that it is a key: "key", "R_Key", "lkey", "other_key". */
static bool says_key(const char *line, const char *at)
{
	const char *p = at;

	while (p > line && strchr(" \":=(", p[-1]))
		p--;
	while (p > line && isalpha((unsigned char)p[-1]))
		p--;
	for (; at - p >= 3; p++)
		if (!strncasecmp(p, "key", 3))
			return true;
	return false;
}

/* Takes the keys out of a line: each number of eight hexadecimal digits, as keys are printed, and each that
 * stands behind a word that ends in "key". */
static void hide_keys(char *line)
{
	for (char *p = line; (p = strstr(p, "0x"));) {
		size_t n = strspn(p + 2, "0123456789abcdefABCDEF");

		if (n == 8 || (n && says_key(line, p)))
			memset(p + 2, '*', n);
		p += 2 + n;
	}
}

static void put_line(FILE *f, char *line)
{
	if (!with_keys)
		hide_keys(line);
	vb_peek_clean(line);
	fprintf(f, "%s\n", line);
}

/* Every line up to the end of `from`. */
static void put_all(FILE *f, FILE *from)
{
	char *line = NULL;
	size_t room = 0;
	ssize_t n;

	while ((n = getline(&line, &room, from)) >= 0) {
		for (ssize_t i = 0; i < n; i++)
			if (!line[i])
				line[i] = '?';
		line[strcspn(line, "\n")] = 0;
		put_line(f, line);
	}
	free(line);
}

static void head(FILE *f, const char *what)
{
	fprintf(f, "\n==== %s\n", what);
}

/* What this command prints for that process. */
static void put_command(FILE *f, const char *name, const char *pid)
{
	char what[80], *const argv[] = {(char *)"verbena", (char *)name, (char *)pid, NULL};
	int ends[2], status;
	FILE *from;
	pid_t child;

	snprintf(what, sizeof what, "verbena %s%s%s", name, pid ? " " : "", pid ? pid : "");
	head(f, what);
	fflush(f);
	if (pipe2(ends, O_CLOEXEC)) {
		fprintf(f, "(not available: %s)\n", strerror(errno));
		return;
	}
	child = fork();
	if (!child) {
		dup2(ends[1], STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		execv("/proc/self/exe", argv);
		_exit(VB_EXIT_SELF);
	}
	close(ends[1]);
	from = child > 0 ? fdopen(ends[0], "r") : NULL;
	if (from) {
		put_all(f, from);
		fclose(from);
	} else {
		fprintf(f, "(not available: %s)\n", strerror(errno));
		close(ends[0]);
	}
	if (child > 0 && waitpid(child, &status, 0) == child && status)
		fprintf(f, "(exit status %d)\n",
			WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static void put_file(FILE *f, const char *path)
{
	FILE *from = fopen(path, "re");

	if (!from) {
		fprintf(f, "(not available: %s: %s)\n", path, strerror(errno));
		return;
	}
	put_all(f, from);
	fclose(from);
}

static void put_versions(FILE *f, const struct peek *p)
{
	struct utsname u;

	head(f, "versions");
	fprintf(f, "verbena " VB_VERSION "%s%s, segment %u of process %d (%s)\n",
		*VB_COMMIT ? " commit " : "", VB_COMMIT, VB_SEG_VERSION, (int)p->pid, p->program);
	if (!uname(&u))
		fprintf(f, "%s %s %s %s\n", u.sysname, u.release, u.version, u.machine);
	fprintf(f, "glibc %s\n", gnu_get_libc_version());
	put_file(f, "/etc/os-release");
}

/* The variables VERBENA_* of the process's environment as it began; calls `each` with each. */
static void each_variable(FILE *f, const struct peek *p, void (*each)(FILE *f, char *variable, void *arg),
			  void *arg)
{
	char path[64], *line = NULL;
	size_t room = 0;
	FILE *from;

	snprintf(path, sizeof path, "/proc/%d/environ", (int)p->pid);
	from = fopen(path, "re");
	if (!from) {
		if (f)
			fprintf(f, "(not available: %s: %s)\n", path, strerror(errno));
		return;
	}
	while (getdelim(&line, &room, 0, from) > 0)
		if (!strncmp(line, "VERBENA_", 8))
			each(f, line, arg);
	free(line);
	fclose(from);
}

static void put_variable(FILE *f, char *variable, void *arg)
{
	(void)arg;
	put_line(f, variable);
}

static void find_log(FILE *f, char *variable, void *arg)
{
	(void)f;
	if (!strncmp(variable, "VERBENA_LOG=", 12))
		snprintf(arg, PATH_MAX, "%s", variable + 12);
}

/* Leaves the file where its last lines begin. */
static void seek_lines(FILE *log)
{
	char *line = NULL;
	size_t room = 0;
	uint64_t n = 0, skip;

	while (getline(&line, &room, log) >= 0)
		n++;
	rewind(log);
	for (skip = n > LINES ? n - LINES : 0; skip && getline(&line, &room, log) >= 0; skip--)
		;
	free(line);
}

static void put_log(FILE *f, const struct peek *p)
{
	char set[PATH_MAX] = "", path[2 * PATH_MAX];
	FILE *log;

	head(f, "the last 1,000 lines of the log");
	each_variable(NULL, p, find_log, set);
	if (!strcmp(set, "off") || !*set || !strcmp(set, "stderr")) {
		fprintf(f, "(the log goes to %s, and is not kept. \"verbena run --log=FILE\" keeps it)\n",
			!strcmp(set, "off") ? "no file" : "the standard error");
		return;
	}
	snprintf(path, sizeof path, *set == '/' ? "/proc/%d/root%s" : "/proc/%d/cwd/%s", (int)p->pid, set);
	log = fopen(path, "re");
	if (!log) {
		fprintf(f, "(not available: %s: %s)\n", set, strerror(errno));
		return;
	}
	seek_lines(log);
	put_all(f, log);
	fclose(log);
}

/* What the kernel counted in the process's network namespace. */
static void each_net_file(FILE *f, const char *pid)
{
	static const char *const names[] = {"dev", "snmp", "snmp6"};
	char path[64];

	for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "/proc/%s/net/%s", pid, names[i]);
		fprintf(f, "%s:\n", path);
		put_file(f, path);
	}
}

static void put_bundle(FILE *f, const struct peek *p)
{
	char pid[16], path[64], when[40] = "?";
	time_t now = time(NULL);
	struct tm tm;

	snprintf(pid, sizeof pid, "%d", (int)p->pid);
	if (gmtime_r(&now, &tm))
		strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
	fprintf(f, "Report on process %d (%s), %s. It has no payload%s.\n", (int)p->pid, p->program, when,
		with_keys ? "; it has the keys of memory regions" : ", and keys are replaced by asterisks");
	put_command(f, "explain", pid);
	put_command(f, "qp", pid);
	put_command(f, "mr", pid);
	put_command(f, "list", NULL);
	put_log(f, p);
	put_versions(f, p);
	head(f, "VERBENA_* of the environment");
	each_variable(f, p, put_variable, NULL);
	head(f, "limits");
	snprintf(path, sizeof path, "/proc/%d/limits", (int)p->pid);
	put_file(f, path);
	head(f, "network");
	vb_bundle_network(f, p);
	each_net_file(f, pid);
}

/* false: it was said why. */
static bool write_bundle(const struct peek *p, const char *wanted)
{
	char own[120], stamp[40] = "now";
	const char *path = wanted ? wanted : own;
	time_t now = time(NULL);
	struct tm tm;
	FILE *f;
	int fd;

	if (gmtime_r(&now, &tm))
		strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &tm);
	snprintf(own, sizeof own, "verbena-%d-%s.txt", (int)p->pid, stamp);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	f = fd < 0 ? NULL : fdopen(fd, "w");
	if (!f) {
		if (errno == EEXIST)
			vb_say("%s exists, and is not overwritten. Name another file: --output=FILE", path);
		else
			vb_say("%s cannot be created: %s", path, strerror(errno));
		return false;
	}
	put_bundle(f, p);
	if (ferror(f) | fclose(f)) {
		vb_say("%s could not be written in full, and is removed: %s", path, strerror(errno));
		unlink(path);
		return false;
	}
	printf("%s\n", path);
	return true;
}

static int bundle(const struct vb_command *c, int argc, char **argv)
{
	struct vb_words w = {.command = c, .argc = argc, .argv = argv};
	const char *output = NULL, *pid = NULL;
	char *rest[3] = {argv[0]};
	struct peek_ask a;
	enum vb_word word;
	bool good;

	while ((word = vb_words_next(&w))) {
		if (word == VB_WORDS_WORD && pid) {
			vb_say("\"verbena bundle\" takes one process ID, but a second one follows: \"%s\"",
			       w.value);
			return VB_EXIT_SELF;
		}
		if (word == VB_WORDS_WORD)
			pid = w.value;
		else if (w.option->letter == 'k')
			with_keys = true;
		else
			output = w.value;
	}
	rest[1] = (char *)pid;
	if (!vb_peek_open(&a, c, pid ? 2 : 1, rest))
		return VB_EXIT_SELF;
	good = write_bundle(&a.at, output);
	vb_peek_close(&a.at);
	return good ? 0 : VB_EXIT_SELF;
}

static const struct vb_option options[] = {
    {.name = "keys", .letter = 'k', .doc = "leave the keys of memory regions in"},
    {.name = "output", .letter = 'o', .arg = "FILE", .doc = "the file (default: verbena-PID-TIME.txt)"},
};

const struct vb_command vb_bundle = {
    .name = "bundle",
    .brief = "write a report about a process into a file",
    .main = bundle,
    .usage = "[option ...] [PID]",
    .text = "Writes one text file about a running process, for a bug report: what explain, qp, mr and list "
	    "print, the "
	    "last 1,000 lines of the log, versions, limits, the network, and the variables VERBENA_* of its "
	    "environment. "
	    "The file has "
	    "no payload, and no keys unless you ask for them. Only you can read it, and no file is "
	    "overwritten. Its name "
	    "is printed.\n\n"
	    "Without PID it takes your only process that uses Verbena. If there are several, it lists them.",
    .after = "Exit status: 0; 125 if the process is not found or cannot be read, if the file exists, or if "
	     "verbena fails.",
    .example = "verbena bundle 4711",
    .options = options,
    .noptions = sizeof options / sizeof *options,
};
