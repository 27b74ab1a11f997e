/* Opening a device's adapter, and what belongs to it. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/pages.h"
#include "check/check.h"
#include "hca/capture_file.h"
#include "hca/direct.h"
#include "hca/forward.h"
#include "mem/check_buffers.h"
#include "hca/gsi.h"
#include "hca/hosts.h"
#include "hca/peers.h"
#include "hca/port.h"
#include "hca/progress.h"
#include "hca/roots.h"
#include "hca/say.h"
#include "host/roce.h"
#include "iba/away.h"
#include "iba/profile.h"
#include "wire/wires.h"

static_assert(sizeof(struct vb_key_entry) == VB_LINE && sizeof(struct vb_key_slot) == VB_LINE,
	      "one line each");

static void init_keys(struct vb_hca *h)
{
	struct vb_adapter *a = h->adapter;
	uint64_t chance = vb_adapter_incarnation(a);

	vb_keys_init(&h->keys, vb_adapter_key_entries(a), vb_profile()->max_mr + vb_profile()->max_mw + 1,
		     vb_adapter_key_slots(a), vb_adapter_key_marks(a));
	/* The number may be given to another process once this one is gone: chance tells their PDs apart. */
	h->keys.home = vb_adapter_number(a) << 20 | (uint32_t)(chance & 0xfffff);
	h->keys.offset = vb_adapter_key_offset(a);
	h->keys.variant = chance >> 20 & 0xff;
	h->keys.local_bit = vb_profile()->equal_keys ? VB_KEY_REMOTE : 0;
	h->keys.ops = &vb_direct_keys_ops;
	h->keys.owner = a;
	vb_pds_init(&h->pds, vb_adapter_pds(a), vb_adapter_pd_marks(a), (uint64_t)h->keys.home << 32);
}

int vb_hca_open(struct vb_hca **out, uint32_t device, enum vb_open_step *step,
		const struct vb_hca_upper *upper)
{
	struct vb_hca *h = vb_pages_alloc(sizeof(*h));
	struct vb_adapter_cfg cfg = {.ops = &vb_hca_ops,
				     .wire = vb_wire_to_peers(),
				     .user = h,
				     .device = device,
				     .step = step,
				     .roots = &vb_roots};
	struct vb_peer *self;
	int err;

	if (!h)
		return ENOMEM;
	vb_check_begin(&vb_check_buffers);
	vb_capture_begin();
	vb_list_init(&h->timed);
	vb_list_init(&h->asked);
	vb_list_init(&h->unsaid);
	vb_list_init(&h->dms);
	vb_list_init(&h->contexts);
	vb_srqs_init(&h->srqs);
	vb_mcast_open(h); /* pairs with vb_hca_close() */
	vb_list_init(&h->moderated);
	vb_list_init(&h->cqs);
	pthread_mutex_init(&h->gsi_busy, NULL);
	h->hear[VB_SUBJECT_DIRECT] = vb_direct_told;
	vb_forward_prepare(h);
	err = vb_mws_init(&h->mws, &h->keys, vb_profile()->max_mw); /* pairs with vb_hca_close() */
	if (err)
		goto free_hca;
	err = vb_port_open(h, device); /* pairs with vb_hca_close() */
	if (err)
		goto fini_windows;
	h->away = !vb_port_has_wire(h)		 ? VB_AWAY_CLOSED
		  : vb_wire_way() == VB_WIRE_SHM ? VB_AWAY_SHM
						 : VB_AWAY_FAILED;
	upper->prepare(h); /* pairs with vb_hca_close() */
	h->upper = upper;
	cfg.gids = vb_port_gids(h)->gid;
	vb_hosts_port(h, &cfg);
	err = vb_adapter_open(&h->adapter, &cfg); /* pairs with vb_hca_close() */
	if (err) {
		vb_roce_close(cfg.roce);
		goto close_port;
	}
	vb_port_network(h->adapter); /* what changed before the adapter began to watch */
	h->inner.adapter = h->adapter;
	init_keys(h);
	self = vb_hca_peer(h, 0); /* UP from the beginning */
	vb_direct_peer_up(self);
	vb_hca_open_lanes(self);
	vb_hosts_open(h);
	err = vb_adapter_run(h->adapter);
	if (err) {
		if (step)
			*step = VB_OPEN_THREAD;
		vb_hca_close(h);
		return err;
	}
	*out = h;
	return 0;
close_port:
	vb_port_close(h);
fini_windows:
	vb_mws_fini(&h->mws);
free_hca:
	vb_mcast_close(h);
	free(h);
	return err;
}

void vb_hca_close(struct vb_hca *h)
{
	vb_deputies_close(h);
	vb_gsi_close(h);
	vb_adapter_close(h->adapter);
	vb_hosts_close(h);
	vb_hca_say_close(h);
	vb_relaxed_fini(&h->relaxed);
	vb_mws_fini(&h->mws);
	vb_mcast_close(h);
	vb_slab_fini(&h->mr_slab);
	vb_port_close(h);
	free(h);
}
