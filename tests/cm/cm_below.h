/* What identifiers need from below (cm/below.h), in virtual time: a process with two devices whose ports a
 * wire joins that delivers in order, and loses what a test says.  Device 0 has 10.0.0.1 and fd00::1, device
 * 1 10.0.0.2 and fd00::2; 127.0.0.0/8 and ::1 are device 0's, and stand in no table. */
#ifndef VB_TESTS_CM_BELOW_H
#define VB_TESTS_CM_BELOW_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <cmocka.h>

#include "cm/api.h"
#include "cm/below.h"

enum { BELOW_MAX_RD_ATOMIC = 16, BELOW_DEVICES = 2 };
/* What is asked of this. */
enum below_call { BELOW_OPEN = 1, BELOW_BIND };

struct below {
	bool infiniband;
	bool linklocal; /* the IPv6 addresses are fe80::1 and fe80::2 */
	bool one_hears; /* device 0 hears all that is said, as for a listener at all addresses */
	/* false: the MAD is lost */
	bool (*filter)(const struct vb_cm_msg *m);
	unsigned said[0x20];		     /* MADs of each kind, those that were lost among them */
	struct vb_cm_msg last_req, last_rep; /* as they were said, without private data */
	uint64_t now;
	struct vb_reach_facts silence;	      /* why device 1 cannot be reached; UNKNOWN: it can be */
	bool met;			      /* there is contact with it all the same */
	int no_way;			      /* errno of an address that is nowhere; 0: EHOSTUNREACH */
	const char *leads;		      /* the interface that leads there; NULL: none does */
	unsigned refreshed, ports;	      /* how often the kernel was asked; ports that are taken */
	_Atomic unsigned waits;		      /* threads that had to wait for an event */
	unsigned expects;		      /* questions whose answer is about to be waited for */
	enum below_call loses;		      /* during the next such call device 0 is lost */
	uint16_t listens_space, listens_port; /* somebody listens there, at all addresses; 0: nobody */
	const char *hides; /* what is said of a lock that hides who listens; NULL: there is none */
};
extern struct below below;
extern struct vb_shown_marks below_shown[BELOW_DEVICES]; /* what tools see; of the ids in the first one's */
extern struct vb_shown_id_entry below_entries[BELOW_DEVICES][VB_SHOWN_IDS];

/* A new world without ids.  The old one's must have ended. */
void below_open(void);
void below_close(void);
/* The one at work, or the last one that was. */
struct vb_cm_device *below_device(uint32_t index);
/* All that is under way arrives; no time passes. */
void below_settle(void);
/* Time passes, and timers run when they are due. */
void below_wait(uint64_t ns);

struct sockaddr *below_addr(const char *address, uint16_t port); /* a static one of 8 */

/* A channel that does not block, and its events.  next(): the event has to be that one. */
struct vb_cm_channel *below_channel(int *fd);
struct vb_cm_news below_next(struct vb_cm_channel *c, enum rdma_cm_event_type event);
void below_none(struct vb_cm_channel *c);

/* vb_cm_ids_gone() of whoever has that number. */
static inline void below_gone(struct vb_cm_device *d, uint32_t number, uint64_t incarnation, const char *why)
{
	struct vb_whom who = vb_whom_at(number);

	who.incarnation = incarnation;
	vb_cm_ids_gone(d, &who, why);
}

#endif
