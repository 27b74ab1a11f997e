/* Tests of memory: registering it, and finding the region of a key. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "vbench.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PEERS	      16u
#define SIZES	      6u
#define RELAXED_SIZES 3u			/* 1 MiB is their limit */
#define SIZE(i)	      ((size_t)4096 << 4 * (i)) /* 4 KiB ... 4 GiB */

/* SENDs gathered from one of n regions, chosen by a fixed walk.  The program's own part is a sequence of keys
 * laid out in order, so that what is measured is the library's way from a key to its region. */
static void lookup(struct side *s, unsigned n)
{
	struct ibv_mr **mr = calloc(n, sizeof(struct ibv_mr *)), *mine = s->mr, any = *mine;
	uint32_t *walk = calloc(LAT_ITERS, sizeof(uint32_t));
	unsigned owed = 0, spent = 0;
	struct laps l = {0};
	char name[32];

	if (!mr || !walk)
		die("calloc");
	for (unsigned i = 0; i < n; i++) {
		mr[i] = ibv_reg_mr(s->pd, s->buf, 4096, IBV_ACCESS_LOCAL_WRITE);
		if (!mr[i])
			die("ibv_reg_mr");
	}
	for (uint64_t i = 0; i < LAT_ITERS; i++)
		walk[i] = mr[i * 381713u % n]->lkey;
	side_receive(s, 2 * LIST, 8);
	side_meet(s);
	for (unsigned i = 0; i < LAT_ITERS; i++) {
		bool signal = i % LIST == LIST - 1;

		if (i % LAP == 0)
			lap(&l);
		if (!s->client)
			side_wait(s->rcq, 1);
		any.lkey = walk[i];
		s->mr = &any;
		side_post(s, IBV_WR_SEND, 8, signal ? IBV_SEND_SIGNALED : 0);
		s->mr = mine;
		owed += signal;
		if (s->client)
			side_wait(s->rcq, 1);
		if (++spent == LIST) {
			side_receive(s, LIST, 8);
			spent = 0;
			owed -= side_poll(s->scq, owed);
		}
	}
	lap(&l);
	if (s->client) {
		snprintf(name, sizeof(name), "lookup_%u", n);
		figure(name, l.least / LAP / 2);
	}
	side_wait(s->scq, owed);
	for (unsigned i = 0; i < n; i++)
		if (ibv_dereg_mr(mr[i]))
			die("ibv_dereg_mr");
	free(walk);
	free(mr);
}

void lookup_1(struct side *s)
{
	lookup(s, 1);
}

void lookup_1k(struct side *s)
{
	lookup(s, 1000);
}

void lookup_1m(struct side *s)
{
	lookup(s, 1000000);
}

static size_t available(void)
{
	unsigned long long kb = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu", &kb) == 1)
			break;
	fclose(f);
	return (size_t)kb << 10;
}

enum how { POPULATE, PLAIN, ON_DEMAND, RELAXED };

static void once(struct ibv_pd *pd, enum how how, char *a, size_t n)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	bool relaxed = how == RELAXED;
	struct ibv_mr *mr;

	if (how == ON_DEMAND)
		access |= IBV_ACCESS_ON_DEMAND;
	mr = relaxed ? ibv_reg_mr_relaxed(pd, a, n, access) : ibv_reg_mr(pd, a, n, access);
	if (!mr || (relaxed ? ibv_dereg_mr_relaxed(mr) : ibv_dereg_mr(mr)))
		die("registration");
}

/* The best of a few turns; each long enough to be measured. */
static double best(struct ibv_pd *pd, enum how how, char *a, size_t n)
{
	unsigned count = n < 1u << 20 ? 1000 : n < 1u << 28 ? 20 : 1;
	double least = 0, t;

	for (int turn = 0; turn < 5; turn++) {
		t = now();
		for (unsigned i = 0; i < count; i++) {
			if (how == POPULATE) {
				if (madvise(a, n, MADV_POPULATE_WRITE))
					return 0; /* a kernel before 5.14: no such limit */
				continue;
			}
			once(pd, how, a, n);
		}
		t = (now() - t) / count;
		if (!turn || t < least)
			least = t;
	}
	return least;
}

static void sizes(struct ibv_pd *pd, enum how how, char *const a[SIZES], const char *what)
{
	char name[32];

	for (unsigned i = 0; i < (how == RELAXED ? RELAXED_SIZES : SIZES); i++) {
		double t = a[i] ? best(pd, how, a[i], SIZE(i)) : 0;

		snprintf(name, sizeof(name), "%s_%zu", what, SIZE(i));
		if (t)
			figure(name, t);
	}
}

static char *touched(size_t n)
{
	char *a = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (a == MAP_FAILED)
		die("mmap");
	memset(a, 1, n);
	return a;
}

/* A socket that hears what it says: both sides are this one. */
static int loop_socket(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int s = socket(AF_INET, SOCK_DGRAM, 0);

	if (s < 0 || bind(s, (struct sockaddr *)&a, len) || getsockname(s, (struct sockaddr *)&a, &len) ||
	    connect(s, (struct sockaddr *)&a, len))
		die("a socket to oneself");
	return s;
}

struct revoker {
	struct ibv_pd *pd;
	_Atomic bool stop;
	_Atomic uint64_t taken_back; /* regions */
};

static void *take_back(void *arg)
{
	struct revoker *r = arg;
	char *a = touched(SIZE(0));

	pin(1);
	while (!atomic_load(&r->stop)) {
		once(r->pd, PLAIN, a, SIZE(0));
		atomic_fetch_add(&r->taken_back, 1);
	}
	munmap(a, SIZE(0));
	return NULL;
}

static double write_time(struct side *s)
{
	struct laps l = {0};

	for (unsigned i = 0; i < LAT_ITERS; i++) {
		if (i % LAP == 0)
			lap(&l);
		side_post(s, IBV_WR_RDMA_WRITE, 8, IBV_SEND_SIGNALED);
		side_wait(s->scq, 1);
	}
	lap(&l);
	return l.least / LAP;
}

/* WRITEs of a QP to itself, alone and while another thread takes back one region after the other. */
static void beside_revocation(void)
{
	struct side s = {.client = true, .sock = loop_socket()};
	struct revoker r = {0};
	pthread_t t;

	side_open(&s);
	r.pd = s.pd;
	write_time(&s);
	figure("self_write", write_time(&s));
	if (pthread_create(&t, NULL, take_back, &r))
		die("pthread_create");
	while (!atomic_load(&r.taken_back))
		;
	figure("self_write_revoking", write_time(&s));
	atomic_store(&r.stop, true);
	pthread_join(t, NULL);
	side_close(&s);
	close(s.sock);
}

static void peer(int sock)
{
	struct side s = {.sock = sock};

	side_open(&s);
	side_warm(&s);
	side_close(&s);
}

void registrations(void)
{
	struct side side[PEERS];
	struct ibv_device **list;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	char *a[SIZES];

	/* Each waits in its first step for this side's.  They are forked before there is memory to copy. */
	side_fork(side, PEERS, peer);
	list = ibv_get_device_list(NULL);
	ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	if (!pd)
		die("no RDMA device");
	ibv_free_device_list(list);
	pin(0);
	for (unsigned i = 0; i < SIZES; i++)
		a[i] = SIZE(i) < available() / 2 ? touched(SIZE(i)) : NULL;
	sizes(pd, POPULATE, a, "populate");
	sizes(pd, PLAIN, a, "reg");
	sizes(pd, ON_DEMAND, a, "odp");
	sizes(pd, RELAXED, a, "relaxed");
	for (unsigned i = 0; i < PEERS; i++) {
		side_open(&side[i]);
		side_warm(&side[i]);
	}
	sizes(pd, PLAIN, a, "reg16");
	sizes(pd, RELAXED, a, "relaxed16");
	sizes(pd, POPULATE, a, "populate");
	beside_revocation();
	for (unsigned i = 0; i < PEERS; i++)
		side_close(&side[i]);
	for (unsigned i = 0; i < PEERS; i++)
		wait(NULL);
	for (unsigned i = 0; i < SIZES; i++)
		if (a[i])
			munmap(a[i], SIZE(i));
	if (ibv_dealloc_pd(pd) || ibv_close_device(ctx))
		die("closing");
}
