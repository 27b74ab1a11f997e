/* Two processes with mixed operations at random, see mixed.h: with direct placement at both ends, at one and
 * at none, and over each kind of memory.
 *
 *     proc-mixed [OPERATIONS [SEED]]      default 60,000 operations per direction for the first run and a
 * third of that for the others, 1,000,000 each in make soak
 */
#include "mixed.h"

static void side_close(struct ibv_context *c)
{
	CHECK(!ibv_close_device(c));
}

static void side(const struct kit_mixed *m, int which, bool direct)
{
	setenv("VERBENA_DIRECT", direct ? "on" : "off", 1);
	kit_mixed_side(m, which);
	exit(0);
}

static bool huge_pages(void)
{
	int fd = memfd_create("huge", MFD_HUGETLB);
	void *p = fd < 0 ? MAP_FAILED
			 : mmap(NULL, 2 * KIT_MIXED_QPS * (size_t)KIT_HUGE_PAGE, PROT_READ | PROT_WRITE,
				MAP_SHARED, fd, 0);

	if (fd >= 0)
		close(fd);
	if (p == MAP_FAILED)
		return false;
	munmap(p, 2 * KIT_MIXED_QPS * (size_t)KIT_HUGE_PAGE);
	return true;
}

int main(int argc, char **argv)
{
	static const char *const memories[] = {"private",   "memfd", "/dev/shm",
					       "hugetlbfs", "SysV",  "read-only"};
	static const struct {
		enum kit_memory memory;
		bool direct[2];
	} runs[] = {
	    {KIT_PRIVATE, {true, true}},    {KIT_PRIVATE, {false, false}}, {KIT_PRIVATE, {true, false}},
	    {KIT_MEMFD, {true, true}},	    {KIT_MEMFD, {false, true}},	   {KIT_SHM_FILE, {true, true}},
	    {KIT_HUGE, {true, true}},	    {KIT_SYSV, {true, true}},	   {KIT_READ_ONLY, {true, true}},
	    {KIT_READ_ONLY, {true, false}},
	};
	struct kit_mixed m = {
	    .cards = kit_shared(2 * sizeof *m.cards), .open = kit_open, .close = side_close};
	pid_t pid[2];

	m.operations = argc > 1 ? strtoull(argv[1], NULL, 0) : getenv("VERBENA_SOAK") ? 1000000 : 60000;
	m.seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)getpid() << 20 ^ (uint64_t)clock();
	printf("mixed: seed %" PRIu64 "\n", m.seed);
	for (unsigned i = 0; i < sizeof runs / sizeof runs[0]; i++) {
		m.memory = runs[i].memory;
		m.loses = i % 2;
		printf("mixed: %s memory, direct %s and %s\n", memories[m.memory],
		       runs[i].direct[0] ? "on" : "off", runs[i].direct[1] ? "on" : "off");
		if (m.memory == KIT_HUGE && !huge_pages()) {
			printf("mixed: SKIP, no huge pages\n");
			continue;
		}
		memset(m.cards, 0, 2 * sizeof *m.cards);
		for (int k = 0; k < 2; k++) {
			pid[k] = kit_fork();
			if (!pid[k])
				side(&m, k, runs[i].direct[k]);
		}
		for (int k = 0; k < 2; k++)
			CHECK(!kit_reap(pid[k]), "side %d failed", k);
		if (!i && !getenv("VERBENA_SOAK"))
			m.operations /= 3;
	}
	return 0;
}
