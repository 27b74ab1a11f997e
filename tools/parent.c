#include "parent.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/tally.h"
#include "peek.h"
#include "tools.h"

/* ---- what was said ---- */

struct kind {
	uint64_t count;
	unsigned level;
	char name[VB_TALLY_KIND];
};

static int by_count(const void *a, const void *b)
{
	const struct kind *x = a, *y = b;

	if (x->count != y->count)
		return (x->count < y->count) - (x->count > y->count);
	if (x->level != y->level)
		return (int)x->level - (int)y->level;
	return strcmp(x->name, y->name);
}

static const char *level_name(unsigned level)
{
	return level == VB_LOG_ERROR ? "error" : "warn";
}

static unsigned read_kinds(const struct vb_tally *t, struct kind *k)
{
	unsigned n = 0;

	for (unsigned i = 0; i < VB_TALLY_SLOTS; i++) {
		if (!vb_tally_read(t, i, &k[n].level, &k[n].count, k[n].name))
			continue;
		vb_peek_clean(k[n].name);
		if (!*k[n].name)
			strcpy(k[n].name, "(no call or reason)");
		n++;
	}
	for (unsigned l = 0; l < VB_TALLY_LEVELS; l++) {
		k[n] = (struct kind){atomic_load(&t->other[l]), l, "(further kinds)"};
		n += k[n].count != 0;
	}
	qsort(k, n, sizeof *k, by_count);
	return n;
}

/* What a green test would hide: the environment was cleared, say, or the program is static. */
#define NOT_OPENED "no process opened a device of Verbena"

/* In one piece: other processes may write there. */
static void print_summary(const struct vb_tally *t)
{
	struct kind k[VB_TALLY_SLOTS + VB_TALLY_LEVELS];
	unsigned n = read_kinds(t, k);
	unsigned long long errors = vb_tally_sum(t, VB_LOG_ERROR), warnings = vb_tally_sum(t, VB_LOG_WARN);
	char *text = NULL;
	size_t size;
	FILE *f;

	if (!n) {
		vb_say("summary: %s", atomic_load(&t->opened) ? "no errors, no warnings" : NOT_OPENED);
		return;
	}
	f = open_memstream(&text, &size);
	if (!f)
		return;
	fprintf(f, "verbena: summary: %llu error%s, %llu warning%s\n", errors, errors == 1 ? "" : "s",
		warnings, warnings == 1 ? "" : "s");
	fprintf(f, "%10s  %-5s  %s\n", "COUNT", "LEVEL", "CALL OR REASON");
	for (unsigned i = 0; i < n; i++)
		fprintf(f, "%10llu  %-5s  %s\n", (unsigned long long)k[i].count, level_name(k[i].level),
			k[i].name);
	if (!fclose(f))
		(void)!write(STDERR_FILENO, text, size);
	free(text);
}

static void say_not_opened(const struct vb_watch *w, const struct vb_tally *t)
{
	if (w->fail_on && !w->summary && !atomic_load(&t->opened))
		vb_say(NOT_OPENED ", so --fail-on=%s checked nothing", w->fail_on);
}

/* Whether a program that succeeded has failed. */
static bool fails(const struct vb_watch *w, const struct vb_tally *t)
{
	unsigned long long errors = vb_tally_sum(t, VB_LOG_ERROR), warnings = vb_tally_sum(t, VB_LOG_WARN);

	if (!w->fail_on || !(errors + (strcmp(w->fail_on, "warn") ? 0 : warnings)))
		return false;
	vb_say("exit status %d: the program ended with 0, but %llu error%s and %llu warning%s occurred "
	       "(--fail-on=%s)",
	       VB_EXIT_SAID, errors, errors == 1 ? "" : "s", warnings, warnings == 1 ? "" : "s", w->fail_on);
	return true;
}

/* ---- signals ---- */

/* As this process was started. */
static sigset_t mask;
static struct sigaction on_child;

static void take_signals(void)
{
	struct sigaction standard = {.sa_handler = SIG_DFL};
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &mask);
	sigaction(SIGCHLD, &standard, &on_child); /* ignored, it would take the status away */
}

static void give_signals_back(void)
{
	sigaction(SIGCHLD, &on_child, NULL);
	sigprocmask(SIG_SETMASK, &mask, NULL);
}

/* The terminal sends these to the whole process group, so the program has them already.  Only a session's
 * leader is told alone that the terminal is gone. */
static bool program_has_it(const siginfo_t *s)
{
	static const int from_terminal[] = {SIGINT, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGWINCH, SIGCONT};

	if (s->si_code != SI_KERNEL)
		return false;
	if (s->si_signo == SIGHUP)
		return getsid(0) != getpid();
	for (size_t i = 0; i < sizeof(from_terminal) / sizeof(*from_terminal); i++)
		if (s->si_signo == from_terminal[i])
			return true;
	return false;
}

/* A program that job control stops: the shell has to see that.  What stops it otherwise, a debugger say, lets
 * it go on later by the program's own PID. */
static void stop_too(pid_t program, int sig)
{
	if (sig != SIGTSTP && sig != SIGTTIN && sig != SIGTTOU)
		return;
	kill(getpid(), SIGSTOP);
	kill(program, SIGCONT);
}

/* Waits for the program's end, and hands on what is sent to this process meanwhile.  Returns its status. */
static int attend(pid_t program)
{
	sigset_t all;
	siginfo_t s;
	int status;

	sigfillset(&all);
	for (;;) {
		if (sigwaitinfo(&all, &s) < 0)
			continue;
		if (s.si_signo != SIGCHLD) {
			if (!program_has_it(&s))
				kill(program, s.si_signo);
			continue;
		}
		while (waitpid(program, &status, WNOHANG | WUNTRACED) == program) {
			if (!WIFSTOPPED(status))
				return status;
			stop_too(program, WSTOPSIG(status));
		}
	}
}

static int die_as(int status)
{
	static const struct rlimit none = {0};
	int sig = WTERMSIG(status);
	sigset_t one;

	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	setrlimit(RLIMIT_CORE, &none); /* the program's core is the one that counts */
	signal(sig, SIG_DFL);
	raise(sig);
	sigemptyset(&one);
	sigaddset(&one, sig);
	sigprocmask(SIG_UNBLOCK, &one, NULL);
	return 128 + sig;
}

/* ---- the program ---- */

static void execute(char **program, pid_t parent, int report) __attribute__((noreturn));
static void execute(char **program, pid_t parent, int report)
{
	int err;

	/* Who kills the command with SIGKILL means the program. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
		_exit(VB_EXIT_SELF);
	give_signals_back();
	execvp(program[0], program);
	err = errno;
	(void)!write(report, &err, sizeof err);
	_exit(VB_EXIT_SELF);
}

/* What the program was given must end when the program ends or closes it, not with this process. */
static void let_go(int table)
{
	int nothing = open("/dev/null", O_RDWR);

	if (nothing >= 0) {
		dup2(nothing, STDIN_FILENO);
		dup2(nothing, STDOUT_FILENO);
	}
	if (table > 3)
		close_range(3, (unsigned)table - 1, 0);
	close_range((unsigned)table + 1, UINT_MAX, 0);
}

/* The program alone is told of the table; what this command was asked is not for others that it starts. */
static bool name_table(int table)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), table);
	unsetenv("VERBENA_FAIL_ON");
	unsetenv("VERBENA_SUMMARY");
	return !setenv(VB_TALLY_ENV, path, 1);
}

bool vb_watch_read(struct vb_watch *w)
{
	const char *fail_on = getenv("VERBENA_FAIL_ON"), *summary = getenv("VERBENA_SUMMARY");

	w->fail_on = fail_on && *fail_on ? fail_on : NULL;
	w->summary = summary && !strcmp(summary, "on");
	if (w->fail_on && strcmp(fail_on, "warn") && strcmp(fail_on, "error")) {
		vb_say("VERBENA_FAIL_ON=%s is not valid. Valid values: warn, error", fail_on);
		return false;
	}
	if (summary && *summary && !w->summary && strcmp(summary, "off")) {
		vb_say("VERBENA_SUMMARY=%s is not valid. Valid values: on, off", summary);
		return false;
	}
	return true;
}

int vb_parent_run(const struct vb_watch *w, char **program, int *err)
{
	int table, report[2], status;
	struct vb_tally *t = vb_tally_make(&table);
	pid_t self = getpid(), pid;

	*err = 0;
	if (!t || !name_table(table) || pipe2(report, O_CLOEXEC)) {
		vb_say("the table that counts errors and warnings cannot be made: %s", strerror(errno));
		return VB_EXIT_SELF;
	}
	take_signals();
	pid = fork();
	if (!pid)
		execute(program, self, report[1]);
	if (pid < 0) {
		vb_say("the program cannot be started: %s", strerror(errno));
		return VB_EXIT_SELF;
	}
	close(report[1]);
	if (read(report[0], err, sizeof *err) == sizeof *err)
		return VB_EXIT_SELF;
	let_go(table);
	status = attend(pid);
	vb_tally_add_all(t); /* to that of another `verbena run` which runs this one */
	if (w->summary)
		print_summary(t);
	if (!status && fails(w, t))
		return VB_EXIT_SAID;
	if (!status)
		say_not_opened(w, t);
	return die_as(status);
}
