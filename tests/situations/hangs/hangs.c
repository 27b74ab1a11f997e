/* hangs LIST [ID]: gets into each hang of a list ("all": of all of them), and asks `verbena explain` about
 * it. */
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/socket.h>

#include "hang.h"

enum { KNOWN = 8, TEXT = 256 };
#define SECONDS 30.0 /* until explain has to know */

struct ibv_context *ctx;
struct ibv_pd *pd;
struct kit_end e;
struct kit_card far;
bool is_peer;
pid_t peer_pid;

static struct shared {
	_Atomic int ready, who; /* who: the process to be explained */
	char known[KNOWN][TEXT], wrong[TEXT];
} * shared;
static int sock, nknown, log_fd;
static const char *const WARN = "0.2";

/* ---- for hangs ---- */

void two(void)
{
	int s[2];

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
	peer_pid = kit_fork();
	is_peer = !peer_pid;
	sock = s[is_peer];
}

void open_device(void)
{
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
}

void open_end(int depth)
{
	open_device();
	kit_end_open(&e, pd, depth, 8192);
}

void another_qp(struct kit_end *end, struct ibv_cq *scq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr qa = {
	    .qp_type = IBV_QPT_RC, .send_cq = scq, .recv_cq = e.cq, .srq = srq, .cap = {8, 8, 1, 1, 0}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = KIT_ALL};

	end->qp = ibv_create_qp(pd, &qa);
	CHECK(end->qp &&
	      !ibv_modify_qp(end->qp, &a,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	end->card.qpn = end->qp->qp_num;
}

struct ibv_srq *open_srq_end(struct kit_end *b, int receives)
{
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq_attr limit = {.srq_limit = 2};
	struct ibv_sge sge;
	struct ibv_recv_wr *bad, wr = {.num_sge = 1, .sg_list = &sge};
	struct ibv_srq *srq;

	open_end(8);
	srq = ibv_create_srq(pd, &sa);
	CHECK(srq);
	*b = e;
	another_qp(b, e.cq, srq);
	kit_connect(&e, &b->card);
	kit_connect(b, &e.card);
	sge = (struct ibv_sge){(uintptr_t)e.buf, 64, e.mr->lkey};
	for (int i = 0; i < receives; i++)
		CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
	CHECK(!ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	return srq;
}

void exchange(const void *mine, void *theirs, size_t len)
{
	CHECK(write(sock, mine, len) == (ssize_t)len && read(sock, theirs, len) == (ssize_t)len);
}

void meet(void)
{
	exchange(&e.card, &far, sizeof far);
}

void barrier(void)
{
	char c = 1, theirs;

	exchange(&c, &theirs, 1);
}

void connected(int depth)
{
	two();
	open_end(depth);
	meet();
	kit_connect(&e, &far);
	barrier();
}

void explain_peer(void)
{
	if (is_peer)
		atomic_store(&shared->who, getpid());
}

void knows(const char *fmt, ...)
{
	va_list ap;

	CHECK(nknown < KNOWN);
	va_start(ap, fmt);
	vsnprintf(shared->known[nknown++], TEXT, fmt, ap);
	va_end(ap);
}

void knows_better(const char *wrong)
{
	snprintf(shared->wrong, TEXT, "%s", wrong);
}

void hangs(void)
{
	int nobody = 0;

	if (is_peer && atomic_load(&shared->who) != getpid())
		return;
	atomic_compare_exchange_strong(&shared->who, &nobody, getpid());
	atomic_store(&shared->ready, 1);
}

void stay(void)
{
	hangs();
	for (;;)
		pause();
}

void poll_for_ever(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	hangs();
	for (;;)
		ibv_poll_cq(cq, 1, &wc);
}

void start(void *(*f)(void *), void *arg)
{
	pthread_t t;

	CHECK(!pthread_create(&t, NULL, f, arg));
}

void done(struct ibv_cq *cq)
{
	double end = kit_now() + 20;
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		CHECK(kit_now() < end);
	CHECK(n == 1 && !wc.status, "%s", ibv_wc_status_str(wc.status));
}

/* The engine takes packets in as long as nobody polls. */
void until_there(struct ibv_cq *cq)
{
	extern uint32_t hang_entries(struct ibv_cq *);
	double end = kit_now() + 20;

	while (!hang_entries(cq)) {
		CHECK(kit_now() < end);
		kit_nap(1);
	}
}

/* ---- the test ---- */

static const char *log_text(void)
{
	static char buf[1 << 16];
	ssize_t n = pread(log_fd, buf, sizeof buf - 1, 0);

	CHECK(n >= 0);
	buf[n] = 0;
	return buf;
}

static pid_t begin(const struct hang *h)
{
	char path[64];
	pid_t pid;

	shared = kit_shared(sizeof *shared);
	log_fd = memfd_create("log", 0);
	CHECK(log_fd >= 0);
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), log_fd);
	setenv("VERBENA_LOG", path, 1);
	setenv("VERBENA_WAIT_WARN", WARN, 1);
	nknown = 0;
	pid = kit_fork();
	if (pid)
		return pid;
	alarm(120);
	h->run();
	stay();
}

static const char *explain(pid_t pid, const char *option)
{
	static char text[1 << 17];
	char self[4096], command[4300];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	size_t got;
	FILE *f;

	CHECK(n > 0);
	self[n] = 0;
	*strrchr(self, '/') = 0;
	snprintf(command, sizeof command, "'%s/../verbena' explain %s %d 2>&1", self, option, (int)pid);
	f = popen(command, "re");
	CHECK(f);
	got = fread(text, 1, sizeof text - 1, f);
	text[got] = 0;
	(void)pclose(f); /* a process that is not there yet */
	return text;
}

/* What is missing in what explain says; NULL: nothing. */
static const char *missing(const struct hang *h, const char *text)
{
	static char cause[64];

	CHECK(!*shared->wrong || !strstr(text, shared->wrong), "explain says '%s' of %s:\n%s", shared->wrong,
	      h->id, text);
	snprintf(cause, sizeof cause, "[%s]", h->cause);
	if (!strstr(text, cause))
		return cause;
	for (int i = 0; i < KNOWN; i++)
		if (*shared->known[i] && !strstr(text, shared->known[i]))
			return shared->known[i];
	return strstr(strstr(text, cause), "to do: ") ? NULL : "to do: ";
}

static int count(const char *text, const char *what)
{
	int n = 0;

	while ((text = strstr(text, what))) {
		text += strlen(what);
		n++;
	}
	return n;
}

/* Whether the child lives. */
static bool lives(pid_t pid)
{
	int status;

	return waitpid(pid, &status, WNOHANG) == 0;
}

static bool check(const struct hang *h)
{
	double end = kit_now() + SECONDS;
	const char *text = "", *lacks = "ready", *said = NULL;
	pid_t pid = begin(h);
	bool ok = true;

	while (lives(pid) && !atomic_load(&shared->ready) && kit_now() < end)
		kit_nap(1);
	while (lacks && kit_now() < end && lives(pid)) {
		text = explain(atomic_load(&shared->who), "");
		lacks = missing(h, text);
	}
	while (h->unasked && !lacks && !strstr(said = log_text(), h->unasked) && kit_now() < end &&
	       lives(pid))
		kit_nap(5);
	if (h->unasked && !strncmp(h->id, "n", 1)) /* some of them for the second time that it may be said */
		kit_nap(500);
	if (lacks) {
		fprintf(stderr, "%s: verbena explain lacks '%s':\n%s", h->id, lacks, text);
		ok = false;
	} else if (h->unasked && count(log_text(), h->unasked) != 1) {
		fprintf(stderr, "%s: the log says '%s' %d times:\n%s", h->id, h->unasked,
			count(log_text(), h->unasked), log_text());
		ok = false;
	}
	printf("== %s (%s)\n%s%s", h->id, ok ? "ok" : "FAILED", text, log_text());
	fflush(stdout);
	kill(pid, SIGKILL);
	if (lives(pid))
		(void)kit_reap(pid);
	close(log_fd);
	munmap(shared, sizeof *shared);
	return ok;
}

/* Nothing is said for three times as long as would be waited for.  All of them wait at once. */
static void check_silence(const struct hang *h)
{
	pid_t pid = begin(h);

	while (!atomic_load(&shared->ready)) {
		CHECK(lives(pid), "%s has ended", h->id);
		kit_nap(1);
	}
	kit_nap(600);
	CHECK(lives(pid), "%s has ended", h->id);
	CHECK(!*log_text(), "%s: the log says:\n%s", h->id, log_text());
	kill(pid, SIGKILL);
	kit_reap(pid);
	_exit(0);
}

static int check_rights(const char *id)
{
	int n = 0, bad = 0, status;

	for (const struct hang *h = rights; h->id; h++) {
		if (id && !strstr(h->id, id))
			continue;
		n++;
		if (!kit_fork())
			check_silence(h);
	}
	for (int i = 0; i < n; i++)
		bad += wait(&status) < 0 || status;
	printf("%d that wait rightly, %d of which something is said\n", n, bad);
	return n && !bad ? 0 : 1;
}

static const struct {
	const char *name;
	const struct hang *all;
} lists[] = {{"requests", requests}, {"awaited", awaited}, {"polls", polls},	     {"sleeps", sleeps},
	     {"calls", calls},	     {"cms", cms},	   {"datagrams", datagrams}, {"more", more}};

int main(int argc, char **argv)
{
	int bad = 0, ran = 0;

	CHECK(argc > 1);
	kit_alone();
	if (!strcmp(argv[1], "rights"))
		return check_rights(argv[2]);
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
		for (const struct hang *h = lists[i].all; h->id; h++) {
			if (strcmp(argv[1], "all") && strcmp(argv[1], lists[i].name))
				continue;
			if (argc > 2 && !strstr(h->id, argv[2]))
				continue;
			bad += !check(h);
			ran++;
		}
	CHECK(ran, "there is no such hang");
	printf("%d hangs, %d not explained\n", ran, bad);
	return bad ? 1 : 0;
}
