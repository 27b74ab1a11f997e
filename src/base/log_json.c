/* A sentence as an object of JSON in a line.  What is text in it reads as in a line of text: bytes that are
 * no UTF-8 or control a terminal are \xNN there, so any name makes valid JSON. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/log_line.h"
#include "base/log_self.h"
#include "base/text.h"

enum { END = sizeof("\"}\n"), ESCAPE = sizeof("\\\\xNN") - 1 };

/* The day of the Gregorian calendar; gmtime_r() takes a lock. */
static void add_date(struct vb_text *t, int64_t days)
{
	int64_t n = days + 719468, era, day, year,
		month; /* from 0000-03-01 on: the leap day is a year's last */

	era = n / 146097;
	day = n % 146097;
	year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
	day -= 365 * year + year / 4 - year / 100;
	month = (5 * day + 2) / 153;
	day -= (153 * month + 2) / 5;
	month += month < 10 ? 3 : -9;
	vb_text_add(t, "%04d-%02d-%02d", (int)(era * 400 + year + (month <= 2)), (int)month, (int)day + 1);
}

/* RFC 3339, which knows no seconds in an offset. */
static void add_time(struct vb_text *t, uint64_t when)
{
	long offset = vb_log_self_offset(when) / 60 * 60, east = offset < 0 ? -offset : offset;
	int64_t s = (int64_t)(when / 1000000000u) + offset;
	unsigned of_day = (unsigned)(s % (24 * 3600));

	add_date(t, s / (24 * 3600));
	vb_text_add(t, "T%02u:%02u:%02u.%03u%c%02ld:%02ld", of_day / 3600, of_day / 60 % 60, of_day % 60,
		    (unsigned)(when / 1000000u % 1000), offset < 0 ? '-' : '+', east / 3600, east / 60 % 60);
}

/* What does not fit is cut; characters, escapes and the line's end are whole. */
static void add_string(struct vb_text *t, const char *s)
{
	while (*s) {
		size_t n = vb_text_character(s);
		bool quoted = *s == '"' || *s == '\\';

		if ((n ? n + quoted : ESCAPE) + END > t->left)
			return;
		if (n)
			vb_text_add(t, "%s%.*s", quoted ? "\\" : "", (int)n, s);
		else
			vb_text_add(t, "\\\\x%02x", (uint8_t)*s);
		s += n ? n : 1;
	}
}

static void add_member(struct vb_text *t, const char *name, const char *s)
{
	vb_text_add(t, ",\"%s\":\"", name);
	add_string(t, s);
	vb_text_add(t, "\"");
}

/* The first object that the sentence names by its number. */
static void add_object(struct vb_text *t, const char *text)
{
	static const char *const kinds[] = {"QP", "SRQ", "CQ", "L_Key", "R_Key"};
	const char *first = NULL, *kind = NULL;

	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		char pattern[16];
		const char *at;

		snprintf(pattern, sizeof pattern, "%s 0x", kinds[i]);
		for (at = strstr(text, pattern); at && at > text && isalnum((unsigned char)at[-1]);
		     at = strstr(at + 1, pattern))
			; /* "XRCQP 0x" is none */
		if (at && (!first || at < first)) {
			first = at;
			kind = kinds[i];
		}
	}
	if (!first)
		return;
	first += strlen(kind) + 1;
	vb_text_add(t, ",\"object\":{\"kind\":\"%s\",\"number\":\"%.*s\"}", kind,
		    (int)(2 + strspn(first + 2, "0123456789abcdef")), first);
}

size_t vb_log_json_write(char *to, const struct vb_log_said *s)
{
	static const char *const levels[] = {"error", "warn", "info", "debug"};
	struct vb_text t = {to, VB_LOG_LINE};

	vb_text_add(&t, "{\"time\":\"");
	add_time(&t, s->when);
	vb_text_add(&t, "\",\"level\":\"%s\"", levels[s->level]);
	add_member(&t, "program", vb_log_self_program());
	vb_text_add(&t, ",\"pid\":%d", s->pid);
	if (s->kind[0])
		add_member(&t, s->err ? "call" : "reason", s->kind);
	if (s->err)
		vb_text_add(&t, ",\"errno\":\"%s\",\"errno_number\":%d",
			    strerrorname_np(s->err) ? strerrorname_np(s->err) : "?", s->err);
	add_object(&t, s->text);
	if (s->facts[0])
		vb_text_add(&t, ",\"facts\":%s", s->facts);
	add_member(&t, "text", s->text);
	vb_text_add(&t, "}\n");
	return (size_t)(t.at - to);
}
