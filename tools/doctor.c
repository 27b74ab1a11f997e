/* verbena doctor: what of this host, user or container limits Verbena, what that costs, and how it is
 * loosened. */
#include "doctor.h"

#include <errno.h>
#include <json-c/json.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/identity.h"
#include "peek.h"
#include "tools.h"

enum { EXIT_LIMITED = 1, EXIT_CANNOT = 2 };

static const char *const grades[VB_GRADES] = {
    [VB_OK] = "ok", [VB_NOTE] = "note", [VB_LIMIT] = "limit", [VB_FAILS] = "fails"};

void vb_found(struct vb_doctor *d, enum vb_grade grade, const char *check, const char *cost,
	      const char *remedy, const char *fmt, ...)
{
	struct vb_finding *f = &d->at[d->n];
	va_list ap;

	if (d->n == VB_FINDINGS)
		return;
	d->n++;
	f->grade = grade;
	f->check = check;
	va_start(ap, fmt);
	vsnprintf(f->text, sizeof(f->text), fmt, ap);
	va_end(ap);
	snprintf(f->cost, sizeof(f->cost), "%s", cost ? cost : "");
	snprintf(f->remedy, sizeof(f->remedy), "%s", remedy ? remedy : "");
	vb_peek_clean(f->text);
}

/* ---- children ---- */

static void be_child(vb_child_fn *fn, void *arg, int out) __attribute__((noreturn));
static void be_child(vb_child_fn *fn, void *arg, int out)
{
	const struct rlimit none = {0, 0};

	setrlimit(RLIMIT_CORE, &none);
	signal(SIGXFSZ, SIG_IGN); /* what exceeds RLIMIT_FSIZE is EFBIG, as the libraries have it */
	alarm(20);		  /* for what hangs */
	_exit(fn(arg, out) & 0xff);
}

int vb_child(vb_child_fn *fn, void *arg, char *said, size_t size)
{
	int p[2], status, err;
	size_t n = 0;
	ssize_t got;
	pid_t pid;
	char more[512];

	if (pipe(p))
		return errno;
	fflush(stdout);
	pid = fork();
	if (pid < 0) {
		err = errno;
		close(p[0]);
		close(p[1]);
		return err;
	}
	if (!pid) {
		close(p[0]);
		be_child(fn, arg, p[1]);
	}
	close(p[1]);
	while ((got = read(p[0], more, sizeof(more))) > 0 || (got < 0 && errno == EINTR)) {
		size_t take = got < 0 || !size || n + (size_t)got >= size ? 0 : (size_t)got;

		if (take)
			memcpy(said + n, more, take);
		n += take;
	}
	if (size)
		said[n] = 0;
	close(p[0]);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return errno;
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

const char *vb_child_why(char *buf, size_t size, int err)
{
	if (err >= 0)
		snprintf(buf, size, "%s", strerror(err));
	else if (err == -SIGALRM)
		snprintf(buf, size, "it does not end within 20 s");
	else
		snprintf(buf, size, "a process that makes the call is ended by SIG%s", sigabbrev_np(-err));
	return buf;
}

/* ---- printing ---- */

static unsigned count(const struct vb_doctor *d, enum vb_grade grade)
{
	unsigned n = 0;

	for (unsigned i = 0; i < d->n; i++)
		n += d->at[i].grade == grade;
	return n;
}

static void print_text(const struct vb_doctor *d)
{
	unsigned limits = count(d, VB_LIMIT), fails = count(d, VB_FAILS), notes = count(d, VB_NOTE);

	for (unsigned i = 0; i < d->n; i++) {
		const struct vb_finding *f = &d->at[i];

		printf("%-5s  %s: %s\n", grades[f->grade], f->check, f->text);
		if (*f->cost)
			printf("       cost: %s\n", f->cost);
		if (*f->remedy)
			printf("       to loosen it: %s\n", f->remedy);
	}
	if (fails)
		printf("\nVerbena cannot work here: %u check%s failed.\n", fails, fails == 1 ? "" : "s");
	else if (limits)
		printf("\nVerbena works here, with %u limit%s.\n", limits, limits == 1 ? "" : "s");
	else if (notes)
		printf("\nVerbena works here. %u note%s.\n", notes, notes == 1 ? "" : "s");
	else
		printf("\nVerbena works here. Nothing limits it.\n");
}

static json_object *finding_json(const struct vb_finding *f)
{
	json_object *o = json_object_new_object();

	json_object_object_add(o, "check", json_object_new_string(f->check));
	json_object_object_add(o, "result", json_object_new_string(grades[f->grade]));
	json_object_object_add(o, "text", json_object_new_string(f->text));
	if (*f->cost)
		json_object_object_add(o, "cost", json_object_new_string(f->cost));
	if (*f->remedy)
		json_object_object_add(o, "remedy", json_object_new_string(f->remedy));
	return o;
}

static int print_json(const struct vb_doctor *d)
{
	json_object *o = json_object_new_object(), *list = json_object_new_array(),
		    *foreign = json_object_new_array();

	json_object_object_add(o, "version", json_object_new_string(VB_VERSION));
	json_object_object_add(o, "works", json_object_new_boolean(!count(d, VB_FAILS)));
	json_object_object_add(o, "limits", json_object_new_int((int)count(d, VB_LIMIT)));
	json_object_object_add(o, "libraries", json_object_new_string(d->lib));
	for (unsigned i = 0; i < d->n; i++)
		json_object_array_add(list, finding_json(&d->at[i]));
	json_object_object_add(o, "checks", list);
	for (unsigned i = 0; i < d->nforeign; i++)
		json_object_array_add(foreign, json_object_new_string(d->foreign[i]));
	json_object_object_add(o, "foreign_devices", foreign);
	return vb_peek_print_json(o);
}

static int end_at_once(void *arg, int out)
{
	(void)arg;
	(void)out;
	return 0;
}

#define MORE_THREADS "ulimit -u unlimited (TasksMax= of a service, docker run --pids-limit=-1)"

/* Whether a child may start a thread, as a program does that opens the device.  Where it may not, the other
 * checks would find faults that a program does not have: this command takes part of the limit itself. */
static bool may_start(struct vb_doctor *d)
{
	int err = vb_child(end_at_once, NULL, NULL, 0);
	char why[200];

	if (err) {
		vb_found(d, VB_FAILS, "processes", "no further check can be made", MORE_THREADS,
			 "a process cannot be started: %s", vb_child_why(why, sizeof(why), err));
		return false;
	}
	if (vb_child(vb_try_thread, NULL, NULL, 0) != EAGAIN)
		return true; /* vb_doctor_calls() says what else there is */
	if (vb_try_thread(NULL, 0))
		vb_found(d, VB_FAILS, "processes", "the device cannot be opened", MORE_THREADS,
			 "a process cannot start a second thread: %s", strerror(EAGAIN));
	else
		vb_found(d, VB_LIMIT, "processes",
			 "two programs cannot run at once. No further check is made", MORE_THREADS,
			 "this command can start a thread, and a child of it cannot: %s. A program needs two "
			 "threads, and this check three",
			 strerror(EAGAIN));
	return false;
}

static void look(struct vb_doctor *d)
{
	if (!may_start(d))
		return;
	vb_doctor_device(d);
	vb_doctor_calls(d);
	vb_doctor_memory(d);
	vb_doctor_limits(d);
	vb_doctor_host(d);
	vb_doctor_network(d);
	vb_doctor_others(d);
	vb_doctor_library(d);
}

static int doctor(const struct vb_command *c, int argc, char **argv)
{
	static struct vb_doctor d;
	struct vb_words w = {.command = c, .argc = argc, .argv = argv};
	char path[PATH_MAX];
	const char *program = NULL;
	bool json = false;
	enum vb_word word;
	int err, status = 0;

	while ((word = vb_words_next(&w))) {
		if (word == VB_WORDS_OPTION) {
			json = true;
		} else if (program) {
			vb_say("\"verbena doctor\" takes one program, without arguments, but a second word "
			       "follows: \"%s\"",
			       w.value);
			return VB_EXIT_SELF;
		} else {
			program = w.value;
		}
	}
	err = program ? vb_find_program(program, path, sizeof(path)) : 0;
	if (err) {
		vb_say("%s cannot be executed: %s", program, strerror(err));
		return VB_EXIT_SELF;
	}
	signal(SIGCHLD, SIG_DFL); /* whoever ignores it gets no status of a child */
	look(&d);
	if (program)
		vb_doctor_program(&d, path);
	if (json)
		status = print_json(&d);
	else
		print_text(&d);
	if (status)
		return status;
	return count(&d, VB_FAILS) ? EXIT_CANNOT : count(&d, VB_LIMIT) ? EXIT_LIMITED : 0;
}

const struct vb_command vb_doctor_command = {
    .name = "doctor",
    .brief = "say what limits Verbena on this machine",
    .main = doctor,
    .usage = "[--json] [--] [PROGRAM]",
    .text = "Tries what Verbena needs, as this user on this machine or in this container. Each check prints "
	    "a line. If something is limited, further lines say what that costs and how to loosen it. With "
	    "PROGRAM it also checks whether that program would use Verbena.",
    .after =
	"Exit status: 0 if nothing limits Verbena; 1 if something costs a feature or speed; 2 if Verbena "
	"or PROGRAM cannot work here; 125 if verbena fails.",
    .example = "verbena doctor",
    .options = vb_peek_options,
    .noptions = VB_PEEK_OPTIONS,
};
