/* verbena run: gives a program Verbena's libraries and the view of /sys and /dev, after looking whether they
 * can reach it. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hca/capture_file.h"
#include "host/devices.h"
#include "iba/profile.h"
#include "parent.h"
#include "program.h"
#include "tools.h"
#include "wire/wires.h"

#define VERBS "libibverbs.so.1"
#define VIEW  "libverbena-view.so"
#define SHARE "libverbena-share.so"

/* Those that only set a variable of the environment.  verbena_environment(7) has the same. */
#define SETS(n, a, e, d)                                \
	{                                               \
		.name = n, .arg = a, .env = e, .doc = d \
	}
static const struct vb_option options[] = {
    SETS("log", "DEST", "VERBENA_LOG",
	 "where the log goes: stderr (default), off, or a file that is truncated first"),
    SETS("log-level", "error|warn|info|debug", "VERBENA_LOG_LEVEL",
	 "log sentences of this level and of more severe levels (default: warn)"),
    SETS("log-format", "text|json", "VERBENA_LOG_FORMAT",
	 "format of the log: text (default), or json with one object a line"),
    SETS("profile", "default|strict|rxe", "VERBENA_PROFILE",
	 "the adapter to imitate: default, strict (an adapter that pins memory) or rxe (soft-RoCE)"),
    SETS("device", "NAME", "VERBENA_DEVICE",
	 "name of the device (default: verbena0); further devices count on from it"),
    SETS("devices", "1..16", "VERBENA_DEVICES", "number of devices (default: 1)"),
    SETS("link", "ethernet|infiniband", "VERBENA_LINK",
	 "link layer of the ports: ethernet (RoCE, default) or infiniband (each port has a LID)"),
    SETS("netdev", "INTERFACES", "VERBENA_NETDEV",
	 "network interfaces to open for RoCEv2 to other hosts: eth0,eth1, eth0@10.0.0.5, or all; each is a "
	 "device"),
    SETS("wire", "auto|shm|udp", "VERBENA_WIRE",
	 "shared memory on this host and UDP to others (auto, default), or one of the two to all"),
    SETS("udp-checksum", "on|off", "VERBENA_UDP_CHECKSUM",
	 "send UDP checksums with RoCEv2 packets (default: on)"),
    SETS("udp-gso", "on|off", "VERBENA_UDP_GSO",
	 "hand several RoCEv2 packets to the kernel as one (default: on)"),
    SETS("direct", "on|off", "VERBENA_DIRECT",
	 "carry out WRITEs, READs and large SENDs directly in the peer's memory (default: on)"),
    {.name = "share-buffers",
     .arg = "on|off",
     .env = "VERBENA_SHARE_BUFFERS",
     .doc = "give PROGRAM's aligned and mapped buffers memory that peers can map (default: off)",
     .optional = true},
    SETS("ptrace", "on|off", "VERBENA_PTRACE",
	 "ask Yama to let peers access this process's memory (default: on)"),
    SETS("pcap", "FILE", "VERBENA_PCAP", "capture the traffic to FILE, as pcapng for Wireshark"),
    SETS("pcap-snap", "BYTES", "VERBENA_PCAP_SNAP", "bytes to keep of each packet (default: 384; 0: all)"),
    SETS("pcap-ring", "FILES:SIZE", "VERBENA_PCAP_RING",
	 "capture to a ring of files for each process: at most FILES files of at most SIZE (64K, 10M, ...)"),
    {.name = "check",
     .arg = "on|guard|no-remote|off",
     .env = "VERBENA_CHECK",
     .doc = "report wrong use of buffers, regions and address handles; guard: also protect posted receive "
	    "buffers (for debugging)",
     .optional = true},
    SETS("fail-on", "warn|error", "VERBENA_FAIL_ON",
	 "exit with status 124 if PROGRAM succeeds, but an error (or with warn a warning) occurred"),
    {.name = "summary",
     .arg = "on|off",
     .env = "VERBENA_SUMMARY",
     .doc = "print the number of errors and warnings of each kind when PROGRAM ends",
     .optional = true},
    SETS("wait-warn", "SECONDS", "VERBENA_WAIT_WARN",
	 "log once that a request or call waits for so long, and why (default: 3; 0: never)"),
    SETS("vendor-id", "0..0xffffff", "VERBENA_VENDOR_ID", "vendor_id of the device"),
    SETS("vendor-part-id", "0..0xffffffff", "VERBENA_VENDOR_PART_ID", "vendor_part_id of the device"),
    {.name = "no-view", .doc = "do not show the devices in /sys/class/infiniband and /dev/infiniband"},
};

struct run {
	bool no_view;
	bool typed[sizeof(options) / sizeof(options[0])]; /* which options */
	char **program;					  /* its argv */
	char lib[PATH_MAX];				  /* directory of our libraries */
	char path[PATH_MAX];				  /* the program's file */
};

/* Returns the option's name where the user typed it; NULL: the variable comes from the environment, if at
 * all. */
static const char *typed(const struct run *r, const char *env, size_t len)
{
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (r->typed[i] && !strncmp(options[i].env, env, len) && !options[i].env[len])
			return options[i].name;
	return NULL;
}

static bool is_typed(const struct run *r, const char *env)
{
	return typed(r, env, strlen(env));
}

/* false: it was said why not. */
static bool set(struct run *r, const struct vb_option *o, const char *value)
{
	if (!o->env) {
		r->no_view = true;
		return true;
	}
	r->typed[o - options] = true;
	if (!setenv(o->env, value, 1))
		return true;
	vb_say("--%s cannot be set: %s", o->name, strerror(errno));
	return false;
}

static bool parse_command_line(struct run *r, const struct vb_command *c, int argc, char **argv)
{
	struct vb_words w = {.command = c, .argc = argc, .argv = argv};
	enum vb_word word;

	while ((word = vb_words_next(&w)) == VB_WORDS_OPTION)
		if (!set(r, w.option, w.value))
			return false;
	if (word == VB_WORDS_END) {
		vb_say("no program is given. Type: verbena run -- PROGRAM. \"verbena help run\" lists the "
		       "options");
		return false;
	}
	r->program = argv + w.next - 1; /* the rest is the program's */
	return true;
}

/* The libraries stand beside this program: in lib/ of a build, in VB_INSTALLED_LIB when installed. */
bool vb_libraries_find(char lib[PATH_MAX])
{
	static const char *const places[] = {"lib", VB_INSTALLED_LIB};
	char self[PATH_MAX], file[PATH_MAX + 64], dir[PATH_MAX + 32];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n <= 0) {
		vb_say("the libraries cannot be found: /proc/self/exe cannot be read (%s)", strerror(errno));
		return false;
	}
	self[n] = '\0';
	*strrchr(self, '/') = '\0';
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(dir, sizeof(dir), "%s/%s", self, places[i]);
		snprintf(file, sizeof(file), "%s/" VERBS, dir);
		if (access(file, R_OK) || !realpath(dir, lib))
			continue;
		/* ld.so(8) knows no way to write these in a list of files or directories */
		if (strpbrk(lib, " :;$")) {
			vb_say("the libraries are in \"%s\". The dynamic loader cannot use a directory with "
			       "a space, colon, semicolon or dollar sign in its name. Install or copy "
			       "Verbena elsewhere",
			       lib);
			return false;
		}
		return true;
	}
	vb_say("there is no " VERBS " in %s/lib or %s/" VB_INSTALLED_LIB ". Build or install Verbena again",
	       self, self);
	return false;
}

static int not_executable(const char *name, int err)
{
	vb_say("%s cannot be executed: %s", name, strerror(err));
	return err == ENOENT || err == ENOTDIR ? VB_EXIT_NOT_FOUND : VB_EXIT_NOT_EXECUTABLE;
}

/* What the library says of a variable, VARIABLE=VALUE ...: of the option where the user typed that. */
static void say_wrong(const struct run *r, const char *sentence)
{
	size_t len = strcspn(sentence, "=");
	const char *option = typed(r, sentence, len);

	if (option)
		vb_say("--%s%s", option, sentence + len);
	else
		vb_say("%s", sentence);
}

/* The library would refuse to open the device; here it can be said before anything runs. */
static bool check_device(const struct run *r)
{
	if (vb_profile_unknown())
		vb_say("VERBENA_PROFILE=%s is not valid. Valid values: %s", vb_profile_unknown(),
		       vb_profile_names());
	else if (vb_devices_wrong())
		say_wrong(r, vb_devices_wrong());
	else if (is_typed(r, "VERBENA_WIRE") && vb_wire_wrong())
		say_wrong(r, vb_wire_wrong());
	else
		return true;
	return false;
}

/* The log's path, NULL: it is no file. */
static const char *log_path(void)
{
	const char *to = getenv("VERBENA_LOG");

	return *to && strcmp(to, "off") && strcmp(to, "stderr") ? to : NULL;
}

/* The library opens the file for each line, when the program is under way and its standard error may be gone.
 */
static bool check_log(void)
{
	const char *to = log_path();
	struct stat st;
	int fd;

	if (!to)
		return true;
	if (!stat(to, &st) && S_ISFIFO(st.st_mode)) /* a reader would take our end for that of all lines */
		fd = access(to, W_OK) ? -1 : 0;
	else
		fd = open(to, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
	if (fd < 0) {
		vb_say("the log %s cannot be written: %s", to, strerror(errno));
		return false;
	}
	if (fd > 0)
		close(fd);
	return true;
}

static bool is_same_file(const struct stat *st, int fd)
{
	struct stat other;

	return !fstat(fd, &other) && other.st_dev == st->st_dev && other.st_ino == st->st_ino;
}

/* The option's file begins anew, unless it is where this process writes to, or processes log to it:
 * hold_or_close() of base/log_out.c. */
static void begin_log(const struct run *r)
{
	const char *to = log_path();
	struct stat st;
	int fd;

	if (!is_typed(r, "VERBENA_LOG") || !to || stat(to, &st) || !S_ISREG(st.st_mode) ||
	    is_same_file(&st, STDOUT_FILENO) || is_same_file(&st, STDERR_FILENO))
		return;
	fd = open(to, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
		vb_say("another process logs to %s: the log continues at its end", to);
	else if (fd < 0 || ftruncate(fd, 0))
		vb_say("the log %s cannot be truncated: %s; it continues at its end", to, strerror(errno));
	if (fd >= 0)
		close(fd);
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
	bool ok = false, anew = is_typed(r, "VERBENA_PCAP");
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		vb_say("the capture %s cannot be written: %s", path, strerror(errno));
	else if (!S_ISREG(st.st_mode))
		vb_say("the capture %s is not a regular file", path);
	else if (anew && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
		vb_say("the capture %s is in use by another process. Name another file, or wait until that "
		       "process ends",
		       path);
	else if (anew && ftruncate(fd, 0))
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

	if (!getenv("VERBENA_PCAP") || !*getenv("VERBENA_PCAP")) {
		if (!is_typed(r, "VERBENA_PCAP_SNAP") && !is_typed(r, "VERBENA_PCAP_RING"))
			return true;
		vb_say("--pcap-%s has no effect without --pcap=FILE, which starts the capture",
		       is_typed(r, "VERBENA_PCAP_SNAP") ? "snap" : "ring");
		return false;
	}
	if (!make_pcap_absolute()) {
		vb_say("the path of the capture cannot be made absolute: %s", strerror(errno));
		return false;
	}
	if (vb_capture_wrong()) {
		say_wrong(r, vb_capture_wrong());
		return false;
	}
	path = vb_capture_path(&files);
	return files || check_pcap_file(r, path); /* those of a ring have the PIDs in their names */
}

/* false: it was said why. */
static bool preload_share(const struct run *r)
{
	const char *want = getenv("VERBENA_SHARE_BUFFERS");
	char file[PATH_MAX + 32], sentence[PATH_MAX];

	if (!want || !*want || !strcmp(want, "off"))
		return true;
	if (strcmp(want, "on")) {
		snprintf(sentence, sizeof(sentence),
			 "VERBENA_SHARE_BUFFERS=%.1000s is not valid. Valid values: on, off", want);
		say_wrong(r, sentence);
		return false;
	}
	snprintf(file, sizeof(file), "%s/" SHARE, r->lib);
	if (access(file, R_OK)) {
		vb_say("%s cannot be read: %s. --share-buffers=off runs the program without it", file,
		       strerror(errno));
		return false;
	}
	if (vb_env_join("LD_PRELOAD", file, false))
		return true;
	vb_say("the environment of the program: %s", strerror(errno));
	return false;
}

static int run(const struct vb_command *c, int argc, char **argv)
{
	struct run r = {0};
	struct vb_watch watch;
	char view[PATH_MAX + 32];
	int err, status;

	if (!parse_command_line(&r, c, argc, argv) || !vb_watch_read(&watch) || !check_device(&r) ||
	    !vb_libraries_find(r.lib))
		return VB_EXIT_SELF;
	err = vb_find_program(r.program[0], r.path, sizeof(r.path));
	if (err)
		return not_executable(r.program[0], err);
	snprintf(view, sizeof(view), "%s/" VIEW, r.lib);
	if (!r.no_view && access(view, R_OK)) {
		vb_say("%s cannot be read: %s. --no-view runs the program without it", view, strerror(errno));
		return VB_EXIT_SELF;
	}
	if ((!r.no_view && !vb_env_join("LD_PRELOAD", view, false)) ||
	    !vb_env_join("LD_LIBRARY_PATH", r.lib, true) || setenv("VERBENA_LOG", "stderr", 0) ||
	    setenv("VERBENA_WAIT_WARN", "3", 0)) {
		vb_say("the environment of the program: %s", strerror(errno));
		return VB_EXIT_SELF;
	}
	if (!preload_share(&r) || !check_log() || !check_pcap(&r))
		return VB_EXIT_SELF;
	status = vb_program_check(r.path, r.lib, NULL);
	if (status)
		return status;
	begin_log(&r);
	if (watch.fail_on || watch.summary) {
		status = vb_parent_run(&watch, r.program, &err);
	} else {
		execvp(r.program[0], r.program);
		err = errno;
	}
	return err ? not_executable(r.program[0], err) : status;
}

const struct vb_command vb_run = {
    .name = "run",
    .brief = "run a program on Verbena",
    .main = run,
    .usage = "[OPTION...] [--] PROGRAM [ARGUMENT...]",
    .text =
	"Runs PROGRAM with Verbena's libibverbs and librdmacm. Errors and warnings are explained on standard "
	"error.",
    .after = "Each option but --no-view sets a variable of the environment: see verbena_environment(7).\n\n"
	     "Exit status: that of PROGRAM; 124 by --fail-on; 125 if verbena fails, 126 if PROGRAM cannot be "
	     "executed, 127 if it is "
	     "not found.",
    .example = "verbena run --log-level=info -- ibv_rc_pingpong",
    .options = options,
    .noptions = sizeof(options) / sizeof(options[0]),
};
