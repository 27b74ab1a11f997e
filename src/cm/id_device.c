/* What librdmacm asks of this library beside its ids: which device is which, and to say something. */
#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"
#include "cm/api.h"
#include "obj/context.h"

int vb_cm_device_index(const struct ibv_device *device)
{
	return (int)((const struct vb_device *)device)->index;
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
