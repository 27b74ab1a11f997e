#include "iba/away.h"

void vb_away_add(struct vb_text *t, uint32_t pid)
{
	static const char share[] = "docker and podman: --network host or --network container:NAME";

	vb_text_add(t, "not an address of this network namespace");
	if (pid)
		vb_text_add(
		    t,
		    ": process %u of this user has it in another network namespace; let both processes "
		    "share one (%s)",
		    pid, share);
	else
		vb_text_add(
		    t,
		    ", and Verbena does not connect to other hosts yet; a container has its own network "
		    "namespace unless it shares one (%s)",
		    share);
}
