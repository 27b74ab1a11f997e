/* A request that waits without a limit (timeout 0) asks for contact again after each refusal, whichever
 * thread reads that: where a thread waits for completions, the engine leaves the doorbells to it and blocks.
 */
#include <errno.h>
#include <poll.h>

#include "contact.h"

enum { NUMBER = 17, REFUSALS = 6 };

static void ask(void)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct kit_card card;
	struct kit_end e;
	struct ibv_cq *cq;
	void *user;

	CHECK(pd && channel);
	kit_end_open_on(&e, pd, channel, 8, 4096);
	card = e.card;
	card.qpn = NUMBER << 12 | 5;
	kit_connect_with(&e, &card, 0, 7);
	CHECK(!ibv_req_notify_cq(e.cq, 0));
	CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 64, NULL, 0));
	ibv_get_cq_event(channel, &cq, &user);
	CHECK(0, "the request has ended");
}

/* The next one who says hello there. */
static int greeted(int l)
{
	struct pollfd p = {.fd = l, .events = POLLIN};
	struct hello h;
	int s;

	CHECK(poll(&p, 1, 20000) == 1, "nobody asks again");
	s = accept(l, NULL, NULL);
	CHECK(s >= 0 && recv(s, &h, sizeof h, 0) == sizeof h && h.kind == MSG_HELLO);
	return s;
}

int main(void)
{
	struct hello no = kit_hello();
	pid_t pid;
	int l;

	if (!kit_own_network()) {
		printf("SKIP: no network namespace of its own: %s\n", strerror(errno));
		return KIT_SKIP;
	}
	no.kind = MSG_REFUSE;
	no.why = REFUSE_UNABLE;
	l = kit_number_bind(NUMBER, false);
	CHECK(l >= 0);
	pid = kit_fork();
	if (!pid)
		ask();
	for (int i = 0; i < REFUSALS; i++) {
		int s = greeted(l);

		kit_nap(30); /* meanwhile the engine leaves the doorbells to the thread that waits */
		kit_hello_send(s, &no, sizeof no, NULL, 0);
		close(s);
	}
	kill(pid, SIGKILL);
	kit_reap(pid);
	puts("asked again after each refusal");
	return 0;
}
