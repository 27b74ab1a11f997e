#include "iba/away.h"

#define NAMESPACE "not an address of this network namespace"
#define SHARE	  "(docker and podman: --network host or --network container:NAME)"

static void add_other(struct vb_text *t, uint32_t pid)
{
	vb_text_add(t,
		    NAMESPACE ": process %u of this user has it in another network namespace; let both "
			      "processes share one " SHARE,
		    pid);
}

void vb_away_add(struct vb_text *t, uint32_t pid)
{
	if (pid)
		add_other(t, pid);
	else
		vb_text_add(t, NAMESPACE
			    ", and Verbena does not connect to other hosts yet; a container has its own "
			    "network namespace unless it shares one " SHARE);
}

void vb_away_add_source(struct vb_text *t, uint32_t pid)
{
	if (pid)
		add_other(t, pid);
	else
		vb_text_add(t, NAMESPACE
			    "; bind to one of its addresses. A container has its own network namespace "
			    "unless it shares one " SHARE);
}
