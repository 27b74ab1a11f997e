/* XRC domains.
 *
 * A domain is the file that its descriptor leads to: whoever opens the same file, in whatever process of this
 * user and network namespace, opens the same domain.  The file is only a name, nothing is written to it. That
 * a domain exists its holders' names say (host/member.c), which the kernel keeps: so it ends with the last of
 * them, however they end. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "hca/lost.h"
#include "obj/xrcd.h"
#include "verbs/verbs.h"

static_assert(sizeof(struct ibv_xrcd) == 8 && sizeof(struct ibv_xrcd_init_attr) == 12, "ABI");

static const char call[] = "ibv_open_xrcd";

static _Atomic uint64_t privates; /* domains without a file, counted */

static const char *name_of(char name[VB_MEMBER_NAME], const struct vb_xrcd_id *id)
{
	snprintf(name, VB_MEMBER_NAME, "xrcd/%" PRIx64 ":%" PRIx64, id->dev, id->ino);
	return name;
}

static int refuse_list(int err)
{
	return vb_refuse(err, call,
			 "the holders of the XRC domain cannot be read from /proc/thread-self/net/unix: %s",
			 strerror(err));
}

/* Whether another process has it open; 0 or errno. */
static int others_have(struct vb_adapter *a, const char *name, bool *have)
{
	uint32_t *numbers, n;
	int err = vb_member_list(a, name, &numbers, &n);

	if (err)
		return refuse_list(err);
	free(numbers);
	*have = n > 0;
	return 0;
}

/* Makes this process a holder of the file's domain.  Without O_CREAT somebody is looked for first, and with
 * O_EXCL afterwards: of two that create one at the same time at most one succeeds. */
static int hold(struct vb_adapter *a, const char *name, int oflags)
{
	bool exists = vb_member_count(a, name) > 0;
	int err;

	if (!exists && !(oflags & O_CREAT)) {
		err = others_have(a, name, &exists);
		if (err)
			return err;
		if (!exists)
			return vb_refuse(EAGAIN, call,
					 "no process has an XRC domain open for this file; set O_CREAT in "
					 "oflags to create it");
	}
	err = vb_member_join(a, name); /* pairs with vb_close_xrcd() */
	if (err)
		return vb_refuse(err, call,
				 "this process cannot bind the socket name of a holder of the XRC domain: %s",
				 strerror(err));
	if (!(oflags & O_EXCL))
		return 0;
	err = others_have(a, name, &exists);
	if (!err && (exists || vb_member_count(a, name) > 1))
		err = vb_refuse(EINVAL, call,
				"oflags has O_EXCL, but the XRC domain of the file is already open");
	if (err)
		vb_member_leave(a, name);
	return err;
}

static int check_new(struct ibv_context *context, const struct ibv_xrcd_init_attr *attr)
{
	const uint32_t both = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	const struct vb_context *c = vb_context(context);
	int err = vb_context_check(call, context);

	if (err)
		return err;
	if (vb_context_lost(c))
		return vb_refuse(EIO, call, VB_LOST_TEXT);
	if (attr->comp_mask & ~both)
		return vb_refuse_bits(EOPNOTSUPP, call, "comp_mask", attr->comp_mask, both);
	if (attr->comp_mask != both)
		return vb_refuse(EINVAL, call, "comp_mask lacks %s",
				 attr->comp_mask & IBV_XRCD_INIT_ATTR_FD ? "IBV_XRCD_INIT_ATTR_OFLAGS"
									 : "IBV_XRCD_INIT_ATTR_FD");
	return 0;
}

/* Which domain is meant, and this process holds it then. */
static int find(struct vb_adapter *a, const struct ibv_xrcd_init_attr *attr, struct vb_xrcd_id *id)
{
	char name[VB_MEMBER_NAME];
	struct stat st;

	if (attr->fd == -1) {
		*id = (struct vb_xrcd_id){VB_XRCD_PRIVATE, atomic_fetch_add(&privates, 1)};
		return 0;
	}
	if (fstat(attr->fd, &st))
		return vb_refuse(errno, call, "fd %d cannot be examined: %s", attr->fd, strerror(errno));
	*id = (struct vb_xrcd_id){st.st_dev, st.st_ino};
	return hold(a, name_of(name, id), attr->oflags);
}

VB_OBJECT(struct ibv_xrcd *, vb_open_xrcd, (context, attr), struct ibv_context *context,
	  struct ibv_xrcd_init_attr *attr)
{
	struct vb_context *c = vb_context(context);
	struct vb_xrcd *x = NULL;
	int err = check_new(context, attr);

	if (!err) {
		x = calloc(1, sizeof(*x));
		err = x ? find(c->adapter, attr, &x->id) : vb_refuse_memory(call);
	}
	if (err) {
		free(x);
		errno = err;
		return NULL;
	}
	x->ibv.context = context;
	atomic_fetch_add(&c->xrcds, 1); /* pairs with vb_close_xrcd() */
	vb_live_enter(&x->ibv, VB_LIVE_XRCD);
	return &x->ibv;
}

VB_END(vb_close_xrcd, "ibv_close_xrcd", VB_LIVE_XRCD, ibxrcd, struct ibv_xrcd *ibxrcd)
{
	struct vb_xrcd *x = vb_xrcd(ibxrcd);
	struct vb_context *c = vb_context(ibxrcd->context);
	char name[VB_MEMBER_NAME];
	uint32_t refs;

	if (vb_context_dead(c))
		return 0;
	refs = atomic_load(&x->refs);
	if (refs) /* rule 37 */
		return vb_refuse_busy(
		    "ibv_close_xrcd", "%u SRQ%s or target QP%s the XRC domain; destroy %s first", refs,
		    refs == 1 ? "" : "s", refs == 1 ? " uses" : "s use", refs == 1 ? "it" : "them");
	if (x->id.dev != VB_XRCD_PRIVATE)
		vb_member_leave(c->adapter, name_of(name, &x->id));
	free(x);
	atomic_fetch_sub(&c->xrcds, 1);
	return 0;
}
