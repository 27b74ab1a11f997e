/* What a line looks like: as text, on a terminal, as JSON; for any bytes in names. */
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <json-c/json.h>

#include "base/log_line.h"
#include "iba/facts.h"

static char line[VB_LOG_LINE + 1];

/* The line of a sentence, without its end, which is the only one. */
static const char *written(const struct vb_log_look *look, const struct vb_log_said *s)
{
	size_t n = vb_log_line_write(line, look, s);

	assert_in_range(n, 1, PIPE_BUF);
	assert_int_equal(line[n - 1], '\n');
	line[n - 1] = 0;
	assert_int_equal(strlen(line), n - 1);
	return line;
}

static json_object *object(const struct vb_log_said *s)
{
	static const struct vb_log_look look = {.json = true};
	struct json_tokener *t = json_tokener_new();
	const char *text = written(&look, s);
	json_object *o;

	assert_null(strchr(text, '\n'));
	json_tokener_set_flags(t, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
	o = json_tokener_parse_ex(t, text, (int)strlen(text) + 1);
	if (!o)
		fail_msg("%s in:\n%s", json_tokener_error_desc(json_tokener_get_error(t)), text);
	json_tokener_free(t);
	return o;
}

static const char *member(json_object *o, const char *name)
{
	json_object *m;

	return json_object_object_get_ex(o, name, &m) ? json_object_get_string(m) : "(none)";
}

static void a_refused_call_has_its_errno(void **state)
{
	struct vb_log_said s;
	json_object *o;

	(void)state;
	vb_log_said_begin(&s, VB_LOG_WARN, "ibv_reg_mr", EINVAL);
	snprintf(s.text, sizeof s.text, "ibv_reg_mr: length 0 (EINVAL)");
	o = object(&s);
	assert_string_equal(member(o, "level"), "warn");
	assert_string_equal(member(o, "call"), "ibv_reg_mr");
	assert_string_equal(member(o, "errno"), "EINVAL");
	assert_string_equal(member(o, "errno_number"), "22");
	assert_string_equal(member(o, "text"), "ibv_reg_mr: length 0 (EINVAL)");
	assert_string_equal(member(o, "reason"), "(none)");
	assert_string_equal(member(o, "object"), "(none)");
	assert_string_equal(member(o, "facts"), "(none)");
	assert_int_equal(atoi(member(o, "pid")), s.pid);
	json_object_put(o);
}

static void a_reason_has_its_object_and_facts(void **state)
{
	static const struct {
		const char *text, *kind, *number;
	} rows[] = {{"QP 0x834000: WRITE ended: R_Key 0x12", "QP", "0x834000"},
		    {"ibv_dereg_mr: L_Key 0x0000ab12, of it QP 0x1", "L_Key", "0x0000ab12"},
		    {"the region (R_Key 0x7) is stale", "R_Key", "0x7"},
		    {"XRCQP 0x12 of SRQ 0x3f", "SRQ", "0x3f"}};
	struct vb_log_said s;
	json_object *o, *it;

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		vb_log_said_begin(&s, VB_LOG_ERROR, "key-stale", 0);
		snprintf(s.text, sizeof s.text, "%s", rows[i].text);
		snprintf(s.facts, sizeof s.facts, "{\"len\":8}");
		o = object(&s);
		assert_string_equal(member(o, "level"), "error");
		assert_string_equal(member(o, "reason"), "key-stale");
		assert_string_equal(member(o, "errno"), "(none)");
		assert_true(json_object_object_get_ex(o, "object", &it));
		assert_string_equal(member(it, "kind"), rows[i].kind);
		assert_string_equal(member(it, "number"), rows[i].number);
		assert_true(json_object_object_get_ex(o, "facts", &it));
		assert_string_equal(member(it, "len"), "8");
		json_object_put(o);
	}
}

static void facts_are_an_object(void **state)
{
	const struct vb_facts bounds = {
	    .reason = VB_R_KEY_BOUNDS,
	    .qpn = 0x834000,
	    .key = 0x41f33733,
	    .addr = 0x1000,
	    .len = 16,
	    .mem = {.start = 0x1008, .size = 4096, .want = 2, .have = 6, .process = 77}};
	char json[VB_LOG_FACTS], small[40];
	struct vb_log_said s;
	json_object *o, *facts;

	(void)state;
	assert_string_equal(vb_facts_json(json, sizeof json, &bounds),
			    "{\"qpn\":\"0x834000\",\"key\":\"0x41f33733\",\"addr\":\"0x1000\",\"len\":16,"
			    "\"region_addr\":\"0x1008\",\"region_len\":4096,\"want\":\"REMOTE_WRITE\","
			    "\"have\":\"REMOTE_WRITE|REMOTE_READ\",\"process\":77}");
	assert_string_equal(vb_facts_json(small, sizeof small, &bounds), "");
	for (uint32_t r = 0; r < VB_REASONS + 1; r++) /* a peer may send any */
		for (int byte = 0; byte < 256; byte += 15) {
			struct vb_facts any;

			memset(&any, byte, sizeof any);
			any.reason = r;
			vb_log_said_begin(&s, VB_LOG_WARN, "any", 0);
			vb_facts_json(s.facts, sizeof s.facts, &any);
			assert_int_equal(s.facts[0], '{');
			assert_null(strstr(s.facts, "null"));
			o = object(&s);
			assert_true(json_object_object_get_ex(o, "facts", &facts));
			assert_true(json_object_is_type(facts, json_type_object));
			assert_true(byte == 0 || json_object_object_length(facts) >= 4);
			json_object_put(o);
		}
}

/* Each byte that is no character or controls a terminal is \xNN, in both forms. */
static void any_name_makes_valid_json(void **state)
{
	static const struct {
		const char *name, *shown;
	} rows[] = {
	    {"\"quoted\" and \\n", "\"quoted\" and \\n"},
	    {"\x1b[2J\n\t\x7f", "\\x1b[2J\\x0a\\x09\\x7f"},
	    {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\x8d", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\x8d"},
	    {"\xff\xfe", "\\xff\\xfe"},
	    {"\xc3", "\\xc3"},		/* cut */
	    {"\xc0\xaf", "\\xc0\\xaf"}, /* longer than it need be */
	    {"\xe0\x80\xaf", "\\xe0\\x80\\xaf"},
	    {"\xed\xa0\x80", "\\xed\\xa0\\x80"}, /* half of a pair */
	    {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
	    {"\xc2\x9b"
	     "1m",
	     "\\xc2\\x9b1m"}};
	static const struct vb_log_look plain;
	struct vb_log_said s;
	json_object *o;

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		vb_log_said_begin(&s, VB_LOG_WARN, rows[i].name, 0);
		snprintf(s.text, sizeof s.text, "%s", rows[i].name);
		o = object(&s);
		assert_string_equal(member(o, "text"), rows[i].shown);
		assert_string_equal(member(o, "reason"), rows[i].shown);
		json_object_put(o);
		assert_string_equal(strstr(written(&plain, &s), "]: ") + 3, rows[i].shown);
	}
}

/* A pipe takes 4096 bytes as a whole. */
static void a_long_text_is_cut_within(void **state)
{
	static const char *const pieces[] = {"\x01",	       "\"", "\\", "\xff", "\xf0\x9f\x90\x8d",
					     "ab\xe2\x82\xac", "x"};
	struct vb_log_said s;
	json_object *o;

	(void)state;
	for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
		for (size_t cut = 0; cut < 8; cut++) {
			char kind[VB_LOG_KIND + 1] = "";

			while (strlen(kind) + strlen(pieces[i]) < VB_LOG_KIND)
				strcat(kind, pieces[i]);
			vb_log_said_begin(&s, VB_LOG_WARN, kind, EINVAL);
			memset(s.facts, ' ', sizeof s.facts - 1);
			memcpy(s.facts, "{}", 2);
			s.facts[sizeof s.facts - 1] = 0;
			memset(s.text, 'c', cut);
			s.text[cut] = 0;
			while (strlen(s.text) + strlen(pieces[i]) < sizeof s.text)
				strcat(s.text, pieces[i]);
			o = object(&s);
			assert_string_equal(member(o, "call")[0] ? member(o, "errno") : "", "EINVAL");
			assert_true(strlen(member(o, "text")) >= 900);
			json_object_put(o);
		}
}

/* In a zone with an offset from UTC, of which the process has one only: that of main(). */
static void time_is_rfc_3339(void **state)
{
	struct vb_log_said s;
	char wanted[40];
	json_object *o;
	struct tm tm;

	(void)state;
	vb_log_said_begin(&s, VB_LOG_WARN, "", 0);
	for (int day = 0; day < 60000; day += 7) { /* until 2134 */
		uint64_t local = (uint64_t)day * 24 * 3600 + 23 * 3600 + 59 * 60 + 58;
		time_t t = (time_t)local;

		s.when = (local + 9 * 3600 + 1800) * 1000000000u + 7000000u;
		o = object(&s);
		strftime(wanted, sizeof wanted, "%Y-%m-%dT%H:%M:%S.007-09:30", gmtime_r(&t, &tm));
		assert_string_equal(member(o, "time"), wanted);
		json_object_put(o);
	}
}

static const char *const words =
    "QP 0x834000: fetch-and-add wr_id 0x1 ended with IBV_WC_REM_ACCESS_ERR: R_Key "
    "0x41f33733 does not permit REMOTE_ATOMIC caf\xc3\xa9 caf\xc3\xa9 caf\xc3\xa9 "
    "caf\xc3\xa9 caf\xc3\xa9 caf\xc3\xa9 caf\xc3\xa9 \x1b[0m";

static unsigned columns_of(const char *s)
{
	unsigned n = 0;

	for (; *s; s++)
		n += ((uint8_t)*s & 0xc0) != 0x80;
	return n;
}

static void a_terminal_gets_whole_words(void **state)
{
	static const struct vb_log_look plain;
	struct vb_log_look look = {.width = 0};
	struct vb_log_said s;
	char joined[VB_LOG_LINE];

	(void)state;
	vb_log_said_begin(&s, VB_LOG_WARN, "", 0);
	strcpy(s.text, words);
	for (look.width = 40; look.width < 300; look.width++) {
		unsigned lines = 0, before = 0;
		char *save = NULL;

		*joined = 0;
		written(&look, &s);
		for (char *l = strtok_r(line, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
			if (columns_of(l) > look.width)
				fail_msg("%u columns of %u: %s", columns_of(l), look.width, l);
			if (lines++) {
				char word[100] = "";

				assert_memory_equal(l, "    ", 4);
				assert_int_equal(sscanf(l, " %99s", word), 1);
				if (before + 1 + columns_of(word) <= look.width)
					fail_msg("%s of %u columns fits behind %u", word, look.width, before);
			}
			before = columns_of(l);
			strcat(strcat(joined, *joined ? " " : ""), l + (*joined ? 4 : 0));
		}
		assert_string_equal(joined, written(&plain, &s));
	}
	look.width = 20; /* the terminal does it better */
	assert_string_equal(joined, written(&look, &s));
	assert_null(strchr(joined, '\x1b'));
}

/* Who speaks has the colour of what it says; the sentence has none. */
static void colours_tell_the_level(void **state)
{
	static const struct vb_log_look plain;
	struct vb_log_look look = {.colours = true};
	char without[VB_LOG_LINE], *to, *end;
	struct vb_log_said s;

	(void)state;
	for (enum vb_log_level level = VB_LOG_ERROR; level <= VB_LOG_DEBUG; level++) {
		static const char *const begins[] = {"\x1b[1;31m", "\x1b[33m", "\x1b[1m", "\x1b[2m"};
		char *begin;

		vb_log_said_begin(&s, level, "", 0);
		strcpy(s.text, words);
		written(&look, &s);
		begin = strstr(line, begins[level]);
		end = strstr(line, "\x1b[0m");
		assert_true(begin && end && !strncmp(end - 2, "]:", 2));
		assert_memory_equal(begin + strlen(begins[level]), "verbena ", 8);
		to = without;
		for (const char *c = line; *c; c++) {
			if (*c == '\x1b')
				c += strcspn(c, "m");
			else
				*to++ = *c;
		}
		*to = 0;
		assert_string_equal(without, written(&plain, &s));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_refused_call_has_its_errno),
	    cmocka_unit_test(a_reason_has_its_object_and_facts),
	    cmocka_unit_test(facts_are_an_object),
	    cmocka_unit_test(any_name_makes_valid_json),
	    cmocka_unit_test(a_long_text_is_cut_within),
	    cmocka_unit_test(time_is_rfc_3339),
	    cmocka_unit_test(a_terminal_gets_whole_words),
	    cmocka_unit_test(colours_tell_the_level),
	};

	setenv("TZ", "XYZ9:30", 1);
	tzset();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
