/* verbena list: the processes of this user that have a device of Verbena open. */
#include "list.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "counts.h"
#include "host/segment.h"
#include "tools.h"

enum { DEVICES = VB_MAX_DEVICES * 66 }; /* bytes of the names of a process's devices */

static const struct vb_seg_head *head(const struct peek *p, unsigned device)
{
	return (const void *)p->all[device];
}

static const char *names_of(char *buf, size_t size, const struct peek *p)
{
	struct vb_text t = {buf, size};
	char name[80];

	*buf = 0;
	for (unsigned d = 0; d < p->n; d++)
		vb_text_add(&t, "%s%s", d ? "," : "", vb_counts_device_name(name, sizeof name, p, d));
	return buf;
}

/* "2 RTS, 1 INIT"; returns buf. */
static const char *states_of(char *buf, size_t size, const struct vb_counts *c)
{
	struct vb_text t = {buf, size};
	bool any = false;

	*buf = 0;
	for (unsigned i = VB_QP_STATES; i--;) {
		if (c->state[i])
			vb_text_add(&t, "%s%u %s", any ? ", " : "", c->state[i], vb_counts_state(i));
		any = any || c->state[i];
	}
	if (!any)
		vb_text_add(&t, "0");
	return buf;
}

/* "4.2 MiB": at most nine columns.  Returns buf. */
static const char *bytes_of(char *buf, size_t size, uint64_t v)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double d = (double)v;
	unsigned u = 0;

	for (; d >= 1000 && u < sizeof units / sizeof *units - 1; u++)
		d /= 1024;
	snprintf(buf, size, u && d < 100 ? "%.1f %s" : "%.0f %s", d, units[u]);
	return buf;
}

static void print_row(FILE *f, const struct peek *p, int program, int device)
{
	char names[DEVICES], states[120], memory[16], out[16], in[16];
	struct vb_counts c;

	(void)vb_counts_process(p, &c); /* without memory it is a part of them */
	fprintf(f, "%7d  %-*s  %-*s  %-16s  %7llu  %9s  %5u  %11llu  %9s  %11llu  %9s  %7llu%s\n",
		(int)p->pid, program, p->program, device, names_of(names, sizeof names, p),
		states_of(states, sizeof states, &c), (unsigned long long)c.regions,
		bytes_of(memory, sizeof memory, c.bytes), c.peers, (unsigned long long)c.traffic.sent,
		bytes_of(out, sizeof out, c.traffic.sent_bytes), (unsigned long long)c.traffic.received,
		bytes_of(in, sizeof in, c.traffic.received_bytes),
		(unsigned long long)c.traffic.count[VB_TRAFFIC_RETRANSMITTED],
		vb_peek_is_here(p) ? "" : "  in another network namespace");
}

void vb_list_print(FILE *f, const struct peek *all, size_t n)
{
	int program = (int)strlen("PROGRAM"), device = (int)strlen("DEVICE"), len;
	char names[DEVICES];

	for (size_t i = 0; i < n; i++) {
		len = (int)strlen(all[i].program);
		program = len > program ? len : program;
		len = (int)strlen(names_of(names, sizeof names, &all[i]));
		device = len > device ? len : device;
	}
	fprintf(f, "%7s  %-*s  %-*s  %-16s  %7s  %9s  %5s  %11s  %9s  %11s  %9s  %7s\n", "PID", program,
		"PROGRAM", device, "DEVICE", "QUEUE PAIRS", "REGIONS", "MEMORY", "PEERS", "SENT", "BYTES",
		"RECEIVED", "BYTES", "RESENT");
	for (size_t i = 0; i < n; i++)
		print_row(f, &all[i], program, device);
}

void vb_list_say_none(void)
{
	vb_say(
	    "no process of yours has a device of Verbena open. To start a program: verbena run -- PROGRAM");
}

static json_object *device_json(const struct peek *p, unsigned d, const struct vb_counts *c)
{
	json_object *o = json_object_new_object();
	char name[80];

	json_object_object_add(o, "name",
			       json_object_new_string(vb_counts_device_name(name, sizeof name, p, d)));
	json_object_object_add(o, "adapter", json_object_new_int64(head(p, d)->number));
	vb_counts_json(o, c);
	return o;
}

static json_object *process_json(const struct peek *p)
{
	json_object *o = json_object_new_object(), *devices = json_object_new_array();
	struct vb_counts sum = {0}, c;

	json_object_object_add(o, "pid", json_object_new_int(p->pid));
	json_object_object_add(o, "program", json_object_new_string(p->program));
	for (unsigned d = 0; d < p->n; d++) {
		(void)vb_counts_device(p, d, &c); /* without memory it is a part of them */
		vb_counts_add(&sum, &c);
		json_object_array_add(devices, device_json(p, d, &c));
	}
	json_object_object_add(o, "devices", devices);
	vb_counts_json(o, &sum);
	json_object_object_add(o, "network_namespace", json_object_new_uint64(p->network));
	return o;
}

static int print_json(const struct peek *all, size_t n)
{
	json_object *list = json_object_new_array();

	for (size_t i = 0; i < n; i++)
		json_object_array_add(list, process_json(&all[i]));
	return vb_peek_print_json(list);
}

static int list(const struct vb_command *c, int argc, char **argv)
{
	struct vb_words w = {.command = c, .argc = argc, .argv = argv};
	bool json = false, metrics = false;
	enum vb_word word;
	struct peek *all;
	int status = 0;
	size_t n;

	while ((word = vb_words_next(&w))) {
		if (word == VB_WORDS_WORD) {
			vb_say("\"verbena list\" takes no argument, but \"%s\" is given. To look into a "
			       "process: verbena "
			       "explain PID",
			       w.value);
			return VB_EXIT_SELF;
		}
		if (w.option->letter)
			json = true;
		else
			metrics = true;
	}
	if (json && metrics) {
		vb_say("--json and --metrics are two formats of the same list; give one of them");
		return VB_EXIT_SELF;
	}
	n = vb_peek_all(&all, geteuid());
	if (json)
		status = print_json(all, n);
	else if (metrics)
		status = vb_metrics_print(all, n);
	else if (n)
		vb_list_print(stdout, all, n);
	else
		vb_list_say_none();
	for (size_t i = 0; i < n; i++)
		vb_peek_close(&all[i]);
	free(all);
	return status;
}

static const struct vb_option options[] = {
    {.name = "json", .letter = 'j', .doc = "print JSON"},
    {.name = "metrics", .doc = "print Prometheus' text format, for node_exporter's textfile collector"},
};

const struct vb_command vb_list = {
    .name = "list",
    .brief = "list your processes that use Verbena",
    .main = list,
    .usage = "[--json|--metrics]",
    .text = "Lists your processes that have a device of Verbena open: PID, program, devices, queue pairs by "
	    "state, "
	    "memory regions and their bytes, the adapters that they are connected to, messages and bytes "
	    "sent and "
	    "received, and packets sent again.",
    .after = "Exit status: 0, also if there is no such process; 125 if verbena fails.",
    .example = "verbena list",
    .options = options,
    .noptions = sizeof options / sizeof *options,
};
