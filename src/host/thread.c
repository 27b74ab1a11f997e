/* Threads of this process and of others, as /proc shows them. */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/private.h"

enum { MOST_THREADS = 256 }; /* looked through for one: ours is among the first of a process */

/* Reads a small file; its length, 0 if there is none.  No cancellation point: locks are held. */
static size_t slurp(const char *path, char *text, size_t size)
{
	ssize_t n = 0;
	int cancel, fd;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, text, size - 1);
		close(fd);
	}
	pthread_setcancelstate(cancel, NULL);
	text[n > 0 ? n : 0] = 0;
	return n > 0 ? (size_t)n : 0;
}

/* The letter of its state, 0: it is not to be seen. */
static char state_of(const char *path)
{
	char text[512], *behind;

	if (!slurp(path, text, sizeof(text)))
		return 0;
	behind = strrchr(text, ')'); /* the end of the name, which may hold anything */
	return behind && behind[1] ? behind[2] : 0;
}

bool vb_thread_stopped(uint32_t pid)
{
	char path[64], state;

	if (!pid)
		return false; /* in another PID namespace */
	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	state = state_of(path);
	return state == 'T' || state == 't';
}

bool vb_thread_runnable(uint32_t pid, uint32_t tid)
{
	char path[64], state;

	if (!pid || !tid)
		return false;
	snprintf(path, sizeof(path), "/proc/%u/task/%u/stat", pid, tid);
	state = state_of(path);
	return state == 'R' || state == 'D'; /* D: its pages are on their way */
}

uint32_t vb_thread_find(uint32_t pid, const char *name)
{
	char path[300], text[64];
	uint32_t found = 0, looked = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%u/task", pid);
	dir = opendir(path);
	if (!dir)
		return 0;
	for (struct dirent *e; !found && looked < MOST_THREADS && (e = readdir(dir));) {
		if (!isdigit((unsigned char)e->d_name[0]))
			continue;
		looked++;
		snprintf(path, sizeof(path), "/proc/%u/task/%s/comm", pid, e->d_name);
		if (!slurp(path, text, sizeof(text)))
			continue;
		text[strcspn(text, "\n")] = 0;
		if (!strcmp(text, name))
			found = (uint32_t)strtoul(e->d_name, NULL, 10);
	}
	closedir(dir);
	return found;
}
