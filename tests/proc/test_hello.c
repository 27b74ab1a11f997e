/* Who says hello is let in if all of it is right, and not if a single thing is wrong: in the hello, in the
 * segment that comes with it, or in who says it.  Each is tried from both sides: a process that listens where
 * a peer should be and answers our hello, and one that connects to us.  In a network namespace of its own,
 * since names belong to one. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include "contact.h"
#include "verbs/verbs.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { NUMBER = 17, INCARNATION = 77 };

enum wrong {
	NOTHING,
	USER,
	HELLO_CUT,
	HELLO_MAGIC,
	HELLO_VERSION,
	HELLO_INCARNATION,
	HELLO_NUMBER_0,
	HELLO_NUMBER,
	HELLO_INDEX,
	HELLO_LINK,
	NO_SEGMENT,
	SEGMENT_FILE,
	SEGMENT_SIZE,
	SEGMENT_SHORT,	/* it can be shortened, and that is all: no further seal can come */
	SEGMENT_OPEN,	/* further seals may come */
	SEGMENT_SEALED, /* nobody can write to it */
	SEGMENT_MAGIC,
	SEGMENT_VERSION,
	SEGMENT_SAYS_SIZE,
	SEGMENT_INCARNATION,
	SEGMENT_NUMBERS, /* ours among them: it is of another network namespace */
	NO_HINTS,
	HINTS_FILE,
	HINTS_SIZE,
	HINTS_SHORT,
	HINTS_OPEN,
	HINTS_SEALED, /* nobody can write to them */
	WRONGS
};

struct board {
	union ibv_gid gid; /* the device's, which the other process publishes */
	uint32_t number;   /* ours */
	_Atomic int step;
	_Atomic int answer; /* to who connects: 1: hello, 2: no */
};
static struct board *board;

static void seal(int fd, int seals)
{
	CHECK(!fcntl(fd, F_ADD_SEALS, seals));
}

static int segment(enum wrong w)
{
	struct vb_seg_head head = {.magic = VB_SEG_MAGIC + (w == SEGMENT_MAGIC),
				   .version = VB_SEG_VERSION + (w == SEGMENT_VERSION),
				   .number = NUMBER,
				   .incarnation = INCARNATION + (w == SEGMENT_INCARNATION),
				   .size = VB_SEG_SIZE + (w == SEGMENT_SAYS_SIZE),
				   .numbers = {w == SEGMENT_NUMBERS ? board->number : NUMBER},
				   .nnumbers = 1};
	int fd = w == SEGMENT_FILE ? open("/dev/zero", O_RDWR | O_CLOEXEC)
				   : memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0);
	memcpy(head.gids[0], &board->gid, sizeof board->gid);
	if (w == SEGMENT_FILE)
		return fd;
	CHECK(!ftruncate(fd, (off_t)VB_SEG_SIZE + (w == SEGMENT_SIZE ? 4096 : 0)));
	CHECK(pwrite(fd, &head, sizeof head, 0) == sizeof head);
	seal(fd, (w == SEGMENT_SHORT ? 0 : F_SEAL_SHRINK) | (w == SEGMENT_OPEN ? 0 : F_SEAL_SEAL) |
		     (w == SEGMENT_SEALED ? F_SEAL_WRITE : 0));
	return fd;
}

static int hints(enum wrong w)
{
	int fd;

	if (w < HINTS_FILE)
		return kit_hints();
	if (w == HINTS_FILE)
		return open("/dev/zero", O_RDWR | O_CLOEXEC);
	fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(fd >= 0 && !ftruncate(fd, (off_t)VB_HINTS_SIZE + (w == HINTS_SIZE ? 4096 : 0)));
	seal(fd, (w == HINTS_SHORT ? 0 : F_SEAL_SHRINK) | (w == HINTS_OPEN ? 0 : F_SEAL_SEAL) |
		     (w == HINTS_SEALED ? F_SEAL_FUTURE_WRITE : 0));
	return fd;
}

static void say_hello(int s, enum wrong w)
{
	struct hello h = {.kind = MSG_HELLO,
			  .version = (uint16_t)(VB_SEG_VERSION + (w == HELLO_VERSION)),
			  .magic = VB_SEG_MAGIC + (w == HELLO_MAGIC),
			  .incarnation = w == HELLO_INCARNATION ? 0 : INCARNATION,
			  .number = w == HELLO_NUMBER_0 ? 0
				    : w == HELLO_NUMBER ? VB_ADAPTERS
							: NUMBER,
			  .index = w == HELLO_INDEX ? VB_MAX_PEERS : 3,
			  .pid = (uint32_t)getpid(),
			  .link = w == HELLO_LINK ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET};
	int fds[] = {segment(w), hints(w)}, n = w == NO_SEGMENT ? 0 : w == NO_HINTS ? 1 : 2;

	kit_hello_send(s, &h, sizeof h - (w == HELLO_CUT ? 4 : 0), fds, n);
	while (n < 2)
		close(fds[n++]);
}

static void become(enum wrong w)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (w != USER)
		return;
	CHECK(!setresgid(KIT_FOREIGN, KIT_FOREIGN, KIT_FOREIGN) &&
	      !setresuid(KIT_FOREIGN, KIT_FOREIGN, KIT_FOREIGN));
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* Answers all who connect, and holds the connections. */
static void listener(enum wrong w)
{
	int l;

	become(w);
	l = kit_number_bind(NUMBER, false);
	CHECK(l >= 0);
	atomic_store(&board->step, 1);
	for (;;) {
		int s = accept(l, NULL, NULL);

		CHECK(s >= 0);
		say_hello(s, w);
	}
}

/* Who is let in already, and comes by another connection, is told so. */
static void knock_again(void)
{
	int s = kit_number_connect(board->number);
	struct hello h;

	say_hello(s, NOTHING);
	CHECK(recv(s, &h, sizeof h, 0) == sizeof h && h.kind == MSG_REFUSE && h.why == REFUSE_KNOWN);
}

static void knocker(enum wrong w)
{
	struct hello h;
	int s;

	become(w);
	kit_until(&board->step, 1);
	s = kit_number_connect(board->number);
	say_hello(s, w);
	atomic_store(&board->answer, recv(s, &h, sizeof h, 0) == sizeof h && h.kind == MSG_HELLO ? 1 : 2);
	if (atomic_load(&board->answer) == 1)
		knock_again();
	atomic_store(&board->step, 2);
	for (;;)
		pause();
}

static bool is_up(struct vb_adapter *a)
{
	for (uint32_t i = 0; i < vb_peer_count(a); i++) {
		struct vb_peer *peer = vb_peer_at(a, i);

		if (atomic_load(&peer->state) == VB_PEER_UP && peer->incarnation == INCARNATION)
			return true;
	}
	return false;
}

/* A request that makes contact wanted: its retries are used up, or contact is made (after that nobody takes
 * its packets, which is no loss). */
static void we_ask(struct vb_adapter *a, struct kit_end *e)
{
	struct kit_card card = e->card;
	double end = kit_now() + 20;
	struct ibv_wc wc;

	card.qpn = NUMBER << 12 | 5;
	kit_connect_with(e, &card, 12, 4); /* 16.8 ms, four times again */
	CHECK(!kit_post(e, IBV_WR_SEND, 1, 0, 64, NULL, 0));
	while (!is_up(a) && !ibv_poll_cq(e->cq, 1, &wc))
		CHECK(kit_now() < end);
}

static void try(enum wrong w, bool asks)
{
	struct vb_adapter *a;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct kit_end e;
	pid_t pid;
	bool up;

	memset(board, 0, sizeof *board);
	pid = kit_fork();
	if (!pid) {
		ctx = kit_open(); /* for its GID */
		CHECK(!ibv_query_gid(ctx, 1, 0, &board->gid) && !ibv_close_device(ctx));
		(asks ? knocker : listener)(w);
	}
	if (!asks)
		kit_until(&board->step, 1);
	kit_log_begin("info");
	ctx = kit_open();
	a = vb_context(ctx)->adapter;
	pd = ibv_alloc_pd(ctx);
	kit_end_open(&e, pd, 8, 4096);
	if (asks) {
		board->number = e.card.qpn >> 12;
		atomic_store(&board->step, 1);
		kit_until(&board->answer, 1);
		/* the answer is on its way before the link is up */
		for (double end = kit_now() + 10; atomic_load(&board->answer) == 1 && !is_up(a);)
			CHECK(kit_now() < end);
		kit_until(&board->step, 2);
	} else {
		we_ask(a, &e);
	}
	up = is_up(a);
	CHECK(up == (w == NOTHING), "%s with %d wrong: %s", asks ? "who connects" : "who listens", w,
	      up ? "let in" : "kept out");
	if (w == NO_HINTS && asks)
		KIT_LOG_SAYS("sent a first message without its two descriptors");
	if (w == HINTS_SEALED)
		KIT_LOG_SAYS("is not mapped: its doorbell page cannot be written");
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	kill(pid, SIGKILL);
	kit_reap(pid);
	exit(0);
}

int main(void)
{
	bool users = kit_can_be(KIT_FOREIGN);

	if (!kit_own_network()) {
		printf("SKIP: no network namespace of its own: %s\n", strerror(errno));
		return KIT_SKIP;
	}
	board = kit_shared(sizeof *board);
	if (!users)
		printf("by another user: not tried, this user cannot become one\n");
	for (int w = 0; w < WRONGS; w++)
		for (int asks = 0; asks < 2 && (w != USER || users); asks++) {
			pid_t pid;

			if (w == SEGMENT_NUMBERS && !asks)
				continue; /* our number is known to who connects only */
			pid = kit_fork();
			if (!pid) {
				alarm(60);
				try((enum wrong)w, asks);
			}
			CHECK(!kit_reap(pid), "%d, %d", w, asks);
		}
	puts("let in if all is right, and else not");
	return 0;
}
