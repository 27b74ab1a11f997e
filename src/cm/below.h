/* What identifiers (cm/id.h) need from below, as a table of functions: the devices at work, the host's
 * addresses, names of listeners, time and chance.  The process has one table, handed in by vb_cm_ids_use();
 * tests hand in one over a network in virtual time.
 *
 * Locks.  One lock guards all identifiers, channels and engines of the process: vb_cm_ids_enter() takes it,
 * vb_cm_ids_leave() gives it back and then writes to the descriptors of channels that got events.  Whoever
 * calls vb_cm_input() or vb_cm_timer() does so between the two; API calls take it themselves.  It is a
 * vb_lock, taken behind no lock of host/ or hca/ that is held while MADs are handed over, and before what
 * vb_cm_ops.send takes. Of the functions below only local(), bound(), now(), chance(), due(),
 * silent(), listens() and hidden() are called with it; all others may block. */
#ifndef VB_CM_BELOW_H
#define VB_CM_BELOW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "cm/cm.h"
#include "host/ports.h"
#include "iba/reach.h"
#include "iba/shown_id.h"

/* A device at work.  Made by open(), and there as long as the process lives; `user` is the maker's. */
struct vb_cm_device {
	uint32_t index;	  /* among the process's devices */
	uint32_t number;  /* the adapter's, by which its MADs find it */
	struct vb_cm *cm; /* its engine: vb_cm_user() is this struct, the lock vb_cm_ids_lock, and of its ops
			   * `event` is vb_cm_ids_event, `listener` vb_cm_ids_listener, `repeats`
			   * vb_cm_ids_repeats, and `changed` vb_cm_ids_changed */
	void *user;
	struct vb_shown_ids shown; /* its part of what tools see (iba/shown_id.h), if any */
	/* What the device can do. */
	uint8_t max_rd_atomic; /* 255 at most */
	uint8_t ack_delay;     /* local_ca_ack_delay: a code as vb_cm_time() takes it */
	uint8_t mtu;	       /* enum ibv_mtu */
	uint8_t rate;	       /* enum ibv_rate */
	bool wire;	       /* a wire leads to other hosts */
	bool lost;	       /* guarded by the lock; vb_cm_ids_device_lost() sets it */
};

/* One end of a path, at this host: where an address is.  The GID is one of the device's table, of the
 * address's own family if the table has one: the address itself where it stands there. */
struct vb_cm_local {
	uint32_t device;
	uint8_t gid_index;
	uint8_t gid[16];
	uint16_t lid; /* 0 on Ethernet */
	/* Of the far end of a path: */
	bool leaves; /* it is on another host */
	uint8_t mtu; /* the path's (enum ibv_mtu), 0: the device's */
};

struct vb_cm_below {
	uint32_t (*devices)(void);
	bool (*infiniband)(void);
	/* Has a device at work.  0 or errno.  The same one each time, until it is lost: that has been told
	 * (vb_cm_ids_device_lost()) before another one has its index. */
	int (*open)(uint32_t index, struct vb_cm_device **out);
	/* Where an address of this host is, as far as is known; never blocks, and is called with the lock,
	 * too.  0; EADDRNOTAVAIL: it is none of this host's. */
	int (*local)(const uint8_t address[16], struct vb_cm_local *out);
	/* Asks the kernel for this host's addresses. */
	void (*refresh)(void);
	/* The far end of a path to an address, which may be a group's: its GID and LID in *out, and in `from`
	 * the address of this host that the kernel would choose as the source.  source: the one that the
	 * program has chosen, NULL: none.  0; EHOSTUNREACH, ENETUNREACH, EACCES: no way there. */
	int (*far)(const uint8_t address[16], const uint8_t *source, uint8_t from[16],
		   struct vb_cm_local *out);
	/* Ports, as host/ports.h has them.  bind() knows the process's struct vb_ports, which a forked child
	 * has anew; `number` of listen() is the device's. */
	int (*bind)(struct vb_port **out, const struct vb_port_name *name);
	const struct vb_port_name *(*bound)(const struct vb_port *p);
	int (*set)(struct vb_port *p, bool afonly, bool reuse);
	int (*listen)(struct vb_port *p, uint32_t number);
	void (*release)(struct vb_port *p);
	/* Why bind(), set() or listen() has just failed with `err` in this thread, as a clause.  NULL: no
	 * more than the errno is known. */
	void (*why_port)(const struct vb_port_name *n, int err, struct vb_text *t);
	/* Whether anybody listens where that name leads.  Called with the lock.  NULL: that is not known. */
	bool (*listens)(const struct vb_port_name *n);
	/* Adds a clause about a listener that nobody finds there, where a lock of a stranger is in the way;
	 * false: none is.  Called with the lock.  NULL: none ever is. */
	bool (*hidden)(const struct vb_port_name *n, struct vb_text *t);
	/* What is known of the far end of a connection that does not answer what vb_cm_awaits() tells of.
	 * false: there is no contact with it, so nothing that was said to it has arrived.  NULL: there always
	 * is. */
	bool (*silent)(struct vb_cm_device *d, const struct vb_cm_conn *c, struct vb_reach_facts *f);
	/* The queue pair of that number is connected by rdma_cm, and is the id's (`own`) or the program's.
	 * `late`: the id was connected before it was made, so it never will be.  NULL: nobody need know. */
	void (*connects)(struct vb_cm_device *d, uint32_t qpn, bool own, bool late);
	/* Why an address of another host, or network namespace, is not reached.  NULL: that cannot be told.
	 */
	void (*away)(const uint8_t address[16], struct vb_reach_away *out);
	/* The engine has something to do at another time than its last vb_cm_timer() said: it is to be
	 * called. */
	void (*due)(struct vb_cm_device *d);
	/* Waits until the descriptor is readable, and makes progress meanwhile as a thread does that waits
	 * for completions: 0, or errno (EINTR).  A cancellation point.  NULL: whoever waits for an event
	 * leaves progress to others, and blocks in read(2).  ETIMEDOUT: it is `until` (VB_NEVER: that never
	 * comes).  *come is true once this thread has made the event itself, and needs no descriptor.
	 * `soon`: true while there are events; the one that is waited for comes at once, as expect() has
	 * said. NULL: it does not. */
	int (*wait)(int fd, const bool *come, const _Atomic bool *soon, uint64_t until);
	/* This thread is about to send a message by that device that is answered at once, and waits for the
	 * answer then.  false: it waits as ever.  NULL: it always does. */
	bool (*expect)(struct vb_cm_device *d);
	uint64_t (*now)(void);
	uint32_t (*chance)(void);
};

/* local() and far() by the host's addresses (addr_host.c); refresh() is vb_devices_read(). */
int vb_cm_host_local(const uint8_t address[16], struct vb_cm_local *out);
int vb_cm_host_far(const uint8_t address[16], const uint8_t *source, uint8_t from[16],
		   struct vb_cm_local *out);

void vb_cm_ids_use(const struct vb_cm_below *b);

extern struct vb_lock vb_cm_ids_lock;
void vb_cm_ids_enter(void);
void vb_cm_ids_leave(void);

/* For the engines' vb_cm_ops. */
bool vb_cm_ids_event(struct vb_cm_conn *c, const struct vb_cm_event *e);
struct vb_cm_conn *vb_cm_ids_listener(struct vb_cm *cm, const struct vb_cm_msg *m, const struct vb_cm_av *av);

void vb_cm_ids_repeats(struct vb_cm_conn *c);
void vb_cm_ids_changed(struct vb_cm_conn *c);
/* Under the lock, after vb_cm_input() and vb_cm_timer(): shows what the engine has counted. */
void vb_cm_ids_counted(struct vb_cm_device *d);

/* What becomes known below.  All without the lock, and without locks that a program's threads wait for.
 * A process of this host is gone, or cannot be reached, as the clause `why` says: its connections to ids of
 * the device end as its kernel would have ended them.  Those of another process that has had or has the
 * number do not, unless the incarnation is 0: it was never known. */
void vb_cm_ids_gone(struct vb_cm_device *d, const struct vb_whom *who, const char *why);
/* The first message came on a queue pair that is in RTR: that establishes its connection,
 * whatever becomes of the RTU. */
void vb_cm_ids_data(struct vb_cm_device *d, uint32_t qpn);
/* The device is lost: its ids hear DEVICE_REMOVAL, and its engine has no connection any more.  Whoever finds
 * it tells; the first time counts. */
void vb_cm_ids_device_lost(struct vb_cm_device *d);

#endif
