/* What librdmacm asks of this library beside its ids: which device is which, and to say something. */
#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"
#include "cm/api.h"
#include "host/adapter.h"
#include "obj/context.h"
#include "obj/live.h"

int vb_cm_device_index(const struct ibv_device *device)
{
	return (int)((const struct vb_device *)device)->index;
}

bool vb_cm_device_lost(const struct ibv_context *verbs)
{
	const struct vb_context *c = vb_context((struct ibv_context *)verbs);

	return c->adapter && vb_adapter_lost(c->adapter);
}

static const enum vb_live kinds[] = {
    [VB_CM_OBJECT_ID] = VB_LIVE_CM_ID,
    [VB_CM_OBJECT_CHANNEL] = VB_LIVE_CM_CHANNEL,
    [VB_CM_OBJECT_EVENT] = VB_LIVE_CM_EVENT,
};

void vb_cm_object_enter(const void *object, enum vb_cm_object kind)
{
	vb_live_enter(object, kinds[kind]);
}

int vb_cm_object_leave(const char *call, const void *object, enum vb_cm_object kind)
{
	return vb_live_leave(call, object, kinds[kind]);
}

int vb_cm_object_check(const char *call, const void *object, enum vb_cm_object kind)
{
	return vb_live_check(call, object, kinds[kind]);
}

bool vb_cm_qp_lives(const struct ibv_qp *qp)
{
	return vb_live_is(qp, VB_LIVE_QP);
}

enum { SENTENCE = 512 };

int vb_cm_refuse(int err, const char *call, const char *fmt, ...)
{
	char text[SENTENCE];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return vb_refuse(err, call, "%s", text);
}

void vb_cm_log_tell(void)
{
	vb_log_tell();
}
