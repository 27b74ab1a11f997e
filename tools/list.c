/* verbena list: the processes of this user that have a device of Verbena open. */
#include "list.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "host/segment.h"
#include "tools.h"

enum { DEVICES = VB_MAX_DEVICES * 66 }; /* bytes of the names of a process's devices */

static const struct vb_seg_head *head(const struct peek *p, unsigned device)
{
	return (const void *)p->all[device];
}

static uint32_t qps_of(const struct peek *p, unsigned device)
{
	return atomic_load_explicit(&head(p, device)->qps, memory_order_relaxed);
}

static uint64_t all_qps(const struct peek *p)
{
	uint64_t sum = 0;

	for (unsigned d = 0; d < p->n; d++)
		sum += qps_of(p, d);
	return sum;
}

/* Returns buf. */
static const char *name_of(char *buf, size_t size, const struct peek *p, unsigned device)
{
	snprintf(buf, size, "%.*s", (int)sizeof head(p, device)->name, head(p, device)->name);
	vb_peek_clean(buf);
	return buf;
}

static const char *names_of(char *buf, size_t size, const struct peek *p)
{
	struct vb_text t = {buf, size};
	char name[80];

	*buf = 0;
	for (unsigned d = 0; d < p->n; d++)
		vb_text_add(&t, "%s%s", d ? "," : "", name_of(name, sizeof name, p, d));
	return buf;
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
	fprintf(f, "%7s  %-*s  %-*s  %s\n", "PID", program, "PROGRAM", device, "DEVICE", "QUEUE PAIRS");
	for (size_t i = 0; i < n; i++)
		fprintf(f, "%7d  %-*s  %-*s  %11llu%s\n", (int)all[i].pid, program, all[i].program, device,
			names_of(names, sizeof names, &all[i]), (unsigned long long)all_qps(&all[i]),
			vb_peek_is_here(&all[i]) ? "" : "  in another network namespace");
}

void vb_list_say_none(void)
{
	vb_say(
	    "no process of yours has a device of Verbena open. To start a program: verbena run -- PROGRAM");
}

static json_object *process_json(const struct peek *p)
{
	json_object *o = json_object_new_object(), *devices = json_object_new_array();
	char name[80];

	json_object_object_add(o, "pid", json_object_new_int(p->pid));
	json_object_object_add(o, "program", json_object_new_string(p->program));
	for (unsigned d = 0; d < p->n; d++) {
		json_object *one = json_object_new_object();

		json_object_object_add(one, "name", json_object_new_string(name_of(name, sizeof name, p, d)));
		json_object_object_add(one, "adapter", json_object_new_int64(head(p, d)->number));
		json_object_object_add(one, "queue_pairs", json_object_new_int64(qps_of(p, d)));
		json_object_array_add(devices, one);
	}
	json_object_object_add(o, "devices", devices);
	json_object_object_add(o, "queue_pairs", json_object_new_uint64(all_qps(p)));
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
	bool json = false;
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
		json = true;
	}
	n = vb_peek_all(&all, geteuid());
	if (json)
		status = print_json(all, n);
	else if (n)
		vb_list_print(stdout, all, n);
	else
		vb_list_say_none();
	for (size_t i = 0; i < n; i++)
		vb_peek_close(&all[i]);
	free(all);
	return status;
}

const struct vb_command vb_list = {
    .name = "list",
    .brief = "list your processes that use Verbena",
    .main = list,
    .usage = "[--json]",
    .text = "Lists your processes that have a device of Verbena open: their PIDs, programs, devices and "
	    "numbers of "
	    "queue pairs.",
    .after = "Exit status: 0, also if there is no such process; 125 if verbena fails.",
    .example = "verbena list",
    .options = vb_peek_options,
    .noptions = VB_PEEK_OPTIONS,
};
