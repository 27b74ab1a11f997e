/* What identifiers of rdma_cm (src/cm) need from below, over the devices of this process: which are at work,
 * QP1 by which their MADs come and go, and the ports that the process holds.
 *
 * A device that an id has been bound to stays open until the process ends, as the kernel's rdma_cm has it:
 * QP1 answers for connections and listeners of whichever context.  One that is lost (hca/lost.c) is followed
 * by another at the next open().  A forked child begins with nothing. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/chance.h"
#include "base/clock.h"
#include "base/log.h"
#include "cm/below.h"
#include "hca/far.h"
#include "hca/gsi.h"
#include "hca/hca.h"
#include "hca/lost.h"
#include "hca/peers.h"
#include "host/devices.h"
#include "host/networks.h"
#include "iba/pkt.h"
#include "iba/profile.h"
#include "iba/reason.h"
#include "obj/refuse.h"
#include "devices/cm_devices.h"

/* A REQ or SIDR_REQ for a port at which nobody listens yet. */
struct late {
	struct vb_list node;
	uint64_t until; /* then it is refused */
	struct vb_cm_av av;
	uint8_t mad[VB_MAD_LEN];
};

struct device {
	struct vb_cm_device pub; /* first */
	struct vb_hca *hca;
	_Atomic uint64_t next; /* when the engine calls timers() below in earnest; 0: something was begun */
	struct vb_list late;   /* in the order of `until`; guarded by vb_cm_ids_lock */
};

/* Taken before verbs/context.c's, the ports' and vb_cm_ids_lock; guards `devices` and `ports` while they are
 * made.  Once there they are read without it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct device *) devices[VB_MAX_DEVICES]; /* the last that was opened of each */
static _Atomic(struct vb_ports *) ports;

static const struct vb_cm_shares *shares; /* set once, by a constructor */

void vb_cm_devices_share(const struct vb_cm_shares *upper)
{
	shares = upper;
}

static struct device *device_of(const struct vb_cm *cm)
{
	return vb_cm_user(cm);
}

/* ---- fork() ---- */

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&lock);
}

/* What the parent had stays as it is: its engines may have been in the middle of it. */
static void after_fork_in_child(void)
{
	pthread_mutex_init(&lock, NULL);
	for (int i = 0; i < VB_MAX_DEVICES; i++)
		atomic_store(&devices[i], NULL);
	atomic_store(&ports, NULL);
}

static void register_handlers(void)
{
	shares->handle_fork(); /* first, so that its handlers take their locks after ours: the ports' too */
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void handle_fork(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, register_handlers);
}

/* ---- time and chance ---- */

static uint32_t chance(void)
{
	return (uint32_t)vb_chance();
}

static uint32_t chance_of(struct vb_cm *cm)
{
	(void)cm;
	return chance();
}

/* ---- what goes ---- */

/* When something is due next; has the engine wake up by then. */
static void plan(struct device *d)
{
	uint64_t next = d->pub.lost ? VB_NEVER : vb_cm_next(d->pub.cm);

	vb_lock_assert_held(&vb_cm_ids_lock);
	if (!vb_list_empty(&d->late))
		next = 0;
	atomic_store(&d->next, next);
	if (next != VB_NEVER)
		vb_adapter_due(d->hca->adapter, next);
}

static void due(struct vb_cm_device *pub)
{
	plan((struct device *)pub);
}

static _Atomic bool hides; /* a lock that is no listener's is in the way of some: vb_ports_look() is needed */

static uint32_t find(uint16_t space, uint16_t port, uint16_t family, const uint8_t addr[16])
{
	struct vb_ports *p = atomic_load(&ports);
	uint32_t number;
	int err = p ? vb_ports_find(p, space, port, family, addr, &number) : ENOENT;

	if (err == EBUSY)
		atomic_store(&hides, true);
	return err ? 0 : number;
}

/* Whoever listens where a REQ or SIDR_REQ goes, 0: nobody.  IPv4 and IPv6 by the header of the private data,
 * which keeps what was asked for; others (AF_IB) by the GID of the port that it goes to. */
static uint32_t listener_of(const uint8_t gid[16], const struct vb_cm_msg *m)
{
	uint64_t service = m->kind == VB_CM_REQ ? m->req.service_id : m->sidr_req.service_id;
	uint16_t space = (uint16_t)(service >> 16), port = (uint16_t)service;
	uint32_t number = 0;
	struct vb_cm_ip ip;

	if (m->private_data.len >= VB_CM_IP_LEN && !vb_cm_ip_get(m->private_data.at, &ip))
		number = find(space, port, ip.version == 4 ? AF_INET : AF_INET6, ip.dst);
	return number ? number : find(space, port, VB_AF_IB, gid);
}

static struct vb_route route_of(const struct device *d, const struct vb_cm_av *av)
{
	const uint8_t(*gids)[16] = vb_adapter_gids(d->hca->adapter);
	uint32_t index = 0;

	for (uint32_t i = 0; i < VB_GID_TABLE; i++)
		if (!memcmp(gids[i], av->local_gid, 16)) {
			index = i;
			break;
		}
	return vb_route(VB_GRH_WORD(index, av->traffic_class, av->flow_label), av->hop_limit, av->sl);
}

/* What is lost is said again; ENOTCONN: by then another one may be found. */
static int send_request(struct device *d, const struct vb_cm_av *av, const struct vb_whom *to,
			const struct vb_cm_msg *m, const uint8_t mad[VB_MAD_LEN])
{
	struct vb_ports *p = atomic_load(&ports);
	int err = vb_gsi_send(d->hca, to, route_of(d, av), mad);

	if (err != ENOTCONN)
		vb_cm_went(d->pub.cm, m, to);
	else if (p) /* whatever names it is no lock of its own */
		vb_ports_shun(p, to->number);
	return err;
}

/* To the far end that the connection is with, and to nobody who has its number since. */
static void send_on(struct device *d, const struct vb_cm_av *av, const struct vb_whom *to,
		    const struct vb_cm_msg *m, const uint8_t mad[VB_MAD_LEN])
{
	char name[32], who[64] = "a process of another PID namespace";

	if (vb_far_is_there(d->hca, to)) {
		(void)vb_gsi_send(d->hca, to, route_of(d, av), mad);
		return;
	}
	if (to->pid)
		snprintf(who, sizeof(who), "process %u", to->pid);
	vb_log(VB_LOG_INFO, "rdma_cm: a %s to %s was discarded: that process ended or closed its device",
	       vb_cm_kind_name(m->kind, name), who);
}

/* What the wire and the look for an address would take elsewhere: programs begin to listen and tell their
 * clients so in either order (perftest -R tells first).  So a request that finds nobody looks again for a
 * while, and is then answered by this process itself, which finds nobody either and says so. */
enum { GRACE_MS = 100, APART_MS = 5 };

static void send_late(struct device *d, const struct vb_cm_av *av, const uint8_t mad[VB_MAD_LEN])
{
	struct late *l = malloc(sizeof(*l)); /* look_again() */

	if (!l)
		return; /* it is said again */
	l->until = vb_now() + GRACE_MS * VB_MSEC;
	l->av = *av;
	memcpy(l->mad, mad, VB_MAD_LEN);
	vb_list_append(&d->late, &l->node);
	plan(d);
}

/* When to look next. */
static uint64_t look_again(struct device *d, uint64_t now)
{
	struct vb_cm_msg m;

	vb_lock_assert_held(&vb_cm_ids_lock);
	vb_list_each_safe (node, tmp, &d->late) {
		struct late *l = vb_list_entry(node, struct late, node);
		/* One that was called off has gone nowhere, and will not: its REJ was ahead of it. */
		bool asks = !vb_cm_msg_get(l->mad, &m) && vb_cm_asks(d->pub.cm, &m);
		struct vb_whom to = vb_whom_at(asks ? listener_of(l->av.remote_gid, &m) : 0);

		if (asks && to.kind && send_request(d, &l->av, &to, &m, l->mad) == ENOTCONN)
			to = vb_whom_at(0);
		if (asks && !to.kind) {
			if (now < l->until)
				continue;
			to = vb_whom_at(d->pub.number);
			(void)send_request(d, &l->av, &to, &m, l->mad);
		}
		vb_list_unlink(node);
		free(l);
	}
	return vb_list_empty(&d->late) ? VB_NEVER : now + APART_MS * VB_MSEC;
}

static void send_mad(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_whom *to,
		     const struct vb_cm_msg *m, const uint8_t mad[VB_MAD_LEN])
{
	struct device *d = device_of(cm);
	struct vb_whom listener = *to;

	vb_lock_assert_held(&vb_cm_ids_lock);
	if (m->kind != VB_CM_REQ && m->kind != VB_CM_SIDR_REQ) {
		if (to->kind) /* else its REQ has gone nowhere yet, and will not */
			send_on(d, av, to, m, mad);
		return;
	}
	if (!to->kind)
		listener = vb_whom_at(listener_of(av->remote_gid, m));
	if (!listener.kind || send_request(d, av, &listener, m, mad) == ENOTCONN)
		send_late(d, av, mad);
}

static bool hand_on(struct vb_cm *cm, const struct vb_cm_msg *m, const struct vb_cm_av *from,
		    const uint8_t mad[VB_MAD_LEN])
{
	struct device *d = device_of(cm);
	const struct vb_whom to = vb_whom_at(listener_of(from->local_gid, m));
	struct vb_cm_av av = *from;

	vb_lock_assert_held(&vb_cm_ids_lock);
	if (!to.kind || to.number == d->pub.number)
		return false;
	memcpy(av.local_gid, from->remote_gid, sizeof(av.local_gid)); /* the sender's, as it was */
	(void)vb_gsi_send(d->hca, &to, route_of(d, &av), mad);
	return true;
}

/* ---- what comes ---- */

static void av_of(struct vb_cm_av *av, const struct device *d, const struct vb_gsi_mad *m)
{
	*av = (struct vb_cm_av){
	    .local_lid = vb_devices_infiniband() ? vb_devices_lid(d->pub.index) : 0,
	    .remote_lid = m->slid,
	    .flow_label = VB_GRH_FLOW(m->route.word),
	    .traffic_class = VB_GRH_TCLASS(m->route.word),
	    .hop_limit = m->route.hops,
	    .sl = vb_route_sl(m->route),
	    .rate = d->pub.rate,
	    .pkey = VB_PKEY_DEFAULT,
	    .whom = m->whom,
	};
	memcpy(av->remote_gid, &m->sgid, 16);
	memcpy(av->local_gid, &m->dgid, 16);
}

static void heard(void *user, const struct vb_gsi_mad *m)
{
	struct device *d = user;
	struct vb_cm_av from;

	av_of(&from, d, m);
	vb_cm_ids_enter();
	if (!d->pub.lost)
		vb_cm_input(d->pub.cm, &from, m->bytes, vb_now());
	vb_cm_ids_counted(&d->pub);
	vb_cm_ids_leave();
	atomic_store(&d->next, 0); /* timers() follows */
}

/* Most calls find nothing to be done, and take no lock. */
static uint64_t timers(void *user, uint64_t now)
{
	struct device *d = user;
	uint64_t next = atomic_load(&d->next), again;
	struct vb_ports *p = atomic_load(&ports);

	if (now < next)
		return next;
	if (p && atomic_exchange(&hides, false))
		vb_ports_look(p);
	vb_cm_ids_enter();
	next = d->pub.lost ? VB_NEVER : vb_cm_timer(d->pub.cm, now);
	vb_cm_ids_counted(&d->pub);
	again = look_again(d, now);
	if (again < next)
		next = again;
	atomic_store(&d->next, next); /* under the lock: whoever begins something stores 0 after it */
	vb_cm_ids_leave();
	return next;
}

enum { WHY = 400 };

/* Without contact the last attempt says why; a goodbye is no failure of queue pairs, but of a request. */
static void say_gone(char why[WHY], const struct vb_whom *who, enum vb_peer_end how,
		     const struct vb_reach_facts *silence)
{
	struct vb_text t = {why, WHY};
	struct vb_facts end;

	*why = 0;
	if (silence) {
		if (!vb_reach_add(&t, silence))
			vb_text_add(&t, "its process cannot be reached");
	} else if (who->pid && (how == VB_END_GOODBYE || how == VB_END_DIED)) {
		vb_text_add(&t, "process %u ended", who->pid);
	} else if (how == VB_END_GOODBYE) {
		vb_text_add(&t, "its process, of another PID namespace, ended");
	} else {
		end = vb_end_facts(how, who->pid);
		vb_reason_say(why, WHY, &end);
	}
}

static bool say_silent(struct vb_cm_device *pub, const struct vb_whom *who, char *why, size_t size)
{
	struct vb_text t = {why, size};
	struct vb_reach_facts f;
	bool up;

	*why = 0;
	if (pub->lost)
		return true;
	up = vb_gsi_silence(((struct device *)pub)->hca, who, &f);
	(void)vb_reach_add(&t, &f);
	return up;
}

static void gone(void *user, const struct vb_whom *who, enum vb_peer_end how,
		 const struct vb_reach_facts *silence)
{
	struct device *d = user;
	char why[WHY];

	if (who->number == d->pub.number)
		return;
	say_gone(why, who, how, silence);
	vb_cm_ids_gone(&d->pub, who, why);
	vb_cm_ids_enter();
	plan(d);
	vb_cm_ids_leave();
}

/* Requests that went there go another way, if there is one. */
static void mute(void *user, const struct vb_whom *who)
{
	struct vb_ports *p = atomic_load(&ports);
	struct device *d = user;

	if (p)
		vb_ports_shun(p, who->number);
	vb_cm_ids_enter();
	if (!d->pub.lost)
		vb_cm_mute(d->pub.cm, who->number);
	vb_cm_ids_leave();
}

static void established(void *user, uint32_t qpn)
{
	struct device *d = user;

	vb_cm_ids_data(&d->pub, qpn);
	atomic_store(&d->next, 0); /* timers() follows */
}

static void lost(void *user)
{
	struct device *d = user;

	vb_cm_ids_device_lost(&d->pub);
}

static const struct vb_gsi_ops gsi_ops = {heard, timers, gone, mute, established, lost};

static const struct vb_cm_ops cm_ops = {.send = send_mad,
					.event = vb_cm_ids_event,
					.listener = vb_cm_ids_listener,
					.elsewhere = hand_on,
					.chance = chance_of,
					.changed = vb_cm_ids_changed};

/* ---- opening ---- */

static bool qpn_waits(void *user, uint32_t qpn)
{
	const struct device *d = user;
	bool waits;

	vb_cm_ids_enter();
	waits = !d->pub.lost && vb_cm_qpn_waits(d->pub.cm, qpn);
	vb_cm_ids_leave();
	return waits;
}

static void describe(struct device *d, uint32_t index)
{
	const struct vb_profile *p = vb_profile();

	d->pub.index = index;
	d->pub.number = vb_adapter_number(d->hca->adapter);
	d->pub.user = d;
	d->pub.shown = vb_adapter_ids(d->hca->adapter);
	d->pub.max_rd_atomic = (uint8_t)(p->max_rd_atomic < 255 ? p->max_rd_atomic : 255);
	d->pub.ack_delay = p->ack_delay;
	d->pub.mtu = IBV_MTU_4096;
	d->pub.rate = IBV_RATE_100_GBPS;
}

static int make(uint32_t index, struct device **out)
{
	struct device *d = calloc(1, sizeof(*d)); /* the process's, for good */
	int err;

	if (!d)
		return vb_refuse_memory("rdma_bind_addr");
	err = shares->share(index, &d->hca, "rdma_bind_addr"); /* never given back */
	if (err)
		goto free_device;
	vb_list_init(&d->late);
	describe(d, index);
	err = vb_cm_open(&d->pub.cm, &cm_ops, d, &vb_cm_ids_lock, d->pub.number,
			 be64toh(vb_devices_guid(index)));
	if (err)
		goto unshare;
	err = vb_gsi_open(d->hca, &gsi_ops, d);
	if (err)
		goto close_cm;
	vb_qpn_rest(d->hca->adapter, qpn_waits, d);
	*out = d;
	return 0;
close_cm:
	vb_cm_close(d->pub.cm);
unshare:
	shares->unshare(index, d->hca);
free_device:
	free(d);
	return err;
}

static int open_device(uint32_t index, struct vb_cm_device **out)
{
	struct device *d;
	int err = 0, cancel;

	handle_fork();
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&lock);
	d = atomic_load(&devices[index]);
	if (!d || !vb_adapter_whole(d->hca->adapter)) {
		/* Its engine may not have told it yet, and would end what begins at the new one. */
		if (d)
			vb_cm_ids_device_lost(&d->pub);
		err = make(index, &d);
		if (!err)
			atomic_store(&devices[index], d);
	}
	pthread_mutex_unlock(&lock);
	pthread_setcancelstate(cancel, NULL);
	if (!err)
		*out = &d->pub;
	return err;
}

/* ---- ports ---- */

/* Those whose descriptor the program has closed are followed by others, as a device is; ids keep what they
 * have of the old ones. */
static int ports_open(struct vb_ports **out)
{
	struct vb_ports *p = atomic_load(&ports);
	int err = 0;

	if (!p || !vb_ports_usable(p)) {
		handle_fork();
		pthread_mutex_lock(&lock);
		p = atomic_load(&ports);
		if (!p || !vb_ports_usable(p)) {
			err = vb_ports_open(&p);
			if (!err)
				atomic_store(&ports, p);
		}
		pthread_mutex_unlock(&lock);
	}
	*out = p;
	return err;
}

static int bind_port(struct vb_port **out, const struct vb_port_name *name)
{
	struct vb_ports *p;
	int err = ports_open(&p);

	return err ? err : vb_port_bind(p, out, name);
}

static void why_port(const struct vb_port_name *n, int err, struct vb_text *t)
{
	vb_ports_why(atomic_load(&ports), n, err, t);
}

static bool listens(const struct vb_port_name *n)
{
	return find(n->space, n->port, n->family, n->addr);
}

static bool hidden(const struct vb_port_name *n, struct vb_text *t)
{
	struct vb_ports *p = atomic_load(&ports);

	return p && vb_ports_why_hidden(p, n, t);
}

/* Whoever waits for an event takes in what comes meanwhile, as one who waits for completions does: two
 * threads less wake up for each message.  With several devices the others' engines do.  A cancelled thread
 * leaves the frame without a word to AddressSanitizer (host/engine.c). */
static __attribute__((no_sanitize_address)) int wait_for(int fd, uint64_t until)
{
	static const bool never;
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int n;

	for (int i = 0; i < VB_MAX_DEVICES; i++) {
		struct device *d = atomic_load(&devices[i]);

		if (d && !vb_adapter_lost(d->hca->adapter))
			return vb_adapter_wait(d->hca->adapter, fd, &never, until);
	}
	do
		n = poll(&p, 1, -1);
	while (n < 0 && errno == EINTR && vb_wait_restarts());
	return n < 0 ? errno : 0;
}

static void connects(struct vb_cm_device *pub, uint32_t qpn, bool own, bool late)
{
	struct device *d = pub->user;

	vb_hca_by_cm(d->hca->adapter, qpn, late ? VB_BY_CM_LATE : own ? VB_BY_CM : VB_BY_CM_ATTR);
}

static const struct vb_cm_below below = {
    .devices = vb_devices_count,
    .infiniband = vb_devices_infiniband,
    .open = open_device,
    .local = vb_cm_host_local,
    .refresh = vb_devices_read,
    .far = vb_cm_host_far,
    .bind = bind_port,
    .bound = vb_port_name,
    .set = vb_port_set,
    .listen = vb_port_listen,
    .release = vb_port_free,
    .why_port = why_port,
    .listens = listens,
    .hidden = hidden,
    .silent = say_silent,
    .connects = connects,
    .away = vb_network_whose,
    .due = due,
    .wait = wait_for,
    .now = vb_now,
    .chance = chance,
};

__attribute__((constructor)) static void begin(void)
{
	vb_cm_ids_use(&below);
}
