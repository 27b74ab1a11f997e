/* verbena explain: what went wrong lately in a running process, as it said it itself; and what its ids wait
 * for. */
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/history.h"
#include "explain.h"
#include "host/segment.h"
#include "iba/reason.h"
#include "iba/shown.h"
#include "peek.h"
#include "tools.h"
#include "waits.h"

void vb_time_text(char buf[VB_TIME_TEXT], uint64_t ns, bool utc)
{
	time_t s = (time_t)(ns / 1000000000u);
	unsigned ms = (unsigned)(ns / 1000000u % 1000);
	char day[24];
	struct tm tm;

	if (!(utc ? gmtime_r(&s, &tm) : localtime_r(&s, &tm)) ||
	    !strftime(day, sizeof day, utc ? "%Y-%m-%dT%H:%M:%S" : "%Y-%m-%d %H:%M:%S", &tm))
		memcpy(day, "?", 2);
	snprintf(buf, VB_TIME_TEXT, "%s.%03u%s", day, ms, utc ? "Z" : "");
}

static int by_time(const void *a, const void *b)
{
	const struct vb_history_line *x = a, *y = b;

	return (x->last > y->last) - (x->last < y->last);
}

static size_t read_lines(const struct vb_history *h, struct vb_history_line *lines)
{
	size_t n = 0;

	for (uint32_t i = 0; i < VB_HISTORY; i++) {
		if (!vb_history_read(h, i, &lines[n]))
			continue;
		vb_peek_clean(lines[n].name);
		vb_peek_clean(lines[n].text);
		n++;
	}
	qsort(lines, n, sizeof *lines, by_time);
	return n;
}

/* All devices of the process together. */
static uint64_t dropped(const struct peek *p, enum vb_reason r)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < p->n; i++) {
		const struct vb_drops *d = (const void *)(p->all[i] + VB_SEG_DROPS);

		sum += atomic_load_explicit(&d->count[r], memory_order_relaxed);
	}
	return sum;
}

static const char *drop_words(enum vb_reason r)
{
	const char *words = vb_reason_dropped(r);

	return words ? words : "(see errors.md)";
}

static void print_drops(const struct peek *p)
{
	bool any = false;

	for (enum vb_reason r = VB_OK; r < VB_REASONS; r++) {
		uint64_t n = dropped(p, r);

		if (n && !any)
			printf("discarded without an error completion, as unreliable queue pairs do:\n");
		if (n)
			printf("%12llu  %s: %s\n", (unsigned long long)n, vb_reasons[r].name, drop_words(r));
		any = any || n;
	}
}

static json_object *drops_json(const struct peek *p)
{
	json_object *list = json_object_new_array();

	for (enum vb_reason r = VB_OK; r < VB_REASONS; r++) {
		uint64_t n = dropped(p, r);
		json_object *o;

		if (!n)
			continue;
		o = json_object_new_object();
		json_object_object_add(o, "reason", json_object_new_string(vb_reasons[r].name));
		json_object_object_add(o, "count", json_object_new_uint64(n));
		json_object_object_add(o, "text", json_object_new_string(drop_words(r)));
		json_object_array_add(list, o);
	}
	return list;
}

/* Nothing in the log is not yet good news. */
static void print_no_lines(const struct peek *p, const struct vb_waits *waits)
{
	size_t n = vb_waits_count(waits, false), all = vb_waits_count(waits, true);

	printf("process %d (%s): no failure logged since it opened the device", (int)p->pid, p->program);
	if (n)
		printf(", but %zu thing%s\n", n, n == 1 ? " waits" : "s wait");
	else if (all)
		printf("; what waits is normal for an idle program\n");
	else
		printf("\n");
}

static void print_text(const struct peek *p, const struct vb_history_line *lines, size_t n, uint64_t said)
{
	char when[VB_TIME_TEXT], since[VB_TIME_TEXT];

	printf("process %d (%s): %llu log message%s since it opened the device", (int)p->pid, p->program,
	       (unsigned long long)said, said == 1 ? "" : "s");
	if (n == VB_HISTORY) /* earlier ones may have been given up */
		printf(", the last %zu different ones:\n", n);
	else if (n < said)
		printf(n == 1 ? ", all the same\n" : ", %zu different ones\n", n);
	else
		printf("\n");
	for (size_t i = 0; i < n; i++) {
		const struct vb_history_line *l = &lines[i];

		vb_time_text(when, l->last, false);
		printf("%s  %s", when, l->text);
		if (l->count > 1) {
			vb_time_text(since, l->first, false);
			printf(" [%u times since %s]", l->count, since);
		}
		printf("\n");
	}
}

static json_object *line_json(const struct vb_history_line *l)
{
	json_object *o = json_object_new_object();
	const char *err = strerrorname_np(l->err);
	char when[VB_TIME_TEXT];

	vb_time_text(when, l->first, true);
	json_object_object_add(o, "first", json_object_new_string(when));
	vb_time_text(when, l->last, true);
	json_object_object_add(o, "last", json_object_new_string(when));
	json_object_object_add(o, "count", json_object_new_int64(l->count));
	if (l->err) {
		json_object_object_add(o, "call", json_object_new_string(l->name));
		json_object_object_add(o, "errno", json_object_new_string(err ? err : "?"));
	} else if (l->name[0]) {
		json_object_object_add(o, "reason", json_object_new_string(l->name));
	}
	json_object_object_add(o, "text", json_object_new_string(l->text));
	return o;
}

static int print_json(const struct peek *p, const struct vb_history_line *lines, size_t n, uint64_t said,
		      const struct vb_waits *waits)
{
	json_object *o = json_object_new_object(), *list = json_object_new_array();

	json_object_object_add(o, "pid", json_object_new_int(p->pid));
	json_object_object_add(o, "program", json_object_new_string(p->program));
	json_object_object_add(o, "said", json_object_new_uint64(said));
	for (size_t i = 0; i < n; i++)
		json_object_array_add(list, line_json(&lines[i]));
	json_object_object_add(o, "lines", list);
	json_object_object_add(o, "drops", drops_json(p));
	vb_waits_json(waits, o);
	vb_ids_json(p, o);
	return vb_peek_print_json(o);
}

/* The sentences of a process stand in the segment of one of its devices. */
static const struct vb_history *history_of(const struct peek *p)
{
	const struct vb_history *h = NULL;

	for (unsigned i = 0; i < p->n && (!h || !atomic_load_explicit(&h->said, memory_order_relaxed)); i++)
		h = (const void *)(p->all[i] + VB_SEG_HISTORY);
	return h;
}

static int explain(const struct vb_command *c, int argc, char **argv)
{
	struct vb_history_line lines[VB_HISTORY];
	const struct vb_history *h;
	struct vb_waits waits;
	struct peek_ask a;
	uint64_t said;
	int status = 0;
	size_t n;

	if (!vb_peek_open(&a, c, argc, argv))
		return VB_EXIT_SELF;
	vb_waits_open(&waits, &a.at);
	h = history_of(&a.at);
	said = atomic_load_explicit(&h->said, memory_order_relaxed);
	n = read_lines(h, lines);
	if (a.json) {
		status = print_json(&a.at, lines, n, said, &waits);
	} else {
		if (n)
			print_text(&a.at, lines, n, said);
		else
			print_no_lines(&a.at, &waits);
		print_drops(&a.at);
		vb_waits_print(&waits);
		vb_ids_print(&a.at);
	}
	vb_waits_close(&waits);
	vb_peek_close(&a.at);
	return status;
}

const struct vb_command vb_explain = {
    .name = "explain",
    .brief = "explain why calls and requests of a process failed, and why it hangs",
    .main = explain,
    .usage = "[--json] [PID]",
    .text =
	"Prints what failed in a running process: refused calls, failed requests and discarded messages. "
	"Then it prints what waits, why, and what to do, and the rdma_cm identifiers. The process may be "
	"stopped.\n\n"
	"Without PID it explains your only process that uses Verbena. If there are several, it lists them.",
    .after = "Exit status: 0; 125 if the process is not found or cannot be read, or if verbena fails.",
    .example = "verbena explain 4711",
    .options = vb_peek_options,
    .noptions = VB_PEEK_OPTIONS,
};
