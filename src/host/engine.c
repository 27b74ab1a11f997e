/* The engine decides which threads sleep, wakes them, and makes progress when the application does not.
 *
 * The word in our segment tells senders whether to ring.  While it says polling, the engine leaves everything
 * to the pollers, and looks every 10 ms whether there still are any: whether somebody has polled VB_SPINS
 * times since its last look.  If not, it drains the rings, stores asleep, looks at every ring once more, and
 * blocks on the doorbells.
 *
 * That look is rare because it costs a poller its CPU where both share one.  It need not be frequent: a
 * sender whose packet lies for a millisecond at a word that says polling rings all the same (hca/left.c).
 * And the look does not ask what a poller has taken: one that was not running took nothing, and may have been
 * held up by this very thread.  A program that polls now and then, and really waits for something else (for
 * a byte in its memory, say), does not poll often enough to count: its senders ring, and the engine takes in
 * what the program does not.
 *
 * A thread in vb_adapter_wait() blocks on the same doorbells (an epoll descriptor can itself be waited for)
 * and drains by itself.  The first doorbell that the engine shares with a waiter makes it park: it leaves the
 * doorbells alone and looks once a millisecond whether there still are waiters, and does not even that while
 * a waiter stays blocked with nothing happening.  A waiter that leaves such an engine kicks it, so that
 * somebody watches while the application computes. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/msan.h"
#include "base/poll.h"
#include "host/private.h"

#define TICK	   VB_MSEC	  /* while it shares the doorbells, or another thread is at a ring */
#define LOOK	   (10 * VB_MSEC) /* from one look at the pollers to the next */
#define SETTLE_MAX (100 * VB_MSEC)
#define STARVED	   (5 * VB_MSEC) /* after the time at which it wanted to run */

/* Blocking ends now and then while nothing would end it that is to be done: nobody accepts connections, or
 * the log's reader is slow. */
enum { PAUSE_MS = 100 };

enum {
	IDLE_ROUNDS = 64,
	DRAIN_ROUNDS = 1024,
	MANY = 256, /* packets in one look: they keep coming */
};

/* The state that only the engine uses. */
struct watch {
	uint32_t polls, events; /* as last seen */
	uint64_t look;		/* when the pollers are looked at again */
	bool parked;
	bool awake; /* the word said polling in the last round */
	bool drain; /* rings want to be looked at */
	bool fell;  /* the word has become asleep: that look is to be at once */
};

static uint32_t word(struct vb_adapter *a)
{
	return atomic_load_explicit(a->presence.awake, memory_order_seq_cst);
}

bool vb_engine_drain(struct vb_adapter *a)
{
	int idle = 0;

	for (int i = 0; i < DRAIN_ROUNDS; i++) {
		unsigned n = a->ops->progress(a, VB_LOOK_DRAIN);

		/* Packets come without a pause.  The program that takes their completions, and posts receive
		 * requests for them, may wait for this very CPU. */
		if (n >= MANY)
			sched_yield();
		if (n && word(a) == VB_ASLEEP) {
			idle = 0;
			continue;
		}
		if (!a->ops->ready(a))
			return true;
		/* Another thread is at that ring.  A poller takes what there is; a waiter may be about to
		 * sleep. */
		if (word(a) != VB_ASLEEP)
			return true;
		if (++idle == IDLE_ROUNDS)
			return false;
		sched_yield();
	}
	return false;
}

/* Looks for what a lost hint has left in a cold ring.  While the word said polling nobody rang for it. */
static void notice(struct vb_adapter *a)
{
	if (a->ops->notice)
		a->ops->notice(a);
}

/* While the word says polling: true as long as somebody polls; else falls asleep. */
static bool still_polling(struct vb_adapter *a, struct watch *w)
{
	uint32_t polls = atomic_load_explicit(&a->presence.polls, memory_order_relaxed);
	uint64_t now = vb_now();

	if (word(a) == VB_ASLEEP) {
		/* Since the last look a poller may have left an ACK owed, counting on this one. */
		if (atomic_exchange_explicit(&a->woken, false, memory_order_acquire) || w->awake) {
			notice(a);
			w->drain = true;
		}
		w->awake = false;
		return false;
	}
	if (atomic_exchange_explicit(&a->woken, false, memory_order_acquire) || !w->awake) {
		w->awake = true;
		w->polls = polls;
		w->look = now + LOOK;
		return true;
	}
	if (now < w->look)
		return true;
	notice(a);
	if (polls - w->polls >= VB_SPINS) {
		w->polls = polls;
		w->look = now + LOOK;
		return true;
	}
	vb_engine_drain(a);
	atomic_store_explicit(&a->presence.spins, 0, memory_order_relaxed);
	atomic_exchange_explicit(a->presence.awake, VB_ASLEEP, memory_order_seq_cst);
	vb_inlets_arm(a);
	/* One look more: at what came meanwhile, and for a poller that just before read that we watch. */
	notice(a);
	w->drain = w->fell = true;
	w->awake = false;
	return false;
}

/* Decides whether the doorbells are somebody else's; returns whether to look again in a millisecond. */
static bool park(struct vb_adapter *a, struct watch *w)
{
	uint32_t events = atomic_load_explicit(&a->events, memory_order_relaxed);
	bool quiet = events == w->events;

	w->events = events;
	if (!quiet)
		return true;
	if (!atomic_load_explicit(&a->waiters, memory_order_seq_cst)) {
		w->parked = false;
		return false;
	}
	atomic_store_explicit(&a->parked, true, memory_order_seq_cst); /* pairs with leave() */
	return !atomic_load_explicit(&a->waiters, memory_order_seq_cst);
}

/* The same while somebody polls: whether there is a waiter, who will kick the engine when it leaves. */
static bool stay_parked(struct vb_adapter *a)
{
	atomic_store_explicit(&a->parked, true, memory_order_seq_cst); /* pairs with leave() */
	return atomic_load_explicit(&a->waiters, memory_order_seq_cst);
}

/* The listening socket, for a thread that blocks for long (own.c); -1 while nobody is to accept. */
static int listener(struct vb_adapter *a)
{
	return a->accept_again ? -1 : a->numbers[0].sock;
}

/* Before it blocks: writes what it said, and blocks no longer than until lines that are not taken want to be
 * tried again. */
static uint64_t tell_before(uint64_t deadline)
{
	uint64_t again;

	vb_log_tell();
	if (!vb_log_left())
		return deadline;
	again = vb_now() + PAUSE_MS * VB_MSEC;
	return again < deadline ? again : deadline;
}

static void block(struct vb_adapter *a, struct watch *w, uint64_t deadline)
{
	struct pollfd fds[3] = {{.fd = a->kick, .events = POLLIN},
				{.fd = listener(a), .events = POLLIN},
				{.fd = a->ctl, .events = POLLIN}};
	uint64_t now, left;
	uint64_t wait;
	int n;

	deadline = tell_before(deadline);
	now = vb_now();
	left = deadline > now ? deadline - now : 0;
	if (left > TICK) {
		/* A thread that wants to be heard from now on has to kick.  One that came before is seen
		 * here. */
		atomic_store_explicit(&a->dozing, true, memory_order_seq_cst);
		if (atomic_load_explicit(&a->nudged, memory_order_seq_cst) ||
		    (!w->awake && word(a) != VB_ASLEEP) ||
		    atomic_load_explicit(&a->woken, memory_order_relaxed))
			left = 0;
		vb_ctl_sure(NULL);
		if (!vb_adapter_whole(a))
			return;
	}
	vb_ctl_sure(NULL);
	wait = deadline == VB_NEVER && left ? UINT64_MAX : left;
	atomic_store_explicit(&a->wakes, wait == UINT64_MAX ? VB_NEVER : now + left, memory_order_seq_cst);
	if (atomic_load_explicit(&a->nudged, memory_order_seq_cst) || /* pairs with vb_adapter_due() */
	    atomic_load_explicit(&a->woken, memory_order_seq_cst))    /* pairs with vb_adapter_wake() */
		wait = 0;
	n = vb_poll(fds, w->parked ? 2 : 3, wait);
	atomic_store_explicit(&a->dozing, false, memory_order_relaxed);
	atomic_store_explicit(&a->parked, false, memory_order_relaxed);
	if (n <= 0) {
		if (left <= TICK) /* else it was looked before, and will be before the next time */
			vb_adapter_whole(a);
		return;
	}
	if (fds[0].revents && !vb_adapter_owns(a, a->kick)) {
		vb_adapter_lose(a);
		return;
	}
	if (fds[0].revents) {
		uint64_t count;

		(void)!read(a->kick, &count, sizeof(count));
		w->drain = true;
	}
	if (fds[2].revents)
		a->ops->progress(a, VB_LOOK_DRAIN); /* first what somebody rang for, then his bell */
	if (fds[1].revents || fds[2].revents) {
		w->drain |= vb_control_run(a);
		if (atomic_load_explicit(&a->waiters, memory_order_relaxed)) {
			w->parked = true;
			w->events = atomic_load_explicit(&a->events, memory_order_relaxed) - 1;
		}
	}
}

static void *engine(void *arg)
{
	struct vb_adapter *a = arg;
	struct watch w = {0};

	while (!atomic_load_explicit(&a->stop, memory_order_acquire)) {
		bool nudged = atomic_exchange_explicit(&a->nudged, false, memory_order_seq_cst), shares;
		uint64_t next = VB_NEVER, deadline;
		bool work;

		vb_contact_user(a);
		work = atomic_load(&a->contact_work) || atomic_load(&a->breaks);
		if (work)
			vb_adapter_whole(a);
		if (vb_adapter_lost(a)) {
			vb_lost_settle(a);
		} else if (work) {
			pthread_mutex_lock(&a->control);
			next = vb_contact_run(a, vb_now());
			pthread_mutex_unlock(&a->control);
		}
		if (nudged || w.drain)
			w.drain = !vb_engine_drain(a);
		deadline = a->ops->timers(a, vb_now());
		atomic_fetch_add_explicit(&a->rounds, 1, memory_order_release);
		if (next < deadline)
			deadline = next;
		if (vb_adapter_lost(a)) {
			uint64_t now;

			deadline = tell_before(deadline);
			now = vb_now();
			vb_lost_block(a, deadline == VB_NEVER ? VB_NEVER
					 : deadline > now     ? deadline - now
							      : 0);
			w.drain = true;
			continue;
		}
		shares = false;
		if (still_polling(a, &w)) {
			if (w.look < deadline)
				deadline = w.look;
			w.parked = w.parked && stay_parked(a);
		} else if (w.parked) {
			shares = park(a, &w);
		}
		/* Another thread has the queue that could not be drained: look again soon. */
		next = w.fell ? 0 : shares || w.drain ? vb_now() + TICK : VB_NEVER;
		w.fell = false;
		block(a, &w, next < deadline ? next : deadline);
	}
	return NULL;
}

/* A doorbell that wakes the engine on a machine where every CPU spins is heard only when a spinner's slice
 * ends. A thread that asks for short slices of its own, still under the default policy and at its nice value,
 * comes sooner (Linux 6.12 on; older kernels ignore it): measured, 2 us instead of 2 ms. */
static void ask_for_short_slices(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
		uint32_t util_min, util_max;
	} attr = {.size = sizeof(attr)};

	if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) || attr.policy != SCHED_OTHER)
		return;
	attr.runtime = 100 * VB_USEC;
	(void)syscall(SYS_sched_setattr, 0, &attr, 0);
}

/* A program's ThreadSanitizer sees the calls of the C library that this thread makes, and none of the locks.
 */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define VB_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(VB_TSAN)
static void hide_thread(bool hide)
{
	(void)hide;
}
#else
void AnnotateIgnoreReadsBegin(const char *file, int line) __attribute__((weak));
void AnnotateIgnoreReadsEnd(const char *file, int line) __attribute__((weak));
void AnnotateIgnoreWritesBegin(const char *file, int line) __attribute__((weak));
void AnnotateIgnoreWritesEnd(const char *file, int line) __attribute__((weak));

static void hide_thread(bool hide)
{
	if (!AnnotateIgnoreReadsBegin || !AnnotateIgnoreReadsEnd || !AnnotateIgnoreWritesBegin ||
	    !AnnotateIgnoreWritesEnd)
		return;
	(hide ? AnnotateIgnoreReadsBegin : AnnotateIgnoreReadsEnd)(__FILE__, __LINE__);
	(hide ? AnnotateIgnoreWritesBegin : AnnotateIgnoreWritesEnd)(__FILE__, __LINE__);
}
#endif

static void *engine_begin(void *arg)
{
	struct vb_adapter *a = arg;
	void *r;

	vb_engine_enter();
	vb_msan_enter();
	ask_for_short_slices();
	__atomic_store_n(&a->head->tid, (uint32_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
	hide_thread(true);
	r = engine(a);
	hide_thread(false);
	return r;
}

int vb_engine_start(struct vb_adapter *a)
{
	struct sched_param param = {0};
	sigset_t all, old;
	pthread_attr_t attr;
	uint64_t began = 0;
	int err = pthread_attr_init(&attr);

	if (err)
		return err;
	pthread_attr_setinheritsched(&attr, PTHREAD_EXPLICIT_SCHED);
	pthread_attr_setschedpolicy(&attr, SCHED_OTHER);
	pthread_attr_setschedparam(&attr, &param);
	/* The program's signals are for its own threads; faults in copies are this thread's. */
	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&a->engine, &attr, engine_begin, a);
	if (err == EPERM) { /* an ordinary user's SCHED_IDLE is not left again (sched(7)) */
		pthread_attr_setinheritsched(&attr, PTHREAD_INHERIT_SCHED);
		err = pthread_create(&a->engine, &attr, engine_begin, a);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (err)
		return err;
	a->engine_started = true;				  /* vb_engine_stop() */
	while (!__atomic_load_n(&a->head->tid, __ATOMIC_ACQUIRE)) /* before any peer may ask for it */
		vb_cpu_offer(&began);
	pthread_setname_np(a->engine, VB_ENGINE_NAME);
	return 0;
}

void vb_engine_stop(struct vb_adapter *a)
{
	if (!a->engine_started)
		return;
	atomic_store_explicit(&a->stop, true, memory_order_release);
	vb_engine_kick(a);
	pthread_join(a->engine, NULL);
	a->engine_started = false;
}

/* The calling thread does not do it itself: exit() may have been called in a signal handler, above a lock
 * that progress would take.  Then the engine waits for that lock, and we for the engine not for long. */
void vb_engine_pay(struct vb_adapter *a)
{
	static const struct timespec nap = {.tv_nsec = 20000};
	uint32_t begun = atomic_load_explicit(&a->rounds, memory_order_acquire);
	uint64_t until = vb_now() + SETTLE_MAX;

	do {
		vb_engine_kick(a); /* the round after the present one begins behind all that we did */
		nanosleep(&nap, NULL);
	} while (atomic_load_explicit(&a->rounds, memory_order_acquire) - begun < 2 && vb_now() < until);
}

/* The engine said when it would run again.  Where it has not long after that, it does not get the CPU:
 * sched_yield() is for equals, and a poller with a real-time policy has none. */
bool vb_adapter_yield(struct vb_adapter *a)
{
	uint64_t wakes = atomic_load_explicit(&a->wakes, memory_order_relaxed);

	if (wakes != VB_NEVER && vb_now() > wakes + STARVED) {
		vb_cpu_nap();
		return false;
	}
	sched_yield();
	return true;
}

/* An engine that looks in time by itself is left alone: a program that polls, sleeps and polls wakes it no
 * more often than one that polls all the time. */
static void wake_as(struct vb_adapter *a, enum vb_awake as)
{
	atomic_exchange_explicit(a->presence.awake, as, memory_order_seq_cst);
	atomic_store_explicit(&a->woken, true, memory_order_seq_cst); /* whoever takes it sees the word */
	if (atomic_load_explicit(&a->wakes, memory_order_seq_cst) >
		vb_now() + LOOK && /* pairs with block() */
	    atomic_exchange_explicit(&a->dozing, false, memory_order_seq_cst))
		vb_kick_write(a);
}

void vb_adapter_wake(struct vb_adapter *a)
{
	if (vb_adapter_dead(a))
		return;
	if (vb_adapter_lost(a))
		vb_lost_settle(a); /* the engine may not have heard */
	else
		wake_as(a, VB_POLLING);
}

/* The word becomes asleep, and nothing that came before is left in a ring unseen. */
static void fall_asleep(struct vb_adapter *a)
{
	if (word(a) == VB_ASLEEP)
		return;
	if (atomic_exchange_explicit(a->presence.awake, VB_ASLEEP, memory_order_seq_cst) == VB_ASLEEP)
		return;
	vb_inlets_arm(a);
	if (a->ops->slept)
		a->ops->slept(a);
	if (!a->ops->ready(a))
		return;
	a->ops->progress(a, VB_LOOK_DRAIN);
	if (a->ops->ready(a))
		vb_engine_kick(a);
}

void vb_adapter_arm(struct vb_adapter *a)
{
	if (vb_adapter_dead(a))
		return;
	atomic_fetch_add_explicit(&a->presence.armed, 1, memory_order_seq_cst); /* vb_adapter_disarm() */
	atomic_store_explicit(&a->presence.spins, 0, memory_order_relaxed);
	fall_asleep(a);
}

void vb_adapter_disarm(struct vb_adapter *a)
{
	if (!vb_adapter_dead(a))
		atomic_fetch_sub_explicit(&a->presence.armed, 1, memory_order_release);
}

enum { GOES_ON = 1, ENDS = 2 }; /* what a wait does after a signal's handler, by its SA_RESTART */

/* Both, of the handlers that may interrupt this thread.  Those of faults do not interrupt a wait. */
static unsigned handlers(void)
{
	struct sigaction sa;
	sigset_t blocked;
	unsigned found = 0;
	int err = errno;

	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	for (int s = 1; s < NSIG; s++) {
		if (sigismember(&blocked, s) == 1 || sigaction(s, NULL, &sa) || sa.sa_handler == SIG_DFL ||
		    sa.sa_handler == SIG_IGN) /* with SA_SIGINFO, too */
			continue;
		if (s == SIGSEGV || s == SIGBUS || s == SIGILL || s == SIGFPE || s == SIGSYS || s == SIGTRAP)
			continue;
		found |= sa.sa_flags & SA_RESTART ? GOES_ON : ENDS;
	}
	errno = err; /* the C library keeps some signals for itself, and refuses to tell */
	return found;
}

/* The wait is in poll(), which knows no SA_RESTART, nor which signal it was; but programs seldom mix. */
bool vb_wait_restarts(void)
{
	return handlers() == GOES_ON;
}

static void leave(void *arg)
{
	struct vb_adapter *a = arg;

	if (atomic_fetch_sub_explicit(&a->waiters, 1, memory_order_seq_cst) == 1 &&
	    atomic_exchange_explicit(&a->parked, false, memory_order_seq_cst)) /* pairs with park() */
		vb_kick_write(a);
}

/* For poll(2): not behind `until`, and a short while where that has to be looked after. */
static int pause_before(uint64_t until, bool looks)
{
	uint64_t now, ms;

	if (until == VB_NEVER)
		return looks ? PAUSE_MS : -1;
	now = vb_now();
	ms = until > now ? (until - now + VB_MSEC - 1) / VB_MSEC : 0;
	if (looks && ms > PAUSE_MS)
		return PAUSE_MS;
	return ms < INT_MAX ? (int)ms : INT_MAX;
}

/* progress: in the engine's place.  A cancelled thread leaves the frame without a word to AddressSanitizer,
 * which would then take for poisoned what stands there next. */
static __attribute__((no_sanitize_address)) int wait_for(struct vb_adapter *a, int fd, int cancel,
							 bool progress, const bool *come, uint64_t until)
{
	/* `before` is what was there before the wait.  0: nobody has looked yet, which short waits are
	 * spared.  A handler that is called once only (SA_RESETHAND) is gone when it has run, so the looks
	 * before and after are taken together.  If neither finds one, the C library has interrupted the wait
	 * for setuid() in another thread. */
	unsigned before = progress ? 0 : GOES_ON | handlers();

	if (*come)
		return 0;
	if (!vb_ctl_is_ours(a))
		vb_adapter_lose(a);
	while (!vb_adapter_lost(a)) {
		int n, err, unused, door = listener(a);
		struct pollfd fds[3] = {{.fd = fd, .events = POLLIN},
					{.fd = door, .events = POLLIN},
					{.fd = progress ? a->ctl : -1, .events = POLLIN}};

		vb_log_tell();
		pthread_setcancelstate(cancel, &unused);
		n = poll(fds, 3, pause_before(until, door < 0 || vb_log_left() || !before));
		err = errno;
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &unused);
		if (n < 0 && !(err == EINTR && (before | handlers()) == GOES_ON))
			return err;
		if (n == 0 && vb_now() >= until)
			return ETIMEDOUT;
		if (n == 0 && !before)
			before = GOES_ON | handlers();
		if (n > 0 && fds[0].revents && !(fds[0].revents & POLLNVAL))
			return 0; /* the caller looks whether it still is ours */
		if (n > 0 && fds[2].revents)
			a->ops->progress(a, VB_LOOK_DRAIN); /* first what somebody rang for, then his bell */
		if (*come)
			return 0; /* the bell has the next wait back at once, while others run */
		if (n > 0 && (fds[1].revents || fds[2].revents) && vb_control_run(a) && !vb_engine_drain(a))
			vb_engine_kick(a);
		vb_ctl_sure(NULL);
		if (*come)
			return 0;
		/* The door's high number is where a loss shows at once. */
		if (n > 0 && (fds[0].revents | fds[1].revents | fds[2].revents) & POLLNVAL)
			vb_adapter_whole(a);
		else if (n > 0 && fds[1].revents)
			return 0; /* perhaps vb_adapter_rouse() */
		if (!vb_adapter_lost(a) && n > 0 && fds[0].revents)
			return EBADF; /* closed by the program, and nothing else was */
	}
	vb_lost_settle(a);
	return EIO;
}

int vb_adapter_wait(struct vb_adapter *a, int fd, const bool *come, uint64_t until)
{
	int cancel, ret;

	if (vb_adapter_dead(a))
		return ENODEV;
	/* Locks are held and sockets written in between: a cancelled thread goes only from poll(). */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	atomic_fetch_add_explicit(&a->waiters, 1, memory_order_seq_cst);
	pthread_cleanup_push(leave, a);
	fall_asleep(a);
	a->ops->progress(a, VB_LOOK_DRAIN); /* also what pollers left owed */
	ret = wait_for(a, fd, cancel, true, come, until);
	pthread_cleanup_pop(1);
	pthread_setcancelstate(cancel, NULL);
	return ret;
}

/* Who waits for something else, or is to be woken by a completion, goes on hearing bells. */
static bool others_sleep(struct vb_adapter *a)
{
	return atomic_load_explicit(&a->waiters, memory_order_seq_cst) ||
	       atomic_load_explicit(&a->presence.armed, memory_order_seq_cst);
}

bool vb_adapter_expect(struct vb_adapter *a)
{
	if (vb_adapter_dead(a) || vb_adapter_lost(a) || !vb_list_empty(&a->inlets) || others_sleep(a))
		return false;
	wake_as(a, VB_EXPECTING);
	if (!others_sleep(a))
		return true;
	/* Who came meanwhile found the word asleep, and left it so.  This thread may hold locks, so the
	 * engine looks for what nobody has rung for. */
	atomic_exchange_explicit(a->presence.awake, VB_ASLEEP, memory_order_seq_cst);
	vb_engine_kick(a);
	return false;
}

/* The word becomes polling with the answer, since the program goes on with what it has asked for.  The engine
 * looks soon whether it does (wake_as()). */
void vb_adapter_look_out(struct vb_adapter *a, const bool *come, const _Atomic bool *there, uint64_t until)
{
	uint32_t expecting = VB_EXPECTING;
	int cancel;

	if (vb_adapter_dead(a))
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); /* as in vb_adapter_wait() */
	while (!*come && !atomic_load_explicit(there, memory_order_relaxed) && !vb_adapter_lost(a) &&
	       word(a) == VB_EXPECTING && vb_now() < until) {
		if (!a->ops->progress(a, VB_LOOK_DRAIN))
			sched_yield(); /* who is to answer may have no other CPU */
	}
	if (*come || atomic_load_explicit(there, memory_order_relaxed))
		atomic_compare_exchange_strong(a->presence.awake, &expecting, VB_POLLING);
	pthread_setcancelstate(cancel, NULL);
}

int vb_adapter_await(struct vb_adapter *a, int fd)
{
	static const bool never;
	int cancel, ret;

	if (vb_adapter_dead(a))
		return ENODEV;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	ret = wait_for(a, fd, cancel, false, &never, VB_NEVER);
	pthread_setcancelstate(cancel, NULL);
	return ret;
}
