/* rdma_cm between processes: channels, events that are waited for, ids that are ready to connect, and queue
 * pairs that share one completion queue, so that a connection costs no descriptor of the program's. */
#ifndef VB_TESTS_CM_H
#define VB_TESTS_CM_H

#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "kit.h"

/* A call of librdmacm that has to succeed, or to fail with that errno. */
#define KIT_CM(call) CHECK(!(call), "%s", strerror(errno))
#define KIT_CM_FAILS(call, err)                                                                      \
	do {                                                                                         \
		errno = 0;                                                                           \
		CHECK((call) == -1 && errno == (err), "%s, not %s", strerror(errno), strerror(err)); \
	} while (0)

enum { KIT_CM_PATIENCE = 30 }; /* seconds for what has to come some day */

/* An event that was taken, and acknowledged. */
struct kit_cm_event {
	enum rdma_cm_event_type type;
	int status;
	struct rdma_cm_id *id, *listener;
	struct rdma_conn_param conn; /* without private_data, which stands here */
	struct rdma_ud_param ud;
	uint8_t data[256];
	size_t len;
};

/* 127.0.0.1, or ::1, or kit_cm_host; the result stays until the next call of this thread. */
extern const char *kit_cm_host; /* another host's address; NULL: this host's loopback */
struct sockaddr *kit_cm_address(int family, uint16_t port);
struct sockaddr *kit_cm_local(uint16_t port);

struct rdma_event_channel *kit_cm_channel(void);
struct rdma_cm_id *kit_cm_id(struct rdma_event_channel *c, enum rdma_port_space ps);
/* Whether an event comes within that time. */
bool kit_cm_comes(struct rdma_event_channel *c, double seconds);
/* The next event, without and with its type and status. */
struct kit_cm_event kit_cm_next(struct rdma_event_channel *c);
struct kit_cm_event kit_cm_expect(struct rdma_event_channel *c, enum rdma_cm_event_type type, int status);

/* A listener at 127.0.0.1 and that port; 0: any, which is returned in *port where that is not NULL. */
struct rdma_cm_id *kit_cm_listen_at(struct rdma_event_channel *c, enum rdma_port_space ps, uint16_t *port,
				    int backlog);
struct rdma_cm_id *kit_cm_listen(struct rdma_event_channel *c, uint16_t *port);
/* An id whose route to 127.0.0.1 is resolved, with a queue pair unless told otherwise. */
struct rdma_cm_id *kit_cm_bare(struct rdma_event_channel *c, enum rdma_port_space ps, uint16_t port);
struct rdma_cm_id *kit_cm_ready(struct rdma_event_channel *c, enum rdma_port_space ps, uint16_t port);
void kit_cm_qp(struct rdma_cm_id *id);
/* The completion queue of all of them; NULL: there was none yet. */
extern struct ibv_cq *kit_cm_cq;

/* With retries and depths of 1, and the same in accept. */
void kit_cm_connect(struct rdma_cm_id *id);
void kit_cm_accept(struct rdma_cm_id *id);
/* The next request, with a queue pair, accepted. */
struct rdma_cm_id *kit_cm_take(struct rdma_event_channel *c);
/* Queue pair and id. */
void kit_cm_end(struct rdma_cm_id *id);

/* How many record locks the ports of this process are (host/ports.h). */
int kit_cm_port_locks(void);

#endif
