#include "device.h"

#include "kit.h"

struct ibv_context *ctx;
struct ibv_pd *pd;

int kit_device_open(void **state)
{
	(void)state;
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	return pd ? 0 : -1;
}

int kit_device_close(void **state)
{
	(void)state;
	return ibv_dealloc_pd(pd) | ibv_close_device(ctx);
}
