#include "cm_below.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/ib.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cm/id.h"

enum { DEVICES = BELOW_DEVICES, LIVES = 4, PORTS = 256, FIRST_PORT = 40000 };

struct below below;
struct vb_shown_marks below_shown[DEVICES];
struct vb_shown_id_entry below_entries[DEVICES][VB_SHOWN_IDS];

struct flight {
	struct vb_list node;
	uint32_t to;
	struct vb_cm_av from;
	uint8_t mad[VB_MAD_LEN];
};

struct vb_port {
	struct vb_port_name name;
	uint32_t number;
	bool listens, used;
};

static struct vb_cm_device devices[DEVICES][LIVES]; /* lost ones are followed by others */
static uint32_t life[DEVICES];
static struct vb_list wire = {&wire, &wire};
static struct vb_port ports[PORTS];
static uint16_t next_port;
static uint32_t chances;

struct vb_cm_device *below_device(uint32_t index)
{
	return &devices[index][life[index]];
}

static void lose_during(enum below_call call)
{
	if (below.loses != call)
		return;
	below.loses = 0;
	vb_cm_ids_device_lost(below_device(0));
}

/* ---- addresses ---- */

static void gid_of(uint8_t gid[16], uint32_t device, bool v6)
{
	memset(gid, 0, 16);
	if (below.infiniband) {
		gid[0] = 0xfe;
		gid[1] = 0x80;
		gid[15] = (uint8_t)(device + 1);
	} else if (v6) {
		gid[0] = below.linklocal ? 0xfe : 0xfd;
		gid[1] = below.linklocal ? 0x80 : 0;
		gid[15] = (uint8_t)(device + 1);
	} else {
		gid[10] = gid[11] = 0xff;
		gid[12] = 10;
		gid[15] = (uint8_t)(device + 1);
	}
}

static bool is_v6(const uint8_t gid[16])
{
	return gid[10] != 0xff || gid[11] != 0xff;
}

static int local(const uint8_t address[16], struct vb_cm_local *out)
{
	static const uint8_t one[16] = {[15] = 1};
	bool loopback = (!is_v6(address) && address[12] == 127) || !memcmp(address, one, 16);
	uint8_t gid[16];

	for (uint32_t d = 0; d < DEVICES; d++) {
		for (int v6 = 0; v6 < 2; v6++) {
			bool infiniband = below.infiniband;
			bool same;

			below.infiniband = false;
			gid_of(gid, d, v6);
			same = !memcmp(gid, address, 16);
			below.infiniband = infiniband;
			gid_of(gid, d, v6);
			if (!same && memcmp(gid, address, 16) && !(loopback && !d && v6 == is_v6(address)))
				continue;
			*out = (struct vb_cm_local){.device = d,
						    .gid_index = infiniband ? 0 : (uint8_t)v6,
						    .lid = infiniband ? (uint16_t)(16 + d) : 0};
			memcpy(out->gid, gid, 16);
			return 0;
		}
	}
	return EADDRNOTAVAIL;
}

static void refresh(void)
{
	below.refreshed++;
}

/* Whoever does not say otherwise is on device 0. */
static int far(const uint8_t address[16], const uint8_t *source, uint8_t from[16], struct vb_cm_local *out)
{
	bool group = address[0] == 0xff || (!is_v6(address) && address[12] >> 4 == 0xe),
	     infiniband = below.infiniband;
	int err = 0;

	(void)source;
	*out = (struct vb_cm_local){0};
	if (group)
		memcpy(out->gid, address, 16);
	else
		err = local(address, out);
	below.infiniband = infiniband && address[0] == 0xfe;
	gid_of(from, 0, is_v6(address));
	below.infiniband = infiniband;
	return !err ? 0 : below.no_way ? below.no_way : EHOSTUNREACH;
}

/* ---- ports ---- */

static bool is_zero(const uint8_t a[16])
{
	static const uint8_t zero[16];

	return !memcmp(a, zero, 16);
}

static bool clashes(const struct vb_port_name *a, const struct vb_port_name *b)
{
	if (a->space != b->space || a->port != b->port || (a->reuse && b->reuse))
		return false;
	if (a->afonly && b->afonly && a->family != b->family)
		return false;
	return is_zero(a->addr) || is_zero(b->addr) || !memcmp(a->addr, b->addr, 16);
}

static int bind_port(struct vb_port **out, const struct vb_port_name *name)
{
	struct vb_port_name n = *name;
	struct vb_port *p = NULL;

	if (!n.port)
		n.port = next_port++;
	for (int i = 0; i < PORTS; i++) {
		if (ports[i].used && clashes(&ports[i].name, &n))
			return EADDRINUSE;
		if (!ports[i].used && !p)
			p = &ports[i];
	}
	assert_non_null(p);
	*p = (struct vb_port){.name = n, .used = true};
	below.ports++;
	*out = p;
	lose_during(BELOW_BIND);
	return 0;
}

static const struct vb_port_name *bound(const struct vb_port *p)
{
	return &p->name;
}

static int set_port(struct vb_port *p, bool afonly, bool reuse)
{
	if (p->listens || (p->name.reuse && !reuse))
		return EINVAL;
	p->name.afonly = afonly;
	p->name.reuse = reuse;
	return 0;
}

static int listen_port(struct vb_port *p, uint32_t number)
{
	p->name.reuse = false;
	for (int i = 0; i < PORTS; i++)
		if (ports[i].used && &ports[i] != p && clashes(&ports[i].name, &p->name))
			return EADDRINUSE;
	p->listens = true;
	p->number = number;
	return 0;
}

static void release(struct vb_port *p)
{
	assert_true(p->used);
	p->used = false;
	below.ports--;
}

/* ---- the wire ---- */

static void note(const struct vb_cm_msg *m)
{
	below.said[m->kind]++;
	if (m->kind == VB_CM_REQ)
		below.last_req = *m;
	if (m->kind == VB_CM_REP)
		below.last_rep = *m;
}

static void send_mad(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_whom *to,
		     const struct vb_cm_msg *m, const uint8_t mad[VB_MAD_LEN])
{
	struct vb_cm_local l;
	struct vb_whom went;
	struct flight *f;

	(void)to;
	note(m);
	if (local(av->remote_gid, &l))
		return;
	if (m->kind == VB_CM_REQ || m->kind == VB_CM_SIDR_REQ) {
		went = vb_whom_at(l.device + 1);
		vb_cm_went(cm, m, &went);
	}
	if (below.filter && !below.filter(m))
		return;
	f = calloc(1, sizeof *f);
	assert_non_null(f);
	f->to = below.one_hears ? 0 : l.device;
	f->from = *av;
	memcpy(f->from.local_gid, av->remote_gid, 16);
	if (below.one_hears)
		gid_of(f->from.local_gid, 0, is_v6(av->remote_gid));
	memcpy(f->from.remote_gid, av->local_gid, 16);
	f->from.local_lid = av->remote_lid;
	f->from.remote_lid = av->local_lid;
	memcpy(f->mad, mad, sizeof f->mad);
	vb_list_append(&wire, &f->node);
}

static uint32_t chance_of(struct vb_cm *cm)
{
	(void)cm;
	return chances = chances * 1664525 + 1013904223;
}

static uint32_t chance(void)
{
	return chance_of(NULL);
}

static const struct vb_cm_ops ops = {.send = send_mad,
				     .event = vb_cm_ids_event,
				     .listener = vb_cm_ids_listener,
				     .chance = chance_of,
				     .repeats = vb_cm_ids_repeats,
				     .changed = vb_cm_ids_changed};

static uint32_t count(void)
{
	return DEVICES;
}

static bool infiniband(void)
{
	return below.infiniband;
}

static int open_device(uint32_t index, struct vb_cm_device **out)
{
	struct vb_cm_device *d;

	if (below_device(index)->lost)
		life[index]++;
	assert_true(life[index] < LIVES);
	d = below_device(index);
	if (!d->cm) {
		*d = (struct vb_cm_device){.index = index,
					   .number = index + 1,
					   .shown = {&below_shown[index], below_entries[index]},
					   .max_rd_atomic = BELOW_MAX_RD_ATOMIC,
					   .ack_delay = 16,
					   .mtu = IBV_MTU_4096,
					   .rate = IBV_RATE_100_GBPS};
		assert_int_equal(vb_cm_open(&d->cm, &ops, d, &vb_cm_ids_lock, d->number, 0x1000 + index), 0);
	}
	*out = d;
	lose_during(BELOW_OPEN);
	return 0;
}

static void due(struct vb_cm_device *d)
{
	(void)d;
}

static bool silent(struct vb_cm_device *d, const struct vb_cm_conn *c, struct vb_reach_facts *f)
{
	bool other = vb_cm_far(c).number == below_device(1 - d->index)->number;

	if (other)
		*f = below.silence;
	return !below.silence.reach || below.met;
}

static void away(const uint8_t address[16], struct vb_reach_away *out)
{
	*out = (struct vb_reach_away){.obstacle = VB_AWAY_CLOSED};
	memcpy(out->gid, address, sizeof(out->gid));
	if (below.leads)
		snprintf(out->ifname, sizeof(out->ifname), "%s", below.leads);
}

static bool listens(const struct vb_port_name *n)
{
	return below.listens_port && n->space == below.listens_space && n->port == below.listens_port;
}

static bool hidden(const struct vb_port_name *n, struct vb_text *t)
{
	(void)n;
	if (below.hides)
		vb_text_add(t, "%s", below.hides);
	return below.hides;
}

static uint64_t now(void)
{
	return below.now;
}

static int wait_for(int fd, const bool *come, const _Atomic bool *soon, uint64_t until)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	(void)come;
	(void)soon;
	(void)until; /* the world's time stands still */
	below.waits++;
	return poll(&p, 1, -1) < 0 ? errno : 0;
}

static bool expect(struct vb_cm_device *d)
{
	(void)d;
	below.expects++;
	return true;
}

static const struct vb_cm_below table = {
    .wait = wait_for,
    .expect = expect,
    .devices = count,
    .infiniband = infiniband,
    .open = open_device,
    .local = local,
    .refresh = refresh,
    .far = far,
    .bind = bind_port,
    .bound = bound,
    .set = set_port,
    .listen = listen_port,
    .release = release,
    .silent = silent,
    .away = away,
    .listens = listens,
    .hidden = hidden,
    .due = due,
    .now = now,
    .chance = chance,
};

/* ---- the world ---- */

void below_open(void)
{
	struct vb_cm_device *d;

	memset((void *)&below, 0, sizeof below);
	memset(devices, 0, sizeof devices);
	memset(life, 0, sizeof life);
	memset(ports, 0, sizeof ports);
	below.now = 1000000;
	next_port = FIRST_PORT;
	vb_cm_ids_use(&table);
	for (uint32_t i = 0; i < DEVICES; i++)
		assert_int_equal(vb_cm_device_open(i, &d), 0);
}

void below_close(void)
{
	below_settle();
	assert_int_equal(below.ports, 0);
	for (int i = 0; i < DEVICES; i++) {
		vb_cm_ids_enter();
		for (int k = 0; k < LIVES; k++)
			if (devices[i][k].cm)
				vb_cm_close(devices[i][k].cm);
		vb_cm_board_leave(&devices[i][0].shown);
		vb_cm_ids_leave();
		memset((void *)&below_shown[i], 0, sizeof below_shown[i]);
		memset((void *)below_entries[i], 0, sizeof below_entries[i]);
	}
}

void below_settle(void)
{
	struct vb_list *n;

	vb_cm_ids_enter();
	while ((n = vb_list_pop(&wire))) {
		struct flight *f = vb_list_entry(n, struct flight, node);

		vb_cm_input(below_device(f->to)->cm, &f->from, f->mad, below.now);
		vb_cm_ids_counted(below_device(f->to));
		free(f);
	}
	vb_cm_ids_leave();
}

static uint64_t first_timer(void)
{
	uint64_t first = UINT64_MAX;

	for (int i = 0; i < DEVICES; i++) {
		uint64_t t;

		vb_cm_ids_enter();
		t = vb_cm_next(below_device((uint32_t)i)->cm);
		vb_cm_ids_leave();
		first = t < first ? t : first;
	}
	return first;
}

void below_wait(uint64_t ns)
{
	uint64_t until = below.now + ns, t;

	below_settle();
	while ((t = first_timer()) <= until) {
		below.now = t > below.now ? t : below.now;
		for (int i = 0; i < DEVICES; i++) {
			vb_cm_ids_enter();
			vb_cm_timer(below_device((uint32_t)i)->cm, below.now);
			vb_cm_ids_counted(below_device((uint32_t)i));
			vb_cm_ids_leave();
		}
		below_settle();
	}
	below.now = until;
}

struct sockaddr *below_addr(const char *address, uint16_t port)
{
	static struct sockaddr_storage kept[8];
	static unsigned turn;
	struct sockaddr_storage *s = &kept[turn++ % 8];

	memset(s, 0, sizeof *s);
	if (strchr(address, ':')) {
		s->ss_family = AF_INET6;
		assert_int_equal(inet_pton(AF_INET6, address, &((struct sockaddr_in6 *)s)->sin6_addr), 1);
	} else {
		s->ss_family = AF_INET;
		assert_int_equal(inet_pton(AF_INET, address, &((struct sockaddr_in *)s)->sin_addr), 1);
	}
	vb_cm_sock_set_port(s, port);
	return (struct sockaddr *)s;
}

/* ---- channels ---- */

struct vb_cm_channel *below_channel(int *fd)
{
	struct vb_cm_channel *c;
	int n;

	assert_int_equal(vb_cm_channel_open(&c, &n), 0);
	assert_int_equal(fcntl(n, F_SETFL, O_NONBLOCK), 0);
	if (fd)
		*fd = n;
	return c;
}

struct vb_cm_news below_next(struct vb_cm_channel *c, enum rdma_cm_event_type event)
{
	struct vb_cm_news n;

	below_settle();
	assert_int_equal(vb_cm_channel_get(c, &n), 0);
	assert_int_equal(n.event, event);
	vb_cm_news_ack(n.id, n.event);
	n.conn.private_data = n.ud_param.private_data = NULL;
	return n;
}

void below_none(struct vb_cm_channel *c)
{
	struct vb_cm_news n;

	below_settle();
	assert_int_equal(vb_cm_channel_get(c, &n), EAGAIN);
}
