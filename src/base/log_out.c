/* Writing the log without holding anybody up.
 *
 * Who composes a line may hold locks, so it only leaves it here.  vb_log_write() writes it, which a thread
 * calls (through vb_log_tell()) when it holds none: before it returns to the program, and before it blocks.
 * One thread writes at a time, and looks again before it leaves.  Another gives way to it a few times, so
 * that its own line is out when it returns, but does not wait for it.
 *
 * A line that would block stays, in front of all that come later, and is tried again after a while.  When
 * there is no room for more, lines are counted; the count is written where they would have stood. */
#include "base/log_out.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/log_line.h"
#include "base/msan.h"
#include "base/own.h"
#include "base/quiet.h"
#include "base/text.h"

#define AGAIN	 (10 * VB_MSEC)	 /* from one attempt that was not taken to the next */
#define EXIT_FOR (100 * VB_MSEC) /* what exit() gives to a slow reader */

/* One call may say many: a process that dies ends all queue pairs that were connected to it. */
enum { LINES = 256, YIELDS = 100 };

struct line {
	enum vb_log_place place;
	bool only_lost;	    /* it stands for those in front of it, and is none itself */
	uint32_t lost;	    /* lines that found no room in front of this one */
	uint64_t lost_when; /* the last of them */
	struct vb_log_said said;
};

_Atomic uint8_t vb_log_waits; /* who changes VB_LOG_LINES holds `lock`; it is read without */
static _Atomic(void (*)(void)) other, handed;

static struct vb_lock lock; /* guards what follows; a leaf, held over memory accesses only */
static struct line lines[LINES];
static uint32_t first, count; /* those that wait; the writer alone changes `first` */
static uint32_t lost;	      /* behind the last of them */
static uint64_t lost_when;
static enum vb_log_place lost_place;

static _Atomic bool writing;	    /* a thread is in write_all() */
static char line_text[VB_LOG_LINE]; /* the writer's */
static bool json, smart, colours;   /* constant after vb_log_set_look() */
static _Atomic uint64_t again;	    /* no attempt before; the writer stores it */
static char path[4096];		    /* constant once there is a line for it */
static _Atomic bool held;	    /* hold_or_close() did */
static _Atomic bool path_failed;    /* it was said that the file cannot be opened or written */

void vb_log_set_other(void (*written)(void))
{
	atomic_store(&other, written);
}

static bool lines_wait(void)
{
	return atomic_load(&vb_log_waits) & VB_LOG_LINES;
}

void vb_log_set_path(const char *to)
{
	snprintf(path, sizeof path, "%s", to);
}

void vb_log_set_look(bool as_json, bool smart_terminal, bool with_colours)
{
	json = as_json;
	smart = smart_terminal;
	colours = with_colours;
}

void vb_log_set_handed(void (*f)(void))
{
	atomic_store(&handed, f);
}

static void tell_handed(void)
{
	void (*f)(void) = atomic_load(&handed);

	if (f)
		f();
}

static void take(void)
{
	vb_lock_take(&lock); /* give() */
	tell_handed();
}

static void give(void)
{
	tell_handed();
	vb_lock_give(&lock);
}

static void append(enum vb_log_place place, const struct vb_log_said *said)
{
	struct line *l = &lines[(first + count++) % LINES];

	vb_lock_assert_held(&lock);
	l->place = place;
	l->only_lost = !said;
	if (said) {
		memcpy(&l->said, said, offsetof(struct vb_log_said, facts));
		strcpy(l->said.facts, said->facts);
		strcpy(l->said.text, said->text);
	}
	l->lost = lost;
	l->lost_when = lost_when;
	lost = 0;
}

void vb_log_keep(enum vb_log_place place, const struct vb_log_said *said)
{
	take();
	if (count < LINES) {
		append(place, said);
	} else {
		lost++;
		lost_when = said->when;
		lost_place = place;
	}
	atomic_fetch_or(&vb_log_waits, VB_LOG_LINES);
	give();
}

void vb_log_out_forked(void)
{
	first = count = lost = 0;
	atomic_fetch_and(&vb_log_waits, (uint8_t)~VB_LOG_LINES);
	atomic_store(&again, 0);
	atomic_store(&writing, false); /* its holder may not exist any more, nor the lock's */
	vb_lock_give(&lock);
}

/* The line to be written next, NULL: none.  It stays where it is until done_with(). */
static struct line *next(void)
{
	struct line *l = NULL;

	take();
	if (!count && lost)
		append(lost_place, NULL);
	if (count) {
		l = &lines[first];
	} else {
		first = 0; /* few of the pages are ever touched */
		atomic_fetch_and(&vb_log_waits, (uint8_t)~VB_LOG_LINES);
	}
	give();
	return l;
}

static void done_with_first(void)
{
	take();
	first = (first + 1) % LINES;
	count--;
	give();
}

enum fate { TAKEN, NOT_NOW, NOWHERE_TO_GO };

static enum fate fate_of(ssize_t done)
{
	if (done >= 0)
		return TAKEN;
	return errno == EAGAIN || errno == EINTR ? NOT_NOW : NOWHERE_TO_GO;
}

/* Since poll() said that there is room another process may have filled what both write to; files and
 * terminals have no way to ask for that. */
static ssize_t write_now(int fd, const char *text, size_t n)
{
	struct iovec v = {(void *)(uintptr_t)text, n};
	struct stat st;
	ssize_t done;

	if (fstat(fd, &st))
		return -1;
	if (S_ISSOCK(st.st_mode))
		return send(fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (S_ISFIFO(st.st_mode)) {
		done = pwritev2(fd, &v, 1, -1, RWF_NOWAIT);
		if (done >= 0 || errno != EOPNOTSUPP) /* older kernels do not have it for pipes */
			return done;
	}
	return vb_write_quietly(fd, text, n);
}

static struct vb_log_look look_of_stderr(void)
{
	struct vb_log_look look = {.json = json};
	struct winsize window;
	struct stat st;

	if (json || !smart || fstat(STDERR_FILENO, &st) || !S_ISCHR(st.st_mode) ||
	    ioctl(STDERR_FILENO, TIOCGWINSZ, &window))
		return look; /* only terminals answer that */
	look.colours = colours;
	look.width = window.ws_col;
	return look;
}

static enum fate put_stderr(const struct vb_log_said *said)
{
	struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
	struct vb_log_look look;

	if (poll(&p, 1, 0) <= 0)
		return NOT_NOW;
	if (p.revents & (POLLERR | POLLHUP | POLLNVAL)) /* nobody reads it; writing might raise SIGPIPE */
		return NOWHERE_TO_GO;
	look = look_of_stderr();
	return fate_of(write_now(STDERR_FILENO, line_text, vb_log_line_write(line_text, &look, said)));
}

/* Opened for each line: a descriptor kept open could become the program's own after it closed all, as daemons
 * do. */
static int open_file(void)
{
	return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
}

/* One descriptor stays open, of which nothing is done any more, so the program may close it.  As long as it
 * is open, `verbena run --log` does not truncate the file, for which it asks for the lock; and a reader of a
 * named pipe does not meet the end. */
static void hold_or_close(int fd)
{
	if (atomic_load(&held) || flock(fd, LOCK_SH | LOCK_NB)) {
		close(fd);
		return;
	}
	atomic_store(&held, true);
	vb_own_high(fd);
}

static struct vb_own first_stderr; /* when the library was loaded */

static __attribute__((constructor)) void look_at_stderr(void)
{
	first_stderr = vb_own_of(STDERR_FILENO);
}

bool vb_log_stderr_is_meant(void)
{
	int err = errno;
	struct stat st;
	bool meant =
	    !fstat(STDERR_FILENO, &st) && (S_ISFIFO(st.st_mode) || isatty(STDERR_FILENO) ||
					   (first_stderr.ino && vb_own_is(&first_stderr, STDERR_FILENO)));

	errno = err;
	return meant;
}

static void say_path_failed(const char *what, int err)
{
	struct vb_log_said said;
	struct vb_text t = {said.text, sizeof said.text};

	if (atomic_exchange(&path_failed, true))
		return;
	vb_log_said_begin(&said, VB_LOG_ERROR, "", 0);
	vb_text_add(&t, "VERBENA_LOG=%s cannot be %s, lines are lost: %s", path, what, strerror(err));
	if (vb_log_stderr_is_meant())
		vb_log_keep(VB_LOG_STDERR, &said);
}

/* Of a disk that is nearly full the first attempt takes a part; the second one tells why. */
static enum fate write_file(int fd, size_t n)
{
	ssize_t done = vb_write_quietly(fd, line_text, n);
	enum fate fate = fate_of(done);

	if (fate == TAKEN && (size_t)done < n)
		done = vb_write_quietly(fd, line_text + done, n - (size_t)done);
	if (done < 0 && fate_of(done) == NOWHERE_TO_GO)
		say_path_failed("written", errno);
	return fate;
}

/* Not what is no regular file: who reads a pipe takes an opening that ends for the end of all lines. */
void vb_log_try_path(void)
{
	int err = errno, fd;
	struct stat st;

	if (stat(path, &st) || S_ISREG(st.st_mode)) {
		fd = open_file();
		if (fd >= 0)
			hold_or_close(fd);
		else
			say_path_failed("opened", errno);
	}
	errno = err;
}

static enum fate put_file(const struct vb_log_said *said)
{
	const struct vb_log_look look = {.json = json};
	enum fate fate;
	int fd = open_file();

	if (fd < 0) {
		say_path_failed("opened", errno);
		return NOWHERE_TO_GO;
	}
	fate = write_file(fd, vb_log_line_write(line_text, &look, said));
	hold_or_close(fd);
	return fate;
}

static enum fate put(enum vb_log_place place, const struct vb_log_said *said)
{
	return place == VB_LOG_STDERR ? put_stderr(said) : put_file(said);
}

static enum fate put_lost(const struct line *l)
{
	struct vb_log_said said;

	vb_log_said_begin(&said, VB_LOG_WARN, "", 0);
	said.when = l->lost_when;
	snprintf(said.text, sizeof said.text,
		 "%u more line%s lost here: the log was not read as fast as it was written", l->lost,
		 l->lost == 1 ? " is" : "s are");
	return put(l->place, &said);
}

static enum fate put_line(struct line *l)
{
	if (l->lost && put_lost(l) == NOT_NOW)
		return NOT_NOW;
	l->lost = 0;
	return l->only_lost ? TAKEN : put(l->place, &l->said);
}

/* Writes what waits, in its order; false: not all of it is taken now. */
static bool write_all(void)
{
	struct line *l;

	while ((l = next())) {
		if (put_line(l) == NOT_NOW)
			return false;
		done_with_first();
	}
	return true;
}

void vb_log_write(void)
{
	int err = errno, cancel, yields = 0;
	void (*writes)(void) = atomic_load(&other);
	bool all = true;

	vb_msan_enter();
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); /* not while `writing` is ours */
	/* First: who reads a line of the log finds the sentence there, too. */
	if (writes && atomic_load(&vb_log_waits) & VB_LOG_OTHER)
		writes();
	while (all && lines_wait() && vb_now() >= atomic_load(&again)) {
		/* The exchanges order this: who finds it taken has left its line before, and whoever has it
		 * sees that line after giving it back. */
		if (atomic_exchange(&writing, true)) {
			if (yields++ == YIELDS)
				break;
			sched_yield();
			continue;
		}
		all = write_all();
		atomic_store(&again, all ? 0 : vb_now() + AGAIN);
		atomic_exchange(&writing, false);
	}
	pthread_setcancelstate(cancel, &cancel);
	vb_msan_leave();
	errno = err;
}

/* exit() may have been called in a signal handler, above the lock or by a thread that is writing: nothing is
 * waited for without an end. */
static __attribute__((destructor)) void flush(void)
{
	static const struct timespec nap = {.tv_nsec = 1000000};
	uint64_t until = vb_now() + EXIT_FOR;

	while (lines_wait() && vb_now() < until) {
		if (vb_lock_try(&lock)) {
			vb_lock_give(&lock);
			atomic_store(&again, 0);
			vb_log_write();
			if (!lines_wait())
				return;
		}
		nanosleep(&nap, NULL);
	}
}
