/* Two processes with mixed operations at random, see mixed.h: with direct placement at both ends, at one and
 * at none, and over each kind of memory.
 *
 *     proc-mixed [OPERATIONS [SEED]]      default 60,000 operations per direction for the first run and a
 * third of that for the others, 1,000,000 each in make soak
 */
#include "mixed.h"

static struct ibv_context *side_open(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *c;

	CHECK(list && list[0]);
	c = ibv_open_device(list[0]);
	CHECK(c);
	ibv_free_device_list(list);
	return c;
}

static void side_close(struct ibv_context *c)
{
	CHECK(!ibv_close_device(c));
}

static int side(int which, bool direct, uint64_t operations)
{
	me = which;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setenv("VERBENA_DIRECT", direct ? "on" : "off", 1);
	return run(operations);
}

static bool huge_pages(void)
{
	int fd = memfd_create("huge", MFD_HUGETLB);
	void *p = fd < 0 ? MAP_FAILED
			 : mmap(NULL, 2 * QPS * (size_t)HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (fd >= 0)
		close(fd);
	if (p == MAP_FAILED)
		return false;
	munmap(p, 2 * QPS * (size_t)HUGE_PAGE);
	return true;
}

int main(int argc, char **argv)
{
	static const struct {
		enum memory memory;
		bool direct[2];
	} runs[] = {
	    {PRIVATE, {true, true}},	{PRIVATE, {false, false}}, {PRIVATE, {true, false}},
	    {MEMFD, {true, true}},	{MEMFD, {false, true}},	   {SHM_FILE, {true, true}},
	    {HUGE, {true, true}},	{SYSV, {true, true}},	   {READ_ONLY, {true, true}},
	    {READ_ONLY, {true, false}},
	};
	uint64_t operations = argc > 1		       ? strtoull(argv[1], NULL, 0)
			      : getenv("VERBENA_SOAK") ? 1000000
						       : 60000;
	pid_t pid[2];
	int status;

	seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)getpid() << 20 ^ (uint64_t)clock();
	printf("mixed: seed %" PRIu64 "\n", seed);
	cards = mmap(NULL, 2 * sizeof *cards, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (cards == MAP_FAILED)
		return perror("mixed"), 1;
	for (unsigned i = 0; i < sizeof runs / sizeof runs[0]; i++) {
		memory = runs[i].memory;
		printf("mixed: %s memory, direct %s and %s\n", memories[memory],
		       runs[i].direct[0] ? "on" : "off", runs[i].direct[1] ? "on" : "off");
		if (memory == HUGE && !huge_pages()) {
			printf("mixed: SKIP, no huge pages\n");
			continue;
		}
		fflush(stdout);
		memset(cards, 0, 2 * sizeof *cards);
		for (int k = 0; k < 2; k++) {
			pid[k] = fork();
			if (pid[k] < 0)
				return perror("mixed"), 1;
			if (!pid[k])
				exit(side(k, runs[i].direct[k], operations));
		}
		for (int k = 0; k < 2; k++)
			if (waitpid(pid[k], &status, 0) != pid[k] || !WIFEXITED(status) ||
			    WEXITSTATUS(status))
				return fprintf(stderr, "mixed: side %d failed (status %d)\n", k, status), 1;
		if (!i && !getenv("VERBENA_SOAK"))
			operations /= 3;
	}
	return 0;
}
