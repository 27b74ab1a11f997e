/* rdma_cm where a sandbox denies a call: what there is another way for goes on, and what cannot go on names
 * the call.  With each errno that sandboxes give. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>

#include "cm.h"

static const int errnos[] = {EPERM, ENOSYS, EACCES, EINVAL, EOPNOTSUPP};
enum { ERRNOS = sizeof errnos / sizeof *errnos };

/* Each in a process of its own, since filters stay. */
static void with_each(void (*run)(int err))
{
	for (int i = 0; i < ERRNOS; i++) {
		pid_t pid = kit_fork();

		if (!pid) {
			kit_log_begin("warn");
			run(errnos[i]);
			_exit(0);
		}
		CHECK_EQ(kit_reap(pid), 0);
	}
}

/* Connects to itself, and ends that, by events that are waited for and by some that are taken back. */
static void everything_works(void)
{
	struct rdma_event_channel *c = kit_cm_channel(), *there = kit_cm_channel();
	struct rdma_cm_id *listener, *id, *server, *unheard;
	uint16_t port = 0;

	listener = kit_cm_listen(there, &port);
	id = kit_cm_ready(c, RDMA_PS_TCP, port);
	kit_cm_connect(id);
	server = kit_cm_take(there);
	kit_cm_expect(c, RDMA_CM_EVENT_ESTABLISHED, 0);
	kit_cm_expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	KIT_CM(rdma_disconnect(id));
	kit_cm_expect(there, RDMA_CM_EVENT_DISCONNECTED, 0);
	kit_cm_end(server);
	kit_cm_expect(c, RDMA_CM_EVENT_DISCONNECTED, 0);
	kit_cm_end(id);
	unheard = kit_cm_id(c, RDMA_PS_TCP);
	KIT_CM(rdma_resolve_addr(unheard, NULL, kit_cm_local(port), 1000));
	KIT_CM(rdma_destroy_id(unheard)); /* its event goes with it */
	CHECK(!kit_cm_comes(c, 0));
	KIT_CM(rdma_destroy_id(listener));
	CHECK(!*kit_log_text(), "%s", kit_log_text());
}

static void without_preadv2(int err)
{
	CHECK(kit_deny(SYS_preadv2, err, true), "%s", strerror(errno));
	everything_works();
}

static void without_getrandom(int err)
{
	CHECK(kit_deny(SYS_getrandom, err, true), "%s", strerror(errno));
	everything_works();
}

static void without_flock(int err)
{
	CHECK(kit_deny(SYS_flock, err, true), "%s", strerror(errno));
	everything_works();
}

/* The engine waits by another call, and does not spin. */
static void without_ppoll(int err)
{
	CHECK(kit_deny(SYS_ppoll, err, true), "%s", strerror(errno));
	everything_works();
	kit_nobody_spins();
}

/* fcntl() with that command. */
static void deny_command(int command, int err)
{
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 3),
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)command, 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)err),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof code / sizeof *code, code};

	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog),
	      "%s", strerror(errno));
}

static void bind_fails(int err, const char *call)
{
	struct rdma_cm_id *id = kit_cm_id(kit_cm_channel(), RDMA_PS_TCP);

	KIT_CM_FAILS(rdma_bind_addr(id, kit_cm_local(7471)), err);
	KIT_LOG_SAYS("rdma_bind_addr: %s fails: %s; rdma_cm reserves ports with locks", call, strerror(err));
	KIT_CM_FAILS(rdma_resolve_addr(id, NULL, kit_cm_local(7471), 1000), err);
}

static void without_locks(int err)
{
	deny_command(F_OFD_SETLK, err);
	bind_fails(err, "fcntl(F_OFD_SETLK)");
}

static void without_questions(int err)
{
	deny_command(F_OFD_GETLK, err);
	bind_fails(err, "fcntl(F_OFD_GETLK)");
}

static int denied; /* the errno */

/* The device is there; its files were read before. */
static int without_files(void)
{
	struct ibv_context *ctx = kit_open();
	struct rdma_cm_id *id = kit_cm_id(kit_cm_channel(), RDMA_PS_TCP);

	CHECK(kit_deny(SYS_openat, denied, true), "%s", strerror(errno));
	KIT_CM_FAILS(rdma_bind_addr(id, kit_cm_local(7471)), denied);
	CHECK(!ibv_close_device(ctx));
	return 0;
}

static void preadv2_is_denied(void)
{
	with_each(without_preadv2);
}

static void getrandom_is_denied(void)
{
	with_each(without_getrandom);
}

static void flock_is_denied(void)
{
	with_each(without_flock);
}

/* With what tells the library's descriptors from others, and with the channel's own one. */
static void channel_fails(long call, const char *calls)
{
	static const int err = EPERM;
	pid_t pid = kit_fork();

	if (!pid) {
		kit_log_begin("warn");
		CHECK(kit_deny(call, err, true), "%s", strerror(errno));
		errno = 0;
		CHECK(!rdma_create_event_channel());
		CHECK_EQ(errno, err);
		KIT_LOG_SAYS("rdma_create_event_channel: %s failed for the channel's descriptor: %s", calls,
			     strerror(err));
		_exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
}

static void descriptors_are_denied(void)
{
	channel_fails(SYS_eventfd2, "eventfd2");
	channel_fails(SYS_epoll_create1, "one of epoll_create1, socket and epoll_ctl");
	channel_fails(SYS_socket, "one of epoll_create1, socket and epoll_ctl");
}

static void ppoll_is_denied(void)
{
	with_each(without_ppoll);
}

static void locks_are_denied(void)
{
	with_each(without_locks);
	with_each(without_questions);
}

static void proc_is_denied(void)
{
	char text[2048], say[256];

	for (int i = 0; i < ERRNOS; i++) { /* the log is no file, which could not be opened */
		denied = errnos[i];
		CHECK_EQ(kit_said("stderr", "warn", without_files, text, sizeof text), 0);
		snprintf(say, sizeof say,
			 "rdma_bind_addr: open(/proc/thread-self/ns/net) fails: %s; rdma_cm reserves ports "
			 "with locks on",
			 strerror(denied));
		CHECK(strstr(text, say), "no '%s' in:\n%s", say, text);
	}
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "preadv2 is denied", .run = preadv2_is_denied},
	    {.name = "getrandom is denied", .run = getrandom_is_denied},
	    {.name = "flock is denied", .run = flock_is_denied},
	    {.name = "ppoll is denied", .run = ppoll_is_denied},
	    {.name = "descriptors are denied", .run = descriptors_are_denied},
	    {.name = "locks are denied", .run = locks_are_denied},
	    {.name = "/proc is denied", .run = proc_is_denied}};

	KIT_CASES(cases, 120);
	return 0;
}
