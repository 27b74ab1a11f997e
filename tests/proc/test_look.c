/* A look at a receive queue ends though packets keep coming: whoever makes it, the engine say, may have the
 * CPU that the program needs to take the completions and to give receive requests for them. */
#include "hca/hca.h"
#include "hca/receive.h"
#include "iba/pkt.h"
#include "iba/rxq.h"
#include "kit.h"

static struct vb_arrival packet;
static unsigned taken;

static int there_is_one(struct vb_rxq *r, struct vb_arrival *in)
{
	(void)r;
	*in = packet;
	return 1;
}

static void take_it(struct vb_rxq *r)
{
	(void)r;
	CHECK(++taken < 1000 * VB_RXQ_HOLDS, "the look goes on");
}

int main(void)
{
	static const struct vb_rxq_ops ops = {.peek = there_is_one, .next = take_it};
	struct ibv_context *ctx = kit_open();
	static struct vb_source source;
	static _Atomic uint32_t cold;
	static struct vb_rxq r;
	/* A datagram for a queue pair that nobody has. */
	const struct vb_pkt p = {
	    .opcode = VB_FAMILY_UD | VB_SEND_ONLY, .pkey = VB_PKEY_DEFAULT, .qpn = 2, .src_qpn = 3};

	vb_pkt_encode(packet.b.bytes, &p);
	packet.b.hdr_len = vb_opcodes[p.opcode].hdr_len;
	packet.source = &source;
	vb_rxq_init(&r, &ops, NULL, &cold);
	r.adapter = vb_context(ctx)->adapter;
	atomic_store(&r.open, true);
	CHECK(vb_hca_look(&r, VB_TAKE_ALL) >= VB_RXQ_HOLDS, "%u", taken); /* as many as there may have been */
	CHECK(taken < 2 * VB_RXQ_HOLDS, "%u", taken);
	CHECK(!ibv_close_device(ctx));
	return 0;
}
