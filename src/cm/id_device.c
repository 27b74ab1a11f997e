/* What librdmacm asks of this library beside its ids: which device is which, and to say something. */
#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"
#include "cm/api.h"
#include "host/adapter.h"
#include "obj/context.h"

int vb_cm_device_index(const struct ibv_device *device)
{
	return (int)((const struct vb_device *)device)->index;
}

bool vb_cm_device_lost(const struct ibv_context *verbs)
{
	const struct vb_context *c = vb_context((struct ibv_context *)verbs);

	return c->adapter && vb_adapter_lost(c->adapter);
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
