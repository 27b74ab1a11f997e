/* Finding the segments of a process: the memfds "verbena" among its descriptors that say they are this
 * process's. Only what the kernel shows in /proc is used, so the process may be stopped, and does not notice.
 */
#include "peek.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "host/segment.h"
#include "list.h"
#include "tools.h"

enum found {
	FOUND,
	SEVERAL,
	NO_PROCESS,
	ENDED,
	THREAD,
	MAIN_ENDED,
	NO_RIGHT,
	NO_ADAPTER,
	OTHER_VERSION,
	FAILED
};

/* The last number of a line of /proc/PID/status, which begins with `name` and a colon; `none`: there is none.
 */
static pid_t last_number(pid_t pid, const char *name, pid_t none)
{
	char path[64], line[256];
	size_t len = strlen(name);
	pid_t last = none;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return none;
	while (fgets(line, sizeof line, f)) {
		if (strncmp(line, name, len) || line[len] != ':')
			continue;
		for (char *p = line + len + 1, *end; (void)(end = p), *p && *p != '\n'; p = end) {
			long n = strtol(p, &end, 10);

			if (end == p)
				break;
			last = (pid_t)n;
		}
	}
	fclose(f);
	return last;
}

/* The number that the process has for itself, in the innermost PID namespace. */
static pid_t own_number(pid_t pid)
{
	return last_number(pid, "NSpid", pid);
}

pid_t vb_peek_debugger(pid_t pid)
{
	return last_number(pid, "TracerPid", 0);
}

void vb_peek_clean(char *text)
{
	while (*text) {
		size_t n = vb_text_character(text);

		if (!n)
			*text = '?';
		text += n ? n : 1;
	}
}

static void read_program(struct peek *p)
{
	char path[64];
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/comm", (int)p->pid);
	f = fopen(path, "re");
	if (!f || !fgets(p->program, sizeof p->program, f))
		snprintf(p->program, sizeof p->program, "?");
	if (f)
		fclose(f);
	p->program[strcspn(p->program, "\n")] = 0;
	vb_peek_clean(p->program);
}

static uint32_t device_of(const uint8_t *base)
{
	return ((const struct vb_seg_head *)(const void *)base)->device;
}

static void add(struct peek *p, const uint8_t *base, uint64_t inode)
{
	unsigned i = p->n++;

	for (; i && device_of(p->all[i - 1]) > device_of(base); i--) {
		p->all[i] = p->all[i - 1];
		p->inode[i] = p->inode[i - 1];
	}
	p->all[i] = base;
	p->inode[i] = inode;
	p->base = p->all[0];
}

/* Whether this descriptor is a segment of the process; maps it if so.  A segment of another process may be
 * among them too (ibv_context.cmd_fd can be handed on). */
static enum found try_descriptor(struct peek *p, const char *path, pid_t own, uint32_t *version)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), seals;
	enum found r = NO_ADAPTER;
	struct vb_seg_head h;
	struct stat st;
	void *base;

	if (fd < 0)
		return errno == EACCES || errno == EPERM ? NO_RIGHT : NO_ADAPTER;
	seals = fcntl(fd, F_GET_SEALS);
	/* Without this seal its owner could take pages away under our eyes. */
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) ||
	    pread(fd, &h, sizeof h, 0) != (ssize_t)sizeof h || h.magic != VB_SEG_MAGIC)
		goto out;
	if (h.version != VB_SEG_VERSION || h.size != VB_SEG_SIZE || (uint64_t)st.st_size != VB_SEG_SIZE) {
		*version = h.version;
		r = OTHER_VERSION;
		goto out;
	}
	if (h.pid != (uint32_t)own || p->n == VB_MAX_DEVICES)
		goto out;
	r = FOUND;
	for (unsigned i = 0; i < p->n; i++)
		if (p->inode[i] == st.st_ino) /* a context's cmd_fd */
			goto out;
	base = mmap(NULL, VB_SEG_SIZE, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (base == MAP_FAILED) {
		r = FAILED;
		goto out;
	}
	add(p, base, st.st_ino); /* vb_peek_close() */
out:
	close(fd);
	return r;
}

static bool is_segment_name(const char *path)
{
	char to[64];
	ssize_t n = readlink(path, to, sizeof to - 1);

	if (n <= 0)
		return false;
	to[n] = 0;
	return !strcmp(to, "/memfd:verbena (deleted)");
}

static enum found not_listed(pid_t pid, int err)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/%d", (int)pid);
	if (err == ENOENT || err == ESRCH || access(path, F_OK))
		return NO_PROCESS;
	return err == EACCES || err == EPERM ? NO_RIGHT : FAILED;
}

/* false: there is no such process. */
static bool read_stat(pid_t pid, char *state, int *parent)
{
	char path[64], text[512], *p;
	size_t n;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return false;
	n = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	text[n] = 0;
	p = strrchr(text, ')'); /* its name may have one */
	return p && sscanf(p + 1, " %c %d", state, parent) == 2;
}

static bool has_ended(pid_t pid)
{
	char state;
	int parent;

	return !read_stat(pid, &state, &parent) || state == 'Z' || state == 'X';
}

/* Its first thread has ended, and others run: the kernel shows neither its descriptors nor its memory. */
static bool has_threads(pid_t pid)
{
	char path[300], state;
	bool has = false;
	int parent;
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	dir = opendir(path);
	for (struct dirent *e; dir && !has && (e = readdir(dir));) {
		pid_t thread = (pid_t)strtol(e->d_name, NULL, 10);

		has = thread > 0 && thread != pid && read_stat(thread, &state, &parent) && state != 'Z' &&
		      state != 'X';
	}
	if (dir)
		closedir(dir);
	return has;
}

static bool descends(pid_t pid, pid_t from)
{
	char state;
	int parent = 0;

	for (; pid > 1 && pid != from; pid = parent)
		if (!read_stat(pid, &state, &parent))
			return false;
	return pid == from;
}

static uint64_t network_of(pid_t pid)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof path, "/proc/%d/ns/net", (int)pid);
	return stat(path, &st) ? 0 : st.st_ino;
}

static enum found find(struct peek *p, pid_t pid, uint32_t *version)
{
	char path[300];
	struct stat st;
	enum found best = NO_ADAPTER, r;
	pid_t own;
	DIR *dir;

	*p = (struct peek){.pid = pid};
	snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	if (!dir)
		return not_listed(pid, errno);
	if (last_number(pid, "Tgid", pid) != pid || has_ended(pid)) {
		closedir(dir);
		return !has_ended(pid) ? THREAD : has_threads(pid) ? MAIN_ENDED : ENDED;
	}
	p->user = fstat(dirfd(dir), &st) ? (uid_t)-1 : st.st_uid;
	own = own_number(pid);
	errno = 0;
	for (struct dirent *e; (e = readdir(dir));) {
		if (!isdigit((unsigned char)e->d_name[0]))
			continue;
		snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)pid, e->d_name);
		if (!is_segment_name(path))
			continue;
		r = try_descriptor(p, path, own, version);
		if (r == FOUND || best == NO_ADAPTER)
			best = r;
	}
	if (best == NO_ADAPTER && errno == EACCES)
		best = NO_RIGHT; /* the list can be had, the links not */
	closedir(dir);
	if (best == FOUND) {
		read_program(p);
		p->network = network_of(pid);
	}
	return best;
}

bool vb_peek_is_here(const struct peek *p)
{
	return p->network && p->network == network_of(getpid());
}

/* Returns buf. */
static const char *user_name(char *buf, size_t size, uid_t user)
{
	const struct passwd *p = getpwuid(user);

	if (p)
		snprintf(buf, size, "%s", p->pw_name);
	else
		snprintf(buf, size, "%u", user);
	return buf;
}

static void say_no_right(const char *command, int pid)
{
	char path[64], theirs[64], ours[64];
	struct stat st;

	snprintf(path, sizeof path, "/proc/%d", pid);
	if (!geteuid())
		vb_say(
		    "process %d does not permit root to read its memory: it is in another user namespace, or "
		    "this command lacks CAP_SYS_PTRACE, as in most containers",
		    pid);
	else if (!stat(path, &st) && st.st_uid != geteuid())
		vb_say("process %d belongs to user %s, and you are user %s. Type as that user or as root: "
		       "verbena %s %d",
		       pid, user_name(theirs, sizeof theirs, st.st_uid),
		       user_name(ours, sizeof ours, geteuid()), command, pid);
	else
		vb_say("process %d does not permit you to read its memory: it has cleared PR_SET_DUMPABLE, "
		       "or it has "
		       "rights that you lack. Type as root: verbena %s %d",
		       pid, command, pid);
}

static void say_why(const char *command, pid_t p, enum found r, uint32_t version)
{
	int err = errno, pid = (int)p;

	switch (r) {
	case NO_PROCESS:
		vb_say("there is no process %d. \"verbena list\" shows your processes that use Verbena", pid);
		break;
	case ENDED:
		vb_say("process %d has ended, and its history with it. \"verbena run --log=FILE\" keeps the "
		       "log of a "
		       "program",
		       pid);
		break;
	case THREAD:
		vb_say("%d is a thread of process %d, and no process. Type: verbena %s %d", pid,
		       (int)last_number(p, "Tgid", p), command, (int)last_number(p, "Tgid", p));
		break;
	case MAIN_ENDED:
		vb_say("the first thread of process %d has ended, and others still run. The kernel does not "
		       "show the memory of such a process. Let main() wait for the threads",
		       pid);
		break;
	case NO_RIGHT:
		say_no_right(command, pid);
		break;
	case NO_ADAPTER:
		vb_say("process %d has no device of Verbena open, and no process that it started has one. "
		       "\"verbena list\" shows your processes that have one. A program uses Verbena if it is "
		       "started by \"verbena run\"",
		       pid);
		break;
	case OTHER_VERSION:
		vb_say("process %d uses another version of Verbena: its segment has version %u, and this "
		       "command reads "
		       "version %u. Use the command \"verbena\" of that version",
		       pid, version, VB_SEG_VERSION);
		break;
	default:
		vb_say("process %d cannot be read: %s", pid, strerror(err));
		break;
	}
}

static bool is_of(const char *name, uid_t user)
{
	char path[300];
	struct stat st;

	snprintf(path, sizeof path, "/proc/%s", name);
	return !stat(path, &st) && st.st_uid == user;
}

static int by_pid(const void *a, const void *b)
{
	return ((const struct peek *)a)->pid - ((const struct peek *)b)->pid;
}

size_t vb_peek_all(struct peek **list, uid_t user)
{
	DIR *dir = opendir("/proc");
	size_t n = 0;
	uint32_t version;

	*list = NULL;
	if (!dir)
		return 0;
	for (struct dirent *e; (e = readdir(dir));) {
		pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
		struct peek p, *more;

		if (pid <= 0 || pid == getpid() || !is_of(e->d_name, user) ||
		    find(&p, pid, &version) != FOUND)
			continue;
		more = reallocarray(*list, n + 1, sizeof **list);
		if (!more) {
			vb_peek_close(&p);
			break;
		}
		*list = more;
		more[n++] = p;
	}
	closedir(dir);
	if (n)
		qsort(*list, n, sizeof **list, by_pid);
	return n;
}

size_t vb_peek_others(struct vb_peek_other **list, uid_t user)
{
	DIR *dir = opendir("/proc");
	uint32_t version;
	size_t n = 0;

	*list = NULL;
	for (struct dirent *e; dir && (e = readdir(dir));) {
		pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
		struct vb_peek_other *more;
		enum found r = NO_PROCESS;
		struct peek p;

		if (pid > 0 && pid != getpid() && is_of(e->d_name, user))
			r = find(&p, pid, &version);
		if (r == FOUND)
			vb_peek_close(&p);
		if (r != OTHER_VERSION || network_of(pid) != network_of(getpid()))
			continue;
		more = reallocarray(*list, n + 1, sizeof **list);
		if (!more)
			break;
		*list = more;
		more[n++] = (struct vb_peek_other){pid, version};
	}
	if (dir)
		closedir(dir);
	return n;
}

/* Returns which one is the only process, or the only one in this network namespace; n: neither. */
static size_t only_one(const struct peek *all, size_t n)
{
	size_t here = 0, at = n;

	for (size_t i = 0; i < n; i++)
		if (n == 1 || vb_peek_is_here(&all[i])) {
			at = i;
			here++;
		}
	return here == 1 ? at : n;
}

/* Takes the one that is meant, or lists them.  The list is freed. */
static enum found take_only(struct peek *p, const char *command, struct peek *all, size_t n)
{
	size_t at = only_one(all, n);

	if (at < n) {
		*p = all[at];
	} else if (n) {
		vb_say("%zu processes have a device of Verbena open. Name one of them: verbena %s PID", n,
		       command);
		vb_list_print(stderr, all, n);
	}
	for (size_t i = 0; i < n; i++)
		if (i != at)
			vb_peek_close(&all[i]);
	free(all);
	return at < n ? FOUND : n ? SEVERAL : NO_ADAPTER;
}

/* The process that an omitted PID means. */
static bool find_only(struct peek *p, const char *command)
{
	struct peek *all;
	size_t n = vb_peek_all(&all, geteuid());
	enum found r = take_only(p, command, all, n);

	if (r == NO_ADAPTER)
		vb_list_say_none();
	return r == FOUND;
}

/* What a `verbena run`, timeout(1) or shell has started stands for it. */
static enum found find_descendant(struct peek *p, const char *command, pid_t from)
{
	struct peek *all;
	size_t all_n = vb_peek_all(&all, p->user), n = 0;

	for (size_t i = 0; i < all_n; i++) {
		if (descends(all[i].pid, from))
			all[n++] = all[i];
		else
			vb_peek_close(&all[i]);
	}
	return take_only(p, command, all, n);
}

const struct vb_option vb_peek_options[VB_PEEK_OPTIONS] = {
    {.name = "json", .letter = 'j', .doc = "print JSON"},
};

/* false: it was said what is wrong. */
static bool parse(struct vb_words *w, bool *json, const char **pid)
{
	enum vb_word word;

	*json = false;
	*pid = NULL;
	while ((word = vb_words_next(w))) {
		if (word == VB_WORDS_OPTION) {
			*json = true;
		} else if (*pid) {
			vb_say("\"verbena %s\" takes one process ID, but a second one follows: \"%s\"",
			       w->command->name, w->value);
			return false;
		} else {
			*pid = w->value;
		}
	}
	return true;
}

bool vb_peek_open(struct peek_ask *a, const struct vb_command *c, int argc, char **argv)
{
	struct vb_words w = {.command = c, .argc = argc, .argv = argv};
	uint32_t version = 0;
	const char *word;
	enum found r;
	long pid;
	char *end;

	*a = (struct peek_ask){0};
	if (!parse(&w, &a->json, &word))
		return false;
	if (!word)
		return find_only(&a->at, c->name);
	errno = 0;
	pid = strtol(word, &end, 10);
	if (errno || *end || end == word || pid <= 0 || pid > INT32_MAX) {
		vb_say("\"%s\" is not a process ID. \"verbena list\" shows your processes that use Verbena",
		       word);
		return false;
	}
	r = find(&a->at, (pid_t)pid, &version);
	if (r == NO_ADAPTER)
		r = find_descendant(&a->at, c->name, (pid_t)pid);
	if (r != FOUND && r != SEVERAL)
		say_why(c->name, (pid_t)pid, r, version);
	return r == FOUND;
}

void vb_peek_close(struct peek *p)
{
	for (unsigned i = 0; i < p->n; i++)
		munmap((void *)(uintptr_t)p->all[i], VB_SEG_SIZE);
}

int vb_peek_print_json(struct json_object *o)
{
	int bad = printf("%s\n", json_object_to_json_string_ext(o, JSON_C_TO_STRING_PRETTY |
								       JSON_C_TO_STRING_NOSLASHESCAPE)) < 0;

	json_object_put(o);
	return bad ? VB_EXIT_SELF : 0;
}
