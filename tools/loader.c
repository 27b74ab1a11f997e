#include "loader.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

const char *const vb_loader_ours[VB_LOADER_OURS] = {"libibverbs.so.1", "librdmacm.so.1"};

static bool stands_in(const char *file, const char *dir)
{
	char real[PATH_MAX], *slash;

	if (!realpath(file, real))
		return true; /* none that could be in our place */
	slash = strrchr(real, '/');
	*slash = '\0';
	return !strcmp(real, dir);
}

/* A library that was found: "\tNAME => FILE (0x...)", or "\tFILE (0x...)" where the name is a path.  Bundled
 * ones often have something behind their name: libibverbs-1a2b3c4d.so.1. */
static void library(struct vb_loader_answer *a, char *line, const char *lib)
{
	char *arrow = strstr(line, " => "), *file = arrow ? arrow + 4 : line + 1, *end = strstr(file, " (0x");
	char mine[PATH_MAX + 32];
	const char *base;

	if (*line != '\t' || *file != '/' || !end)
		return;
	*end = '\0';
	base = strrchr(file, '/') + 1;
	for (int i = 0; i < VB_LOADER_OURS; i++) {
		size_t stem = strcspn(vb_loader_ours[i], ".");

		if (strncmp(base, vb_loader_ours[i], stem) || (base[stem] != '.' && base[stem] != '-'))
			continue;
		snprintf(mine, sizeof(mine), "%s/%s", lib, vb_loader_ours[i]);
		if (stands_in(file, lib))
			a->ours = true;
		else if (!access(mine, R_OK))
			snprintf(a->other[i], sizeof(a->other[i]), "%s", file);
	}
}

/* "PROGRAM: FILE: version `VERSION' not found (required by WHO)", where it is not a weak one. */
static void complaint(struct vb_loader_answer *a, char *line, const char *lib)
{
	static const char front[] = ": version `", middle[] = "' not found (required by ";
	char *version = strstr(line, front), *who = strstr(line, middle), *end = strrchr(line, ')'), *file;
	struct vb_loader_lack l;

	if (!version || !who || who < version || !end || end < who || a->n == VB_LOADER_LACKS)
		return;
	*version = *who = *end = '\0';
	file = strstr(line, lib);
	if (!file || file[strlen(lib)] != '/')
		return;
	snprintf(l.file, sizeof(l.file), "%s", file);
	snprintf(l.version, sizeof(l.version), "%s", version + strlen(front));
	snprintf(l.who, sizeof(l.who), "%s", who + strlen(middle));
	for (unsigned i = 0; i < a->n; i++)
		if (!strcmp(a->lacks[i].version, l.version) && !strcmp(a->lacks[i].who, l.who))
			return;
	a->lacks[a->n++] = l;
}

/* Pairs with waitpid(). 0 or errno. */
static int start(pid_t *pid, int to, const char *interp, const char *program)
{
	char *argv[] = {(char *)(uintptr_t)interp, "--list", (char *)(uintptr_t)program, NULL};
	posix_spawn_file_actions_t actions;
	int err = posix_spawn_file_actions_init(&actions);

	if (err)
		return err;
	err = posix_spawn_file_actions_adddup2(&actions, to, STDOUT_FILENO);
	if (!err)
		err = posix_spawn_file_actions_adddup2(&actions, to, STDERR_FILENO);
	if (!err)
		err = posix_spawn(pid, interp, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	return err;
}

void vb_loader_ask(struct vb_loader_answer *a, const char *interp, const char *program, const char *lib)
{
	char path[PATH_MAX], *line = NULL;
	size_t size = 0;
	FILE *f = NULL;
	int p[2];
	pid_t pid;

	memset(a, 0, sizeof(*a));
	if (!strstr(interp, "/ld-linux") || !realpath(program, path) || pipe2(p, O_CLOEXEC))
		return;
	if (start(&pid, p[1], interp, path)) {
		close(p[0]);
		close(p[1]);
		return;
	}
	close(p[1]);
	f = fdopen(p[0], "r");
	while (f && getline(&line, &size, f) > 0) {
		library(a, line, lib);
		complaint(a, line, lib);
	}
	free(line);
	if (f)
		fclose(f);
	else
		close(p[0]);
	waitpid(pid, NULL, 0);
}
