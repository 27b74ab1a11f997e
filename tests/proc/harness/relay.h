/* A bad network between two hosts (hosts.h, relayed): it loses, repeats, delays and corrupts packets of
 * RoCEv2 by chance, and hands on all other frames as they are. */
#ifndef VB_TESTS_RELAY_H
#define VB_TESTS_RELAY_H

#include "hosts.h"
#include "kit.h"

struct kit_relay {
	uint64_t seed;
	/* of a thousand packets; the sum is 1000 at most.  A late one arrives after up to 16 of those that
	 * followed it.  Of the corrupt ones three of four have the right checksums of IP and UDP all the
	 * same, so that only the ICRC tells. */
	unsigned loss, dup, late, corrupt;
	_Atomic uint64_t passed, lost, twice, delayed, corrupted; /* what became of them */
	_Atomic int ready;
};

/* Hands frames on from now on, in a child; r is memory that children share.  The numbers may be changed while
 * it runs. */
pid_t kit_relay_start(const struct kit_hosts *h, struct kit_relay *r);
/* Ends the child, and prints what it did. */
void kit_relay_stop(pid_t pid, const struct kit_relay *r);

#endif
