/* Which contexts a call may use: those of the table of live objects, and not of a device that is closed. */
#include <errno.h>

#include "base/log.h"
#include "obj/live.h"
#include "verbs/verbs.h"

int vb_context_find(const char *call, const struct ibv_context *context)
{
	int err = vb_live_check(call, context, VB_LIVE_CONTEXT);

	if (!err && atomic_load(&vb_context((struct ibv_context *)(uintptr_t)context)->closing))
		err = vb_refuse(EINVAL, call,
				"the device at %p was closed by ibv_close_device(); it remains only for the "
				"objects that the program did not destroy",
				(const void *)context);
	return err;
}

int vb_context_check(const char *call, const struct ibv_context *context)
{
	int err = vb_context_find(call, context);

	if (!err && vb_context_dead(vb_context((struct ibv_context *)(uintptr_t)context)))
		err = vb_refuse_forked(call);
	return err;
}

int vb_pd_check(const char *call, const struct ibv_pd *pd)
{
	int err = vb_live_check(call, pd, VB_LIVE_PD);

	if (!err && vb_context_dead(vb_context(pd->context)))
		err = vb_refuse_forked(call);
	return err;
}
