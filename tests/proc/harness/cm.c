#include "cm.h"

#include <dirent.h>
#include <poll.h>

struct ibv_cq *kit_cm_cq;
const char *kit_cm_host;

struct sockaddr *kit_cm_address(int family, uint16_t port)
{
	static _Thread_local union {
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} a;

	memset(&a, 0, sizeof a);
	if (family == AF_INET6)
		a.in6 = (struct sockaddr_in6){
		    .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	else
		a.in = (struct sockaddr_in){.sin_family = AF_INET,
					    .sin_port = htons(port),
					    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (kit_cm_host)
		CHECK(inet_pton(family, kit_cm_host,
				family == AF_INET6 ? (void *)&a.in6.sin6_addr : &a.in.sin_addr) == 1);
	return &a.any;
}

struct sockaddr *kit_cm_local(uint16_t port)
{
	return kit_cm_address(AF_INET, port);
}

/* ---- events ---- */

struct rdma_event_channel *kit_cm_channel(void)
{
	struct rdma_event_channel *c = rdma_create_event_channel();

	CHECK(c, "%s", strerror(errno));
	return c;
}

struct rdma_cm_id *kit_cm_id(struct rdma_event_channel *c, enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	KIT_CM(rdma_create_id(c, &id, NULL, ps));
	return id;
}

bool kit_cm_comes(struct rdma_event_channel *c, double seconds)
{
	struct pollfd p = {.fd = c->fd, .events = POLLIN};
	int n = poll(&p, 1, (int)(seconds * 1000));

	CHECK(n >= 0, "%s", strerror(errno));
	return n;
}

/* Private data goes with the acknowledgement. */
static void keep(struct kit_cm_event *to, const struct rdma_cm_event *e)
{
	bool ud = e->id->qp_type == IBV_QPT_UD;
	const void *data = ud ? e->param.ud.private_data : e->param.conn.private_data;

	*to = (struct kit_cm_event){
	    .type = e->event, .status = e->status, .id = e->id, .listener = e->listen_id};
	to->len = ud ? e->param.ud.private_data_len : e->param.conn.private_data_len;
	if (ud)
		to->ud = e->param.ud;
	else
		to->conn = e->param.conn;
	to->conn.private_data = to->ud.private_data = NULL;
	if (data)
		memcpy(to->data, data, to->len);
	else
		to->len = 0;
}

struct kit_cm_event kit_cm_next(struct rdma_event_channel *c)
{
	struct kit_cm_event out;
	struct rdma_cm_event *e;

	CHECK(kit_cm_comes(c, KIT_CM_PATIENCE), "no event");
	KIT_CM(rdma_get_cm_event(c, &e));
	keep(&out, e);
	KIT_CM(rdma_ack_cm_event(e));
	return out;
}

struct kit_cm_event kit_cm_expect(struct rdma_event_channel *c, enum rdma_cm_event_type type, int status)
{
	struct kit_cm_event e = kit_cm_next(c);

	CHECK(e.type == type && e.status == status, "%s, %d instead of %s, %d", rdma_event_str(e.type),
	      e.status, rdma_event_str(type), status);
	return e;
}

/* ---- ids ---- */

struct rdma_cm_id *kit_cm_listen_at(struct rdma_event_channel *c, enum rdma_port_space ps, uint16_t *port,
				    int backlog)
{
	struct rdma_cm_id *id = kit_cm_id(c, ps);

	KIT_CM(rdma_bind_addr(id, kit_cm_local(port ? *port : 0)));
	KIT_CM(rdma_listen(id, backlog));
	if (port)
		*port = ntohs(rdma_get_src_port(id));
	return id;
}

struct rdma_cm_id *kit_cm_listen(struct rdma_event_channel *c, uint16_t *port)
{
	return kit_cm_listen_at(c, RDMA_PS_TCP, port, 0);
}

struct rdma_cm_id *kit_cm_bare(struct rdma_event_channel *c, enum rdma_port_space ps, uint16_t port)
{
	struct rdma_cm_id *id = kit_cm_id(c, ps);

	KIT_CM(rdma_resolve_addr(id, NULL, kit_cm_local(port), 2000));
	CHECK(kit_cm_expect(c, RDMA_CM_EVENT_ADDR_RESOLVED, 0).id == id);
	KIT_CM(rdma_resolve_route(id, 2000));
	CHECK(kit_cm_expect(c, RDMA_CM_EVENT_ROUTE_RESOLVED, 0).id == id);
	return id;
}

struct rdma_cm_id *kit_cm_ready(struct rdma_event_channel *c, enum rdma_port_space ps, uint16_t port)
{
	struct rdma_cm_id *id = kit_cm_bare(c, ps, port);

	kit_cm_qp(id);
	return id;
}

void kit_cm_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr a = {
	    .qp_type = id->qp_type,
	    .cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1}};

	if (!kit_cm_cq)
		kit_cm_cq = ibv_create_cq(id->verbs, 4096, NULL, NULL, 0);
	CHECK(kit_cm_cq);
	a.send_cq = a.recv_cq = kit_cm_cq;
	KIT_CM(rdma_create_qp(id, NULL, &a));
}

static struct rdma_conn_param param(void)
{
	return (struct rdma_conn_param){
	    .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
}

void kit_cm_connect(struct rdma_cm_id *id)
{
	struct rdma_conn_param p = param();

	KIT_CM(rdma_connect(id, &p));
}

void kit_cm_accept(struct rdma_cm_id *id)
{
	struct rdma_conn_param p = param();

	KIT_CM(rdma_accept(id, &p));
}

struct rdma_cm_id *kit_cm_take(struct rdma_event_channel *c)
{
	struct rdma_cm_id *id = kit_cm_expect(c, RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;

	kit_cm_qp(id);
	kit_cm_accept(id);
	return id;
}

void kit_cm_end(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	KIT_CM(rdma_destroy_id(id));
}

/* ---- what is left behind ---- */

int kit_cm_port_locks(void)
{
	DIR *d = opendir("/proc/self/fdinfo");
	struct dirent *e;
	int n = 0;

	CHECK(d);
	while ((e = readdir(d))) {
		char path[300], line[256];
		FILE *f;

		snprintf(path, sizeof path, "/proc/self/fdinfo/%s", e->d_name);
		f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
		while (f && fgets(line, sizeof line, f))
			n += !strncmp(line, "lock:", 5);
		if (f)
			fclose(f);
	}
	closedir(d);
	return n;
}
