#include "base/quiet.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

ssize_t vb_write_quietly(int fd, const void *bytes, size_t n)
{
	const struct timespec now = {0};
	sigset_t ours, one, before, pending;
	ssize_t done;
	int err, sig;

	sigemptyset(&ours);
	sigaddset(&ours, SIGXFSZ);
	sigaddset(&ours, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &ours, &before);
	sigpending(&pending);
	done = write(fd, bytes, n);
	err = errno;
	sig = err == EFBIG ? SIGXFSZ : SIGPIPE;
	if (done < 0 && (err == EFBIG || err == EPIPE) && !sigismember(&pending, sig)) {
		sigemptyset(&one);
		sigaddset(&one, sig);
		(void)sigtimedwait(&one, NULL, &now); /* it is this thread's, and nobody else's affair */
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = err;
	return done;
}

bool vb_file_may_have(uint64_t bytes, uint64_t *most)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_FSIZE, &r) || r.rlim_cur >= bytes)
		return true;
	*most = r.rlim_cur;
	return false;
}
