/* Management datagrams between hosts: packets from QP1 to QP1 of another port, each sent by itself.  There is
 * nothing to wait for there, and whoever sends one says it again if it is lost. */
#include "hca/mads.h"

#include <errno.h>
#include <string.h>

#include "hca/far.h"
#include "hca/hosts.h"
#include "hca/port.h"
#include "host/devices.h"
#include "iba/mad.h"

void vb_mads_listen(struct vb_hca *h)
{
	if (h->hosts && h->hosts->wire->listen)
		h->hosts->wire->listen(h->hosts->net);
}

bool vb_mads_leave(struct vb_hca *h, const uint8_t gid[16])
{
	struct ibv_ah_attr av = {.is_global = 1};

	memcpy(av.grh.dgid.raw, gid, sizeof(av.grh.dgid.raw));
	return h->hosts && !vb_devices_infiniband() && !vb_port_leads_here(h, &av);
}

static int put_out(struct vb_out *out, uint32_t psn, const uint8_t mad[VB_MAD_LEN])
{
	const struct vb_pkt p = {.opcode = VB_FAMILY_UD | VB_SEND_ONLY,
				 .pkey = VB_PKEY_DEFAULT,
				 .qpn = VB_GSI_QPN,
				 .psn = psn,
				 .qkey = VB_GSI_QKEY,
				 .src_qpn = VB_GSI_QPN};
	struct vb_outbuf b;

	if (!out->ops->reserve(out, &b, vb_opcodes[p.opcode].hdr_len, VB_MAD_LEN, VB_OUT_REQUEST))
		return EAGAIN;
	vb_pkt_encode(b.hdr, &p);
	memcpy(b.payload, mad, VB_MAD_LEN);
	out->ops->commit(out, &b);
	vb_out_push(out);
	return 0;
}

int vb_mads_send(struct vb_hca *h, struct vb_gid to, struct vb_route route, const uint8_t mad[VB_MAD_LEN])
{
	struct vb_hosts *t = h->hosts;
	struct vb_far *far = t ? vb_hosts_get(t, to) : NULL;
	struct vb_out *out;
	int err = ENOMEM;

	if (!far)
		return t ? ENOMEM : ENETUNREACH;
	out = t->wire->way(t->net, &(struct vb_net_ends){
				       .host = &vb_containerof(far, struct vb_net_far, far)->net,
				       .sgid = vb_gid_of(vb_port_gids(h)->gid[VB_GRH_SGID(route.word)]),
				       .src_qpn = VB_GSI_QPN,
				       .dst_qpn = VB_GSI_QPN,
				       .mtu = VB_MAD_LEN,
				       .flow = VB_GRH_FLOW(route.word),
				       .tclass = VB_GRH_TCLASS(route.word),
				       .hops = route.hops,
				   });
	if (out)
		err = put_out(out, atomic_fetch_add_explicit(&t->mads, 1, memory_order_relaxed), mad);
	vb_out_end(out);
	vb_far_put(&far);
	return err;
}

void vb_mads_heard(struct vb_hca *h, struct vb_gid from)
{
	struct vb_hosts *t = h->hosts;
	struct vb_far *far = t ? vb_hosts_get(t, from) : NULL;

	if (far)
		atomic_store_explicit(&vb_containerof(far, struct vb_net_far, far)->net.heard, vb_now(),
				      memory_order_relaxed);
	vb_far_put(&far);
}

struct vb_reach_facts vb_mads_silence(struct vb_hca *h, struct vb_gid from, struct vb_gid here,
				      uint64_t since)
{
	struct vb_hosts *t = h->hosts;
	struct vb_far *far = t ? vb_hosts_get(t, from) : NULL;
	struct vb_reach_facts f = {.reach = VB_REACH_UNKNOWN};

	if (far)
		f = vb_hosts_why_mad(t, &vb_containerof(far, struct vb_net_far, far)->net, here, since);
	vb_far_put(&far);
	return f;
}
