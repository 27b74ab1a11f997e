/* Ports of rdma_cm as other processes have them: each does as it is told. */
#ifndef VB_TESTS_PORTS_H
#define VB_TESTS_PORTS_H

#include "host/ports.h"
#include "kit.h"

enum { SLOTS = 4096 }; /* ports of one process */

enum order_op {
	ORDER_BIND,
	ORDER_LISTEN,
	ORDER_SET,
	ORDER_FREE,
	ORDER_FIND,
	ORDER_LOOK,
	ORDER_SHUN,
	ORDER_NAME,
	ORDER_WHO,
	ORDER_FORK
};
struct order {
	enum order_op op;
	int slot; /* which of its ports */
	struct vb_port_name name;
	uint32_t number;
};
struct answer {
	int err;
	uint32_t number; /* FIND; WHO: the PID; NAME: the port; FORK: the PID of a child that outlives it */
};

struct other {
	pid_t pid;
	int sock;
};

struct other other_new(void);
struct other other_as(uint32_t uid);
struct answer other_tell(const struct other *o, struct order what);
/* What the calls return. */
int other_bind(const struct other *o, int slot, struct vb_port_name name);
int other_listen(const struct other *o, int slot, uint32_t number);
void other_free(const struct other *o, int slot);
/* The number that is found, 0: nobody; behind a lock that is in the way, too. */
uint32_t other_find(const struct other *o, struct vb_port_name to);
/* Who holds what clashes, as vb_ports_why() tells there; 0: nobody is told. */
pid_t other_who(const struct other *o, struct vb_port_name n);
uint16_t other_port(const struct other *o, int slot); /* its port */
void other_kill(const struct other *o);

/* Names in the port space TCP, and what they are but for one thing. */
struct vb_port_name name_v4(const char *addr, uint16_t port);
struct vb_port_name name_v6(const char *addr, uint16_t port);
struct vb_port_name name_only(struct vb_port_name n);
struct vb_port_name name_reusing(struct vb_port_name n);
struct vb_port_name name_in_space(struct vb_port_name n, uint16_t space);

#endif
