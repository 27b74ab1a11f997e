#include "iba/away.h"

void vb_away_add(struct vb_text *t, uint32_t pid)
{
	static const char share[] = "--network host, or --network container:NAME, of docker and podman";

	vb_text_add(t, "no address of this network namespace");
	if (pid)
		vb_text_add(t,
			    ": process %u of this user has it, in another network namespace; processes reach "
			    "one another in one only, so let both share it (%s)",
			    pid, share);
	else
		vb_text_add(t,
			    ", and there is no wire to other hosts yet; a container has a network namespace "
			    "of its own, unless it shares one (%s)",
			    share);
}
