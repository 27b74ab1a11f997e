/* Ports as offsets in the file of the network namespace, and what the kernel answers about them.
 *
 * Two parts of the file's 2^63 bytes.  A claim is one byte of the lower part, which is held as long as the
 * port is:
 *
 *     53 52 | 51 ... 36 | 35    | 34 ... 32   | 31 ... 0
 *     space | port      | reuse | family, only | address, 0: the wildcard
 *
 * A listener is one more byte, of the upper part, so that one question finds it and its number:
 *
 *     62 | 61 60 | 59 ... 44 | 43 ... 12 | 11 ... 0
 *     1  | space | port      | where     | adapter's number
 *
 * An IPv4 address stands there as it is, others as a hash: two different ones of these that are taken for
 * one, once in 2^28 pairs, are a port in use that is not, or a REQ that its receiver answers as one that
 * nobody listens for. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/lock.h"
#include "host/identity.h"
#include "host/ports_priv.h"
#include "iba/limits.h"

enum { SPACE_AT = 52, PORT_AT = 36, REUSE_AT = 35, KIND_AT = 32 };
enum { LISTENER_SPACE_AT = 60, LISTENER_PORT_AT = 44, LISTENER_WHERE_AT = 12 };
_Static_assert(VB_ADAPTER_BITS == LISTENER_WHERE_AT, "an adapter's number has its room");

enum { TURN_TRIES = 8 };
#define TURN_NAP (20 * VB_USEC) /* doubled with each try: 5 ms in all */

/* A kind is a family and whether only that. */
enum { FAMILIES = 3, KINDS = 2 * FAMILIES };
static const uint16_t families[FAMILIES] = {AF_INET, AF_INET6, VB_AF_IB};

static const uint16_t spaces[VB_PORT_SPACES] = {VB_PORTS_IPOIB, VB_PORTS_TCP, VB_PORTS_UDP, VB_PORTS_IB};

int vb_port_space(uint32_t space)
{
	for (int i = 0; i < VB_PORT_SPACES; i++)
		if (spaces[i] == space)
			return i;
	return -1;
}

static unsigned family_index(uint16_t family)
{
	unsigned i = 0;

	while (i < FAMILIES - 1 && families[i] != family)
		i++;
	return i;
}

bool vb_port_is_wild(const struct vb_port_name *n)
{
	static const uint8_t none[16];

	return !memcmp(n->addr, none, sizeof(none));
}

bool vb_port_families_meet(uint16_t a, bool a_only, uint16_t b, bool b_only)
{
	return !a_only || !b_only || a == b;
}

bool vb_port_names_clash(const struct vb_port_name *a, const struct vb_port_name *b)
{
	if (a->reuse && b->reuse)
		return false;
	if (!vb_port_families_meet(a->family, a->afonly, b->family, b->afonly))
		return false;
	if (vb_port_is_wild(a) || vb_port_is_wild(b))
		return true;
	return a->family == b->family && !memcmp(a->addr, b->addr, sizeof(a->addr));
}

/* In 32 bits; 0 for the wildcard only. */
static uint32_t address_of(const struct vb_port_name *n)
{
	uint32_t hash;

	if (vb_port_is_wild(n))
		return 0;
	if (n->family == AF_INET)
		return (uint32_t)n->addr[12] << 24 | (uint32_t)n->addr[13] << 16 |
		       (uint32_t)n->addr[14] << 8 | n->addr[15];
	hash = (uint32_t)vb_identity_mix(0, n->addr, sizeof(n->addr));
	return hash ? hash : 1;
}

static uint64_t kind_of(const struct vb_port_name *n)
{
	return 2 * family_index(n->family) + n->afonly;
}

static uint64_t port_at(const struct vb_port_name *n)
{
	return (uint64_t)(unsigned)vb_port_space(n->space) << SPACE_AT | (uint64_t)n->port << PORT_AT;
}

struct vb_span vb_port_claim(const struct vb_port_name *n)
{
	return (struct vb_span){
	    port_at(n) | (uint64_t)n->reuse << REUSE_AT | kind_of(n) << KIND_AT | address_of(n), 1};
}

struct vb_span vb_port_claims(int space, uint32_t first, uint32_t count)
{
	return (struct vb_span){(uint64_t)(unsigned)space << SPACE_AT | (uint64_t)first << PORT_AT,
				(uint64_t)count << PORT_AT};
}

uint32_t vb_port_first(uint64_t at)
{
	return at >> PORT_AT & (VB_PORT_NUMBERS - 1);
}

/* Whether the claim at that offset, of n's port, clashes with n. */
static bool claim_clashes(uint64_t at, const struct vb_port_name *n)
{
	unsigned kind = at >> KIND_AT & ((1u << (REUSE_AT - KIND_AT)) - 1);
	uint32_t address = (uint32_t)at;
	bool reuse = at >> REUSE_AT & 1;

	if (kind >= KINDS || (reuse && n->reuse) ||
	    !vb_port_families_meet(n->family, n->afonly, families[kind / 2], kind & 1))
		return false;
	return !address || vb_port_is_wild(n) ||
	       (families[kind / 2] == n->family && address == address_of(n));
}

bool vb_port_span_clashes(struct vb_span s, const struct vb_port_name *n)
{
	enum { MOST = 256 }; /* claims of one process at neighbouring addresses; what is longer is a block */
	struct vb_span port = vb_port_claims(vb_port_space(n->space), n->port, 1);
	uint64_t at = s.at > port.at ? s.at : port.at, end = port.at + port.len;

	if (s.len && s.at + s.len < end)
		end = s.at + s.len;
	if (at < end && end - at > MOST)
		return true;
	while (at < end && !claim_clashes(at, n))
		at++;
	return at < end;
}

/* A listener stands at the wildcard of all families, at that of one, or at an address.  IPv4 has no hosts in
 * the networks 0 and 240 to 255 (RFC 1122, 3.2.1.3; RFC 1112, 4), so that the others have room there. */
static uint32_t where_everywhere(void)
{
	return FAMILIES;
}

static uint32_t where_of(const struct vb_port_name *n)
{
	if (vb_port_is_wild(n))
		return n->afonly ? family_index(n->family) : where_everywhere();
	return n->family == AF_INET ? address_of(n) : 0xf0000000u | address_of(n);
}

static struct vb_span listeners_at(const struct vb_port_name *n, uint32_t where)
{
	return (struct vb_span){
	    1ull << VB_LISTENER_AT | (uint64_t)(unsigned)vb_port_space(n->space) << LISTENER_SPACE_AT |
		(uint64_t)n->port << LISTENER_PORT_AT | (uint64_t)where << LISTENER_WHERE_AT,
	    VB_ADAPTERS};
}

struct vb_span vb_port_listener(const struct vb_port_name *n, uint32_t number)
{
	return (struct vb_span){listeners_at(n, where_of(n)).at + (number & (VB_ADAPTERS - 1)), 1};
}

static __thread const char *failed; /* the call of this thread that failed last */

int vb_registry_open(struct vb_registry *r)
{
	/* The thread's own: it may have left the network of the others (unshare(2)). */
	r->fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	if (r->fd < 0) {
		failed = "open(/proc/thread-self/ns/net)";
		return errno;
	}
	r->own = vb_own_of(r->fd);
	return 0;
}

void vb_registry_close(struct vb_registry *r)
{
	vb_own_close(&r->own, r->fd);
	r->fd = -1;
}

bool vb_registry_whole(const struct vb_registry *r)
{
	return vb_own_is(&r->own, r->fd);
}

const char *vb_registry_failed(void)
{
	return failed;
}

/* F_OFD_SETLK or F_OFD_GETLK; 0 or errno. */
static int ask(const struct vb_registry *r, int command, struct flock *f)
{
	if (!fcntl(r->fd, command, f))
		return 0;
	failed = command == F_OFD_SETLK ? "fcntl(F_OFD_SETLK)" : "fcntl(F_OFD_GETLK)";
	return errno;
}

static int lock(const struct vb_registry *r, struct vb_span s, short type)
{
	struct flock f = {
	    .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)s.at, .l_len = (off_t)s.len};

	return ask(r, F_OFD_SETLK, &f);
}

int vb_registry_hold(const struct vb_registry *r, struct vb_span s)
{
	return lock(r, s, F_RDLCK);
}

int vb_registry_drop(const struct vb_registry *r, struct vb_span s)
{
	return lock(r, s, F_UNLCK);
}

int vb_registry_others(const struct vb_registry *r, struct vb_span s, struct vb_span *found)
{
	/* Would a lock for writing be in anybody's way?  Who asks need not be allowed to take it. */
	struct flock f = {
	    .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)s.at, .l_len = (off_t)s.len};
	int err = ask(r, F_OFD_GETLK, &f);

	if (err)
		return err;
	if (f.l_type == F_UNLCK)
		return 0;
	if (found)
		*found = (struct vb_span){(uint64_t)f.l_start, (uint64_t)f.l_len}; /* 0: to the end */
	return EADDRINUSE;
}

/* Claims of one kind that clash with n. */
static int clash_with(const struct vb_registry *r, const struct vb_port_name *n, bool reuse, unsigned kind,
		      struct vb_span *found)
{
	uint64_t at = port_at(n) | (uint64_t)reuse << REUSE_AT | (uint64_t)kind << KIND_AT;
	int err;

	if (!vb_port_families_meet(n->family, n->afonly, families[kind / 2], kind & 1))
		return 0;
	if (vb_port_is_wild(n))
		return vb_registry_others(r, (struct vb_span){at, 1ull << KIND_AT}, found);
	err = vb_registry_others(r, (struct vb_span){at, 1}, found);
	if (!err && families[kind / 2] == n->family)
		err = vb_registry_others(r, (struct vb_span){at | address_of(n), 1}, found);
	return err;
}

int vb_registry_clash(const struct vb_registry *r, const struct vb_port_name *n, struct vb_span *found)
{
	/* Mostly nobody has anything on that port. */
	int err = vb_registry_others(r, vb_port_claims(vb_port_space(n->space), n->port, 1), NULL);

	if (err != EADDRINUSE)
		return err;
	err = 0;
	for (unsigned kind = 0; !err && kind < KINDS; kind++) {
		err = clash_with(r, n, false, kind, found);
		if (!err && !n->reuse)
			err = clash_with(r, n, true, kind, found);
	}
	return err;
}

bool vb_port_is_shunned(const struct vb_search *how, uint64_t at)
{
	for (uint32_t i = 0; i < how->nshunned; i++)
		if (how->shunned[i] == (at & (VB_ADAPTERS - 1)))
			return true;
	return false;
}

/* The listener at exactly this place. */
static int find_at(const struct vb_registry *r, const struct vb_port_name *n, uint32_t where,
		   const struct vb_search *how, uint32_t *number)
{
	const struct vb_listeners *l = how->behind;
	struct vb_span s = listeners_at(n, where), found = {0, 0};
	int err = vb_registry_others(r, s, &found);

	if (err != EADDRINUSE)
		return err ? err : ENOENT;
	if (found.len == 1 && vb_port_is_listener(found.at) && !vb_port_is_shunned(how, found.at)) {
		*number = (uint32_t)(found.at - s.at);
		return 0;
	}
	/* It is no listener's, and hides those that are. */
	if (!l)
		return EBUSY;
	for (uint32_t i = vb_listeners_from(l, s.at); i < l->n && l->at[i] < s.at + s.len; i++) {
		if (!vb_port_is_shunned(how, l->at[i])) {
			*number = (uint32_t)(l->at[i] - s.at);
			return 0;
		}
	}
	return ENOENT;
}

int vb_registry_find(const struct vb_registry *r, const struct vb_port_name *n, const struct vb_search *how,
		     uint32_t *number)
{
	const uint32_t where[] = {where_of(n), family_index(n->family), where_everywhere()};
	int err = ENOENT;

	for (unsigned i = vb_port_is_wild(n) ? 1 : 0; err == ENOENT && i < 3; i++)
		err = find_at(r, n, where[i], how, number);
	return err;
}

bool vb_registry_hides(const struct vb_registry *r, const struct vb_port_name *n, struct vb_span *found)
{
	const uint32_t where[] = {where_of(n), family_index(n->family), where_everywhere()};

	for (unsigned i = vb_port_is_wild(n) ? 1 : 0; i < 3; i++)
		if (vb_registry_others(r, listeners_at(n, where[i]), found) == EADDRINUSE)
			return true;
	return false;
}

void vb_registry_enter(const struct vb_registry *r)
{
	struct timespec nap = {0, TURN_NAP};

	/* If flock() is denied, nobody takes turns, and two that come at once may both be refused. */
	for (int i = 0; i < TURN_TRIES && flock(r->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK; i++) {
		nanosleep(&nap, NULL);
		nap.tv_nsec *= 2;
	}
}

void vb_registry_leave(const struct vb_registry *r)
{
	flock(r->fd, LOCK_UN);
}
