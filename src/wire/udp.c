#include "wire/udp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A thread that blocks for the adapter saw packets. */
static void came(void *user)
{
	struct vb_net *n = user;

	n->cfg.came(n->cfg.user, &n->in.rxq);
}

static void mads_came(void *user)
{
	struct vb_net *n = user;

	n->cfg.mads(n->cfg.user, &n->mads.rxq);
}

static void wire_close(struct vb_net *n)
{
	vb_udp_out_close(n);
	vb_udp_in_close(n);
	free(n);
}

static int wire_open(struct vb_net **out, const struct vb_net_cfg *cfg)
{
	struct vb_net *n = aligned_alloc(VB_LINE, sizeof(*n));
	int err;

	if (!n)
		return ENOMEM;
	memset(n, 0, sizeof(*n));
	n->cfg = *cfg;
	err = vb_udp_in_open(n);
	if (!err)
		err = vb_udp_out_open(n);
	if (!err)
		err = vb_inlet_add(cfg->adapter, n->in.fd, came, n);
	if (!err)
		err = vb_inlet_add_steady(cfg->adapter, n->mads.fd, mads_came, n);
	if (err) {
		wire_close(n);
		return err;
	}
	*out = n;
	return 0;
}

static struct vb_rxq *wire_rxq(struct vb_net *n)
{
	return &n->in.rxq;
}

static void wire_listen(struct vb_net *n)
{
	vb_inlet_open(n->cfg.adapter, n->mads.fd);
}

const struct vb_net_wire vb_udp_wire = {.name = "udp",
					.open = wire_open,
					.close = wire_close,
					.rxq = wire_rxq,
					.join = vb_udp_join,
					.leave = vb_udp_leave,
					.listen = wire_listen,
					.way = vb_udp_way,
					.toss = vb_udp_toss,
					.hear = vb_udp_hear,
					.translated = vb_udp_is_translated};
