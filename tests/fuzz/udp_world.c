/* Datagrams of any content come to a device at work, through the wire to other hosts: wire/udp_in.c, the
 * whole of hca/, live queue pairs, and rdma_cm's protocol above QP1 (udp_cm.c).  The input says which
 * datagrams, and what the program does meanwhile.
 *
 * An input is a series of steps.  A step is a byte and what belongs to it; see step().  So that the fuzzer
 * gets behind the checks, a datagram may have its QPN, PSN, key and ICRC set right here.
 *
 * What is looked for: crashes, assertions, and what no packet may cause.  No packet makes this process
 * allocate.  What is sent is well-formed, with the ICRC that a receiver computes, and says what the
 * specification has.  Memory that permits no remote access does not change.  The log does not grow by each
 * packet.  Time goes on. */
#include "udp_world.h"

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "../sim/hosts.h"
#include "udp_cm.h"
#include "udp_net.h"

#include "base/log.h"
#include "hca/hosts.h"
#include "hca/mcast.h"
#include "hca/progress.h"
#include "hca/receive.h"
#include "hca/warm.h"
#include "host/netif.h"

enum { PAIRS = 8, SECRET = 4096, RECV = 8192, MOST_STEPS = 200, LINES = 40, QKEY = 0x11111111 };
enum { IPV4 = 0, IPV6 = 1 }; /* indices of this end's GIDs */

static struct vb_gids own = {
    .n = 2,
    .gid = {{[10] = 0xff, 0xff, 10, 9, 0, 1}, {0xfd, [15] = 1}},
    .ifindex = {PORT_IFINDEX, PORT_IFINDEX},
};
static const uint8_t fars[][16] = {
    {[10] = 0xff, 0xff, 10, 9, 0, 2},
    {0xfd, [15] = 2},
    {[10] = 0xff, 0xff, 10, 9, 0, 3},
};

static const struct {
	unsigned far, sgid;
	uint32_t mtu;
	bool srq, rtr;
	uint8_t family; /* enum vb_family; 0: RC */
	uint8_t side;	/* of the pair that is here; of XRC the initiator's, 0, or the target's, 1 */
	uint8_t rd_atomic, receives;
} kinds[PAIRS] = {
    {.far = 0, .sgid = IPV4, .mtu = 1024, .rd_atomic = 4, .receives = 6},
    {.far = 1, .sgid = IPV6, .mtu = 4096, .srq = true, .rd_atomic = 16, .receives = 6},
    {.far = 2, .sgid = IPV4, .mtu = 256, .rd_atomic = 1, .receives = 1},
    {.far = 0, .sgid = IPV4, .mtu = 1024, .rtr = true, .receives = 2},
    {.far = 0, .sgid = IPV4, .mtu = 1024, .family = VB_FAMILY_UD, .receives = 2},
    {.far = 1, .sgid = IPV6, .mtu = 1024, .family = VB_FAMILY_UC, .receives = 6},
    {.far = 0, .sgid = IPV4, .mtu = 1024, .family = VB_FAMILY_XRC, .rd_atomic = 4},
    {.far = 1, .sgid = IPV6, .mtu = 1024, .family = VB_FAMILY_XRC, .side = 1, .rd_atomic = 4, .receives = 6},
};

/* Those of the queue pair for datagrams. */
static const union ibv_gid groups[] = {{.raw = {[10] = 0xff, 0xff, 224, 0, 0, 1}},
				       {.raw = {0xff, 2, [15] = 1}}};
enum { GROUPS = sizeof groups / sizeof groups[0] };

static struct {
	struct hosts *h;
	struct vb_adapter *a[2];
	struct sim *s[PAIRS];
	struct ibv_ah_attr to[PAIRS];
	uint32_t secret_key[PAIRS];
	struct vb_mw window[PAIRS]; /* over a part of that memory, */
	uint32_t window_key[PAIRS]; /* with this key: */
	struct ibv_mr windows_mr[PAIRS];
	uint8_t *secret;
	struct net_message in;
	const uint8_t *at, *end;
	unsigned steps, lines;
} w;

_Thread_local unsigned world_allocations;
static uint64_t packets;

/* ---- the input ---- */

static uint8_t byte(void)
{
	return w.at < w.end ? *w.at++ : 0;
}

static uint32_t number16(void)
{
	uint32_t low = byte();

	return low | (uint32_t)byte() << 8;
}

static void heard(const char *sentence)
{
	w.lines++;
	if (getenv("VB_SIM_TRACE"))
		fprintf(stderr, "logged: %s\n", sentence);
}

static void written(void)
{
}

/* ---- the world ---- */

static struct ibv_ah_attr address_of(unsigned kind)
{
	struct ibv_ah_attr av = {.is_global = 1, .port_num = 1};

	memcpy(av.grh.dgid.raw, fars[kinds[kind].far], 16);
	av.grh.sgid_index = (uint8_t)kinds[kind].sgid;
	av.grh.hop_limit = 64;
	return av;
}

static unsigned side(unsigned k)
{
	return kinds[k].side;
}

/* Datagrams are only received here, and so is all of a target. */
static bool sends(unsigned k)
{
	return kinds[k].family != VB_FAMILY_UD && !side(k);
}

static void post(unsigned k, unsigned what, uint32_t len)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND,
						 IBV_WR_RDMA_WRITE,
						 IBV_WR_RDMA_READ,
						 IBV_WR_ATOMIC_FETCH_AND_ADD,
						 IBV_WR_RDMA_WRITE_WITH_IMM,
						 IBV_WR_ATOMIC_CMP_AND_SWP,
						 IBV_WR_SEND_WITH_IMM,
						 IBV_WR_SEND};
	enum ibv_wr_opcode op = ops[what % 8];
	struct sim *s = w.s[k];
	struct ibv_sge sge;
	struct ibv_send_wr wr;

	if (!sends(k))
		return;
	if (kinds[k].family == VB_FAMILY_UC && vb_wr_is(op, VB_WR_FETCH))
		op = IBV_WR_RDMA_WRITE;
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP)
		len = 8;
	wr = sim_wr(s, 0, op, SIM_MEM / 2, len, 0, &sge);
	wr.send_flags |= what & 8 ? IBV_SEND_SOLICITED : 0;
	if (what % 8 == 7 && len <= 64)
		wr.send_flags |= IBV_SEND_INLINE;
	sim_send(s, 0, &wr);
}

/* The window has that key from now on. */
static void bind_window(unsigned k, unsigned variant)
{
	struct sim *s = w.s[k];
	struct ibv_send_wr wr = {
	    .wr_id = ++s->next_wr,
	    .opcode = IBV_WR_BIND_MW,
	    .send_flags = IBV_SEND_SIGNALED,
	    .bind_mw = {.mw = &w.window[k].ibv,
			.rkey = VB_KEY_REMOTE | w.window[k].index << 8 | (variant & 0xff),
			.bind_info = {.mr = &w.windows_mr[k],
				      .addr = (uintptr_t)s->mem[0] + 256,
				      .length = 4096,
				      .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
							 IBV_ACCESS_REMOTE_ATOMIC}}};

	w.window_key[k] = wr.bind_mw.rkey;
	sim_send(s, 0, &wr);
}

static void make_window(unsigned k)
{
	struct sim_node *n = &w.s[k]->n[side(k)];

	w.window[k] = (struct vb_mw){.pd = &n->pd, .ibv = {.type = IBV_MW_TYPE_2}};
	if (!vb_mw_enter(&n->mws, &w.window[k]))
		net_wrong("no window");
	w.windows_mr[k].lkey = sim_reg(w.s[k], side(k), w.s[k]->mem[side(k)], SIM_MEM,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
}

static void receive(unsigned k)
{
	struct sim *s = w.s[k];
	struct ibv_sge sge = {(uintptr_t)s->mem[side(k)], RECV, s->lkey[side(k)]};

	sim_recv(s, side(k), ++s->next_wr, &sge, 1);
}

static void outstanding(unsigned k)
{
	for (unsigned i = 0; i < kinds[k].receives; i++)
		receive(k);
	if (kinds[k].rtr || !sends(k))
		return;
	post(k, 0, 100);
	post(k, 1, 6000);
	post(k, 2, 3000);
	post(k, 3, 8);
	post(k, 2, 20);
}

static void make_pair(unsigned k)
{
	const struct sim_cfg *c =
	    SIM_CFG(.seed = 1 + k, .timeout = 14, .mtu = kinds[k].mtu, .one_end = true,
		    .to = kinds[k].family == VB_FAMILY_UD ? NULL : &w.to[k], .srq = kinds[k].srq,
		    .family = kinds[k].family, .xrc = kinds[k].family == VB_FAMILY_XRC,
		    .rd_atomic = kinds[k].rd_atomic, .dest_rd_atomic = kinds[k].rd_atomic, .send_wr = 16,
		    .recv_wr = 16, .cqe = 64);
	struct sim *s = w.s[k] = sim_new_on(c, &hosts_ground, w.a[side(k)], w.a[!side(k)]);

	if (side(k))
		sim_connect(s, 1);
	sim_desk_init(s);
	w.secret_key[k] = sim_reg(s, side(k), w.secret, SECRET, IBV_ACCESS_LOCAL_WRITE);
	if (kinds[k].rtr) {
		sim_modify(s, 0, IBV_QPS_RESET);
		sim_modify(s, 0, IBV_QPS_INIT);
		sim_modify(s, 0, IBV_QPS_RTR);
	}
	if (kinds[k].family == VB_FAMILY_UD) {
		vb_lock_take(&s->n[0].qp.lock);
		s->n[0].qp.qkey = s->n[0].qp.attr.qkey = QKEY;
		vb_lock_give(&s->n[0].qp.lock);
	}
	make_window(k);
	if (sends(k) && !kinds[k].rtr)
		bind_window(k, 1);
	outstanding(k);
}

static void attach(void)
{
	for (unsigned k = 0; k < PAIRS; k++)
		for (unsigned i = 0; kinds[k].family == VB_FAMILY_UD && i < GROUPS; i++)
			if (vb_mcast_attach(hosts_hca(w.a[0]), &w.s[k]->n[0].qp, &groups[i], 0))
				net_wrong("no membership");
}

static void begin(void)
{
	const struct sim_cfg *c = SIM_CFG(.timeout = 14, .mtu = 4096);

	net_begin();
	w.steps = w.lines = 0;
	w.h = hosts_new(&(struct hosts_cfg){.wire = *c, .notice = VB_MSEC, .calm = true});
	w.a[0] = hosts_start_as(w.h, PORT_SLOT);
	w.a[1] = hosts_start_as(w.h, PORT_SLOT + 1);
	for (unsigned i = 0; i < 2; i++)
		hosts_hca(w.a[i])->gids = &own;
	vb_hosts_open(hosts_hca(w.a[0]));
	w.secret = sim_zeroed(SECRET);
	memset(w.secret, 0x5e, SECRET);
	for (unsigned k = 0; k < PAIRS; k++) {
		w.to[k] = address_of(k);
		make_pair(k);
	}
	attach();
	hosts_run_for(w.h, VB_USEC);
}

static void end_pair(unsigned k)
{
	for (unsigned i = 0; kinds[k].family == VB_FAMILY_UD && i < GROUPS; i++)
		vb_mcast_detach(hosts_hca(w.a[0]), &w.s[k]->n[0].qp, &groups[i], 0);
	vb_mw_leave(&w.s[k]->n[side(k)].mws, &w.window[k]);
	sim_free(w.s[k]);
}

static void end(void)
{
	for (unsigned k = 0; k < PAIRS; k++)
		end_pair(k);
	fuzz_cm_close();
	free(w.secret);
	vb_hosts_close(hosts_hca(w.a[0]));
	hosts_free(w.h);
}

/* ---- datagrams ---- */

static struct vb_qp *qp(unsigned k)
{
	return &w.s[k]->n[side(k)].qp;
}

static void put24(uint8_t *at, uint32_t v)
{
	at[0] = (uint8_t)(v >> 16);
	at[1] = (uint8_t)(v >> 8);
	at[2] = (uint8_t)v;
}

/* Address and R_Key: of memory, or a window over it, or memory that is not to be reached; an atomic's address
 * is a multiple of 8.  Some of it is past the end. */
static void put_remote(uint8_t *at, unsigned k, bool secret, bool atomic)
{
	const struct sim *s = w.s[k];
	bool window = at[5] & 1;
	uint64_t off = ((uint64_t)at[6] << 8 | at[7]) % SIM_MEM;
	uint64_t be = htobe64((secret ? (uintptr_t)w.secret : (uintptr_t)s->mem[side(k)]) +
			      (atomic ? off & ~7ull : off));
	uint32_t key = htobe32(secret	? sim_rkey(w.secret_key[k])
			       : window ? w.window_key[k]
					: sim_rkey(s->lkey[side(k)]));

	memcpy(at, &be, 8);
	memcpy(at + 8, &key, 4);
}

enum flags {
	AS_REQUEST = 1, /* the PSN that the queue pair expects, */
	AS_ANSWER = 2,	/* or the oldest that it waits for, plus what the next byte says */
	MARKED = 4,
	JOINS = 8, /* one message with the next, as the kernel merges them */
	RAW = 16,  /* nothing is set right but the ICRC */
	BAD_ICRC = 32,
	SECRETLY = 64,	 /* to memory that permits no remote access */
	ELSEWHERE = 128, /* the addresses are not those of the queue pair */
};

enum {
	NEXT_FETCH = 127,
	ALL_SENT = 126
};			   /* deltas of answers: to the next READ or atomic; to all that was sent */
enum { EXACTLY = 0xff00 }; /* lengths from here on: headers and a path MTU, or what a READ still lacks */

/* The oldest READ or atomic that waits for its answer; NULL: none does. */
static const struct vb_swqe *next_fetch(unsigned k)
{
	const struct vb_req *q = &qp(k)->req;

	for (uint32_t i = q->una; i != q->seen; i++)
		if (vb_wr_is(vb_sq_at(q, i)->opcode, VB_WR_FETCH) && vb_sq_at(q, i)->state == VB_WQE_STARTED)
			return vb_sq_at(q, i);
	return NULL;
}

static uint32_t psn_of_answer(unsigned k, int8_t delta)
{
	const struct vb_swqe *r = next_fetch(k);

	if (delta == ALL_SENT)
		return vb_psn_add(qp(k)->req.psn_max, VB_PSN_MASK);
	if (delta == NEXT_FETCH && r)
		return vb_psn_add(r->psn, r->got / kinds[k].mtu);
	return vb_psn_add(qp(k)->req.psn_una, (uint32_t)delta);
}

/* What RC has by this opcode, the queue pair has by one of its own. */
static uint8_t own_opcode(unsigned k, uint8_t opcode)
{
	return VB_FAMILY(opcode) == VB_FAMILY_RC ? kinds[k].family | opcode : opcode;
}

static size_t exact_length(unsigned k, uint8_t opcode, bool rest)
{
	const struct vb_swqe *r = next_fetch(k);
	size_t payload = kinds[k].mtu;

	if (!(vb_opcodes[opcode].bits & VB_OP_PAYLOAD))
		payload = 0;
	else if (rest && r)
		payload = (r->length - r->got) % kinds[k].mtu;
	return vb_opcodes[opcode].hdr_len + (payload + 3) / 4 * 4;
}

static void set_right(uint8_t *b, size_t len, unsigned k, unsigned flags, int8_t delta)
{
	const struct vb_opcode_row *op;
	uint32_t at = VB_BTH_LEN;

	b[0] = own_opcode(k, b[0]);
	op = &vb_opcodes[b[0]];
	b[1] &= 0xb0;
	b[2] = b[3] = 0xff;
	put24(b + 5, qp(k)->qpn);
	if (flags & AS_REQUEST)
		put24(b + 9, vb_psn_add(qp(k)->resp.epsn, (uint32_t)delta));
	else if (flags & AS_ANSWER)
		put24(b + 9, psn_of_answer(k, delta));
	if (len < op->hdr_len)
		return;
	if (op->bits & VB_OP_DETH && len >= at + 8) {
		memset(b + at, 0x11, 4);
		at += 8;
	}
	at += op->bits & VB_OP_XRCETH ? 4 : 0;
	at += op->bits & VB_OP_FETH ? 4 : 0;
	if (op->bits & VB_OP_RETH && len >= at + 16) {
		put_remote(b + at, k, flags & SECRETLY, false);
		b[at + 12] = 0;
		b[at + 13] &= 0x03;
	} else if (op->bits & VB_OP_ATOMICETH && len >= at + 28) {
		put_remote(b + at, k, flags & SECRETLY, true);
	} else if (op->bits & VB_OP_IETH && b[at] & 1) {
		uint32_t key = htobe32(w.window_key[k]);

		memcpy(b + at, &key, 4);
	}
}

/* An SRQ of this process: of a target mostly its own, else any number.  Of one that names another process it
 * makes a way there, once, which is no packet of a stranger's. */
static void put_srqn(uint8_t *b, size_t len, unsigned k)
{
	uint32_t srqn = w.s[k]->n[1].srq.number;

	if (!(vb_opcodes[b[0]].bits & VB_OP_XRCETH) || len < VB_BTH_LEN + 4)
		return;
	if (b[VB_BTH_LEN] & 1)
		srqn = PORT_SLOT << VB_QPN_INDEX_BITS | b[VB_BTH_LEN + 3];
	put24(b + VB_BTH_LEN + 1, srqn);
}

static void set_ends(struct vb_roce_ends *e, unsigned k, unsigned flags)
{
	/* Two of them are groups[]. */
	static const uint8_t strange[][16] = {{[10] = 0xff, 0xff, 10, 9, 0, 77},
					      {0xfd, [15] = 77},
					      {[10] = 0xff, 0xff, 10, 9, 0, 1},
					      {[10] = 0xff, 0xff, 127, 0, 0, 1},
					      {[10] = 0xff, 0xff, 224, 0, 0, 1},
					      {0xff, 2, [15] = 1},
					      {[15] = 1},
					      {[15] = 0}};
	unsigned how;

	e->src = vb_gid_of(fars[kinds[k].far]);
	e->dst = vb_gid_of(own.gid[kinds[k].sgid]);
	e->port = 0xc000;
	if (!(flags & ELSEWHERE))
		return;
	how = byte();
	if (how & 0x80)
		e->port = (uint16_t)number16();
	if (how & 0x40) {
		e->dst = vb_gid_of(strange[how % 8]);
		if (strange[how % 8][0] == 0xff)
			e->src = vb_gid_of(fars[1]);
	} else if (how & 0x20)
		e->dst = vb_gid_of(own.gid[how % 2]);
	else if (how & 0x10)
		e->src = vb_gid_of(fars[how % 3]);
	else
		e->src = vb_gid_of(strange[how % 8]);
}

/* Before what tells of an end is polled. */
static void look_for_silent_ends(void)
{
	for (unsigned k = 0; k < PAIRS; k++)
		sim_look_for_silent_end(&w.s[k]->n[side(k)]);
}

static void look(void)
{
	struct vb_rxq *r = vb_hca_rxq_at(hosts_hca(w.a[0]), VB_NET_RINGS);

	net_receive(&w.in);
	for (unsigned i = 0; i < 4; i++)
		vb_hca_look(r, i & 1 ? VB_TAKE_BATCH : VB_TAKE_ONE);
}

static void hear(void)
{
	net_receive_mads(&w.in);
}

/* Takes in what there is. */
static void deliver_by(void (*way)(void))
{
	size_t bytes = mallinfo2().uordblks;
	unsigned before = world_allocations;

	if (!w.in.len)
		return;
	packets += (w.in.len + w.in.packet - 1) / w.in.packet;
	way();
	if (world_allocations != before || mallinfo2().uordblks != bytes)
		net_wrong("a packet made this process allocate");
	look_for_silent_ends();
	vb_adapter_nudge(w.a[0]);
	w.in.len = 0;
}

static void deliver(void)
{
	deliver_by(look);
}

static void datagram(unsigned k, unsigned flags)
{
	int8_t delta = (int8_t)(flags & (AS_REQUEST | AS_ANSWER) ? byte() : 0);
	size_t len = number16(), given, full;
	uint16_t id = flags & ELSEWHERE ? (uint16_t)number16() : (uint16_t)(w.steps % 60);
	struct vb_roce_ends ends;
	struct vb_roce_path path;
	uint8_t *b;

	set_ends(&ends, k, flags);
	len = len >= EXACTLY && w.at < w.end ? exact_length(k, own_opcode(k, *w.at), len & 1) : len % 4300;
	full = len + 4;
	if (w.in.len && (!vb_roce_ends_equal(&ends, &w.in.ends) || w.in.len % w.in.packet ||
			 full > w.in.packet || w.in.len + full > NET_BYTES))
		deliver();
	b = w.in.bytes + w.in.len;
	given = (size_t)(w.end - w.at) < len ? (size_t)(w.end - w.at) : len;
	if (given > 64)
		given = 64; /* more of the contents says nothing new */
	memcpy(b, w.at, given);
	memset(b + given, 0x33, len - given);
	w.at += given;
	if (len >= VB_BTH_LEN && !(flags & RAW))
		set_right(b, len, k, flags, delta);
	if (vb_gid_is_group((const uint8_t *)&ends.dst) && len >= VB_BTH_LEN && !(flags & RAW))
		put24(b + 5, VB_QPN_GROUP);
	put_srqn(b, len, k);
	vb_roce_path_init(&path, &ends);
	memset(b + len, 0, 4);
	if (len >= VB_BTH_LEN && !(len & 3))
		vb_roce_seal(&path, id, b, len);
	if (flags & BAD_ICRC)
		b[len] ^= (uint8_t)(1 + delta);
	if (!w.in.len) {
		w.in.ends = ends;
		w.in.packet = full;
		w.in.ifindex = flags & ELSEWHERE && id & 1 ? 1 : PORT_IFINDEX;
		w.in.tclass = flags & MARKED ? 3 : 0;
	}
	w.in.len += full;
	if (!(flags & JOINS))
		deliver();
}

/* ---- rdma_cm ---- */

enum { HDR = VB_BTH_LEN + 8 };
enum { STRAY = 64, RAW_MAD = 128 }; /* `how`: from elsewhere; of any length and contents */

static void put_mad_headers(uint8_t *b, size_t len)
{
	memset(b, 0, len);
	b[0] = VB_FAMILY_UD | VB_SEND_ONLY;
	b[2] = b[3] = 0xff;
	put24(b + 5, VB_GSI_QPN);
	put24(b + 9, w.steps);
	b[VB_BTH_LEN] = VB_GSI_QKEY >> 24;
	b[VB_BTH_LEN + 1] = VB_GSI_QKEY >> 16 & 0xff;
	put24(b + VB_BTH_LEN + 5, VB_GSI_QPN);
}

/* A MAD from the far end of that queue pair, `copies` times in one message. */
static void mad(unsigned k, unsigned how, unsigned copies)
{
	size_t len = HDR + (how & RAW_MAD ? byte() * 4u : VB_MAD_LEN), whole = len + 4, given = byte();
	struct vb_roce_path path;
	uint8_t *b = w.in.bytes;

	deliver();
	w.in.ifindex = PORT_IFINDEX;
	w.in.tclass = 0;
	set_ends(&w.in.ends, k, how & STRAY ? ELSEWHERE : 0);
	put_mad_headers(b, len);
	if (given > (size_t)(w.end - w.at))
		given = (size_t)(w.end - w.at);
	if (given > len - HDR)
		given = len - HDR;
	memcpy(b + HDR, w.at, given);
	w.at += given;
	if (!(how & RAW_MAD))
		fuzz_cm_mad(b + HDR, how, byte());
	vb_roce_path_init(&path, &w.in.ends);
	for (unsigned i = 0; i < copies; i++) {
		memmove(b + i * whole, b, len);
		vb_roce_seal(&path, (uint16_t)i, b + i * whole, len);
	}
	w.in.packet = whole;
	w.in.len = whole * copies;
	deliver_by(hear);
}

static void connection(unsigned what)
{
	unsigned k = byte() % PAIRS, how;

	fuzz_cm_open(hosts_hca(w.a[0]), own.gid[kinds[k].sgid], fars[kinds[k].far]);
	how = byte();
	if (what & 4)
		fuzz_cm_mood(byte());
	if (what & 2)
		mad(k, how, 1 + (what & 1) * 7);
	else
		fuzz_cm_act(how >> 4, byte());
}

/* ---- what the program does ---- */

static void poll_all(void)
{
	struct ibv_wc wc;

	look_for_silent_ends();
	for (unsigned k = 0; k < PAIRS; k++) {
		for (unsigned i = 0; i < 64 && sim_poll(w.s[k], side(k), true, &wc); i++)
			;
		for (unsigned i = 0; i < 64 && sim_poll(w.s[k], side(k), false, &wc); i++)
			receive(k);
		while (sim_event(w.s[k], side(k)) >= 0)
			;
	}
}

static void modify(unsigned k, unsigned how)
{
	struct sim *s = w.s[k];

	if (how & 1) {
		sim_modify(s, side(k), IBV_QPS_ERR);
		return;
	}
	poll_all();
	sim_modify(s, side(k), IBV_QPS_RESET);
	if (how & 2)
		return;
	sim_connect(s, side(k));
	outstanding(k);
}

/* ICMP, or what looks like it: how & 7: what; the rest: whom it is about. */
static void tell(unsigned how)
{
	static const int errs[8] = {EMSGSIZE, ECONNREFUSED, EHOSTUNREACH, ENETUNREACH,
				    EACCES,   EPROTO,	    EHOSTDOWN,	  EMSGSIZE};
	static const uint32_t mtus[4] = {0, 68, 552, 1400};

	net_tell(vb_gid_of(how & 64 ? own.gid[how >> 3 & 1] : fars[(how >> 3 & 7) % 3]), errs[how & 7],
		 mtus[how >> 4 & 3], how & 128);
}

static void act(unsigned what)
{
	unsigned k = what % PAIRS, how;

	switch (what >> 4 & 7) {
	case 0:
	case 1:
		hosts_run_for(w.h, 100ull << (what & 31)); /* 100 ns to 214 s */
		break;
	case 2:
		how = byte();
		if (how & 0x20 && sends(k))
			bind_window(k, how >> 6);
		else
			post(k, how, number16() % 9000);
		break;
	case 3:
		receive(k);
		break;
	case 4:
		poll_all();
		break;
	case 5:
		modify(k, byte());
		break;
	case 6:
		if (!(what & 3))
			tell(byte());
		else
			net_refuse(what & 3, what & 4 ? ENETUNREACH : what & 8 ? EMSGSIZE : EAGAIN);
		break;
	default:
		if (what & 8)
			connection(what);
		else if (what & 1)
			own.n = what & 2 ? 2 : 1;
		else
			hosts_sleep(w.a[0]);
		break;
	}
}

/* A byte below 0x80: a datagram to the queue pair of that number; the next one is its flags.  Others: act().
 */
static void step(void)
{
	unsigned what = byte();

	if (what < 0x80)
		datagram(what % PAIRS, byte());
	else
		act(what);
}

static void check(void)
{
	for (unsigned i = 0; i < SECRET; i++)
		if (w.secret[i] != 0x5e)
			net_wrong("memory without remote access was written");
	if (w.lines > LINES + w.steps / 8)
		net_wrong("%u steps, and %u lines of log", w.steps, w.lines);
}

void world_run(const uint8_t *data, size_t size)
{
	own.n = 2;
	begin();
	w.at = data;
	w.end = data + size;
	w.in.len = 0;
	while (w.at < w.end && w.steps < MOST_STEPS) {
		w.steps++;
		step();
	}
	deliver();
	poll_all();
	check();
	end();
}

uint64_t world_packets(void)
{
	return packets;
}

void world_open(void)
{
	setenv("CMOCKA_TEST_ABORT", "1", 1);
	vb_log_also(heard, written);
}
