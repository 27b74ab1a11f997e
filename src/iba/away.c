#include "iba/away.h"

#include <stdio.h>

#define NAMESPACE "not an address of this network namespace"
#define SHARE	  "(docker and podman: --network host or --network container:NAME)"
#define CONTAINER "a container has its own network namespace unless it shares one " SHARE

static void add_other(struct vb_text *t, uint32_t pid)
{
	vb_text_add(t,
		    ": process %u of this user has it in another network namespace; let both "
		    "processes share one " SHARE,
		    pid);
}

static void add_option(struct vb_text *t, const struct vb_reach_away *a)
{
	char name[sizeof(a->ifname) + 1], printed[4 * sizeof(name)];

	snprintf(name, sizeof(name), "%.*s", (int)sizeof(a->ifname), a->ifname);
	vb_text_escape(printed, sizeof(printed), name); /* facts may come from outside */
	if (*name)
		vb_text_add(
		    t,
		    "%s start both programs with --netdev and the interface that leads to the other: here "
		    "verbena run --netdev=%s (VERBENA_NETDEV)",
		    a->pid ? ", or" : "; to reach other hosts,", printed);
	else if (!a->pid)
		vb_text_add(t, ", and this host has no route to it; " CONTAINER);
}

void vb_away_add(struct vb_text *t, const struct vb_reach_away *a)
{
	vb_text_add(t, NAMESPACE);
	if (a->pid)
		add_other(t, a->pid);
	switch (a->obstacle) {
		break;
	case VB_AWAY_SHM:
		vb_text_add(t, "; --wire=shm (VERBENA_WIRE) keeps all packets on this host: use --wire=auto");
		break;
	case VB_AWAY_FAILED:
		vb_text_add(t,
			    "; the UDP port for other hosts could not be opened: the first line of the log "
			    "says why");
		break;
	default:
		add_option(t, a);
	}
}

void vb_away_add_source(struct vb_text *t, uint32_t pid)
{
	vb_text_add(t, NAMESPACE);
	if (pid)
		add_other(t, pid);
	else
		vb_text_add(t, "; bind to one of its addresses. A container has its own network namespace "
			       "unless it shares one " SHARE);
}
