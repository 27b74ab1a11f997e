/* verbena doctor: opens the device and listens with rdma_cm, as a program does; and what the libraries of
 * this system need of ours. */
#include "doctor.h"

#include <dlfcn.h>
#include <errno.h>
#include <json-c/json.h>
#include <link.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "elf.h"
#include "hca/capture_file.h"
#include "host/devices.h"
#include "iba/profile.h"
#include "parent.h"
#include "program.h"
#include "tools.h"

#define VERBS "libibverbs.so.1"
#define CM    "librdmacm.so.1"

enum { NO_LIBRARY = 1, NO_DEVICE, NO_CM }; /* exit statuses */

/* As a line of the log. */
static void say_not_loaded(int out)
{
	json_object *o = json_object_new_object();

	json_object_object_add(o, "text", json_object_new_string(dlerror()));
	dprintf(out, "%s\n", json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN));
	json_object_put(o);
}

static void *library(const char *dir, const char *name)
{
	char path[PATH_MAX + 32];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

#define CALL(lib, name) ((__typeof__(&name))dlsym(lib, #name))

static int open_device(void *verbs)
{
	struct ibv_device **list = CALL(verbs, ibv_get_device_list)(NULL);

	return list && list[0] && CALL(verbs, ibv_open_device)(list[0]) ? 0 : NO_DEVICE;
}

static int listen_cm(void *cm)
{
	struct rdma_event_channel *ch = CALL(cm, rdma_create_event_channel)();
	struct sockaddr_in any = {.sin_family = AF_INET};
	struct rdma_cm_id *id;

	if (!ch || CALL(cm, rdma_create_id)(ch, &id, NULL, RDMA_PS_TCP) ||
	    CALL(cm, rdma_bind_addr)(id, (struct sockaddr *)&any) || CALL(cm, rdma_listen)(id, 1))
		return NO_CM;
	return 0;
}

/* The log's sentences go to `out`. */
static int be_program(void *arg, int out)
{
	void *verbs, *cm;
	int err;

	if (dup2(out, STDERR_FILENO) < 0 || setenv("VERBENA_LOG", "stderr", 1) ||
	    setenv("VERBENA_LOG_FORMAT", "json", 1) || setenv("VERBENA_LOG_LEVEL", "warn", 1) ||
	    unsetenv("VERBENA_PCAP") || unsetenv("VERBENA_TALLY"))
		return NO_LIBRARY;
	verbs = library(arg, VERBS);
	if (!verbs) {
		say_not_loaded(out);
		return NO_LIBRARY;
	}
	err = open_device(verbs);
	if (err)
		return err;
	cm = library(arg, CM);
	if (cm)
		return listen_cm(cm);
	say_not_loaded(out);
	return NO_CM;
}

/* The last sentence of a log. */
static const char *last_sentence(char *buf, size_t size, char *log)
{
	json_object *o, *text;
	char *line, *rest = log;

	*buf = 0;
	while ((line = strsep(&rest, "\n"))) {
		o = *line == '{' ? json_tokener_parse(line) : NULL;
		if (o && json_object_object_get_ex(o, "text", &text))
			snprintf(buf, size, "%s", json_object_get_string(text));
		json_object_put(o);
	}
	return buf;
}

/* What it said went to a sentence. */
static char *said;
static size_t said_size;

static void keep_said(const char *sentence)
{
	snprintf(said, said_size, "%s", sentence);
}

static bool find_libraries(struct vb_doctor *d)
{
	char why[600] = "";
	bool found;

	said = why;
	said_size = sizeof(why);
	vb_said = keep_said;
	found = vb_libraries_find(d->lib);
	vb_said = NULL;
	if (found)
		vb_found(d, VB_OK, "libraries", NULL, NULL, "Verbena's libraries are in %s", d->lib);
	else
		vb_found(d, VB_FAILS, "libraries", "\"verbena run\" refuses to start a program",
			 access("/proc/self", F_OK) ? "mount -t proc proc /proc" : NULL, "%s", why);
	if (!found)
		d->lib[0] = 0;
	return found;
}

/* A file that a program is to write.  Nothing is created here. */
static void check_writable(struct vb_doctor *d, const char *variable)
{
	const char *path = getenv(variable);
	char dir[PATH_MAX], *slash;

	if (!path || !*path || !strcmp(path, "off") || !strcmp(path, "stderr") || !access(path, W_OK))
		return;
	if (errno == ENOENT) { /* the program creates it */
		snprintf(dir, sizeof(dir), "%s", path);
		slash = strrchr(dir, '/');
		if (slash)
			slash[slash == dir] = 0;
		if (!access(slash ? dir : ".", W_OK | X_OK))
			return;
	}
	vb_found(d, VB_FAILS, "settings", "\"verbena run\" refuses to start a program", NULL,
		 "%s=%s: the file cannot be written: %s", variable, path, strerror(errno));
}

/* What keeps "verbena run" from starting a program. */
static void check_run(struct vb_doctor *d)
{
	char why[600] = "";
	struct vb_watch w;

	said = why;
	said_size = sizeof(why);
	vb_said = keep_said;
	if (!vb_watch_read(&w))
		vb_found(d, VB_FAILS, "settings", "\"verbena run\" refuses to start a program", NULL, "%s",
			 why);
	vb_said = NULL;
	if (vb_capture_wrong())
		vb_found(d, VB_FAILS, "settings", "\"verbena run\" refuses to start a program", NULL, "%s",
			 vb_capture_wrong());
	check_writable(d, "VERBENA_LOG");
	check_writable(d, "VERBENA_PCAP");
}

/* The path of a libibverbs or librdmacm that this command itself was made to load; NULL: none. */
static const char *preloaded(const char *ours)
{
	static const char *const names[] = {VERBS, CM};
	struct link_map *map;
	void *lib;

	for (unsigned i = 0; i < 2; i++) {
		lib = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD);
		if (lib && !dlinfo(lib, RTLD_DI_LINKMAP, &map) && strncmp(map->l_name, ours, strlen(ours)))
			return map->l_name;
	}
	return NULL;
}

static bool check_settings(struct vb_doctor *d)
{
	check_run(d);
	if (vb_profile_unknown())
		vb_found(d, VB_FAILS, "settings", "the device cannot be opened", "unset VERBENA_PROFILE",
			 "VERBENA_PROFILE=%s is not valid. Valid values: %s", vb_profile_unknown(),
			 vb_profile_names());
	if (vb_devices_wrong())
		vb_found(d, VB_FAILS, "settings", "the device cannot be opened", NULL, "%s",
			 vb_devices_wrong());
	return !vb_profile_unknown() && !vb_devices_wrong();
}

void vb_doctor_device(struct vb_doctor *d)
{
	char log[16384], text[700], why[100], name[VB_DEVICE_NAME_MAX];
	int err;

	if (!find_libraries(d) || !check_settings(d))
		return;
	if (preloaded(d->lib)) {
		vb_found(d, VB_NOTE, "device", "the device and rdma_cm are not tried",
			 "env -u LD_PRELOAD verbena doctor",
			 "LD_PRELOAD loads %s into this command. A program under \"verbena run\" gets "
			 "Verbena's library instead",
			 preloaded(d->lib));
		return;
	}
	err = vb_child(be_program, d->lib, log, sizeof(log));
	if (!err || err == NO_CM) {
		d->works = true;
		vb_found(d, VB_OK, "device", NULL, NULL, "%s can be opened", vb_devices_name(name, 0));
	}
	if (!err)
		vb_found(d, VB_OK, "rdma_cm", NULL, NULL, "a program can listen with rdma_cm");
	if (!err)
		return;
	last_sentence(text, sizeof(text), log);
	if (!*text)
		snprintf(text, sizeof(text), "%s",
			 err < 0 ? vb_child_why(why, sizeof(why), err) : "a program cannot be started");
	if (err == NO_CM)
		vb_found(
		    d, VB_LIMIT, "rdma_cm",
		    "programs that use rdma_cm cannot bind or listen: rping, librdmacm's and perftest's -R",
		    access("/proc/self/ns/net", F_OK) ? "mount -t proc proc /proc" : NULL, "%s", text);
	else
		vb_found(d, VB_FAILS, "device", "no program can use Verbena",
			 "see the checks below, and the limits of your user, service or container", "%s",
			 text);
}

/* ---- rdma-core ---- */

/* Where the loader finds the system's. */
static int find_system(void *arg, int out)
{
	struct link_map *map;
	void *lib;

	(void)arg;
	unsetenv("LD_PRELOAD");
	lib = dlopen(VERBS, RTLD_LAZY);
	if (!lib || dlinfo(lib, RTLD_DI_LINKMAP, &map))
		return ENOENT;
	return dprintf(out, "%s", map->l_name) < 0 ? EIO : 0;
}

/* "44.0" of /usr/lib/libibverbs.so.1.14.44.0; "": its name does not tell. */
static void release_of(char *buf, size_t size, const char *path)
{
	const char *at = strstr(path, ".so.1.");

	*buf = 0;
	if (at && (at = strchr(at + 6, '.')))
		snprintf(buf, size, "%s", at + 1);
}

void vb_doctor_library(struct vb_doctor *d)
{
	char found[PATH_MAX] = "", real[PATH_MAX], dir[PATH_MAX], ours[200], theirs[200], release[50],
	     path[PATH_MAX + 32];
	bool same;

	if (!d->lib[0])
		return;
	snprintf(path, sizeof(path), "%s/" VERBS, d->lib);
	vb_elf_nodes(path, "IBVERBS_PRIVATE_", ours, sizeof(ours));
	if (vb_child(find_system, NULL, found, sizeof(found)) || !realpath(found, real)) {
		vb_found(d, VB_OK, "rdma-core", NULL, NULL,
			 "this system has no " VERBS
			 ". Programs find Verbena's, which has the private node%s %s",
			 strchr(ours, ',') ? "s" : "", ours);
		return;
	}
	snprintf(dir, sizeof(dir), "%s", real);
	*strrchr(dir, '/') = 0;
	same = !strcmp(dir, d->lib);
	vb_elf_nodes(real, "IBVERBS_PRIVATE_", theirs, sizeof(theirs));
	release_of(release, sizeof(release), real);
	if (same)
		vb_found(d, VB_OK, "rdma-core", NULL, NULL,
			 "LD_LIBRARY_PATH names Verbena's libraries already");
	else if (!*theirs || vb_elf_nodes_cover(ours, theirs))
		vb_found(d, VB_OK, "rdma-core", NULL, NULL,
			 "the system's %s%s%s has the private node %s, which Verbena's library has, too",
			 real, *release ? " of rdma-core " : "", release, *theirs ? theirs : "(none)");
	else
		vb_found(
		    d, VB_LIMIT, "rdma-core",
		    "a program that is linked with a driver library of this release (libmlx5, libefa; "
		    "perftest, UCX) does "
		    "not start with Verbena",
		    "run such programs with an rdma-core whose node Verbena has, in a container for example",
		    "the system's %s%s%s has the private node %s, and Verbena's library has %s", real,
		    *release ? " of rdma-core " : "", release, theirs, ours);
}

/* ---- a program ---- */

static char sentences[2000];

static void collect(const char *sentence)
{
	size_t n = strlen(sentences);

	snprintf(sentences + n, sizeof(sentences) - n, "%s%s", n ? ". " : "", sentence);
}

void vb_doctor_program(struct vb_doctor *d, const char *path)
{
	enum vb_program_fate fate = VB_PROGRAM_FINE;
	int err;

	if (!d->lib[0])
		return;
	vb_env_join("LD_LIBRARY_PATH", d->lib, true);
	sentences[0] = 0;
	vb_said = collect;
	err = vb_program_check(path, d->lib, &fate);
	vb_said = NULL;
	if (err || fate == VB_PROGRAM_OTHER)
		vb_found(d, VB_FAILS, "program", "it does not use Verbena", NULL, "%s", sentences);
	else if (fate == VB_PROGRAM_PRELOADED)
		vb_found(d, VB_NOTE, "program", NULL, NULL, "%s", sentences);
	else if (fate == VB_PROGRAM_UNLINKED)
		vb_found(d, VB_NOTE, "program", NULL, NULL,
			 "%s is not linked with " VERBS " or " CM
			 ". If it loads them later (dlopen), or starts other programs, those get Verbena's",
			 path);
	else
		vb_found(d, VB_OK, "program", NULL, NULL,
			 "%s loads Verbena's libraries under \"verbena run\"", path);
}
