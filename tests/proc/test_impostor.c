/* Others at our names: all of them taken by another user, a foreign listener where a peer should be, one of
 * our own user that accepts and says nothing or rubbish, and rubbish at our own door.  In a network namespace
 * of its own, since names belong to one.
 *
 *     proc-impostor [CASE]    default: all */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

#include "contact.h"
#include "net.h"

enum { FIRST = 1, LAST = 4095 };

static _Atomic int *step;
static union ibv_gid *gid; /* the device's, which impostors publish */

/* A child that is another user, or this one. */
static pid_t fork_as_other(bool other)
{
	return kit_fork_as(other ? KIT_FOREIGN : geteuid());
}

/* Takes every name but one. */
static pid_t squatters[8];

static void take_names(bool other, int but)
{
	enum { EACH = 600 };

	atomic_store(step, 0);
	for (int i = 0; i * EACH + FIRST <= LAST; i++) {
		squatters[i] = fork_as_other(other);
		if (squatters[i])
			continue;
		for (int n = i * EACH + FIRST; n < (i + 1) * EACH + FIRST && n <= LAST; n++)
			if (n != but)
				CHECK(kit_number_bind((uint32_t)n, false) >= 0);
		atomic_fetch_add(step, 1);
		for (;;)
			pause();
	}
	kit_until(step, (LAST + EACH - 1) / EACH);
}

static void give_names(void)
{
	for (int i = 0; i < 8; i++) {
		if (squatters[i] > 0) {
			kill(squatters[i], SIGKILL);
			kit_reap(squatters[i]);
		}
		squatters[i] = 0;
	}
}

static void all_names_taken(bool other)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct kit_end a;
	struct rlimit r;

	CHECK(!getrlimit(RLIMIT_NOFILE, &r));
	if (r.rlim_cur < 700) {
		printf("SKIP all names taken: RLIMIT_NOFILE is %llu\n", (unsigned long long)r.rlim_cur);
		ibv_free_device_list(list);
		return;
	}
	take_names(other, 0);
	ctx = ibv_open_device(list[0]);
	CHECK(!ctx && errno == EADDRINUSE, "%s", strerror(errno));
	give_names();
	take_names(other, 1234);
	ctx = ibv_open_device(list[0]);
	CHECK(ctx, "%s", strerror(errno));
	pd = ibv_alloc_pd(ctx);
	kit_end_open(&a, pd, 4, 4096);
	CHECK(a.card.qpn >> 12 == 1234);
	kit_connect(&a, &a.card);
	CHECK(!kit_recv(&a, 1, 0, 64) && !kit_post(&a, IBV_WR_SEND, 2, 64, 64, NULL, 0));
	CHECK(kit_wait(&a, 10).status == IBV_WC_SUCCESS && kit_wait(&a, 10).status == IBV_WC_SUCCESS);
	kit_end_close(&a);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	give_names();
	ibv_free_device_list(list);
}

/* What an impostor says to whoever connects to it. */
enum says {
	SILENCE,
	RUBBISH,
	HALF,
	NO_SEGMENT,
	WRONG_FILE,
	SHORT_FILE,
	UNSEALED,
	WRONG_KEYS,
	LINGERING,
	REFUSAL,
	HANG_UP,
	ALL_SAYS
};

static int wrong_segment(enum says what)
{
	struct vb_seg_head head = {.magic = VB_SEG_MAGIC,
				   .version = VB_SEG_VERSION,
				   .number = 17,
				   .incarnation = 77,
				   .size = VB_SEG_SIZE,
				   .key_offset = what == WRONG_KEYS ? VB_KEY_OFFSET_MAX + 1 : 0,
				   .numbers = {17},
				   .nnumbers = 1};
	int fd = what == WRONG_FILE ? open("/dev/zero", O_RDWR | O_CLOEXEC)
				    : memfd_create("wrong", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	memcpy(head.gids[0], gid, sizeof *gid);
	CHECK(fd >= 0);
	if (what != WRONG_FILE) { /* all right but for one thing */
		CHECK(!ftruncate(fd, what == SHORT_FILE ? VB_SEG_AWAKE : VB_SEG_SIZE));
		CHECK(pwrite(fd, &head, sizeof head, 0) == sizeof head);
	}
	if (what == SHORT_FILE || what == WRONG_KEYS)
		CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL));
	return fd;
}

static void say(int s, enum says what)
{
	struct hello h = kit_hello();
	int fds[4], n = 0;

	h.why = REFUSE_OTHER;
	if (what == REFUSAL)
		h.kind = MSG_REFUSE;
	if (what == SILENCE || what == HANG_UP)
		return;
	if (what == RUBBISH) {
		uint8_t bytes[200];

		for (unsigned i = 0; i < sizeof bytes; i++)
			bytes[i] = (uint8_t)rand();
		(void)!send(s, bytes, (size_t)rand() % sizeof bytes, MSG_NOSIGNAL);
		return;
	}
	if (what == WRONG_FILE || what == SHORT_FILE || what == UNSEALED || what == WRONG_KEYS) {
		fds[n++] = wrong_segment(what);
		fds[n++] = kit_hints();
	}
	if (what == LINGERING) { /* whoever closes them last would wait */
		while (n < 4)
			fds[n++] = kit_lingering(60);
	}
	kit_hello_send(s, &h, what == HALF ? sizeof h / 2 : sizeof h, fds, n);
}

/* Listens at a number and answers in one way. */
static void listener(int number, enum says what)
{
	int l = kit_number_bind((uint32_t)number, false), held[64], n = 0;

	CHECK(l >= 0);
	atomic_store(step, 1);
	for (;;) {
		int s = accept(l, NULL, NULL);

		CHECK(s >= 0);
		say(s, what);
		if (what == HANG_UP || n == 64)
			close(s);
		else
			held[n++] = s;
	}
	(void)held;
}

/* A request to an impostor ends in error, in the time that retries take; meanwhile others are served. */
static void ask_impostor(enum says what, bool other)
{
	struct ibv_context *ctx;
	struct kit_card card;
	struct ibv_pd *pd;
	struct kit_end a, b, c;
	struct ibv_wc wc;
	double t;
	pid_t pid;
	int fds, n;

	atomic_store(step, 0);
	pid = fork_as_other(other);
	if (!pid)
		listener(17, what);
	kit_until(step, 1);
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	kit_end_open(&a, pd, 8, 4096);
	kit_end_open(&b, pd, 8, 4096);
	kit_end_open(&c, pd, 8, 4096);
	kit_connect(&b, &c.card);
	kit_connect(&c, &b.card);
	card = a.card;
	*gid = a.card.gid;
	card.qpn = 17u << 12 | 5;
	fds = kit_descriptors();
	kit_connect_with(&a, &card, 12, 4); /* 16.8 ms, four times again */
	t = kit_now();
	CHECK(!kit_post(&a, IBV_WR_SEND, 1, 0, 64, NULL, 0));
	CHECK(!kit_post(&a, IBV_WR_RDMA_WRITE, 2, 0, 64, &card, 0));
	for (int i = 0; i < 20; i++) {
		CHECK(!kit_post(&b, IBV_WR_RDMA_WRITE, 3, 0, 64, &c.card, 0));
		CHECK(kit_wait(&b, 10).status == IBV_WC_SUCCESS);
	}
	wc = kit_wait(&a, 10);
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_RETRY_EXC_ERR, "%d: %s", what,
	      ibv_wc_status_str(wc.status));
	wc = kit_wait(&a, 10);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(kit_now() - t < 8);
	kit_end_close(&a);
	kit_end_close(&b);
	kit_end_close(&c);
	/* One attempt may hang, and what looks for the number opens files for an instant: a leak stays. */
	for (int i = 0; (n = kit_descriptors()) > fds + 2; i++) {
		CHECK(i < 1000, "%d descriptors, then %d", fds, n);
		kit_nap(1);
	}
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	kill(pid, SIGKILL);
	kit_reap(pid);
}

/* Knocks at our own number with everything that there is. */
static void knocker(int number)
{
	static const enum says all[] = {SILENCE,    RUBBISH,  HALF,	  NO_SEGMENT, WRONG_FILE,
					SHORT_FILE, UNSEALED, WRONG_KEYS, LINGERING,  REFUSAL};
	int held[160];

	for (int i = 0; i < 160; i++) {
		struct timespec patience = {0, 2000000};
		int s = held[i] = kit_number_connect((uint32_t)number);

		for (int k = 0; k < 1 + i % 3; k++)
			say(s, all[(size_t)(i + k) % (sizeof all / sizeof all[0])]);
		if (i % 8 == 7)
			nanosleep(&patience, NULL);
		if (i % 5 == 0)
			close(s);
	}
	atomic_store(step, 1);
	for (;;)
		pause();
}

static void rubbish_at_the_door(bool other)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct kit_end a, b;
	double until;
	pid_t pid;
	int fds;

	kit_end_open(&a, pd, 8, 4096);
	kit_end_open(&b, pd, 8, 4096);
	kit_connect(&a, &b.card);
	kit_connect(&b, &a.card);
	fds = kit_descriptors();
	atomic_store(step, 0);
	pid = fork_as_other(other);
	if (!pid)
		knocker((int)(a.card.qpn >> 12));
	while (!atomic_load(step)) {
		CHECK(!kit_post(&a, IBV_WR_RDMA_WRITE, 3, 0, 64, &b.card, 0));
		CHECK(kit_wait(&a, 10).status == IBV_WC_SUCCESS);
	}
	CHECK(kit_descriptors() < fds + 300); /* those that never speak are held, up to a number */
	kill(pid, SIGKILL);
	kit_reap(pid);
	for (until = kit_now() + 10; kit_descriptors() > fds;)
		CHECK(kit_now() < until, "%d descriptors, then %d", fds, kit_descriptors());
	kit_end_close(&a);
	kit_end_close(&b);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

static void run(const char *name, void (*f)(bool), bool other)
{
	pid_t pid;

	printf("%s, %s\n", name, other ? "by another user" : "by this user");
	pid = kit_fork();
	if (!pid) {
		alarm(60);
		f(other);
		exit(0);
	}
	CHECK(kit_reap(pid) == 0, "%s", name);
}

static void all_impostors(bool other)
{
	for (int what = 0; what < ALL_SAYS; what++)
		ask_impostor((enum says)what, other);
}

int main(int argc, char **argv)
{
	bool other = kit_can_be(KIT_FOREIGN);

	if (!kit_own_network()) {
		printf("SKIP: no network namespace of its own: %s\n", strerror(errno));
		return KIT_SKIP;
	}
	kit_net_set("lo", true); /* LINGERING */
	step = kit_shared(sizeof *step);
	gid = kit_shared(sizeof *gid);
	if (!other)
		printf("SKIP by another user: this user cannot become one\n");
	for (int o = 0; o <= other; o++) {
		if (kit_asked("all names are taken", argc, argv))
			run("all names are taken", all_names_taken, o);
		if (kit_asked("an impostor listens", argc, argv))
			run("an impostor listens", all_impostors, o);
		if (kit_asked("rubbish at the door", argc, argv))
			run("rubbish at the door", rubbish_at_the_door, o);
	}
	return 0;
}
