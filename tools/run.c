/* verbena run: gives a program Verbena's libraries and the view of /sys and /dev, after looking whether they
 * can reach it. */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "elf.h"
#include "hca/capture_file.h"
#include "host/devices.h"
#include "iba/profile.h"
#include "loader.h"
#include "tools.h"

#define VERBS	     "libibverbs.so.1"
#define VIEW	     "libverbena-view.so"
#define PRIVATE_NODE "IBVERBS_PRIVATE_34" /* as src/verbs/libibverbs.map has it */

/* Options that only set a variable of the environment: one row each.  verbena_environment(7) has the same. */
static const struct setting {
	const char *option;
	const char *arg; /* with a "|", the words that it may be; with "..", the numbers */
	const char *env;
	const char *doc;
} settings[] = {
    {"log", "DEST", "VERBENA_LOG", "where sentences go: stderr (the default here), off, or a file's path"},
    {"log-level", "error|warn|info|debug", "VERBENA_LOG_LEVEL", "which sentences: warn is the default"},
    {"log-format", "text|json", "VERBENA_LOG_FORMAT",
     "how sentences are written: text is the default, json writes one object a line"},
    {"profile", "NAME", "VERBENA_PROFILE",
     "which device this one is like: default, strict (an adapter that pins) or rxe (soft-RoCE)"},
    {"device", "NAME", "VERBENA_DEVICE", "name of the device (verbena0); further ones count on from there"},
    {"devices", "N", "VERBENA_DEVICES", "how many devices there are, 1 (the default) to 16"},
    {"link", "LAYER", "VERBENA_LINK",
     "what link layer the ports show: ethernet (RoCE, the default) or infiniband (with a LID)"},
    {"direct", "on|off", "VERBENA_DIRECT",
     "whether WRITEs, READs and large SENDs may be carried out in the peer's memory (on is the default)"},
    {"ptrace", "on|off", "VERBENA_PTRACE",
     "whether Yama may be asked to let peers reach into memory (on is the default)"},
    {"pcap", "FILE", "VERBENA_PCAP",
     "write what crosses the wire to FILE, as pcapng for Wireshark; FILE begins anew"},
    {"pcap-snap", "BYTES", "VERBENA_PCAP_SNAP",
     "bytes of each packet that are kept: 384 (the default), 0: all"},
    {"pcap-ring", "FILES:SIZE", "VERBENA_PCAP_RING",
     "so many files of at most that size (64K, 10M, ...) for each process, the oldest overwritten"},
    {"vendor-id", "0..0xffffff", "VERBENA_VENDOR_ID", "vendor_id of the device"},
    {"vendor-part-id", "0..0xffffffff", "VERBENA_VENDOR_PART_ID", "vendor_part_id of the device"},
};

#define SETTINGS    (sizeof(settings) / sizeof(settings[0]))
#define KEY_SETTING 0x1000 /* key of settings[0]; no character */
#define KEY_NO_VIEW 0x2000

struct run {
	bool no_view;
	bool pcap;	     /* the option, not just the variable */
	char **program;	     /* its argv; NULL: none given */
	char lib[PATH_MAX];  /* directory of our libraries */
	char path[PATH_MAX]; /* the program's file */
};

static bool is_listed(const char *list, const char *word)
{
	size_t len = strlen(word);

	for (const char *at = list; at; at = strchr(at, '|'), at = at ? at + 1 : NULL)
		if (!strncmp(at, word, len) && (!at[len] || at[len] == '|'))
			return true;
	return false;
}

static bool is_number(const char *word, unsigned long max)
{
	char *end;
	unsigned long v;

	errno = 0;
	v = strtoul(word, &end, 0);
	return !errno && !*end && *word != '-' && v <= max;
}

/* What the library would replace by the default, with a word in the log, is refused here.  An empty value
 * stands for the default.  The other settings' values are looked at where they are used. */
static void check_value(const struct setting *s, const char *value, const struct argp_state *state)
{
	const char *range = strstr(s->arg, "..");

	if (*value && ((strchr(s->arg, '|') && !is_listed(s->arg, value)) ||
		       (range && !is_number(value, strtoul(range + 2, NULL, 0)))))
		argp_error(state, "--%s=%s is none of %s", s->option, value, s->arg);
}

/* A value that was left out would have the next word taken for it: `--pcap -- PROGRAM`, say. */
static void set(const struct setting *s, char *arg, struct argp_state *state, struct run *r)
{
	if (arg == state->argv[state->next - 1] && !strncmp(arg, "--", 2))
		argp_error(state, "--%s needs %s, and \"%s\" follows it; a value that begins so is --%s=%s",
			   s->option, s->arg, arg, s->option, arg);
	check_value(s, arg, state);
	r->pcap |= !strcmp(s->env, "VERBENA_PCAP");
	if (setenv(s->env, arg, 1))
		argp_failure(state, VB_EXIT_SELF, errno, "--%s", s->option);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct run *r = state->input;

	if (key >= KEY_SETTING && key < KEY_SETTING + (int)SETTINGS) {
		set(&settings[key - KEY_SETTING], arg, state, r);
		return 0;
	}
	switch (key) {
	case KEY_NO_VIEW:
		r->no_view = true;
		return 0;
	case ARGP_KEY_ARG:
		r->program = state->argv + state->next - 1;
		state->next = state->argc; /* the rest is the program's */
		return 0;
	case ARGP_KEY_NO_ARGS:
		argp_error(state, "no program is given");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void parse_command_line(struct run *r, int argc, char **argv)
{
	struct argp_option options[SETTINGS + 2] = {0};
	const struct argp argp = {
	    .options = options,
	    .parser = parse,
	    .args_doc = "[--] PROGRAM [ARGS...]",
	    .doc =
		"Runs PROGRAM on Verbena's RDMA verbs; the exit status is PROGRAM's.\v"
		"Exit status: 125 if verbena itself fails, 126 if PROGRAM cannot be executed, 127 if it is "
		"not found.",
	};

	for (size_t i = 0; i < SETTINGS; i++)
		options[i] = (struct argp_option){
		    .name = settings[i].option,
		    .key = KEY_SETTING + (int)i,
		    .arg = settings[i].arg,
		    .doc = settings[i].doc,
		};
	options[SETTINGS] = (struct argp_option){
	    .name = "no-view",
	    .key = KEY_NO_VIEW,
	    .doc = "do not show the devices in /sys/class/infiniband and /dev/infiniband",
	};
	argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, r);
}

/* The libraries stand beside this program: in lib/ of a build, in ../lib/verbena when installed. */
static bool find_libraries(struct run *r)
{
	static const char *const places[] = {"lib", "../lib/verbena"};
	char self[PATH_MAX], file[PATH_MAX + 64], dir[PATH_MAX + 32];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n <= 0) {
		vb_say("/proc/self/exe cannot be read (%s), so the libraries are not found", strerror(errno));
		return false;
	}
	self[n] = '\0';
	*strrchr(self, '/') = '\0';
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(dir, sizeof(dir), "%s/%s", self, places[i]);
		snprintf(file, sizeof(file), "%s/" VERBS, dir);
		if (access(file, R_OK) || !realpath(dir, r->lib))
			continue;
		/* ld.so(8) knows no way to write these in a list of files or directories */
		if (strpbrk(r->lib, " :;$")) {
			vb_say("the libraries are in \"%s\": the dynamic loader cannot be told of a "
			       "directory with a "
			       "space, colon, semicolon or dollar sign in its name",
			       r->lib);
			return false;
		}
		return true;
	}
	vb_say("no " VERBS " in %s/lib or %s/../lib/verbena", self, self);
	return false;
}

/* As execvp(3) finds it. 0 or the errno of the best candidate. */
static int find_program(const char *name, char *path, size_t size)
{
	const char *list = getenv("PATH");
	int err = ENOENT;

	if (strchr(name, '/')) {
		snprintf(path, size, "%s", name);
		return access(path, X_OK) ? errno : 0;
	}
	if (!list)
		list = "/bin:/usr/bin";
	for (;; list++) {
		size_t len = strcspn(list, ":");
		struct stat st;

		if (snprintf(path, size, "%.*s%s%s", (int)len, list, len ? "/" : "", name) < (int)size &&
		    !stat(path, &st) && S_ISREG(st.st_mode)) {
			if (!access(path, X_OK))
				return 0;
			err = EACCES;
		}
		list += len;
		if (!*list)
			return err;
	}
}

static int not_executable(const char *name, int err)
{
	vb_say("%s: %s", name, strerror(err));
	return err == ENOENT || err == ENOTDIR ? VB_EXIT_NOT_FOUND : VB_EXIT_NOT_EXECUTABLE;
}

/* Whether the kernel will run the file with rights that its caller lacks.  Then the loader ignores the
 * environment (ld.so(8), "secure-execution mode"), and nothing of ours gets in. */
static const char *raises_rights(const char *path)
{
	struct stat st;

	if (stat(path, &st) || prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
		return NULL;
	if ((st.st_mode & S_ISUID) && st.st_uid != getuid())
		return "a set-user-ID program";
	if ((st.st_mode & S_ISGID) && (st.st_mode & S_IXGRP) && st.st_gid != getgid())
		return "a set-group-ID program";
	if (geteuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0)
		return "a program with file capabilities";
	return NULL;
}

/* Adds to a colon-separated list in the environment. */
static bool join(const char *env, const char *item, bool in_front)
{
	const char *old = getenv(env);
	char *joined;
	int bad;

	if (!old || !*old)
		return !setenv(env, item, 1);
	if (asprintf(&joined, "%s:%s", in_front ? item : old, in_front ? old : item) < 0)
		return false;
	bad = setenv(env, joined, 1);
	free(joined);
	return !bad;
}

/* The program's own DT_RPATH comes before LD_LIBRARY_PATH.  A library that is preloaded comes before both. */
static bool overrule_rpath(const struct run *r, const char *path, const char *rpath)
{
	static const char *const ours[] = {VERBS, "librdmacm.so.1"};
	char real[PATH_MAX], dir[PATH_MAX], lib[PATH_MAX + 32];

	if (!*rpath || !realpath(path, real))
		return true;
	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
		if (!vb_elf_rpath_find(rpath, real, ours[i], dir, sizeof(dir)))
			continue;
		snprintf(lib, sizeof(lib), "%s/%s", r->lib, ours[i]);
		if (!strcmp(dir, r->lib) || access(lib, R_OK))
			continue;
		vb_say("%s: its DT_RPATH names %s, which has a %s of its own; Verbena's is preloaded instead",
		       path, dir, ours[i]);
		if (!join("LD_PRELOAD", lib, false))
			return false;
	}
	return true;
}

static void say_lack(const struct vb_loader_lack *l)
{
	const char *name = strrchr(l->file, '/') + 1;
	unsigned release;

	if (sscanf(l->version, "IBVERBS_PRIVATE_%u", &release) == 1)
		vb_say("%s needs %s of %s: it belongs to rdma-core %u or a release soon after, and "
		       "Verbena's %s stands for 34 to 56, whose node is " PRIVATE_NODE
		       ". The program will not start; take that library from one of these releases, or "
		       "do without it",
		       l->who, l->version, name, release, name);
	else
		vb_say("%s needs %s of %s, which Verbena's has not got: it was built with a newer "
		       "rdma-core. The program will not start",
		       l->who, l->version, name);
}

/* What the loader would take instead of our libraries, wherever it finds it (DT_RPATH of a library, a path as
 * a library's name, a bundled copy with a name of its own), and what ours lack. */
static bool check_loading(const struct run *r, const char *path, const char *interp)
{
	static struct vb_loader_answer a;
	bool again = false;
	char ours[PATH_MAX + 32];

	vb_loader_ask(&a, interp, path, r->lib);
	for (unsigned i = 0; i < VB_LOADER_OURS; i++) {
		if (!*a.other[i])
			continue;
		vb_say("%s would load %s; Verbena's %s is preloaded instead", path, a.other[i],
		       vb_loader_ours[i]);
		snprintf(ours, sizeof(ours), "%s/%s", r->lib, vb_loader_ours[i]);
		if (!join("LD_PRELOAD", ours, true))
			return false;
		again = true;
	}
	if (again)
		vb_loader_ask(&a, interp, path, r->lib);
	for (unsigned i = 0; i < a.n; i++)
		say_lack(&a.lacks[i]);
	return true; /* the loader has the last word */
}

/* Looks at one executable file and prepares the environment for it.  0, or the exit status of a refusal. */
static int check_binary(const struct run *r, const char *path)
{
	const char *rights = raises_rights(path);
	struct vb_elf e;

	if (rights) {
		vb_say("%s is %s: the dynamic loader keeps Verbena's libraries out of it. Run it as the user "
		       "that it "
		       "changes to, or from a copy without these rights",
		       path, rights);
		return VB_EXIT_SELF;
	}
	if (vb_elf_read(path, &e))
		return 0; /* may be executable without being readable */
	if (e.kind == VB_ELF_FOREIGN) {
		vb_say("%s is a %d-bit program for another machine (ELF machine %d): Verbena's libraries do "
		       "not fit "
		       "it",
		       path, e.bits, e.machine);
		return VB_EXIT_NOT_EXECUTABLE;
	}
	if (e.kind == VB_ELF_STATIC)
		vb_say("%s is statically linked: it cannot load Verbena's libraries; only programs that it "
		       "starts "
		       "will",
		       path);
	else if (e.verbs)
		vb_say(
		    "%s has a libibverbs linked into it, and will use that one instead of Verbena's; link it "
		    "with the shared library",
		    path);
	/* The sanitizer wants to be the first library of all, and only the view is before it. */
	if (e.asan && !join("ASAN_OPTIONS", "verify_asan_link_order=0", true))
		return VB_EXIT_SELF;
	return overrule_rpath(r, path, e.rpath) && check_loading(r, path, e.interp) ? 0 : VB_EXIT_SELF;
}

/* The interpreter named by a script's first line, "" if the file is none; `arg` is what follows it. */
static void read_interpreter(const char *path, char *name, size_t size, char *arg, size_t arg_size)
{
	char line[256];
	size_t n;
	ssize_t got;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	*name = *arg = '\0';
	if (fd < 0)
		return;
	got = read(fd, line, sizeof(line) - 1);
	close(fd);
	if (got < 2 || line[0] != '#' || line[1] != '!')
		return;
	line[got] = '\0';
	line[strcspn(line, "\n")] = '\0';
	n = 2 + strspn(line + 2, " \t");
	snprintf(name, size, "%.*s", (int)strcspn(line + n, " \t"), line + n);
	n += strcspn(line + n, " \t");
	n += strspn(line + n, " \t");
	snprintf(arg, arg_size, "%.*s", (int)strcspn(line + n, " \t"), line + n);
}

/* Checks the program, and of a script its interpreter, and what env(1) would run as interpreter. */
static int check_program(const struct run *r)
{
	char path[PATH_MAX], name[256], arg[256];
	const char *base;
	int err;

	snprintf(path, sizeof(path), "%s", r->path);
	for (int depth = 0; depth < 6; depth++) {
		read_interpreter(path, name, sizeof(name), arg, sizeof(arg));
		if (!*name)
			return check_binary(r, path);
		if (access(name, X_OK)) {
			vb_say("%s: its interpreter %s: %s", path, name, strerror(errno));
			return errno == ENOENT ? VB_EXIT_NOT_FOUND : VB_EXIT_NOT_EXECUTABLE;
		}
		base = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
		if (!strcmp(base, "env") && *arg && *arg != '-' && !strchr(arg, '=')) {
			err = find_program(arg, path, sizeof(path));
			if (err) {
				vb_say("%s: its interpreter %s: %s", r->path, arg, strerror(err));
				return err == ENOENT ? VB_EXIT_NOT_FOUND : VB_EXIT_NOT_EXECUTABLE;
			}
			continue;
		}
		snprintf(path, sizeof(path), "%s", name);
	}
	vb_say("%s: too many interpreters", r->path);
	return VB_EXIT_NOT_EXECUTABLE;
}

/* The library would refuse to open the device; here it can be said before anything runs. */
static bool check_device(void)
{
	if (vb_profile_unknown())
		vb_say("there is no profile \"%s\"; there are %s", vb_profile_unknown(), vb_profile_names());
	else if (vb_devices_wrong())
		vb_say("%s", vb_devices_wrong());
	return !vb_profile_unknown() && !vb_devices_wrong();
}

/* The library opens the file for each line, when the program is under way and its standard error may be gone.
 */
static bool check_log(void)
{
	const char *to = getenv("VERBENA_LOG");
	int fd;

	if (!*to || !strcmp(to, "off") || !strcmp(to, "stderr"))
		return true;
	fd = open(to, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
	if (fd < 0 && errno != ENXIO) { /* a pipe that nobody reads yet */
		vb_say("the log %s cannot be written: %s", to, strerror(errno));
		return false;
	}
	if (fd >= 0)
		close(fd);
	return true;
}

/* The capture is the first process's to write, wherever that runs by then. */
static bool make_pcap_absolute(void)
{
	const char *name = getenv("VERBENA_PCAP");
	char dir[PATH_MAX], *path;
	bool ok;

	if (*name == '/')
		return true;
	if (!getcwd(dir, sizeof(dir)) || asprintf(&path, "%s/%s", dir, name) < 0)
		return false;
	ok = !setenv("VERBENA_PCAP", path, 1);
	free(path);
	return ok;
}

/* Whether the file can be written; with the option it begins anew, unless a capture is being written to it.
 */
static bool check_pcap_file(const struct run *r, const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
	bool ok = false;
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		vb_say("the capture %s cannot be written: %s", path, strerror(errno));
	else if (!S_ISREG(st.st_mode))
		vb_say("the capture %s is no ordinary file", path);
	else if (r->pcap && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
		vb_say("the capture %s is being written by a process; name another file, or wait for its end",
		       path);
	else if (r->pcap && ftruncate(fd, 0))
		vb_say("the capture %s cannot be written: %s", path, strerror(errno));
	else
		ok = true;
	if (fd >= 0)
		close(fd);
	return ok;
}

static bool check_pcap(const struct run *r)
{
	const char *path;
	uint32_t files;

	if (!getenv("VERBENA_PCAP") || !*getenv("VERBENA_PCAP"))
		return true;
	if (!make_pcap_absolute()) {
		vb_say("VERBENA_PCAP: %s", strerror(errno));
		return false;
	}
	if (vb_capture_wrong()) {
		vb_say("%s", vb_capture_wrong());
		return false;
	}
	path = vb_capture_path(&files);
	return files || check_pcap_file(r, path); /* those of a ring have the PIDs in their names */
}

int vb_run(int argc, char **argv)
{
	struct run r = {0};
	char view[PATH_MAX + 32];
	int err, status;

	parse_command_line(&r, argc, argv);
	if (!check_device() || !find_libraries(&r))
		return VB_EXIT_SELF;
	err = find_program(r.program[0], r.path, sizeof(r.path));
	if (err)
		return not_executable(r.program[0], err);
	snprintf(view, sizeof(view), "%s/" VIEW, r.lib);
	if (!r.no_view && access(view, R_OK)) {
		vb_say("%s: %s; --no-view does without", view, strerror(errno));
		return VB_EXIT_SELF;
	}
	if ((!r.no_view && !join("LD_PRELOAD", view, false)) || !join("LD_LIBRARY_PATH", r.lib, true) ||
	    setenv("VERBENA_LOG", "stderr", 0)) {
		vb_say("the environment: %s", strerror(errno));
		return VB_EXIT_SELF;
	}
	if (!check_log() || !check_pcap(&r))
		return VB_EXIT_SELF;
	status = check_program(&r);
	if (status)
		return status;
	execvp(r.program[0], r.program);
	return not_executable(r.program[0], errno);
}
