/* The handlers of SIGSEGV and SIGBUS, and what they pass on to. */
#include "mem/guard.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/memcheck.h"
#include "base/symbol.h"

/* Filled by VB_GUARDED(); the linker names its ends.  Weak: a test may link no guarded instruction at all. */
struct entry {
	int32_t insn, landing; /* both relative to their own address */
};
extern const struct entry __start_vb_extable[] __attribute__((visibility("hidden"), weak));
extern const struct entry __stop_vb_extable[] __attribute__((visibility("hidden"), weak));

/* What the program has for a signal, beneath our handler.  The handler reads one word only: a function,
 * SIG_DFL or SIG_IGN, and in the topmost bit, which no address has, whether it is for once. */
#define ONCE (1ull << 63)

enum { INSTRUCTION = 15 }; /* bytes at most, on x86-64 */

struct beneath {
	_Atomic uint64_t fn;
	struct sigaction act; /* as the program knows it; under `lock` */
};

static struct beneath beneath[2];	  /* SIGSEGV, SIGBUS */
static vb_sigaction_fn *system_sigaction; /* set once, before our handlers are in */
static struct vb_lock lock;		  /* guards changes; taken with all signals blocked */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic pid_t home; /* whose handlers `beneath` describes: not a child's after vfork() */

static struct beneath *below(int sig)
{
	return &beneath[sig == SIGBUS];
}

/* A fault of the instruction that was just executed, rather than a signal that somebody sent. */
static bool is_fault(int sig, const siginfo_t *info)
{
	return info->si_code > 0 && !(sig == SIGBUS && info->si_code == BUS_MCEERR_AO);
}

static uintptr_t landing(uintptr_t pc)
{
	for (const struct entry *e = __start_vb_extable; e < __stop_vb_extable; e++)
		if ((uintptr_t)&e->insn + (uintptr_t)(intptr_t)e->insn == pc)
			return (uintptr_t)&e->landing + (uintptr_t)(intptr_t)e->landing;
	return 0;
}

#if defined(__x86_64__)
/* Where the jump or call at pc leads; pc: it is none.  valgrind 3.19 names a jump for a fault of the
 * instruction that it leads to. */
static uintptr_t led_to(uintptr_t pc)
{
	const uint8_t *code = (const uint8_t *)pc; /* NOLINT(performance-no-int-to-ptr) */
	int32_t far;

	if (code[0] == 0xeb)
		return pc + 2 + (uintptr_t)(intptr_t)(int8_t)code[1];
	if (code[0] != 0xe8 && code[0] != 0xe9)
		return pc;
	memcpy(&far, code + 1, sizeof(far));
	return pc + 5 + (uintptr_t)(intptr_t)far;
}

/* The code at pc itself is what cannot be read: the program has jumped there. */
static bool is_astray(uintptr_t pc, const siginfo_t *info)
{
	return (uintptr_t)info->si_addr - pc < INSTRUCTION;
}
#endif

static bool land(const siginfo_t *info, void *context)
{
	ucontext_t *uc = context;
#if defined(__x86_64__)
	uintptr_t pc = (uintptr_t)uc->uc_mcontext.gregs[REG_RIP], to = landing(pc);

	if (!to && vb_memcheck_near() && !is_astray(pc, info))
		to = landing(led_to(pc));
	if (to)
		uc->uc_mcontext.gregs[REG_RIP] = (greg_t)to;
#else
	uintptr_t to = landing(uc->uc_mcontext.pc);

	(void)info;
	if (to)
		uc->uc_mcontext.pc = to;
#endif
	return to;
}

/* The default action.  The signal is sent once more, with all that was said of it, and strikes when this
 * handler returns, at the instruction that it belongs to; should it not, the instruction faults again. */
static void die(int sig, siginfo_t *info)
{
	struct sigaction dfl = {.sa_handler = SIG_DFL};

	system_sigaction(sig, &dfl, NULL);
	if (syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), sig, info) && !is_fault(sig, info))
		syscall(SYS_tgkill, getpid(), gettid(), sig);
}

/* As the kernel does it: a disposition for once is taken back before its handler runs, and a fault cannot be
 * ignored. */
static void pass_on(int sig, siginfo_t *info, void *context)
{
	struct beneath *b = below(sig);
	uint64_t fn = atomic_load_explicit(&b->fn, memory_order_acquire);

	while ((fn & ONCE) && !atomic_compare_exchange_weak(&b->fn, &fn, (uintptr_t)SIG_DFL))
		;
	fn &= ~ONCE;
	if (fn == (uintptr_t)SIG_DFL || (fn == (uintptr_t)SIG_IGN && is_fault(sig, info)))
		die(sig, info);
	else if (fn != (uintptr_t)SIG_IGN)
		((void (*)(int, siginfo_t *, void *))(uintptr_t)fn)(sig, info, context);
}

static _Atomic(void (*)(uintptr_t)) told; /* vb_guard_tell() */

static void on_fault(int sig, siginfo_t *info, void *context)
{
	void (*tell)(uintptr_t) = atomic_load(&told);
	int err = errno;

	if (is_fault(sig, info) && land(info, context))
		return;
	if (tell && sig == SIGSEGV && is_fault(sig, info))
		tell((uintptr_t)info->si_addr);
	errno = err;
	pass_on(sig, info, context);
}

void vb_guard_tell(void (*faulted)(uintptr_t at))
{
	atomic_store(&told, faulted);
}

static bool has_handler(const struct sigaction *act)
{
	return act->sa_handler != SIG_DFL && act->sa_handler != SIG_IGN;
}

/* Our handler under the program's conditions: the same signals blocked, the same stack, calls restarted or
 * not. */
static void make_ours(struct sigaction *ours, const struct sigaction *theirs)
{
	*ours = *theirs;
	if (!has_handler(theirs)) {
		sigemptyset(&ours->sa_mask);
		/* With SA_ONSTACK valgrind does not let the stack grow for the handler, although it has the
		 * thread's own stack, and ends the process. */
		ours->sa_flags =
		    (vb_memcheck_near() ? 0 : SA_ONSTACK) | (theirs->sa_handler == SIG_IGN ? SA_RESTART : 0);
	}
	ours->sa_flags = (ours->sa_flags & ~(int)SA_RESETHAND) | SA_SIGINFO;
	ours->sa_sigaction = on_fault;
}

static void record(struct beneath *b, const struct sigaction *act)
{
	uint64_t fn = (uintptr_t)act->sa_handler;

	if (has_handler(act) && (act->sa_flags & (int)SA_RESETHAND))
		fn |= ONCE;
	b->act = *act;
	atomic_store_explicit(&b->fn, fn, memory_order_release);
}

/* sigaction() for what is beneath; the preload calls it in place of the system's. */
static int sigaction_beneath(int sig, const struct sigaction *act, struct sigaction *old)
{
	struct beneath *b = below(sig);
	struct sigaction ours, was;
	sigset_t all, mask;
	int ret = 0;

	if (getpid() != atomic_load(&home))
		return system_sigaction(sig, act, old);
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &mask);
	vb_lock_take(&lock); /* given back by a thread that installs when both signals are ours */
	was = b->act;
	if (atomic_load(&b->fn) == (uintptr_t)SIG_DFL)
		was.sa_handler = SIG_DFL; /* perhaps it was for once */
	if (act) {
		make_ours(&ours, act);
		ret = system_sigaction(sig, &ours, NULL);
		if (!ret)
			record(b, act);
	}
	vb_lock_give(&lock);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	if (old)
		*old = was;
	return ret;
}

static void after_fork(void)
{
	atomic_store(&lock.held, 0); /* of a thread that is not here */
	atomic_store(&home, getpid());
}

static void install_one(int sig)
{
	struct beneath *b = below(sig);
	struct sigaction ours, old;

	if (system_sigaction(sig, NULL, &old))
		return;
	record(b, &old);
	make_ours(&ours, &old);
	/* Between the two another thread may have changed it. */
	if (!system_sigaction(sig, &ours, &old) && old.sa_sigaction != on_fault)
		record(b, &old);
}

static void install(void)
{
	vb_guard_beneath_fn *preload;
	vb_sigaction_fn *next;
	sigset_t all, mask;

	vb_symbol_find(VB_GUARD_BENEATH, &preload);
	atomic_store(&home, getpid());
	pthread_atfork(NULL, NULL, after_fork);
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &mask);
	vb_lock_take(&lock);
	/* From the call on other threads come to sigaction_beneath(), and wait for the lock. */
	next = preload ? preload(sigaction_beneath) : NULL;
	system_sigaction = next ? next : sigaction;
	install_one(SIGSEGV);
	install_one(SIGBUS);
	vb_lock_give(&lock);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
}

void vb_guard_install(void)
{
	pthread_once(&once, install);
}
