#include "hca/say.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define AGAIN (10 * VB_MSEC) /* nobody tells when a peer has read what it was told before */

/* One message; guarded by hca->say_lock. */
struct unsaid {
	struct vb_list node;
	struct vb_peer *peer; /* without a reference: who it was its incarnation says */
	uint64_t incarnation;
	size_t len;
	uint8_t subject;
	uint8_t msg[VB_TELL_MAX];
};

static bool is_there(const struct vb_peer *peer, uint64_t incarnation)
{
	return atomic_load_explicit(&peer->state, memory_order_acquire) == VB_PEER_UP &&
	       peer->incarnation == incarnation;
}

/* Whether something is kept for the peer that stands before `end`. */
static bool waits(const struct vb_hca *h, const struct vb_peer *peer, const struct vb_list *end)
{
	vb_lock_assert_held(&h->say_lock);
	for (const struct vb_list *n = h->unsaid.next; n != end; n = n->next)
		if (vb_list_entry(n, struct unsaid, node)->peer == peer)
			return true;
	return false;
}

/* Whether that is done with, be it that there is nobody to be told any more. */
static bool try(struct vb_hca *h, const struct unsaid *u, const struct vb_list *end)
{
	vb_lock_assert_held(&h->say_lock);
	return !is_there(u->peer, u->incarnation) ||
	       (!waits(h, u->peer, end) && vb_peer_tell(u->peer, u->subject, u->msg, u->len, -1));
}

void vb_hca_say(struct vb_peer *peer, uint8_t subject, const void *msg, size_t len)
{
	struct vb_hca *h = vb_hca(peer->adapter);
	struct unsaid u = {.peer = peer, .incarnation = peer->incarnation, .len = len, .subject = subject};
	struct unsaid *kept;
	bool done;

	memcpy(u.msg, msg, len);
	vb_lock_take(&h->say_lock);
	done = try(h, &u, &h->unsaid);
	vb_lock_give(&h->say_lock);
	if (done)
		return;
	kept = malloc(sizeof(*kept)); /* pairs with vb_hca_say_on() */
	if (!kept)
		return;
	*kept = u;
	vb_lock_take(&h->say_lock);
	vb_list_append(&h->unsaid, &kept->node);
	vb_lock_give(&h->say_lock);
	vb_adapter_nudge(h->adapter);
}

uint64_t vb_hca_say_on(struct vb_hca *h, uint64_t now)
{
	bool left;

	vb_lock_take(&h->say_lock);
	vb_list_each_safe (n, tmp, &h->unsaid) {
		struct unsaid *u = vb_list_entry(n, struct unsaid, node);

		if (!try(h, u, n))
			continue;
		vb_list_unlink(n);
		free(u);
	}
	left = !vb_list_empty(&h->unsaid);
	vb_lock_give(&h->say_lock);
	return left ? now + AGAIN : VB_NEVER;
}

void vb_hca_say_close(struct vb_hca *h)
{
	struct vb_list *n;

	while ((n = vb_list_pop(&h->unsaid)))
		free(vb_list_entry(n, struct unsaid, node));
}
