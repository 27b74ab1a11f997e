/* The counters of a port, by the names that Linux gives them
 * (Documentation/ABI/stable/sysfs-class-infiniband) and, of hw_counters/, mlx5 and rxe.  A name stands here
 * only if it is counted, or if what it counts cannot occur. */
#include "view_counters.h"

#include <stddef.h>
#include <string.h>

/* What a file shows: one of enum vb_traffic_count, or: */
enum { NEVER = VB_TRAFFIC_COUNTS, DATA_OUT, DATA_IN, PACKETS_OUT, PACKETS_IN, MESSAGES_OUT, MESSAGES_IN };

struct counter {
	const char *name;
	unsigned what;
};

static const struct counter counters[] = {
    {"port_xmit_data", DATA_OUT}, /* in words of 4 bytes */
    {"port_rcv_data", DATA_IN},
    {"port_xmit_packets", PACKETS_OUT},
    {"port_rcv_packets", PACKETS_IN},
    {"symbol_error", NEVER},
    {"link_error_recovery", NEVER},
    {"link_downed", NEVER},
    {"port_rcv_errors", NEVER},
    {"port_rcv_remote_physical_errors", NEVER},
    {"port_rcv_switch_relay_errors", NEVER},
    {"port_xmit_discards", NEVER},
    {"port_xmit_constraint_errors", NEVER},
    {"port_rcv_constraint_errors", NEVER},
    {"local_link_integrity_errors", NEVER},
    {"excessive_buffer_overrun_errors", NEVER},
    {"VL15_dropped", NEVER},
    {"port_xmit_wait", NEVER},
};

static const struct counter rest[] = {{"sent_pkts", PACKETS_OUT},
				      {"rcvd_pkts", PACKETS_IN},
				      {"rdma_sends", MESSAGES_OUT},
				      {"rdma_recvs", MESSAGES_IN}};

enum { COUNTERS = sizeof(counters) / sizeof(*counters), REST = sizeof(rest) / sizeof(*rest) };

const char *vb_view_counter(unsigned i)
{
	return i < COUNTERS ? counters[i].name : NULL;
}

/* Names that both drivers have stand once. */
static struct counter hw_counter(unsigned i)
{
	if (i < REST)
		return rest[i];
	i -= REST;
	for (unsigned k = 0; k < VB_TRAFFIC_COUNTS; k++) {
		const struct vb_traffic_row *r = &vb_traffic_rows[k];

		if (r->mlx5 && !i--)
			return (struct counter){r->mlx5, k};
		if (r->rxe && (!r->mlx5 || strcmp(r->mlx5, r->rxe)) && !i--)
			return (struct counter){r->rxe, k};
	}
	return (struct counter){NULL, NEVER};
}

const char *vb_view_hw_counter(unsigned i)
{
	return hw_counter(i).name;
}

static uint64_t value(const struct vb_traffic *t, unsigned what)
{
	switch (what) {
	case NEVER:
		return 0;
	case DATA_OUT:
		return t->sent_bytes / 4;
	case DATA_IN:
		return t->received_bytes / 4;
	case PACKETS_OUT:
		return t->sent + t->count[VB_TRAFFIC_PACKETS_OUT];
	case PACKETS_IN:
		return t->received + t->count[VB_TRAFFIC_PACKETS_IN];
	case MESSAGES_OUT:
		return t->sent;
	case MESSAGES_IN:
		return t->received;
	default:
		return t->count[what];
	}
}

uint64_t vb_view_counter_value(const struct vb_traffic *t, unsigned i)
{
	return value(t, counters[i].what);
}

uint64_t vb_view_hw_counter_value(const struct vb_traffic *t, unsigned i)
{
	return value(t, hw_counter(i).what);
}
