#include "adapter.h"

#include "hca/hca.h"
#include "kit.h"
#include "verbs/verbs.h"

struct ibv_context *kit_adapter_open(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct vb_context *c;
	struct vb_hca *h;

	CHECK(list && list[0]);
	CHECK(
	    !vb_hca_open(&h, 0, NULL, &vb_verbs_upper)); /* not the process's shared adapter, but one more */
	CHECK(!vb_context_open(&c, (struct vb_device *)list[0], h));
	ibv_free_device_list(list);
	return &c->v.context;
}

void kit_adapter_close(struct ibv_context *c)
{
	struct vb_hca *h = vb_hca(vb_context(c)->adapter);

	CHECK(!vb_live_leave("ibv_close_device", c, VB_LIVE_CONTEXT) && !vb_context_close(vb_context(c)));
	vb_hca_close(h);
}
