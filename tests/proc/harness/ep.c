#include "ep.h"

enum { DEPTH = 16 };

static const char host[] = "127.0.0.1";

static struct rdma_addrinfo *resolve(const char *service, int flags, enum ibv_qp_type type)
{
	struct rdma_addrinfo hints = {
	    .ai_flags = flags | RAI_NUMERICHOST, .ai_qp_type = (int)type, .ai_port_space = RDMA_PS_TCP};
	struct rdma_addrinfo *res = NULL;

	if (type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV)
		hints.ai_port_space = RDMA_PS_IB;
	if (type == IBV_QPT_UD)
		hints.ai_port_space = RDMA_PS_UDP;
	CHECK(!rdma_getaddrinfo(host, service, &hints, &res), "%m");
	return res;
}

struct rdma_cm_id *kit_ep_bound(enum ibv_qp_type type)
{
	struct rdma_addrinfo *res = resolve(NULL, RAI_PASSIVE, type);
	struct rdma_cm_id *id = NULL;

	CHECK(!rdma_create_ep(&id, res, NULL, NULL), "%m");
	rdma_freeaddrinfo(res);
	CHECK(id->verbs && id->pd);
	return id;
}

void kit_ep_endpoint(struct kit_pair *d)
{
	struct kit_ep *c = kit_ep(d);
	struct ibv_qp_init_attr attr = c->attr;
	struct rdma_addrinfo *res;
	char service[16];

	snprintf(service, sizeof service, "%d", (int)atomic_load(&d->board->number[0]));
	res = resolve(service, 0, attr.qp_type);
	CHECK(!rdma_create_ep(&c->id, res, c->pd, &attr), "%m");
	rdma_freeaddrinfo(res);
}

static void accept_one(struct kit_pair *d)
{
	struct kit_ep *c = kit_ep(d);
	struct ibv_qp_init_attr attr = c->attr;

	CHECK(!rdma_get_request(c->listen, &c->id), "%m");
	if (c->equip)
		c->equip(d, c->id);
	else
		CHECK(!rdma_create_qp(c->id, c->pd, &attr), "%m");
	CHECK(!rdma_accept(c->id, c->param), "%m");
}

void kit_ep_connect(struct kit_pair *d)
{
	kit_ep_endpoint(d);
	kit_duo_begin(d, accept_one);
	CHECK(!rdma_connect(kit_ep(d)->id, kit_ep(d)->param), "%m");
	kit_duo_await(d);
}

static void end(struct kit_pair *d)
{
	struct kit_ep *c = kit_ep(d);

	CHECK(!rdma_disconnect(c->id), "%m");
	rdma_destroy_ep(c->id);
	c->id = NULL;
}

void kit_ep_disconnect(struct kit_pair *d)
{
	kit_duo_begin(d, end);
	end(d);
	kit_duo_await(d);
}

struct ibv_wc kit_ep_sent(struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	CHECK(rdma_get_send_comp(id, &wc) == 1, "%m");
	CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
	return wc;
}

struct ibv_wc kit_ep_received(struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	CHECK(rdma_get_recv_comp(id, &wc) == 1, "%m");
	CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
	return wc;
}

enum ibv_wc_status kit_ep_ends(struct kit_pair *d)
{
	struct ibv_wc wc;

	CHECK(rdma_get_send_comp(kit_ep(d)->id, &wc) == 1, "%m");
	if (wc.status != IBV_WC_SUCCESS) {
		kit_ep_disconnect(d);
		kit_ep_connect(d);
	}
	return wc.status;
}

/* ---- both roles ---- */

static struct kit_ep own; /* each process has its own */
static enum ibv_qp_type type_here;
static void (*test_here)(struct kit_pair *);
static bool apart;

static void begin(struct kit_pair *d, enum ibv_qp_type type)
{
	d->own = &own;
	own.attr = (struct ibv_qp_init_attr){
	    .cap = {.max_send_wr = type == IBV_QPT_XRC_RECV ? 0 : DEPTH,
		    .max_recv_wr = type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV ? 0 : DEPTH,
		    .max_send_sge = 1,
		    .max_recv_sge = 1},
	    .qp_type = type,
	    .sq_sig_all = 1,
	};
}

/* Told to leave. */
static void leave(struct kit_pair *d)
{
	rdma_destroy_ep(kit_ep(d)->listen);
}

static void listen_here(struct kit_pair *d)
{
	struct kit_ep *c = kit_ep(d);

	c->listen = kit_ep_bound(c->attr.qp_type);
	CHECK(!rdma_listen(c->listen, 0), "%m");
	atomic_store(&d->board->number[0], be16toh(rdma_get_src_port(c->listen)));
}

static void target(struct kit_pair *d)
{
	void (*fn)(struct kit_pair *) = NULL;

	begin(d, type_here == IBV_QPT_XRC_SEND ? IBV_QPT_XRC_RECV : type_here);
	for (int n = 1; fn != leave; n++) {
		kit_until(&d->board->asked, n);
		fn = d->board->fn;
		fn(d);
		atomic_store(&d->board->done, n);
	}
}

static void initiator(struct kit_pair *d)
{
	begin(d, type_here);
	kit_duo_there(d, listen_here);
	if (!apart)
		kit_ep_connect(d);
	test_here(d);
	if (!apart)
		kit_ep_disconnect(d);
	kit_duo_there(d, leave);
}

static void run(const char *name, bool direct, enum ibv_qp_type type, void (*test)(struct kit_pair *))
{
	type_here = type;
	test_here = test;
	CHECK(kit_pair_run(name, (bool[]){direct, direct}, initiator, target), "%s", name);
	fflush(stdout);
}

void kit_ep_run(const char *name, bool direct, enum ibv_qp_type type, void (*test)(struct kit_pair *))
{
	apart = false;
	run(name, direct, type, test);
}

void kit_ep_run_apart(const char *name, enum ibv_qp_type type, void (*test)(struct kit_pair *))
{
	apart = true;
	run(name, true, type, test);
}
