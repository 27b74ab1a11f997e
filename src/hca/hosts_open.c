/* Opening the wire to other hosts together with the device. */
#include "hca/hosts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "hca/gsi.h"
#include "hca/peers.h"
#include "host/devices.h"
#include "host/netif.h"
#include "host/roce.h"
#include "wire/wires.h"

enum { LO = 1 }; /* lo's index in every network namespace */

void vb_hosts_port(struct vb_hca *h, struct vb_adapter_cfg *cfg)
{
	struct vb_roce_why why = {0};
	struct vb_text t;
	struct vb_port p;
	char buf[500];

	vb_devices_port(h->device, &p);
	if (!p.wire || vb_wire_way() == VB_WIRE_SHM)
		return;
	if (!p.up)
		vb_log(
		    VB_LOG_WARN,
		    "the port of the device is down until the interface %s is up and has a carrier and an IP "
		    "address",
		    p.ifname);
	if (vb_gid_is_loopback(p.address) && vb_wire_way() == VB_WIRE_AUTO)
		vb_log(VB_LOG_WARN,
		       "VERBENA_NETDEV names %s, which leads to this host only, where packets take shared "
		       "memory. "
		       "Name an interface that leads to other hosts, or send RoCEv2 packets on %s with "
		       "--wire=udp "
		       "(VERBENA_WIRE)",
		       p.ifname, p.ifname);
	if (!vb_roce_open(&cfg->roce, p.ifname, &why)) /* pairs with vb_adapter_close() */
		return;
	cfg->roce = NULL;
	t = (struct vb_text){buf, sizeof(buf)};
	vb_roce_why_add(&t, &why);
	vb_log_complain("%s", buf);
}

void vb_hosts_open(struct vb_hca *h)
{
	struct vb_net_cfg cfg = {.adapter = h->adapter,
				 .roce = vb_adapter_roce(h->adapter),
				 .own = vb_wire_way() == VB_WIRE_UDP,
				 .wrong_icrcs = vb_adapter_wrong_icrcs(h->adapter),
				 .mads = vb_gsi_came};
	struct vb_hosts *t;
	int err;

	if (!cfg.roce)
		return;
	t = vb_hosts_new(h, &cfg); /* pairs with vb_hosts_close() */
	err = t ? vb_wire_to_hosts()->open(&t->net, &cfg) : ENOMEM;
	if (err) {
		free(t);
		vb_log_complain(
		    "no other host can be reached: the sockets of UDP port 4791 cannot be set up: %s",
		    strerror(err));
		return;
	}
	t->wire = vb_wire_to_hosts();
	t->only = cfg.own;
	t->by_lo = vb_roce_ifindex(cfg.roce) == LO;
	t->rxq = t->wire->rxq(t->net);
	h->hosts = t;
	vb_hca_open_rxq(h, t->rxq, VB_NET_RINGS, NULL);
}

void vb_hosts_close(struct vb_hca *h)
{
	struct vb_hosts *t = h->hosts;

	if (!t)
		return;
	h->hosts = NULL;
	t->wire->close(t->net);
	vb_hosts_free(t);
}
