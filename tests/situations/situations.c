/* situations ID: gets into one; without ID: into each of them. */
#include <stdarg.h>

#include "situation.h"

struct ibv_context *ctx;
struct ibv_pd *pd;
struct kit_end a, b;

enum { SAYINGS = 32, SAYING = 256 };
static char sayings[SAYINGS][SAYING]; /* what `verbena explain` is to know */
static int nsayings, nlogged, log_fd;
static off_t log_at;

static const struct situation *const all[] = {registration, limits, protection, lifetime, connections};

/* What the log says from `from` on. */
static const char *log_text(off_t from)
{
	static char buf[1 << 16];
	ssize_t n = pread(log_fd, buf, sizeof buf - 1, from);

	CHECK(n >= 0);
	buf[n] = 0;
	return buf;
}

void silence(void)
{
	log_at = lseek(log_fd, 0, SEEK_END);
}

/* Another thread that has brought a completion may write its line later. */
static void find(int line, const char *what)
{
	double end = kit_now() + 20;
	const char *text;

	while (!strstr(text = log_text(log_at), what)) {
		CHECK(kit_now() < end, "line %d: no '%s' in:\n%s", line, what, text);
		kit_nap(1);
	}
}

void said(int line, const char *fmt, ...)
{
	va_list ap;

	CHECK(nsayings < SAYINGS);
	va_start(ap, fmt);
	vsnprintf(sayings[nsayings], SAYING, fmt, ap);
	va_end(ap);
	find(line, sayings[nsayings++]);
}

void said_not(int line, const char *what)
{
	const char *text = log_text(log_at);

	CHECK(!strstr(text, what), "line %d: '%s' in:\n%s", line, what, text);
}

void kept(const char *fmt, ...)
{
	va_list ap;

	CHECK(nsayings < SAYINGS);
	va_start(ap, fmt);
	vsnprintf(sayings[nsayings++], SAYING, fmt, ap);
	va_end(ap);
}

void logged(int line, const char *fmt, ...)
{
	char what[SAYING];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	find(line, what);
	nlogged++;
}

void skip(const char *why)
{
	printf("skipped: %s\n", why);
	fflush(stdout);
	_exit(SKIP);
}

uint8_t *alone(size_t size, int prot)
{
	uint8_t *p = mmap(NULL, size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED && !mprotect(p + PAGE, size, prot));
	CHECK(!munmap(p, PAGE) && !munmap(p + PAGE + size, PAGE));
	return p + PAGE;
}

void pair_open(void)
{
	kit_end_open(&a, pd, 8, PAGE);
	kit_end_open(&b, pd, 8, PAGE);
	kit_connect_with(&a, &b.card, 10, 1);
	kit_connect_with(&b, &a.card, 10, 1);
}

void expect(enum ibv_wc_status status)
{
	struct ibv_wc wc;

	do { /* completions of b's receives are b's */
		wc = kit_wait(&a, 10);
	} while (wc.wr_id != 1);
	CHECK(wc.status == status, "%s", ibv_wc_status_str(wc.status));
}

void ask(enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr, uint32_t len)
{
	struct kit_card to = b.card;

	to.rkey = rkey;
	to.addr = addr;
	CHECK(!kit_post(&a, op, 1, 0, len, &to, 0));
}

/* The command of the same build, asked about this process. */
static void check_explain(void)
{
	static char text[1 << 17];
	char self[4096], command[4200];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	size_t got;
	FILE *f;

	CHECK(n > 0);
	self[n] = 0;
	*strrchr(self, '/') = 0;
	snprintf(command, sizeof command, "'%s/../verbena' explain %d", self, (int)getpid());
	f = popen(command, "re");
	CHECK(f);
	got = fread(text, 1, sizeof text - 1, f);
	text[got] = 0;
	CHECK(!pclose(f), "%s", text);
	for (int i = 0; i < nsayings; i++)
		CHECK(strstr(text, sayings[i]), "verbena explain does not know '%s':\n%s", sayings[i], text);
}

static void get_into(const struct situation *s)
{
	char path[64];

	alarm(120);
	log_fd = memfd_create("log", 0);
	CHECK(log_fd >= 0);
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), log_fd);
	setenv("VERBENA_LOG", path, 1);
	unsetenv("VERBENA_LOG_LEVEL");
	if (s->profile)
		setenv("VERBENA_PROFILE", s->profile, 1);
	else
		unsetenv("VERBENA_PROFILE");
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	s->run();
	CHECK(nsayings + nlogged, "%s said nothing", s->id);
	check_explain();
	printf("%s: %s", s->id, log_text(log_at));
	fflush(stdout);
	_exit(0); /* with all that it has open */
}

int main(int argc, char **argv)
{
	int ran = 0, bad = 0, skipped = 0;

	for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
		for (const struct situation *s = all[k]; s->id; s++) {
			int status;
			pid_t pid;

			if (argc > 1 && strcmp(argv[1], s->id))
				continue;
			ran++;
			pid = kit_fork();
			if (!pid)
				get_into(s);
			status = kit_reap(pid);
			if (WIFEXITED(status) && WEXITSTATUS(status) == SKIP)
				skipped++;
			else if (status)
				fprintf(stderr, "%s: 0x%x\n", s->id, status);
			bad += status && !(WIFEXITED(status) && WEXITSTATUS(status) == SKIP);
		}
	}
	CHECK(ran, "there is no situation %s", argc > 1 ? argv[1] : "at all");
	printf("%d situations, %d failed, %d skipped\n", ran, bad, skipped);
	return bad ? 1 : skipped == ran ? SKIP : 0;
}
