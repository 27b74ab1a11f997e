/* Import of device memory: what it is made of is a file, which its owner's process has to hand over.  So this
 * import, unlike the others, waits for the owner's answer. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "verbs/dm.h"
#include "verbs/import.h"
#include "hca/ask.h"
#include "hca/hca.h"
#include "verbs/verbs.h"

#define CALL "ibv_import_dm"

enum { TELL_DM_ASK = 1, TELL_DM_ANSWER };

struct tell {
	struct vb_ask_head head;
	uint32_t handle;
	uint32_t reserved;
	uint64_t length; /* ANSWER, with a descriptor; 0: there is no such device memory */
};

static void answer(struct vb_peer *peer, struct tell *t)
{
	int fd;

	t->head.kind = TELL_DM_ANSWER;
	t->length = 0;
	fd = vb_dm_find(vb_hca(peer->adapter), t->handle, &t->length);
	if (fd < 0)
		t->length = 0;
	vb_peer_tell(peer, VB_SUBJECT_DM, t, sizeof(*t), fd); /* else it asks again */
	if (fd >= 0)
		close(fd);
}

void vb_import_told(struct vb_peer *peer, const void *msg, size_t len, int fd)
{
	struct tell t;

	if (len != sizeof(t))
		return;
	memcpy(&t, msg, sizeof(t));
	if (t.head.kind == TELL_DM_ASK)
		answer(peer, &t);
	else if (t.head.kind == TELL_DM_ANSWER)
		vb_ask_answered(peer, VB_SUBJECT_DM, msg, len, fd);
}

/* Another process's: a descriptor in *fd, -1: there is none for us; 0 or errno. */
static int ask(struct vb_peer *peer, uint32_t handle, int *fd, uint64_t *length)
{
	struct tell t = {.head.kind = TELL_DM_ASK, .handle = handle};
	struct vb_answer a;
	int err = vb_ask(peer, VB_SUBJECT_DM, &t, sizeof(t), vb_now() + VB_ASK_PATIENCE, &a);

	if (err == EIO)
		return vb_refuse(err, CALL, OWNER_ENDED);
	if (err)
		return vb_refuse(err, CALL,
				 "process %u owns the device memory and does not answer (is it stopped?)",
				 peer->pid);
	memcpy(&t, a.msg, sizeof(t));
	*fd = a.fd;
	*length = t.length;
	return 0;
}

/* A descriptor of the memory, -1 with errno. */
static int fetch(struct vb_hca *h, struct vb_peer *peer, uint32_t handle, uint64_t *length)
{
	int err = 0, fd = -1;

	*length = 0;
	if (!peer->index) /* our own */
		fd = vb_dm_find(h, handle, length);
	else
		err = ask(peer, handle, &fd, length);
	if (!err && fd < 0)
		err = *length ? vb_refuse(EMFILE, CALL, "this process has too many open files (ulimit -n)")
			      : vb_refuse(ENOENT, CALL, "the context has no device memory of handle 0x%08x",
					  handle);
	errno = err;
	return err ? -1 : fd;
}

VB_EXPORT VB_OBJECT(struct ibv_dm *, ibv_import_dm, (context, handle), struct ibv_context *context,
		    uint32_t handle)
{
	struct vb_context *c = vb_context(context);
	struct ibv_dm *dm;
	struct vb_peer *peer;
	uint64_t length;
	int err, fd;

	peer = vb_import_owner(context, CALL);
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
	if (vb_live_leave("ibv_unimport_dm", dm, VB_LIVE_DM) || vb_context_dead(vb_context(dm->context)))
		return;
	if (!vb_dm_unimport(dm))
		vb_live_enter(dm, VB_LIVE_DM);
}
