/* A region without pinned pages (on-demand paging), and a memory window: a key to a part of a region, for a
 * time.
 *
 *     cc 08-odp-and-windows.c -o 08-odp-and-windows -libverbs
 *     ./08-odp-and-windows
 *
 * The owner binds a window of type 2 to one page of its region.  The visitor reads that page by the window's
 * key, until the owner invalidates it.  Both are queue pairs of this process, connected to each other. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 1, PAGE = 4096, PAGES = 16, SEEN = 5 /* the page that the visitor may read */ };

/* The attributes that the queue pair needs for each state. */
enum {
	TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	TO_RTS = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		 IBV_QP_MAX_QP_RD_ATOMIC
};

static char pages[PAGES][PAGE] __attribute__((aligned(PAGE)));

static void die_if(int failed, const char *what)
{
	if (failed) {
		fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "connection closed");
		exit(1);
	}
}

/* The first device whose port is active. */
static struct ibv_context *open_device(struct ibv_port_attr *port)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = NULL;

	for (int i = 0; !ctx && list && list[i]; i++) {
		ctx = ibv_open_device(list[i]);
		if (ctx && (ibv_query_port(ctx, PORT, port) || port->state != IBV_PORT_ACTIVE)) {
			ibv_close_device(ctx);
			ctx = NULL;
		}
	}
	die_if(!ctx, "no device with an active port");
	ibv_free_device_list(list); /* an open device does not need the list */
	return ctx;
}

/* The first GID by RoCE v2 that stands for an IPv4 address, else the first of all. */
static struct ibv_gid_entry choose_gid(struct ibv_context *ctx)
{
	struct ibv_gid_entry gid[64];
	ssize_t n = ibv_query_gid_table(ctx, gid, 64, 0);

	die_if(n <= 0, "ibv_query_gid_table");
	for (ssize_t i = 0; i < n; i++)
		if (gid[i].gid_type == IBV_GID_TYPE_ROCE_V2 && gid[i].port_num == PORT &&
		    IN6_IS_ADDR_V4MAPPED((struct in6_addr *)gid[i].gid.raw))
			return gid[i];
	return gid[0];
}

/* RTR (ready to receive), then RTS (ready to send); 01-rc-send.c explains each attribute. */
static void connect_to(struct ibv_qp *qp, uint32_t peer, uint16_t lid, const struct ibv_gid_entry *gid)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 12};

	a.dest_qp_num = peer;
	a.rq_psn = peer;
	a.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = PORT, .dlid = lid};
	a.ah_attr.grh.dgid = gid->gid;
	a.ah_attr.grh.sgid_index = (uint8_t)gid->gid_index;
	a.ah_attr.grh.hop_limit = 64;
	a.max_dest_rd_atomic = 1;
	die_if(errno = ibv_modify_qp(qp, &a, TO_RTR), "RTR");
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = qp->qp_num};
	a.timeout = 14, a.retry_cnt = 7, a.rnr_retry = 6;
	a.max_rd_atomic = 1;
	die_if(errno = ibv_modify_qp(qp, &a, TO_RTS), "RTS");
}

/* Posts a request; the status of its completion. */
static enum ibv_wc_status request(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int n;
	wr->send_flags = IBV_SEND_SIGNALED;
	die_if(errno = ibv_post_send(qp, wr, &bad), "ibv_post_send");
	while (!(n = ibv_poll_cq(qp->send_cq, 1, &wc)))
		sched_yield(); /* another process may need this core */
	die_if(n < 0, "ibv_poll_cq");
	errno = EIO; /* for the caller, if the request failed */
	return wc.status;
}

/* Pages of such a region need not be in memory: the adapter has the kernel bring each one when it is used. */
static int on_demand(struct ibv_context *ctx)
{
	struct ibv_device_attr_ex attr;
	uint32_t need = IBV_ODP_SUPPORT_READ;

	die_if(errno = ibv_query_device_ex(ctx, NULL, &attr), "ibv_query_device_ex");
	if ((attr.odp_caps.general_caps & IBV_ODP_SUPPORT) &&
	    (attr.odp_caps.per_transport_caps.rc_odp_caps & need) == need)
		return IBV_ACCESS_ON_DEMAND;
	return 0;
}

static uint32_t open_window(struct ibv_qp *qp, struct ibv_mr *mr, struct ibv_mw *mw)
{
	struct ibv_send_wr bind = {.opcode = IBV_WR_BIND_MW};

	bind.bind_mw.mw = mw;
	bind.bind_mw.rkey = ibv_inc_rkey(mw->rkey); /* a new key with each bind: old ones must not work */
	bind.bind_mw.bind_info =
	    (struct ibv_mw_bind_info){mr, (uintptr_t)pages[SEEN], PAGE, IBV_ACCESS_REMOTE_READ};
	die_if(request(qp, &bind) != IBV_WC_SUCCESS, "IBV_WR_BIND_MW");
	return bind.bind_mw.rkey;
}

static enum ibv_wc_status read_page(struct ibv_qp *qp, struct ibv_mr *mr, uint32_t rkey)
{
	struct ibv_sge sge = {(uintptr_t)pages[0], PAGE, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ};

	wr.wr.rdma.remote_addr = (uintptr_t)pages[SEEN];
	wr.wr.rdma.rkey = rkey;
	return request(qp, &wr);
}

int main(void)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
	struct ibv_qp_attr a = {
	    .qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = IBV_ACCESS_REMOTE_READ};
	struct ibv_send_wr invalidate = {.opcode = IBV_WR_LOCAL_INV};
	struct ibv_port_attr port;
	struct ibv_context *ctx = open_device(&port);
	struct ibv_gid_entry gid = choose_gid(ctx);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	int access = IBV_ACCESS_LOCAL_WRITE | on_demand(ctx);
	die_if(!pd || !cq, "ibv_alloc_pd, ibv_create_cq");

	puts(access & IBV_ACCESS_ON_DEMAND ? "the region is paged on demand"
					   : "the device has no on-demand paging");

	/* The region permits windows.  Without it: "the memory window cannot be bound ... register it with
	 * IBV_ACCESS_MW_BIND" */
	access |= IBV_ACCESS_MW_BIND;

	struct ibv_mr *mr = ibv_reg_mr(pd, pages, sizeof(pages), access);
	die_if(!mr, "ibv_reg_mr");
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *owner = ibv_create_qp(pd, &init), *visitor = ibv_create_qp(pd, &init);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	die_if(!owner || !visitor || !mw, "ibv_create_qp, ibv_alloc_mw");
	die_if(errno = ibv_modify_qp(owner, &a, TO_INIT), "INIT");
	die_if(errno = ibv_modify_qp(visitor, &a, TO_INIT), "INIT");
	connect_to(owner, visitor->qp_num, port.lid, &gid);
	connect_to(visitor, owner->qp_num, port.lid, &gid);

	strcpy(pages[SEEN], "a page of the owner's");
	uint32_t rkey = open_window(owner, mr, mw);
	die_if(read_page(visitor, mr, rkey) != IBV_WC_SUCCESS, "READ");
	printf("the visitor read \"%s\"\n", pages[0]);

	/* From now on the key is worth nothing.  The log then says: "R_Key 0x511b5bab is stale: its memory
	 * window is not bound" */
	invalidate.invalidate_rkey = rkey;
	die_if(request(owner, &invalidate) != IBV_WC_SUCCESS, "IBV_WR_LOCAL_INV");
	printf("then its READ ended with: %s\n", ibv_wc_status_str(read_page(visitor, mr, rkey)));

	die_if((errno = ibv_destroy_qp(owner)) || (errno = ibv_destroy_qp(visitor)), "ibv_destroy_qp");

	/* A window keeps its domain.  Without it: "the protection domain still has 1 memory window" */
	die_if(errno = ibv_dealloc_mw(mw), "ibv_dealloc_mw");

	die_if(errno = ibv_dereg_mr(mr), "ibv_dereg_mr");
	die_if(errno = ibv_destroy_cq(cq), "ibv_destroy_cq");
	die_if(errno = ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	die_if(errno = ibv_close_device(ctx), "ibv_close_device");
	return 0;
}
