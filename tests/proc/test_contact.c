/* Contact that fails says why, truly, and at both ends where there are two: another version, another user or
 * user namespace, another network namespace, a call that a sandbox denies, a name without an adapter behind
 * it, a hello that is none.  And what must not fail: a program that changes its user after opening.
 *
 *     proc-contact [CASE]     default: all */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>

#include "contact.h"
#include "verbs/verbs.h"

enum { NUMBER = 17, NUMBERS = 4, STORM = 600 };

struct board {
	_Atomic int step;
	uint32_t number;
	uint32_t numbers[NUMBERS];
	struct kit_card mine, theirs;
};
static struct board *board;

/* Accepts at NUMBER, takes the hello, answers with `h` unless that is NULL, and hangs up if told to. */
static pid_t impostor(uid_t uid, const struct hello *h, bool hang_up)
{
	pid_t pid;

	atomic_store(&board->step, 0);
	pid = kit_fork_as(uid);
	if (!pid) {
		int l = kit_number_bind(NUMBER, false), s;

		CHECK(l >= 0);
		atomic_store(&board->step, 1);
		while ((s = accept(l, NULL, NULL)) >= 0) {
			char take[256];

			(void)!recv(s, take, sizeof take, 0);
			if (h)
				(void)!send(s, h, sizeof *h, MSG_NOSIGNAL);
			if (hang_up)
				close(s);
		}
	}
	kit_until(&board->step, 1);
	return pid;
}

static void over(pid_t pid)
{
	kill(pid, SIGKILL);
	kit_reap(pid);
}

static void lost(void)
{
	enum ibv_wc_status st = kit_ask(NUMBER, 12, 4);

	CHECK(st == IBV_WC_RETRY_EXC_ERR, "%s", ibv_wc_status_str(st));
	KIT_LOG_SAYS_NOT("no process of this user");
	KIT_LOG_SAYS_NOT("Too many open files");
}

/* We ask one of another version, which says so. */
static void other_version_there(void)
{
	struct hello h = kit_hello();
	pid_t pid;

	h.kind = MSG_REFUSE;
	h.why = REFUSE_VERSION;
	h.version = VB_SEG_VERSION + 7;
	kit_log_begin("info");
	pid = impostor(geteuid(), &h, true);
	lost();
	KIT_LOG_SAYS("no acknowledgement from queue pair");
	KIT_LOG_SAYS(
	    "process %d, which owns that number, uses another version of Verbena (segment version %u; this "
	    "process has %u)",
	    pid, VB_SEG_VERSION + 7, VB_SEG_VERSION);
	over(pid);
}

/* One of another version asks us: both are told. */
static void other_version_here(void)
{
	struct ibv_pd *pd;
	struct hello h = kit_hello(), answer;
	struct kit_end e;
	int s;

	kit_log_begin("info");
	pd = ibv_alloc_pd(kit_open());
	kit_end_open(&e, pd, 4, 64);
	s = kit_number_connect(e.card.qpn >> 12);
	h.version = VB_SEG_VERSION + 1;
	CHECK(send(s, &h, sizeof h, 0) == sizeof h);
	CHECK(recv(s, &answer, sizeof answer, 0) == sizeof answer && answer.kind == MSG_REFUSE &&
	      answer.why == REFUSE_VERSION && answer.version == VB_SEG_VERSION);
	KIT_LOG_SAYS(
	    "process %d of this user: it uses another version of Verbena (segment version %u; this process "
	    "has %u)",
	    getpid(), VB_SEG_VERSION + 1, VB_SEG_VERSION);
	kit_end_close(&e);
}

static void other_user(void)
{
	pid_t pid;

	kit_log_begin("info");
	pid = impostor(KIT_FOREIGN, NULL, false);
	lost();
	KIT_LOG_SAYS("process %d of user %u owns that number; only processes of the same user", pid,
		     KIT_FOREIGN);
	over(pid);
}

/* Bound, and nobody listens. */
static void deaf(void)
{
	pid_t pid;

	kit_log_begin("info");
	atomic_store(&board->step, 0);
	pid = kit_fork_as(kit_can_be(KIT_FOREIGN) ? KIT_FOREIGN : geteuid());
	if (!pid) {
		CHECK(kit_number_bind(NUMBER, true) >= 0);
		atomic_store(&board->step, 1);
		for (;;)
			pause();
	}
	kit_until(&board->step, 1);
	lost();
	KIT_LOG_SAYS("a process of user %u has bound that number but does not listen",
		     kit_can_be(KIT_FOREIGN) ? KIT_FOREIGN : geteuid());
	over(pid);
}

static void nobody(void)
{
	kit_log_begin("info");
	lost();
	KIT_LOG_SAYS("no process in this network namespace owns that number");
}

static void hung_up(void)
{
	pid_t pid;

	kit_log_begin("info");
	pid = impostor(geteuid(), NULL, true);
	lost();
	KIT_LOG_SAYS("process %d, which owns that number, closes the connection without an answer", pid);
	over(pid);
}

static void refused(void)
{
	struct hello h = kit_hello();
	pid_t pid;

	h.kind = MSG_REFUSE;
	h.why = REFUSE_OTHER;
	kit_log_begin("info");
	pid = impostor(geteuid(), &h, true);
	lost();
	KIT_LOG_SAYS("process %d, which owns that number, refuses the connection", pid);
	over(pid);
}

/* Both connect at once, and the other one's connection is the one that counts: it is waited for, however long
 * its process takes, and no longer than that lives. */
static void a_tie(void)
{
	struct hello h = kit_hello();
	struct kit_card card;
	struct ibv_wc wc;
	struct kit_end e;
	double end;
	pid_t pid;

	h.kind = MSG_REFUSE;
	h.why = REFUSE_TIE;
	kit_log_begin("info");
	pid = impostor(geteuid(), &h, true);
	kit_end_open(&e, ibv_alloc_pd(kit_open()), 4, 4096);
	card = e.card;
	card.qpn = NUMBER << 12 | 5;
	kit_connect_with(&e, &card, 12, 4); /* 16.8 ms, four times again */
	CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 64, NULL, 0));
	for (end = kit_now() + 0.4; kit_now() < end;)
		CHECK(!ibv_poll_cq(e.cq, 1, &wc));
	over(pid);
	wc = kit_wait(&e, 20);
	CHECK(wc.status == IBV_WC_RETRY_EXC_ERR, "%s", ibv_wc_status_str(wc.status));
	KIT_LOG_SAYS("no process in this network namespace owns that number");
	kit_end_close(&e);
}

static void hello_without_segment(void)
{
	struct hello h = kit_hello();
	pid_t pid;

	kit_log_begin("info");
	pid = impostor(geteuid(), &h, false);
	lost();
	KIT_LOG_SAYS(
	    "process %d, which owns that number, does not follow the protocol of this version of Verbena",
	    pid);
	over(pid);
}

static void hello_without_segment_here(void)
{
	struct hello h = kit_hello();
	struct ibv_pd *pd;
	struct kit_end e;
	int s;

	kit_log_begin("info");
	pd = ibv_alloc_pd(kit_open());
	kit_end_open(&e, pd, 4, 64);
	s = kit_number_connect(e.card.qpn >> 12);
	CHECK(send(s, &h, sizeof h, 0) == sizeof h);
	CHECK(recv(s, &h, sizeof h, 0) == sizeof h && h.kind == MSG_REFUSE);
	KIT_LOG_SAYS(
	    "the connection of process %d of this user is refused: it sent a first message without its two "
	    "descriptors",
	    getpid());
	KIT_LOG_SAYS_NOT("Too many open files");
	kit_end_close(&e);
}

/* The other one holds its number in another network namespace. */
static void other_network(void)
{
	pid_t pid;

	kit_log_begin("info");
	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid) {
		CHECK(kit_own_network() && kit_number_bind(NUMBER, false) >= 0);
		atomic_store(&board->step, 1);
		for (;;)
			pause();
	}
	kit_until(&board->step, 1);
	lost();
	KIT_LOG_SAYS("no process in this network namespace owns that number, but process %d in another "
		     "network namespace does",
		     pid);
	over(pid);
}

/* This process is in a user namespace that maps nobody. */
static void nameless(void)
{
	pid_t pid;

	kit_log_begin("info");
	pid = impostor(geteuid(), NULL, false);
	if (unshare(CLONE_NEWUSER)) {
		printf("SKIP: no user namespace: %s\n", strerror(errno));
		over(pid);
		return;
	}
	lost();
	KIT_LOG_SAYS(
	    "this process's user is not mapped in its user namespace, where every such user reads as %u",
	    geteuid());
	over(pid);
}

/* The process at the other end is in one. */
static void nameless_there(void)
{
	pid_t pid;

	kit_log_begin("info");
	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid) {
		struct ibv_pd *pd;
		struct kit_end e;

		kit_log_begin("info");
		if (unshare(CLONE_NEWUSER)) {
			atomic_store(&board->step, 2);
			_exit(0);
		}
		pd = ibv_alloc_pd(kit_open());
		kit_end_open(&e, pd, 4, 64);
		board->number = e.card.qpn >> 12;
		atomic_store(&board->step, 1);
		kit_log_await("this process's user is not mapped in its user namespace");
		KIT_LOG_SAYS_NOT("here 65534");
		for (;;)
			pause();
	}
	kit_until(&board->step, 1);
	if (atomic_load(&board->step) == 2) {
		printf("SKIP: no user namespace\n");
	} else {
		CHECK(kit_ask(board->number, 12, 4) == IBV_WC_RETRY_EXC_ERR);
		KIT_LOG_SAYS("process %d, which owns that number, refuses the connection: it sees this "
			     "process as another user's",
			     pid);
	}
	over(pid);
}

/* Two processes, one of which may not make a call.  `here`: that is the one that asks. */
static void sandbox(long call, const char *name, bool here)
{
	pid_t pid;

	kit_log_begin("info");
	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid) {
		struct ibv_pd *pd;
		struct kit_end e;

		if (!here)
			CHECK(kit_deny(call, EPERM, false), "%s", strerror(errno));
		pd = ibv_alloc_pd(kit_open());
		kit_end_open(&e, pd, 4, 64);
		board->number = e.card.qpn >> 12;
		atomic_store(&board->step, 1);
		for (;;)
			pause();
	}
	kit_until(&board->step, 1);
	if (here)
		CHECK(kit_deny(call, EPERM, false), "%s", strerror(errno));
	CHECK(kit_ask(board->number, 12, 4) == IBV_WC_RETRY_EXC_ERR);
	KIT_LOG_SAYS_NOT("no process of this user");
	if (here)
		KIT_LOG_SAYS("this process cannot connect: %s fails: Operation not "
			     "permitted (does a sandbox deny it?)",
			     name);
	else
		KIT_LOG_SAYS(
		    "process %d, which owns that number, cannot connect: %s fails there: Operation not "
		    "permitted",
		    pid, name);
	over(pid);
}

static void no_getsockopt(void)
{
	sandbox(SYS_getsockopt, "getsockopt(SO_PEERCRED)", true);
}

static void no_getsockopt_there(void)
{
	sandbox(SYS_getsockopt, "getsockopt(SO_PEERCRED)", false);
}

static void no_fstatfs(void)
{
	sandbox(SYS_fstatfs, "fstatfs", true);
}

static void no_fstatfs_there(void)
{
	sandbox(SYS_fstatfs, "fstatfs", false);
}

/* A context of another version is handed over: its segment is as large as it likes. */
static void other_version_handed_over(void)
{
	struct vb_seg_head head = {
	    .magic = VB_SEG_MAGIC, .version = VB_SEG_VERSION + 7, .number = 17, .incarnation = 77};
	int fd = memfd_create("verbena", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	kit_log_begin("info");
	CHECK(fd >= 0 && !ftruncate(fd, 1 << 20) && pwrite(fd, &head, sizeof head, 0) == sizeof head);
	CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL));
	CHECK(!ibv_import_device(fd) && errno == EINVAL, "%s", strerror(errno));
	KIT_LOG_SAYS("another version of Verbena: segment version %u, here %u", VB_SEG_VERSION + 7,
		     VB_SEG_VERSION);
}

/* A daemon: opens as root, then becomes another user.  One of that user reaches it, though it does nothing
 * itself, and nobody is told otherwise. */
static void after_setuid(void)
{
	pid_t pid, asker;

	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid) {
		struct ibv_pd *pd;
		struct kit_end e;

		kit_log_begin("info");
		pd = ibv_alloc_pd(kit_open());
		kit_end_open(&e, pd, 4, 64);
		CHECK(!setresgid(KIT_FOREIGN, KIT_FOREIGN, KIT_FOREIGN) &&
		      !setresuid(KIT_FOREIGN, KIT_FOREIGN, KIT_FOREIGN));
		board->theirs = e.card;
		CHECK(!kit_recv(&e, 1, 0, 64));
		atomic_store(&board->step, 1);
		kit_until(&board->step, 2);
		kit_connect(&e, &board->mine);
		atomic_store(&board->step, 3);
		kit_until(&board->step, 4);
		CHECK(kit_wait(&e, 10).status == IBV_WC_SUCCESS);
		KIT_LOG_SAYS_NOT("refused");
		_exit(0);
	}
	asker = kit_fork_as(KIT_FOREIGN);
	if (!asker) {
		struct ibv_pd *pd;
		struct kit_end e;

		kit_log_begin("info");
		kit_until(&board->step, 1);
		/* contact begins here, and is made, while the daemon's queue pair is still in INIT */
		pd = ibv_alloc_pd(kit_open());
		kit_end_open(&e, pd, 4, 64);
		kit_connect(&e, &board->theirs);
		board->mine = e.card;
		atomic_store(&board->step, 2);
		kit_until(&board->step, 3);
		CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 32, NULL, 0));
		CHECK(kit_wait(&e, 20).status == IBV_WC_SUCCESS);
		KIT_LOG_SAYS_NOT("refused");
		KIT_LOG_SAYS_NOT("of user 0");
		atomic_store(&board->step, 4);
		_exit(0);
	}
	CHECK(kit_reap(asker) == 0 && kit_reap(pid) == 0);
}

/* Connections of one's own user that never speak are given up after a while. */
static void silent_ones(void)
{
	enum { MANY = 40 };
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	double end, begun;
	struct kit_end e;
	int fds, s[MANY];

	kit_end_open(&e, pd, 4, 64);
	fds = kit_descriptors();
	begun = kit_now();
	for (int i = 0; i < MANY; i++)
		s[i] = kit_number_connect(e.card.qpn >> 12);
	for (end = kit_now() + 30; kit_descriptors() > fds + MANY;)
		CHECK(kit_now() < end, "%d descriptors, then %d", fds, kit_descriptors());
	CHECK(kit_now() - begun < 20);
	for (int i = 0; i < MANY; i++)
		close(s[i]);
	kit_end_close(&e);
}

/* A process whose device has several numbers, so that more connections can be accepted at once than are kept
 * without a hello. */
static pid_t stormed(void)
{
	pid_t pid;

	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid) {
		struct ibv_pd *pd = ibv_alloc_pd(kit_open());
		struct kit_end e;

		kit_end_open(&e, pd, 4, 64);
		CHECK(!kit_recv(&e, 1, 0, 64));
		for (uint32_t i = 0; i < NUMBERS; i++) {
			struct vb_adapter *a = vb_context(pd->context)->adapter;

			CHECK(!i || !vb_adapter_number_add(a));
			board->numbers[i] = vb_adapter_number_at(a, i);
		}
		board->theirs = e.card;
		atomic_store(&board->step, 1);
		kit_until(&board->step, 2);
		kit_connect(&e, &board->mine);
		atomic_store(&board->step, 3);
		for (;;)
			pause();
	}
	kit_until(&board->step, 1);
	return pid;
}

/* Contact with it is made as if nothing were. */
static void reached(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct kit_end e;

	kit_end_open(&e, pd, 4, 4096);
	board->mine = e.card;
	atomic_store(&board->step, 2);
	kit_until(&board->step, 3);
	kit_connect(&e, &board->theirs);
	CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 64, NULL, 0));
	CHECK(kit_wait(&e, 20).status == IBV_WC_SUCCESS);
	kit_end_close(&e);
}

/* Of those that all have spoken nobody has to go: each is answered, however many there are. */
static void storm_of_hellos(void)
{
	struct hello h = kit_hello(), answer;
	pid_t pid = stormed();
	int s[STORM];

	CHECK(!kill(pid, SIGSTOP));
	for (int i = 0; i < STORM; i++) {
		s[i] = kit_number_connect(board->numbers[i % NUMBERS]);
		CHECK(send(s[i], &h, sizeof h, 0) == sizeof h);
	}
	CHECK(!kill(pid, SIGCONT));
	for (int i = 0; i < STORM; i++)
		CHECK(recv(s[i], &answer, sizeof answer, 0) == sizeof answer && answer.kind == MSG_REFUSE,
		      "connection %d of %d got no answer to its hello: %s", i, STORM, strerror(errno));
	reached();
	over(pid);
}

/* Those that say nothing are kept for a while, as long as they are few, and whoever comes after them is let
 * in. */
static void storm_of_silence(void)
{
	enum { KEPT = 128, EACH = 2, OTHERS = 8 };
	pid_t pid = stormed();
	int s[STORM], before = kit_descriptors_of(pid);

	for (int i = 0; i < STORM; i++)
		s[i] = kit_number_connect(board->numbers[0]);
	reached(); /* so all that came before have been accepted */
	CHECK(kit_descriptors_of(pid) <= before + KEPT * EACH + OTHERS, "%d descriptors, then %d", before,
	      kit_descriptors_of(pid));
	for (int i = 0; i < STORM; i++)
		close(s[i]);
	over(pid);
}

static const struct kit_case cases[] = {
    {.name = "another version there", .run = other_version_there},
    {.name = "another version here", .run = other_version_here},
    {.name = "another version handed over", .run = other_version_handed_over},
    {.name = "another user", .run = other_user, .foreign = true},
    {.name = "bound and deaf", .run = deaf},
    {.name = "nobody", .run = nobody},
    {.name = "hung up", .run = hung_up},
    {.name = "refused", .run = refused},
    {.name = "a tie", .run = a_tie},
    {.name = "a hello without a segment", .run = hello_without_segment},
    {.name = "a hello without a segment comes", .run = hello_without_segment_here},
    {.name = "another network namespace", .run = other_network},
    {.name = "a user without a number", .run = nameless},
    {.name = "a user without a number there", .run = nameless_there},
    {.name = "no getsockopt", .run = no_getsockopt},
    {.name = "no getsockopt there", .run = no_getsockopt_there},
    {.name = "no fstatfs", .run = no_fstatfs},
    {.name = "no fstatfs there", .run = no_fstatfs_there},
    {.name = "after setuid", .run = after_setuid, .foreign = true},
    {.name = "those that never speak", .run = silent_ones},
    {.name = "a storm of hellos", .run = storm_of_hellos},
    {.name = "a storm of silence", .run = storm_of_silence},
};

int main(int argc, char **argv)
{
	if (!kit_own_network()) {
		printf("SKIP: no network namespace of its own: %s\n", strerror(errno));
		return KIT_SKIP;
	}
	board = kit_shared(sizeof *board);
	KIT_CASES(cases, 60);
	return 0;
}
