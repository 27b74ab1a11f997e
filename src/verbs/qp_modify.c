/* ibv_modify_qp(): everything is checked first, then what cannot fail is done (rule 38). */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "iba/grh.h"
#include "iba/names.h"
#include "iba/limits.h"
#include "iba/pkt.h"
#include "iba/profile.h"
#include "iba/qp_state.h"
#include "iba/wr.h"
#include "transport/transport.h"
#include "host/devices.h"
#include "host/route.h"
#include "hca/direct.h"
#include "hca/lost.h"
#include "hca/hca.h"
#include "hca/send.h"
#include "hca/gsi.h"
#include "hca/path.h"
#include "hca/port.h"
#include "hca/silence.h"
#include "iba/waits.h"
#include "verbs/post.h"
#include "verbs/target.h"
#include "verbs/verbs.h"

#define CALL "ibv_modify_qp"

static_assert(sizeof(struct ibv_qp_attr) == 144, "ABI");

/* Bits that make sense nowhere, not even as an option. */
#define ACCESS_KNOWN (0x3ffu | IBV_ACCESS_OPTIONAL_RANGE)
#define ACCESS_KEPT                                                                  \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
	 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | VB_ACCESS_FLUSH_GLOBAL |    \
	 VB_ACCESS_FLUSH_PERSISTENT)

/* With what is to be done first. */
static int refuse_way(const struct vb_qp *qp, enum ibv_qp_state from, enum ibv_qp_state to)
{
	char first[80] = "modify it to RESET first, the only way from here";

	if (from < IBV_QPS_RTS && to > from + 1 && to <= IBV_QPS_SQD)
		snprintf(first, sizeof(first), "modify it to %s first", vb_qp_state_name(from + 1));
	else if (to < IBV_QPS_RTS && from != IBV_QPS_ERR)
		snprintf(first, sizeof(first), "modify it to RESET first");
	else if (to == IBV_QPS_SQE)
		snprintf(first, sizeof(first), "only a failed send request leads there");
	else if (from == IBV_QPS_SQD || from == IBV_QPS_SQE)
		snprintf(first, sizeof(first), "modify it to RTS first");
	return vb_refuse(EINVAL, CALL, "QP 0x%06x: %s to %s is not a valid transition; %s%s", qp->qpn,
			 vb_qp_state_name(from), vb_qp_state_name(to), first,
			 qp->by_cm >= VB_BY_CM
			     ? " (rdma_connect() and rdma_accept() move the queue pair of an id to RTS)"
			     : "");
}

static int check_transition(const struct vb_qp *qp, enum ibv_qp_state from, enum ibv_qp_state to,
			    const struct ibv_qp_attr *a, uint32_t mask)
{
	const char *f = vb_qp_state_name(from), *t = vb_qp_state_name(to);
	char names[256];
	uint32_t bits;

	switch (vb_qp_judge(qp->ibv.qp_type, from, to, mask, &bits)) {
	case VB_QP_FINE:
		break;
	case VB_QP_NO_WAY:
		if ((unsigned)to >= VB_QP_STATES)
			return vb_refuse(EINVAL, CALL, "QP 0x%06x: qp_state %d is unknown", qp->qpn, (int)to);
		return refuse_way(qp, from, to);
	case VB_QP_MISSING:
		return vb_refuse(EINVAL, CALL,
				 "QP 0x%06x: the transition from %s to %s requires %s in attr_mask", qp->qpn,
				 f, t, vb_qp_attr_names(names, sizeof(names), bits));
	case VB_QP_EXCESS:
		return vb_refuse(EINVAL, CALL,
				 "QP 0x%06x: the transition from %s to %s does not accept %s in attr_mask",
				 qp->qpn, f, t, vb_qp_attr_names(names, sizeof(names), bits));
	}
	if (mask & IBV_QP_CUR_STATE && a->cur_qp_state != from)
		return vb_refuse(EINVAL, CALL, "QP 0x%06x: cur_qp_state is %s, but the QP is in %s", qp->qpn,
				 vb_qp_state_name(a->cur_qp_state), f);
	return 0;
}

/* With what the number is in the other byte order, where that can be a queue pair's. */
static int refuse_dest(const struct vb_qp *qp, uint32_t dest)
{
	uint32_t swapped = __builtin_bswap32(dest);
	char other[120] = "";

	if (swapped && swapped <= VB_QPN_MASK)
		snprintf(other, sizeof(other), "; byte-swapped it is 0x%06x%s", swapped,
			 vb_qpn_find(vb_qp_adapter(qp), swapped)
			     ? ", a queue pair of this process. Set it in host byte order"
			     : "");
	return vb_refuse(EINVAL, CALL, "QP 0x%06x: dest_qp_num 0x%08x exceeds the limit of 0x%06x%s", qp->qpn,
			 dest, VB_QPN_MASK, other);
}

/* Attributes that are numbers with a largest value. */
static int check_numbers(const struct vb_qp *qp, const struct ibv_qp_attr *a, uint32_t mask)
{
	const struct {
		uint32_t bit;
		const char *name;
		uint32_t value, max;
	} rows[] = {
	    {IBV_QP_PKEY_INDEX, "pkey_index", a->pkey_index, VB_PKEY_TABLE - 1},
	    {IBV_QP_TIMEOUT, "timeout", a->timeout, 31},
	    {IBV_QP_RETRY_CNT, "retry_cnt", a->retry_cnt, 7},
	    {IBV_QP_RNR_RETRY, "rnr_retry", a->rnr_retry, 7}, /* rule 1 */
	    {IBV_QP_MIN_RNR_TIMER, "min_rnr_timer", a->min_rnr_timer, 31},
	    {IBV_QP_MAX_QP_RD_ATOMIC, "max_rd_atomic", a->max_rd_atomic, vb_profile()->max_rd_atomic},
	    {IBV_QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", a->max_dest_rd_atomic,
	     vb_profile()->max_rd_atomic},
	};

	if (mask & IBV_QP_DEST_QPN && a->dest_qp_num > VB_QPN_MASK)
		return refuse_dest(qp, a->dest_qp_num);
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (mask & rows[i].bit && rows[i].value > rows[i].max)
			return vb_refuse(EINVAL, CALL, "QP 0x%06x: %s %u exceeds the limit of %u", qp->qpn,
					 rows[i].name, rows[i].value, rows[i].max);
	return 0;
}

/* Controlled Q_Keys are for privileged users (IBTA 10.2.5), as Linux counts them. */
static bool may_control(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};

	return !syscall(SYS_capget, &head, data) &&
	       data[CAP_TO_INDEX(CAP_NET_RAW)].effective & CAP_TO_MASK(CAP_NET_RAW);
}

static int check_values(const struct vb_qp *qp, const struct ibv_qp_attr *a, uint32_t mask)
{
	/* A member that the mask does not name may never have been set, and memcheck heeds that. */
	const char *mig = mask & IBV_QP_PATH_MIG_STATE ? vb_name_mig_state(a->path_mig_state) : NULL;
	int err = check_numbers(qp, a, mask);
	char about[16];

	snprintf(about, sizeof(about), "QP 0x%06x: ", qp->qpn & VB_QPN_MASK);
	if (!err && mask & IBV_QP_PORT)
		err = vb_check_port_of(CALL, about, a->port_num);
	if (!err && mask & IBV_QP_AV)
		err = vb_check_av(CALL, about, qp->ctx, &a->ah_attr);
	if (err)
		return err;
	if (mask & IBV_QP_PATH_MTU && (a->path_mtu < IBV_MTU_256 || a->path_mtu > IBV_MTU_4096))
		return vb_refuse(EINVAL, CALL,
				 "QP 0x%06x: path_mtu %d is not an enum ibv_mtu; use IBV_MTU_256 (%d) to "
				 "IBV_MTU_4096 (%d)",
				 qp->qpn, (int)a->path_mtu, IBV_MTU_256, IBV_MTU_4096);
	if (mask & IBV_QP_QKEY && a->qkey >> 31 && !may_control())
		return vb_refuse(EPERM, CALL,
				 "QP 0x%06x: qkey 0x%08x is a controlled Q_Key (its high bit is set), which "
				 "requires CAP_NET_RAW",
				 qp->qpn, a->qkey);
	if (mask & IBV_QP_ACCESS_FLAGS && a->qp_access_flags & ~ACCESS_KNOWN)
		return vb_refuse(EINVAL, CALL, "QP 0x%06x: qp_access_flags 0x%x has unknown bits 0x%x",
				 qp->qpn, a->qp_access_flags, a->qp_access_flags & ~ACCESS_KNOWN);
	/* without IBV_DEVICE_AUTO_PATH_MIG a QP has one path, to which it has, if one will, migrated */
	if (mask & IBV_QP_ALT_PATH)
		return vb_refuse(
		    EINVAL, CALL,
		    "QP 0x%06x: IBV_QP_ALT_PATH is not supported: the device has no alternate paths",
		    qp->qpn);
	if (mask & IBV_QP_PATH_MIG_STATE && a->path_mig_state != IBV_MIG_MIGRATED)
		return vb_refuse(EINVAL, CALL,
				 "QP 0x%06x: path_mig_state %s is not supported: the device does not migrate "
				 "paths; use IBV_MIG_MIGRATED",
				 qp->qpn, mig ? mig : "(unknown)");
	return 0;
}

/* What its interface cannot send is refused here, and not one by one later. */
static int check_path_mtu(const struct vb_qp *qp, const struct ibv_ah_attr *av, uint32_t asked)
{
	struct vb_route_to route;
	struct vb_port port;
	char buf[INET6_ADDRSTRLEN + 8];
	struct vb_text to = {buf, sizeof(buf)};
	uint32_t fits;

	vb_devices_port(vb_qp_hca(qp)->device, &port);
	if (!vb_route_find(&route, av->grh.dgid.raw, port.ifindex) && route.mtu && route.mtu < port.mtu)
		port.mtu = route.mtu; /* the way's, as far as the kernel knows it */
	fits = vb_netif_path_mtu(port.mtu);
	if (asked <= fits)
		return 0;
	vb_gid_add(&to, av->grh.dgid.raw);
	return vb_refuse(
	    EINVAL, CALL,
	    "QP 0x%06x: path_mtu %u (%u bytes) does not fit the MTU of %u on the way to %s through "
	    "%s; set path_mtu to %u (%u bytes) at both ends, or raise the MTU (ip link set %s mtu "
	    "%u)",
	    qp->qpn, asked, 128u << asked, port.mtu, buf, port.ifname, fits, 128u << fits, port.ifname,
	    (128u << asked) + VB_NETIF_ROCE_OVERHEAD);
}

/* What another host is addressed with.  On this host there are no such limits. */
static int check_way(const struct vb_qp *qp, const struct ibv_qp_attr *a, uint32_t mask)
{
	struct vb_hca *h = vb_qp_hca(qp);
	char about[16];
	int err;

	if (!(mask & IBV_QP_AV) || !vb_port_has_wire(h) || vb_gid_is_group(a->ah_attr.grh.dgid.raw) ||
	    vb_port_leads_here(h, &a->ah_attr))
		return 0;
	snprintf(about, sizeof(about), "QP 0x%06x: ", qp->qpn & VB_QPN_MASK);
	err = vb_check_versions(CALL, about, h, &a->ah_attr);
	return err ? err
		   : check_path_mtu(qp, &a->ah_attr,
				    mask & IBV_QP_PATH_MTU ? a->path_mtu : qp->attr.path_mtu);
}

static void store_path(struct vb_qp *qp, const struct ibv_qp_attr *a, uint32_t mask)
{
	struct ibv_qp_attr *to = &qp->attr;

	vb_lock_assert_held(&qp->lock);
	if (mask & IBV_QP_PKEY_INDEX)
		to->pkey_index = a->pkey_index;
	if (mask & IBV_QP_PORT)
		to->port_num = a->port_num;
	if (mask & IBV_QP_QKEY)
		qp->qkey = to->qkey = a->qkey;
	if (mask & IBV_QP_AV) {
		to->ah_attr = a->ah_attr;
		/* Linux takes the hop limit of a connection from the route to its far end. */
		if (!vb_devices_infiniband() && !vb_gid_is_group(a->ah_attr.grh.dgid.raw))
			to->ah_attr.grh.hop_limit = VB_GRH_HOPS;
	}
	if (mask & IBV_QP_PATH_MTU)
		qp->path_mtu = (uint8_t)(to->path_mtu = a->path_mtu);
	if (mask & IBV_QP_DEST_QPN)
		qp->dest_qpn = to->dest_qp_num = a->dest_qp_num;
	if (mask & IBV_QP_ACCESS_FLAGS) {
		to->qp_access_flags = a->qp_access_flags;
		qp->access = (uint16_t)(a->qp_access_flags & ACCESS_KEPT);
	}
}

static void store_protocol(struct vb_qp *qp, const struct ibv_qp_attr *a, uint32_t mask)
{
	struct ibv_qp_attr *to = &qp->attr;

	vb_lock_assert_held(&qp->lock);
	if (mask & IBV_QP_TIMEOUT)
		to->timeout = a->timeout;
	if (mask & IBV_QP_RETRY_CNT)
		to->retry_cnt = a->retry_cnt;
	if (mask & IBV_QP_RNR_RETRY)
		to->rnr_retry = a->rnr_retry;
	if (mask & (IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY))
		qp->req.retried = qp->req.rnr_retried = 0;
	if (mask & IBV_QP_MIN_RNR_TIMER)
		to->min_rnr_timer = a->min_rnr_timer;
	if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
		qp->max_rd_atomic = to->max_rd_atomic = a->max_rd_atomic;
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
		to->max_dest_rd_atomic = a->max_dest_rd_atomic;
	if (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY)
		to->en_sqd_async_notify = a->en_sqd_async_notify;
	else if (mask & IBV_QP_STATE && a->qp_state == IBV_QPS_SQD && qp->state != IBV_QPS_SQD)
		to->en_sqd_async_notify = 0; /* an earlier time's does not count */
	/* PSNs count modulo 2^24: as mlx5 does, the rest of the word is not looked at */
	if (mask & IBV_QP_RQ_PSN)
		qp->resp.epsn = to->rq_psn = a->rq_psn & VB_PSN_MASK;
	if (mask & IBV_QP_SQ_PSN) {
		to->sq_psn = a->sq_psn & VB_PSN_MASK;
		qp->req.psn = qp->req.psn_una = qp->req.psn_max = to->sq_psn;
	}
}

/* Where this thread builds requests, it holds the lock already, and goes on to. */
void vb_qp_hold(struct vb_qp *qp)
{
	(void)vb_posting_take(qp);
	vb_lock_take(&qp->lock);
}

void vb_qp_drop(struct vb_qp *qp)
{
	vb_hca_give(qp);
	if (!vb_posting_is_mine(qp))
		vb_posting_give(qp);
}

void vb_qp_to_reset(struct vb_qp *qp)
{
	vb_lock_assert_held(&qp->lock);
	vb_path_close(qp);
	vb_qp_reset(qp);
	qp->by_cm = VB_BY_HAND; /* rdma_cm does not do this */
	qp->ibv.state = IBV_QPS_RESET;
}

static void to_error(struct vb_qp *qp)
{
	const struct vb_facts f = {.reason = VB_R_FLUSHED, .qpn = qp->qpn};

	vb_lock_assert_held(&qp->lock);
	if (qp->state == IBV_QPS_ERR)
		return;
	qp->transport->error(qp, &f);
	vb_path_close(qp);
}

bool vb_qp_unheard(struct vb_qp *qp)
{
	bool init;

	if (vb_gsi_is_open(vb_qp_hca(qp))) /* who connects by rdma_cm needs no GID, and has events */
		return false;
	if (vb_log_has_refused()) /* it ends for another reason, which has been said */
		return false;
	if (!vb_lock_try(&qp->lock)) /* at exit() its holder may be this thread */
		return false;
	init = qp->state == IBV_QPS_INIT;
	vb_hca_give(qp);
	return init && vb_gid_missed(qp->ctx);
}

void vb_qp_say_unheard(uint32_t qpn)
{
	vb_log(VB_LOG_WARN, "QP 0x%06x ends in INIT: it was never connected; " VB_GID_MISSED, qpn);
}

/* This part cannot fail. */
static void apply(struct vb_qp *qp, enum ibv_qp_state to, const struct ibv_qp_attr *a, uint32_t mask)
{
	enum ibv_qp_state from = qp->state;

	vb_lock_assert_held(&qp->lock);
	if (to == IBV_QPS_ERR) {
		to_error(qp);
		return;
	}
	vb_assert(qp->post.alone || vb_lock_is_mine(&qp->post.sends));
	if (to == IBV_QPS_RESET) {
		vb_qp_to_reset(qp);
		return;
	}
	store_path(qp, a, mask);
	store_protocol(qp, a, mask);
	vb_qp_set_state(qp, to);
	qp->ibv.state = to;
	qp->transport->enter(qp, from);
	if (from == IBV_QPS_SQD && mask & IBV_QP_AV) /* another path */
		vb_path_close(qp);
	if (mask & IBV_QP_AV)
		vb_path_open(qp);
	if (to == IBV_QPS_RTS)
		vb_hca_send(qp);
}

int vb_qp_check(const struct vb_qp *qp, enum ibv_qp_state from, const struct ibv_qp_attr *a, uint32_t mask)
{
	enum ibv_qp_state to = mask & IBV_QP_STATE ? a->qp_state : from;
	int err = check_transition(qp, from, to, a, mask);

	err = err ? err : check_values(qp, a, mask);
	return err ? err : check_way(qp, a, mask);
}

int vb_qp_change(struct vb_qp *qp, enum ibv_qp_state from, const struct ibv_qp_attr *a, uint32_t mask)
{
	enum ibv_qp_state to = mask & IBV_QP_STATE ? a->qp_state : from;
	/* The protocol's errors do not wait for whoever is posting, which may be this very thread
	 * (ibv_wr_start()): nor does this one. */
	bool waits = to != IBV_QPS_ERR && !vb_posting_is_mine(qp);
	int err = 0;

	if (waits)
		(void)vb_posting_take(qp);
	vb_lock_take(&qp->lock);
	if (qp->forgotten) /* its destruction waits for who handles an event of it (rule 36) */
		err = EINVAL;
	else if (qp->state != from)
		err = EAGAIN;
	else if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
		err = vb_qp_resources(qp, a->max_dest_rd_atomic);
	if (!err) {
		apply(qp, to, a, mask);
		vb_direct_show(qp);
	}
	vb_hca_give(qp);
	if (waits)
		vb_posting_give(qp);
	if (!err)
		vb_direct_revoked(qp);
	return err;
}

static enum ibv_qp_state state_of(struct vb_qp *qp)
{
	enum ibv_qp_state state;

	vb_lock_take(&qp->lock);
	state = qp->state;
	vb_hca_give(qp);
	return state;
}

int vb_qp_modify_refuse(const struct vb_qp *qp, int err, const struct ibv_qp_attr *a)
{
	if (err == EINVAL)
		return vb_refuse(err, CALL, "QP 0x%06x is being destroyed", qp->qpn);
	return vb_refuse(err, CALL,
			 "QP 0x%06x: out of memory for the responder resources (max_dest_rd_atomic %u)",
			 qp->qpn, a->max_dest_rd_atomic);
}

/* A connection to an address that packets do not leave for: an end that only receives would never say so. */
static void say_away(struct vb_qp *qp)
{
	struct vb_hca *h = vb_qp_hca(qp);
	struct vb_reach_facts f = {0};
	char text[500] = "";
	struct vb_text t = {text, sizeof(text)};

	vb_lock_take(&qp->lock);
	if (qp->state == IBV_QPS_RTR && !qp->dests && !qp->path.far && !qp->path.gone) {
		vb_silence_explain(qp);
		f = qp->silence;
	}
	vb_hca_give(qp);
	if (f.reach != VB_REACH_ADDRESS || vb_gid_is_zero(f.away.gid) || vb_gid_is_loopback(f.away.gid) ||
	    atomic_exchange_explicit(&h->said_away, true, memory_order_relaxed))
		return;
	(void)vb_reach_add(&t, &f);
	vb_log_reason(vb_wait_rows[VB_W_UNREACHABLE].name,
		      "QP 0x%06x is connected to an address that is not reached: %s", qp->qpn, text);
}

VB_EXPORT VB_CODE(ibv_modify_qp, (ibqp, a, attr_mask), struct ibv_qp *ibqp, struct ibv_qp_attr *a,
		  int attr_mask)
{
	struct vb_qp *qp = vb_qp_itself(vb_qp(ibqp));
	uint32_t mask = (uint32_t)attr_mask & ~vb_qp_ignores(ibqp->qp_type);
	enum ibv_qp_state from;
	int err;

	if (vb_context_dead(qp->ctx))
		return vb_refuse_forked(CALL);
	if (vb_context_lost(qp->ctx) && mask & IBV_QP_STATE && a->qp_state != IBV_QPS_RESET &&
	    a->qp_state != IBV_QPS_ERR)
		return vb_refuse(EIO, CALL, VB_LOST_TEXT);
	if (mask & IBV_QP_STATE && a->qp_state == IBV_QPS_RESET && vb_posting_is_mine(qp))
		return vb_post_refuse_open(qp, CALL);
	if (mask & IBV_QP_AV)
		vb_addresses_learn(&vb_hca(qp->ctx->adapter)->addresses, &a->ah_attr);
	if (qp->far)
		return vb_target_modify(qp, a, mask);
	do { /* checked without the lock, since refusing may write a line */
		from = state_of(qp);
		err = vb_qp_check(qp, from, a, mask);
		if (err)
			return err;
		err = vb_qp_change(qp, from, a, mask);
	} while (err == EAGAIN); /* an error came in between, and other rules hold */
	if (err)
		return vb_qp_modify_refuse(qp, err, a);
	if (ibqp != &qp->ibv) /* else apply() has said so, and an error may have come since */
		ibqp->state = mask & IBV_QP_STATE ? a->qp_state : from;
	if (mask & IBV_QP_AV && mask & IBV_QP_STATE && a->qp_state == IBV_QPS_RTR)
		say_away(qp);
	return 0;
}
