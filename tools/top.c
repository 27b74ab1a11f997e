/* verbena top: `verbena list` again and again, with rates.  On a terminal by ncurses; else, or with --batch,
 * as text. */
#include <curses.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "counts.h"
#include "peek.h"
#include "tools.h"

#undef timeout

struct row {
	pid_t pid;
	char program[64];
	struct vb_counts c;
};

struct sample {
	uint64_t at; /* ns */
	size_t n;
	struct row *rows;
};

struct wish {
	bool batch;
	unsigned long frames; /* 0: until it is ended */
	double interval;      /* seconds */
};

static bool look(struct sample *s)
{
	struct peek *all;
	size_t n = vb_peek_all(&all, geteuid());

	*s = (struct sample){.at = vb_now(), .rows = calloc(n + 1, sizeof *s->rows)};
	for (size_t i = 0; i < n; i++) {
		struct row *r = s->rows ? &s->rows[s->n++] : NULL;

		if (r) {
			r->pid = all[i].pid;
			memcpy(r->program, all[i].program, sizeof r->program);
			(void)vb_counts_process(&all[i], &r->c); /* without memory it is a part of them */
		}
		vb_peek_close(&all[i]);
	}
	free(all);
	if (!s->rows)
		vb_say("there is no memory for the counts of %zu processes", n);
	return s->rows;
}

static const struct row *before(const struct sample *s, pid_t pid)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->rows[i].pid == pid)
			return &s->rows[i];
	return NULL;
}

/* Of a process that was not there before, or whose number is another one's now, nothing is known yet. */
static double rate(uint64_t now, uint64_t then, double seconds)
{
	return now >= then && seconds > 0 ? (double)(now - then) / seconds : 0;
}

/* "1234", "12.3k", "4.5M".  Returns buf. */
static const char *short_of(char buf[16], double v)
{
	static const char units[] = {0, 'k', 'M', 'G', 'T', 'P', 'E'};
	unsigned u = 0;

	for (; v >= 9999.5 && u + 1 < sizeof units; u++)
		v /= 1000;
	snprintf(buf, 16, u && v < 99.95 ? "%.1f%c" : "%.0f%c", v, units[u]);
	return buf;
}

typedef void line_fn(unsigned y, const char *text);

static void put_row(line_fn *line, unsigned y, const struct row *r, const struct row *then, double seconds)
{
	char out[16], out_bytes[16], in[16], in_bytes[16], again[16], memory[16], text[240];
	const struct vb_traffic *t = &r->c.traffic, *o = then ? &then->c.traffic : t;
	unsigned k = VB_TRAFFIC_RETRANSMITTED;

	snprintf(text, sizeof text, "%7d  %-16.16s %5u %5u %6s  %7s %7s  %7s %7s  %7s", (int)r->pid,
		 r->program, r->c.qps, r->c.peers, short_of(memory, (double)r->c.bytes),
		 short_of(out, rate(t->sent, o->sent, seconds)),
		 short_of(out_bytes, rate(t->sent_bytes, o->sent_bytes, seconds)),
		 short_of(in, rate(t->received, o->received, seconds)),
		 short_of(in_bytes, rate(t->received_bytes, o->received_bytes, seconds)),
		 short_of(again, rate(t->count[k], o->count[k], seconds)));
	line(y, text);
}

static void put_frame(line_fn *line, const struct sample *now, const struct sample *then)
{
	double seconds = (double)(now->at - then->at) / 1e9;
	time_t t = time(NULL);
	char text[120], clock[16] = "?";
	struct tm tm;

	if (localtime_r(&t, &tm))
		strftime(clock, sizeof clock, "%H:%M:%S", &tm);
	snprintf(text, sizeof text, "verbena top - %s, %zu process%s, rates over %.2f s", clock, now->n,
		 now->n == 1 ? "" : "es", seconds);
	line(0, text);
	snprintf(text, sizeof text, "%7s  %-16s %5s %5s %6s  %7s %7s  %7s %7s  %7s", "PID", "PROGRAM", "QPS",
		 "PEERS", "MEMORY", "SENT/s", "B/s", "RCVD/s", "B/s", "RESENT/s");
	line(1, text);
	for (size_t i = 0; i < now->n; i++)
		put_row(line, (unsigned)i + 2, &now->rows[i], before(then, now->rows[i].pid), seconds);
}

static void to_stdout(unsigned y, const char *text)
{
	(void)y;
	puts(text);
}

static void to_screen(unsigned y, const char *text)
{
	mvaddnstr((int)y, 0, text, COLS);
}

static void wait_for(double seconds)
{
	struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* false: the user has had enough. */
static bool wait_for_key(double seconds)
{
	int key;

	wtimeout(stdscr, (int)(seconds * 1000));
	key = getch();
	return key != 'q' && key != 'Q';
}

static int watch(const struct wish *w, bool screen)
{
	struct sample then, now;
	unsigned long frames = 0;
	bool more = true;
	int status = 0;

	if (!look(&then))
		return VB_EXIT_SELF;
	if (screen)
		put_frame(to_screen, &then, &then);
	while (more && (!w->frames || frames < w->frames)) {
		if (screen)
			more = wait_for_key(w->interval);
		else
			wait_for(w->interval);
		if (!more)
			break;
		if (!look(&now)) {
			status = VB_EXIT_SELF;
			break;
		}
		if (screen)
			erase();
		else if (frames)
			puts("");
		put_frame(screen ? to_screen : to_stdout, &now, &then);
		if (!screen && fflush(stdout))
			more = false; /* it is said at the end */
		free(then.rows);
		then = now;
		frames++;
	}
	free(then.rows);
	return status;
}

/* false: it was said what is wrong. */
static bool parse(struct wish *w, const struct vb_command *c, int argc, char **argv)
{
	struct vb_words words = {.command = c, .argc = argc, .argv = argv};
	enum vb_word word;
	char *end;

	*w = (struct wish){.interval = 1};
	while ((word = vb_words_next(&words))) {
		if (word == VB_WORDS_WORD) {
			vb_say("\"verbena top\" takes no argument, but \"%s\" is given. To look into a "
			       "process: verbena "
			       "qp PID",
			       words.value);
			return false;
		}
		if (words.option->letter == 'b')
			w->batch = true;
		else if (words.option->letter == 'n')
			w->frames = strtoul(words.value, NULL, 0);
		else
			w->interval = strtod(words.value, &end);
		if (words.option->letter != 'd')
			continue;
		if (*end || end == words.value || !(w->interval >= 0.01 && w->interval <= 3600)) {
			vb_say("--interval=%s is not valid. Valid values: seconds from 0.01 to 3600",
			       words.value);
			return false;
		}
	}
	return true;
}

static int top(const struct vb_command *c, int argc, char **argv)
{
	struct wish w;
	SCREEN *screen;
	int status;

	if (!parse(&w, c, argc, argv))
		return VB_EXIT_SELF;
	if (w.batch || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO))
		return watch(&w, false);
	screen = newterm(NULL, stdout, stdin);
	if (!screen) {
		vb_say("this terminal, TERM=%s, is not known to terminfo. To print text: verbena top --batch",
		       getenv("TERM") ? getenv("TERM") : "");
		return VB_EXIT_SELF;
	}
	cbreak();
	noecho();
	curs_set(0);
	status = watch(&w, true);
	endwin();
	delscreen(screen);
	return status;
}

static const struct vb_option options[] = {
    {.name = "batch", .letter = 'b', .doc = "print text, also on a terminal"},
    {.name = "frames", .letter = 'n', .arg = "1..1000000", .doc = "end after so many frames"},
    {.name = "interval", .letter = 'd', .arg = "SECONDS", .doc = "time between two frames (default: 1)"},
};

const struct vb_command vb_top = {
    .name = "top",
    .brief = "show what your processes send and receive",
    .main = top,
    .usage = "[option ...]",
    .text = "Shows your processes that use Verbena: queue pairs, peers and memory, and messages and bytes "
	    "per second. "
	    "On a terminal it goes on until you type q. Otherwise it prints text.",
    .after = "Exit status: 0; 125 if verbena fails.",
    .example = "verbena top",
    .options = options,
    .noptions = sizeof options / sizeof *options,
};
