/* Simulated processes of one host, in virtual time: what stands under a pair of queue pairs when hca/ is to
 * be driven as a device drives it, by posts, polls, an engine, peers that come, leave and die.
 *
 * The functions of host/adapter.h that hca/ calls are defined here (hosts.c) in place of host/'s: the
 * numbers, the peers, contact, bells and the end of processes.  Receive queues are simulated wires.  All
 * processes stand in this one, so direct placement copies within it, unless they are to reach one another's
 * memory by system calls as separate processes do.  Everything that is by chance is by seed. */
#ifndef VB_TESTS_HOSTS_H
#define VB_TESTS_HOSTS_H

#include "sim.h"

#include "hca/hca.h"

struct hosts_cfg {
	struct sim_cfg wire; /* what it says of wires holds between any two processes */
	uint64_t contact;    /* the longest time that contact takes; 0: it is there at once */
	uint64_t notice;     /* the longest time after which a peer's end is noticed */
	bool apart;	     /* what is placed directly is placed by a system call */
	bool calm;	     /* no hint is lost, and no receive queue becomes cold by chance */
	/* What other programs do while this one waits for contact in a call; may be NULL. */
	void (*meanwhile)(void *user, const struct vb_adapter *waits);
	void *user;
};

struct hosts *hosts_new(const struct hosts_cfg *cfg);
void hosts_free(struct hosts *h); /* no pair may be left */

/* A new process; with a number that one had which has ended, else a new one. */
struct vb_adapter *hosts_start(struct hosts *h);
struct vb_adapter *hosts_start_as(struct hosts *h, uint32_t number);
/* It ends without a word, or after it destroyed its queue pairs and said goodbye.  Its peers notice some time
 * later; what it had sent before is still read. */
void hosts_kill(struct vb_adapter *a);
void hosts_leave(struct vb_adapter *a);
struct vb_hca *hosts_hca(struct vb_adapter *a);
bool hosts_alive(const struct vb_adapter *a);
/* It is stopped, as by a signal, and continued. */
void hosts_stop(struct vb_adapter *a);
void hosts_continue(struct vb_adapter *a);
bool hosts_stopped(const struct vb_adapter *a);
/* A thread of its program has all its receive queues, and does not run until it is released. */
void hosts_hold(struct vb_adapter *a);
void hosts_release(struct vb_adapter *a);
/* A packet comes to it through a queue of its own, from whichever source it names. */
void hosts_hear(struct vb_adapter *a, const struct vb_arrival *in);
/* Its program arms a completion queue, or waits for a completion channel. */
void hosts_sleep(struct vb_adapter *a);
/* How the peers of this process are: how many of them are UP. */
unsigned hosts_peers_up(const struct vb_adapter *a);

/* The SRQ of a target of XRC goes. */
void hosts_end_srq(struct sim *s);

/* For sim_new_on(). */
extern const struct sim_ground hosts_ground;

/* One event.  false: nothing will ever happen. */
bool hosts_step(struct hosts *h);
/* Until nothing happens any more; the test fails after 1000 virtual seconds. */
void hosts_settle(struct hosts *h);
void hosts_run_for(struct hosts *h, uint64_t ns);
uint64_t hosts_now(const struct hosts *h);
uint64_t hosts_carried(const struct hosts *h); /* ACKs that travelled along with requests */
uint64_t hosts_packets(const struct hosts *h);

#endif
