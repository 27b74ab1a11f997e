#include "view_facts.h"

#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "host/identity.h"
#include "host/netif.h"

static struct vb_view_facts facts;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_facts(void)
{
	struct vb_gids gids;
	uint64_t guid;

	vb_gids_find(&gids);
	memcpy(facts.gids, gids.gid, sizeof(facts.gids));
	for (int i = 0; i < VB_GID_TABLE; i++)
		if (!gids.ifindex[i] || !if_indextoname(gids.ifindex[i], facts.ndev[i]))
			snprintf(facts.ndev[i], sizeof(facts.ndev[i]), "%s", gids.ifname);
	snprintf(facts.netdev, sizeof(facts.netdev), "%s", gids.ifname);
	guid = vb_identity_guid(gids.ifname);
	memcpy(facts.guid, &guid, sizeof(facts.guid));
}

const struct vb_view_facts *vb_view_facts(void)
{
	pthread_once(&once, find_facts);
	return &facts;
}
