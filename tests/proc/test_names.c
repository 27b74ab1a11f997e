/* Anybody on the host can bind any abstract name.  Another user who has taken the names of adapters is named,
 * and one who has taken those of a shared domain's members makes no join slow or fail.  And where the device
 * cannot have its thread, the limit is named.
 *
 *     proc-names [CASE]     default: all */
#include <errno.h>
#include <sys/resource.h>

#include "contact.h"

enum { NUMBERS = 4095, EACH = 600, SQUATTERS = (NUMBERS + EACH - 1) / EACH };

struct board {
	_Atomic int step;
	struct ibv_shpd shpd;
	uint32_t number;
};
static struct board *board;
static pid_t squatters[SQUATTERS];

/* Squatters also hold the numbers themselves, and let nobody connect any more. */
static bool full;

static void use_up_backlog(const char *name, int fd)
{
	struct sockaddr_un sa;
	socklen_t len = kit_name_address(&sa, name);
	int err = 0;

	if (fd < 0) /* somebody has it */
		return;
	CHECK(!listen(fd, 0));
	while (!err) {
		int c = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

		CHECK(c >= 0);
		err = connect(c, (struct sockaddr *)&sa, len) ? errno : 0;
	}
	CHECK(err == EAGAIN, "%s", strerror(err));
}

static void fill_both(const char *name, int fd, int number)
{
	char other[64];

	use_up_backlog(name, fd);
	snprintf(other, sizeof other, "verbena/1/%d", number);
	use_up_backlog(other, kit_name_bind(other, false));
}

/* Children of a user hold a name for each number, made by a format. */
static void squat(uid_t uid, const char *format, uint32_t domain, int first, int count, bool deaf)
{
	int n = 0, last = first + count;

	atomic_store(&board->step, 0);
	for (int at = first; at < last; at += EACH) {
		pid_t pid = squatters[n++] = kit_fork_as(uid);

		if (pid)
			continue;
		for (int i = at; i < at + EACH && i < last; i++) {
			char name[100];
			int fd;

			if (domain)
				snprintf(name, sizeof name, format, domain, i);
			else
				snprintf(name, sizeof name, format, i);
			fd = kit_name_bind(name, deaf); /* some may be held already */
			if (full)
				fill_both(name, fd, i);
		}
		atomic_fetch_add(&board->step, 1);
		for (;;)
			pause();
	}
	kit_until(&board->step, n);
}

static void leave(void)
{
	for (int i = 0; i < SQUATTERS; i++) {
		if (squatters[i]) {
			kill(squatters[i], SIGKILL);
			kit_reap(squatters[i]);
		}
		squatters[i] = 0;
	}
}

static void cannot_open(int err)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && !ibv_open_device(list[0]));
	CHECK_EQ(errno, err);
	ibv_free_device_list(list);
}

static void all_numbers(bool deaf)
{
	kit_log_begin("info");
	squat(KIT_FOREIGN, "verbena/1/%d", 0, 1, NUMBERS, deaf);
	cannot_open(EADDRINUSE);
	KIT_LOG_SAYS("all %d adapter numbers of this network namespace", NUMBERS);
	KIT_LOG_SAYS("are in use: %d by user %d (EADDRINUSE)", NUMBERS, KIT_FOREIGN);
	KIT_LOG_SAYS_NOT("open files");
	leave();
	kit_open();
}

static void all_numbers_listened_at(void)
{
	all_numbers(false);
}

static void all_numbers_deaf(void)
{
	all_numbers(true);
}

/* One process holds a shared domain; this one joins while another user holds names like its members'. */
static void join_among(int count, bool deaf)
{
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	double begun, took;
	pid_t pid;

	kit_log_begin("info");
	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid) {
		pd = ibv_alloc_pd(kit_open());
		CHECK(pd && ibv_alloc_shpd(pd, 5, &board->shpd));
		atomic_store(&board->step, 1);
		for (;;)
			pause();
	}
	kit_until(&board->step, 1);
	squat(KIT_FOREIGN, "verbena/1/pd/%08x/%d", board->shpd.handle, 1, count, deaf);
	ctx = kit_open();
	begun = kit_now();
	pd = ibv_share_pd(ctx, &board->shpd, 5);
	took = kit_now() - begun;
	CHECK(pd, "%d names: %s", count, strerror(errno));
	/* Nobody was waited for.  How long it takes to look at all of them is the machine's business. */
	KIT_LOG_SAYS_NOT("not answer");
	CHECK(took < 30, "%d names, and a join takes %g s", count, took);
	printf("%d names: %.3f s\n", count, took);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	leave();
	kill(pid, SIGKILL);
	kit_reap(pid);
}

static void some_members(void)
{
	join_among(300, true);
	join_among(300, false);
}

/* Connections to them come to nothing and are not refused either. */
static void full_members(void)
{
	full = true;
	join_among(100, false);
}

static void all_members(void)
{
	join_among(4000, true);
	join_among(NUMBERS, false);
}

/* A process of this user that is stopped and no member is not waited for, whatever another user binds. */
static void no_member_is_stopped(void)
{
	pid_t pid;
	int status;

	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid) {
		kit_open();
		atomic_store(&board->step, 1);
		for (;;)
			pause();
	}
	kit_until(&board->step, 1);
	CHECK(!kill(pid, SIGSTOP) && waitpid(pid, &status, WUNTRACED) == pid);
	join_among(NUMBERS, false);
	kill(pid, SIGKILL);
	kit_reap(pid);
}

static void no_thread(void)
{
	pid_t pid = kit_fork_as(KIT_FOREIGN);

	if (!pid) {
		struct rlimit r = {1, 1};

		kit_log_begin("info");
		CHECK(!setrlimit(RLIMIT_NPROC, &r));
		cannot_open(EAGAIN);
		KIT_LOG_SAYS(
		    "its engine thread cannot be started: Resource temporarily unavailable; RLIMIT_NPROC "
		    "(ulimit -u) is 1, for all threads of user %d",
		    KIT_FOREIGN);
		_exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
}

static const struct kit_case cases[] = {
    {.name = "all numbers, listened at", .run = all_numbers_listened_at},
    {.name = "all numbers, bound only", .run = all_numbers_deaf},
    {.name = "300 members' names", .run = some_members},
    {.name = "others' names that let nobody connect", .run = full_members},
    {.name = "4000 members' names", .run = all_members},
    {.name = "one is stopped and no member", .run = no_member_is_stopped},
    {.name = "no thread", .run = no_thread},
};

int main(int argc, char **argv)
{
	struct rlimit r;

	if (!kit_can_be(KIT_FOREIGN)) {
		printf("SKIP: this user cannot become another one\n");
		return KIT_SKIP;
	}
	CHECK(!getrlimit(RLIMIT_NOFILE, &r));
	if (r.rlim_cur < EACH + 50) {
		printf("SKIP: RLIMIT_NOFILE is %llu\n", (unsigned long long)r.rlim_cur);
		return KIT_SKIP;
	}
	if (!kit_own_network()) {
		printf("SKIP: no network namespace of its own: %s\n", strerror(errno));
		return KIT_SKIP;
	}
	board = kit_shared(sizeof *board);
	KIT_CASES(cases, 100);
	return 0;
}
