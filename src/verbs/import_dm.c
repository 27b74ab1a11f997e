/* Import of device memory: what it is made of is a file, which its owner's process has to hand over.  So this
 * import, unlike the others, waits for the owner's answer. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "verbs/dm.h"
#include "verbs/import.h"
#include "hca/hca.h"
#include "verbs/verbs.h"

#define CALL	 "ibv_import_dm"
#define PATIENCE (2 * VB_SEC)

/* What the two ends say to one another. */
enum { TELL_DM_ASK = 1, TELL_DM_ANSWER };

struct tell {
	uint32_t kind;
	uint32_t ticket; /* of the one who asks */
	uint32_t handle;
	uint32_t reserved;
	uint64_t length; /* ANSWER, with a descriptor; 0: there is no such device memory */
};

/* A thread that waits for an answer; guarded by hca->import_lock. */
struct waiting {
	struct vb_list node;
	uint32_t ticket;
	bool done;
	uint64_t length;
	int fd; /* -1: none came */
};

static void answer(struct vb_peer *peer, struct tell *t)
{
	int fd;

	t->kind = TELL_DM_ANSWER;
	t->length = 0;
	fd = vb_dm_find(vb_hca(peer->adapter), t->handle, &t->length);
	if (fd < 0)
		t->length = 0;
	vb_peer_tell(peer, VB_SUBJECT_DM, t, sizeof(*t), fd); /* else it asks again */
	if (fd >= 0)
		close(fd);
}

static void take(struct vb_hca *h, const struct tell *t, int fd)
{
	int mine = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;

	vb_lock_take(&h->import_lock);
	vb_list_each (n, &h->imports) {
		struct waiting *w = vb_list_entry(n, struct waiting, node);

		if (w->ticket != t->ticket || w->done)
			continue;
		w->length = t->length;
		w->fd = mine;
		w->done = true;
		mine = -1;
	}
	vb_lock_give(&h->import_lock);
	if (mine >= 0)
		close(mine);
}

void vb_import_told(struct vb_peer *peer, const void *msg, size_t len, int fd)
{
	struct tell t;

	if (len != sizeof(t))
		return;
	memcpy(&t, msg, sizeof(t));
	if (t.kind == TELL_DM_ASK)
		answer(peer, &t);
	else if (t.kind == TELL_DM_ANSWER)
		take(vb_hca(peer->adapter), &t, fd);
}

static bool is_done(struct vb_hca *h, const struct waiting *w)
{
	bool done;

	vb_lock_take(&h->import_lock);
	done = w->done;
	vb_lock_give(&h->import_lock);
	return done;
}

/* Asks, and waits for what comes; again now and then, since a question or an answer finds no room in a socket
 * that nobody reads. */
static int ask(struct vb_peer *peer, uint32_t handle, struct waiting *w)
{
	static const struct timespec nap = {.tv_nsec = 200000};
	struct tell t = {.kind = TELL_DM_ASK, .ticket = w->ticket, .handle = handle};
	struct vb_hca *h = vb_hca(peer->adapter);
	uint64_t end = vb_now() + PATIENCE, again = 0;

	while (!is_done(h, w)) {
		uint64_t now = vb_now();

		if (atomic_load(&peer->state) != VB_PEER_UP)
			return vb_refuse(EIO, CALL, "the process whose device was imported has ended");
		if (now > end)
			return vb_refuse(
			    ETIMEDOUT, CALL,
			    "process %u, whose device memory it is, does not answer (is it stopped?)",
			    peer->pid);
		if (now >= again && vb_peer_tell(peer, VB_SUBJECT_DM, &t, sizeof(t), -1))
			again = now + PATIENCE / 8;
		syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &nap, NULL); /* no cancellation point */
	}
	return 0;
}

/* A descriptor of the memory, -1 with errno. */
static int fetch(struct vb_hca *h, struct vb_peer *peer, uint32_t handle, uint64_t *length)
{
	struct waiting w = {.fd = -1};
	int err;

	if (!peer->index) { /* our own */
		w.fd = vb_dm_find(h, handle, &w.length);
		err = 0;
	} else {
		vb_lock_take(&h->import_lock);
		w.ticket = ++h->import_ticket;
		vb_list_append(&h->imports, &w.node);
		vb_lock_give(&h->import_lock);
		err = ask(peer, handle, &w);
		vb_lock_take(&h->import_lock);
		vb_list_unlink(&w.node);
		vb_lock_give(&h->import_lock);
	}
	if (!err && w.fd < 0)
		err = w.length ? vb_refuse(EMFILE, CALL, "this process has no room for one more descriptor")
			       : vb_refuse(ENOENT, CALL,
					   "the context holds no device memory of handle 0x%08x", handle);
	if (err && w.fd >= 0)
		close(w.fd);
	*length = w.length;
	errno = err;
	return err ? -1 : w.fd;
}

VB_EXPORT VB_OBJECT(struct ibv_dm *, ibv_import_dm, (context, handle), struct ibv_context *context,
		    uint32_t handle)
{
	struct vb_context *c = vb_context(context);
	struct ibv_dm *dm;
	struct vb_peer *peer;
	uint64_t length;
	int err, fd;

	peer = vb_import_owner(c, CALL);
	if (!peer)
		return NULL; /* errno is set, here and below */
	fd = fetch(vb_hca(c->adapter), peer, handle, &length);
	if (fd < 0)
		return NULL;
	dm = vb_dm_import(context, fd, length, handle, CALL);
	err = errno;
	close(fd);
	errno = err;
	return dm; /* pairs with ibv_unimport_dm() */
}

VB_EXPORT VB_NOTHING(ibv_unimport_dm, (dm), struct ibv_dm *dm)
{
	if (!vb_context_dead(vb_context(dm->context)))
		vb_dm_unimport(dm);
}
