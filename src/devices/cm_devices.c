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
#include "hca/mads.h"
#include "hca/peers.h"
#include "host/devices.h"
#include "host/networks.h"
#include "host/route.h"
#include "iba/pkt.h"
#include "iba/profile.h"
#include "iba/reason.h"
#include "obj/refuse.h"
#include "devices/cm_dev.h"
#include "devices/cm_devices.h"

/* Taken before verbs/context.c's, the ports' and vb_cm_ids_lock; guards `devices` and `ports` while they are
 * made.  Once there they are read without it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct vb_cm_dev *) devices[VB_MAX_DEVICES]; /* the last that was opened of each */

static const struct vb_cm_shares *shares; /* set once, by a constructor */

void vb_cm_devices_share(const struct vb_cm_shares *upper)
{
	shares = upper;
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
	atomic_store(&vb_cm_ports, NULL);
}

/* ---- exit() ---- */

static _Atomic bool leaving;

/* exit() may be called in the middle of anything, so the engines do the rest: timers() below.  The host's own
 * handler, which was registered before this one and so is called after it, waits for them. */
static void at_exit(void)
{
	atomic_store(&leaving, true);
	for (int i = 0; i < VB_MAX_DEVICES; i++) {
		struct vb_cm_dev *d = atomic_load(&devices[i]);

		if (d && d->hca->hosts)
			atomic_store(&d->next, 0);
	}
}

static void register_handlers(void)
{
	shares->handle_fork(); /* first, so that its handlers take their locks after ours: the ports' too */
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
	atexit(at_exit);
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

static void due(struct vb_cm_device *pub)
{
	vb_cm_plan((struct vb_cm_dev *)pub);
}

/* ---- what comes ---- */

static void av_of(struct vb_cm_av *av, const struct vb_cm_dev *d, const struct vb_gsi_mad *m)
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

/* Of another host: the device of this process that it is for, by the number in the comm ID that it is
 * addressed to, or by the address that it came to. */
static struct vb_cm_dev *device_for(struct vb_cm_dev *d, const struct vb_gsi_mad *m, uint32_t number)
{
	int k = vb_devices_of((const uint8_t *)&m->dgid);
	struct vb_cm_dev *at;

	for (int i = 0; number && i < VB_MAX_DEVICES; i++) {
		at = atomic_load(&devices[i]);
		if (at && at->pub.number == number)
			return at;
	}
	at = k < 0 ? NULL : atomic_load(&devices[k]);
	return at ? at : d;
}

/* A REJ that names no comm ID of this host is of a request that nobody has answered.  Whoever has that
 * request may be any process. */
static void hand_to_all(struct vb_cm_dev *d, const struct vb_gsi_mad *m)
{
	for (uint32_t i = 0; i < vb_far_count(d->hca); i++) {
		struct vb_far *far = vb_far_member(d->hca, i);
		struct vb_whom to;

		if (!far || far->kind->own(far) || far->kind->state(far) != VB_FAR_UP)
			continue;
		to = far->kind->whom(far);
		(void)vb_gsi_hand(d->hca, &to, m);
	}
}

/* A MAD of another host came to the process that was first to look.  Whether it is another one's, who has it
 * now.  If nobody has that number any more, it is answered here, as the host's kernel would. */
static bool is_passed_on(struct vb_cm_dev *d, const struct vb_gsi_mad *m, uint32_t number)
{
	struct vb_whom to = vb_whom_at(number);

	return number && d->pub.number != number && vb_number_is_taken(number) &&
	       !vb_gsi_hand(d->hca, &to, m);
}

/* A request of another host waits for its listener here. */
static bool is_late(struct vb_cm_dev *d, const struct vb_cm_av *from, const struct vb_cm_msg *msg,
		    const uint8_t mad[VB_MAD_LEN])
{
	if (msg->kind != VB_CM_REQ && msg->kind != VB_CM_SIDR_REQ)
		return false;
	return !vb_cm_listener_of(from->local_gid, msg) && vb_cm_keep_late(d, from, mad, true);
}

static void hear(struct vb_cm_dev *d, const struct vb_gsi_mad *m, const struct vb_cm_msg *far)
{
	struct vb_cm_av from;

	av_of(&from, d, m);
	vb_cm_ids_enter();
	if (!d->pub.lost) {
		if (far)
			vb_mads_heard(d->hca, m->sgid);
		if (!far || !is_late(d, &from, far, m->bytes))
			vb_cm_input(d->pub.cm, &from, m->bytes, vb_now());
	}
	vb_cm_ids_counted(&d->pub);
	atomic_store(&d->next, 0); /* timers() follows */
	vb_cm_ids_leave();
}

static void heard(void *user, const struct vb_gsi_mad *m)
{
	struct vb_cm_dev *d = user, *at;
	struct vb_cm_msg msg;
	uint32_t number;

	if (m->whom.kind != VB_WHOM_ADDRESS || vb_cm_msg_get(m->bytes, &msg)) {
		hear(d, m, NULL);
		return;
	}
	number = vb_cm_msg_number(&msg);
	at = device_for(d, m, number);
	if (!m->handed && is_passed_on(at, m, number))
		return;
	if (!m->handed && !number && msg.kind == VB_CM_REJ)
		hand_to_all(at, m);
	hear(at, m, &msg);
	if (at != d)
		vb_adapter_due(at->hca->adapter, vb_now());
}

/* Most calls find nothing to be done, and take no lock. */
static uint64_t timers(void *user, uint64_t now)
{
	struct vb_cm_dev *d = user;
	uint64_t next = atomic_load(&d->next), again;
	struct vb_ports *p = atomic_load(&vb_cm_ports);

	if (now < next)
		return next;
	if (p && atomic_exchange(&vb_cm_hides, false))
		vb_ports_look(p);
	vb_cm_ids_enter();
	if (atomic_load(&leaving) && !d->pub.lost && !d->left) {
		d->left = true;
		vb_cm_leave(d->pub.cm);
	}
	next = d->pub.lost ? VB_NEVER : vb_cm_timer(d->pub.cm, now);
	vb_cm_ids_counted(&d->pub);
	again = vb_cm_look_again(d, now);
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

static bool silent(struct vb_cm_device *pub, const struct vb_cm_conn *c, struct vb_reach_facts *f)
{
	const struct vb_whom far = vb_cm_far(c);
	struct vb_cm_awaited awaited;

	*f = (struct vb_reach_facts){.reach = VB_REACH_UNKNOWN};
	if (pub->lost || !far.kind)
		return true;
	vb_cm_awaits(c, &awaited);
	return vb_gsi_silence(((struct vb_cm_dev *)pub)->hca, &far, vb_gid_of(c->av.local_gid), awaited.since,
			      f);
}

static void gone(void *user, const struct vb_whom *who, enum vb_peer_end how,
		 const struct vb_reach_facts *silence)
{
	struct vb_cm_dev *d = user;
	char why[WHY];

	if (who->number == d->pub.number)
		return;
	say_gone(why, who, how, silence);
	vb_cm_ids_gone(&d->pub, who, why);
	vb_cm_ids_enter();
	vb_cm_plan(d);
	vb_cm_ids_leave();
}

/* Requests that went there go another way, if there is one. */
static void mute(void *user, const struct vb_whom *who)
{
	struct vb_ports *p = atomic_load(&vb_cm_ports);
	struct vb_cm_dev *d = user;

	if (p)
		vb_ports_shun(p, who->number);
	vb_cm_ids_enter();
	if (!d->pub.lost)
		vb_cm_mute(d->pub.cm, who->number);
	vb_cm_ids_leave();
}

static void established(void *user, uint32_t qpn)
{
	struct vb_cm_dev *d = user;

	vb_cm_ids_data(&d->pub, qpn);
	atomic_store(&d->next, 0); /* timers() follows */
}

static void lost(void *user)
{
	struct vb_cm_dev *d = user;

	vb_cm_ids_device_lost(&d->pub);
}

static const struct vb_gsi_ops gsi_ops = {heard, timers, gone, mute, established, lost};

static const struct vb_cm_ops cm_ops = {.send = vb_cm_send_mad,
					.event = vb_cm_ids_event,
					.listener = vb_cm_ids_listener,
					.elsewhere = vb_cm_hand_on,
					.chance = chance_of,
					.repeats = vb_cm_ids_repeats,
					.changed = vb_cm_ids_changed};

/* ---- opening ---- */

static bool qpn_waits(void *user, uint32_t qpn)
{
	const struct vb_cm_dev *d = user;
	bool waits;

	vb_cm_ids_enter();
	waits = !d->pub.lost && vb_cm_qpn_waits(d->pub.cm, qpn);
	vb_cm_ids_leave();
	return waits;
}

static void describe(struct vb_cm_dev *d, uint32_t index)
{
	const struct vb_profile *p = vb_profile();

	d->pub.index = index;
	d->pub.number = vb_adapter_number(d->hca->adapter);
	d->pub.user = d;
	d->pub.shown = vb_adapter_ids(d->hca->adapter);
	d->pub.max_rd_atomic = (uint8_t)(p->max_rd_atomic < 255 ? p->max_rd_atomic : 255);
	d->pub.ack_delay = p->ack_delay;
	d->pub.mtu = IBV_MTU_4096;
	d->pub.wire = d->hca->hosts;
	d->pub.rate = IBV_RATE_100_GBPS;
}

static int make(uint32_t index, struct vb_cm_dev **out)
{
	struct vb_cm_dev *d = calloc(1, sizeof(*d)); /* the process's, for good */
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
	struct vb_cm_dev *d;
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
	struct vb_ports *p = atomic_load(&vb_cm_ports);
	int err = 0;

	if (!p || !vb_ports_usable(p)) {
		handle_fork();
		pthread_mutex_lock(&lock);
		p = atomic_load(&vb_cm_ports);
		if (!p || !vb_ports_usable(p)) {
			err = vb_ports_open(&p);
			if (!err)
				atomic_store(&vb_cm_ports, p);
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
	vb_ports_why(atomic_load(&vb_cm_ports), n, err, t);
}

static bool listens(const struct vb_port_name *n)
{
	return vb_cm_find(n->space, n->port, n->family, n->addr);
}

static bool hidden(const struct vb_port_name *n, struct vb_text *t)
{
	struct vb_ports *p = atomic_load(&vb_cm_ports);

	return p && vb_ports_why_hidden(p, n, t);
}

/* The device by which threads wait. */
static struct vb_cm_dev *at_work(void)
{
	for (int i = 0; i < VB_MAX_DEVICES; i++) {
		struct vb_cm_dev *d = atomic_load(&devices[i]);

		if (d && !vb_adapter_lost(d->hca->adapter))
			return d;
	}
	return NULL;
}

/* For how long an answer is expected before the thread sleeps: the process that is to answer wakes up, and
 * its program makes a queue pair. */
#define SOON (100 * VB_USEC)

static bool expect(struct vb_cm_device *pub)
{
	struct vb_cm_dev *d = at_work();

	return d && d == pub->user && vb_adapter_expect(d->hca->adapter);
}

/* Whoever waits for an event takes in what comes meanwhile, as one who waits for completions does: two
 * threads less wake up for each message.  With several devices the others' engines do.  A cancelled thread
 * leaves the frame without a word to AddressSanitizer (host/engine.c). */
static __attribute__((no_sanitize_address)) int wait_for(int fd, const bool *come, const _Atomic bool *soon,
							 uint64_t until)
{
	struct vb_cm_dev *d = at_work();
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int n;

	if (d && soon)
		vb_adapter_look_out(d->hca->adapter, come, soon, vb_now() + SOON);
	if (*come || (soon && atomic_load_explicit(soon, memory_order_relaxed)))
		return 0;
	if (d)
		return vb_adapter_wait(d->hca->adapter, fd, come, until);
	do
		n = poll(&p, 1, -1);
	while (n < 0 && errno == EINTR && vb_wait_restarts());
	return n < 0 ? errno : 0;
}

static void connects(struct vb_cm_device *pub, uint32_t qpn, bool own, bool late)
{
	struct vb_cm_dev *d = pub->user;

	vb_hca_by_cm(d->hca->adapter, qpn, late ? VB_BY_CM_LATE : own ? VB_BY_CM : VB_BY_CM_ATTR);
}

/* By what the device of the interface that leads there says, if one does. */
static void why_away(const uint8_t address[16], struct vb_reach_away *out)
{
	struct vb_route_to r;
	struct vb_cm_dev *d;
	struct vb_port p;

	*out = (struct vb_reach_away){.pid = vb_network_whose(address), .obstacle = VB_AWAY_CLOSED};
	memcpy(out->gid, address, sizeof(out->gid));
	if (vb_route_find(&r, address, 0) || r.local)
		return;
	memcpy(out->ifname, r.ifname, sizeof(out->ifname));
	for (uint32_t i = 0; i < vb_devices_count(); i++) {
		vb_devices_port(i, &p);
		d = atomic_load(&devices[i]);
		if (d && p.wire && p.ifindex == r.ifindex)
			out->obstacle = d->hca->away;
	}
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
    .silent = silent,
    .connects = connects,
    .away = why_away,
    .due = due,
    .wait = wait_for,
    .expect = expect,
    .now = vb_now,
    .chance = chance,
};

__attribute__((constructor)) static void begin(void)
{
	vb_cm_ids_use(&below);
}
