/* verbena run: what the program is, and what keeps Verbena's libraries out of it. */
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "elf.h"
#include "loader.h"
#include "tools.h"

#define VERBS	 "libibverbs.so.1"
#define RELEASES "34 to 65" /* whose private nodes src/verbs/libibverbs.map has */

/* As execvp(3) finds it. 0 or the errno of the best candidate. */
int vb_find_program(const char *name, char *path, size_t size)
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
bool vb_env_join(const char *env, const char *item, bool in_front)
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
static bool overrule_rpath(const char *path, const char *rpath, const char *libs, enum vb_program_fate *fate)
{
	static const char *const ours[] = {VERBS, "librdmacm.so.1"};
	char real[PATH_MAX], dir[PATH_MAX], lib[PATH_MAX + 32];

	if (!*rpath || !realpath(path, real))
		return true;
	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
		if (!vb_elf_rpath_find(rpath, real, ours[i], dir, sizeof(dir)))
			continue;
		snprintf(lib, sizeof(lib), "%s/%s", libs, ours[i]);
		if (!strcmp(dir, libs) || access(lib, R_OK))
			continue;
		vb_say("%s would load %s/%s: its DT_RPATH names that directory. Verbena's library is "
		       "preloaded instead",
		       path, dir, ours[i]);
		*fate = VB_PROGRAM_PRELOADED;
		if (!vb_env_join("LD_PRELOAD", lib, false))
			return false;
	}
	return true;
}

static void say_lack(const struct vb_loader_lack *l)
{
	const char *name = strrchr(l->file, '/') + 1;
	unsigned release;

	if (sscanf(l->version, "IBVERBS_PRIVATE_%u", &release) == 1)
		vb_say("%s needs the symbol version %s of %s, from rdma-core %u or a release soon after. "
		       "Verbena's %s has the versions of rdma-core " RELEASES
		       ". The program will not start. Use that library from one of these releases, or run "
		       "the program without it",
		       l->who, l->version, name, release, name);
	else
		vb_say("%s needs the symbol version %s of %s, which Verbena's library does not have: it was "
		       "built with a newer rdma-core. The program will not start",
		       l->who, l->version, name);
}

/* What the loader would take instead of our libraries, wherever it finds it (DT_RPATH of a library, a path as
 * a library's name, a bundled copy with a name of its own), and what ours lack. */
static bool check_loading(const char *path, const char *interp, const char *lib, enum vb_program_fate *fate)
{
	static struct vb_loader_answer a;
	bool again = false;
	char ours[PATH_MAX + 32];

	vb_loader_ask(&a, interp, path, lib);
	for (unsigned i = 0; i < VB_LOADER_OURS; i++) {
		if (!*a.other[i])
			continue;
		vb_say("%s would load %s. Verbena's %s is preloaded instead", path, a.other[i],
		       vb_loader_ours[i]);
		snprintf(ours, sizeof(ours), "%s/%s", lib, vb_loader_ours[i]);
		if (!vb_env_join("LD_PRELOAD", ours, true))
			return false;
		again = true;
		*fate = VB_PROGRAM_PRELOADED;
	}
	if (again)
		vb_loader_ask(&a, interp, path, lib);
	for (unsigned i = 0; i < a.n; i++)
		say_lack(&a.lacks[i]);
	if (a.n)
		*fate = VB_PROGRAM_OTHER;
	else if (!a.ours && *fate == VB_PROGRAM_FINE)
		*fate = VB_PROGRAM_UNLINKED;
	return true; /* the loader has the last word */
}

/* Looks at one executable file and prepares the environment for it.  0, or the exit status of a refusal. */
static int check_binary(const char *path, const char *lib, enum vb_program_fate *fate)
{
	const char *rights = raises_rights(path);
	struct vb_elf e;

	if (rights) {
		vb_say("%s is %s, so the dynamic loader ignores Verbena's libraries. Run it as the user that "
		       "it changes to, or run a copy without these rights",
		       path, rights);
		return VB_EXIT_SELF;
	}
	if (vb_elf_read(path, &e))
		return 0; /* may be executable without being readable */
	if (e.kind == VB_ELF_FOREIGN) {
		vb_say("%s is a %d-bit program for another machine (ELF machine %d). Verbena's libraries do "
		       "not fit it",
		       path, e.bits, e.machine);
		return VB_EXIT_NOT_EXECUTABLE;
	}
	if (*e.interp && access(e.interp, F_OK)) {
		vb_say("%s cannot be executed: its dynamic loader %s: %s", path, e.interp, strerror(errno));
		return errno == ENOENT ? VB_EXIT_NOT_FOUND : VB_EXIT_NOT_EXECUTABLE;
	}
	if (e.kind == VB_ELF_STATIC)
		vb_say("%s is statically linked and cannot load Verbena's libraries. Only programs that it "
		       "starts can",
		       path);
	else if (e.verbs)
		vb_say("%s is linked with a static libibverbs and uses that one instead of Verbena's. Link "
		       "it with the shared library",
		       path);
	/* The sanitizer wants to be the first library of all, and only the view is before it. */
	if (e.asan && !vb_env_join("ASAN_OPTIONS", "verify_asan_link_order=0", true))
		return VB_EXIT_SELF;
	if (!overrule_rpath(path, e.rpath, lib, fate) || !check_loading(path, e.interp, lib, fate))
		return VB_EXIT_SELF;
	if (e.kind == VB_ELF_STATIC || e.verbs)
		*fate = VB_PROGRAM_OTHER;
	return 0;
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

/* The kernel would refuse anything else, and a FIFO would wait for a writer. */
static bool is_file(const char *path)
{
	struct stat st;

	if (stat(path, &st) || S_ISREG(st.st_mode))
		return true;
	vb_say("%s cannot be executed: it is not a regular file", path);
	return false;
}

/* Checks the program, and of a script its interpreter, and what env(1) would run as interpreter. */
int vb_program_check(const char *program, const char *lib, enum vb_program_fate *fate)
{
	enum vb_program_fate unused = VB_PROGRAM_FINE;
	char path[PATH_MAX], name[256], arg[256];
	const char *base;
	int err;

	snprintf(path, sizeof(path), "%s", program);
	for (int depth = 0; depth < 6; depth++) {
		if (!is_file(path))
			return VB_EXIT_NOT_EXECUTABLE;
		read_interpreter(path, name, sizeof(name), arg, sizeof(arg));
		if (!*name)
			return check_binary(path, lib, fate ? fate : &unused);
		if (access(name, X_OK)) {
			vb_say("%s cannot be executed: its interpreter %s: %s", path, name, strerror(errno));
			return errno == ENOENT ? VB_EXIT_NOT_FOUND : VB_EXIT_NOT_EXECUTABLE;
		}
		base = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
		if (!strcmp(base, "env") && *arg && *arg != '-' && !strchr(arg, '=')) {
			err = vb_find_program(arg, path, sizeof(path));
			if (err) {
				vb_say("%s cannot be executed: its interpreter %s: %s", program, arg,
				       strerror(err));
				return err == ENOENT ? VB_EXIT_NOT_FOUND : VB_EXIT_NOT_EXECUTABLE;
			}
			continue;
		}
		snprintf(path, sizeof(path), "%s", name);
	}
	vb_say("%s cannot be executed: each interpreter of it is a script, too", program);
	return VB_EXIT_NOT_EXECUTABLE;
}
