/* Meeting others on purpose, before anything is sent to them: contact with several numbers at once. */
#include <errno.h>

#include "host/private.h"

/* Has contact begun, so that those who answer are there while one who does not is waited for. */
static void call_one(struct vb_adapter *a, uint32_t number)
{
	struct vb_peer *peer =
	    vb_adapter_has_number(a, number) ? NULL : vb_peer_get(a, number); /* pairs with vb_peer_put() */

	if (peer)
		vb_peer_put(peer);
}

static int meet_one(struct vb_adapter *a, uint32_t number, uint64_t until, struct vb_met *met)
{
	struct vb_reach_facts why;
	struct vb_peer *peer;
	int err;

	if (!number || vb_adapter_has_number(a, number)) /* 0 is nobody's, but may be asked for */
		return 0;
	err = vb_peer_reach(a, number, until, &peer, &why); /* pairs with vb_peer_put() */
	if (!err)
		vb_peer_put(peer);
	if (err == ETIMEDOUT) {
		met->silent++;
	} else if (err == ECONNREFUSED && why.reach != VB_REACH_NOBODY) {
		met->refused++;
		met->why = why;
		met->unable += why.reach == VB_REACH_UNABLE;
	}
	return err == ETIMEDOUT || err == ECONNREFUSED ? 0 : err;
}

void vb_peers_call(struct vb_adapter *a, const uint32_t *numbers, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		call_one(a, numbers[i]);
}

int vb_peers_meet(struct vb_adapter *a, const uint32_t *numbers, uint32_t n, uint64_t until,
		  struct vb_met *met)
{
	int err = 0;

	vb_peers_call(a, numbers, n);
	for (uint32_t i = 0; i < n && !err; i++)
		err = meet_one(a, numbers[i], until, met);
	return err;
}
