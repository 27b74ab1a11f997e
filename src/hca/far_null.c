/* Far ends that take every packet and answer none: the addresses for documentation, 192.0.2.0/24 and
 * 2001:db8::/32 (RFC 5737, RFC 3849).  Only the variant with fault points has them.  They show what another
 * kind of far end takes: this file, its place in iba/far.h, and its row in hca/far.c. */
#ifdef VB_FAULTS
#include "hca/far.h"

#include <pthread.h>
#include <string.h>

#include "hca/hca.h"
#include "hca/peers.h"
#include "iba/grh.h"
#include "iba/out.h"
#include "obj/dests.h"

/* One for each device: all those addresses are one far end. */
struct null {
	struct vb_far far;
	struct vb_hca *hca;
	struct vb_out out;
	struct vb_rxq rxq;
	_Atomic uint32_t cold;
	uint8_t room[VB_HDR_MAX + VB_MGID_LEN + VB_PORT_MTU]; /* what is written there is lost */
};

static struct null nulls[VB_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct null *null_of(const struct vb_far *far)
{
	return vb_containerof(far, struct null, far);
}

/* ---- the way out, and a receive queue on which nothing comes ---- */

static bool reserve(struct vb_out *o, struct vb_outbuf *b, uint32_t hdr_len, uint32_t payload_len,
		    enum vb_out_class cls)
{
	uint8_t *room = vb_containerof(o, struct null, out)->room;

	(void)payload_len, (void)cls;
	*b = (struct vb_outbuf){.hdr = room, .payload = room + hdr_len};
	return true;
}

static void commit(struct vb_out *o, struct vb_outbuf *b)
{
	(void)o, (void)b;
}

static uint64_t mark(struct vb_out *o)
{
	(void)o;
	return 1;
}

static bool taken(struct vb_out *o, uint64_t m)
{
	(void)o, (void)m;
	return true;
}

static bool room(struct vb_out *o)
{
	(void)o;
	return true;
}

static const struct vb_out_ops out_ops = {.reserve = reserve,
					  .commit = commit,
					  .cancel = commit,
					  .send = vb_out_send_in_parts,
					  .send_list = vb_out_send_singly,
					  .mark = mark,
					  .taken = taken,
					  .room = room};

static int peek(struct vb_rxq *r, struct vb_arrival *p)
{
	(void)r, (void)p;
	return 0;
}

static bool ready(const struct vb_rxq *r)
{
	(void)r;
	return false;
}

static bool queue_has_room(struct vb_rxq *r)
{
	(void)r;
	return true;
}

static const struct vb_rxq_ops rxq_ops = {.peek = peek, .ready = ready, .room = queue_has_room};

/* ---- the far end ---- */

static struct vb_far *far_of(struct vb_hca *h);

static bool is_null(const struct ibv_ah_attr *av)
{
	static const uint8_t ipv4[15] = {[10] = 0xff, 0xff, 192, 0, 2}, ipv6[4] = {0x20, 0x01, 0x0d, 0xb8};

	return av->is_global && (!memcmp(av->grh.dgid.raw, ipv4, sizeof(ipv4)) ||
				 !memcmp(av->grh.dgid.raw, ipv6, sizeof(ipv6)));
}

static struct vb_far *find(struct vb_hca *h, const struct vb_qp *qp)
{
	return is_null(&qp->attr.ah_attr) ? far_of(h) : NULL;
}

static uint32_t leads(struct vb_hca *h, const struct ibv_ah_attr *av, struct vb_far **held)
{
	(void)h, (void)held;
	return is_null(av) ? VB_DEST_NULL : VB_DEST_NOWHERE;
}

static struct vb_far *at(struct vb_hca *h, uint32_t number)
{
	return number == VB_DEST_NULL ? far_of(h) : NULL;
}

static struct vb_far *named(struct vb_hca *h, const struct vb_whom *whom, uint32_t *number)
{
	(void)whom;
	*number = VB_DEST_NULL;
	return far_of(h);
}

static bool there(struct vb_hca *h, const struct vb_whom *whom)
{
	(void)h, (void)whom;
	return true;
}

static void nothing(struct vb_far *far)
{
	(void)far;
}

static enum vb_far_state state(const struct vb_far *far)
{
	(void)far;
	return VB_FAR_UP;
}

static struct vb_far *current(struct vb_far *far)
{
	return far;
}

static struct vb_reach_facts silence(struct vb_far *far, uint32_t pid, bool looks)
{
	(void)far, (void)pid, (void)looks;
	return (struct vb_reach_facts){.reach = VB_REACH_UNKNOWN};
}

static const uint8_t (*gids(const struct vb_far *far))[16]
{
	return vb_adapter_gids(null_of(far)->hca->adapter);
}

static bool no(const struct vb_far *far)
{
	(void)far;
	return false;
}

static bool yes(const struct vb_far *far)
{
	(void)far;
	return true;
}

static bool in_group(const struct vb_far *far, const uint64_t mgid[2])
{
	(void)far, (void)mgid;
	return false;
}

static struct vb_whom whom(const struct vb_far *far)
{
	(void)far;
	return (struct vb_whom){.kind = VB_WHOM_NULL};
}

static bool attach(struct vb_path *p)
{
	p->rxq = &null_of(p->far)->rxq;
	p->source = (struct vb_origin){0};
	return true;
}

static struct vb_out *way(struct vb_far *far, const struct vb_qp *qp, struct vb_rxq **rxq)
{
	(void)qp;
	*rxq = &null_of(far)->rxq;
	return &null_of(far)->out;
}

static bool connected(const struct vb_path *p)
{
	(void)p;
	return true;
}

static uint32_t received(const struct vb_path *p)
{
	(void)p;
	return 0;
}

static void explain(struct vb_qp *qp)
{
	qp->silence = silence(qp->path.far, 0, true);
}

static bool slow(const struct vb_qp *qp, uint64_t now)
{
	(void)qp, (void)now;
	return false;
}

extern const struct vb_far_kind vb_far_null;
const struct vb_far_kind vb_far_null = {
    .name = "null",
    .find = find,
    .leads = leads,
    .at = at,
    .named = named,
    .there = there,
    .put = nothing,
    .state = state,
    .contact = nothing,
    .current = current,
    .silence = silence,
    .gids = gids,
    .own = no,
    .whom = whom,
    .hears = yes,
    .rouse = nothing,
    .in_group = in_group,
    .attach = attach,
    .way = way,
    .connected = connected,
    .received = received,
    .explain = explain,
    .slow = slow,
};

/* A device that is opened again begins with another queue. */
static struct vb_far *far_of(struct vb_hca *h)
{
	struct null *n = &nulls[h->device];

	pthread_mutex_lock(&lock);
	if (n->hca != h) {
		memset(&n->rxq, 0, sizeof(n->rxq));
		n->far.kind = &vb_far_null;
		n->hca = h;
		n->out = (struct vb_out){.ops = &out_ops, .mtu = VB_PORT_MTU, .brief = VB_OUT_BRIEF};
		vb_rxq_init(&n->rxq, &rxq_ops, NULL, &n->cold);
		vb_hca_open_rxq(h, &n->rxq, VB_MAX_RINGS - 1, &n->far);
	}
	pthread_mutex_unlock(&lock);
	return &n->far;
}
#endif
