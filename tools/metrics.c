/* verbena list --metrics: Prometheus' text format, for node_exporter's textfile collector.  All samples of a
 * metric stand together behind its HELP and TYPE. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "counts.h"
#include "host/segment.h"
#include "iba/reason.h"
#include "tools.h"

/* One device of a process. */
struct series {
	const struct peek *of;
	unsigned device;
	struct vb_counts c;
};

static void put_escaped(const char *text)
{
	for (; *text; text++) {
		if (*text == '\\' || *text == '"')
			putchar('\\');
		putchar(*text); /* without control characters: vb_peek_clean() */
	}
}

static void put_labels(const struct series *s)
{
	char name[80];

	printf("{pid=\"%d\",program=\"", (int)s->of->pid);
	put_escaped(s->of->program);
	printf("\",device=\"");
	put_escaped(vb_counts_device_name(name, sizeof name, s->of, s->device));
	printf("\"");
}

static void put_head(const char *name, const char *suffix, const char *type, const char *help)
{
	printf("# HELP verbena_%s%s %s\n# TYPE verbena_%s%s %s\n", name, suffix, help, name, suffix, type);
}

static void put(const char *name, const char *suffix, const struct series *s, uint64_t v)
{
	printf("verbena_%s%s", name, suffix);
	put_labels(s);
	printf("} %" PRIu64 "\n", v);
}

static void put_states(const struct series *s, size_t n)
{
	put_head("queue_pairs", "", "gauge", "Queue pairs by state.");
	for (size_t i = 0; i < n; i++) {
		for (unsigned k = 0; k < VB_QP_STATES; k++) {
			printf("verbena_queue_pairs");
			put_labels(&s[i]);
			printf(",state=\"%s\"} %u\n", vb_counts_state(k), s[i].c.state[k]);
		}
	}
}

static void put_gauges(const struct series *s, size_t n)
{
	put_head("memory_regions", "", "gauge", "Memory regions.");
	for (size_t i = 0; i < n; i++)
		put("memory_regions", "", &s[i], s[i].c.regions);
	put_head("memory_region_bytes", "", "gauge",
		 "Bytes in memory regions; overlapping regions count each.");
	for (size_t i = 0; i < n; i++)
		put("memory_region_bytes", "", &s[i], s[i].c.bytes);
	put_head("peers", "", "gauge", "Adapters that connected queue pairs lead to.");
	for (size_t i = 0; i < n; i++)
		put("peers", "", &s[i], s[i].c.peers);
}

static void put_messages(const struct series *s, size_t n)
{
	put_head("messages_sent", "_total", "counter", "Send requests begun.");
	for (size_t i = 0; i < n; i++)
		put("messages_sent", "_total", &s[i], s[i].c.traffic.sent);
	put_head("sent_bytes", "_total", "counter",
		 "Payload bytes of SENDs, WRITEs and answers to READs that this process sent.");
	for (size_t i = 0; i < n; i++)
		put("sent_bytes", "_total", &s[i], s[i].c.traffic.sent_bytes);
	put_head("messages_received", "_total", "counter",
		 "Messages received, without those that the peer placed itself.");
	for (size_t i = 0; i < n; i++)
		put("messages_received", "_total", &s[i], s[i].c.traffic.received);
	put_head("received_bytes", "_total", "counter",
		 "Payload bytes received and read, without what the peer placed itself.");
	for (size_t i = 0; i < n; i++)
		put("received_bytes", "_total", &s[i], s[i].c.traffic.received_bytes);
	for (unsigned k = 0; k < VB_TRAFFIC_COUNTS; k++) {
		put_head(vb_traffic_rows[k].name, "_total", "counter", vb_traffic_rows[k].help);
		for (size_t i = 0; i < n; i++)
			put(vb_traffic_rows[k].name, "_total", &s[i], s[i].c.traffic.count[k]);
	}
}

static void put_discarded(const struct series *s, size_t n)
{
	put_head("discarded_messages", "_total", "counter",
		 "Messages discarded without an error completion, by reason.");
	for (size_t i = 0; i < n; i++) {
		const struct vb_drops *d = (const void *)(s[i].of->all[s[i].device] + VB_SEG_DROPS);

		for (enum vb_reason r = VB_OK; r < VB_REASONS; r++) {
			uint64_t v = atomic_load_explicit(&d->count[r], memory_order_relaxed);

			if (!v)
				continue;
			printf("verbena_discarded_messages_total");
			put_labels(&s[i]);
			printf(",reason=\"%s\"} %" PRIu64 "\n", vb_reasons[r].name, v);
		}
	}
}

int vb_metrics_print(const struct peek *all, size_t n)
{
	size_t devices = 0, at = 0;
	struct series *s;

	for (size_t i = 0; i < n; i++)
		devices += all[i].n;
	s = calloc(devices + 1, sizeof *s);
	if (!s) {
		vb_say("there is no memory for the counts of %zu processes", n);
		return VB_EXIT_SELF;
	}
	for (size_t i = 0; i < n; i++) {
		for (unsigned d = 0; d < all[i].n; d++) {
			s[at] = (struct series){.of = &all[i], .device = d};
			if (!vb_counts_device(&all[i], d, &s[at].c)) {
				vb_say("there is no memory for the queue pairs of process %d",
				       (int)all[i].pid);
				free(s);
				return VB_EXIT_SELF;
			}
			at++;
		}
	}
	put_states(s, at);
	put_gauges(s, at);
	put_messages(s, at);
	put_discarded(s, at);
	free(s);
	return 0;
}
