#include "hca/ask.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* A thread that waits for an answer; guarded by hca->ask_lock. */
struct waiting {
	struct vb_list node;
	struct vb_peer *peer;
	uint32_t ticket;
	uint8_t subject;
	bool done;
	struct vb_answer *answer;
};

void vb_ask_answered(struct vb_peer *peer, uint8_t subject, const void *msg, size_t len, int fd)
{
	struct vb_hca *h = vb_hca(peer->adapter);
	int mine = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
	struct vb_ask_head head;

	memcpy(&head, msg, sizeof(head));
	vb_lock_take(&h->ask_lock);
	vb_list_each (n, &h->asked) {
		struct waiting *w = vb_list_entry(n, struct waiting, node);

		if (w->ticket != head.ticket || w->subject != subject || w->peer != peer || w->done)
			continue;
		memcpy(w->answer->msg, msg, len);
		w->answer->len = len;
		w->answer->fd = mine;
		w->done = true;
		mine = -1;
	}
	vb_lock_give(&h->ask_lock);
	if (mine >= 0)
		close(mine);
}

static bool is_done(struct vb_hca *h, const struct waiting *w)
{
	bool done;

	vb_lock_take(&h->ask_lock);
	done = w->done;
	vb_lock_give(&h->ask_lock);
	return done;
}

/* Asks again now and then, since a question or an answer finds no room in a socket that nobody reads. */
static int await(struct vb_hca *h, const struct waiting *w, const void *msg, size_t len, uint64_t until)
{
	static const struct timespec nap = {.tv_nsec = 200000};
	uint64_t again = 0;

	while (!is_done(h, w)) {
		uint64_t now = vb_now();

		if (atomic_load(&w->peer->state) != VB_PEER_UP)
			return EIO;
		if (now > until)
			return ETIMEDOUT;
		if (now >= again && vb_peer_tell(w->peer, w->subject, msg, len, -1))
			again = now + VB_ASK_PATIENCE / 8;
		syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &nap, NULL); /* no cancellation point */
	}
	return 0;
}

int vb_ask(struct vb_peer *peer, uint8_t subject, void *msg, size_t len, uint64_t until,
	   struct vb_answer *answer)
{
	struct waiting w = {.peer = peer, .subject = subject, .answer = answer};
	struct vb_hca *h = vb_hca(peer->adapter);
	struct vb_ask_head head;
	int err;

	*answer = (struct vb_answer){.fd = -1};
	w.ticket = atomic_fetch_add(&h->tickets, 1) + 1;
	memcpy(&head, msg, sizeof(head));
	head.ticket = w.ticket;
	memcpy(msg, &head, sizeof(head));
	vb_lock_take(&h->ask_lock);
	vb_list_append(&h->asked, &w.node);
	vb_lock_give(&h->ask_lock);
	err = await(h, &w, msg, len, until);
	vb_lock_take(&h->ask_lock);
	vb_list_unlink(&w.node);
	vb_lock_give(&h->ask_lock);
	if (err && answer->fd >= 0) { /* it came too late */
		close(answer->fd);
		answer->fd = -1;
	}
	return err;
}
