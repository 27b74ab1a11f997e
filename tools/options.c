#include "options.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "commit.h"
#include "tools.h"

enum { WIDTH = 79, COLUMN = 24 }; /* of lines; where the texts of options begin */

/* Every command has these. */
static const struct vb_option common[] = {
    {.name = "help", .letter = 'h', .doc = "print this help"},
    {.name = "version", .letter = 'V', .doc = "print the version and the commit"},
};
enum { COMMON = sizeof(common) / sizeof(*common) };

/* ---- help ---- */

/* One line of the text, from column `at` on. */
static unsigned put_words(const char *text, size_t len, unsigned at, unsigned indent)
{
	const char *end = text + len;
	bool first = true;

	while (text < end) {
		size_t n = 0;

		while (text + n < end && text[n] != ' ')
			n++;
		if (!first && at + 1 + n > WIDTH) {
			printf("\n%*s", (int)indent, "");
			at = indent;
		} else if (!first) {
			putchar(' ');
			at++;
		}
		printf("%.*s", (int)n, text);
		at += (unsigned)n;
		text += n + 1;
		first = false;
	}
	return at;
}

void vb_wrap(const char *text, unsigned indent)
{
	while (*text) {
		size_t len = strcspn(text, "\n");

		if (len)
			printf("%*s", (int)indent, "");
		put_words(text, len, indent, indent);
		printf("\n");
		text += len + (text[len] == '\n');
	}
}

static void print_option(const struct vb_option *o)
{
	char head[100], letter[8] = "";
	int n;

	if (o->letter)
		snprintf(letter, sizeof(letter), "-%c, ", o->letter);
	n = snprintf(head, sizeof(head), "  %s--%s%s%s%s%s", letter, o->name, o->optional ? "[" : "",
		     o->arg ? "=" : "", o->arg ? o->arg : "", o->optional ? "]" : "");
	printf("%s", head);
	if (n + 2 > COLUMN)
		printf("\n%*s", COLUMN, "");
	else
		printf("%*s", COLUMN - n, "");
	put_words(o->doc, strlen(o->doc), COLUMN, COLUMN);
	printf("\n");
}

void vb_options_print(const struct vb_option *options, size_t n)
{
	printf("\nOptions:\n");
	for (size_t i = 0; i < n; i++)
		print_option(&options[i]);
	for (size_t i = 0; i < COMMON; i++)
		print_option(&common[i]);
}

void vb_command_help(const struct vb_command *c)
{
	signal(SIGPIPE, SIG_DFL); /* a reader may have enough */
	printf("Usage: verbena %s %s\n\n", c->name, c->usage);
	vb_wrap(c->text, 0);
	vb_options_print(c->options, c->noptions);
	if (c->after) {
		printf("\n");
		vb_wrap(c->after, 0);
	}
	printf("\nExample:\n");
	vb_wrap(c->example, 2);
}

/* ---- what was meant ---- */

const char *vb_list_words(char *buf, size_t size, const char *names, const char *prefix)
{
	struct vb_text t = {buf, size};

	for (const char *at = names; *at;) {
		size_t n = strcspn(at, "|");

		vb_text_add(&t, "%s%s%.*s", at == names ? "" : ", ", prefix, (int)n, at);
		at += n + (at[n] == '|');
	}
	return buf;
}

const char *vb_near(char *buf, size_t size, const char *word, const char *names, const char *prefix)
{
	unsigned least = VB_TEXT_WORD;
	struct vb_text t = {buf, size};
	char best[VB_TEXT_WORD + 1] = "", name[VB_TEXT_WORD + 1];

	*buf = 0;
	for (const char *at = names; *at;) {
		size_t n = strcspn(at, "|");
		unsigned d;

		snprintf(name, sizeof(name), "%.*s", (int)n, at);
		d = vb_text_distance(word, strlen(word), name);
		if (d && *word && !strncmp(name, word, strlen(word)))
			d = 1; /* it was cut short */
		if (d < least) {
			least = d;
			memcpy(best, name, sizeof(best));
		}
		at += n + (at[n] == '|');
	}
	if (3 * least <= strlen(word) + 2)
		vb_text_add(&t, " Did you mean %s%s?", prefix, best);
	return buf;
}

/* ---- reading ---- */

static const struct vb_option *option_at(const struct vb_command *c, size_t i)
{
	return i < c->noptions ? &c->options[i] : i < c->noptions + COMMON ? &common[i - c->noptions] : NULL;
}

static void give_up(void) __attribute__((noreturn));
static void give_up(void)
{
	exit(VB_EXIT_SELF);
}

static void no_such_option(const struct vb_command *c, const char *dashes, const char *name)
{
	char names[1000] = "", near[100];
	struct vb_text t = {names, sizeof(names)};
	const struct vb_option *o;

	for (size_t i = 0; (o = option_at(c, i)); i++)
		vb_text_add(&t, "%s%s", i ? "|" : "", o->name);
	vb_say("\"verbena%s%s\" has no option %s%s.%s \"verbena help%s%s\" lists the options",
	       *c->name ? " " : "", c->name, dashes, name, vb_near(near, sizeof(near), name, names, "--"),
	       *c->name ? " " : "", c->name);
	give_up();
}

/* By its name, or by a beginning of it that no other has. */
static const struct vb_option *by_name(const struct vb_command *c, const char *name, size_t len)
{
	const struct vb_option *o, *found = NULL;
	unsigned n = 0;

	for (size_t i = 0; (o = option_at(c, i)); i++) {
		if (strncmp(o->name, name, len))
			continue;
		if (!o->name[len])
			return o;
		found = o;
		n++;
	}
	return n == 1 ? found : NULL;
}

static bool is_listed(const char *list, const char *word)
{
	size_t len = strlen(word);

	for (const char *at = list; at; at = strchr(at, '|'), at = at ? at + 1 : NULL)
		if (!strncmp(at, word, len) && (!at[len] || at[len] == '|'))
			return true;
	return false;
}

static bool is_number(const char *word, unsigned long min, unsigned long max)
{
	char *end;
	unsigned long v;

	errno = 0;
	v = strtoul(word, &end, 0);
	return !errno && !*end && *word != '-' && *word != '+' && *word != ' ' && min <= v && v <= max;
}

/* What the library would replace by the default, with a word in the log, is refused here.  So is an empty
 * value: it is mostly a variable of a script that has not been set. */
static void check_value(const struct vb_option *o, const char *value)
{
	const char *range = o->arg ? strstr(o->arg, "..") : NULL;
	char near[100], list[200];

	if (!o->arg)
		return;
	if (strchr(o->arg, '|') && !is_listed(o->arg, value)) {
		vb_say("--%s=%s is not valid.%s Valid values: %s", o->name, value,
		       vb_near(near, sizeof(near), value, o->arg, ""),
		       vb_list_words(list, sizeof(list), o->arg, ""));
		give_up();
	}
	if (range && !is_number(value, strtoul(o->arg, NULL, 0), strtoul(range + 2, NULL, 0))) {
		vb_say("--%s=%s is not valid. Valid values: numbers from %.*s to %s", o->name, value,
		       (int)(range - o->arg), o->arg, range + 2);
		give_up();
	}
	if (!*value) {
		vb_say("--%s= is not valid: its value is empty. Write --%s=%s, or leave the option out",
		       o->name, o->name, o->arg);
		give_up();
	}
}

/* A value that was left out would have the next word taken for it: `--pcap -- PROGRAM`, say. */
static const char *next_value(struct vb_words *w, const struct vb_option *o)
{
	const char *value = w->next < w->argc ? w->argv[w->next] : NULL;

	if (!value || !strncmp(value, "--", 2)) {
		if (value)
			vb_say("--%s needs a value, --%s=%s, but \"%s\" follows it. A value that begins with "
			       "\"--\" is "
			       "written --%s=%s",
			       o->name, o->name, o->arg, value, o->name, value);
		else
			vb_say("--%s needs a value: --%s=%s", o->name, o->name, o->arg);
		give_up();
	}
	w->next++;
	return value;
}

static void take(struct vb_words *w, const struct vb_option *o, const char *value)
{
	if (o == &common[0]) {
		vb_command_help(w->command);
		exit(0);
	}
	if (o == &common[1]) {
		printf("verbena " VB_VERSION "%s%s%s\n", *VB_COMMIT ? " (commit " : "", VB_COMMIT,
		       *VB_COMMIT ? ")" : "");
		exit(0);
	}
	if (value && !o->arg) {
		vb_say("--%s takes no value, but \"%s\" is given", o->name, value);
		give_up();
	}
	if (!value && o->arg)
		value = o->optional ? "on" : next_value(w, o);
	if (value)
		check_value(o, value);
	w->option = o;
	w->value = value;
}

static void read_long(struct vb_words *w, const char *name)
{
	size_t len = strcspn(name, "=");
	const struct vb_option *o = by_name(w->command, name, len);
	char word[100];

	if (!o) {
		snprintf(word, sizeof(word), "%.*s", (int)len, name);
		no_such_option(w->command, "--", word);
	}
	take(w, o, name[len] ? name + len + 1 : NULL);
}

static void read_letter(struct vb_words *w, const char *word)
{
	const struct vb_option *o;

	for (size_t i = 0; (o = option_at(w->command, i)); i++)
		if (o->letter && o->letter == word[1] && !word[2])
			break;
	if (!o)
		no_such_option(w->command, "", word);
	take(w, o, NULL);
}

enum vb_word vb_words_next(struct vb_words *w)
{
	const char *word;

	if (!w->next)
		w->next = 1;
	if (w->next == w->argc)
		return VB_WORDS_END;
	word = w->argv[w->next++];
	if (!w->all_word && !strcmp(word, "--")) {
		w->all_word = true;
		return vb_words_next(w);
	}
	if (w->all_word || *word != '-' || !word[1]) {
		w->value = word;
		return VB_WORDS_WORD;
	}
	if (word[1] == '-')
		read_long(w, word + 2);
	else
		read_letter(w, word);
	return VB_WORDS_OPTION;
}
