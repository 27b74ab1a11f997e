/* What queue pairs count, by name. */
#include "iba/traffic.h"

#include <stddef.h>

const struct vb_traffic_row vb_traffic_rows[VB_TRAFFIC_COUNTS] = {
#define TRAFFIC(name, json, mlx5, rxe, help) [VB_TRAFFIC_##name] = {json, mlx5, rxe, help},
#include "iba/traffic_list.h"
#undef TRAFFIC
};

void vb_traffic_add(struct vb_traffic *sum, const struct vb_traffic *t)
{
	sum->sent += t->sent;
	sum->sent_bytes += t->sent_bytes;
	sum->received += t->received;
	sum->received_bytes += t->received_bytes;
	for (unsigned i = 0; i < VB_TRAFFIC_COUNTS; i++)
		sum->count[i] += t->count[i];
}
