/* Keeps Verbena's handler of SIGSEGV and SIGBUS (mem/guard.h) in front of those that a program installs
 * later.
 *
 * Until the library has installed it, and in programs that never load the library, everything goes on to the
 * next library.  From then on the program's calls for these two signals change what is beneath: our handler
 * passes on to it, and what the calls return is the program's own. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>

#include "mem/guard.h"
#include "view_next.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* sigset() and sigignore() */

/* Not declared by the headers at these feature settings. */
int __sigaction(int sig, const struct sigaction *act, struct sigaction *old);
sighandler_t bsd_signal(int sig, sighandler_t handler);
sighandler_t __sysv_signal(int sig, sighandler_t handler);

static vb_sigaction_fn *_Atomic ours; /* set once, by the library that came first */

EXPORT vb_sigaction_fn *verbena_guard_beneath(vb_sigaction_fn *fn)
{
	vb_sigaction_fn *none = NULL, *next = NEXT(sigaction);

	return atomic_compare_exchange_strong(&ours, &none, fn) ? next : NULL;
}

static vb_sigaction_fn *beneath(int sig)
{
	if (sig != SIGSEGV && sig != SIGBUS)
		return NULL;
	return atomic_load_explicit(&ours, memory_order_acquire);
}

#define SIGACTION(name)                                                              \
	EXPORT int name(int sig, const struct sigaction *act, struct sigaction *old) \
	{                                                                            \
		vb_sigaction_fn *fn = beneath(sig);                                  \
                                                                                     \
		return fn ? fn(sig, act, old) : NEXT(name)(sig, act, old);           \
	}

SIGACTION(sigaction)
SIGACTION(__sigaction)

static sighandler_t set(vb_sigaction_fn *fn, int sig, sighandler_t handler, int flags)
{
	struct sigaction act = {.sa_handler = handler, .sa_flags = flags}, old;

	if (handler == SIG_ERR) {
		errno = EINVAL;
		return SIG_ERR;
	}
	if (!(flags & (int)SA_NODEFER))
		sigaddset(&act.sa_mask, sig);
	return fn(sig, &act, &old) ? SIG_ERR : old.sa_handler;
}

#define SIGNAL(name, flags)                                                                 \
	EXPORT sighandler_t name(int sig, sighandler_t handler)                             \
	{                                                                                   \
		vb_sigaction_fn *fn = beneath(sig);                                         \
                                                                                            \
		return fn ? set(fn, sig, handler, (int)(flags)) : NEXT(name)(sig, handler); \
	}

SIGNAL(signal, SA_RESTART)
SIGNAL(bsd_signal, SA_RESTART)
SIGNAL(ssignal, SA_RESTART)
SIGNAL(sysv_signal, SA_RESETHAND | SA_NODEFER)
SIGNAL(__sysv_signal, SA_RESETHAND | SA_NODEFER)

/* sigset(3): SIG_HOLD blocks the signal, everything else unblocks it; SIG_HOLD is returned if it was blocked.
 */
static sighandler_t set_or_hold(vb_sigaction_fn *fn, int sig, sighandler_t handler)
{
	struct sigaction act = {.sa_handler = handler}, old;
	sigset_t one, was;

	if (handler == SIG_ERR) {
		errno = EINVAL;
		return SIG_ERR;
	}
	sigemptyset(&one);
	sigaddset(&one, sig);
	if (fn(sig, handler == SIG_HOLD ? NULL : &act, &old) ||
	    sigprocmask(handler == SIG_HOLD ? SIG_BLOCK : SIG_UNBLOCK, &one, &was))
		return SIG_ERR;
	return sigismember(&was, sig) ? SIG_HOLD : old.sa_handler;
}

EXPORT sighandler_t sigset(int sig, sighandler_t handler)
{
	vb_sigaction_fn *fn = beneath(sig);

	return fn ? set_or_hold(fn, sig, handler) : NEXT(sigset)(sig, handler);
}

EXPORT int sigignore(int sig)
{
	vb_sigaction_fn *fn = beneath(sig);
	struct sigaction act = {.sa_handler = SIG_IGN};

	return fn ? fn(sig, &act, NULL) : NEXT(sigignore)(sig);
}
