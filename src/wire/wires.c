#include "wire/wires.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "wire/lossy.h"
#include "wire/shm.h"

/* Wires between processes of this host; the first one is taken where VERBENA_WIRE names none. */
static const struct {
	const struct vb_wire *wire;
	bool (*set)(const char *options); /* what stands behind "name:"; NULL: nothing may */
} to_peers[] = {
    {&vb_shm_wire, NULL},
#ifdef VB_FAULTS
    {&vb_lossy_wire, vb_lossy_set},
#endif
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct vb_wire *chosen; /* set once */

static void choose(void)
{
	const char *s = secure_getenv("VERBENA_WIRE");
	size_t len = s ? strcspn(s, ":") : 0;

	chosen = to_peers[0].wire;
	if (!len)
		return;
	for (size_t i = 0; i < sizeof(to_peers) / sizeof(to_peers[0]); i++) {
		const struct vb_wire *w = to_peers[i].wire;

		if (strlen(w->name) != len || memcmp(s, w->name, len))
			continue;
		if (!s[len] || (to_peers[i].set && to_peers[i].set(s + len + 1)))
			chosen = w;
		else
			vb_log_complain("VERBENA_WIRE=%s: the wire %s has no such settings; %s is used", s,
					w->name, chosen->name);
		return;
	}
	vb_log_complain("VERBENA_WIRE=%s: this build has no such wire; %s is used", s, chosen->name);
}

const struct vb_wire *vb_wire_to_peers(void)
{
	pthread_once(&once, choose);
	return chosen;
}
