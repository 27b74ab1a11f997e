#include "wire/wires.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "host/netdev.h"
#include "wire/lossy.h"
#include "wire/shm.h"
#include "wire/udp.h"

/* The values of VERBENA_WIRE; the first one is taken where it names none.  Wires between processes of this
 * host, but for who is reached by UDP. */
static const struct {
	const char *name;
	const struct vb_wire *wire;
	enum vb_wire_way way;
	bool (*set)(const char *options); /* what stands behind "name:"; NULL: nothing may */
} rows[] = {
    {"auto", &vb_shm_wire, VB_WIRE_AUTO, NULL},
    {"shm", &vb_shm_wire, VB_WIRE_SHM, NULL},
    {"udp", &vb_shm_wire, VB_WIRE_UDP, NULL},
#ifdef VB_FAULTS
    {"lossy", &vb_lossy_wire, VB_WIRE_AUTO, vb_lossy_set},
#endif
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Set once. */
static const struct vb_wire *chosen;
static enum vb_wire_way way;
static char wrong[200]; /* "": nothing is */

/* false: the row has no such settings. */
static bool take(size_t i, const char *options)
{
	if (*options && (!rows[i].set || !rows[i].set(options + 1)))
		return false;
	chosen = rows[i].wire;
	way = rows[i].way;
	return true;
}

static void choose(void)
{
	const char *s = secure_getenv("VERBENA_WIRE");
	size_t len = s ? strcspn(s, ":") : 0;

	chosen = rows[0].wire;
	way = rows[0].way;
	if (!len)
		return;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		if (strlen(rows[i].name) != len || memcmp(s, rows[i].name, len))
			continue;
		if (!take(i, s + len))
			snprintf(wrong, sizeof(wrong),
				 "VERBENA_WIRE=%.80s: the wire %s has no such settings; %s is used", s,
				 rows[i].name, rows[0].name);
		else if (way == VB_WIRE_UDP && !vb_netdevs()->n) {
			way = rows[0].way;
			snprintf(wrong, sizeof(wrong),
				 "VERBENA_WIRE=udp requires --netdev (VERBENA_NETDEV), which names the "
				 "interfaces that UDP uses");
		}
		return;
	}
	snprintf(wrong, sizeof(wrong),
		 "VERBENA_WIRE=%.80s: this build has no such wire; %s is used. Wires are auto, shm and udp",
		 s, rows[0].name);
}

static void settle(void)
{
	static _Atomic bool told;

	pthread_once(&once, choose);
	if (*wrong && !atomic_exchange(&told, true))
		vb_log_complain("%s", wrong);
}

const struct vb_wire *vb_wire_to_peers(void)
{
	settle();
	return chosen;
}

const struct vb_net_wire *vb_wire_to_hosts(void)
{
	return &vb_udp_wire;
}

enum vb_wire_way vb_wire_way(void)
{
	settle();
	return way;
}

const char *vb_wire_wrong(void)
{
	pthread_once(&once, choose);
	return *wrong ? wrong : NULL;
}
