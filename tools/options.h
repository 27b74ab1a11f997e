/* Command lines and help of the subcommands of `verbena`. */
#ifndef VB_TOOLS_OPTIONS_H
#define VB_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

struct vb_option {
	const char *name; /* without "--" */
	const char
	    *arg; /* NULL: it has no value.  With "|", the values that it may have; with "..", the numbers */
	const char *env; /* the variable of the environment that it sets; NULL: none */
	const char *doc;
	char letter;   /* 0: none */
	bool optional; /* without a value it is "on" */
};

struct vb_command {
	const char *name, *brief;
	int (*main)(const struct vb_command *c, int argc,
		    char **argv); /* argv[0] is the name; the exit status */
	const char *usage;	  /* what follows the name */
	const char *text;	  /* paragraphs in front of the options */
	const char *after;	  /* and behind them; NULL: nothing */
	const char *example;	  /* lines */
	const struct vb_option *options;
	size_t noptions;
};

/* Prints text, broken between words; each line of it is indented by so many columns. */
void vb_wrap(const char *text, unsigned indent);
void vb_options_print(const struct vb_option *options, size_t n);
void vb_command_help(const struct vb_command *c);

/* A command line that is read word by word. */
struct vb_words {
	const struct vb_command *command;
	int argc;
	char **argv;
	int next;      /* index of what is read next */
	bool all_word; /* "--" was read */
	const struct vb_option *option;
	const char *value;
};
enum vb_word { VB_WORDS_END, VB_WORDS_OPTION, VB_WORDS_WORD };

/* Reads the next word or option, with its value, into `option` and `value`.  --help and --version are carried
 * out.  What is wrong is said, with the right names; then, too, the process ends. */
enum vb_word vb_words_next(struct vb_words *w);

/* Adds " Did you mean NAME?" if one of the names is near; else nothing.  The list: separated by "|". */
const char *vb_near(char *buf, size_t size, const char *word, const char *names, const char *prefix);
/* "a, b, c" of "a|b|c" */
const char *vb_list_words(char *buf, size_t size, const char *names, const char *prefix);

#endif
