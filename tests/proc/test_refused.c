/* Where the kernel does not let an initiator reach into its peer's memory, the ring carries everything, and
 * that is said once for each peer, at the level info. */
#include <linux/audit.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "pair.h"

enum { SIZE = 1 << 20, HALF = SIZE / 2, DEPTH = 32, USER = 12345, ROUNDS = 3 };

static char log_path[] = "/tmp/verbena-refused-XXXXXX";
static bool want_direct; /* whether it is to work directly after all */
static int want_lines;	 /* of the initiator, about the ring */
static int deny_with;	 /* errno of the filter, 0: none */
static bool target_hides, hides_later;
static int own_ns = -1; /* PID namespace to make threads in again */

static void become_user(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {0};

	if (geteuid() == 0 && !setresgid(USER, USER, USER))
		CHECK(!setresuid(USER, USER, USER));
	CHECK(
	    !syscall(SYS_capset, &head, none)); /* in a user namespace there may be no other user to become */
	CHECK(!prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)); /* which the change of the user has taken away */
	CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL));   /* this too */
}

/* process_vm_readv() and process_vm_writev() fail from now on. */
static void filter(int err)
{
	if (!kit_deny(SYS_process_vm_readv, err, false) || !kit_deny(SYS_process_vm_writev, err, false)) {
		printf("SKIP: no seccomp filters here (%s)\n", strerror(errno));
		exit(KIT_SKIP);
	}
}

static int lines(pid_t pid, const char *what)
{
	char line[1024], who[32];
	FILE *f = fopen(log_path, "r");
	int n = 0;

	CHECK(f);
	snprintf(who, sizeof who, "[%d]", (int)pid);
	while (fgets(line, sizeof line, f))
		n += strstr(line, who) && strstr(line, what);
	fclose(f);
	return n;
}

static void expect(struct kit_end *e)
{
	struct ibv_wc wc = kit_wait(e, 30);

	CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
}

static void traffic(struct kit_pair *p, uint8_t seed)
{
	static const uint32_t lengths[] = {1, 8, 100, 5000, 70000, HALF};

	for (int i = 0; i < KIT_ENDS; i++) {
		struct kit_end *e = &p->end[i];
		const struct kit_card *peer = &p->board->card[1][i];

		for (unsigned k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
			memset(e->buf, seed + (int)k, lengths[k]);
			CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 1, 0, lengths[k], peer, 0));
			CHECK(!kit_post(e, IBV_WR_RDMA_READ, 2, HALF, lengths[k], peer, 0));
			expect(e);
			expect(e);
			CHECK(!memcmp(e->buf, e->buf + HALF, lengths[k]));
		}
		CHECK(!kit_post(e, IBV_WR_ATOMIC_FETCH_AND_ADD, 3, HALF, 8, peer, HALF));
		expect(e);
		CHECK(!kit_post(e, IBV_WR_RDMA_WRITE_WITH_IMM, 4, 0, HALF, peer, 0));
		expect(e);
	}
}

/* A WRITE is complete while the target stands still, or is not. */
static bool is_direct(struct kit_pair *p, bool wanted)
{
	struct kit_end *e = &p->end[0];
	struct ibv_wc wc;
	double end;
	int n = 0;

	kit_stop(p->target);
	CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 1, 0, 64, &p->board->card[1][0], 0));
	end = kit_now() + (wanted ? 20 : 0.05);
	while (!n && kit_now() < end)
		n = ibv_poll_cq(e->cq, 1, &wc);
	kit_cont(p->target);
	if (!n)
		wc = kit_wait(e, 30);
	CHECK(wc.status == IBV_WC_SUCCESS);
	return n;
}

static void initiator(struct kit_pair *p)
{
	if (own_ns >= 0 && setns(own_ns, CLONE_NEWPID)) {
		printf("SKIP: no way back from a PID namespace (%s)\n", strerror(errno));
		kill(p->target, SIGKILL); /* it may not know yet that it is to go with us */
		exit(KIT_SKIP);
	}
	if (deny_with)
		filter(deny_with);
	kit_pair_open(p, DEPTH, SIZE);
	for (int i = 0; i < ROUNDS; i++) {
		kit_until(&p->board->step, i + 1);
		if (hides_later && !i)
			CHECK(is_direct(p, true), "it is not direct in the first place");
		traffic(p, (uint8_t)(10 * i));
		atomic_store(&p->board->number[0], i + 1);
	}
	CHECK(is_direct(p, want_direct) == want_direct, "direct, or not");
	CHECK(lines(getpid(), "packets carry") == want_lines, "%d lines, not %d",
	      lines(getpid(), "packets carry"), want_lines);
	kit_pair_close(p);
}

static void target(struct kit_pair *p)
{
	if (target_hides)
		CHECK(!prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
	kit_pair_open(p, DEPTH, SIZE);
	for (int i = 0; i < ROUNDS; i++) {
		if (hides_later && i)
			CHECK(!prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
		for (int k = 0; k < KIT_ENDS; k++)
			CHECK(!kit_recv(&p->end[k], 9, 0, 0));
		atomic_store(&p->board->step, i + 1);
		for (int k = 0; k < KIT_ENDS; k++) {
			struct ibv_wc wc = kit_wait(&p->end[k], 30);

			CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
			for (int n = 0; n < HALF; n++) /* what the last WRITE brought */
				CHECK(p->end[k].buf[n] == (uint8_t)(10 * i + 5));
		}
		while (atomic_load(&p->board->number[0]) <= i)
			kit_nap(1);
	}
	kit_pair_close(p);
}

static void new_pid_namespace(void)
{
	own_ns = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
	if (own_ns < 0 || unshare(CLONE_NEWPID)) {
		printf("SKIP: no PID namespace of its own (%s)\n", strerror(errno));
		exit(KIT_SKIP);
	}
}

static void try(const char *name, bool direct, int said)
{
	static const bool both[] = {true, true};

	want_direct = direct;
	want_lines = said;
	CHECK(!truncate(log_path, 0));
	if (!kit_pair_run(name, both, initiator, target))
		printf("%s: SKIP\n", name);
	deny_with = 0;
	kit_pair_before = NULL;
	target_hides = hides_later = false;
	setenv("VERBENA_LOG_LEVEL", "info", 1);
	unsetenv("VERBENA_PTRACE");
}

int main(void)
{
	int fd = mkstemp(log_path);

	CHECK(fd >= 0 && !fchmod(fd, 0666));
	close(fd);
	setenv("VERBENA_LOG", log_path, 1);
	setenv("VERBENA_LOG_LEVEL", "info", 1);
	kit_pair_before = become_user;
	try("an ordinary user", true, 0);
	kit_pair_before = become_user;
	target_hides = true;
	try("a target that is not dumpable", false, 1);
	kit_pair_before = become_user;
	target_hides = true;
	setenv("VERBENA_LOG_LEVEL", "warn", 1);
	try("a target that is not dumpable, at log level warn", false, 0);
	kit_pair_before = become_user;
	hides_later = true;
	try("a target that stops being dumpable", false, 1);
	deny_with = EPERM;
	try("a seccomp filter with EPERM", false, 1);
	deny_with = ENOSYS;
	try("a seccomp filter with ENOSYS", false, 1);
	kit_pair_before = new_pid_namespace;
	try("another PID namespace", false, 1);
	setenv("VERBENA_PTRACE", "off", 1);
	try("VERBENA_PTRACE=off", true, 0); /* which matters to Yama alone */
	unlink(log_path);
	return 0;
}
