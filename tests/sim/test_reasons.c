/* Every reason of the table can be reached, and whoever meets it sees what the table says: the NAK, both
 * completion statuses, the event, and at both ends the reason itself with its sentence and its numbers.
 * docs/errors.md names these tests. */
#include <string.h>
#include <sys/mman.h>

#include "bytes.h"
#include "iba/reach.h"
#include "mem/peer_mem.h"
#include "mem/guard.h"
#include "sim.h"

#define CFG SIM_CFG

static struct ibv_sge sge;

/* Node 0 asks node 1 for something at offset 0, with another key there or another length. */
static struct sim *ask(struct sim *s, enum ibv_wr_opcode op, uint32_t rkey, uint32_t len, uint32_t to)
{
	struct ibv_send_wr wr = sim_wr(s, 0, op, 0, len, to, &sge);

	if (op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD)
		wr.wr.atomic.rkey = rkey;
	else
		wr.wr.rdma.rkey = rkey;
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_settle(s);
	return s;
}

static struct sim *write_with(struct sim *s, uint32_t rkey)
{
	return ask(s, IBV_WR_RDMA_WRITE, rkey, 8, 0);
}

/* Node 0 sends from a buffer with another L_Key. */
static struct sim *send_with(struct sim *s, uint32_t lkey, uint32_t len)
{
	struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_SEND, 0, len, 0, &sge);

	sge.lkey = lkey;
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_settle(s);
	return s;
}

static struct sim *desk(void)
{
	return sim_desk(CFG(.local = true));
}

static uint32_t foreign(struct sim *s, unsigned n)
{
	return vb_key_publish(&s->n[n].keys, &(struct vb_key_spec){.pd = 99,
								   .access = 0xf,
								   .iova = (uintptr_t)s->mem[n],
								   .addr = (uintptr_t)s->mem[n],
								   .length = 64});
}

static struct sim *key_unknown(void)
{
	return write_with(desk(), 50u << 8 | VB_KEY_REMOTE);
}

static struct sim *key_unknown_here(void)
{
	return send_with(desk(), 50u << 8, 8);
}

static struct sim *key_stale(void)
{
	struct sim *s = desk();

	return write_with(s, sim_rkey(sim_stale(s, 1)));
}

static struct sim *key_stale_here(void)
{
	struct sim *s = desk();

	return send_with(s, sim_stale(s, 0), 8);
}

static struct sim *key_is_local(void)
{
	struct sim *s = desk();

	return write_with(s, s->lkey[1]);
}

static struct sim *key_is_remote(void)
{
	struct sim *s = desk();

	return send_with(s, sim_rkey(s->lkey[0]), 8);
}

static struct sim *key_pd(void)
{
	struct sim *s = desk();

	return write_with(s, sim_rkey(foreign(s, 1)));
}

static struct sim *key_pd_here(void)
{
	struct sim *s = desk();

	return send_with(s, foreign(s, 0), 8);
}

static struct sim *key_qp(void)
{
	struct sim *s = desk();
	uint32_t key = vb_key_publish(&s->n[1].keys, &(struct vb_key_spec){.pd = s->n[1].pd.id,
									   .kind = VB_KEY_WINDOW,
									   .access = 0xf,
									   .qpn = SIM_QPN1 + 1,
									   .iova = (uintptr_t)s->mem[1],
									   .addr = (uintptr_t)s->mem[1],
									   .length = 64});

	return write_with(s, sim_rkey(key));
}

static struct sim *key_bounds(void)
{
	struct sim *s = desk();

	return ask(s, IBV_WR_RDMA_READ, sim_rkey(s->lkey[1]), 8, SIM_MEM - 4);
}

static struct sim *key_bounds_here(void)
{
	struct sim *s = desk();

	return send_with(s, s->lkey[0], SIM_MEM + 1);
}

static struct sim *key_access(void)
{
	struct sim *s = desk();

	return write_with(s, sim_rkey(sim_reg(s, 1, s->mem[1], 64, IBV_ACCESS_REMOTE_READ)));
}

static struct sim *key_access_flush(void)
{
	const uint32_t access = IBV_ACCESS_REMOTE_WRITE | VB_ACCESS_FLUSH_GLOBAL;
	struct sim *s = sim_desk(CFG(.local = true, .access = access | VB_ACCESS_FLUSH_PERSISTENT));
	struct ibv_send_wr wr = {.opcode = (enum ibv_wr_opcode)VB_WR_FLUSH};

	wr.wr.atomic.remote_addr = (uintptr_t)s->mem[1];
	wr.wr.atomic.rkey = sim_rkey(sim_reg(s, 1, s->mem[1], 64, access));
	wr.wr.atomic.compare_add = 8;
	wr.wr.atomic.swap = VB_FLUSH_PERSISTENT;
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_settle(s);
	return s;
}

static struct sim *key_access_here(void)
{
	struct sim *s = desk();
	struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_RDMA_READ, 0, 8, 0, &sge);

	sge.lkey = sim_reg(s, 0, s->mem[0], 64, 0);
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_settle(s);
	return s;
}

static struct sim *key_not_window(void)
{
	struct sim *s = desk();
	struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_SEND_WITH_INV, 0, 8, 0, &sge);

	wr.invalidate_rkey = sim_rkey(s->lkey[1]);
	sim_take(s, 1, 0, 64);
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_settle(s);
	return s;
}

static void *gone; /* memory that is mapped no more */

static uint32_t reg_gone(struct sim *s, unsigned n)
{
	vb_guard_install();
	gone = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(gone, MAP_FAILED);
	return sim_reg(s, n, gone, PAGE, 0xf);
}

static struct sim *mem_vanished(void)
{
	struct sim *s = desk();
	struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0, &sge);

	wr.wr.rdma.rkey = sim_rkey(reg_gone(s, 1));
	wr.wr.rdma.remote_addr = (uintptr_t)gone;
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_settle(s);
	munmap(gone, PAGE);
	return s;
}

static struct sim *mem_vanished_here(void)
{
	struct sim *s = desk();
	struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_SEND, 0, 8, 0, &sge);

	sge.lkey = reg_gone(s, 0);
	sge.addr = (uintptr_t)gone;
	sim_take(s, 1, 0, 64);
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_settle(s);
	munmap(gone, PAGE);
	return s;
}

/* A third process, in whose table the keys stand that this makes, all of node n's protection domain. */
static struct {
	struct vb_keys keys;
	struct vb_key_entry *entries;
	struct vb_key_slot *slots;
	struct vb_key_marks marks;
	struct vb_peer_mem mem;
	_Atomic uint32_t heard;
} third;

enum { THIRD = 5 }; /* its number */

static uint32_t third_number(void *owner, uint32_t k)
{
	(void)owner;
	return k ? 0 : THIRD;
}

static struct vb_peer_mem *third_find(void *owner, uint32_t number)
{
	(void)owner;
	return number == THIRD ? &third.mem : NULL;
}

static const struct vb_keys_ops third_ops = {.find = third_find, .number = third_number};

static void *zeros(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	return p;
}

/* A key of the third one's, as an L_Key. */
static uint32_t third_key(struct sim *s, unsigned n)
{
	if (!third.entries) {
		third.entries = zeros(VB_KEY_ENTRIES * sizeof *third.entries);
		third.slots = zeros(VB_MEM_SLOTS * sizeof *third.slots);
	}
	/* a key that was there before leaves its variant, and the tables begin anew */
	memset(&third.entries[VB_KEY_PLAIN], 0, VB_TAGGED_KEYS * sizeof *third.entries);
	vb_keys_init(&third.keys, third.entries, VB_KEY_PLAIN, third.slots, &third.marks);
	third.keys.home = 77; /* so these domains are another's */
	third.keys.ops = &third_ops;
	memset(&third.mem, 0, sizeof third.mem);
	third.mem.keys = third.entries;
	third.mem.marks = &third.marks;
	third.mem.slots = third.slots;
	third.mem.number = THIRD;
	third.mem.pid = 4711;
	third.mem.pidfd = -1;
	third.mem.heard = &third.heard;
	third.mem.token = 1;
	third.mem.there = 1;
	third.heard = 1;
	s->n[n].keys.ops = &third_ops;
	return vb_key_publish(&third.keys, &(struct vb_key_spec){.pd = s->n[n].pd.id,
								 .access = 0xf,
								 .iova = (uintptr_t)s->mem[n],
								 .addr = (uintptr_t)s->mem[n],
								 .length = 64});
}

static struct sim *key_owner_gone(void)
{
	struct sim *s = desk();
	uint32_t key = third_key(s, 1);

	third.mem.there = 0;
	return write_with(s, sim_rkey(key));
}

static struct sim *key_owner_gone_here(void)
{
	struct sim *s = desk();
	uint32_t key = third_key(s, 0);

	third.mem.there = 0;
	return send_with(s, key, 8);
}

static struct sim *key_no_contact(void)
{
	struct sim *s = desk();
	uint32_t key = third_key(s, 1);

	third.heard = 0; /* it would not wait for us */
	return write_with(s, sim_rkey(key));
}

static struct sim *key_no_contact_here(void)
{
	struct sim *s = desk();

	return send_with(s, third_key(s, 0) + (1u << 18), 8); /* nobody's number */
}

static struct sim *mem_forbidden(void)
{
	struct sim *s = desk();
	uint32_t key = third_key(s, 1);

	third.mem.denied = true;
	return write_with(s, sim_rkey(key));
}

static struct sim *mem_forbidden_here(void)
{
	struct sim *s = desk();
	uint32_t key = third_key(s, 0);

	third.mem.denied = true;
	return send_with(s, key, 8);
}

static struct sim *atomic_peer(void)
{
	struct sim *s = desk();
	uint32_t rkey = sim_rkey(third_key(s, 1));
	struct vb_peer_region *place = &third.mem.shares[VB_KEY_PLACE(rkey) % VB_PEER_REGIONS];

	place->rkey = rkey;
	place->seq = third.entries[vb_peer_mem_index(&third.mem, rkey)].seq;
	place->state = VB_REGION_CANNOT;
	return ask(s, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, 8, 0);
}

/* A window of node n, and what a request to bind it to the first 64 bytes of a region of node n says. */
static struct vb_mw mw;
static struct ibv_mr takes_windows;

static struct ibv_send_wr window(struct sim *s, unsigned n, enum ibv_mw_type type)
{
	mw = (struct vb_mw){.pd = &s->n[n].pd, .ibv = {.type = type}};
	assert_true(vb_mw_enter(&s->n[n].mws, &mw));
	takes_windows.lkey = sim_reg(s, n, s->mem[n], 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	return (struct ibv_send_wr){.opcode = IBV_WR_BIND_MW,
				    .bind_mw = {.mw = &mw.ibv,
						.rkey = 1,
						.bind_info = {.mr = &takes_windows,
							      .addr = (uintptr_t)s->mem[n],
							      .length = 64,
							      .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}}};
}

static struct sim *sent(struct sim *s, unsigned n, const struct ibv_send_wr *wr)
{
	assert_int_equal(sim_send(s, n, wr), 0);
	sim_settle(s);
	return s;
}

/* The window is bound at node 1, and node 0 sends what is to invalidate it. */
static struct sim *invalidates(enum ibv_mw_type type, uint32_t wrong_key, uint32_t wrong_qp)
{
	struct sim *s = desk();
	struct ibv_send_wr wr = window(s, 1, type);

	sent(s, 1, &wr);
	mw.qpn += wrong_qp;
	sim_take(s, 1, 0, 64);
	wr = sim_wr(s, 0, IBV_WR_SEND_WITH_INV, 0, 8, 0, &sge);
	wr.invalidate_rkey = (sim_rkey(mw.index << 8) | 1) ^ wrong_key;
	return sent(s, 0, &wr);
}

/* The same by node 0 itself. */
static struct sim *invalidates_here(enum ibv_mw_type type, uint32_t wrong_key, uint32_t wrong_qp)
{
	struct sim *s = desk();
	struct ibv_send_wr wr = window(s, 0, type);

	sent(s, 0, &wr);
	mw.qpn += wrong_qp;
	wr = (struct ibv_send_wr){.opcode = IBV_WR_LOCAL_INV,
				  .invalidate_rkey = (sim_rkey(mw.index << 8) | 1) ^ wrong_key};
	return sent(s, 0, &wr);
}

static struct sim *key_not_window_here(void)
{
	struct sim *s = desk();
	struct ibv_send_wr wr = {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = sim_rkey(s->lkey[0])};

	return sent(s, 0, &wr);
}

static struct sim *invalidate_type(void)
{
	return invalidates(IBV_MW_TYPE_1, 0, 0);
}

static struct sim *invalidate_type_here(void)
{
	return invalidates_here(IBV_MW_TYPE_1, 0, 0);
}

static struct sim *invalidate_key(void)
{
	return invalidates(IBV_MW_TYPE_2, 7, 0);
}

static struct sim *invalidate_key_here(void)
{
	return invalidates_here(IBV_MW_TYPE_2, 7, 0);
}

static struct sim *invalidate_qp(void)
{
	return invalidates(IBV_MW_TYPE_2, 0, 1);
}

static struct sim *invalidate_qp_here(void)
{
	return invalidates_here(IBV_MW_TYPE_2, 0, 1);
}

static struct sim *bind_gone(void)
{
	struct sim *s = desk();
	struct ibv_send_wr wr = window(s, 0, IBV_MW_TYPE_2);

	sim_op(s, 0, IBV_WR_RDMA_READ, 0, 8, 0);
	assert_int_equal(sim_send(s, 0, &wr), 0); /* waits for the READ */
	vb_mw_leave(&s->n[0].mws, &mw);
	sim_settle(s);
	return s;
}

static struct sim *bind_zero(void)
{
	struct sim *s = desk();
	struct ibv_send_wr wr = window(s, 0, IBV_MW_TYPE_2);

	wr.bind_mw.bind_info.length = 0;
	return sent(s, 0, &wr);
}

static struct sim *bind_bound(void)
{
	struct sim *s = desk();
	struct ibv_send_wr wr = window(s, 0, IBV_MW_TYPE_2);

	return sent(sent(s, 0, &wr), 0, &wr);
}

static struct sim *bind_region(void)
{
	struct sim *s = desk();
	struct ibv_send_wr wr = window(s, 0, IBV_MW_TYPE_1);

	takes_windows.lkey ^= 1;
	return sent(s, 0, &wr);
}

static struct sim *bind_pd(void)
{
	struct sim *s = desk();
	struct ibv_send_wr wr = window(s, 0, IBV_MW_TYPE_1);

	takes_windows.lkey = foreign(s, 0);
	return sent(s, 0, &wr);
}

static struct sim *bind_range(void)
{
	struct sim *s = desk();
	struct ibv_send_wr wr = window(s, 0, IBV_MW_TYPE_1);

	wr.bind_mw.bind_info.length++;
	return sent(s, 0, &wr);
}

static struct sim *bind_access(void)
{
	struct sim *s = desk();
	struct ibv_send_wr wr = window(s, 0, IBV_MW_TYPE_1);

	takes_windows.lkey = sim_reg(s, 0, s->mem[0], 64, IBV_ACCESS_MW_BIND);
	return sent(s, 0, &wr);
}

static struct sim *qp_access(void)
{
	struct sim *s = sim_desk(CFG(.local = true, .access = IBV_ACCESS_REMOTE_READ));

	return write_with(s, sim_rkey(s->lkey[1]));
}

static struct sim *atomic_align(void)
{
	struct sim *s = desk();

	return ask(s, IBV_WR_ATOMIC_FETCH_AND_ADD, sim_rkey(s->lkey[1]), 8, 4);
}

static struct sim *too_many_reads(void)
{
	struct sim *s = sim_desk(CFG(.local = true, .dest_rd_atomic = 0));

	return ask(s, IBV_WR_RDMA_READ, sim_rkey(s->lkey[1]), 8, 0);
}

static struct sim *read_depth_zero(void)
{
	struct sim *s = sim_desk(CFG(.local = true, .rd_atomic = 0));

	return ask(s, IBV_WR_RDMA_READ, sim_rkey(s->lkey[1]), 8, 0);
}

/* What node 0 sent never comes; this comes in its place. */
static struct sim *instead(uint8_t opcode, uint32_t dma_len, uint32_t payload)
{
	struct sim *s = desk();
	struct vb_pkt p = {.opcode = opcode,
			   .psn = 100,
			   .ack_req = true,
			   .va = (uintptr_t)s->mem[1],
			   .dma_len = dma_len,
			   .rkey = sim_rkey(s->lkey[1])};
	uint8_t bytes[2048] = {0};

	sim_drop(s, 0, SIM_ANY, 0);
	sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0);
	sim_run_for(s, 1000);
	sim_inject(s, 1, &p, bytes, payload);
	sim_settle(s);
	return s;
}

static struct sim *bad_sequence(void)
{
	return instead(VB_RC_SEND_MIDDLE, 0, 1024);
}

static struct sim *bad_length(void)
{
	return instead(VB_RC_WRITE_ONLY, 8, 9);
}

static struct sim *mtus_differ(void)
{
	return sim_desk(CFG(.local = true, .mtu = 16384, .path_mtu = {1024, 4096}));
}

static struct sim *path_mtu(void)
{
	struct sim *s = mtus_differ();

	return ask(s, IBV_WR_RDMA_WRITE, sim_rkey(s->lkey[1]), 1025, 0);
}

static struct sim *response_mtu(void)
{
	struct sim *s = mtus_differ();

	return ask(s, IBV_WR_RDMA_READ, sim_rkey(s->lkey[1]), 1025, 0);
}

static struct sim *recv_too_small(void)
{
	struct sim *s = desk();

	sim_take(s, 1, 0, 8);
	sim_op(s, 0, IBV_WR_SEND, 0, 64, 0);
	sim_settle(s);
	return s;
}

static struct sim *recv_local(void)
{
	struct sim *s = desk();
	struct ibv_sge e = {(uintptr_t)s->mem[1], 64, s->lkey[1] ^ 1};

	assert_int_equal(sim_recv(s, 1, 77, &e, 1), 0);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	return s;
}

static struct sim *msg_too_long(void)
{
	struct sim *s = desk();

	return ask(s, IBV_WR_ATOMIC_FETCH_AND_ADD, sim_rkey(s->lkey[1]), 16, 0);
}

static struct sim *response_bad(void)
{
	struct sim *s = desk();
	struct vb_pkt p = {.opcode = VB_RC_ATOMIC_ACK, .psn = 100, .syndrome = VB_AETH_ACK};

	sim_drop(s, 0, SIM_ANY, SIM_ALWAYS);
	sim_op(s, 0, IBV_WR_RDMA_READ, 0, 8, 0);
	sim_run_for(s, 1000);
	sim_inject(s, 0, &p, NULL, 0);
	return s;
}

static struct sim *rnr(void)
{
	struct sim *s = sim_desk(CFG(.local = true, .rnr_retry = 0));

	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	return s;
}

static struct sim *rnr_used_up(void)
{
	struct sim *s = sim_desk(CFG(.local = true, .rnr_retry = 1));
	uint64_t taken;

	sim_take(s, 1, 0, 8);
	taken = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 0, true, taken, IBV_WC_SUCCESS);
	return s;
}

static struct sim *retry(void)
{
	struct sim *s = desk();

	s->n[0].qp.silence = (struct vb_reach_facts){VB_REACH_PSN, .psn = {.expected = 7, .sent = 9}};
	sim_drop(s, 0, SIM_ANY, SIM_ALWAYS);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	return s;
}

/* As the layer above does when the kernel tells of the end of a connection. */
static struct sim *ends(struct vb_facts f)
{
	struct sim *s = desk();

	f.qpn = SIM_QPN0;
	sim_drop(s, 0, SIM_ANY, SIM_ALWAYS);
	sim_op(s, 0, IBV_WR_RDMA_READ, 0, 8, 0);
	sim_run_for(s, 1000);
	vb_lock_take(&s->n[0].qp.lock);
	s->n[0].qp.transport->error(&s->n[0].qp, &f);
	vb_lock_give(&s->n[0].qp.lock);
	return s;
}

/* proc/test_kill.c has real ones. */
static struct sim *peer_died(void)
{
	return ends((struct vb_facts){.reason = VB_R_PEER_DIED, .gone = {.pid = 4711}});
}

/* proc/test_closed.c has real ones of both kinds. */
static struct sim *peer_closed(void)
{
	return ends(
	    (struct vb_facts){.reason = VB_R_PEER_CLOSED, .gone = {.pid = 4711, .how = VB_GONE_EXEC}});
}

static struct sim *device_lost(void)
{
	return ends((struct vb_facts){.reason = VB_R_DEVICE_LOST});
}

/* Far ends that say no more than the syndrome: those of other hosts. */
static struct sim *nak_invalid_request(void)
{
	struct sim *s = sim_desk(SIM_QUIET);

	return ask(s, IBV_WR_ATOMIC_FETCH_AND_ADD, sim_rkey(s->lkey[1]), 8, 4);
}

static struct sim *nak_remote_access(void)
{
	return write_with(sim_desk(SIM_QUIET), 50u << 8 | VB_KEY_REMOTE);
}

static struct sim *nak_remote_operation(void)
{
	struct sim *s = sim_desk(SIM_QUIET);
	struct ibv_sge e = {(uintptr_t)s->mem[1], 64, s->lkey[1] ^ 1};

	assert_int_equal(sim_recv(s, 1, 77, &e, 1), 0);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	return s;
}

/* Node 0 names an SRQ that node 1 has not got. */
static struct sim *name_srq(struct sim *s)
{
	struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_SEND, 0, 8, 0, &sge);

	wr.qp_type.xrc.remote_srqn = SIM_SRQN + 1;
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_settle(s);
	return s;
}

static struct sim *xrc_srq(void)
{
	return name_srq(sim_desk(CFG(.local = true, .xrc = true)));
}

static struct sim *nak_invalid_rd(void)
{
	return name_srq(sim_desk(CFG(.xrc = true)));
}

static struct sim *flushed(void)
{
	struct sim *s = desk();

	sim_modify(s, 0, IBV_QPS_ERR);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	return s;
}

static struct sim *cq_overrun(void)
{
	struct sim *s = sim_desk(CFG(.local = true, .cqe = 2));

	for (int i = 0; i < 3; i++)
		sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0);
	sim_settle(s);
	return s;
}

/* Of types that are not acknowledged. */
static struct sim *dropped(unsigned lost)
{
	struct sim *s = sim_desk(CFG(.family = VB_FAMILY_UC));

	sim_drop(s, 0, SIM_ANY, lost);
	for (int i = 0; i < 2; i++)
		sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	return s;
}

static struct sim *drop_sequence(void)
{
	return dropped(0);
}

static struct sim *drop_no_receive(void)
{
	return dropped(SIM_DROPS); /* none */
}

static struct sim *datagrams(const struct sim_cfg *cfg, uint32_t len, uint32_t room)
{
	struct sim *s = sim_desk(cfg);

	sim_op(s, 0, IBV_WR_SEND, 0, len, 0);
	if (room)
		sim_take(s, 1, 0, room);
	sim_settle(s);
	return s;
}

/* Posting found it; proc/test_ud.c has real ones. */
static struct sim *refused(enum vb_reason r)
{
	struct sim *s = sim_desk(CFG(.family = VB_FAMILY_UC, .path_at = {1000, 1000}));

	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	vb_builder_refused(vb_sq_at(&s->n[0].qp.req, 0), r);
	sim_settle(s);
	return s;
}

static struct sim *qp_type(void)
{
	return refused(VB_R_QP_TYPE);
}

static struct sim *ah_pd(void)
{
	return refused(VB_R_AH_PD);
}

static struct sim *datagram_too_long(void)
{
	return datagrams(CFG(.family = VB_FAMILY_UD), 4097, 0);
}

static struct sim *drop_too_small(void)
{
	return datagrams(CFG(.family = VB_FAMILY_UD), 8, 47);
}

static struct sim *drop_qkey(void)
{
	struct sim *s = sim_desk(CFG(.family = VB_FAMILY_UD));

	s->n[0].qkey = 0x11111111;
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	return s;
}

/* What comes for a number that nobody has, proc/test_ud.c has. */
static struct sim *drop_no_qp(void)
{
	struct sim *s = sim_desk(CFG(.family = VB_FAMILY_UD));

	s->n[1].qp.state = IBV_QPS_INIT;
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	s->n[1].qp.state = IBV_QPS_RTS;
	return s;
}

static struct sim *drop_full(void)
{
	return datagrams(CFG(.family = VB_FAMILY_UD, .room = 0), 8, 0);
}

/* proc/test_uc.c has a real one. */
static struct sim *drop_nobody(void)
{
	struct sim *s = sim_desk(CFG(.family = VB_FAMILY_UC, .path_at = {VB_NEVER, VB_NEVER}));

	s->n[0].qp.path.nobody = true;
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	return s;
}

enum where {
	FAR,	  /* node 1 finds it, and node 0, which asked, is told */
	FAR_RECV, /* node 1 finds it, and a receive request of its own takes the error */
	HERE,	  /* node 0 finds it: its own request fails */
	TOLD_NOT, /* node 1 finds it and asks node 0 to try again, which it does in vain */
	QUEUE,	  /* a queue of node 0 fails, and an event tells of it */
	DROPPED,  /* either finds it, and nobody is told but the log */
};

static const struct reach {
	enum vb_reason reason;
	enum where where;
	struct sim *(*get)(void);
	const char *says; /* what its sentence has, of what is not an address */
} reaches[] = {
    {VB_R_KEY_UNKNOWN, FAR, key_unknown,
     "unknown R_Key 0x40003200: the device that it was used on never issued it; the range ["},
    {VB_R_KEY_UNKNOWN, HERE, key_unknown_here, ", +262144) of L_Key 0x00000100"},
    {VB_R_KEY_STALE, FAR, key_stale, "R_Key 0x40000200 is stale: its region was deregistered; the range ["},
    {VB_R_KEY_STALE, HERE, key_stale_here,
     "L_Key 0x00000200 is stale: its region was deregistered; the range ["},
    {VB_R_KEY_IS_LOCAL, FAR, key_is_local,
     "L_Key 0x00000100 was used where an R_Key is required (this region's R_Key is 0x40000100); the process "
     "that owns "
     "the region must send mr->rkey to its peer"},
    {VB_R_KEY_IS_REMOTE, HERE, key_is_remote,
     "R_Key 0x40000100 was used where an L_Key is required (this region's L_Key is 0x00000100)"},
    {VB_R_KEY_PD, FAR, key_pd,
     ", +64) in the domain of the queue pair; that range lies in the region of R_Key "
     "0x40000100"},
    {VB_R_KEY_PD, HERE, key_pd_here,
     ", +64) in the domain of the queue pair; that range lies in the region of L_Key "
     "0x00000100"},
    {VB_R_KEY_QP, FAR, key_qp,
     "R_Key 0x40000200 is bound to QP 0x022021, but the request came to QP 0x022020;"},
    {VB_R_KEY_BOUNDS, FAR, key_bounds, ", +262144) of R_Key 0x40000100 by 4 bytes at the end"},
    {VB_R_KEY_BOUNDS, HERE, key_bounds_here, ", +262144) of L_Key 0x00000100 by 1 byte at the end"},
    {VB_R_KEY_ACCESS, FAR, key_access, ", +64) has REMOTE_READ; register it with IBV_ACCESS_REMOTE_WRITE"},
    {VB_R_KEY_ACCESS, FAR, key_access_flush,
     ", +64) has REMOTE_WRITE|FLUSH_GLOBAL; persistent memory is not supported: flush with IBV_FLUSH_GLOBAL "
     "only"},
    {VB_R_KEY_ACCESS, HERE, key_access_here,
     ", +64) has local read only; register it with IBV_ACCESS_LOCAL_WRITE"},
    {VB_R_KEY_NOT_WINDOW, FAR, key_not_window,
     "R_Key 0x40000100 cannot be invalidated: it does not belong to a memory window"},
    {VB_R_KEY_NOT_WINDOW, HERE, key_not_window_here,
     "R_Key 0x40000100 cannot be invalidated: it does not belong to a memory window"},
    {VB_R_KEY_OWNER_GONE, FAR, key_owner_gone,
     "R_Key 0xc0140001 refers to memory of process 4711, which has ended"},
    {VB_R_KEY_OWNER_GONE, HERE, key_owner_gone_here,
     "L_Key 0x80140001 refers to memory of process 4711, which has ended"},
    {VB_R_KEY_NO_CONTACT, FAR, key_no_contact,
     "R_Key 0xc0140001 refers to memory of process 4711, with which no connection exists yet"},
    {VB_R_KEY_NO_CONTACT, HERE, key_no_contact_here, "unknown L_Key 0x80180001: no connected process"},
    {VB_R_MEM_FORBIDDEN, FAR, mem_forbidden,
     "R_Key 0xc0140001 refers to memory of process 4711, but the kernel denies access to it"},
    {VB_R_MEM_FORBIDDEN, HERE, mem_forbidden_here,
     "L_Key 0x80140001 refers to memory of process 4711, but the kernel denies access to it"},
    {VB_R_ATOMIC_PEER, FAR, atomic_peer,
     "R_Key 0xc0140001 refers to memory of process 4711, but that memory is private: an atomic at ["},
    {VB_R_MEM_VANISHED, FAR, mem_vanished, ", +8) of R_Key 0x40000200 is no longer mapped"},
    {VB_R_MEM_VANISHED, HERE, mem_vanished_here, ", +8) of L_Key 0x00000200 is no longer mapped"},
    {VB_R_INV_TYPE, FAR, invalidate_type,
     "R_Key 0x40000201 cannot be invalidated: its memory window is of type 1"},
    {VB_R_INV_TYPE, HERE, invalidate_type_here,
     "R_Key 0x40000201 cannot be invalidated: its memory window is of type 1"},
    {VB_R_INV_KEY, FAR, invalidate_key,
     "R_Key 0x40000206 cannot be invalidated: its memory window is bound under R_Key 0x40000201"},
    {VB_R_INV_KEY, HERE, invalidate_key_here,
     "R_Key 0x40000206 cannot be invalidated: its memory window is bound under R_Key 0x40000201"},
    {VB_R_INV_QP, FAR, invalidate_qp,
     "R_Key 0x40000201 cannot be invalidated: its memory window is bound to queue pair 0x022021;"},
    {VB_R_INV_QP, HERE, invalidate_qp_here,
     "R_Key 0x40000201 cannot be invalidated: its memory window is bound to queue pair 0x011011;"},
    {VB_R_BIND_GONE, HERE, bind_gone, "under R_Key 0x40000201: it was deallocated"},
    {VB_R_BIND_ZERO, HERE, bind_zero, "under R_Key 0x40000201: length 0"},
    {VB_R_BIND_BOUND, HERE, bind_bound,
     "under R_Key 0x40000201: it is of type 2 and still bound under R_Key 0x40000201;"},
    {VB_R_BIND_REGION, HERE, bind_region, "L_Key 0x00000301 names no region"},
    {VB_R_BIND_PD, HERE, bind_pd,
     ": the region belongs to a different protection domain than the queue pair"},
    {VB_R_BIND_RANGE, HERE, bind_range, ", +64) of L_Key 0x00000300"},
    {VB_R_BIND_ACCESS, HERE, bind_access,
     ", +64) of L_Key 0x00000400 has MW_BIND; register it with IBV_ACCESS_LOCAL_WRITE, which a window"},
    {VB_R_QP_ACCESS, FAR, qp_access,
     "queue pair 0x022020 does not permit REMOTE_WRITE: its qp_access_flags are REMOTE_READ; set "
     "IBV_ACCESS_REMOTE_WRITE"},
    {VB_R_ATOMIC_ALIGN, FAR, atomic_align, "of an atomic is not a multiple of 8"},
    {VB_R_TOO_MANY_READS, FAR, too_many_reads, "than the responder's limit of 0"},
    {VB_R_READ_DEPTH_ZERO, HERE, read_depth_zero, "max_rd_atomic of the queue pair is 0"},
    {VB_R_BAD_SEQUENCE, FAR, bad_sequence,
     "packet 'RC SEND Middle' (0x01) may not follow 'RC SEND First' (0x00)"},
    {VB_R_BAD_LENGTH, FAR, bad_length, "has 9 bytes, but 8 bytes were expected"},
    {VB_R_PATH_MTU, FAR, path_mtu, "a message of 1025 bytes or more"},
    {VB_R_RECV_TOO_SMALL, FAR_RECV, recv_too_small,
     "a message of at least 64 bytes does not fit the receive buffer of 8 bytes"},
    {VB_R_RECV_LOCAL, FAR_RECV, recv_local,
     ", +64) cannot be written: unknown L_Key 0x00000101: the device that it was used on never"},
    {VB_R_MSG_TOO_LONG, HERE, msg_too_long,
     "an atomic returns 8 bytes, but its scatter/gather list has 16 bytes; give the list 8"},
    {VB_R_RESPONSE_MTU, HERE, response_mtu,
     "path_mtu is 1024 bytes at the requester and 4096 bytes at the responder"},
    {VB_R_RESPONSE_BAD, HERE, response_bad, "response 'RC ATOMIC Acknowledge' (0x12) does not match"},
    {VB_R_RNR, HERE, rnr,
     "queue pair 0x022020 had no receive request for this message, and rnr_retry = 0 permits no retry; post "
     "receive requests earlier"},
    {VB_R_RNR, HERE, rnr_used_up,
     "no receive request was posted there within rnr_retry = 1 retry (those posted earlier were used, and "
     "none followed for 20 ms)"},
    {VB_R_RETRY, HERE, retry,
     "no acknowledgement from queue pair 0x022020 within retry_cnt = 3 retries: it expects PSN 0x000007, "
     "but this end sends PSN 0x000009"},
    {VB_R_PEER_DIED, QUEUE, peer_died, "process 4711 ended without closing its queue pair"},
    {VB_R_PEER_CLOSED, QUEUE, peer_closed, "process 4711 is alive but executed another program (exec)"},
    {VB_R_DEVICE_LOST, QUEUE, device_lost, "this process closed descriptors that belong to its open device"},
    {VB_R_NAK_INVALID_REQUEST, HERE, nak_invalid_request, "the peer refused the request as invalid"},
    {VB_R_NAK_REMOTE_ACCESS, HERE, nak_remote_access, "the peer refused access to its memory"},
    {VB_R_NAK_REMOTE_OPERATION, HERE, nak_remote_operation, "the peer failed to carry out the request"},
    {VB_R_XRC_SRQ, FAR, xrc_srq, "target queue pair 0x022020 received a message for SRQ 0x022002"},
    {VB_R_NAK_INVALID_RD, HERE, nak_invalid_rd, "the peer has no SRQ with that number"},
    {VB_R_FLUSHED, HERE, flushed, "the queue pair is in the error state"},
    {VB_R_CQ_OVERRUN, QUEUE, cq_overrun, "a completion queue of 2 entries overran"},
    {VB_R_DROP_SEQUENCE, DROPPED, drop_sequence, NULL},
    {VB_R_DROP_NO_RECV, DROPPED, drop_no_receive, NULL},
    {VB_R_QP_TYPE, HERE, qp_type, "a queue pair of type IBV_QPT_UC does not support SEND"},
    {VB_R_AH_PD, HERE, ah_pd, "a different protection domain than the queue pair"},
    {VB_R_DATAGRAM_TOO_LONG, HERE, datagram_too_long, "at most 4096 bytes in one packet"},
    {VB_R_DROP_TOO_SMALL, DROPPED, drop_too_small, NULL},
    {VB_R_DROP_QKEY, DROPPED, drop_qkey, NULL},
    {VB_R_DROP_NO_QP, DROPPED, drop_no_qp, NULL},
    {VB_R_DROP_FULL, DROPPED, drop_full, NULL},
    {VB_R_DROP_NOBODY, DROPPED, drop_nobody, NULL},
};

/* The first completion of node n that failed. */
static struct ibv_wc failed(struct sim *s, unsigned n, bool send)
{
	struct ibv_wc wc = {.status = IBV_WC_SUCCESS};

	while (sim_poll(s, n, send, &wc))
		if (wc.status != IBV_WC_SUCCESS)
			return wc;
	fail_msg("no completion failed");
	return wc;
}

static uint8_t nak_of(const struct sim *s)
{
	for (uint32_t i = 0; i < s->seen; i++) {
		const struct vb_pkt *p = &s->trace[i].p;

		/* the kind of a NAK is all ones, and RNR NAKs are another */
		if (s->trace[i].from == 1 && (p->op->bits & VB_OP_AETH) &&
		    VB_AETH_KIND(p->syndrome) == VB_AETH_KIND(VB_AETH_NAK_REMOTE_ACCESS))
			return p->syndrome;
	}
	return 0;
}

static bool had_event(struct sim *s, unsigned n, int wanted)
{
	bool had = false;

	for (int e; (e = sim_event(s, n)) >= 0;)
		had |= e == wanted;
	return had;
}

static void says(const struct reach *r, const struct vb_facts *f)
{
	char text[600];

	if (!strstr(vb_reason_say(text, sizeof text, f), r->says))
		fail_msg("%s: not '%s' but '%s'", vb_reasons[r->reason].name, r->says, text);
	if (r->reason == VB_R_MEM_FORBIDDEN || r->reason == VB_R_ATOMIC_PEER)
		assert_null(strstr(text, "the range")); /* which is the other process's */
}

static void check(const struct reach *r)
{
	const struct vb_reason_row *row = &vb_reasons[r->reason];
	struct sim *s = r->get();
	struct vb_qp *finder = &s->n[r->where == FAR || r->where == FAR_RECV].qp;
	struct ibv_wc wc;

	print_message("%s\n", row->name);
	if (r->where == DROPPED) {
		assert_int_equal((s->n[0].qp.said | s->n[1].qp.said) >> r->reason & 1, 1);
		assert_int_equal(s->n[0].qp.state, IBV_QPS_RTS);
		assert_int_equal(s->n[1].qp.state, IBV_QPS_RTS);
		wc = sim_expect(s, 0, true, 1, IBV_WC_SUCCESS);
		assert_int_equal(wc.vendor_err, 0);
		sim_free(s);
		return;
	}
	if (r->where != TOLD_NOT) {
		assert_int_equal(finder->why.reason, r->reason);
		says(r, &finder->why);
	}
	switch (r->where) {
	case TOLD_NOT:
		wc = failed(s, 0, true);
		assert_int_equal(wc.status, IBV_WC_RNR_RETRY_EXC_ERR);
		assert_int_equal(s->n[1].qp.state, IBV_QPS_RTS);
		break;
	case FAR:
	case FAR_RECV:
		assert_int_equal(nak_of(s), row->nak);
		wc = failed(s, 0, true);
		assert_int_equal(wc.status, row->remote_wc);
		assert_int_equal(wc.vendor_err, r->reason);
		says(r, &s->n[0].qp.why); /* the facts came along */
		if (r->where == FAR_RECV) {
			wc = failed(s, 1, false);
			assert_int_equal(wc.status, row->local_wc);
			assert_int_equal(wc.vendor_err, r->reason);
		} else {
			assert_int_not_equal(row->event, 0xff);
			assert_true(had_event(s, 1, row->event));
		}
		break;
	case HERE:
		wc = failed(s, 0, true);
		assert_int_equal(wc.status, row->local_wc);
		assert_int_equal(wc.vendor_err, r->reason);
		assert_int_equal(sim_event(s, 0), -1); /* the completion says it */
		break;
	default:
		assert_true(had_event(s, 0, row->event));
		break;
	}
	sim_free(s);
}

static void every_reason_is_reached(void **state)
{
	bool reached[VB_REASONS] = {[VB_OK] = true};
	char text[512];

	(void)state;
	for (unsigned i = 0; i < sizeof reaches / sizeof *reaches; i++) {
		check(&reaches[i]);
		reached[reaches[i].reason] = true;
	}
	for (uint32_t r = 0; r < VB_REASONS; r++) {
		struct vb_facts f = {.reason = r};

		assert_non_null(vb_reasons[r].name);
		if (!reached[r])
			fail_msg("nothing here reaches %s", vb_reasons[r].name);
		assert_true(strlen(vb_reason_say(text, sizeof text, &f)) > 5);
	}
}

/* Which ends rdma_cm has connected comes along with a NAK. */
static void a_nak_tells_who_connected(void **state)
{
	(void)state;
	for (int far = 0; far < 2; far++) {
		struct sim *s = sim_desk(CFG(.local = true, .dest_rd_atomic = 0));

		s->n[1].qp.by_cm = far ? VB_BY_CM_ATTR : VB_BY_HAND;
		ask(s, IBV_WR_RDMA_READ, sim_rkey(s->lkey[1]), 8, 0);
		assert_int_equal(s->n[0].qp.why.reason, VB_R_TOO_MANY_READS);
		assert_int_equal(s->n[0].qp.why.ends, far ? VB_END_HERE : 0);
		sim_free(s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(every_reason_is_reached),
					   cmocka_unit_test(a_nak_tells_who_connected)};

	return cmocka_run_group_tests_name("reasons", tests, NULL, NULL);
}
