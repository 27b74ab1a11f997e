/* Two processes with mixed operations at random, see mixed.h.
 *
 *     proc-mixed [OPERATIONS [SEED]]      default 60,000 operations per direction, 1,000,000 in make soak
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

int main(int argc, char **argv)
{
	uint64_t operations = argc > 1		       ? strtoull(argv[1], NULL, 0)
			      : getenv("VERBENA_SOAK") ? 1000000
						       : 60000;
	int status;
	pid_t pid;

	seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)getpid() << 20 ^ (uint64_t)clock();
	printf("mixed: seed %" PRIu64 "\n", seed);
	fflush(stdout);
	cards = mmap(NULL, 2 * sizeof *cards, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (cards == MAP_FAILED || (pid = fork()) < 0)
		return perror("mixed"), 1;
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		me = 1;
		return run(operations);
	}
	status = run(operations);
	if (status)
		return status;
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status))
		return fprintf(stderr, "mixed: the other process failed (status %d)\n", status), 1;
	return 0;
}
